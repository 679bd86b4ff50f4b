"""Resuming: the same run, whatever the policy; and what does not belong together."""

from __future__ import annotations

import itertools
import math
import random
from types import SimpleNamespace

import gpytorch
import numpy as np
import pytest
import torch

import sparse_bo.journal
import sparse_bo.runs.engine
from sparse_bo import BBKB, BKB, GPBUCB, AskTell, Float, Int, Storage, maximize
from sparse_bo.dictionary import FixedSampler, UniformSampler
from sparse_bo.domains import Box
from sparse_bo.errors import ResumeWarning
from sparse_bo.policies import EpsilonGreedy, RandomSearch
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.runs.recording import Recorder, read_run
from sparse_bo.sharding import Alone
from sparse_bo.widths import ConstantWidth
from tests.journal.runs import arms, finished, policy, records, rewritten, step


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


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seconds", [0.0, math.inf], ids=["snapshots", "replay"])
@pytest.mark.parametrize("chosen", POLICIES.values(), ids=POLICIES)
def test_a_run_resumed_again_and_again_is_the_uninterrupted_one(chosen, seconds, tmp_path):
    storage = Storage(tmp_path / "run.journal", replay_seconds=seconds)
    reference = finished(AskTell(arms(), chosen, seed=3), budget=BUDGET)
    loop, steps = AskTell(arms(), chosen, seed=3, storage=storage), 0
    while loop.asked < BUDGET or loop.pending:
        if steps % 13 == 7:
            loop.close()
            asked, pending, rows = loop.asked, loop.pending, loop.history.rows
            loop = AskTell.resume(storage)
            assert (loop.asked, loop.pending) == (asked, pending)
            assert repr(loop.history.rows) == repr(rows)  # their seconds, too
        step(loop, budget=BUDGET)
        steps += 1
    assert loop.history.indices == reference.history.indices
    assert loop.result().best_mean == pytest.approx(reference.result().best_mean, abs=1e-10)
    loop.close()
    assert read_run(tmp_path / "run.journal").history.indices == reference.history.indices


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_a_run_on_a_box_is_resumed(dtype, tmp_path):
    storage = Storage(tmp_path / "run.journal", replay_seconds=0.0)
    bounds = torch.tensor([[0.0, -1.0], [1.0, 3.0]], dtype=dtype)
    reference, loop = (AskTell(bounds=bounds, policy=RandomSearch(), seed=2, storage=p) for p in (None, storage))
    for k in range(12):
        for one in (reference, loop):
            one.ask()
            if k % 3 == 2:
                batch = one.reissue(one.pending[:2])
                one.tell(batch.tickets, batch.X.sum(dim=-1))
        loop.close()
        loop = AskTell.resume(storage)
    assert torch.equal(loop.state.X, reference.state.X)
    assert torch.equal(loop.reissue().X, reference.reissue().X)
    assert loop.reissue().X.dtype == dtype
    loop.close()


def test_initial_observations_failures_and_notes_are_there_again(tmp_path):
    index = torch.tensor([3, 3, 8])
    chosen = policy(ratio_threshold=50.0)
    loop = AskTell(arms(), chosen, initial=(index, index.double()), storage=tmp_path / "run.journal", notes={"lab": "B12"})
    batch = loop.ask(2)
    loop.fail(batch.tickets[:1])
    rows = loop.history.rows
    loop.close()
    again = AskTell.resume(tmp_path / "run.journal")
    assert again.about["notes"] == {"lab": "B12"}
    assert again.state.pulls == 3
    assert again.history.rows[0].indices == rows[0].indices == [3, 3, 8]
    assert again.pending == batch.tickets[1:]
    again.close()
    run = read_run(tmp_path / "run.journal")
    assert (run.asked, run.told, run.failed) == (2, 3, 1)


@pytest.mark.parametrize("where", ["arms", "box", "float32 box", "space"])
def test_initial_observations_of_another_run_are_refused(where, tmp_path):
    """They would be lost without a word; those of the run itself, as in a script that is run again, are taken."""
    how = {"policy": RandomSearch(batch_size=2), "budget": 4, "storage": tmp_path / "run.journal"}
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
        with pytest.raises(ValueError, match=r"run.journal has other initial observations, or none; .* another storage="):
            maximize(objective, **domain, **how, initial=initial, resume=True)
    how["storage"] = tmp_path / "other.journal"
    maximize(objective, **domain, **how)
    with pytest.raises(ValueError, match="has other initial observations, or none"):
        maximize(objective, **domain, **how, initial=(inputs, y), resume=True)


def test_bounds_of_another_dtype_are_another_run(tmp_path):
    bounds, how = torch.tensor([[0.0], [1.0]], dtype=torch.float64), {"budget": 2, "policy": RandomSearch()}
    maximize(lambda X: X.sum(-1), bounds=bounds, **how, storage=tmp_path / "run.journal")
    with pytest.raises(
        ValueError, match=r"of torch.float64; this call asks for others, of torch.float32; pass another storage="
    ):
        maximize(lambda X: X.sum(-1), bounds=bounds.float(), **how, storage=tmp_path / "run.journal", resume=True)


