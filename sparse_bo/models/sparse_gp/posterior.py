"""The posterior of a sparse model at points: dense for few, lazy for many, and computed once for a shared baseline.

BoTorch evaluates the joint posterior of a baseline and of new points as ``cat([X_baseline, X], dim=-2)``, for every t-batch of
every step. The baseline's part is the same every time, so it is computed once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import DenseLinearOperator, LinearOperator
from torch import Tensor

from sparse_bo.linalg.chunking import broadcast_shapes, row_slices
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.gaussian_process import Base, Process
from sparse_bo.models.sparse_gp.prior import PriorKernel, frozen, kernel_diagonal
from sparse_bo.models.sparse_gp.representation import Projection


class DeferredCovariance(DenseLinearOperator):  # type: ignore[misc]  # the base class ships no types
    """``S C(X, X) S`` of projected points, computed when it is needed: means alone cost O(m) a point, variances O(m²).

    It holds all it depends on, so a later change of the model does not reach it. Operators that are made of it are dense.

    Args:
        projection: The points; of a matrix the constructor makes a plain operator, as linear_operator asks by the class.
        prior: ``… x q x q``: ``k(X, X)``.
        shape: ``batch_shape x q x q``.
        scale: ``… x q``: factors of the values.
        graph: Whether gradients were enabled when the points were projected.
    """

    def __new__(cls, projection: Projection | Tensor, *args: Any, **kwargs: Any) -> Any:
        """Return a plain operator of a matrix."""
        return DenseLinearOperator(projection) if isinstance(projection, Tensor) else super().__new__(cls)

    def __init__(
        self, projection: Projection, prior: Tensor, shape: torch.Size, *, scale: Tensor | None = None, graph: bool
    ) -> None:
        LinearOperator.__init__(self)
        self.projection, self.prior, self.whole_shape, self.scale, self.graph = projection, prior, shape, scale, graph

    @cached_property
    def variances(self) -> Tensor:
        """``batch_shape x q``. O(q m r)."""
        with torch.set_grad_enabled(self.graph):
            variances = self.projection.variance(self.prior.diagonal(dim1=-2, dim2=-1))
            return (variances if self.scale is None else self.scale * variances * self.scale).expand(self.whole_shape[:-1])

    @cached_property
    def tensor(self) -> Tensor:
        """The matrix, ``batch_shape x q x q``. O(q m r + q² r)."""
        if self.whole_shape[-1] == 1:
            return self.variances.unsqueeze(-1)
        with torch.set_grad_enabled(self.graph):
            covariance = self.projection.covariance(self.prior)
            if self.scale is not None:
                covariance = self.scale.unsqueeze(-1) * covariance * self.scale.unsqueeze(-2)
            return covariance.expand(self.whole_shape)

    @property
    def _args(self) -> tuple[Tensor]:
        return (self.tensor,)

    @_args.setter
    def _args(self, value: Any) -> None:
        """Ignore the assignment of the base class's constructor."""

    def _check_args(self) -> None:
        return None

    def scaled(self, factors: Tensor) -> DeferredCovariance:
        """Return the covariance of the values times ``factors`` (``… x q``)."""
        scale = factors if self.scale is None else self.scale * factors
        return DeferredCovariance(self.projection, self.prior, self.whole_shape, scale=scale, graph=self.graph)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the matrix."""
        return self.prior.dtype

    @property
    def device(self) -> torch.device:
        """Device of the matrix."""
        return self.prior.device

    def _size(self) -> torch.Size:
        return self.whole_shape

    def _diagonal(self) -> Tensor:
        return self.tensor.diagonal(dim1=-2, dim2=-1) if "tensor" in vars(self) else self.variances

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle is the matrix, without the model."""
        return DenseLinearOperator, (self.tensor.detach(),)


class Baseline:
    """The cached baseline of a posterior's lazy joint distributions; a copy or a pickle starts empty."""

    def __init__(self) -> None:
        self.base: Base | None = None
        self.kernel: PriorKernel | None = None  # the prior covariance at the time of the posterior

    def put(self, base: Base) -> None:
        """Replace the cached baseline."""
        self.base = base

    def of(self, process: Process, X: Tensor, constant: int) -> Base | None:
        """Return the baseline that ``X`` (``… x q x d``, transformed) begins with, if there is one; cache a new one.

        ``constant`` leading rows provably have no gradient.
        """
        if X.dim() < 2 or X.shape[-2] == 0 or gpytorch.settings.detach_test_caches.off():
            return None
        known, q, settings = self.base, X.shape[-2], process.settings
        if known is not None and known.rows < q and known.rows <= constant and begins_with(X, known.X):
            return known
        outside = not (torch.is_grad_enabled() and X.requires_grad)
        if q > settings.dense or (outside and (X.shape[:-2].numel() == 1 or torch.is_grad_enabled())):
            return None
        s = shared_rows(X, min(constant, q))
        if not 0 < s < q:
            return None
        rows = X.detach().reshape(-1, *X.shape[-2:])[0, :s]
        with torch.no_grad():
            base = Base(rows.clone(), process.mean(rows), process.columns(rows))
        if sum(column.numel() * column.element_size() for column in base.columns) <= settings.cached_bytes:
            self.put(base)
        return base

    def __getstate__(self) -> dict[str, Any]:
        return {"base": None, "kernel": None}


