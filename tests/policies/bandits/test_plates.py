"""Plates: batches of a fixed size, and arms of which each is evaluated once."""

import pytest
import torch

from sparse_bo import BBKB, AskTell, History, maximize, optimize
from sparse_bo.dictionary import AllSampler
from sparse_bo.domains import Box
from sparse_bo.errors import PendingBatchError, ScheduleComplete
from sparse_bo.policies import ExpectedImprovement, TrustRegion
from tests.builders import arms, rbf_kernel, unit_box, waves
from tests.cli.builders import QUICK, invoke

KNOWN = {"covar_module": rbf_kernel(0.2), "regularization": 0.02}


def dense_plate(X, evaluated, y, q):
    """Return the ``q`` arms by the formulas: mean + 2 sd, each pick conditioned on as its own mean, none taken twice."""
    kernel, picks = rbf_kernel(0.2), []
    K = kernel(X, X).to_dense()
    for _ in range(q):
        at = torch.cat([evaluated, torch.tensor(picks, dtype=torch.long)])
        inverse = torch.linalg.inv(K[at][:, at] + 0.02 * torch.eye(len(at), dtype=torch.float64))
        known = torch.linalg.inv(K[evaluated][:, evaluated] + 0.02 * torch.eye(len(evaluated), dtype=torch.float64))
        mean = K[:, evaluated] @ known @ y
        score = mean + 2.0 * (K.diagonal() - (K[:, at] @ inverse * K[:, at]).sum(-1)).sqrt()
        score[at] = -torch.inf
        picks.append(int(score.argmax()))
    return picks


def test_a_plate_is_that_of_dense_algebra():
    X = arms(150, 2)
    policy = BBKB(batch_size=12, repeats=False, dictionary=AllSampler(), width=2.0, initial_design=9, prior_mean=0.0, **KNOWN)
    loop = AskTell(X, policy, seed=0)
    batch = loop.ask()
    loop.tell(batch.tickets, waves(X)[batch.indices])
    evaluated = batch.indices.unique()
    for _ in range(2):
        batch = loop.ask()
        assert batch.indices.tolist() == dense_plate(X, evaluated, waves(X)[evaluated], 12)
        loop.tell(batch.tickets, waves(X)[batch.indices])
        evaluated = torch.cat([evaluated, batch.indices]).unique()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("prior", [{}, KNOWN], ids=["learned", "known"])
def test_every_plate_is_full_and_no_arm_is_evaluated_twice(prior):
    X = arms(100, 2)
    loop = AskTell(X, BBKB(batch_size=24, repeats=False, initial_design=24, **prior), seed=0)
    seen = []
    for _ in range(5):
        batch = loop.ask()
        assert len(batch.indices) == min(24, 100 - len(seen))
        seen += batch.indices.tolist()
        loop.tell(batch.tickets, waves(X)[batch.indices])
    assert sorted(seen) == list(range(100))


def test_without_a_batch_size_the_stop_rule_ends_batches_of_different_arms():
    X = arms(120, 2)
    result = maximize(lambda Z: waves(Z), arms=X[:60], policy=BBKB(repeats=False), budget=50, seed=0)
    assert len(set(result.history.indices)) == 50
    assert result.best_index == int(waves(X[:60]).argmax())
    policy = BBKB(repeats=False, **KNOWN)
    loop, sizes = AskTell(X, policy, seed=0), []
    while sum(sizes) < 100:
        batch = loop.ask()
        with pytest.raises(PendingBatchError):
            loop.ask(1)  # the stop rule has ended the batch
        sizes.append(len(batch))
        loop.tell(batch.tickets, waves(batch.X))
    assert max(sizes) < 60
    assert len(sizes) > 4


def test_a_plate_in_pieces_is_the_plate_at_once():
    X = arms(150, 2)
    policy = BBKB(batch_size=12, repeats=False, initial_design=12, **KNOWN)
    whole, pieces = (AskTell(X, policy, seed=0) for _ in range(2))
    for loop in (whole, pieces):
        first = loop.ask(12)
        loop.tell(first.tickets, waves(X)[first.indices])
    found = [pieces.ask(q).indices for q in (5, 1, 6)]
    assert torch.cat(found).tolist() == whole.ask(12).indices.tolist()
    with pytest.raises(PendingBatchError):
        pieces.ask(1)


