"""S-BPE and BPE: exploration by posterior variance in few batches, and elimination after each (Vakili et al. 2022)."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sparse_bo.arms.design import Resampling
from sparse_bo.dictionary import AllSampler, Sampler
from sparse_bo.domains import Arms, Box, Domain, ShardedArms
from sparse_bo.errors import CertificateWarning
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.elimination.batches import batch_schedule, checked_schedule
from sparse_bo.policies.elimination.mechanism import Elimination
from sparse_bo.policies.elimination.refutation import Rules
from sparse_bo.policies.elimination.regression import check_resampling, rls_resampling
from sparse_bo.policies.elimination.sharded import ShardedArmSource
from sparse_bo.policies.elimination.source import ArmSource, BoxSource, CandidateSource
from sparse_bo.policies.elimination.width import named_width, norm_of, on_box
from sparse_bo.policies.protocol import loaded_arms_of
from sparse_bo.policies.settings import ConfidenceSettings, PriorSettings, SweepSettings
from sparse_bo.validation import check_choice, check_count, check_positive
from sparse_bo.widths import BatchConfidence, BatchWidth, BiasConstant, SBPEOnBox


@dataclass(frozen=True, kw_only=True, eq=False)
class EliminationPolicy(PriorSettings, ConfidenceSettings, SweepSettings, ABC):
    """Settings of S-BPE and BPE, in addition to those of the prior, the confidence and the sweep.

    A kernel is learned on the initial design only, since later batches must not depend on their own results. With probability 1
    − ``failure_probability`` no optimal arm is ever eliminated. ``sweep_dtype`` is the precision of plans; bounds are float64.

    Attributes:
        horizon: N ≥ 1 evaluations in all. A run that stops earlier eliminates nothing after its last, incomplete batch.
        width: ``"theory"`` (:class:`sparse_bo.widths.SBPETheory`), ``"tight"`` (its better constant), ``"gaussian"``
            (:class:`sparse_bo.widths.GaussianBounds`), a number of posterior standard deviations (without a guarantee), or
            a :class:`sparse_bo.widths.BatchWidth`. ``None``: ``"theory"`` with an ``rkhs_norm``, else ``"gaussian"``.
        schedule: Batch sizes instead of the paper's; one batch of N is the design of S-BPE §4.
        initial_design: Random arms (Sobol points on a box) to learn the prior from; ``None``: ``max(10, 2d, √N)``. They
            count towards N; none are evaluated with a complete prior.
        on_contradiction: ``"raise"``: stop when the data contradict an assumption; ``"double"``: double F instead, unless the
            noise is the cause, and restore arms that only the smaller F had eliminated.
        on_refuted: Reaction to results that refute the bounds (:mod:`.refutation`; a
            :class:`sparse_bo.errors.CertificateWarning` gives both): ``"warn"`` and continue; ``"stop"``: eliminate nothing
            more, and ignore contradictions; ``"widen"``: double F until the results agree, for contradictions too, and restore
            arms that only the smaller F had eliminated.
        candidates: Points per batch on a box; ``None``: Γ_n of Cor. 3.7, at most 16,384. Each batch draws a new scrambled Sobol
            set without the points that earlier batches have eliminated.
        discretization_constant: c > 0 of S-BPE Assumption 3.6, for the theory's bounds on a box. Their slack is
            about ``2 β̃/√n`` in a batch of n (Eq. 15); they eliminate nothing until it is below ``F κ``, and a warning names the
            horizon that this takes: 890 for F = 1, ξ² = λ = 0.01 and κ = 1 in two dimensions.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If one is out of range, the schedule exceeds the horizon, or a width needs an ``rkhs_norm``.
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
        """Return the resampling rule of a schedule of ``batches`` batches."""

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
                    raise ValueError(f"expected bounds with an RKHS norm for {wish}, got bounds without; pass rkhs_norm=")
            if self.rkhs_norm == "estimate":
                raise ValueError(
                    "expected width='theory' or 'tight' with rkhs_norm='estimate', got bounds without an RKHS norm"
                )

    def on(self, domain: Domain) -> Elimination:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        source, width = self._source_and_width(domain)
        if self.covar_module is not None:
            covariance_function(self.covar_module, like=domain.like)
        design_size = self._design_size(domain) if self.learns else 0
        if design_size >= self.horizon:
            raise ValueError(
                f"expected a horizon above the initial design of {design_size} evaluations, got {self.horizon}; "
                "raise horizon, lower initial_design, or pass covar_module= and regularization="
            )
        sizes = checked_schedule(self.schedule, self.horizon - design_size)
        if isinstance(domain, Box) and isinstance(width, SBPEOnBox):
            self._warn_if_nothing_can_be_eliminated(domain, width, sizes)
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
        arms = loaded_arms_of(domain, policy=self.name, memory_bytes=self.sweep_budget(domain.device))
        return (ShardedArmSource if isinstance(arms, ShardedArms) else ArmSource)(Arms(arms)), width

    def _warn_if_nothing_can_be_eliminated(self, box: Box, width: SBPEOnBox, sizes: Sequence[int]) -> None:
        """Warn if every batch is too small for Eq. 15 to eliminate anything, with the horizon from which one is not."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class SBPE(EliminationPolicy):
    """Sparse batched pure exploration (Vakili et al. 2022, Alg. 1), over arms or a box.

    ``N_i = ⌈√(N N_{i−1})⌉`` evaluations in batch i, each where the sparse posterior variance of this batch's picks is highest
    among the points that can still be optimal; then ``A_{i+1} = {x in A_i : u(x) ≥ max l}``. About log log N batches, every
    one planned before its first result. Settings: :class:`EliminationPolicy`.

    Attributes:
        dictionary: Sampler of the inducing points; ``None``: recursive RLS with ``δ_j = 3δ/(π² B j²)`` after j picks, as in
            Thm 5.2. With these constants of the proof it contains all picks below some thousand distinct ones.
        ratio_threshold: C̃ ≥ 1: resample once the picks since the last dictionary may have reduced a variance by this factor
            (``1 + Σ leverage``); 1 resamples at every pick, as in the paper.

    Example:
        >>> policy = SBPE(horizon=10_000, covar_module=kernel, regularization=0.2, noise_variance=0.01, rkhs_norm=20.0)
        >>> loop = AskTell(arms, policy)
        >>> loop.run(objective, 10_000)
        >>> loop.state.survivors  # the arms that can still be optimal at confidence 1 − failure_probability
    """

    dictionary: Sampler | None = None
    ratio_threshold: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_resampling(self.dictionary, self.ratio_threshold)

    @property
    def name(self) -> str:
        """``"sbpe"``."""
        return "sbpe"

    @property
    def bias(self) -> BiasConstant:
        """``"paper"``: Thm 3.5."""
        return "paper"

    def resampling(self, batches: int) -> Resampling:
        """Return the user's sampler, or recursive RLS with the paper's confidence after each pick."""
        return rls_resampling(
            self.dictionary, self.ratio_threshold, failure_probability=self.failure_probability, batches=batches
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BPE(EliminationPolicy):
    """Batched pure exploration with the exact posterior (Li & Scarlett 2022): S-BPE with every pick in the dictionary.

    Its ``"theory"`` bounds have F where Thm 3.5 has 2F at λ_max = 0 (Vakili et al. 2021a, Thm 1). Settings:
    :class:`EliminationPolicy`. O(a n²) per batch of n distinct picks.
    """

    @property
    def name(self) -> str:
        """``"bpe"``."""
        return "bpe"

    @property
    def bias(self) -> BiasConstant:
        """``"tight"``: F, as the posterior is exact."""
        return "tight"

    def resampling(self, batches: int) -> Resampling:
        """Return the rule with every pick in the dictionary."""
        return Resampling(sampler=lambda picks: AllSampler())
