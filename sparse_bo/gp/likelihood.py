"""Log-likelihoods of a Gaussian process: over repeated observations with its gradient in closed form, and of a low-rank model.

Notation: n distinct inputs with counts c, means ȳ (n) and scatter ``S = Σ (y − ȳ)²`` over all ``N = Σ c`` observations; R
(``n x n``) their correlation, s the output scale, g the noise variance in units of s, m the mean. With ``A = R + g diag(1/c)``
the density of all observations is that of their means times that of the scatter around them:

    log N(y | m, s (R + g I)) = log N(ȳ | m, s A) − ½ [ S/(s g) + (N − n) log(2π s g) + Σ log c ]

Its derivatives follow from one factorisation. With ``r = ȳ − m``, ``α = A⁻¹ r`` and ``W = α αᵀ/s − A⁻¹`` the derivative by the
entries of A is ½ W (Rasmussen & Williams 2006, Eq. 5.9); by ``log s`` it is ``½ (rᵀα/s − n)``, by m ``1ᵀα/s``. A correlation
turns W into derivatives by its hyper-parameters in O(n² d), without a graph and without an ``n x n`` matrix for each input.

A low-rank model has sufficient statistics that are summed over blocks of rows, of which no more than one is held. Its notation
(shapes without ``batch_shape``): ``Z`` ``n x r`` features, ``N = diag(noise)`` ``n x n``, ``r`` (n) residuals ``y − μ₀``,
``B = I + ZᵀN⁻¹Z`` ``r x r``.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg.blas import dsymm, dsymv, dsyr
from scipy.linalg.lapack import dpotrf, dpotri, dpotrs
from scipy.special import softmax
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from sparse_bo.gp.hyperparameter_priors import ADDITIVE, REST, Priors
from sparse_bo.kernels.gradients import RADIAL, RADIAL_ARRAYS, Pairs, half_spread, squared_distances
from sparse_bo.linalg.cholesky import safe_cholesky, safe_factors
from sparse_bo.linalg.chunking import broadcast_shapes, tile_rows

Array: TypeAlias = NDArray[np.float64]
LOG_2PI = math.log(2.0 * math.pi)


class Correlation(NamedTuple):
    """A correlation matrix with its derivatives."""

    value: Array
    """``n x n``, symmetric."""
    gradient: Callable[[Array], Array]
    """From the lower triangle of a symmetric W (``n x n``, by columns, overwritten) to ``½ tr[W ∂R]`` by the logarithm of each
    hyper-parameter (``p``)."""


def correlation_of(logs: Array, X: Array, *, family: str, together: Pairs | None = None) -> Correlation:
    """Return the correlation of ``n x d`` points from the logarithms of its hyper-parameters. O(n² d).

    In NumPy: of a few dozen points most of the time of a tensor's operation is its call.

    Args:
        logs: ``log ℓ``; of a sum ``log ℓ, log a, log w`` with shares w over that of all inputs together.
        X: ``n x d`` around 0: distances come from products, whose rounding grows with the distance from it.
        family: A key of :data:`sparse_bo.kernels.gradients.RADIAL`, or :data:`sparse_bo.gp.hyperparameter_priors.ADDITIVE`.
        together: Pairs of ``X``, of a sum.
    """
    d = X.shape[1]
    Z = X / np.exp(logs[:d])
    s = Z @ Z.T
    norms = s.diagonal().copy()
    s *= -2.0
    s += norms
    s += norms[:, None]
    value, slope = RADIAL_ARRAYS[REST if family == ADDITIVE else family](np.maximum(s, 0.0, out=s))

    def by_lengthscales(W: Array) -> Array:
        # ½ Σᵢⱼ Mᵢⱼ (zᵢ − zⱼ)² of M = W ∘ slope, whose lower triangle is read: its rows' sums, and M Z
        M = np.multiply(W, slope.T, out=W)
        return np.asarray(dsymv(1.0, M, np.ones(len(M)), lower=1) @ (Z * Z) - (Z * dsymm(1.0, M, Z, lower=1)).sum(axis=0))

    if family != ADDITIVE:
        return Correlation(value, by_lengthscales)
    assert together is not None
    shares, rest = shares_of(logs[2 * d :])
    curvature = np.exp(-2.0 * logs[d : 2 * d])  # d: 1/a²
    parts = np.exp(together.squares * (-0.5 * curvature)[:, None])  # d x pairs
    total = together.matrix(shares @ parts, float(shares.sum()))
    total += rest * value

    def gradient(W: Array) -> Array:
        w = together.entries(W.T)  # pairs; W's lower triangle
        by_alone = shares * curvature * ((parts * together.squares) @ w)
        by_share = shares * (parts @ w - w @ together.entries(total))
        return np.concatenate([rest * by_lengthscales(W), by_alone, by_share])

    return Correlation(total, gradient)


def shares_of(logs: Array) -> tuple[Array, float]:
    """Return the shares of functions of one input (``d``), and that of all inputs together, from ``log w`` over the latter."""
    shares = softmax(np.append(logs, 0.0))
    return shares[:-1], float(shares[-1])


class Scatter(NamedTuple):
    """Repeated observations beside their means."""

    counts: Tensor
    """``n``: c."""
    squares: float
    """S (y²)."""
    repeats: float
    """``N − n``."""
    log_counts: float
    """``Σ log c``."""

    @classmethod
    def of(cls, counts: Tensor, squares: float) -> Scatter:
        """Return the scatter of inputs that were observed ``counts`` (``n``) times. Reads the device once."""
        total, logs = torch.stack([counts.sum(), counts.log().sum()]).tolist()
        return cls(counts, squares, total - len(counts), logs)

    def cpu(self) -> Scatter:
        """Return it on the CPU."""
        return self._replace(counts=self.counts.cpu())


class LogLikelihood(NamedTuple):
    """A log-likelihood with its mean and scale, and its derivatives at these."""

    value: float
    mean: float
    """m (y)."""
    scale: float
    """s (y²)."""
    by_correlation: Array
    """``p``, by the logarithms of the correlation's hyper-parameters."""
    by_log_scale: float
    """At a fixed noise in units of the scale."""
    by_log_noise: float
    """By ``log g``, of a noise ``g/c``."""


