"""A sampler for Optuna: its studies, storages, pruners and dashboards with this package's trust region.

    study = optuna.create_study(direction="maximize", sampler=SparseBOSampler(seed=0))
    study.optimize(objective, n_trials=5_000)

The model is a GP of at most 400 of the trials (1,000 where there are few combinations), chosen around the best one, so a trial
costs about the same however many there are; Optuna's own GP sampler fits all of them.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_bo.errors import install_hint

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    from optuna.samplers import BaseSampler, RandomSampler
    from optuna.samplers._base import _process_constraints_after_trial  # the one writer of them; samplers of others use it
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial, TrialState
except ModuleNotFoundError as error:
    if error.name is None or error.name.split(".")[0] != "optuna":
        raise
    raise ImportError(f"SparseBOSampler needs Optuna; install it with: {install_hint('optuna')}") from error

from sparse_bo.adapters.conditions import Condition, TrialForms, constraints_of, outcomes_of, parameter_of
from sparse_bo.domains import Space, space_domain
from sparse_bo.policies import Mechanism, Policy, State, Wait
from sparse_bo.policies.outcomes import MOST_OBJECTIVES
from sparse_bo.policies.protocol import mechanism_of
from sparse_bo.policies.states import PointState
from sparse_bo.runs.arguments import check_policy
from sparse_bo.runs.default_policy import chosen_policy
from sparse_bo.runs.engine import with_gradients
from sparse_bo.validation import check_callable, check_count, check_given

AT_ONCE = 100
"""Trials for every pick more that is made ahead: updates cost more later, and decide less."""
Parts = tuple[dict[str, BaseDistribution], dict[str, Condition], dict[str, BaseDistribution]]
"""Parameters by name: the ranges of those that are searched, conditions of some, and ranges of one value."""
logger = optuna.logging.get_logger("optuna.sparse_bo")


class SparseBOSampler(BaseSampler):
    """Samples trials of an Optuna study, of one objective or up to four, by a policy of this package.

    Parameters are sampled together: floats and integers, linear, logarithmic or in steps, and categories (one-hot, so many
    categories make many inputs: prefer an integer where they are ordered). Conditional ones, which some trials lack, are among
    them as soon as the trials show on which category or integer they depend (:mod:`sparse_bo.adapters.conditions`); the model
    sees no difference in those that a trial lacks. Others, and those of the first trial, are left to ``independent_sampler``.

    What becomes of a trial: its values are told to a model of each. Constraints (``trial.set_constraint`` or
    ``constraints_func``, feasible up to 0) have models, too: a trial's improvement counts with the probability that it is
    feasible. A trial that has failed, or has an infinite value, counts as a failed evaluation: its neighbourhood is avoided,
    the more so the more of it fails. A pruned trial counts as its last intermediate value, or as the median of the completed
    trials where that is worse. Enqueued trials, those of other workers, and trials added by hand are learned from alike, and
    what runs is taken into account. Nothing but the values of ``constraints_func`` is written to the storage.

    A study can be resumed with a new sampler, which reads all its trials at once. Several threads may share a sampler.

    Args:
        policy: Default by :func:`sparse_bo.runs.chosen_policy`: :class:`sparse_bo.TrustRegion`; where there are at most 20,000
            combinations and no continuum, :class:`sparse_bo.policies.ExpectedImprovement` over all of them. A policy for boxes
            searches these in the box of their encoding.
        seed: Of everything random, together with the number of the first trial that this sampler makes: processes that share a
            study and a seed make different trials. ``None``: another one each time.
        independent_sampler: For parameters that cannot be sampled together; default :class:`optuna.samplers.RandomSampler`.
        constraints_func: From a finished trial to its constraints, feasible up to 0, as in Optuna's own samplers.

    Raises:
        ImportError: If Optuna is not installed.
        TypeError: If the policy is none, or an argument has the wrong kind.
        ValueError: If the study has more than four objectives, or a parameter's range is too wide (raised when a trial is
            sampled).
        NotImplementedError: If a parameter is of a kind that Optuna itself does not have.
    """

    def __init__(
        self,
        *,
        policy: Policy | None = None,
        seed: int | None = None,
        independent_sampler: BaseSampler | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
    ) -> None:
        if policy is not None:
            check_policy(policy)
        if independent_sampler is not None and not isinstance(independent_sampler, BaseSampler):
            got = "a class" if isinstance(independent_sampler, type) else type(independent_sampler).__name__
            raise TypeError(f"expected independent_sampler to be a sampler of Optuna, got {got}; use RandomSampler(seed=0)")
        check_given(check_callable, constraints_func=constraints_func)
        self._constraints_func, self._seeds_independent = constraints_func, independent_sampler is None
        self._policy, self._independent, self._generator = policy, independent_sampler or RandomSampler(), torch.Generator()
        self._seed = self._generator.seed() if seed is None else check_count("seed", seed, minimum=0)
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._study: tuple[BaseStorage, int] | None = None
        self._searches: dict[int | None, _Search] = {}
        self._forms: dict[int | None, TrialForms] = {}
        self._generators: dict[int | None, torch.Generator] = {}
        self._picked: dict[int | None, int] = {}
        self._warned: set[str] = set()
        self._begun, self._first = False, [0, 0]  # seed, and number of the first trial

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without values that can be read from the study again."""
        kept = ("_policy", "_independent", "_seed", "_seeds_independent", "_constraints_func")
        return {name: vars(self)[name] for name in kept}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        """Start as a new sampler of a study that there may be."""
        vars(self).update(kept, _generator=torch.Generator())
        self._forget()

    def reseed_rng(self) -> None:
        """See :meth:`optuna.samplers.BaseSampler.reseed_rng`."""
        self._seed, self._begun = self._generator.seed(), False
        self._independent.reseed_rng()

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Check the number of objectives; see :meth:`optuna.samplers.BaseSampler.before_trial`."""
        self._begin(study, trial)
        self._independent.before_trial(study, trial)

    def _begin(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Check the study, and seed by the number of the first trial."""
        if len(study.directions) > MOST_OBJECTIVES:
            raise ValueError(
                f"SparseBOSampler optimises at most {MOST_OBJECTIVES} objectives, and this study has {len(study.directions)}; "
                "make some of them constraints, or use optuna.samplers.NSGAIIISampler"
            )
        with self._lock:
            if not self._begun:
                self._first = [self._seed, trial.number]
                own, other = np.random.SeedSequence(self._first).generate_state(2)
                self._generators = {None: self._generator.manual_seed(int(own))}
                if self._seeds_independent:
                    self._independent = RandomSampler(seed=int(other))
                self._begun = True

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Store the constraints of a trial; see :meth:`optuna.samplers.BaseSampler.after_trial`."""
        if self._constraints_func is not None:
            _process_constraints_after_trial(self._constraints_func, study, trial, state)
        self._independent.after_trial(study, trial, state, values)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters that are sampled together (:meth:`.TrialForms.space`), without constants."""
        with self._lock:
            return {name: distribution for name, (distribution, _) in self._space(study).items() if not distribution.single()}

    def _space(self, study: optuna.Study) -> Mapping[str, tuple[BaseDistribution, Condition | None]]:
        if self._study is None or self._study[0] is not study._storage or self._study[1] != study._study_id:
            self._study = study._storage, study._study_id
            self._forms.clear()
        forms = self._forms.setdefault(getattr(study, "_bracket_id", None), TrialForms())
        forms.read(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))
        return forms.space()

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return a value for each parameter of ``search_space``; nothing where all of them are enqueued.

        Raises:
            ValueError: If a range is too wide to be encoded, or the study has more than four objectives.
            NotImplementedError: If a parameter is of an unknown kind.
        """
        self._begin(study, trial)
        bracket = getattr(study, "_bracket_id", None)  # Hyperband's samplers see the trials of one bracket at a time
        with self._lock:
            names, conditions, space = dict(search_space), dict[str, Condition](), self._space(study)
            constants = {name: kind for name, (kind, _) in space.items() if kind.single()}
            for name, (_, condition) in space.items():
                while condition is not None and condition.holds_in(constants):  # of a range that has become one value
                    condition = space[condition.parent][1]
                if condition is not None and name in names and condition.parent in names:
                    conditions[name] = condition
                elif condition is not None:
                    names.pop(name, None)  # another sampler has fixed what it depends on
            if names.keys() <= trial.system_attrs.get("fixed_params", {}).keys():
                return {}
            if bracket not in self._generators:  # each has a design of its own
                (seed,) = np.random.SeedSequence([*self._first, bracket or 0]).generate_state(1)
                self._generators[bracket] = torch.Generator().manual_seed(int(seed))
            search = self._searches.pop(bracket, None)
            parts = names, conditions, constants
            if search is None or not search.fits(study, parts):
                search = _Search(study, parts, self._policy, self._generators[bracket])
                search.picked = self._picked.get(bracket, 0)
            values = search.next(trial.number)
            self._picked[bracket] = search.picked
            self._searches[bracket] = search  # not after an exception, Ctrl-C too: then all trials are read again
            return values

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return a value of a parameter that is not sampled with the others; says so once for each.

        Raises:
            ValueError: If the study has more than four objectives, or the parameter's range exceeds the largest number.
        """
        self._begin(study, trial)
        known = any(param_name in forms for forms in self._forms.values())
        searched = any(param_name in search.distributions for search in self._searches.values())
        if known and not searched and param_name not in self._warned:
            self._warned.add(param_name)
            logger.warning(
                "%r of trial %d is sampled by %s, beside the model: its range changes from trial to trial, or no category and "
                "no integer tells which trials have it. If earlier trials lack it, as it is new, start a new study with them "
                "and the value that they had: study.add_trial(optuna.trial.create_trial("
                "params={**old.params, name: value}, distributions={**old.distributions, name: range}, value=old.value))",
                param_name,
                trial.number,
                type(self._independent).__name__,
            )
        try:
            return self._independent.sample_independent(study, trial, param_name, param_distribution)
        except (OverflowError, RuntimeWarning) as error:  # of NumPy's uniform numbers, its warnings as errors too
            raise ValueError(
                f"expected a finite range of parameter {param_name!r}, got {param_distribution}; take smaller bounds, "
                "or log=True"
            ) from error


