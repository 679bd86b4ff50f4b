"""SparseGP: a drop-in for BoTorch's SingleTaskGP on a dictionary."""

from sparse_bo.models.sparse_gp.single_task import SparseGP

__all__ = ["SparseGP"]
