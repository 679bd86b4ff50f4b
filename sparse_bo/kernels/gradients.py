"""Kernels with their derivatives, without a graph: correlations for learning, and GPyTorch kernels by all that they depend on.

*Correlations* are functions of scaled squared distances with their slopes. Values and slopes of a few thousand rows stay side
by side here; :mod:`sparse_bo.kernels.closed_forms` writes values alone into memory that is there, for sweeps. A sum is
``k(x, x') = Σⱼ wⱼ exp(−(xⱼ − x'ⱼ)²/2aⱼ²) + (1 − Σⱼ wⱼ) ρ(x, x')`` with shares w of the variance, lengthscales a of the inputs
alone (first order of Duvenaud et al. 2011; for optimisation Kandasamy et al. 2015), and a stationary ρ. A few hundred
observations determine d functions of one input better than one function of d inputs.

*GPyTorch kernels* recompute in the backward pass. Of one stationary part, with scaled inputs ``u = (x − c)/ℓ`` and
``v = (y − c)/ℓ``, ``s = ‖u − v‖²``, ``k = variance · p(s)`` and ``G`` the gradient by the values, let ``M = G ∘ (−2 dk/ds)``.
Then

    ∂/∂uᵢ = (M v)ᵢ − uᵢ Σⱼ Mᵢⱼ,    ∂/∂vⱼ = (Mᵀ u)ⱼ − vⱼ Σᵢ Mᵢⱼ,    ∂/∂(1/ℓ) = ℓ ∘ (Σᵢ uᵢ ∘ ∂/∂uᵢ + Σⱼ vⱼ ∘ ∂/∂vⱼ)

so that beside two thin products one matrix is read and one written, where automatic differentiation keeps some ten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.kernels.closed_forms import (
    COEFFICIENTS,
    LEAST_DISTANCE,
    Profile,
    Stationary,
    Structure,
    Tanimoto,
    computed_in,
    structure_of,
    write_slope,
)
from sparse_bo.kernels.tanimoto import tanimoto
from sparse_bo.kernels.tiles import fill, on_triton
from sparse_bo.linalg.chunking import row_slices

TINY = 1e-20
"""Under the root: its gradient stays finite at distance 0, and no value changes by rounding."""
BLOCK = 2**22
"""Numbers of the block of slopes that plain tensor operations make at a time."""


class Radial(NamedTuple):
    """A correlation k(s) of scaled squared distances s, and how it falls."""

    value: Tensor
    slope: Tensor
    """``−2 dk/ds ≥ 0``: ``dk/dx = −slope · (x − x')/ℓ²`` and ``dk/dlog ℓ = slope · (x − x')²/ℓ²``."""


RadialArrays = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Value and slope, as in :class:`Radial`."""


def gaussian(s: Tensor) -> Radial:
    """Return ``exp(−s/2)`` and its slope, of any shape."""
    value = torch.exp(-0.5 * s)
    return Radial(value, value)


def matern52(s: Tensor) -> Radial:
    """Return ``(1 + r + r²/3) exp(−r)``, r = √(5s), and its slope, of any shape."""
    r = (5.0 * s + TINY).sqrt()
    decay = torch.exp(-r)
    rising = decay * (1.0 + r)
    return Radial(rising + decay * (s * (5.0 / 3.0)), rising * (5.0 / 3.0))


def gaussian_arrays(s: NDArray[np.float64]) -> RadialArrays:
    """Return value and slope as :func:`gaussian`, of an array that is overwritten."""
    s *= -0.5
    value = np.exp(s, out=s)
    return value, value


def matern52_arrays(s: NDArray[np.float64]) -> RadialArrays:
    """Return value and slope as :func:`matern52`, of an array that is overwritten."""
    r = np.sqrt(5.0 * s + TINY)
    decay = np.exp(-r)
    r += 1.0
    r *= decay
    s *= 5.0 / 3.0
    s *= decay
    s += r
    r *= 5.0 / 3.0
    return s, r


RADIAL: Mapping[str, Callable[[Tensor], Radial]] = {"rbf": gaussian, "matern52": matern52}
"""Name -> correlation."""
RADIAL_ARRAYS: Mapping[str, Callable[[NDArray[np.float64]], RadialArrays]] = {
    "rbf": gaussian_arrays,
    "matern52": matern52_arrays,
}
"""Name -> correlation of an array."""


def squared_distances(A: Tensor, B: Tensor) -> Tensor:
    """Return ``|aᵢ − bⱼ|² ≥ 0``, ``a x b`` from ``a x d`` and ``b x d``, of one pair or of a batch. O(a b d), as one product.

    Both are moved by the mean of ``B`` first: what cancels is as large as the cloud, not as its distance from zero.
    """
    centre, same = B.mean(dim=-2, keepdim=True), A is B
    A, B = A - centre, B - centre
    norms = B.square().sum(dim=-1)
    squares = (norms if same else A.square().sum(dim=-1)).unsqueeze(-1) + norms.unsqueeze(-2)
    product = torch.addmm if A.dim() == 2 else torch.baddbmm
    return product(squares, A, B.mT, alpha=-2.0).clamp_min(0.0)


