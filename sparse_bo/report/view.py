"""A run as plain columns: everything that figures and pages show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

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
    outcome: str = ""
    """Name of the outcome, of several."""
    brought: Sequence[Mapping[str, Any]] = ()
    """``n`` times the inputs that a value brings and the best point does not have, by name; empty: no value brings one."""


@dataclass(frozen=True)
class Observation:
    """Mean of the evaluations at one point."""

    mean: float
    count: int
    at: Mapping[str, Any] = field(default_factory=dict)
    """The point, by name; ``"arm"`` is its number."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OutcomeColumns:
    """Several outcomes of a run, with an entry for each of ``n`` evaluations in order."""

    directions: Mapping[str, str]
    """``"max"`` or ``"min"`` of each objective."""
    limits: Mapping[str, tuple[float | None, float | None]]
    """Lower and upper limit of each constrained outcome."""
    values: Mapping[str, Numbers]
    """``n`` results of each outcome, objectives first; NaN: missing."""
    violations: Mapping[str, Numbers]
    """``n`` distances of each constrained outcome from its limits, 0 within them; NaN: missing."""
    total_violation: Numbers
    """``n`` sums of the violations in units of the outcomes' standard deviations; infinite where an outcome is missing."""
    feasible: NDArray[np.bool_]
    """``n``: whether all objectives are there, and all limits are kept."""
    front: Sequence[int]
    """Feasible evaluations that no other one dominates, by the first objective, the best first; of one objective the best."""
    entered: NDArray[np.bool_]
    """``n``: whether the evaluation was feasible, and no earlier one dominated it."""
    reference: Mapping[str, float] = field(default_factory=dict)
    """Reference point of the hypervolume, by objective; empty with one objective, and without a feasible evaluation."""
    inferred: bool = False
    """Whether the reference point was inferred from the results."""
    observed: bool = True
    """Whether front and hypervolume are those of the results, not of a model's estimates."""
    hypervolume: float | None = None
    """Of the front; ``None`` with one objective."""
    volumes: tuple[Numbers, Numbers] = field(default_factory=lambda: (np.zeros(0), np.zeros(0)))
    """Numbers of evaluations, and the hypervolume of the results up to there."""
    best_row: int | None = None
    """The best feasible evaluation of one objective, a compromise of several; the least violation where none is feasible."""
    models: bool = True
    """Whether the state had a model of each outcome."""

    @property
    def only(self) -> str | None:
        """Name of the objective, if there is one only."""
        return next(iter(self.directions)) if len(self.directions) == 1 else None

    @property
    def failed(self) -> NDArray[np.bool_]:
        """``n``: whether all outcomes are missing."""
        return np.asarray(np.isnan(np.stack(list(self.values.values()))).all(axis=0))

    @property
    def missing(self) -> dict[str, int]:
        """Number of evaluations, failed ones left out, in which an outcome is missing; names without any left out."""
        counts = {name: int(np.isnan(y[~self.failed]).sum()) for name, y in self.values.items()}
        return {name: count for name, count in counts.items() if count}

    @property
    def best(self) -> dict[str, float]:
        """Outcomes of the best evaluation, by name; empty without one."""
        return {} if self.best_row is None else {name: float(y[self.best_row]) for name, y in self.values.items()}

    def text(self, name: str, value: float | None, digits: int = 4) -> str:
        """Return a value of an outcome as text, in so many digits of the range of its results."""
        return number(value, digits + constant_digits(self.values[name]))

    def texts(self, values: Mapping[str, float], digits: int = 4) -> str:
        """Return values of outcomes by name as text."""
        return listed({name: self.text(name, value, digits) for name, value in values.items()})

    def limits_of(self, name: str) -> str:
        """Return the limits of an outcome in words."""
        lower, upper = self.limits[name]
        low, high = (self.text(name, limit, 6) for limit in (lower, upper))
        if lower is None or upper is None:
            return f"at most {high}" if lower is None else f"at least {low}"
        return f"from {low} to {high}"

    @property
    def ranking(self) -> Numbers:
        """``n`` numbers in [0, 1]: infeasible ones by violation up to 0.4, feasible ones from 0.6 on; NaN: one is missing.

        Of one objective the feasible ones are ranked by it; of several those of the front have 1, and the others 0.6.
        """
        found = np.full(len(self.feasible), np.nan)
        missing = np.isnan(np.stack(list(self.values.values()))).any(axis=0)
        bad = np.flatnonzero(~self.feasible & np.isfinite(self.total_violation) & ~missing)
        found[bad[np.argsort(-self.total_violation[bad], kind="stable")]] = np.linspace(0.0, 0.4, len(bad))
        good = np.flatnonzero(self.feasible)
        if self.only is None:
            found[good] = 0.6
            found[list(self.front)] = 1.0
        else:
            sign = 1.0 if self.directions[self.only] == "max" else -1.0
            found[good[np.argsort(sign * self.values[self.only][good], kind="stable")]] = np.linspace(1.0, 0.6, len(good))[::-1]
        return found


