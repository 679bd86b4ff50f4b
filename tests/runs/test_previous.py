"""Runs that start from the observations of recorded ones: other bounds, arms, parameters; several journals."""

from __future__ import annotations

import logging
import math
import re

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Choice, Float, Int, maximize, minimize, observations_of, optimize
from sparse_bo.policies import RandomSearch
from tests.builders import arms, waves


def bowl(x):
    return -float(((np.asarray(x) - 0.3) ** 2).sum()) if x[0] < 0.95 else math.nan


def recorded(path, objective=bowl, **domain):
    run = domain or {"bounds": [(0.0, 1.0)] * 2}
    return maximize(objective, budget=20, policy=RandomSearch(batch_size=4), storage=path, **run)


def values(history):
    return [value for row in history.rows for value in row.values if math.isfinite(value)]


def started(loop):
    (row,) = loop.history.rows
    assert row.added
    return row


def test_other_bounds_leave_out_what_is_outside(tmp_path, caplog):
    before = recorded(tmp_path / "a.journal").history
    with caplog.at_level(logging.INFO, logger="sparse_bo"):
        loop = AskTell(bounds=[(0.0, 0.5), (0.0, 2.0)], policy=RandomSearch(), initial=observations_of(tmp_path / "a.journal"))
    inside = [x for x, y in zip(before.points, [v for row in before.rows for v in row.values], strict=True) if x[0] <= 0.5]
    assert started(loop).points == inside
    assert started(loop).values == [bowl(x) for x in inside]
    line = f"{len(inside)} observations of a.journal; left out: {20 - len(inside)} outside the domain"
    assert loop.about["taken"] == line
    assert f"starts from {line}" in caplog.text
    assert line in loop.result().report()


def test_a_condition_on_steps_keeps_the_observations_that_were_there(tmp_path):
    space = {"f": Float(0, 1, step=0.1), "g": Float(0, 1, when={"f": np.arange(0, 1.01, 0.1)[3:].tolist()})}
    points = [{"f": f / 10, "g": 0.25} for f in range(3, 11)] + [{"f": 0.1}]
    with AskTell(space=space, storage=tmp_path / "a.journal") as loop:
        loop.add(points, [*map(float, range(9))])
    again = AskTell(space=space, initial=observations_of(tmp_path / "a.journal"))
    assert again.about["taken"] == "9 observations of a.journal"
    assert again.history.parameters == points


def test_journals_are_merged_and_what_one_took_from_another_counts_once(tmp_path):
    a, b, c = (tmp_path / f"{name}.journal" for name in "abc")
    first = recorded(a).history
    bounds = {"bounds": [(0.0, 1.0)] * 2}
    second = recorded(b, bounds=bounds["bounds"], initial=observations_of(a), seed=1).history
    third = recorded(c, bounds=bounds["bounds"], initial=observations_of(a), seed=2).history
    loop = AskTell(**bounds, policy=RandomSearch(), initial=observations_of(a, b, c))
    own = [v for history in (second, third) for row in history.rows if not row.added for v in row.values if math.isfinite(v)]
    assert sorted(values(loop.history)) == sorted([*values(first), *own])
    assert "40 in several journals" in loop.about["taken"]
    without = AskTell(**bounds, policy=RandomSearch(), initial=observations_of(b, c))
    assert sorted(values(without.history)) == sorted([*values(first), *own])


def test_failed_evaluations_are_taken_over(tmp_path):
    before = recorded(tmp_path / "a.journal").history
    failed = [x for x, y in zip(before.points, [y for row in before.rows for y in row.values], strict=True) if math.isnan(y)]
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, initial=observations_of(tmp_path / "a.journal"))
    assert failed
    assert loop.about["taken"] == f"20 observations of a.journal, {len(failed)} of them failed"
    assert sorted(loop.state.failures.where.tolist()) == sorted(failed)
    assert loop.state.picked(0) == 0


def test_failed_evaluations_of_several_outcomes_are_taken_over(tmp_path):
    def yields(x):
        return {"yield": x[0], "cost": math.nan if x[0] < 0.3 else x[1], "waste": x[1]} if x[0] < 0.9 else math.nan

    path, bounds = tmp_path / "a.journal", [(0.0, 1.0)] * 2
    several = {"objectives": {"yield": "max", "cost": "min"}, "constraints": {"waste": (None, 0.9)}}
    before = optimize(yields, bounds=bounds, **several, budget=20, policy=None, storage=path).history
    failed, lacking = ([test(x[0]) for x in before.points].count(True) for test in (lambda x: x >= 0.9, lambda x: x < 0.3))
    loop = AskTell(bounds=bounds, objectives={"cost": "min"}, initial=observations_of(path))
    assert min(failed, lacking) > 0
    line = f"{20 - lacking} observations of a.journal, {failed} of them failed; left out: {lacking} without these outcomes"
    assert loop.about["taken"] == line


