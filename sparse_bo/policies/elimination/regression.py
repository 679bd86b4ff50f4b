"""Maximum-variance designs for regression, with error bounds before any evaluation (S-BPE §4)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.arms import ArmPrior, InMemoryPosterior, posterior_over_part
from sparse_bo.arms.design import Design, Resampling, design
from sparse_bo.dictionary import Dictionary, RecursiveRLSSampler, Sampler, candidates_of, residual_bound
from sparse_bo.dictionary.certificate import certified_factor
from sparse_bo.domains import Box, check_domain
from sparse_bo.gp import dtc
from sparse_bo.gp.objective_prior import KnownPrior
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.policies.protocol import arms_of
from sparse_bo.policies.settings import check_sampler
from sparse_bo.validation import check_count, check_number, check_positive, check_probability
from sparse_bo.widths import BatchConfidence, BatchWidth


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
    ratio = certified_ratio(surrogate, chosen, generator=generator)
    confidence = BatchConfidence(
        pulls=n,
        batches=1,
        arms=len(points),
        dims=points.shape[1],
        regularization=surrogate.regularization,
        kappa_squared=surrogate.kappa_squared,
        ratio=ratio,
    )
    return RegressionDesign(
        indices=None if arms is None else chosen.indices,
        points=points[chosen.indices].to(domain.dtype),
        dictionary=chosen.dictionary,
        largest_sd=math.sqrt(float(posterior.leverages.max()) * surrogate.regularization),
        ratio=ratio,
        variance_factor=certified_factor(ratio),
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


def certified_ratio(surrogate: ArmPrior, chosen: Design, *, generator: torch.Generator) -> float:
    """Return an upper bound on ``ρ = λ_max(K − Q)/λ`` over the picks of a design; 0 without a draw if it is exact."""
    if chosen.exact:
        return 0.0
    seen = candidates_of(chosen.observations, None, covariance=surrogate.covariance, regularization=surrogate.regularization)
    return residual_bound(seen, chosen.dictionary, memory_bytes=surrogate.memory_bytes, generator=generator).upper


def _information_gain(posterior: InMemoryPosterior, chosen: Design) -> float:
    """Return ``½ [log det B + tr(C(K − Q))/λ] ≥ ½ log det(I + K/λ)`` over the pulls. O(n m²)."""
    seen, surrogate = chosen.observations, posterior.prior
    distinct = torch.unique(chosen.indices)  # in the order of the observations
    features = posterior.state.factor.features(posterior.kernel_rows(distinct))
    residual = dtc.residual(features, surrogate.variances[distinct])
    left_out = 0.0 if chosen.exact else float((seen.counts * residual).sum()) / surrogate.regularization
    log_determinant = 2.0 * float(posterior.state.gram_cholesky.diagonal().log().sum())
    return 0.5 * (log_determinant + left_out)
