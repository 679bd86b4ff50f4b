"""Small random bandit rounds, and the same rounds as dense matrices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.arms import ArmPrior, InMemoryPosterior, KernelColumns, fit_arms
from sparse_bo.dictionary import Dictionary
from sparse_bo.gp.observations import Observations, add_observations, no_observations
from sparse_bo.kernels import covariance_function
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.linalg.reductions import repeated_rows
from tests.builders import rbf_kernel
from tests.oracles import DenseArms


def make_prior(
    arms: Tensor,
    *,
    kernel: Kernel | None = None,
    noise: float = 0.1,
    prior_mean: float = 0.0,
    sweep_dtype: torch.dtype = torch.float64,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    **more: Any,
) -> ArmPrior:
    covariance = covariance_function(kernel or rbf_kernel(scale=1.0), like=arms)
    return ArmPrior(arms, covariance, prior_mean, noise, sweep_dtype, memory_bytes, repeated_rows(arms), **more)


def arm_dictionary(arms: Tensor, indices: Tensor) -> Dictionary:
    return Dictionary(arms[indices], arms.new_ones(len(indices)), indices)


def external_dictionary(points: Tensor) -> Dictionary:
    return Dictionary(points, points.new_ones(len(points)))


def cross(prior: ArmPrior, X: Tensor, Y: Tensor) -> Tensor:
    return prior.covariance.kernel(X, Y).to_dense()


@dataclass(frozen=True)
class Problem:
    """One round: prior, pulls and dictionary."""

    prior: ArmPrior
    pulled: Tensor
    y: Tensor
    dictionary: Dictionary

    @property
    def observations(self) -> Observations:
        return add_observations(no_observations(self.prior.arms), self.prior.arms, self.pulled, self.y)

    def posterior(self, columns_bytes: int = DEFAULT_MEMORY_BYTES) -> InMemoryPosterior:
        return fit_arms(self.prior, self.observations, self.dictionary, KernelColumns(columns_bytes))[0].here

    def with_prior(self, **changes: Any) -> Problem:
        return replace(self, prior=replace(self.prior, **changes))

    def dense(self) -> DenseArms:
        s, D = self.prior, self.dictionary.points
        X = s.arms[self.pulled]
        return DenseArms(
            K_DD=cross(s, D, D),
            K_DX=cross(s, D, X),
            K_DA=cross(s, D, s.arms),
            K_AA=cross(s, s.arms, s.arms),
            K_XX=cross(s, X, X),
            K_XA=cross(s, X, s.arms),
            y=self.y,
            noise=s.regularization,
            prior_mean=s.prior_mean,
        )


def random_problem(
    seed: int,
    *,
    a: int = 20,
    d: int = 2,
    pulls: int = 8,
    m: int = 5,
    external: bool = False,
    arms: Tensor | None = None,
    device: torch.device | str = "cpu",
    **prior: Any,
) -> Problem:
    """``a`` uniform arms in the unit box, pulls with repeats, and a dictionary of ``m`` arms or external points."""
    g = torch.Generator().manual_seed(seed)
    if arms is None:
        arms = torch.rand(a, d, generator=g, dtype=torch.float64)
    a = len(arms)
    pulled = torch.randint(a, (pulls,), generator=g)
    y = torch.randn(pulls, generator=g, dtype=torch.float64) * 0.5
    if external:
        dictionary = external_dictionary(torch.rand(m, arms.shape[1], generator=g, dtype=torch.float64).to(device))
    else:
        dictionary = arm_dictionary(arms.to(device), torch.randperm(a, generator=g)[:m].sort().values.to(device))
    return Problem(make_prior(arms.to(device), **prior), pulled.to(device), y.to(device), dictionary)


def all_pulled(problem: Problem) -> Problem:
    """The same round with every distinct pulled arm as dictionary: the posterior is the exact GP's."""
    indices = problem.pulled.unique()
    return replace(problem, dictionary=arm_dictionary(problem.prior.arms, indices))