SPACE = {"lr": Float(1e-3, 1.0, log=True), "kind": Choice("a", "b", "c"), "depth": Int(1, 5)}


def train(point):
    return -abs(math.log10(point["lr"]) + 2) - point["depth"] + (point["kind"] == "b")


def test_new_parameters_have_defaults_and_old_ones_are_dropped(tmp_path):
    before = recorded(tmp_path / "a.journal", train, space=SPACE).history
    space = {
        "lr": Float(1e-3, 1.0, log=True),
        "kind": Choice("a", "b"),
        "momentum": Float(0.0, 1.0, when={"kind": "b"}),
        "layers": Int(1, 8),
    }
    initial = observations_of(tmp_path / "a.journal", defaults={"momentum": 0.5, "layers": 2})
    loop = AskTell(space=space, policy=RandomSearch(), initial=initial)
    kept = [p for p in before.parameters if p["kind"] != "c"]
    expected = [{"lr": p["lr"], "kind": p["kind"], "layers": 2} | ({"momentum": 0.5} if p["kind"] == "b" else {}) for p in kept]
    assert loop.history.parameters == [pytest.approx(point) for point in expected]
    assert loop.about["taken"].endswith("; without depth; with momentum = 0.5, layers = 2 where there was none")
    with pytest.raises(ValueError, match="got none for 'layers'; pass defaults={'layers': …}"):
        AskTell(space=space, initial=observations_of(tmp_path / "a.journal", defaults={"momentum": 0.5}))
    with pytest.raises(ValueError, match="expected defaults= for parameters among lr, kind, momentum, layers, got 'size'"):
        AskTell(space=space, initial=observations_of(tmp_path / "a.journal", defaults={"size": 0.5}))


def test_infeasible_combinations_are_left_out(tmp_path):
    small = {"depth": Int(1, 5), "kind": Choice("a", "b")}
    recorded(tmp_path / "a.journal", lambda point: float(point["depth"]), space=small)
    loop = AskTell(space=small, feasible=lambda p: p["depth"] > 2, initial=observations_of(tmp_path / "a.journal"))
    assert {p["depth"] for p in loop.history.parameters} == {3, 4, 5}


@pytest.mark.parametrize("other", [Int(8, 32), Choice(8, 16, 24)], ids=repr)
def test_whole_numbers_of_a_float_are_those_of_integers(other, tmp_path):
    recorded(tmp_path / "a.journal", lambda point: point["size"], space={"size": Float(8, 32, step=8)})
    loop = AskTell(space={"size": other}, policy=RandomSearch(), initial=observations_of(tmp_path / "a.journal"))
    sizes = [point["size"] for point in loop.history.parameters]
    assert set(map(type, sizes)) == {int}
    assert set(sizes) == ({8, 16, 24} if isinstance(other, Choice) else {8, 16, 24, 32})


def test_arms_are_found_by_their_inputs(tmp_path):
    old = arms(60)
    before = recorded(tmp_path / "a.journal", lambda X: waves(X), arms=old).history
    same = AskTell(old, RandomSearch(), initial=observations_of(tmp_path / "a.journal"))
    assert started(same).indices == before.indices
    other = torch.cat([arms(10, seed=7), old.flip(0)[:50]])
    loop = AskTell(other, RandomSearch(), initial=observations_of(tmp_path / "a.journal"))
    assert started(loop).indices == [10 + 59 - i for i in before.indices if i >= 10]
    box = AskTell(bounds=[(0.0, 1.0)] * 2, policy=RandomSearch(), initial=observations_of(tmp_path / "a.journal"))
    assert started(box).points == old[before.indices].tolist()


