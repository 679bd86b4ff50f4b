"""A box: all points between two corners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.base import Domain
from sparse_bo.validation import FLOATING, check_finite, check_like


@dataclass(frozen=True, eq=False)
class Box(Domain):
    """The points between two corners.

    Attributes:
        bounds: ``2 x d`` lower and upper corner, lower < upper, as in BoTorch. Inputs have its dtype.

    Raises:
        TypeError: If bounds are not a float tensor.
        ValueError: If their shape is not ``2 x d``, an entry is NaN or infinite, or lower ≥ upper somewhere.
    """

    bounds: Tensor
    indexed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        bounds = self.bounds
        if not isinstance(bounds, Tensor):
            raise TypeError(f"expected bounds to be a torch.Tensor of shape 2 x d, got {type(bounds).__name__}")
        if bounds.dim() != 2 or bounds.shape[0] != 2 or bounds.shape[1] == 0:
            raise ValueError(f"expected bounds of shape 2 x d (lower and upper corner), got shape {tuple(bounds.shape)}")
        if bounds.dtype not in FLOATING:
            raise TypeError(f"expected bounds of dtype torch.float64 (or float32), got {bounds.dtype}; use bounds.double()")
        check_finite("bounds", bounds)
        wrong = (bounds[0] >= bounds[1]).nonzero().flatten().tolist()
        if wrong:
            i = wrong[0]
            raise ValueError(f"expected lower < upper bounds, got [{float(bounds[0, i])}, {float(bounds[1, i])}] in column {i}")

    @property
    def like(self) -> Tensor:
        """See :attr:`Domain.like`."""
        return self.bounds[:0]

    @property
    def no_picks(self) -> Tensor:
        """See :attr:`Domain.no_picks`."""
        return self.bounds[:0].to(torch.float64)

    def hull(self) -> Tensor:
        """See :meth:`Domain.hull`."""
        return self.bounds

    def inputs(self, picks: Tensor) -> Tensor:
        """See :meth:`Domain.inputs`."""
        return picks.to(self.bounds.dtype)

    def check(self, name: str, where: Tensor) -> Tensor:
        """See :meth:`Domain.check`."""
        return self.checked(name, where).to(torch.float64)

    def recorded(self, picks: Tensor) -> NDArray[Any]:
        """See :meth:`Domain.recorded`."""
        return picks.to(self.bounds.dtype).to(picks.dtype).cpu().numpy()

    def stacked(self, picks: Sequence[Any]) -> Tensor:
        """See :meth:`Domain.stacked`."""
        return torch.from_numpy(np.stack(picks)).to(self.bounds.device) if len(picks) else self.no_picks

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`."""
        bounds = self.bounds
        return {"bounds": bounds.tolist(), "dims": self.dims, "dtype": str(bounds.dtype), "device": str(bounds.device)}

    @property
    def lower(self) -> Tensor:
        """The lower corner, ``d``."""
        return self.bounds[0]

    @property
    def upper(self) -> Tensor:
        """The upper corner, ``d``."""
        return self.bounds[1]

    def double(self) -> Box:
        """See :meth:`Domain.double`."""
        return Box(self.bounds.to(torch.float64))

    def from_unit(self, U: Tensor) -> Tensor:
        """Map points of the unit cube (``… x d``) into the box."""
        return self.lower + U * (self.upper - self.lower)

    def to_unit(self, X: Tensor) -> Tensor:
        """Map points of the box (``… x d``) into the unit cube."""
        return (X - self.lower) / (self.upper - self.lower)

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

    def checked(self, name: str, X: Tensor) -> Tensor:
        """Return ``X`` (``n x d``) after checking that it is finite, of the box's width, dtype and device, and inside to 1e-6.

        Raises:
            TypeError: If it is not a tensor, or its dtype or device differs.
            ValueError: If its shape is wrong, an entry is not finite, or a point lies outside (the first is named).
        """
        if not isinstance(X, Tensor):
            raise TypeError(f"expected {name} to be a torch.Tensor, got {type(X).__name__}; use torch.as_tensor(...)")
        if X.dim() != 2 or X.shape[1] != self.dims:
            raise ValueError(f"expected {name} of shape n x {self.dims}, got shape {tuple(X.shape)}")
        check_like(name, X, self.bounds)
        check_finite(name, X)
        slack = 1e-6 * (self.upper - self.lower)
        outside = ((self.lower - slack > X) | (self.upper + slack < X)).any(dim=-1).nonzero().flatten()
        if len(outside):
            first = int(outside[0])
            raise ValueError(f"expected {name} inside the bounds, got {len(outside)} outside, the first at row {first}")
        return X


def sobol_points(n: int, dims: int, *, seed: int, start: int = 0) -> Tensor:
    """Return points ``start`` to ``start + n - 1`` of a scrambled Sobol sequence in the unit cube: ``n x d``, float64, CPU."""
    engine = torch.quasirandom.SobolEngine(dims, scramble=True, seed=seed)  # type: ignore[no-untyped-call]  # torch
    first = (engine.quasi.to(torch.float64) / 2**engine.MAXBIT).unsqueeze(0)  # the engine's own has the default dtype
    return torch.cat([first, engine.draw(start + n, dtype=torch.float64)[1:]])[start:]
