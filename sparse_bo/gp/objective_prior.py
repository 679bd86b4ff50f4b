"""The prior of an objective, kernel, mean and noise: learned from observations in the user's units, and checked against them.

*What counts.* A policy concentrates where the objective is high, so its evaluations say little about the objective's spread and
everything about the noise. Units are therefore taken from the n *distinct* inputs, each counted once: mean and standard
deviation of their n means (clipped to the quartiles ± 10 interquartile ranges, so that one crashed evaluation does not decide).
The likelihood is the exact one of *all observations*: repeats inform the noise and nothing else.

*Equivariance.* ``y → a y + b`` gives the same prior in units: a² in variances, ``a m + b``, and the same lengthscales.
"""

from __future__ import annotations

import copy
import logging
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from gpytorch.constraints import Positive
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.hyperparameter_priors import Hyperparameters, Priors
from sparse_bo.gp.learn import FAMILIES, Given, learn
from sparse_bo.gp.likelihood import Scatter
from sparse_bo.gp.observations import Observations
from sparse_bo.kernels import CovarianceFunction, covariance_function

CONCENTRATED = Priors(
    lengthscale=0.2, noise=math.exp(-4.0), noise_sd=2.0, scale_shape=0.0, scale_sd=0.5, starts=((0.2, math.exp(-4.0)),)
)
"""Where evaluations concentrate on a few inputs (:func:`learn_prior`); see there for the reason."""
UNCENTRED = 10.0
"""Standard deviations of a given prior beyond which an objective's mean is worth a warning."""
CLIP = 10.0
"""Interquartile ranges beyond the quartiles at which means are clipped for learning."""
logger = logging.getLogger(__name__)


class Prior(NamedTuple):
    """A prior over the objective; ``None`` means not known."""

    covar_module: Kernel | None
    prior_mean: float | None
    regularization: float | None

    @property
    def complete(self) -> bool:
        """Whether kernel and λ are known, so that nothing has to be learned; a mean that is not known is 0 then."""
        return self.covar_module is not None and self.regularization is not None

    def known(self) -> KnownPrior:
        """Return the prior as a complete one; an unknown mean is 0.

        Raises:
            ValueError: If the kernel or λ is not known: :func:`learn_prior` learns them.
        """
        if self.covar_module is None or self.regularization is None:
            missing = "a kernel" if self.covar_module is None else "regularization"
            raise ValueError(f"expected a prior with {missing}, got None; learn it (learn_prior), or pass it")
        return KnownPrior(self.covar_module, self.prior_mean or 0.0, self.regularization)


class KnownPrior(NamedTuple):
    """A complete prior of the objective: kernel, μ₀ (y) and λ > 0 (y²)."""

    covar_module: Kernel
    prior_mean: float
    regularization: float
    factor: float = 1.0
    """Factor of the scale, learned with the noise, of a kernel of the user's."""


def scaled_kernel(family: str, lengthscales: Tensor, outputscale: float) -> ScaleKernel:
    """Return ``outputscale · R`` of a stationary family as a GPyTorch module, in the precision of ``lengthscales`` (``d``).

    Numbers are set as tensors: GPyTorch takes plain ones through float32, where 10⁶⁰ is infinite.
    """
    d = len(lengthscales)
    with lengthscales.device:  # not the user's default device
        inner = {"rbf": RBFKernel, "matern52": partial(MaternKernel, 2.5)}[family](ard_num_dims=d)
        kernel = ScaleKernel(inner).to(lengthscales)
    inner.lengthscale = lengthscales
    kernel.outputscale = lengthscales.new_tensor(outputscale)
    return kernel


def times(kernel: Kernel, factor: float) -> ScaleKernel:
    """Return ``factor`` times a kernel without batch shape, in float64, whose hyper-parameters are copied."""
    inner = copy.deepcopy(kernel).double()
    if not isinstance(inner, ScaleKernel):
        device = next((p.device for p in inner.parameters()), torch.device("cpu"))
        with device:  # not the user's default device
            inner = ScaleKernel(inner).to(device, torch.float64)
        inner.outputscale = torch.ones((), dtype=torch.float64, device=device)
    value = inner.outputscale.detach() * factor
    inner.register_constraint("raw_outputscale", Positive())  # the user's may exclude what is learned
    inner.outputscale = value
    return inner


