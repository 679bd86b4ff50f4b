"""The protocol of optimisation quality: problems are what they say, traces count what they should, summaries are right."""

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import interpolate
from torch import Tensor

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
OPTIMA: dict[str, tuple[list[list[float]], float]] = {
    "hartmann-6": ([[0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573]], 3.32237),
    "branin": ([[-math.pi, 12.275], [math.pi, 2.275], [9.42478, 2.475]], -0.397887),
    "ackley-20": ([[0.0] * 20], 0.0),
    "levy-20": ([[1.0] * 20], 0.0),
    "rosenbrock-8": ([[1.0] * 8], 0.0),
    "rastrigin-10": ([[0.0] * 10], 0.0),
}
PEERS = {
    "sobol": (None, 32),
    "cma": ("cma", 32),
    "tpe": ("optuna", 32),
    "turbo": (None, 10),
    "botorch": (None, 13),
    "default": (None, 12),
}
"""By name its package, and evaluations to test it with."""


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the scripts importable; they choose the number of threads."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)


def part(name: str) -> Any:
    return importlib.import_module(f"protocol.{name}")


def points(bounds: Tensor, count: int, seed: int = 0) -> Tensor:
    shares = torch.rand(count, bounds.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return bounds[0] + (bounds[1] - bounds[0]) * shares


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", OPTIMA)
def test_the_best_value_of_a_test_function_is_at_its_known_optima(name: str) -> None:
    where, value = OPTIMA[name]
    task = part("problems").make(name, 0)
    assert task.best == pytest.approx(value, abs=1e-12)
    X = torch.tensor(where, dtype=torch.float64)
    torch.testing.assert_close(task.truth(X), torch.full((len(X),), value, dtype=torch.float64), atol=1e-5, rtol=0.0)
    assert bool((task.problem.bounds[0] < X).all() & (task.problem.bounds[1] > X).all())
    assert not bool((task.problem.bounds.mean(0) == X).all(1).any())  # where some methods begin


FURTHER = [
    "michalewicz-10",
    "styblinski-20",
    "griewank-6",
    "dixon-price-12",
    "powell-24",
    "shekel-4",
    "egg-holder-2",
    "cosine-8",
]
FURTHER += ["hartmann-3", "levy-6", "hartmann-6-of-40", "branin-of-25", "rotated-rastrigin-8", "rotated-ackley-10"]
FURTHER += ["holder-table-2", "drop-wave-2", "bukin-2"]


def test_further_boxes_are_others_and_all_are_described() -> None:
    problems = part("problems")
    assert set(problems.FURTHER) == set(FURTHER)
    assert not set(FURTHER) & {*problems.BOXES, *problems.TABLES}
    assert set(importlib.import_module("optimisation").ABOUT) == set(problems.PROBLEMS)


@pytest.mark.parametrize(("name", "dims", "middle"), [("rotated-rastrigin-8", 8, 0.5), ("rotated-ackley-10", 10, 2.5)])
def test_a_turned_function_is_best_at_a_turned_place_and_no_sum(name: str, dims: int, middle: float) -> None:
    task = part("problems").make(name, 0)
    normal = torch.randn(dims, dims, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    best = middle - torch.linalg.qr(normal)[0].T @ torch.full((dims,), middle, dtype=torch.float64)
    assert float(task.truth(best[None])) == pytest.approx(0.0, abs=1e-5)
    assert float(best.min()) > float(task.problem.bounds[0, 0])
    steps = torch.zeros(4, dims, dtype=torch.float64)
    steps[1, 0] = steps[2, 1] = steps[3, 0] = steps[3, 1] = 0.3
    at, one, other, both = task.truth(best + steps)
    assert abs(float(both - one - other + at)) > 1e-2  # a sum of functions of one input each has none


@pytest.mark.parametrize(("name", "active"), [("hartmann-6-of-40", 6), ("branin-of-25", 2)])
def test_inputs_without_effect_have_none(name: str, active: int) -> None:
    task = part("problems").make(name, 0)
    X = points(task.problem.bounds, 1)
    moved = X + torch.eye(X.shape[1], dtype=torch.float64) * (0.5 - X)
    assert int((task.truth(moved) != task.truth(X)).sum()) == active


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", [*OPTIMA, *FURTHER, "rover-60", "gp-draw-4"])
def test_no_value_exceeds_the_best_and_half_of_them_the_typical(name: str) -> None:
    task = part("problems").make(name, 3)
    values = task.truth(points(task.problem.bounds, 100 if name == "rover-60" else 500))
    assert float(values.max()) <= task.best
    assert 0.4 < float((values > task.typical).double().mean()) < 0.6
    assert task.range == pytest.approx(task.best - task.typical)


def test_tables_are_those_of_the_package() -> None:
    for name in part("problems").TABLES:
        task = part("problems").make(name, 0)
        assert task.best == 1.0
        assert task.problem.noise_sd == 0.1
        assert task.typical == float(task.problem.values.median())
        spread = task.problem.arms.std(0, correction=0)
        assert bool((spread.sub(1.0).abs() < 1e-9).all()) == name.endswith("standardised")


def test_sets_of_arms_are_points_of_boxes_others_for_each_seed() -> None:
    problems = part("problems")
    for name in problems.SETS:
        task, other = problems.make(name, 5), problems.make(name, 6)
        X, bounds = task.problem.arms, problems.make("branin", 5).problem.bounds
        assert f"-{len(X)}" in name
        assert X.shape == other.problem.arms.shape
        assert not torch.equal(X, other.problem.arms)
        assert torch.equal(problems.make(name, 5).problem.arms, X)
        assert task.best == float(task.truth(torch.arange(len(X))).max())
        assert task.problem.noise_sd == pytest.approx(0.05 * task.range if name.endswith("noisy") else 0.0)
        if name.startswith("branin"):
            assert torch.equal(X.maximum(bounds[0]).minimum(bounds[1]), X)
            torch.testing.assert_close(task.truth(torch.arange(9)), problems.make("branin", 5).truth(X[:9]))


@pytest.mark.slow
def test_botorchs_loop_over_arms_finds_the_best_of_few_and_is_reproducible() -> None:
    problems, trace, loop = part("problems"), part("trace"), part("botorch_loop")
    task = problems.make("branin-512", 5)
    runs = []
    for _ in range(2):
        made = trace.Trace(task, 25, seed=5)
        loop.run_botorch(task, made, 5)
        runs.append(made.record())
    assert runs[0]["best"] == runs[1]["best"]
    assert (runs[0]["reached"], runs[0]["batches"]) == (25, 3)
    assert task.best - runs[0]["recommended"][-1] < 0.05 * task.range


def test_a_seed_decides_which_function_a_draw_is_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = part("problems")
    make, anew = problems.make, problems._make.__wrapped__
    monkeypatch.setattr(problems, "_climbed", lambda function, X: X)  # a search for the maximum, which nothing here needs
    first, again, other = (anew("gp-draw-4", seed) for seed in (0, 0, 1))
    X = points(first.problem.bounds, 5)
    assert torch.equal(first.truth(X), again.truth(X))
    assert not torch.allclose(first.truth(X), other.truth(X))
    assert make("branin", 0) is make("branin", 1)


@pytest.mark.slow
def test_the_maximum_of_a_draw_is_not_beaten_by_another_search() -> None:
    task = part("problems").make("gp-draw-4", 2)
    X = points(task.problem.bounds, 20_000, seed=1)
    X = X[task.truth(X).topk(20).indices]
    generator = torch.Generator().manual_seed(2)
    for step in torch.logspace(-1.0, -4.0, 40, dtype=torch.float64):  # a random walk uphill
        tries = (X + step * torch.randn(50, *X.shape, generator=generator, dtype=torch.float64)).clamp(0.0, 1.0)
        tries = torch.cat([X[None], tries])
        values = task.truth(tries.flatten(0, 1)).view(len(tries), -1)
        X = tries[values.argmax(0), torch.arange(len(X))]
    assert task.best - 1e-3 < float(task.truth(X).max()) <= task.best + 1e-9


def test_an_unknown_problem_is_named() -> None:
    with pytest.raises(ValueError, match=r"expected one of hartmann-6, .*got problem 'hartmann'"):
        part("problems").make("hartmann", 0)


def test_the_rover_drives_along_the_spline_that_fitpack_fits() -> None:
    rover = part("rover")
    for inputs in np.random.default_rng(0).random((10, 60)):
        track, _ = interpolate.splprep((-0.1 + 1.2 * inputs).reshape(-1, 2).T, k=3)
        expected = np.stack(interpolate.splev(np.linspace(0.0, 1.0, rover.STEPS), track), axis=1)
        np.testing.assert_allclose(rover.curve(inputs[None])[0], expected, atol=1e-9)


def test_the_constraints_of_the_rover_are_those_of_its_path() -> None:
    rover = part("rover")
    inputs = np.random.default_rng(5).random((3, 60))
    path = rover.curve(inputs)
    ends = np.abs(path[:, [0, -1]] - np.stack([rover.START, rover.GOAL])).sum((1, 2))
    np.testing.assert_allclose(rover.missed(inputs), ends)
    inside = [[max(abs(x - a), abs(y - b)) for x, y in path[1] for a, b in rover.OBSTACLES[:15]]]
    np.testing.assert_allclose(rover.clearance(inputs)[1], np.min(inside) - 0.025)
    outcomes = importlib.import_module("outcomes")
    Y = outcomes.Task("Rover-60").outcomes(torch.from_numpy(inputs)).numpy()
    np.testing.assert_allclose(Y[:, 0], -rover.reward(inputs) - 10.0 * ends)
    np.testing.assert_allclose(Y[:, 1:], np.stack([0.05 - ends, rover.clearance(inputs)], axis=1))


def rover_reward_by_hand(inputs: np.ndarray) -> float:
    """Return the reward of one input, step by step."""
    rover = part("rover")
    (path,) = rover.curve(inputs[None])
    costs = []
    for x, y in path:
        hit = any(abs(x - a) <= 0.025 and abs(y - b) <= 0.025 for a, b in rover.OBSTACLES) or not (0 <= x <= 1 and 0 <= y <= 1)
        costs.append(20.05 if hit else 0.05)
    total = sum(0.5 * (costs[k] + costs[k + 1]) * math.dist(path[k], path[k + 1]) for k in range(len(path) - 1))
    missed = sum(abs(path[0] - 0.05)) + sum(abs(path[-1] - 0.95))
    return 5.0 - total - 10.0 * float(missed)


def test_the_reward_of_a_path_is_that_of_the_formula() -> None:
    inputs = np.random.default_rng(1).random((3, 60))
    inputs[1] = np.repeat(np.linspace(0.125, 0.875, 30), 2)  # straight from start to goal
    np.testing.assert_allclose(part("rover").reward(inputs), [rover_reward_by_hand(each) for each in inputs], rtol=1e-9)


def test_a_rover_that_stays_where_it_is_pays_for_what_it_misses_alone() -> None:
    inputs = np.tile((0.05 + 0.1) / 1.2, 60)[None]
    np.testing.assert_allclose(part("rover").reward(inputs), [5.0 - 10.0 * 1.8], atol=1e-9)


def test_obstacles_are_as_many_as_the_authors_and_cover_neither_start_nor_goal() -> None:
    centres = part("rover").OBSTACLES
    assert centres.shape == (111, 2)
    assert bool(((centres > 0.0) & (centres < 1.0)).all())
    for place in (0.05, 0.95):
        assert np.abs(centres - place).max(1).min() > 0.025
    assert centres[0] == pytest.approx(FIRST_OBSTACLE)  # another generator would make it another problem


FIRST_OBSTACLE = [0.4874032925129972, 0.17924326731342033]


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0.0, 1.0))
def test_no_path_is_worth_more_than_its_length_allows(seed: int, spread: float) -> None:
    rover = part("rover")
    inputs = 0.5 + spread * (np.random.default_rng(seed).random((4, 60)) - 0.5)
    path, rewards = rover.curve(inputs), rover.reward(inputs)
    length = np.linalg.norm(np.diff(path, axis=1), axis=2).sum(1)
    missed = np.abs(path[:, 0] - 0.05).sum(1) + np.abs(path[:, -1] - 0.95).sum(1)
    assert np.isfinite(rewards).all()
    assert (rewards <= 5.0 - 0.05 * length - 10.0 * missed + 1e-9).all()
    assert (rewards >= 5.0 - 20.05 * length - 10.0 * missed - 1e-9).all()
    np.testing.assert_allclose(rover.reward(inputs[2:3]), rewards[2:3])


