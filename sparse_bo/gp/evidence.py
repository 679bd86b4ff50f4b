"""Hyper-parameters of an exact GP by their posterior density: lengthscales and noise by gradients, the rest in closed form.

The model of n observations is ``y ~ N(m, s (R + g I))``: R a correlation with lengthscales ℓ, s the output scale, g the noise
variance in units of s. R is stationary, or a sum of some of each input alone and one of all (:mod:`.additive`).
Given R and g, the mode of m under ``N(0, s · MEAN_VARIANCE)`` and that of s under an inverse-gamma prior are formulas; what is
left are d + 1 numbers (3 d + 1 of a sum), and their gradient costs one inverse and O(n² d).

Outputs are expected with a variance of about 1, inputs in the unit cube.

:mod:`sparse_bo.gp.stationary_likelihood` has the derivatives of a likelihood at a *given* mean and scale, adds jitter where
it must and raises where that does not help; here mean and scale are at their modes, which ends in other formulas, and a
matrix without a factor is an answer that a line search needs: so there are both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from scipy.optimize import minimize
from torch import Tensor

from sparse_bo.kernels.additive import Pairs, alone_correlations, alone_gradient, pairs
from sparse_bo.kernels.stationary import RADIAL, half_spread, squared_distances

SCALE_SHAPE, SCALE_RATE = 1.0, 1.0
"""Of the inverse-gamma prior of s: it keeps s off zero, and its upper tail is heavy."""
MEAN_VARIANCE = 1.0
"""Prior variance of m in units of s."""
LENGTHSCALE_LOCATION, LENGTHSCALE_SPREAD, COMMON_SPREAD = math.log(0.6), 0.8, 0.8
"""``log ℓⱼ = c + δⱼ`` with ``c ~ N(location + log(d)/2, common spread²)`` for all inputs together (Hvarfner et al. 2024: more
inputs, longer lengthscales) and ``δⱼ ~ N(0, spread²)`` for each: few observations tell how smooth a function is, not how smooth
along each of 20 inputs. With independent ones of spread √3 (BoTorch's) a quarter of a run in 20 inputs passed before the model
led anywhere: on Ackley-20, 300 evaluations, seeds 0 and 1, the gap was 44 and 8 % of the range, and is 0.2 and 6 %; on
Rastrigin-10 23 and 13 %, and 19 and 23 %. A common spread of 1.5 took rough functions for noise where the data is in clusters:
EggHolder (300 evaluations, mean of seeds 0 to 2) ended 4.4 % below the best, with 0.8 it ended 2.3 %."""
NOISE_LOCATION, NOISE_SPREAD = math.log(1e-4), 3.0
"""``log g ~ N(location, spread²)``: no noise at all and as much noise as signal are both within about three spreads."""
LENGTHSCALES, NOISES = (5e-3, 1e3), (1e-12, 1e2)
"""Smallest and largest ℓ and g."""
COLD = ((0.6, 1e-3), (0.6, 0.3), (0.15, 1e-3), (0.04, 1e-3))
"""Where a search without an earlier result starts: at the best of these ℓ/√d and g. With little noise alone, noisy observations
send it to lengthscales so short that no two of them have to do with each other."""
FORBIDDEN = 1e10
"""Negative log density where the matrix cannot be factorised."""

ADDITIVE = "additive"
"""Name of the sum of a Gaussian of each input alone and Matérn-5/2 of all. With it as a third choice of the trust-region
policy, 300 evaluations of seeds 0 and 1 end at these gaps in per cent of the range (without): Rastrigin-10 1.2, 1.8 (10, 21),
Levy-20 0.7, 3.2 (2.5, 3.4), Ackley-20 0.3, 0.3 (0.2, 5.5), Hartmann-6 3.9, 0.3 (5.2, 0.4), Rosenbrock-8 0, 0 (0, 0)."""
REST = "matern52"
"""What a sum has of all inputs."""
REST_CURVATURE = 5.0 / 3.0
"""``−ℓ² k''(0)`` of it."""
ALONE_LOCATION, ALONE_COMMON_SPREAD = math.log(0.3), 1.5
"""``log aⱼ = c + δⱼ`` as above, around this: one input has no others to be far away in, and can be quick."""
SHARE_SPREAD, COMMON_SHARE_SPREAD = 1.0, 2.0
"""``log wⱼ − log(1 − Σ w) = c + δⱼ`` around ``−log d``: half of the variance is the inputs' alone."""
SHARES = (1e-4, 1e4)
"""Smallest and largest share of an input in units of the rest's."""
ALONE = (0.05, 0.3)
"""Lengthscales of the inputs alone in such starts of a sum: with slow functions it would not find quick ones."""
OCCAM = 1.0
"""Nats that a sum must be better by, for each input: what two more hyper-parameters explain by chance."""


@dataclass(frozen=True, eq=False)
class Learned:
    """Hyper-parameters of an exact GP. A value."""

    kernel: str
    """A key of :data:`sparse_bo.kernels.stationary.RADIAL`, or :data:`ADDITIVE`."""
    lengthscales: Tensor
    """``d``: ℓ, of the part of all inputs together."""
    noise: float
    """g, in units of ``scale``."""
    mean: float
    """m."""
    scale: float
    """s, the variance of the noiseless function."""
    evidence: float
    """Log posterior density, up to a constant that all kernels share."""
    alone: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64, device="cpu"))
    """``d``: a, of functions of one input; none of a stationary kernel."""
    shares: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.float64, device="cpu"))
    """``d``: w, of the variance, that are functions of one input."""

    @property
    def additive(self) -> bool:
        """Whether the function is a sum."""
        return self.kernel == ADDITIVE

    @property
    def rest(self) -> float:
        """Share of the variance that is a function of all inputs together."""
        return 1.0 - float(self.shares.sum()) if self.additive else 1.0

    @property
    def reach(self) -> Tensor:
        """``d`` lengthscales of the whole correlation; of a sum ``1/reach² = −∂²k/∂xⱼ²`` at distance 0."""
        if not self.additive:
            return self.lengthscales
        return (self.shares / self.alone.square() + self.rest * REST_CURVATURE / self.lengthscales.square()).rsqrt()

    @property
    def log_cells(self) -> Tensor:
        """Logarithm of the number of lengthscale-sized cells of the unit cube, scalar."""
        return (1.0 / self.reach).clamp_min(1.0).log().sum()

    def cross(self, U: Tensor, V: Tensor) -> Tensor:
        """Return the prior correlations, ``a x b`` of ``a x d`` and ``b x d`` points."""
        return self.slopes(U, V).value

    def diagonal(self, U: Tensor) -> Tensor:
        """Return the prior correlation of each of ``a x d`` points with itself: ones, ``a``."""
        return torch.ones_like(U[..., 0])

    def slopes(self, U: Tensor, V: Tensor) -> CorrelationSlopes:
        """Return the correlations of ``r x d`` and ``n x d`` points with what their gradients need."""
        radial, ell = RADIAL[REST if self.additive else self.kernel], self.lengthscales
        value, slope = radial(squared_distances(U / ell, V / ell))
        if self.additive:
            value = alone_correlations(U, V, lengthscales=self.alone, shares=self.shares).add_(value, alpha=self.rest)
        return CorrelationSlopes(self, U, V, value, slope)


