"""Learning a kernel, a mean and a noise from merged observations: one maximum a posteriori for arms, boxes and models.

*What counts.* A policy looks where it is good, so pulls say little about the spread of the objective and everything about the
noise. Units are therefore taken from the n *distinct* inputs, each counted once: ``shift`` and ``scale`` are mean and standard
deviation of their n means (clipped to the quartiles ± 10 interquartile ranges, so that one crashed evaluation does not decide).
In these units, with inputs scaled from the domain's hull to the unit cube, the model is

    f(x) = μ + √s · g(x),  g ~ GP(0, RBF with one lengthscale ℓ_j per input),  y = f(x) + noise,

and the likelihood is the exact one of *all pulls* (:mod:`sparse_bo.gp.likelihood`: the mean of each input with noise λ/c, the
repeats around it), so that repeats teach the noise and nothing else.

*Priors*, all proper, as Gaussians of logarithms (``log p ~ N(centre, sd²)``, whose mode is what is learned without data):

    ==========  =======================  ====  =======================================================================
    ℓ_j         log(0.2 √d)              0.8   the centre is the mode of BoTorch's LogNormal(√2 + ½ log d, √3) (Hvarfner et
                                               al. 2024); 0.8 for what all inputs have in common, and 0.8 for each alone
                                               (:func:`sparse_bo.gp.evidence.log_prior_apart`)
    s           0                        0.5   the signal has about the spread of the means. They hold the noise too, and
                                               a policy's choice of inputs narrows them: a factor e either way is two sd
    λ           −4                       2     BoTorch's median, twice its sd: noise from 3·10⁻⁴ to 1 of the spread's
                                               variance lies within two, so that noisy tables are not explained by bends
    μ           N(0, 1), not a log             estimated in closed form together with the likelihood
    ==========  =======================  ====  =======================================================================

With s fixed to 1 in units of *pulls*, as in BoTorch's default model, the prior shrinks to the noise as a policy concentrates,
and exploration ends. Without a prior on s it runs away on few or constant data.

With BoTorch's sd √3 for each lengthscale alone, 30 arms in 8 inputs teach lengthscales from 0.03 to 4, which the next 30 change
altogether. What that cost, together with other choices: :data:`sparse_bo.policies.bandits.arm_mechanism.LOOKS`.

*Equivariance.* ``y → a y + b`` gives the same prior in units: a² in s and λ, ``a μ + b``, and the same lengthscales.
"""

from __future__ import annotations

import logging
import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.evidence import log_prior_apart
from sparse_bo.gp.likelihood import merged_evidence
from sparse_bo.gp.observations import Observations
from sparse_bo.gp.priors import CLIP, KnownPrior, Prior
from sparse_bo.kernels import covariance_function

LEARNING_INPUTS = 300
"""Learn from at most so many distinct inputs (all their pulls): a step costs O(n³), and learning needs little data."""
MOST_PULLED = 0.25
"""Share of them that are the most pulled ones; the others are a uniform sample of the rest."""
COLD_STARTS_BELOW = 100
"""With fewer distinct inputs the search starts from the priors' modes too, not only from the last result."""
GROWTH = 1.5
"""Of the distinct inputs from one learning to the next."""
STEPS = 60
"""Of L-BFGS, at most; after a warm start half as many."""
SCALE_LIMITS = (1e-140, 1e140)
"""Of an objective's spread (y): its square must be a number, and so must its square over the smallest noise."""

LENGTHSCALE_SD, COMMON_SD, SCALE_SD, NOISE_CENTRE, NOISE_SD = 0.8, 0.8, 0.5, -4.0, 2.0
LENGTHSCALES, SCALES, NOISES = (1e-2, 1e3), (1e-4, 1e4), (1e-6, 1e3)
"""Bounds, in the units of the unit cube and of the standardised outputs."""

logger = logging.getLogger(__name__)