def test_settings_reach_from_end_to_end() -> None:
    tuning = part("tuning")
    for at, end in ((0.0, 0), (1.0, 1)):
        chosen = tuning.settings(np.full(tuning.DIMS, at))
        assert chosen == {name: pytest.approx(ends[end]) for name, ends in tuning.SETTINGS.items()}
    whole = tuning.settings(np.full(tuning.DIMS, 0.37))
    assert [name for name, value in whole.items() if isinstance(value, int)] == [
        name for name, (*_, spread) in tuning.SETTINGS.items() if "whole" in spread
    ]


@pytest.mark.slow
def test_tuning_repeats_and_is_no_better_than_the_best_known() -> None:
    pytest.importorskip("sklearn")
    task = part("problems").make("tuning-8", 0)
    X = points(task.problem.bounds, 2)
    first = task.truth(X)
    assert torch.equal(task.truth(X), first)
    assert float(first.max()) <= task.best


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rover-60", "tuning-8"])
def test_what_is_typical_of_a_dear_problem_is_the_median_of_sobol_points(name: str) -> None:
    pytest.importorskip("sklearn")
    problems = part("problems")
    task = problems.make(name, 0)
    values = task.truth(problems._sobol(task.problem.bounds))
    assert task.typical == pytest.approx(float(values.median()), abs=5e-4 * task.range)


