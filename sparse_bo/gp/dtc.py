"""The DTC posterior: the deterministic-training-conditional GP over a dictionary, from the features of its Nyström factor.

Notation (shapes without ``batch_shape``): ``D`` the dictionary (m points), ``K_DD`` ``m x m`` its kernel matrix;
``P`` ``m x r`` with ``Pᵀ K_DD P = I``; ``z(x) = Pᵀ k_D(x)`` the features of a point, so
``z(x)ᵀ z(x') = k_D(x)ᵀ K_DD⁺ k_D(x') = q(x, x')``;
``Z`` ``n x r`` the features of the data, ``p`` (n) the precision of each distinct input (count/λ, or 1/noise),
``e`` (n) the precision-weighted residual (``(sum − count·μ₀)/λ``), ``B = I + Zᵀ diag(p) Z`` ``r x r``, ``w = B⁻¹ Zᵀ e`` (r).

    mean(x)          = μ₀ + z(x)ᵀ w
    covariance(x,x') = k(x,x') − z(x)ᵀ z(x') + z(x)ᵀ B⁻¹ z(x')

This is BKB Eq. 4 / BBKB Eq. 1–2 (times λ) with the misprints corrected; with λ-scaled ``V = λB`` it is the same thing.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.linalg.cholesky import round_off, safe_cholesky, solve_lower, triangular_inverse, try_cholesky

_SAFETY = 10.0
"""Jitter and rank cut in units of the matrix's own round-off: large enough to cover it, far below anything visible."""


@dataclass(frozen=True, eq=False)
class NystromFactor:
    """A whitening of the dictionary's kernel matrix, and how it was obtained."""

    matrix: Tensor
    """``batch_shape x m x m`` lower Cholesky factor ``L`` (then ``P = L⁻ᵀ``), or ``batch_shape x m x r`` the ``P`` itself."""
    triangular: bool
    """Which of the two ``matrix`` is."""
    jitter: float
    """Jitter added to the diagonal of ``K_DD`` (0 where none was needed), in its units."""

    @property
    def rank(self) -> int:
        """Number of features r ≤ m."""
        return self.matrix.shape[-1]

    def features(self, K_DX: Tensor) -> Tensor:
        """Return the features of points, ``batch_shape x n x r``, from ``K_DX`` (``batch_shape x m x n``). O(n m r)."""
        if self.triangular:
            return solve_lower(self.matrix, K_DX).mT
        return K_DX.mT @ self.matrix

    def lift(self, W: Tensor) -> Tensor:
        """Return ``P W``, ``batch_shape x m x c``: coefficients on features become coefficients on ``k_D``. O(m r c)."""
        if self.triangular:
            return torch.linalg.solve_triangular(self.matrix.mT, W, upper=True)
        return self.matrix @ W


_NOT_FINITE = "expected a finite kernel matrix, got NaN or infinite entries; check inputs and kernel parameters"


def nystrom_factor(K_DD: Tensor) -> NystromFactor:
    """Whiten a dictionary: find ``P`` with ``Pᵀ K_DD P = I`` (algorithms: ``P = K_DD^{+/2}``, BKB §3.1).

    Three steps, the first that is numerically safe wins:

    1. Cholesky of ``K_DD``.
    2. Cholesky of ``K_DD + jI``, ``j`` ten times the round-off of the matrix: a *regularised* Nyström approximation, whose
       residual ``k − ‖z‖²`` is never too small. BKB has a pseudo-inverse there. The two differ by what lies within the
       round-off of ``K_DD``, and leverages near 0 may be visibly larger with the jitter: it explains less, so it errs towards
       more uncertainty, and the certificate is that of the factor in use.
    3. If the matrix is indefinite beyond round-off: its eigendecomposition, with every eigenvalue
       ``e ≤ max(m · eps · max diag, 10 · |most negative eigenvalue|)`` dropped, and a warning.

    Safe means that no eigenvalue lies within the round-off: below it, a feature would amplify noise to order one. O(m³).

    Args:
        K_DD: ``batch_shape x m x m`` kernel matrix of the dictionary, m ≥ 1. Repeated points are allowed.

    Raises:
        ValueError: If the dictionary is empty, or the matrix has NaN, infinite or no positive eigenvalues.

    Warns:
        NumericalWarning: If step (3) was needed.
    """
    if K_DD.shape[-1] == 0:
        raise ValueError("expected a dictionary of at least one point, got an empty one")
    factor, info = torch.linalg.cholesky_ex(K_DD)
    # All three numbers in one read of the device.
    scale, failures, pivot = torch.stack([_diagonal(K_DD).abs().amax(), info.sum().to(K_DD), _diagonal(factor).amin()]).tolist()
    unit = round_off(K_DD, scale=scale)
    if not math.isfinite(unit):
        raise ValueError(_NOT_FINITE)
    if failures == 0.0 and _well_conditioned(factor, pivot, unit):
        return NystromFactor(factor, True, 0.0)
    jitter = _SAFETY * unit
    jittered = try_cholesky(K_DD, jitter=jitter)
    if jittered is not None:
        return NystromFactor(jittered, True, jitter)
    if not bool(K_DD.detach().isfinite().all()):  # beside the diagonal
        raise ValueError(_NOT_FINITE)
    return _truncated(K_DD, unit)


