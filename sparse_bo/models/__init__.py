"""Models and how their hyper-parameters are learned."""

from sparse_bo.models.conditioning import condition_on_all
from sparse_bo.models.gradient_subset import gradient_subset
from sparse_bo.models.sparse_gp import SparseGP
from sparse_bo.models.vecchia import VecchiaGP

__all__ = ["SparseGP", "VecchiaGP", "condition_on_all", "gradient_subset"]
