"""The conditions under which trials of an Optuna study have a parameter, read off the trials; its outcomes and parameters.

In Optuna an objective asks for parameters while it runs, so that a study does not know that ``depth`` is there where ``kind``
is ``"tree"``. The trials show it: whether they have a parameter is a function of the value of another one.
:func:`parameter_of` makes a parameter of a space from a distribution of Optuna's and its condition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from sparse_bo.domains import Choice, Float, Int, Parameter
from sparse_bo.policies import Outcomes

MOST_VALUES = 100
"""Of an integer on which another parameter may depend."""


class Condition(NamedTuple):
    """A parameter is there where another one has some of its values."""

    parent: str
    values: tuple[int, ...]
    """Integers, or numbers of categories."""

    def holds_in(self, constants: Mapping[str, BaseDistribution]) -> bool:
        """Return whether the other one is among those with a range of one value, which is one of these."""
        constant = constants.get(self.parent)
        return isinstance(constant, IntDistribution) and constant.low in self.values


Seen = dict[int, tuple[int, int]]
"""From a value to the numbers of the first and the last trial that had it."""


def _add(seen: Seen, others: Mapping[int, tuple[int, int]]) -> None:
    for value, (first, last) in others.items():
        before = seen.get(value, (first, last))
        seen[value] = min(before[0], first), max(before[1], last)


class TrialForms:
    """The sets of parameters that trials have, and the values of integers and categories among each. Grows with the trials.

    A trial that was pruned may have ended before it asked for all of its parameters: what it lacks tells less than that of a
    completed one. One that has asked for none tells nothing.

    Memory: two numbers for every form, parameter and value, however many trials.
    """

    def __init__(self) -> None:
        self._values: dict[tuple[frozenset[str], bool], dict[str, Seen]] = {}  # by form, and whether trials were completed
        self._newest: dict[str, list[tuple[int, BaseDistribution]]] = {}
        self._read: set[int] = set()

    def read(self, trials: Iterable[FrozenTrial]) -> None:
        """Take in completed and pruned trials, each once by its number. O(parameters) for a new one."""
        for trial in trials:
            if trial.number in self._read:
                continue
            self._read.add(trial.number)
            if not trial.distributions:
                continue
            kind = frozenset(trial.distributions), trial.state == TrialState.COMPLETE
            values = self._values.setdefault(kind, defaultdict(dict))
            for name, distribution in trial.distributions.items():
                newest = [*self._newest.get(name, []), (trial.number, distribution)]
                self._newest[name] = sorted(newest, key=lambda one: -one[0])[:3]
                if isinstance(distribution, CategoricalDistribution | IntDistribution):
                    _add(values[name], {round(distribution.to_internal_repr(trial.params[name])): (trial.number, trial.number)})

    def __contains__(self, name: str) -> bool:
        """Return whether the newest trial with a parameter had a range for it, not one value."""
        return name in self._newest and not self._newest[name][0][1].single()

    def space(self) -> Mapping[str, tuple[BaseDistribution, Condition | None]]:
        """Return the range and the condition (``None``: always there) of parameters, those they depend on first.

        The range is that of the newest trial, so that a changed range is followed; a parameter whose range has changed twice
        among the three newest trials that have it is left out. A parameter depends on another one if trials with it and without
        it had different values there: any of a category, of an integer those on two sides of a threshold. A condition that
        has changed once, as in a study that goes on with another objective, is the newest; others come before it. Of several
        such parameters it is the one with the fewest values. If none tells which trials have it, it is left out, unless all
        completed trials have it.
        """
        newest = {name: [kind for _, kind in self._newest[name]] for name in sorted(self._newest)}
        rest = {name: kinds[0] for name, kinds in newest.items() if sum(one != other for one, other in pairwise(kinds)) <= 1}
        forms = [form for form, _ in self._values]
        found: dict[str, tuple[BaseDistribution, Condition | None]] = {}
        for some in (forms, [form for form, whole in self._values if whole] or forms):
            everywhere = [name for name in rest if all(name in form for form in some)]
            found.update({name: (rest.pop(name), None) for name in everywhere})
            while True:
                parents = {name: kind for name, (kind, _) in found.items()}
                made = {name: self._condition(name, parents) for name in rest}
                new = {name: condition for name, condition in made.items() if condition is not None}
                if not new:
                    break
                found.update({name: (rest.pop(name), condition) for name, condition in new.items()})
        return found

    def _condition(self, name: str, parents: Mapping[str, BaseDistribution]) -> Condition | None:
        """Return the condition on the parent with the fewest values; ``None`` if none tells which trials have the parameter."""
        made = (self._on(name, parent, kind) for parent, kind in parents.items())
        return min(filter(None, made), default=(False, 0, None))[2]

    def _on(self, name: str, parent: str, kind: BaseDistribution) -> tuple[bool, int, Condition] | None:
        """Return whether the condition on a parent has changed, its values' number, and the condition; ``None``: none."""
        here, away, ended = Seen(), Seen(), Seen()
        for (form, whole), values in self._values.items():
            if name in form and parent not in form:
                return None
            if parent in form:
                _add(here if name in form else away if whole else ended, values[parent])
        # pruned trials without it, at values at which others have it, ended before they asked for it
        _add(away, {value: seen for value, seen in ended.items() if value not in here})
        both, before, since = here.keys() & away.keys(), list[int](), list[int]()
        for value in both:
            old, new = (away, here) if here[value][0] > away[value][1] else (here, away)
            before.append(old.pop(value)[1])
            since.append(new[value][0])
        changed = bool(both)
        if not here or not away or (changed and max(before) >= min(since)):
            return None
        if isinstance(kind, CategoricalDistribution):
            return changed, len(kind.choices), Condition(parent, tuple(sorted(here)))
        assert isinstance(kind, IntDistribution)
        choices = range(kind.low, kind.high + 1, kind.step)
        if len(choices) > MOST_VALUES or not (max(away) < min(here) or max(here) < min(away)):
            return None
        above = min(here) > max(away)
        having = tuple(v for v in choices if (v >= min(here) if above else v <= max(here)))
        return (changed, len(choices), Condition(parent, having)) if having else None  # no value of a range that has changed


