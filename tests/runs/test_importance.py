"""Importance of inputs, from results and on the page of a run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sparse_bo import BBKB, AskTell, Choice, Float, Int, maximize, optimize
from sparse_bo.domains.base import sobol_points
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.policies import ExpectedImprovement, RandomSearch, TrustRegion
from sparse_bo.runs.columns import importance_of, sampled_effects
from tests.builders import bbkb, noisy


def steep(x):
    return -4.0 * float((x[1] - 0.4) ** 2) - 0.5 * float((x[0] - 0.5) ** 2)


def test_on_a_box_the_steep_input_leads_and_one_without_effect_has_none():
    X = sobol_points(32, 3, seed=0).numpy()
    initial = (X, [steep(x) for x in X])
    result = maximize(steep, bounds=[(0.0, 1.0)] * 3, budget=0, policy=TrustRegion(initial_design=25), initial=initial)
    assert next(iter(result.importance)) == "x2"
    assert sum(result.importance.values()) == pytest.approx(1.0)
    assert result.importance["x2"] > 0.9
    assert result.importance["x3"] < 0.01
    page = result.report()
    assert "Importance of the inputs" in page
    assert importance_of(result.state, result.domain)[""].how in page


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_has_converged_still_knows_the_steep_input(seed):
    """Its search models the logarithm of the distance from the best value, near the best point."""
    result = maximize(steep, bounds=[(0.0, 1.0)] * 2, budget=40, seed=seed)
    assert result.importance["x2"] > 0.95  # 64 to 1 in variance: 0.985


def test_a_gaussian_kernel_has_a_closed_form_near_the_truth():
    X = np.random.default_rng(0).random((40, 2))
    policy = TrustRegion(initial_design=40)
    y = np.sin(4.0 * X[:, 0] + 2.0 * X[:, 1] ** 2)
    result = maximize(lambda x: 0.5, bounds=[(0.0, 1.0)] * 2, budget=0, policy=policy, initial=(X, y))
    assert result.state.fitted.learned.family == "rbf"
    closed = importance_of(result.state, result.domain)[""]
    assert closed.how == "in closed form"
    points = sobol_points(4_096, 4, seed=0)
    groups = list(torch.arange(2).split(1))
    truth = sampled_effects(lambda U: torch.sin(4.0 * U[:, 0] + 2.0 * U[:, 1] ** 2), points[:, :2], points[:, 2:], groups)
    assert closed.shares["x1"] == pytest.approx(float(truth[0] / truth.sum()), abs=0.03)


@pytest.mark.parametrize("few", [True, False], ids=["arms", "box"])
def test_the_columns_of_a_choice_are_one_input(few):
    space = {"kind": Choice("a", "b", "c", "d"), "n": Int(1, 8), "one": Choice("only")}
    space |= {} if few else {"x": Float(0.0, 1.0)}
    policy = (ExpectedImprovement if few else TrustRegion)(initial_design=20)
    result = maximize(lambda p: 3.0 * (p["kind"] == "c") + 0.1 * p["n"], space=space, budget=30, policy=policy)
    assert set(result.importance) == set(space) - {"one"}
    assert next(iter(result.importance)) == "kind"
    assert result.importance["kind"] > 0.6


def test_arms_have_columns():
    X = torch.rand(80, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * torch.tensor([1.0, 10.0, 100.0])
    result = maximize(lambda X: X[:, 2] / 10.0, arms=X, budget=20, policy=ExpectedImprovement(initial_design=10))
    assert result.importance["x3"] > 0.95


FIXED = {"a": Int(0, 20), "b": Choice("x", "y", "z"), "c": Int(0, 5)}


@pytest.mark.parametrize("kink", [False, True], ids=["closed form", "sample"])
def test_a_constant_column_of_arms_has_none(kink):
    X = [[float(i), 5.0] for i in range(30)]
    y = [abs(i - 3.0) ** (1 if kink else 2) for i in range(30)]
    result = maximize(lambda x: 0.0, arms=X, budget=0, initial=(list(range(30)), y))
    assert importance_of(result.state, result.domain)[""].how.startswith("from a sample" if kink else "in closed form")
    assert result.importance == {"x1": 1.0, "x2": 0.0}
    assert maximize(lambda x: 0.0, arms=X[:1] * 9, budget=0, initial=(list(range(9)), y[:9])).importance is None


@pytest.mark.parametrize("policy", [None, TrustRegion(), BBKB(initial_design=8)], ids=["arms", "box", "BoTorch's model"])
def test_a_parameter_that_feasible_fixes_has_none(policy):
    space = FIXED if policy is None else FIXED | {"d": Float(0.0, 1.0)}
    d = np.random.default_rng(0).random(21)
    points = [{"a": a, "b": "x", "c": 2} | ({} if policy is None else {"d": d[a]}) for a in range(21)]
    result = maximize(
        lambda point: -((point["a"] - 7.0) ** 2),
        space=space,
        feasible=lambda point: point["c"] == 2 and point["b"] == "x",
        budget=1,
        policy=policy,
        initial=(points, [-((point["a"] - 7.0) ** 2) for point in points]),
    )
    assert (result.importance["b"], result.importance["c"]) == (0.0, 0.0)
    assert result.importance["a"] > 0.95


def test_combinations_are_varied_where_they_are_feasible():
    points = [{"a": a, "b": "xy"[a % 2], "c": c} for a in range(21) for c in (2, 3)]
    result = maximize(
        lambda point: 0.0,
        space=FIXED,
        feasible=lambda point: point["c"] in (2, 3) and point["b"] != "z",
        budget=0,
        initial=(points, [-((point["a"] - 7.0) ** 2) - 20.0 * point["c"] for point in points]),
    )
    of_a = np.var([(a - 7.0) ** 2 for a in range(21)])
    assert result.importance["c"] == pytest.approx(100.0 / (100.0 + of_a), abs=0.003)


def test_policies_without_a_model_of_the_whole_box_have_none():
    bits = (torch.rand(50, 16, generator=torch.Generator().manual_seed(0)) < 0.3).double()
    kernel = ExpectedImprovement(covar_module=TanimotoKernel(), initial_design=8)
    assert maximize(lambda X: X.sum(-1), arms=bits, budget=12, policy=kernel).importance is None
    assert maximize(lambda X: X.sum(-1), arms=bits, budget=12, policy=RandomSearch()).importance is None
    assert maximize(noisy(bits), arms=bits, budget=12, policy=bbkb(), call_with="indices").importance is None


def test_a_policy_with_a_botorch_model_on_a_box_has_them():
    bounds = torch.tensor([[0.0, 0.0], [1.0, 5.0]], dtype=torch.float64)
    policy = BBKB(initial_design=12)
    result = maximize(lambda X: torch.sin(4.0 * X[:, 0]), bounds=bounds, budget=24, policy=policy)
    assert list(result.importance) == ["x1", "x2"]


def test_many_inputs_are_counted_on_the_page():
    rng = np.random.default_rng(0)
    X = rng.random((40, 22))
    policy = TrustRegion(initial_design=40)
    result = maximize(lambda x: 0.0, bounds=[(0.0, 1.0)] * 22, budget=0, policy=policy, initial=(X, X @ np.arange(22.0)))
    assert len(result.importance) == 22
    assert "20 of 22 inputs; the others have" in result.report()


def two(x):
    return {"strength": -float((x[0] - 0.3) ** 2), "cost": float(np.exp(2.0 * x[1])), "constant": 1.0}


OBJECTIVES = {"objectives": {"strength": "max", "cost": "min"}, "constraints": {"constant": (None, 2.0)}}


@pytest.mark.parametrize("arms", [False, True])
def test_each_outcome_has_its_own_importance(arms):
    X = np.random.default_rng(0).random((16, 2))
    where = {"arms": X} if arms else {"bounds": [(0.0, 1.0)] * 2}
    initial = (list(range(16)) if arms else X, [tuple(two(x).values()) for x in X])
    result = optimize(two, **where, **OBJECTIVES, budget=0, initial=initial)
    found = result.importance_by_outcome
    assert set(found) == {"strength", "cost"}  # the constant has a flat model
    assert found["strength"]["x1"] > 0.95
    assert found["cost"]["x2"] > 0.95
    if not arms:
        page = result.report()
        assert "Importance for strength" in page
        assert "variance of the posterior mean of cost" in page
    with pytest.raises(ValueError, match="got strength, cost, constant; use result.importance_by_outcome"):
        _ = result.importance


def test_an_objective_without_a_name_has_no_importance_by_name():
    result = maximize(steep, bounds=[(0.0, 1.0)] * 2, budget=8)
    with pytest.raises(ValueError, match="got one whose objective has no name; use result.importance"):
        _ = result.importance_by_outcome


def test_one_outcome_with_a_name_has_both():
    def named(x):
        return {"yield": steep(x)}

    X = np.random.default_rng(0).random((16, 2))
    initial = (X, [[steep(x)] for x in X])
    result = optimize(named, bounds=[(0.0, 1.0)] * 2, objectives={"yield": "max"}, budget=0, initial=initial)
    assert result.importance["x2"] > 0.9
    assert result.importance_by_outcome == {"yield": result.importance}
    nothing = optimize(named, bounds=[(0.0, 1.0)] * 2, objectives={"yield": "max"}, budget=0)
    assert (nothing.importance, nothing.importance_by_outcome) == (None, {})


def test_one_broken_value_hides_no_input():
    X = torch.rand(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = -10.0 * (X[:, 0] - 0.37).square() + 0.1 * X[:, 1]
    y[4] = -1e3
    result = AskTell(bounds=[(0.0, 1.0)] * 3, initial=(X, y)).result()
    assert result.importance["x1"] > 0.95


def test_a_design_far_below_a_search_that_has_converged_counts():
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, policy=TrustRegion(), seed=1)
    loop.run(lambda x: -100.0 * x[0] - x[1], 40)
    assert loop.result().importance["x1"] > 0.99
