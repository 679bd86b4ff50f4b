"""The observations of recorded runs, whose domain may differ, to begin another run with."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains import Arms, ArmSet, Box, Domain, LazyArms, NamedArms, ProductGrid, Space, SpaceArms, SpaceBox
from sparse_bo.domains.encoded import recorded_space
from sparse_bo.domains.sharded import has_hash
from sparse_bo.evaluations.results import Value, says_failed
from sparse_bo.journal import Journal
from sparse_bo.policies import Outcomes
from sparse_bo.runs.arguments import checked_observations
from sparse_bo.runs.description import checked_about, recorded_outcomes
from sparse_bo.runs.inputs import earlier_inputs
from sparse_bo.runs.recording import evaluations_of

logger = logging.getLogger(__name__)
CAN_LEARN = "which can learn from the results of this one: initial={}"


@dataclass(frozen=True)
class RunObservations:
    """The observations of recorded runs, for ``initial=`` of another one: see :func:`observations_of`."""

    journals: tuple[Path, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def on(self, domain: Domain, outcomes: Outcomes | None) -> tuple[tuple[Any, list[Any]], str]:
        """Return the observations that lie in a domain, and a summary of those that were taken over and left out.

        Over arms the input of one that was no candidate of its run is in the place of a row. O(evaluations), and O(a d) for
        inputs among ``a`` other arms.

        Raises:
            FileNotFoundError: If there is no journal.
            StorageError: If one is damaged.
            ValueError: If its inputs are of another kind than the domain's, or its results than those of ``outcomes``, a
                parameter has no default, or no observation lies in the domain.
        """
        space = domain.space if isinstance(domain, SpaceArms | SpaceBox) else None
        if unknown := [name for name in self.defaults if space is None or name not in space.parameters]:
            known = "without space=" if space is None else f"for parameters among {', '.join(space.names)}"
            raise ValueError(f"expected defaults= {'with space=' if space is None else known}, got {unknown[0]!r}; take it out")
        for name, value in self.defaults.items():
            assert space is not None  # else it is unknown
            try:
                space.parameters[name].encode([space.parameters[name].whole(value)], name)
            except (TypeError, ValueError) as error:
                why = str(error).partition("; leave the point out")[0]
                raise type(error)(f"expected defaults= of values that the parameters can have: {why}") from error
        runs = [_RecordedRun.read(path, outcomes) for path in self.journals]
        inputs = [run.configurations(domain, space, self.defaults) if space else run.inputs(domain) for run in runs]
        narrow = "torch.float32" in (str(domain.dtype), *(run.about["dtype"] for run in runs))
        places = [_places(domain, space, one, narrow=narrow) for one in inputs]
        keys = [[*zip(where, map(repr, run.values), strict=True)] for where, run in zip(places, runs, strict=True)]
        asked = [Counter(compress(own, (not added for added in run.added))) for own, run in zip(keys, runs, strict=True)]
        known_keys = sum(asked, Counter[tuple[str, str]]())
        taken, left = list[tuple[Any, Any]](), Counter[str]()
        for run, one, own, mine in zip(runs, inputs, keys, asked, strict=True):
            repeated, new = known_keys - mine, list[tuple[str, str]]()
            for x, y, key, added in zip(one, run.values, own, run.added, strict=True):
                if x is None:
                    left["outside the domain"] += 1
                elif added and repeated[key] > 0:  # an initial observation of this run, and an evaluation of another
                    repeated[key] -= 1
                    left["in several journals"] += 1
                else:
                    taken.append((x, y))
                    new += [key] if added else []
            known_keys.update(new)
            left.update({"without these outcomes": run.unrelated, "without a result": run.pending})
        summary = f"{len(taken):,} observations of {', '.join(path.name for path in self.journals)}"
        if failed := sum(map(says_failed, (y for _, y in taken))):
            summary += f", {failed:,} of them failed"
        if parts := [f"{count:,} {why}" for why, count in left.items() if count]:
            summary += f"; left out: {', '.join(parts)}"
        if space is not None:
            before = dict.fromkeys(name for run in runs for name in run.about["space"]["parameters"])
            gone = [name for name in before if name not in space.parameters]
            brought = [f"{name} = {value!r}" for name, value in self.defaults.items()]
            summary += f"; without {', '.join(gone)}" if gone else ""
            summary += f"; with {', '.join(brought)} where there was none" if brought else ""
        if not taken:
            raise ValueError(f"expected observations that lie in the domain, got {summary}; leave out initial=")
        rows: Any = [x for x, _ in taken]
        if not domain.indexed and space is None:
            rows = torch.tensor(rows, dtype=torch.float64, device="cpu").to(domain.like)
        return (rows, [y for _, y in taken]), summary


class _RecordedRun(NamedTuple):
    """The evaluations of a recorded run that have a result of another one's outcomes, or have failed."""

    path: Path
    about: Mapping[str, Any]
    picks: NDArray[Any]
    """``n`` arms or ``n x d`` points."""
    values: list[Any]
    """``n`` results, or dictionaries of outcomes by name; the word ``failed``."""
    added: list[bool]
    """``n``: whether the run has not asked for it."""
    unrelated: int
    pending: int
    arms: torch.Tensor | ProductGrid | None
    """``a x d``, if they are in the journal."""
    others: torch.Tensor | None
    """The last rows of the arms that were no candidates, if there were any."""

    @staticmethod
    def read(path: Path, outcomes: Outcomes | None) -> _RecordedRun:
        """Read a journal for a run with some outcomes. About 3 µs per evaluation."""
        journal = Journal.read(path)
        about, every, known = checked_about(journal), evaluations_of(journal), recorded_outcomes(journal)
        if (known is None) != (outcomes is None):
            got, fix = "one objective without a name", "leave objectives= out"
            if known is not None:
                got, fix = f"the outcomes {', '.join(known.names)}", "pass objectives="
            raise ValueError(f"the run in {path} has {got}, this one has others; {fix}")
        taken, failed = every.known, every.known & ~every.succeeded
        if known is not None and outcomes is not None:
            shared = [k for k, name in enumerate(known.names) if name in outcomes.names]
            taken = failed | np.isfinite(every.values[:, shared]).any(axis=1)
        unrelated, pending = int((every.known & ~taken).sum()), int((~every.known).sum())
        arms = journal.arms() if every.picks.ndim == 1 else None
        others = journal.last_arms(count) if (count := about.get("others", 0)) else None
        values: list[Any] = every.results(taken)
        added = every.added[taken].tolist()
        if known is not None and outcomes is not None:  # those that were not measured then are missing
            absent = dict.fromkeys(outcomes.names, math.nan)
            rows = (dict(zip(known.names, row, strict=True)) for row in values)
            values = [{name: row.get(name, missing) for name, missing in absent.items()} for row in rows]
        values = ["failed" if none else value for value, none in zip(values, failed[taken].tolist(), strict=True)]
        return _RecordedRun(path, about, every.picks[taken], values, added, unrelated, pending, arms, others)

    def configurations(self, domain: Domain, space: Space, defaults: Mapping[str, Any]) -> list[dict[str, Any] | None]:
        """Return the dictionaries of a space, ``None`` for those outside of it."""
        if "space" not in self.about:
            raise ValueError(
                f"expected a run on a space of named parameters, got {self.path}, whose inputs have no names; pass the "
                "points as dictionaries with their results: initial=(points, y)"
            )
        recorded = recorded_space(self.about)
        new = new_parameters(space, recorded.space.parameters)
        if missing := [name for name in new if name not in defaults]:
            raise ValueError(
                f"expected defaults= for parameters that the run in {self.path} does not have, got none for "
                f"{', '.join(map(repr, missing))}; pass {_defaults(missing)}"
            )
        points = recorded.named(recorded.stacked(self.picks.tolist()))
        return [_placed(domain, space, {**defaults, **point}) for point in points]

    def inputs(self, domain: Domain) -> list[Any]:
        """Return the arms or points of a domain without names, ``None`` for those that are not in it."""
        if "space" in self.about:
            raise ValueError(f"expected a run without named parameters, got {self.path}, which has them; pass space=")
        names, mine = domain.input_names, self.about.get("inputs") or [f"x{j + 1}" for j in range(domain.dims)]
        by_name = {*mine} == {*names}  # a table may have them in another order
        if not by_name and isinstance(domain, Arms) and domain.columns and "inputs" in self.about:
            raise ValueError(
                f"expected a run of the inputs {', '.join(names)}, got {self.path} of {', '.join(mine)}; rename the columns of "
                "the table of arms, or take it out"
            )
        alike = "arms" in self.about and (mine == names or not by_name)
        if alike and isinstance(domain, Arms) and has_hash(self._whole(domain), self.about["arms_hash"]):
            found = [pick if pick < domain.count else None for pick in self.picks.tolist()]
            return self._with_others(self._of_one_name(domain, found), [*range(domain.dims)])
        if self.picks.ndim == 1 and self.arms is None:
            raise ValueError(f"the arms of the run in {self.path} are not in it, and are not those of this run; take it out")
        X = self.picks if self.arms is None else self.arms[torch.from_numpy(self.picks.copy())].double().numpy()
        if X.shape[1] != domain.dims:
            raise ValueError(f"expected a run of {domain.dims} inputs, got {self.path} of {X.shape[1]}; take it out")
        X = X[:, [mine.index(name) for name in names]] if by_name else X
        if isinstance(domain, Box):
            lower, upper = domain.bounds.double().cpu().numpy()
            slack, here = 1e-6 * (upper - lower), domain.recorded(torch.from_numpy(np.array(X)))  # as Box.check; in its dtype
            inside = ((lower - slack <= here) & (upper + slack >= here)).all(axis=1)
            return [x if there else None for x, there in zip(X.tolist(), inside.tolist(), strict=True)]
        assert isinstance(domain, Arms)
        if isinstance(domain.points, LazyArms):
            raise ValueError(f"expected the arms of the run in {self.path}, got others that are not in memory; pass a tensor")
        rows = dict[bytes, int]()
        kind: Any = np.float32 if "torch.float32" in (self.about["dtype"], str(domain.points.dtype)) else np.float64
        for index, row in enumerate(domain.points[: domain.count].double().cpu().numpy().astype(kind) + kind(0.0)):
            rows.setdefault(row.tobytes(), index)
        found = [rows.get(x.tobytes()) for x in np.ascontiguousarray(X.astype(kind) + kind(0.0))]
        order = [mine.index(name) for name in names] if by_name else [*range(domain.dims)]
        return self._with_others(self._of_one_name(domain, found), order)

    def _whole(self, domain: Arms) -> ArmSet:
        """Return the candidates of a domain with the arms of the run behind them that were no candidates."""
        points, others = domain.points, self.others
        if not isinstance(points, Tensor):
            return points
        points = points[: domain.count]
        if others is None:
            return points
        shape = [len(points) + len(others), domain.dims]
        return torch.cat([points, others.to(points)]) if shape == self.about["arms"] else points

    def _with_others(self, found: list[int | None], order: list[int]) -> list[int | list[float] | None]:
        """Return the arms of the ``n`` observations, in place of ``None`` the inputs of no candidates, columns in ``order``."""
        if self.others is None:
            return [*found]
        first, X = self.about["arms"][0] - len(self.others), self.others.double().cpu()[:, order].tolist()
        return [
            X[pick - first] if arm is None and pick >= first else arm
            for arm, pick in zip(found, self.picks.tolist(), strict=True)
        ]

    def _of_one_name(self, domain: Arms, found: list[int | None]) -> list[int | None]:
        """Return the arms of the ``n`` observations: ``found``, or one of the same inputs that has the name of the observed."""
        if not isinstance(domain, NamedArms) or "names" not in self.about:
            return found
        rows = {name: row for row, name in enumerate(domain.names)}
        named = [rows.get(self.about["names"][pick]) for pick in self.picks.tolist()]
        differ = [k for k, pair in enumerate(zip(found, named, strict=True)) if None not in pair and len({*pair}) == 2]
        X, other = (domain.inputs(domain.stacked([arms[k] for k in differ])) for arms in (found, named))
        equal = dict(zip(differ, (other == X).all(dim=1).tolist(), strict=True))
        return [named[k] if equal.get(k) else arm for k, arm in enumerate(found)]


