"""Models and how their hyper-parameters are learned."""

from sparse_bo.models.sparse_gp import SparseGP

__all__ = ["SparseGP"]
