"""The posterior of a sparse model at points, dense for few, lazy for many, computed once for a shared baseline; and its paths.

BoTorch evaluates the joint posterior of a baseline and of new points as ``cat([X_baseline, X], dim=-2)``, for every t-batch of
every step. The baseline's part is the same every time, so it is computed once.

Paths are drawn by Matheron's rule at the dictionary. With ``(D, α, R)`` as in :mod:`sparse_bo.models.sparse_gp.representation`,
``f`` a prior path, and ``K = k(D, D)``:

    f(·) + k(·, D) [α − R (Rᵀ (f − μ₀)(D) + ζ)],      ζ ~ N(0, I − RᵀKR)

has mean ``μ₀ + k(·, D)ᵀα`` and covariance ``k − k_Dᵀ R Rᵀ k_D``: exactly the posterior's, up to the random features of ``f``
(Wilson et al. 2020, with the pseudo-data of the dictionary in place of the data). O(m + features) per point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import gpytorch
import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.features import KernelEvaluationMap
from botorch.sampling.pathwise.paths import GeneralizedLinearPath
from botorch.sampling.pathwise.posterior_samplers import MatheronPath
from botorch.sampling.pathwise.update_strategies import gaussian_update
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.context_managers import delattr_ctx
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from linear_operator.operators import DenseLinearOperator, LinearOperator
from torch import Tensor

from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.linalg.chunking import broadcast_shapes, row_slices
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.gaussian_process import Base, Process
from sparse_bo.models.sparse_gp.prior import (
    ForwardKernel,
    PriorKernel,
    cross_covariance,
    frozen,
    kernel_diagonal,
    kernel_matrix,
)
from sparse_bo.models.sparse_gp.representation import Projection, Representation
from sparse_bo.models.sparse_gp.triangular import PosteriorAtDictionary


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
        if X.dim() < 2 or 0 in X.shape[:-1] or gpytorch.settings.detach_test_caches.off():
            return None
        if torch.is_grad_enabled() and process.posterior.in_graph:
            return None
        known, q, settings, elements = self.base, X.shape[-2], process.settings, X.shape[:-2].numel()
        outside, s = not (torch.is_grad_enabled() and X.requires_grad), shared_rows(X, min(constant, q))
        if known is not None and not (known.rows < q and known.rows <= constant and begins_with(X, known.X)):
            known = None
        if q > settings.dense or (outside and (elements == 1 or torch.is_grad_enabled())) or not 0 < s < q:
            return known
        if known is not None and elements * (s - known.rows) <= s:  # not more rows than those of a new one
            return known
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
    graph = X.requires_grad or process.posterior.in_graph or gpytorch.settings.detach_test_caches.off()
    graph = torch.is_grad_enabled() and graph
    covariance = JointCovariance(X, process=process, mean=mean, base=base, graph=graph, keep=baseline.put)
    return MultivariateNormal(mean, covariance if torch.is_grad_enabled() else covariance.detach())  # it is computed later


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
    return int((flat == flat[:1]).all(dim=-1).all(dim=0).long().cumprod(dim=0).sum())


class DictionaryMap(KernelEvaluationMap):  # type: ignore[misc]  # the base class ships no types
    """``k(x, D)``, from one matrix however points are batched: GPyTorch would hold ``D`` for every element."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``… x q x m`` of ``… x q x d``."""
        return cross_covariance(self.kernel, x.to(torch.promote_types(x.dtype, self.points.dtype)), self.points)