def family_of(kernel: Kernel) -> str:
    """Return the family of a kernel that :func:`scaled_kernel` made."""
    return {RBFKernel: "rbf", MaternKernel: "matern52"}[type(kernel.base_kernel)]


def warn_if_uncentred(
    given: Prior, observations: Observations, *, before: int, covariance: CovarianceFunction | None = None
) -> None:
    """Warn once where a complete prior without a mean meets an objective far from 0: every point then looks unlikely.

    Mean 0 is that of the papers, so it stays. Far is :data:`UNCENTRED` standard deviations of the prior. Nothing is said that
    could have been said ``before``, after so many pulls. ``covariance`` is that of the given kernel, if there is one already:
    making it copies the kernel.

    Warns:
        NumericalWarning: Says what to pass.
    """
    if given.covar_module is None or given.regularization is None or given.prior_mean is not None:
        return
    mean = float(observations.means.mean())
    if abs(mean) <= UNCENTRED * math.sqrt(given.regularization):  # whatever k(x, x) is: asking takes milliseconds
        return
    if covariance is None:
        covariance = covariance_function(given.covar_module, like=observations.X[:1])
    variance = float(covariance.diagonal(observations.X[:1]))
    limit = UNCENTRED * math.sqrt(variance + given.regularization)
    earlier = observations.anchors[observations.first_pull < before]
    if abs(mean) <= limit or (len(earlier) and abs(float(earlier.mean())) > limit):
        return
    warnings.warn(
        f"the objective is about {mean:.4g}, which the given kernel (variance {variance:.4g}) and prior mean 0 do not expect: "
        f"unseen points look much {'worse' if mean > 0 else 'better'} than they are. Pass prior_mean={mean:.4g}, or leave out "
        "covar_module or regularization to have the mean learned with it",
        NumericalWarning,
        stacklevel=2,
    )


def fences(values: Tensor) -> tuple[float, float]:
    """Return the numbers :data:`CLIP` interquartile ranges beyond the quartiles of ``n`` values; infinite if they are equal."""
    if len(values) >= 4:
        low, high = torch.quantile(values, values.new_tensor([0.25, 0.75])).tolist()
        if high > low:
            return low - CLIP * (high - low), high + CLIP * (high - low)
    return -math.inf, math.inf


def reached_floor(values: Tensor) -> float | None:
    """Return the floor of observations, the lower of :func:`fences`, where some of them are below it, else ``None``.

    They are raised to it before a model with a learned kernel is fitted: a value of −10³⁰ where something broke says "bad";
    taken at its word it bends the model everywhere. Nothing is ever lowered: high values are what is sought.
    """
    floor = fences(values)[0]
    return floor if bool((values < floor).any()) else None


