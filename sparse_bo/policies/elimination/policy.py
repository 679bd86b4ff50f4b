"""The settings that S-BPE and BPE share."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparse_bo.arms.design import Resampling
from sparse_bo.domains import Arms, Box, Domain, ShardedArms
from sparse_bo.errors import CertificateWarning
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.elimination.batch_width import named_width, norm_of, on_box
from sparse_bo.policies.elimination.judgement import Rules
from sparse_bo.policies.elimination.mechanism import Elimination
from sparse_bo.policies.elimination.schedule import batch_schedule, checked_schedule
from sparse_bo.policies.elimination.sharded import ShardedArmSource
from sparse_bo.policies.elimination.source import ArmSource, BoxSource, CandidateSource
from sparse_bo.policies.protocol import held_arms_of
from sparse_bo.policies.settings import ConfidenceSettings, PriorSettings, SweepSettings
from sparse_bo.validation import check_choice, check_count, check_positive
from sparse_bo.widths import BatchConfidence, BatchWidth, BiasConstant, SBPEOnBox


@dataclass(frozen=True, kw_only=True, eq=False)
class EliminationPolicy(PriorSettings, ConfidenceSettings, SweepSettings, ABC):
    """The settings that S-BPE and BPE share, beside those of the prior, the confidence and the sweep.

    Three of these mean more here. A learned kernel is learned on the initial design and then kept: later batches must not
    choose by their own results. With probability 1 − ``failure_probability`` no optimal arm is ever eliminated. And
    ``sweep_dtype`` is of the products while picks are planned; bounds are always float64.

    Attributes:
        horizon: N ≥ 1 evaluations in all. A run that stops before leaves its last batch without elimination.
        width: ``"theory"`` (:class:`sparse_bo.widths.SBPETheory`), ``"tight"`` (its better constant), ``"gaussian"``
            (:class:`sparse_bo.widths.GaussianBounds`), a number of posterior standard deviations (which promises nothing), or
            a :class:`sparse_bo.widths.BatchWidth`. ``None``: ``"theory"`` if there is an ``rkhs_norm``, else ``"gaussian"``.
        schedule: Batch sizes in place of those of the paper; one batch of N is the design of S-BPE §4.
        initial_design: Random arms (Sobol points on a box) to learn the prior from; ``None``: ``max(10, 2d, √N)``. Part of
            N; none are evaluated where nothing is learned.
        on_contradiction: ``"raise"``: stop when the data contradict an assumption; ``"double"``: double F instead, as long as
            the noise is not to blame, and take back what only the smaller F had eliminated.
        on_refuted: What to do where results refute what the bounds promised before them (:mod:`.refutation`; a
            :class:`sparse_bo.errors.CertificateWarning` says what was promised and what was seen): ``"warn"`` and go on;
            ``"stop"``: eliminate nothing more, and raise for no contradiction; ``"widen"``: multiply F by 2 until the results
            agree (contradictions too), and take back what only the smaller F had eliminated.
        candidates: Points per batch on a box; ``None``: Γ_n of Cor. 3.7, at most 16,384. Each batch draws a new scrambled Sobol
            set and keeps what no batch before has eliminated.
        discretization_constant: c > 0 of S-BPE Assumption 3.6, for the theory's bounds on a box. These pay a slack of about
            ``2 β̃/√n`` in a batch of n (Eq. 15): they eliminate nothing before that is less than ``F κ``. With ξ² = λ = 0.01 and
            κ = 1 in two dimensions this takes a horizon of at least 890 for F = 1 and 150 for F = 3 (of 680 and 90 with the
            tight constant); a warning says so.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If one is out of range, the schedule does not fit the horizon, or a width
            needs ``rkhs_norm`` and there is none.
    """

    horizon: int
    width: BatchWidth | float | str | None = None
    schedule: Sequence[int] | None = None
    initial_design: int | None = None
    on_contradiction: Literal["raise", "double"] = "raise"
    on_refuted: Literal["warn", "stop", "widen"] = "warn"
    candidates: int | None = None
    discretization_constant: float = 1.0

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for reports."""

    @property
    @abstractmethod
    def bias(self) -> BiasConstant:
        """Constant of F in the ``"theory"`` bounds."""

    @abstractmethod
    def resampling(self, batches: int) -> Resampling:
        """Return the dictionaries of a schedule of so many batches."""

    def __post_init__(self) -> None:
        PriorSettings.__post_init__(self)
        ConfidenceSettings.__post_init__(self)
        SweepSettings.__post_init__(self)
        check_count("horizon", self.horizon)
        check_positive("discretization_constant", self.discretization_constant)
        check_choice("on_contradiction", self.on_contradiction, ("raise", "double"))
        for name in ("initial_design", "candidates"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        checked_schedule(self.schedule, self.horizon)
        width = named_width(self.width, self, bias=self.bias)
        check_choice("on_refuted", self.on_refuted, ("warn", "stop", "widen"))
        if norm_of(width) is None:
            for wish in ("on_contradiction='double'", "on_refuted='widen'"):
                if wish in (f"on_contradiction={self.on_contradiction!r}", f"on_refuted={self.on_refuted!r}"):
                    raise ValueError(f"{wish} multiplies F, but these bounds have none; pass rkhs_norm=")
            if self.rkhs_norm == "estimate":
                raise ValueError("rkhs_norm='estimate' estimates F, but these bounds have none; use width='theory' or 'tight'")

    def on(self, domain: Domain) -> Elimination:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        source, width = self._source_and_width(domain)
        if self.covar_module is not None:
            covariance_function(self.covar_module, like=domain.like)
        design_size = self._design_size(domain) if self.learns else 0
        if design_size >= self.horizon:
            raise ValueError(
                f"the initial design of {design_size} evaluations leaves nothing of the horizon of {self.horizon}; "
                "raise horizon, lower initial_design, or give covar_module= and regularization="
            )
        sizes = checked_schedule(self.schedule, self.horizon - design_size)
        if isinstance(domain, Box) and isinstance(width, SBPEOnBox):
            self._say_if_nothing_can_be_eliminated(domain, width, sizes)
        return Elimination(
            source=source,
            horizon=self.horizon,
            given=self.given,
            design_size=design_size,
            sizes=sizes,
            width=width,
            resampling=self.resampling(len(sizes)),
            rules=Rules(
                failure_probability=self.failure_probability,
                noise_variance=self.noise_variance,
                on_contradiction=self.on_contradiction,
                on_refuted=self.on_refuted,
                estimates_norm=self.rkhs_norm == "estimate",
            ),
            sweep_dtype=self.sweep_dtype,
            memory_bytes=self.sweep_budget(domain.device),
        )

    def _source_and_width(self, domain: Domain) -> tuple[CandidateSource[Any], BatchWidth]:
        width = named_width(self.width, self, bias=self.bias)
        if isinstance(domain, Box):
            return BoxSource(domain, self.candidates), on_box(width, discretization_constant=self.discretization_constant)
        arms = held_arms_of(domain, policy=self.name, memory_bytes=self.sweep_budget(domain.device))
        return (ShardedArmSource if isinstance(arms, ShardedArms) else ArmSource)(Arms(arms)), width

    def _say_if_nothing_can_be_eliminated(self, box: Box, width: SBPEOnBox, sizes: Sequence[int]) -> None:
        """Warn if every batch is too small for Eq. 15 to eliminate anything, and say from which horizon it can."""
        if self.learns or self.covar_module is None or self.regularization is None or self.rkhs_norm == "estimate":
            return
        confidence = BatchConfidence(
            pulls=1,
            batches=len(sizes),
            arms=1,
            dims=box.dims,
            regularization=self.regularization,
            kappa_squared=float(covariance_function(self.covar_module, like=box.bounds).diagonal(box.bounds).max()),
            ratio=0.0,
        )
        least = width.least_pulls(confidence)
        if max(sizes) >= least:
            return
        needed = least
        while max(batch_schedule(needed)) < least:
            needed += max(1, needed // 100)
        warnings.warn(
            f"the bounds of S-BPE Cor. 3.7 on this box will eliminate nothing: their slack needs a batch of {least:,}, the "
            f"largest of horizon={self.horizon} is {max(sizes):,}; it takes a horizon of about {needed:,}. Until then this is "
            "a design of largest variance; candidates as arms= (for example points drawn from the box) need no slack",
            CertificateWarning,
            stacklevel=4,
        )

    def _design_size(self, domain: Domain) -> int:
        if self.initial_design is not None:
            return self.initial_design
        return max(10, 2 * domain.dims, math.isqrt(self.horizon))