def half_spread(Z: Tensor, M: Tensor) -> Tensor:
    """Return ``½ Σᵢⱼ Mᵢⱼ (zᵢ − zⱼ)²`` by input, ``… x d``, for symmetric ``M``, without ``n x n`` differences of each. O(n² d).

    With ``M = W ∘ slope`` it is the derivative by ``log ℓ`` of an expression with the derivative ``½ W`` by the matrix entries.
    """
    Z = Z - Z.mean(dim=-2, keepdim=True)  # what cancels is as large as the cloud
    return (Z.square() * M.sum(dim=-2).unsqueeze(-1)).sum(dim=-2) - (Z * (M @ Z)).sum(dim=-2)


class Pairs(NamedTuple):
    """Pairs of n points, each once, without hyper-parameters."""

    squares: NDArray[np.float64]
    """``d x n(n−1)/2`` squared differences by input."""
    upper: NDArray[np.int64]
    """``n(n−1)/2`` places in the flat ``n x n`` matrix."""
    n: int

    def matrix(self, entries: NDArray[np.float64], diagonal: float) -> NDArray[np.float64]:
        """Return the symmetric ``n x n`` matrix with these entries (``n(n−1)/2``) off its diagonal."""
        flat = np.zeros(self.n * self.n)
        flat[self.upper] = entries
        M = flat.reshape(self.n, self.n)
        M = M + M.T
        M.reshape(-1)[:: self.n + 1] = diagonal
        return M

    def entries(self, M: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the entries of the upper triangle of an ``n x n`` matrix."""
        return M.reshape(-1)[self.upper]


def pairs(X: NDArray[np.float64]) -> Pairs:
    """Return the pairs of ``n x d`` points. O(n² d)."""
    n = len(X)
    row, column = np.triu_indices(n, 1)
    return Pairs(np.ascontiguousarray(np.square(X[row] - X[column]).T), row * n + column, n)


def alone_correlations(U: Tensor, V: Tensor, *, lengthscales: Tensor, shares: Tensor) -> Tensor:
    """Return ``Σⱼ wⱼ exp(−(uⱼ − vⱼ)²/2aⱼ²)``, ``a x b`` of ``a x d`` and ``b x d`` points. O(a b d), input by input."""
    A, B = U / lengthscales, V / lengthscales
    total = A.new_zeros(len(A), len(B))
    for j, share in enumerate(shares.tolist()):
        total.add_((A[:, j : j + 1] - B[:, j]).square().mul(-0.5).exp(), alpha=share)
    return total


def alone_gradient(U: Tensor, V: Tensor, weights: Tensor, *, lengthscales: Tensor, shares: Tensor) -> Tensor:
    """Return the gradients by ``u`` (``r x d``) of ``Σᵢ cᵢ Σⱼ wⱼ exp(−(uⱼ − vᵢⱼ)²/2aⱼ²)``. O(r n d).

    ``U`` is ``r x d``, ``V`` ``n x d``; weights c ``n`` or ``r x n``; lengthscales a and shares w ``d``.
    """
    away = (U.unsqueeze(1) - V) / lengthscales  # r x n x d
    falling = torch.exp(-0.5 * away.square()) * away
    return -torch.einsum("rn,rnd->rd", weights.expand(len(U), len(V)), falling) * shares / lengthscales


def differentiable_cross(kernel: Kernel, X: Tensor, Y: Tensor) -> Tensor | None:
    """Return ``k(X, Y)``, ``… x n'``, with gradients by inputs and hyper-parameters; ``None`` for kernels of GPyTorch only.

    Gaussian, Matérn and Tanimoto kernels, their sums and products without batch shape, and one matrix as the other side. A
    gradient of the gradient goes through a graph, O(n n' d) in memory. At equal inputs a Matérn-1/2 kernel has gradient 0, as
    in GPyTorch. The gradient by inputs has an error of ``eps · ‖u‖ Σ|M|``: less than GPyTorch's, whose distances come from
    expanding the square. O(n n' d), memory O(n n').

    Args:
        kernel: Any GPyTorch kernel.
        X: ``… x d``.
        Y: ``n' x d``.
    """
    structure = structure_of(kernel)
    if structure is None or X.dim() < 2 or Y.dim() != 2 or computed_in(structure, X, Y) is None:
        return None
    return _value(structure, X.reshape(-1, X.shape[-1]), Y).view(*X.shape[:-1], len(Y))


def _value(structure: Structure, X: Tensor, Y: Tensor) -> Tensor:
    if isinstance(structure, Stationary):
        arguments = structure.of(X), structure.of(Y), structure.inverse_lengthscale, structure.outputscale
        return _StationaryKernel.apply(*arguments, structure.profile)  # type: ignore[no-untyped-call]  # as torch types it
    if isinstance(structure, Tanimoto):
        K = tanimoto(structure.of(X), structure.of(Y))
        return K if structure.outputscale is None else K * structure.outputscale
    first, *others = (_value(part, X, Y) for part in structure.parts)
    for other in others:
        first = first + other if structure.adds else first * other
    return first


class _StationaryKernel(torch.autograd.Function):
    """One stationary part: ``variance · profile(‖(x − y) · inverse‖)``."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, Y: Tensor, inverse: Tensor, variance: Tensor | None, profile: Profile) -> Tensor:
        K = X.new_empty(len(X), len(Y))
        fill(Stationary(profile, inverse.detach()), X, Y, K)
        if variance is not None:
            K.mul_(variance)
        # Values are held for the variance alone: the covariance that is factorised holds them as well.
        ctx.save_for_backward(X, Y, inverse, variance, K if variance is not None and variance.requires_grad else None)
        ctx.profile = profile
        return K

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        X, Y, inverse, variance, K = ctx.saved_tensors
        if torch.is_grad_enabled():  # a gradient of this one is asked for
            return *_with_graph(ctx.profile, X, Y, inverse, variance, gradient, ctx.needs_input_grad), None
        to_variance = None
        if K is not None and ctx.needs_input_grad[3]:
            to_variance = (torch.dot(gradient.reshape(-1), K.reshape(-1)) / variance).reshape(variance.shape)
        if not any(ctx.needs_input_grad[:3]):
            return None, None, None, to_variance, None
        centre = Y.mean(dim=0)
        U, V = (X - centre) * inverse, (Y - centre) * inverse
        to_U, to_V = _by_scaled(Stationary(ctx.profile, torch.ones_like(inverse[:1])), U, V, gradient)
        if variance is not None:
            to_U, to_V = to_U * variance, to_V * variance
        to_inverse = None
        if ctx.needs_input_grad[2]:
            by_input = ((U * to_U).sum(dim=0) + (V * to_V).sum(dim=0)) / inverse
            to_inverse = by_input if len(inverse) == len(by_input) else by_input.sum().reshape(1)
        return to_U * inverse, to_V * inverse, to_inverse, to_variance, None


def _with_graph(
    profile: Profile, X: Tensor, Y: Tensor, inverse: Tensor, variance: Tensor | None, gradient: Tensor, wanted: tuple[bool, ...]
) -> list[Tensor | None]:
    """Return the gradients by the four arguments that are wanted, differentiable themselves."""
    squares = ((X.unsqueeze(-2) - Y) * inverse).square().sum(dim=-1)
    distance = squares.mul(abs(COEFFICIENTS[profile])).clamp_min(LEAST_DISTANCE**2).sqrt()
    rising = {"matern12": 0.0 * distance, "matern32": distance, "matern52": distance + squares * (5.0 / 3.0)}
    K = torch.exp(-0.5 * squares) if profile == "gaussian" else (1.0 + rising[profile]) * torch.exp(-distance)
    if (fall := {"matern32": 1.5, "matern52": 5.0 / 6.0}.get(profile)) is not None:  # where the root has no derivative
        K = torch.where(squares * COEFFICIENTS[profile] > LEAST_DISTANCE**2, K, 1.0 - fall * squares)
    K = K if variance is None else K * variance
    arguments = [X, Y, inverse, variance]
    chosen = [argument for argument, want in zip(arguments, wanted, strict=False) if want and argument is not None]
    found = iter(torch.autograd.grad(K, chosen, gradient, create_graph=True))
    return [next(found) if want else None for want in wanted[:4]]


def _by_scaled(leaf: Stationary, U: Tensor, V: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients by scaled inputs, ``n x d`` and ``n' x d``, from that by the values of a variance of 1."""
    to_U, to_V = torch.empty_like(U), torch.zeros_like(V)
    ones = torch.cat([V, V.new_ones(len(V), 1)], dim=1)
    weight = V.new_zeros(len(V))
    chunk = len(U) if on_triton(U) else BLOCK // max(len(V), 1)
    for rows in row_slices(len(U), chunk=max(chunk, 1)):
        M = weighed(leaf, U[rows], V, gradient[rows])
        sums = M @ ones
        to_U[rows] = sums[:, :-1] - sums[:, -1:] * U[rows]
        to_V += M.T @ U[rows]
        weight += M.sum(dim=0)
    return to_U, to_V - weight.unsqueeze(-1) * V


def weighed(leaf: Stationary, U: Tensor, V: Tensor, gradient: Tensor) -> Tensor:
    """Return ``M``, ``n x n'``; one launch on a GPU."""
    if on_triton(U):
        from sparse_bo.kernels import triton_kernel

        gradient = gradient.contiguous()
        M = torch.empty_like(gradient)
        triton_kernel.weigh(leaf, U, V, gradient, M)
        return M
    squares = torch.cdist(U, V, compute_mode="donot_use_mm_for_euclid_dist").square_()
    return write_slope(leaf.profile, squares).mul_(gradient)
