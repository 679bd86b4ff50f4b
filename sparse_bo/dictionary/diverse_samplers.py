"""Dictionaries of diverse points: greedy variance, IPA and IVM by pivoted Cholesky; k-means++ and the k-DPP at random.

At the end: greedy subsets of data whose likelihood gradients point in diverse directions (GSSBO §3.2 and §4). Notation there:
``Z`` ``n x r`` features of the data, ``K_y = Z Zᵀ + λI``, ``g = −K_y⁻¹(y − μ)`` the gradient of the log likelihood in ``y``
(Eq. 3), ``ψ_i = K_y⁻¹ e_i`` its columns (App. A.1), ``ε`` Gaussian perturbations. With features on all data ``Z Zᵀ`` is the
kernel matrix itself; with features on a dictionary of m points everything costs O(n m²).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, Gram, SizedSampler, candidate_count, kernel_gram, noise_of
from sparse_bo.dictionary.leverage_samplers import Sketch, ridge_scores, sketch_tail
from sparse_bo.errors import SamplerError
from sparse_bo.gp.expected_improvement import log_expected_improvement
from sparse_bo.linalg.cholesky import pivoted_cholesky, safe_cholesky
from sparse_bo.linalg.reductions import first_largest, running_sums
from sparse_bo.validation import check_count, check_flag


class GreedyVarianceSampler(SizedSampler):
    """The candidate of highest prior variance given those chosen before, one after another. Draws nothing.

    That is pivoted Cholesky, the greedy MAP of the determinantal point process of ``K`` (Burt et al. 2020; Chen et al. 2018),
    and BoTorch's ``GreedyVarianceReduction``, by columns: O(n m²) time and O(n m) memory, never ``n x n``. It greedily lowers
    ``tr(K − Q)``, and knows neither noise nor repeats. Needs ``covariance`` of the candidates.

    Attributes:
        size: m ≥ 1; all candidates while there are at most m. Fewer points where nothing is left to explain.
    """

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """See :meth:`Sampler.sample`. Draws nothing."""
        return _greedy(candidates, self)


@dataclass(frozen=True, kw_only=True)
class IPASampler(SizedSampler):
    """Inducing point allocation (Moss, Ober & Picheny 2023): greedy variance, weighted by how good a candidate may be.

    The greedy MAP of the determinantal point process of ``q(x) k(x, x') q(x')``: next is the candidate of highest
    ``q(x)² · variance given those chosen``, with the quality ``q(x) = σ(x) h((μ(x) − max μ)/σ(x))``,
    ``h(u) = φ(u) + u Φ(u)``: the expected improvement on the best posterior mean over the candidates, under the posterior
    before the newest batch (``leverages``, ``means``). BoTorch's ``GreedyImprovementReduction``, by columns: O(n m²)
    time, O(n m) memory. Qualities are compared by their logarithms, so that they do not underflow far below the best.
    Before there is a posterior every quality is 1: greedy variance. Needs ``covariance``, and with a posterior
    ``means`` and ``regularization`` of the candidates; the points crowd where the optimum may be, so expect a posterior
    that is poor elsewhere. Draws nothing.

    Attributes:
        size: m ≥ 1; all candidates while there are at most m. Fewer points where nothing is left to explain.
        maximize: Whether high means are good (as in all policies here).
    """

    maximize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("maximize", self.maximize)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """See :meth:`Sampler.sample`. Draws nothing."""
        candidate_count(candidates, needed_by="IPASampler")
        if candidates.leverages is None:
            return _greedy(candidates, self)
        if candidates.means is None or candidates.means.shape != candidates.leverages.shape:
            got = None if candidates.means is None else tuple(candidates.means.shape)
            raise SamplerError(
                f"IPASampler needs the posterior mean of every candidate, got means={got} for {len(candidates.leverages)} "
                "candidates; a model of several outputs or a batch has no one mean to improve: choose another sampler"
            )
        if not bool(torch.isfinite(candidates.means).all()):
            raise SamplerError("IPASampler needs finite posterior means, got NaN or infinite ones")
        means = candidates.means.double() if self.maximize else -candidates.means.double()
        variances = candidates.leverages.double() * noise_of(candidates, needed_by="IPASampler")
        floor = max(1e-12 * float(variances.max()), torch.finfo(torch.float64).tiny)
        weights = 2.0 * log_expected_improvement(means, variances.clamp_min(floor), float(means.max())).value
        return _greedy(candidates, self, score=lambda d: d.log() + weights)


class IVMSampler(SizedSampler):
    """Informative vector machine (Lawrence, Seeger & Herbrich 2002): greedily the candidate of largest information gain.

    Next is the candidate of highest information gain ``½ log(1 + count · variance/λ)``, with the variance given the (noisy)
    observations of those chosen before: noisy pivoted Cholesky, O(n m²) time and O(n m) memory. The set has at least
    ``1 − 1/e`` of the largest information ``½ log det(I + N^{-1/2} K N^{-1/2})`` of its size (the gain is submodular). Needs
    ``covariance`` and ``regularization`` of the candidates. Draws nothing.

    Attributes:
        size: m ≥ 1; all candidates while there are at most m. Fewer points where nothing is left to learn.
    """

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """See :meth:`Sampler.sample`. Draws nothing."""
        noise = noise_of(candidates, needed_by="IVMSampler") / candidates.counts.double()
        return _greedy(candidates, self, score=lambda d: d / noise, noise=noise)


def _greedy(
    candidates: Candidates,
    sampler: SizedSampler,
    *,
    score: Callable[[Tensor], Tensor] | None = None,
    noise: Tensor | None = None,
) -> Dictionary:
    """Return the pivots of the kernel matrix; without any variance the first candidate."""
    gram = kernel_gram(candidates, needed_by=type(sampler).__name__)
    if gram.n <= sampler.size:
        return candidates.all()
    rows = pivoted_cholesky(gram.column, gram.diagonal(), size=sampler.size, score=score, noise=noise)
    return candidates.dictionary(rows.sort().values if len(rows) else rows.new_zeros(1))


class KMeansPlusPlusSampler(SizedSampler):
    """Each next point with probability in proportion to its squared distance, in feature space, from the nearest so far.

    k-means++ seeding (Arthur & Vassilvitskii 2007) of kernel k-means as landmarks (Oglic & Gärtner 2017): the first point
    uniformly over pulls, then ``P(x) ∝ count · D²(x)``, ``D²(x) = min_c k(x,x) − 2k(x,c) + k(c,c)``. Repeats count as
    often as they were pulled. O(n m d) time and O(n) memory. Needs ``covariance`` of the candidates.

    Inclusion probabilities have no closed form; the dictionary reports their mean, m/n.

    Attributes:
        size: m ≥ 1; all candidates while there are at most m. Fewer points where all distances are zero.
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
        rows = pivoted_cholesky(gram.column, diagonal, size=self.size)
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
        return torch.cholesky_inverse(safe_cholesky(A))

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