def learn_prior(
    given: Prior,
    observations: Observations,
    bounds: Tensor,
    *,
    generator: torch.Generator,
    previous: KnownPrior | None = None,
) -> KnownPrior:
    """Learn what ``given`` leaves open by maximum a posteriori (the module's docstring has the model and the priors).

    The kernel is returned in the units of the data, as ``ScaleKernel(RBFKernel)`` in float64. O(n³) per step of L-BFGS with
    n ≤ :data:`LEARNING_INPUTS`, derivatives in closed form (so gradient modes do not matter). Draws one permutation if there
    are more inputs than that. Nothing is raised out of the learning itself: where it fails the last good prior stays, or that
    of the priors' modes.

    Args:
        given: What the user has fixed stays as it is. A given kernel without a given mean gets the most probable mean.
        observations: n ≥ 1.
        bounds: ``2 x d``, corners of the domain (:meth:`sparse_bo.domains.Domain.hull`): they scale the inputs.
        generator: CPU generator.
        previous: The last prior that was learned here: where the search starts, and what stays if it fails.

    Warns:
        NumericalWarning: If learning failed; says what the run goes on with.
    """
    data = _standardized(observations, bounds, generator)
    problem = _Problem(data, given)
    theta, message = _maximized(problem, previous)
    if theta is None:
        went_on = "those of before" if previous is not None else "typical ones in the units of the data"
        warnings.warn(
            f"hyper-parameters could not be learned from {len(data.counts)} distinct inputs ({message}); the run goes on with "
            f"{went_on}. Values that differ by many orders of magnitude are a usual cause: check the objective",
            NumericalWarning,
            stacklevel=2,
        )
        if previous is not None:
            return previous
        return problem.prior(problem.centres, mean=data.shift)
    return problem.prior(theta)


def learning_is_due(observations: Observations, learned_at: int) -> bool:
    """Return whether to learn again: at first, and when distinct inputs have grown by :data:`GROWTH` or pulls have doubled.

    Distinct inputs teach the kernel, repeats the noise. Both are geometric: learning is done O(log T) times.

    Args:
        observations: Those so far.
        learned_at: Pulls at which it was learned last; 0 if never.
    """
    if not learned_at:
        return True
    then = int((observations.first_pull < learned_at).sum())
    return observations.n >= GROWTH * then or observations.pulls >= 2 * learned_at


class _Data(NamedTuple):
    """Merged pulls, inputs in the unit cube, outputs with mean 0 and standard deviation 1 over the distinct inputs."""

    X: Tensor
    unit_X: Tensor
    counts: Tensor
    means: Tensor
    scatter: float
    ranges: Tensor
    shift: float
    scale: float


def _standardized(observations: Observations, bounds: Tensor, generator: torch.Generator) -> _Data:
    means = _clipped(observations.means)
    shift = float(means.mean())
    deviations = means - shift
    largest = float(deviations.abs().amax())
    round_off = 1e-14 * abs(shift)
    scale = abs(shift) or 1.0  # of a constant objective: it has no other unit
    if largest > round_off:  # in units of the largest, whose square neither overflows nor vanishes
        scale = largest * math.sqrt(float((deviations / largest).square().sum()) / max(len(means) - 1, 1))
    scale = min(max(scale, SCALE_LIMITS[0]), SCALE_LIMITS[1])
    keep = _representatives(observations, generator)
    low, high = bounds
    ranges = torch.where(high > low, high - low, torch.ones_like(high))
    X = observations.X[keep]
    scatter = float((observations.scatter[keep].sqrt() / scale).square().sum())
    return _Data(X, (X - low) / ranges, observations.counts[keep], deviations[keep] / scale, scatter, ranges, shift, scale)


def _clipped(means: Tensor) -> Tensor:
    """Return the means, those beyond :data:`sparse_bo.gp.priors.CLIP` interquartile ranges from the quartiles moved there."""
    if len(means) < 4:
        return means
    low, high = torch.quantile(means, means.new_tensor([0.25, 0.75])).tolist()
    spread = CLIP * (high - low)
    return means.clamp(low - spread, high + spread) if spread > 0.0 else means


