"""A Gaussian process by Vecchia's approximation: every conditional on its nearest neighbours alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from botorch.models.utils.gpytorch_modules import (
    get_covar_module_with_dim_scaled_prior,
    get_gaussian_likelihood_with_lognormal_prior,
)
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel
from gpytorch.means import ConstantMean
from gpytorch.models import GP
from linear_operator import to_linear_operator
from torch import Tensor

from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.linalg.reductions import largest
from sparse_bo.models.sparse_gp.state import check_size
from sparse_bo.validation import check_count, check_finite, check_like, check_points


def standardize(Y: Tensor) -> Standardize:
    """Return the outcome transform of ``n x 1`` observations; BoTorch's own takes a deviation below 1e-8 for none."""
    return Standardize(m=1, min_stdv=1e-140 if Y.dtype == torch.float64 else 1e-17)


class VecchiaGP(Model, GP):  # type: ignore[misc]  # the base class ships no types
    """A GP whose likelihood and predictions condition on the m nearest observations (Vecchia 1988).

    Predictions are those of VecchiaBO (Jimenez & Katzfuss 2023), neighbours in the order of observation.

    *Likelihood*: ``Π_i p(y_i | y of the m nearest before it)``, in the order of observation; batched solves, O(n m³) per
    step. The neighbours are found once, by the kernel as it is before the first step, O(n²) distances. *Prediction*: the joint
    distribution of q points given the observations nearest to any of them (q m of them), exact within that set: O((q m)³) per
    batch element, and no work on the others but their kernel values. With m ≥ n both are the exact GP's. "Nearest" means
    highest kernel value.

    Fits through ``ExactMarginalLogLikelihood`` and ``fit_gpytorch_mll``, whose loss is Vecchia's; outputs are standardised.
    Single output, homoscedastic noise, no batches of data, no fantasies.

    Args:
        train_X: ``n x d`` inputs.
        train_Y: ``n x 1`` observations.
        neighbors: m, the number of neighbours that each point is conditioned on.
        covar_module: Any GPyTorch kernel without batch shape. Default: Matérn-5/2 with BoTorch's priors.

    Raises:
        TypeError: If an argument has the wrong kind, or dtypes differ.
        ValueError: If shapes do not fit, an entry is not finite or too large to be squared, or m < 1.
    """

    num_outputs = 1
    batch_shape = torch.Size()

    def __init__(self, train_X: Tensor, train_Y: Tensor, *, neighbors: int = 30, covar_module: Kernel | None = None) -> None:
        super().__init__()
        check_points("train_X", train_X)
        if not isinstance(train_Y, Tensor) or train_Y.shape != (len(train_X), 1):
            got = tuple(train_Y.shape) if isinstance(train_Y, Tensor) else type(train_Y).__name__
            raise ValueError(f"expected train_Y of shape {len(train_X)} x 1, got {got}")
        check_like("train_Y", train_Y, train_X)
        check_finite("train_Y", train_Y)
        check_size("train_Y", train_Y)
        if covar_module is not None and not isinstance(covar_module, Kernel):
            raise TypeError(f"expected covar_module to be a gpytorch.kernels.Kernel, got {type(covar_module).__name__}")
        self.neighbors = check_count("neighbors", neighbors)
        self.outcome_transform = standardize(train_Y)
        self.train_inputs = (train_X,)
        self.train_targets = self.outcome_transform(train_Y)[0].squeeze(-1)
        self.outcome_transform.eval()
        self.covar_module = covar_module or get_covar_module_with_dim_scaled_prior(
            ard_num_dims=train_X.shape[-1], use_rbf_kernel=False
        )
        self.mean_module = ConstantMean()
        self.likelihood = get_gaussian_likelihood_with_lognormal_prior()
        self.to(train_X)
        self._earlier: tuple[Tensor, Tensor] | None = None

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> Posterior:
        """Return the joint posterior at ``batch_shape x q x d`` points, given their nearest observations."""
        if not isinstance(observation_noise, bool):
            raise ValueError("VecchiaGP knows one noise variance; pass observation_noise=True or False")
        self.eval()
        mean, covariance = self._conditional(X)
        if observation_noise:
            covariance = covariance + self.likelihood.noise * torch.eye(X.shape[-2], dtype=X.dtype, device=X.device)
        distribution = _Normal(mean, to_linear_operator(covariance))  # of equal points it is singular, and is not factorised
        posterior = self.outcome_transform.untransform_posterior(GPyTorchPosterior(distribution))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load parameters and outcome transform; the observations are transformed anew by it."""
        Y = self.outcome_transform.eval().untransform(self.train_targets.unsqueeze(-1))[0]
        loaded = super().load_state_dict(state_dict, *args, **kwargs)
        self.train_targets = self.outcome_transform(Y)[0].squeeze(-1)
        return loaded

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Self:
        """Convert data and parameters."""
        super()._apply(fn, *args, **kwargs)
        self.train_inputs, self.train_targets = (fn(self.train_inputs[0]),), fn(self.train_targets)
        self._earlier = None
        return self

    def compute_custom_loss(self, *, mll: Any = None, **kwargs: Any) -> Tensor:
        """Return minus the Vecchia log likelihood and the priors' log densities, per observation (BoTorch's fitting hook)."""
        value = self.log_likelihood()
        for _, module, prior, parameter_of, _ in self.named_priors():
            value = value + prior.log_prob(parameter_of(module)).sum()
        return -value / len(self.train_targets)

    def log_likelihood(self) -> Tensor:
        """Return ``Σ_i log p(y_i | y of its m nearest predecessors)`` in standardised units. O(n m³)."""
        X, residuals = self.train_inputs[0], self.train_targets - self.mean_module(self.train_inputs[0])
        if self._earlier is None:
            with torch.no_grad():
                self._earlier = self._predecessors(X)
        index, valid = self._earlier
        noise = self.likelihood.noise
        K = self._kernel(X[index], X[index])
        eye = torch.eye(index.shape[-1], dtype=X.dtype, device=X.device)
        both = valid.unsqueeze(-1) & valid.unsqueeze(-2)
        K = torch.where(both, K + noise * eye, eye)  # a missing neighbour is an independent unit variable
        cross = torch.where(valid, self._kernel(X.unsqueeze(-2), X[index]).squeeze(-2), torch.zeros_like(X[:, :1]))
        factor = safe_cholesky(K)
        half = torch.linalg.solve_triangular(factor, cross.unsqueeze(-1), upper=False)
        y = torch.where(valid, residuals[index], torch.zeros_like(residuals[index]))
        whitened = torch.linalg.solve_triangular(factor, y.unsqueeze(-1), upper=False)
        mean = (half * whitened).sum(dim=(-2, -1))
        variance = self.covar_module(X, diag=True) + noise - half.square().sum(dim=(-2, -1))
        error = (residuals - mean).square() / variance
        return -0.5 * (error + variance.log() + math.log(2.0 * math.pi)).sum()

    def _conditional(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean (``… x q``) and covariance (``… x q x q``) in standardised units."""
        if not X.shape[-2]:
            return self.mean_module(X), self._kernel(X, X)
        data, n = self.train_inputs[0], len(self.train_targets)
        m = min(n, self.neighbors * X.shape[-2])
        with torch.no_grad():
            closeness = self._kernel(X, data).amax(dim=-2)  # to the nearest of the q points
            index = largest(closeness, m) if m < n else torch.arange(n, device=X.device).expand(*X.shape[:-2], n)
        near = data[index]
        K = self._kernel(near, near)
        K = K + self.likelihood.noise * torch.eye(m, dtype=X.dtype, device=X.device)
        cross = self._kernel(near, X)
        factor = safe_cholesky(K)
        half = torch.linalg.solve_triangular(factor, cross, upper=False)
        residuals = (self.train_targets - self.mean_module(data))[index]
        whitened = torch.linalg.solve_triangular(factor, residuals.unsqueeze(-1), upper=False)
        mean = self.mean_module(X) + (half * whitened).sum(dim=-2)
        return mean, self._kernel(X, X) - half.mT @ half

    def _predecessors(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nearest earlier observations of each (``n x m``) and which of them exist."""
        n = len(X)
        earlier = torch.ones(n, n, dtype=torch.bool, device=X.device).tril(-1)
        closeness = self._kernel(X, X).masked_fill(~earlier, -torch.inf)
        index = largest(closeness, min(self.neighbors, n))
        return index, closeness.gather(-1, index) > -torch.inf

    def _kernel(self, A: Tensor, B: Tensor) -> Tensor:
        return self.covar_module(A, B).to_dense()


class _Normal(MultivariateNormal):  # type: ignore[misc]  # the base class ships no types
    """A joint distribution whose variances are those of the covariance; GPyTorch's are at least 1e-10, whatever the unit."""

    @property
    def variance(self) -> Tensor:
        """The variances, ``… x q``."""
        variances: Tensor = self.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1).expand(self.mean.shape)
        return variances.clamp_min(torch.finfo(variances.dtype).tiny)
