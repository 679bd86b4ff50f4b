"""Dictionaries chosen one point after another: greedy variance, IPA, IVM. All are pivoted Cholesky with another score."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, candidate_count, chosen
from sparse_bo.dictionary.gram import kernel_gram, noise_of
from sparse_bo.dictionary.simple import AllSampler
from sparse_bo.errors import SamplerError
from sparse_bo.linalg.cholesky import pivoted_cholesky
from sparse_bo.validation import check_count


@dataclass(frozen=True, kw_only=True)
class GreedyVarianceSampler:
    """The candidate of highest prior variance given those chosen before, one after another. Draws nothing.

    That is pivoted Cholesky, the greedy MAP of the determinantal point process of ``K`` (Burt et al. 2020; Chen et al. 2018),
    and BoTorch's ``GreedyVarianceReduction``, by columns: O(n m²) time and O(n m) memory, never ``n x n``. It greedily lowers
    ``tr(K − Q)``, and knows neither noise nor repeats. Needs ``covariance`` of the candidates.

    Attributes:
        size: m ≥ 1; all candidates while there are no more. Fewer points where nothing is left to explain.
    """

    size: int

    def __post_init__(self) -> None:
        check_count("size", self.size)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return the points chosen. Draws nothing.

        Args:
            candidates: With ``covariance``.
            generator: Not used.

        Raises:
            SamplerError: If the covariance is missing.
            ValueError: If it gives NaN.
        """
        return _greedy(candidates, self.size, needed_by=type(self).__name__, generator=generator)


@dataclass(frozen=True, kw_only=True)
class IPASampler:
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

    size: int
    maximize: bool = True

    def __post_init__(self) -> None:
        check_count("size", self.size)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return the points chosen. Draws nothing.

        Args:
            candidates: With ``covariance``; with ``means`` and ``regularization`` if they have ``leverages``.
            generator: Not used.

        Raises:
            SamplerError: If one of these is missing or does not fit.
            ValueError: If the covariance gives NaN.
        """
        name = type(self).__name__
        candidate_count(candidates, needed_by=name)
        if candidates.leverages is None:
            return _greedy(candidates, self.size, needed_by=name, generator=generator)
        if candidates.means is None or candidates.means.shape != candidates.leverages.shape:
            got = None if candidates.means is None else tuple(candidates.means.shape)
            raise SamplerError(
                f"{name} needs the posterior mean of every candidate, got means={got} for {len(candidates.leverages)} "
                "candidates; a model of several outputs or a batch has no one mean to improve: choose another sampler"
            )
        if not bool(torch.isfinite(candidates.means).all()):
            raise SamplerError(f"{name} needs finite posterior means, got NaN or infinite ones")
        means = candidates.means.double() if self.maximize else -candidates.means.double()
        variances = candidates.leverages.double() * noise_of(candidates, needed_by=name)
        weights = 2.0 * log_improvement(means, variances)
        return _greedy(candidates, self.size, needed_by=name, generator=generator, score=lambda d: d.log() + weights)


@dataclass(frozen=True, kw_only=True)
class IVMSampler:
    """Informative vector machine (Lawrence, Seeger & Herbrich 2002): greedily the candidate of largest information gain.

    Next is the candidate of highest information gain ``½ log(1 + count · variance/λ)``, with the variance given the (noisy)
    observations of those chosen before: noisy pivoted Cholesky, O(n m²) time and O(n m) memory. The set has at least
    ``1 − 1/e`` of the largest information ``½ log det(I + N^{-1/2} K N^{-1/2})`` of its size (the gain is submodular). Needs
    ``covariance`` and ``regularization`` of the candidates. Draws nothing.

    Attributes:
        size: m ≥ 1; all candidates while there are no more. Fewer points where nothing is left to learn.
    """

    size: int

    def __post_init__(self) -> None:
        check_count("size", self.size)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return the points chosen. Draws nothing.

        Args:
            candidates: With ``covariance`` and ``regularization``.
            generator: Not used.

        Raises:
            SamplerError: If either is missing or does not fit.
            ValueError: If the covariance gives NaN.
        """
        name = type(self).__name__
        noise = noise_of(candidates, needed_by=name) / candidates.counts.double()
        return _greedy(candidates, self.size, needed_by=name, generator=generator, score=lambda d: d / noise, noise=noise)


def log_improvement(means: Tensor, variances: Tensor) -> Tensor:
    """Return ``log(σ h((μ − max μ)/σ))``, ``h(u) = φ(u) + u Φ(u)``, ``n``: log expected improvement on the best mean. O(n).

    Below u = −1, ``log h(u) = log φ(u) + log(1 − |u| r(|u|))`` with Mills' ratio r, whose difference from 1 is ``1/u²`` far
    out (relative error 3/u²). Variances are taken as at least 1e-12 of the largest.

    Args:
        means: ``n`` posterior means (y).
        variances: ``n`` posterior variances (y²), ≥ 0.
    """
    tiny = torch.finfo(variances.dtype).tiny
    sd = variances.clamp_min(max(1e-12 * float(variances.max()), tiny)).sqrt()
    u = (means - means.max()) / sd  # ≤ 0
    log_density = -0.5 * u.square() - 0.5 * math.log(2.0 * math.pi)
    near = u.clamp_min(-1.0)
    direct = (log_density.clamp_min(-1.5).exp() + near * torch.special.ndtr(near)).log()
    far = u.clamp_max(-1.0).neg()
    mills = math.sqrt(0.5 * math.pi) * torch.special.erfcx(far / math.sqrt(2.0))
    share = torch.where(far < 1e5, (1.0 - far * mills).clamp_min(tiny), far.square().reciprocal())
    return sd.log() + torch.where(u > -1.0, direct, log_density + share.log())


def _greedy(
    candidates: Candidates,
    size: int,
    *,
    needed_by: str,
    generator: torch.Generator,
    score: Callable[[Tensor], Tensor] | None = None,
    noise: Tensor | None = None,
) -> Dictionary:
    """Return the dictionary of a pivoted Cholesky factorisation; never an empty one (without any variance: the first)."""
    gram = kernel_gram(candidates, needed_by=needed_by)
    if gram.n <= size:
        return AllSampler().sample(candidates, generator=generator)
    every = slice(None)
    pivots = pivoted_cholesky(
        lambda p: gram.block(every, p.reshape(1)).squeeze(-1), gram.diagonal(), size=size, score=score, noise=noise
    )
    rows = pivots.rows.sort().values if len(pivots.rows) else torch.zeros(1, dtype=torch.long, device=pivots.rows.device)
    return chosen(candidates, rows, torch.ones_like(candidates.counts[rows]))
