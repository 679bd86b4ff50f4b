"""Trust regions on a box: a local model, expected improvement inside a region that follows the progress."""

from sparse_bo.policies.region.mechanism import RegionSearch
from sparse_bo.policies.region.policy import TrustRegion
from sparse_bo.policies.region.state import RegionState

__all__ = ["RegionSearch", "RegionState", "TrustRegion"]
