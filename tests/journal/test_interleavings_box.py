"""Any order of ask, tell, fail, close, crash and resume on a box, beside the same run without a journal."""

from __future__ import annotations

import functools
import math
import tempfile
from pathlib import Path

import gpytorch
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import sparse_bo.runs.recorder
from sparse_bo import BBKB, GPBUCB, GSSBO, SBPE, AskTell
from sparse_bo.errors import PendingBatchError
from sparse_bo.policies import BoTorchUCB
from sparse_bo.policies.bandits import box_mechanism as box_ucb
from sparse_bo.policies.bandits.box_mechanism import BoxUCBState
from sparse_bo.policies.subset import proposers
from tests.journal.runs import kill

BOUNDS = torch.tensor([[0.0, -1.0], [1.0, 2.0]], dtype=torch.float64)
SMALL = {"initial_design": 3, "num_restarts": 1, "raw_samples": 8}


def kernel() -> gpytorch.kernels.Kernel:
    chosen = gpytorch.kernels.RBFKernel().double()
    chosen.lengthscale = 0.5
    return chosen


def policies():
    known = {"covar_module": kernel(), "regularization": 0.1}
    return {
        "bbkb": BBKB(**known, ratio_threshold=4.0),
        "gp-bucb": GPBUCB(**known, ratio_threshold=3.0),
        "sbpe": SBPE(**known, horizon=60, candidates=32, width="gaussian"),
        "gssbo": GSSBO(**SMALL, buffer=6, batch_size=2),
        "botorch-ucb": BoTorchUCB(**SMALL, batch_size=3),
    }


def leverages(state: BoxUCBState, X: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return state.model.posterior(X.unsqueeze(-2)).variance.flatten() / state.fitted.prior.regularization


class OnABox(RuleBasedStateMachine):
    """Picks are compared to the last bit."""

    name = "bbkb"

    @initialize()
    def start(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "run.db"
        policy = policies()[self.name]
        self.loop = AskTell(bounds=BOUNDS, policy=policy, seed=5, storage=self.path)
        self.twin = AskTell(bounds=BOUNDS, policy=policy, seed=5)
        self.told, self.failed, self.picks = {}, set(), {}

    @rule(q=st.integers(1, 3))
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
            self.check_rule()

    def check_rule(self):
        state = self.loop.state
        earlier = self.loop._engine.ledger.picks()[:-1]
        if isinstance(state, BoxUCBState) and state.fitted is not None and len(earlier):
            stop = self.loop.policy.parts.stop_rule
            before_the_last = leverages(state, earlier)
            assert float(stop.costs(before_the_last).sum()) <= stop.allowance + 1e-9

    @precondition(lambda self: self.loop.pending)
    @rule(data=st.data(), nan=st.booleans())
    def tell(self, data, nan):
        tickets = data.draw(st.lists(st.sampled_from(self.loop.pending), unique=True, min_size=1, max_size=4))
        values = [math.nan if nan and t % 2 else math.sin(5.0 * self.picks[t][0]) + 0.01 * (37 * t % 101) for t in tickets]
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
        if crash:  # what is queued is lost with the process
            kill(self.loop._steps.recorder.journal)
        else:
            self.loop.close()
        self.loop = AskTell.resume(self.path)

    @invariant()
    def nothing_is_lost_or_made_up(self):
        loop = self.loop
        assert loop.pending == self.twin.pending == [t for t in self.picks if t not in self.told and t not in self.failed]
        assert loop.asked == len(self.picks)
        assert loop.reissue().X.tolist() == [self.picks[t] for t in loop.pending]
        waiting = [v for v in loop._engine.ledger.answers()[1] if v == v]
        assert sorted(loop.state.y.tolist() + waiting) == sorted(self.told.values())
        assert loop.state.y.tolist() == self.twin.state.y.tolist()

    def teardown(self):
        if hasattr(self, "loop"):
            self.loop.close()
            self.folder.cleanup()


@pytest.mark.parametrize("name", policies())
def test_any_interleaving_keeps_the_invariants_on_a_box(name, monkeypatch):
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", 0.0)
    short = {"options": {"maxiter": 4}}
    quick = functools.partial(box_ucb.optimize_batch, num_restarts=1, raw_samples=8, **short)
    monkeypatch.setattr(box_ucb, "optimize_batch", quick)
    monkeypatch.setattr(proposers, "optimize_acqf", functools.partial(proposers.optimize_acqf, **short))
    machine = type("Machine", (OnABox,), {"name": name})
    run_state_machine_as_test(
        machine, settings=settings(max_examples=3, stateful_step_count=12, deadline=None, derandomize=True)
    )