class CorrelationSlopes(NamedTuple):
    """Correlations of r and n points, and gradients of sums of them by the former."""

    of: Learned
    U: Tensor
    V: Tensor
    value: Tensor
    """``r x n``."""
    radial: Tensor
    """``r x n``: slope of the part of all inputs."""

    def gradient(self, weights: Tensor) -> Tensor:
        """Return the gradients by ``u`` (``r x d``) of ``Σᵢ cᵢ k(u, vᵢ)``, of weights c (``n`` or ``r x n``). O(r n d)."""
        ell, of = self.of.lengthscales, self.of
        c = weights * self.radial  # dkᵢ/du = −slopeᵢ (u − vᵢ)/ℓ²
        Z, W = self.U / ell, self.V / ell
        gradient = (c @ W - c.sum(dim=1, keepdim=True) * Z) / ell
        if not of.additive:
            return gradient
        return of.rest * gradient + alone_gradient(self.U, self.V, weights, lengthscales=of.alone, shares=of.shares)


class _Density(NamedTuple):
    value: float
    gradient: Tensor
    mean: float
    scale: float


def learn(
    X: Tensor,
    y: Tensor,
    *,
    kernel: str,
    start: Learned | None,
    max_steps: int,
    largest_noise: float = NOISES[1],
    anew: bool = False,
) -> Learned:
    """Return the hyper-parameters of the highest posterior density that L-BFGS-B finds. O(n³ + n² d) per step.

    Args:
        X: ``n x d`` in the unit cube, n ≥ 1.
        y: ``n``, of mean about 0 and variance about 1.
        kernel: A key of :data:`sparse_bo.kernels.stationary.RADIAL`, or :data:`ADDITIVE`.
        start: Where to start, of any kernel; ``None``: at the best of :data:`COLD`; a sum that starts from no sum, too.
        max_steps: Of L-BFGS-B.
        largest_noise: Largest g, at least the smaller of :data:`NOISES`.
        anew: Whether a second search starts as without ``start``: lengthscales so short that no two observations have to do
            with each other are a mode that a search does not leave.

    Raises:
        ValueError: If inputs or outputs are not finite.
    """
    if not bool(torch.isfinite(X).all() & torch.isfinite(y).all()):
        raise ValueError("expected finite inputs and outputs to learn from, got NaN or infinite ones")
    d = X.shape[1]
    together = pairs(X) if kernel == ADDITIVE else None
    limits = [tuple(map(math.log, LENGTHSCALES))] * d
    if together is not None:
        limits += [tuple(map(math.log, LENGTHSCALES))] * d + [tuple(map(math.log, SHARES))] * d
    limits.append((math.log(NOISES[0]), math.log(largest_noise)))

    def negative(theta: Any) -> tuple[float, Any]:
        density = _density(torch.from_numpy(theta).to(X), X, y, kernel, together)
        if density is None:
            return FORBIDDEN, 0.0 * theta
        return -density.value, -density.gradient.cpu().numpy()

    options = {"maxiter": max_steps, "ftol": 1e-6}
    best: tuple[_Density, Tensor] | None = None
    warm = None if start is None else _warm(start, kernel, largest_noise)
    firsts = [] if warm is None else [warm]
    if warm is None or anew:
        groups = _cold(X, kernel, largest_noise)
        firsts += [min(group, key=lambda theta: negative(theta.cpu().numpy())[0]) for group in groups]
    for first in firsts:
        found = minimize(negative, first.cpu().numpy(), jac=True, method="L-BFGS-B", bounds=limits, options=options)
        theta = torch.from_numpy(found.x).to(X)
        density = _density(theta, X, y, kernel, together)
        if density is None:  # the start was out of reach too: with as much noise as signal any matrix is positive definite
            theta[-1] = 0.0
            density = _density(theta, X, y, kernel, together)
            assert density is not None
        if best is None or density.value > best[0].value:
            best = density, theta
    assert best is not None
    density, theta = best
    learned = Learned(kernel, theta[:d].exp(), math.exp(float(theta[-1])), density.mean, density.scale, density.value)
    if kernel != ADDITIVE:
        return learned
    return replace(learned, alone=theta[d : 2 * d].exp(), shares=_shares(theta[2 * d : 3 * d]))


