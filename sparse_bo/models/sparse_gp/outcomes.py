"""Lazy posteriors in the user's units: outputs, outcome transforms and weighted sums, done inside the covariance.

BoTorch would put the covariance into products with diagonal matrices and into sums, which know neither roots nor samples of
many points. What is not linear is left to BoTorch, which does it on samples.
"""

from __future__ import annotations

from typing import Any

from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.models.transforms.outcome import ChainedOutcomeTransform, OutcomeTransform, Standardize
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import LinearOperator
from torch import Tensor

from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.deferred import DeferredCovariance
from sparse_bo.models.sparse_gp.independent_outputs import IndependentOutputs, OutputsNormal


def lazy_posterior(mvn: MultivariateNormal, *, outputs: list[int] | None) -> GPyTorchPosterior:
    """Return the posterior of one output, or of several that are the last batch dimension of ``mvn``.

    Args:
        mvn: ``… x q``, or ``… x m x q``, with a :class:`JointCovariance`.
        outputs: The outputs to keep of several; ``None`` for one output.
    """
    if outputs is None:
        return GPyTorchPosterior(mvn)
    mean, operator = mvn.mean, mvn.lazy_covariance_matrix
    if outputs != list(range(mean.shape[-2])):
        mean, operator = mean[..., outputs, :], operator[..., outputs, :, :]
    return _independent(mean, operator)


def _independent(mean: Tensor, operator: LinearOperator) -> GPyTorchPosterior:
    return GPyTorchPosterior(OutputsNormal(mean.mT, IndependentOutputs(operator), interleaved=False))


def lazy_operator(posterior: Any) -> JointCovariance | None:
    """Return the lazy covariance of a posterior, if it has one."""
    if type(posterior) is not GPyTorchPosterior:
        return None
    operator = posterior.distribution.lazy_covariance_matrix
    operator = operator.base_linear_op if isinstance(operator, IndependentOutputs) else operator
    return operator if isinstance(operator, JointCovariance) and operator.view is None else None


def untransformed(posterior: Any, transform: OutcomeTransform | None, *, X: Tensor) -> Any:
    """Undo an outcome transform.

    Args:
        posterior: The posterior in the transform's units.
        transform: The transform, if there is one.
        X: ``… x q x d``, transformed, as BoTorch's models pass it.
    """
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


def transformed(posterior: Any, transform: PosteriorTransform, *, X: Tensor) -> Any:
    """Apply a posterior transform; a weighted sum of outputs stays lazy.

    Args:
        posterior: The posterior in the user's units.
        transform: The transform.
        X: ``… x q x d``, transformed, as BoTorch's models pass it.
    """
    operator = lazy_operator(posterior)
    if operator is None or not posterior._is_mt or type(transform) is not ScalarizedPosteriorTransform:
        return transform(posterior=posterior, X=X)
    weights = transform.weights.to(posterior.mean)
    if len(weights) != operator.shape[-3]:
        return transform(posterior=posterior, X=X)  # raises
    mean = transform.offset + posterior.mean @ weights
    factors = weights.unsqueeze(-1).expand(*operator.shape[:-1])
    return GPyTorchPosterior(MultivariateNormal(mean, operator.scaled(factors).added()))