class _Search:
    """The policy's state on one study and its parameters: its trials, and the picks made ahead."""

    def __init__(self, study: optuna.Study, parts: Parts, policy: Policy | None, generator: torch.Generator) -> None:
        self.study, self.generator = study, generator
        kinds, self.conditions, self.constants = parts
        first = {name: kind for name, kind in kinds.items() if name not in self.conditions}
        self.distributions = first | {name: kinds[name] for name in self.conditions}
        self.constraints = constraints_of(study.get_trials(deepcopy=False))
        self.outcomes = outcomes_of(study.directions, self.constraints)
        space = Space({repr(n): parameter_of(n, kind, self.conditions.get(n)) for n, kind in self.distributions.items()})
        self.domain = space_domain(space)
        # a study does not tell its budget, on which the default policy over arms depends
        policy = policy or chosen_policy(self.domain, budget=500, several=self.outcomes is not None).policy
        try:
            self.mechanism: Mechanism[Any] = mechanism_of(policy, self.domain, self.outcomes)
        except TypeError:  # it searches boxes alone, and these are few combinations
            self.domain = space_domain(replace(space, most_arms=0))
            self.mechanism = mechanism_of(policy, self.domain, self.outcomes)
        self.state: State = self.mechanism.init()
        self.sign = -1.0 if study.directions[0] == optuna.study.StudyDirection.MINIMIZE else 1.0
        self.picked = 0
        """Picks so far, those of earlier searches with this generator included: a design goes on by them."""
        self.queue, self.out, self.ended, self.completed = list[Tensor](), dict[int, Tensor](), set[int](), list[float]()
        self.highest = (-math.inf, self.domain.no_picks)  # of the (first) objective, and its pick
        self.hidden = False
        """Whether another process has a trial whose parameters are not stored yet."""

    def fits(self, study: optuna.Study, parts: Parts) -> bool:
        """Return whether this is the search of a study with these parameters."""
        same = study._storage is self.study._storage and study._study_id == self.study._study_id
        new = (trial for trial in study.get_trials(deepcopy=False) if trial.number not in self.ended)
        known = (self.distributions, self.conditions, self.constants) == parts
        return same and known and self.constraints >= constraints_of(new)

    def next(self, number: int) -> dict[str, Any]:
        """Return the values of a trial."""
        if not self.queue:
            self._take_in(number)
            self.queue = list(torch.split(self._asked(), 1))
        self.out[number] = pick = self.queue.pop(0)
        point: Mapping[str, Any] = self.domain.named(pick)[0]
        return {
            name: kind.choices[point[repr(name)]] if isinstance(kind, CategoricalDistribution) else point[repr(name)]
            for name, kind in self.distributions.items()
            if repr(name) in point
        }

    @with_gradients
    def _asked(self) -> Tensor:
        """Return picks for the next trials: more at once the more trials there are."""
        q = max(1, len(self.completed) // AT_ONCE)
        known = pending = torch.cat([self.domain.no_picks, *self.out.values()])
        if isinstance(self.state, PointState):
            known = torch.cat([self.state.X, self.state.left_alone(), pending])
        if self.hidden:  # it may be the best point again, a policy's check for noise: workers that join together need one
            pending = torch.cat([pending, self.highest[1]])
        self.state = self.state.with_not_picked(self.state.picked(len(pending)) - self.picked)
        made = self.mechanism.ask(self.state, max_q=q, pending=pending, generator=self.generator)
        if isinstance(made, Wait):
            made = self.mechanism.ask_beyond_batch(self.state, max_q=q, pending=pending, generator=self.generator)
        while isinstance(made, Wait):  # Optuna never waits: what has been out for longest is forgotten
            pending = pending[1 + len(pending) // 2 :]
            seed = int(torch.randint(2**31 - 1, (1,), generator=self.generator, device="cpu"))
            other = torch.Generator().manual_seed(seed)  # the run's own design would repeat the forgotten points
            made = self.mechanism.ask(self.state, max_q=q, pending=pending, generator=other)
        self.picked += len(made.picks)
        return self.domain.mended(made.picks, seen=known, repeats=made.repeats, generator=self.generator)

    @with_gradients
    def _take_in(self, current: int) -> None:
        """Update the policy by ended trials, and collect running ones."""
        good, bad = list[tuple[Mapping[str, Any], float | list[float]]](), list[Mapping[str, Any]]()
        self.hidden = False
        for trial in self.study.get_trials(deepcopy=False):
            if trial.number == current or trial.number in self.ended:
                continue
            pick = self.out.get(trial.number)
            asked = {} if pick is None else self.domain.named(pick)[0]
            point = self._point(trial, asked)
            if not trial.state.is_finished():
                if point is not None:
                    self.out[trial.number] = self.domain.check("trials", [point])
                self.hidden |= trial.number not in self.out
                continue
            self.ended.add(trial.number)
            self.out.pop(trial.number, None)
            early = point is None and bool(asked) and trial.state != TrialState.COMPLETE  # before it asked for all
            if early:
                point = self._point(trial, asked, ended=True)
            if point is not None:
                value = None if early and trial.last_step is None else self._result(trial)
                bad.append(point) if value is None else good.append((point, value))
        if good:
            picks = self.domain.check("trials", [point for point, _ in good])
            y = torch.tensor([value for _, value in good], dtype=torch.float64, device="cpu")
            before = self.state.with_not_picked(self.state.picked(len(self.out) + len(good)) - self.picked)
            self.state = self.mechanism.observe(before, picks, y, generator=self.generator)
            first = y if y.dim() == 1 else self.sign * y[:, 0]  # outcomes have the study's signs
            row = int(first.argmax())
            self.highest = max(self.highest, (float(first[row]), picks[row : row + 1]), key=lambda found: found[0])
        if bad:
            self.state = self.mechanism.fail(self.state, self.domain.check("trials", bad), generator=self.generator)

    def _result(self, trial: FrozenTrial) -> float | list[float] | None:
        """Return the objective of a finished trial, to be maximised, or its outcomes; ``None`` if it failed."""
        endless = [value for value in trial.constraints.values() if value == math.inf]  # no model learns from them
        if trial.state == TrialState.COMPLETE:
            if wrong := [value for value in (*trial.values, *endless) if not math.isfinite(value)]:
                logger.warning("the value %r of trial %d counts as a failure", wrong[0], trial.number)
                return None
            objectives = trial.values
            self.completed.append(self.sign * objectives[0])
        elif trial.state == TrialState.PRUNED and len(self.study.directions) == 1 and not endless:
            last = trial.last_step
            reached = math.inf if last is None else self.sign * trial.intermediate_values[last]
            typical = float(torch.tensor(self.completed or [math.inf], dtype=torch.float64, device="cpu").median())
            value = min(reached, typical)
            if not math.isfinite(value):
                return None
            objectives = [self.sign * value]
        else:
            return None
        if self.outcomes is None:
            return self.sign * objectives[0]
        rest = [trial.constraints.get(name, math.nan) for name in sorted(self.constraints)]
        return [*objectives, *(value if math.isfinite(value) else math.nan for value in rest)]

    def _point(self, trial: FrozenTrial, asked: Mapping[str, Any], *, ended: bool = False) -> dict[str, Any] | None:
        """Return a trial's point of the space; if it ended early, what it lacks is taken from the point that was asked for.

        Of categories that are equal (0 and False) Optuna stores the first one: it is the one that was asked for.

        ``None`` if it lacks a parameter that is there under its conditions, or has a value that the range does not have: it may
        have had another range, and Optuna lets trials be enqueued with any value.
        """
        for name, distribution in self.constants.items():
            other = trial.distributions.get(name)  # a range that has become one value since
            if other is not None and not (
                type(other) is type(distribution) and distribution._contains(distribution.to_internal_repr(trial.params[name]))
            ):
                return None
        point: dict[str, Any] = {}
        for name, distribution in self.distributions.items():
            condition = self.conditions.get(name)
            if condition is not None and point.get(repr(condition.parent)) not in condition.values:
                continue
            if ended and name not in trial.distributions and repr(name) in asked:
                point[repr(name)] = asked[repr(name)]
                continue
            if type(trial.distributions.get(name)) is not type(distribution):
                return None
            number = distribution.to_internal_repr(trial.params[name])
            if not distribution._contains(number):
                return None
            point[repr(name)] = number if isinstance(distribution, FloatDistribution) else round(number)
            if isinstance(distribution, CategoricalDistribution) and repr(name) in asked:
                category = distribution.choices[asked[repr(name)]]
                if distribution.to_internal_repr(category) == number:
                    point[repr(name)] = asked[repr(name)]
        return point
