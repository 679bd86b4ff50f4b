"""Gaussian processes for large data, and learning their hyper-parameters from few rows of it."""

from sparse_bo.models.ax import register_with_ax
from sparse_bo.models.gradient_subset import gradient_subset
from sparse_bo.models.row_fit import fit_to_rows
from sparse_bo.models.sparse_gp.mixed import SparseMixedGP
from sparse_bo.models.sparse_gp.multi_fidelity import SparseMultiFidelityGP
from sparse_bo.models.sparse_gp.multi_task import SparseMultiTaskGP
from sparse_bo.models.sparse_gp.sharded import ShardedSparseGP
from sparse_bo.models.sparse_gp.single_task import SparseGP
from sparse_bo.models.vecchia import VecchiaGP

__all__ = [
    "ShardedSparseGP",
    "SparseGP",
    "SparseMixedGP",
    "SparseMultiFidelityGP",
    "SparseMultiTaskGP",
    "VecchiaGP",
    "fit_to_rows",
    "gradient_subset",
    "register_with_ax",
]
