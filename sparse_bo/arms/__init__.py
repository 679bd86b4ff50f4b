"""Posteriors over finite arm sets, in memory or streamed, and the exact greedy picks of a batch.

A round: :func:`fit_arms` fits the DTC posterior of an :class:`ArmPrior` to the pulled arms, :func:`arm_posterior` bounds the
scores for a batch, :func:`pick_batch` picks it until a :class:`StopRule` ends it.
"""

from sparse_bo.arms.batch import BatchPicks, pick_batch
from sparse_bo.arms.in_batch import InBatch
from sparse_bo.arms.posterior import (
    ArmFit,
    ArmPosterior,
    ContenderPosterior,
    InMemoryPosterior,
    arm_posterior,
    fit_arms,
    posterior_over_part,
)
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.stop_rule import StopRule
from sparse_bo.arms.sweep import PRECISIONS, KernelColumns

__all__ = [
    "PRECISIONS",
    "ArmFit",
    "ArmPosterior",
    "ArmPrior",
    "BatchPicks",
    "ContenderPosterior",
    "InBatch",
    "InMemoryPosterior",
    "KernelColumns",
    "StopRule",
    "arm_posterior",
    "fit_arms",
    "pick_batch",
    "posterior_over_part",
]
