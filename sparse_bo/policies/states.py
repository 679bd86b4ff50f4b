"""The state of a policy, and its report."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import Tensor

from sparse_bo.policies.failures import Correlation, Failures, among, equal, failed
from sparse_bo.policies.persistence import KEPT, kept

Phase = Literal["objective", "observe", "learn", "sample", "fit", "sweep", "pick"]
"""Evaluations; merging observations; hyper-parameters; the dictionary; the posterior (with its sweep, arms in memory);
the sweep of streamed arms; choosing a batch."""


class Stopwatch:
    """Seconds by phase of one update."""

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Add the time spent inside to ``name`` (wall clock; work on a GPU counts in the phase that synchronises)."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Report of a state in plain numbers: the best points and the size of the model."""

    best_index: int | None = None
    """Arm with the highest posterior mean (without a model: mean observation) among those with a success; ``None`` without
    data, or on a box."""
    best_mean: float | None = None
    """Posterior mean (mean observation) of the best arm; on a box, of the best evaluated point."""
    best_sd: float | None = None
    """Posterior standard deviation of the objective there; ``None`` without a model."""
    best_observed_index: int | None = None
    """Arm with the highest mean observation (a lucky arm seen once can win: prefer ``best_index`` under noise)."""
    best_observed_mean: float | None = None
    """Highest mean observation of an arm; on a box, mean of the observations where the highest one was made."""
    best_observed_count: int | None = None
    """Number of observations there."""
    dictionary_size: int | None = None
    """Points in the dictionary; ``None`` without a sparse model."""
    rank: int | None = None
    """Features after rank truncation."""
    jitter: float | None = None
    """Jitter on the diagonal of the dictionary's kernel matrix (y²)."""
    effective_dimension: float | None = None
    """``Σ count · leverage`` over the evaluated inputs."""
    width: float | None = None
    """Multiplier of √leverage in the next batch's scores (y)."""
    rkhs_norm: float | None = None
    """F in the width; ``None`` without one."""
    norm_at_least: float | None = None
    """Lower bound on the objective's RKHS norm from the results; ``None`` if it is not computed."""
    coverage: float | None = None
    """Share of the inputs of the newest complete batch with their mean result in the interval predicted before it, widened by
    the noise; ``None`` without such bounds."""
    promised: float | None = None
    """Smallest such share that the bounds allow."""
    refuted: str | None = None
    """Refutation of an elimination policy's certificate; ``None`` without one."""
    feasible: int | None = None
    """Number of evaluations that keep all limits; ``None`` with one outcome."""
    hypervolume: float | None = None
    """Volume between the front of the feasible evaluations and the reference point, in the product of the objectives' units;
    ``None`` with one objective."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report(Summary):
    """Report of a state with its points."""

    best_x: Tensor | None = None
    """``d``, the best arm; on a box, the evaluated point with the highest posterior mean."""
    best_observed_x: Tensor | None = None
    """``d``, the arm with the highest mean observation; on a box, the point with the highest observation."""
    survivors: Tensor | None = None
    """Arms (ascending) that can still be optimal, or candidates of a box (``… x d``); ``None`` without elimination."""
    front: Tensor | None = None
    """Rows of the feasible evaluations that no other one dominates, in the order of the state; ``None`` with one outcome."""
    reference: Tensor | None = None
    """Reference point of the hypervolume, one number for each objective (y); ``None`` with one objective."""


@dataclass(frozen=True, kw_only=True, eq=False)
class State(ABC):
    """The state of a policy between two batches, a frozen value."""

    round: int = field(default=0, metadata=KEPT)
    """Updates so far."""
    seconds: Mapping[Phase, float] = field(default_factory=dict)
    """Wall-clock seconds of the last update, by phase."""
    failures: Failures | None = field(default=None, metadata=kept(Failures))
    """Failures; ``None`` before the first."""

    @property
    @abstractmethod
    def pulls(self) -> int:
        """Successful evaluations so far."""

    @property
    @abstractmethod
    def succeeded(self) -> Tensor:
        """Picks with a success: arms, or ``n x d`` points."""

    @abstractmethod
    def report(self) -> Report:
        """Return the best points and the size of the model."""

    def without_results(self) -> Self:
        """Return the state after a batch without results."""
        return replace(self, round=self.round + 1, seconds={})

    def with_failures(self, picks: Tensor) -> Self:
        """Return the state after evaluations at ``picks`` (``q`` arms or ``q x d`` points) have failed."""
        return replace(self, failures=failed(self.failures, picks, pulls=self.pulls))

    def forgiven(self, picks: Tensor) -> Failures | None:
        """Return the failures after successes at ``picks``."""
        return None if self.failures is None else self.failures.forgiving(picks)

    def tried_once(self, picks: Tensor, *, pending: Tensor, correlation: Correlation | None = None) -> Tensor:
        """Return those of ``q`` picks to make, once evaluations have failed: none is tried twice before it succeeds."""
        if self.failures is None:
            return picks
        again = equal(picks, torch.cat([pending, picks]), correlation).tril(len(pending) - 1).any(dim=-1)
        return picks[among(picks, self.succeeded, correlation) | ~again]

    @abstractmethod
    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """Return the standardised errors of this state's predictions for results ``y`` (``q``) at ``picks``.

        Returns:
            ``q`` errors in predicted standard deviations, noise included; ``None`` without a model.
        """
