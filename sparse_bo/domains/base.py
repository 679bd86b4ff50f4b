"""The interface of a domain: a finite arm set or a box, and the inputs of its picks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from numpy.typing import NDArray
from torch import Tensor


def check_range(name: str, low: Tensor, high: Tensor, *, rows: int = 1) -> None:
    """Check that differences of inputs, and sums over the rows of an arm set, are finite numbers.

    Args:
        name: Name of the argument, for messages.
        low: ``d`` least values.
        high: ``d`` largest values.
        rows: Number of arms; 1 for a box.

    Raises:
        ValueError: If one is not.
    """
    low, high = low.double(), high.double()
    sums = (high - low, rows * low, rows * high)
    wide = (~torch.isfinite(torch.stack(sums)).all(dim=0)).nonzero().flatten().tolist()
    if wide:
        got = f"{float(low[wide[0]])} to {float(high[wide[0]])} in column {wide[0]}"
        kind = "differences" if rows == 1 else "differences and sums"
        raise ValueError(f"expected {name} with {kind} below 1.8e308, got {got}; divide this input by its largest value")


class Domain(ABC):
    """A finite arm set or a box in the user's dtype and device. A value.

    Policies compute with *picks*: ``q`` rows (int64) of an arm set, ``q x d`` points (float64) of a box. A domain converts
    picks to inputs in the user's dtype, and validates picks that come from a user.
    """

    indexed: ClassVar[bool]
    """Whether picks are rows of an arm set, so that an objective may be called with indices."""

    @property
    @abstractmethod
    def like(self) -> Tensor:
        """``0 x d``: a tensor of the user's dtype and device."""

    @abstractmethod
    def hull(self) -> Tensor:
        """Return the bounding box, ``2 x d`` lower and upper corner. O(a d) on arms in memory."""

    @abstractmethod
    def inputs(self, picks: Tensor) -> Tensor:
        """Return the inputs of picks, ``q x d``, in the user's dtype. O(q d)."""

    @abstractmethod
    def check(self, name: str, where: Any) -> Tensor:
        """Return a user's rows of the arms, or points in the box (to 1e-6 of its sides), as picks without gradients.

        Raises:
            TypeError: If the dtype or the device is wrong.
            ValueError: If a row is out of range, or a point is of another width, not finite, or outside the box.
        """

    @abstractmethod
    def recorded(self, picks: Tensor) -> NDArray[Any]:
        """Return picks for the journal: ``q`` arms (int64), or ``q x d`` points (float64) rounded to the user's dtype."""

    @abstractmethod
    def stacked(self, picks: Sequence[Any]) -> Tensor:
        """Return recorded picks (integers, or float64 arrays of ``d``) as one tensor of picks."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return a JSON description that identifies the domain. O(a d) for arms in memory or in a file: they are hashed."""

    @abstractmethod
    def double(self) -> Self:
        """Return the domain in float64, the dtype of policies."""

    def named(self, picks: Tensor) -> list[dict[str, Any]] | None:
        """Return picks as dictionaries of named parameters; ``None`` for domains without names. O(q)."""
        return None

    def mended(self, picks: Tensor, *, seen: Tensor, repeats: bool, generator: torch.Generator) -> Tensor:
        """Return ``q`` picks that can be evaluated: infeasible or repeated ones are replaced. Default: the picks themselves.

        Args:
            picks: ``q`` arms, or ``q x d`` points of a box.
            seen: Evaluated and pending points of the state.
            repeats: Whether picks equal to one of these are to be evaluated again.
            generator: CPU generator.
        """
        return picks

    @property
    def no_picks(self) -> Tensor:
        """Zero picks."""
        return self.stacked([])

    @property
    def dims(self) -> int:
        """Number d of inputs."""
        return self.like.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The user's dtype."""
        return self.like.dtype

    @property
    def device(self) -> torch.device:
        """Device of inputs, and of computations except those of local models (:attr:`sparse_bo.policies.Mechanism.on_cpu`)."""
        return self.like.device
