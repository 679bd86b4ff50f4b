"""A trust region: its settings, its centre, side and counts, and the state of a search with one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, TypeVar, get_args

import torch
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.policies.persistence import PARTLY, kept, sized
from sparse_bo.policies.protocol import BatchMechanism, Proposal
from sparse_bo.policies.settings import Goal, whole_batches
from sparse_bo.policies.states import BoxState, PointState, Report, design_points
from sparse_bo.policies.trust_region.observations import Replicates, replicates_of, unrepeated, with_sds
from sparse_bo.policies.trust_region.surrogate import FittedRegion, RegionModel
from sparse_bo.validation import check_choice, check_count, check_given, check_positive, check_probability

S = TypeVar("S", bound=PointState)


@dataclass(frozen=True, kw_only=True)
class ImprovementSettings:
    """Settings of expected improvement with an exact GP of part of the data, on boxes and over arms.

    Attributes:
        batch_size: Largest number of pending points: the number of workers. ``None``: 4, or n // 200 if that is more, after n
            evaluations of the run (those of ``initial=`` do not count). On a box without noise, after the initial design,
            evaluations made in this process come at most 1 + n // 50 at a time.
        initial_design: Points before the first model. ``None``: 2d, but from 5 to 10; with more than 10 inputs d, but at most
            20 on a box and 100 over arms; in full batches (of ``workers`` where these ask for fewer). On a box, a category
            counts as one of the d inputs.
        model_size: Largest number of distinct points in the model: those of the highest observations, the nearest to the best
            one, the newest, and some of the whole run. A batch costs O(n³) of them.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If one is out of range.
    """

    batch_size: int | None = None
    initial_design: int | None = None
    model_size: int = 400

    def __post_init__(self) -> None:
        check_given(check_count, batch_size=self.batch_size, initial_design=self.initial_design)
        check_count("model_size", self.model_size)

    def largest_batch(self, evaluations: int) -> int:
        """Return the largest number of pending points after some evaluations of the policy's."""
        return default_batch(evaluations) if self.batch_size is None else self.batch_size

    def design_size(self, inputs: int) -> int:
        """Return the number of points before the first model."""
        if self.initial_design is not None:
            return self.initial_design
        size = max(5, min(2 * inputs, 10), min(inputs, 100))
        return size if self.batch_size is None else whole_batches(size, self.batch_size)


@dataclass(frozen=True, kw_only=True)
class RegionSettings(ImprovementSettings):
    """Settings of a trust region, after TuRBO (Eriksson et al. 2019). Lengths are in the unit cube; a category is one input.

    Attributes:
        exploration: Share of the picks made in the whole box while the region is smaller, in [0, 1]. ``None``: 1/4 in up to
            ``many_inputs`` inputs, 0 in more.
        goal: ``"best"``: the best point at the end counts. ``"cumulative"``: every evaluation counts (cumulative regret); its
            initial design has at most 10 points.
        first_length: Length of the region at the start and after a restart.
        shortest_length: The search restarts elsewhere when the length falls below it; of a local region, below its square.
        patience: Batches in a row with progress after which the length doubles. It halves after ``patience + 1`` evaluations
            in a row without progress, or d if that is more.
        candidates: Points at which expected improvement is computed before it is climbed.
        perturbed_inputs: Inputs in which a candidate differs from the centre, on average, in more than ``many_inputs`` inputs.
        many_inputs: In more inputs than these, candidates differ from the centre in some inputs only.
        horizon: Future evaluations, per evaluation made, for which an improvement counts with ``goal="cumulative"``.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If one is out of range.
    """

    exploration: float | None = None
    goal: Goal = "best"
    first_length: float = 0.8
    shortest_length: float = 2.0**-7
    patience: int = 3
    candidates: int = 800
    perturbed_inputs: int = 5
    many_inputs: int = 8
    horizon: float = 3.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exploration is not None:
            check_probability("exploration", self.exploration, closed=True)
        check_choice("goal", self.goal, get_args(Goal))
        for name in ("first_length", "shortest_length", "horizon"):
            check_positive(name, getattr(self, name))
        for name in ("patience", "candidates", "perturbed_inputs"):
            check_count(name, getattr(self, name))
        check_count("many_inputs", self.many_inputs, minimum=0)

    def serial_batch(self, evaluations: int) -> int | None:
        """Return how many to evaluate at a time in this process (docs/decisions/119); ``None``: as many as are given."""
        return 1 + evaluations // 50 if self.batch_size is None else None

    @property
    def local_length(self) -> float:
        """Length of a local region at its start."""
        return min(8.0 * self.shortest_length, self.first_length)

    def local_model_size(self, inputs: int) -> int:
        """Return the largest number of points in the model of a local region: 20 + 10 d."""
        return min(self.model_size, 20 + 10 * inputs)

    @property
    def cumulative(self) -> bool:
        """Whether every evaluation counts."""
        return self.goal == "cumulative"

    def design_size(self, inputs: int) -> int:
        """Return the number of points before the first model."""
        return super().design_size(min(inputs, 10 if self.cumulative else 20))

    def exploration_share(self, inputs: int) -> float:
        """Return the share of picks made in the whole box."""
        if self.exploration is not None:
            return self.exploration
        return 0.25 if inputs <= self.many_inputs else 0.0


