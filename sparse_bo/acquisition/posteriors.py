"""The posterior inside a batch: frozen at the batch start, with variances that fall from pick to pick.

Every point handed out is conditioned on as an observation of its own mean would be (a *hallucinated* observation, GP-BUCB,
Desautels et al. 2014): means stay, variances fall. With ``F`` the picks, ``C`` the covariance at the batch start and ``L`` the
Cholesky factor of ``C(F, F) + noise``:

    variance(x) = C(x, x) − ‖L⁻¹ C(F, x)‖²

*Process conditioning* takes the posterior covariance itself for ``C``; the *fixed-dictionary update* (BKB, BBKB) only the part
of it that the dictionary explains, ``λ zᵀV⁻¹z'``, so that the residual ``k − zᵀz`` of a picked point stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models import MixedSingleTaskGP, MultiTaskGP, SingleTaskGP, SingleTaskMultiFidelityGP
from botorch.models.model import Model, ModelList
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from sparse_bo.arms import InBatch
from sparse_bo.gp.dtc import NystromFactor
from sparse_bo.gp.posterior import CholeskyRoot, Posterior, ProcessPrior
from sparse_bo.models.sparse_gp.base import SparseModel
from sparse_bo.models.sparse_gp.prior import PriorKernel, TrainingData, kernel_diagonal, kernel_matrix
from sparse_bo.models.sparse_gp.representation import exact_representation
from sparse_bo.models.sparse_gp.row_sums import dictionary_factor

EXACT_MODELS = (SingleTaskGP, MixedSingleTaskGP, SingleTaskMultiFidelityGP)
"""Models whose posterior is an exact GP's and nothing else: subclasses may be anything."""


@dataclass(frozen=True, eq=False)
class Points:
    """Points with their posterior at the batch start, the part of a score that no pick changes."""

    X: Tensor
    """``b x d`` in the user's units."""
    mean: Tensor
    """``b`` (y)."""
    variance: Tensor
    """``b`` at the batch start (y²)."""
    columns: tuple[Tensor, ...] = ()
    """Inputs or features, and ``b x r`` columns, from which covariances with picks are computed."""

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, rows: Tensor | slice) -> Points:
        return Points(self.X[rows], self.mean[rows], self.variance[rows], tuple(c[rows] for c in self.columns))

    def joined(self, *others: Points) -> Points:
        """Return these points and others."""
        parts = (self, *others)
        X, mean, variance = (torch.cat([getattr(part, name) for part in parts]) for name in ("X", "mean", "variance"))
        columns = zip(*(part.columns for part in parts), strict=True)
        return Points(X, mean, variance, tuple(map(torch.cat, columns)))


