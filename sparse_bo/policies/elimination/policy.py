"""S-BPE and BPE (Vakili et al. 2022; Li & Scarlett 2022), and the designs of largest variance for regression (S-BPE §4)."""

from __future__ import annotations

import math
import warnings
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.arms import ArmPrior, InMemoryPosterior, posterior_over_part
from sparse_bo.arms.design import Design, Resampling, design
from sparse_bo.dictionary import AllSampler, Dictionary, RecursiveRLSSampler, Sampler
from sparse_bo.dictionary.certificate import certified_factor
from sparse_bo.domains import Arms, Box, Domain, check_domain
from sparse_bo.errors import CertificateWarning
from sparse_bo.gp import dtc
from sparse_bo.gp.objective_prior import KnownPrior
from sparse_bo.kernels import covariance_function
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.policies.elimination.batches import certified
from sparse_bo.policies.elimination.mechanism import ArmElimination, BoxElimination, Elimination, exact_confidence
from sparse_bo.policies.elimination.settings import EliminationSettings, batch_schedule, checked_schedule
from sparse_bo.policies.protocol import arms_of, loaded_arms_of
from sparse_bo.policies.settings import check_sampler
from sparse_bo.validation import check_count, check_number, check_positive, check_probability
from sparse_bo.widths import BatchConfidence, BatchWidth, SBPEOnBox, SBPETheory


@dataclass(frozen=True, kw_only=True, eq=False)
class EliminationPolicy(EliminationSettings, ABC):
    """An elimination policy with the settings of :class:`EliminationSettings`."""

    name: ClassVar[str]
    """Name for reports."""

    def on(self, domain: Domain) -> Elimination:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        memory_bytes, width, design_size = self.sweep_budget(domain.device), self.bounds_width(), self.design_size(domain)
        if self.covar_module is not None:
            covariance_function(self.covar_module, like=domain.like)
        sizes = checked_schedule(self.schedule, self.horizon - design_size)
        parts: dict[str, Any] = {"settings": self, "design_size": design_size, "sizes": sizes, "memory_bytes": memory_bytes}
        if not isinstance(domain, Box):
            arms = loaded_arms_of(domain, policy=self.name, memory_bytes=memory_bytes)
            return ArmElimination(domain=Arms(arms), width=width, **parts)
        if isinstance(width, SBPETheory):  # S-BPE Cor. 3.7
            width = SBPEOnBox(theory=width, discretization_constant=self.discretization_constant)
            self._warn_if_nothing_can_be_eliminated(domain, width, sizes)
        return BoxElimination(domain=domain, width=width, **parts)

    def _warn_if_nothing_can_be_eliminated(self, box: Box, width: SBPEOnBox, sizes: Sequence[int]) -> None:
        """Warn if every batch is too small for Eq. 15 to eliminate anything, with the horizon from which one is not."""
        if self.learns or self.rkhs_norm == "estimate":
            return
        least = width.least_pulls(exact_confidence(box, self.given.known(), pulls=1, batches=len(sizes)))
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


