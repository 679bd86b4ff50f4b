"""Simultaneous confidence bounds for elimination: of S-BPE, of BPE, and for a Gaussian prior."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.dictionary.certificate import certified_factor
from sparse_bo.gp.diagnostics import QuadraticForm
from sparse_bo.validation import check_choice, check_given, check_positive, check_probability
from sparse_bo.widths.estimates import SizeBounds


@dataclass(frozen=True, kw_only=True)
class BatchConfidence:
    """Arguments of the bounds of a batch that was picked by variance (S-BPE §5)."""

    pulls: int
    """n ≥ 1 results of this batch."""
    batches: int
    """B: batches that the schedule makes."""
    arms: int
    """a: arms, or candidates on a box."""
    dims: int
    """Inputs d."""
    regularization: float
    """λ = τ²."""
    kappa_squared: float
    """``sup k(x, x)`` (y²)."""
    ratio: float
    """At least ``ρ = λ_max(K − Q)/λ`` over the batch; 0 with an exact posterior."""


class Bounds(NamedTuple):
    """A confidence interval ``mean ± (width · √variance + slack)`` of the objective at any point."""

    width: float
    """Multiplies √variance (dimensionless)."""
    slack: float
    """Added (y) for the error of a discretisation; 0 on arms."""


@runtime_checkable
class BatchWidth(Protocol):
    """Simultaneous bounds on an objective from one batch of a policy that eliminates. A frozen value."""

    def bounds(self, confidence: BatchConfidence) -> Bounds:
        """Return bounds that hold together for every arm and every batch but for the width's share of δ."""
        ...


@runtime_checkable
class RefutableWidth(BatchWidth, Protocol):
    """Bounds that say enough of the noise to be held against results."""

    def noise_within(self, counts: Tensor, *, share: float, regularization: float) -> Tensor:
        """Return how far (y) the means of ``counts`` results (``n``) are from the objective, but for this share of them."""
        ...

    def form_at_most(self, form: QuadraticForm, confidence: BatchConfidence, *, log_inverse: float) -> float:
        """Return the bound that a batch's form exceeds with probability at most ``2 exp(−log_inverse)``, or ∞."""
        ...


BiasConstant = Literal["paper", "tight"]


@dataclass(frozen=True, kw_only=True)
class SBPETheory:
    """S-BPE Thm 3.5 with Eq. 13: ``(2 + √ρ) F + (ξ/τ) √(2 log(1/δ'))``, ``δ' = δ/(4 B a)``, ``ρ = λ_max/τ²``, ``τ² = λ``.

    ``bias="tight"`` puts ``√(1+ρ)`` in place of ``2 + √ρ``: 1 in place of 2 with an exact posterior (BPE's constant; Vakili et
    al. 2021a, Thm 1), 1.41 in place of 3 at ρ = 1. It is ours. Proof: split ``f = f_κ + f⊥`` in the dictionary's span and
    beside it. The bias at x is at most ``‖f⊥‖ (√(k−q) + √ρ s) + ‖f_κ‖ c`` with ``s² = λ‖V‖²`` and
    ``k − q + c² + s² = variance`` (Thm 3.2), so by Cauchy–Schwarz at most ``F √((√(k−q) + √ρ s)² + c²)``; and once more
    ``(a + √ρ s)² + c² ≤ (1 + ρ)(a² + s²) + c² ≤ (1 + ρ)(a² + s² + c²)``.

    Attributes:
        rkhs_norm: F > 0, bound on the RKHS norm of the objective minus the prior mean.
        noise_variance: ξ² > 0: the noise is independent and sub-Gaussian with this variance proxy; ``None``: λ.
        failure_probability: δ of the policy, of which the bounds use half (the other half is the dictionaries').
        bias: Constant of F.
    """

    rkhs_norm: float
    noise_variance: float | None = None
    failure_probability: float = 0.05
    bias: BiasConstant = "paper"

    def __post_init__(self) -> None:
        check_positive("rkhs_norm", self.rkhs_norm)
        check_given(check_positive, noise_variance=self.noise_variance)
        check_probability("failure_probability", self.failure_probability)
        check_choice("bias", self.bias, ("paper", "tight"))

    def bounds(self, confidence: BatchConfidence) -> Bounds:
        """Return the bounds; they need picks and dictionaries that depend on no result of the batch."""
        log_inverse = math.log(4.0 * confidence.batches * confidence.arms / self.failure_probability)  # Eq. 13
        return Bounds(self.multiplier(confidence, log_inverse), 0.0)

    def multiplier(self, confidence: BatchConfidence, log_inverse: float) -> float:
        """Return ``β(δ')`` of Thm 3.5 from ``log(1/δ')``."""
        return bias_constant(confidence.ratio, self.bias) * self.rkhs_norm + self.noise(confidence, log_inverse)

    def noise(self, confidence: BatchConfidence, log_inverse: float) -> float:
        """Return ``(ξ/τ) √(2 log(1/δ'))``."""
        return math.sqrt(2.0 * self.proxy(confidence.regularization) / confidence.regularization * log_inverse)

    def proxy(self, regularization: float) -> float:
        """Return ξ² (y²)."""
        return regularization if self.noise_variance is None else self.noise_variance

    def noise_within(self, counts: Tensor, *, share: float, regularization: float) -> Tensor:
        """See :class:`RefutableWidth`: ``ξ √(2 log(2/share)/c)``."""
        return (2.0 * self.proxy(regularization) * math.log(2.0 / share) / counts).sqrt()

    def size_bounds(self, confidence: BatchConfidence, log_inverse: float) -> SizeBounds:
        """Return the bounds between the size of the batch's results and F (:mod:`sparse_bo.widths.estimates`)."""
        regularization = confidence.regularization
        return SizeBounds(self.proxy(regularization), regularization, confidence.ratio, log_inverse)

    def form_at_most(self, form: QuadraticForm, confidence: BatchConfidence, *, log_inverse: float) -> float:
        """See :class:`RefutableWidth`."""
        return self.size_bounds(confidence, log_inverse).form_at_most(form, self.rkhs_norm)

    def norm_at_least(self, form: QuadraticForm, confidence: BatchConfidence, *, log_inverse: float) -> float:
        """Return the least F that :meth:`form_at_most` does not refute."""
        return self.size_bounds(confidence, log_inverse).norm_at_least(form)


