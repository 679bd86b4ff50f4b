"""The policy of a run that names none: what it depends on, where it is said, and the goal."""

import logging

import numpy as np
import pytest
import torch

from sparse_bo import BBKB, AskTell, ProductGrid, TrustRegion, maximize
from sparse_bo.domains import Arms, Box
from sparse_bo.domains.sharded import ShardedArms
from sparse_bo.policies import ExpectedImprovement, RandomSearch, TwoStage
from sparse_bo.runs import chosen_policy
from sparse_bo.sharding import Alone
from tests.builders import arms, unit_box, waves


def test_few_arms_of_which_the_best_counts_get_expected_improvement():
    here = Arms(arms(100, 3))
    chosen = chosen_policy(here, budget=300)
    assert chosen.policy == ExpectedImprovement()
    assert "in a run of 300 evaluations" in chosen.why
    assert chosen_policy(here, budget=2_000, workers=64).policy == ExpectedImprovement(batch_size=64)
    assert chosen_policy(here, budget=12).policy == ExpectedImprovement(initial_design=4)
    assert chosen_policy(here, budget=100, observed=1_900).policy == ExpectedImprovement()
    open_end = chosen_policy(Arms(arms(5_000, 3)), observed=2_000)
    assert open_end == (ExpectedImprovement(), "the best candidate counts")
    grid = ProductGrid([torch.arange(200.0, dtype=torch.float64)] * 2)
    assert chosen_policy(Arms(grid), budget=250).policy == ExpectedImprovement()


@pytest.mark.parametrize(
    ("where", "how"),
    [
        (arms(100, 3), {"goal": "cumulative", "budget": 300}),
        (arms(100, 3), {"goal": "cumulative", "budget": 9_999}),
        (arms(5_001, 3), {"goal": "cumulative", "budget": 9_999}),
        (arms(5_001, 3), {"goal": "cumulative"}),
        (arms(100, 3), {"budget": 2_000, "observed": 1_000}),
        (arms(100, 3), {"observed": 2_001}),
        (arms(100, 3), {"budget": 300, "certified": True}),
        (arms(100, 3), {"budget": 10_000, "certified": True}),
        (ProductGrid([torch.arange(600.0, dtype=torch.float64)] * 2), {"budget": 10_000}),
        (
            ProductGrid([torch.arange(200.0, dtype=torch.float64)] * 2 + [torch.ones(1, dtype=torch.float64)] * 249),
            {"budget": 9},
        ),
        (ShardedArms(arms(100, 3), group=Alone()), {"budget": 300}),
    ],
    ids=[
        "short",
        "cumulative",
        "cumulative, more arms",
        "cumulative, no budget",
        "before",
        "before, no budget",
        "certified",
        "long, certified",
        "arms",
        "numbers",
        "shards",
    ],
)
def test_other_arms_get_bbkb(where, how):
    assert isinstance(chosen_policy(Arms(where), **how).policy, BBKB)


@pytest.mark.parametrize(
    ("where", "how", "after"),
    [
        (arms(100, 3), {"budget": 2_001}, 1_000),
        (arms(100, 3), {"budget": 1_100, "observed": 999}, 1_000),
        (arms(5_001, 3), {}, 399),
        (arms(100, 3), {"goal": "cumulative", "budget": 10_000}, 1_000),
        (arms(5_001, 3), {"goal": "cumulative", "budget": 10_000}, 399),
        (ProductGrid([torch.arange(200.0, dtype=torch.float64)] * 2), {"budget": 251}, 50),
    ],
    ids=["budget", "before", "no budget", "cumulative", "cumulative, more arms", "arms"],
)
def test_long_runs_over_arms_begin_with_expected_improvement(where, how, after):
    chosen = chosen_policy(Arms(where), workers=8, **how)
    assert isinstance(chosen.policy, TwoStage)
    assert (chosen.policy.first, chosen.policy.after) == (ExpectedImprovement(batch_size=8), after)
    assert f"BBKB goes on after the first {after:,}" in chosen.why


def test_observations_made_before_a_run_count():
    X = arms(100, 3)
    where = torch.arange(2_001) % 100
    assert isinstance(AskTell(X, initial=(where, waves(X)[where])).policy, BBKB)
    assert isinstance(AskTell(X, initial=(where[:99], waves(X)[:99])).policy, ExpectedImprovement)


def test_a_run_that_is_certified_has_a_certificate():
    loop = AskTell(arms(), budget=30, certify_every=1)
    batch = loop.ask(12)
    loop.tell(batch.tickets, waves(batch.X))
    assert loop.certificate() is not None