def line() -> Any:
    """Return a task on [0, 10] whose truth is the input itself."""
    base, problems = importlib.import_module("sparse_bo.problems.builtin"), part("problems")
    bounds = torch.tensor([[0.0], [10.0]], dtype=torch.float64)
    problem = base.BoxProblem("line", bounds, lambda X: X.squeeze(-1), 10.0, 0.5, "its input")
    return problems.Task(problem, 5.0)


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(-1)


def test_a_trace_has_true_values_while_the_method_sees_noise() -> None:
    trace_of = part("trace").Trace
    trace, other = trace_of(line(), 4, seed=0), trace_of(line(), 4, seed=0)
    seen = torch.cat([trace.evaluate(column(1.0, 7.0)), trace.evaluate(column(3.0))])
    trace.offers(lambda: column(3.0)[0])
    trace.evaluate(column(9.0))
    trace.offers(lambda: column(8.0)[0])
    record = trace.record()
    assert record["at"] == [1, 2, 3, 4]
    assert record["best"] == [1.0, 7.0, 7.0, 9.0]
    assert record["recommended"] == [None, None, 3.0, 8.0]
    assert record["regret"] == [9.0, 12.0, 19.0, 20.0]
    assert (record["reached"], record["batches"]) == (4, 3)
    assert not torch.allclose(seen, torch.tensor([1.0, 7.0, 3.0], dtype=torch.float64))
    torch.testing.assert_close(other.evaluate(column(0.0, 0.0, 0.0)), seen - torch.tensor([1.0, 7.0, 3.0], dtype=torch.float64))


