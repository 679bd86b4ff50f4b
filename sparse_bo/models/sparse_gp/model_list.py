"""SparseModelListGP: a list of models whose members' joint posteriors of many points stay lazy."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.models import ModelListGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, CatLinearOperator, LinearOperator, TriangularLinearOperator
from torch import Tensor

from sparse_bo.linalg.chunking import broadcast_shapes
from sparse_bo.models.sparse_gp.base import SparseModel
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.growth import check_evaluated
from sparse_bo.models.sparse_gp.joint_root import JointRoot, RootedCovariance
from sparse_bo.models.sparse_gp.outputs import IndependentOutputs, OutputsNormal, RootsOfEach, lazy_operator, weighted_sum
from sparse_bo.models.sparse_gp.prior import several_outputs


class SparseModelListGP(ModelListGP):  # type: ignore[misc]  # the base class ships no types
    """``ModelListGP`` whose joint posterior of many points stays lazy, and whose outputs come in the order that is asked for.

    BoTorch's own list makes the members' joint covariance of more than 4,096 points dense, or fails. This one combines the
    members' roots, so samples of a baseline of any length cost as much as the members' own. A weighted sum of sparse members'
    outputs (``ScalarizedPosteriorTransform``) is one Gaussian process. Of fewer points, it is ``ModelListGP``.

    Args:
        *gp_models: As in ``ModelListGP``, at least one; some may be other models.

    Raises:
        TypeError: If one is no model of BoTorch by GPyTorch.
        ValueError: If there is none.

    Example:
        >>> model = SparseModelListGP(SparseGP(X, Y[:, :1]), SparseGP(X, Y[:, 1:]))
    """

    def __init__(self, *gp_models: GPyTorchModel) -> None:
        how = "pass them as in SparseModelListGP(first, second), a list of them as SparseModelListGP(*models)"
        if not gp_models:
            raise ValueError(f"expected at least one model, got none; {how}")
        for model in gp_models:
            if not isinstance(model, GPyTorchModel):
                raise TypeError(f"expected models of BoTorch, got {type(model).__name__}; {how}")
        super().__init__(*gp_models)

    def __getattr__(self, name: str) -> Any:
        """Return a parameter, buffer or module; ``AttributeError`` with advice for a diagnostic, which each member has."""
        if name in ("calibrated", "certify", "dictionary", "leave_one_out"):
            raise AttributeError(f"a list of models has no {name}; ask each member, as in model.models[0].{name}")
        return super().__getattr__(name)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Any:
        """Return the joint posterior of all members' outputs at ``… x q x d`` points; arguments as in ``ModelListGP``."""
        if output_indices is not None:
            some, noise = self.subset_output(output_indices), observation_noise
            if isinstance(noise, Tensor) and noise.shape[-1] == self.num_outputs:
                noise = noise[..., output_indices]
            return some.posterior(X, observation_noise=noise, posterior_transform=posterior_transform)
        if any(map(several_outputs, self.models)):
            # BoTorch slices the rows of each output, which BlockDiagLinearOperator cuts as if outputs were interleaved
            return self._single_outputs().posterior(X, None, observation_noise, posterior_transform)
        if type(posterior_transform) is ScalarizedPosteriorTransform and isinstance(observation_noise, bool):
            total = _weighted_sum(self.models, X, observation_noise, posterior_transform)
            if total is not None:
                return total
        joined = _stacked(super().posterior(X, observation_noise=observation_noise))
        return joined if posterior_transform is None else posterior_transform(posterior=joined, X=X)

    def fantasize(self, X: Tensor, sampler: Any, **options: Any) -> Any:
        """Return the list conditioned on samples at ``… x q x d`` points; arguments as in ``ModelListGP``.

        Members of several outputs become one member for each, as ``ModelListGP`` counts outputs in place of members.
        """
        single = self if all(model.num_outputs == 1 for model in self.models) else self._single_outputs()
        return ModelListGP.fantasize(single, X, sampler, **options)

    def condition_on_observations(self, X: list[Tensor], Y: Tensor, **kwargs: Any) -> Any:
        """Return the list conditioned on ``Y`` (``… x q x m``) at each output's inputs; arguments as in ``ModelListGP``.

        Members of several outputs become one member for each: ``ModelListGP`` takes the observations of all outputs of a
        member for rows of each.
        """
        single = self._single_outputs() if any(map(several_outputs, self.models)) else self
        for model in single.models:
            if isinstance(model, SparseModel):
                check_evaluated(model)
        return ModelListGP.condition_on_observations(single, X, Y, **kwargs)

    def _single_outputs(self) -> SparseModelListGP:
        parts = []
        for model in self.models:
            outputs = range(model.num_outputs) if several_outputs(model) else []
            parts += [model.subset_output([output]) for output in outputs] or [model]
        return type(self)(*parts)

    def subset_output(self, idcs: list[int]) -> Any:
        """Return the list of some outputs in the order of ``idcs``; where they are of one member, its model of them.

        ``ModelListGP`` keeps the order of its members, and that of all outputs of one, and takes indices modulo their number.

        Raises:
            IndexError: If there is no such output.
        """
        of = [(member, output) for member, model in enumerate(self.models) for output in range(model.num_outputs)]
        if unknown := [index for index in idcs if not -len(of) <= index < len(of)]:
            raise IndexError(f"expected indices of {len(of)} outputs, got {unknown[0]}")
        parts = []
        for member, group in groupby((of[index] for index in idcs), key=itemgetter(0)):
            model, outputs = self.models[member], [output for _, output in group]
            parts.append(model if outputs == list(range(model.num_outputs)) else model.subset_output(outputs))
        return parts[0] if len(parts) == 1 else type(self)(*parts)