def default_batch(evaluations: int) -> int:
    """Return the batch size after some evaluations where none is given: later updates cost more and decide less."""
    return max(4, evaluations // 200)


@dataclass(frozen=True, kw_only=True)
class Region:
    """A box around the best point of its own evaluations. A value.

    A *local* region is around the best of all, and its model knows the nearest points alone: the scale of its values, and the
    noise that a model needs for kinks, become smaller with it. docs/decisions/188.
    """

    centre: int
    """Row of the evaluated points; of a restart design that of the region before."""
    length: float
    """Geometric mean of the sides in the unit cube, before they are cut at its faces."""
    successes: int = 0
    """Batches in a row with progress."""
    failures: int = 0
    """Evaluations since the last progress."""
    start: int = 0
    """Row of the first evaluation of the region. Earlier ones inform the model only."""
    kind: str = "usual"
    """``"local"``: its model knows the points nearest to the centre alone; ``"design"``: it is the whole box, and a restart
    design is evaluated."""

    @property
    def local(self) -> bool:
        """Whether its model knows the points nearest to the centre alone."""
        return self.kind == "local"

    @property
    def design(self) -> bool:
        """Whether a restart design is evaluated."""
        return self.kind == "design"

    def late(self, U: Tensor, centre: Tensor, lengthscales: Tensor, settings: RegionSettings) -> Tensor:
        """Return which of ``n x d`` points may be late results of the region before, ``n`` booleans.

        They lie near its centre (``d``), in a region as long as a local one: where workers are many, results of its picks come
        while the restart design is evaluated, and would begin a region at the same place.
        """
        if not self.design:
            return torch.zeros_like(U[:, 0], dtype=torch.bool)
        lower, upper = replace(self, length=settings.local_length).corners(centre, lengthscales)
        return ((lower <= U) & (upper >= U)).all(dim=-1)

    def half_sides(self, lengthscales: Tensor) -> Tensor:
        """Return half of the sides (``d``), which are proportional to the lengthscales."""
        weights = (lengthscales / lengthscales.log().mean().exp()).clamp(0.1, 10.0)  # irrelevant inputs have huge ones
        return 0.5 * self.length * weights

    def corners(self, centre: Tensor, lengthscales: Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and upper corner (``d``) in the unit cube."""
        half = self.half_sides(lengthscales)
        return (centre - half).clamp(0.0, 1.0), (centre + half).clamp(0.0, 1.0)

    def after(
        self,
        settings: RegionSettings,
        *,
        rows: Tensor,
        means: Tensor,
        newest: int,
        total: int,
        inputs: int,
        noise: float,
        late: Tensor | None = None,
        may_be_local: bool = False,
    ) -> Region:
        """Return the region after a batch (Eriksson et al. 2019, §2, on posterior means instead of observations). O(n).

        One posterior rates old and new points alike, so that noise is no progress: a rise of the best mean counts from 0.001
        standard deviations of the observations plus a tenth of their noise on.

        Args:
            settings: Settings of the policy.
            rows: ``n`` points of the model, as rows of all ``total`` evaluations; those of the batch begin at ``newest``.
            means: ``n`` posterior means there, in units in which observations have a variance of about 1.
            newest: Row of the first evaluation of the batch.
            total: Number of evaluations.
            inputs: Their number; a category counts once.
            noise: Standard deviation of an observation, in the units of ``means``.
            late: :meth:`late` of the points; ``None``: none is.
            may_be_local: Whether a local region follows one that ends around the best point of all.
        """
        own = rows >= self.start
        if self.design:  # evaluations anywhere in the box, from which a new region is chosen
            own = own if late is None else own & ~late
            if int(own.sum()) < max(settings.patience + 1, inputs // 2):
                return self
            return replace(self, centre=_highest(rows, means, own), kind="usual")
        region, new, old = self, own & (rows >= newest), own & (rows < newest)
        if self.local and not bool(new.any()):  # nothing there was worth an evaluation, or these picks are older than it
            return self.idle(settings, fresh=total - newest, total=total, inputs=inputs)
        if bool(new.any()) and bool(old.any()):
            rise = float(means[new].max() - means[old].max())
            region = self.resized(settings, progress=rise > 1e-3 + 0.1 * noise, fresh=int(new.sum()), inputs=inputs)
        ended = region.length < (settings.shortest_length**2 if self.local else settings.shortest_length)
        if ended and may_be_local and not self.local and (best := _highest(rows, means, rows >= 0)) >= self.start:
            return Region(centre=best, length=settings.local_length, kind="local")
        if ended:
            return self.restarted(settings, total)
        return replace(region, centre=_highest(rows, means, own)) if bool(own.any()) else region

    def idle(self, settings: RegionSettings, *, fresh: int, total: int, inputs: int) -> Region:
        """Return a local region after ``fresh`` failures, or evaluations away from it: it ends where it would shrink."""
        smaller = self.resized(settings, progress=False, fresh=fresh, inputs=inputs)
        return smaller if smaller.length == self.length else self.restarted(settings, total)

    def restarted(self, settings: RegionSettings, total: int) -> Region:
        """Return the restart design that follows the region after ``total`` evaluations."""
        return Region(centre=self.centre, length=settings.first_length, start=total, kind="design")

    def resized(self, settings: RegionSettings, *, progress: bool, fresh: int, inputs: int) -> Region:
        """Return the region after a batch of ``fresh`` evaluations with or without progress, around the same centre."""
        if progress:
            successes = self.successes + 1
            if successes < settings.patience:
                return replace(self, successes=successes, failures=0)
            return replace(self, successes=0, failures=0, length=min(2.0 * self.length, 2.0 * settings.first_length))
        failures = self.failures + fresh
        if failures < max(settings.patience + 1, inputs):
            return replace(self, successes=0, failures=failures)
        return replace(self, successes=0, failures=0, length=0.5 * self.length)


def _highest(rows: Tensor, means: Tensor, among: Tensor) -> int:
    return int(rows[means.masked_fill(~among, -torch.inf).argmax()])


class OneOutcome:
    """Order and noise of the evaluations of a state with one outcome."""

    y: Tensor

    @property
    @abstractmethod
    def replicates(self) -> Replicates:
        """The evaluations for the model."""

    @property
    def ranking(self) -> Tensor:
        """``n`` numbers by which evaluations are ranked: the observations."""
        return self.y

    @property
    def exact(self) -> bool | None:
        """See :attr:`.Replicates.exact`."""
        return self.replicates.exact

    @property
    def noise_shown(self) -> bool:
        """Whether replicates, or known standard deviations, have shown whether there is noise."""
        return self.exact is not None


@dataclass(frozen=True, eq=False)
class RegionState(OneOutcome, BoxState):
    """State of a trust-region policy on a box. A value."""

    region: Region | None = field(default=None, metadata=kept(Region))
    """The region; ``None`` before the initial design is complete."""
    fitted: FittedRegion | None = field(default=None, metadata=PARTLY)
    """The model of a part of the observations; ``None`` before the initial design is complete."""
    near: FittedRegion | None = field(default=None, metadata=PARTLY)
    """The model of a local region; ``None`` in another one."""
    merges: bool = False
    """Whether the model merges the evaluations of a point."""
    sd: Tensor | None = field(default=None, metadata=sized("n"))
    """``n`` known standard deviations (y) of the noise in ``y``, NaN where one is not known; ``None``: none is."""

    def with_results(self, X: Tensor, y: Tensor, sd: Tensor | None = None) -> Self:
        """See :meth:`.BoxState.with_results`; ``sd``: ``q`` known standard deviations of their noise (y), or NaN."""
        return replace(super().with_results(X, y), sd=with_sds(self.sd, self.y, sd, y))

    @cached_property
    def replicates(self) -> Replicates:
        """The evaluations for the model."""
        return replicates_of(self.X, self.y, self.sd, merge=self.merges)

    @property
    def model(self) -> RegionModel | None:
        """The model in the user's units, of at most ``model_size`` points."""
        return None if self.fitted is None else RegionModel(self.fitted, self.box)

    @property
    def best_row(self) -> int:
        """Row of the point that :meth:`report` recommends; of a state with a model."""
        assert self.fitted is not None
        return self.fitted.recommended(self.U, self.replicates)[0]

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the best point is :meth:`.FittedRegion.recommended`'s."""
        report = BoxState.report(replace(self, fitted=None))
        if self.fitted is None:
            return report
        row, mean, sd = self.fitted.recommended(self.U, self.replicates)
        return replace(report, best_x=self.X[row], best_mean=mean, best_sd=sd)

    def standardised_errors(self, picks: Tensor, y: Tensor, sd: Tensor | None = None) -> Tensor | None:
        """See :meth:`sparse_bo.policies.states.State.standardised_errors`; errors are of warped observations."""
        return None if self.fitted is None else self.fitted.errors(self.box.to_unit(picks), y, sd)


@dataclass(frozen=True, kw_only=True, eq=False)
class BoxBatches(BatchMechanism[S]):
    """A search on a box with a trust region.

    Attributes:
        box: In float64, on the CPU.
        settings: Settings of the policy.
    """

    box: Box
    settings: RegionSettings
    on_cpu = True

    @property
    def design_size(self) -> int:
        """Points before the first model."""
        return self.settings.design_size(self.box.parameter_count)

    def serial_batch(self, state: Any, evaluations: int) -> int | None:
        """See :meth:`sparse_bo.policies.Mechanism.serial_batch`."""
        noisy = state.exact is False
        return None if noisy or evaluations + state.not_picked < self.design_size else self.settings.serial_batch(evaluations)

    def fail(self, state: Any, picks: Tensor, *, generator: torch.Generator) -> Any:
        """See :meth:`sparse_bo.policies.Mechanism.fail`. Failures alone end a local region, which makes no picks elsewhere."""
        region = state.region
        after: Any = super().fail(state, picks, generator=generator)
        if region is None or not region.local:
            return after
        moved = region.idle(self.settings, fresh=len(picks), total=after.pulls, inputs=self.box.parameter_count)
        return replace(after, region=moved, near=after.near if moved.local else None)

    @abstractmethod
    def picks(self, state: S, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``q x d`` maximisers of the acquisition function, of a state with a model."""

    def ask_beyond_batch(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal:
        """Return points of a Sobol sequence before the first model, then those of the highest acquisition function.

        Pending points and earlier picks of the batch are conditioned on: their variances shrink, and their means count as
        reached where they keep the limits. Draws one uniform number a pick, and the candidates of each search.
        """
        if state.region is None:
            return Proposal(design_points(max_q, state, pending=pending, generator=generator))
        replicate = unrepeated(state.X, state.ranking, pending, failures=state.failures, known=state.noise_shown)
        others = self.picks(state, max_q - len(replicate), pending=torch.cat([pending, replicate]), generator=generator)
        repeats = self.settings.cumulative or len(replicate) > 0 or state.exact is False
        return Proposal(torch.cat([replicate, others]), repeats=repeats)
