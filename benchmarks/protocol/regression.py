"""Regression problems with test data, and the scores of predictions on them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from botorch.test_functions import Hartmann
from torch import Tensor

from sparse_bo.problems import abalone, cadata

TEST_POINTS = 2000
NOISE = {"hartmann-6": 0.05, "generated-20": 0.1}
FEATURES = 1000
"""Cosines of the generated function."""
SPREAD = (1.0, 4.0)
"""Lengthscales of the generated function, first and last input: a geometric progression."""


@dataclass(frozen=True, eq=False)
class Data:
    """What is learned from, and what is predicted."""

    X: Tensor
    """``n x d``."""
    Y: Tensor
    """``n x 1``."""
    T: Tensor
    """``t x d``."""
    observed: Tensor
    """``t``: noisy, or a table's labels."""
    clean: Tensor | None
    """``t``, if known."""


def regression(problem: str, n: int, seed: int) -> Data:
    """Return n rows and test data; of a table, other rows of it.

    Raises:
        ValueError: If the problem is unknown, or a table has not more than n rows.
    """
    generator = torch.Generator().manual_seed(seed)
    if problem in ("cadata", "abalone"):
        table = cadata() if problem == "cadata" else abalone()
        X, y = table.arms.double(), table.values.double()
        if n >= len(X):
            raise ValueError(f"expected fewer rows than the {len(X)} of {problem}, got {n}")
        order = torch.randperm(len(X), generator=generator)
        train, test = order[:n], order[n : n + TEST_POINTS]
        return Data(X[train], y[train].unsqueeze(-1), X[test], y[test], None)
    if problem not in NOISE:
        raise ValueError(f"expected cadata, abalone, {' or '.join(NOISE)}, got {problem!r}")
    d = int(problem.rpartition("-")[2])
    f = Hartmann(dim=6, negate=True) if problem == "hartmann-6" else _Draw(d)
    X = torch.rand(n + TEST_POINTS, d, generator=generator, dtype=torch.float64)
    clean = f(X)
    Y = clean + NOISE[problem] * torch.randn(len(X), generator=generator, dtype=torch.float64)
    return Data(X[:n], Y[:n].unsqueeze(-1), X[n:], Y[n:], clean[n:])


class _Draw:
    """A draw of a Gaussian process with a Gaussian kernel, by random features (Rahimi & Recht 2007)."""

    def __init__(self, d: int) -> None:
        generator = torch.Generator().manual_seed(d)
        lengthscales = torch.logspace(math.log10(SPREAD[0]), math.log10(SPREAD[1]), d, dtype=torch.float64)
        self.frequencies = torch.randn(d, FEATURES, generator=generator, dtype=torch.float64) / lengthscales.unsqueeze(-1)
        self.phases = 2.0 * math.pi * torch.rand(FEATURES, generator=generator, dtype=torch.float64)
        self.weights = math.sqrt(2.0 / FEATURES) * torch.randn(FEATURES, generator=generator, dtype=torch.float64)

    def __call__(self, X: Tensor) -> Tensor:
        return torch.cat([(x @ self.frequencies + self.phases).cos() @ self.weights for x in X.split(4096)])


def scores(data: Data, mean: Tensor, variance: Tensor, noisy: Tensor) -> dict[str, float | None]:
    """Return RMSE, NLPD and coverage of the 95 % intervals of observations, and the mean squared z of the latent prediction.

    Args:
        data: The test data.
        mean: ``t``.
        variance: ``t``, of the function.
        noisy: ``t``, of an observation.
    """
    true = data.observed if data.clean is None else data.clean
    squares = (data.observed - mean).square()
    return {
        "rmse": float((true - mean).square().mean().sqrt()),
        "nlpd": float(0.5 * ((2.0 * math.pi * noisy).log() + squares / noisy).mean()),
        "coverage": float((squares <= 1.959964**2 * noisy).double().mean()),
        "mean_z2": None if data.clean is None else float(((data.clean - mean).square() / variance).mean()),
    }
