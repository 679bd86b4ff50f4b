"""The likelihood that BoTorch learns an exact GP's hyper-parameters by, with its gradient in closed form.

On the hundred observations of a buffer a step of ``fit_gpytorch_mll`` costs milliseconds, nearly all of them the bookkeeping of
GPyTorch's modules and of automatic differentiation; in closed form it costs a tenth. The search stays BoTorch's: the same
parameters, bounds, tolerances and restarts, so it ends at the same optimum, to rounding.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.optim.closures.core import NdarrayOptimizationClosure
from gpytorch.kernels import ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.gp.likelihood import value_and_gradient
from sparse_bo.kernels.structure import untouched
from sparse_bo.models.sparse_gp.classes import SparseGP
from sparse_bo.models.sparse_gp.prior import stationary_parts


class Part(NamedTuple):
    """One of a GP's hyper-parameters, where it stands in the vector that is searched, and its prior."""

    place: slice
    location: float | None = None
    """Of its log-normal prior; ``None``: it has none."""
    scale: float = 1.0


class ExactGP(NamedTuple):
    """``y ~ N(m, v R(ℓ) + g I)`` with log-normal priors on ℓ and g or without, as BoTorch parametrises it."""

    kernel: str
    """A key of :data:`sparse_bo.kernels.stationary.RADIAL`."""
    X: Tensor
    """``n x d``."""
    y: Tensor
    """``n``, as the outcome transform makes them."""
    lengthscales: Part
    noise: Part
    mean: Part
    variance: Part | None
    """``None``: v = 1."""

    def loss(self, numbers: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus the log posterior density per observation, and its gradient. O(n³).

        Raises:
            NotPSDError: If the covariance cannot be factorised.
        """
        given, n = torch.from_numpy(numbers).to(self.X), len(self.y)
        ell, noise, mean = (given[part.place] for part in (self.lengthscales, self.noise, self.mean))
        variance = given.new_ones(()) if self.variance is None else given[self.variance.place].squeeze()
        try:
            value, found = value_and_gradient(self.X, ell, variance, noise, self.y - mean, family=self.kernel)
        except ValueError as error:
            raise NotPSDError(str(error)) from error
        by_ell, by_variance, by_noise, by_residuals = found
        by_ell = by_ell if len(ell) == len(by_ell) else by_ell.sum().reshape(1)
        sums = torch.stack([value, by_noise.sum(), -by_residuals.sum(), by_variance])
        total, to_noise, to_mean, to_variance, *to_ell = torch.cat([sums, by_ell]).tolist()  # one wait for the device
        slopes = np.empty_like(numbers)
        slopes[self.lengthscales.place], slopes[self.noise.place], slopes[self.mean.place] = to_ell, to_noise, to_mean
        if self.variance is not None:
            slopes[self.variance.place] = to_variance
        for part in (self.lengthscales, self.noise):
            if part.location is not None:
                total += add_log_normal(numbers[part.place], slopes[part.place], location=part.location, scale=part.scale)
        return -total / n, slopes / -n


def add_log_normal(values: np.ndarray, slopes: np.ndarray, *, location: float, scale: float) -> float:
    """Return the log density of positive values under a log-normal prior; add its gradient to ``slopes`` in place."""
    logs = np.log(values)
    away = (logs - location) / scale
    slopes -= (1.0 + away / scale) / values
    return float(-0.5 * away @ away - logs.sum()) - len(values) * (math.log(scale) + 0.5 * math.log(2.0 * math.pi))


class ExactLoss(NdarrayOptimizationClosure):  # type: ignore[misc]  # the base class ships no types
    """The loss of ``fit_gpytorch_mll`` in closed form; parameters are set where the search ends, not at each of its steps."""

    def __init__(self, gp: ExactGP, parameters: dict[str, Tensor]) -> None:
        """Hold the GP, and the parameters that the vector is made of, in their order."""
        super().__init__(self._stays_unused, parameters)
        self.gp = gp

    def _stays_unused(self) -> tuple[Tensor, list[Tensor]]:
        raise NotImplementedError("values come from the closed form")

    def __call__(self, state: np.ndarray | None = None, **kwargs: Any) -> tuple[Any, np.ndarray]:
        """Return the loss and its gradient at ``state``; default: where the parameters are."""
        return self.gp.loss(self.state if state is None else state)


def exact_loss(mll: ExactMarginalLogLikelihood) -> ExactLoss | None:
    """Return the ``closure=`` of ``fit_gpytorch_mll`` for a GP whose likelihood is certain to be the one in closed form.

    That is ``SingleTaskGP`` itself, and :class:`sparse_bo.SparseGP` where it learns from all points at once, with one output
    and no input transform, a constant mean, one of the kernels of
    :func:`~sparse_bo.models.sparse_gp.prior.stationary_parts`, one noise variance, log-normal priors on lengthscales and
    noise or none, all parameters free and none hidden behind a transform. ``None`` for anything else.

    Args:
        mll: In training mode, in float64.
    """
    known = _hyper_parameters(mll)
    if known is None:
        return None
    parameters = dict(mll.named_parameters())
    places, end = {}, 0
    for parameter in parameters.values():
        places[id(parameter)] = slice(end, end + parameter.numel())
        end += parameter.numel()

    def part(name: str) -> Part:
        prior, place = known.priors.get(name), places[id(known.raw[name])]
        return Part(place) if prior is None else Part(place, float(prior.loc), float(prior.scale))

    gp = ExactGP(
        kernel=known.kernel,
        X=mll.model.train_inputs[0],
        y=mll.model.train_targets,
        lengthscales=part("lengthscale"),
        noise=part("noise"),
        mean=part("constant"),
        variance=part("outputscale") if "outputscale" in known.raw else None,
    )
    return ExactLoss(gp, parameters)


class _HyperParameters(NamedTuple):
    kernel: str
    raw: dict[str, Tensor]
    """All parameters of the likelihood: ``lengthscale``, ``noise``, ``constant`` and maybe ``outputscale``."""
    priors: dict[str, LogNormalPrior]


def _hyper_parameters(mll: Any) -> _HyperParameters | None:
    """Return the hyper-parameters of a likelihood that :func:`exact_loss` says it knows; ``None`` of any other."""
    model = mll.model
    if type(mll) is not ExactMarginalLogLikelihood or not _exact(model) or not _plain(model):
        return None
    parts, mean, noise = stationary_parts(model.covar_module), model.mean_module, model.likelihood.noise_covar
    if parts is None or parts.lengthscales.dim() != 1 or type(noise) is not HomoskedasticNoise:
        return None
    if type(mean) is not ConstantMean or getattr(mean, "raw_constant_constraint", None) is not None:
        return None
    scaled = model.covar_module if type(model.covar_module) is ScaleKernel else None
    inner = model.covar_module if scaled is None else scaled.base_kernel
    modules = {"lengthscale": inner, "noise": noise} | ({} if scaled is None else {"outputscale": scaled})
    if any(getattr(module, f"raw_{name}_constraint").enforced for name, module in modules.items()):
        return None
    priors = _log_normal_priors(mll, modules)
    raw = {name: getattr(module, f"raw_{name}") for name, module in modules.items()} | {"constant": mean.raw_constant}
    if priors is None or {id(p) for p in mll.parameters()} != {id(p) for p in raw.values()}:
        return None
    free = all(p.requires_grad and p.dtype == torch.float64 for p in raw.values())
    return _HyperParameters(parts.name, raw, priors) if free else None


def _exact(model: Any) -> bool:
    """Return whether a model's likelihood is that of all its points, searched from nothing else than where it is."""
    if type(model) is SingleTaskGP:
        return True
    if type(model) is not SparseGP:
        return False
    targets = model.train_targets
    return (
        targets is not None
        and model.learner.likelihood(len(targets)) == "exact"
        and len(targets) < model.learner.settings.coarse_from
    )


def _plain(model: Any) -> bool:
    """Return whether a model is one GP with Gaussian noise, on its inputs as they are, and nothing was attached to it."""
    if model.num_outputs != 1 or len(model.batch_shape) or type(model.likelihood) is not GaussianLikelihood:
        return False
    others = getattr(model, "input_transform", None) is not None or any(True for _ in model.added_loss_terms())
    return not others and untouched(model) and untouched(model.likelihood)


def _log_normal_priors(mll: Any, modules: dict[str, Any]) -> dict[str, LogNormalPrior] | None:
    """Return the priors of lengthscales and noise; ``None`` if there is any other."""
    found = {}
    for full_name, module, prior, closure, _ in mll.named_priors():
        name = full_name.rpartition(".")[2].removesuffix("_prior")
        if name not in ("lengthscale", "noise") or modules[name] is not module or type(prior) is not LogNormalPrior:
            return None
        if prior.loc.numel() != 1 or prior.scale.numel() != 1 or not torch.equal(closure(module), getattr(module, name)):
            return None
        found[name] = prior
    return found
