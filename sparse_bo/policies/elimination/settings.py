"""Settings of S-BPE and BPE: the schedule of their batches, and the width of their bounds."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from sparse_bo.arms.design import Resampling
from sparse_bo.domains import Domain
from sparse_bo.policies.elimination.batches import norm_of
from sparse_bo.policies.settings import ConfidenceSettings, PriorSettings, SweepSettings, default_design, unknown_norm
from sparse_bo.validation import check_choice, check_count, check_given, check_number, check_positive
from sparse_bo.widths import BatchWidth, BiasConstant, ConstantWidth, GaussianBounds, SBPETheory


def batch_schedule(horizon: int) -> tuple[int, ...]:
    """Return the batch sizes ``N_i = ⌈√(N · N_{i−1})⌉``, ``N_0 = 1``, the last one cut so that they sum to N.

    S-BPE Alg. 1, line 3 (Li & Scarlett 2022). At most ``⌈log₂ log₂ N⌉ + 1`` batches for N ≥ 2.

    Args:
        horizon: N ≥ 1 evaluations in all.

    Raises:
        TypeError: If ``horizon`` is not an integer.
        ValueError: If it is less than 1.
    """
    remaining = check_count("horizon", horizon)
    sizes: list[int] = []
    size = 1
    while remaining > 0:
        size = math.isqrt(horizon * size - 1) + 1  # ⌈√·⌉ without floating point
        sizes.append(min(size, remaining))
        remaining -= sizes[-1]
    return tuple(sizes)


def checked_schedule(schedule: Sequence[int] | None, horizon: int) -> tuple[int, ...]:
    """Return a user's batch sizes after checks, or :func:`batch_schedule` for ``None``."""
    if schedule is None:
        return batch_schedule(horizon)
    if isinstance(schedule, str) or not isinstance(schedule, Sequence):
        got = f"{type(schedule).__name__} {schedule!r}"
        raise TypeError(f"expected schedule as a list of batch sizes, or None for the paper's, got {got}; use [{schedule}]")
    sizes = tuple(schedule)
    if not sizes:
        raise ValueError("expected a schedule of at least one batch, got an empty one; pass None for the paper's")
    for size in sizes:
        check_count("schedule", size)
    if sum(sizes) > horizon:
        raise ValueError(
            f"expected a schedule of at most horizon={horizon} evaluations, got {list(sizes)} with {sum(sizes)}; "
            "raise horizon or shorten the schedule"
        )
    return sizes