class Importance(NamedTuple):
    """Importance of the inputs for an outcome."""

    shares: Mapping[str, float]
    """Share of each input in the sum of the total effects, by name; the largest first."""
    how: str
    """Computation in words."""


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
    sds: Mapping[str, Numbers] = field(default_factory=dict)
    """``n`` known standard deviations of the noise of each outcome, by its name (``""``: the objective without a name), NaN
    where they are unknown; empty where all are."""
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
    importance: Mapping[str, Importance] = field(default_factory=dict)
    """Importance of the inputs for each outcome, by its name (``""``: the objective without a name); empty without a model."""
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
    added_failed: int = 0
    """Failed ones among the added."""
    unseen: int = 0
    """Finished evaluations since the last update, in none of the columns."""
    distinct: int | None = None
    """Number of distinct arms evaluated; ``None`` on a box."""
    tickets: Sequence[int] = ()
    """``n`` tickets of the evaluations; empty where they are unknown."""
    arms: Sequence[str] = ()
    """``n`` names of arms; empty without names."""
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
    outcomes: OutcomeColumns | None = None
    """All outcomes; ``None`` with one. :attr:`values` are those of the first objective then."""

    @property
    def waiting(self) -> int:
        """Finished evaluations in none of the columns, as others of their batch are out; :attr:`unseen` ones not counted."""
        return self.succeeded + self.failed - len(self.values)

    @property
    def minimize(self) -> bool:
        """Whether the lowest value, with several outcomes of the first objective, is the best one."""
        if self.outcomes is not None:
            return next(iter(self.outcomes.directions.values())) == "min"
        return bool(self.about.get("minimize", False))

    @property
    def merit(self) -> Numbers:
        """``n`` results, higher is better: those of a run that minimises with the other sign, of several outcomes ranks."""
        if self.outcomes is not None:
            return self.outcomes.ranking
        return -self.values if self.minimize else self.values

    def arms_at(self, rows: Sequence[int]) -> list[tuple[str, list[str]]]:
        """Return a column of the names of arms in some evaluations; none without names."""
        return [("arm", [self.arms[k] for k in rows])] if self.arms else []

    def inputs_at(self, rows: Sequence[int], names: Sequence[str]) -> list[tuple[str, list[str]]]:
        """Return columns of some inputs in some evaluations, numbers in five digits of the range of all."""
        digits = {name: 5 + constant_digits(self.columns[name]) for name in names}
        return [(name, [cell(self.columns[name][k], digits[name]) for k in rows]) for name in names]


def spread(n: int, most: int) -> Any:
    """Return at most ``most`` of n rows, spread, the last among them."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int)) if n else np.zeros(0, int)


def arm_name(index: int, names: Sequence[str] | None) -> int | str:
    """Return the name of an arm with its number, or the number alone."""
    return index if names is None else f"{names[index]} (arm {index:,})"


def listed(values: Mapping[str, str]) -> str:
    """Return values by name as text."""
    return ", ".join(f"{name} = {value}" for name, value in values.items())


def counted(count: int, noun: str) -> str:
    """Return a number of things, of which there may be one."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def visible(text: object) -> str:
    r"""Return a text with what cannot be printed, but for ends of lines and tabs, written out: ``\x1b``, ``\udcff``."""
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


def constant_digits(values: Sequence[Any] | Numbers) -> int:
    """Return how many leading digits finite numbers among ``values`` share: 9 of 1700000000.3 to 1700000000.9; at most 10."""
    if isinstance(values, np.ndarray):
        values = values[np.isfinite(values)]
        values = [float(values.min()), float(values.max())] if len(values) else []
    known = [float(v) for v in values if isinstance(v, float) and math.isfinite(v)]
    size, spread = max(map(abs, known), default=0.0), max(known, default=0.0) - min(known, default=0.0)
    return min(max(math.floor(math.log10(size / spread)), 0), 10) if 0.0 < spread < math.inf else 0


def cell(value: Any, digits: int = 5) -> str:
    """Return the value of an input: a number in few digits, anything else as it is."""
    return number(value, digits) if isinstance(value, float) else str(value)
