"""The likelihood that BoTorch learns an exact GP's hyper-parameters by, with its gradient in closed form.

On the hundred observations of a buffer a step of ``fit_gpytorch_mll`` costs milliseconds, nearly all of them the bookkeeping of
GPyTorch's modules and of automatic differentiation; in closed form it costs a tenth. The search stays BoTorch's: the same
parameters, bounds, tolerances and restarts, so it ends at the same optimum, to rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.optim.closures.core import NdarrayOptimizationClosure
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.likelihoods.noise_models import HomoskedasticNoise
from gpytorch.means import ConstantMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import LogNormalPrior
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.gp.likelihood import values_and_gradients
from sparse_bo.kernels.closed_forms import untouched
from sparse_bo.models.sparse_gp.prior import stationary_parts
from sparse_bo.models.sparse_gp.sparse_gp import SparseGP


class ExactLoss(NdarrayOptimizationClosure):  # type: ignore[misc]  # the base class ships no types
    """The loss of ``fit_gpytorch_mll`` for ``y ~ N(m, v R(ℓ) + g I)`` with log-normal priors on ℓ and g or without.

    Parameters are set where the search ends, not at each of its steps.

    Args:
        mll: A likelihood that :func:`exact_loss` knows.
        kernel: A key of :data:`sparse_bo.kernels.gradients.RADIAL`.
        parameters: ``lengthscale``, ``noise``, ``constant`` and maybe ``outputscale``.
        priors: Those of lengthscales and noise.
    """

    def __init__(self, mll: Any, kernel: str, parameters: dict[str, Tensor], priors: dict[str, LogNormalPrior]) -> None:
        free = dict(mll.named_parameters())
        super().__init__(self._stays_unused, free)
        self.X, self.y, self.kernel, self.priors = mll.model.train_inputs[0], mll.model.train_targets, kernel, priors
        places, end = {}, 0  # where the vector that is searched has each parameter
        for parameter in free.values():
            places[id(parameter)] = slice(end, end := end + parameter.numel())
        self.places = {name: places[id(parameter)] for name, parameter in parameters.items()}

    def _stays_unused(self) -> tuple[Tensor, list[Tensor]]:
        raise NotImplementedError("values come from the closed form")

    def __call__(self, state: np.ndarray | None = None, **kwargs: Any) -> tuple[float, np.ndarray]:
        """Return the loss per observation and its gradient at ``state``; default: where the parameters are. O(n³).

        Raises:
            NotPSDError: If the covariance cannot be factorised.
        """
        state = self.state if state is None else state
        given = {name: torch.from_numpy(state).to(self.X)[place] for name, place in self.places.items()}
        ell, noise = given["lengthscale"], given["noise"]
        variance = given["outputscale"].squeeze() if "outputscale" in given else noise.new_ones(())
        try:
            one = (self.X, ell.expand(self.X.shape[1]), variance, noise.expand(len(self.X)), self.y - given["constant"])
            found = values_and_gradients(*(part.unsqueeze(0) for part in one), family=self.kernel)
        except ValueError as error:
            raise NotPSDError(str(error)) from error
        value, (by_ell, by_variance, by_noise, by_residuals) = found[0][0], (part[0] for part in found[1])
        by_ell = by_ell if len(ell) == len(by_ell) else by_ell.sum().reshape(1)
        sums = torch.stack([value, by_noise.sum(), -by_residuals.sum(), by_variance])
        total, to_noise, to_mean, to_variance, *to_ell = torch.cat([sums, by_ell]).tolist()  # one wait for the device
        slopes = np.empty_like(state)
        by_name = {"lengthscale": to_ell, "noise": to_noise, "constant": to_mean, "outputscale": to_variance}
        for name, place in self.places.items():
            slopes[place] = by_name[name]
        for name, prior in self.priors.items():
            location, scale, place = float(prior.loc), float(prior.scale), self.places[name]
            values = state[place]
            away = (np.log(values) - location) / scale
            slopes[place] -= (1.0 + away / scale) / values
            constant = math.log(scale) + 0.5 * math.log(2.0 * math.pi)
            total += float(-0.5 * away @ away - np.log(values).sum()) - len(values) * constant
        return -total / len(self.y), slopes / -len(self.y)


def exact_loss(mll: ExactMarginalLogLikelihood) -> ExactLoss | None:
    """Return the ``closure=`` of ``fit_gpytorch_mll`` for a GP whose likelihood is certain to be the one in closed form.

    That is ``SingleTaskGP`` itself, and :class:`sparse_bo.SparseGP` where it learns from all points at once, with one output
    and no input transform, a constant mean, one of the kernels of
    :func:`~sparse_bo.models.sparse_gp.prior.stationary_parts`, one noise variance, log-normal priors on lengthscales and
    noise or none, all parameters free and none hidden behind a transform. ``None`` for anything else.

    Args:
        mll: In training mode, in float64.
    """
    model: Any = mll.model
    if type(mll) is not ExactMarginalLogLikelihood or not _exact(model) or not _plain(model):
        return None
    parts, mean, noise = stationary_parts(model.covar_module), model.mean_module, model.likelihood.noise_covar
    if parts is None or parts.lengthscales.dim() != 1 or type(noise) is not HomoskedasticNoise:
        return None
    if type(mean) is not ConstantMean or getattr(mean, "raw_constant_constraint", None) is not None:
        return None
    modules = {"lengthscale": parts.module, "noise": noise}
    modules |= {} if model.covar_module is parts.module else {"outputscale": model.covar_module}
    if any(getattr(module, f"raw_{name}_constraint").enforced for name, module in modules.items()):
        return None
    priors = _log_normal_priors(mll, modules)
    raw = {name: getattr(module, f"raw_{name}") for name, module in modules.items()} | {"constant": mean.raw_constant}
    if priors is None or {id(p) for p in mll.parameters()} != {id(p) for p in raw.values()}:
        return None
    free = all(p.requires_grad and p.dtype == torch.float64 for p in raw.values())
    return ExactLoss(mll, parts.name, raw, priors) if free else None


def _exact(model: Any) -> bool:
    """Return whether a model's likelihood is that of all its points, searched from nothing else than where it is."""
    if type(model) is not SparseGP or model.train_targets is None:
        return type(model) is SingleTaskGP
    n, learner = len(model.train_targets), model.learner
    return bool(learner.likelihood(n) == "exact" and n < learner.settings.coarse_from and not learner.robust)


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
