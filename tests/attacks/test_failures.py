"""Objectives that fail: in a region, at random, or always. What keeps failing is avoided, and never recommended."""

from __future__ import annotations

import math
import warnings
from collections import Counter
from dataclasses import replace
from itertools import accumulate

import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.kernels import RBFKernel

from sparse_bo import AskTell, ProductGrid, maximize, optimize_batch
from sparse_bo.arms import ContenderPosterior, StopRule, pick_batch
from sparse_bo.domains import Arms, Box
from sparse_bo.errors import FailureWarning, PendingBatchError, ScheduleComplete
from sparse_bo.policies import BBKB, BPE, GPUCB, BoTorchUCB, EpsilonGreedy, Mechanism, MiniMETA, RandomSearch
from sparse_bo.policies.failures import box_correlation, doubtful, failed
from sparse_bo.policies.persistence import freeze_fields, thaw_fields
from sparse_bo.policies.states import BoxState

ARMS = torch.rand(2000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
EDGE = 0.4


def given() -> dict:
    kernel = RBFKernel()
    kernel.lengthscale = 0.2
    return {"covar_module": kernel, "prior_mean": 0.0, "regularization": 0.01}


def smooth(X):
    return torch.sin(3.0 * X[:, 0]) + 0.5 * torch.cos(4.0 * X[:, 1])


def beyond_the_edge(X):
    """Rises towards the edge, so that the best arms lie where evaluations fail."""
    return torch.where(X[:, 0] > EDGE, torch.nan, smooth(X))


def at_random():
    """Fails in 30 % of evaluations, wherever."""
    generator = torch.Generator().manual_seed(5)
    return lambda X: torch.where(torch.rand(len(X), generator=generator) < 0.3, torch.nan, smooth(X))


def outcomes(result) -> list[bool]:
    """Return of each evaluation whether it failed."""
    return [math.isnan(value) for row in result.history.rows for value in row.values]


POLICIES = {
    "bbkb": BBKB(**given()),
    "bbkb learned": BBKB(),
    "gp-ucb": GPUCB(**given()),
    "mini-meta": MiniMETA(max_batch_size=20, **given()),
    "epsilon-greedy": EpsilonGreedy(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", POLICIES)
def test_arms_that_keep_failing_are_left_alone(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailureWarning)  # at the start most of what is tried fails
        result = maximize(beyond_the_edge, arms=ARMS, policy=POLICIES[name], budget=300, seed=1)
    bad = outcomes(result)
    assert len(bad) == 300
    assert sum(bad) < 100  # before: 290 of 300 with a model
    assert sum(bad[150:]) < 40  # and ever fewer
    tries = Counter(i for i, failed in zip(result.history.indices, bad, strict=True) if failed)
    assert max(tries.values()) <= 4  # before: 295
    assert result.best_x[0] <= EDGE
    assert result.best_index in {i for i, failed in zip(result.history.indices, bad, strict=True) if not failed}
    feasible = ARMS[ARMS[:, 0] <= EDGE]
    assert float(smooth(result.best_x[None])) > float(smooth(feasible).quantile(0.9))


@pytest.mark.parametrize("policy", [RandomSearch(batch_size=5), BBKB(initial_design=250, max_batch_size=5)])
def test_random_arms_of_a_design_keep_away_from_failing_neighbours(policy):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailureWarning)
        loop = AskTell(ARMS, policy, seed=1)
        bad = []
        while len(bad) < 100:
            batch = loop.ask(5)
            y = beyond_the_edge(batch.X)
            loop.tell(batch.tickets, y)
            bad += y.isnan().tolist()
    assert loop.state.posterior is None  # all of it was drawn at random
    assert sum(bad[40:]) < 0.45 * 60  # before: 60 % of it fails, as of all arms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "budget", "share"), [(BBKB(), 60, 0.5), (BoTorchUCB(num_restarts=2, raw_samples=64), 60, 0.65)]
)
def test_regions_of_a_box_that_keep_failing_are_left_alone(policy, budget, share):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailureWarning)
        result = maximize(beyond_the_edge, bounds=BOUNDS, policy=policy, budget=budget, seed=1)
    bad = outcomes(result)
    assert sum(bad) < share * budget
    assert result.best_x[0] <= EDGE
    assert float(smooth(result.best_x[None])) > 1.4  # the best feasible value is 1.43


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bbkb", "bbkb learned", "gp-ucb", "epsilon-greedy"])
def test_random_failures_do_not_starve_a_run(name):
    result = maximize(at_random(), arms=ARMS, policy=POLICIES[name], budget=150, seed=1)
    assert 0.2 < sum(outcomes(result)) / 150 < 0.4
    best = float(smooth(ARMS).max())
    assert float(smooth(result.best_x[None])) > best - 0.1
    if name == "epsilon-greedy":
        return  # with one random arm in ten evaluations it finds good arms late, with failures or without
    good = [value for row in result.history.rows for value in row.values if not math.isnan(value)]
    assert sum(good[-30:]) / 30 > best - 0.5  # it has settled near the best arms


