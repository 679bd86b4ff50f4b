"""Spaces of named parameters as domains: arms if there are few combinations, else the unit box of their columns.

On the box a policy searches the columns. Its picks are moved to the encoded values of their points, and these are evaluated,
recorded and observed. An infeasible pick is replaced by a neighbour; so is, in a space without a continuous parameter, a pick
that has been evaluated (:meth:`SpaceBox.mended`).
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.arms import Arms
from sparse_bo.domains.base import Box, Domain
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.space import Feasible, Parameters, Space

ROUNDS, TRIED = 8, 32
"""Rings of a neighbour search, each twice as wide as the one before, and points drawn in each."""
NARROWEST = 1.0 / 64
"""Standard deviation of the innermost ring, in sides of the box."""
DRAWN = 50_000
"""Points drawn in the whole box before a feasible one is given up."""
REMEMBERED = 200_000
"""Infeasible points of a space without a continuum that are not asked for again: about 25 MB."""


@dataclass(frozen=True, eq=False)
class SpaceArms(Arms):
    """Every feasible combination of a space as an arm.

    Attributes:
        points: Encoded columns.
        space: The space.
        numbers: ``a`` numbers of the combinations among :meth:`Space.combinations`, ascending.
    """

    space: Space = field(kw_only=True)
    numbers: Tensor = field(kw_only=True)

    @staticmethod
    def of(space: Space, numbers: Tensor | None = None, *, device: str | torch.device = "cpu") -> SpaceArms:
        """Return the arms of some combinations (``a``, int64, ascending); ``None``: of all."""
        points = space.combinations()
        numbers = torch.arange(len(points), device="cpu") if numbers is None else numbers
        return SpaceArms(points[numbers].to(device), space=space, numbers=numbers)

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        return {key: row for row, key in enumerate(_keys(self.points[:].cpu()))}

    def named(self, picks: Tensor) -> list[Parameters]:
        """See :meth:`Domain.named`."""
        return self.space.decode(self.points[picks.to(self.device)])

    def check(self, name: str, where: Any) -> Tensor:
        """See :meth:`Domain.check`; takes dictionaries too."""
        if isinstance(where, Tensor):
            return super().check(name, where)
        rows = [self._rows.get(key, -1) for key in _keys(self.space.encode(where, name))]
        if -1 in rows:
            raise ValueError(_infeasible(name, where[rows.index(-1)]))
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def possible(self, U: Tensor) -> Iterator[bool]:
        """Yield whether each of the encoded points is one of the arms (``U``: ``n x dims``)."""
        return (key in self._rows for key in _keys(U))

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`; the feasible combinations are stored as bits."""
        about = self.space.describe()
        if len(self.numbers) != self.space.count:
            bits = np.zeros(self.space.count or 0, np.uint8)
            bits[self.numbers.numpy()] = 1
            about["feasible"] = base64.b64encode(np.packbits(bits).tobytes()).decode("ascii")
        return {**super().describe(), "space": about}


class SeenRows:
    """The distinct rows of a tensor on the CPU that grows from call to call, by their bytes."""

    def __init__(self) -> None:
        self._rows, self._counts = torch.empty(0, 0, dtype=torch.float64, device="cpu"), Counter[bytes]()
        self._added: list[bytes] = []

    def of(self, rows: Tensor) -> Container[bytes]:
        """Return the rows (``n x d``) of a tensor. O(rows after the first that differs from the last call)."""
        before, common = self._rows, min(len(self._rows), len(rows))
        if common and not torch.equal(before[:common], rows[:common]):
            common = int((before[:common] != rows[:common]).any(dim=-1).int().argmax())
        for key in [*_keys(before[common:]), *self._added]:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]
        self._counts.update(_keys(rows[common:]))
        self._rows, self._added = rows, []
        return self._counts

    def add(self, row: Tensor) -> None:
        """Add a row until the next call of :meth:`of`."""
        self._added += _keys(row.unsqueeze(0))
        self._counts.update(self._added[-1:])


