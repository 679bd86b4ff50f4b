"""Any order of ask, tell, fail, reissue, close, crash and resume, beside the same run without a journal."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import gpytorch
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from sparse_bo import BBKB, GPBUCB, GSSBO, SBPE, AskTell, Measured, Storage, TrustRegion
from sparse_bo.errors import PendingBatchError
from sparse_bo.journal import Journal
from sparse_bo.policies import BoTorchUCB, ExpectedImprovement
from sparse_bo.runs.recording import evaluations_of
from tests.journal.every_policy import shorten_searches
from tests.journal.runs import arms, killed, policy

BOUNDS = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.float64)
SMALL = {"initial_design": 3, "num_restarts": 1, "raw_samples": 8}


def known(**changes):
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.5
    return {"covar_module": kernel, "regularization": 0.1, **changes}


RUNS = {
    "global, arms": lambda: {"arms": arms(), "policy": policy(stop_rule="global")},
    "local, arms": lambda: {"arms": arms(), "policy": policy(stop_rule="local")},
    "gp-bucb, arms": lambda: {"arms": arms(), "policy": policy(stop_rule="gp-bucb")},
    "bbkb": lambda: {"bounds": BOUNDS, "policy": BBKB(**known(ratio_threshold=4.0))},
    "gp-bucb": lambda: {"bounds": BOUNDS, "policy": GPBUCB(**known(ratio_threshold=3.0))},
    "sbpe": lambda: {"bounds": BOUNDS, "policy": SBPE(**known(horizon=60, candidates=32, width="gaussian"))},
    "gssbo": lambda: {"bounds": BOUNDS, "policy": GSSBO(**SMALL, buffer=6, batch_size=2)},
    "botorch-ucb": lambda: {"bounds": BOUNDS, "policy": BoTorchUCB(**SMALL, batch_size=3)},
    "trust-region": lambda: {"bounds": BOUNDS, "policy": TrustRegion(initial_design=3)},
    "expected-improvement, arms": lambda: {"arms": arms(), "policy": ExpectedImprovement(initial_design=3)},
}
SAMPLED = ("global, arms", "local, arms", "bbkb", "gssbo", "trust-region")
OF_KNOWN_NOISE = ("trust-region", "expected-improvement, arms")
"""Every third result has a known standard deviation."""


class Interleavings(RuleBasedStateMachine):
    """Picks are compared to the last bit."""

    name, replay_seconds = "bbkb", 0.0

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        self.storage = Storage(Path(self.folder.name) / "run.journal", replay_seconds=self.replay_seconds)
        run = RUNS[self.name]()
        self.loop = AskTell(**run, seed=5, storage=self.storage)
        self.twin = AskTell(**run, seed=5)
        self.told, self.failed, self.picks = {}, set(), {}

    @rule(q=st.integers(1, 5))
    def ask(self, q):
        outcomes = []
        for loop in (self.loop, self.twin):
            try:
                batch = loop.ask(q)
                outcomes.append((batch.tickets, batch.X.tolist()))
            except PendingBatchError as error:
                outcomes.append(error.needed)
        assert outcomes[0] == outcomes[1]
        if isinstance(outcomes[0], tuple):
            assert not set(outcomes[0][0]) & set(self.picks)
            self.picks.update(zip(*outcomes[0], strict=True))

    @precondition(lambda self: self.loop.pending)
    @rule(data=st.data(), nan=st.booleans())
    def tell(self, data, nan):
        tickets = data.draw(st.lists(st.sampled_from(self.loop.pending), unique=True, min_size=1, max_size=4))
        values = [math.nan if nan and t % 2 else math.sin(5.0 * self.picks[t][0]) + 0.01 * (37 * t % 101) for t in tickets]
        if self.name in OF_KNOWN_NOISE:
            values = [Measured(v, 0.01 * t) if t % 3 == 0 else v for t, v in zip(tickets, values, strict=True)]
        for loop in (self.loop, self.twin):
            loop.tell(tickets, values)
        self.told.update({t: v for t, v in zip(tickets, values, strict=True) if v == v})
        self.failed |= {t for t, v in zip(tickets, values, strict=True) if v != v}

    @precondition(lambda self: self.loop.pending)
    @rule(data=st.data())
    def fail(self, data):
        tickets = data.draw(st.lists(st.sampled_from(self.loop.pending), unique=True, min_size=1, max_size=2))
        for loop in (self.loop, self.twin):
            loop.fail(tickets)
        self.failed |= set(tickets)

    @rule(crash=st.booleans())
    def resume(self, crash):
        if crash:
            killed(self.loop, self.storage.path)
        else:
            self.loop.close()
        self.loop = AskTell.resume(self.storage)

    @invariant()
    def nothing_is_lost_or_made_up(self):
        loop = self.loop
        assert loop.pending == self.twin.pending == [t for t in self.picks if t not in self.told and t not in self.failed]
        assert loop.asked == len(self.picks)
        assert loop.reissue().X.tolist() == [self.picks[t] for t in loop.pending]
        for name in ("values", "sds"):
            assert repr(loop.history.column(name)) == repr(self.twin.history.column(name))
        recorded = evaluations_of(Journal.read(self.storage.path))
        assert {
            t: recorded.values[t] for t in range(len(recorded.values)) if recorded.values[t] == recorded.values[t]
        } == self.told
        assert int(recorded.known.sum()) == len(self.told) + len(self.failed)
        known = {} if recorded.sds is None else {t: float(sd) for t, (sd,) in enumerate(recorded.sds) if sd == sd}
        assert known == {t: v.sd for t, v in self.told.items() if isinstance(v, Measured)}

    def teardown(self):
        if hasattr(self, "loop"):
            self.loop.close()
            self.folder.cleanup()


@pytest.mark.parametrize(
    ("name", "often"),
    [
        pytest.param(name, often, id=f"{name}, {'snapshots' if often else 'replay'}", marks=[] if sampled else pytest.mark.slow)
        for name in RUNS
        for often in (True, False)
        for sampled in [often == (name != "local, arms") and name in SAMPLED]
    ],
)
def test_any_interleaving_keeps_the_invariants(name, often, monkeypatch):
    shorten_searches(monkeypatch)
    machine = type("Machine", (Interleavings,), {"name": name, "replay_seconds": 0.0 if often else math.inf})
    examples, steps = (4, 25) if name.endswith("arms") else (2, 12)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True)
    )