def busy(seconds: float) -> None:
    process_time = importlib.import_module("time").process_time
    end = process_time() + seconds
    while process_time() < end:
        pass


def test_the_clock_counts_the_method_and_not_what_it_waits_for() -> None:
    task = line()
    slow = type(task)(
        importlib.import_module("dataclasses").replace(task.problem, function=lambda X: (busy(0.3), X.squeeze(-1))[1]), 5.0
    )
    trace = part("trace").Trace(slow, 4, seed=0)
    busy(0.05)
    trace.evaluate(column(1.0))
    trace.offers(lambda: (busy(0.3), column(1.0)[0])[1])
    busy(0.05)
    trace.evaluate(column(1.0))
    record = trace.record()
    assert 0.05 <= record["cpu_seconds"][0] < 0.1
    assert 0.1 <= record["cpu_seconds"][1] < 0.2
    assert record["cpu_seconds_in_all"] < 0.2


def test_a_trace_refuses_more_than_the_budget_and_ends_when_time_is_over() -> None:
    trace = part("trace").Trace(line(), 4, seed=0, limit=0.02)
    with pytest.raises(ValueError, match="5 evaluations are asked for, 4 of 4 are left"):
        trace.evaluate(column(*range(5)))
    trace.evaluate(column(2.0))
    trace.offers(lambda: column(2.0)[0])
    trace.evaluate(column(6.0))
    busy(0.03)
    with pytest.raises(part("trace").TimeOver):
        trace.offers(lambda: column(6.0)[0])
    record = trace.record()
    assert (record["reached"], record["at"], record["recommended"]) == (2, [1, 2], [2.0, 6.0])


@pytest.mark.parametrize("budget", [1, 3, 300, 2_000, 10_000])
def test_checkpoints_are_few_and_end_with_the_budget(budget: int) -> None:
    at = part("trace").checkpoints(budget)
    assert at == sorted(set(at))
    assert (at[0], at[-1]) == (1, budget)
    assert len(at) <= 70
    assert max(np.diff([0, *at])) <= math.ceil(budget / 40) + 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] if name == "default" else []) for name in PEERS])
