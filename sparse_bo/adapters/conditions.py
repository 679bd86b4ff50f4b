"""The conditions under which trials of an Optuna study have a parameter, read off the trials themselves.

In Optuna an objective asks for parameters while it runs, so that a study does not know that ``depth`` is there where ``kind``
is ``"tree"``. The trials show it: whether they have a parameter is a function of the value of another one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.trial import FrozenTrial

MOST_VALUES = 100
"""Of an integer on which another parameter may depend."""


class Condition(NamedTuple):
    """A parameter is there where another one has some of its values."""

    parent: str
    values: tuple[int, ...]
    """Integers, or numbers of categories."""


class TrialForms:
    """The sets of parameters that trials have, and the values of integers and categories among each. Grows with the trials.

    Memory: a set of values for every form and parameter, however many trials.
    """

    def __init__(self) -> None:
        self._values: dict[frozenset[str], dict[str, set[int]]] = {}
        self._distributions: dict[str, BaseDistribution | None] = {}
        self._read: set[int] = set()

    def read(self, trials: Iterable[FrozenTrial]) -> None:
        """Take in finished trials, each once by its number. O(parameters) for a new one."""
        for trial in trials:
            if trial.number in self._read:
                continue
            self._read.add(trial.number)
            form = self._values.setdefault(frozenset(trial.distributions), defaultdict(set))
            for name, distribution in trial.distributions.items():
                known = self._distributions.setdefault(name, distribution)
                self._distributions[name] = distribution if known == distribution else None
                if isinstance(distribution, CategoricalDistribution | IntDistribution):
                    form[name].add(round(distribution.to_internal_repr(trial.params[name])))

    def __contains__(self, name: str) -> bool:
        return name in self._distributions

    def conditions(self, common: Iterable[str]) -> Mapping[str, tuple[BaseDistribution, Condition]]:
        """Return the range and the condition of every parameter that has one, those they depend on first.

        A parameter depends on another of ``common``, or on one that is conditional itself, if trials with it and without it had
        different values there: any of a category, of an integer those on two sides of a threshold. Of several such parameters
        it is the one with the fewest values. Parameters of which no other tells, or whose range has changed, are left out.
        """
        found: dict[str, tuple[BaseDistribution, Condition]] = {}
        known = {name: self._distributions.get(name) for name in sorted(common)}
        rest = {name: kind for name, kind in sorted(self._distributions.items()) if kind is not None and name not in known}
        while True:
            made = {name: self._condition(name, known) for name in rest}
            new = {name: (rest[name], condition) for name, condition in made.items() if condition is not None}
            if not new:
                return found
            found.update(new)
            known.update({name: rest.pop(name) for name in new})

    def _condition(self, name: str, parents: Mapping[str, BaseDistribution | None]) -> Condition | None:
        """Return the condition on the parent with the fewest values; ``None`` if none tells which trials have the parameter."""
        made = (self._on(name, parent, kind) for parent, kind in parents.items() if kind is not None)
        return min(((count, condition) for count, condition in filter(None, made)), default=(0, None))[1]

    def _on(self, name: str, parent: str, kind: BaseDistribution) -> tuple[int, Condition] | None:
        """Return how many values a parent has, and the condition on it; ``None`` if it does not tell."""
        here, away = set[int](), set[int]()
        for form, values in self._values.items():
            if name in form and parent not in form:
                return None
            if parent in form:
                (here if name in form else away).update(values[parent])
        if not here or not away or here & away:
            return None
        if isinstance(kind, CategoricalDistribution):
            return len(kind.choices), Condition(parent, tuple(sorted(here)))
        assert isinstance(kind, IntDistribution)
        choices = range(kind.low, kind.high + 1, kind.step)
        if len(choices) > MOST_VALUES or not (max(away) < min(here) or max(here) < min(away)):
            return None
        above = min(here) > max(away)
        return len(choices), Condition(parent, tuple(v for v in choices if (v >= min(here) if above else v <= max(here))))
