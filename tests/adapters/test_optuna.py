"""Optuna with ``SparseBOSampler``: parameters of every kind, trials of every end, threads, resumes, and what is refused."""

import logging
import math
import pickle
import time

import numpy as np
import pytest
import torch

pytest.importorskip("optuna", reason="Optuna is not installed: pip install '.[optuna]'")

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial

from sparse_bo import BBKB, TrustRegion
from sparse_bo.adapters import SparseBOSampler
from sparse_bo.adapters.conditions import TrialForms
from sparse_bo.gp.expected_improvement import hypervolume
from sparse_bo.policies import RandomSearch
from sparse_bo.policies.comparators.baselines import WithoutModel

optuna.logging.set_verbosity(optuna.logging.WARNING)


def mixed(trial):
    x = trial.suggest_float("x", -2, 2)
    lr = trial.suggest_float("lr", 1e-5, 1, log=True)
    n = trial.suggest_int("n", 1, 12)
    units = trial.suggest_int("units", 8, 512, log=True)
    rate = trial.suggest_float("rate", 0, 0.5, step=0.1)
    kind = trial.suggest_categorical("kind", ["a", "b", None])
    sizes = (math.log10(lr) + 2.5) ** 2 + 0.1 * (n - 7) ** 2 + (math.log2(units) - 6) ** 2 / 4 + rate
    return x * x + sizes + {"a": 0.0, "b": -1.0, None: 1.0}[kind]


def study(sampler, objective, trials, *, direction="minimize", **options):
    made = optuna.create_study(direction=direction, sampler=sampler)
    made.optimize(objective, n_trials=trials, **options)
    return made


def chance(**options):
    """A sampler whose search costs nothing."""
    return SparseBOSampler(policy=RandomSearch(batch_size=1), seed=0, **options)


def line(trial):
    return trial.suggest_float("x", 0, 1)


def search_of(sampler):
    (search,) = sampler._searches.values()
    return search


@pytest.mark.slow
def test_every_kind_of_parameter_is_searched():
    found = study(SparseBOSampler(seed=0), mixed, 30)
    assert found.best_params["kind"] == "b"
    assert found.best_value < -0.8
    best_by_chance = min(study(optuna.samplers.RandomSampler(seed=seed), mixed, 60).best_value for seed in range(3))
    assert found.best_value < best_by_chance


def test_the_same_seed_gives_the_same_trials_and_both_directions_mirror():
    one = study(SparseBOSampler(seed=3), mixed, 14)
    again = study(SparseBOSampler(seed=3), mixed, 14)
    mirrored = study(SparseBOSampler(seed=3), lambda trial: -mixed(trial), 14, direction="maximize")
    assert [t.params for t in one.trials] == [t.params for t in again.trials] == [t.params for t in mirrored.trials]


def test_a_seed_of_numpy_is_taken():
    plain, numpys = (study(SparseBOSampler(policy=RandomSearch(batch_size=1), seed=seed), line, 3) for seed in (3, np.int64(3)))
    assert plain.trials[-1].params == numpys.trials[-1].params


def test_few_combinations_are_swept():
    def small(trial):
        return trial.suggest_int("n", 0, 9) - (trial.suggest_categorical("kind", ["a", "b", "c"]) == "b")

    sampler = SparseBOSampler(seed=0)
    found = study(sampler, small, 20)
    assert search_of(sampler).mechanism.__class__.__name__ == "ArmSearch"
    assert found.best_value == -1


def told(sampler):
    """Return what the policy has been told, and how many evaluations count as failed."""
    failures = search_of(sampler).state.failures
    return sorted(search_of(sampler).state.y.tolist()), 0 if failures is None else failures.total


def test_failed_infinite_and_pruned_trials():
    def objective(trial):
        x = trial.suggest_float("x", 0, 1)
        if trial.number == 3:
            raise RuntimeError("lost")
        if trial.number == 4:
            return math.nan
        if trial.number == 5:
            return math.inf
        if trial.number in (7, 8):
            trial.report(-50.0 if trial.number == 7 else 70.0, step=0)
            raise optuna.TrialPruned
        return float(trial.number) + 0.0 * x

    sampler = chance()
    found = study(sampler, objective, 11, catch=(RuntimeError,))
    assert [t.state for t in found.trials].count(TrialState.FAIL) == 2
    # Trials 0 to 2 and 9 as they are; of those pruned, 7 promised more than the median of 0, 1, 2, 6 and counts as that.
    assert told(sampler) == (sorted([0.0, -1.0, -2.0, -6.0, -9.0, -2.0, -70.0]), 3)


def test_enqueued_and_added_trials_are_learned_from():
    sampler = chance()
    made = optuna.create_study(sampler=sampler)
    made.add_trial(create_trial(params={"x": 0.25}, distributions={"x": FloatDistribution(0, 1)}, value=7.0))
    made.add_trial(create_trial(params={"x": 5.0}, distributions={"x": FloatDistribution(0, 9)}, value=8.0))
    made.optimize(line, n_trials=1)  # samples apart: the two trials have different ranges
    made = optuna.create_study(sampler=(sampler := chance()))
    made.add_trial(create_trial(params={"x": 0.25}, distributions={"x": FloatDistribution(0, 1)}, value=7.0))
    made.enqueue_trial({"x": 0.5})
    made.optimize(line, n_trials=3)
    assert made.trials[1].params == {"x": 0.5}
    assert told(sampler)[0] == sorted([-7.0, -0.5, -made.trials[2].value])