def test_a_peer_spends_its_budget_within_the_box_and_learns(name: str) -> None:
    package, budget = PEERS[name]
    if package is not None:
        pytest.importorskip(package)
    task = part("problems").make("branin", 0)
    seen: list[Tensor] = []
    trace = part("trace").Trace(task, budget, seed=1)
    evaluate: Callable[[Tensor], Tensor] = trace.evaluate
    trace.evaluate = lambda X: (seen.append(X), evaluate(X))[1]
    part("methods").method_of(name).run(task, trace, 1)
    X, record = torch.cat(seen), trace.record()
    assert (record["reached"], len(X)) == (budget, budget)
    assert bool(((task.problem.bounds[0] <= X) & (task.problem.bounds[1] >= X)).all())
    assert record["recommended"][-1] is not None
    assert record["best"][-1] == pytest.approx(float(task.truth(X).max()), rel=1e-5)
    assert record["recommended"][-1] > task.typical
    again = part("trace").Trace(task, budget, seed=1)
    part("methods").method_of(name).run(task, again, 1)
    assert again.record()["best"] == record["best"]


@pytest.mark.parametrize("name", ["bbkb-published", "gp-ucb", "epsilon-greedy", "random"])
def test_a_policy_on_a_table_is_told_noise_and_judged_by_the_truth(name: str) -> None:
    task = part("problems").make("abalone", 0)
    trace = part("trace").Trace(task, 20, seed=2)
    seen: list[Tensor] = []
    evaluate: Callable[[Tensor], Tensor] = trace.evaluate
    trace.evaluate = lambda arms: (seen.append(arms), evaluate(arms))[1]
    part("methods").method_of(name).run(task, trace, 2)
    values, record = task.problem.values[torch.cat(seen)], trace.record()
    assert record["regret"][-1] == pytest.approx(float((1.0 - values).sum()), rel=1e-5)
    assert record["best"][-1] == pytest.approx(float(values.max()), rel=1e-5)
    assert any(record["recommended"][-1] == pytest.approx(float(value), rel=1e-5) for value in values)


def test_cma_begins_anew_with_twice_the_population() -> None:
    pytest.importorskip("cma")
    peer = part("cmaes").CMAES(2, 10_000, 0)
    sizes, seen = [], []
    for _ in range(1_000):
        X = peer.ask(10_000)
        sizes.append(len(X))
        peer.tell(X, -(X - 0.3).square().sum(1))
        seen.append(peer.recommend())
        if len(set(sizes)) == 3:
            break
    assert sorted(set(sizes)) == [sizes[0], 2 * sizes[0], 4 * sizes[0]]
    torch.testing.assert_close(seen[-1], torch.full((2,), 0.3, dtype=torch.float64), atol=1e-4, rtol=0.0)


def test_a_region_grows_after_a_streak_shrinks_without_and_is_spent() -> None:
    region = part("botorch_loop")._Region(patience=2)
    for _ in range(10):
        region.learn(improved=True)
    assert (region.side, region.better) == (1.6, 0)
    for _ in range(4):
        region.learn(improved=False)
    assert (region.side, region.worse) == (0.4, 0)
    while not region.spent:
        region.learn(improved=False)
    assert region.side == 0.4 / 2**6


def test_turbo_begins_anew_when_its_region_is_spent() -> None:
    peer = part("botorch_loop").Turbo(2, 100, 0)
    X = peer.ask(100)
    assert X.shape == (4, 2)
    peer.tell(X, -X.square().sum(1))
    first = peer.recommend()
    assert torch.equal(first, X[X.square().sum(1).argmin()])
    X = peer.ask(100)
    half = 0.5 * 0.8 * 10.0  # lengthscales differ by what their bounds allow
    assert bool(((X >= 0.0) & (X <= 1.0) & ((X - first).abs() <= half)).all())
    peer._region.side = 1e-3
    peer.tell(X, -10.0 - X.square().sum(1))
    fresh = peer.ask(100)
    assert fresh.shape == (4, 2)
    peer.tell(fresh, -20.0 - fresh.square().sum(1))
    torch.testing.assert_close(peer.recommend(), first)  # the first region's point stays the best


def test_scbo_searches_around_the_best_feasible_point_or_the_least_violation_and_begins_anew() -> None:
    torch.manual_seed(0)
    peer = part("botorch_loop").SCBO(2, 100, 0)
    X = peer.ask(100)
    assert X.shape == (4, 2)
    outcomes = torch.tensor([[9.0, 3.0], [1.0, 2.0], [8.0, 1.0], [2.0, 4.0]], dtype=torch.float64)
    peer.tell(X, outcomes)  # none is feasible
    peer._region.side = 0.1
    assert bool(((peer.ask(100) - X[2]).abs() <= 0.05).all())
    feasible = torch.tensor([[0.3, 0.7], [0.6, 0.2]], dtype=torch.float64)
    peer.tell(feasible, torch.tensor([[-5.0, -1.0], [-4.0, 0.0]], dtype=torch.float64))
    assert (peer._region.better, peer._region.worse) == (1, 0)
    picks = peer.ask(3)
    assert len(picks) == 3
    assert bool(((picks - feasible[1]).abs() <= 0.05).all())
    peer.tell(picks, torch.tensor([[-3.999, -1.0], [99.0, 1e-3], [-9.0, -1.0]], dtype=torch.float64))  # 0.03 % better
    assert (peer._region.better, peer._region.side) == (0, 0.05)  # its patience is one batch
    peer._region.side = 1e-3
    assert peer.ask(100).shape == (4, 2)
    assert peer._region is None


