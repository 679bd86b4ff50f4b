"""The posterior of a Gaussian process, exact or DTC: one value that predicts and is conditioned.

Notation (shapes without ``batch_shape``): ``k`` the prior covariance in units of the output ``scale`` s, ``D`` ``m x d`` the
support, ``α`` (m) weights, ``R`` ``m x r`` root, ``h(x) = Rᵀ k_D(x)`` (r) the columns of a point. Then

    mean(x) = μ(x) + k_D(x)ᵀ α,      covariance(x, x') = s · (k(x, x') − h(x)ᵀ h(x'))

The exact GP of data ``X`` has ``D = X`` and ``R = L⁻ᵀ``; the DTC posterior has the dictionary as ``D``, and the root of
:func:`sparse_bo.gp.dtc.one_product`. Conditioning on pending points ``F`` adds them to the support, with weights 0: with
``C = k − hᵀh`` and ``L_F L_Fᵀ = C(F, F) + noise``, a point gets the further columns ``L_F⁻¹ C(F, x)`` (Schur complement).
Repeating it is exact, at a cost independent of n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor

from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.linalg.cholesky import safe_cholesky, solve_lower


class Covariance(Protocol):
    """A prior covariance as two functions of tensors, such as :class:`sparse_bo.kernels.CovarianceFunction`."""

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return ``k(X, Y)``, ``… x a x b`` from ``… x a x d`` and ``… x b x d``."""
        ...

    def diagonal(self, X: Tensor) -> Tensor:
        """Return ``k(x, x)`` of each point, ``… x a``."""
        ...


@dataclass(frozen=True, eq=False)
class ProcessPrior:
    """The process before any data."""

    mean: float | Callable[[Tensor], Tensor]
    """Constant μ (y), or a function from ``… x n x d`` points to ``… x n`` means."""
    kernel: Covariance
    """In units of the output scale."""
    scale: float = 1.0
    """s: variance per unit of the kernel (y²)."""

    def mean_at(self, X: Tensor) -> Tensor:
        """Return prior means (y) of ``… x n x d`` points: ``… x n``, or a scalar for all."""
        return self.mean(X) if callable(self.mean) else X.new_tensor(self.mean)


@dataclass(frozen=True, eq=False)
class CholeskyRoot:
    """``R = L⁻ᵀ`` by triangular solves: the exact GP."""

    lower: Tensor
    """``m x m`` lower ``L``."""

    def columns(self, K_DX: Tensor) -> Tensor:
        """Return ``h``, ``r x n``, from ``k(D, X)``, ``m x n``. O(m² n)."""
        return solve_lower(self.lower, K_DX)

    def lift(self, columns: Tensor) -> Tensor:
        """Return ``R h``, ``m x n``: the weights on ``k_D`` with which a point is explained. O(m² n)."""
        return torch.linalg.solve_triangular(self.lower.mT, columns, upper=True)

    def extended(self, columns: Tensor, corner: Tensor) -> CholeskyRoot:
        """Return the root given p more points, from ``h`` there and ``L_F``: ``L`` gets rows ``[hᵀ, L_F]``. O((m + p)²)."""
        (m, p), batch = columns.shape[-2:], columns.shape[:-2]
        lower = columns.new_zeros(*batch, m + p, m + p)
        lower[..., :m, :m], lower[..., m:, :m], lower[..., m:, m:] = self.lower, columns.mT, corner
        return CholeskyRoot(lower)