def without_crashes(observations: Observations, given: Prior) -> tuple[Observations, float | None]:
    """Return observations for a fit and their :func:`reached_floor`: with a learned kernel, lower means are raised to it."""
    inside = observations.clamped()
    floor = reached_floor(inside.means) if given.covar_module is None else None
    return inside if floor is None else inside.clamped(floor), floor


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
    """Learn the unknown parts of a prior by :func:`sparse_bo.gp.learn.learn`, in the user's units.

    The kernel is a ``ScaleKernel`` in float64. O(n³) per step with n ≤ ``most``. With fewer than 100 distinct inputs a second
    search starts as without an earlier result. Draws one permutation if there are more inputs than ``most``. Nothing is raised
    by the search: where it fails the previous prior stays, or one of the priors' medians.

    Upper-confidence and elimination policies need other priors than a local model. Their inputs concentrate, so that the scale
    is known less than its likelihood shows: its prior holds it within a factor e (two sd). Their pulls are noisy, and few
    of the first ones repeat: noise from 3·10⁻⁴ to 1 of the spread's variance lies within two sd, so that it is not explained
    by short lengthscales. With :data:`sparse_bo.gp.learn.PRIORS` a noisy set of arms was explored without end (record 070).

    Args:
        given: Not complete. What the user has fixed stays as it is, of a kernel all but its scale; without a given mean it gets
            the most probable one.
        observations: n ≥ 1.
        bounds: ``2 x d``, corners of the domain (:meth:`sparse_bo.domains.Domain.hull`): they scale the inputs.
        generator: CPU generator.
        previous: The last result: where the search starts, and the answer if it fails.
        correlation: Family and lengthscales (of a sum its reach, as Matérn-5/2) that are kept: mean, scale and noise alone
            are learned. For data whose correlations another model has learned, maybe of transformed observations.
        families: Those of :func:`sparse_bo.gp.learn.learn`, stationary.
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
        start = None if previous is None else data.start(previous, given)
        steps = max_steps if previous is None else max_steps // 2
        found = learn(
            data.X,
            data.means,
            scatter=data.scatter,
            families=families,
            priors=priors,
            given=known,
            start=start,
            restart=len(data.means) < 100,
            max_steps=steps,
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

    Distinct inputs inform the kernel, repeats the noise. Both are geometric: learning is done O(log T) times. ``learned_at`` is
    the number of observations at the last learning; 0 if never.
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
        correlation = None
        if given.covar_module is not None:
            covariance = covariance_function(given.covar_module, like=self.inputs)
            correlation = covariance.cross(self.inputs, self.inputs) / self.variance_of(given.covar_module)
        noise = None if given.regularization is None else given.regularization / self.scale / self.scale
        mean = None if given.prior_mean is None else (given.prior_mean - self.shift) / self.scale
        return Given(correlation, noise, mean)

    def variance_of(self, kernel: Kernel) -> float:
        """Return the mean prior variance of a kernel at the inputs (y²), 1 if it is 0: the unit of its scale."""
        return float(covariance_function(kernel, like=self.inputs).diagonal(self.inputs).mean()) or 1.0

    def start(self, previous: KnownPrior, given: Prior) -> Hyperparameters:
        """Return an earlier prior in these units."""
        noise, ell, s = previous.regularization / self.scale / self.scale, self.ranges, 1.0
        family = "rbf"
        if given.covar_module is not None:
            s = self.variance_of(previous.covar_module) / self.scale / self.scale
        else:
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
            factor = found.scale * variance / self.variance_of(given.covar_module)
            return KnownPrior(times(given.covar_module, factor), mean, noise, factor)
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
    if 0.0 < largest < 1e-140:
        warnings.warn(
            f"the objective's values differ by {largest:.3g}, which is 0 for the model: its square is below the range of "
            "numbers; divide the objective by its largest value",
            NumericalWarning,
            stacklevel=2,
        )
    scale = min(max(scale, 1e-140), 1e140)  # its square must be a number, and so must that over the smallest noise
    n, counts = observations.n, observations.counts
    rows = torch.arange(n, device=counts.device)
    if n > most:  # the most repeated ones and a uniform sample of the rest, ascending
        order = torch.randperm(n, generator=generator, device="cpu").to(counts.device)
        repeated = counts[order].argsort(descending=True, stable=True)[: most // 4]
        rest = torch.ones(n, dtype=torch.bool, device=counts.device)
        rest[repeated] = False
        rows = torch.cat([order[repeated], order[rest][: most - len(repeated)]]).sort().values
    low, high = bounds
    ranges = torch.where(high > low, high - low, torch.ones_like(high))
    squares = float((observations.scatter[rows].sqrt() / scale).square().sum())
    scatter = Scatter.of(counts[rows], squares)
    X = observations.X[rows]
    return _Standardized(X, (X - low) / ranges, deviations[rows] / scale, scatter, ranges, shift, scale)