@dataclass(frozen=True, eq=False)
class ModelKernel:
    """The prior covariance of a BoTorch model as functions of tensors, in units of its outcome transform."""

    kernel: PriorKernel

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :class:`~sparse_bo.gp.posterior.Covariance`."""
        return kernel_matrix(self.kernel, X, Y)

    def diagonal(self, X: Tensor) -> Tensor:
        """See :class:`~sparse_bo.gp.posterior.Covariance`."""
        return kernel_diagonal(self.kernel, X)


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """A posterior in closed form: after one product with its root, the variance of a point costs O(r) per pick.

    ``monotone``: conditioning can only lower a variance, so that an old score is an upper bound.
    """

    transform: Callable[[Tensor], Tensor]
    """From the user's units to the inputs of the posterior."""
    posterior: Posterior
    """At the batch start, of outcomes in the user's units."""
    factor: NystromFactor | None = None
    """Of the dictionary, if the in-batch update leaves the residual ``k − zᵀz`` as it is."""
    chosen: tuple[Tensor, ...] = ()
    """Columns of the picks, ``q`` rows each."""
    root: CholeskyRoot | None = None
    """``L``, of ``q`` picks."""

    monotone = True  # conditioning can only lower a variance, so that an old score is an upper bound

    @property
    def noise(self) -> float:
        """λ: variance of an observation's noise (y²); leverage is variance / λ."""
        return self.posterior.noise_variance

    @property
    def picks(self) -> int:
        """Points conditioned on since the batch start."""
        return 0 if self.root is None else self.root.lower.shape[-1]

    def prepare(self, X: Tensor) -> Points:
        """Evaluate ``b x d`` points at the batch start, with gradients. O(b m r)."""
        inputs, posterior = self.transform(X), self.posterior
        K_DX = posterior.prior.kernel.cross(inputs, posterior.support).mT  # m x b, of the faster side
        at = posterior.moments(inputs, K_DX=K_DX)
        explained = inputs if self.factor is None else self.factor.features(K_DX.double()).to(at.columns)
        return Points(X, at.mean, at.variance, (explained, at.columns.mT))

    def _covariance(self, left: tuple[Tensor, ...], right: tuple[Tensor, ...]) -> Tensor:
        """Return the reducible part of ``C(F, x)``, ``q x b``, in units of the posterior's scale. O(q b r)."""
        (F, h_F), (x, h) = left, right
        return (self.posterior.prior.kernel.cross(F, x) if self.factor is None else F @ x.mT) - h_F @ h.mT

    def between(self, left: Points, right: Points) -> Tensor:
        """Return the covariances (y²) of ``p`` and ``b`` points at the batch start, ``p x b``. O(p b r)."""
        return self.posterior.prior.scale * self._covariance(left.columns, right.columns)

    def variance(self, points: Points) -> Tensor:
        """Return the variances (``b``, y²) given the picks, with gradients. O(b q (r + q))."""
        if self.root is None:
            return points.variance
        reduction = self.root.columns(self._covariance(self.chosen, points.columns)).square().sum(dim=0)
        return (points.variance - self.posterior.prior.scale * reduction).clamp_min(0.0)

    def condition(self, point: Points) -> ClosedForm:
        """Condition on a hallucinated observation at one point: one more row of ``L``, O(q (r + q))."""
        noise = self.posterior.noise
        corner = self._covariance(point.columns, point.columns) + noise  # 1 x 1
        if self.root is None:
            return replace(self, chosen=point.columns, root=CholeskyRoot(corner.clamp_min(noise).sqrt()))
        column = self.root.columns(self._covariance(self.chosen, point.columns))  # q x 1
        corner = (corner - column.mT @ column).clamp_min(noise).sqrt()
        chosen = tuple(torch.cat(pair) for pair in zip(self.chosen, point.columns, strict=True))
        return replace(self, chosen=chosen, root=self.root.extended(column, corner))


@dataclass(frozen=True, eq=False)
class ConditionedModel:
    """Any BoTorch model: each pick is conditioned on by the model's own ``condition_on_observations``."""

    model: Any
    """At the batch start."""
    noise: float
    monotone: bool
    """False for non-Gaussian posteriors, whose variance in the user's units may rise."""
    conditioned: Any
    """Given the picks."""
    picks: int = 0

    def prepare(self, X: Tensor) -> Points:
        """See :class:`ClosedForm`. One posterior call on ``b x 1 x d``."""
        posterior = self.model.posterior(X.unsqueeze(-2))
        return Points(X, posterior.mean.flatten(), posterior.variance.flatten())

    def variance(self, points: Points) -> Tensor:
        """See :class:`ClosedForm`. One posterior call on ``b x 1 x d``."""
        if not self.picks:
            return points.variance
        return self.conditioned.posterior(points.X.unsqueeze(-2)).variance.flatten()

    def condition(self, point: Points) -> ConditionedModel:
        """See :class:`ClosedForm`."""
        noise = {}
        likelihood = getattr(self.conditioned, "likelihood", None)
        if isinstance(likelihood, FixedNoiseGaussianLikelihood):
            noise = {"noise": likelihood.noise.mean().expand(1, 1)}
        try:
            conditioned = self.conditioned.condition_on_observations(X=point.X, Y=point.mean.unsqueeze(-1), **noise)
        except (NotImplementedError, AttributeError) as error:
            raise UnsupportedError(
                f"{type(self.model).__name__} cannot be conditioned on a pick; use SparseGP or SingleTaskGP, "
                "or an acquisition function with X_pending"
            ) from error
        return replace(self, conditioned=conditioned, picks=self.picks + 1)


BatchPosterior: TypeAlias = ClosedForm | ConditionedModel
"""A posterior at a batch start and the picks so far. A value."""