@pytest.mark.parametrize("kind", [BBKB, ExpectedImprovement])
def test_arms_that_fail_leave_room_for_others(kind):
    X = arms(36, 2)
    failing = X[:, 0] < 0.3  # among them, arms of which nobody knows are avoided, but not for those that were tried
    values = waves(X).masked_fill(failing, torch.nan)
    policy = kind(batch_size=6, repeats=False, initial_design=6)
    result = maximize(values.__getitem__, arms=X, policy=policy, budget=54, seed=0, call_with="indices", vectorized=True)
    succeeded = [i for i in result.history.indices[:24] if not failing[i]]
    assert len(succeeded) == len(set(succeeded))
    assert sorted(result.history.indices) == list(range(36))  # those that have failed are used up, too
    assert result.ended == "all 36 candidates have been evaluated, or have failed, and repeats=False evaluates none again"
    assert result.best_index == int(values.nan_to_num(-torch.inf).argmax())


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")  # many fail at first
@pytest.mark.parametrize("kind", [BBKB, ExpectedImprovement])
def test_arms_near_failures_come_last(kind):
    X = arms(150, 2)
    values = (X[:, 0] - (X[:, 1] - 0.4).square()).masked_fill(X[:, 0] > 0.5, torch.nan)  # rises towards those that fail
    policy = kind(repeats=False)
    result = maximize(values.__getitem__, arms=X, policy=policy, budget=70, seed=0, call_with="indices", vectorized=True)
    assert len(set(result.history.indices)) == 70
    assert sum(row.failed for row in result.history.rows) < 28  # of 70, had they not been left for later: more than 60


ONCE = [BBKB(batch_size=24, repeats=False), BBKB(repeats=False), ExpectedImprovement(batch_size=24, repeats=False)]
ONCE += [ExpectedImprovement(repeats=False)]


@pytest.mark.sampled
@pytest.mark.parametrize("policy", ONCE)
@pytest.mark.parametrize("executor", [None, "threads"])
def test_a_run_in_which_each_candidate_is_tried_once_ends_with_the_last_one(policy, executor):
    X, g = arms(36, 2), torch.Generator().manual_seed(0)
    noise = 0.5 * torch.randn(36, generator=g, dtype=torch.float64)  # so that repeats would pay
    how = {"executor": executor, "workers": 3} if executor else {"vectorized": True}
    measured = waves(X) + noise
    result = maximize(measured.__getitem__, arms=X, policy=policy, budget=48, seed=0, call_with="indices", **how)
    assert sorted(result.history.indices) == list(range(36))
    assert result.ended is not None
    assert "repeats=False" in result.ended
    loop = AskTell(X, policy, seed=0, initial=(torch.arange(35), measured[:35]))
    last = loop.ask(5)
    assert last.indices.tolist() == [35]
    with pytest.raises(PendingBatchError):
        loop.ask(1)
    loop.tell(last, measured[35:])
    with pytest.raises(ScheduleComplete, match="all 36 candidates"):
        loop.ask(1)


@pytest.mark.parametrize("policy", ONCE)
def test_equal_candidates_are_tried_once_each(policy):
    X = arms(7, 2).repeat(3, 1)
    result = maximize(waves, arms=X, policy=policy, budget=40, seed=0)
    assert sorted(result.history.indices) == list(range(21))


def test_each_candidate_is_tried_once_with_several_outcomes():
    X = arms(24, 2)
    policy = ExpectedImprovement(batch_size=8, repeats=False)
    g = torch.Generator().manual_seed(0)

    def measure(x):
        return {"a": float(waves(x.unsqueeze(0))) + float(torch.randn((), generator=g)), "b": float(x[0])}

    how = {"objectives": {"a": "max", "b": "max"}, "policy": policy, "seed": 0}
    result = optimize(measure, arms=X, budget=30, vectorized=False, **how)
    assert sorted(result.history.indices) == list(range(24))
    assert "repeats=False" in result.ended
    repeated = torch.arange(12) % 6  # shows noise, which would make repeats pay
    told = AskTell(X, initial=(repeated, [measure(X[i]) for i in repeated]), **how)
    plate = told.ask().indices.tolist()
    assert len(plate) == len(set(plate) - set(range(6))) == 8


def test_a_resumed_run_goes_on_with_the_same_plates(tmp_path):
    X = arms(150, 2)

    def go_on(loop, plates):
        for _ in range(plates):
            batch = loop.ask()
            loop.tell(batch.tickets, waves(X)[batch.indices])
        return loop

    policy = BBKB(batch_size=10, repeats=False)
    expected = go_on(AskTell(X, policy, seed=0), 5).history.indices
    with AskTell(X, policy, seed=0, storage=tmp_path / "run.journal") as loop:
        go_on(loop, 3)
    with AskTell.resume(tmp_path / "run.journal") as again:
        assert (again.policy.batch_size, again.policy.repeats) == (10, False)
        assert go_on(again, 2).history.indices == expected