def log_likelihood(
    R: Correlation,
    means: Array,
    noise: float,
    *,
    mean: float | None,
    scale: float | None,
    scatter: Scatter | None = None,
    priors: Priors | None = None,
    gradient: bool = True,
) -> LogLikelihood:
    """Return the log-likelihood of means and scatter, and its derivatives. O(n³ + n² d), no autograd.

    Args:
        R: Of the distinct inputs.
        means: ``n``: ȳ (y).
        noise: g.
        mean: m (y). ``None``: its mode under ``N(0, s · priors.mean_variance)``.
        scale: s (y²). ``None``: its mode under the priors' inverse gamma.
        scatter: Repeated observations; ``None``: every mean is one observation, and g is the noise of each.
        priors: Those of mean and scale, whose log densities are added; ``None``: neither is at its mode.
        gradient: Whether derivatives are wanted; they are empty otherwise, and the inverse is not computed.

    Raises:
        ValueError: If ``A`` is not finite or not positive definite.
    """
    n, shape = len(means), 0.0 if priors is None else priors.scale_shape
    noises = noise if scatter is None else noise / scatter.counts.numpy()
    L = _factor(R.value, noises)
    value = -float(np.log(L.diagonal()).sum())
    W = dpotri(L, lower=1, overwrite_c=1)[0] if gradient else None  # the lower triangle of A⁻¹, as of every matrix below

    def solved(b: Array) -> Array:
        return np.asarray(dpotrs(L, b, lower=1)[0] if W is None else dsymv(1.0, W, b, lower=1))

    added = 2.0 * shape  # to rᵀα: twice all else that is divided by s
    if mean is None:
        assert priors is not None
        row = solved(np.ones(n))  # A⁻¹ 1
        mean = float(row @ means) / (float(row.sum()) + 1.0 / priors.mean_variance)
        added += mean * mean / priors.mean_variance
    r = means - mean
    alpha = solved(r)
    quadratic, degrees = float(r @ alpha) + added, n + 2.0 * shape
    if scatter is not None:
        quadratic, degrees = quadratic + scatter.squares / noise, degrees + scatter.repeats
        value -= 0.5 * (scatter.repeats * math.log(noise) + scatter.log_counts)
    s = quadratic / degrees if scale is None else scale
    surplus = quadratic / s - degrees  # 0 at the mode of s
    value -= 0.5 * (surplus + degrees * (math.log(s) + 1.0) + (degrees - 2.0 * shape) * LOG_2PI)
    if W is None:
        return LogLikelihood(value, mean, s, means[:0], 0.0, 0.0)
    W = dsyr(1.0 / s, alpha, lower=1, a=np.negative(W, out=W), overwrite_a=1)
    by_log_noise = 0.5 * float((W.diagonal() * noises).sum())
    if scatter is not None:
        by_log_noise += 0.5 * (scatter.squares / (s * noise) - scatter.repeats)
    return LogLikelihood(value, mean, s, R.gradient(W), 0.5 * surplus, by_log_noise)


