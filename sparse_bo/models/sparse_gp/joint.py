"""The posterior of a SparseGP: dense for few points, lazy for many, and computed once where a whole batch begins alike."""

from __future__ import annotations

from typing import Any

import gpytorch
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.utils import gpt_posterior_settings
from botorch.models.utils.assorted import add_output_dim
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from sparse_bo.linalg.chunking import row_slices
from sparse_bo.linalg.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp import covariance
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.deferred import HELD_BYTES, DeferredCovariance, PointCovariance
from sparse_bo.models.sparse_gp.fantasies import copy_with
from sparse_bo.models.sparse_gp.leading import begins_with, constant_rows, shared_rows
from sparse_bo.models.sparse_gp.outcomes import lazy_posterior, transformed, untransformed
from sparse_bo.models.sparse_gp.prior import ForwardKernel
from sparse_bo.models.sparse_gp.process import CHUNK, Base, Process
from sparse_bo.models.sparse_gp.representation import PriorKernel, kernel_diagonal, kernel_matrix
from sparse_bo.models.sparse_gp.state import check_width

KEPT_BYTES = 2**28
"""The columns of shared rows are kept for the next call if they take no more."""


class JointPosterior:
    """``__call__`` and ``posterior`` of a SparseGP."""

    def __call__(self: Any, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the DTC posterior at ``X`` (``… x q x d``, transformed) in evaluation mode; else as ``SingleTaskGP``."""
        if self.training or self._without_posterior():
            return super().__call__(*args, **kwargs)  # type: ignore[misc]  # of the model this is mixed into
        (X,) = args
        X = X.unsqueeze(-1) if X.dim() == 1 else X
        check_width(X, self._stored_inputs)
        representation = self._cache().representation
        broadcast_shapes(X.shape[:-2], representation.batch_shape)  # raises what SingleTaskGP raises
        if X.shape[-2] > covariance.LARGE_Q:
            return self._joint(X, None)
        projection = representation.project(self.prior_kernel, X)
        mean = self.prior_mean(X) + projection.mean
        if X.shape[-2] == 1:
            prior = kernel_diagonal(self.prior_kernel, X).unsqueeze(-1)
        else:
            prior = kernel_matrix(self.prior_kernel, X, X)
        shape = torch.Size([*mean.shape, mean.shape[-1]])
        source = PointCovariance(projection, prior, shape, graph=torch.is_grad_enabled())
        held = projection.K.numel() * projection.K.element_size() <= HELD_BYTES
        return MultivariateNormal(mean, DeferredCovariance(source) if held else to_linear_operator(source.dense))

    def posterior(
        self: Any,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return the posterior over the outputs at ``X``, as :class:`~botorch.models.SingleTaskGP` does. O(q m r).

        Rows that all elements of a batch begin with, and that no gradient can reach (BoTorch's baselines), are computed once.

        Args:
            X: ``batch_shape x q x d``. Beyond :data:`~sparse_bo.models.sparse_gp.covariance.LARGE_Q` points the covariance is
                lazy, and its root the one of :mod:`sparse_bo.models.sparse_gp.factor`.
            output_indices: Outputs to compute, all by default.
            observation_noise: Whether to add the likelihood's noise, or ``batch_shape x q x m`` noise variances.
            posterior_transform: What is applied to the posterior at the end.
        """
        self.eval()
        if X.dim() < 2 or self._without_posterior():
            return super().posterior(X, output_indices, observation_noise, posterior_transform)  # type: ignore[misc]
        inputs = self.transform_inputs(X)
        with gpt_posterior_settings():
            base = self._base(inputs, constant_rows(X) * (inputs.shape[-2] // max(X.shape[-2], 1)))
            outputs, few = self._num_outputs, base is None and inputs.shape[-2] <= covariance.LARGE_Q
            if few and (outputs > 1 or not isinstance(self, BatchedMultiOutputGPyTorchModel)):
                return super().posterior(X, output_indices, observation_noise, posterior_transform)  # type: ignore[misc]
            points = inputs if outputs == 1 else add_output_dim(inputs, self._input_batch_shape)[0]
            mvn = self(points) if few else self._joint(points, base)
            mvn = self._apply_noise(X=points, mvn=mvn, observation_noise=observation_noise)
        posterior = lazy_posterior(mvn, outputs=None if outputs == 1 else output_indices or list(range(outputs)))
        posterior = untransformed(posterior, getattr(self, "outcome_transform", None), X=inputs)
        return posterior if posterior_transform is None else transformed(posterior, posterior_transform, X=inputs)

    def _without_posterior(self: Any) -> bool:
        untrained = self._stored_inputs is None or self._stored_targets is None
        return bool(gpytorch.settings.prior_mode.on() or untrained)

    def _joint(self: Any, X: Tensor, base: Base | None) -> MultivariateNormal:
        """Return the lazy posterior at ``X`` (``… x q x d``, transformed, with output dimension) that begins with ``base``."""
        cache = self._cache()
        if cache.kept.kernel is None:
            cache.kept.kernel = _as_it_is(self)
        process = Process(cache.kept.kernel, cache.representation)
        start = 0 if base is None else base.rows
        means = [self._mean_at(X[..., start + rows.start : start + rows.stop, :]) for rows in _chunks(X.shape[-2] - start)]
        batch_shape = broadcast_shapes(X.shape[:-2], *(mean.shape[:-1] for mean in means))
        if base is not None:
            means = [base.mean, *means]
        mean = torch.cat([part.expand(*batch_shape, part.shape[-1]) for part in means], dim=-1)
        through = X.requires_grad or gpytorch.settings.detach_test_caches.off()
        graph = torch.is_grad_enabled() and through
        options = {"base": base, "graph": graph, "keep": cache.kept.put}
        return MultivariateNormal(mean, JointCovariance(X, process=process, mean=mean, **options))

    def _mean_at(self: Any, X: Tensor) -> Tensor:
        mean: Tensor = self.prior_mean(X) + self._cache().representation.project(self.prior_kernel, X).mean
        return mean

    def _base(self: Any, X: Tensor, constant: int) -> Base | None:
        """Return the rows that ``X`` (``… x q x d``, transformed) begins with and that need not be computed again, if any."""
        if X.dim() < 2 or X.shape[-2] == 0 or gpytorch.settings.detach_test_caches.off():
            return None
        kept, q = self._cache().kept, X.shape[-2]
        known: Base | None = kept.base
        if known is not None and known.rows < q and known.rows <= constant and begins_with(X, known.X):
            return known
        batch = X.shape[:-2].numel()
        outside = not (torch.is_grad_enabled() and X.requires_grad)
        if q > covariance.LARGE_Q or (outside and (batch == 1 or torch.is_grad_enabled())):
            return None
        s = shared_rows(X, min(constant, q))
        if not 0 < s < q:
            return None
        base = self._new_base(X.detach().reshape(-1, *X.shape[-2:])[0, :s])
        if sum(column.numel() * column.element_size() for column in base.columns) <= KEPT_BYTES:
            kept.put(base)
        return base

    def _new_base(self: Any, X: Tensor) -> Base:
        with torch.no_grad():
            columns = self._cache().representation.project(self.prior_kernel, X).columns
            return Base(X.clone(), self._mean_at(X), columns)


def _as_it_is(model: Any) -> PriorKernel:
    """Return a copy of a model's prior covariance, which a lazy posterior may read when the model has other parameters.

    The copy's parameters are nodes of the graph, so that gradients reach the model's.
    """
    with torch.enable_grad():
        values = [(parameter, parameter.clone()) for parameter in model.parameters()]
    kernel = model.prior_kernel
    if not isinstance(kernel, ForwardKernel):
        return copy_with(kernel, values)
    data = (model._stored_inputs, model._stored_targets, model.__dict__.get("_stored_originals"), model.likelihood)
    shared = [(part, part) for part in data]
    return ForwardKernel(copy_with(model, [*values, *shared, (model.prediction_strategy, None)]), like=kernel.like)


def _chunks(rows: int) -> list[slice]:
    return list(row_slices(rows, chunk=CHUNK)) if rows else []
