"""The posterior of a round in two steps: the fit, then the posterior of the batch; for arms in memory, streamed, or in shards.

The width of the coming batch depends on the effective dimension of the fit, and which streamed arms are kept on the width.
"""

from __future__ import annotations

from typing import TypeAlias

from sparse_bo.arms.columns import KernelColumns
from sparse_bo.arms.fit import ArmFit, arm_fit
from sparse_bo.arms.posterior import ArmPosterior, InMemoryPosterior, in_memory_posterior
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.sharded import ShardedFit, posterior_here, sharded_fit, sharded_posterior
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.streaming import streamed_posterior
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.lazy import LazyArms
from sparse_bo.domains.sharded import ShardedArms
from sparse_bo.gp.observations import Observations

Fitted: TypeAlias = InMemoryPosterior | ArmFit | ShardedFit
"""What a round's first step gives: the whole posterior of arms in memory, the fit alone of streamed ones, the fit and what this
rank knows of its own arms of those in shards."""


def fit_arms(
    prior: ArmPrior, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[Fitted, KernelColumns]:
    """Fit the posterior to the pulled arms; arms in memory are swept. O(n m² + m³), in memory plus O(a m (d + r)).

    Args:
        prior: The prior over the arms, in memory or streamed.
        observations: What was observed of arms (with indices); n = 0 gives the prior.
        dictionary: The m ≥ 1 points that span the approximation, arms or not.
        columns: Kernel columns evaluated before; used and grown for arms in memory.

    Returns:
        The fit, and the grown columns.
    """
    if isinstance(prior.arms, ShardedArms):
        return sharded_fit(prior, observations, dictionary, columns)
    if isinstance(prior.arms, LazyArms):
        return arm_fit(prior, observations, dictionary), columns
    return in_memory_posterior(prior, observations, dictionary, columns)


def arm_posterior(fitted: Fitted, *, width: float, stop_rule: StopRule) -> ArmPosterior:
    """Return the posterior that the coming batch is picked from. O(1) for arms in memory, one pass over streamed arms.

    Args:
        fitted: What :func:`fit_arms` gave.
        width: Multiplies √leverage in the coming batch's scores (y), ≥ 0.
        stop_rule: The rule that ends the coming batch.

    Raises:
        ValueError: If the arms are streamed and the rule is the local one.
    """
    if isinstance(fitted, ShardedFit):
        return sharded_posterior(fitted, width=width, stop_rule=stop_rule)
    return streamed_posterior(fitted, width=width, stop_rule=stop_rule) if isinstance(fitted, ArmFit) else fitted


def posterior_over_part(prior: ArmPrior, observations: Observations, dictionary: Dictionary) -> InMemoryPosterior:
    """Return the posterior over the arms that this process holds, fitted to all that was observed. O(n m² + a m (d + r)).

    Args:
        prior: The prior over the arms: in memory, or in shards that are.
        observations: What was observed of arms (with indices).
        dictionary: The m ≥ 1 points that span the approximation.

    Raises:
        ValueError: If the arms are streamed.
    """
    fitted, _ = fit_arms(prior, observations, dictionary, KernelColumns(prior.memory_bytes))
    return posterior_here(fitted)
