"""Resuming: the same run, whatever the policy; and what does not belong together."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import gpytorch
import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

import sparse_bo.runs.recorder
from sparse_bo import BBKB, BKB, GPBUCB, AskTell, Float, Int, maximize
from sparse_bo.dictionary import FixedSampler, UniformSampler
from sparse_bo.errors import PendingBatchError, ResumeWarning
from sparse_bo.policies import EpsilonGreedy, RandomSearch
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.runs.records import read_run
from sparse_bo.widths import ConstantWidth
from tests.journal.runs import arms, finished, kill, policy, step


def matern() -> gpytorch.kernels.Kernel:
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=2)).double()
    kernel.base_kernel.lengthscale = torch.tensor([0.3, 0.7], dtype=torch.float64)
    return kernel


POLICIES = {
    "bbkb": policy(),
    "local, process, float32": policy(stop_rule="local", in_batch="process", sweep_dtype=torch.float32),
    "learned": BBKB(ratio_threshold=3.0),
    "matern, uniform": BBKB(
        covar_module=matern(), dictionary=UniformSampler(size=6), regularization=0.1, width=ConstantWidth(1.5)
    ),
    "external dictionary": BKB(covar_module=matern(), dictionary=FixedSampler(points=arms()[:5] + 0.01), regularization=0.1),
    "gp-bucb": GPBUCB(covar_module=matern(), regularization=0.1, ratio_threshold=4.0),
    "random": RandomSearch(batch_size=2),
    "epsilon-greedy": EpsilonGreedy(epsilon=0.3),
}
BUDGET = 40


@pytest.mark.parametrize("often", [True, False], ids=["snapshots", "replay"])
@pytest.mark.parametrize("chosen", POLICIES.values(), ids=POLICIES)
def test_a_run_resumed_again_and_again_is_the_uninterrupted_one(chosen, often, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", 0.0 if often else math.inf)
    reference = finished(AskTell(arms(), chosen, seed=3), budget=BUDGET)
    loop, steps = AskTell(arms(), chosen, seed=3, storage=tmp_path / "run.db"), 0
    while loop.asked < BUDGET or loop.pending:
        if steps % 13 == 7:
            loop.close()
            asked, pending, rows = loop.asked, loop.pending, loop.history.rows
            loop = AskTell.resume(tmp_path / "run.db")
            assert (loop.asked, loop.pending, loop.history.indices) == (asked, pending, [i for r in rows for i in r.indices])
        step(loop, budget=BUDGET)
        steps += 1
    assert loop.history.indices == reference.history.indices
    assert loop.result().best_mean == pytest.approx(reference.result().best_mean, abs=1e-10)
    loop.close()
    assert read_run(tmp_path / "run.db").history.indices == reference.history.indices


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_run_on_a_box_is_resumed(dtype, tmp_path, monkeypatch):
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", 0.0)
    bounds = torch.tensor([[0.0, -1.0], [1.0, 3.0]], dtype=dtype)
    reference, loop = (AskTell(bounds=bounds, policy=RandomSearch(), seed=2, storage=p) for p in (None, tmp_path / "run.db"))
    for k in range(12):
        for one in (reference, loop):
            one.ask()
            if k % 3 == 2:
                batch = one.reissue(one.pending[:2])
                one.tell(batch.tickets, batch.X.sum(dim=-1))
        loop.close()
        loop = AskTell.resume(tmp_path / "run.db")
    assert torch.equal(loop.state.X, reference.state.X)
    assert torch.equal(loop.reissue().X, reference.reissue().X)
    assert loop.reissue().X.dtype == dtype
    loop.close()


def test_initial_observations_failures_and_notes_are_there_again(tmp_path):
    index = torch.tensor([3, 3, 8])
    chosen = policy(ratio_threshold=50.0)
    loop = AskTell(arms(), chosen, initial=(index, index.double()), storage=tmp_path / "run.db", notes={"lab": "B12"})
    batch = loop.ask(2)
    loop.fail(batch.tickets[:1])
    rows = loop.history.rows
    loop.close()
    again = AskTell.resume(tmp_path / "run.db")
    assert again.about["notes"] == {"lab": "B12"}
    assert again.state.pulls == 3
    assert again.history.rows[0].indices == rows[0].indices == [3, 3, 8]
    assert again.pending == batch.tickets[1:]
    again.close()
    run = read_run(tmp_path / "run.db")
    assert (run.asked, run.told, run.failed) == (2, 3, 1)


@pytest.mark.parametrize("where", ["arms", "box", "float32 box", "space"])
def test_initial_observations_of_another_run_are_refused(where, tmp_path):
    """They would be lost without a word; those of the run itself, as in a script that is run again, are taken."""
    how = {"policy": RandomSearch(batch_size=2), "budget": 4, "storage": tmp_path / "run.db"}
    dtype = torch.float32 if where == "float32 box" else torch.float64
    x = torch.tensor([[0.1, 0.2], [0.7, 0.3]], dtype=dtype)
    domain, inputs, others = {
        "arms": ({"arms": arms()}, torch.tensor([3, 3]), torch.tensor([3, 4])),
        "space": ({"space": {"a": Float(0.0, 1.0), "b": Int(1, 9)}}, [{"a": 0.1, "b": 2}, {"a": 0.7, "b": 3}], None),
    }.get(where, ({"bounds": torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=dtype)}, x, x.flip(0)))
    if where == "space":
        others = [{"a": 0.1, "b": 2}, {"a": 0.7, "b": 4}]

    def objective(given):
        return given["a"] if where == "space" else given.sum(-1)

    y = torch.tensor([0.1, 0.2], dtype=torch.float64)
    maximize(objective, **domain, **how, initial=(inputs, y))
    maximize(objective, **domain, **how, initial=(inputs, y), resume=True)
    maximize(objective, **domain, **how, resume=True)
    for initial in ((others, y), (inputs, 2 * y), (inputs[:1], y[:1])):
        with pytest.raises(ValueError, match=r"run.db began with other observations, or with none; .* another storage="):
            maximize(objective, **domain, **how, initial=initial, resume=True)
    how["storage"] = tmp_path / "other.db"
    maximize(objective, **domain, **how)
    with pytest.raises(ValueError, match="began with other observations, or with none"):
        maximize(objective, **domain, **how, initial=(inputs, y), resume=True)


def test_bounds_of_another_dtype_are_another_run(tmp_path):
    bounds, how = torch.tensor([[0.0], [1.0]], dtype=torch.float64), {"budget": 2, "policy": RandomSearch()}
    maximize(lambda X: X.sum(-1), bounds=bounds, **how, storage=tmp_path / "run.db")
    with pytest.raises(
        ValueError, match=r"of torch.float64; this call asks for others, of torch.float32; take another storage="
    ):
        maximize(lambda X: X.sum(-1), bounds=bounds.float(), **how, storage=tmp_path / "run.db", resume=True)


def test_initial_observations_are_in_the_journal_from_its_creation_on(tmp_path, monkeypatch):
    """Whatever comes after it: a killed process among others."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    index = torch.tensor([3, 3, 8])
    for name in ("append", "queue_row"):
        monkeypatch.setattr(sparse_bo.journal.Journal, name, killed)
    monkeypatch.setattr(sparse_bo.runs.engine.Engine, "observed", killed)
    with pytest.raises(Killed):
        AskTell(arms(), policy(), initial=(index, index.double()), storage=tmp_path / "run.db")
    monkeypatch.undo()
    assert read_run(tmp_path / "run.db").told == 3
    with AskTell.resume(tmp_path / "run.db") as again:
        assert again.state.pulls == 3
        assert again.history.rows[0].values == [3.0, 3.0, 8.0]


