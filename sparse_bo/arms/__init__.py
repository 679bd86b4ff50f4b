"""Posteriors over finite arm sets, in memory or streamed, and the exact greedy picks of a batch.

A round: :func:`fit_arms` fits the DTC posterior of an :class:`ArmPrior` to the pulled arms, :func:`arm_posterior` makes what a
batch is picked from, :func:`pick_batch` picks it until a :class:`StopRule` ends it.
"""

from sparse_bo.arms.batch import BatchPicks, pick_batch
from sparse_bo.arms.columns import KernelColumns
from sparse_bo.arms.conditioning import InBatch
from sparse_bo.arms.fit import ArmFit, arm_fit
from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.arms.posterior import ArmPosterior, InMemoryPosterior, in_memory_posterior
from sparse_bo.arms.prior import ArmPrior, prior_variances
from sparse_bo.arms.resparsification import Fitted, arm_posterior, fit_arms, posterior_over_part
from sparse_bo.arms.sharded import ShardedFit, ShardedPosterior, posterior_here
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.streaming import StreamedPosterior, streamed_posterior

__all__ = [
    "PRECISIONS",
    "ArmFit",
    "ArmPosterior",
    "ArmPrior",
    "BatchPicks",
    "Fitted",
    "InBatch",
    "InMemoryPosterior",
    "KernelColumns",
    "ShardedFit",
    "ShardedPosterior",
    "StopRule",
    "StreamedPosterior",
    "arm_fit",
    "arm_posterior",
    "fit_arms",
    "in_memory_posterior",
    "pick_batch",
    "posterior_here",
    "posterior_over_part",
    "prior_variances",
    "streamed_posterior",
]
