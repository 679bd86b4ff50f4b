"""Gaussian processes for large data, and hyper-parameters learned from few rows of it."""

from sparse_bo.models.gradient_subset import fit_to_rows, gradient_subset
from sparse_bo.models.sparse_gp.base import SparseModel, SparseSettings
from sparse_bo.models.sparse_gp.joint_root import JointSettings
from sparse_bo.models.sparse_gp.learning import LearningSettings
from sparse_bo.models.sparse_gp.leverage_sampling import DictionarySettings
from sparse_bo.models.sparse_gp.model_list import SparseModelListGP
from sparse_bo.models.sparse_gp.pruning import prune_baseline
from sparse_bo.models.sparse_gp.refinement import RefinementSettings
from sparse_bo.models.sparse_gp.row_sums import Summation
from sparse_bo.models.sparse_gp.sharded import ShardedSparseGP
from sparse_bo.models.sparse_gp.sparse_gp import (
    SparseGP,
    SparseMixedGP,
    SparseMultiFidelityGP,
    SparseMultiTaskGP,
    register_with_ax,
)
from sparse_bo.models.sparse_gp.triangular import ProductSizes
from sparse_bo.models.vecchia import VecchiaGP

__all__ = [
    "DictionarySettings",
    "JointSettings",
    "LearningSettings",
    "ProductSizes",
    "RefinementSettings",
    "ShardedSparseGP",
    "SparseGP",
    "SparseMixedGP",
    "SparseModel",
    "SparseModelListGP",
    "SparseMultiFidelityGP",
    "SparseMultiTaskGP",
    "SparseSettings",
    "Summation",
    "VecchiaGP",
    "fit_to_rows",
    "gradient_subset",
    "prune_baseline",
    "register_with_ax",
]
