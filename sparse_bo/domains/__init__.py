"""Domains: boxes, and arms in memory, in a file or of a product grid."""

from sparse_bo.domains.arms import Arms
from sparse_bo.domains.base import Domain
from sparse_bo.domains.box import Box
from sparse_bo.domains.given import check_domain
from sparse_bo.domains.grid import ProductGrid
from sparse_bo.domains.lazy import ArmSet, LazyArms
from sparse_bo.domains.memmap import MemmapArms
from sparse_bo.domains.sharded import ShardedArms

__all__ = ["ArmSet", "Arms", "Box", "Domain", "LazyArms", "MemmapArms", "ProductGrid", "ShardedArms", "check_domain"]
