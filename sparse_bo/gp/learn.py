"""The one learner of hyper-parameters: maximum a posteriori from repeated observations, families of kernels by evidence.

:func:`learn` works in the unit cube on standardised outputs, as :class:`sparse_bo.gp.priors.Priors` expects.
:func:`learn_prior` brings observations in the user's units there and the result back.

*What counts.* A policy concentrates where the objective is high, so its evaluations say little about the objective's spread and
everything about the noise. Units are therefore taken from the n *distinct* inputs, each counted once: mean and standard
deviation of their n means (clipped to the quartiles ± 10 interquartile ranges, so that one crashed evaluation does not decide).
The likelihood is the exact one of *all observations*: repeats inform the noise and nothing else.

*Equivariance.* ``y → a y + b`` gives the same prior in units: a² in variances, ``a m + b``, and the same lengthscales.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.hyperparameters import ADDITIVE, Hyperparameters
from sparse_bo.gp.likelihood import (
    LogLikelihood,
    Scatter,
    correlation_of,
    fixed_correlation,
    log_likelihood,
    shares_of,
)
from sparse_bo.gp.objective_prior import KnownPrior, Prior, family_of, fences, scaled_kernel
from sparse_bo.gp.observations import Observations
from sparse_bo.gp.priors import Priors
from sparse_bo.kernels import covariance_function
from sparse_bo.kernels.stationary import Pairs, pairs

PRIORS = Priors()
"""The default table."""
CONCENTRATED = Priors(
    lengthscale=0.2, noise=math.exp(-4.0), noise_sd=2.0, scale_shape=0.0, scale_sd=0.5, starts=((0.2, math.exp(-4.0)),)
)
"""Where evaluations concentrate on a few inputs (:func:`learn_prior`); see there for the reason."""
FAMILIES = ("rbf", "matern52")
"""Stationary families, the simpler one first: it wins a tie."""
logger = logging.getLogger(__name__)


class Given(NamedTuple):
    """Hyper-parameters that are known, in standard units; ``None``: to be learned."""

    correlation: Tensor | None = None
    """``n x n`` prior covariance of the inputs in units of the scale."""
    scale: float | None = None
    """Beside a correlation alone."""
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

    X: Tensor
    means: Tensor
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
        return self.given.scale is None and (self.given.noise is not None or self.priors.scale_sd is not None)

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
            R = fixed_correlation(given.correlation)
        else:
            logs = torch.from_numpy(theta[: self.size]).to(X)
            R = correlation_of(logs, X, family=self.family, together=self.together)
        scale = math.exp(theta[self.size]) if self.searches_scale else given.scale
        if given.noise is None:
            noise = math.exp(theta[-1])
        else:
            assert scale is not None  # beside a given noise it is given or searched for
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
        return value, np.concatenate([found.by_correlation.cpu().numpy() + prior.gradient, last])

    def hyperparameters(self, theta: np.ndarray, evidence: float) -> Hyperparameters:
        """Return the hyper-parameters at ``theta``; with a given correlation without lengthscales."""
        found, d = self.likelihood(theta, gradient=False), self.X.shape[1]
        noise = math.exp(theta[-1]) if self.given.noise is None else self.given.noise / found.scale
        logs = torch.from_numpy(theta[: self.size]).to(self.X)
        ell = logs[:d].exp()
        if self.family != ADDITIVE:
            return Hyperparameters(self.family, ell, noise, found.mean, found.scale, evidence)
        shares, _ = shares_of(logs[2 * d :])
        return Hyperparameters(self.family, ell, noise, found.mean, found.scale, evidence, logs[d : 2 * d].exp(), shares)

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
) -> Hyperparameters:
    """Return the hyper-parameters of the highest posterior density that L-BFGS-B finds. O(n³ + n² d) per step.

    Args:
        X: ``n x d`` distinct inputs in the unit cube, n ≥ 1.
        means: ``n`` mean observations, of mean about 0 and variance about 1.
        scatter: Repeated observations; ``None``: each mean is one observation.
        families: Of :data:`FAMILIES` and :data:`sparse_bo.gp.hyperparameters.ADDITIVE`; at a tie the first.
        priors: Table of priors.
        given: What is not learned.
        start: Where to start, of any family; ``None``, or a sum that starts from no sum: at the densest of the priors' starts.
        restart: Whether a second search starts as without ``start``: lengthscales so short that no two observations are
            correlated are a mode that a search does not leave.
        max_steps: Of L-BFGS-B, for each family and start.

    Raises:
        ValueError: If inputs or outputs are not finite, or no covariance can be factorised.
    """
    if not bool(torch.isfinite(X).all() & torch.isfinite(means).all()):
        raise ValueError("expected finite inputs and outputs to learn from, got NaN or infinite ones")
    best: Hyperparameters | None = None
    for family in families if given.correlation is None else FAMILIES[:1]:  # what is given has none
        together = pairs(X) if family == ADDITIVE else None
        found = _highest(LogPosterior(X, means, scatter, family, priors, given, together), start, restart, max_steps)
        if best is None or found.evidence > best.evidence:
            best = found
    assert best is not None
    return best


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
    options = {"maxiter": max_steps, "ftol": 1e-6}
    ends = [minimize(negative, first, jac=True, method="L-BFGS-B", bounds=density.limits, options=options) for first in firsts]
    end = min(ends, key=lambda end: float(end.fun))
    if end.fun >= 1e10:
        raise ValueError(failure or "the likelihood is not finite")
    return density.hyperparameters(end.x, -float(end.fun))


def learn_prior(
    given: Prior,
    observations: Observations,
    bounds: Tensor,
    *,
    generator: torch.Generator,
    previous: KnownPrior | None = None,
    correlation: Hyperparameters | None = None,
    families: Sequence[str] = FAMILIES[:1],
    priors: Priors = CONCENTRATED,
    most: int = 300,
    max_steps: int = 60,
) -> KnownPrior:
    """Learn the unknown parts of a prior by :func:`learn`, in the user's units.

    The kernel is a ``ScaleKernel`` in float64. O(n³) per step with n ≤ ``most``. With fewer than 100 distinct inputs a second
    search starts as without an earlier result. Draws one permutation if there are more inputs than ``most``. Nothing is raised
    by the search: where it fails the previous prior stays, or one of the priors' medians.

    Upper-confidence and elimination policies need other priors than a local model. Their inputs concentrate, so that the scale
    is known less than its likelihood shows: its prior holds it within a factor e (two sd). Their pulls are noisy, and few
    of the first ones repeat: noise from 3·10⁻⁴ to 1 of the spread's variance lies within two sd, so that it is not explained
    by short lengthscales. With :data:`PRIORS` a noisy set of arms was explored without end (record 070).

    Args:
        given: What the user has fixed stays as it is. A given kernel without a given mean gets the most probable mean.
        observations: n ≥ 1.
        bounds: ``2 x d``, corners of the domain (:meth:`sparse_bo.domains.Domain.hull`): they scale the inputs.
        generator: CPU generator.
        previous: The last result: where the search starts, and the answer if it fails.
        correlation: Family and lengthscales (of a sum its reach, as Matérn-5/2) that are kept: mean, scale and noise alone
            are learned. For data whose correlations another model has learned, maybe of transformed observations.
        families: Those of :func:`learn`, stationary.
        priors: Table of priors.
        most: Distinct inputs that are learned from; a quarter are the most repeated ones, the others a uniform sample.
        max_steps: Of the first search; half as many after an earlier result.

    Warns:
        NumericalWarning: If learning failed; says what the run goes on with.
    """
    data = _standardized(observations.clamped(), bounds, most, generator)
    known = data.known(given)
    if correlation is not None and known.correlation is None:
        family = "matern52" if correlation.additive else correlation.family
        correlation = Hyperparameters(family, correlation.reach, correlation.noise, 0.0, 1.0, -math.inf)
        known = known._replace(correlation=correlation.cross(data.X, data.X))
    try:
        if not (math.isfinite(data.scatter.squares) and math.isfinite(data.scale)):
            raise ValueError("their spread is beyond what float64 holds")
        found = learn(
            data.X,
            data.means,
            scatter=data.scatter,
            families=families,
            priors=priors,
            given=known,
            start=None if previous is None else data.start(previous, given),
            restart=len(data.means) < 100,
            max_steps=max_steps if previous is None else max_steps // 2,
        )
    except ValueError as error:
        went_on = "those of before" if previous is not None else "typical ones in the units of the data"
        warnings.warn(
            f"hyper-parameters could not be learned from {len(data.means)} distinct inputs ({error}); the run goes on with "
            f"{went_on}. Values that differ by many orders of magnitude are a usual cause: check the objective",
            NumericalWarning,
            stacklevel=2,
        )
        if previous is not None:
            return previous
        ell = data.X.new_full(data.ranges.shape, priors.lengthscale * math.sqrt(len(data.ranges)))
        found = Hyperparameters(families[0], ell, priors.noise, 0.0, 1.0, -math.inf)
    if correlation is not None:
        found = replace(found, family=correlation.family, lengthscales=correlation.lengthscales)
    logger.info("learned hyper-parameters from %d distinct inputs", len(data.means))
    return data.prior(found, given)


def learning_is_due(observations: Observations, learned_at: int) -> bool:
    """Return whether to learn again: at first, when distinct inputs have grown by half, and when observations have doubled.

    Distinct inputs inform the kernel, repeats the noise. Both are geometric: learning is done O(log T) times.

    Args:
        observations: All so far.
        learned_at: Observations at the last learning; 0 if never.
    """
    if not learned_at:
        return True
    then = int((observations.first_pull < learned_at).sum())
    return observations.n >= 1.5 * then or observations.pulls >= 2 * learned_at


class _Standardized(NamedTuple):
    """Observations with inputs in the unit cube, and means of mean 0 and standard deviation 1 over the distinct inputs."""

    inputs: Tensor
    """``n x d``, in the user's units."""
    X: Tensor
    means: Tensor
    scatter: Scatter
    ranges: Tensor
    """``d``: widths of the domain; 1 along inputs that are constant."""
    shift: float
    scale: float

    def known(self, given: Prior) -> Given:
        """Return the known parts in these units."""
        correlation = scale = None
        if given.covar_module is not None:
            X, scale = self.inputs, 1.0
            correlation = covariance_function(given.covar_module, like=X).cross(X, X) / self.scale / self.scale
        noise = None if given.regularization is None else given.regularization / self.scale / self.scale
        mean = None if given.prior_mean is None else (given.prior_mean - self.shift) / self.scale
        return Given(correlation, scale, noise, mean)

    def start(self, previous: KnownPrior, given: Prior) -> Hyperparameters:
        """Return an earlier prior in these units."""
        noise, ell, s = previous.regularization / self.scale / self.scale, self.ranges, 1.0
        family = "rbf"
        if given.covar_module is None:
            kernel = previous.covar_module
            family = family_of(kernel)
            ell = kernel.base_kernel.lengthscale.detach().flatten().to(self.ranges) / self.ranges
            s = float(kernel.outputscale.detach()) / self.scale / self.scale
        return Hyperparameters(family, ell, noise / s, 0.0, s, -math.inf)

    def prior(self, found: Hyperparameters, given: Prior) -> KnownPrior:
        """Return the prior of a result in the user's units, with its known parts."""
        variance = self.scale * self.scale
        noise = given.regularization if given.regularization is not None else found.noise * found.scale * variance
        mean = given.prior_mean if given.prior_mean is not None else found.mean * self.scale + self.shift
        if given.covar_module is not None:
            return KnownPrior(given.covar_module, mean, noise)
        kernel = scaled_kernel(found.family, found.lengthscales.to(self.ranges) * self.ranges, found.scale * variance)
        return KnownPrior(kernel, mean, noise)


