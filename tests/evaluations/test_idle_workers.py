"""Objectives called with one point at a time: no worker waits for a batch, and a journal repeats the picks."""

from __future__ import annotations

import math
import random
import threading
import time
import warnings
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Storage, Workers, maximize
from sparse_bo.errors import PendingBatchError, ResumeWarning
from sparse_bo.policies import ExpectedImprovement, TrustRegion
from tests.builders import arms, bbkb

DOMAINS = {"box": {"bounds": [(0.0, 1.0)] * 3}, "arms": {"arms": np.random.default_rng(0).random((300, 3))}}


class Clockless(ThreadPoolExecutor):
    """An executor in which evaluations end one at a time, in random order, and only once every worker has one.

    So no time counts: ``idle`` has the number of workers without an evaluation at the end of each one. Where it is not 0, the
    run has waited for results although a worker was free, until the ``patience`` (s) was over.
    """

    def __init__(self, workers: int, budget: int, patience: float) -> None:
        super().__init__(workers)
        self.budget, self.patience = budget, patience
        self.idle: list[int] = []
        self._order, self._tasks = random.Random(0), []
        self._changed = threading.Condition()
        threading.Thread(target=self._work, daemon=True).start()

    def submit(self, fn, /, *args):
        future = Future()
        with self._changed:
            self._tasks.append((future, fn, args))
            self._changed.notify_all()
        return future

    def _work(self):
        for ended in range(self.budget):
            needed = min(self._max_workers, self.budget - ended)
            with self._changed:
                first = self.patience if not any(self.idle) else 0.2
                self._changed.wait_for(lambda needed=needed: len(self._tasks) >= needed, timeout=first)
                self._changed.wait_for(lambda: self._tasks)
                self.idle.append(max(needed - len(self._tasks), 0))
                future, fn, args = self._tasks.pop(self._order.randrange(min(len(self._tasks), self._max_workers)))
            future.set_result(fn(*args))


def bowl(x):
    return -float(((np.asarray(x) - 0.3) ** 2).sum())


def run(workers: int, budget: int, *, patience: float = 20.0, **settings):
    pool = Clockless(workers, budget, patience)
    executor = Workers(executor=pool, asynchronous=settings.pop("asynchronous", None))
    return maximize(bowl, budget=budget, executor=executor, workers=workers, seed=1, **settings), pool


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)
def test_no_worker_waits_by_default(domain):
    result, pool = run(6, 16, **domain)
    assert result.state.pulls == len(pool.idle) == 16
    assert sum(pool.idle) == 0


@pytest.mark.parametrize(
    ("domain", "policy"),
    [("box", TrustRegion(batch_size=2)), ("arms", ExpectedImprovement(batch_size=2)), ("box", TrustRegion(goal="cumulative"))],
    ids=["box", "arms", "cumulative"],
)
def test_workers_count_more_than_the_batch_size(domain, policy):
    _, pool = run(5, 12, policy=policy, **DOMAINS[domain])
    assert sum(pool.idle) == 0


def test_batch_by_batch_workers_wait():
    _, pool = run(4, 12, patience=0.5, asynchronous=False, **DOMAINS["arms"])
    assert sum(pool.idle) > 0


def test_objectives_that_take_many_points_are_called_batch_by_batch():
    truth = arms(60)
    settings = {"arms": truth, "policy": bbkb(), "budget": 30, "seed": 2}
    history = maximize(lambda X: -X.sum(dim=-1), **settings).history
    assert maximize(lambda X: -X.sum(dim=-1), executor="threads", workers=3, **settings).history.indices == history.indices


