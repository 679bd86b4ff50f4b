"""The posterior of a ``ModelListGP`` at many points: its members' roots side by side, each made, kept and used as alone.

BoTorch joins the members' covariances by a ``CatLinearOperator``, whose root is that of a dense matrix. The result has no
registry: so :func:`answer_in_lists` puts in the place of BoTorch's ``posterior`` of a list one that joins what sparse members
return for more than :data:`~sparse_bo.models.sparse_gp.covariance.LARGE_Q` points, and leaves all else as BoTorch has it. A
weighted sum of sparse members' outputs is a process of its own, the sum of theirs, with a root as any has it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import ModelListGPyTorchModel
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, CatLinearOperator, LinearOperator, to_linear_operator
from torch import Tensor

from sparse_bo.linalg.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp import covariance
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.factor import JointRoot, Root, solve_lower
from sparse_bo.models.sparse_gp.independent_outputs import IndependentOutputs, OutputsNormal
from sparse_bo.models.sparse_gp.joint import JointPosterior
from sparse_bo.models.sparse_gp.outcomes import lazy_operator
from sparse_bo.models.sparse_gp.process import Process, SumOfProcesses, Term


class StackedCovariance(CatLinearOperator):  # type: ignore[misc]  # the base class ships no types
    """Covariances of several models' outputs along a batch dimension; its root is the stack of theirs."""

    def root_decomposition(self, *args: Any, **kwargs: Any) -> Any:
        """Return the members' lower roots, stacked; arguments are those of any operator, and none is used."""
        return Root(self.cholesky())

    def cholesky(self, upper: bool = False) -> LinearOperator:
        """Return the members' lower roots, stacked.

        Raises:
            UnsupportedError: For an upper factor.
        """
        if upper:
            raise UnsupportedError(f"the root of the joint covariance of {self.shape[-1]} points is a lower factor")
        return StackedRoot(*(member.cholesky() for member in self.linear_ops), dim=self.cat_dim, output_device=self.device)


class StackedRoot(CatLinearOperator):  # type: ignore[misc]  # the base class ships no types
    """Lower roots along a batch dimension: multiplies base samples, and solves with ``torch.linalg.solve_triangular``."""

    def matmul(self, other: Tensor) -> Tensor:
        """Multiply base samples, ``… x m x q x s``; gradients reach the members."""
        product: Tensor = self._matmul(other)
        return product

    def solve_triangular(self, rhs: Tensor, upper: bool = False, left: bool = True, unitriangular: bool = False) -> Tensor:
        """Return ``L⁻¹ Y`` for ``… x m x q x c`` right-hand sides, member by member: called by torch's function of that name.

        Raises:
            UnsupportedError: For anything but a lower factor on the left.
        """
        if upper or not left or unitriangular:
            raise UnsupportedError("the root of a joint covariance of many points is a lower factor, and solves from the left")
        sizes = [member.shape[self.cat_dim] for member in self.linear_ops]
        parts = zip(self.linear_ops, torch.split(rhs, sizes, dim=self.cat_dim), strict=True)
        return torch.cat([solve_lower(member.to_dense(), part) for member, part in parts], dim=self.cat_dim)

    def flat_batch(self, inner: int = 0) -> StackedRoot:
        """Return the root with its batch dimensions, but for the last ``inner``, as one."""
        return StackedRoot(*(_flat(member, inner) for member in self.linear_ops), dim=-3, output_device=self.output_device)

    def to_dense(self) -> Any:
        """Return the operator itself, as :meth:`~sparse_bo.models.sparse_gp.factor.JointRoot.to_dense` does."""
        return self


def _flat(root: LinearOperator, inner: int) -> LinearOperator:
    if isinstance(root, JointRoot | StackedRoot):
        return root.flat_batch(inner)
    dense = root.to_dense()  # of a member that is not sparse
    return to_linear_operator(dense.flatten(0, -3 - inner) if dense.dim() > 2 + inner else dense.unsqueeze(0))


