"""The posterior of a ``ModelListGP`` at many points: its members' roots side by side, each made, kept and used as alone.

BoTorch joins the members' covariances by a ``CatLinearOperator``, whose root is that of a dense matrix. The result has no
registry: so :func:`answer_in_lists` puts in the place of BoTorch's ``posterior`` of a list one that joins what sparse members
return for more than :data:`~sparse_bo.models.sparse_gp.covariance.LARGE_Q` points, and leaves all else as BoTorch has it. A
weighted sum of the outputs is one of them: dense up to :data:`~sparse_bo.models.sparse_gp.covariance.DENSE_ROWS` points.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import ModelListGPyTorchModel
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultitaskMultivariateNormal
from linear_operator.operators import BlockDiagLinearOperator, CatLinearOperator, LinearOperator
from torch import Tensor

from sparse_bo.models.sparse_gp import covariance
from sparse_bo.models.sparse_gp.covariance import IndependentOutputs, JointCovariance
from sparse_bo.models.sparse_gp.factor import Root, solve_lower


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

    def to_dense(self) -> Any:
        """Return the operator itself, as :meth:`~sparse_bo.models.sparse_gp.factor.JointRoot.to_dense` does."""
        return self


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
    return GPyTorchPosterior(MultitaskMultivariateNormal(mean, IndependentOutputs(side_by_side), interleaved=False))


def _any_joint(members: Iterable[LinearOperator]) -> bool:
    return any(isinstance(member, JointCovariance) for member in members)


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
        joined = stacked(theirs(self, X, output_indices, observation_noise))
        return joined if posterior_transform is None else posterior_transform(posterior=joined, X=X)

    posterior.stacks = True  # type: ignore[attr-defined]  # says to a second call that it is done
    ModelListGPyTorchModel.posterior = posterior