def _factor(R: Array, noises: float | Array) -> Array:
    """Return the lower Cholesky factor of ``R + diag(noises)``, by columns; with a jitter where it takes one."""

    def noisy() -> Array:
        A = R.copy()
        A.reshape(-1)[:: len(A) + 1] += noises
        return A

    L, info = dpotrf(noisy().T, lower=1, overwrite_a=1)  # symmetric: by columns it is its transpose
    if info == 0 and math.isfinite(float(L.diagonal().sum())):
        return np.asarray(L)
    return np.asfortranarray(safe_cholesky(torch.from_numpy(noisy())).numpy())


def stationary_log_likelihood(
    X: Tensor, lengthscales: Tensor, variance: Tensor, noise: Tensor, residuals: Tensor, *, family: str
) -> Tensor:
    """Return ``log N(residuals | 0, v R + diag(noise))``, ``batch_shape``, differentiable once in all but ``X``. O(n³).

    Args:
        X: ``… x n x d``.
        lengthscales: ``… x d``, or ``… x 1``: one for all inputs.
        variance: ``…``, v (y²).
        noise: ``… x n`` (y²).
        residuals: ``batch_shape x n`` (y); the batch shapes of all others broadcast to its.
        family: A key of :data:`sparse_bo.kernels.gradients.RADIAL`.

    Raises:
        ValueError: If a covariance is not finite or not positive definite.
    """
    batch_shape = broadcast_shapes(
        X.shape[:-2], lengthscales.shape[:-1], variance.shape, noise.shape[:-1], residuals.shape[:-1]
    )
    n, d = X.shape[-2:]
    arguments = (
        X.expand(*batch_shape, n, d),
        lengthscales.expand(*batch_shape, d),
        variance.expand(batch_shape),
        noise.expand(*batch_shape, n),
        residuals.expand(*batch_shape, n),
    )
    return _StationaryLogLikelihood.apply(*arguments, family)  # type: ignore[no-untyped-call]  # as torch types it