def stacked(posterior: Any) -> Any:
    """Return the posterior of a list of models with the roots of its members, where one of them has many points.

    Args:
        posterior: What BoTorch made of the members' posteriors.
    """
    if type(posterior) is not GPyTorchPosterior:
        return posterior
    operator = posterior.distribution.lazy_covariance_matrix
    if not isinstance(operator, BlockDiagLinearOperator) or operator.base_linear_op.shape[-1] <= covariance.LARGE_Q:
        return posterior
    outputs: Any = operator.base_linear_op
    if type(outputs) is not CatLinearOperator or not _any_joint(outputs.linear_ops):
        return posterior
    side_by_side = StackedCovariance(*outputs.linear_ops, dim=outputs.cat_dim, output_device=outputs.device)
    mean = posterior.distribution.mean
    return GPyTorchPosterior(OutputsNormal(mean, IndependentOutputs(side_by_side), interleaved=False))


def _any_joint(members: Iterable[LinearOperator]) -> bool:
    return any(isinstance(member, JointCovariance) for member in members)


def weighted_sum(models: Any, X: Tensor, observation_noise: bool, transform: ScalarizedPosteriorTransform) -> Any:
    """Return the posterior of a weighted sum of members' outputs at many points, lazy; ``None`` if it is left to BoTorch.

    Members have one output each, and nothing but a standardising outcome transform. O(q m) for the mean.

    Args:
        models: The members.
        X: ``… x q x d``, more than :data:`~sparse_bo.models.sparse_gp.covariance.LARGE_Q` points.
        observation_noise: Whether to add the members' noise.
        transform: The weights and the offset.
    """
    weights = transform.weights.to(X)
    if len(weights) != len(models) or any(model.num_outputs != 1 for model in models):
        return None
    if not all(isinstance(model, JointPosterior) for model in models):
        return None
    posteriors, known = [], []
    for model in models:
        posteriors.append(model.posterior(X, observation_noise=observation_noise))
        operator = lazy_operator(posteriors[-1])
        if operator is None or not _one_output(operator):
            return None
        known.append(operator)
    total = summed_covariance(known, weights)
    mean = transform.offset + sum(
        weight * posterior.mean.squeeze(-1) for weight, posterior in zip(weights, posteriors, strict=True)
    )
    return GPyTorchPosterior(MultivariateNormal(mean, total))


def _one_output(operator: JointCovariance) -> bool:
    """Return whether a covariance is that of one process, all of whose rows have one scale."""
    scale = operator.scale
    uniform = scale is None or bool((scale == scale[..., :1]).all())
    return uniform and not operator.summed and isinstance(operator.process, Process)


def summed_covariance(members: list[JointCovariance], weights: Tensor) -> JointCovariance:
    """Return the covariance of ``Σ weight · value`` of independent processes at the same points."""
    terms, means, noises, start = [], [], [], 0
    for member, weight in zip(members, weights, strict=True):
        assert isinstance(member.process, Process)
        factor = weight.reshape(1) if member.scale is None else weight * member.scale[..., :1]
        end = start + member.X.shape[-1]
        terms.append(Term(member.process, slice(start, end), factor))
        means.append(factor * member.mean)
        noises += [] if member.noise is None else [factor.square() * member.noise]
        start = end
    batch = broadcast_shapes(*(member.X.shape[:-2] for member in members))
    X = torch.cat([member.X.expand(*batch, *member.X.shape[-2:]) for member in members], dim=-1)
    noise = sum(noises[1:], start=noises[0]) if noises else None
    options = {"mean": sum(means[1:], start=means[0]), "noise": noise, "graph": any(member.graph for member in members)}
    return JointCovariance(X, process=SumOfProcesses(tuple(terms)), **options)


def answer_in_lists() -> None:
    """Let lists of models return what :func:`stacked` makes of their posteriors; idempotent."""
    theirs = ModelListGPyTorchModel.posterior
    if getattr(theirs, "stacks", False):
        return

    @functools.wraps(theirs)
    def posterior(
        self: Any,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> Any:
        weighted = type(posterior_transform) is ScalarizedPosteriorTransform and output_indices is None
        if weighted and isinstance(observation_noise, bool) and isinstance(X, Tensor) and X.shape[-2] > covariance.LARGE_Q:
            total = weighted_sum(self.models, X, observation_noise, posterior_transform)
            if total is not None:
                return total
        joined = stacked(theirs(self, X, output_indices, observation_noise))
        return joined if posterior_transform is None else posterior_transform(posterior=joined, X=X)

    posterior.stacks = True  # type: ignore[attr-defined]  # says to a second call that it is done
    ModelListGPyTorchModel.posterior = posterior