@dataclass(frozen=True, kw_only=True)
class SBPELightTailed(SBPETheory):
    """S-BPE Thm E.2: noise with ``E exp(hε) ≤ exp(h² ξ₀/2)`` for ``|h| ≤ h₀`` only.

    The second term of Thm 3.5 becomes ``(1/τ) √(2 max{ξ₀, 2 log(1/δ')/h₀²} log(1/δ'))``.

    Attributes:
        noise_variance: ξ₀ > 0; ``None``: λ.
        noise_radius: h₀ > 0 (1/y).
    """

    noise_radius: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("noise_radius", self.noise_radius)

    def noise(self, confidence: BatchConfidence, log_inverse: float) -> float:
        """Return the second term of ``β(δ')``."""
        proxy = max(self.proxy(confidence.regularization), 2.0 * log_inverse / self.noise_radius**2)
        return math.sqrt(2.0 * proxy / confidence.regularization * log_inverse)

    def noise_within(self, counts: Tensor, *, share: float, regularization: float) -> Tensor:
        """See :class:`RefutableWidth`: Chernoff's bound at ``h ≤ h₀ c``, the sub-Gaussian one where that is not felt."""
        log_inverse, proxy = math.log(2.0 / share), self.proxy(regularization)
        plain = (2.0 * proxy * log_inverse / counts).sqrt()
        steep = log_inverse / (self.noise_radius * counts) + 0.5 * self.noise_radius * proxy
        return torch.where(plain <= proxy * self.noise_radius, plain, steep)

    def form_at_most(self, form: QuadraticForm, confidence: BatchConfidence, *, log_inverse: float) -> float:
        """Return infinity: squares of such noise have no exponential moments."""
        return math.inf

    def norm_at_least(self, form: QuadraticForm, confidence: BatchConfidence, *, log_inverse: float) -> float:
        """Return 0, for the same reason."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class SBPEOnBox:
    """S-BPE Cor. 3.7 with Eq. 15: ``mean ± (2/n + β̃ (√variance + 2/√n))`` uniformly over a box, ``β̃ = β(δ/(8 B Γ))``.

    ``Γ = c (C n)^d`` is the size of a discretisation with error 1/n (Assumption 3.6, RBF and Matérn with ν > 1),
    ``C = F (1 + √n κ²/τ) + (√n ξ/τ) √(2 log(16 B n/δ))``. Lemma F.1 bounds ``|f⊥(x)|`` by ``F κ²`` where the reproducing
    property gives ``F κ``; the larger of the two is used.

    Attributes:
        theory: β, and with it F, ξ and δ.
        discretization_constant: c > 0 of Assumption 3.6.
    """

    theory: SBPETheory
    discretization_constant: float = 1.0

    def __post_init__(self) -> None:
        check_positive("discretization_constant", self.discretization_constant)

    def bounds(self, confidence: BatchConfidence) -> Bounds:
        """Return the bounds."""
        per_batch = math.log(4.0 * confidence.batches / self.theory.failure_probability)
        width = self.theory.multiplier(confidence, per_batch + math.log(2.0) + self.log_discretization(confidence))
        n = confidence.pulls
        return Bounds(width, 2.0 / n + 2.0 * width / math.sqrt(n))

    def noise_within(self, counts: Tensor, *, share: float, regularization: float) -> Tensor:
        """See :class:`RefutableWidth`."""
        return self.theory.noise_within(counts, share=share, regularization=regularization)

    def form_at_most(self, form: QuadraticForm, confidence: BatchConfidence, *, log_inverse: float) -> float:
        """See :class:`RefutableWidth`."""
        return self.theory.form_at_most(form, confidence, log_inverse=log_inverse)

    def least_pulls(self, confidence: BatchConfidence) -> int:
        """Return how many results a batch needs before it can be expected to eliminate anything.

        That is where the slack is less than ``F κ``: an objective of norm F differs by ``2 F κ`` at most. O(log n). The
        ``pulls`` of the argument play no part.
        """
        reach = self.theory.rkhs_norm * math.sqrt(confidence.kappa_squared)

        def enough(pulls: int) -> bool:
            return self.bounds(replace(confidence, pulls=pulls)).slack < reach

        most = 1
        while not enough(most):
            most *= 2
        least = most // 2 + 1
        return least + bisect_left(range(least, most), True, key=enough)

    def log_discretization(self, confidence: BatchConfidence) -> float:
        """Return ``log Γ``, at least 0: a discretisation has a point."""
        n, theory = confidence.pulls, self.theory
        per_batch = math.log(4.0 * confidence.batches / theory.failure_probability)
        largest = max(confidence.kappa_squared, math.sqrt(confidence.kappa_squared))
        norm = theory.rkhs_norm * (1.0 + math.sqrt(n / confidence.regularization) * largest)
        norm += math.sqrt(n) * theory.noise(confidence, math.log(4.0 * n) + per_batch)
        return max(math.log(self.discretization_constant) + confidence.dims * math.log(norm * n), 0.0)


@dataclass(frozen=True, kw_only=True)
class GaussianBounds:
    """For an objective drawn from the prior: ``√((1+t) · 2 log(B a/δ'))``, ``δ' = δ/2``, t of the variance certificate.

    With Gaussian noise of variance at most λ the error of the sparse mean is Gaussian with variance at most ``(1+t)`` times
    the sparse variance, t of the variance certificate (the split of :class:`SBPETheory`, and ``s²`` once more for the noise:
    ``(a + √ρ s)² + s² + c² ≤ (1 + t)(a² + s² + c²)``, as ``1 + t`` is the larger eigenvalue of that quadratic form), and
    ``P(|Z| > z) ≤ exp(−z²/2)``. With an exact posterior this is the width of GP-UCB (Srinivas et al. 2010, Lemma 5.1) for B
    batches. Nothing needs to be known of the RKHS norm; on a box it holds at the candidates.

    Attributes:
        failure_probability: δ of the policy, of which the bounds use half.
    """

    failure_probability: float = 0.05

    def __post_init__(self) -> None:
        check_probability("failure_probability", self.failure_probability)

    def bounds(self, confidence: BatchConfidence) -> Bounds:
        """Return the bounds."""
        log_inverse = math.log(2.0 * confidence.batches * confidence.arms / self.failure_probability)
        return Bounds(math.sqrt(2.0 * certified_factor(confidence.ratio) * log_inverse), 0.0)

    def noise_within(self, counts: Tensor, *, share: float, regularization: float) -> Tensor:
        """See :class:`RefutableWidth`: the quantile of a normal distribution of variance ``λ/c``."""
        return math.sqrt(2.0) * torch.erfinv(counts.new_tensor(1.0 - share)) * (regularization / counts).sqrt()

    def form_at_most(self, form: QuadraticForm, confidence: BatchConfidence, *, log_inverse: float) -> float:
        """See :class:`RefutableWidth`: ``(1 + ρ) χ²``.

        The results have the covariance ``K + λI ⪯ (1 + ρ)(Q + λI)``, so their form is at most ``(1 + ρ)`` times a sum of n
        squares of standard normals, whose tail is Laurent & Massart's (2000).
        """
        n = form.size
        return (1.0 + confidence.ratio) * (n + 2.0 * math.sqrt(n * log_inverse) + 2.0 * log_inverse)


def bias_constant(ratio: float, bias: BiasConstant) -> float:
    """Return the factor of F at ``ratio`` ρ: ``2 + √ρ`` (S-BPE Thm 3.5) or ``√(1+ρ)``, see :class:`SBPETheory`."""
    return 2.0 + math.sqrt(ratio) if bias == "paper" else math.sqrt(1.0 + ratio)