def test_other_bounds_are_a_new_run_that_learns_from_the_old_one(tmp_path):
    """The advice was another storage alone."""
    narrow, wide = (torch.tensor([[0.0], [high]], dtype=torch.float64) for high in (1.0, 2.0))
    how = {"budget": 6, "policy": RandomSearch()}
    old = maximize(lambda X: X.sum(-1), bounds=narrow, **how, storage=tmp_path / "run.journal").history
    with pytest.raises(
        ValueError,
        match=r"has bounds \(0.0, 1.0\) of x1; .* for \(0.0, 2.0\); pass another storage= .* initial=observations_of\(",
    ):
        maximize(lambda X: X.sum(-1), bounds=wide, **how, storage=tmp_path / "run.journal", resume=True)
    with pytest.raises(ValueError, match="is on a box of 1 inputs?; this call asks for one of 2"):
        maximize(lambda X: X.sum(-1), bounds=wide.repeat(1, 2), **how, storage=tmp_path / "run.journal", resume=True)
    with pytest.raises(TypeError, match=r"got str; read the table and pass .*, or of a journal observations_of\('old.csv'\)"):
        AskTell(bounds=wide, initial="old.csv")
    known = torch.tensor(old.points, dtype=torch.float64), [value for row in old.rows for value in row.values]
    new = maximize(lambda X: X.sum(-1), bounds=wide, **how, storage=tmp_path / "new.journal", initial=known)
    assert new.history.points[:6] == old.points
    assert new.state.pulls == 12


def test_initial_observations_are_in_the_journal_from_its_creation_on(tmp_path, monkeypatch):
    """Whatever comes after it: a killed process among others."""

    class Killed(BaseException):
        pass

    def killed(*_: object) -> None:
        raise Killed

    index = torch.tensor([3, 3, 8])
    monkeypatch.setattr(sparse_bo.journal.Writer, "write", killed)
    monkeypatch.setattr(sparse_bo.runs.engine.Engine, "observed", killed)
    with pytest.raises(Killed):
        AskTell(arms(), policy(), initial=(index, index.double()), storage=tmp_path / "run.journal")
    monkeypatch.undo()
    assert read_run(tmp_path / "run.journal").told == 3
    with AskTell.resume(tmp_path / "run.journal") as again:
        assert again.state.pulls == 3
        assert again.history.rows[0].values == [3.0, 3.0, 8.0]


def test_policies_that_cannot_freeze_their_states_are_replayed(tmp_path, monkeypatch):
    storage = Storage(tmp_path / "run.journal", replay_seconds=0.0)
    monkeypatch.setattr(ArmUCB, "freeze", lambda self, state: None)
    reference = finished(AskTell(arms(), policy(), seed=3), budget=BUDGET)
    loop = AskTell(arms(), policy(), seed=3, storage=storage)
    for _ in range(50):
        step(loop, budget=BUDGET)
    loop.close()
    loop = AskTell.resume(storage)
    assert finished(loop, budget=BUDGET).history.indices == reference.history.indices
    loop.close()


def recorded(tmp_path, chosen=None, **settings):
    path = tmp_path / "run.journal"
    loop = AskTell(settings.pop("arms", arms()), chosen or policy(), **{"storage": path, **settings})
    for _ in range(20):
        step(loop)
    loop.close()
    return path


def test_other_arms_are_refused(tmp_path):
    path = recorded(tmp_path)
    with pytest.raises(ValueError, match="belongs to another problem"):
        AskTell.resume(path, arms=arms() + 1e-9)
    with pytest.raises(ValueError, match=r"got others \(39 x 2") as refused:
        AskTell.resume(path, arms=arms()[1:])
    AskTell.resume(path, arms=arms()).close()  # the journal is free although the error, with its frames, still exists
    assert refused.tb


def test_a_box_in_place_of_arms_is_refused(tmp_path):
    path = recorded(tmp_path)
    with pytest.raises(ValueError, match="is among arms, this call searches a box"):
        maximize(lambda X: X[:, 0], bounds=torch.tensor([[0.0], [1.0]]), budget=1, storage=path, resume=True)
    AskTell.resume(path).close()


def test_numbers_of_numpy_are_kept_as_plain_ones(tmp_path):
    AskTell(arms(), policy(), seed=np.int64(3), certify_every=np.int32(2), storage=tmp_path / "run.journal").close()
    with AskTell.resume(tmp_path / "run.journal") as loop:
        assert loop.about["seed"] == 3


def test_large_arm_sets_are_not_recorded_and_must_be_passed(tmp_path):
    path = recorded(tmp_path, storage=Storage(tmp_path / "run.journal", arms_bytes=100))
    with pytest.raises(
        ValueError,
        match=r"the 40 arms of .* are not in it .large ones .*; pass arms=",
    ):
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


