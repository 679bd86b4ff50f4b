"""Posteriors over finite arm sets, in memory or streamed, and the exact greedy picks of a batch.

A round: :func:`fit_arms` fits the DTC posterior of an :class:`ArmPrior` to the pulled arms, :func:`arm_posterior` makes what a
batch is picked from, :func:`pick_batch` picks it until a :class:`StopRule` ends it.
"""

from sparse_bo.arms.batch import BatchPicks, pick_batch
from sparse_bo.arms.conditioning import InBatch
from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.arms.posterior import ArmFit, InMemoryPosterior, arm_fit, in_memory_posterior
from sparse_bo.arms.prior import ArmPrior, prior_variances
from sparse_bo.arms.resparsification import (
    ArmPosterior,
    ContenderPosterior,
    arm_posterior,
    fit_arms,
    posterior_here,
    posterior_over_part,
)
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.sweep import KernelColumns

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
    "arm_fit",
    "arm_posterior",
    "fit_arms",
    "in_memory_posterior",
    "pick_batch",
    "posterior_here",
    "posterior_over_part",
    "prior_variances",
]