def test_arms_of_tables_are_found_by_the_names_of_their_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame([(a, b) for a in range(4) for b in range(4)], columns=["resin", "filler"])  # either order is there
    recorded(tmp_path / "a.journal", lambda X: 10.0 * X[:, 0] + X[:, 1], arms=table, vectorized=True)
    swapped = table.set_axis(["filler", "resin"], axis=1)  # other inputs, the same numbers
    for candidates in (table[["filler", "resin"]], swapped):
        loop = AskTell(candidates, RandomSearch(), initial=observations_of(tmp_path / "a.journal"))
        found = loop.result().to_pandas()
        assert found["value"].tolist() == (10.0 * found["resin"] + found["filler"]).tolist()
    with AskTell(bounds=[(0.0, 3.0)] * 2, policy=RandomSearch(), storage=tmp_path / "box.journal") as box:
        box.add([[1.0, 2.0]], [12.0])
    numbered = AskTell(table.set_axis(["x2", "x1"], axis=1), initial=observations_of(tmp_path / "box.journal"))
    assert numbered.result().best.parameters == {"x2": 2.0, "x1": 1.0}
    other = table.rename(columns={"filler": "hours"})
    with pytest.raises(ValueError, match="expected a run of the inputs resin, hours, got .* of resin, filler; rename"):
        AskTell(other, RandomSearch(), initial=observations_of(tmp_path / "a.journal"))


@pytest.mark.parametrize("columns", [["filler", "resin"], ["resin", "hours"]])
def test_a_run_is_not_resumed_with_a_table_of_other_inputs(columns, tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame([(a, b) for a in range(4) for b in range(4)], columns=["resin", "filler"], dtype=float)
    recorded(tmp_path / "a.journal", arms=table)
    other = table.set_axis(columns, axis=1)
    for resumed in (AskTell.resume, lambda path, arms: recorded(path, arms=arms, resume=True)):
        with pytest.raises(ValueError, match="with the columns resin, filler, got"):
            resumed(tmp_path / "a.journal", arms=other)
    AskTell.resume(tmp_path / "a.journal", arms=table.to_numpy()).close()


def test_a_resume_with_the_same_call_goes_on(tmp_path):
    recorded(tmp_path / "a.journal")
    call = {"bounds": [(0.0, 1.0)] * 2, "initial": observations_of(tmp_path / "a.journal"), "resume": True, "vectorized": False}
    for budget in (5, 9):
        result = maximize(bowl, budget=budget, storage=tmp_path / "b.journal", **call)
    assert sum(row.batch_size for row in result.history.rows if not row.added) == 9
    assert "observations of a.journal" in result.history.info["taken"]


def test_other_bounds_on_a_resume_name_the_way(tmp_path):
    recorded(tmp_path / "a.journal")
    with pytest.raises(ValueError, match=r"initial=observations_of\('.*a.journal'\)"):
        maximize(bowl, bounds=[(0.0, 2.0)] * 2, budget=30, storage=tmp_path / "a.journal", resume=True)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda path: observations_of(), ValueError, "expected the paths of journals, got none"),
        (lambda path: observations_of([path]), TypeError, "expected paths of journals, got list"),
        (lambda path: observations_of(path, path.parent / "." / path.name), ValueError, "each journal once, got .* twice"),
        (lambda path: observations_of(path, defaults=0.5), TypeError, "expected defaults as a dictionary, got float"),
        (
            lambda path: AskTell(bounds=[(0.0, 1.0)] * 3, initial=observations_of(path)),
            ValueError,
            "expected a run of 3 inputs",
        ),
        (lambda path: AskTell(bounds=[(5.0, 6.0)] * 2, initial=observations_of(path)), ValueError, "lie in the domain, got 0"),
        (lambda path: AskTell(space=SPACE, initial=observations_of(path)), ValueError, "whose inputs have no names"),
        (
            lambda path: AskTell(bounds=[(0.0, 1.0)] * 2, initial=observations_of(path, defaults={"a": 1})),
            ValueError,
            "expected defaults= with space=, got 'a'",
        ),
        (lambda path: AskTell(arms(), initial=observations_of(f"{path}.not")), FileNotFoundError, "not"),
    ],
)
def test_wrong_runs_are_named(call, error, message, tmp_path):
    recorded(tmp_path / "a.journal")
    with pytest.raises(error, match=message):
        call(tmp_path / "a.journal")


@pytest.mark.parametrize(
    ("default", "message"),
    [
        ({"c": "z", "d": 2}, "expected c to be one of 'x', 'y', got 'z'$"),
        ({"c": "x", "d": 12}, r"expected d in .1, 9., got 12$"),
    ],
)
def test_a_default_that_a_parameter_cannot_have_is_named(default, message, tmp_path):
    recorded(tmp_path / "a.journal", lambda point: point["a"], space=NAMED)
    with pytest.raises(ValueError, match="expected defaults= of values that the parameters can have: " + message):
        AskTell(space=WIDER, initial=observations_of(tmp_path / "a.journal", defaults=default))
    loop = AskTell(space=WIDER, initial=observations_of(tmp_path / "a.journal", defaults={"c": "x", "d": 2.0}))
    assert {point["d"] for point in loop.history.parameters} == {2}