@pytest.mark.parametrize(
    "where",
    [{"arms": ARMS[:30], "policy": BBKB(**given())}, {"bounds": BOUNDS, "policy": BBKB(**given())}],
    ids=["arms", "box"],
)
def test_a_run_without_a_success_recommends_nothing_and_says_so_once(where):
    with pytest.warns(FailureWarning, match=r"20 of 20 .* empty, as none has succeeded") as caught:
        result = maximize(lambda X: torch.full((len(X),), torch.nan), budget=40, **where)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert outcomes(result) == [True] * 40
    assert result.best_x is None
    assert result.best_index is None


def test_a_run_that_fails_a_little_says_nothing():
    loop = AskTell(ARMS, RandomSearch())
    for ticket in range(30):
        loop.tell(loop.ask(1).tickets, [math.nan if ticket % 2 else 1.0])  # half: not more than half


def test_a_failed_arm_is_retried_ever_more_rarely():
    """One arm is far better than the others and fails for a while: it is found again once it works."""
    arms = torch.linspace(0.0, 1.0, 4, dtype=torch.float64).unsqueeze(-1)
    loop, tries, recovered = AskTell(arms, EpsilonGreedy(epsilon=1.0), seed=0), [], False
    for t in range(300):
        batch = loop.ask(1)
        arm = int(batch.indices)
        if arm == 3:
            tries.append(t)
        loop.tell(batch.tickets, [math.nan if arm == 3 and t < 100 else float(arm)])
        recovered |= arm == 3 and t >= 100
    assert len([t for t in tries if t < 100]) <= 4
    assert recovered
    assert loop.result().best_index == 3


@pytest.mark.slow
def test_a_streamed_arm_set_backs_off_too():
    grid = ProductGrid.linspace(BOUNDS, [200, 150])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailureWarning)
        result = maximize(beyond_the_edge, arms=grid, policy=BBKB(**given(), memory_bytes=2**20), budget=60, seed=1)
    assert isinstance(result.state.posterior, ContenderPosterior)
    bad = outcomes(result)
    tries = Counter(i for i, failed in zip(result.history.indices, bad, strict=True) if failed)
    assert max(tries.values()) <= 3
    assert sum(bad) < 40
    assert result.best_x[0] <= EDGE


def test_elimination_recommends_an_arm_with_a_success():
    arms = ARMS[:60]
    kernel = RBFKernel()
    kernel.lengthscale = 0.6  # before: the best survivor was an arm that always fails
    policy = BPE(horizon=60, covar_module=kernel, regularization=0.01, width=2.0)
    loop = AskTell(arms, policy, seed=0)
    tried = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailureWarning)
        for _ in range(60):
            try:
                batch = loop.ask()
            except ScheduleComplete:
                break
            y = beyond_the_edge(batch.X)
            tried |= set(batch.indices[~y.isnan()].tolist())
            loop.tell(batch.tickets, y)
    assert loop.result().best_index in tried


