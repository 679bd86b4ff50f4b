"""``λ_max(K − Q)`` without building ``K``, and the two-sided variance certificate that follows from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class SpectralBound(NamedTuple):
    """The largest eigenvalue of a positive semi-definite operator, from below and from above."""

    lower: float
    """A Ritz value: never above the true one."""
    upper: float
    """At least the true one, except with probability ``failure_probability`` of the call that made it."""


def largest_eigenvalue(
    matvec: Callable[[Tensor], Tensor],
    n: int,
    *,
    trace: float,
    round_off: float = 0.0,
    steps: int = 30,
    failure_probability: float = 1e-6,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator,
) -> SpectralBound:
    """Bound ``λ_max`` of a positive semi-definite operator by Lanczos from a random start. One matvec per step.

    With θ the largest Ritz value after k steps, ``λ_max ≤ θ/(1 − ε)`` but for probability δ, where
    ``ε = (log(1.648 √n/δ)/(2k − 1))²`` (Kuczyński & Woźniakowski 1992, Thm 4.2); the trace bounds it always.

    Args:
        matvec: Applies the operator to a vector (``n``).
        n: The size of the operator, ≥ 1.
        trace: The trace of the operator.
        round_off: Distance in operator norm between the operator and the one that ``matvec`` applies; added to the upper bound.
        steps: Lanczos steps k ≥ 1 (at most n are made; then θ is exact up to round-off).
        failure_probability: The upper bound fails with probability δ over the random start.
        dtype: The dtype of the vectors.
        device: The device of the vectors.
        generator: A CPU generator, which draws the start.
    """
    if n < 1 or steps < 1:
        raise ValueError(f"expected n >= 1 and steps >= 1, got {n=} and {steps=}")
    v = torch.randn(n, generator=generator, device="cpu", dtype=torch.float64).to(dtype=dtype, device=device)
    basis, diagonal, off_diagonal = [v / v.norm()], [], []
    negligible = torch.finfo(dtype).eps * max(trace, torch.finfo(dtype).tiny)
    exhausted = False  # the Krylov space is invariant: it holds every eigenvalue that the start has a part in
    for step in range(min(steps, n)):
        w = matvec(basis[-1])
        diagonal.append(torch.dot(w, basis[-1]))
        V = torch.stack(basis)
        for _ in range(2):  # twice is enough (Parlett): keeps the Ritz values honest
            w = w - V.T @ (V @ w)
        norm = w.norm()
        exhausted = step + 1 == n or float(norm) <= negligible
        if exhausted or step + 1 == min(steps, n):
            break
        off_diagonal.append(norm)
        basis.append(w / norm)
    T = torch.diag(torch.stack(diagonal))
    if off_diagonal:
        side = torch.diag(torch.stack(off_diagonal), 1)
        T = T + side + side.T
    theta = min(max(float(torch.linalg.eigvalsh(T)[-1]), 0.0), trace)
    if exhausted:
        return SpectralBound(theta, min(theta + n * negligible, trace) + round_off)
    eps = (math.log(1.648 * math.sqrt(n) / failure_probability) / (2 * len(diagonal) - 1)) ** 2
    upper = min(trace, theta / (1.0 - eps)) if eps < 1.0 else trace
    return SpectralBound(theta, upper + round_off)


def certified_factor(ratio: float) -> float:
    """Return ``1 + t`` with ``t = (ρ + √(ρ² + 4ρ))/2`` for ``ρ = λ_max(N^{-1/2}(K − Q)N^{-1/2})``, 1 if dictionary ⊇ data.

    The certificate: for *every* x, ``variance_exact/(1+t) ≤ variance_DTC ≤ (1+t) · variance_exact``. With
    counts ρ is of ``diag(c)^{1/2}(K − Q)diag(c)^{1/2}/λ``. ``ValueError`` if it is negative or not finite.
    """
    if not (0.0 <= ratio < math.inf):
        raise ValueError(f"expected a finite ratio >= 0, got {ratio}")
    return 1.0 + 0.5 * (ratio + math.sqrt(ratio * ratio + 4.0 * ratio))