def _keys(rows: Tensor) -> list[bytes]:
    return [row.tobytes() for row in (rows + 0.0).numpy()]  # of −0, the bytes of 0


@dataclass(frozen=True, eq=False)
class SpaceBox(Box):
    """The unit box of a space's columns.

    Attributes:
        bounds: Its corners.
        space: The space.
        feasible: Feasibility function; ``None``: all points are feasible.
        restricted: Whether the run has a feasibility function. A journal cannot store it, so it may be missing here.
    """

    space: Space = field(kw_only=True)
    feasible: Feasible | None = field(default=None, kw_only=True)
    restricted: bool = field(default=False, kw_only=True)
    _seen: SeenRows = field(default_factory=SeenRows, init=False, repr=False)
    _infeasible: set[bytes] = field(default_factory=set, init=False, repr=False)

    @staticmethod
    def of(space: Space, feasible: Feasible | None, *, restricted: bool, device: str | torch.device = "cpu") -> SpaceBox:
        """Return the box of a space."""
        bounds = torch.tensor([[0.0] * space.dims, [1.0] * space.dims], dtype=torch.float64, device=device)
        return SpaceBox(bounds, space=space, feasible=feasible, restricted=restricted)

    @property
    def groups(self) -> Tensor:
        """See :attr:`Box.groups`."""
        widths = torch.tensor([p.width for p in self.space.parameters.values() if p.width], device="cpu")
        return torch.arange(len(widths), device="cpu").repeat_interleave(widths).to(self.device)

    def snap(self, U: Tensor) -> Tensor:
        """See :meth:`Box.snap`: to the encoded values."""
        return self.space.snap(U)

    def evaluable(self, X: Tensor) -> Tensor:
        """See :meth:`Box.evaluable`."""
        points = self.space.told(X)
        return points if self.feasible is None else points[torch.tensor(list(self.possible(points)), device=points.device)]

    def neighbours(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Box.neighbours`; all categories are neighbours."""
        return self.space.neighbours(U)

    def named(self, picks: Tensor) -> list[Parameters]:
        """See :meth:`Domain.named`."""
        return self.space.decode(picks)

    def inputs(self, picks: Tensor) -> Tensor:
        """See :meth:`Domain.inputs`."""
        return super().inputs(self.space.snap(picks))

    def check(self, name: str, where: Any) -> Tensor:
        """See :meth:`Domain.check`; takes dictionaries too."""
        U = super().check(name, where) if isinstance(where, Tensor) else self.space.encode(where, name).to(self.device)
        picks = self.space.told(U)
        for pick, possible in zip(picks, self.possible(picks), strict=True):
            if not possible:
                raise ValueError(_infeasible(name, self.named(pick.unsqueeze(0))[0]))
        return picks

    def possible(self, U: Tensor) -> Iterator[bool]:
        """Yield whether each of the encoded points is feasible (``U``: ``n x dims``)."""
        if self.feasible is None:
            return iter([True] * len(U))
        return (_is_feasible(self.feasible, point) for point in self.space.decode(U))

    def recorded(self, picks: Tensor) -> NDArray[Any]:
        """See :meth:`Domain.recorded`."""
        return super().recorded(self.space.snap(picks))

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`."""
        return {**super().describe(), "space": {**self.space.describe(), "restricted": self.restricted}}

    def mended(self, picks: Tensor, *, seen: Tensor, repeats: bool, generator: torch.Generator) -> Tensor:
        """See :meth:`Domain.mended`. O(changed rows) where ``seen`` begins as in the call before, but for comparing the two.

        Picks are moved to the encoded values of their points, by which they may be told. An infeasible one is replaced by the
        nearest feasible of points drawn around it, in widening rings, then anywhere. In a space without a continuous parameter
        a pick that was evaluated or picked before is replaced too, while there is another; with ``repeats`` only if rounding
        has made it one. Draws nothing unless a pick is replaced.

        Raises:
            ValueError: If no feasible point is found, or the feasibility function fails.
        """
        snapped = self.space.told(picks)
        countable = self.space.count is not None
        if self.feasible is None and not countable:
            return snapped
        made, taken = snapped.cpu(), self._seen.of(seen.cpu())
        for row, (pick, wanted) in enumerate(zip(made, picks.cpu(), strict=True)):
            repeated = countable and not (repeats and torch.equal(pick, wanted)) and _keys(pick.unsqueeze(0))[0] in taken
            if repeated or not self._feasible(pick):
                made[row] = self._neighbour(pick, taken, generator)
            self._seen.add(made[row])
        return made.to(picks.device)

    def _neighbour(self, pick: Tensor, taken: Container[bytes], generator: torch.Generator) -> Tensor:
        """Return a feasible point near a pick: one that is not ``taken``, if any such point was drawn."""
        repeated = pick if self._feasible(pick) else None
        for candidates in self._rings(pick, generator):
            keys = _keys(candidates)
            rows = [row for row, key in enumerate(keys) if key not in self._infeasible]
            for row, possible in zip(rows, self.possible(candidates[rows]), strict=True):
                if possible and keys[row] not in taken:
                    return candidates[row]
                if possible and repeated is None:
                    repeated = candidates[row]
                if not possible and self.space.count is not None and len(self._infeasible) < REMEMBERED:
                    self._infeasible.add(keys[row])
        if repeated is None:
            raise ValueError(_none_feasible(self.space))
        return repeated

    def _rings(self, pick: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        for ring in range(ROUNDS):
            normal = torch.randn(TRIED, len(pick), generator=generator, dtype=torch.float64, device="cpu")
            drawn = self.space.told((pick + 2**ring * NARROWEST * normal).clamp(0.0, 1.0))
            yield drawn[(drawn - pick).square().sum(dim=-1).argsort(stable=True)]
        yield from map(self.space.told, _drawn_from(self.space, generator))

    def _feasible(self, u: Tensor) -> bool:
        return all(self.possible(u.unsqueeze(0)))


def completed(
    domain: SpaceArms | SpaceBox, points: Sequence[Mapping[str, Any]], suggested: Tensor, *, generator: torch.Generator
) -> list[Parameters]:
    """Return points with the parameters that they lack from picks of a policy, one for each.

    Where that is not feasible, from the first of up to :data:`DRAWN` drawn points with which it is.

    Raises:
        ValueError: If none of these is.
    """
    made = []
    for point, other in zip(points, domain.named(suggested), strict=True):
        for wholes in chain([[other]], map(domain.space.decode, _drawn_from(domain.space, generator))):
            tried = [domain.space.completed(point, whole, generator=generator) for whole in wholes]
            try:
                U = domain.space.encode(tried)
            except (TypeError, ValueError):  # a given value is wrong: the check of all points says which, and of which one
                made.append(tried[0] if point.keys() <= domain.space.parameters.keys() else dict(point))
                break
            found = next((one for one, possible in zip(tried, domain.possible(U), strict=True) if possible), None)
            if found is not None:
                made.append(found)
                break
        else:
            raise ValueError(f"expected a feasible point with {dict(point)!r}, got none among {DRAWN:,} drawn; change a value")
    return made


def _drawn_from(space: Space, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield :data:`DRAWN` points of a space (``… x dims``), uniform in its columns, a thousand at a time."""
    for _ in range(DRAWN // 1000):
        yield space.snap(torch.rand(1000, space.dims, generator=generator, dtype=torch.float64, device="cpu"))


def _is_feasible(feasible: Feasible, point: Parameters) -> bool:
    try:
        answer = feasible(dict(point))
    except Exception as error:
        raise ValueError(f"the feasibility function failed at {point!r} ({type(error).__name__}: {error})") from error
    if not isinstance(answer, bool | np.bool_):
        got = f"{answer!r} at {point!r}; return bool(…)"
        raise ValueError(f"expected the feasibility function to return True or False, got {got}")
    return bool(answer)


def space_domain(space: Space | Mapping[str, Any], feasible: Feasible | None = None) -> SpaceArms | SpaceBox:
    """Return a space as a domain: arms if :attr:`Space.small`, else a box.

    Args:
        space: The space, or its parameters by name.
        feasible: Feasibility function of a dictionary. For an arm set it is called once per combination.

    Raises:
        TypeError: If the space or a parameter has the wrong type, or ``feasible`` is not callable.
        ValueError: If no point is feasible; on a box if none of 50,000 drawn at random is.
    """
    space = space if isinstance(space, Space) else Space(space)
    if feasible is not None and not callable(feasible):
        raise TypeError(f"expected feasible to be a function of a dictionary, got {type(feasible).__name__}; pass a function")
    if not space.small:
        box = SpaceBox.of(space, feasible, restricted=feasible is not None)
        drawn = _drawn_from(space, torch.Generator().manual_seed(0))
        if feasible is not None and not any(any(box.possible(some)) for some in drawn):
            raise ValueError(_none_feasible(space))
        return box
    arms = SpaceArms.of(space)
    if feasible is None:
        return arms
    good = [row for row, point in enumerate(space.decode(arms.points[:])) if _is_feasible(feasible, point)]
    if not good:
        raise ValueError(f"expected at least one feasible of {space.count:,} combinations, got none; check feasible=")
    return SpaceArms.of(space, arms.numbers[good])


def check_domain(
    arms: ArmSet | Domain | None = None,
    bounds: Tensor | None = None,
    space: Space | Mapping[str, Any] | None = None,
    feasible: Feasible | None = None,
) -> Domain:
    """Return the domain of ``arms=``, ``bounds=`` or ``space=``, detached from gradients; a :class:`Domain` as it is.

    Raises:
        TypeError: If the argument has the wrong type or dtype.
        ValueError: If not exactly one is passed, arms are empty or not finite, bounds are not those of a box, a parameter
            is out of range, or no point of the space is feasible.
    """
    given = {"arms=": arms, "bounds=": bounds, "space=": space}
    names = [name for name, value in given.items() if value is not None]
    if feasible is not None and names != ["space="]:
        raise ValueError("expected feasible= with space=, got it without; leave out infeasible arms, or pass space=")
    if len(names) != 1:
        got = "none of them" if not names else f"{'both' if len(names) == 2 else 'all of'} {' and '.join(names)}; drop one"
        choices = "arms= (a x d candidates), bounds= (2 x d corners of a box) or space= (named parameters)"
        raise ValueError(f"expected either {choices}, got {got}")
    if space is not None:
        return space_domain(space, feasible)
    if bounds is not None:
        return Box(bounds.detach().resolve_neg().clone() if isinstance(bounds, Tensor) else bounds)
    if isinstance(arms, Domain):
        return arms
    assert arms is not None
    return Arms(arms.detach().resolve_neg() if isinstance(arms, Tensor) else arms)


def recorded_space(
    about: Mapping[str, Any], feasible: Feasible | None = None, device: str | torch.device = "cpu"
) -> SpaceArms | SpaceBox:
    """Return the domain of a recorded run on a space from its description.

    Raises:
        ValueError: If the description is damaged.
    """
    described = about["space"]
    space = Space.of(described)
    if "bounds" in about:
        return SpaceBox.of(space, feasible, restricted=bool(described.get("restricted")), device=device)
    if space.count is None:
        raise ValueError("the description of the space is damaged: arms cannot come from a continuum; take another copy")
    if described.get("feasible") is None:
        return SpaceArms.of(space, device=device)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(described["feasible"]), np.uint8))
    return SpaceArms.of(space, torch.from_numpy(np.flatnonzero(bits[: space.count])), device=device)


def _infeasible(name: str, point: Mapping[str, Any]) -> str:
    return f"expected {name} that are feasible, got {point!r}; leave out points that feasible= refuses"


def _none_feasible(space: Space) -> str:
    return (
        f"expected a feasible point in {space}, got none among {DRAWN:,} drawn; check feasible= (of parameters with a fixed "
        "sum leave one out: it follows from the others), or narrow the ranges"
    )