@pytest.mark.sampled(1)
@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize("where", ["arms", "learned", "box", "botorch"])
def test_a_resumed_run_remembers_failures(where, journal, tmp_path):
    """The picks of an interrupted run are those of one that was not: from a snapshot, and replayed."""
    policy = {
        "arms": BBKB(**given()),
        "learned": BBKB(),
        "box": BBKB(**given()),
        "botorch": BoTorchUCB(num_restarts=1, raw_samples=16, initial_design=4),
    }[where]
    domain = {"arms": ARMS[:400]} if where in {"arms", "learned"} else {"bounds": BOUNDS}
    budget = {"arms": 90, "learned": 50, "box": 26, "botorch": 12}[where]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailureWarning)
        whole = maximize(beyond_the_edge, policy=policy, budget=budget, seed=1, **domain)
        ends = accumulate(row.batch_size for row in whole.history.rows)
        cut = next(end for end in ends if end >= budget // 2)  # a budget that ends inside a batch ends the batch
        storage = tmp_path / "run.journal"
        first = AskTell(domain.get("arms"), policy, bounds=domain.get("bounds"), seed=1, storage=storage)
        first.run(beyond_the_edge, cut)
        if journal:
            first.close()
            second = AskTell.resume(storage, arms=domain.get("arms"), policy=policy)
            second.run(beyond_the_edge, budget - cut)
            points = second.history.points if "bounds" in domain else second.history.indices
            second.close()
        else:  # the state alone, frozen and thawed
            mechanism, state = first._engine.mechanism, first._engine.state
            first._engine.state = mechanism.thaw(mechanism.freeze(state))
            assert torch.equal(first._engine.state.failures.where, state.failures.where)
            first.run(beyond_the_edge, budget - cut)
            points = first.history.points if "bounds" in domain else first.history.indices
            first.close()
    assert points == (whole.history.points if "bounds" in domain else whole.history.indices)


@pytest.mark.parametrize("n", [6, 10, 24])
def test_of_equally_near_points_those_that_succeeded_count(n):
    """On a grid most neighbours are equally near, and ``topk`` takes any of them, on another device others."""
    turn = torch.arange(n, dtype=torch.float64) * (2.0 * math.pi / n)
    ring = 0.5 + 0.02 * torch.stack([turn.cos(), turn.sin()], dim=-1)
    correlation = box_correlation(torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64))
    X = torch.full((1, 2), 0.5, dtype=torch.float64)
    assert doubtful(X, ring[1::2], ring[:0], correlation).tolist() == [True]
    assert doubtful(X, ring[1::2], ring[::2], correlation).tolist() == [False]


def test_an_arm_with_a_success_does_not_speak_against_its_neighbours():
    """Arm 2 is between arms 0 and 1, both of which failed last."""
    arms = torch.tensor([[0.0], [0.1], [0.05], [1.0]], dtype=torch.float64)
    mechanism, zero = RandomSearch().on(Arms(arms)), torch.zeros(1, dtype=torch.float64)
    succeeded = mechanism.tell(mechanism.init(), torch.tensor([0]), zero, generator=torch.Generator())
    for state, expected in ((mechanism.init(), True), (succeeded, False)):
        refuse = mechanism.fail(state, torch.tensor([0, 1]), generator=torch.Generator()).refusal()
        assert refuse(torch.tensor([2])).tolist() == [expected]


def test_snapshots_without_failures_mean_none():
    state = BoxState.empty(Box(BOUNDS))
    frozen = freeze_fields(state)
    assert not any(name.startswith("failures") for name in frozen)
    assert thaw_fields(BoxState, frozen)["failures"] is None
    some = failed(None, torch.tensor([7, 3, 7]), pulls=2)
    assert some.where.tolist() == [3, 7]
    assert some.strikes.tolist() == [1, 1]  # those of one update count as one
    assert some.last.tolist() == [5, 5]
    assert some.total == 3
    twice = replace(state, failures=failed(some, torch.tensor([7]), pulls=4))
    again = thaw_fields(BoxState, freeze_fields(twice))["failures"]
    assert again.strikes.tolist() == [1, 2]
    assert again.backing_off(pulls=4).tolist() == [True, True]
    assert again.backing_off(pulls=6).tolist() == [False, True]
    assert again.forgiving(torch.tensor([7])).where.tolist() == [3]


