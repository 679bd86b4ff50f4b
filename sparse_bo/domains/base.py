"""The interface of a domain: a place to evaluate, and the inputs that its picks stand for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from torch import Tensor


class Domain(ABC):
    """A finite arm set or a box, as the user gave it. A value.

    Policies compute with *picks*: ``q`` rows (int64) of an arm set, ``q x d`` points (float64) of a box. A domain says what
    inputs they stand for, in the user's dtype, and checks those that come from outside.
    """

    indexed: ClassVar[bool]
    """Whether picks are rows of an arm set, so that an objective may be called with indices."""

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """``0 x d``: a tensor of the user's dtype and device."""

    @abstractmethod
    def hull(self) -> Tensor:
        """Return the lower and the upper corner (``2 x d``) of what the domain spans. O(a d) on arms in memory."""

    @property
    @abstractmethod
    def no_picks(self) -> Tensor:
        """Zero picks."""

    @abstractmethod
    def inputs(self, picks: Tensor) -> Tensor:
        """Return the inputs that picks stand for, ``q x d``, in the user's dtype. O(q d)."""

    @abstractmethod
    def check(self, name: str, where: Tensor) -> Tensor:
        """Return where a user has evaluated (rows of the arms, or points in the box) as picks.

        Raises:
            TypeError: If the dtype is wrong.
            ValueError: If a row is out of range, or a point is not finite or outside the box.
        """

    @abstractmethod
    def recorded(self, picks: Tensor) -> NDArray[Any]:
        """Return picks as a journal keeps them: ``q`` arms (int64), or ``q x d`` points (float64) as the user gets them."""

    @abstractmethod
    def stacked(self, picks: Sequence[Any]) -> Tensor:
        """Return picks of a journal (numbers, or float64 arrays of ``d``) as one tensor of picks."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what identifies the domain, as ``json`` takes it. O(a d) where arms are data: they are hashed."""

    @abstractmethod
    def double(self) -> Self:
        """Return the domain in float64: what policies compute with."""

    def named(self, picks: Tensor) -> list[dict[str, Any]] | None:
        """Return what picks stand for by name, in a space of named parameters; ``None`` elsewhere. O(q)."""
        return None

    def mended(self, picks: Tensor, *, seen: Tensor, generator: torch.Generator) -> Tensor:
        """Return picks with what cannot be evaluated replaced; as many, and by default the same.

        Args:
            picks: ``q`` arms, or ``q x d`` points of a box.
            seen: Points that are evaluated or out, as far as the state has them.
            generator: CPU generator.
        """
        return picks

    @property
    def dims(self) -> int:
        """Number d of inputs."""
        return self.like.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The user's."""
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        """Where inputs are handed out, and where policies compute."""
        return self.like.device
