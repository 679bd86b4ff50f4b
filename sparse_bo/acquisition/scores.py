"""Points with their scores, rescored only as far as the next pick needs: inside a batch scores only fall."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparse_bo.acquisition.posteriors import BatchPosterior, Points
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, row_slices

BLOCK = 64
"""Points rescored at a time."""
SWEEP = 1024
"""Points evaluated at a time when a batch starts."""
RESOLUTION = 2.0**-40
"""Scores closer than this fraction of the largest are taken to tie; the lowest row wins."""


class Scores:
    """Upper confidence bounds of a growing set of points. Lives only inside one batch.

    A score computed before a pick is an upper bound afterwards. The highest are refreshed until they are fresh, so what
    :meth:`highest` returns is exact.
    """

    def __init__(self, posterior: BatchPosterior, X: Tensor, *, width: float) -> None:
        """Score ``X`` (``p x d``) with the posterior as it is.

        Args:
            posterior: The posterior, which may have picks already.
            X: ``n x d`` points to score.
            width: Multiplies the standard deviation in the scores.
        """
        self.width, self.picks, self.X = width, posterior.picks, X
        self.stamp = torch.full((len(X),), posterior.picks, dtype=torch.long, device=X.device)
        scores, parts = [], []
        for rows in row_slices(len(X), chunk=SWEEP):
            points = posterior.prepare(X[rows])
            scores.append(self._fresh(points, posterior))
            if sum(column[0].numel() * column.element_size() for column in points.columns) * len(X) <= DEFAULT_MEMORY_BYTES:
                parts.append(points)
        self.score = torch.cat(scores)
        scale = max(float(self.score.abs().max()), torch.finfo(torch.float32).tiny)
        self.unit = RESOLUTION * 2.0 ** math.ceil(math.log2(scale))
        self.score = self._rounded(self.score)
        self.kept = parts[0].joined(*parts[1:]) if parts else None

    def __len__(self) -> int:
        return len(self.X)

    def add(self, posterior: BatchPosterior, points: Points) -> None:
        """Add points that the posterior at the batch start has been evaluated at."""
        self.X = torch.cat([self.X, points.X])
        self.score = torch.cat([self.score, self._rounded(self._fresh(points, posterior))])
        self.stamp = torch.cat([self.stamp, torch.full_like(points.mean, posterior.picks, dtype=torch.long)])
        if self.kept is not None:
            self.kept = self.kept.joined(points)

    def points(self, posterior: BatchPosterior, rows: Tensor) -> Points:
        """Return rows with their posterior at the batch start."""
        return posterior.prepare(self.X[rows]) if self.kept is None else self.kept[rows]

    def highest(self, posterior: BatchPosterior, k: int) -> Tensor:
        """Return the rows of the ``k`` highest scores (all, if there are fewer), best first; ties go to the lowest row."""
        if posterior.picks != self.picks and not posterior.monotone:
            self.score.fill_(math.inf)
        self.picks = posterior.picks
        k = min(k, len(self.X))
        while True:
            cut = self.score.topk(k).values[-1]
            stale = self.stamp < self.picks
            if not bool((stale & (self.score >= cut)).any()):
                return self.score.argsort(descending=True, stable=True)[:k]
            bounds = torch.where(stale, self.score, -math.inf)
            rows = bounds.topk(min(BLOCK, len(bounds))).indices
            rows = rows[stale[rows]]
            self.score[rows] = self._rounded(self._fresh(self.points(posterior, rows), posterior))
            self.stamp[rows] = self.picks

    def _fresh(self, points: Points, posterior: BatchPosterior) -> Tensor:
        return points.mean + self.width * posterior.variance(points).sqrt()

    def _rounded(self, score: Tensor) -> Tensor:
        return (score / self.unit).round() * self.unit