def test_methods_are_named_or_written() -> None:
    method_of = part("methods").method_of
    assert method_of("gp-ucb").works_on("abalone")
    assert not method_of("gp-ucb").works_on("branin")
    assert not method_of("cma").works_on("abalone")
    written = method_of("narrow=BBKB(width=1.5)")
    assert (written.name, written.policy) == ("narrow", "BBKB(width=1.5)")
    with pytest.raises(ValueError, match=r"expected one of default, .*, or name=Policy\(...\), got method 'cmaes'"):
        method_of("cmaes")
    with pytest.raises(ValueError, match=r"'BBKB\(wide=1\)' makes no policy: TypeError"):
        method_of("x=BBKB(wide=1)")
    with pytest.raises(ValueError, match="expected an expression for a policy"):
        method_of("x=BBKB")
    with pytest.raises(ValueError, match="'cma' is the name of another method"):
        method_of("cma=BBKB()")


def test_a_missing_package_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    methods = part("methods")
    monkeypatch.setattr(methods, "find_spec", lambda _: None)
    chosen = [methods.METHODS["cma"], methods.METHODS["sobol"]]
    with pytest.raises(ImportError, match=r"method cma needs cma, problem tuning-8 needs sklearn: pip install '\.\["):
        methods.check_packages(chosen, ["branin", "tuning-8"])
    methods.check_packages(chosen[1:], ["branin"])


def record(problem: str, method: str, seed: int, recommended: list[float | None], **changes: Any) -> dict[str, Any]:
    """Return a record of three evaluations on a problem whose values go from 0 (typical) to 10."""
    given = {
        "problem": problem,
        "method": method,
        "seed": seed,
        "budget": 3,
        "at": [1, 2, 3],
        "best": [0.0, 2.0, 6.0],
        "recommended": recommended,
        "regret": [10.0, 18.0, 24.0],
        "cpu_seconds": [0.1, 0.2, 0.4],
        "cpu_seconds_in_all": 0.5,
        "reached": 3,
        "batches": 3,
        "best_value": 10.0,
        "typical_value": 0.0,
    }
    return {**given, **changes}


def runs(*records: dict[str, Any]) -> dict[tuple[Any, ...], dict[str, Any]]:
    return {(r["problem"], r["method"], r["seed"]): r for r in records}


def test_behind_is_the_difference_of_medians_in_per_cent_of_the_range() -> None:
    summary = part("summary")
    known = runs(
        *(record("branin", "default", seed, [None, None, value]) for seed, value in enumerate((9.0, 8.0, 1.0, 8.0, 8.0), 5)),
        *(record("branin", "cma", seed, [None, 0.0, value]) for seed, value in enumerate((9.5, 9.9, 9.7, 9.7, 9.7), 5)),
        record("branin", "tpe", 5, [None, None, None]),
    )
    late = summary.behind(known, "branin", "recommended")
    assert late == {"default": pytest.approx(17.0), "cma": 0.0, "tpe": pytest.approx(97.0)}
    assert summary.quartiles([4.0, 1.0, 2.0, 3.0]) == (1.75, 2.5, 3.25)
    said = importlib.import_module("optimisation").standing(known)
    assert "recommended point: within 2 % of the best method on 0 of 1, at most 17.0 % behind (branin)" in said
    assert "best evaluated point: within 2 % of the best method on 1 of 1, at most 0.0 % behind (branin)" in said


def test_records_are_shown_beside_the_highest_value_that_is_known_now() -> None:
    current, rover = part("summary").current, part("rover")
    older = record("rover-60", "cma", 5, [None, None, 3.0], best_value=rover.BEST_KNOWN - 1.0, typical_value=-16.0)
    newer = current(older)
    assert newer["regret"] == pytest.approx([11.0, 20.0, 27.0])
    assert (newer["best_value"], newer["typical_value"]) == (rover.BEST_KNOWN, rover.TYPICAL)
    assert current(newer)["regret"] == newer["regret"]
    same = record("branin", "cma", 5, [None, None, 3.0])
    assert current(same) == same


