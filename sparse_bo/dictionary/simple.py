"""Dictionaries without kernel or posterior: all inputs, the first m, a uniform sample, or the user's own points."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.dictionary.base import Candidates, Dictionary, candidate_count
from sparse_bo.validation import check_count, check_points


@dataclass(frozen=True, kw_only=True)
class SizedSampler:
    """A sampler of at most ``size`` points.

    Attributes:
        size: m ≥ 1; all candidates while there are no more.
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
    """The first m distinct inputs that were observed (Williams & Seeger 2001). Draws nothing."""

    def sample(self, candidates: Candidates, *, generator: torch.Generator) -> Dictionary:
        """Return the ``size`` candidates that were observed first. O(n log n)."""
        candidate_count(candidates, needed_by="FirstSampler")
        return candidates.dictionary(candidates.first_pull.argsort()[: self.size].sort().values)


class UniformSampler(SizedSampler):
    """m distinct inputs, uniformly without replacement."""

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
