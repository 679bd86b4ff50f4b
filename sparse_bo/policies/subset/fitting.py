"""The fit of a round's model: its observations, function and start."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from botorch.exceptions.errors import ModelFittingError
from botorch.fit import fit_gpytorch_mll
from botorch.models.model import Model
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.models import fit_to_rows
from sparse_bo.models.exact_likelihood import exact_loss
from sparse_bo.models.sparse_gp.state import parameters_of, same_parameters, set_parameters
from sparse_bo.policies.subset.surrogate_models import MakeModel

Fitter = Callable[[Any], Any]
"""Fits a model in place."""
ConditionOn = Literal["subset", "all"]
"""Observations of the posterior: the subset of the hyper-parameters, or all."""


def fit_likelihood(model: Any, *, tolerance: float | None = None) -> None:
    """Fit a GP by its exact marginal likelihood and priors (``fit_gpytorch_mll``), in closed form if possible.

    Args:
        model: A GP with ``likelihood``; fitted in place.
        tolerance: Stop when a step improves the likelihood per observation by less than this share. Default: BoTorch's.
    """
    options = {} if tolerance is None else {"options": {"ftol": tolerance}}
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    fit_gpytorch_mll(mll, closure=exact_loss(mll), optimizer_kwargs=options)


@dataclass(frozen=True, eq=False)
class ModelFit:
    """The construction and fit of a round's model, in the unit cube.

    Attributes:
        make: Makes an unfitted model.
        fitter: Fits it in place. ``None``: :func:`fit_likelihood`, with tolerance 1e-7 after a warm start
            (decision 170).
        warm_start: Whether a fit starts from the parameters of the last model.
        condition_on: Observations of the posterior: the subset of the fit, or all. With ``"all"`` the subset proposes
            hyper-parameters and the likelihood of all observations accepts them (:func:`sparse_bo.models.fit_to_rows`).
    """

    make: MakeModel
    fitter: Fitter | None = None
    warm_start: bool = True
    condition_on: ConditionOn = "subset"

    def known(self, subset: Tensor, n: int) -> Tensor:
        """Return the rows, of n, that a model fitted to ``subset`` is conditioned on, ascending."""
        return subset if self.condition_on == "subset" else torch.arange(n, device=subset.device)

    def unfitted(self, X: Tensor, y: Tensor) -> Model:
        """Return a new model of all rows of ``X`` (``n x d``) and ``y`` (``n``).

        Raises:
            TypeError: If ``make`` does not return a BoTorch model.
        """
        model = self.make(X, y.unsqueeze(-1))
        if not isinstance(model, Model):
            raise TypeError(f"expected surrogate to return a BoTorch model, got {type(model).__name__}")
        return model

    def fitted(self, X: Tensor, y: Tensor, subset: Tensor, *, previous: Model | None) -> Model:
        """Return the next model, in evaluation mode; BoTorch may draw from the global generators.

        Args:
            X: ``n x d`` all inputs.
            y: ``n`` observations.
            subset: Rows to fit it to.
            previous: The last model; ignored if its parameters differ in name or shape.
        """
        known = self.known(subset, len(y))
        model = self.unfitted(X[known], y[known])
        if previous is not None and not same_parameters(previous, model):
            previous = None
        warm = self.warm_start and previous is not None
        if previous is not None and warm:
            set_parameters(model, parameters_of(previous))
        if len(known) == len(subset):
            self._learn(model, warm=warm)
            model.eval()
        else:
            fit_to_rows(model, subset, fitter=partial(self._learn, warm=warm), previous=previous)
        return model

    def _learn(self, model: Any, *, warm: bool) -> None:
        """Fit a model in place; warn if the fit fails."""
        try:
            if self.fitter is None:
                fit_likelihood(model, tolerance=1e-7 if warm else None)
            else:
                self.fitter(model)
        except ModelFittingError as error:
            warnings.warn(
                f"hyper-parameters could not be learned from {len(model.train_targets)} observations ({error}); "
                "the model keeps its initial ones",
                NumericalWarning,
                stacklevel=2,
            )