def test_a_range_of_its_own_makes_seeds_comparable() -> None:
    gain = part("summary").gain
    assert gain(record("gp-draw-4", "cma", 5, [None, None, 3.0], best_value=4.0, typical_value=2.0), "recommended") == 0.5


def test_a_trace_is_read_as_steps() -> None:
    summary = part("summary")
    early = record("branin", "cma", 5, [None, 1.0], at=[1, 2], best=[0.0, 2.0], cpu_seconds=[0.1, 0.2], reached=2)
    np.testing.assert_equal(summary.at_checkpoints(early, "best"), [0.0, 2.0, np.nan])
    np.testing.assert_equal(summary.at_checkpoints(early, "recommended"), [np.nan, 1.0, np.nan])
    whole = record("branin", "cma", 5, [None, 1.0, 4.0])
    grid = np.array([0.05, 0.1, 0.15, 0.2, 0.39, 9.0])
    np.testing.assert_equal(summary.at_seconds(whole, "best", grid), [np.nan, 0.0, 0.0, 2.0, 2.0, 6.0])


def test_seconds_are_of_the_processor_with_most_methods_then_most_runs() -> None:
    summary, optimisation = part("summary"), importlib.import_module("optimisation")
    devices = {5: "one", 6: "another", 7: "another", 8: "another"}
    made = [record("branin", "default", seed, [1.0, 1.0, float(seed)], device=name) for seed, name in devices.items()]
    made.append(record("branin", "cma", 5, [1.0, 1.0, 9.0], device="one"))
    assert [r["cpu_seconds_in_all"] for r in summary.timed_on_one(made)] == [0.5, None, None, None, 0.5]
    made.append(record("branin", "tpe", 6, [1.0, 1.0, 9.0], device="another"))
    timed = summary.timed_on_one(made)
    assert [r["cpu_seconds_in_all"] for r in timed] == [None, 0.5, 0.5, 0.5, None, 0.5]
    assert [r["cpu_seconds_in_all"] for r in made] == [0.5] * 6
    assert [{**r, "cpu_seconds": 0, "cpu_seconds_in_all": 0} for r in timed] == [
        {**r, "cpu_seconds": 0, "cpu_seconds_in_all": 0} for r in made
    ]
    assert summary.timed_on_one([]) == []
    ((_, known),) = optimisation.by_budget(made, "boxes")
    ours, cma, _ = optimisation.values(known).rows
    assert ours[2:6] == ["4", ours[3], "0.0", "6.50 (5.75 to 7.25)"]
    assert (ours[-2], cma[-2]) == ("0.500", "not on it")
    figures = importlib.import_module("protocol.figures")
    above, below = figures.draw_all([(3, known)]).axes
    assert {line.get_label() for line in above.lines} == {"default", "cma", "tpe"}
    assert [text.get_text() for text in below.texts] == ["default", "tpe"]
    left, right = figures.draw(known, "best").axes
    assert (len(left.lines), len(right.lines)) == (3, 2)


def test_seconds_of_another_budget_may_be_of_another_processor() -> None:
    optimisation = importlib.import_module("optimisation")
    made = [record("branin", method, 5, [1.0, 1.0, 9.0], device="one") for method in ("tpe", "cma", "default")]
    made += [record("branin", "default", 6, [1.0, 1.0, 9.0], device="another")]
    made += [{**record("levy-20", "default", 5, [1.0, 1.0, 9.0], device="another"), "budget": 5000}]
    (few, known), (many, later) = optimisation.by_budget(made, "boxes")
    assert (few, many) == (3, 5000)
    assert {(method, seed): r["cpu_seconds_in_all"] for (_, method, seed), r in known.items()}["default", 6] is None
    assert [r["cpu_seconds_in_all"] for r in later.values()] == [0.5]


def test_seconds_of_further_boxes_are_of_one_processor_each() -> None:
    optimisation = importlib.import_module("optimisation")
    made = [record("levy-6", method, 5, [1.0, 1.0, 9.0], device="one") for method in ("tpe", "cma")]
    made += [record("shekel-4", "tpe", 5, [1.0, 1.0, 9.0], device="another")]
    made += [record("levy-6", "default", 5, [1.0, 1.0, 9.0], device="another")]
    ((_, known),) = optimisation.by_budget(made, "further")
    timed = {(problem, method): r["cpu_seconds_in_all"] for (problem, method, _), r in known.items()}
    assert timed == {("levy-6", "tpe"): 0.5, ("levy-6", "cma"): 0.5, ("shekel-4", "tpe"): 0.5, ("levy-6", "default"): None}


