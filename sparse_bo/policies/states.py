"""What every policy's state between two batches is asked for, and what it reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor

from sparse_bo.policies.failures import (
    Failures,
    failed,
)
from sparse_bo.policies.timing import Phase


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What is worth telling of a state in plain numbers: how good the best points are, and the size of the model."""

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
    """What was added to the diagonal of the dictionary's kernel matrix (y²)."""
    effective_dimension: float | None = None
    """``Σ count · leverage`` over what was evaluated."""
    width: float | None = None
    """Multiplier of √leverage in the next batch's scores (y)."""
    rkhs_norm: float | None = None
    """F in the width; ``None`` where it has none."""
    norm_at_least: float | None = None
    """The objective's RKHS norm is at least this, as the results show; ``None`` where that is not looked at."""
    coverage: float | None = None
    """Of the inputs evaluated in the newest complete batch, the share whose mean result lies in the interval that the bounds
    promised before it, widened by the noise; ``None`` where there are no such bounds."""
    promised: float | None = None
    """What they promise: at least this share."""
    refuted: str | None = None
    """What refutes the certificate of a policy that eliminates; ``None``: nothing has."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Report(Summary):
    """What is worth telling of a state, with the points themselves."""

    best_x: Tensor | None = None
    """``d``, the best arm; on a box, the evaluated point with the highest posterior mean."""
    best_observed_x: Tensor | None = None
    """``d``, the arm with the highest mean observation; on a box, the point with the highest observation."""
    survivors: Tensor | None = None
    """Arms (ascending) that can still be optimal, or candidates of a box (``… x d``); ``None`` where nothing is eliminated."""


class State(Protocol):
    """A frozen value with everything a policy knows. Policies with more to remember bring their own."""

    @property
    def round(self) -> int:
        """Batches told so far."""
        ...

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        ...

    @property
    def seconds(self) -> Mapping[Phase, float]:
        """Wall-clock seconds of the last update, by phase."""
        ...

    def without_results(self) -> State:
        """Return the state after a batch of which nothing came back."""
        ...

    def report(self) -> Report:
        """Return the best points and the size of the model."""
        ...

    def standardised_errors(self, picks: Tensor, y: Tensor) -> Tensor | None:
        """Return how far results ``y`` (``q``) at ``picks`` are from what this state predicts of them.

        Returns:
            ``q`` errors in predicted standard deviations, noise included; ``None`` without a model.
        """
        ...


class Failing(Protocol):
    """A state, a data class, that remembers failures."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def failures(self) -> Failures | None:
        """What has failed so far."""
        ...

    @property
    def pulls(self) -> int:
        """Successful evaluations so far."""
        ...


E = TypeVar("E", bound=Failing)


def with_failures(state: E, picks: Tensor) -> E:
    """Return the state after evaluations at ``picks`` (``q`` arms or ``q x d`` points) have failed."""
    return replace(state, failures=failed(state.failures, picks, pulls=state.pulls))
