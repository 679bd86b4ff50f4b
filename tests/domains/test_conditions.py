"""Parameters that are there only with some values of others."""

import json
import math
import pickle

import pytest
import torch

from sparse_bo import AskTell, Choice, Float, Int, Space, maximize
from sparse_bo.domains import SpaceArms, SpaceBox, space_domain
from sparse_bo.policies import RandomSearch, TrustRegion

LEARNER = {
    "width": Int(8, 64, log=True, when={"layers": 3}),  # before the one that it depends on
    "kind": Choice("tree", "linear", "net"),
    "depth": Int(1, 12, when={"kind": "tree"}),
    "penalty": Float(1e-5, 1, log=True, when={"kind": ["linear", "net"]}),
    "layers": Int(1, 3, when={"kind": "net"}),
    "act": Choice("relu", "tanh", "gelu", when={"kind": "net", "layers": (2, 3)}),
    "rate": Float(0, 1),
}
SMALL = {
    "kind": Choice("tree", "linear"),
    "depth": Int(1, 3, when={"kind": "tree"}),
    "leaf": Choice(True, False, when={"depth": 3}),
    "m": Int(0, 1),
}


def names_there(point):
    """Return the names that a point of LEARNER has, by the rules written out."""
    kind = point["kind"]
    names = {"kind", "rate"} | {"tree": {"depth"}, "linear": {"penalty"}, "net": {"penalty", "layers"}}[kind]
    if kind == "net":
        names |= {1: set(), 2: {"act"}, 3: {"act", "width"}}[point["layers"]]
    return names


def objective(point):
    assert set(point) == names_there(point)
    if point["kind"] == "tree":
        return -abs(point["depth"] - 7) / 10 - (point["rate"] - 0.3) ** 2
    return -1.0 - point["penalty"] - point.get("layers", 0) / 10 - point.get("width", 0) / 1000


def test_a_dictionary_has_the_parameters_whose_conditions_hold(generator):
    space = Space(LEARNER)
    U = torch.rand(500, space.dims, generator=generator, dtype=torch.float64)
    points = space.decode(U)
    assert all(set(point) == names_there(point) for point in points)
    assert {point["kind"] for point in points} == {"tree", "linear", "net"}
    assert max(map(len, points)) == 6
    assert [list(point) for point in points[:3]] == [[name for name in LEARNER if name in point] for point in points[:3]]
    snapped = space.snap(U)
    torch.testing.assert_close(space.encode(points), snapped, atol=1e-12, rtol=0)
    assert torch.equal(space.snap(snapped), snapped)
    assert space.decode(snapped) == points


def test_points_that_differ_in_what_is_not_there_are_one_point(generator):
    space = Space(LEARNER)
    rows = torch.rand(200, space.dims, generator=generator, dtype=torch.float64)
    tree = {"kind": "tree", "depth": 4, "rate": 0.25}
    at = space.encode([tree])
    columns = {"width": 0, "kind": slice(1, 4), "depth": 4, "rate": -1}
    for name in ("kind", "depth", "rate"):
        rows[:, columns[name]] = at[:, columns[name]]
    assert torch.equal(space.snap(rows), at.expand(200, -1))
    assert space.decode(rows) == [tree] * 200
    below, above = space.neighbours(at)
    assert (below[0, 0], above[0, 0]) == (0.0, 1.0)  # the width is not there: with another kind it may be anything
    assert below[0, 4] < at[0, 4] < above[0, 4]


def test_combinations_are_those_that_can_be_told_apart():
    space = Space(SMALL)
    trees = [{"kind": "tree", "depth": depth, "m": m} for m in (0, 1) for depth in (1, 2)]
    deep = [{"kind": "tree", "depth": 3, "leaf": leaf, "m": m} for m in (0, 1) for leaf in (True, False)]
    expected = [*trees, *deep, {"kind": "linear", "m": 0}, {"kind": "linear", "m": 1}]
    found = space.decode(space.combinations())
    assert sorted(map(json.dumps, found)) == sorted(map(json.dumps, expected))
    assert space.count == 10
    assert isinstance(space_domain(Space(SMALL, most_arms=10)), SpaceArms)
    assert isinstance(space_domain(Space(SMALL, most_arms=9)), SpaceBox)
    many = Space({"switch": Choice(*range(30)), **{f"x{i}": Int(1, 20, when={"switch": i}) for i in range(30)}})
    assert many.count == 600  # of 30 * 20^30 without conditions
    assert Space(LEARNER).count is None


