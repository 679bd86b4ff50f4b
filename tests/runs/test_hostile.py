"""Objectives that write into what they are given, policies and callbacks that raise, loops used from several threads."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from contextlib import suppress

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Float, ProductGrid, Workers, maximize
from sparse_bo.errors import (
    ContradictionError,
    ObjectiveError,
    PendingBatchError,
    RunInterrupted,
    StorageError,
)
from sparse_bo.evaluations import Batch, PlainBatch
from sparse_bo.policies import RandomSearch
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.recording import read_run
from tests.journal.runs import arms, policy

BOUNDS = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.float64)


def vandal(given):
    """Evaluate, then write over everything that was handed out."""
    batch = given if isinstance(given, (Batch, PlainBatch)) else None
    X = given if batch is None else batch.X
    y = X[:, 0] + X[:, 1]
    X[:] = 1e9
    if batch is not None:
        batch.tickets.reverse()
    return y.copy() if isinstance(y, np.ndarray) else y.clone()


@pytest.mark.parametrize("executor", [None, "threads"])
@pytest.mark.parametrize("arrays", ["torch", "numpy"])
@pytest.mark.parametrize("call_with", ["X", "batch"])
@pytest.mark.parametrize("where", [{"arms": True}, {"bounds": BOUNDS}], ids=["arms", "box"])
def test_an_objective_may_write_into_what_it_is_given(where, call_with, arrays, executor, tmp_path):
    domain = {"arms": arms()} if "arms" in where else where
    how = {"budget": 20, "seed": 1, "policy": RandomSearch(batch_size=4)}
    honest = maximize(lambda X: X[:, 0] + X[:, 1], **domain, **how)
    storage = tmp_path / "run.journal"
    got = maximize(vandal, **domain, **how, call_with=call_with, arrays=arrays, executor=executor, storage=storage)
    assert got.history.points == honest.history.points
    assert got.history.indices == honest.history.indices
    assert got.history.column("values") == honest.history.column("values")
    with AskTell.resume(storage) as again:
        assert again.history.points == honest.history.points
        assert again.history.column("values") == honest.history.column("values")


@pytest.mark.parametrize("where", [{"arms": torch.rand(20, 2, dtype=torch.float64)}, {"bounds": [(0.0, 1.0)] * 2}])
@pytest.mark.parametrize("objectives", [None, {"a": "max", "b": "max"}])
def test_a_user_may_write_into_a_result(where, objectives):
    loop = AskTell(**where, objectives=objectives)
    for _ in range(8):
        batch = loop.ask(1)
        loop.tell(batch.tickets, batch.X[:, 0] if objectives is None else batch.X)
    names = ("best_x", "best_observed_x") if objectives is None else ("front", "estimates", "reference")
    result = loop.result()
    before = [getattr(result, name).clone() for name in names]
    for name in names:
        getattr(result, name).mul_(7)
    if objectives is None:
        best = loop.result().best
        best.x[:] = 7.0
    after = loop.result()
    assert all(torch.equal(getattr(after, name), value) for name, value in zip(names, before, strict=True))


@pytest.mark.parametrize("domain", [lambda corners: {"bounds": corners}, lambda corners: {"arms": ProductGrid([*corners.T])}])
def test_boxes_and_grids_stay_as_they_were_although_their_tensors_change(domain):
    corners = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    loop = AskTell(**domain(corners))
    corners += 5.0
    assert float(loop.ask(1).X.max()) <= 1.0


def test_what_is_out_is_reissued_as_it_was_handed_out():
    loop = AskTell(bounds=BOUNDS, policy=RandomSearch(batch_size=3), seed=0)
    batch = loop.ask()
    before = batch.X.clone()
    batch.X.zero_()
    again = loop.reissue()
    again.X.zero_()
    assert torch.equal(loop.reissue().X, before)
    loop.tell(batch.tickets, [1.0, 2.0, 3.0])
    assert loop.history.points == before.tolist()


def test_whatever_ends_a_run_carries_it(tmp_path):
    class Odd(Exception):
        pass

    def callback(loop, row):
        if row.round == 3:
            raise Odd("from the callback")

    with pytest.raises(Odd) as caught:
        maximize(
            lambda X: X.sum(-1), arms=arms(), policy=policy(), budget=30, callback=callback, storage=tmp_path / "run.journal"
        )
    error = caught.value
    assert len(error.result.history.rows) == 3
    assert "attributes .loop and .result" in error.__notes__[0]
    with AskTell.resume(tmp_path / "run.journal") as again:  # nobody holds it
        assert again.history.column("values") == error.result.history.column("values")
    error.loop.run(lambda X: X.sum(-1), 5)  # takes it up again
    error.loop.release()
    with AskTell.resume(tmp_path / "run.journal") as again:
        again.run(lambda X: X.sum(-1), 1)
    with pytest.raises(StorageError, match="written by another process since this loop released it"):
        error.loop.run(lambda X: X.sum(-1), 1)


@pytest.mark.parametrize("raised_by", ["objective", "callback"])
@pytest.mark.parametrize(
    "error",
    [asyncio.CancelledError(), GeneratorExit(), BaseExceptionGroup("several", [KeyboardInterrupt()]), pytest.skip.Exception()],
    ids=lambda error: type(error).__name__,
)
def test_exceptions_that_are_no_errors_carry_the_run(error, raised_by):
    calls = []

    def objective(X):
        calls.append(len(X))
        if raised_by == "objective" and len(calls) == 4:
            raise error
        return X.sum(-1)

    def callback(loop, row):
        if raised_by == "callback" and loop.asked == 12:
            raise error

    with pytest.raises(type(error)) as caught:
        maximize(objective, arms=arms(), budget=40, policy=RandomSearch(batch_size=4), callback=callback)
    assert caught.value is error
    assert caught.value.result.history.observations == 12
    assert caught.value.loop.asked == (16 if raised_by == "objective" else 12)


def test_an_exit_by_a_callback_carries_the_run():
    def callback(loop, row):
        if loop.asked == 12:
            raise SystemExit(3)

    with pytest.raises(SystemExit) as caught:
        maximize(lambda X: X.sum(-1), arms=arms(), budget=40, policy=RandomSearch(batch_size=4), callback=callback)
    assert caught.value.code == 3
    assert caught.value.result.history.observations == 12
    assert caught.value.loop.asked == 12


def test_a_journal_is_free_if_observations_from_before_the_run_are_not_taken_in(tmp_path, monkeypatch):
    def interrupted(*_):
        monkeypatch.undo()
        raise KeyboardInterrupt

    run = {"arms": arms(), "policy": policy(), "budget": 4, "initial": ([3, 3, 8], [1.0, 2.0, 3.0])}
    monkeypatch.setattr(Engine, "observed", interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:
        maximize(lambda X: X.sum(-1), **run, storage=tmp_path / "run.journal")
    result = maximize(lambda X: X.sum(-1), **run, storage=tmp_path / "run.journal", resume=True)
    assert kept.tb  # as a notebook keeps it
    assert result.history.indices == maximize(lambda X: X.sum(-1), **run).history.indices


def test_a_result_leaves_a_released_journal_free(tmp_path, monkeypatch):
    """Making up for an update that Ctrl-C had cut short opened the journal again, and the next call was refused."""
    calls, folded = [], Engine.next_update

    def interrupted(engine):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return folded(engine)

    run = {"arms": arms(), "policy": policy(), "budget": 12, "seed": 1}
    reference = maximize(lambda X: X.sum(-1), **run).history.column("values")
    monkeypatch.setattr(Engine, "next_update", interrupted)
    with pytest.raises(RunInterrupted) as kept:
        maximize(lambda X: X.sum(-1), **run, storage=tmp_path / "run.journal")
    loop = kept.value.loop
    assert len(loop.result().history.rows) == 3
    with AskTell.resume(tmp_path / "run.journal") as resumed:
        assert resumed.history.column("values") == reference[:3]
    loop.run(lambda X: X.sum(-1), 12 - loop.asked)
    loop.close()
    assert loop.history.column("values") == reference
    assert read_run(tmp_path / "run.journal").history.column("values") == reference


@pytest.mark.parametrize(("stop", "raised"), [(OSError, ObjectiveError), (KeyboardInterrupt, RunInterrupted)])
def test_a_journal_is_free_after_a_failure_that_a_notebook_keeps(stop, raised, tmp_path):
    calls = []

    def objective(X):
        calls.append(1)
        if len(calls) == 4:
            raise stop
        return X.sum(-1)

    run = {"arms": arms(), "policy": policy(), "budget": 12, "seed": 1, "storage": tmp_path / "run.journal"}
    with pytest.raises(raised) as kept:  # as a notebook keeps the last traceback, with all that is in it
        maximize(objective, **run)
    result = maximize(lambda X: X.sum(-1), **run, resume=True)
    before = kept.value.result.history.column("values")
    assert result.history.column("values")[: len(before)] == before
    assert sum(row.batch_size for row in result.history.rows) >= 12


@pytest.mark.parametrize(("stop", "raised"), [(MemoryError, ObjectiveError), (KeyboardInterrupt, RunInterrupted)])
@pytest.mark.parametrize("where", [{"bounds": BOUNDS}, {"space": {"a": Float(0, 1), "b": Float(-1, 2)}}], ids=["box", "space"])
def test_evaluations_made_one_at_a_time_are_told_as_they_end(where, stop, raised, tmp_path):
    def objective(x):
        calls.append(1)
        if len(calls) == fails_at:
            raise stop("in the middle of a batch")
        return float(x["a"] - x["b"] ** 2) if isinstance(x, dict) else float(x[0] - x[1] ** 2)

    run = {**where, "policy": RandomSearch(batch_size=4), "budget": 12, "vectorized": False}
    calls, fails_at = [], 0
    honest = maximize(objective, **run)
    calls, fails_at = [], 7
    with pytest.raises(raised) as caught:
        maximize(objective, **run, storage=tmp_path / "run.journal")
    assert caught.value.loop.pending == [6, 7]
    again = maximize(objective, **run, storage=tmp_path / "run.journal", resume=True)
    assert len(calls) == 13  # none is made again but the one that raised
    assert again.history.column("values") == honest.history.column("values")
    assert again.history.points == honest.history.points


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_loop_cannot_be_copied_and_says_so(copied):
    with pytest.raises(TypeError, match=r"expected no pickle or copy of an AskTell.*AskTell\.resume"):
        copied(AskTell(bounds=BOUNDS))


def test_one_result_that_is_no_number_is_shown():
    with pytest.raises(ObjectiveError, match=r"failed on ticket 0 \(TypeError: expected one finite number .*, got None\)"):
        maximize(lambda point: None, space={"a": Float(0, 1)}, budget=3)


@pytest.mark.parametrize(("name", "objective", "callback"), [("objective", 3, None), ("callback", len, 3)])
def test_what_cannot_be_called_is_named_before_there_is_a_journal(name, objective, callback, tmp_path):
    with pytest.raises(TypeError, match=f"expected {name} to be callable, got int"):
        maximize(objective, bounds=BOUNDS, budget=3, callback=callback, storage=tmp_path / "run.journal")
    assert not list(tmp_path.iterdir())
    with pytest.raises(TypeError, match=f"expected {name} to be callable, got int"):
        AskTell(bounds=BOUNDS).run(objective, 3, callback=callback)


def test_a_policy_that_raises_loses_nothing(monkeypatch):
    loop = AskTell(arms(), policy(), seed=0)
    tell, calls = type(loop._engine.mechanism).tell, []

    def broken(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == 4:
            raise FloatingPointError("in the policy")
        return tell(self, *args, **kwargs)

    monkeypatch.setattr(type(loop._engine.mechanism), "tell", broken)
    with pytest.raises(FloatingPointError) as caught:
        loop.run(lambda X: X.sum(-1), 30)
    assert caught.value.loop is loop
    assert len(caught.value.result.history.rows) == 4  # computed again for the result
    reference = AskTell(arms(), policy(), seed=0)
    reference.run(lambda X: X.sum(-1), loop.asked + 10)
    loop.run(lambda X: X.sum(-1), 10)
    assert loop.history.column("values") == reference.history.column("values")


@pytest.mark.parametrize(
    "error",
    [
        ObjectiveError("failed", loop=object(), result=object()),
        RunInterrupted("stopped", loop=object(), result=object()),
        ContradictionError("no", state=threading.Lock()),
        PendingBatchError("wait", needed=3, pending=7),
    ],
)
def test_errors_travel_between_processes(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert (getattr(again, "needed", None), getattr(again, "pending", None)) == (
        getattr(error, "needed", None),
        getattr(error, "pending", None),
    )


@pytest.mark.parametrize("journal", [False, True])
def test_eight_threads_on_one_loop(journal, tmp_path):
    storage = {"storage": tmp_path / "run.journal"} if journal else {}
    loop = AskTell(arms(), policy(), seed=0, **storage)
    seen: list[int] = []
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            while len(seen) < 200:
                try:
                    batch = loop.ask(3)
                except PendingBatchError:
                    continue
                seen.extend(batch.tickets)
                for ticket, index in zip(batch.tickets, batch.indices.tolist(), strict=True):
                    assert loop.pending  # reading while others write
                    loop.tell([ticket], [index + ticket / 1000.0])
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []
    assert sorted(seen) == list(range(loop.asked))
    values = [v for row in loop.history.rows for v in row.values]
    assert sorted(round(1000 * (v % 1.0)) for v in values) == [t % 1000 for t in range(loop.asked)]
    assert loop.state.pulls == loop.asked
    loop.close()
    if journal:
        with AskTell.resume(tmp_path / "run.journal") as again:
            assert again.history.column("values") == loop.history.column("values")


def test_workers_are_counted_alike_by_run_and_maximize():
    loop = AskTell(arms(), RandomSearch(batch_size=4), seed=3)
    result = loop.run(lambda X: X.sum(-1), 12, executor="threads", workers=2)
    other = maximize(
        lambda X: X.sum(-1), arms=arms(), policy=RandomSearch(batch_size=4), seed=3, budget=12, executor=Workers(count=2)
    )
    assert result.history.column("values") == other.history.column("values")
    with pytest.raises(ValueError, match="needs executor="):
        loop.run(lambda X: X.sum(-1), 12, workers=2)


def test_a_policy_class_in_place_of_a_policy_is_named():
    with pytest.raises(TypeError, match="got the class RandomSearch; call it"):
        AskTell(arms(), RandomSearch)


def asks(loop, row):
    assert loop.asked <= 100  # instead of no end
    loop.ask(1)


def asks_and_tells(loop, row):
    assert loop.asked <= 100
    batch = loop.ask(1)
    loop.tell(batch.tickets, batch.X.sum(-1))


@pytest.mark.parametrize("executor", [None, "threads"])
@pytest.mark.parametrize("callback", [asks, asks_and_tells])
def test_a_run_ends_whatever_its_callback_asks(callback, executor):
    rows = []

    def listening(loop, row):
        rows.append(row)
        callback(loop, row)

    how = {"arms": arms(), "policy": RandomSearch(batch_size=3), "budget": 10, "callback": listening, "executor": executor}
    result = maximize(lambda X: X.sum(-1), **how)
    if callback is asks_and_tells:
        assert sum(row.batch_size for row in result.history.rows) >= 10
    assert rows == list(result.history.rows[: len(rows)])
    assert len(rows) >= len(result.history.rows) - 1  # without the one that the callback has added at the end


@pytest.mark.parametrize("chosen", [policy(), RandomSearch(batch_size=3)], ids=["BBKB", "random"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_callback_asks_for_is_evaluated_here_or_on_workers(asynchronous, chosen):
    """On workers it stayed out for ever: a policy that waits for results ended the run with `PendingBatchError`."""

    def asking(loop, row):
        if row.round % 2 and loop.asked < 28:
            with suppress(PendingBatchError):
                loop.ask(2)

    run = {"arms": arms(), "policy": chosen, "budget": 30, "callback": asking}
    here, workers = (
        maximize(lambda X: X.sum(-1), **run, executor=executor)
        for executor in (None, Workers(executor="threads", count=2, asynchronous=asynchronous))
    )
    assert sum(row.batch_size for row in workers.history.rows) == 30
    if not asynchronous:
        assert workers.history.indices == here.history.indices


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ([1, 2], "notes to be a dictionary, got list"),
        ("why", "notes to be a dictionary, got str"),
        ({"why": object()}, "notes that json can write"),
        ({(1, 2): "why"}, "notes that json can write"),
    ],
    ids=["a list", "a text", "an object", "a key"],
)
def test_notes_that_no_journal_can_keep_are_named_before_there_is_one(notes, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        AskTell(arms(), policy(), notes=notes, storage=tmp_path / "run.journal")
    assert not list(tmp_path.iterdir())
