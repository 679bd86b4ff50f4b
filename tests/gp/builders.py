"""A small regression problem with repeated pulls, as features and as dense matrices; observations of arms to learn from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.gp.dtc import NystromFactor, nystrom_factor
from sparse_bo.gp.objective_prior import KnownPrior, Prior, learn_prior
from sparse_bo.gp.observations import Observations, add_observations, no_observations
from tests import oracles
from tests.oracles import rbf


@dataclass(frozen=True)
class Regression:
    """``X`` the n distinct inputs, ``T`` test points, ``D`` the dictionary, ``y`` one value per pull in the order of X."""

    X: Tensor
    T: Tensor
    D: Tensor
    counts: Tensor
    y: Tensor
    noise: float
    prior_mean: float
    lengthscale: float
    scale: float

    def k(self, A: Tensor, B: Tensor) -> Tensor:
        return rbf(A, B, lengthscale=self.lengthscale, scale=self.scale)

    @property
    def rows(self) -> Tensor:
        """Distinct input of each pull."""
        return torch.repeat_interleave(torch.arange(len(self.X), device=self.X.device), self.counts.long())

    @property
    def pulls(self) -> Tensor:
        return self.X[self.rows]

    @property
    def sums(self) -> Tensor:
        return torch.zeros_like(self.counts).index_add(0, self.rows, self.y)

    @property
    def means(self) -> Tensor:
        return self.sums / self.counts

    @property
    def scatter(self) -> float:
        return float((self.y - self.means[self.rows]).square().sum())

    @property
    def factor(self) -> NystromFactor:
        return nystrom_factor(self.k(self.D, self.D))

    def features(self, A: Tensor) -> Tensor:
        return self.factor.features(self.k(self.D, A))

    def prior_variance(self, A: Tensor) -> Tensor:
        return torch.full_like(A[..., 0], self.scale)

    def fit(self) -> dtc.DTC:
        residuals = (self.sums - self.counts * self.prior_mean) / self.noise
        return dtc.fit(self.factor, self.features(self.X), self.counts / self.noise, residuals, prior_mean=self.prior_mean)

    def mean(self, A: Tensor | None = None) -> Tensor:
        return dtc.mean(self.fit(), self.features(self.T if A is None else A))

    def variance(self, A: Tensor | None = None) -> Tensor:
        A = self.T if A is None else A
        return dtc.variance(self.fit(), self.features(A), self.prior_variance(A))

    def exact(self) -> oracles.Gaussian:
        P, T = self.pulls, self.T
        return oracles.exact_gp(self.k(P, P), self.k(P, T), self.k(T, T), self.y, noise=self.noise, prior_mean=self.prior_mean)

    def dense(self) -> oracles.Gaussian:
        P, T, D = self.pulls, self.T, self.D
        return oracles.dtc(
            self.k(D, D), self.k(D, P), self.k(D, T), self.k(T, T), self.y, noise=self.noise, prior_mean=self.prior_mean
        )

    def condition(self) -> float:
        """Condition number of the systems behind the posterior: the dictionary's, times the data's."""
        e = torch.linalg.eigvalsh(self.k(self.D, self.D).double())
        data = 1.0 + float(self.counts.sum()) * self.scale / self.noise
        return float(e[-1] / e[0].clamp_min(1e-16 * e[-1])) ** 0.5 * data**0.5


def regression(
    seed: int,
    *,
    n: int = 8,
    m: int | None = 4,
    external: bool = False,
    noise: float = 0.1,
    prior_mean: float = 0.7,
    lengthscale: float = 0.3,
    scale: float = 1.5,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Regression:
    """Draw a problem; the dictionary is ``m`` of the inputs (``None``: all), or ``m`` points elsewhere."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64).to(dtype=dtype, device=device)

    X, T = draw(n, 2), draw(7, 2)
    counts = torch.randint(1, 5, (n,), generator=g).to(dtype=dtype, device=device)
    y = 1.0 + torch.randn(int(counts.sum()), generator=g, dtype=torch.float64).to(dtype=dtype, device=device)
    D = draw(m or n, 2) if external else X[: m or n]
    return Regression(X, torch.cat([T, X[:3]]), D, counts, y, noise, prior_mean, lengthscale, scale)


OPEN = Prior(None, None, None)


def problem(n: int = 60, noise: float = 0.1, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    arms = torch.rand(200, 2, generator=generator, dtype=torch.float64) * torch.tensor([4.0, 0.5], dtype=torch.float64) - 1.0
    index = torch.randint(200, (n,), generator=generator)
    truth = 100.0 + 5.0 * torch.sin(2.0 * arms[:, 0])
    y = truth[index] + noise * torch.randn(n, generator=generator, dtype=torch.float64)
    return arms, index, y


def hull(arms: Tensor) -> Tensor:
    return torch.stack([arms.amin(dim=0), arms.amax(dim=0)])


def observe(arms: Tensor, index: Tensor, y: Tensor) -> Observations:
    return add_observations(no_observations(arms), arms, index, y)


def learned_from(arms: Tensor, index: Tensor, y: Tensor, given: Prior = OPEN, **kwargs) -> KnownPrior:
    return learn_prior(given, observe(arms, index, y), hull(arms), generator=torch.Generator().manual_seed(3), **kwargs)


def numbers(prior: KnownPrior) -> list[float]:
    kernel = prior.covar_module
    return [
        *kernel.base_kernel.lengthscale.detach().flatten().tolist(),
        float(kernel.outputscale.detach()),
        prior.prior_mean,
        prior.regularization,
    ]