def test_bad_arguments_leave_no_file_behind(tmp_path):
    with pytest.raises(ValueError, match="initial inputs"):
        AskTell(arms(), policy(), storage=tmp_path / "run.journal", initial=(torch.tensor([99]), torch.zeros(1)))
    with pytest.raises(TypeError, match="not JSON serializable"):
        AskTell(arms(), policy(), storage=tmp_path / "run.journal", notes={"a": object()})
    assert not (tmp_path / "run.journal").exists()


def test_picks_that_come_out_differently_warn_and_the_recorded_ones_stay(tmp_path):
    path = recorded(tmp_path)

    def other_pick(kind, payload):
        return (kind, payload[:-8] + (39).to_bytes(8, "little")) if kind == b"ask " else (kind, payload)

    path.write_bytes(rewritten(path.read_bytes(), other_pick))
    before = read_run(path)
    with pytest.warns(ResumeWarning, match="the recorded ones are used"):
        loop = AskTell.resume(path)
    assert loop.asked == before.asked
    assert loop.history.indices[: len(before.history.indices)] == before.history.indices
    loop.close()


def test_an_update_that_fails_is_made_up_for_after_a_resume(tmp_path, monkeypatch):
    loop = AskTell(arms(), policy(), seed=1, storage=tmp_path / "run.journal")
    batch = loop.ask()
    with monkeypatch.context() as patch:
        patch.setattr(ArmUCB, "tell", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("out of memory")))
        with pytest.raises(RuntimeError, match="out of memory"):
            loop.tell(batch.tickets, [1.0])
    loop.close()
    again = AskTell.resume(tmp_path / "run.journal")
    assert again.state.pulls == 1
    again.close()


def kills(data: bytes, *, count: int) -> list[int]:
    """Return sizes of a journal at which a kill may leave it: after records and within them, spread over the run."""
    ends = [record.end.offset for record in records(data)][1:]
    sizes = {*ends, *(end + 1 for end in ends[:-1]), *((a + b) // 2 for a, b in itertools.pairwise(ends))}
    return sorted(random.Random(0).sample(sorted(sizes), min(count, len(sizes))))


@pytest.mark.parametrize("count", [24, pytest.param(10**6, marks=pytest.mark.slow)])
def test_a_run_that_is_killed_at_any_byte_goes_on_as_if_nothing_had_been(count, tmp_path, caplog):
    path, cut = tmp_path / "run.journal", tmp_path / "cut.journal"
    loop = finished(AskTell(arms(), policy(), seed=3, storage=Storage(path, replay_seconds=0.0)), budget=BUDGET)
    loop.close()
    data, asked = path.read_bytes(), []
    for size in kills(data, count=count):
        cut.write_bytes(data[:size])
        with AskTell.resume(cut) as again:
            asked.append(again.asked)
            assert again.asked - len(again.pending) == sum(
                len(event.tickets) for event in sparse_bo.journal.Journal(cut, data[:size]).events() if event.kind == "tell"
            )
            assert finished(again, budget=BUDGET).history.indices == loop.history.indices
        assert repr(read_run(cut).history.column("values")) == repr(loop.history.column("values"))
    assert asked == sorted(asked)
    assert len(set(asked)) > 5
    assert "is cut off" in caplog.text


@pytest.mark.parametrize("seconds", [0.0, math.inf])
def test_snapshots_are_recorded_after_every_update_or_never(seconds, tmp_path):
    storage = Storage(tmp_path / "run.journal", replay_seconds=seconds)
    with AskTell(arms(), policy(), seed=3, storage=storage) as loop:
        finished(loop, budget=BUDGET)
    found = sum(record.kind == b"snap" for record in records(storage.path.read_bytes()))
    assert found == (len(loop.history.rows) if not seconds else 0)


def test_snapshots_of_a_long_run_are_ever_rarer_and_a_replay_is_a_hundredth_of_it(tmp_path):
    """A run of 1,000 updates of a second each, its state 100 kB."""
    path = tmp_path / "run.journal"
    state = {"x": torch.zeros(12_500, dtype=torch.float64)}
    engine = SimpleNamespace(rows=[], seconds=0.0, freeze=lambda: state)
    box = Box(torch.tensor([[0.0], [1.0]], dtype=torch.float64))
    recorder, longest = Recorder.create(path, {"seed": 0}, box, None, Alone()), 0.0
    for _ in range(1000):
        engine.seconds += 1.0
        longest = max(longest, engine.seconds)
        recorder.updated(engine)
    recorder.close()
    count = sum(record.kind == b"snap" for record in records(path.read_bytes()))
    assert 150 <= count <= 250
    assert 5.0 < longest < 0.5 + 0.5 * 2 + 0.01 * 1000 + 2.0