@dataclass(frozen=True, kw_only=True, eq=False)
class SBPE(EliminationPolicy):
    """Sparse batched pure exploration (Vakili et al. 2022, Alg. 1), over arms or a box.

    ``N_i = ⌈√(N N_{i−1})⌉`` evaluations in batch i, each where the sparse posterior variance of this batch's picks is highest
    among the points that can still be optimal; then ``A_{i+1} = {x in A_i : u(x) ≥ max l}``. About log log N batches, every
    one planned before its first result. Settings: :class:`EliminationSettings`.

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

    name = "sbpe"
    bias = "paper"  # Thm 3.5

    dictionary: Sampler | None = None
    ratio_threshold: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_resampling(self.dictionary, self.ratio_threshold)

    def resampling(self, batches: int) -> Resampling:
        """Return the user's sampler, or recursive RLS with the paper's confidence after each pick."""
        return rls_resampling(
            self.dictionary, self.ratio_threshold, failure_probability=self.failure_probability, batches=batches
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BPE(EliminationPolicy):
    """Batched pure exploration with the exact posterior (Li & Scarlett 2022): S-BPE with every pick in the dictionary.

    Its ``"theory"`` bounds have F where Thm 3.5 has 2F at λ_max = 0 (Vakili et al. 2021a, Thm 1). Settings:
    :class:`EliminationSettings`. O(a n²) per batch of n distinct picks.
    """

    name = "bpe"
    bias = "tight"  # F: the posterior is exact

    def resampling(self, batches: int) -> Resampling:
        """Return the rule with every pick in the dictionary."""
        return Resampling(sampler=lambda picks: AllSampler())


@dataclass(frozen=True, eq=False)
class RegressionDesign:
    """A design and its guarantees before any evaluation."""

    indices: Tensor | None
    """``n`` rows of the arms, repeats allowed; ``None`` on a box."""
    points: Tensor
    """``n x d`` points to evaluate, in order, in the user's dtype."""
    dictionary: Dictionary
    """Inducing points, independent of results; pass them to :class:`sparse_bo.SparseGP` as ``dictionary=``."""
    largest_sd: float
    """``max_x √variance`` after the design, over all arms or candidates (y)."""
    ratio: float
    """Upper bound on ``ρ = λ_max(K − Q)/λ``; 0 if the dictionary holds every point."""
    variance_factor: float
    """``1 + t``: sparse and exact variance differ by at most this factor, anywhere."""
    information_gain: float
    """``I = ½ log det(I + K/λ)`` of the design in nats, with the residual of the dictionary added; γ(n) is its maximum."""
    confidence: BatchConfidence
    """Arguments of a width's error bound."""

    def error_bound(self, width: BatchWidth) -> float:
        """Return a bound on ``sup |f − mean|`` from the design's variances (S-BPE Thm 3.5).

        Holds with the width's probability for the sparse posterior mean of results at these points with this dictionary:
        ``width · largest_sd + slack``.

        Args:
            width: A width, for example :class:`sparse_bo.widths.SBPETheory`.
        """
        bounds = width.bounds(self.confidence)
        return bounds.width * self.largest_sd + bounds.slack

    def rate_bound(self, width: BatchWidth) -> float:
        """Return Theorem 4.1's bound on ``sup |f − mean|``: ``width · √(2 (1+t)³ κ² I/(log(1 + κ²/λ) n))``.

        S-BPE Eq. 30 with its constant corrected: Eq. 26 rests on Lemma G.1, which is false; with the two-sided certificate each
        of its three uses costs ``√(1+t)``, so ``(1+t)³`` replaces ``(1 + λ_max/τ²)² = 4``. κ² is 1 there. Between dictionaries
        picks condition on those before; for an inexact design this can cost another factor C̃.
        """
        kappa_squared, n = self.confidence.kappa_squared, self.confidence.pulls
        growth = kappa_squared / math.log1p(kappa_squared / self.confidence.regularization)
        variance = 2.0 * self.variance_factor**3 * growth * self.information_gain / n
        bounds = width.bounds(self.confidence)
        return bounds.width * math.sqrt(variance) + bounds.slack