@dataclass(frozen=True, kw_only=True, eq=False)
class EliminationSettings(PriorSettings, ConfidenceSettings, SweepSettings, ABC):
    """Settings of S-BPE and BPE, in addition to those of the prior, the confidence and the sweep.

    A kernel is learned on the initial design only, since later batches must not depend on their own results. With probability 1
    − ``failure_probability`` no optimal arm is ever eliminated. ``sweep_dtype`` is the precision of plans; bounds are float64.

    Attributes:
        horizon: N ≥ 1 evaluations in all. A run that stops earlier eliminates nothing after its last, incomplete batch.
        width: ``"theory"`` (:class:`sparse_bo.widths.SBPETheory`), ``"tight"`` (its better constant), ``"gaussian"``
            (:class:`sparse_bo.widths.GaussianBounds`), a number of posterior standard deviations (without a guarantee), or
            a :class:`sparse_bo.widths.BatchWidth`. ``None``: ``"theory"`` with an ``rkhs_norm``, else ``"gaussian"``.
        schedule: Batch sizes instead of the paper's; one batch of N is the design of S-BPE §4.
        initial_design: Random arms (Sobol points on a box) to learn the prior from; ``None``: 2d, at least 10 and at most
            d + 20 or 100, or √N if that is more. They count towards N; none are evaluated with a complete prior.
        on_contradiction: ``"raise"``: stop when the data contradict an assumption; ``"double"``: double F instead, unless the
            noise is the cause, and restore arms that only the smaller F had eliminated.
        on_refuted: Reaction to results that refute the bounds (:mod:`.refutation`; a
            :class:`sparse_bo.errors.CertificateWarning` gives both): ``"warn"`` and continue; ``"stop"``: eliminate nothing
            more, and ignore contradictions; ``"widen"``: double F until the results agree, for contradictions too, and restore
            arms that only the smaller F had eliminated.
        candidates: Points per batch on a box; ``None``: Γ_n of Cor. 3.7, at most 16,384, or 1,024 where ``feasible=`` is called
            for each. Each batch draws a new scrambled Sobol set without the points that earlier batches have eliminated.
        discretization_constant: c > 0 of S-BPE Assumption 3.6, for the theory's bounds on a box. Their slack is
            about ``2 β̃/√n`` in a batch of n (Eq. 15); they eliminate nothing until it is below ``F κ``, and a warning names the
            horizon that this takes: about 890 for F = 1, ξ² = λ = 0.01 and κ = 1 in two dimensions.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If one is out of range, the schedule exceeds the horizon, or a width needs an ``rkhs_norm``.
    """

    bias: ClassVar[BiasConstant]
    """Constant of F in the ``"theory"`` bounds."""

    horizon: int
    width: BatchWidth | float | str | None = None
    schedule: Sequence[int] | None = None
    initial_design: int | None = None
    on_contradiction: Literal["raise", "double"] = "raise"
    on_refuted: Literal["warn", "stop", "widen"] = "warn"
    candidates: int | None = None
    discretization_constant: float = 1.0

    @abstractmethod
    def resampling(self, batches: int) -> Resampling:
        """Return the resampling rule of a schedule of ``batches`` batches."""

    def __post_init__(self) -> None:
        PriorSettings.__post_init__(self)
        ConfidenceSettings.__post_init__(self)
        SweepSettings.__post_init__(self)
        check_count("horizon", self.horizon)
        check_positive("discretization_constant", self.discretization_constant)
        check_choice("on_contradiction", self.on_contradiction, ("raise", "double"))
        check_given(check_count, initial_design=self.initial_design, candidates=self.candidates)
        checked_schedule(self.schedule, self.horizon)
        width = self.bounds_width()
        check_choice("on_refuted", self.on_refuted, ("warn", "stop", "widen"))
        if norm_of(width) is None:
            for wish in ("on_contradiction='double'", "on_refuted='widen'"):
                if wish in (f"on_contradiction={self.on_contradiction!r}", f"on_refuted={self.on_refuted!r}"):
                    raise ValueError(f"expected bounds with an RKHS norm for {wish}, got bounds without; pass rkhs_norm=")
            if self.rkhs_norm == "estimate":
                raise ValueError(
                    "expected width='theory' or 'tight' with rkhs_norm='estimate', got bounds without an RKHS norm"
                )

    def design_size(self, domain: Domain) -> int:
        """Return the results to learn the prior from; 0 with a complete prior.

        Raises:
            ValueError: If there are as many as the horizon.
        """
        if not self.learns:
            return 0
        size = self.initial_design or max(default_design(domain.dims), math.isqrt(self.horizon))
        if size >= self.horizon:
            raise ValueError(
                f"expected a horizon above the initial design of {size} evaluations, got {self.horizon}; "
                "raise horizon, lower initial_design, or pass covar_module= and regularization="
            )
        return size

    def bounds_width(self) -> BatchWidth:
        """Return the width of a name or a number; a :class:`sparse_bo.widths.BatchWidth` as it is.

        Raises:
            ValueError: If the name is unknown, or the named width needs an ``rkhs_norm``.
            TypeError: If ``width`` has another type.
        """
        width = self.width
        if width is None:
            width = "gaussian" if self.rkhs_norm is None else "theory"
        if isinstance(width, str):
            check_choice("width", width, ("theory", "tight", "gaussian"))
            if width == "gaussian":
                return GaussianBounds(failure_probability=self.failure_probability)
            if self.rkhs_norm is None:
                raise ValueError(unknown_norm(width, otherwise="width='gaussian' (for draws of the prior)"))
            return SBPETheory(
                rkhs_norm=1.0 if self.rkhs_norm == "estimate" else self.rkhs_norm,  # until a batch is complete: bounds nothing
                noise_variance=self.noise_variance,
                failure_probability=self.failure_probability,
                bias="tight" if width == "tight" else self.bias,
            )
        if isinstance(width, (int, float)) and not isinstance(width, bool):
            return ConstantWidth(check_number("width", width))
        if not isinstance(width, BatchWidth):
            raise TypeError(f"expected width to be a number, a name or a BatchWidth, got {type(width).__name__}")
        return width