UNIT, TWO = [(0.0, 1.0)] * 2, {"objectives": {"a": "max", "b": "min"}}
NAMED, WIDER = {"a": Float(0, 1), "b": Float(0, 1)}, {"a": Float(0, 1), "b": Float(0, 1), "c": Choice("x", "y"), "d": Int(1, 9)}


def of_pair(x):
    return {"a": x[0], "b": x[1]}


@pytest.mark.parametrize(
    ("before", "now", "cannot"),
    [
        ({"bounds": UNIT}, {"bounds": [(0.0, 2.0)] * 2}, None),
        ({"bounds": UNIT}, {"bounds": UNIT, "seed": 3}, None),
        ({"bounds": UNIT}, {"bounds": UNIT, "initial": ([[0.5, 0.5]], [1.0])}, None),
        ({"arms": arms(30)}, {"bounds": UNIT}, None),
        ({"space": NAMED}, {"space": WIDER}, None),
        ({"bounds": UNIT}, {"bounds": [(0.0, 1.0)] * 3}, "expected a run of 3 inputs, got"),
        ({"bounds": UNIT}, {"bounds": [(5.0, 6.0)] * 2}, "expected observations that lie in the domain"),
        ({"bounds": UNIT}, {"space": NAMED}, "whose inputs have no names"),
        ({"space": NAMED}, {"bounds": UNIT}, "which has them; pass space="),
        ({"bounds": UNIT}, {"bounds": UNIT, **TWO}, "has one objective without a name"),
        ({"bounds": UNIT, **TWO}, {"bounds": UNIT}, "has the outcomes a, b"),
    ],
    ids=[
        "bounds",
        "seed",
        "initial",
        "arms",
        "parameters",
        "inputs",
        "elsewhere",
        "names",
        "no-names",
        "outcomes",
        "one-outcome",
    ],
)
def test_advice_to_begin_with_the_results_of_another_run_works(before, now, cannot, tmp_path):
    def run(how, **more):
        several = "objectives" in how
        objective = of_pair if several else (lambda p: p["a"]) if "space" in how else (lambda x: float(x[0]))
        policy = {} if "objectives" in {**before, **now} else {"policy": RandomSearch()}
        return (optimize if several else maximize)(objective, **{"vectorized": False, "budget": 6, **policy, **how, **more})

    path = tmp_path / "a.journal"
    run(before, storage=path)
    with pytest.raises(ValueError, match="pass another storage= for a new run, which") as raised:
        run(now, storage=path, resume=True)
    found = re.search(r"initial=(observations_of\(.*\))$", str(raised.value))
    if cannot is not None:
        assert found is None
        assert "which cannot begin with the results of this one" in str(raised.value)
        with pytest.raises(ValueError, match=cannot):
            run(now, initial=observations_of(path))
        assert cannot in str(raised.value)
        return
    code = found[1].replace("'c': …", "'c': 'x'").replace("'d': …", "'d': 2")
    result = run({**now, "initial": eval(code)})
    assert result.history.rows[0].added
    assert len(result.history.rows[0].values) == 6


def test_advice_of_a_run_that_minimises_works(tmp_path):
    path = tmp_path / "a.journal"
    recorded(path)
    with pytest.raises(ValueError, match="maximises its objective, this call minimises one; .* initial=") as raised:
        minimize(bowl, bounds=UNIT, budget=20, policy=RandomSearch(batch_size=4), storage=path, resume=True)
    code = re.search(r"initial=(observations_of\(.*\))$", str(raised.value))[1]
    assert minimize(bowl, bounds=UNIT, budget=1, policy=RandomSearch(batch_size=4), initial=eval(code)).history.rows[0].added


def test_initial_observations_that_equal_evaluations_are_those_of_the_run(tmp_path):
    """Exact results, counts and flags repeat; only what a run took from another is in two journals."""
    arms = np.arange(3.0)[:, None]
    with AskTell(arms, initial=([0, 0, 0, 1], [1.0, 1.0, 1.0, 0.0]), storage=tmp_path / "a.journal") as loop:
        loop.enqueue([0, 0, 1])
        loop.tell(loop.ask(3), [1.0, 1.0, 0.0])
    assert len(started(AskTell(arms, initial=observations_of(tmp_path / "a.journal"))).values) == 7