class DictionaryPath(GeneralizedLinearPath):  # type: ignore[misc]  # the base class ships no types
    """``k(x, D) weight``, without copying the weights for every batch element of the points."""

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Return ``… x q`` of ``… x q x d``."""
        return torch.einsum("...qm,...m->...q", self.feature_map(x, **kwargs), self.weight)


Spread: TypeAlias = Callable[[Tensor], Tensor]
"""From independent standard normal numbers, ``… x r``, to ``ζ``."""


def matheron_weights(representation: Representation, spread: Spread, prior_values: Tensor) -> Tensor:
    """Return ``α − R (Rᵀ f + ζ)``, ``sample_shape x batch_shape x m``, from values ``f`` of prior paths of mean zero at ``D``.

    Draws from torch's CPU generator, as BoTorch's prior paths do: one seed gives the same paths on every device. O(m²) each.
    """
    R = representation.root.matrix
    projected = torch.einsum("...m,...mr->...r", prior_values, R)  # sample_shape x batch_shape x r
    normal = torch.randn(projected.shape, dtype=R.dtype, device="cpu").to(R.device)
    return representation.alpha - _times(R, projected + spread(normal))


def exact_spread(representation: Representation, noise: Tensor) -> Spread:
    """Return ``ζ = Rᵀ N^½ ξ`` of an exact posterior with ``batch_shape x m`` noise variances. O(m²).

    There ``R = L⁻ᵀ`` with ``L Lᵀ = K + N``, so ``I − RᵀKR = RᵀNR``.
    """
    return lambda normal: _times(representation.root.matrix.mT, noise.clamp_min(0.0).sqrt() * normal)


def spread_at_dictionary(representation: Representation, posterior: PosteriorAtDictionary) -> Spread:
    """Return ``ζ = ξ − Rᵀ (K R ξ + c)`` with ``c`` a draw of the posterior at the dictionary less its mean. O(m²).

    ``c ~ N(0, K − K R Rᵀ K)`` independent of ``ξ``, so with ``M = RᵀKR`` the covariance is ``(I − M)² + M (I − M) = I − M``.
    Draws from torch's CPU generator.
    """
    R = representation.root.matrix

    def spread(normal: Tensor) -> Tensor:
        further = torch.randn(normal.shape, dtype=R.dtype, device="cpu").to(R.device)
        several = normal.shape[: normal.dim() + 1 - R.dim()].numel()
        first, second = (part.reshape(several, *R.shape[:-1]).movedim(0, -1) for part in (normal, further))
        values = posterior.prior(R @ first) + posterior.sample(second)  # batch_shape x m x several
        return normal - (R.mT @ values).movedim(-1, 0).reshape(normal.shape)

    return spread


def sparse_spread(representation: Representation, K: Callable[[], Tensor]) -> Spread:
    """Return ``ζ`` of a conditioned or grown posterior by the Cholesky factor of ``I − RᵀKR``; ``K()`` makes ``k(D, D)``.

    O(m³) the first time for a posterior, then O(m²).
    """
    R = representation.root.matrix

    def made() -> Tensor:
        remainder = -(R.mT @ (K() @ R))
        remainder.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return safe_cholesky(remainder)

    if R.requires_grad:
        factor = made()
    else:  # as constant as α and R are
        with torch.no_grad():
            factor = representation.root.once("spread", made)
    return lambda normal: _times(factor, normal)


def _times(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Return ``matrix @ vector`` of ``batch_shape x m x r`` and ``… x r``, without copying matrices for vectors."""
    return torch.einsum("...mr,...r->...m", matrix, vectors)


def draw_matheron_path(
    model: Any, *, sample_shape: torch.Size, prior_sampler: Callable[..., Any], update_strategy: Callable[..., Any]
) -> MatheronPath:
    """Draw paths of a sparse model's posterior; registered with BoTorch's ``draw_matheron_paths``.

    Their standard deviations are as far off as with BoTorch's random features: mostly less than 10 % with the Gaussian kernel,
    up to a factor of 2 with Matérn kernels. ``posterior(X).rsample`` has those of the posterior.

    ``UnsupportedError`` for an ``update_strategy`` that is not BoTorch's default (the update is the dictionary's), or if the
    prior is that of a ``forward`` that is more than ``mean_module`` and ``covar_module``.
    """
    if update_strategy is not gaussian_update:
        raise UnsupportedError("SparseGP has its own pathwise update over the dictionary; leave update_strategy at its default")
    model.eval()
    if isinstance(model.prior_kernel, ForwardKernel):
        raise UnsupportedError(
            f"random features stand for a kernel, and the prior of {type(model).__name__} is that of its forward; "
            "sample from model.posterior(X) instead of paths"
        )
    kernel, cache = model.covar_module, model.cache()
    form: Representation = cache.representation.full(kernel)
    with delattr_ctx(model, "outcome_transform"):
        prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    prior_values = prior_paths.forward(form.points) - model.mean_module(form.points)
    if cache.representation.extension is None and cache.holds_all(model.train_targets.shape[-1]):
        spread = exact_spread(form, model.data_noise(model.train_inputs[0], model.train_targets.shape).detach())
    elif form.at_dictionary is not None:
        spread = spread_at_dictionary(form, form.at_dictionary)
    else:
        spread = sparse_spread(form, lambda: kernel_matrix(kernel, form.points, form.points))
    weight = matheron_weights(form, spread, prior_values)
    feature_map = DictionaryMap(kernel=kernel, points=form.points, input_transform=get_input_transform(model))
    update_paths = DictionaryPath(feature_map=feature_map, weight=weight)
    return MatheronPath(prior_paths=prior_paths, update_paths=update_paths, output_transform=get_output_transform(model))
