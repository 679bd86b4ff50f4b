"""Posteriors over arms in shards: every rank sweeps the arms that it holds, and all pick from the contenders of all.

The fit needs the pulled arms and the dictionary alone, which every rank has. The sweep is local. What is gathered are the arms
that can win (:mod:`sparse_bo.arms.contenders`), by the argument of :mod:`sparse_bo.arms.streaming`, so the picks are those of
one process with all arms, whatever the number of ranks; every rank makes them from the same numbers.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

from torch import Tensor

from sparse_bo.arms.columns import KernelColumns, StoredColumns
from sparse_bo.arms.conditioning import Conditioner
from sparse_bo.arms.contenders import STEP, Contenders, Part, Refusal, Scan, gathered, scan
from sparse_bo.arms.fit import ArmFit, arm_fit, evaluator_of
from sparse_bo.arms.posterior import ArmPosterior, InMemoryPosterior
from sparse_bo.arms.prior import ArmPrior
from sparse_bo.arms.stopping import StopRule
from sparse_bo.arms.streaming import PosteriorOfContenders, capacity, streamed_moments
from sparse_bo.arms.sweep import sweep
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.sharded import ShardedArms
from sparse_bo.gp import dtc
from sparse_bo.gp.observations import Observations
from sparse_bo.linalg.chunking import shrinking
from sparse_bo.sharding import Group


@dataclass(frozen=True, eq=False)
class ShardedFit:
    """A posterior over arms in shards, fitted to the pulled arms, and swept over those of this rank if they are in memory."""

    fit: ArmFit
    """The same on every rank."""
    local: InMemoryPosterior | None
    """Over the arms that this rank holds; ``None`` where these are streamed."""

    @property
    def prior(self) -> ArmPrior:
        """The prior over all arms."""
        return self.fit.prior

    @property
    def state(self) -> dtc.DTC:
        """The factors of the posterior."""
        return self.fit.state

    @property
    def effective_dimension(self) -> float:
        """``Σ count · leverage`` over the pulled arms."""
        return self.fit.effective_dimension

    def leverages_at(self, indices: Tensor) -> Tensor:
        """Return the leverages of some arms (``q``), the same on every rank, in float64. O(q m (d + r))."""
        return self.fit.leverages_at(indices)

    def means_at(self, indices: Tensor) -> Tensor:
        """Return the means (y) of some arms (``q``), the same on every rank. O(q m (d + r))."""
        return self.fit.means_at(indices)


def sharded_fit(
    prior: ArmPrior, observations: Observations, dictionary: Dictionary, columns: KernelColumns
) -> tuple[ShardedFit, KernelColumns]:
    """Fit the posterior to the pulled arms, and sweep this rank's arms. O(n m² + m³ + a_r m (d + r)), nothing sent.

    Args:
        prior: The prior over :class:`sparse_bo.domains.ShardedArms`.
        observations: What was observed of arms (with indices).
        dictionary: The m ≥ 1 points that span the approximation.
        columns: Kernel columns over this rank's arms; used and grown if they fit.

    Returns:
        The fit, and the grown columns.
    """
    fit, arms = arm_fit(prior, observations, dictionary), _shards(prior)
    if not arms.in_memory:
        return ShardedFit(fit, None), columns

    def attempt(memory_bytes: int) -> tuple[InMemoryPosterior, KernelColumns]:
        if memory_bytes == prior.memory_bytes:
            return _swept(fit, columns)
        columns.given_up()
        return _swept(replace(fit, prior=replace(prior, memory_bytes=memory_bytes)), KernelColumns(memory_bytes))

    with arms.group.shielded(STEP):
        local, columns = shrinking(attempt, memory_bytes=prior.memory_bytes)
    return ShardedFit(fit, local), columns


def _swept(fit: ArmFit, columns: KernelColumns) -> tuple[InMemoryPosterior, KernelColumns]:
    """Sweep the arms that this rank holds in memory."""
    prior, dictionary = fit.prior.here, fit.dictionary
    part, chosen = prior.in_memory[0], dictionary.indices
    stored: StoredColumns | None = None
    if chosen is not None and len(part) and columns.fits(dictionary.m, part):
        columns = columns.grown(prior.covariance, part, chosen, points=dictionary.points)
        stored = columns.of(chosen)
    # κ² and with it the form that is evaluated are those of all arms.
    evaluate = evaluator_of(fit.prior, fit.state, fit.form, precision=prior.sweep_dtype)
    means, leverages, errors = sweep(prior, dictionary, stored, evaluate)
    return InMemoryPosterior(replace(fit, prior=prior), means, leverages, errors, stored), columns


def _shards(prior: ArmPrior) -> ShardedArms:
    assert isinstance(prior.arms, ShardedArms)
    return prior.arms


@dataclass(frozen=True, eq=False)
class ShardedPosterior(PosteriorOfContenders):
    """The posterior over arms in shards; the contenders are those of all ranks.

    Whatever is asked of it is asked on every rank, and every rank gets the same answer.
    """

    local: InMemoryPosterior | None
    """Over the arms that this rank holds; ``None`` where these are streamed."""

    @property
    def group(self) -> Group:
        """The ranks."""
        return _shards(self.prior).group

    def contenders_after(
        self, conditioner: Conditioner, *, width: float, stop_rule: StopRule, refuse: Refusal | None = None
    ) -> Contenders:
        """See :class:`ArmPosterior`. A pass of every rank over its arms, and one gathering: O(a_r m (d + r))."""
        arms = _shards(self.prior)
        if conditioner.in_batch == "process":  # its picks need not be among the contenders any more
            arms.cache(conditioner.picked)
        with arms.group.shielded(STEP), arms.alone():
            indices, upper, floor = self.highest_now(conditioner, self.prior.here, first=arms.start, refuse=refuse)
            open_ = upper > -math.inf  # nothing is left out for a low score
            found = Scan(indices[open_], upper[open_], floor, -math.inf, self.contenders.extremes)
        contenders = gathered(arms, found, fingerprint=_fingerprint(self.fit))
        assert contenders.indices is not None
        if not len(contenders.indices):  # every arm is refused
            return self.contenders_after(conditioner, width=width, stop_rule=stop_rule)
        return replace(contenders, extremes=self.contenders.extremes)


def sharded_posterior(fitted: ShardedFit, *, width: float, stop_rule: StopRule) -> ShardedPosterior:
    """Gather the arms of all ranks that can be picked in the coming batch. Three collectives; streamed arms are swept first.

    Args:
        fitted: A fit over arms in shards.
        width: Multiplies √leverage in the coming batch's scores (y), ≥ 0.
        stop_rule: The rule that ends the coming batch.

    Raises:
        ValueError: If the rule is the local one and arms are streamed.
        RankError: If a rank has failed or is lost.
    """
    fit, arms, local = fitted.fit, _shards(fitted.prior), fitted.local
    if stop_rule.kind == "local" and local is None:
        raise ValueError(
            "stop_rule='local' keeps a ratio for every arm, but this rank's arms do not fit into memory_bytes; "
            "use stop_rule='global', more ranks, or raise memory_bytes until they do"
        )

    def attempt(memory_bytes: int) -> Scan:
        prior = replace(fit.prior.here, memory_bytes=memory_bytes)
        if local is not None:
            whole: Part = (0, local.means, local.leverages, local.leverage_errors)
            parts = iter([whole] if len(local.means) else [])
        else:
            parts = streamed_moments(fit, prior)
        like = fit.observed_leverages
        return scan(parts, width=width, shrink=stop_rule.largest_ratio, capacity=capacity(memory_bytes), like=like)

    with arms.group.shielded(STEP):
        found = shrinking(attempt, memory_bytes=fit.prior.memory_bytes)
    found = found._replace(indices=found.indices + arms.start)
    contenders = gathered(arms, found, fingerprint=_fingerprint(fit))
    return ShardedPosterior(fit, local=local, width=width, stop_rule=stop_rule, contenders=contenders)


def _fingerprint(fit: ArmFit) -> float:
    """Return a fingerprint of a posterior from its dictionary and the weights of its mean, to the last bit."""
    parts = [fit.dictionary.points, fit.form.alpha, fit.observed_leverages]
    data = b"".join(part.detach().cpu().numpy().tobytes() for part in parts)
    return float(int.from_bytes(hashlib.blake2b(data, digest_size=6).digest(), "big"))


def posterior_here(posterior: ArmPosterior | ArmFit | ShardedFit) -> InMemoryPosterior:
    """Return the posterior over the arms of this process: all of them, or those of its rank.

    Raises:
        ValueError: If they are streamed.
    """
    found = posterior.local if isinstance(posterior, (ShardedPosterior, ShardedFit)) else posterior
    if not isinstance(found, InMemoryPosterior):
        raise ValueError("expected arms in memory, got arms that are streamed; only BBKB and BKB stream them")
    return found
