"""Random courses of all that a loop can be told, with resumes in between: the same run as without them."""

import math
import random
import warnings

import pytest
import torch

from sparse_bo import AskTell, Float, Int, Storage
from sparse_bo.errors import PendingBatchError, ResumeWarning, ScheduleComplete
from sparse_bo.policies import ExpectedImprovement, TrustRegion
from tests.builders import arms, bbkb

SPACE = {"rate": Float(1e-3, 1.0, log=True), "layers": Int(1, 5), "width": Int(8, 64, when={"layers": [2, 3, 4, 5]})}
TWO = {"objectives": {"a": "max", "b": "min"}, "constraints": {"c": (None, 0.5)}}
DOMAINS = {
    "arms": {"arms": arms(), "policy": bbkb(initial_design=6, ratio_threshold=9.0)},
    "plates": {"arms": arms(), "policy": ExpectedImprovement(batch_size=6, repeats=False)},
    "box": {"bounds": [(0.0, 1.0)] * 2, "policy": TrustRegion(initial_design=12)},
    "space": {"space": SPACE, "policy": TrustRegion(initial_design=12)},
    "outcomes": {"bounds": [(0.0, 1.0)] * 2, "policy": TrustRegion(initial_design=12), **TWO},
}


def picked(loop):
    """Return the inputs of all evaluations."""
    return loop.history.parameters or loop.history.indices or loop.history.points


def elsewhere(kind, chance):
    """Return an input that nobody has asked for."""
    if kind in ("arms", "plates"):
        return chance.randrange(10)
    if kind == "space":
        return {"rate": chance.choice([0.01, 0.1]), "layers": 1}
    return [chance.random(), chance.random()]


def result(kind, number, *, failing=True):
    """Return the result number so many: now and then failed, or of several outcomes one missing."""
    value = math.sin(number)
    if kind == "outcomes":
        return {"a": math.nan if number % 5 == 0 else value, "b": number % 3, "c": value - 0.2}
    return math.nan if failing and number % 7 == 0 else value


def step(kind, loop, chance):
    """Take one random step of a run, which depends on ``chance`` and on the loop's public state alone."""
    kinds = ["ask", "ask", "tell", "tell", "tell", "fail", "move", "add", "enqueue"]
    action, pending = chance.choice(kinds), list(loop.pending)
    part = chance.sample(pending, chance.randint(1, len(pending))) if pending else []
    try:
        if action == "ask" or not pending:
            loop.ask(chance.randint(1, 5), beyond_batch=chance.random() < 0.3)
        elif action == "tell":
            loop.tell(part, [result(kind, ticket) for ticket in part])
        elif action == "fail":
            loop.fail(part[:1])
        elif action == "move":
            loop.tell(part[:1], [result(kind, part[0] + 1)], X=[elsewhere(kind, chance)])
        elif action == "add":
            loop.add([elsewhere(kind, chance)], [result(kind, len(loop.history.rows) + 1, failing=False)])
        else:
            loop.enqueue([elsewhere(kind, chance)])
    except (PendingBatchError, ScheduleComplete):
        pass  # the policy waits or has ended, in both courses


def course(kind, seed, storage=None):
    """Return a loop after 30 random steps, or 20 with seed 1; with a journal it is resumed after about every third one."""
    loop = AskTell(**DOMAINS[kind], seed=1, **({} if storage is None else {"storage": storage}))
    chance, resumes = random.Random(f"{kind} {seed}"), random.Random(seed)
    for _ in range(20 if seed == 1 else 30):
        step(kind, loop, chance)
        if storage is not None and resumes.random() < 0.35:
            loop.close()
            with warnings.catch_warnings():
                warnings.simplefilter("error", ResumeWarning)
                loop = AskTell.resume(storage)
    return loop


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 24))])
@pytest.mark.parametrize("kind", DOMAINS)
def test_a_random_course_with_resumes_is_the_same_run(kind, seed, tmp_path):
    torch.manual_seed(0)
    whole = course(kind, seed)
    again = course(kind, seed, Storage(tmp_path / "run.journal", replay_seconds=0.0 if seed % 2 else math.inf))
    again.close()
    assert again.pending == whole.pending
    for name in ("tickets", "values", "added", "failed", "pulls"):
        assert repr(again.history.column(name)) == repr(whole.history.column(name)), name
    assert picked(again) == picked(whole)
    assert (again.asked, again.state.pulls) == (whole.asked, whole.state.pulls)
