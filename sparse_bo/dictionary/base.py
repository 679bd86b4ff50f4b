"""Dictionaries, the candidates and kernel matrix that a sampler chooses from, the sampler's interface, and simple samplers.

Those need neither kernel nor posterior: all inputs, the first m, a uniform sample, or the user's own points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparse_bo.errors import SamplerError
from sparse_bo.gp.observations import Observations
from sparse_bo.gp.posterior import Covariance
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, chunk_rows, row_slices
from sparse_bo.validation import check_count, check_points


@dataclass(frozen=True, eq=False)
class Dictionary:
    """An inducing set: the points whose kernel columns span the approximation."""

    points: Tensor
    """``m x d``."""
    probabilities: Tensor
    """``m`` probability with which each point was included (1 for deterministic choices)."""
    indices: Tensor | None = None
    """``m`` rows of the points in the set they were chosen from (arms, training inputs), ascending; ``None`` if external."""

    @property
    def m(self) -> int:
        """Number of points."""
        return self.points.shape[0]


class Candidates(NamedTuple):
    """The distinct inputs a sampler chooses from, in the order of their indices, with counts, leverages and prior.

    The first five fields are always set. The others are for samplers that use the kernel or the posterior; each documents the
    fields it needs, and raises without them.
    """

    X: Tensor
    """``n x d``."""
    counts: Tensor
    """``n`` observations of each."""
    leverages: Tensor | None
    """``n`` posterior variance / λ *before* the newest batch, or ``None`` before the first posterior."""
    first_pull: Tensor
    """``n`` position of each input's first observation among all."""
    indices: Tensor | None
    """``n`` rows of the inputs in the arm set; ``None`` for free inputs."""
    covariance: Covariance | None = None
    """The prior covariance, a function of rows of ``inputs``."""
    inputs: Tensor | None = None
    """``… x n x d'`` the arguments of ``covariance`` (after an input transform, for example); ``None``: ``X``."""
    regularization: Tensor | float | None = None
    """λ, the noise variance of one observation (y²): a number, or ``n`` where it differs."""
    means: Tensor | None = None
    """``n`` means (y) of the same posterior as the leverages, or ``None``."""
    previous_probabilities: Tensor | None = None
    """``n`` inclusion probability of each in the last dictionary, 0 outside it; ``None`` if unknown."""
    new: Tensor | None = None
    """``n`` observations of each in the newest batch; ``None`` if unknown."""

    def dictionary(self, positions: Tensor, probabilities: Tensor | float = 1.0) -> Dictionary:
        """Return the dictionary of the candidates at ``positions`` (``m``, ascending) with inclusion ``probabilities``."""
        if not isinstance(probabilities, Tensor):
            probabilities = torch.full_like(self.counts[positions], probabilities)
        indices = positions if self.indices is None else self.indices[positions]
        return Dictionary(self.X[positions], probabilities, indices)

    def all(self) -> Dictionary:
        """Return the dictionary of all candidates."""
        return self.dictionary(torch.arange(len(self.X), device=self.X.device))


def candidates_of(
    observations: Observations,
    leverages: Tensor | None,
    *,
    covariance: Covariance | None = None,
    regularization: Tensor | float | None = None,
    means: Tensor | None = None,
) -> Candidates:
    """Return the n distinct inputs of ``observations`` as candidates, with the fields of :class:`Candidates`."""
    seen = (observations.X, observations.counts, leverages, observations.first_pull, observations.indices)
    return Candidates(*seen, covariance=covariance, regularization=regularization, means=means)