def test_ask_and_tell_in_any_order():
    sampler = SparseBOSampler(seed=0)
    made = optuna.create_study(sampler=sampler)
    made.optimize(mixed, n_trials=12)
    out = [made.ask() for _ in range(9)]
    values = [mixed(trial) for trial in out]
    assert len({trial.params["x"] for trial in out}) == 9
    for trial, value in list(zip(out, values, strict=True))[::-1]:
        made.tell(trial, value)
    made.optimize(mixed, n_trials=2)
    assert len(made.get_trials(states=[TrialState.COMPLETE])) == 23
    assert len(search_of(sampler).state.y) >= 21


def test_threads_share_a_sampler():
    made = study(chance(), lambda trial: time.sleep(1e-3) or line(trial), 30, n_jobs=4)
    assert len({trial.params["x"] for trial in made.trials}) == 30


@pytest.fixture
def opened(tmp_path):
    """Return a function that opens a storage anew; Python 3.13 warns of connections that nobody closes."""
    storages = []

    def database():
        storages.append(optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}"))
        return storages[-1]

    yield database
    for storage in storages:
        storage.remove_session()
        storage.engine.dispose()


def test_a_resumed_study_is_read_by_a_new_sampler_and_nothing_is_written(opened):
    first = optuna.create_study(storage=opened(), study_name="s", sampler=chance())
    first.optimize(line, n_trials=6)
    assert not any(trial.system_attrs for trial in first.trials)
    sampler = pickle.loads(pickle.dumps(chance()))
    again = optuna.load_study(study_name="s", storage=opened(), sampler=sampler)
    again.optimize(line, n_trials=1)
    assert told(sampler)[0] == sorted(-trial.value for trial in again.trials[:6])