class _StationaryLogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, X: Tensor, lengthscales: Tensor, variance: Tensor, noise: Tensor, residuals: Tensor, family: str
    ) -> Tensor:
        wanted = any(ctx.needs_input_grad)
        batch_shape, n = variance.shape, X.shape[-2]
        flat = [part.reshape(-1, *part.shape[len(batch_shape) :]) for part in (X, lengthscales, variance, noise, residuals)]
        step = tile_rows(n * n, device=X.device)
        parts = zip(*(torch.split(part, step) for part in flat), strict=True)
        found = [values_and_gradients(*some, family=family, gradient=wanted) for some in parts]
        values, gradients = zip(*found, strict=True)
        if wanted:
            whole = [torch.cat(parts) for parts in zip(*gradients, strict=True)]
            ctx.save_for_backward(*(part.reshape(batch_shape + part.shape[1:]) for part in whole))
        return torch.cat(values).reshape(batch_shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_value: Tensor) -> tuple[Tensor | None, ...]:
        by_lengthscales, by_variance, by_noise, by_residuals = ctx.saved_tensors
        rows = by_value.unsqueeze(-1)
        return None, rows * by_lengthscales, by_value * by_variance, rows * by_noise, rows * by_residuals, None


def values_and_gradients(
    X: Tensor, lengthscales: Tensor, variance: Tensor, noise: Tensor, residuals: Tensor, *, family: str, gradient: bool = True
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the log-likelihoods of ``b`` GPs, and their derivatives by lengthscales, variance, noise and residuals, if wanted.

    :func:`log_likelihood` in BoTorch's hyper-parameters, of many at once: small ones cost a device more to launch than to
    compute. Arguments and errors: those of :func:`stationary_log_likelihood` with batch shape ``b``, none to be broadcast.
    """
    n, v = X.shape[-2], variance.unsqueeze(-1)
    Z = X / lengthscales.unsqueeze(-2)
    radial = RADIAL[family](squared_distances(Z, Z))
    A = radial.value.clone()
    A.diagonal(dim1=-2, dim2=-1).add_(noise / v)
    L = safe_factors(A)
    alpha = torch.cholesky_solve(residuals.unsqueeze(-1), L).squeeze(-1)  # b x n
    quadratic = (residuals * alpha).sum(dim=-1) / variance
    log_determinant = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
    value = -0.5 * (quadratic + n * (variance.log() + LOG_2PI) + log_determinant)
    if not gradient:
        return value, ()
    inverse = torch.cholesky_inverse(L)
    W = inverse.neg_().baddbmm_(alpha.unsqueeze(-1), (alpha / v).unsqueeze(-2))
    by_noise = 0.5 * W.diagonal(dim1=-2, dim2=-1) / v
    by_variance = (0.5 * (quadratic - n) - (by_noise * noise).sum(dim=-1)) / variance
    by_log_lengthscales = half_spread(Z, W.mul_(radial.slope))
    return value, (by_log_lengthscales / lengthscales, by_variance, by_noise, alpha.neg_() / v)


class LowRankSums(NamedTuple):
    """Sufficient statistics of a low-rank Gaussian model; those of disjoint blocks of rows add up."""

    gram: Tensor
    """``batch_shape x r x r``: ``ZᵀN⁻¹Z`` (without the identity)."""
    projected: Tensor
    """``batch_shape x r``: ``ZᵀN⁻¹r``."""
    squares: Tensor
    """``batch_shape``: ``rᵀN⁻¹r``."""
    log_noise: Tensor
    """``batch_shape``: ``log|N|``."""
    unexplained: Tensor
    """``batch_shape``: ``Σᵢ (k(xᵢ,xᵢ) − ‖zᵢ‖²)₊ / noiseᵢ``, the trace term of the variational bound."""
    rows: int
    """Number n of rows."""


def low_rank_sums(features: Tensor, residuals: Tensor, noise: Tensor, prior_variance: Tensor) -> LowRankSums:
    """Sum one block of rows. O(n r²).

    From ``batch_shape x n x r`` features, and residuals (y), noise variances > 0 (y²) and ``k(x, x)`` (y²), each
    ``batch_shape x n``.
    """
    scaled = features / noise.sqrt().unsqueeze(-1)  # n x r
    whitened = residuals / noise.sqrt()
    unexplained = ((prior_variance - features.square().sum(dim=-1)).clamp_min(0.0) / noise).sum(dim=-1)
    gram, projected = scaled.mT @ scaled, (scaled.mT @ whitened.unsqueeze(-1)).squeeze(-1)  # gradients add up in this order
    squares, log_noise = whitened.square().sum(dim=-1), noise.log().sum(dim=-1)
    return LowRankSums(gram, projected, squares, log_noise, unexplained, features.shape[-2])


def sum_blocks(block: Callable[[slice], LowRankSums], slices: Iterable[slice]) -> LowRankSums:
    """Add up ``block(rows)`` over ``slices``. With several blocks and gradients on, each is recomputed in the backward pass.

    So the memory of the forward *and* backward pass is that of one block. ``ValueError`` if there are no slices.
    """
    parts = list(slices)
    if not parts:
        raise ValueError("expected at least one slice of rows")
    recomputed = len(parts) > 1 and torch.is_grad_enabled()
    sums = (checkpoint(block, rows, use_reentrant=False) if recomputed else block(rows) for rows in parts)
    return functools.reduce(lambda total, part: LowRankSums(*map(operator.add, total, part)), sums)


def log_likelihood_from_sums(sums: LowRankSums, *, bound: bool) -> Tensor:
    """Return ``log N(y | μ₀, ZZᵀ + N)``, ``batch_shape``, by Woodbury; ``ValueError`` if ``B`` is not finite. O(r³).

    ``−½ [rᵀN⁻¹r − bᵀB⁻¹b + log|B| + log|N| + n log 2π]`` with ``b = ZᵀN⁻¹r``. Differentiable. As a ``bound`` less half the
    trace term (Titsias 2009, Eq. 9): never above the exact log-likelihood, for any dictionary.
    """
    eye = torch.eye(sums.gram.shape[-1], dtype=sums.gram.dtype, device=sums.gram.device)
    L = safe_cholesky(eye + sums.gram)
    u = torch.linalg.solve_triangular(L, sums.projected.unsqueeze(-1), upper=False).squeeze(-1)
    log_determinant = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1) + sums.log_noise
    quadratic = sums.squares - u.square().sum(dim=-1)
    value = -0.5 * (quadratic + log_determinant + sums.rows * LOG_2PI)
    return value - 0.5 * sums.unexplained if bound else value


class _GaussianLogLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, covariance: Tensor, residuals: Tensor) -> Tensor:
        L = safe_cholesky(covariance)
        solved = torch.cholesky_solve(residuals.unsqueeze(-1), L).squeeze(-1)
        ctx.save_for_backward(L, solved)
        log_determinant = 2.0 * L.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
        n = residuals.shape[-1]
        return -0.5 * ((residuals * solved).sum(dim=-1) + log_determinant + n * LOG_2PI)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        L, solved = ctx.saved_tensors
        # ∂/∂K = ½ (a aᵀ − K⁻¹) with a = K⁻¹r (Rasmussen & Williams 2006, Eq. 5.9): half the work of differentiating L.
        to_covariance = torch.cholesky_inverse(L)
        to_covariance.addcmul_(solved.unsqueeze(-1), solved.unsqueeze(-2), value=-1.0)
        to_covariance.mul_(-0.5 * gradient[..., None, None])
        return to_covariance, -gradient.unsqueeze(-1) * solved


def gaussian_log_likelihood(covariance: Tensor, residuals: Tensor) -> Tensor:
    """Return ``log N(residuals | 0, covariance)``, ``batch_shape``, with an analytic first derivative. O(n³).

    ``covariance`` is ``batch_shape x n x n`` (y²), ``residuals`` ``batch_shape x n`` (y). ``ValueError`` if the
    covariance is not finite or not positive definite.
    """
    return _GaussianLogLikelihood.apply(covariance, residuals)  # type: ignore[no-untyped-call]  # as torch types it