@runtime_checkable
class Sampler(Protocol):
    """Chooses a dictionary from the data. A frozen value; its only randomness is the generator."""

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return a non-empty dictionary.

        Args:
            candidates: The distinct inputs observed so far, n ≥ 1.
            generator: CPU generator; the sampler documents how many draws it makes.

        Raises:
            ValueError: If there are no candidates, or their covariance gives NaN.
            SamplerError: If they lack a field that the sampler needs, or it does not fit.
        """
        ...


def candidate_count(candidates: Candidates, *, needed_by: str) -> int:
    """Return the number n of candidates; a ``ValueError`` if there are none."""
    n = candidates.X.shape[0]
    if n == 0:
        raise ValueError(f"{needed_by} expected at least one candidate to choose from, got none; sample after the first data")
    return n


@dataclass(frozen=True, eq=False)
class Gram:
    """``A = S K S`` with ``K`` the kernel matrix of n inputs and ``S = diag(scale)``, float64: blocks on demand."""

    covariance: Covariance
    inputs: Tensor
    """``… x n x d'``."""
    scale: Tensor
    """``n``."""

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

    def column(self, p: Tensor) -> Tensor:
        """Return ``A[:, p]``, ``n``, for one row number ``p``."""
        return self.block(slice(None), p.reshape(1)).squeeze(-1)

    def sweep(
        self, rows: Tensor, columns: Tensor, *, memory_bytes: int = DEFAULT_MEMORY_BYTES
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield ``(part, A[rows[part], columns])`` with parts that cover ``rows`` within the byte budget."""
        per_row = 5 * 8 * max(len(columns), 1)  # GPyTorch's distances hold about four temporaries of the block's size
        chunk = chunk_rows(len(rows), bytes_per_row=per_row, memory_bytes=max(memory_bytes, per_row))
        for part in row_slices(len(rows), chunk=chunk):
            yield part, self.block(rows[part], columns)


def kernel_gram(candidates: Candidates, *, needed_by: str) -> Gram:
    """Return the kernel matrix ``K`` of the candidates; a ``SamplerError`` without a covariance, or with other ``inputs``."""
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
    and ``A_ii``'s ridge leverage score is ``count_i`` times that of one pull. Errors: :func:`kernel_gram`, :func:`noise_of`.
    """
    gram = kernel_gram(candidates, needed_by=needed_by)
    return Gram(gram.covariance, gram.inputs, (candidates.counts.double() / noise_of(candidates, needed_by=needed_by)).sqrt())


def noise_of(candidates: Candidates, *, needed_by: str) -> Tensor:
    """Return λ of each candidate, ``n``, float64; a ``SamplerError`` unless it is positive, finite and one number or n."""
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


@dataclass(frozen=True, kw_only=True)
class SizedSampler:
    """A sampler of at most ``size`` points.

    Attributes:
        size: m ≥ 1; all candidates while there are at most m.
    """

    size: int

    def __post_init__(self) -> None:
        check_count("size", self.size)


@dataclass(frozen=True)
class AllSampler:
    """Every distinct input: the posterior is the exact GP's. Draws nothing."""

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return all candidates. O(n)."""
        candidate_count(candidates, needed_by="AllSampler")
        return candidates.all()


class FirstSampler(SizedSampler):
    """The first ``size`` distinct inputs that were observed (Williams & Seeger 2001). Draws nothing."""

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return the ``size`` candidates that were observed first. O(n log n)."""
        candidate_count(candidates, needed_by="FirstSampler")
        return candidates.dictionary(candidates.first_pull.argsort()[: self.size].sort().values)


class UniformSampler(SizedSampler):
    """``size`` distinct inputs, uniformly without replacement."""

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Draw one permutation of the candidates. O(n)."""
        n = candidate_count(candidates, needed_by="UniformSampler")
        order = torch.randperm(n, generator=generator, device="cpu").to(candidates.X.device)
        return candidates.dictionary(order[: self.size].sort().values, min(1.0, self.size / n))


@dataclass(frozen=True, kw_only=True, eq=False)
class FixedSampler:
    """The user's own points, the same at every resparsification. Draws nothing.

    Attributes:
        points: ``m x d``, on any device; they need not be arms. For arms, pass ``arms[indices]``.
    """

    points: Tensor

    def __post_init__(self) -> None:
        check_points("points", self.points)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return the user's dictionary; a ``ValueError`` (width) or ``TypeError`` (dtype) if it does not fit the candidates."""
        points = self.points.to(candidates.X.device)  # a policy rebuilt from a journal has them on the CPU
        check_points("points", points, like=candidates.X)
        return Dictionary(points, points.new_ones(points.shape[0]))