def test_the_picks_of_idle_workers_are_repeated_by_a_resume(tmp_path):
    storage = Storage(tmp_path / "run.journal", replay_seconds=math.inf)
    result, _ = run(6, 12, storage=storage, **DOMAINS["box"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResumeWarning)
        loop = AskTell.resume(storage)
    assert loop.history.points == result.history.points
    assert torch.equal(loop.state.fitted.gp.support, result.state.fitted.gp.support)


def test_an_ask_beyond_the_batch_returns_what_is_asked_for():
    loop = AskTell(policy=TrustRegion(initial_design=4, batch_size=2), bounds=[(0.0, 1.0)] * 2, seed=0)
    design = loop.ask()
    with pytest.raises(PendingBatchError):
        loop.ask(3)
    extra = loop.ask(3, beyond_batch=True)
    assert len(torch.unique(torch.cat([design.X, extra.X]), dim=0)) == 7
    loop.tell(design.tickets, [bowl(x) for x in design.X.numpy()])
    assert len(loop.ask(4, beyond_batch=True)) == 4
    assert len(loop.pending) == 7
    with pytest.raises(ValueError, match="expected ask.max_q, beyond_batch=True., got no max_q"):
        loop.ask(beyond_batch=True)


@pytest.mark.sampled
@pytest.mark.parametrize("domain", ["box", "arms"])
@pytest.mark.parametrize("outcomes", [1, 2])
def test_a_result_that_never_comes_stops_nobody(domain, outcomes):
    """Of several outcomes all workers waited for the initial design, and for ever for one lost result of it."""
    aims = {} if outcomes == 1 else {"objectives": {"a": "max"}, "constraints": {"b": (None, 1.5)}}
    where = {"bounds": [(0.0, 1.0)] * 2} if domain == "box" else {"arms": arms(60)}
    loop = AskTell(seed=0, workers=8, **where, **aims)
    (lost, *out) = loop.ask(8, beyond_batch=True).tickets
    for _ in range(10):
        ticket = out.pop(0)
        x = loop.reissue([ticket]).X[0]
        loop.tell([ticket], [float(bowl(x.numpy()))] if outcomes == 1 else [(float(bowl(x.numpy())), float(x.sum()))])
        out += loop.ask(1, beyond_batch=True).tickets
        assert len(loop.pending) == 8
    assert lost in loop.pending
    assert len(torch.unique(loop.reissue().X, dim=0)) > 4


def test_an_ask_beyond_the_batch_tops_the_batch_up_and_a_resume_repeats_it(tmp_path):
    storage = Storage(tmp_path / "run.journal", replay_seconds=math.inf)
    with AskTell(policy=TrustRegion(initial_design=4, batch_size=2), bounds=[(0.0, 1.0)] * 2, storage=storage) as loop:
        first = loop.ask(20, beyond_batch=True)
        assert len(torch.unique(first.X, dim=0)) == 20
        loop.tell(first.tickets[:6], [bowl(x) for x in first.X[:6].numpy()])
        loop.enqueue([[0.25, 0.75]])
        more = loop.ask(3, beyond_batch=True)
        assert len(more) == 3
        assert more.X[0].tolist() == [0.25, 0.75]  # those of the user come first
        last = loop.reissue().X
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResumeWarning)
        again = AskTell.resume(storage)
    assert torch.equal(again.reissue().X, last)
    again.close()


def test_policies_with_bounds_still_need_results():
    loop = AskTell(arms(), bbkb(initial_design=3), seed=0)
    batch = loop.ask()
    loop.tell(batch.tickets, [0.1, 0.2, 0.3])
    loop.ask()
    with pytest.raises(PendingBatchError):
        loop.ask(1, beyond_batch=True)


def test_an_end_withdraws_what_was_submitted_in_advance():
    """Evaluations as long as an ask: some are in the queue of the pool when the run ends, and stay pending."""
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, policy=TrustRegion(initial_design=4, batch_size=2), seed=0)
    calls = []

    def slow(x):
        calls.append(x)
        time.sleep(0.05)
        return bowl(x)

    result = loop.run(slow, 60, executor=Workers(executor="threads", count=2, chunk=1), stop=lambda loop: len(calls) >= 20)
    assert result.ended == "stop= returned a true value"
    assert len(calls) <= 22
    assert result.state.pulls == len(calls)
    assert len(loop.pending) == loop.asked - len(calls)


@pytest.mark.parametrize("asynchronous", [None, False])
def test_one_worker_gets_the_picks_of_a_run_without_an_executor(asynchronous):
    def slow(x):
        time.sleep(0.03)  # an ask takes a share of it, for which several workers would be asked in advance
        return bowl(x)

    alone = Workers(executor="threads", count=1, asynchronous=asynchronous)
    runs = [maximize(slow, **DOMAINS["box"], budget=9, seed=3, vectorized=False, executor=one) for one in (None, alone)]
    first, second = (torch.as_tensor(result.history.points) for result in runs)
    assert torch.equal(first, second)
