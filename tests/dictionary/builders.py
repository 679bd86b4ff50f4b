"""Small candidate sets and the dense matrices that the samplers never build."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_bo.dictionary import Candidates
from sparse_bo.kernels import CovarianceFunction, covariance_function
from tests.builders import rbf_kernel


def rbf(X: Tensor, lengthscale: float = 0.3) -> CovarianceFunction:
    return covariance_function(rbf_kernel(lengthscale), like=X.double())


def candidates(
    X: Tensor,
    *,
    lengthscale: float = 0.3,
    counts: Tensor | None = None,
    regularization: Tensor | float | None = 0.1,
    leverages: Tensor | None = None,
    means: Tensor | None = None,
) -> Candidates:
    n = len(X)
    return Candidates(
        X,
        torch.ones(n, dtype=X.dtype, device=X.device) if counts is None else counts,
        leverages,
        torch.arange(n, device=X.device),
        None,
        covariance=rbf(X, lengthscale),
        regularization=regularization,
        means=means,
    )


class Table:
    """A covariance that is looked up: for tests that sample thousands of times. Inputs are row numbers, ``n x 1``."""

    def __init__(self, K: Tensor) -> None:
        self.K = K

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        return self.K[X[:, 0].long()][:, Y[:, 0].long()]

    def diagonal(self, X: Tensor) -> Tensor:
        return self.K.diagonal()[X[:, 0].long()]


def tabulated(of: Candidates) -> Candidates:
    rows = torch.arange(len(of.X), dtype=torch.float64, device=of.X.device).unsqueeze(-1)
    return of._replace(covariance=Table(kernel_matrix(of)), inputs=rows)


def kernel_matrix(of: Candidates) -> Tensor:
    assert of.covariance is not None
    return of.covariance.cross(of.X, of.X)


def pulls_matrix(of: Candidates) -> Tensor:
    """``N^{-1/2} K N^{-1/2}`` with one row per *pull*."""
    repeats = of.counts.long()
    noise = torch.as_tensor(of.regularization, dtype=torch.float64, device=of.X.device).expand(len(of.X))
    rows = torch.repeat_interleave(torch.arange(len(of.X), device=of.X.device), repeats)
    scale = noise[rows].rsqrt()
    return scale.unsqueeze(-1) * kernel_matrix(of)[rows][:, rows] * scale


def leverage_scores(A: Tensor, ridge: float = 1.0) -> Tensor:
    """``[A (A + μI)⁻¹]_ii``."""
    return (A @ torch.linalg.inv(A + ridge * torch.eye(len(A), dtype=A.dtype, device=A.device))).diagonal()
