"""Exact GPs of BoTorch over a dictionary: SparseGP and its siblings for categories, tasks and fidelities."""

from sparse_bo.models.sparse_gp.lists import SparseModelListGP
from sparse_bo.models.sparse_gp.pruning import prune_baseline
from sparse_bo.models.sparse_gp.sharded import ShardedSparseGP
from sparse_bo.models.sparse_gp.siblings import SparseMixedGP, SparseMultiFidelityGP, SparseMultiTaskGP
from sparse_bo.models.sparse_gp.single_task import SparseGP

__all__ = [
    "ShardedSparseGP",
    "SparseGP",
    "SparseMixedGP",
    "SparseModelListGP",
    "SparseMultiFidelityGP",
    "SparseMultiTaskGP",
    "prune_baseline",
]
