"""GP-BUCB and BBKB batches by dense algebra on whole covariance matrices."""

from __future__ import annotations

from typing import NamedTuple

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch import Tensor

from sparse_bo.models import SparseGP
from tests.builders import unit_box
from tests.oracles import exact_gp, nystrom

N, D = 30, 2
BOUNDS = unit_box()


def data(*, n: int = N, seed: int = 0, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, D, generator=g, dtype=torch.float64)
    Y = 3.0 + 2.0 * torch.sin(4.0 * X).sum(dim=-1, keepdim=True)
    return X, Y + noise * torch.randn(n, 1, generator=g, dtype=torch.float64)


class Ordinary(SingleTaskGP):
    """An exact GP that we know nothing of: it has to be conditioned by its own methods."""


OPTIONS = {
    "plain": lambda: {},
    "known noise": lambda: {"train_Yvar": torch.linspace(0.02, 0.2, N, dtype=torch.float64).unsqueeze(-1)},
    "normalized inputs": lambda: {"input_transform": Normalize(D)},
    "raw outcomes": lambda: {"outcome_transform": None},
    "Matern": lambda: {"covar_module": ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=D))},
}


def build(kind: type[SingleTaskGP], name: str = "plain", *, seed: int = 0, **more) -> SingleTaskGP:
    """Return a model with lengthscales of 0.4 and, where it is learned, noise of 0.1 (standardised)."""
    X, Y = data(seed=seed)
    if name == "raw outcomes":
        Y = (Y - Y.mean()) / Y.std()  # BoTorch warns of anything else
    model = kind(X, Y, **OPTIONS[name](), **more)
    kernel = getattr(model.covar_module, "base_kernel", model.covar_module)
    kernel.lengthscale = 0.4
    if name != "known noise":
        model.likelihood.noise = 0.1
    return model.eval()


class Dense(NamedTuple):
    mean: Tensor
    covariance: Tensor
    """What picks reduce."""
    residual: Tensor
    """Variance that they do not."""
    noise: float

    def after(self, picks: list[int]) -> Tensor:
        """Variances given hallucinated observations at rows ``picks``."""
        C = self.covariance
        noisy = C[picks][:, picks] + self.noise * torch.eye(len(picks), dtype=C.dtype)
        return (C - C[:, picks] @ torch.linalg.solve(noisy, C[picks])).diagonal() + self.residual

    def batch(self, *, width: float, threshold: float, kind: str = "global", max_q: int, pending: tuple[int, ...] = ()):
        """Pick the best row, recompute everything, and again; return rows and values."""
        start = self.after([]) / self.noise
        picks, values = list(pending), []
        while len(values) < max_q:
            scores = self.mean + width * self.after(picks).clamp_min(0.0).sqrt()
            best = int((scores >= scores.max() - 1e-10).nonzero()[0])
            picks.append(best)
            values.append(float(scores[best]))
            costs = start[picks]
            ratio = 1.0 + float(costs.sum()) if kind == "global" else float((1.0 + costs).prod())
            if ratio > threshold:
                break
        return picks[len(pending) :], values


def dense(model: SingleTaskGP, A: Tensor, *, dictionary: Tensor | None = None, in_batch: str = "process") -> Dense:
    """The posterior at ``A`` in the user's units: exact, or DTC over training rows ``dictionary``."""
    model.eval()
    (X,), y = model.train_inputs, model.train_targets
    A = model.transform_inputs(A)
    with torch.no_grad():
        k = lambda P, Q: model.covar_module(P, Q).to_dense()  # noqa: E731  # the formulas below read better
        noise = model.likelihood.noise.expand(len(y)).detach()
        prior_mean, K_AA = float(model.mean_module(X)[0]), k(A, A)
        if dictionary is None:
            C = k(X, X) + torch.diag(noise)
            solved = torch.linalg.solve(C, k(X, A))
            mean, covariance = prior_mean + solved.T @ (y - prior_mean), K_AA - k(A, X) @ solved
            residual = torch.zeros(len(A), dtype=A.dtype)
        else:
            Z = X[dictionary]
            Q = lambda P, R: nystrom(k(Z, Z), k(Z, P), k(Z, R))  # noqa: E731
            assert bool((noise == noise[0]).all())
            explained = exact_gp(Q(X, X), Q(X, A), Q(A, A), y, noise=float(noise[0]), prior_mean=prior_mean)
            mean, covariance, residual = explained.mean, explained.covariance, (K_AA - Q(A, A)).diagonal()
            if in_batch == "process":
                covariance, residual = covariance + K_AA - Q(A, A), torch.zeros_like(residual)
    transform = getattr(model, "outcome_transform", None)
    shift, scale = (0.0, 1.0) if transform is None else (float(transform.means), float(transform.stdvs))
    return Dense(shift + scale * mean, scale**2 * covariance, scale**2 * residual, scale**2 * float(noise.mean()))


def grid(side: int) -> Tensor:
    axis = torch.linspace(0.0, 1.0, side, dtype=torch.float64)
    return torch.cartesian_prod(axis, axis)


__all__ = ["BOUNDS", "Ordinary", "SparseGP", "build", "data", "dense", "grid"]