def test_a_sampler_that_was_interrupted_loses_no_trial(monkeypatch):
    sampler = chance()
    made = study(sampler, line, 5)
    observe, told = WithoutModel.observe, []

    def interrupted(self, state, picks, y, *, generator):
        told.append(len(y))
        if len(told) == 1:
            raise KeyboardInterrupt
        return observe(self, state, picks, y, generator=generator)

    monkeypatch.setattr(WithoutModel, "observe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        made.optimize(line, n_trials=1)
    made.optimize(line, n_trials=1)
    assert told[1] == 5
    assert len(search_of(sampler).state.y) == 5


def test_changed_choices_are_refused():
    made = study(chance(), lambda trial: float(trial.suggest_categorical("k", ["a", "b"]) == "a"), 2)
    with pytest.raises(ValueError, match="does not support dynamic value space"):
        made.optimize(lambda trial: float(trial.suggest_categorical("k", ["a", "c"]) == "a"), n_trials=1)


@pytest.mark.parametrize("others", [0, 1])
def test_a_range_beyond_the_largest_number_is_refused(others):
    """NumPy's uniform numbers raised OverflowError, from the first trial on."""

    def objective(trial):
        return trial.suggest_float("x", -1e308, 1e308) + sum(trial.suggest_float(f"y{k}", 0, 1) for k in range(others))

    with pytest.raises(ValueError, match=r"expected a finite range of parameter 'x', got FloatDistribution\(high=1e\+308"):
        study(chance(), objective, 1)


def bowl_within(width):
    return lambda trial: sum((trial.suggest_float(f"x{i}", 0.0, width) - 1.6) ** 2 for i in range(3))


@pytest.mark.parametrize("again", [False, True], ids=["same sampler", "new sampler"])
def test_a_changed_range_is_followed(again, caplog):
    """Its trials were random from then on, in a new process without a warning: 0.275 was reached."""
    made = study(SparseBOSampler(seed=0) if again else chance(), bowl_within(1.0), 10)
    logging.getLogger("optuna").addHandler(caplog.handler)
    try:
        made.optimize(bowl_within(2.0), n_trials=1)
        if again:
            made.sampler = SparseBOSampler(seed=1)
        made.optimize(bowl_within(2.0), n_trials=19)
    finally:
        logging.getLogger("optuna").removeHandler(caplog.handler)
    assert not again or min(trial.value for trial in made.trials[10:]) < 1e-3
    assert len(search_of(made.sampler).state.y) == 29  # the trials of the narrower range, too
    assert "beside the model" not in caplog.text


@pytest.mark.parametrize(
    ("new", "fitting"), [(IntDistribution(0, 5), 3), (IntDistribution(0, 20, step=5), 2)], ids=["narrower", "stepped"]
)
def test_trials_whose_values_a_new_range_contains_are_learned_from(new, fitting):
    made = optuna.create_study(sampler=chance())
    for value in [0, 3, 5, 8, 17]:
        made.add_trial(create_trial(params={"x": value}, distributions={"x": IntDistribution(0, 20)}, value=float(value)))
    made.add_trial(create_trial(params={"x": 5}, distributions={"x": new}, value=5.0))
    made.optimize(lambda trial: float(trial.suggest_int("x", new.low, new.high, step=new.step)), n_trials=2)
    assert search_of(made.sampler).state.pulls == fitting + 2


def test_a_range_that_changes_from_trial_to_trial_is_left_to_the_other_sampler(caplog):
    logging.getLogger("optuna").addHandler(caplog.handler)
    try:
        made = study(chance(), lambda trial: line(trial) + trial.suggest_float("y", 0, 1 + trial.number), 6)
    finally:
        logging.getLogger("optuna").removeHandler(caplog.handler)
    assert "is sampled by RandomSampler, beside the model: its range changes from trial to trial" in caplog.text
    assert set(search_of(made.sampler).distributions) == {"x"}


@pytest.mark.parametrize(
    ("ends", "sampler", "best", "trials"),
    [
        ("pruned", SparseBOSampler(seed=0), 1e-4, 30),
        ("completed", chance(), math.inf, 12),
        ("early", chance(), math.inf, 12),
    ],
    ids=["pruned", "completed", "early"],
)
def test_a_trial_that_ended_before_it_asked_leaves_the_others_to_the_model(ends, sampler, best, trials):
    """One pruned trial without parameters made all later ones random: 0.055 of 60 trials."""

    def objective(trial):
        x = [trial.suggest_float("x0", 0.0, 1.0)] if ends == "early" else []
        if trial.number == 7:
            if ends == "completed":
                return 30.0
            raise optuna.TrialPruned
        x += [trial.suggest_float(f"x{i}", 0.0, 1.0) for i in range(len(x), 3)]
        return sum((value - 0.3) ** 2 for value in x)

    made = study(sampler, objective, trials)
    assert made.best_value < best
    assert list(search_of(made.sampler).distributions) == ["x0", "x1", "x2"]
    assert len(search_of(made.sampler).state.y) == trials - 2


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_of_workers_that_join_together_one_repeats_the_best_trial(direction):
    """It shows whether there is noise; a trial whose parameters are not stored yet may be that repeat."""
    storage = optuna.storages.InMemoryStorage()
    made = optuna.create_study(storage=storage, direction=direction, sampler=optuna.samplers.RandomSampler(seed=0))
    made.optimize(mixed, n_trials=15)
    best = made.best_params

    def joined(sampler):
        return optuna.load_study(study_name=made.study_name, storage=storage, sampler=sampler)

    def joins(seed):
        trial = joined(SparseBOSampler(seed=seed)).ask()
        mixed(trial)
        return trial.params

    hidden = joined(optuna.samplers.RandomSampler(seed=1)).ask()  # of another process, before it asks for parameters
    assert joins(1) != best
    mixed(hidden)
    assert joins(2) == best
    assert joins(3) != best


def test_a_trial_of_another_process_costs_no_point_of_the_design():
    """The next trial got the point of the one before again."""
    made, seen = optuna.create_study(sampler=SparseBOSampler(seed=0)), []
    for number in range(10):
        hidden = made.ask() if number in (3, 5) else None  # of another process, before it asks for parameters
        trial = made.ask()
        seen.append((trial.suggest_float("x", 0.0, 1.0), trial.suggest_float("y", 0.0, 1.0)))
        made.tell(trial, 0.0)
        if hidden is not None:
            made.tell(hidden, state=TrialState.FAIL)
    assert len(set(seen)) == 10


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("constrained", [False, True])
def test_the_best_trial_is_kept_apart_from_hidden_ones_in_both_directions(direction, constrained):
    def objective(trial):
        if constrained:
            trial.set_constraint("none", -1.0)
        return line(trial)

    made = study(SparseBOSampler(seed=0), objective, 8, direction=direction)
    search = search_of(made.sampler)
    best = made.get_trials()[:-1]  # the search has not seen the last one
    best = (min if direction == "minimize" else max)(trial.value for trial in best)
    assert search.domain.named(search.highest[1])[0] == {"'x'": pytest.approx(best)}


@pytest.mark.parametrize("ends", ["pruned", *(pytest.param(ends, marks=pytest.mark.slow) for ends in ("nan", "raises"))])
def test_trials_that_end_within_their_parameters_are_not_repeated(ends):
    """The failure was never told, as the trial had no point: the same point was asked for ever."""

    def objective(trial):
        x = trial.suggest_float("x", 0.0, 1.0)
        if x > 0.5 and ends == "pruned":
            raise optuna.TrialPruned
        if x > 0.5 and ends == "raises":
            raise RuntimeError
        return math.nan if x > 0.5 else (x - 0.3) ** 2 + (trial.suggest_float("y", 0.0, 1.0) - 0.7) ** 2

    made = optuna.create_study(sampler=SparseBOSampler(seed=0))
    made.optimize(objective, n_trials=30, catch=RuntimeError)
    assert len({trial.params["x"] for trial in made.trials}) >= 25
    assert sum(trial.state == optuna.trial.TrialState.COMPLETE for trial in made.trials) >= 12
    assert made.best_value < 0.01


@pytest.mark.slow
def test_pruned_trials_count_before_any_has_completed():
    def objective(trial):
        trial.report((trial.suggest_float("x", 0.0, 1.0) - 0.3) ** 2 + (trial.suggest_float("y", 0.0, 1.0) - 0.7) ** 2, 0)
        raise optuna.TrialPruned

    made = study(SparseBOSampler(seed=0), objective, 25)
    assert min(trial.intermediate_values[0] for trial in made.trials) < 1e-3


def test_a_branch_whose_trials_are_all_pruned_is_known():
    def objective(trial):
        if trial.suggest_categorical("kind", ["a", "b"]) == "b":
            trial.report(1.0, 0)
            raise optuna.TrialPruned
        return trial.suggest_float("x", 0.0, 1.0)

    made = study(SparseBOSampler(seed=0), objective, 20)
    assert search_of(made.sampler).conditions == {"x": ("kind", (0,))}
    assert made.best_value < 1e-3


def test_the_brackets_of_hyperband_have_designs_of_their_own():
    def objective(trial):
        value = abs(trial.suggest_float("x", -2, 2))
        for step in range(6):
            trial.report(value + 1 / (step + 1), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=6, reduction_factor=2)
    made = optuna.create_study(sampler=SparseBOSampler(seed=0), pruner=pruner)
    made.optimize(objective, n_trials=15)
    assert len({trial.params["x"] for trial in made.trials}) >= 13  # each bracket evaluates one point twice


def test_a_sampler_goes_from_one_study_to_another():
    sampler = SparseBOSampler(seed=0)
    one = study(sampler, lambda trial: trial.suggest_float("x", 0, 1), 8)
    two = study(sampler, lambda trial: trial.suggest_float("y", 0, 1), 8)
    assert set(search_of(sampler).distributions) == {"y"}
    one.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    assert (len(one.trials), len(two.trials)) == (9, 8)
    assert set(search_of(sampler).distributions) == {"x"}


def every_kind(trial):
    return (
        trial.suggest_float("float", 0, 1)
        + trial.suggest_float("log", 0.1, 1, log=True)
        + trial.suggest_float("step", 0, 1, step=0.25)
        + trial.suggest_int("int", 0, 9)
        + trial.suggest_int("log int", 1, 9, log=True)
        + trial.suggest_int("step int", 0, 8, step=2)
        + (trial.suggest_categorical("kind", ["a", "b"]) == "a")
        + trial.suggest_float("", 0, 1)
    )


INSIDE = {"float": 0.5, "log": 0.5, "step": 0.5, "int": 5, "log int": 5, "step int": 4, "kind": "a", "": 0.5}


@pytest.mark.filterwarnings("ignore:Fixed parameter:UserWarning")
@pytest.mark.filterwarnings("ignore:.*out of range:UserWarning")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("float", -1.0), ("float", 7), ("float", "0.25"), ("log", 0.0), ("log", -1.0), ("step", 0.3), ("step", 1.25)),
        *(("int", 10), ("int", 2.5), ("int", -1), ("int", "3"), ("log int", 0), ("step int", 3), ("step int", 10), ("", 9)),
    ],
)
def test_a_trial_enqueued_with_a_value_that_its_range_does_not_have_harms_nothing(name, value):
    """It is evaluated as it is; later trials go on, and learn from it only what lies in the ranges."""
    sampler = chance()
    made = study(sampler, every_kind, 2)
    made.enqueue_trial(INSIDE | {name: value})
    made.enqueue_trial(INSIDE)
    made.enqueue_trial({name: value})
    made.optimize(every_kind, n_trials=6, catch=(TypeError, ValueError))  # Optuna's own, of what is enqueued
    assert [t.state for t in made.trials[3:4] + made.trials[5:]] == [TrialState.COMPLETE] * 4
    inside = [t for t in made.trials[:-1] if t.state == TrialState.COMPLETE and t.params[name] != value]
    assert told(sampler)[0] == sorted(-t.value for t in inside)