def _diagonal(A: Tensor) -> Tensor:
    return A.detach().diagonal(dim1=-2, dim2=-1)


def _well_conditioned(factor: Tensor, pivot: float, unit: float) -> bool:
    """Return whether no eigenvalue lies within the round-off: ``1/tr((L Lᵀ)⁻¹) ≤ λ_min`` must exceed it with a margin."""
    smallest_pivot = pivot**2
    if smallest_pivot > 1e6 * unit or smallest_pivot <= _SAFETY * unit:  # λ_min ≤ pivot: far above, or already below
        return smallest_pivot > _SAFETY * unit
    inverse = triangular_inverse(factor.detach())
    return float(1.0 / inverse.square().sum(dim=(-2, -1)).amax()) > _SAFETY * unit


def _truncated(K_DD: Tensor, unit: float) -> NystromFactor:
    if K_DD.dim() > 2:
        raise ValueError("a batch of kernel matrices is indefinite beyond round-off; check the kernel or use float64")
    values, vectors = torch.linalg.eigh(K_DD)
    # The most negative eigenvalue shows the error level of the entries themselves: what is not well above it is noise.
    keep = values > max(unit, -_SAFETY * float(values[0]))
    if not bool(keep.any()):
        raise ValueError("the kernel matrix of the dictionary has no positive eigenvalue; check the kernel parameters")
    warnings.warn(
        f"the kernel matrix of {K_DD.shape[-1]} dictionary points is indefinite (smallest eigenvalue "
        f"{float(values[0]):.1e}); kept rank {int(keep.sum())}. Use float64 or check that the kernel is positive definite",
        NumericalWarning,
        stacklevel=3,
    )
    return NystromFactor(vectors[:, keep] * values[keep].rsqrt(), False, 0.0)


@dataclass(frozen=True, eq=False)
class DTC:
    """A fitted DTC posterior. A value."""

    factor: NystromFactor
    gram: Tensor
    """``batch_shape x r x r``: ``B = I + Zᵀ diag(p) Z``."""
    gram_cholesky: Tensor
    """``batch_shape x r x r`` lower factor of ``B``."""
    projected: Tensor
    """``batch_shape x r``: ``Zᵀ e``."""
    prior_mean: float | Tensor
    """Constant prior mean μ₀ (a tensor must broadcast against ``batch_shape x n``)."""
    largest_precision: Tensor
    """``batch_shape``: the largest p, of the input that is known best (1/y²); 0 without data."""

    @property
    def weights(self) -> Tensor:
        """``batch_shape x r``: ``w = B⁻¹ Zᵀ e``. O(r²)."""
        return torch.cholesky_solve(self.projected.unsqueeze(-1), self.gram_cholesky).squeeze(-1)

    @property
    def trace(self) -> float:
        """``tr B``, the largest of the batch."""
        return self._scales[0]

    @property
    def best_precision(self) -> float:
        """The largest p of the batch (1/y²): the posterior variance there is about its inverse, the smallest there is."""
        return self._scales[1]

    @cached_property
    def _scales(self) -> tuple[float, float]:
        """Both in one read of the device. O(r)."""
        trace = self.gram.detach().diagonal(dim1=-2, dim2=-1).sum(dim=-1).amax()
        first, second = torch.stack([trace, self.largest_precision.detach().amax().to(trace)]).tolist()
        return first, second