def test_the_seeds_that_choices_were_made_on_are_not_reported() -> None:
    reported = part("summary").reported
    mixed = [record("branin", "cma", seed, [1.0, 1.0, 1.0]) for seed in (0, 4, 5, 14, 15)]
    assert [r["seed"] for r in reported(mixed)] == [5, 14]
    assert reported(mixed[:2]) == mixed[:2]


def test_tables_of_the_page_have_the_numbers_of_the_records() -> None:
    optimisation = importlib.import_module("optimisation")
    early = {"at": [1, 2], "best": [0.0, 2.0], "regret": [10.0, 18.0], "cpu_seconds": [0.1, 0.2], "reached": 2}
    known = runs(
        record("branin", "cma", 5, [None, 1.0, 4.0]),
        record("branin", "cma", 6, [None, 1.0, 8.0]),
        record("branin", "botorch", 5, [None, 1.0], **early),
    )
    first, second = optimisation.values(known).rows
    assert first[:7] == ["branin", "cma", "2", "6.00 (6.00 to 6.00)", "0.0", "6.00 (5.00 to 7.00)", "0.0"]
    assert first[7:] == ["8.00 (8.00 to 8.00)", "0.500", "3"]
    assert second[3:] == ["2.00", "40.0", "1.00", "50.0", "9.00", "0.500 (1 ended at 2 to 2)", "3"]
    paid = runs(
        *(record("abalone", "default", seed, [None, None, 9.0], regret=[1.0, 2.0, 3.0 * seed]) for seed in (5, 6, 7, 8, 9)),
        *(record("abalone", "gp-ucb", seed, [None, None, 10.0]) for seed in range(5, 10)),
        record("abalone", "bbkb", 5, [None, None, 10.0], regret=[0.0, 0.0, 0.0]),  # ours: no peer
    )
    row, *_ = optimisation.regrets(paid).rows
    assert row[2:7] == ["5", "7.00 (6.00 to 8.00)", "7.0000", "9.0000", "1.00 (1.00 to 1.00)"]
    assert optimisation.standing(paid) == (
        "**The default** (5 seeds of each method): regret per evaluation abalone 7.00 (0.88 of gp-ucb's)."
    )


def run(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Run the benchmark in its smallest form, and return its records."""
    experiment = importlib.import_module("optimisation").EXPERIMENT
    importlib.import_module("harness.runner").main(experiment, None, ["--tiny", "--seeds", "1", "--out", str(folder), *words])
    return importlib.import_module("harness.records").read(folder / "optimisation.jsonl.gz")


def test_a_run_that_fails_costs_no_other_and_is_made_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.runner.write", lambda *_: None)
    methods, sobol = part("methods").METHODS, part("sobol").Sobol
    asked = sobol.ask

    def failing(self: Any, left: int) -> Tensor:
        if left < 20:
            raise RuntimeError("out of points")
        return asked(self, left)

    words = ("--problems", "branin", "--methods", "sobol", "few=RandomSearch(batch_size=4)")
    with monkeypatch.context() as context:
        context.setattr(sobol, "ask", failing)
        with pytest.raises(RuntimeError, match="1 measurements failed; the others are recorded") as caught:
            run(tmp_path, *words)
    assert str(caught.value.__cause__) == "problem branin, method sobol, budget 20, seed 0: RuntimeError: out of points"
    made = run(tmp_path, *words)
    assert [r["method"] for r in made] == ["few", "sobol"]
    assert run(tmp_path, *words) == made
    assert set(methods) >= {"default", "botorch", "turbo", "cma", "tpe", "sobol"}


def test_a_run_whose_time_is_over_is_recorded_with_what_it_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.runner.write", lambda *_: None)
    made = run(tmp_path, "--problems", "branin", "--methods", "sobol", "few=RandomSearch(batch_size=4)", "--limit", "0")
    assert [(r["reached"], r["at"][-1], r["limit"]) for r in made] == [(10, 10, 0.0), (4, 4, 0.0)]
    assert all(r["recommended"][-1] is not None for r in made)


def test_records_name_what_they_were_made_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cma")
    monkeypatch.setattr("harness.runner.write", lambda *_: None)
    made = run(tmp_path, "--problems", "branin", "--methods", "cma", "mine=RandomSearch()")
    assert list(made[0]["packages"]) == ["cma"]
    assert made[1]["policy"] == "RandomSearch()"
    assert {"commit", "torch", "botorch", "threads"} <= made[1].keys()
    assert max(len(json.dumps(r)) for r in made) < 10_000