def test_arms_are_found_by_their_dictionaries_and_feasible_gets_what_is_there():
    seen = []

    def feasible(point):
        seen.append(dict(point))
        return point.get("depth") != 2

    domain = space_domain(SMALL, feasible)
    assert len(seen) == 10
    assert all(("depth" in point) == (point["kind"] == "tree") for point in seen)
    points = domain.named(torch.arange(domain.count))
    assert len(points) == 8
    assert domain.check("points", points[::-1]).tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    with pytest.raises(ValueError, match="that are feasible, got .*'depth': 2"):
        domain.check("points", [{"kind": "tree", "depth": 2, "m": 0}])


TREE = {"kind": "tree", "depth": 4, "rate": 0.25}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: Space({"a": Int(0, 1, when={"b": 1})}),
            ValueError,
            "when= of 'a' to name one of a, got 'b'; correct the name",
        ),
        (lambda: Space({"a": Int(0, 1, when={"a": 1})}), ValueError, "without a circle, got a -> a; drop when="),
        (
            lambda: Space({"a": Int(0, 1, when={"b": 1}), "b": Int(0, 1, when={"c": 1}), "c": Int(0, 1, when={"a": 1})}),
            ValueError,
            "without a circle, got a -> b -> c -> a",
        ),
        (
            lambda: Space({"a": Int(0, 1, when={"b": [1, 5]}), "b": Int(0, 1)}),
            ValueError,
            r"'a' to list values that 'b' can take, got \[1, 5\] of Int.*; correct when=, or widen 'b'",
        ),
        (lambda: Space({"a": Int(0, 1, when={"b": "x"}), "b": Choice("y", "z")}), ValueError, "values that 'b' can take"),
        (lambda: Space({"a": Int(0, 1, when={"b": bool}), "b": Int(1, 3)}), ValueError, r"list the values, as \[2, 3\]"),
        (lambda: Space({"a": Int(0, 1, when={"b": 1}), "b": Choice(True, False)}), ValueError, "values that 'b' can take"),
        (
            lambda: Space({"a": Int(0, 1, when={"b": 0.5}), "b": Float(0, 1)}),
            ValueError,
            "can be counted, got 'b', a continuum",
        ),
        (
            lambda: Space({"a": Int(0, 1, when={"b": 1, "c": 0}), "b": Int(0, 1, when={"c": 1}), "c": Int(0, 1)}),
            ValueError,
            "conditions that can hold, got 'a' that needs values of 'c' which exclude each other",
        ),
        (lambda: Int(0, 1, when="kind"), TypeError, "when= like .*, got 'kind'; write the name"),
        (lambda: Float(0, 1, when={}), TypeError, "when= like .*, got {}"),
        (lambda: Choice(1, 2, when={"a": []}), ValueError, "at least one value of 'a', got none; add one, or drop when="),
        (lambda: Space(LEARNER).encode([TREE | {"penalty": 0.1}]), ValueError, "only where 'kind' is 'linear' or 'net', got a"),
        (lambda: Space(LEARNER).encode([TREE | {"penalty": 0.0}]), ValueError, "got a 'penalty' in row 0; take it out"),
        (lambda: Space(LEARNER).encode([TREE, TREE | {"width": 0}]), ValueError, "got a 'width' in row 1; take it out"),
        (lambda: Space(LEARNER).encode([TREE, TREE | {"depth": 99}]), ValueError, "row 1 of the points: expected depth in "),
        (lambda: Space(LEARNER).encode([TREE | {"depth": None}]), TypeError, "depth"),
        (lambda: Space(LEARNER).encode([TREE, {"kind": "tree", "rate": 0.5}]), ValueError, "no 'depth' in row 1; add it"),
        (lambda: Space(LEARNER).encode([TREE | {"act": "relu"}]), ValueError, "'kind' is 'net' and 'layers' is 2 or 3, got"),
        (
            lambda: AskTell(space=LEARNER, initial=([TREE | {"width": 9}], [1.0])),
            ValueError,
            "'width' only where 'layers' is 3",
        ),
        (
            lambda: Space.of({"parameters": {"a": {"type": "int", "low": 0, "high": 1, "when": 3}}}),
            TypeError,
            "parameter 'a': expected when= like",
        ),
    ],
)
def test_conditions_and_points_that_do_not_fit_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("gap", [None, math.nan], ids=str)
def test_a_parameter_that_is_not_there_may_be_none_or_nan(gap):
    space = Space({"kind": Choice("tree", "net"), "act": Choice(None, "relu", when={"kind": "net"})})
    points = [{"kind": "tree", "act": gap}, {"kind": "net", "act": None}]
    assert space.decode(space.encode(points)) == [{"kind": "tree"}, points[1]]


