"""The one learner of hyper-parameters: maximum a posteriori from repeated observations, families of kernels by evidence.

It works in the unit cube on standardised outputs, as :class:`sparse_bo.gp.hyperparameter_priors.Priors` expects;
:func:`sparse_bo.gp.objective_prior.learn_prior` learns in the user's units. Its search, SciPy's L-BFGS-B for few numbers, also
climbs acquisition functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock, Thread
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import ThreadpoolController
from torch import Tensor

from sparse_bo.gp.hyperparameter_priors import ADDITIVE, Hyperparameters, Priors
from sparse_bo.gp.likelihood import Correlation, LogLikelihood, Scatter, correlation_of, log_likelihood, shares_of
from sparse_bo.kernels.gradients import Pairs, pairs

PRIORS = Priors()
"""The default table."""
FAMILIES = ("rbf", "matern52")
"""Stationary families, the simpler one first: it wins a tie."""


class Given(NamedTuple):
    """Hyper-parameters that are known, in standard units; ``None``: to be learned."""

    correlation: Tensor | None = None
    """``n x n`` prior covariance of the inputs in units of the scale."""
    noise: float | None = None
    """Noise variance."""
    mean: float | None = None


OPEN = Given()
"""Everything is learned."""


@dataclass(frozen=True, eq=False)
class LogPosterior:
    """Log posterior density of the open hyper-parameters, mean and scale at their modes.

    ``theta`` holds logarithms: of the correlation's hyper-parameters (:func:`.likelihood.correlation_of`), then of the scale s
    where it is searched for, and of the noise g unless it is given.
    """

    X: np.ndarray
    """``n x d``, around 0."""
    means: np.ndarray
    scatter: Scatter | None
    family: str
    priors: Priors
    given: Given
    together: Pairs | None

    @property
    def size(self) -> int:
        """Number of the correlation's hyper-parameters."""
        if self.given.correlation is not None:
            return 0
        return self.X.shape[1] * (3 if self.family == ADDITIVE else 1)

    @property
    def searches_scale(self) -> bool:
        """Whether s is searched for, not at its mode in closed form."""
        return self.given.noise is not None or self.priors.scale_sd is not None

    @property
    def limits(self) -> np.ndarray:
        """Least and largest value of each logarithm."""
        d, priors = self.X.shape[1], self.priors
        spans = ([priors.lengthscales] * (2 * d) + [priors.shares] * d)[: self.size]
        last = [priors.scales] * self.searches_scale + [priors.noises] * (self.given.noise is None)
        return np.log([*spans, *last])

    def likelihood(self, theta: np.ndarray, *, gradient: bool = True) -> LogLikelihood:
        """Return the log-likelihood with the densities of mean and scale.

        Raises:
            ValueError: If the covariance is not finite.
        """
        given, X = self.given, self.X
        if given.correlation is not None:
            R = Correlation(given.correlation.numpy(), lambda W: np.empty(0))
        else:
            R = correlation_of(theta[: self.size], X, family=self.family, together=self.together)
        scale = math.exp(theta[self.size]) if self.searches_scale else None
        if given.noise is None:
            noise = math.exp(theta[-1])
        else:
            assert scale is not None  # beside a given noise it is searched for
            noise = given.noise / scale
        return log_likelihood(
            R, self.means, noise, mean=given.mean, scale=scale, scatter=self.scatter, priors=self.priors, gradient=gradient
        )

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log density and its gradient. O(n³ + n² d)."""
        found = self.likelihood(theta)
        prior = self.priors.of_correlation(theta[: self.size], dims=self.X.shape[1], family=self.family)
        value, last = found.value + prior.value, []
        if self.searches_scale:
            of_scale, by_scale = self.priors.of_scale(theta[self.size])
            fixed_noise = 0.0 if self.given.noise is None else found.by_log_noise  # then g = noise/s
            value, last = value + of_scale, [found.by_log_scale - fixed_noise + by_scale]
        if self.given.noise is None:
            of_noise, by_noise = self.priors.of_noise(theta[-1])
            value, last = value + of_noise, [*last, found.by_log_noise + by_noise]
        return value, np.concatenate([found.by_correlation + prior.gradient, last])

    def hyperparameters(self, theta: np.ndarray, evidence: float) -> Hyperparameters:
        """Return the hyper-parameters at ``theta``; with a given correlation without lengthscales."""
        found, d = self.likelihood(theta, gradient=False), self.X.shape[1]
        noise = math.exp(theta[-1]) if self.given.noise is None else self.given.noise / found.scale
        logs = torch.from_numpy(theta[: self.size])
        ell = logs[:d].exp()
        if self.family != ADDITIVE:
            return Hyperparameters(self.family, ell, noise, found.mean, found.scale, evidence)
        alone, shares = logs[d : 2 * d].exp(), torch.from_numpy(shares_of(theta[2 * d : self.size])[0])
        return Hyperparameters(self.family, ell, noise, found.mean, found.scale, evidence, alone, shares)

    def warm(self, start: Hyperparameters) -> np.ndarray | None:
        """Return ``theta`` of an earlier result; ``None`` if that is no sum and this is one."""
        if self.size and self.family == ADDITIVE and not start.additive:
            return None
        last = ([start.scale] if self.searches_scale else []) + ([start.noise] if self.given.noise is None else [])
        theta = np.concatenate([start.logs[: self.size].cpu().numpy(), np.log(last)])
        return theta.clip(*self.limits.T)

    def cold(self) -> list[list[np.ndarray]]:
        """Return groups of starts: a search begins at the densest of each group."""
        d, largest = self.X.shape[1], self.priors.noises[1]
        starts = [
            (
                np.full(d, math.log(ell * math.sqrt(d)))[: self.size],
                [0.0] * self.searches_scale + ([math.log(noise)] if self.given.noise is None else []),
            )
            for ell, noise in dict.fromkeys((ell, min(noise, largest)) for ell, noise in self.priors.starts)
        ]
        if self.family != ADDITIVE:
            return [[np.concatenate(start) for start in starts]]
        shares = np.full(d, -math.log(d))
        # Lengthscales of the functions of one input, a search from each: slow ones do not lead to quick ones.
        return [
            [np.concatenate([ell, np.full(d, math.log(alone)), shares, noise]) for ell, noise in starts]
            for alone in (0.05, 0.3)
        ]


def learn(
    X: Tensor,
    means: Tensor,
    *,
    scatter: Scatter | None = None,
    families: Sequence[str] = FAMILIES,
    priors: Priors = PRIORS,
    given: Given = OPEN,
    start: Hyperparameters | None = None,
    restart: bool = False,
    max_steps: int = 60,
    axes: Tensor | None = None,
) -> Hyperparameters:
    """Return the hyper-parameters of the highest posterior density that L-BFGS-B finds. O(n³ + n² d) per step.

    Computed on the CPU wherever the inputs are: of a few hundred a GPU takes longer to launch a step than the CPU to do it.

    Args:
        X: ``n x d`` distinct inputs in the unit cube, n ≥ 1.
        means: ``n`` mean observations, of mean about 0 and variance about 1.
        scatter: Repeated observations; ``None``: each mean is one observation.
        families: Of :data:`FAMILIES` and :data:`sparse_bo.gp.hyperparameter_priors.ADDITIVE`; at a tie the first.
        priors: Table of priors.
        given: What is not learned.
        start: Where to start, of any family along the same directions; ``None``, or a sum that starts from no sum: at the
            densest of the priors' starts.
        restart: Whether a second search starts as without ``start``: lengthscales so short that no two observations are
            correlated are a mode that a search does not leave.
        max_steps: Of L-BFGS-B, for each family and start.
        axes: Directions of the lengthscales, orthonormal columns (``d x d``), of stationary families; ``None``: the inputs.

    Raises:
        ValueError: If inputs or outputs are not finite, or no covariance can be factorised.
    """
    if not bool(torch.isfinite(X).all() & torch.isfinite(means).all()):
        raise ValueError("expected finite inputs and outputs to learn from, got NaN or infinite ones")
    device, U = X.device, X.cpu() if axes is None else X.cpu() @ axes.cpu()
    points, outputs = (part.detach().cpu().double().numpy() for part in (U, means))
    centred = points - points.mean(axis=0)
    scatter = None if scatter is None else scatter.cpu()
    given = given if given.correlation is None else given._replace(correlation=given.correlation.cpu())
    best: Hyperparameters | None = None
    for family in families if given.correlation is None else FAMILIES[:1]:  # what is given has none
        together = pairs(points) if family == ADDITIVE else None
        density = LogPosterior(centred, outputs, scatter, family, priors, given, together)
        with _OneBlasThread():  # the last digits of a factor depend on their number
            found = _highest(density, start, restart, max_steps)
        if best is None or found.evidence > best.evidence:
            best = found
    assert best is not None
    return (best if axes is None else replace(best, axes=axes)).to(device)


def _highest(density: LogPosterior, start: Hyperparameters | None, restart: bool, max_steps: int) -> Hyperparameters:
    """Return the best result of searches from an earlier result, from the densest of the starts, or both."""
    failure = ""

    def negative(theta: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal failure
        try:
            value, gradient = density(theta)
        except ValueError as error:
            failure, value = str(error), math.nan
        if not math.isfinite(value):
            return 1e10, 0.0 * theta  # a wall that the line search steps back from
        return -value, -gradient

    warm = None if start is None else density.warm(start)
    firsts = [] if warm is None else [warm]
    if warm is None or restart:
        firsts += [min(group, key=lambda theta: negative(theta)[0]) for group in density.cold()]
    ends = [lbfgsb(negative, first, limits=density.limits, maxiter=max_steps, ftol=1e-6) for first in firsts]
    end = min(ends, key=lambda end: float(end.fun))
    if end.fun >= 1e10:
        raise ValueError(failure or "the likelihood is not finite")
    return density.hyperparameters(end.x, -float(end.fun))


def lbfgsb(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]], first: np.ndarray, *, limits: Any, **options: Any
) -> OptimizeResult:
    """Minimise a function of ``p`` numbers, which returns value and gradient, by SciPy's L-BFGS-B on one thread of its BLAS.

    More threads of it gain nothing with so few numbers, and their waiting takes as much processor time as the function.
    """
    with _OneBlasThread():
        return minimize(function, first, jac=True, method="L-BFGS-B", bounds=limits, options=options)


class _OneBlasThread:
    """A context in which SciPy's and NumPy's BLAS have one thread, until the last thread of the process has left it.

    threadpoolctl lets one thread of the process set the number, the first one that does, while it lives. Here a thread sets it
    that ends at once, so that any thread can restore it; if the caller's thread is that one already, it sets it itself.
    """

    _lock = Lock()
    _inside = 0
    _limit: Any = None
    _own: Any = None

    def __enter__(self) -> None:
        kind = _OneBlasThread
        with kind._lock:
            if not kind._inside:
                kind._limit = _in_a_thread(lambda: _blas().limit(limits=1))
                many = any(library["num_threads"] > 1 for library in _blas().info())
                kind._own = _blas().limit(limits=1) if many else None
            kind._inside += 1

    def __exit__(self, *error: object) -> None:
        kind = _OneBlasThread
        with kind._lock:
            kind._inside -= 1
            if not kind._inside:
                _in_a_thread(kind._limit.restore_original_limits)
                if kind._own is not None:
                    kind._own.restore_original_limits()


def _in_a_thread(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