@pytest.mark.parametrize(
    ("policy", "inputs", "design"),
    [
        (BBKB(batch_size=32, repeats=False), 6, [32, 32]),
        (BBKB(batch_size=32, repeats=False), 120, [96, 32]),
        (BBKB(batch_size=7), 6, [7, 7]),
        (ExpectedImprovement(batch_size=32), 120, [96, 32]),
        (ExpectedImprovement(batch_size=5), 6, [10, 5]),
        (ExpectedImprovement(batch_size=32), 6, [32, 32]),
        (ExpectedImprovement(batch_size=32, initial_design=10), 6, [10, 32]),
    ],
)
def test_the_random_start_is_of_whole_batches(policy, inputs, design):
    X = torch.rand(400, inputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loop, sizes = AskTell(X, policy, seed=0), []
    for _ in range(2):
        batch = loop.ask()
        sizes.append(len(batch))
        loop.tell(batch.tickets, X[batch.indices].sum(dim=-1))
    assert sizes == design


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 8, "ratio_threshold": 2.0}, "batch_size= or a stop rule"),
        ({"batch_size": 8, "stop_rule": "local"}, "batch_size= or a stop rule"),
        ({"batch_size": 8, "width": "theory", "rkhs_norm": 1.0}, "a width without the stop rule's bound"),
        ({"repeats": "no"}, "expected repeats to be True or False, got str 'no'"),
        ({"repeats": False, "stop_rule": "repeat"}, "whose batches repeat an arm"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises((TypeError, ValueError), match=message):
        BBKB(**settings)


def test_on_a_box_batches_have_the_size_and_repeats_are_no_setting():
    loop = AskTell(bounds=unit_box(), policy=BBKB(batch_size=3, initial_design=4, **KNOWN), seed=0)
    first = loop.ask()
    loop.tell(first.tickets, waves(first.X))
    assert len(loop.ask().X) == 3
    with pytest.raises(ValueError, match="repeats=False is for arms, got a box"):
        BBKB(repeats=False).on(Box(unit_box()))


@pytest.mark.slow  # tests/cli/test_settings.py gives the other policies their settings
def test_the_command_line_takes_plates(tmp_path):
    settings = ("--policy", "bbkb", "--batch-size", "7", "--set", "repeats=no", "--set", "initial_design=7")
    done = invoke(*QUICK, *settings, "--out", str(tmp_path), "--quiet")
    assert done.exit_code == 0, done.output
    history = History.load(tmp_path / "gp-draw-bbkb-seed1.jsonl")
    assert history.column("batch_size") == [7, 7, 7, 7, 2]
    assert len(set(history.indices)) == 30


FULL = [
    ({"workers": 4}, 4),
    ({"policy": TrustRegion(batch_size=8)}, 8),
    ({"policy": TrustRegion(batch_size=8), "workers": 4}, 4),
    ({"policy": TrustRegion(batch_size=8), "objectives": {"a": "max", "b": "max"}}, 8),
    ({"arms": arms(60, 3), "workers": 4}, 4),
    ({"arms": arms(60, 3), "policy": ExpectedImprovement(batch_size=8), "workers": 4}, 4),
    ({"arms": arms(60, 3), "policy": BBKB(batch_size=8), "workers": 4}, 4),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("how", "size"), FULL, ids=range(len(FULL)))
def test_every_plate_from_the_first_on_is_full(how, size):
    """The design of 3 inputs needs 6 results."""
    loop = AskTell(**({} if "arms" in how else {"bounds": [(0.0, 1.0)] * 3}), **how)
    for _ in range(2):
        batch = loop.ask()
        assert len(batch) == size
        y = batch.X.double()
        loop.tell(batch.tickets, y[:, :2] if "objectives" in how else y.sum(dim=-1))


def test_a_first_plate_in_pieces_is_full_too_and_a_given_design_is_kept():
    loop = AskTell(bounds=[(0.0, 1.0)] * 3, policy=TrustRegion(batch_size=8))
    at_once = AskTell(bounds=[(0.0, 1.0)] * 3, policy=TrustRegion(batch_size=8)).ask()
    pieces = [loop.ask(q).X for q in (3, 3, 3)]
    assert [len(piece) for piece in pieces] == [3, 3, 2]
    assert torch.equal(torch.cat(pieces), at_once.X)
    with pytest.raises(PendingBatchError):
        loop.ask(1)
    given = AskTell(bounds=[(0.0, 1.0)] * 3, policy=TrustRegion(batch_size=8, initial_design=6))
    assert len(given.ask()) == 6


def test_no_copy_of_a_candidate_is_tried_after_a_random_design_has_drawn_another():
    base, which = arms(20, 2), torch.arange(200) % 20
    loop = AskTell(base[which], BBKB(repeats=False, initial_design=8), seed=0)
    seen = []
    while len(seen) < 20:
        batch = loop.ask(1)
        seen += which[batch.indices].tolist()
        loop.tell(batch.tickets, waves(batch.X))
    assert len(set(seen[8:])) == len(seen[8:])
    assert not set(seen[:8]) & set(seen[8:])