def constraints_of(trials: Iterable[FrozenTrial]) -> frozenset[str]:
    """Return the names of the constraints of finished trials."""
    return frozenset(name for trial in trials if trial.state.is_finished() for name in trial.constraints)


def outcomes_of(directions: Sequence[StudyDirection], constraints: frozenset[str]) -> Outcomes | None:
    """Return objectives and constraints of a study with some directions; ``None`` with one objective alone."""
    if len(directions) == 1 and not constraints:
        return None
    minimised = StudyDirection.MINIMIZE
    objectives = {f"objective {k}": "min" if way == minimised else "max" for k, way in enumerate(directions)}
    return Outcomes.of(objectives, {f"constraint {name}": (None, 0.0) for name in sorted(constraints)})


def parameter_of(name: str, distribution: BaseDistribution, condition: Condition | None) -> Parameter:
    """Return one of Optuna's distributions as a parameter, there under a condition; categories by their number.

    Raises:
        NotImplementedError: If it is of another kind.
        ValueError: If its range is too wide.
    """
    when = None if condition is None else {repr(condition.parent): condition.values}
    try:
        if isinstance(distribution, FloatDistribution):
            return Float(distribution.low, distribution.high, log=distribution.log, step=distribution.step, when=when)
        if isinstance(distribution, IntDistribution):
            step = 1 if distribution.log else distribution.step
            return Int(distribution.low, distribution.high, log=distribution.log, step=step, when=when)
        if isinstance(distribution, CategoricalDistribution):
            return Choice(*range(len(distribution.choices)), when=when)
    except ValueError as error:
        raise ValueError(f"SparseBOSampler cannot encode parameter {name!r}: {error}") from error
    kinds = "FloatDistribution, IntDistribution and CategoricalDistribution"
    raise NotImplementedError(f"SparseBOSampler takes {kinds}, got {type(distribution).__name__} for {name!r}")