def _representatives(observations: Observations, generator: torch.Generator) -> Tensor:
    """Return the rows to learn from: all, or the most pulled and a uniform sample of the rest, ascending."""
    n, counts = observations.n, observations.counts
    if n <= LEARNING_INPUTS:
        return torch.arange(n, device=counts.device)
    order = torch.randperm(n, generator=generator, device="cpu").to(counts.device)
    most = counts[order].argsort(descending=True, stable=True)[: int(MOST_PULLED * LEARNING_INPUTS)]
    rest = torch.ones(n, dtype=torch.bool, device=counts.device)
    rest[most] = False
    kept = torch.cat([order[most], order[rest][: LEARNING_INPUTS - len(most)]])
    return kept.sort().values


@dataclass(frozen=True, eq=False)
class _Problem:
    """What is maximised: log likelihood plus log priors, of the logarithms ``[ℓ, s, λ]`` that are open, in standard units."""

    data: _Data
    given: Prior

    @property
    def learns_kernel(self) -> bool:
        return self.given.covar_module is None

    @property
    def learns_noise(self) -> bool:
        return self.given.regularization is None

    @property
    def dims(self) -> int:
        return self.data.X.shape[1]

    def _open(self, kernel: list[float], noise: float) -> NDArray[np.float64]:
        return np.array((kernel if self.learns_kernel else []) + ([noise] if self.learns_noise else []))

    @property
    def centres(self) -> NDArray[np.float64]:
        lengthscale = math.log(0.2) + 0.5 * math.log(self.dims)
        return self._open([lengthscale] * self.dims + [0.0], NOISE_CENTRE)

    def log_prior(self, theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the log prior density, up to a constant, and minus its gradient."""
        away = theta - self.centres
        pull = away / np.square(self._open([LENGTHSCALE_SD] * self.dims + [SCALE_SD], NOISE_SD))
        if self.learns_kernel:
            lengthscales = torch.from_numpy(away[: self.dims])
            pull[: self.dims] = log_prior_apart(lengthscales, LENGTHSCALE_SD, COMMON_SD)[1].numpy()
        return -0.5 * float(away @ pull), pull

    @property
    def limits(self) -> NDArray[np.float64]:
        low, high = (
            self._open([math.log(LENGTHSCALES[i])] * self.dims + [math.log(SCALES[i])], math.log(NOISES[i])) for i in (0, 1)
        )
        return np.stack([low, high], axis=1)

    @property
    def prior_mean(self) -> float | None:
        mean = self.given.prior_mean
        return None if mean is None else (mean - self.data.shift) / self.data.scale

    def noise(self, theta: NDArray[np.float64]) -> float:
        if self.given.regularization is not None:
            return self.given.regularization / self.data.scale / self.data.scale
        return math.exp(theta[-1])

    def start(self, previous: KnownPrior) -> NDArray[np.float64]:
        """Return the previous prior's parameters in today's units."""
        kernel, data = previous.covar_module, self.data
        parts = [0.0] * (self.dims + 1)
        if self.learns_kernel:
            lengthscales = kernel.base_kernel.lengthscale.detach().flatten().to(data.ranges) / data.ranges
            parts = [*lengthscales.log().tolist(), math.log(float(kernel.outputscale.detach())) - 2.0 * math.log(data.scale)]
        start = self._open(parts, math.log(previous.regularization) - 2.0 * math.log(data.scale))
        return np.clip(start, *self.limits.T)

    def __call__(self, theta: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return minus the log posterior per distinct input, and its gradient."""
        data = self.data
        K = self.kernel_matrix(theta)
        evidence = merged_evidence(
            K, data.counts, data.means, data.scatter, noise=self.noise(theta), prior_mean=self.prior_mean
        )
        gradient = []
        if self.learns_kernel:
            G = evidence.by_covariance * K
            scaled = data.unit_X / torch.exp(torch.from_numpy(theta[: self.dims]).to(K))
            by_lengthscale = 2.0 * (G.sum(dim=0) @ scaled.square() - (scaled * (G @ scaled)).sum(dim=0))
            gradient = [*by_lengthscale.tolist(), float(G.sum())]
        if self.learns_noise:
            gradient.append(evidence.by_noise * math.exp(theta[-1]))
        log_prior, pull = self.log_prior(theta)
        n = len(data.counts)
        return -(evidence.value + log_prior) / n, -(np.array(gradient) - pull) / n

    def kernel_matrix(self, theta: NDArray[np.float64]) -> Tensor:
        if self.given.covar_module is not None:
            return self._given_matrix
        X = self.data.unit_X / torch.exp(torch.from_numpy(theta[: self.dims]).to(self.data.unit_X))
        return math.exp(theta[self.dims]) * torch.exp(-0.5 * squared_distances(X))

    @cached_property
    def _given_matrix(self) -> Tensor:
        """The given kernel in standard units, computed once."""
        assert self.given.covar_module is not None
        K = covariance_function(self.given.covar_module, like=self.data.X).cross(self.data.X, self.data.X)
        return K / self.data.scale / self.data.scale

    def prior(self, theta: NDArray[np.float64], *, mean: float | None = None) -> KnownPrior:
        """Return the prior of some parameters, in the units of the data; a mean that is not known is the most probable one."""
        data, given = self.data, self.given
        noise = given.regularization if given.regularization is not None else self.noise(theta) * data.scale * data.scale
        mean = mean if given.prior_mean is None else given.prior_mean
        if mean is None:
            evidence = merged_evidence(
                self.kernel_matrix(theta), data.counts, data.means, data.scatter, noise=self.noise(theta), prior_mean=None
            )
            mean = evidence.prior_mean * data.scale + data.shift
        if given.covar_module is not None:
            return KnownPrior(given.covar_module, mean, noise)
        lengthscales = torch.from_numpy(np.exp(theta[: self.dims])).to(data.ranges) * data.ranges
        return KnownPrior(scaled_rbf(lengthscales, math.exp(theta[self.dims]) * data.scale * data.scale), mean, noise)


def scaled_rbf(lengthscales: Tensor, outputscale: float) -> ScaleKernel:
    """Return ``outputscale · exp(−½ Σ ((x_j − x'_j)/ℓ_j)²)`` in the precision of ``lengthscales`` (``d``).

    Numbers go in as tensors: GPyTorch takes plain ones through float32, where 10⁶⁰ is infinite.
    """
    rbf = RBFKernel(ard_num_dims=len(lengthscales)).to(lengthscales)
    rbf.lengthscale = lengthscales
    kernel = ScaleKernel(rbf).to(lengthscales)
    kernel.outputscale = lengthscales.new_tensor(outputscale)
    return kernel


def squared_distances(X: Tensor) -> Tensor:
    """Return ``n x n`` squared Euclidean distances between rows, at least 0. O(n² d)."""
    squares = X.square().sum(dim=-1)
    return (squares.unsqueeze(0) + squares.unsqueeze(1) - 2.0 * (X @ X.mT)).clamp_min(0.0).fill_diagonal_(0.0)


def _maximized(problem: _Problem, previous: KnownPrior | None) -> tuple[NDArray[np.float64] | None, str]:
    """Return the most probable parameters, or ``None`` and why there are none."""
    data = problem.data
    if not (math.isfinite(data.scatter) and math.isfinite(data.scale) and bool(data.means.isfinite().all())):
        return None, "their spread is beyond what float64 holds"
    if not len(problem.centres):
        return problem.centres, "nothing is open"
    starts = [] if previous is None else [problem.start(previous)]
    if previous is None or len(data.counts) < COLD_STARTS_BELOW:
        starts.append(problem.centres)
    best: tuple[float, NDArray[np.float64] | None] = math.inf, None
    message = ""
    for start in starts:
        steps = STEPS if previous is None else STEPS // 2
        try:
            result = minimize(
                problem, start, jac=True, method="L-BFGS-B", bounds=problem.limits, options={"maxiter": steps, "ftol": 1e-6}
            )
        except ValueError as error:  # a matrix that cannot be factorised
            message = str(error)
            continue
        logger.info("learned hyper-parameters from %d distinct inputs in %d steps", len(data.counts), result.nit)
        if math.isfinite(result.fun) and result.fun < best[0]:
            best = float(result.fun), result.x
        elif not math.isfinite(result.fun):
            message = "the likelihood is not finite"
    return best[1], message