def test_policies_that_cannot_freeze_their_states_are_replayed(tmp_path, monkeypatch):
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", 0.0)
    monkeypatch.setattr(ArmUCB, "freeze", lambda self, state: None)
    reference = finished(AskTell(arms(), policy(), seed=3), budget=BUDGET)
    loop = AskTell(arms(), policy(), seed=3, storage=tmp_path / "run.db")
    for _ in range(50):
        step(loop, budget=BUDGET)
    loop.close()
    loop = AskTell.resume(tmp_path / "run.db")
    assert finished(loop, budget=BUDGET).history.indices == reference.history.indices
    loop.close()


def recorded(tmp_path, chosen=None, **settings):
    path = tmp_path / "run.db"
    loop = AskTell(settings.pop("arms", arms()), chosen or policy(), storage=path, **settings)
    for _ in range(20):
        step(loop)
    loop.close()
    return path


def test_other_arms_are_refused(tmp_path):
    path = recorded(tmp_path)
    with pytest.raises(ValueError, match="belongs to another problem"):
        AskTell.resume(path, arms=arms() + 1e-9)
    with pytest.raises(ValueError, match=r"got others \(39 x 2"):
        AskTell.resume(path, arms=arms()[1:])
    AskTell.resume(path, arms=arms()).close()