@dataclass(frozen=True, eq=False)
class MatrixRoot:
    """``R`` written out: one matrix product. Round-off of a variance is absolute, at least ``eps · k(x, x)``."""

    matrix: Tensor
    """``m x r``: ``R``."""

    def columns(self, K_DX: Tensor) -> Tensor:
        """See :class:`CholeskyRoot`. O(m r n)."""
        return self.matrix.mT @ K_DX

    def lift(self, columns: Tensor) -> Tensor:
        """See :class:`CholeskyRoot`. O(m r n)."""
        return self.matrix @ columns

    def extended(self, columns: Tensor, corner: Tensor) -> MatrixRoot:
        """See :class:`CholeskyRoot`. O((m + p) r p)."""
        return self.grown(self.lift(columns), corner)

    def grown(self, lifted: Tensor, corner: Tensor) -> MatrixRoot:
        """Return ``[[R, −R h L_F⁻ᵀ], [0, L_F⁻ᵀ]]`` from ``R h`` (``m x p``) and ``L_F`` of p more points. O((m + p) p²)."""
        eye = torch.eye(corner.shape[-1], dtype=corner.dtype, device=corner.device).expand_as(corner)
        below = torch.linalg.solve_triangular(corner.mT, eye, upper=True)  # p x p, L_F⁻ᵀ
        right = torch.cat([-lifted @ below, below], dim=-2)  # (m + p) x p
        left = torch.cat([self.matrix, self.matrix.new_zeros(*below.shape[:-1], self.matrix.shape[-1])], dim=-2)
        return MatrixRoot(torch.cat([left, right], dim=-1))


Root: TypeAlias = CholeskyRoot | MatrixRoot
"""The root ``R`` of the explained part of the prior covariance: ``hᵀh'`` with ``h = Rᵀ k_D``."""


class Moments(NamedTuple):
    """Posterior of the noiseless function at n points."""

    mean: Tensor
    """``n`` (y)."""
    variance: Tensor
    """``n`` (y²), at least the posterior's floor."""
    columns: Tensor
    """``r x n``: ``h``."""