def _places(domain: Domain, space: Space | None, inputs: list[Any], *, narrow: bool) -> list[str]:
    """Return where inputs are (``narrow``: some of float32) as text: values of one point in two ranges differ by rounding."""
    if space is None:
        with np.errstate(over="ignore"):
            return [repr(np.array(x, np.float32).tolist() if narrow and isinstance(x, list) else x) for x in inputs]
    there = [x for x in inputs if x is not None]
    rows = iter((domain.recorded(domain.check("observations", there)).round(9) + 0).tolist() if there else [])
    return ["None" if x is None else repr(next(rows)) for x in inputs]


def new_parameters(space: Space, known: Iterable[str]) -> list[str]:
    """Return the names of parameters of a space that are not among the known ones, and have several values."""
    return [name for name, parameter in space.parameters.items() if name not in known and parameter.count != 1]


def _defaults(names: Iterable[str]) -> str:
    return f"defaults={{{', '.join(f'{name!r}: …' for name in names)}}}"


def advice_to_begin(path: str | Path, domain: Domain, outcomes: Outcomes | None) -> str:
    """Return how a new run on a domain begins with the results of a journal: code, or the reason why it cannot."""
    code, defaults, before = f"observations_of({str(path)!r})", dict[str, Any](), checked_about(Journal.read(path))
    if isinstance(domain, SpaceArms | SpaceBox) and "space" in before:
        names = new_parameters(domain.space, before["space"]["parameters"])
        # Any value of a new parameter shows whether the observations can be taken over.
        defaults = {name: domain.space.parameters[name].middle for name in names}
        code = f"observations_of({str(path)!r}, {_defaults(names)})" if names else code
    try:
        RunObservations((Path(path),), defaults).on(domain, outcomes)
    except ValueError as error:
        why = str(error).removesuffix("; leave out initial=")  # none was given
        return f"which cannot begin with the results of this one: {why}"
    return CAN_LEARN.format(code)


