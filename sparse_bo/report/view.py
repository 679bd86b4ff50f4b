"""A run as plain columns: everything that figures and pages show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from sparse_bo.widths import Calibration

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Batches:
    """Columns of a run with one entry for each of ``b`` batches; NaN for a missing value."""

    sizes: Numbers
    """``b`` numbers of evaluations."""
    best_mean: Numbers
    """``b`` posterior means of the best point (y)."""
    best_sd: Numbers
    """``b`` posterior standard deviations there (y)."""
    best_observed_mean: Numbers
    """``b`` best mean observations (y)."""
    dictionary_size: Numbers
    """``b``; NaN without a sparse model."""
    effective_dimension: Numbers
    """``b``."""
    variance_factor: Numbers
    """``b`` certified factors between sparse and exact variance."""
    seconds: Mapping[str, Numbers]
    """``b`` seconds of each phase."""
    refuted: str | None = None
    """Refutation of the certificate."""
    refuted_after: int | None = None
    """Observations at which it was first refuted."""

    @property
    def evaluations(self) -> Numbers:
        """``b`` numbers of evaluations up to the end of each batch."""
        return np.add.accumulate(self.sizes)


@dataclass(frozen=True, eq=False)
class Slice:
    """The model along one input through the best point."""

    name: str
    values: Sequence[Any]
    """``n`` values of the input: numbers or names."""
    log: bool
    """Whether the input is on a logarithmic scale."""
    here: Any
    """Value of the input at the best point."""
    lower: Numbers
    """``n`` lower ends of the 95 % interval of the objective (y); ``-inf`` where the model has no lower bound."""
    median: Numbers
    """``n`` posterior medians (y); infinite beyond :attr:`floor`."""
    upper: Numbers
    """``n`` upper ends (y); ``inf`` where the model has no upper bound."""
    floor: float | None = None
    """Value (y) below which (in a run that minimises: above which) the model does not tell observations apart."""


@dataclass(frozen=True)
class Observation:
    """Mean of the evaluations at one point."""

    mean: float
    count: int
    at: Mapping[str, Any] = field(default_factory=dict)
    """The point, by name; ``"arm"`` is its number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RunView:
    """A run as plain columns, with one entry for each of ``n`` evaluations in order."""

    about: Mapping[str, Any]
    """Description of the run: policy, domain, seed, versions."""
    batches: Batches
    asked: int
    succeeded: int
    failed: int
    values: Numbers
    """``n`` results (y), NaN where an evaluation failed."""
    names: Sequence[str]
    """Inputs."""
    columns: Mapping[str, Sequence[Any]]
    """``n`` values of each input; empty where they are unknown."""
    logs: Mapping[str, bool]
    """Inputs on a logarithmic scale."""
    best: Mapping[str, Any]
    """The best point by name; empty without one."""
    best_mean: float | None
    best_interval: tuple[float, float] | None
    """95 % interval of the objective at the best point (y), perhaps without an end; ``None`` without a model."""
    best_observed: Observation | None
    slices: Sequence[Slice]
    importance: Mapping[str, float] = field(default_factory=dict)
    """Share of each input in the variance of the posterior mean, the largest first; empty without a model."""
    importance_by: str = ""
    """Computation of the shares, in words."""
    computed: bool = True
    """Whether the state was there, or computed again: else neither model nor best point is known."""
    widened: float = 1.0
    """Factor between the intervals of the slices and the model's, which were too narrow in cross-validation."""
    variance_factor: float | None
    """Certified factor between sparse and exact variance now; ``None`` without a certificate."""
    residuals: Numbers = field(default_factory=lambda: np.zeros(0))
    """Standardised errors of predictions made before the results; none in memory."""
    calibration: Calibration | None = None
    """Calibration of all predictions made before the results; ``None`` without any."""
    added: int = 0
    """Observations that the run has not asked for, among the evaluations."""
    unseen: int = 0
    """Finished evaluations since the last update, in none of the columns."""
    distinct: int | None = None
    """Number of distinct arms evaluated; ``None`` on a box."""
    best_index: int | None = None
    """The best arm; ``None`` on a box."""
    guarantees: Mapping[str, str] = field(default_factory=dict)
    """Findings of a policy's bounds, by name."""
    differing: Sequence[str] = ()
    """Warnings of picks that differ from those in the journal."""
    missing: str | None = None
    """Reason for which the model could not be computed; ``None`` without one."""
    regret: Numbers | None = None
    """``n`` differences from the best possible value (y); ``None`` where it is unknown."""
    source: str | None = None
    """File name of the journal."""

    @property
    def minimize(self) -> bool:
        """Whether the lowest value is the best one."""
        return bool(self.about.get("minimize", False))

    @property
    def merit(self) -> Numbers:
        """``n`` results, those of a run that minimises with the other sign: higher is better."""
        return -self.values if self.minimize else self.values


def visible(text: object) -> str:
    r"""Return a text with control characters written out, ``\x1b`` for an escape."""
    return "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in str(text))


def number(value: float | None, digits: int = 4) -> str:
    """Return a number in few digits, thousands parted; a dash for none."""
    if value is None or value != value:
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def cell(value: Any, digits: int = 5) -> str:
    """Return the value of an input: a number in few digits, anything else as it is."""
    return number(value, digits) if isinstance(value, float) else str(value)