def test_boxes_get_a_trust_region_that_knows_what_counts():
    assert chosen_policy(Box(unit_box()), goal="best").policy == TrustRegion()
    for dims in (1, 6, 20):
        chosen = chosen_policy(Box(unit_box(dims)), goal="cumulative")
        assert chosen.policy == TrustRegion(goal="cumulative")
        assert f"{dims} input{'s' * (dims != 1)} where every evaluation counts" in chosen.why


def test_workers_decide_the_batch_and_a_small_budget_the_design():
    here = Box(unit_box(20))
    assert chosen_policy(here, budget=300, workers=4).policy == TrustRegion()
    many = chosen_policy(here, budget=300, workers=64)
    assert many.policy == TrustRegion(batch_size=64, initial_design=64)  # a point for each
    assert chosen_policy(here, budget=300, workers=20).policy == TrustRegion(batch_size=20)  # it has 20 anyway
    assert "64 workers" in many.why
    small = chosen_policy(here, budget=30)
    assert small.policy == TrustRegion(initial_design=10)
    assert "budget of 30" in small.why
    assert chosen_policy(here, budget=0).policy.initial_design == 1
    counted = chosen_policy(here, goal="cumulative", budget=30, workers=64)
    assert counted.policy == TrustRegion(goal="cumulative", batch_size=64, initial_design=10)
    assert chosen_policy(here, goal="cumulative", budget=27).policy.initial_design == 9


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="goal"):
        AskTell(arms(), goal="worst")
    with pytest.raises(ValueError, match="goal"):
        maximize(waves, arms=arms(), budget=5, goal="worst")
    with pytest.raises(ValueError, match="workers"):
        AskTell(bounds=unit_box(), workers=0)


def test_the_choice_is_logged_recorded_and_survives_a_resume(tmp_path, caplog):
    with caplog.at_level(logging.INFO, logger="sparse_bo.runs.ask_tell"):
        result = maximize(waves, bounds=unit_box(), budget=12, seed=0, storage=tmp_path / "run.journal")
    why = result.history.info["why"]
    assert "2 inputs" in why
    assert f"chose {TrustRegion(initial_design=4)}: {why}" in caplog.text
    with AskTell.resume(tmp_path / "run.journal") as loop:
        assert loop.policy == TrustRegion(initial_design=4)
        assert loop.about["why"] == why
    again = maximize(waves, bounds=unit_box(), budget=16, seed=0, storage=tmp_path / "run.journal", resume=True)
    assert again.state.pulls == 16


def test_nothing_is_predictions_of_a_policy_that_is_given(caplog):
    with caplog.at_level(logging.INFO, logger="sparse_bo.runs.ask_tell"):
        loop = AskTell(bounds=unit_box(), policy=RandomSearch(), goal="cumulative")
    assert "why" not in loop.about
    assert not caplog.records


@pytest.mark.parametrize("where", [{"bounds": [(0.0, 1.0)] * 2}, {"arms": arms(100, 2)}], ids=["box", "arms"])
def test_every_worker_gets_a_point_of_the_initial_design(where):
    loop = AskTell(**where, workers=20)
    assert len(loop.ask().tickets) == 20


@pytest.mark.parametrize("where", [{"bounds": [(0.0, 1.0)] * 2}, {"arms": arms(100, 2)}], ids=["box", "arms"])
def test_an_ask_fills_the_idle_workers(where, tmp_path):
    loop = AskTell(**where, workers=np.int64(3), storage=tmp_path / "run.journal")
    first = loop.ask()
    assert len(first) == 3
    loop.tell(first.tickets[:2], [0.0, 1.0])
    loop.close()
    with AskTell.resume(tmp_path / "run.journal") as loop:
        second = loop.ask()
        assert len(second) == 2
        loop.tell(first.tickets[2:] + second.tickets, [2.0, 0.5, 1.5])
        assert len(loop.ask(4)) == 4
        assert len(AskTell(**where).ask()) > 3


def test_a_run_with_more_workers_hands_out_a_point_to_each():
    seen = []

    def objective(X):
        seen.append(len(X))
        return waves(X)

    result = maximize(objective, bounds=unit_box(), budget=24, seed=0, executor="threads", workers=6)
    assert result.history.info["policy"] == "trust-region"
    assert 6 in [len(values) for values in result.history.column("values")]
    assert torch.isfinite(torch.tensor(result.best_mean))