def test_conditions_hold_of_the_values_that_are_encoded_alike():
    """0.1 * 3 is 0.30000000000000004; JSON and TOML write tuples as lists; ``True`` is no number."""
    space = Space(
        {
            "f": Float(0, 1, step=0.1),
            "g": Float(0, 1, when={"f": [0.1 * 3, 0.6]}),
            "layers": Choice((64, 64), (128,)),
            "h": Int(0, 3, when={"layers": [(64, 64)]}),
            "flag": Choice(True, False),
            "m": Int(0, 3, when={"flag": True}),
        }
    )
    point = {"f": 0.3, "g": 0.5, "layers": [64, 64], "h": 1, "flag": False}
    assert space.decode(space.encode([point])) == [point | {"layers": (64, 64)}]
    assert space.kept(point | {"m": 2}) == point
    for name in ("g", "h"):
        without = {other: value for other, value in point.items() if other != name}
        assert space.lacks(without)
        assert space.completed(without, point, generator=torch.Generator()) == point
    assert space.kept(point | {"flag": 1, "m": 2}) == point | {"flag": 1}
    assert space.changed(point, "f", 0.6, {}) == point | {"f": 0.6}
    assert space.changed(point, "f", 0.4, {}) == {name: value for name, value in point.items() if name != "g"} | {"f": 0.4}


def test_a_space_with_conditions_is_read_and_written(tmp_path):
    text = """
kind = {type = "choice", values = ["tree", "net"]}
depth = {type = "int", low = 1, high = 12, when = {kind = "tree"}}
layers = {type = "int", low = 1, high = 3, when = {kind = ["net"]}}
"""
    (tmp_path / "space.toml").write_text(text)
    made = Space(
        {"kind": Choice("tree", "net"), "depth": Int(1, 12, when={"kind": "tree"}), "layers": Int(1, 3, when={"kind": "net"})}
    )
    for space in (
        Space.load(tmp_path / "space.toml"),
        Space.of(json.loads(json.dumps(made.describe()))),
        pickle.loads(pickle.dumps(made)),
    ):
        assert space.parameters == made.parameters
        assert str(space) == str(made)
    assert "when" not in made.describe()["parameters"]["kind"]
    assert str(made).startswith("kind: Choice('tree', 'net'), depth: Int(low=1, high=12, when={'kind': ('tree',)})")


@pytest.mark.parametrize("policy", [None, RandomSearch()], ids=["default", "random"])
def test_a_run_evaluates_what_is_there_and_a_resume_goes_on(policy, tmp_path):
    given = {"policy": policy, "seed": 1, "initial": ([TREE], [objective(TREE)])}

    def rounds(loop, n):
        for _ in range(n):
            batch = loop.ask(4)
            loop.tell(batch.tickets, [objective(point) for point in batch.parameters])

    whole = AskTell(space=LEARNER, **given)
    rounds(whole, 3)
    with AskTell(space=LEARNER, **given, storage=tmp_path / "run.journal") as first:
        rounds(first, 2)
    with AskTell.resume(tmp_path / "run.journal") as again:
        rounds(again, 1)
    history = again.history.parameters
    assert history == whole.history.parameters
    assert history[0] == TREE
    assert all(set(point) == names_there(point) for point in history)
    result = again.result()
    assert set(result.best_observed_parameters) == names_there(result.best_observed_parameters)
    page = result.report()
    assert "depth" in page
    assert "when" in page


@pytest.mark.slow
def test_the_best_branch_is_found():
    result = maximize(objective, space=LEARNER, budget=28, seed=0, policy=TrustRegion())
    assert result.best_observed_parameters["kind"] == "tree"
    assert result.best_observed_mean > -0.15


def test_a_box_of_countable_values_evaluates_nothing_twice():
    space = Space(SMALL | {"n": Int(0, 2)}, most_arms=0)
    loop, seen = AskTell(space=space, policy=RandomSearch(), seed=0), []
    for _ in range(30):
        batch = loop.ask(1)
        seen.append(json.dumps(batch.parameters[0]))
        loop.tell(batch.tickets, [0.0])
    assert len(set(seen)) == 30  # all that can be told apart