class _Stacked(CatLinearOperator):  # type: ignore[misc]  # the base class ships no types
    """Operators of several models' outputs along the last batch dimension."""

    def __init__(self, *members: LinearOperator, dim: int = -3, output_device: Any = None) -> None:
        super().__init__(*members, dim=dim, output_device=output_device)

    def _of_each(self, method: str, columns: Tensor, **options: Any) -> Tensor:
        """Apply a method of the members to ``… x m x q x c`` columns."""
        columns = columns.expand(*broadcast_shapes(self.batch_shape, columns.shape[:-2]), *columns.shape[-2:])
        parts = torch.split(columns, [member.shape[-3] for member in self.linear_ops], dim=-3)
        found = [getattr(member, method)(part, **options) for member, part in zip(self.linear_ops, parts, strict=True)]
        return torch.cat(found, dim=-3)

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        """Return some rows, or elements of other batch dimensions, of all members; CatLinearOperator loses the dimension."""
        if isinstance(batch_indices[-1], slice) and batch_indices[-1] == slice(None):
            members = [member._getitem(row_index, col_index, *batch_indices) for member in self.linear_ops]
            return type(self)(*members, output_device=self.output_device)
        return super()._getitem(row_index, col_index, *batch_indices)


class StackedCovariance(RootedCovariance, _Stacked):
    """Covariances of several models' outputs; the root is the stack of theirs."""

    def lower(self) -> LinearOperator:
        """Return the members' lower roots, stacked."""
        return StackedRoot(*(member.cholesky() for member in self.linear_ops), output_device=self.device)


class StackedRoot(RootsOfEach, _Stacked):
    """Lower roots of several models' outputs."""

    def flat_batch(self, inner: int = 0) -> StackedRoot:
        """Return the root with its batch dimensions, except the last ``inner``, as one."""
        return StackedRoot(*(_flat(member, inner) for member in self.linear_ops), output_device=self.output_device)


def _flat(root: LinearOperator, inner: int) -> LinearOperator:
    if isinstance(root, JointRoot | StackedRoot):
        return root.flat_batch(inner)
    dense = root.to_dense()  # of a member that is not sparse
    return TriangularLinearOperator(dense.flatten(0, -3 - inner) if dense.dim() > 2 + inner else dense.unsqueeze(0))


def _stacked(posterior: Any) -> Any:
    """Return the posterior of a list with the members' roots side by side, if one of the members has a lazy covariance."""
    if type(posterior) is not GPyTorchPosterior:
        return posterior
    operator = posterior.distribution.lazy_covariance_matrix
    members: Any = operator.base_linear_op if isinstance(operator, BlockDiagLinearOperator) else None
    if type(members) is not CatLinearOperator:
        return posterior
    if not any(isinstance(member, JointCovariance) and member.is_lazy for member in members.linear_ops):
        return posterior
    side_by_side = StackedCovariance(*members.linear_ops, output_device=members.device)
    mean = posterior.distribution.mean
    return GPyTorchPosterior(OutputsNormal(mean, IndependentOutputs(side_by_side), interleaved=False))


def _weighted_sum(models: Any, X: Tensor, observation_noise: bool, transform: ScalarizedPosteriorTransform) -> Any:
    """Return the lazy posterior of a weighted sum of members' outputs at ``… x q x d``; ``None`` if it has no lazy form.

    All members are sparse, of one output, with no outcome transform or a standardising one. O(q m) for the mean.
    """
    weights = transform.weights.to(X)
    if len(weights) != len(models) or any(model.num_outputs != 1 for model in models):
        return None
    if not all(isinstance(model, SparseModel) and X.shape[-2] > model.settings.joint.dense for model in models):
        return None
    posteriors = [model.posterior(X, observation_noise=observation_noise) for model in models]
    covariance = weighted_sum([lazy_operator(posterior) for posterior in posteriors], weights.unbind())
    if covariance is None:
        return None
    parts = zip(weights, posteriors, strict=True)
    mean = transform.offset + sum(weight * posterior.mean.squeeze(-1) for weight, posterior in parts)
    return GPyTorchPosterior(MultivariateNormal(mean, covariance))
