"""Certificates of a dictionary: bounds on ``λ_max(K − Q)`` over the pulls, without building ``K``, and what follows from them.

That is a bound on the ratio of sparse and exact variance, on both sides, at every point.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, Gram, candidates_of, whitened_gram
from sparse_bo.gp.dtc import NystromFactor, nystrom_factor
from sparse_bo.gp.observations import Observations
from sparse_bo.gp.posterior import Covariance
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, chunk_rows, row_slices


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


class Certificate(NamedTuple):
    """``variance_exact / factor ≤ variance_DTC ≤ factor · variance_exact`` for every point, for this dictionary and data.

    Attributes:
        factor: ``1 + t ≥ 1`` with ``t = (r + √(r² + 4r))/2`` and r = ``ratio``; 1 when the dictionary spans the data, 2.62 at
            r = 1.
        ratio: Upper bound on ``ρ = λ_max(diag(c)^{1/2}(K − Q)diag(c)^{1/2})/λ``: the largest variance of the data in one
            direction that the dictionary leaves unexplained, in noise variances.
        ratio_lower: Lower bound on ρ. Far below ``ratio``, more ``steps`` may give a smaller factor; near it, only another
            dictionary.
        failure_probability: Probability that the upper bound fails, over the random start of the Lanczos iteration.
    """

    factor: float
    ratio: float
    ratio_lower: float
    failure_probability: float


def certify(
    observations: Observations,
    dictionary: Dictionary,
    *,
    covariance: Covariance,
    regularization: float,
    steps: int = 30,
    failure_probability: float = 1e-6,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    generator: torch.Generator,
) -> Certificate:
    """Certify a DTC posterior without building the ``n x n`` kernel matrix.

    Cost of :func:`sparse_bo.dictionary.residual_bound`: O(n m²), then O(n² d + n m) per step.

    Args:
        observations: Data of the posterior: n distinct inputs with their counts c.
        dictionary: Its m points, rows of these inputs or not.
        covariance: The prior's kernel as a function of tensors (:func:`sparse_bo.kernels.covariance_function`).
        regularization: λ > 0 (y²).
        steps: Lanczos steps; more make the upper bound tighter.
        failure_probability: Probability that the upper bound fails.
        memory_bytes: Budget of the kernel matrix or its chunks.
        generator: CPU generator, for the random start (n normal draws).

    Raises:
        ValueError: If there are no observations.
    """
    if observations.n == 0:
        raise ValueError("expected at least one observation to certify a posterior against, got none")
    candidates = candidates_of(observations, None, covariance=covariance, regularization=regularization)
    lanczos: dict[str, Any] = {"steps": steps, "failure_probability": failure_probability, "generator": generator}
    bound = residual_bound(candidates, dictionary, memory_bytes=memory_bytes, **lanczos)
    return Certificate(certified_factor(bound.upper), bound.upper, bound.lower, failure_probability)


def residual_bound(
    candidates: Candidates,
    dictionary: Dictionary,
    *,
    steps: int = 30,
    failure_probability: float = 1e-6,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    generator: torch.Generator,
) -> SpectralBound:
    """Bound ``ρ = λ_max(N^{-1/2}(K − Q)N^{-1/2})`` over all pulls: ``λ_max(K − Q)/λ`` where λ is one number.

    S-BPE's condition ``λ_max ≤ τ²`` is ρ ≤ 1; :func:`certified_factor` makes it the certificate
    ``variance_exact/(1+t) ≤ variance_DTC ≤ (1+t) · variance_exact`` at every point. With counts it is
    ``λ_max(C^{1/2} N^{-1/2}(K − Q)N^{-1/2} C^{1/2})`` over the distinct inputs, which is the same number.

    O(n m²) for ``Q``, then O(n m + n² d) per step; the kernel matrix is stored if it fits ``memory_bytes``, and otherwise
    evaluated again in row chunks at every step.

    The upper bound covers the round-off of the kernel: an error E of ``K`` moves the Schur complement ``K − Q`` by at most
    ``‖E‖ ‖[S, SW]‖²`` with the interpolation weights ``W = K_XD K_DD⁺`` and ``S² = C/N``, which includes many pulls of one arm
    and an ill-conditioned dictionary.

    Args:
        candidates: With ``covariance`` and ``regularization``.
        dictionary: Rows of the candidates (``indices``), or external points if the candidates have no ``inputs`` of their own.
        steps: Lanczos steps; more make the upper bound tighter.
        failure_probability: Of the upper bound, over the random start.
        memory_bytes: Budget of the kernel matrix or its chunks.
        generator: CPU generator, for the random start (n normal draws).

    Raises:
        SamplerError: If covariance or regularization is missing or does not fit.
        ValueError: If the dictionary is not of these candidates, or the covariance gives NaN.
    """
    gram = whitened_gram(candidates, needed_by="residual_bound")
    points = _dictionary_inputs(candidates, dictionary, gram)
    factor = nystrom_factor(gram.covariance.cross(points, points).double())
    features = gram.inputs.new_empty(gram.n, factor.rank)
    chunk = chunk_rows(gram.n, bytes_per_row=5 * 8 * dictionary.m, memory_bytes=max(memory_bytes, 40 * dictionary.m))
    for rows in row_slices(gram.n, chunk=chunk):
        features[rows] = factor.features(gram.covariance.cross(points, gram.inputs[..., rows, :]).double())
    features = features * gram.scale.unsqueeze(-1)
    round_off = _kernel_error(gram, points) * _amplification(gram, factor, features, chunk=chunk)
    n, diagonal = gram.n, gram.diagonal()
    every = torch.arange(n, device=features.device)
    stored = None
    if 8 * n * n <= memory_bytes:
        stored = torch.cat([block for _, block in gram.sweep(every, every, memory_bytes=memory_bytes // 4)])

    def matvec(v: Tensor) -> Tensor:
        product = -(features @ (features.T @ v))
        if stored is not None:
            return product.add_(stored @ v)
        for part, block in gram.sweep(every, every, memory_bytes=memory_bytes):
            product[part] += block @ v
        return product

    trace = float((diagonal - features.square().sum(dim=-1)).clamp_min(0.0).sum())
    round_off += 4.0 * torch.finfo(features.dtype).eps * float(diagonal.sum())
    lanczos: dict[str, Any] = {"dtype": features.dtype, "device": features.device, "generator": generator}
    lanczos |= {"steps": steps, "failure_probability": failure_probability}
    return largest_eigenvalue(matvec, n, trace=trace, round_off=round_off, **lanczos)


def _kernel_error(gram: Gram, points: Tensor) -> float:
    """Return about ``‖E‖``, the error of the kernel matrix of inputs and dictionary before scaling: ``2 γ √(n + m)``.

    Entries with independent errors of size γ have that norm (Wigner); γ is estimated from ``k(X, D) − k(D, X)ᵀ``.
    """
    rows = gram.inputs[..., :512, :]
    cross = gram.covariance.cross
    asymmetry = float((cross(points, rows) - cross(rows, points).mT).abs().amax())
    entry = 4.0 * torch.finfo(torch.float64).eps * float(gram.covariance.diagonal(rows).abs().amax())
    return 2.0 * max(entry, 2.0 * asymmetry) * math.sqrt(gram.n + points.shape[-2])


def _amplification(gram: Gram, factor: NystromFactor, features: Tensor, *, chunk: int) -> float:
    """Return a bound on ``‖[S, SW]‖²`` from ``F = S Z``, by ``‖SW‖² ≤ ‖SW‖₁ ‖SW‖_∞``. O(n m r)."""
    columns, largest_row = features.new_zeros(()), 0.0
    for rows in row_slices(gram.n, chunk=chunk):
        weights = factor.lift(features[rows].mT).abs_()  # m x rows: (S W)ᵀ
        columns = columns + weights.sum(dim=1)
        largest_row = max(largest_row, float(weights.sum(dim=0).amax()))
    return float(gram.scale.square().amax()) + float(columns.amax()) * largest_row


def _dictionary_inputs(candidates: Candidates, dictionary: Dictionary, gram: Gram) -> Tensor:
    """Return the arguments of the covariance for the dictionary, ``… x m x d'``."""
    if dictionary.indices is not None:
        numbered = candidates.indices
        if numbered is None:
            positions = dictionary.indices
        else:
            positions = torch.searchsorted(numbered, dictionary.indices).clamp(max=gram.n - 1)
        found = candidates.X[positions] if int(positions.max()) < gram.n else None
        if found is not None and torch.equal(found, dictionary.points):
            return gram.inputs[..., positions, :]
    if candidates.inputs is not None:
        raise ValueError(
            "expected a dictionary of rows of these candidates (their inputs are transformed), got external points; "
            "transform both and pass candidates without inputs="
        )
    return dictionary.points.double()
