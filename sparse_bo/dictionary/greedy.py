"""Dictionaries chosen one point after another: greedy variance, IPA, IVM. All are pivoted Cholesky with another score."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, candidate_count, kernel_gram, noise_of
from sparse_bo.dictionary.simple import SizedSampler
from sparse_bo.errors import SamplerError
from sparse_bo.gp.expected_improvement import log_expected_improvement
from sparse_bo.linalg.cholesky import pivoted_cholesky


class GreedyVarianceSampler(SizedSampler):
    """The candidate of highest prior variance given those chosen before, one after another. Draws nothing.

    That is pivoted Cholesky, the greedy MAP of the determinantal point process of ``K`` (Burt et al. 2020; Chen et al. 2018),
    and BoTorch's ``GreedyVarianceReduction``, by columns: O(n m²) time and O(n m) memory, never ``n x n``. It greedily lowers
    ``tr(K − Q)``, and knows neither noise nor repeats. Needs ``covariance`` of the candidates.

    Attributes:
        size: m ≥ 1; all candidates while there are no more. Fewer points where nothing is left to explain.
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
        size: m ≥ 1; all candidates while there are no more. Fewer points where nothing is left to explain.
        maximize: Whether high means are good (as in all policies here).
    """

    maximize: bool = True

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
        size: m ≥ 1; all candidates while there are no more. Fewer points where nothing is left to learn.
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
    rows = pivoted_cholesky(gram.column, gram.diagonal(), size=sampler.size, score=score, noise=noise).rows
    return candidates.dictionary(rows.sort().values if len(rows) else rows.new_zeros(1))