def _warm(start: Learned, kernel: str, largest_noise: float) -> Tensor | None:
    """Return where a search goes on from an earlier result; ``None`` for a sum after no sum."""
    ell = start.lengthscales.log()
    noise = ell.new_full((1,), math.log(min(start.noise, largest_noise)))
    if kernel != ADDITIVE:
        return torch.cat([ell, noise])
    return torch.cat([ell, start.alone.log(), (start.shares / start.rest).log(), noise]) if start.additive else None


def _cold(X: Tensor, kernel: str, largest_noise: float) -> list[list[Tensor]]:
    """Return groups of places, from the best of each of which a search without an earlier result starts.

    A place is ``log ℓ``, of a sum ``log a`` and shares too, and ``log g``.
    """
    d = X.shape[1]
    places = dict.fromkeys((ell, min(noise, largest_noise)) for ell, noise in COLD)
    starts = [(X.new_full((d,), math.log(ell * math.sqrt(d))), X.new_full((1,), math.log(noise))) for ell, noise in places]
    if kernel != ADDITIVE:
        return [[torch.cat(start) for start in starts]]
    shares = X.new_full((d,), -math.log(d))
    alone = [torch.cat([X.new_full((d,), math.log(first)), shares]) for first in ALONE]
    return [[torch.cat([ell, first, noise]) for ell, noise in starts] for first in alone]


def _shares(logits: Tensor) -> Tensor:
    """Return the shares of inputs alone (``d``) from their logarithms in units of the rest's."""
    return torch.softmax(torch.cat([logits, logits.new_zeros(1)]), dim=0)[:-1]


class _Kernel(NamedTuple):
    """A correlation matrix, and how its derivatives meet a matrix."""

    value: Tensor
    """``n x n``."""
    gradient: Callable[[Tensor], Tensor]
    """From ``W`` (``n x n``, symmetric) to ``½ tr[W dR]`` by each hyper-parameter but the noise."""


def _radial(logs: Tensor, X: Tensor, kernel: str) -> _Kernel:
    Z = X / logs.exp()
    radial = RADIAL[kernel](squared_distances(Z, Z))
    return _Kernel(radial.value, lambda W: half_spread(Z, W * radial.slope))


