"""Random dictionaries of diverse points: kernel k-means++, and the k-DPP of the kernel matrix by a Markov chain of swaps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, Gram, kernel_gram
from sparse_bo.dictionary.leverage import Sketch, ridge_scores, sketch_tail
from sparse_bo.dictionary.simple import SizedSampler
from sparse_bo.linalg.cholesky import pivoted_cholesky, safe_cholesky
from sparse_bo.linalg.reductions import running_sums
from sparse_bo.validation import check_count


class KMeansPlusPlusSampler(SizedSampler):
    """Each next point with probability in proportion to its squared distance, in feature space, from the nearest so far.

    k-means++ seeding (Arthur & Vassilvitskii 2007) of kernel k-means as landmarks (Oglic & Gärtner 2017): the first point
    uniformly over pulls, then ``P(x) ∝ count · D²(x)``, ``D²(x) = min_c k(x,x) − 2k(x,c) + k(c,c)``. Repeats count as
    often as they were pulled. O(n m d) time and O(n) memory. Needs ``covariance`` of the candidates.

    Inclusion probabilities have no closed form; the dictionary reports their mean, m/n.

    Attributes:
        size: m ≥ 1; all candidates while there are no more. Fewer points where all distances are zero.
    """

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """See :meth:`Sampler.sample`. Draws ``size`` uniform numbers, one per point (none if all candidates are included)."""
        gram = kernel_gram(candidates, needed_by="KMeansPlusPlusSampler")
        if gram.n <= self.size:
            return candidates.all()
        diagonal, counts = gram.diagonal(), candidates.counts.double()
        if not bool(torch.isfinite(diagonal).all()):
            raise ValueError("expected finite variances, got NaN or infinite ones; check inputs and kernel parameters")
        draws = torch.rand(self.size, generator=generator, device="cpu", dtype=torch.float64)
        floor = 1e3 * torch.finfo(torch.float64).eps * diagonal.max()  # distances are differences of kernel values
        distances, weights = torch.full_like(diagonal, torch.inf), counts
        picked = torch.zeros_like(diagonal, dtype=torch.bool)
        for draw in draws:
            ends = running_sums(weights.cpu())  # the choice is made there: two waits
            if not bool(ends[-1] > 0.0):
                break
            # An interval of no length is never hit: the first end beyond the mark, or the last one that is not flat.
            p = torch.minimum(torch.searchsorted(ends, draw * ends[-1], right=True), torch.searchsorted(ends, ends[-1]))
            p = p.reshape(1).to(diagonal.device)
            picked.index_fill_(0, p, True)
            to_new = diagonal + diagonal[p] - 2.0 * gram.column(p)
            distances = torch.minimum(distances, to_new)
            weights = (counts * distances).masked_fill(picked | (distances <= floor), 0.0)
        rows = picked.nonzero().squeeze(-1)
        return candidates.dictionary(rows, len(rows) / gram.n)


@dataclass(frozen=True, kw_only=True)
class KDPPSampler(SizedSampler):
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

    steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            check_count("steps", self.steps, minimum=0)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """See :meth:`Sampler.sample`. Draws three uniform numbers per proposal (none if all candidates are included)."""
        gram = kernel_gram(candidates, needed_by="KDPPSampler")
        if gram.n <= self.size:
            return candidates.all()
        gram = Gram(gram.covariance, gram.inputs, candidates.counts.double().sqrt())
        diagonal = gram.diagonal()
        steps = 10 * self.size if self.steps is None else self.steps
        draws = torch.rand(3, steps, generator=generator, device="cpu", dtype=torch.float64)
        rows = pivoted_cholesky(gram.column, diagonal, size=self.size).rows
        rows = swap_chain(gram, rows, draws.to(diagonal.device)).sort().values if len(rows) else rows.new_zeros(1)
        return candidates.dictionary(rows, len(rows) / gram.n)


def swap_chain(gram: Gram, start: Tensor, draws: Tensor, *, block: int = 64, refresh: int = 64) -> Tensor:
    """Return the last state of the k-DPP's chain, ``m`` rows. O(n m² + steps · m²).

    Notation: ``A`` ``n x n`` the kernel matrix over pulls plus a round-off on its diagonal; ``S`` the state, m rows, first
    ``start``; ``M = A_SS⁻¹``; for a proposed row j: ``v = A_Sj``, ``b = M v``, ``A_jj − vᵀb`` its variance given S. ``draws``
    (``3 x steps``, uniform) choose member, candidate and acceptance. Kernel columns of ``block`` proposals are evaluated
    together; the inverse is computed anew after ``refresh`` swaps.
    """
    diagonal, rows, m, swaps = gram.diagonal(), start.clone(), len(start), 0
    # Nugget in units of the largest diagonal entry: below it a chain of swaps cannot distinguish determinants.
    nugget = 1e-10 * float(diagonal.max())

    def inverse() -> Tensor:
        A = gram.block(rows, rows)
        A.diagonal().add_(nugget)
        return torch.cholesky_inverse(safe_cholesky(A).factor)

    proposal = swap_proposal(gram, start)
    ends = running_sums(proposal)
    proposed = torch.searchsorted(ends, draws[1] * ends[-1], right=True).clamp(max=gram.n - 1)
    members = (draws[0] * m).long().clamp(max=m - 1).tolist()
    M = inverse()
    for first in range(0, draws.shape[1], block):
        columns = proposed[first : first + block]
        V, variances = gram.block(rows, columns), diagonal[columns] + nugget  # m x q
        for t, j in enumerate(columns):
            i, v = members[first + t], V[:, t]
            b = M @ v
            left = (variances[t] - v @ b).clamp_min(0.0)  # of j given S
            # det A_{S−i+j}/det A_SS, weighted. As an index, a scalar would be read by the host.
            odds = (M[i, i] * left + b[i].square()) * proposal[rows[i : i + 1]] / proposal[j.reshape(1)]
            if not bool((draws[2, first + t] < odds) & (rows != j).all()):
                continue
            _swap(M, i, b, left)
            rows[i], swaps = j, swaps + 1
            V[i] = gram.block(j.reshape(1), columns).squeeze(0)
            if swaps % refresh == 0:
                M = inverse()
    return rows


def swap_proposal(gram: Gram, start: Tensor) -> Tensor:
    """Return the distribution of proposals, ``n``, positive: half ridge leverage scores given the start, half uniform."""
    diagonal = gram.diagonal()
    sketch = Sketch(start, torch.ones_like(diagonal[start]))
    ridge = sketch_tail(gram, sketch, rank=max(1, len(start) // 2))
    scores = ridge_scores(gram, diagonal, sketch, torch.arange(gram.n, device=start.device), ridge=ridge)
    total = scores.sum()
    uniform = torch.full_like(scores, 1.0 / gram.n)
    return 0.5 * scores / total + 0.5 * uniform if bool(total > 0.0) else uniform


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
