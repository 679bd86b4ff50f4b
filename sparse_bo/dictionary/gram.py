"""The kernel matrix of the candidates: blocks on demand, never ``n x n``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Covariance, candidate_count
from sparse_bo.errors import SamplerError
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, chunk_rows, row_slices


@dataclass(frozen=True, eq=False)
class Gram:
    """``A = S K S`` with ``K`` the kernel matrix of n inputs and ``S = diag(scale)``, float64."""

    covariance: Covariance
    inputs: Tensor
    """``… x n x d'``."""
    scale: Tensor
    """Weight of each candidate, ``n``: both sides of the kernel matrix are multiplied by it."""

    @property
    def n(self) -> int:
        """Number of inputs."""
        return self.inputs.shape[-2]

    def diagonal(self) -> Tensor:
        """Return ``A_ii``, ``n``, at least 0. O(n d)."""
        return (self.covariance.diagonal(self.inputs).double() * self.scale.square()).clamp_min(0.0)

    def block(self, rows: Tensor | slice, columns: Tensor | slice) -> Tensor:
        """Return ``A[rows, columns]``, one kernel block. O(|rows| |columns| d)."""
        K = self.covariance.cross(self.inputs[..., rows, :], self.inputs[..., columns, :]).double()
        return K * self.scale[rows].unsqueeze(-1) * self.scale[columns]

    def sweep(
        self, rows: Tensor, columns: Tensor, *, memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``(part, A[rows[part], columns])`` with parts that cover ``rows`` within the byte budget."""
        per_row = 5 * 8 * max(len(columns), 1)  # GPyTorch's distances hold about four temporaries of the block's size
        chunk = chunk_rows(len(rows), bytes_per_row=per_row, memory_bytes=max(memory_bytes, per_row))
        for part in row_slices(len(rows), chunk=chunk):
            yield part, self.block(rows[part], columns)


def kernel_gram(candidates: Candidates, *, needed_by: str) -> Gram:
    """Return the kernel matrix ``K`` of the candidates.

    Args:
        candidates: With ``covariance``.
        needed_by: The sampler's name, for the message.

    Raises:
        SamplerError: If there is no covariance, or ``inputs`` has another number of rows than ``X``.
        ValueError: If there are no candidates.
    """
    n = candidate_count(candidates, needed_by=needed_by)
    if candidates.covariance is None:
        raise SamplerError(
            f"{needed_by} needs the prior covariance of the candidates, got covariance=None; "
            "pass candidates_of(..., covariance=...) or Candidates(..., covariance=...)"
        )
    inputs = candidates.X if candidates.inputs is None else candidates.inputs
    if inputs.shape[-2] != n:
        raise SamplerError(f"expected as many rows of candidates.inputs as of candidates.X, got {inputs.shape[-2]} and {n}")
    return Gram(candidates.covariance, inputs.double(), torch.ones(n, dtype=torch.float64, device=inputs.device))


def whitened_gram(candidates: Candidates, *, needed_by: str) -> Gram:
    """Return ``A = C^{1/2} N^{-1/2} K N^{-1/2} C^{1/2}``, with counts ``C`` and noise variances ``N``.

    Its nonzero eigenvalues are those of the kernel matrix over *pulls* divided by λ, so ridge 1 in ``A`` is ridge λ over pulls,
    and ``A_ii``'s ridge leverage score is ``count_i`` times that of one pull.

    Args:
        candidates: With ``covariance`` and ``regularization``.
        needed_by: The sampler's name, for the message.

    Raises:
        SamplerError: As :func:`kernel_gram`; or if there is no regularization, or it is not positive and finite, or not one
            number or n.
    """
    gram = kernel_gram(candidates, needed_by=needed_by)
    return Gram(gram.covariance, gram.inputs, (candidates.counts.double() / noise_of(candidates, needed_by=needed_by)).sqrt())


def noise_of(candidates: Candidates, *, needed_by: str) -> Tensor:
    """Return λ of each candidate, ``n``, float64.

    Raises:
        SamplerError: If there is none, or it is not positive, finite and one number or n.
    """
    if candidates.regularization is None:
        raise SamplerError(
            f"{needed_by} needs the regularization of the candidates, got None; "
            "pass candidates_of(..., regularization=...): λ, the noise variance of one observation"
        )
    n = candidates.X.shape[0]
    noise = torch.as_tensor(candidates.regularization, dtype=torch.float64, device=candidates.X.device)
    if noise.dim() > 1 or noise.numel() not in (1, n):
        raise SamplerError(f"expected candidates.regularization to be a number or {n} of them, got shape {tuple(noise.shape)}")
    if not bool((torch.isfinite(noise) & (noise > 0.0)).all()):
        raise SamplerError(
            f"expected positive, finite candidates.regularization, got values from {noise.min()} to {noise.max()}"
        )
    return noise.expand(n)
