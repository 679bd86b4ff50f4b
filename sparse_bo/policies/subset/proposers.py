"""Proposers: the next points on a box as maximisers of an acquisition function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from botorch.acquisition import AcquisitionFunction, qUpperConfidenceBound
from botorch.exceptions.errors import UnsupportedError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from torch import Tensor

from sparse_bo.policies.subset.upper_confidence import upper_confidence_bound

Acquisition = Callable[[Any, Tensor, Tensor], AcquisitionFunction]
"""From a fitted model, its inputs in the unit cube (``n x d``) and observations (``n``) to an acquisition function there."""


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model of the unit cube with its data."""

    model: Model
    X: Tensor
    """``n x d`` all inputs, in the unit cube."""
    y: Tensor
    """``n`` observations."""
    known: Tensor
    """Rows that the model is conditioned on, ascending."""
    width: float
    """Posterior standard deviations in the default acquisition function."""

    @property
    def bounds(self) -> Tensor:
        """``2 x d`` corners of the unit cube."""
        return torch.stack([torch.zeros_like(self.X[0]), torch.ones_like(self.X[0])])


class Proposer(Protocol):
    """Proposes points."""

    def __call__(self, fitted: Fitted, q: int, *, pending: Tensor) -> Tensor:
        """Return ``q x d`` points of the unit cube, to rounding; BoTorch draws from the global generators.

        Args:
            fitted: The model and its data.
            q: Number of points, at least 1.
            pending: ``p x d`` pending points, in the unit cube.
        """
        ...


@dataclass(frozen=True)
class Restarts:
    """Settings of BoTorch's ``optimize_acqf``.

    Attributes:
        num_restarts: Number of gradient ascents.
        raw_samples: Candidates for their starts.
        jumps: Whether the function is discontinuous: warnings of failed line searches are then suppressed.
    """

    num_restarts: int
    raw_samples: int
    jumps: bool = False

    def maximise(self, function: AcquisitionFunction, bounds: Tensor, *, q: int = 1) -> Tensor:
        """Return ``q x d`` points within ``bounds`` (``2 x d``), chosen one after the other."""
        with _without_line_search_warnings() if self.jumps else nullcontext():
            best: Tensor = optimize_acqf(
                function,
                bounds=bounds,
                q=q,
                num_restarts=self.num_restarts,
                raw_samples=self.raw_samples,
                sequential=q > 1,
            )[0]
        return best


@contextmanager
def _without_line_search_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Optimization failed", category=RuntimeWarning)
        warnings.filterwarnings("ignore", category=OptimizationWarning)
        yield


@dataclass(frozen=True, eq=False)
class MaximiseAcquisition:
    """Maximisers of an acquisition function, one after the other.

    Attributes:
        search: Settings of its maximisation.
        acquisition: Makes the function. ``None``: ``UpperConfidenceBound``, or ``qUpperConfidenceBound`` with
            pending points, with the fitted model's width; BoTorch's ``beta`` is its square.
    """

    search: Restarts
    acquisition: Acquisition | None = None

    def __call__(self, fitted: Fitted, q: int, *, pending: Tensor) -> Tensor:
        """See :class:`Proposer`.

        Raises:
            TypeError: If ``acquisition`` does not return an acquisition function.
            ValueError: If it does not support pending points, and there are some.
        """
        function = self._function(fitted, alone=q == 1 and not len(pending))
        if len(pending):
            try:
                function.set_X_pending(pending)
            except UnsupportedError as error:
                raise ValueError(
                    f"expected an acquisition function with pending points, got {type(function).__name__}; "
                    "use a Monte-Carlo one, or batch_size=1"
                ) from error
        return self.search.maximise(function, fitted.bounds, q=q)

    def _function(self, fitted: Fitted, *, alone: bool) -> AcquisitionFunction:
        if self.acquisition is None:
            if alone:
                return upper_confidence_bound(fitted.model, width=fitted.width)
            return qUpperConfidenceBound(fitted.model, beta=fitted.width**2)
        function = self.acquisition(fitted.model, fitted.X[fitted.known], fitted.y[fitted.known])
        if not isinstance(function, AcquisitionFunction):
            raise TypeError(f"expected acquisition to return an AcquisitionFunction, got {type(function).__name__}")
        return function
