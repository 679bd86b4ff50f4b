"""Joint posteriors of several outputs in the user's units, without a dense matrix.

BoTorch would put the covariance into products with diagonal matrices, sums and concatenations, which have no root of many
points. Here transforms and weighted sums are applied inside the covariance, and roots stay side by side. BoTorch applies
nonlinear transforms, to samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform, Standardize
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, LinearOperator
from torch import Tensor

from sparse_bo.linalg.chunking import broadcast_shapes
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.gaussian_process import Process, SumOfProcesses, Term, total
from sparse_bo.models.sparse_gp.joint_root import LowerRoot, RootedCovariance
from sparse_bo.models.sparse_gp.posterior import DeferredCovariance
from sparse_bo.models.sparse_gp.state import PosteriorCache, Stamp, joined


class IndependentOutputs(RootedCovariance, BlockDiagLinearOperator):  # type: ignore[misc]  # the base class ships no types
    """The covariance of several independent outputs: a block-diagonal operator of a :class:`RootedCovariance`."""

    @property
    def is_lazy(self) -> bool:  # type: ignore[override]  # as the blocks
        """Whether the blocks are lazy."""
        return bool(self.base_linear_op.is_lazy)

    def lower(self) -> LinearOperator:
        """Return the outputs' roots side by side."""
        return _OutputRoots(self.base_linear_op.lower())

    def dense(self) -> LinearOperator:
        """Return the dense blocks."""
        return BlockDiagLinearOperator(self.base_linear_op.dense())

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        """Return one output's covariance unchanged, as BoTorch's lists ask for it; otherwise as any operator."""
        q, every = self.base_linear_op.shape[-1], slice(None)
        if isinstance(row_index, slice) and row_index == col_index and row_index.step is None:
            if row_index == every:
                return super()._getitem(row_index, col_index, *batch_indices)
            start, stop, _ = row_index.indices(self.shape[-1])
            if stop - start == q and start % q == 0:
                return self.base_linear_op._getitem(every, every, *batch_indices, start // q)
        # BlockLinearOperator cuts slices as if outputs were interleaved, which they are not here.
        return LinearOperator._getitem(self, row_index, col_index, *batch_indices)


class OutputsNormal(MultitaskMultivariateNormal):  # type: ignore[misc]  # the base class ships no types
    """The joint distribution of several outputs, one block of the covariance for each (``interleaved=False``)."""

    def log_prob(self, value: Tensor) -> Any:
        """Return the log density of ``… x q x m`` values; GPyTorch 1.15 takes them in another order than the mean's."""
        if self._interleaved:
            return super().log_prob(value)
        return MultivariateNormal.log_prob(self, value.mT.reshape(*value.shape[:-2], -1))


class RootsOfEach(LowerRoot):
    """Lower roots of several outputs: each multiplies and solves with its own columns."""

    _of_each: Callable[..., Tensor]  # applies a method of each root to its columns

    def matmul(self, other: Tensor) -> Tensor:
        """Multiply base samples; gradients reach the roots."""
        return self._of_each("matmul", other)

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self._of_each("_t_matmul", rhs)

    def _cholesky_solve(self, rhs: Tensor, upper: bool | None = False) -> Tensor:
        return self._of_each("_cholesky_solve", rhs, upper=upper)

    def solve_triangular(self, rhs: Tensor, upper: bool = False, left: bool = True, unitriangular: bool = False) -> Tensor:
        """Return ``L⁻¹ Y``; only with a lower factor on the left."""
        return self._of_each("solve_triangular", rhs, upper=upper, left=left, unitriangular=unitriangular)


class _OutputRoots(RootsOfEach, BlockDiagLinearOperator):  # type: ignore[misc]  # the base class ships no types
    """Roots side by side; ``… x (m q) x c`` columns go to each output's."""

    def _of_each(self, method: str, columns: Tensor, **options: Any) -> Tensor:
        return self._remove_batch_dim(getattr(self.base_linear_op, method)(self._add_batch_dim(columns), **options))

    def reshape(self, *sizes: Any) -> LinearOperator:
        """Return the roots with one batch dimension for ``-1, m q, m q``, as a log-density asks for; otherwise expanded."""
        return _OutputRoots(self.base_linear_op.flat_batch(inner=1)) if sizes[:1] == (-1,) else self.expand(*sizes)


def lazy_posterior(mvn: MultivariateNormal, *, outputs: list[int] | None) -> GPyTorchPosterior:
    """Return the posterior of one output (``None``; ``mvn`` is ``… x q``), or of some of several (``… x m x q``).

    A lazy covariance stays lazy.
    """
    if outputs is None:
        return GPyTorchPosterior(mvn)
    mean, operator = mvn.mean, mvn.lazy_covariance_matrix
    if outputs != list(range(mean.shape[-2])):
        mean, operator = mean[..., outputs, :], operator[..., outputs, :, :]
    return _independent(mean, operator)


def _independent(mean: Tensor, operator: LinearOperator) -> GPyTorchPosterior:
    """Return the posterior of independent outputs with means ``… x m x q``; of a dense operator that of BoTorch."""
    if isinstance(operator, RootedCovariance):
        return GPyTorchPosterior(OutputsNormal(mean.mT, IndependentOutputs(operator), interleaved=False))
    return GPyTorchPosterior(MultitaskMultivariateNormal(mean.mT, BlockDiagLinearOperator(operator), interleaved=False))


def lazy_operator(posterior: Any) -> JointCovariance | None:
    """Return the lazy covariance of a posterior, if it has one."""
    if type(posterior) is not GPyTorchPosterior:
        return None
    operator = posterior.distribution.lazy_covariance_matrix
    operator = operator.base_linear_op if isinstance(operator, IndependentOutputs) else operator
    return operator if isinstance(operator, JointCovariance) and operator.view is None else None


def untransformed(posterior: Any, transform: OutcomeTransform | None, *, X: Tensor) -> Any:
    """Undo an outcome transform, if there is one, at transformed inputs ``X``, ``… x q x d``."""
    if transform is None:
        return posterior
    if isinstance(transform, ChainedOutcomeTransform):
        for part in reversed(transform.values()):
            posterior = untransformed(posterior, part, X=X)
        return posterior
    operator: JointCovariance | DeferredCovariance | None = lazy_operator(posterior)
    several = operator is not None and posterior._is_mt
    if operator is None and type(posterior) is GPyTorchPosterior:
        covariance = posterior.distribution.lazy_covariance_matrix
        operator = covariance if isinstance(covariance, DeferredCovariance) else None
    known = isinstance(transform, Standardize) and transform._is_trained and transform._outputs is None
    if operator is None or not known or transform._m != (operator.shape[-3] if several else 1):
        return transform.untransform_posterior(posterior, X=X)
    offset, scale, _ = transform._get_per_input_means_stdvs(X=X, include_stdvs_sq=False)
    mean = offset + scale * posterior.mean
    factors = scale.mT if several else scale.squeeze(-1)  # one per row, or one for all
    scaled = operator.scaled(factors.expand(*factors.shape[:-1], operator.shape[-1]))
    return _independent(mean.mT, scaled) if several else GPyTorchPosterior(MultivariateNormal(mean.squeeze(-1), scaled))


def posterior_of_outputs(mvn: MultivariateNormal, outputs: list[int], transform: OutcomeTransform | None, *, X: Tensor) -> Any:
    """Return the posterior of some of several outputs, each in its own units, from ``… x m x q`` of all.

    A lazy covariance is scaled before they are chosen, so it stays lazy.
    """
    every = lazy_posterior(mvn, outputs=list(range(mvn.mean.shape[-2])))
    scaled: Any = untransformed(every, transform, X=X) if lazy_operator(every) is not None else None
    operator = lazy_operator(scaled)
    if operator is not None:
        return lazy_posterior(MultivariateNormal(scaled.mean.mT, operator), outputs=outputs)
    transform = None if transform is None else transform.subset_output(outputs)
    return untransformed(lazy_posterior(mvn, outputs=outputs), transform, X=X)


def transformed(posterior: Any, transform: PosteriorTransform, *, X: Tensor) -> Any:
    """Apply a posterior transform at transformed inputs ``X``, ``… x q x d``; a weighted sum of outputs stays lazy."""
    operator = lazy_operator(posterior)
    if operator is None or not posterior._is_mt or type(transform) is not ScalarizedPosteriorTransform:
        return transform(posterior=posterior, X=X)
    weights = transform.weights.to(posterior.mean)
    covariance = weighted_sum([operator], [weights]) if len(weights) == operator.shape[-3] else None
    if covariance is None:
        return transform(posterior=posterior, X=X)
    return GPyTorchPosterior(MultivariateNormal(transform.offset + posterior.mean @ weights, covariance))


def weighted_sum(members: Sequence[JointCovariance | None], weights: Sequence[Tensor]) -> JointCovariance | None:
    """Return the covariance of ``Σ weight · value`` of independent processes at the same points, if it has a lazy form.

    A weight is a number, or ``m`` numbers of the outputs of a member.
    """
    terms, means, noises, start = [], [], [], 0
    inputs: list[Tensor] = []
    for member, weight in zip(members, weights, strict=True):
        if member is None or not isinstance(member.process, Process):
            return None
        if member.scale is not None and not bool((member.scale == member.scale[..., :1]).all()):
            return None
        several, factor = weight.dim() > 0, weight.unsqueeze(-1)
        factor = factor if member.scale is None else factor * member.scale[..., :1]
        inputs.append(member.X.squeeze(-3) if several else member.X)
        terms.append(Term(member.process, slice(start, start := start + member.X.shape[-1]), factor, several))
        means.append(factor * member.mean)
        noises += [] if member.noise is None else [terms[-1].weighted(member.noise, 1)]
    only = members[0] if len(terms) == 1 else None
    options: dict[str, Any] = {"mean": total(means)}
    if only is not None:  # its rows may be known
        options = {"mean": only.mean, "base": None if only.base is None else only.base.of_sum(terms[0])}
        if only.keep is not None:
            options["keep"] = lambda base: only.keep(replace(base, factor=terms[0].factor))
    batch = broadcast_shapes(*(X.shape[:-2] for X in inputs))
    X = torch.cat([X.expand(*batch, *X.shape[-2:]) for X in inputs], dim=-1)
    noise, graph = total(noises) if noises else None, any(member.graph for member in members if member is not None)
    return JointCovariance(X, process=SumOfProcesses(tuple(terms)), noise=noise, graph=graph, **options)


def subset_of_outputs(model: Any, idcs: list[int], plain: Callable[[list[int]], Any]) -> Any:
    """Return the model of some outputs of a sparse model with the same posterior of these, over the same dictionary.

    ``plain`` is BoTorch's ``subset_output`` of the model.
    """
    training, shape = model.training, getattr(model, "_aug_batch_shape", torch.Size())
    parts: tuple[str, ...] = ("covar_module.", "data_noise_factor")  # BoTorch knows those of its own mean and likelihood
    for module in ("mean_module", "likelihood"):  # one for all outputs may have as many rows by chance, but not everywhere
        if all(part.shape[: len(shape)] == shape for part in getattr(model, module).parameters()):
            parts += (f"{module}.",)
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):  # as of the kernel of a calibrated model
        own = name.startswith(parts) and tensor.shape[: len(shape)] == shape
        if own and name not in model._subset_batch_dict:
            model._subset_batch_dict[name] = len(shape) - 1 - tensor.dim()
    cache, index = model.eval().cache(), torch.tensor(idcs, device=model.train_targets.device)

    def pick(tensor: Tensor, trailing: int) -> Tensor:
        dim = tensor.dim() - trailing - 1
        if dim < 0:  # the same of all outputs
            return tensor
        tensor = tensor if tensor.shape[dim] == 1 else tensor.index_select(dim, index)
        return tensor.squeeze(dim) if len(idcs) == 1 else tensor

    subset = plain(idcs)
    for part in subset.mean_module.modules():  # ZeroMean has no parameter
        if getattr(part, "batch_shape", None) == shape:
            part.batch_shape = subset._aug_batch_shape
    subset.outlying_rows = model.outlying_rows
    if model._stored_originals is not None:
        subset.__dict__["_stored_originals"] = pick(joined(model._stored_originals), 2)
    if not cache.holds_all(model.train_targets.shape[-1]):
        subset.rule = model.rule.of_chosen(cache.chosen)
    stamp, form = Stamp(*subset.made_from()), cache.representation.viewed(pick)
    subset.prediction_strategy = PosteriorCache(form, stamp, cache.chosen)
    if training:
        model.train()
        subset.train()
    return subset
