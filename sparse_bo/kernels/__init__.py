"""GPyTorch kernels as functions of plain tensors; the common ones evaluated here, straight from inputs to values."""

from sparse_bo.kernels.covariance import (
    GPYTORCH_BLOCKS,
    CovarianceFunction,
    FixedInputs,
    add_squares,
    covariance_function,
    gaussian_parameters,
)
from sparse_bo.kernels.gradients import differentiable_cross
from sparse_bo.kernels.tanimoto import TanimotoKernel

__all__ = [
    "GPYTORCH_BLOCKS",
    "CovarianceFunction",
    "FixedInputs",
    "TanimotoKernel",
    "add_squares",
    "covariance_function",
    "differentiable_cross",
    "gaussian_parameters",
]
