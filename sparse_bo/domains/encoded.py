"""Spaces of named parameters as domains: arms where there are few combinations, else the unit box of their columns.

On the box a policy searches the columns as if every point were a configuration; what it picks is then moved to what stands for
its values, and that is what is evaluated, recorded and told. A pick that may not be evaluated, or, in a space without a
continuum, that has been, gives way to a neighbour (:meth:`SpaceBox.mended`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.arms import Arms
from sparse_bo.domains.box import Box
from sparse_bo.domains.space import Feasible, Parameters, Space

ROUNDS, TRIED = 8, 32
"""Of a search for a neighbour: rings, each twice as wide as the one before, and points drawn in each."""
NARROWEST = 1.0 / 64
"""Standard deviation of the innermost ring, in sides of the box."""
DRAWN = 50_000
"""Points of the whole box that are looked at, at most, before none is said to be feasible."""


@dataclass(frozen=True, eq=False)
class SpaceArms(Arms):
    """Every feasible combination of a space as an arm.

    Attributes:
        points: Their columns.
        space: What they stand for.
        numbers: ``a``: which combinations of the space they are.
    """

    space: Space = field(kw_only=True)
    numbers: Tensor = field(kw_only=True)

    def named(self, picks: Tensor) -> list[Parameters]:
        """See :meth:`Domain.named`."""
        return self.space.decode(self.space.combination(self.numbers[picks.cpu()]))

    def check(self, name: str, where: Any) -> Tensor:
        """See :meth:`Domain.check`; takes dictionaries too."""
        if isinstance(where, Tensor):
            return super().check(name, where)
        known = {tuple(row): arm for arm, row in enumerate(self.points[:].tolist())}
        found = [known.get(tuple(row)) for row in self.space.encode(where, name).tolist()]
        if None in found:
            raise ValueError(_infeasible(name, where[found.index(None)]))
        return torch.tensor(found, dtype=torch.long, device=self.device)

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`; which combinations are feasible is kept as bits."""
        about = self.space.describe()
        if len(self.numbers) != self.space.count:
            bits = np.zeros(self.space.count or 0, np.uint8)
            bits[self.numbers.numpy()] = 1
            about["feasible"] = base64.b64encode(np.packbits(bits).tobytes()).decode("ascii")
        return {**super().describe(), "space": about}

    def double(self) -> SpaceArms:
        """See :meth:`Domain.double`: columns are float64 already."""
        return self


