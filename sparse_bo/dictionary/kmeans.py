"""Kernel k-means++: dictionary points by D² sampling in feature space."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sparse_bo.dictionary.base import Candidates, Dictionary, chosen
from sparse_bo.dictionary.gram import kernel_gram
from sparse_bo.dictionary.simple import AllSampler
from sparse_bo.linalg.sums import running_sums
from sparse_bo.validation import check_count


@dataclass(frozen=True, kw_only=True)
class KMeansPlusPlusSampler:
    """Each next point with probability in proportion to its squared distance, in feature space, from the nearest so far.

    k-means++ seeding (Arthur & Vassilvitskii 2007) of kernel k-means as landmarks (Oglic & Gärtner 2017): the first point
    uniformly over pulls, then ``P(x) ∝ count · D²(x)``, ``D²(x) = min_c k(x,x) − 2k(x,c) + k(c,c)``. Repeats count as
    often as they were pulled. O(n m d) time and O(n) memory. Needs ``covariance`` of the candidates.

    Inclusion probabilities have no closed form; the dictionary reports their mean, m/n.

    Attributes:
        size: m ≥ 1; all candidates while there are no more. Fewer points where all distances are zero.
    """

    size: int

    def __post_init__(self) -> None:
        check_count("size", self.size)

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Draw ``size`` uniform numbers, one per point (none if all candidates are kept).

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
            to_new = diagonal + diagonal[p] - 2.0 * gram.block(slice(None), p).squeeze(-1)
            distances = torch.minimum(distances, to_new)
            weights = (counts * distances).masked_fill(picked | (distances <= floor), 0.0)
        rows = picked.nonzero().squeeze(-1)
        return chosen(candidates, rows, torch.full_like(candidates.counts[rows], len(rows) / gram.n))
