"""Domains: their interface, with the inputs of picks, and the simplest one, a box: all points between two corners."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.validation import FLOATING, check_finite, check_like


def check_range(name: str, low: Tensor, high: Tensor, *, rows: int = 1) -> None:
    """Check that differences between ``d`` least and largest inputs, and sums over ``rows`` arms, are finite numbers.

    Raises:
        ValueError: If one is not.
    """
    low, high = low.double(), high.double()
    sums = (high - low, rows * low, rows * high)
    if wide := (~torch.isfinite(torch.stack(sums)).all(dim=0)).nonzero().flatten().tolist():
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

    @property
    def input_names(self) -> list[str]:
        """Names of the ``d`` inputs in results, reports and files: ``x1``, ``x2`` and so on, unless they were given."""
        return [f"x{j + 1}" for j in range(self.dims)]

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


@dataclass(frozen=True, eq=False)
class Box(Domain):
    """The points between two corners.

    Attributes:
        bounds: ``2 x d`` lower and upper corner, lower < upper, as in BoTorch. Inputs have its dtype.

    Raises:
        TypeError: If bounds are not a float tensor.
        ValueError: If their shape is not ``2 x d``, an entry is NaN or infinite, or lower ≥ upper somewhere; if their
            difference is infinite, as that of ±1.7e308.
    """

    bounds: Tensor
    indexed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        bounds = self.bounds
        if not isinstance(bounds, Tensor):
            got = type(bounds).__name__
            fix = "named parameters are space=" if isinstance(bounds, Mapping) else "use torch.tensor([lower, upper])"
            raise TypeError(f"expected bounds to be a torch.Tensor of shape 2 x d, got {got}; {fix}")
        if bounds.dim() != 2 or bounds.shape[0] != 2 or bounds.shape[1] == 0:
            got = f"shape {tuple(bounds.shape)}"
            raise ValueError(f"expected bounds of shape 2 x d, got {got}; use torch.stack([lower, upper]) of two corners")
        if bounds.dtype not in FLOATING:
            raise TypeError(f"expected bounds of dtype torch.float64 (or float32), got {bounds.dtype}; use bounds.double()")
        if infinite := (~bounds.isfinite()).any(dim=0).nonzero().flatten().tolist():
            got = f"[{float(bounds[0, infinite[0]])}, {float(bounds[1, infinite[0]])}] for input {infinite[0]}"
            raise ValueError(f"expected finite bounds, got {got}; give the range in which to search")
        if wrong := (bounds[0] >= bounds[1]).nonzero().flatten().tolist():
            got = f"[{float(bounds[0, wrong[0]])}, {float(bounds[1, wrong[0]])}] for input {wrong[0]}"
            fix = "exchange them, or leave out an input that is constant"
            if bounds.shape[1] == 2 and bool((bounds[:, 0] < bounds[:, 1]).all()):
                fix += "; rows of a tensor are the two corners, those of a list or an array are inputs: transpose it if need be"
            raise ValueError(f"expected lower < upper bounds, got {got}; {fix}")
        check_range("bounds", bounds[0], bounds[1])

    @property
    def like(self) -> Tensor:
        """See :attr:`Domain.like`."""
        return self.bounds[:0]

    @property
    def lower(self) -> Tensor:
        """The lower corner, ``d``."""
        return self.bounds[0]

    @property
    def upper(self) -> Tensor:
        """The upper corner, ``d``."""
        return self.bounds[1]

    @property
    def groups(self) -> Tensor:
        """``d``: number of the parameter that each column belongs to, from 0 on."""
        return torch.arange(self.dims, device=self.device)

    @property
    def parameter_count(self) -> int:
        """Number of parameters: at most d, as a category has a column for each of its values."""
        return int(self.groups[-1]) + 1

    def hull(self) -> Tensor:
        """See :meth:`Domain.hull`."""
        return self.bounds

    def inputs(self, picks: Tensor) -> Tensor:
        """See :meth:`Domain.inputs`."""
        return picks.to(self.bounds.dtype)

    def check(self, name: str, where: Any) -> Tensor:
        """See :meth:`Domain.check`; of several points outside the first is named."""
        if not isinstance(where, Tensor):
            fix = f"use torch.as_tensor(list(…), dtype={self.bounds.dtype})"
            raise TypeError(f"expected {name} to be a torch.Tensor, got {type(where).__name__}; {fix}")
        if where.dim() != 2 or where.shape[1] != self.dims:
            got = f"shape {tuple(where.shape)}"
            raise ValueError(f"expected {name} of shape n x {self.dims}, got {got}; one point is 1 x {self.dims}")
        check_like(name, where, self.bounds)
        check_finite(name, where)
        lower, upper = self.bounds.double()  # differences of float32 may be beyond its range
        slack = 1e-6 * (upper - lower)
        outside = ((lower - slack > where) | (upper + slack < where)).any(dim=-1).nonzero().flatten()
        if len(outside):
            got = f"{len(outside)} outside, the first at row {int(outside[0])}"
            raise ValueError(f"expected {name} inside the bounds, got {got}; leave them out, or widen the bounds")
        return where.detach().resolve_neg().to(torch.float64)

    def recorded(self, picks: Tensor) -> NDArray[Any]:
        """See :meth:`Domain.recorded`."""
        return picks.to(self.bounds.dtype).to(picks.dtype).cpu().numpy()

    def stacked(self, picks: Sequence[Any]) -> Tensor:
        """See :meth:`Domain.stacked`."""
        return torch.from_numpy(np.array(picks, np.float64).reshape(-1, self.dims)).to(self.bounds.device)

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`."""
        bounds = self.bounds
        return {"bounds": bounds.tolist(), "dims": self.dims, "dtype": str(bounds.dtype), "device": str(bounds.device)}

    def double(self) -> Self:
        """See :meth:`Domain.double`."""
        return replace(self, bounds=self.bounds.to(torch.float64))

    def cpu(self) -> Self:
        """Return the box on the CPU."""
        return self if self.device.type == "cpu" else replace(self, bounds=self.bounds.cpu())

    def from_unit(self, U: Tensor) -> Tensor:
        """Map points of the unit cube (``… x d``) into the box."""
        return self.lower + U * (self.upper - self.lower)

    def to_unit(self, X: Tensor) -> Tensor:
        """Map points of the box (``… x d``) into the unit cube."""
        return (X - self.lower) / (self.upper - self.lower)

    def snap(self, U: Tensor) -> Tensor:
        """Move points of the unit cube (``q x d``) to those that can be evaluated: of a box without steps, all."""
        return U

    def evaluable(self, X: Tensor) -> Tensor:
        """Return points of the box (``n x d``) as they are evaluated, without infeasible ones."""
        return X

    def neighbours(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Return the values next to those of points of the unit cube (``q x d``), below and above; on a continuum ``U``."""
        return U, U

    def uniform(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw ``n x d`` uniform points; consumes ``n d`` numbers of a CPU generator."""
        return self.from_unit(torch.rand(n, self.dims, generator=generator, device="cpu", dtype=torch.float64).to(self.bounds))

    def sobol(self, n: int, *, generator: torch.Generator) -> Tensor:
        """Draw ``n x d`` points of a scrambled Sobol sequence; its seed is one integer of a CPU generator."""
        seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device="cpu"))
        return self.from_unit(sobol_points(n, self.dims, seed=seed).to(self.bounds))

    def design(self, n: int, *, start: int, generator: torch.Generator) -> Tensor:
        """Return points ``start`` to ``start + n - 1`` (``n x d``) of the scrambled Sobol sequence of a run.

        The scrambling depends on ``generator.initial_seed()`` alone, so that later asks continue the sequence, also after a
        resume. Draws nothing.
        """
        return self.from_unit(sobol_points(n, self.dims, seed=generator.initial_seed(), start=start).to(self.bounds))


def sobol_points(n: int, dims: int, *, seed: int, start: int = 0) -> Tensor:
    """Return points ``start`` to ``start + n - 1`` of a scrambled Sobol sequence in the unit cube: ``n x d``, float64, CPU."""
    engine = torch.quasirandom.SobolEngine(dims, scramble=True, seed=seed)  # type: ignore[no-untyped-call]  # torch
    first = (engine.quasi.to(torch.float64) / 2**engine.MAXBIT).unsqueeze(0)  # the engine's own has the default dtype
    return torch.cat([first, engine.draw(start + n, dtype=torch.float64)[1:]])[start:]