def joint_of_few(process: Process, X: Tensor) -> MultivariateNormal:
    """Return the joint distribution at few points, ``… x q x d``; its covariance is computed when it is needed."""
    projection = process.at(X)
    mean = process.prior_mean(X) + projection.mean
    prior = kernel_diagonal(process.kernel, X).unsqueeze(-1) if X.shape[-2] == 1 else process.prior(X, X)
    shape = torch.Size([*mean.shape, mean.shape[-1]])
    covariance = DeferredCovariance(projection, prior, shape, graph=torch.is_grad_enabled())
    small = projection.K.numel() * projection.K.element_size() <= process.settings.cached_bytes // 2
    return MultivariateNormal(mean, covariance if small else to_linear_operator(covariance.tensor))


def joint_of_many(process: Process, X: Tensor, baseline: Baseline, base: Base | None = None) -> MultivariateNormal:
    """Return the lazy joint distribution at ``… x q x d`` points, the first of which are those of ``base``."""
    if baseline.kernel is None:
        with torch.enable_grad():  # nodes of the graph, so that gradients reach the parameters
            baseline.kernel = frozen(process.kernel, torch.clone)
    process = replace(process, kernel=baseline.kernel)
    start = 0 if base is None else base.rows
    slices = row_slices(X.shape[-2] - start, chunk=process.settings.chunk)
    means = [process.mean(X[..., start + rows.start : start + rows.stop, :]) for rows in slices]
    batch_shape = broadcast_shapes(X.shape[:-2], *(mean.shape[:-1] for mean in means))
    means = means if base is None else [base.mean, *means]
    mean = torch.cat([part.expand(*batch_shape, part.shape[-1]) for part in means], dim=-1)
    graph = torch.is_grad_enabled() and (X.requires_grad or gpytorch.settings.detach_test_caches.off())
    return MultivariateNormal(mean, JointCovariance(X, process=process, mean=mean, base=base, graph=graph, keep=baseline.put))


def constant_rows(X: Tensor) -> int:
    """Return how many leading rows of ``X`` (``… x q x d``) provably receive no gradient. O(1).

    All of them if ``X`` is outside the graph; the rows before the first input in the graph if ``torch.cat`` made it; else none.
    """
    q = X.shape[-2]
    if not (torch.is_grad_enabled() and X.requires_grad):
        return q
    node: Any = X.grad_fn
    if node is None or node.name() != "CatBackward0" or X.dim() < 2:
        return 0
    # The node's derivative cuts this gradient into views, one per input. Row i of it is the number i, stored at offset i.
    rows = torch.arange(q, dtype=X.dtype, device=X.device).unsqueeze(-1).expand(X.shape)
    parts = zip(node.next_functions, node(rows), strict=True)
    return min((int(part.storage_offset()) for (parent, _), part in parts if parent is not None), default=0)


def begins_with(X: Tensor, rows: Tensor) -> bool:
    """Return whether every element of ``X`` (``… x q x d``) begins with ``rows`` (``s x d``). O(size of the comparison)."""
    s = rows.shape[-2]
    if X.shape[-2] < s or X.shape[-1] != rows.shape[-1] or X.dtype != rows.dtype or X.device != rows.device:
        return False
    return bool((X.detach()[..., :s, :] == rows).all())


def shared_rows(X: Tensor, limit: int) -> int:
    """Return how many leading rows, at most ``limit``, all elements of the batch ``X`` (``… x q x d``) have in common."""
    flat = X.detach().reshape(-1, *X.shape[-2:])[:, :limit]
    if len(flat) == 1 or limit < 1:
        return max(min(limit, X.shape[-2]), 0)
    if X.device.type != "cpu":  # a wait costs more there than the comparison of all
        return int((flat == flat[:1]).all(dim=-1).all(dim=0).long().cumprod(dim=0).sum())
    differs = (flat[0] != flat[-1]).any(dim=-1).nonzero()  # most pairs differ where all do
    s = int(differs[0]) if len(differs) else flat.shape[-2]
    missed = (~(flat[:, :s] == flat[:1, :s]).all(dim=-1).all(dim=0)).nonzero()
    return int(missed[0]) if len(missed) else s