def test_failed_evaluations_leave_the_states_of_other_mechanisms_alone():
    state = object()
    assert Mechanism.fail(None, state, torch.tensor([1]), generator=torch.Generator()) is state


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", [BBKB(**given()), GPUCB(**given()), BBKB()], ids=["bbkb", "gp-ucb", "learned"])
def test_many_evaluations_out_at_a_time_go_on_when_all_of_them_fail(policy):
    """Workers are never left idle for good, and nothing is asked twice at a time that has never succeeded."""
    loop, generator = AskTell(ARMS[:200], policy, seed=0), torch.Generator().manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FailureWarning)
        while loop.asked < 120:
            try:
                loop.ask(3)
            except PendingBatchError:
                assert loop.pending
            while len(loop.pending) > 5:
                ticket = loop.pending[int(torch.randint(len(loop.pending), (1,), generator=generator))]
                loop.tell([ticket], beyond_the_edge(loop.reissue([ticket]).X))
            if loop.pending:
                loop.tell(loop.pending[:1], beyond_the_edge(loop.reissue(loop.pending[:1]).X))
    assert loop.result().best_x[0] <= EDGE


def test_warnings_made_errors_leave_the_run_whole():
    loop = AskTell(ARMS[:50], RandomSearch(batch_size=20), seed=0)
    batch = loop.ask()
    with pytest.raises(FailureWarning):
        loop.tell(batch.tickets, [math.nan] * 20)
    assert loop.pending == []
    assert len(loop.history.rows) == 1
    batch = loop.ask()
    loop.tell(batch.tickets, batch.X[:, 0])
    assert len(loop.history.rows) == 2


@pytest.mark.parametrize("rule", [StopRule("single"), StopRule("global", 3.0), StopRule("repeat", 3.0)], ids=str)
def test_refused_arms_are_left_out_of_a_batch_as_long_as_others_are_left(rule):
    """The picks are those among the arms without the refused ones; streamed arms are picked like arms in memory."""
    grid = ProductGrid.linspace(BOUNDS, [40, 30])
    arms = grid[torch.arange(1200)]
    posteriors = {}
    for name, where in {"memory": arms, "streamed": grid}.items():
        policy = BBKB(**given(), width=20.0, stop_rule="repeat" if rule.kind == "repeat" else "global", ratio_threshold=3.0)
        mechanism = replace(policy.on(Arms(arms)), domain=Arms(where))
        state, generator = mechanism.init(), torch.Generator().manual_seed(0)
        picks = torch.arange(0, 1200, 67)
        posteriors[name] = mechanism.tell(state, picks, smooth(arms[picks]), generator=generator).posterior

    def picked(name, refuse=None):
        return pick_batch(posteriors[name], width=2.0, stop_rule=rule, max_q=12, refuse=refuse).indices

    assert isinstance(posteriors["streamed"], ContenderPosterior)
    free = picked("memory")
    assert torch.equal(picked("streamed"), free)
    left, scores = torch.isin(torch.arange(1200), free), posteriors["memory"]
    best = scores.means + 2.0 * scores.leverages.sqrt()
    for _ in range(3):  # ever more arms are refused, those picked last among them
        refused = left.clone()
        expected = int(best.masked_fill(refused, -math.inf).argmax())
        got = {name: picked(name, lambda indices, refused=refused: refused[indices]) for name in posteriors}
        assert torch.equal(got["memory"], got["streamed"])
        assert int(got["memory"][0]) == expected
        assert not refused[got["memory"]].any()
        left[got["memory"]] = True
    only = torch.arange(1200) != 777
    for name in posteriors:
        assert set(picked(name, lambda indices: only[indices]).tolist()) == {777}
        assert torch.equal(picked(name, lambda indices: torch.ones_like(indices, dtype=torch.bool)), free)


def test_optimize_batch_refuses_points():
    X = torch.rand(12, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    model = SingleTaskGP(X, smooth(X).unsqueeze(-1))
    picks, _ = optimize_batch(model, BOUNDS, max_q=6, refuse=lambda X: X[:, 0] > EDGE)
    assert bool((picks[:, 0] <= EDGE).all())
    everywhere, _ = optimize_batch(model, BOUNDS, max_q=2, refuse=lambda X: torch.ones(len(X), dtype=torch.bool))
    assert len(everywhere)
    with pytest.raises(ValueError, match="refuse is for upper confidence bounds on a box"):
        optimize_batch(model, choices=X, refuse=lambda X: X[:, 0] > EDGE)
