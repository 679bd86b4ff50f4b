"""Predictions of a state's model, and their errors on later results."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparse_bo.dictionary import Certificate
from sparse_bo.domains import ArmSet, Domain
from sparse_bo.errors import ResumeWarning
from sparse_bo.journal import Journal
from sparse_bo.policies import BanditState, Mechanism, Proposal, State, Wait
from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.improvement.policy import ImprovementState
from sparse_bo.policies.protocol import Frozen
from sparse_bo.policies.trust_region.state import RegionState
from sparse_bo.policies.trust_region.surrogate import FittedRegion
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.recorder import repeat
from sparse_bo.runs.records import domain_of, evaluations_of, policy_of, start_of

REPLAYED_SECONDS = 60.0
"""Limit of the model's seconds up to which a whole run is computed again."""


class Predictions(NamedTuple):
    """Marginal posterior of the noiseless objective at n inputs."""

    lower: Tensor
    """``n`` quantiles at 2.5 % (y)."""
    median: Tensor
    """``n`` (y)."""
    upper: Tensor
    """``n`` quantiles at 97.5 % (y)."""
    floor: float | None = None
    """Value (y) below which the model does not tell observations apart: quantiles below it are ``-inf``; ``None`` without."""


class Replayed(NamedTuple):
    """A recorded run, computed again."""

    domain: Domain
    state: State
    """State at the end of the journal."""
    certificate: Certificate | None
    residuals: list[float]
    """(result − mean predicted before it) / predicted standard deviation of a result, in order, of the
    results that were computed again."""
    differing: list[str]
    """Warnings of picks that differ from the recorded ones."""


def predictions_of(state: State, picks: Tensor) -> Predictions | None:
    """Return the marginal posterior of a state's model at picks (``n`` arms, or ``n x d`` points); ``None`` without one."""
    if isinstance(state, BanditState) and state.posterior is not None:
        posterior = state.posterior
        variance = posterior.leverages_at(picks) * posterior.prior.regularization
        return _normal(posterior.means_at(picks).double(), variance)
    if isinstance(state, RegionState) and state.fitted is not None:
        return _warped(state.fitted, state.box.to_unit(picks), state.y)
    if isinstance(state, ImprovementState) and state.surrogate is not None:
        return _warped(state.surrogate, state.unit[picks], state.y)
    if isinstance(state, BoxState) and state.model is not None:
        mean, variance = state.predicted(picks)
        return _normal(mean.detach().flatten(), variance.detach().flatten())
    return None


def _normal(mean: Tensor, variance: Tensor) -> Predictions:
    spread = 1.96 * variance.clamp_min(0.0).sqrt()
    return Predictions(mean - spread, mean, mean + spread)


def _warped(fitted: FittedRegion, U: Tensor, y: Tensor) -> Predictions:
    """Return the quantiles of a model of warped observations at ``n x d`` points of the unit cube, back in y.

    The model takes observations below the floor of its warping for observations of the floor. Where a quantile reaches the
    floor and some of ``y`` are below it, nothing bounds the objective from below.
    """
    at, warp = fitted.gp.moments(U), fitted.warp
    spread = 1.96 * at.variance.sqrt()
    floor = warp.floor if warp.floor is not None and bool((y < warp.floor).any()) else None

    def unwarped(t: Tensor) -> Tensor:
        if floor is None:
            return warp.inverse(t)
        return torch.where(t <= warp(y.min()), -torch.inf, warp.inverse(t))  # the lowest observation is warped to the floor

    return Predictions(unwarped(at.mean - spread), unwarped(at.mean), unwarped(at.mean + spread), floor)


class _Watched(Mechanism[Any]):
    """A mechanism that records the standardised errors of its model before each update."""

    def __init__(self, inner: Mechanism[Any]) -> None:
        self.inner, self.residuals = inner, []
        self.keeps_batch_open = inner.keeps_batch_open

    residuals: list[float]

    def init(self) -> Any:
        return self.inner.init()

    def ask(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        return self.inner.ask(state, max_q=max_q, pending=pending, generator=generator)

    def tell(self, state: Any, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> Any:
        found = state.standardised_errors(picks, y)
        if found is not None:
            self.residuals += [z for z in found.tolist() if math.isfinite(z)]
        return self.inner.tell(state, picks, y, generator=generator)

    def observe(self, state: Any, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> Any:
        return self.inner.observe(state, picks, y, generator=generator)

    def fail(self, state: Any, picks: Tensor) -> Any:
        return self.inner.fail(state, picks)

    def freeze(self, state: Any) -> Frozen | None:
        return self.inner.freeze(state)

    def thaw(self, frozen: Mapping[str, Any]) -> Any:
        return self.inner.thaw(frozen)


def replayed(path: str | Path, *, arms: ArmSet | None = None) -> Replayed:
    """Compute a recorded run again, also while it is being written; writes nothing. On the CPU.

    A run whose model took at most :data:`REPLAYED_SECONDS` is computed from its start, any other from its last snapshot.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of another format.
        ValueError: If arms are needed, or are not those of the run; or the policy cannot be rebuilt.
    """
    journal = Journal.read(path)
    engine = recorded_engine(journal, arms)
    watched = engine.mechanism = _Watched(engine.mechanism)
    differing = replay(engine, journal, from_start=_seconds(journal) <= REPLAYED_SECONDS)
    return Replayed(engine.domain, engine.state, engine.certificate(), watched.residuals, differing)


def recorded_engine(journal: Journal, arms: ArmSet | None) -> Engine:
    """Return the state machine of a recorded run before its first event, on the CPU. Errors: :func:`replayed`."""
    domain, policy = domain_of(journal, arms, "cpu", asking=False), policy_of(journal, None)
    return Engine(domain, policy, seed=journal.about["seed"], certify_every=None)


def replay(engine: Engine, journal: Journal, *, from_start: bool = False) -> list[str]:
    """Bring an engine to the end of a journal, from its last snapshot; return the warnings.

    Args:
        engine: Engine of :func:`recorded_engine`.
        journal: Journal of the run.
        from_start: Ignore snapshots.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", ResumeWarning)
        if from_start:
            for event in journal.events():
                engine.redo(event)
        else:
            start = start_of(journal, evaluations_of(journal))
            repeat(engine, start, journal.events(after=start.after))
    return [str(warning.message) for warning in caught]


def _seconds(journal: Journal) -> float:
    """Return the seconds of a run without its objective."""
    return sum(
        float(seconds)
        for row in journal.rows()[0]
        for phase, seconds in row.summary.get("seconds", {}).items()
        if phase != "objective"
    )
