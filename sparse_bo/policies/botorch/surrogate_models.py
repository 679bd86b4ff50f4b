"""GPs of the unit cube for policies that are given none: exact or sparse with a Matérn kernel, exact with a Gaussian one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from torch import Tensor

from sparse_bo.kernels import gaussian_parameters
from sparse_bo.models import SparseGP

MakeModel = Callable[[Tensor, Tensor], Model]
"""From inputs in the unit cube (``n x d``) and observations (``n x 1``) to a model that is not fitted yet."""


def matern_gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Return BoTorch's exact GP with a Matérn-5/2 kernel, one lengthscale per input, BoTorch's priors, outputs standardised."""
    kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1], use_rbf_kernel=False)
    return SingleTaskGP(X, Y, covar_module=kernel)


def gaussian_gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Return the GP of :func:`matern_gp` with a Gaussian kernel."""
    return SingleTaskGP(X, Y, covar_module=get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1]))


def sparse_matern_gp(X: Tensor, Y: Tensor, **options: Any) -> SparseGP:
    """Return :class:`sparse_bo.SparseGP` with the kernel of :func:`matern_gp`."""
    kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1], use_rbf_kernel=False)
    return SparseGP(X, Y, covar_module=kernel, **options)


def with_gaussian_kernel(make: MakeModel) -> MakeModel:
    """Return ``make`` with a check of what it makes: ``ValueError`` unless its kernel is Gaussian over all inputs."""

    def checked(X: Tensor, Y: Tensor) -> Model:
        model = make(X, Y)
        if isinstance(model, Model):  # what is no model is refused with any kernel
            gaussian_parameters(getattr(model, "covar_module", None), dims=X.shape[-1])
        return model

    return checked
