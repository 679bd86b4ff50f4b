"""Maximum-variance designs over a finite arm set: picks that depend on no observation, so any number can be planned ahead.

``x_j = argmax_x variance_{j−1}(x)`` (S-BPE §4.1 and Alg. 1, lines 5–10), with a sparse posterior of the picks before it.
Two things make thousands of picks cheap. Between two dictionaries the process is *conditioned* on the picks, so nothing but
the few arms with the highest bounds is recomputed (:mod:`sparse_bo.arms.batch`). And a dictionary that holds every pick gives
the exact posterior, as does conditioning: while the sampler would keep everything, resampling changes nothing and is skipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparse_bo.arms.batch import pick_batch
from sparse_bo.arms.posterior import arm_posterior, fit_arms
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.stop_rule import StopRule
from sparse_bo.arms.sweep import KernelColumns
from sparse_bo.dictionary import AllSampler, Dictionary, RecursiveRLSSampler, Sampler
from sparse_bo.dictionary.base import candidates_of
from sparse_bo.domains.sharded import first_here, group_of
from sparse_bo.gp.observations import Observations, add_observations, no_observations


@dataclass(frozen=True, kw_only=True, eq=False)
class Resampling:
    """Which dictionary a design uses, and when it takes a new one."""

    sampler: Callable[[int], Sampler]
    """The sampler after j picks: its confidence may depend on j (S-BPE: ``δ_j = 3δ/(π² B j²)``)."""
    ratio_threshold: float = 2.0
    """C̃ ≥ 1: a new dictionary once ``1 + Σ leverage`` of the picks since the last one exceeds C̃, which keeps every variance
    within a factor C̃ of what it was then; 1 takes one after every pick, as the paper does."""


@dataclass(frozen=True, eq=False)
class Design:
    """Arms to evaluate, chosen by posterior variance alone."""

    indices: Tensor
    """``q`` arms in order, repeats allowed."""
    observations: Observations
    """The same, merged, with results of zero."""
    dictionary: Dictionary
    """Sampled from all of them."""
    exact: bool
    """Whether the dictionary holds every distinct pick, so that the posterior is the exact GP's."""
    resparsifications: int
    """Dictionaries drawn (those that would have held everything included only where a sweep took place)."""

    @property
    def q(self) -> int:
        """Number of picks."""
        return len(self.indices)


def design(prior: ArmPrior, q: int, *, resampling: Resampling, generator: torch.Generator) -> Design:
    """Pick ``q`` arms, each the one with the highest posterior variance given those before it (S-BPE Alg. 1, lines 5–10).

    Ties go to the lowest index. While a dictionary holds every pick, the picks are exactly those of a full recomputation of
    the exact posterior. Cost per stretch of picks between two sweeps: O(a m (d + m) + m³) for m dictionary points, and O(1)
    arms touched per pick.

    Args:
        prior: Kernel, λ and precision, over arms in memory, or in shards that are; its mean plays no part.
        q: The number of picks, ≥ 1.
        resampling: The sampler of dictionaries, and when it draws a new one.
        generator: A CPU generator; only the sampler draws from it.
    """
    prior = replace(prior, prior_mean=0.0)
    arms = prior.arms
    observations = no_observations(arms)
    columns = KernelColumns(prior.memory_bytes)
    first = _first(prior)
    X = arms[first]
    dictionary = Dictionary(X, X.new_ones(1), first)  # without data any dictionary gives the prior
    picks: list[Tensor] = []
    left, drawn = q, 0
    while left > 0:
        fitted, columns = fit_arms(prior, observations, dictionary, columns)
        room = 0  # for so many more picks the posterior is exact and the sampler would keep it so
        if _spans(dictionary, observations):
            kept = _keeps_all_up_to(resampling.sampler(max(q - left, 1)))
            room = int(min(max(kept - observations.n, 0.0), 2**62))
        stop_rule = StopRule("global", math.inf if room else resampling.ratio_threshold)
        posterior = arm_posterior(fitted, width=1.0, stop_rule=stop_rule)
        batch = pick_batch(
            posterior,
            width=1.0,
            stop_rule=stop_rule,
            in_batch="process",
            max_q=min(left, prior.sizes.longest_stretch, room or left),
            max_rechecked=int(arms.shape[0] / prior.sizes.sweep_share),
        )
        picks.append(batch.indices)
        left -= len(batch.indices)
        observations = add_observations(observations, arms, batch.indices, X.new_zeros(len(batch.indices)))
        candidates = candidates_of(
            observations,
            posterior.leverages_at(observations.rows),
            covariance=prior.covariance,
            regularization=prior.regularization,
        )
        dictionary = resampling.sampler(q - left).sample(candidates, generator=generator)
        drawn += 1
    return Design(torch.cat(picks), observations, dictionary, _spans(dictionary, observations), drawn)


def _first(prior: ArmPrior) -> Tensor:
    """Return the arm of the highest prior variance, the first on ties, as one index."""
    variances, group = prior.here.variances, group_of(prior.arms)
    if group.size == 1:
        return variances.argmax().unsqueeze(0)
    place = int(variances.argmax()) if len(variances) else 0
    mine = float(variances[place]) if len(variances) else -math.inf
    told = group.objects("the highest prior variance", [mine, place + first_here(prior.arms)])
    _, first = max(told, key=lambda other: other[0])
    return torch.tensor([int(first)], device=prior.arms.device)


def _keeps_all_up_to(sampler: Sampler) -> float:
    """Return the number of distinct picks up to which a sampler is known to keep all of them; 0 if unknown."""
    if isinstance(sampler, AllSampler):
        return math.inf
    if isinstance(sampler, RecursiveRLSSampler):
        return -192.0 * math.log(sampler.failure_probability) if sampler.size is None else sampler.size
    return 0.0


def _spans(dictionary: Dictionary, observations: Observations) -> bool:
    """Return whether every distinct observed arm is in the dictionary."""
    if observations.n == 0:
        return True
    return dictionary.indices is not None and bool(torch.isin(observations.rows, dictionary.indices).all())