def test_a_default_is_for_points_without_a_parameter_that_others_have(tmp_path):
    momentum = Float(0.0, 1.0)
    space = {"kind": Choice("sgd", "adam"), "momentum": Float(0.0, 1.0, when={"kind": "sgd"})}
    with AskTell(space=space, storage=tmp_path / "a.journal") as loop:
        loop.add([{"kind": "sgd", "momentum": 0.5}, {"kind": "adam"}, {"kind": "adam"}], [1.0, 2.0, 3.0])
    initial = observations_of(tmp_path / "a.journal", defaults={"momentum": 0.9})
    found = AskTell(space={**space, "momentum": momentum}, initial=initial).history.parameters
    assert [point["momentum"] for point in found] == pytest.approx([0.5, 0.9, 0.9])


@pytest.mark.parametrize(("before", "now"), [(torch.float64, torch.float32), (torch.float32, torch.float64)])
def test_observations_at_the_ends_of_a_range_are_taken_in_another_dtype(before, now, tmp_path):
    bounds = torch.tensor([[0.1, 0.1], [0.7, 0.7]], dtype=torch.float64)
    points = torch.tensor([[0.7, 0.7], [0.1, 0.7], [0.3, 0.3]], dtype=torch.float64)
    with AskTell(bounds=bounds.to(before), storage=tmp_path / "box.journal") as loop:
        loop.add(points.to(before), [3.0, 2.0, 1.0])
        loop.add(torch.tensor([[0.7 + 3e-7, 0.3]], dtype=before), [4.0])  # within what a box takes for its end
    again = AskTell(bounds=bounds.to(now), initial=observations_of(tmp_path / "box.journal"))
    assert sorted(started(again).values) == [1.0, 2.0, 3.0, 4.0]
    with AskTell(points.to(before), storage=tmp_path / "arms.journal") as loop:
        loop.add([2, 0], [3.0, 2.0])
    again = AskTell(points.to(now).flip(0), initial=observations_of(tmp_path / "arms.journal"))
    assert again.history.indices == [0, 2]


@pytest.mark.parametrize("log", [False, True])
def test_what_one_run_took_from_another_counts_once_in_other_ranges(tmp_path, log):
    """In another range the same value is decoded with another last bit."""
    a, b = tmp_path / "a.journal", tmp_path / "b.journal"
    low = 1e-3 if log else 0.0
    policy = RandomSearch(batch_size=4)
    maximize(lambda p: -((p["x"] - 0.3) ** 2), {"x": Float(low, 1.0, log=log)}, budget=12, policy=policy, storage=a)
    wider = {"x": Float(0.7e-3 if log else -0.3, 1.7, log=log), "m": Float(0.0, 1.0)}
    AskTell(space=wider, initial=observations_of(a, defaults={"m": 0}), storage=b).release()
    widest = {"x": Float(0.1e-3 if log else -1.0, 2.0, log=log), "m": Float(0.0, 1.0)}
    loop = AskTell(space=widest, initial=observations_of(a, b, defaults={"m": 0}))
    assert loop.state.pulls == 12


def test_what_one_run_took_from_another_counts_once_in_float32_and_with_fewer_outcomes(tmp_path):
    a, b, c, d = (tmp_path / f"{name}.journal" for name in "abcd")
    policy = RandomSearch(batch_size=4)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    maximize(lambda X: -X.square().sum(dim=-1), bounds=0.9 * bounds, budget=12, policy=policy, storage=a)
    AskTell(bounds=bounds.float(), initial=observations_of(a), storage=b).release()
    assert AskTell(bounds=bounds, initial=observations_of(a, b)).state.pulls == 12
    two = {"objectives": {"y": "max", "z": "min"}}
    optimize(lambda X: {"y": X[:, 0], "z": X[:, 1]}, bounds=bounds, **two, budget=12, storage=c)
    one = {"bounds": bounds, "objectives": {"y": "max"}}
    AskTell(**one, initial=observations_of(c), storage=d).release()
    assert AskTell(**one, initial=observations_of(c, d)).state.pulls == 12


def test_near_points_far_from_zero_are_not_taken_for_one(tmp_path):
    """In float32 all points of this range are one, and flags are equal."""
    bounds, low = [(1.7e9, 1.7e9 + 100.0)], 1.7e9
    with AskTell(bounds=bounds, seed=0, storage=tmp_path / "a.journal") as loop:
        loop.tell(loop.ask(4), [0.0, 0.0, 1.0, 0.0])
    with AskTell(bounds=bounds, seed=1, storage=tmp_path / "b.journal") as loop:
        loop.add([[low + 3.0], [low + 50.0]], [0.0, 1.0])
    initial = observations_of(tmp_path / "a.journal", tmp_path / "b.journal")
    assert AskTell(bounds=bounds, initial=initial).state.pulls == 6
