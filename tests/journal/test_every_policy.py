"""Every policy of the command line, on arms and on boxes: an interrupted run goes on as if nothing had happened."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch

from sparse_bo import AskTell, Storage
from sparse_bo.cli.presets import POLICIES
from sparse_bo.errors import PendingBatchError
from sparse_bo.runs.engine import Engine
from tests.journal.every_policy import BUDGET, RUNS, outcomes_of, policy_of, result_of, shorten_searches
from tests.journal.runs import arms

REPLAYED = [
    run
    for run in RUNS
    if run[0] == "arms" or run[1] in ("bbkb", "sbpe", "gssbo", "trust-region", "trust-region, outcomes", "random")
]
"""Without snapshots every policy takes the same way; fits of a surrogate are slow."""


def bounds() -> torch.Tensor:
    return torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.float64)


def started(domain: str, name: str, **settings: Any) -> AskTell:
    where = {"arms": arms()} if domain == "arms" else {"bounds": bounds()}
    return AskTell(policy=policy_of(domain, name), seed=4, **outcomes_of(name), **where, **settings)


def step(loop: AskTell, name: str, budget: int, log: list[Any]) -> None:
    """Ask, or tell one of what is out, not the oldest first; the loop alone decides which. Every eleventh fails."""
    pending = loop.pending
    if loop.asked < budget and len(pending) < 4:
        try:
            batch = loop.ask(min(1 + loop.asked % 2, budget - loop.asked))
        except PendingBatchError as error:
            log.append(error.needed)
            pending = loop.pending
        else:
            log.append((batch.tickets, batch.X.tolist()))
            return
    ticket = pending[(7 * loop.asked) % len(pending)]
    x = loop.reissue([ticket]).X[0]
    noise = 0.1 * (ticket * 7919 % 101 / 50)
    told = math.nan if ticket % 11 == 6 else float(torch.sin(5.0 * x[0]) + torch.cos(3.0 * x[1])) + noise
    log.append((ticket, repr(told)))
    loop.tell([ticket], [result_of(name, told, float(x[0]))])


def finished(loop: AskTell, name: str, budget: int, log: list[Any]) -> AskTell:
    while loop.asked < budget or loop.pending:
        step(loop, name, budget, log)
    return loop


@pytest.fixture(autouse=True)
def small_searches(monkeypatch):
    shorten_searches(monkeypatch)


@functools.cache
def uninterrupted(domain: str, name: str) -> tuple[AskTell, list[Any]]:
    log: list[Any] = []
    return finished(started(domain, name), name, BUDGET[domain], log), log


def test_every_policy_is_here():
    assert {name.split(",")[0] for _, name in RUNS} == set(POLICIES)


CASES = [("snapshots", *run) for run in RUNS] + [("replay", *run) for run in REPLAYED]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("domain", "name"), RUNS, ids=map("-".join, RUNS))
def test_tensors_of_a_snapshot_lie_in_memory_as_a_journal_returns_them(domain, name):
    """Products of other strides round differently."""
    frozen = uninterrupted(domain, name)[0]._engine.freeze() or {}
    strided = [key for key, value in frozen.items() if isinstance(value, torch.Tensor) and not value.is_contiguous()]
    assert strided == []


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("way", "domain", "name"), CASES, ids=map("-".join, CASES))
def test_an_interrupted_run_goes_on_as_the_uninterrupted_one(way, domain, name, tmp_path, monkeypatch):
    often = way == "snapshots"
    storage = Storage(tmp_path / "run.journal", replay_seconds=0.0 if often else math.inf)
    reference, expected = uninterrupted(domain, name)
    loop, log = started(domain, name, storage=storage), []
    updates = []
    update = Engine.next_update
    monkeypatch.setattr(Engine, "next_update", lambda self: (updates.append(1), update(self))[1])
    for share in (0.5, 0.7, 0.9) if often else (0.8,):
        while len(log) < int(share * len(expected)):
            step(loop, name, BUDGET[domain], log)
        loop.close()
        before = len(updates)
        loop = AskTell.resume(storage)
        assert (len(updates) == before) == often  # with a snapshot of the last update, none is made again
        assert loop.pending == loop.reissue().tickets
    finished(loop, name, BUDGET[domain], log)
    loop.close()
    assert log == expected
    assert loop.history.indices == reference.history.indices
    assert loop.history.points == reference.history.points
    assert repr([row.results for row in loop.history.rows]) == repr([row.results for row in reference.history.rows])
    best = "hypervolume" if outcomes_of(name) else "best_mean"
    assert loop.history.column(best) == pytest.approx(reference.history.column(best), rel=1e-9)
    assert torch.equal(loop._engine.generator.get_state(), reference._engine.generator.get_state())