def test_a_box_in_place_of_arms_is_refused(tmp_path):
    path = recorded(tmp_path)
    with pytest.raises(ValueError, match="is among arms, this call searches a box"):
        maximize(lambda X: X[:, 0], bounds=torch.tensor([[0.0], [1.0]]), budget=1, storage=path, resume=True)
    AskTell.resume(path).close()


def test_numbers_of_numpy_are_kept_as_plain_ones(tmp_path):
    AskTell(arms(), policy(), seed=np.int64(3), certify_every=np.int32(2), storage=tmp_path / "run.db").close()
    with AskTell.resume(tmp_path / "run.db") as loop:
        assert loop.about["seed"] == 3


def test_large_arm_sets_are_not_kept_and_must_be_given(tmp_path, monkeypatch):
    monkeypatch.setattr("sparse_bo.journal.files.STORED_ARMS_BYTES", 100)
    path = recorded(tmp_path)
    with pytest.raises(ValueError, match="the 40 arms of .* were too many to be kept in it; pass arms="):
        AskTell.resume(path)
    AskTell.resume(path, arms=arms()).close()


def test_another_policy_is_refused_and_the_differing_settings_are_named(tmp_path):
    path = recorded(tmp_path)
    with pytest.raises(ValueError, match="with other settings: ratio_threshold"):
        AskTell.resume(path, policy=policy(ratio_threshold=4.0))
    kernel = policy().covar_module
    kernel.lengthscale = 0.5
    with pytest.raises(ValueError, match="with other settings: covar_module"):
        AskTell.resume(path, policy=policy(covar_module=kernel))
    with pytest.raises(ValueError, match=r"\(bbkb\), got random"):
        AskTell.resume(path, policy=RandomSearch())
    AskTell.resume(path, policy=policy()).close()


class OwnKernel(gpytorch.kernels.RBFKernel):
    pass


def test_a_policy_with_parts_of_the_users_own_must_be_given(tmp_path):
    kernel = OwnKernel().double()
    chosen = policy(covar_module=kernel)
    path = recorded(tmp_path, chosen)
    with pytest.raises(ValueError, match="OwnKernel cannot be rebuilt.*pass policy="):
        AskTell.resume(path)
    AskTell.resume(path, policy=policy(covar_module=OwnKernel().double())).close()
    with pytest.raises(ValueError, match="other settings: covar_module"):
        AskTell.resume(path, policy=policy(covar_module=gpytorch.kernels.RBFKernel().double()))


def test_a_new_run_does_not_overwrite_an_old_one(tmp_path):
    path = recorded(tmp_path)
    with pytest.raises(FileExistsError, match=r"go on with it by AskTell.resume"):
        AskTell(arms(), policy(), storage=path)
    with pytest.raises(FileNotFoundError, match="expected a journal at"):
        AskTell.resume(tmp_path / "other.db")
    with pytest.raises(FileNotFoundError, match="the folder .* of the journal to exist"):
        AskTell(arms(), policy(), storage=tmp_path / "none" / "run.db")


def test_bad_arguments_leave_no_file_behind(tmp_path):
    with pytest.raises(ValueError, match="initial inputs"):
        AskTell(arms(), policy(), storage=tmp_path / "run.db", initial=(torch.tensor([99]), torch.zeros(1)))
    with pytest.raises(TypeError, match="not JSON serializable"):
        AskTell(arms(), policy(), storage=tmp_path / "run.db", notes={"a": object()})
    assert not (tmp_path / "run.db").exists()


def test_picks_that_come_out_differently_warn_and_the_recorded_ones_stay(tmp_path, monkeypatch):
    path = recorded(tmp_path)
    before = read_run(path)
    monkeypatch.setattr(sparse_bo.policies.bandits.policy.UCBPolicy, "_design_size", lambda self, arms: 2)
    with pytest.warns(ResumeWarning, match="the recorded ones stay"):
        loop = AskTell.resume(path)
    assert loop.asked == before.asked
    assert loop.history.indices[: len(before.history.indices)] == before.history.indices
    loop.close()