@dataclass(frozen=True, eq=False)
class SpaceBox(Box):
    """The unit box of a space's columns.

    Attributes:
        bounds: Its corners.
        space: What its points stand for.
        feasible: Which may be evaluated; ``None``: all.
        restricted: Whether the run has a feasibility function, though it may not be at hand: journals cannot keep it.
    """

    space: Space = field(kw_only=True)
    feasible: Feasible | None = field(default=None, kw_only=True)
    restricted: bool = field(default=False, kw_only=True)

    def named(self, picks: Tensor) -> list[Parameters]:
        """See :meth:`Domain.named`."""
        return self.space.decode(picks)

    def inputs(self, picks: Tensor) -> Tensor:
        """See :meth:`Domain.inputs`."""
        return super().inputs(self.space.snap(picks))

    def check(self, name: str, where: Any) -> Tensor:
        """See :meth:`Domain.check`; takes dictionaries too."""
        if isinstance(where, Tensor):
            picks = self.space.snap(super().check(name, where))
        else:
            picks = self.space.encode(where, name).to(self.device)
        for pick in picks:
            if not self._feasible(pick):
                raise ValueError(_infeasible(name, self.named(pick.unsqueeze(0))[0]))
        return picks

    def recorded(self, picks: Tensor) -> NDArray[Any]:
        """See :meth:`Domain.recorded`."""
        return super().recorded(self.space.snap(picks))

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`."""
        return {**super().describe(), "space": {**self.space.describe(), "restricted": self.restricted}}

    def double(self) -> SpaceBox:
        """See :meth:`Domain.double`."""
        return replace(self, bounds=self.bounds.to(torch.float64))

    def mended(self, picks: Tensor, *, seen: Tensor, generator: torch.Generator) -> Tensor:
        """See :meth:`Domain.mended`.

        Picks are moved to what stands for their values. One that is not feasible gives way to the nearest feasible of points
        drawn around it, in rings that widen, then anywhere; where there is no continuum, so does one that has been evaluated or
        picked, as long as there is another. Draws nothing unless one has to give way.

        Raises:
            ValueError: If no feasible point is found, or the feasibility function fails.
        """
        picks = self.space.snap(picks)
        countable = self.space.count is not None
        if self.feasible is None and not countable:
            return picks
        taken = {row.tobytes() for row in seen.cpu().numpy()} if countable else set()
        kept: list[Tensor] = []
        for pick in picks.cpu():
            if pick.numpy().tobytes() in taken or not self._feasible(pick):
                pick = self._neighbour(pick, taken, generator)
            kept.append(pick)
            if countable:
                taken.add(pick.numpy().tobytes())
        return torch.stack(kept).to(picks.device)

    def _neighbour(self, pick: Tensor, taken: set[bytes], generator: torch.Generator) -> Tensor:
        """Return a feasible point near a pick; one that is not taken, if there is any among those drawn."""
        repeated: Tensor | None = pick if self._feasible(pick) else None
        for candidates in self._rings(pick, generator):
            for u in candidates:
                new = not taken or u.numpy().tobytes() not in taken
                if (new or repeated is None) and self._feasible(u):
                    if new:
                        return u
                    repeated = u
        if repeated is None:
            raise ValueError(_none_feasible(self.space))
        return repeated

    def _rings(self, pick: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        d = len(pick)
        for ring in range(ROUNDS):
            normal = torch.randn(TRIED, d, generator=generator, dtype=torch.float64, device="cpu")
            drawn = self.space.snap((pick + 2**ring * NARROWEST * normal).clamp(0.0, 1.0))
            yield drawn[(drawn - pick).square().sum(dim=-1).argsort(stable=True)]
        yield from drawn_from(self.space, generator)

    def _feasible(self, u: Tensor) -> bool:
        return self.feasible is None or is_feasible(self.feasible, self.space.decode(u.unsqueeze(0))[0])


def drawn_from(space: Space, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield :data:`DRAWN` points of a space (``… x dims``), uniform in its columns, a thousand at a time."""
    for _ in range(DRAWN // 1000):
        yield space.snap(torch.rand(1000, space.dims, generator=generator, dtype=torch.float64, device="cpu"))


def is_feasible(feasible: Feasible, point: Parameters) -> bool:
    """Return what a feasibility function says of a point.

    Raises:
        ValueError: If it raises, or returns no truth value.
    """
    try:
        said = feasible(dict(point))
    except Exception as error:
        raise ValueError(f"the feasibility function failed at {point!r} ({type(error).__name__}: {error})") from error
    if not isinstance(said, bool | np.bool_):
        raise ValueError(f"expected the feasibility function to return True or False, got {said!r} at {point!r}")
    return bool(said)


def space_domain(space: Space | Mapping[str, Any], feasible: Feasible | None = None) -> SpaceArms | SpaceBox:
    """Return a space as a domain: arms if :attr:`Space.small`, else a box.

    Args:
        space: The space, or its parameters by name.
        feasible: Called with a dictionary: whether it may be evaluated. Among arms it is called once for each.

    Raises:
        TypeError: If the space or a parameter has the wrong kind, or the feasibility function cannot be called.
        ValueError: If no point is feasible; on a box if none of 50,000 drawn at random is.
    """
    space = space if isinstance(space, Space) else Space(space)
    if feasible is not None and not callable(feasible):
        raise TypeError(f"expected feasible to be a function of a dictionary, got {type(feasible).__name__}")
    if not space.small:
        bounds = torch.tensor([[0.0] * space.dims, [1.0] * space.dims], dtype=torch.float64, device="cpu")
        _check_some_feasible(space, feasible)
        return SpaceBox(bounds, space=space, feasible=feasible, restricted=feasible is not None)
    assert space.count is not None
    numbers = torch.arange(space.count, device="cpu")
    points = space.combination(numbers)
    if feasible is not None:
        good = [row for row, point in enumerate(space.decode(points)) if is_feasible(feasible, point)]
        if not good:
            raise ValueError(f"expected at least one feasible of {space.count:,} combinations, got none; look at feasible=")
        numbers = numbers[good]
        points = points[good]
    return SpaceArms(points, space=space, numbers=numbers)


def recorded_space(
    about: Mapping[str, Any], feasible: Feasible | None, device: str | torch.device, *, asking: bool
) -> SpaceArms | SpaceBox:
    """Return the domain of a recorded run on a space.

    Args:
        about: What identifies the run.
        feasible: The feasibility function; needed on a box whose run has one.
        device: Where to compute.
        asking: Whether the run is to go on, and not only to be looked at.

    Raises:
        ValueError: If the function is needed and not given, given and not needed, or the description is damaged.
    """
    described = about["space"]
    space = Space.of(described)
    if "bounds" in about:
        if asking and described.get("restricted") != (feasible is not None):
            what = "has a feasibility function, which a journal cannot keep; pass feasible="
            raise ValueError(f"the run {what if feasible is None else 'has no feasibility function; drop feasible='}")
        bounds = torch.tensor(about["bounds"], dtype=torch.float64, device=device)
        return SpaceBox(bounds, space=space, feasible=feasible, restricted=bool(described.get("restricted")))
    return _recorded_arms(described, space, device)


def _recorded_arms(described: Mapping[str, Any], space: Space, device: str | torch.device) -> SpaceArms:
    """Return the arms of a recorded run: journals keep which combinations were feasible."""
    if space.count is None:
        raise ValueError("the description of the space is damaged: arms cannot come from a continuum")
    numbers = torch.arange(space.count, device="cpu")
    if described.get("feasible") is not None:
        bits = np.unpackbits(np.frombuffer(base64.b64decode(described["feasible"]), np.uint8))
        numbers = torch.from_numpy(np.flatnonzero(bits[: space.count]))
    return SpaceArms(space.combination(numbers).to(device), space=space, numbers=numbers)


def names_of(described: Mapping[str, Any]) -> tuple[list[str], Callable[[Any], list[Parameters]]]:
    """Return the names of a recorded space, and what turns recorded picks (arms, or points) into dictionaries."""
    space = Space.of(described)
    if space.small:
        arms = _recorded_arms(described, space, "cpu")
        return space.names, lambda picks: arms.named(torch.as_tensor(picks, dtype=torch.long, device="cpu"))
    return space.names, lambda picks: space.decode(
        torch.as_tensor(picks, dtype=torch.float64, device="cpu").reshape(-1, space.dims)
    )


def _check_some_feasible(space: Space, feasible: Feasible | None) -> None:
    if feasible is None:
        return
    generator = torch.Generator().manual_seed(0)
    for candidates in drawn_from(space, generator):
        if any(is_feasible(feasible, point) for point in space.decode(candidates)):
            return
    raise ValueError(_none_feasible(space))


def _infeasible(name: str, point: Mapping[str, Any]) -> str:
    return f"expected {name} that are feasible, got {point!r}; leave out what feasible= refuses"


def _none_feasible(space: Space) -> str:
    return f"found no feasible point among {DRAWN:,} drawn in {space}; look at feasible=, or narrow the ranges"
