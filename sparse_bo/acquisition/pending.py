"""Picks by one of BoTorch's acquisition functions: the points before a pick are handed to it as ``X_pending``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from torch import Tensor

from sparse_bo.acquisition.picking import Chosen, Search
from sparse_bo.acquisition.posteriors import BatchPosterior
from sparse_bo.seeding import seeded

Acquisition: TypeAlias = AcquisitionFunction | Callable[[Model], AcquisitionFunction]

CHUNK = 2048
"""Choices evaluated at a time, as ``optimize_acqf_discrete`` does."""


def acquisition_function(acquisition: Acquisition, model: Model) -> AcquisitionFunction:
    """Return an acquisition function of ``model`` that takes pending points.

    Args:
        acquisition: The function itself, or what makes it from a model: a class, or ``lambda model: qLogEI(model, best_f)``.
        model: The model.

    Raises:
        TypeError: If it is neither, or the callable returns something else.
        UnsupportedError: If the function takes no pending points, or optimises all points of a batch at once.
    """
    if not isinstance(acquisition, AcquisitionFunction):
        if not callable(acquisition):
            raise TypeError(
                "expected acquisition to be a botorch AcquisitionFunction, or a callable that makes one from a model, got "
                f"{type(acquisition).__name__}"
            )
        made = acquisition(model)
        if not isinstance(made, AcquisitionFunction):
            raise TypeError(f"expected acquisition(model) to return an AcquisitionFunction, got {type(made).__name__}")
        acquisition = made
    name = type(acquisition).__name__
    if isinstance(acquisition, OneShotAcquisitionFunction):
        raise UnsupportedError(f"{name} optimises its fantasies together with the candidate; use optimize_acqf for it")
    try:
        acquisition.set_X_pending(getattr(acquisition, "X_pending", None))
    except UnsupportedError as error:
        raise UnsupportedError(
            f"{name} takes no X_pending, so picks of one batch cannot know of each other; use its Monte Carlo version "
            "(qLogExpectedImprovement, …), or acquisition=None for upper confidence bounds"
        ) from error
    return acquisition


class Pending:
    """Hands the points before a pick to an acquisition function, and takes them back in the end."""

    def __init__(self, function: AcquisitionFunction, X_pending: Tensor | None) -> None:
        """Hold the function and the points that were pending before the batch (``p x d``)."""
        self.function = function
        self.before = getattr(function, "X_pending", None)
        self.points = [part for part in (self.before, X_pending) if part is not None]
        self.fresh = X_pending is None

    def __enter__(self) -> Pending:
        if not self.fresh:
            self.function.set_X_pending(torch.cat(self.points))
        return self

    def __exit__(self, *_: object) -> None:
        self.function.set_X_pending(self.before)

    def add(self, X: Tensor) -> None:
        """Add a pick (``1 x d``)."""
        self.points.append(X)
        self.function.set_X_pending(torch.cat(self.points))


class AcquisitionBox:
    """The maximiser of an acquisition function over a box, by BoTorch's ``optimize_acqf`` with q = 1."""

    def __init__(self, pending: Pending, search: Search) -> None:
        """Hold the settings, which are those of ``optimize_acqf``; the generator seeds the draws of each pick."""
        self.pending, self.search = pending, search
        feasible = search.feasible
        self.settings: dict[str, Any] = {
            "num_restarts": search.num_restarts,
            "raw_samples": search.raw_samples,
            "options": dict(search.options),
            "inequality_constraints": list(feasible.inequality) or None,
            "equality_constraints": list(feasible.equality) or None,
            "fixed_features": feasible.fixed,
            "post_processing_func": search.post_processing,
        }
        if feasible.nonlinear:
            self.settings["nonlinear_inequality_constraints"] = list(feasible.nonlinear)
            self.settings["ic_generator"] = self._feasible_starts
            self.settings["options"] = {"batch_limit": 1, **search.options}

    def __call__(self, posterior: BatchPosterior) -> Chosen:
        """See :class:`~sparse_bo.acquisition.picking.Chooser`."""
        with seeded(self.search.generator), torch.enable_grad():
            X, value = optimize_acqf(self.pending.function, self.search.feasible.box.bounds, q=1, **self.settings)
        self.pending.add(X)
        return Chosen(posterior.prepare(X), value.detach())

    def _feasible_starts(self, acq_function: AcquisitionFunction, num_restarts: int, raw_samples: int, **_: Any) -> Tensor:
        """Return the best feasible samples as starts, ``num_restarts x 1 x d``: BoTorch has none for nonlinear constraints."""
        X = self.search.feasible.sample(raw_samples, generator=self.search.generator).unsqueeze(-2)
        with torch.no_grad():
            return X[acq_function(X).topk(min(num_restarts, len(X))).indices]


class AcquisitionChoices:
    """The maximiser of an acquisition function over a finite set, all of it evaluated at every pick."""

    def __init__(self, pending: Pending, choices: Tensor) -> None:
        """Hold ``n x d`` choices."""
        self.pending, self.choices = pending, choices

    def __call__(self, posterior: BatchPosterior) -> Chosen:
        """See :class:`~sparse_bo.acquisition.picking.Chooser`."""
        values = torch.cat([self.pending.function(part.unsqueeze(-2)) for part in torch.split(self.choices, CHUNK)])
        best = int(values.argmax())
        self.pending.add(self.choices[best : best + 1])
        return Chosen(posterior.prepare(self.choices[best : best + 1]), values[best])
