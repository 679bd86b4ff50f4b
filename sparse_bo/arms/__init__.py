"""Finite arm sets: the posterior swept over all arms, and the exact greedy picks inside a batch."""

from sparse_bo.arms.batch import BatchPicks, pick_batch
from sparse_bo.arms.columns import KernelColumns
from sparse_bo.arms.posterior import ArmPosterior, Surrogate, arm_posterior
from sparse_bo.arms.stopping import StopRule

__all__ = [
    "ArmPosterior",
    "BatchPicks",
    "KernelColumns",
    "StopRule",
    "Surrogate",
    "arm_posterior",
    "pick_batch",
]
