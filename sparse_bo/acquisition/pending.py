"""Picks by one of BoTorch's acquisition functions: the points before a pick are handed to it as ``X_pending``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction, OneShotAcquisitionFunction, qLogNoisyExpectedImprovement
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from torch import Tensor

from sparse_bo.acquisition.picking import Chosen, Search
from sparse_bo.acquisition.posteriors import BatchPosterior
from sparse_bo.linalg.largest import largest
from sparse_bo.seeding import seeded

CHUNK = 2048
"""Choices evaluated at a time, as ``optimize_acqf_discrete`` does."""


def check_acquisition(acq_function: Any, model: Model) -> AcquisitionFunction:
    """Return an acquisition function after checking that it belongs to ``model`` and takes pending points.

    Args:
        acq_function: What the user passed as acquisition function.
        model: The model that the batch is chosen with.

    Raises:
        TypeError: If it is not an instance of an acquisition function.
        UnsupportedError: If the function takes no pending points, or optimises all points of a batch at once.
        ValueError: If the function was built on another model.
    """
    if not isinstance(acq_function, AcquisitionFunction):
        made, got = "qLogExpectedImprovement(model, best_f=…)", type(acq_function).__name__
        if isinstance(acq_function, type):
            got = f"the class {acq_function.__name__}"
        raise TypeError(f"expected acq_function to be an acquisition function of BoTorch, got {got}; pass an instance: {made}")
    name = type(acq_function).__name__
    if isinstance(acq_function, OneShotAcquisitionFunction):
        raise UnsupportedError(f"{name} optimises its fantasies together with the candidate; use optimize_acqf for it")
    with unchanged(acq_function):
        try:
            acq_function.set_X_pending(None)
        except UnsupportedError as error:
            raise UnsupportedError(
                f"{name} takes no X_pending, so picks of one batch cannot know of each other; use its Monte Carlo version "
                "(qLogExpectedImprovement, …), or acq_function=None for upper confidence bounds"
            ) from error
        # Only without pending points: functions that fantasise have a model of their own with them.
        built_on = getattr(acq_function, "model", model)
    if built_on is not model:
        raise ValueError(
            f"expected acq_function to be built on the model that is passed, got a {name} of another "
            f"{type(built_on).__name__}; build it anew on this model"
        )
    return acq_function


@contextmanager
def unchanged(function: AcquisitionFunction) -> Iterator[None]:
    """Restore an acquisition function after the block: its own state and its sampler's, but not its models'."""
    of_models = {part for model in function.modules() if isinstance(model, Model) for part in model.modules()}
    parts = [part for part in function.modules() if part not in of_models]
    before = [_attributes(part) for part in parts]
    try:
        yield
    finally:
        for part, attributes in zip(parts, before, strict=True):
            vars(part).clear()
            vars(part).update(attributes)


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Return a module's attributes, with copies of the dictionaries in which it keeps tensors and submodules."""
    own = ("_buffers", "_modules", "_parameters")
    return {name: value.copy() if name in own else value for name, value in vars(module).items()}


def own_pending(function: AcquisitionFunction) -> Tensor | None:
    """Return the points (``p x d``) that were pending for a function when it was made, or ``None``."""
    if isinstance(function, qLogNoisyExpectedImprovement) and function.incremental:
        # They are part of its baseline, behind the evaluated points, and X_pending is empty.
        points = function.X_baseline[..., function._X_baseline.shape[-2] :, :]
        return points if points.shape[-2] else None
    return getattr(function, "X_pending", None)


class Pending:
    """Hands the points before a pick to an acquisition function. Lives only inside one batch (:func:`unchanged`)."""

    def __init__(self, function: AcquisitionFunction, X_pending: Tensor | None) -> None:
        """Hand over the points that were pending before the batch, the function's own and ``p x d`` more."""
        self.function = function
        self.points = [part for part in (own_pending(function), X_pending) if part is not None]
        if X_pending is not None:
            function.set_X_pending(torch.cat(self.points))

    def add(self, X: Tensor) -> None:
        """Add a pick (``1 x d``)."""
        self.points.append(X)
        self.function.set_X_pending(torch.cat(self.points))


class AcquisitionBox:
    """The maximiser of an acquisition function over a box, by BoTorch's ``optimize_acqf`` with q = 1."""

    def __init__(self, pending: Pending, search: Search) -> None:
        """Store the settings of ``optimize_acqf``; the generator seeds the draws of each pick."""
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
        bounds = self.search.feasible.box.bounds
        with seeded(self.search.generator, device=bounds.device), torch.enable_grad():
            X, value = optimize_acqf(self.pending.function, bounds, q=1, **self.settings)
        self.pending.add(X)
        return Chosen(posterior.prepare(X), value.detach())

    def _feasible_starts(self, acq_function: AcquisitionFunction, num_restarts: int, raw_samples: int, **_: Any) -> Tensor:
        """Return the best feasible samples as starts, ``num_restarts x 1 x d``: BoTorch has none for nonlinear constraints."""
        X = self.search.feasible.sample(raw_samples, generator=self.search.generator).unsqueeze(-2)
        with torch.no_grad():
            return X[largest(acq_function(X), min(num_restarts, len(X)))]


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