def max_variance_design(
    n: int,
    *,
    arms: Tensor | None = None,
    bounds: Tensor | None = None,
    covar_module: Kernel,
    regularization: float,
    dictionary: Sampler | None = None,
    ratio_threshold: float = 2.0,
    failure_probability: float = 0.05,
    candidates: int = 16_384,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    generator: torch.Generator,
) -> RegressionDesign:
    """Choose ``n`` points, each where the sparse posterior variance given those before it is highest (S-BPE §4.1).

    The design needs no results, so all points can be evaluated at once. On a box the points come from a scrambled Sobol set. As
    a policy with results, the same rule is ``SBPE(horizon=n, schedule=(n,), …)``. Cost: see
    :func:`sparse_bo.arms.design.design`.

    Args:
        n: Number of points, ≥ 1; a repeat is chosen where it is more informative than a new point.
        arms: ``a x d`` candidates.
        bounds: ``2 x d`` corners of a box, instead of ``arms``.
        covar_module: Any GPyTorch kernel without batch shape.
        regularization: λ = τ² > 0 (y²).
        dictionary: Sampler of the inducing points; ``None``: recursive RLS with ``δ_j = 3δ/(π² j²)`` (Thm 4.1).
        ratio_threshold: C̃ ≥ 1, see :class:`sparse_bo.SBPE`.
        failure_probability: δ of those dictionaries, in (0, 1).
        candidates: Size of the Sobol set.
        memory_bytes: Budget of a sweep's temporary blocks, and limit of a lazy arm set, which is loaded.
        generator: CPU generator, for the Sobol set and the sampler.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If both or none of ``arms`` and ``bounds`` are passed, or a value is out of range.

    Example:
        >>> plan = max_variance_design(500, bounds=bounds, covar_module=kernel, regularization=0.01, generator=generator)
        >>> y = objective(plan.points)
        >>> plan.error_bound(SBPETheory(rkhs_norm=1.0, noise_variance=0.01))  # sup |f − mean|, at confidence 0.95
    """
    check_count("n", n)
    check_count("candidates", candidates)
    check_positive("regularization", regularization)
    check_probability("failure_probability", failure_probability)
    check_resampling(dictionary, ratio_threshold)
    domain = check_domain(arms, bounds)
    if isinstance(domain, Box):
        points = domain.double().sobol(candidates, generator=generator)
    else:
        points = arms_of(domain, policy="maximum-variance design", memory_bytes=memory_bytes).double()
    surrogate = ArmPrior.over(points, KnownPrior(covar_module, 0.0, float(regularization)), memory_bytes=memory_bytes)
    resampling = rls_resampling(dictionary, ratio_threshold, failure_probability=failure_probability, batches=1)
    chosen = design(surrogate, n, resampling=resampling, generator=generator)
    posterior = posterior_over_part(surrogate, chosen.observations, chosen.dictionary)
    confidence = certified(surrogate, chosen, pulls=n, batches=1, arms=len(points), generator=generator)
    return RegressionDesign(
        indices=None if arms is None else chosen.indices,
        points=points[chosen.indices].to(domain.dtype),
        dictionary=chosen.dictionary,
        largest_sd=math.sqrt(float(posterior.leverages.max()) * surrogate.regularization),
        ratio=confidence.ratio,
        variance_factor=certified_factor(confidence.ratio),
        information_gain=_information_gain(posterior, chosen),
        confidence=confidence,
    )


def check_resampling(dictionary: Sampler | None, ratio_threshold: float) -> None:
    """Raise unless ``dictionary`` is a sampler or ``None``, and the threshold a number of at least 1."""
    check_sampler(dictionary)
    if check_number("ratio_threshold", ratio_threshold) < 1.0:
        raise ValueError(f"expected ratio_threshold >= 1 (1 resamples at every pick), got {ratio_threshold!r}")


def rls_resampling(
    dictionary: Sampler | None, ratio_threshold: float, *, failure_probability: float, batches: int
) -> Resampling:
    """Return the user's sampler, or recursive RLS with ``δ_j = 3δ/(π² B j²)`` after j picks (S-BPE Thm 4.1 and 5.2)."""
    if dictionary is not None:
        return Resampling(sampler=lambda picks: dictionary, ratio_threshold=ratio_threshold)

    def sampler(picks: int) -> Sampler:
        share = 3.0 * failure_probability / (math.pi**2 * batches * picks**2)
        return RecursiveRLSSampler(failure_probability=min(share, 0.03))  # Lemma 3.8 requires less than 1/32

    return Resampling(sampler=sampler, ratio_threshold=ratio_threshold)


def _information_gain(posterior: InMemoryPosterior, chosen: Design) -> float:
    """Return ``½ [log det B + tr(C(K − Q))/λ] ≥ ½ log det(I + K/λ)`` over the pulls. O(n m²)."""
    seen, surrogate = chosen.observations, posterior.prior
    distinct = torch.unique(chosen.indices)  # in the order of the observations
    features = posterior.state.factor.features(posterior.kernel_rows(distinct))
    residual = dtc.residual(features, surrogate.variances[distinct])
    left_out = 0.0 if chosen.exact else float((seen.counts * residual).sum()) / surrogate.regularization
    log_determinant = 2.0 * float(posterior.state.gram_cholesky.diagonal().log().sum())
    return 0.5 * (log_determinant + left_out)