class GradientColumns(NamedTuple):
    """Perturbed gradient columns as unit vectors in 2 r coordinates, with ``cos(i, j) = a_i·a_j − b_i·b_j`` for i ≠ j.

    With ``U`` an orthonormal basis of the range of Z (``n x r``) and ``c_i`` its rows, a column splits into a part inside the
    range, ``W c_i + ξ_i`` with ``W = (T Tᵀ + λI)⁻¹``, ``Z = U T``, and the part ``(e_i − U c_i)/λ`` outside. Hence
    ``ψ̃_i·ψ̃_j = (W c_i + ξ_i)·(W c_j + ξ_j) + (δ_ij − c_i·c_j)/λ²``, without an ``n x n`` matrix.
    """

    a: Tensor
    """``n x r`` inside the range, divided by the column's norm."""
    b: Tensor
    """``n x r`` ``c_i/λ``, divided by the column's norm."""

    def cosines(self, i: Tensor) -> Tensor:
        """Return the cosines of every column with columns ``i`` (``k``), ``n x k``; those of i with itself are undefined."""
        return self.a @ self.a[i].mT - self.b @ self.b[i].mT


def gradient_columns(features: Tensor, *, noise: float | Tensor, perturbation: Tensor) -> GradientColumns:
    """Return the directions of the perturbed gradient columns ``K_y⁻¹ e_i + U ξ_i``. O(n r²).

    The perturbation ``ξ`` (``n x min(n, r)``; zeros perturb nothing) lies in the range of the ``n x r`` features; with all data
    in the dictionary that is the paper's ``ε_i ~ N(0, σ_d² I_n)`` in a rotated basis. ``noise`` is λ > 0 (y²).
    """
    # On the CPU wherever the data is: a basis is one of many, and each library's may differ in signs.
    basis, triangle = (part.to(features.device) for part in torch.linalg.qr(features.cpu()))
    inner = triangle @ triangle.mT
    inner.diagonal().add_(noise)
    inside = torch.cholesky_solve(basis.mT, torch.linalg.cholesky(inner)).mT + perturbation
    outside = basis / noise
    # ‖e_i − U c_i‖² = 1 − ‖c_i‖² cancels for a point inside the range: clamp what round-off leaves below zero.
    residual = (1.0 - basis.square().sum(dim=-1)).clamp_min(0.0) / noise**2
    norms = (inside.square().sum(dim=-1) + residual).sqrt().unsqueeze(-1)
    norms = torch.where(norms > 0, norms, torch.ones_like(norms))
    return GradientColumns(inside / norms, outside / norms)


