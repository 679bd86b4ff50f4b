"""Trust regions on a box: a local GP and log expected improvement, after TuRBO (Eriksson et al. 2019)."""

from sparse_bo.policies.trust_region.policy import RegionSearch, TrustRegion
from sparse_bo.policies.trust_region.region import RegionState

__all__ = ["RegionSearch", "RegionState", "TrustRegion"]