def _standardized(observations: Observations, bounds: Tensor, most: int, generator: torch.Generator) -> _Standardized:
    means = observations.means.clamp(*fences(observations.means))
    shift = float(means.mean())
    deviations = means - shift
    largest = float(deviations.abs().amax())
    scale = abs(shift) or 1.0  # of a constant objective: it has no other unit
    if largest > 1e-14 * abs(shift):  # in units of the largest, whose square neither overflows nor vanishes
        scale = largest * math.sqrt(float((deviations / largest).square().sum()) / max(len(means) - 1, 1))
    scale = min(max(scale, 1e-140), 1e140)  # its square must be a number, and so must that over the smallest noise
    rows = _representatives(observations, most, generator)
    low, high = bounds
    ranges = torch.where(high > low, high - low, torch.ones_like(high))
    counts = observations.counts[rows]
    squares = float((observations.scatter[rows].sqrt() / scale).square().sum())
    scatter = Scatter.of(counts, squares)
    X = observations.X[rows]
    return _Standardized(X, (X - low) / ranges, deviations[rows] / scale, scatter, ranges, shift, scale)


def _representatives(observations: Observations, most: int, generator: torch.Generator) -> Tensor:
    """Return the rows to learn from: all, or the most repeated ones and a uniform sample of the rest, ascending."""
    n, counts = observations.n, observations.counts
    if n <= most:
        return torch.arange(n, device=counts.device)
    order = torch.randperm(n, generator=generator, device="cpu").to(counts.device)
    repeated = counts[order].argsort(descending=True, stable=True)[: most // 4]
    rest = torch.ones(n, dtype=torch.bool, device=counts.device)
    rest[repeated] = False
    return torch.cat([order[repeated], order[rest][: most - len(repeated)]]).sort().values
