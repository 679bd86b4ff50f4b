"""Ctrl-C, or memory that runs out, at any line of ask, tell and the journal: a run goes on in process as if nothing was."""

from __future__ import annotations

import contextlib
import linecache
import math
import pickle
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparse_bo import AskTell, RunInterrupted, Storage, maximize
from sparse_bo.errors import PendingBatchError, StorageError
from sparse_bo.policies import ExpectedImprovement, RandomSearch
from sparse_bo.runs.steps import Steps
from tests.attacks.builders import At, interrupt, out_of_memory, told_lost
from tests.journal.every_policy import OUTCOMES, result_of
from tests.journal.runs import arms, policy, value

BUDGET = 16
SETTINGS: dict[str, dict[str, Any]] = {
    "in memory": {},
    "journal": {"storage": 0.0},
    "journal, certified": {"storage": 0.0, "certify_every": 1},
    "journal, outcomes": {"storage": 0.0, "policy": ExpectedImprovement(initial_design=12, batch_size=2), **OUTCOMES},
}
"""Name -> arguments; of a journal the time of replays: a snapshot after every update."""


def step(loop: AskTell, told: dict[int, Any]) -> None:
    """Ask two at a time, tell one at a time, as the loop alone decides; ``told`` gets what ``tell`` has returned for."""
    pending = loop.pending
    if loop.asked < BUDGET and len(pending) < 4:
        try:
            loop.ask(2)
        except PendingBatchError:
            pending = loop.pending
        else:
            return
    ticket = pending[(7 * loop.asked) % len(pending)]
    batch = loop.reissue([ticket])
    y: Any = value(ticket, int(batch.indices))
    y = y if loop.history.outcomes is None else result_of(", outcomes", y, float(batch.X[0, 0]))
    loop.tell([ticket], [y])
    told[ticket] = y


def finished(loop: AskTell, told: dict[int, Any]) -> AskTell:
    while loop.asked < BUDGET or loop.pending:
        step(loop, told)
    return loop


def started(folder: Path, name: str, settings: dict[str, Any]) -> AskTell:
    given = dict(settings)
    if "storage" in settings:
        given["storage"] = Storage(folder / f"{name}.journal", replay_seconds=settings["storage"])
    return AskTell(arms(), **{"policy": policy(), "seed": 1, **given})


def course(loop: AskTell) -> list[Any]:
    rows = loop.result().history.rows
    best = [row.best_mean for row in rows]
    return [[row.indices for row in rows], [row.results for row in rows], best, loop.asked, loop.pending, loop.state.pulls]


@pytest.fixture(autouse=True)
def interruptible():
    """A shell's background jobs ignore SIGINT; here it raises."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def lines_of(settings: dict[str, Any], folder: Path) -> int:
    """Return how many lines a whole run has."""
    counter = At(10**9, interrupt)
    loop = started(folder, "counted", settings)
    with counter:
        finished(loop, {})
    loop.close()
    return 10**9 - counter.left


def struck(line: int, strike: Callable[[], None], settings: dict[str, Any], folder: Path) -> tuple[AskTell, dict[int, float]]:
    """Run with one strike, and go on in the same process."""
    told: dict[int, Any] = {}
    loop = started(folder, f"{strike.__name__}-{line}", settings)
    with contextlib.suppress(KeyboardInterrupt, MemoryError, StorageError), At(line, strike):
        finished(loop, told)
    return finished(loop, told), told


@pytest.mark.sampled
@pytest.mark.parametrize("strikes", [2, pytest.param(10**6, marks=pytest.mark.slow)], ids=["sampled", "every line"])
@pytest.mark.parametrize("strike", [interrupt, out_of_memory])
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_strike_at_any_line_changes_nothing(settings, strike, strikes, tmp_path):
    reference = finished(started(tmp_path, "reference", settings), {})
    expected = course(reference)
    reference.close()
    lines = lines_of(settings, tmp_path)
    for line in sorted(random.Random(0).sample(range(1, lines), min(strikes, lines - 1))):
        loop, told = struck(line, strike, settings, tmp_path)
        assert course(loop) == expected, f"line {line} of {lines}"
        assert not told_lost(loop, told)
        loop.close()
        if "storage" in settings:
            again = AskTell.resume(tmp_path / f"{strike.__name__}-{line}.journal")
            assert course(again)[:2] == expected[:2], f"journal, line {line} of {lines}"
            again.close()


class InterruptedAt:
    """An objective that is interrupted at its nth call, and then works."""

    def __init__(self, call: int) -> None:
        self.call, self.calls = call, 0

    def __call__(self, x: Any) -> float:
        self.calls += 1
        if self.calls == self.call:
            raise KeyboardInterrupt
        return math.nan if self.calls == 2 else float(x[0])


@pytest.mark.parametrize(
    ("call", "before", "says"),
    [
        (1, None, "interrupted after 0 of 25 evaluations"),
        (5, None, "interrupted after 4 of 25 evaluations"),
        (7, None, "interrupted after 6 of 25 evaluations (2 not in the model yet)"),
        (
            7,
            ([0, 1, 2], [0.1, 0.2, 0.3]),
            "interrupted after 6 of 25 evaluations (2 not in the model yet)",
        ),
        (25, None, "interrupted after 24 of 25 evaluations"),
    ],
)
def test_an_interrupt_counts_the_evaluations_with_a_result(call, before, says, tmp_path):
    """Failed ones are among them, observations from before the run are not; after a resume those of all sessions are."""
    objective, path = InterruptedAt(call), tmp_path / "run.journal"
    how: dict[str, Any] = {"vectorized": False, "storage": path, "initial": before, "policy": RandomSearch(batch_size=4)}
    with pytest.raises(RunInterrupted) as caught:
        maximize(objective, arms=arms(), budget=25, **how)
    assert caught.value.reason == says
    assert str(caught.value) == (
        f"{says}; they are in .loop and .result, and in {path}: run the same call again with resume=True, or AskTell.resume"
    )
    assert pickle.loads(pickle.dumps(caught.value)).reason == says
    evaluated = call - 1
    assert caught.value.result.history.observations == evaluated + len((before or ((), ()))[0])
    if evaluated < 20:
        again = InterruptedAt(3)
        with pytest.raises(RunInterrupted, match=rf"^interrupted after {evaluated + 2} of 25 evaluations"):
            maximize(again, arms=arms(), budget=25, resume=True, **how)


class AtTheEndOfUpdates(At):
    """Strikes where the block of the first update that an ask makes has ended, and its end is about to be called."""

    taken = False

    def _line(self, frame: Any, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_code is Steps.update.__code__ and frame.f_locals["by_ask"] and self.left:
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if self.taken and "recording()" in text:
                self.left = 0
                self.strike()
            self.taken |= "engine.apply," in text
        return self._line


def test_an_update_whose_end_is_cut_off_is_in_the_journal(tmp_path):
    """Python leaves a block without calling its exit if memory runs out for that very call."""
    settings = {"storage": math.inf}  # a snapshot would make up for a lost event
    expected = course(finished(started(tmp_path, "reference", settings), {}))
    loop, told = started(tmp_path, "run", settings), dict[int, float]()
    with pytest.raises(MemoryError), AtTheEndOfUpdates(1, out_of_memory):
        finished(loop, told)
    assert course(finished(loop, told)) == expected
    loop.close()
    with AskTell.resume(tmp_path / "run.journal") as again:
        assert course(again)[:2] == expected[:2]
