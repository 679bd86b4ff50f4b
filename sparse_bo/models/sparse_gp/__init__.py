"""Exact GPs of BoTorch over a dictionary: SparseGP and its siblings for categories, tasks and fidelities."""

from sparse_bo.models.sparse_gp.mixed import SparseMixedGP
from sparse_bo.models.sparse_gp.multi_fidelity import SparseMultiFidelityGP
from sparse_bo.models.sparse_gp.multi_task import SparseMultiTaskGP
from sparse_bo.models.sparse_gp.sharded import ShardedSparseGP
from sparse_bo.models.sparse_gp.single_task import SparseGP

__all__ = ["ShardedSparseGP", "SparseGP", "SparseMixedGP", "SparseMultiFidelityGP", "SparseMultiTaskGP"]