def test_hyperband_searches_each_bracket():
    def objective(trial):
        x, kind = trial.suggest_float("x", -2, 2), trial.suggest_categorical("kind", ["a", "b"])
        for step in range(9):
            trial.report(x * x + (kind == "b") + 1 / (step + 1), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return x * x + (kind == "b")

    sampler = SparseBOSampler(seed=0)
    hyperband = optuna.pruners.HyperbandPruner(max_resource=9)
    made = optuna.create_study(study_name="s0", sampler=sampler, pruner=hyperband)  # by the name trials get their brackets
    made.optimize(objective, n_trials=30)
    assert made.best_value < 0.01
    assert len(sampler._searches) == 3
    learned = sum(len(search.state.y) for search in sampler._searches.values())
    assert 24 <= learned <= 30


def test_processes_of_one_study_with_one_seed_make_different_trials():
    """Four samplers with seed 0 take turns, as four processes do that each see the others' finished trials alone."""
    made, samplers = optuna.create_study(), [SparseBOSampler(seed=0) for _ in range(4)]
    for sampler in samplers * 3:
        made.sampler = sampler
        made.optimize(lambda trial: trial.suggest_float("x", 0, 1) + trial.suggest_float("y", 0, 1), n_trials=1)
    values = [tuple(trial.params.values()) for trial in made.trials]
    assert len(set(values[:4])) == 4
    assert len(set(values)) >= 11  # the search repeats one point on purpose


def test_four_points_of_the_design_lie_in_four_quarters_with_trials_of_others_between_them():
    """The first trial is another sampler's; others were added, enqueued, made by another worker, or have failed there."""

    def plane(trial):
        return trial.suggest_float("x", 0, 1) + trial.suggest_float("y", 0, 1)

    for seed in range(5):
        made = optuna.create_study(sampler=SparseBOSampler(seed=seed, policy=TrustRegion(initial_design=12)))
        other = optuna.load_study(study_name=made.study_name, storage=made._storage, sampler=optuna.samplers.RandomSampler(1))
        made.optimize(plane, n_trials=2)
        running = other.ask()
        plane(running)
        made.enqueue_trial({"x": 0.4, "y": 0.6})
        made.optimize(plane, n_trials=2)
        other.tell(running, 0.5)
        lost = other.ask()
        plane(lost)
        other.tell(lost, state=TrialState.FAIL)
        made.add_trial(made.trials[0])
        made.optimize(plane, n_trials=2)
        designed = [made.trials[number].params for number in (1, 4, 7, 8)]
        for name in "xy":
            assert sorted(int(4 * params[name]) for params in designed) == [0, 1, 2, 3]


def test_a_constant_that_gets_a_range_is_of_the_model_from_the_next_trial_on_without_a_warning(caplog):
    """The new range is known once a trial has it; the warning told of ranges that change from trial to trial."""
    drawn = []

    class Drawn(optuna.samplers.RandomSampler):
        def sample_independent(self, study, trial, name, distribution):
            drawn.append((trial.number, name))
            return super().sample_independent(study, trial, name, distribution)

    def objective(trial):
        n = trial.suggest_int("n", 3, 3 if trial.number < 4 else 9)
        return (trial.suggest_float("x", 0, 1) - 0.3) ** 2 + abs(n - 6)

    logging.getLogger("optuna").addHandler(caplog.handler)
    try:
        made = study(chance(independent_sampler=Drawn(seed=0)), objective, 8)
    finally:
        logging.getLogger("optuna").removeHandler(caplog.handler)
    assert drawn == [(0, "x"), (4, "n")]
    assert len({trial.params["n"] for trial in made.trials[4:]}) > 1
    assert "is sampled by" not in caplog.text


def test_a_study_resumed_with_the_same_seed_goes_on_with_other_trials():
    made = study(chance(), line, 6)
    made.sampler = chance()
    made.optimize(line, n_trials=6)
    assert len({trial.params["x"] for trial in made.trials}) == 12


@pytest.mark.slow
@pytest.mark.parametrize("seed", [4, 14])
def test_the_better_category_is_found_where_the_design_favours_the_other(seed):
    """README's example. A region around a category used to hold no other one."""

    def objective(trial):
        x, kind = trial.suggest_float("x", -2, 2), trial.suggest_categorical("kind", ["a", "b"])
        return x**2 + (kind == "b")

    made = optuna.create_study(sampler=SparseBOSampler(seed=seed))
    for x in (0.0, 0.5, -0.5, 1.0):
        made.enqueue_trial({"x": x, "kind": "b"})
    made.enqueue_trial({"x": 1.9, "kind": "a"})
    made.optimize(objective, n_trials=20)
    assert made.best_params["kind"] == "a"
    assert made.best_value < 0.01


def branches(trial):
    """A smooth branch with a better optimum, 0.1, than the one that most trials of chance find."""
    if trial.suggest_categorical("kind", ["tree", "svm", None]) != "svm":
        return 0.3 + abs(trial.suggest_int("depth", 1, 20) - 7) / 20
    power, gamma = trial.suggest_float("power", 1e-3, 1e3, log=True), trial.suggest_float("gamma", 1e-5, 1.0, log=True)
    return 0.1 + ((math.log10(power) - 1.0) ** 2 + (math.log10(gamma) + 3.0) ** 2) / 10.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_conditional_parameters_are_searched_where_they_are_there(seed, caplog):
    made = study(SparseBOSampler(seed=seed), branches, 40)
    assert made.best_params["kind"] == "svm"
    assert made.best_value < 0.1001  # by chance 0.2
    search = search_of(made.sampler)
    assert list(search.distributions) == ["kind", "depth", "gamma", "power"]
    assert search.conditions == {"depth": ("kind", (0, 2)), "gamma": ("kind", (1,)), "power": ("kind", (1,))}
    assert len(search.state.X) == 39  # the model knows all trials
    assert not caplog.records


def test_conditions_are_on_conditional_parameters_and_thresholds_of_integers_too():
    def objective(trial):
        if trial.suggest_categorical("kind", ["net", "line"]) == "line":
            return 3.0
        layers = trial.suggest_int("layers", 1, 3)
        return sum(abs(trial.suggest_int(f"units {i}", 4, 64, log=True) - 16) for i in range(layers)) / 64

    made = study(SparseBOSampler(seed=0), objective, 30)
    search = search_of(made.sampler)
    assert search.conditions["layers"] == ("kind", (0,))
    assert search.conditions["units 1"] == ("layers", (2, 3))
    assert search.conditions["units 2"] == ("layers", (3,))
    assert made.best_value < 0.05


def trial_with(number, **params):
    """A complete trial with integers below 10, or categories."""
    kinds = {
        name: CategoricalDistribution(["a", "b", "c"]) if isinstance(v, str) else IntDistribution(0, 9)
        for name, v in params.items()
    }
    made = create_trial(params=params, distributions=kinds, value=0.0)
    made.number = number
    return made


def test_what_a_pruned_trial_lacks_tells_less_than_what_a_completed_one_lacks():
    trials = [{"k": "a", "x": 1}, {"k": "b"}, {"k": "a"}]
    forms = TrialForms()
    forms.read(trial_with(number, **params) for number, params in enumerate(trials[:2]))
    ended = trial_with(2, **trials[2])
    ended.state = optuna.trial.TrialState.PRUNED
    forms.read([ended])
    assert {name: condition for name, (_, condition) in forms.space().items()} == {"k": None, "x": ("k", (0,))}
    assert conditions_of(*trials) == {}


def conditions_of(*trials):
    forms = TrialForms()
    forms.read(trial_with(number, **params) for number, params in enumerate(trials))
    return {name: tuple(condition) for name, (_, condition) in forms.space().items() if condition is not None}


def test_the_parameter_with_the_fewest_values_tells():
    assert conditions_of({"k": "a", "n": 1, "x": 1}, {"k": "b", "n": 5}) == {"x": ("k", (0,))}
    assert conditions_of({"k": "a", "n": 1, "x": 1}, {"k": "a", "n": 5}) == {"x": ("n", (0, 1))}  # nearer to 5: unknown


def test_where_no_parameter_tells_there_is_no_condition():
    both = {"k": "a", "n": 1, "x": 1}, {"k": "a", "n": 1}
    between = {"k": "a", "n": 1}, {"k": "a", "n": 2, "x": 1}, {"k": "a", "n": 3}
    assert conditions_of(*both) == conditions_of(*between) == {}
    changing = [{"k": "a", "n": 1, "x": x} for x in (1, "c", 1)]
    assert conditions_of(*changing, {"k": "b", "n": 1}) == {}


def test_a_condition_that_changes_once_is_followed():
    before = [{"k": "a", "n": 1, "x": 1}, {"k": "b", "n": 2}, {"k": "c", "n": 3}]
    assert conditions_of(*before) == {"x": ("k", (0,))}
    assert conditions_of(*before, {"k": "b", "n": 4, "x": 1}) == {"x": ("k", (0, 1))}
    assert conditions_of(*before, {"k": "b", "n": 4, "x": 1}, {"k": "b", "n": 5}) == {}  # it changes back
    of_threshold = [{"n": n} | ({"x": 1} if n >= 3 else {}) for n in (1, 2, 3, 4)]
    assert conditions_of(*of_threshold) == {"x": ("n", tuple(range(3, 10)))}
    assert conditions_of(*of_threshold, {"n": 2, "x": 1}) == {"x": ("n", tuple(range(2, 10)))}


def test_a_study_that_goes_on_with_a_parameter_in_more_branches_searches_it_there():
    def objective(trial, kinds):
        kind = trial.suggest_categorical("kind", ["a", "b", "c"])
        return {"a": 0.5, "b": 0.0, "c": 1.0}[kind] + (trial.suggest_float("x", 0, 1) if kind in kinds else 0.5)

    made = study(SparseBOSampler(seed=0), lambda trial: objective(trial, "a"), 15)
    made.sampler = SparseBOSampler(seed=1)
    made.enqueue_trial({"kind": "b"})
    made.optimize(lambda trial: objective(trial, "ab"), n_trials=12)
    search = search_of(made.sampler)
    assert search.conditions == {"x": ("kind", (0, 1))}
    assert made.best_params["kind"] == "b"
    assert made.best_value < 0.05


def test_parameters_on_which_nothing_tells_are_left_to_the_other_sampler(caplog):
    """With each warning once."""

    def objective(trial):
        x, kind = trial.suggest_float("x", 0, 1), trial.suggest_categorical("kind", ["a", "b"])
        return x + (trial.suggest_float("y", 0, 1) if x < 0.5 else 0.5) + (kind == "a")

    logging.getLogger("optuna").addHandler(caplog.handler)
    try:
        made = study(SparseBOSampler(seed=1), objective, 15)
    finally:
        logging.getLogger("optuna").removeHandler(caplog.handler)
    assert set(search_of(made.sampler).distributions) == {"kind", "x"}
    assert [record.getMessage().split(" of trial")[0] for record in caplog.records] == ["'y'"]
    assert "no category and no integer tells which trials have it" in caplog.text


@pytest.mark.filterwarnings("ignore:PartialFixedSampler is experimental")
def test_a_parameter_whose_parent_another_sampler_has_fixed_is_left_to_that_sampler():
    own = SparseBOSampler(seed=0)
    fixed = optuna.samplers.PartialFixedSampler({"kind": "svm"}, own)
    made = study(own, branches, 8)
    made.sampler = fixed
    made.optimize(branches, n_trials=4)
    assert all(trial.params.keys() == {"kind", "power", "gamma"} for trial in made.trials[8:])


def two(trial):
    """Return two objectives of two inputs, with the front x = y."""
    x, y = trial.suggest_float("x", 0.0, 1.0), trial.suggest_float("y", 0.0, 1.0)
    return (x - y) ** 2 + x**2, 2.0 - (x - y) ** 2 - (1.0 - x) ** 2


def volume(made):
    """Return the hypervolume beyond (1, 1) of a study of :func:`two`."""
    values = torch.tensor([trial.values for trial in made.trials if trial.values], dtype=torch.float64)
    return hypervolume(values * torch.tensor([-1.0, 1.0]), torch.tensor([-1.0, 1.0], dtype=torch.float64))


def test_two_objectives_reach_the_front():
    made = optuna.create_study(directions=["minimize", "maximize"], sampler=SparseBOSampler(seed=0))
    made.optimize(two, n_trials=20)
    other = optuna.create_study(directions=["minimize", "maximize"], sampler=optuna.samplers.RandomSampler(seed=0))
    other.optimize(two, n_trials=20)
    assert volume(made) > 0.75 > volume(other)  # 5/6 at most
    state = search_of(made.sampler).state
    assert state.outcomes.objectives == {"objective 0": "min", "objective 1": "max"}
    assert sorted(state.Y.tolist()) == sorted(trial.values for trial in made.trials[:-1])


@pytest.mark.parametrize(("way", "trials"), [("set_constraint", 16), ("constraints_func", 8)])
def test_constraints_have_models(way, trials):
    def objective(trial):
        x, y = trial.suggest_float("x", 0.0, 1.0), trial.suggest_float("y", 0.0, 1.0)
        limit = 0.25 - (x - 0.5) ** 2 - (y - 0.5) ** 2  # outside of a disc
        trial.set_user_attr("limit", limit)
        if way == "set_constraint":
            trial.set_constraint("disc", limit)
        return (x - 0.6) ** 2 + (y - 0.6) ** 2

    func = None if way == "set_constraint" else lambda trial: (trial.user_attrs["limit"],)
    made = optuna.create_study(sampler=SparseBOSampler(seed=0, constraints_func=func))
    made.optimize(objective, n_trials=trials)
    best = made.best_trial  # of the feasible ones
    assert best.user_attrs["limit"] <= 0.0
    if trials == 16:  # the nearest point of the circle is 0.5 − 0.1 √2 away
        assert best.value < 1.05 * (0.5 - 0.02**0.5) ** 2
    state = search_of(made.sampler).state
    assert state.Y.shape == (trials - 1, 2)
    assert state.Y[:, 1].tolist() == [trial.user_attrs["limit"] for trial in made.trials[:-1]]


def test_a_constraint_that_comes_later_and_trials_without_it():
    def objective(trial):
        x = trial.suggest_float("x", 0.0, 1.0)
        if trial.number == 3:
            return math.inf
        if trial.number >= 5 and trial.number != 7:
            trial.set_constraint("late", x - 0.5)
        return -x

    made = study(SparseBOSampler(seed=0), objective, 13)
    state = search_of(made.sampler).state
    assert state.Y[:, 1].isnan().sum() == 5
    assert state.failures.total == 1
    assert max(trial.params["x"] for trial in made.trials if trial.constraints.get("late", 1.0) <= 0.0) > 0.45


def test_more_objectives_than_four_are_refused():
    made = optuna.create_study(directions=["minimize"] * 5, sampler=chance())
    with pytest.raises(ValueError, match="at most 4 objectives, and this study has 5; make some of them constraints"):
        made.optimize(lambda trial: [line(trial)] * 5, n_trials=1)


def test_policies_of_one_outcome_say_so():
    made = optuna.create_study(directions=["minimize"] * 2, sampler=SparseBOSampler(policy=BBKB()))
    with pytest.raises(TypeError, match="policy 'bbkb' takes one outcome, got 2"):
        made.optimize(two, n_trials=3)


class Strange(BaseDistribution):
    def to_internal_repr(self, value):
        return value

    def single(self):
        return False

    def _contains(self, value):
        return True


@pytest.mark.parametrize(
    ("distribution", "error", "message"),
    [
        (Strange(), NotImplementedError, "got Strange for 'x'"),
        (IntDistribution(0, 2**60), ValueError, "cannot encode parameter 'x': expected whole numbers below 2\\^53"),
        (FloatDistribution(-1e308, 1e308), ValueError, "cannot encode parameter 'x': expected a finite range"),
    ],
)
def test_what_cannot_be_encoded_is_named(distribution, error, message):
    made = optuna.create_study(sampler=chance())
    made.ask()
    with pytest.raises(error, match=message):
        made.sampler.sample_relative(made, made.trials[0], {"x": distribution})


@pytest.mark.parametrize("policy", [BBKB, "bbkb", 3])
def test_a_policy_that_is_none_is_refused(policy):
    for sampler, got in (("x", "str"), (optuna.samplers.RandomSampler, "a class")):
        with pytest.raises(TypeError, match=f"expected independent_sampler to be a sampler of Optuna, got {got}; use Random"):
            SparseBOSampler(independent_sampler=sampler)
    with pytest.raises(TypeError, match="expected a policy such as"):
        SparseBOSampler(policy=policy)


@pytest.mark.slow
def test_a_trial_costs_the_same_however_many_there_are():
    """Ten thousand trials of a study are read in one go; what each further one costs does not grow with them."""

    def objective(trial):
        return (trial.suggest_float("x", 0, 1) - 0.3) ** 2 + (trial.suggest_categorical("k", ["a", "b"]) == "b")

    values = torch.rand(10_000, generator=torch.Generator().manual_seed(0)).tolist()
    distributions = {"x": FloatDistribution(0, 1), "k": CategoricalDistribution(["a", "b"])}
    added = [create_trial(params={"x": v, "k": "a"}, distributions=distributions, value=(v - 0.3) ** 2) for v in values]
    made = optuna.create_study(sampler=SparseBOSampler(policy=TrustRegion(batch_size=50), seed=0))
    made.add_trials(added)
    made.optimize(objective, n_trials=50)
    start = time.process_time()
    made.optimize(objective, n_trials=100)
    assert (time.process_time() - start) / 100 < 0.2
    assert len(search_of(made.sampler).state.y) == 10_100


def test_categories_that_are_equal_are_told_apart():
    """Optuna stores the first of them: the trial of the other one was never told, and asked for again, for ever."""
    seen = []

    def objective(trial):
        kind, x = trial.suggest_categorical("kind", [0, False, 2]), trial.suggest_float("x", -1.0, 1.0)
        seen.append((repr(kind), x))
        return (x - 0.2) ** 2 + (kind is not False)

    made = study(SparseBOSampler(seed=0), objective, 18)
    assert made.best_value < 1e-3
    assert {kind for kind, _ in seen} == {"0", "False", "2"}


def test_trials_outside_of_a_range_that_has_become_one_value_are_left_out():
    def objective(trial, low):
        n, x = trial.suggest_int("n", low, 3), trial.suggest_float("x", 0.0, 1.0)
        return (x - 0.2) ** 2 if n == 3 else (x - 0.9) ** 2 - 10.0

    made = optuna.create_study(sampler=SparseBOSampler(seed=0))
    made.optimize(lambda trial: objective(trial, 1), n_trials=16)
    made.optimize(lambda trial: objective(trial, 3), n_trials=12)
    assert min(trial.value for trial in made.trials[16:]) < 1e-3


@pytest.mark.parametrize(("low", "high"), [(1, 2), (3, 3)], ids=["never", "always"])
def test_a_condition_on_an_integer_whose_range_has_changed_is_none_or_always_met(low, high):
    def objective(trial, low, high):
        n, x = trial.suggest_int("n", low, high), trial.suggest_float("x", 0.0, 1.0)
        return (x - 0.3) ** 2 + ((trial.suggest_float("u", 0.0, 1.0) - 0.7) ** 2 if n >= 3 else 0.0)

    made = optuna.create_study(sampler=SparseBOSampler(seed=0))
    made.optimize(lambda trial: objective(trial, 1, 3), n_trials=16)
    made.optimize(lambda trial: objective(trial, low, high), n_trials=8)
    if high == 3:
        assert min(abs(trial.params["u"] - 0.7) for trial in made.trials[-4:]) < 0.05


def test_trials_that_run_are_not_tried_again_however_many_there_are():
    ranges = {f"x{i}": IntDistribution(0, 15) for i in range(3)}
    made = optuna.create_study(sampler=SparseBOSampler(seed=0))
    for _ in range(3):
        trials = [made.ask(ranges) for _ in range(12)]
        assert len({tuple(trial.params.values()) for trial in trials}) == 12
        for trial in trials:
            made.tell(trial, float(((np.array([*trial.params.values()]) - [3, 11, 7]) ** 2).sum()))


@pytest.mark.parametrize("pruned", [False, True])
def test_an_infinite_constraint_is_a_failure_that_is_avoided(pruned):
    def limits(trial):
        return (math.inf if trial.params["x"] > 0.5 else -1.0,)

    def objective(trial):
        value = trial.suggest_float("x", 0, 1) - (trial.suggest_float("y", 0, 1) - 0.3) ** 2
        trial.report(value, 0)
        if pruned and trial.params["x"] > 0.5:
            raise optuna.TrialPruned
        return value

    made = optuna.create_study(direction="maximize", sampler=SparseBOSampler(seed=0, constraints_func=limits))
    made.optimize(objective, n_trials=40)
    beyond = sum(trial.params["x"] > 0.5 for trial in made.trials)
    assert beyond - 1 <= made.sampler._searches[None].state.failures.total <= beyond < 28  # the last one is not looked at yet


def test_a_pruned_trial_with_a_value_counts_where_it_had_not_asked_for_all():
    def pruned(trial):
        x = trial.suggest_float("x", 0, 1)
        trial.report(x, 0)
        if trial.number % 3 == 0:
            raise optuna.TrialPruned
        return x + trial.suggest_float("y", 0, 1)

    made = study(SparseBOSampler(seed=0), pruned, 20)
    state = made.sampler._searches[None].state
    assert (state.pulls, state.failures) == (18, None)
