"""Ends before the budget: seconds, a target, patience, a function of the user; what is known then is in result and journal."""

import logging
import math
import threading
import time

import numpy as np
import pytest
import torch

from sparse_bo import BBKB, SBPE, AskTell, Workers, maximize, minimize
from sparse_bo.policies import RandomSearch
from sparse_bo.runs import read_run
from tests.builders import arms, unit_box

BOX = unit_box()
EVERY = RandomSearch(batch_size=4)


class Results:
    """An objective with given results, one after another, and then zeros."""

    def __init__(self, *values, seconds=0.0):
        self.values, self.calls, self.seconds = values, 0, seconds
        self.lock = threading.Lock()

    def __call__(self, x):
        with self.lock:
            self.calls += 1
            call = self.calls
        time.sleep(self.seconds)
        return self.values[call - 1] if call <= len(self.values) else 0.0


def values(result):
    return [value for row in result.history.rows for value in row.values]


@pytest.mark.parametrize(("run", "sign"), [(maximize, 1.0), (minimize, -1.0)])
@pytest.mark.parametrize(("target", "made"), [(3.0, 6), (2.5, 6), (-1.0, 1), (9.0, 20)])
def test_a_run_ends_with_the_first_result_that_reaches_the_target(run, sign, target, made):
    given = [0.0, 1.0, 2.0, math.nan, 1.5, 3.0]
    objective = Results(*(sign * value for value in given))
    result = run(objective, bounds=BOX, policy=EVERY, budget=20, vectorized=False, target=sign * target)
    assert objective.calls == made
    assert len(values(result)) == made
    assert result.best.mean == sign * max(value for value in given[:made] if not math.isnan(value))


def test_patience_counts_evaluations_since_the_best_result():
    objective = Results(1.0, 0.5, 2.0, math.nan, 1.0, 2.0, 2.5, 1.0, 1.0, 1.0)
    result = maximize(objective, bounds=BOX, policy=EVERY, budget=40, vectorized=False, patience=4)
    assert objective.calls == 11
    assert result.best.mean == 2.5
    failing = Results(*[math.nan] * 40)
    maximize(failing, bounds=BOX, policy=EVERY, budget=40, vectorized=False, patience=5)
    assert failing.calls == 5


def test_observations_from_before_the_run_are_to_beat_and_no_sign_of_impatience():
    objective = Results(0.5, 0.2, 0.7)
    before = (torch.rand(6, 2, dtype=torch.float64), [5.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    result = maximize(objective, bounds=BOX, policy=EVERY, budget=40, vectorized=False, patience=3, initial=before)
    assert objective.calls == 3
    assert result.best.mean == 5.0
    assert maximize(objective, bounds=BOX, budget=9, vectorized=False, target=5.0, initial=before).history.observations == 6


def test_seconds_end_a_run_with_what_has_begun():
    objective = Results(seconds=0.2)
    start = time.monotonic()
    result = maximize(objective, bounds=BOX, policy=RandomSearch(batch_size=1), budget=1_000, vectorized=False, seconds=0.5)
    assert 0.5 <= time.monotonic() - start < 60.0
    assert objective.calls == len(values(result)) <= 3


@pytest.mark.parametrize("how", ["stop", "callback"])
def test_a_function_ends_a_run(how):
    seen = []

    def ends(loop, row=None):
        seen.append(row)
        return np.float64(loop.asked) >= 8 and len(loop.pending) == 0

    objective = Results()
    settings = {how: ends, "policy": EVERY, "budget": 40, "vectorized": False}
    assert maximize(objective, bounds=BOX, **settings).history.observations == 8
    assert seen
    others = {"policy": EVERY, "budget": 8, "vectorized": False, "callback": lambda loop, row: "go on"}
    assert maximize(Results(), bounds=BOX, **others).history.observations == 8


@pytest.mark.parametrize(
    "executor", ["threads", Workers(executor="threads", count=3, asynchronous=True)], ids=["sync", "async"]
)
def test_workers_finish_what_they_have_begun_and_nothing_else_is_started(executor):
    objective = Results(1.0, 2.0, 5.0, seconds=0.02)
    workers = executor if isinstance(executor, Workers) else Workers(executor=executor, count=3)
    loop = AskTell(bounds=BOX, policy=RandomSearch(batch_size=30))
    result = loop.run(objective, 300, executor=workers, vectorized=False, target=5.0)
    assert 3 <= objective.calls <= 6
    assert sorted(values(result)) == sorted([*objective.values, *[0.0] * (objective.calls - 3)])
    assert len(loop.pending) == loop.asked - objective.calls


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("domain", "policy"),
    [
        ({"bounds": BOX}, None),
        ({"arms": arms()}, None),
        ({"arms": arms()}, BBKB()),
        ({"arms": arms()}, SBPE(horizon=24)),
        ({"bounds": BOX}, EVERY),
    ],
    ids=["box", "arms", "bbkb", "s-bpe", "random"],
)
def test_a_run_that_ended_early_goes_on_from_its_journal(domain, policy, tmp_path, caplog):
    caplog.set_level(logging.INFO, "sparse_bo")
    path = tmp_path / "run.journal"
    settings = {**domain, "policy": policy, "budget": 16, "vectorized": False, "storage": path}

    def objective(x):
        return float(-(x - 0.4).square().sum())

    calls = []
    ended = maximize(lambda x: calls.append(x) or objective(x), **settings, stop=lambda loop: len(calls) >= 7)
    assert len(calls) == 7
    assert len(values(ended)) == 7
    assert "ended after 7 of 16 evaluations: stop= returned a true value" in caplog.text
    recorded = read_run(path)
    assert (recorded.told, recorded.history.observations) == (7, 7)
    again = maximize(objective, **settings, resume=True)
    assert len(values(again)) == 16
    assert values(again)[:7] == values(ended)
    assert values(maximize(objective, **{**settings, "budget": 9}, resume=True)) == values(again)
    best = max(values(again))
    over = maximize(objective, **settings, resume=True, target=best)
    assert len(values(over)) == 16


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"seconds": 0.0}, ValueError, "expected seconds > 0"),
        ({"seconds": "60"}, TypeError, "expected seconds to be a number"),
        ({"target": math.nan}, ValueError, "expected a finite target"),
        ({"target": "high"}, TypeError, "expected target to be a number"),
        ({"patience": 0}, ValueError, "expected patience >= 1"),
        ({"patience": 2.5}, TypeError, "expected patience to be an integer"),
        ({"stop": True}, TypeError, "expected stop to be callable"),
    ],
    ids=str,
)
def test_wrong_ends_are_named_before_a_journal_is_created(wrong, error, message, tmp_path):
    with pytest.raises(error, match=message):
        maximize(Results(), bounds=BOX, budget=4, storage=tmp_path / "run.journal", **wrong)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(error, match=message):
        AskTell(bounds=BOX).run(Results(), 4, **wrong)


@pytest.mark.parametrize(
    ("stop", "evaluated"),
    [(lambda loop: loop.history.observations >= 9, 8), (lambda loop: loop.state.pulls >= 9, 16)],
    ids=["observations", "pulls"],
)
def test_failures_are_in_the_observations_of_a_history_and_not_in_pulls(stop, evaluated):
    seen = []

    def objective(x):
        seen.append(x)
        return math.nan if len(seen) % 2 else 1.0

    result = maximize(objective, bounds=[(0.0, 1.0)], budget=40, policy=EVERY, initial=([[0.5]], [1.0]), stop=stop)
    assert (len(seen), result.history.observations) == (evaluated, evaluated + 1)