def _sum(theta: Tensor, X: Tensor, together: Pairs) -> _Kernel:
    d = X.shape[1]
    all_inputs, shares = _radial(theta[:d], X, REST), _shares(theta[2 * d :])
    steepness = theta[d : 2 * d].mul(-2.0).exp()  # 1/a²
    rest = 1.0 - shares.sum()
    parts = (together.squares * (-0.5 * steepness).unsqueeze(-1)).exp_()  # d x pairs
    value = together.matrix(shares @ parts, float(shares.sum())).add_(all_inputs.value, alpha=float(rest))

    def gradient(W: Tensor) -> Tensor:
        w = together.entries(W)
        met = parts @ w
        by_alone = shares * steepness * ((parts * together.squares) @ w)
        by_share = shares * (met - w @ together.entries(value))
        return torch.cat([rest * all_inputs.gradient(W), by_alone, by_share])

    return _Kernel(value, gradient)


def _density(theta: Tensor, X: Tensor, y: Tensor, kernel: str, together: Pairs | None = None) -> _Density | None:
    """Return the log posterior density and its gradient; ``None`` without a factor.

    Args:
        theta: ``log ℓ, log g`` (``d + 1``), or with shares in units of the rest's ``log ℓ, log a, log w, log g`` (``3 d + 1``).
        X: ``n x d``.
        y: ``n``.
        kernel: A key of :data:`sparse_bo.kernels.stationary.RADIAL`, or :data:`ADDITIVE`.
        together: The pairs of ``X``; ``None`` for a stationary kernel.
    """
    n, noise = len(X), math.exp(float(theta[-1]))
    R = _radial(theta[:-1], X, kernel) if together is None else _sum(theta[:-1], X, together)
    K = R.value + noise * torch.eye(n, dtype=X.dtype, device=X.device)
    L, info = torch.linalg.cholesky_ex(K)
    if bool(info):
        return None
    inverse = torch.cholesky_inverse(L)
    ones = inverse.sum(dim=0)
    mean = float(ones @ y / (ones.sum() + 1.0 / MEAN_VARIANCE))
    residual = y - mean
    weights = inverse @ residual
    degrees = n + 2.0 * SCALE_SHAPE
    scale = (float(residual @ weights) + mean**2 / MEAN_VARIANCE + 2.0 * SCALE_RATE) / degrees
    prior, pull = _prior(theta[:-1], X.shape[1], kernel)
    loud = float(theta[-1] - NOISE_LOCATION) / NOISE_SPREAD
    fit = -0.5 * degrees * math.log(scale) - float(L.diagonal().log().sum())
    value = fit + prior - 0.5 * loud**2
    # d value = ½ tr[(w wᵀ/s − K⁻¹) dK]: m and s are at their modes and add nothing.
    W = torch.addr(-inverse, weights, weights, alpha=1.0 / scale)
    by_noise = (0.5 * noise * W.diagonal().sum() - loud / NOISE_SPREAD).reshape(1)
    gradient = torch.cat([R.gradient(W) - pull, by_noise])
    return _Density(value, gradient, mean, scale) if math.isfinite(value) else None


def _prior(theta: Tensor, d: int, kernel: str) -> tuple[float, Tensor]:
    """Return the log prior density of all hyper-parameters but the noise, and minus its gradient."""
    middle = LENGTHSCALE_LOCATION + 0.5 * math.log(d)
    parts = [log_prior_apart(theta[:d] - middle, LENGTHSCALE_SPREAD, COMMON_SPREAD)]
    value = 0.0
    if kernel == ADDITIVE:
        parts.append(log_prior_apart(theta[d : 2 * d] - ALONE_LOCATION, LENGTHSCALE_SPREAD, ALONE_COMMON_SPREAD))
        parts.append(log_prior_apart(theta[2 * d :] + math.log(d), SHARE_SPREAD, COMMON_SHARE_SPREAD))
        value = -OCCAM * d
    return value + sum(part for part, _ in parts), torch.cat([pull for _, pull in parts])


def log_prior_apart(away: Tensor, spread: float, common_spread: float) -> tuple[float, Tensor]:
    """Return the log density, up to a constant, of distances (``d``) from a prior's middle, and minus its gradient (``d``).

    They are ``c + δⱼ`` with ``c ~ N(0, common spread²)`` for all and ``δⱼ ~ N(0, spread²)`` for each: covariance
    ``spread² I + common spread² 11ᵀ``, whose inverse treats mean and deviations apart. O(d).
    """
    common = away.mean()
    pull = (away - common) / spread**2 + common / (spread**2 + len(away) * common_spread**2)
    return -0.5 * float(away @ pull), pull
