"""Dictionaries sampled by ridge leverage scores, from a posterior (BKB, BBKB) or estimated recursively (Musco & Musco 2017).

Notation: ``A`` ``n x n`` the whitened kernel matrix of :func:`sparse_bo.dictionary.base.whitened_gram`, in which the ridge λ
of the papers is 1; ``S`` a weighted selection of columns; ``l_i(μ) = [A (A + μI)⁻¹]_ii`` the ridge leverage scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, Gram, candidate_count, whitened_gram
from sparse_bo.errors import SamplerError
from sparse_bo.linalg.cholesky import round_off, safe_cholesky, solve_lower
from sparse_bo.linalg.reductions import running_sums
from sparse_bo.validation import check_choice, check_count, check_given, check_positive, check_probability

Inclusion = Literal["exact", "union"]


def inclusion_probabilities(leverages: Tensor, counts: Tensor, *, oversampling: float, law: Inclusion = "exact") -> Tensor:
    """Return the probability that each distinct input enters the dictionary, ``n``, in [0, 1].

    Each *pull* is kept with ``p_i = min(1, oversampling · leverage(x_i))`` (BKB Alg. 1, BBKB Alg. 1 line 13). With
    ``law="exact"`` an input pulled ``c_i`` times is in the *set* with probability ``1 − (1 − p_i)^{c_i}``, with ``"union"``
    with ``min(1, c_i oversampling · leverage)``: the authors' code, never smaller.
    """
    per_pull = (oversampling * leverages).clamp(0.0, 1.0)
    if law == "union":
        return (counts * oversampling * leverages).clamp(0.0, 1.0)
    # 1 − (1−p)^c without cancellation for small p; p = 1 gives −expm1(−inf) = 1.
    return -torch.expm1(counts * torch.log1p(-per_pull))


@dataclass(frozen=True, kw_only=True)
class Oversampled:
    """Settings of samplers by the leverages of a posterior, see :class:`LeverageSampler`."""

    oversampling: float = 2.0
    inclusion: Inclusion = "union"

    def __post_init__(self) -> None:
        check_positive("oversampling", self.oversampling)
        check_choice("inclusion", self.inclusion, ("exact", "union"))


@dataclass(frozen=True, kw_only=True)
class LeverageSampler(Oversampled):
    """Keep each pull with probability ``min(1, oversampling · leverage)`` (BKB Alg. 1; BBKB Alg. 1, lines 11–16).

    Theory asks for ``oversampling ≥ 6α log(4T/δ)/ε²`` (BKB Thm 1) or ``8 log(4T/δ)`` (BBKB Thm 1); in practice 2 to 10.

    The exact law leaves out an input with count · leverage = 1 with probability e^-q̄, the union bound never does: hence the
    default (decision 173).

    Attributes:
        oversampling: q̄ > 0.
        inclusion: Of an input pulled c times; ``"union"``: probability ``min(1, c p)``, as the authors' code;
            ``"exact"``: ``1 − (1 − p)^c``, that of at least one of its pulls being kept.
        max_size: No dictionary is larger: where more points are expected, all probabilities are lowered alike, and of what is
            drawn above it the points of the highest probability relative to their draw are kept. ``None``: any size.
    """

    max_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_given(check_count, max_size=self.max_size)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Draw one uniform number per distinct input, in order; never returns an empty dictionary. O(n).

        If chance keeps nothing, the input of highest inclusion probability (lowest index on ties) is kept. Before there is a
        posterior (no leverages) everything is kept and nothing drawn: ``S_1 = {x_1}``.
        """
        candidate_count(candidates, needed_by="LeverageSampler")
        if candidates.leverages is None:
            return candidates.all()
        probabilities = inclusion_probabilities(
            candidates.leverages, candidates.counts, oversampling=self.oversampling, law=self.inclusion
        )
        if self.max_size is not None:
            probabilities = probabilities * (self.max_size / probabilities.sum()).clamp_max(1.0)
        draws = _uniform(probabilities, generator)
        positions = (draws < probabilities).nonzero().squeeze(-1)
        if self.max_size is not None and len(positions) > self.max_size:
            order = (draws / probabilities)[positions].argsort(stable=True)
            positions = positions[order[: self.max_size]].sort().values
        positions = positions if len(positions) else probabilities.argmax().unsqueeze(0)
        return candidates.dictionary(positions, probabilities[positions])