def greedy_diverse(columns: GradientColumns, *, forced: Tensor, size: int) -> Tensor:
    """Add to ``forced`` the column with the smallest summed cosine to those already in, until there are ``size``.

    The greedy form of minimising Eq. 1's double sum. Ties, but for round-off, go to the lowest index. O(n r) per addition.
    ``forced`` are ``k ≤ size`` distinct indices; returns ``size`` indices, ascending.
    """
    scores = columns.cosines(forced).sum(dim=-1)
    scores[forced] = torch.inf
    added = []
    for _ in range(size - len(forced)):
        newest = first_largest(-scores, scale=float(size)).unsqueeze(0)
        scores += columns.cosines(newest).squeeze(-1)
        scores[newest] = torch.inf
        added.append(newest)
    return torch.cat([forced, *added]).sort().values


def gradients(features: Tensor, *, noise: float | Tensor, residuals: Tensor) -> Tensor:
    """Return ``g = −K_y⁻¹(y − μ)`` (Eq. 3), ``n``, by Woodbury. O(n r²).

    From ``n x r`` features, λ > 0 (y²), and ``n`` observations less the prior mean (y).
    """
    inner = features.mT @ features
    inner.diagonal().add_(noise)
    projected = torch.cholesky_solve((features.mT @ residuals).unsqueeze(-1), torch.linalg.cholesky(inner)).squeeze(-1)
    return (features @ projected - residuals) / noise


def greedy_balanced(signs: Tensor, *, forced: Tensor, size: int, order: Tensor) -> Tensor:
    """Minimise Eq. 1's double sum for scalar gradients, whose cosines are products of signs: ``(Σ sign)²``. O(n).

    The greedy rule takes a sign opposite to the running sum while there is one, and so reaches the minimum. All points of a
    sign tie: ``order``, a permutation of all ``n`` indices, decides among them.

    Args:
        signs: ``n`` numbers −1 or 1.
        forced: ``k ≤ size`` distinct indices that are in from the start.
        size: Number of indices returned, ascending.
        order: See above.
    """
    free = torch.ones(len(signs), dtype=torch.bool, device=signs.device)
    free[forced] = False
    order = order[free[order]]
    positive, negative = (order[signs[order] == sign] for sign in (1, -1))
    k, total = size - len(forced), int(signs[forced].sum())
    # p positives and k − p negatives sum to total + 2p − k; greedy additions end where that is closest to 0.
    p = max(0, k - len(negative), min(k, len(positive), (k - total) // 2))
    return torch.cat([forced, positive[:p], negative[: k - p]]).sort().values
