"""Recursive ridge-leverage-score sampling (Musco & Musco 2017): leverage sampling without a posterior to start from.

Notation: ``A`` ``n x n`` the whitened kernel matrix of :func:`sparse_bo.dictionary.gram.whitened_gram`, in which the ridge λ
of the papers is 1; ``S`` a weighted selection of columns; ``l_i(μ) = [A (A + μI)⁻¹]_ii`` the ridge leverage scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, chosen
from sparse_bo.dictionary.gram import Gram, whitened_gram
from sparse_bo.dictionary.simple import AllSampler
from sparse_bo.linalg.cholesky import round_off, safe_cholesky
from sparse_bo.linalg.sums import running_sums
from sparse_bo.validation import check_count, check_probability


@dataclass(frozen=True, kw_only=True)
class RecursiveRLSSampler:
    """Sample by ridge leverage scores that are estimated from a sample of half of the candidates, recursively.

    *With confidence* (``size=None``; Musco & Musco 2017, Alg. 2; S-BPE Lemma 3.8): with probability at least
    ``1 − failure_probability`` the dictionary has ``m ≤ 384 d_eff log(3 d_eff/δ)`` points and
    ``λ_max(N^{-1/2}(K − Q)N^{-1/2}) ≤ 1`` over all pulls (``λ_max(K − Q) ≤ λ`` where λ is one number), with
    ``d_eff = Tr K(K + N)⁻¹``. The constants are those of the proof: up to ``192 log(1/δ)`` candidates everything is kept.
    (Where the estimated scores sum to less than 1, the logarithm is that of 1/δ: never fewer points than the algorithm asks.)

    *Of fixed size* (after Musco & Musco 2017, Alg. 3; what practice uses): exactly ``size`` points (all if there are no more).
    At each level the ridge is the tail of the sample's own spectrum beyond rank ``k = ⌈size/(1 + log size)⌉``, divided by k.
    Inclusion probabilities are ``min(1, c · score)`` with c such that they sum to ``size``; the draw is systematic, which has
    exactly these probabilities.

    Repeats enter as the paper's rows do: a candidate of count c and noise variance ν counts as ``√(c/ν)`` of its feature,
    which gives the same matrix spectrum as c rows.

    Needs ``covariance`` and ``regularization`` of the candidates, not their leverages. O(n m²) time, O(n + m²) memory and a
    byte budget; never an ``n x n`` matrix. Accurate as long as k(x,x)·count/λ stays below about 1e10.

    Attributes:
        failure_probability: δ in (0, 1/32), of the variant with confidence.
        size: m ≥ 1 of the variant of fixed size, or ``None``.

    Example:
        >>> candidates = candidates_of(observations, None, covariance=covariance, regularization=0.2)
        >>> dictionary = RecursiveRLSSampler(failure_probability=0.01).sample(candidates, generator=generator)
        >>> residual_bound(candidates, dictionary, generator=generator).upper  # ≤ 1 but for chance δ
    """

    failure_probability: float = 0.01
    size: int | None = None

    def __post_init__(self) -> None:
        check_probability("failure_probability", self.failure_probability)
        # Lemma 3.8 of S-BPE (Musco & Musco 2017, Thm 7) holds for δ below this.
        if self.failure_probability >= (1.0 / 32.0):
            raise ValueError(f"expected failure_probability < 1/32 (S-BPE Lemma 3.8), got {self.failure_probability}")
        if self.size is not None:
            check_count("size", self.size)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return a non-empty dictionary.

        Draws, level by level downwards, one uniform number per row left (fixed size: one permutation of all rows); then
        upwards one per row of the level (fixed size: a permutation of the level and one uniform number). Nothing if all
        candidates are kept.

        Args:
            candidates: With ``covariance`` and ``regularization``.
            generator: CPU generator.

        Raises:
            SamplerError: If either is missing or does not fit.
            ValueError: If the covariance gives NaN.
        """
        gram = whitened_gram(candidates, needed_by=type(self).__name__)
        levels = self._levels(gram.n, gram.scale.device, generator)
        if len(levels) == 1:
            return AllSampler().sample(candidates, generator=generator)
        diagonal = gram.diagonal()
        sketch = Sketch(levels[-1], torch.ones_like(gram.scale[levels[-1]]))
        for depth in range(len(levels) - 2, -1, -1):
            sketch = self._sampled(gram, diagonal, sketch, levels[depth], depth, generator)
        order = sketch.rows.argsort()
        return chosen(candidates, sketch.rows[order], sketch.probabilities[order].to(candidates.counts))

    def _levels(self, n: int, device: torch.device, generator: torch.Generator) -> list[Tensor]:
        """Return the rows of each level: all, about half of them, about a quarter, … down to a level without sampling."""
        rows = torch.arange(n, device=device)
        levels = [rows]
        if self.size is not None:
            order = torch.randperm(n, generator=generator, device="cpu").to(device) if n > self.size else rows
            while len(levels[-1]) > self.size:
                levels.append(order[: (len(levels[-1]) + 1) // 2])
            return levels
        while len(levels[-1]) > 192.0 * self._log_inverse_delta(len(levels) - 1):
            draws = torch.rand(len(levels[-1]), generator=generator, device="cpu", dtype=torch.float64)
            levels.append(levels[-1][(draws < 0.5).to(device)])
        return levels

    def _log_inverse_delta(self, depth: int) -> float:
        return depth * math.log(3.0) - math.log(self.failure_probability)  # δ/3 at each level down

    def _sampled(
        self, gram: Gram, diagonal: Tensor, sketch: Sketch, rows: Tensor, depth: int, generator: torch.Generator
    ) -> Sketch:
        """Sample ``rows`` by the scores that the sketch of the level below gives them."""
        if self.size is not None:
            ridge = sketch_tail(gram, sketch, rank=math.ceil(self.size / (1.0 + math.log(self.size))))
            scores = ridge_scores(gram, diagonal, sketch, rows, ridge=ridge)
            probabilities = inclusion_of_size(scores, self.size)
            positions = systematic(probabilities, generator=generator)
            return Sketch(rows[positions], probabilities[positions])
        scores = 1.5 * ridge_scores(gram, diagonal, sketch, rows, ridge=1.0)
        logarithm = math.log(max(float(scores.sum()), 1.0)) + self._log_inverse_delta(depth)
        probabilities = (16.0 * logarithm * scores).clamp(max=1.0)
        draws = torch.rand(len(rows), generator=generator, device="cpu", dtype=torch.float64).to(rows.device)
        positions = (draws < probabilities).nonzero().squeeze(-1)
        if not len(positions):  # all scores are nearly 0: take the largest with probability 1
            positions = scores.argmax().unsqueeze(0)
            return Sketch(rows[positions], torch.ones_like(probabilities[positions]))
        return Sketch(rows[positions], probabilities[positions])


class Sketch(NamedTuple):
    """A sample of rows; the column of each has weight ``1/√probability`` in the estimates."""

    rows: Tensor
    """``s`` rows."""
    probabilities: Tensor
    """``s`` inclusion probabilities."""

    @property
    def weights(self) -> Tensor:
        """``s`` weights of the columns."""
        return self.probabilities.rsqrt()

    def inner(self, gram: Gram) -> Tensor:
        """Return ``SᵀAS``, ``s x s``."""
        return self.weights.unsqueeze(-1) * gram.block(self.rows, self.rows) * self.weights


def ridge_scores(gram: Gram, diagonal: Tensor, sketch: Sketch, rows: Tensor, *, ridge: float) -> Tensor:
    """Return ``[A − A S (SᵀAS + μI)⁻¹ SᵀA]_ii/μ`` of ``rows``, at least 0 (Musco & Musco 2017, Alg. 2, line 7). O(n s²).

    With ``S`` = all rows these are the ridge leverage scores ``l_i(μ)``.

    Args:
        gram: ``A``.
        diagonal: ``n``, its diagonal.
        sketch: ``S``.
        rows: ``q`` rows to score.
        ridge: μ > 0.
    """
    inner = sketch.inner(gram)
    inner.diagonal().add_(ridge)
    L = safe_cholesky(inner).factor
    explained = torch.empty_like(diagonal[rows])
    for part, block in gram.sweep(rows, sketch.rows):
        columns = (block * sketch.weights).T
        explained[part] = torch.linalg.solve_triangular(L, columns, upper=False).square_().sum(dim=0)
    return (diagonal[rows] - explained).clamp_min_(0.0) / ridge


def sketch_tail(gram: Gram, sketch: Sketch, *, rank: int) -> float:
    """Return ``Σ_{i>k} σ_i(SᵀAS)/k`` with ``k = rank``, not below the matrix's round-off (Musco & Musco 2017, Alg. 3). O(s³).

    At this ridge the effective dimension is at most 2k.
    """
    inner = sketch.inner(gram)
    values = torch.linalg.eigvalsh(inner)
    tail = float(values[: max(len(values) - rank, 0)].clamp_min(0.0).sum()) / rank
    return max(tail, 10.0 * round_off(inner), torch.finfo(torch.float64).tiny)


def inclusion_of_size(scores: Tensor, size: int) -> Tensor:
    """Return ``min(1, c · score)`` with c such that they sum to ``size``, ``n``; all 1 if there are no more. O(n log n).

    Rows of score 0 are left out (probability 0) unless all are 0: then all have the same probability.

    Args:
        scores: ``n``, ≥ 0.
        size: ≥ 1.
    """
    positive = scores > 0.0
    count = int(positive.sum())
    if count == 0:
        return torch.full_like(scores, min(1.0, size / len(scores)))
    if count <= size:
        return positive.to(scores)
    ordered = scores.sort(descending=True).values
    rest = running_sums(ordered.flip(0)).flip(0)  # what is left beside the j largest
    certain = torch.arange(size, device=scores.device, dtype=scores.dtype)
    factors = (size - certain) / rest[:size]  # c, if exactly the j largest are certain
    j = int((ordered[:size] * factors >= 1.0).long().cumprod(0).sum())
    factor = factors[j] if j < size else factors[size - 1]
    return (scores * factor).clamp(max=1.0)


def systematic(probabilities: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw rows with exactly these inclusion probabilities; their number is the probabilities' sum (Madow 1949). O(n log n).

    The rows are laid out in random order as intervals of their probability's length; every interval that holds one of
    ``u, u + 1, u + 2, …`` is in. Draws a permutation of n and one uniform number.

    Args:
        probabilities: ``n``, in [0, 1]; their sum is an integer ≥ 1 up to round-off.
        generator: CPU generator.

    Returns:
        The rows, ascending.
    """
    order = torch.randperm(len(probabilities), generator=generator, device="cpu").to(probabilities.device)
    start = torch.rand(1, generator=generator, device="cpu", dtype=torch.float64).to(probabilities.device)
    ends = running_sums(probabilities[order])
    total = max(1, round(float(ends[-1])))
    marks = start + torch.arange(total, device=ends.device, dtype=ends.dtype)
    hit = torch.searchsorted(ends * (total / ends[-1]), marks, right=True).clamp(max=len(order) - 1)
    return torch.unique(order[hit])
