"""GPyTorch kernels as functions of plain tensors; the common ones evaluated here, straight from inputs to values."""

from sparse_bo.kernels.covariance import CovarianceFunction, covariance_function, gaussian_parameters

__all__ = ["CovarianceFunction", "covariance_function", "gaussian_parameters"]
