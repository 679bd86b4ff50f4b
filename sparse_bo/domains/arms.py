"""Finite arm sets as domains: a tensor in memory, or rows made on request."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains.base import Domain, check_range
from sparse_bo.domains.lazy import ArmSet, LazyArms, MemmapArms, ProductGrid, digest
from sparse_bo.domains.sharded import ShardedArms, cache_rows
from sparse_bo.validation import check_indices, check_points, nearest

AT_ONCE = 2**23
"""Numbers of arms, about, that are sorted at once: 200 MB."""
MANY = 100.0
"""Ratio of the numbers of a column from which on a model knows them on another scale (:func:`column_units`)."""
ROUNDING = MANY * torch.finfo(torch.float64).eps
"""Differences of inputs up to this share of the largest count as zero."""


@dataclass(frozen=True, eq=False)
class Arms(Domain):
    """A finite set of candidates.

    Attributes:
        points: ``a x d`` candidates, float64 or float32, in memory or lazy; repeated rows are allowed. A lazy set
            validates its own rows.
        columns: Names of the inputs; empty: ``x1``, ``x2``, …
        others: Number of last rows of ``points`` that are no candidates, but inputs of observations from before the run: models
            know them, and no policy picks them.

    Raises:
        TypeError: If ``points`` is not a float tensor.
        ValueError: If it is empty or not finite, differences or the sum of a column exceed the largest float64, or there is
            not a name for each column.
    """

    points: ArmSet
    columns: tuple[str, ...] = ()
    others: int = 0
    indexed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.points, LazyArms):
            check_points("arms", self.points)
            low, high = (2.0 * len(self.points) * float(extreme) for extreme in torch.aminmax(self.points))
            if not math.isfinite(high - low):
                self.hull()
        elif isinstance(self.points, ProductGrid | MemmapArms | ShardedArms):  # of other sets it may take long
            self.hull()
        if self.columns and (len(self.columns) != self.dims or len({*self.columns}) < self.dims):
            got = ", ".join(map(repr, self.columns))
            raise ValueError(f"expected a name for each of {self.dims} columns of arms, all distinct, got {got}")

    @property
    def count(self) -> int:
        """Number a of arms that may be picked."""
        return self.points.shape[0] - self.others

    @property
    def like(self) -> Tensor:
        """See :attr:`Domain.like`."""
        return self.points[:0]

    def hull(self) -> Tensor:
        """See :meth:`Domain.hull`."""
        low, high = self.points.hull() if isinstance(self.points, LazyArms) else torch.aminmax(self.points, dim=0)
        check_range("arms", low, high, rows=self.count)
        return torch.stack([low, high])

    def inputs(self, picks: Tensor) -> Tensor:
        """See :meth:`Domain.inputs`."""
        cache_rows(self.points, picks)
        return self.points[picks]

    def check(self, name: str, where: Any) -> Tensor:
        """See :meth:`Domain.check`."""
        fix = "pass integers, or a table with a column arm or name (of arms with names=)"
        column = getattr(where, "name", None) if hasattr(where, "to_numpy") else None
        if isinstance(column, str) and column in self.columns:  # its whole numbers would be those of other arms
            raise TypeError(f"expected {name} to be row numbers of the arms, got their input {column!r}; {fix}")
        try:
            rows = torch.as_tensor(np.array(where) if hasattr(where, "to_numpy") else where, device=self.points.device)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"expected {name} to be row numbers of the arms, got {type(where).__name__}; {fix}") from error
        if rows.dim() == 2 and rows.shape[-1] == self.dims and rows.is_floating_point():
            raise TypeError(f"expected {name} as rows or names of the arms, got inputs; inputs are taken by initial= alone")
        return check_indices(name, rows, size=self.count)

    def recorded(self, picks: Tensor) -> NDArray[Any]:
        """See :meth:`Domain.recorded`."""
        return picks.cpu().numpy()

    def stacked(self, picks: Sequence[Any]) -> Tensor:
        """See :meth:`Domain.stacked`."""
        return torch.tensor(picks, dtype=torch.long, device=self.points.device)

    @property
    def input_names(self) -> list[str]:
        """See :attr:`Domain.input_names`."""
        return [*self.columns] or super().input_names

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`."""
        arms, named = self.points, {"inputs": [*self.columns]} if self.columns else {}
        about = {"arms": list(arms.shape), "dtype": str(arms.dtype), "device": str(arms.device), "arms_hash": digest(arms)}
        return {**about, **named, **({"others": self.others} if self.others else {})}

    def double(self) -> Arms:
        """See :meth:`Domain.double`."""
        return self if self.points.dtype == torch.float64 else Arms(self.points.double(), others=self.others)

    def uniform(self, q: int, *, seen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw ``q`` arms uniformly: distinct and not in ``seen`` while such arms remain, then any arms.

        Draws ``2q + 16`` integers from a CPU generator. If they hold fewer than ``q`` new arms, or if ``q`` and ``seen`` make
        up a quarter of all arms, draws a permutation of the arms and the missing integers. O(q + len(seen)), or O(a).
        """
        a, device = self.count, self.device
        if 4 * (q + len(seen)) < a:
            pool = torch.randint(a, (2 * q + 16,), generator=generator, device="cpu").tolist()
            known = set(seen.tolist())
            fresh = [i for i in dict.fromkeys(pool) if i not in known][:q]
            if len(fresh) == q:
                return torch.tensor(fresh, device=device)
        order = torch.randperm(a, generator=generator, device="cpu").to(device)
        unseen = order[~torch.isin(order, seen)][:q]
        if len(unseen) == q:
            return unseen
        more = torch.randint(a, (q - len(unseen),), generator=generator, device="cpu").to(device)
        return torch.cat([unseen, more])


@dataclass(frozen=True, eq=False)
class NamedArms(Arms):
    """Candidates with a name each.

    Attributes:
        points: ``a x d`` candidates.
        names: ``a`` distinct texts.

    Raises:
        TypeError: If a name is not text.
        ValueError: If there are not as many as arms, or two are equal.
    """

    names: tuple[str, ...] = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (other := next((name for name in self.names if not isinstance(name, str)), None)) is not None:
            raise TypeError(f"expected names of arms as text, got {other!r}; use list(map(str, names))")
        count = self.points.shape[0]
        if len(self.names) != count:
            raise ValueError(f"expected a name for each of {count:,} arms, got {len(self.names):,}; pass one for each")
        if len(self._rows) != count:
            twice = next(name for row, name in enumerate(self.names) if self._rows[name] != row)
            raise ValueError(f"expected distinct names of arms, got {twice!r} twice; drop one of the arms, or rename it")

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {name: row for row, name in enumerate(self.names)}

    def check(self, name: str, where: Any) -> Tensor:
        """See :meth:`Domain.check`; takes names too."""
        listed = getattr(where, "to_list", None) or getattr(where, "tolist", None)  # of pandas and Polars, of NumPy
        texts = where if listed is None or isinstance(where, Tensor) else listed()
        if isinstance(texts, list | tuple) and texts and all(isinstance(one, str) for one in texts):
            if unknown := [one for one in texts if self._rows.get(one, self.count) >= self.count]:
                fix = nearest(unknown[0], self.names[: self.count]) or "; pass names of arms"
                raise ValueError(f"expected {name} among the names of the arms, got {unknown[0]!r}{fix}")
            where = [self._rows[one] for one in texts]
        elif isinstance(where, str | Mapping) or (
            isinstance(where, list | tuple) and isinstance(next(iter(where), 0), Mapping)
        ):
            got = where if isinstance(where, str) else f"{type(where).__name__}"
            raise TypeError(f"expected {name} as a list of names or rows of the arms, got {got!r}; use [{self.names[0]!r}, …]")
        return super().check(name, where)

    def named(self, picks: Tensor) -> list[dict[str, Any]]:
        """See :meth:`Domain.named`: ``{"name": …}`` for each."""
        return [{"name": self.names[row]} for row in picks.tolist()]

    def describe(self) -> dict[str, Any]:
        """See :meth:`Domain.describe`."""
        return {**super().describe(), "names": list(self.names)}


def with_names(domain: Domain, names: Iterable[str] | None, columns: Sequence[str] = ()) -> Domain:
    """Return arms with names, and with those of their inputs; without both, the domain as it is.

    Raises:
        TypeError: If the names are one text, or are no texts.
        ValueError: If the domain is not a set of arms, or the names do not fit them.
    """
    if columns and isinstance(domain, Arms):
        domain = replace(domain, columns=tuple(columns))
    if names is None:
        return domain
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"expected names as a list of texts, one for each arm, got {type(names).__name__}; use a list")
    if type(domain) is not Arms:
        raise ValueError("expected names= with arms=, got it without; parameters of a space have names")
    return NamedArms(domain.points, domain.columns, domain.others, names=tuple(names))


def modelled_arms(domain: Arms, arms: Tensor) -> Tensor:
    """Return ``b x d`` arms of a domain in memory as a model with a learned kernel knows them: in the unit cube of all.

    Columns with a unit (:func:`column_units`) are transformed before. Under a kernel of the user's a model knows arms as they
    are.
    """
    origins, units = column_units(domain)
    lower, upper = _transformed(domain.hull(), origins, units)
    span = upper - lower
    return (_transformed(arms, origins, units) - lower) / torch.where(span > 0.0, span, 1.0)


def column_units(domain: Arms) -> tuple[Tensor, Tensor]:
    """Return origins o and units u (``d`` each) of the columns x that a model knows as ``asinh((x − o)/u)``; u = 0: as x.

    Numbers over decades (doses, concentrations, counts) are known by their logarithms: of one sign, the largest at least
    :data:`MANY` times the smallest, which is u, if they are less skewed for it; zeros do not count. Else u is a quarter of the
    shortest range of nine tenths of the distinct numbers (of few all but two), and o their median in it, where the whole range
    is at least :data:`MANY` times u (of numbers over decades on that scale): a few numbers are far off, as −999 or 99999 for a
    missing one is. Of two numbers u is 0: in the unit cube they are 0 and 1 on any scale. Sizes and differences up to 2·10⁻¹⁴
    of the largest are rounding, and count as zero. O(a d log a), of bits O(a d). See docs/decisions/181.
    """
    points, hull = domain.points, domain.hull()
    assert isinstance(points, Tensor)
    width, found = max(AT_ONCE // len(points), 1), torch.zeros_like(hull, dtype=torch.float64)
    for start in range(0, domain.dims, width):
        columns, (lower, upper) = points[:, start : start + width], hull[:, start : start + width]
        several = ((columns != lower) & (columns != upper)).any(dim=0).nonzero().squeeze(-1)  # bits need no sorting
        if len(several):
            found[:, start + several] = torch.stack(_units(columns[:, several], lower[several], upper[several]))
    return found[0], found[1]


def _units(points: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """Return origins and units of some columns, and their ends: :func:`column_units`."""
    ranked, largest = points.mT.sort(dim=-1).values, torch.maximum(-lower, upper)
    rounding = ROUNDING * largest.unsqueeze(-1)
    zero = ranked.abs() <= rounding
    least = ranked.abs().masked_fill(zero, torch.inf).amin(dim=-1)
    decades = ((lower >= 0.0) | (upper <= 0.0)) & (largest >= MANY * least) & torch.isfinite(largest / least)
    least = torch.where(decades, least, 0.0)
    wide = least.nonzero().squeeze(-1)
    linear = (ranked / largest.unsqueeze(-1)).masked_fill(zero, torch.nan)[wide]  # whose cubes are in range
    straighter = _skewness((linear * (largest / least)[wide].unsqueeze(-1)).asinh()) < _skewness(linear)
    least[wide] = torch.where(straighter, least[wide], 0.0)
    low, high, median = _bulk(ranked, rounding)
    ends = _transformed(torch.stack([lower, low, high, upper]), torch.zeros_like(least), least)
    unit = 0.25 * (high - low)
    far = (unit > 0.0) & (ends[3] - ends[0] >= 0.25 * MANY * (ends[2] - ends[1])) & torch.isfinite((upper - lower) / unit)
    return torch.where(far, median, 0.0), torch.where(far, unit, least)


def _transformed(points: Tensor, origins: Tensor, units: Tensor) -> Tensor:
    """Return ``asinh((x − o)/u)`` in the columns of ``n x d`` points where ``u > 0``, the others as they are."""
    return torch.where(units > 0.0, ((points - origins) / units).asinh(), points)


def _bulk(ranked: Tensor, rounding: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ends of the shortest range of nine tenths of the distinct numbers of each ascending row; their median in it.

    Of up to ten all but two, at least two. Numbers are distinct if they differ by more than ``rounding``, one number a row.
    """
    place = (ranked.diff(dim=-1, prepend=ranked[:, :1]) > rounding).cumsum(dim=-1)  # of each among the distinct numbers, from 0
    last, n = place[:, -1:], ranked.shape[-1]
    size = torch.minimum((9 * (last + 1)).div(10, rounding_mode="floor"), (last - 1).clamp_min(2))
    end = torch.searchsorted(place, place + size - 1)  # of the range that begins at each
    width = ranked.gather(-1, end.clamp_max(n - 1)) - ranked
    start = width.masked_fill(end == n, torch.inf).argmin(dim=-1, keepdim=True)
    rows = torch.cat([start, end.gather(-1, start), torch.searchsorted(place, last.div(2, rounding_mode="floor"))], dim=-1)
    low, high, median = ranked.gather(-1, rows).unbind(-1)
    return low, high, median.clamp(low, high)  # of four distinct numbers it may be a missing one


def _skewness(rows: Tensor) -> Tensor:
    """Return the absolute third standardised moment of each of some rows, without NaN; of a constant one NaN."""
    z = rows - rows.nanmean(dim=-1, keepdim=True)
    return z.pow(3).nanmean(dim=-1).abs() / z.square().nanmean(dim=-1) ** 1.5