class Gradients(NamedTuple):
    """Posterior of the noiseless function at n points, with gradients by the points."""

    mean: Tensor
    """``n`` (y)."""
    variance: Tensor
    """``n`` (y²)."""
    mean_gradient: Tensor
    """``n x d``."""
    variance_gradient: Tensor
    """``n x d``."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process given data. A value: conditioning returns a new one. Differentiable by points."""

    prior: ProcessPrior
    support: Tensor
    """``m x d``: ``D``; points conditioned on are last."""
    alpha: Tensor
    """``m``: ``α`` (y); 0 at points whose results are pending, where nothing else was observed."""
    root: Root
    noise: float
    """Variance of one observation's noise in units of the output scale."""
    floor: float = 0.0
    """Least variance in units of the output scale: cancellation leaves less where the data determines the function."""

    @property
    def noise_variance(self) -> float:
        """Variance of one observation's noise (y²)."""
        return self.noise * self.prior.scale

    def mean(self, X: Tensor) -> Tensor:
        """Return posterior means (y) of ``n x d`` points, ``n``. O(n m d)."""
        K_XD = self.prior.kernel.cross(X, self.support)
        return self.prior.mean_at(X) + (K_XD @ self.alpha.unsqueeze(-1)).squeeze(-1)

    def variance(self, X: Tensor) -> Tensor:
        """Return posterior variances (y²) of ``n x d`` points, ``n``. O(n m (d + r))."""
        return self.moments(X).variance

    def moments(self, X: Tensor, *, K_DX: Tensor | None = None) -> Moments:
        """Return means, variances and columns of ``n x d`` points, from ``K_DX`` (``m x n``) if it is known. O(n m (d + r))."""
        K_DX = self.prior.kernel.cross(self.support, X) if K_DX is None else K_DX
        columns = self.root.columns(K_DX)
        variance = self._variance(X, columns)
        mean = self.prior.mean_at(X) + (self.alpha.unsqueeze(-2) @ K_DX).squeeze(-2)
        return Moments(mean, variance * self.prior.scale, columns)

    def gradients(self, X: Tensor) -> Gradients:
        """Return means and variances of ``n x d`` points with their gradients by the points. O(n m (d + r)).

        The kernel is one of :class:`~sparse_bo.gp.hyperparameter_priors.Hyperparameters`, which has gradients in closed form.
        """
        kernel, scale = self.prior.kernel, self.prior.scale
        assert isinstance(kernel, Hyperparameters)
        k = kernel.slopes(X, self.support)
        columns = self.root.columns(k.value.mT)
        variance = self._variance(X, columns)
        mean = self.prior.mean_at(X) + k.value @ self.alpha
        weights = self.root.lift(columns).mT  # n x m
        return Gradients(mean, variance * scale, k.gradient(self.alpha), k.gradient(-2.0 * scale * weights))

    def covariance(self, X: Tensor) -> Tensor:
        """Return the joint posterior covariance (y²) of the noiseless function at ``q x d`` points, ``q x q``.

        O(q m (d + r) + q² r).
        """
        columns = self.root.columns(self.prior.kernel.cross(self.support, X))
        return self.prior.scale * self._covariance(X, columns, X, columns)

    def condition(self, X: Tensor) -> Posterior:
        """Return the posterior given that results at further points are pending: variances shrink as they will, means stay.

        ``X`` is ``p x d``; repeats are allowed. O(p m r + p³). ``ValueError`` if the covariance of the new observations is not
        finite or not positive semi-definite.
        """
        if not X.shape[-2]:
            return self
        columns = self.root.columns(self.prior.kernel.cross(self.support, X))
        covariance = self._covariance(X, columns, X, columns)
        covariance.diagonal(dim1=-2, dim2=-1).clamp_min_(self.floor).add_(self.noise)
        corner = safe_cholesky(covariance, scale=self.prior.kernel.diagonal(X).detach().amax())
        alpha = torch.cat([self.alpha, self.alpha.new_zeros(*self.alpha.shape[:-1], X.shape[-2])], dim=-1)
        return replace(
            self, support=torch.cat([self.support, X], dim=-2), alpha=alpha, root=self.root.extended(columns, corner)
        )

    def moments_given(self, X: Tensor, at_X: Moments, x: Tensor, at_x: Moments) -> Moments:
        """Return the moments of ``n x d`` points given that one more point (``1 x d``) is pending. O(n (d + r)).

        The variances are those of :meth:`condition`, without evaluating the points anew.
        """
        reduction = self._covariance(X, at_X.columns, x, at_x.columns).squeeze(-1)
        row = reduction / (at_x.variance / self.prior.scale + self.noise).sqrt()
        variance = (at_X.variance - self.prior.scale * row.square()).clamp_min(torch.finfo(row.dtype).tiny)
        return Moments(at_X.mean, variance, torch.cat([at_X.columns, row.unsqueeze(-2)], dim=-2))

    def _covariance(self, X: Tensor, columns: Tensor, Y: Tensor, other: Tensor) -> Tensor:
        return self.prior.kernel.cross(X, Y) - columns.mT @ other

    def _variance(self, X: Tensor, columns: Tensor) -> Tensor:
        return (self.prior.kernel.diagonal(X) - columns.square().sum(dim=-2)).clamp_min(self.floor)


def exact(
    prior: ProcessPrior,
    X: Tensor,
    y: Tensor,
    *,
    noise: float,
    counts: Tensor | None = None,
    floor: float = 0.0,
    K: Tensor | None = None,
) -> Posterior:
    """Return the exact posterior. O(n³).

    Args:
        prior: Mean, kernel and output scale.
        X: ``n x d`` points, repeats allowed.
        y: ``n`` observations (y), or means of some.
        noise: Variance of one observation's noise in units of the output scale.
        counts: ``n`` observations that each y is the mean of; ``None``: one.
        floor: Least variance in units of the output scale.
        K: ``n x n`` kernel matrix, if it is known; overwritten.

    Raises:
        ValueError: If the kernel matrix is not finite.
    """
    K = prior.kernel.cross(X, X) if K is None else K
    K.diagonal(dim1=-2, dim2=-1).add_(noise if counts is None else noise / counts.to(K))
    most = float(counts.max()) if counts is not None and counts.numel() else 1.0
    lower = safe_cholesky(K, least=noise / most)
    alpha = torch.cholesky_solve((y - prior.mean_at(X)).unsqueeze(-1), lower).squeeze(-1)
    return Posterior(prior, X, alpha, CholeskyRoot(lower), noise, floor)
