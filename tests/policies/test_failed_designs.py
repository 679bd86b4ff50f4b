"""A failure in an initial design does not cost a batch: it counts as one of its evaluations, and the next batch is whole."""

from __future__ import annotations

import math

import pytest
import torch

from sparse_bo import AskTell, maximize, optimize
from sparse_bo.policies import BBKB, BKB, GPUCB, GSSBO, SBPE, ExpectedImprovement, RandomSearch, TrustRegion, TwoStage
from tests.builders import arms, unit_box

ARMS = torch.rand(400, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BOX = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
TWO = {"objectives": {"a": "max", "b": "min"}}

WHOLE = {"batch_size": 12, "initial_design": 12}
PLATES = {
    "arms": ({"arms": ARMS, "policy": ExpectedImprovement(batch_size=12)}, 12),
    "arms without repeats": (
        {"arms": ARMS, "policy": ExpectedImprovement(repeats=False, **WHOLE)},
        12,
    ),
    "arms, two outcomes": ({"arms": ARMS, "policy": ExpectedImprovement(batch_size=12), **TWO}, 12),
    "BBKB": ({"arms": ARMS, "policy": BBKB(repeats=False, **WHOLE)}, 12),
    "box": ({"bounds": BOX, "policy": TrustRegion(**WHOLE)}, 12),
    "box, two outcomes": ({"bounds": BOX, "policy": TrustRegion(**WHOLE), **TWO}, 12),
    "workers": ({"bounds": BOX, "workers": 8}, 8),
    "GSSBO": ({"bounds": BOX, "policy": GSSBO(**WHOLE, num_restarts=2, raw_samples=8)}, 12),
}


def told(loop, batch, failed):
    y = -(batch.X - 0.4).square().sum(dim=-1, keepdim=True)
    y = torch.cat([y, batch.X[:, :1]], dim=-1) if hasattr(loop.state, "Y") else y.squeeze(-1)
    good = [i for i in range(len(y)) if i not in failed]
    if good:
        loop.tell([batch.tickets[i] for i in good], y[good])
    if len(failed):
        loop.fail([batch.tickets[i] for i in failed])


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
@pytest.mark.parametrize("failed", [1, 6, 9, 12], ids=lambda failed: f"{failed} of 12")
@pytest.mark.parametrize("case", PLATES)
def test_the_batch_after_a_failure_in_the_design_is_whole(case, failed):
    options, size = PLATES[case]
    loop = AskTell(**options, seed=1)
    first = loop.ask(size)
    assert len(first) == size
    told(loop, first, range(failed * size // 12))
    assert len(loop.ask(size)) == size


@pytest.mark.parametrize("policy", [BBKB(), BKB(), TwoStage(), ExpectedImprovement(), SBPE(horizon=100)], ids=lambda p: p.name)
def test_a_failure_ends_a_design_over_arms(policy):
    loop = AskTell(ARMS, policy, seed=1)
    design = loop.ask()
    told(loop, design, [0])
    assert loop.state.pulls == len(design) - 1
    assert any(getattr(loop.state, model, None) is not None for model in ("posterior", "surrogate", "prior"))


@pytest.mark.parametrize("policy", [TrustRegion(), BBKB(), GPUCB(), GSSBO()], ids=lambda policy: policy.name)
def test_a_failure_ends_a_design_on_a_box_and_the_resumed_run_is_the_same(policy, tmp_path):
    loop = AskTell(bounds=BOX, policy=policy, seed=1, storage=tmp_path / "run.journal")
    design = loop.ask(20)
    told(loop, design, [3])
    picks = loop.ask(2).X
    loop.close()
    again = AskTell.resume(tmp_path / "run.journal", policy=policy)
    assert torch.equal(again.reissue().X, picks)
    assert again.state.model is not None
    assert again.state.round == 1  # results and failure are one update


def test_half_of_a_design_needs_results():
    loop = AskTell(bounds=BOX, policy=TrustRegion(initial_design=8), seed=1)
    design = loop.ask(8)
    told(loop, design, range(5))
    assert loop.state.fitted is None
    told(loop, loop.ask(1), [])
    assert loop.state.fitted is not None


BATCHES = {
    "BBKB": {"arms": ARMS, "policy": BBKB(batch_size=12)},
    "BBKB on a box": {"bounds": BOX, "policy": BBKB(batch_size=12)},
    "expected improvement": {"arms": ARMS, "policy": ExpectedImprovement(batch_size=12)},
    "expected improvement, two outcomes": {"arms": ARMS, "policy": ExpectedImprovement(batch_size=12), **TWO},
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow if case == "BBKB on a box" else ()) for case in BATCHES]
)
def test_other_picks_take_the_place_of_repeats_after_a_failure(case):
    loop, noise = AskTell(**BATCHES[case], seed=2), torch.Generator().manual_seed(3)
    succeeded = set()
    for round in range(3):
        batch = loop.ask()
        assert len(batch) == 12 or round == 0
        once = [tuple(x) for x in batch.X.tolist()]
        assert all(once.count(x) == 1 for x in once if x not in succeeded)
        y = -(batch.X - 0.4).square().sum(dim=-1) + 0.2 * torch.randn(len(batch), generator=noise, dtype=torch.float64)
        loop.fail(batch.tickets[:1])
        rows = y[1:] if "Y" not in vars(loop.state) else torch.stack([y, batch.X[:, 0]], dim=-1)[1:]
        loop.tell(batch.tickets[1:], rows)
        succeeded |= set(once[1:])


def test_a_batch_after_failures_does_not_depend_on_the_pieces_it_is_asked_in():
    sizes, picks = {"at once": [12], "in pieces": [5, 1, 6]}, {}
    for name, pieces in sizes.items():
        loop, picks[name] = AskTell(ARMS, BBKB(batch_size=12), seed=2), []
        for _ in range(3):
            first = loop.ask()
            loop.fail(first.tickets[:1])
            loop.tell(first.tickets[1:], -(first.X[1:, 0] - 0.4).square())
        for size in pieces:
            picks[name] += loop.ask(size).indices.tolist()
    assert picks["at once"] == picks["in pieces"]


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
@pytest.mark.parametrize("case", ["box", "outcomes", "arms"])
def test_an_objective_that_refuses_a_point_that_it_has_seen_is_not_asked_for_it_again_and_again(case):
    known = set()

    def objective(x):
        key = tuple(x.tolist())
        if key in known:
            return math.nan
        known.add(key)
        return -float((x - 0.3).square().sum())

    domain = {"arms": arms(200, 2)} if case == "arms" else {"bounds": unit_box()}
    policy = {"policy": ExpectedImprovement(batch_size=1)} if case == "arms" else {}
    search, how = (optimize, {"objectives": {"y": "max"}}) if case == "outcomes" else (maximize, {})
    result = search(objective, **domain, **policy, **how, budget=20, seed=0, vectorized=False)
    assert 1 <= sum(row.failed for row in result.history.rows) <= 5  # of the 14 after the design


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
def test_where_a_box_lies_does_not_matter_for_what_is_near_a_failure():
    failed = []
    for low in (0.0, 1e8):
        bounds = torch.tensor([[low] * 2, [low + 1.0] * 2], dtype=torch.float64)
        loop = AskTell(bounds=bounds, policy=RandomSearch(batch_size=30), seed=0)
        for _ in range(3):
            batch = loop.ask(30)
            bad = batch.X[:, 0] > low + 0.5
            loop.tell(batch, torch.where(bad, torch.nan, batch.X[:, 1] - low))
        failed.append(sum(row.failed for row in loop.history.rows))
    assert failed[0] == failed[1] < 35


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"bounds": BOX, "policy": TrustRegion(batch_size=4, initial_design=8)},
        {"bounds": BOX, "policy": TrustRegion(batch_size=4, initial_design=8), **TWO},
        {"arms": ARMS, "policy": BBKB(batch_size=8, initial_design=8)},
    ],
    ids=["box", "two outcomes", "arms"],
)
def test_after_many_failures_no_more_are_asked_for_than_the_design_has(options):
    """All failures so far were asked for again while one evaluation was pending."""
    loop = AskTell(**options, seed=0)
    for _ in range(20):
        loop.fail(loop.ask(4).tickets)
    batch = loop.ask(4)
    loop.fail(batch.tickets[:1])
    assert 1 <= len(loop.ask(100)) <= 5


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
def test_after_many_failures_a_batch_of_a_design_that_goes_on_is_no_larger():
    loop = AskTell(bounds=BOX, policy=TrustRegion(batch_size=4, initial_design=8), seed=0)
    for _ in range(15):
        loop.tell(batch := loop.ask(4), [0.0, math.nan, 0.0, math.nan][: len(batch)])
    batch = loop.ask(4)
    loop.tell(batch.tickets[:1], [0.0])
    assert len(loop.ask(100)) == 1