def _placed(domain: Domain, space: Space, point: dict[str, Any]) -> dict[str, Any] | None:
    """Return a point with the parameters that a space has there; ``None`` if it is outside or infeasible."""
    kinds = space.parameters
    point = space.kept({name: kinds[name].whole(value) for name, value in point.items() if name in kinds})
    try:
        domain.check("observations", [point])
    except (TypeError, ValueError):  # a number between integers, say
        return None
    return point


def observations_of(*journals: str | os.PathLike[str], defaults: Mapping[str, Any] | None = None) -> RunObservations:
    """Return the observations of one or more recorded runs, to begin another run with: ``initial=observations_of(…)``.

    The other run may have other bounds, arms, choices or parameters, policy, seed and direction. Failed evaluations are taken
    over, too. Observations outside its domain are left out, and so are rows added to several of the runs alike, for each but
    one. The log, ``AskTell.about["taken"]`` and the report say how many. Arms are found by their inputs, those of pandas tables
    by the names of the columns: of several equal ones that of the same name, or else the first.

    Args:
        journals: Paths of their journals; runs may still be going on.
        defaults: With ``space=``: values of parameters that a run does not have, by name. Parameters that are no longer there
            are dropped.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If none is named, or one twice.

    Example:
        >>> wider = {"lr": Float(1e-5, 1.0, log=True), "momentum": Float(0.0, 0.99)}
        >>> before = observations_of("run.journal", defaults={"momentum": 0.0})
        >>> maximize(train, space=wider, initial=before, budget=100)  # doctest: +SKIP
    """
    if not journals:
        raise ValueError("expected the paths of journals, got none; pass observations_of('run.journal')")
    for path in journals:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"expected paths of journals, got {type(path).__name__}; pass observations_of('a.journal', …)")
    paths = [Path(path) for path in journals]
    if twice := [path for k, path in enumerate(paths) if path.resolve() in {other.resolve() for other in paths[:k]}]:
        raise ValueError(f"expected each journal once, got {twice[0]} twice, whose results would count twice; name it once")
    if defaults is not None and not isinstance(defaults, Mapping):
        raise TypeError(f"expected defaults as a dictionary, got {type(defaults).__name__}; use {{'momentum': 0.0}}")
    return RunObservations(tuple(paths), dict(defaults or {}))


def earlier_observations(
    initial: Any, domain: Domain, outcomes: Outcomes | None, names: Sequence[str] = ()
) -> tuple[Domain, tuple[Tensor, list[Value]] | None, str | None]:
    """Return a domain with the inputs of ``initial=``, its observations there, and the summary of those of other runs.

    ``names`` of outcomes are in the order of rows without names; by default in that of the run.
    """
    summary = None
    if isinstance(initial, RunObservations):
        initial, summary = initial.on(domain, outcomes)
        logger.info("starts from %s", summary)
    if initial is None:
        return domain, None, None
    two = isinstance(initial, tuple | list) and len(initial) == 2
    domain, rows = earlier_inputs(initial[0], domain) if two else (domain, None)
    return domain, checked_observations("initial", initial, domain, outcomes, names, picks=rows), summary
