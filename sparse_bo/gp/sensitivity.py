"""Total effects of the inputs on a function of the unit cube (Homma & Saltelli 1996): variances under the uniform distribution.

The total effect of an input is ``E[Var(m(u) | all other inputs)]``: its own effect and its part in every interaction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Effects(NamedTuple):
    """Total effects of the inputs."""

    values: Tensor
    """``d``, in squared units of the function."""
    rounding: float
    """Bound on the rounding error of each."""


def gaussian_effects(X: Tensor, alpha: Tensor, lengthscales: Tensor) -> Effects:
    """Return the total effects of ``m(u) = Σᵢ αᵢ Πⱼ exp(−(uⱼ − xᵢⱼ)²/2ℓⱼ²)`` in closed form. O(n² d).

    With ``cⱼ(i) = ∫ kⱼ(u, xᵢⱼ) du`` and ``Cⱼ(i, i') = ∫ kⱼ(u, xᵢⱼ) kⱼ(u, xᵢ'ⱼ) du`` over [0, 1], which are error functions, the
    effect of input j is ``Σ αᵢ αᵢ' (Cⱼ − cⱼ cⱼ) Π_{l≠j} C_l`` over all pairs. Weights of both signs cancel in it.

    Args:
        X: ``n x d`` points of the unit cube.
        alpha: ``n`` weights.
        lengthscales: ``d``.
    """

    def logs(j: int) -> Tensor:
        """Return ``log Cⱼ``, ``n x n``."""
        x, ell = X[:, j], float(lengthscales[j])
        middle, apart = (x.unsqueeze(-1) + x) / 2.0, x.unsqueeze(-1) - x
        return (0.5 * math.sqrt(math.pi) * ell * _between(middle, ell)).log() - (apart / (2.0 * ell)).square()

    inputs, effects, largest = range(X.shape[-1]), [], 0.0
    total, weights = sum(map(logs, inputs), X.new_zeros(len(X), len(X))), alpha.unsqueeze(-1) * alpha
    for j in inputs:
        log = logs(j)
        single = math.sqrt(math.pi / 2.0) * lengthscales[j] * _between(X[:, j], math.sqrt(2.0) * float(lengthscales[j]))
        others = (total - log).exp() * weights
        effects.append((others * (log.exp() - single.unsqueeze(-1) * single)).sum())
        largest = max(largest, float((others * log.exp()).abs().sum()))
    return Effects(torch.stack(effects).clamp_min(0.0), torch.finfo(X.dtype).eps * len(X) * largest)


def _between(x: Tensor, width: float) -> Tensor:
    return torch.erf((1.0 - x) / width) + torch.erf(x / width)


def sampled_effects(mean: Callable[[Tensor], Tensor], A: Tensor, B: Tensor, groups: Sequence[Tensor]) -> Tensor:
    """Return the total effects of groups of columns by Jansen's estimator (1999), one for each. (groups + 1) N evaluations.

    Args:
        mean: Values (``N``) of ``N x d`` points.
        A: ``N x d`` uniform points.
        B: ``N x d`` others, independent of them.
        groups: Columns of each group (int64).
    """
    base, effects = mean(A), []
    for columns in groups:
        changed = A.clone()
        changed[:, columns] = B[:, columns]
        effects.append(0.5 * (base - mean(changed)).square().mean())
    return torch.stack(effects)
