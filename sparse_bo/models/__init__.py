"""Models and how their hyper-parameters are learned."""

from sparse_bo.models.gradient_subset import gradient_subset
from sparse_bo.models.sparse_gp import SparseGP

__all__ = ["SparseGP", "gradient_subset"]