def test_an_update_that_fails_is_made_up_for_after_a_resume(tmp_path, monkeypatch):
    loop = AskTell(arms(), policy(), seed=1, storage=tmp_path / "run.db")
    batch = loop.ask()
    with monkeypatch.context() as patch:
        patch.setattr(ArmUCB, "tell", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises(RuntimeError, match="out of memory"):
            loop.tell(batch.tickets, [1.0])
    loop.close()
    again = AskTell.resume(tmp_path / "run.db")
    assert again.state.pulls == 1
    again.close()


class Interleavings(RuleBasedStateMachine):
    """Any order of ask, tell, fail, reissue, close, crash and resume, beside the same run without a journal."""

    @initialize(kind=st.sampled_from(["global", "local", "gp-bucb"]))
    def start(self, kind):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "run.db"
        self.policy = policy(stop_rule=kind)
        self.loop = AskTell(arms(), self.policy, seed=5, storage=self.path)
        self.twin = AskTell(arms(), self.policy, seed=5)
        self.told, self.failed, self.picks = {}, set(), {}

    @rule(q=st.integers(1, 7))
    def ask(self, q):
        outcomes = []
        for loop in (self.loop, self.twin):
            try:
                batch = loop.ask(q)
                outcomes.append((batch.tickets, batch.indices.tolist()))
            except PendingBatchError as error:
                outcomes.append(error.needed)
        assert outcomes[0] == outcomes[1]
        if isinstance(outcomes[0], tuple):
            assert not set(outcomes[0][0]) & set(self.picks)
            self.picks.update(zip(*outcomes[0], strict=True))
            self.check_rule()

    def check_rule(self):
        posterior, rule = self.loop.state.posterior, self.policy.parts.stop_rule
        if posterior is not None and rule.kind != "local":
            before_the_last = self.loop._engine.ledger.picks()[:-1]
            assert float(rule.costs(posterior.leverages[before_the_last]).sum()) <= rule.allowance + 1e-9

    @precondition(lambda self: self.loop.pending)
    @rule(data=st.data(), nan=st.booleans())
    def tell(self, data, nan):
        tickets = data.draw(st.lists(st.sampled_from(self.loop.pending), unique=True, min_size=1, max_size=6))
        values = [math.nan if nan and t % 2 else 0.01 * ((37 * t + self.picks[t]) % 101) for t in tickets]
        for loop in (self.loop, self.twin):
            loop.tell(tickets, values)
        self.told.update({t: v for t, v in zip(tickets, values, strict=True) if v == v})
        self.failed |= {t for t, v in zip(tickets, values, strict=True) if v != v}

    @precondition(lambda self: self.loop.pending)
    @rule(data=st.data())
    def fail(self, data):
        tickets = data.draw(st.lists(st.sampled_from(self.loop.pending), unique=True, min_size=1, max_size=3))
        for loop in (self.loop, self.twin):
            loop.fail(tickets)
        self.failed |= set(tickets)

    @rule()
    def reissue(self):
        batch = self.loop.reissue()
        assert batch.tickets == self.loop.pending
        assert batch.indices.tolist() == [self.picks[t] for t in batch.tickets]

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
        waiting = loop._engine.ledger.answers()
        taken_in = [v for row in loop.history.rows for v in row.values if v == v]
        assert sorted(taken_in + [v for v in waiting[1] if v == v]) == sorted(self.told.values())
        assert loop.state.pulls == len(taken_in)
        assert float(loop.state.observations.sums.sum()) == pytest.approx(sum(taken_in), abs=1e-9)

    def teardown(self):
        if hasattr(self, "loop"):
            self.loop.close()
            self.folder.cleanup()


@pytest.mark.parametrize("snapshot_seconds", [0.0, 0.01])
def test_any_interleaving_keeps_the_invariants(snapshot_seconds, monkeypatch):
    monkeypatch.setattr(sparse_bo.runs.recorder, "SNAPSHOT_SECONDS", snapshot_seconds)
    run_state_machine_as_test(
        Interleavings, settings=settings(max_examples=12, stateful_step_count=30, deadline=None, derandomize=True)
    )