@dataclass(frozen=True, eq=False)
class OneProduct:
    """A posterior in the form of an exact GP with m pseudo-data: one matrix product gives mean and variance.

    ``mean(x) = μ₀ + k_D(x)ᵀ α`` and ``variance(x) = k(x,x) − ‖Rᵀ k_D(x)‖²``. Round-off of the variance is about
    ``eps · k(x,x)`` in absolute terms; use :func:`variance` where variances are tinier.
    """

    columns: Tensor
    """``batch_shape x m x (r + 1)``: ``[R, α]``."""
    inverse_root: Tensor
    """``batch_shape x r x r``: ``L_B⁻¹``, to multiply with instead of solving where this form is accurate enough: its norm is
    at most 1, so that costs ``√(tr B)`` units of round-off, less than :func:`one_product_error`."""
    prior_mean: float | Tensor
    triangular: bool = False
    """Whether ``R`` is upper triangular (r = m): then almost half of the product is spared."""

    @property
    def root(self) -> Tensor:
        """``batch_shape x m x r``: ``R``."""
        return self.columns[..., :-1]

    @property
    def alpha(self) -> Tensor:
        """``batch_shape x m``: ``α``."""
        return self.columns[..., -1]

    @property
    def step(self) -> int:
        """Columns of ``R`` in one product of :mod:`sparse_bo.arms.sweep`."""
        # Four blocks spare 3/8 of the product; more are too thin, and on a GPU less than 256 columns take longer to launch.
        m = self.columns.shape[-2]
        quarter = -(-m // 4)
        if not self.triangular:
            return m
        if self.columns.device.type == "cpu":
            return quarter if m >= 64 else m
        return min(max(quarter, 256), m)

    def mean(self, K_DX: Tensor) -> Tensor:
        """Return the posterior mean, ``batch_shape x n``, from ``K_DX`` (``batch_shape x m x n``). O(n m)."""
        return self.prior_mean + (self.alpha.unsqueeze(-2) @ K_DX).squeeze(-2)


def fit(
    factor: NystromFactor, features: Tensor, precision: Tensor, weighted_residuals: Tensor, *, prior_mean: float | Tensor = 0.0
) -> DTC:
    """Fit the DTC posterior to distinct inputs; ``ValueError`` if ``B`` is not finite. O(n r² + r³).

    Args:
        factor: The whitening of the dictionary.
        features: ``batch_shape x n x r`` features of the distinct inputs; n = 0 gives the prior.
        precision: ``batch_shape x n``, count/λ or 1/noise of each input (1/y²).
        weighted_residuals: ``batch_shape x n``, ``(sum − count·μ₀)/λ`` of each input (1/y).
        prior_mean: The constant prior mean μ₀ (y).
    """
    eye = torch.eye(features.shape[-1], dtype=features.dtype, device=features.device)
    gram = eye + (features * precision.unsqueeze(-1)).mT @ features
    projected = (features.mT @ weighted_residuals.unsqueeze(-1)).squeeze(-1)
    return DTC(factor, gram, safe_cholesky(gram), projected, prior_mean, largest_precision(precision))


def largest_precision(precision: Tensor) -> Tensor:
    """Return the largest precision of ``batch_shape x n`` inputs, ``batch_shape``; 0 where there are none. O(n)."""
    return precision.amax(dim=-1) if precision.shape[-1] else precision.new_zeros(precision.shape[:-1])


def mean(state: DTC, features: Tensor) -> Tensor:
    """Return ``μ₀ + z(x)ᵀ w``, ``batch_shape x n``, from features ``batch_shape x n x r``. O(n r)."""
    return state.prior_mean + (features @ state.weights.unsqueeze(-1)).squeeze(-1)


def whitened(state: DTC, features: Tensor) -> Tensor:
    """Return ``u(x) = L_B⁻¹ z(x)``, ``batch_shape x n x r``: ``u(x)ᵀu(x') = z(x)ᵀ B⁻¹ z(x')``. O(n r²)."""
    return solve_lower(state.gram_cholesky, features.mT).mT


def variance(state: DTC, features: Tensor, prior_variance: Tensor) -> Tensor:
    """Return the posterior variance in the two-term form ``(k − ‖z‖²)₊ + ‖L_B⁻¹ z‖²``, ``batch_shape x n``. O(n r²).

    From ``batch_shape x n x r`` features and ``batch_shape x n`` ``k(x, x)`` (y²). Both terms are at least 0, so it stays
    accurate where the variance is tiny. It is the oracle of the one-product form.
    """
    return residual(features, prior_variance) + whitened(state, features).square().sum(dim=-1)


def residual(features: Tensor, prior_variance: Tensor) -> Tensor:
    """Return the residual variance ``(k(x,x) − ‖z(x)‖²)₊`` of the dictionary, ``batch_shape x n`` (y²). O(n r)."""
    return (prior_variance - features.square().sum(dim=-1)).clamp_min(0.0)


def one_product_error(state: DTC) -> float:
    """Return about how far, in units of k(x,x), the variance of :func:`one_product` is from the true one: ``2 · eps · tr B``.

    By default it is absolute: an input observed c times, whose variance is about ``noise/c``, loses a fraction of
    ``error · c · k(x,x)/noise``; :func:`sparse_bo.arms.sweep.evaluator` compares the two. The smallest eigenvalues of
    ``I − B⁻¹`` come from differences of numbers of size 1 that are known to ``eps · κ(B)``.
    """
    return 2.0 * torch.finfo(state.gram.dtype).eps * state.trace


def one_product(state: DTC, *, relative: bool = False) -> OneProduct:
    """Rewrite the posterior so that a sweep over arms is one matrix product. O(m r² + r³).

    ``R Rᵀ = P (I − B⁻¹) Pᵀ``: with ``I − B⁻¹ = U Uᵀ`` by Cholesky from the last row up, ``R = P U``; ``α = P w``. With
    ``P = L⁻ᵀ`` both factors are upper triangular, and so is ``R``. ``I − B⁻¹`` is known to :func:`one_product_error`, and so
    much is added to it.

    ``relative``: that times ``B⁻¹``. Variances come out lower by that share of themselves, at most, and covariances stay
    positive semi-definite. Default: that times the identity. Variances come out lower by that times k(x,x), at most.
    """
    eye = torch.eye(state.gram.shape[-1], dtype=state.gram.dtype, device=state.gram.device)
    inverse_root = triangular_inverse(state.gram_cholesky)
    error, inverse = one_product_error(state), inverse_root.mT @ inverse_root
    shrinkage = eye - max(1.0 - error, 0.0) * inverse if relative else (1.0 + error) * eye - inverse
    upper = safe_cholesky(shrinkage.flip(-2, -1)).flip(-2, -1)
    columns = state.factor.lift(torch.cat([upper, state.weights.unsqueeze(-1)], dim=-1))  # batch_shape x m x (r + 1)
    return OneProduct(columns, inverse_root, state.prior_mean, state.factor.triangular)


def decoupled_weights(state: DTC, prior_values: Tensor, normal: Tensor) -> Tensor:
    """Return ``P (w + L_B⁻ᵀ ε − Pᵀ g(D))``, ``m x q``: with them ``μ₀ + g(x) + k_D(x)ᵀ weights`` is a draw of the posterior.

    ``prior_values`` are ``q x m`` values ``g(D)`` of q draws of the prior less its mean, ``normal`` ``q x r`` standard normal
    numbers ε. The draw has mean ``μ₀ + z(x)ᵀw`` and covariance ``k − zᵀz' + zᵀB⁻¹z'``, exactly if g has covariance k: weights
    of features are drawn from N(w, B⁻¹), the rest comes from the prior (Wilson et al. 2020, Eq. 13; Vakili et al. 2021,
    S-GP-TS). Of a state without batch shape. O(m² q).
    """
    spread = torch.linalg.solve_triangular(state.gram_cholesky.mT, normal.mT, upper=True)  # r x q
    explained = state.factor.features(prior_values.mT).mT  # r x q, Pᵀ g(D)
    return state.factor.lift(state.weights.unsqueeze(-1) + spread - explained)


def left_out(state: DTC, features: Tensor, residuals: Tensor, noise: Tensor, prior_variance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the posterior of each row as if that row had not been observed, with the same dictionary. O(n r²).

    Removing row i takes ``pᵢzᵢzᵢᵀ`` from ``B``; with ``hᵢ = zᵢᵀB⁻¹zᵢ`` and the fit ``fᵢ = zᵢᵀw`` (Sherman & Morrison 1950)

        mean₋ᵢ(xᵢ) − μ₀ = (fᵢ − pᵢhᵢrᵢ) / (1 − pᵢhᵢ),      variance₋ᵢ(xᵢ) = k(xᵢ, xᵢ) − ‖zᵢ‖² + hᵢ / (1 − pᵢhᵢ).

    Of rows that the state was fitted to: features ``batch_shape x n x r``, residuals (y), noise variances ``1/p`` (y²) and
    ``k(x, x)``, ``batch_shape x n`` each. Returns means less the prior mean and variances of f, ``batch_shape x n`` each.
    """
    h = whitened(state, features).square().sum(dim=-1)  # batch_shape x n
    fits = (features @ state.weights.unsqueeze(-1)).squeeze(-1)
    remaining = (1.0 - h / noise).clamp_min(torch.finfo(h.dtype).eps)
    means = (fits - residuals * h / noise) / remaining
    return means, residual(features, prior_variance) + h / remaining