def batch_posterior(model: Model, *, in_batch: InBatch, like: Tensor) -> BatchPosterior:
    """Return the posterior of a model as it is now, without picks.

    :class:`~sparse_bo.SparseGP` and exact single-output GPs are taken in closed form (for an exact GP one factorisation,
    O(n³)); everything else by its own ``posterior`` and ``condition_on_observations``.

    Args:
        model: A BoTorch model with one output and no batch shape.
        in_batch: The update that each pick makes, ``"process"`` or ``"fixed"``, as the module defines them.
        like: ``2 x d`` or ``n x d`` points of the domain.

    Raises:
        ValueError: If ``in_batch="fixed"`` and the model has no dictionary, or the model's observations have no noise.
        UnsupportedError: If the model has several outputs or a batch shape, is a list, or makes several inputs of a point.
    """
    batch_shape = tuple(model.batch_shape or ())  # None for some deterministic models
    if model.num_outputs != 1 or batch_shape:
        raise UnsupportedError(
            f"expected a model with one output and no batch shape, got {model.num_outputs} outputs and batch shape "
            f"{batch_shape}; optimise one output, scalarise first, or use BoTorch's optimize_acqf(q=8, sequential=True)"
        )
    if isinstance(model, ModelList):
        raise UnsupportedError(
            f"expected a model, got a {type(model).__name__} of one; pass its member, model.models[0], here and to acq_function"
        )
    if in_batch == "fixed" and not isinstance(model, SparseModel):
        raise ValueError(f"in_batch='fixed' updates a fixed dictionary, got {type(model).__name__}; use SparseGP, or 'process'")
    model.eval()
    if (rows := model.transform_inputs(like[:1]).shape[-2]) != 1:
        raise UnsupportedError(
            f"expected a model of points, got one whose input transform makes {rows} inputs of each; use optimize_acqf with an "
            "objective of them (a risk measure, an expectation)"
        )
    closed = _closed_form(model, in_batch)
    if closed is None and in_batch == "fixed":
        raise ValueError(
            "in_batch='fixed' needs a Gaussian likelihood, and no outcome transform but Standardize; use in_batch='process'"
        )
    posterior: BatchPosterior | None = closed
    if posterior is None:
        centre = like.mean(dim=0, keepdim=True)
        with torch.no_grad():
            clean = model.posterior(centre)
            noise = float(model.posterior(centre, observation_noise=True).variance - clean.variance)
        posterior = ConditionedModel(model, noise, isinstance(clean, GPyTorchPosterior), model)
    if math.isinf(posterior.noise):
        raise ValueError(
            "expected a noise variance within the range of numbers, got inf: the square of the outcomes' scale overflows; "
            "divide the outcomes by their largest value"
        )
    if not posterior.noise > 0.0:
        raise ValueError(
            f"expected observations with noise (leverages are variances in its units), got a noise variance of "
            f"{posterior.noise}; give the model a likelihood with noise"
        )
    return posterior


def _closed_form(model: Any, in_batch: InBatch) -> ClosedForm | None:
    """Return the model in closed form, or ``None`` if it has none."""
    transform = getattr(model, "outcome_transform", None)
    exact = type(model) in EXACT_MODELS
    sparse = isinstance(model, SparseModel) and not isinstance(model, MultiTaskGP)  # whose X may lack the task
    if not (exact or sparse) or (transform is not None and type(transform) is not Standardize):
        return None
    if not isinstance(model.likelihood, (GaussianLikelihood, FixedNoiseGaussianLikelihood)) or model.train_inputs is None:
        return None
    kernel: PriorKernel = model.covar_module if exact else model.prior_kernel
    with torch.no_grad():
        (X,) = model.train_inputs  # transformed, in evaluation mode
        zeros = torch.zeros_like(model.train_targets)
        noisy = model.likelihood(MultivariateNormal(zeros, DiagLinearOperator(zeros)), [X])
        noise = noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1)
        if exact:
            data = TrainingData(X, model.train_targets - model.mean_module(X), noise)
            representation = exact_representation(kernel, data)
        else:
            representation = model.representation().full(kernel).map(torch.Tensor.detach)
        factor = dictionary_factor(kernel, representation.points) if in_batch == "fixed" else None
    shift, scale = (0.0, 1.0) if transform is None else (float(transform.means), float(transform.stdvs))
    mean = model.mean_module if exact else model.prior_mean
    prior = ProcessPrior(lambda inputs: shift + scale * mean(inputs), ModelKernel(kernel), scale**2)
    alpha = scale * representation.alpha
    posterior = Posterior(prior, representation.points, alpha, representation.root, float(noise.mean()))
    return ClosedForm(model.transform_inputs, posterior, factor)