@dataclass(frozen=True, kw_only=True)
class IncrementalLeverageSampler(Oversampled):
    """BKB's incremental dictionary (Calandriello et al. 2019, §3): old points stay with ``p_{t+1}/p_t``, new pulls join.

    A point of the last dictionary stays with probability ``min(1, p_{t+1}/p_t)``, p its inclusion probability then and now; an
    input outside joins by the pulls of the newest batch alone, with their inclusion probability. What has been dropped returns
    only if it is pulled again, so nothing but the dictionary and the newest batch is looked at, and from round to round little
    changes. With leverages that only fall each input has :class:`LeverageSampler`'s probability (``inclusion="exact"``). As the
    pulls depend on the dictionaries, the paper leaves open whether its guarantee holds; the certificate of a run does.

    Over arms: ``BKB(dictionary=IncrementalLeverageSampler())``.

    Attributes:
        oversampling: q̄ > 0, as in :class:`LeverageSampler`.
        inclusion: Of an input pulled c times: ``"union"`` or ``"exact"``, as there.
    """

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Draw as :class:`LeverageSampler` does. A ``SamplerError`` if the candidates lack the last dictionary."""
        candidate_count(candidates, needed_by="IncrementalLeverageSampler")
        if candidates.leverages is None:
            return candidates.all()
        before, new = candidates.previous_probabilities, candidates.new
        if before is None or new is None:
            missing = " and ".join(name for name, x in (("previous_probabilities", before), ("new", new)) if x is None)
            raise SamplerError(
                "IncrementalLeverageSampler goes on from the last dictionary and expected candidates with "
                f"previous_probabilities and new, got none for {missing}; use it in BKB or BBKB over arms, LeverageSampler "
                "elsewhere"
            )
        included = partial(inclusion_probabilities, candidates.leverages, oversampling=self.oversampling, law=self.inclusion)
        whole, joining = included(candidates.counts), included(new)
        staying = (whole / before.where(before > 0.0, torch.ones_like(whole))).clamp_max(1.0)
        drawn = _uniform(whole, generator) < torch.where(before > 0.0, staying, joining)
        positions = drawn.nonzero().squeeze(-1)
        positions = positions if len(positions) else whole.argmax().unsqueeze(0)
        return candidates.dictionary(positions, whole[positions])


@dataclass(frozen=True, kw_only=True)
class RecursiveRLSSampler:
    """Sample by ridge leverage scores that are estimated from a sample of half of the candidates, recursively.

    *With confidence* (``size=None``; Musco & Musco 2017, Alg. 2; S-BPE Lemma 3.8): with probability at least
    ``1 − failure_probability`` the dictionary has ``m ≤ 384 d_eff log(3 d_eff/δ)`` points and
    ``λ_max(N^{-1/2}(K − Q)N^{-1/2}) ≤ 1`` over all pulls (``λ_max(K − Q) ≤ λ`` where λ is one number), with
    ``d_eff = Tr K(K + N)⁻¹``. The constants are those of the proof: up to ``192 log(1/δ)`` candidates everything is kept.
    (Where the estimated scores sum to less than 1, the logarithm is that of 1/δ: never fewer points than the algorithm asks.)

    *Of fixed size* (after Musco & Musco 2017, Alg. 3; what practice uses): exactly ``size`` points (or all).
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
        check_given(check_count, size=self.size)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """See :meth:`Sampler.sample`.

        Draws, level by level downwards, one uniform number per row left (fixed size: one permutation of all rows); then
        upwards one per row of the level (fixed size: a permutation of the level and one uniform number). Nothing if all
        candidates are kept.
        """
        gram = whitened_gram(candidates, needed_by="RecursiveRLSSampler")
        levels = self._levels(gram.n, gram.scale.device, generator)
        if len(levels) == 1:
            return candidates.all()
        diagonal = gram.diagonal()
        sketch = Sketch(levels[-1], torch.ones_like(gram.scale[levels[-1]]))
        for depth in range(len(levels) - 2, -1, -1):
            rows = levels[depth]
            if self.size is None:
                scores = 1.5 * ridge_scores(gram, diagonal, sketch, rows, ridge=1.0)
                logarithm = math.log(max(float(scores.sum()), 1.0)) + self._log_inverse_delta(depth)
                probabilities = (16.0 * logarithm * scores).clamp(max=1.0)
                positions = (_uniform(scores, generator) < probabilities).nonzero().squeeze(-1)
                if not len(positions):  # all scores are nearly 0: take the largest with probability 1
                    positions, probabilities = scores.argmax().unsqueeze(0), torch.ones_like(probabilities)
            else:
                ridge = sketch_tail(gram, sketch, rank=math.ceil(self.size / (1.0 + math.log(self.size))))
                scores = ridge_scores(gram, diagonal, sketch, rows, ridge=ridge)
                probabilities = inclusion_of_size(scores, self.size)
                positions = systematic(probabilities, generator=generator)
            sketch = Sketch(rows[positions], probabilities[positions])
        order = sketch.rows.argsort()
        return candidates.dictionary(sketch.rows[order], sketch.probabilities[order].to(candidates.counts))

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
            levels.append(levels[-1][_uniform(levels[-1], generator) < 0.5])
        return levels

    def _log_inverse_delta(self, depth: int) -> float:
        return depth * math.log(3.0) - math.log(self.failure_probability)  # δ/3 at each level down


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
    """Return ``[A − A S (SᵀAS + μI)⁻¹ SᵀA]_ii/μ`` of ``rows`` (``q``), at least 0 (Musco & Musco 2017, Alg. 2). O(n s²).

    With ``S`` = all rows these are the ridge leverage scores ``l_i(μ)``. ``diagonal`` (``n``) is that of ``A``, ``ridge`` is μ.
    """
    inner = sketch.inner(gram)
    inner.diagonal().add_(ridge)
    L = safe_cholesky(inner)
    explained = torch.empty_like(diagonal[rows])
    for part, block in gram.sweep(rows, sketch.rows):
        columns = (block * sketch.weights).T
        explained[part] = solve_lower(L, columns).square_().sum(dim=0)
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
    return (scores * factors[min(j, size - 1)]).clamp(max=1.0)


def systematic(probabilities: Tensor, *, generator: torch.Generator) -> Tensor:
    """Draw rows with exactly these inclusion probabilities (``n``); their sum is the number of rows, ≥ 1. O(n log n).

    The rows, in random order, are intervals of their probability's length; every interval that holds one of
    ``u, u + 1, u + 2, …`` is in (Madow 1949). Draws a permutation of n and one uniform number. Returns the rows, ascending.
    """
    order = torch.randperm(len(probabilities), generator=generator, device="cpu").to(probabilities.device)
    start = torch.rand(1, generator=generator, device="cpu", dtype=torch.float64).to(probabilities.device)
    ends = running_sums(probabilities[order])
    total = max(1, round(float(ends[-1])))
    marks = start + torch.arange(total, device=ends.device, dtype=ends.dtype)
    hit = torch.searchsorted(ends * (total / ends[-1]), marks, right=True).clamp(max=len(order) - 1)
    return torch.unique(order[hit])


def _uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a number in [0, 1) for each of ``like``, float64."""
    return torch.rand(len(like), generator=generator, device="cpu", dtype=torch.float64).to(like.device)
