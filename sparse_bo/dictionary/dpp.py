"""Determinantal dictionaries: the k-DPP of the kernel matrix, by a Markov chain of swaps.

Notation: ``A`` ``n x n`` the kernel matrix over pulls (``A_ij = √(c_i c_j) k(x_i, x_j)``) plus a round-off on its diagonal;
``S`` the chain's state, m rows; ``M = A_SS⁻¹``; for a proposed row j: ``v = A_Sj``, ``b = M v``, ``A_jj − vᵀb`` its variance
given S.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, chosen
from sparse_bo.dictionary.gram import Gram, kernel_gram
from sparse_bo.dictionary.recursive import Sketch, ridge_scores, sketch_tail
from sparse_bo.dictionary.simple import AllSampler
from sparse_bo.linalg.cholesky import pivoted_cholesky, safe_cholesky
from sparse_bo.linalg.sums import running_sums
from sparse_bo.validation import check_count

_BLOCK = 64
"""Proposals whose kernel columns are evaluated together; any number gives the same chain."""

_REFRESH = 64
"""Swaps after which the inverse is computed anew."""


@dataclass(frozen=True, kw_only=True)
class KDPPSampler:
    """m candidates with probability in proportion to ``det K_SS``, the k-DPP of the kernel matrix, by MCMC.

    Diverse and random: near-optimal ``E tr(K − Q)`` for its size (Burt, Rasmussen & van der Wilk 2020, §4). The chain (Anari,
    Oveis Gharan & Rezaei 2016) starts from greedy variance, swaps one member i for one candidate j, and accepts with
    Metropolis–Hastings' probability; j is proposed by ``½ · ridge leverage score + ½ · uniform`` instead of uniformly, which
    leaves the distribution unchanged and is accepted far more often. Over pulls: a candidate of count c is as likely as one of
    its c copies. O(n m² + steps · m²) time, O(n m) memory. Needs ``covariance`` of the candidates.

    The marginals have no closed form; the dictionary reports their mean, m/n.

    Attributes:
        size: m ≥ 1; all candidates while there are at most m. Fewer points if the matrix has a lower rank.
        steps: Proposals; ``None``: ``10 · size``.
    """

    size: int
    steps: int | None = None

    def __post_init__(self) -> None:
        check_count("size", self.size)
        if self.steps is not None:
            check_count("steps", self.steps, minimum=0)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Draw three uniform numbers per proposal (none if all candidates are kept).

        Args:
            candidates: With ``covariance``.
            generator: CPU generator.

        Raises:
            SamplerError: If the covariance is missing.
            ValueError: If it gives NaN.
        """
        gram = kernel_gram(candidates, needed_by=type(self).__name__)
        if gram.n <= self.size:
            return AllSampler().sample(candidates, generator=generator)
        gram = Gram(gram.covariance, gram.inputs, candidates.counts.double().sqrt())
        diagonal = gram.diagonal()
        steps = 10 * self.size if self.steps is None else self.steps
        draws = torch.rand(3, steps, generator=generator, device="cpu", dtype=torch.float64)
        start = pivoted_cholesky(lambda p: gram.block(slice(None), p.reshape(1)).squeeze(-1), diagonal, size=self.size).rows
        if not len(start):
            start = torch.zeros(1, dtype=torch.long, device=diagonal.device)
        rows = _walk(gram, diagonal, start, draws.to(diagonal.device)) if bool(diagonal.max() > 0.0) else start
        rows = rows.sort().values
        return chosen(candidates, rows, torch.full_like(candidates.counts[rows], len(rows) / gram.n))


def _walk(gram: Gram, diagonal: Tensor, start: Tensor, draws: Tensor) -> Tensor:
    """Return the chain's last state, ``m`` rows. O(steps · m²).

    Args:
        gram: ``A`` without the nugget.
        diagonal: ``n``, its diagonal.
        start: ``m`` rows, the first state.
        draws: ``3 x steps`` uniform numbers: which member, which candidate, whether accepted.
    """
    # Nugget in units of the largest diagonal entry: below it a chain of swaps cannot distinguish determinants.
    m, nugget = len(start), 1e-10 * float(diagonal.max())
    proposal = _proposal(gram, diagonal, start)
    ends = running_sums(proposal)
    proposed = torch.searchsorted(ends, draws[1] * ends[-1], right=True).clamp(max=gram.n - 1)
    members = (draws[0] * m).long().clamp(max=m - 1).tolist()
    rows, M, swaps = start.clone(), _inverse(gram, start, nugget), 0
    for first in range(0, draws.shape[1], _BLOCK):
        block = proposed[first : first + _BLOCK]
        V, variances = gram.block(rows, block), diagonal[block] + nugget  # m x q
        for t, j in enumerate(block):
            i, v = members[first + t], V[:, t]
            b = M @ v
            left = (variances[t] - v @ b).clamp_min(0.0)  # of j given S
            # det A_{S−i+j}/det A_SS, weighted. As an index, a scalar would be read by the host.
            odds = (M[i, i] * left + b[i].square()) * proposal[rows[i : i + 1]] / proposal[j.reshape(1)]
            if not bool((draws[2, first + t] < odds) & (rows != j).all()):
                continue
            _swap(M, i, b, left)
            rows[i], swaps = j, swaps + 1
            V[i] = gram.block(j.reshape(1), block).squeeze(0)
            if swaps % _REFRESH == 0:
                M = _inverse(gram, rows, nugget)
    return rows


def _proposal(gram: Gram, diagonal: Tensor, start: Tensor) -> Tensor:
    """Return the distribution of proposals, ``n``, positive: half ridge leverage scores given the start, half uniform."""
    sketch = Sketch(start, torch.ones_like(diagonal[start]))
    ridge = sketch_tail(gram, sketch, rank=max(1, len(start) // 2))
    scores = ridge_scores(gram, diagonal, sketch, torch.arange(gram.n, device=start.device), ridge=ridge)
    total = scores.sum()
    uniform = torch.full_like(scores, 1.0 / gram.n)
    return 0.5 * scores / total + 0.5 * uniform if bool(total > 0.0) else uniform


def _inverse(gram: Gram, rows: Tensor, nugget: float) -> Tensor:
    """Return ``M``, ``m x m``. O(m³)."""
    A = gram.block(rows, rows)
    A.diagonal().add_(nugget)
    return torch.cholesky_inverse(safe_cholesky(A).factor)


def _swap(M: Tensor, i: int, b: Tensor, left: Tensor) -> None:
    """Replace the i-th member by one of ``b = M v`` and variance ``left`` given S, in place in ``M``. O(m²).

    Down-dating by i leaves ``M − w wᵀ/M_ii`` (w its i-th column), under which the new member has ``b − w b_i/M_ii`` and
    variance ``left + b_i²/M_ii``; bordering by it adds ``b̃ b̃ᵀ/variance`` with −1 in place i.
    """
    w, corner, overlap = M[:, i].clone(), M[i, i].clone(), b[i].clone()
    M.addr_(w, w / corner, alpha=-1.0)
    M[i], M[:, i] = 0.0, 0.0
    bordered = b - w * (overlap / corner)
    bordered[i] = -1.0
    M.addr_(bordered, bordered / (left + overlap.square() / corner))
