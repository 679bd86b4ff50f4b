"""The covariance of few points, made when something asks for it: means alone cost O(m) a point, variances O(m²)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from linear_operator.operators import DenseLinearOperator
from torch import Tensor

from sparse_bo.models.sparse_gp.representation import Projection

HELD_BYTES = 2**27
"""Covariances of points and dictionary are held for that if they take no more: 4,096 points with as many in the dictionary."""


@dataclass(frozen=True, eq=False)
class PointCovariance:
    """``S C(X, X) S`` of projected points; holds all it depends on, so that it is that of now whenever it is made."""

    projection: Projection
    prior: Tensor
    """``… x q x q``: ``k(X, X)``."""
    shape: torch.Size
    """``batch_shape x q x q``."""
    graph: bool
    """Whether gradients were enabled when the points were projected."""
    scale: Tensor | None = None
    """``… x q``: factors of the values."""

    def scaled(self, factors: Tensor) -> PointCovariance:
        """Return the covariance of the values times ``factors`` (``… x q``)."""
        return replace(self, scale=factors if self.scale is None else self.scale * factors)

    @cached_property
    def diagonal(self) -> Tensor:
        """``batch_shape x q``: the variances. O(q m r)."""
        with torch.set_grad_enabled(self.graph):
            variances = self.projection.variance(self.prior.diagonal(dim1=-2, dim2=-1))
            return (variances if self.scale is None else self.scale * variances * self.scale).expand(self.shape[:-1])

    @cached_property
    def dense(self) -> Tensor:
        """``batch_shape x q x q``. O(q m r + q² r)."""
        if self.shape[-1] == 1:
            return self.diagonal.unsqueeze(-1)
        with torch.set_grad_enabled(self.graph):
            covariance = self.projection.covariance(self.prior)
            if self.scale is not None:
                covariance = self.scale.unsqueeze(-1) * covariance * self.scale.unsqueeze(-2)
            return covariance.expand(self.shape)


class DeferredCovariance(DenseLinearOperator):  # type: ignore[misc]  # the base class ships no types
    """A dense operator whose matrix is made when something other than its shape or its diagonal is asked for."""

    def __init__(self, source: Tensor | PointCovariance) -> None:
        """Hold the points; nothing is computed.

        Args:
            source: What the matrix is made of, or the matrix.
        """
        self.source = source
        super().__init__(source)

    @property
    def tensor(self) -> Tensor:
        """The matrix, ``batch_shape x q x q``."""
        return self.source.dense if isinstance(self.source, PointCovariance) else self.source

    @tensor.setter
    def tensor(self, value: Any) -> None:
        """Take what the base class's constructor sets: the source."""

    @property
    def _args(self) -> tuple[Tensor]:
        return (self.tensor,)

    @_args.setter
    def _args(self, value: Any) -> None:
        """Take what the base class's constructor sets: the source."""

    def _check_args(self, source: Any) -> str | None:
        return None if isinstance(source, PointCovariance) else super()._check_args(source)

    def scaled(self, factors: Tensor) -> DeferredCovariance:
        """Return the covariance of the values times ``factors`` (``… x q``)."""
        if isinstance(self.source, PointCovariance):
            return DeferredCovariance(self.source.scaled(factors))
        return DeferredCovariance(factors.unsqueeze(-1) * self.source * factors.unsqueeze(-2))

    @property
    def dtype(self) -> torch.dtype:
        """Of the matrix."""
        return self._known.dtype

    @property
    def device(self) -> torch.device:
        """Of the matrix."""
        return self._known.device

    @property
    def _known(self) -> Tensor:
        return self.source.projection.K if isinstance(self.source, PointCovariance) else self.source

    def _size(self) -> torch.Size:
        return self.source.shape

    def _diagonal(self) -> Tensor:
        if isinstance(self.source, PointCovariance) and "dense" not in vars(self.source):
            return self.source.diagonal
        return self.tensor.diagonal(dim1=-2, dim2=-1)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle is the matrix, without the model."""
        return DenseLinearOperator, (self.tensor.detach(),)
