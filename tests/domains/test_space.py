"""Spaces of named parameters: encoding and back, arms or box, feasibility, runs, journals, and what is refused."""

import itertools
import json
import math
import pickle
import time
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_bo import AskTell, Choice, Float, Int, Space, Workers, maximize
from sparse_bo.domains import SpaceArms, SpaceBox, space_domain
from sparse_bo.policies import BBKB, RandomSearch, TrustRegion

MIXED = {"lr": Float(1e-5, 1, log=True), "depth": Int(1, 12), "kind": Choice("a", "b", "c"), "on": Choice(False, True)}
SMALL = {"n": Int(0, 4), "kind": Choice("x", "y", "z"), "rate": Float(0, 1, step=0.25)}

OK = {"lr": 0.01, "depth": 3, "kind": "a", "on": True}


def score(point):
    assert set(point) == set(MIXED)
    base = -((math.log10(point["lr"]) + 2.5) ** 2) - 0.05 * (point["depth"] - 7) ** 2
    return base + {"a": 0.0, "b": 0.5, "c": -0.5}[point["kind"]] + 0.1 * point["on"]


def few(point):
    return -abs(point["n"] - 3) + {"x": 0, "y": 2, "z": 1}[point["kind"]] - point["rate"]


def uneven(point):
    return point["depth"] % 2 == 1 and point["lr"] < 0.1


PARAMETERS = st.one_of(
    st.builds(Float, st.floats(-1e6, 0), st.floats(1, 1e6)),
    st.builds(lambda low, factor: Float(low, low * factor, log=True), st.floats(1e-9, 1e3), st.floats(1.5, 1e9)),
    st.builds(lambda low, n, step: Float(low, low + n * step, step=step), st.floats(-9, 9), st.integers(1, 99), st.just(0.1)),
    st.builds(lambda low, n: Int(low, low + n), st.integers(-(10**9), 10**9), st.integers(0, 10**6)),
    st.builds(lambda low, n: Int(low, low + n, log=True), st.integers(1, 10**4), st.integers(1, 10**8)),
    st.builds(lambda n, ordered: Choice(*map(str, range(n)), ordered=ordered), st.integers(1, 9), st.booleans()),
)


@given(st.lists(PARAMETERS, min_size=1, max_size=4), st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_what_is_decoded_is_encoded_again_and_stays_where_it_is(parameters, seed):
    space = Space({"fixed": Int(0, 1), **{f"p{i}": parameter for i, parameter in enumerate(parameters)}})
    U = torch.rand(8, space.dims, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    U[0], U[1] = 0.0, 1.0
    snapped = space.snap(U)
    points = space.decode(U)
    assert space.decode(snapped) == points
    assert torch.equal(space.snap(snapped), snapped)
    assert ((snapped >= 0.0) & (snapped <= 1.0)).all()
    again = space.encode(points)
    torch.testing.assert_close(again, snapped, atol=1e-9, rtol=0)
    assert space.decode(space.snap(again)) == space.decode(again)
    assert Space.of(json.loads(json.dumps(space.describe()))).parameters == space.parameters
    assert pickle.loads(pickle.dumps(space)).parameters == space.parameters


FLOATS = {
    "t": Float(20, 100),
    "lr": Float(1e-5, 1, log=True),
    "far": Float(1e9, 1e9 + 1),
    "drifts": Float(5.422506233866166e-06, 9.113570272205976e-05),
    "n": Int(0, 9),
    "kind": Choice("a", "b"),
    "w": Float(0.999, 1, log=True, when={"kind": "a"}),
}


@pytest.mark.parametrize("feasible", [None, lambda point: point["n"] % 2 == 0], ids=["anywhere", "even"])
def test_a_pick_is_the_point_that_its_dictionary_tells(feasible, generator):
    """Replicates are matched by their bytes, and round-off of a continuous value made another point of it."""
    domain = space_domain(FLOATS, feasible)
    U = torch.rand(2_000 if feasible is None else 200, domain.dims, generator=generator, dtype=torch.float64)
    made = domain.mended(U, seen=U[:0], repeats=False, generator=generator)
    assert torch.equal(domain.check("points", domain.named(made)), made)
    if feasible is None:
        torch.testing.assert_close(made, domain.snap(U), atol=1e-6, rtol=0)
        assert torch.equal(domain.check("points", U), made)
        added = domain.check("points", domain.named(U))  # what is recorded of it is that point, too
        assert torch.equal(domain.check("points", domain.named(added)), added)


@pytest.mark.parametrize("seed", [1, 4, 6])
def test_a_lucky_result_is_averaged_with_its_repeats_told_by_dictionary(seed):
    loop = AskTell(space={"t": Float(20, 100), "lr": Float(1e-5, 1, log=True)}, seed=seed)
    batch = loop.ask(5)
    loop.tell(batch, [0.0, 0.0, 9.0, 0.0, 0.0])
    loop.add([batch.parameters[2]] * 4, [1.0] * 4)
    result = loop.result()
    assert (result.best_observed_mean, result.best_observed_count) == (pytest.approx(2.6), 5)


@pytest.mark.parametrize(
    ("parameter", "values"),
    [
        (Float(1, 100, log=True), [1.0, 2.0, 20.0, 3.3, 99.9]),
        (Float(1e-5, 1.0, log=True), [1e-5, 1e-4, 0.03, 0.7, 1.0]),
        (Float(-3, 7), [-2.9, 0.1, 0.3, 6.7]),
        (Float(0, 1), [0.1, 1 / 3, math.pi / 4]),
        (Float(0, 1, step=0.1), [0.1, 0.3, 0.6, 0.7]),
        (Float(20, 122, step=5), [20.0, 25.0, 120.0]),
        (Float(1e15, 1e15 + 1), [1e15 + 0.125, 1e15 + 0.5]),
        (Float(1e9, 1e9 + 1e-6), [1e9 + 2**-22]),
    ],
)
def test_values_of_few_digits_come_back_as_they_went_in(parameter, values):
    space = Space({"x": parameter})
    assert [point["x"] for point in space.decode(space.encode([{"x": value} for value in values]))] == values


@pytest.mark.parametrize(
    "parameter",
    [
        Int(0, 2**31 - 1),
        Int(0, 10**9),
        Int(1 - 2**53, 0, step=3),
        Int(-(2**52), 2**52 - 1),
        Int(1, 2**46 - 1, log=True),
        Float(0, 2**46 - 1, step=1),
    ],
    ids=str,
)
def test_large_integers_are_decoded_to_themselves(parameter):
    n = parameter.count
    rows = [*range(200), *range(n - 200, n), *(n * k // 1_000 for k in range(1_000))]
    values = [parameter.value_of(row) for row in rows]
    assert parameter.decode(parameter.encode(values, "n")) == values


def test_the_ends_of_steps_are_taken_within_a_thousandth_of_a_step():
    loop = AskTell(space={"x": Float(0, 0.3, step=0.1), "z": Float(0, 1)})
    loop.add([{"x": float(value), "z": 0.5} for value in np.arange(0, 0.31, 0.1)], [0.0, 1.0, 2.0, 3.0])
    loop.add([{"x": -1e-17, "z": 0.5}, {"x": -0.0, "z": 0.5}], [4.0, 5.0])
    assert [point["x"] for point in loop.history.parameters] == [0.0, 0.1, 0.2, 0.3, 0.0, 0.0]
    assert Counter(np.array(point).tobytes() for point in loop.history.points).most_common(1)[0][1] == 3
    for wrong in (0.3002, -0.0002, math.nan):
        with pytest.raises(ValueError, match="expected x in|finite x"):
            loop.add([{"x": wrong, "z": 0.5}], [0.0])


def test_a_large_integer_is_recorded_as_it_was_added():
    loop = AskTell(space={"seed": Int(0, 2**31 - 1), "x": Float(0, 1)})
    loop.add([{"seed": 2147483577, "x": 0.5}], [1.0])
    assert loop.history.parameters == [{"seed": 2147483577, "x": 0.5}]


@pytest.mark.parametrize(
    "parameter", [Int(3, 9), Int(0, 1), Int(0, 20, step=5), Float(0, 1, step=0.1), Choice(*"abcd", ordered=True)]
)
def test_values_are_equally_likely_and_all_there(parameter):
    u = (torch.arange(2_000, dtype=torch.float64) + 0.5).unsqueeze(-1) / 2_000
    values = parameter.decode(u)
    shares = {value: count / len(values) for value, count in Counter(values).items()}
    assert len(shares) == parameter.count
    assert max(shares.values()) - min(shares.values()) < 2e-2
    assert sorted(shares) == list(dict.fromkeys(values))


def test_combinations_are_numbered_as_itertools_has_them():
    space = Space(SMALL)
    points = space.decode(space.combinations())
    assert points[:3] == [{"n": 0, "kind": "x", "rate": rate} for rate in (0.0, 0.25, 0.5)]
    assert len({tuple(point.values()) for point in points}) == space.count == 75
    assert points[-1] == {"n": 4, "kind": "z", "rate": 1.0}
    uneven = Space({"n": Int(0, 1), "m": Int(0, 2)})
    assert uneven.decode(uneven.combinations()) == [{"n": n, "m": m} for n, m in itertools.product(range(2), range(3))]


def test_few_combinations_become_arms_and_many_a_box():
    assert isinstance(space_domain(SMALL), SpaceArms)
    assert isinstance(space_domain(MIXED), SpaceBox)
    assert isinstance(space_domain(Space(SMALL, most_arms=75)), SpaceArms)
    assert isinstance(space_domain(Space(SMALL, most_arms=74)), SpaceBox)
    assert space_domain(MIXED).dims == 1 + 1 + 3 + 1


@pytest.mark.slow
def test_a_mixed_space_is_searched_with_dictionaries():
    result = maximize(score, space=MIXED, budget=24)
    assert result.best_parameters["kind"] == "b"
    assert score(result.best_parameters) > 0.4
    asked = result.history.parameters
    assert len(asked) == 24
    assert all(type(point["depth"]) is int and type(point["on"]) is bool and type(point["lr"]) is float for point in asked)
    assert [score(point) for point in asked] == [value for row in result.history.rows for value in row.values]
    assert result.best_observed_parameters in asked


def test_arms_of_a_space_and_only_the_feasible():
    result = maximize(few, space=SMALL, budget=40, feasible=lambda point: point["kind"] != "y")
    assert result.best_parameters == {"n": 3, "kind": "z", "rate": 0.0}
    asked = result.history.parameters
    assert [few(point) for point in asked] == [value for row in result.history.rows for value in row.values]
    assert "y" not in {point["kind"] for point in asked}


@pytest.mark.parametrize("policy", [None, BBKB(), RandomSearch(batch_size=7)], ids=["default", "bbkb", "random"])
def test_a_box_evaluates_feasible_points_alone(policy):
    result = maximize(score, space=MIXED, budget=10, feasible=uneven, policy=policy)
    assert len(result.history.parameters) == 10
    assert all(map(uneven, result.history.parameters))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("q", [1, 4])
@pytest.mark.parametrize(
    ("space", "best"),
    [
        ({"a": Int(0, 150), "b": Int(0, 150)}, {"a": 13, "b": 68}),
        ({"a": Int(0, 100), "b": Int(0, 100), "c": Int(0, 100)}, {"a": 20, "b": 71, "c": 66}),
        ({"a": Int(0, 400, step=4), "b": Float(-3, 3, step=0.01)}, {"a": 120, "b": 1.15}),
        ({"a": Int(1, 30_000, log=True)}, {"a": 150}),
        ({"a": Int(0, 200), "b": Float(0, 200)}, {"a": 0, "b": 0}),  # at the corner, where searches end
        (Space({f"x{i}": Int(0, 9) for i in range(4)}, most_arms=0), {f"x{i}": 3 for i in range(4)}),
    ],
    ids=["two", "three", "steps", "log", "continuum", "few"],
)
def test_integers_and_steps_are_found_and_one_point_alone_is_evaluated_twice(space, best, q, seed):
    """The repeat shows that there is no noise. A policy that waits for one which was moved crawls by a step or three."""
    loop = AskTell(space=space, policy=TrustRegion(), seed=seed)
    while loop.asked < 24:
        batch = loop.ask(q)
        loop.tell(batch.tickets, [-sum(float(p[name] - value) ** 2 for name, value in best.items()) for p in batch.parameters])
    assert max(value for row in loop.history.rows for value in row.values) >= -4.0
    made = Counter(tuple(point.values()) for point in loop.history.parameters)
    assert sorted(made.values())[-2:] == [1, 2]


@pytest.mark.slow
def test_a_search_of_integers_where_every_evaluation_counts_stays_at_the_maximum():
    space = Space({"a": Int(0, 200), "b": Int(0, 200)}, most_arms=0)
    policy = TrustRegion(goal="cumulative")
    result = maximize(lambda p: -((p["a"] - 13.0) ** 2) - (p["b"] - 68.0) ** 2, space=space, policy=policy, budget=32)
    values = [value for row in result.history.rows for value in row.values]
    assert max(values) == 0.0
    assert sum(value < -50.0 for value in values[-12:]) <= 1  # one pick may look elsewhere once more


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*evaluations failed:sparse_bo.errors.FailureWarning")
def test_without_a_continuum_what_fails_is_tried_ever_more_rarely():
    """A failed point is left alone for 4 evaluations, then for 32: at most two tries of it in 24."""
    space = Space({"a": Int(0, 8), "b": Int(0, 4)}, most_arms=0)
    made = Counter()

    def objective(point):
        made[tuple(point.values())] += 1
        return math.nan if point["a"] % 3 == 0 else -float((point["a"] - 3) ** 2 + (point["b"] - 3) ** 2)

    maximize(objective, space=space, budget=24)
    assert made.total() == 24
    assert max(made.values()) <= 2
    assert len(made) >= 18


def test_where_everything_has_been_evaluated_repeats_are_allowed():
    space = Space({"a": Int(0, 1), "b": Choice("x", "y")}, most_arms=0)
    result = maximize(lambda point: point["a"], space=space, budget=9, policy=RandomSearch(batch_size=3))
    assert len(result.history.parameters) == 9
    assert len({tuple(point.values()) for point in result.history.parameters}) == 4


WIDE = Space(
    {
        "n": Int(0, 4),
        "kind": Choice("p", "q", "r"),
        "log": Int(1, 9, log=True),
        "rate": Float(0, 1, step=0.25),
        "size": Choice(1, 2, ordered=True),
        "one": Int(3, 3),
    }
)


def test_combinations_have_their_numbers_back():
    every = space_domain(WIDE)
    numbers = torch.arange(WIDE.count)
    assert torch.equal(every.check("points", every.named(numbers)), numbers)
    some = space_domain(WIDE, lambda point: point["n"] != 2)
    assert some.check("points", some.named(torch.tensor([3, 0, 700]))).tolist() == [3, 0, 700]


def test_neighbours_are_the_next_values_and_of_a_category_all():
    point = {"n": 4, "kind": "q", "log": 2, "rate": 0.5, "size": 1, "one": 3}
    below, above = WIDE.neighbours(WIDE.encode([point]))
    lower = {"n": 3, "log": 1, "rate": 0.25, "size": 1}
    upper = {"n": 4, "log": 3, "rate": 0.75, "size": 2}
    kinds = slice(1, 4)
    for found, values, corner in ((below, lower, 0.0), (above, upper, 1.0)):
        expected = WIDE.encode([{**values, "kind": "q"}])
        expected[:, kinds] = corner
        assert torch.equal(found, expected)
    continuum = Space({"x": Float(0, 1), "n": Int(0, 4)})
    U = continuum.encode([{"x": 0.3, "n": 2}])
    assert [found.tolist() for found in continuum.neighbours(U)] == [[[0.3, 0.25]], [[0.3, 0.75]]]


@pytest.mark.slow
def test_a_category_is_left_for_a_better_one_with_many_beside_it():
    """A region around a category used to hold no other, and one column of a category was changed alone."""
    space = {
        **{f"x{i}": Float(-1, 1) for i in range(4)},
        "k": Choice(*"abcde"),
        "l": Choice(*"wxyz"),
    }

    def objective(point):
        away = sum((point[f"x{i}"] - 0.1 * i) ** 2 for i in range(4))
        return -away - 0.3 * "cabde".index(point["k"]) - 0.5 * (point["l"] != "y")

    result = maximize(objective, space=space, budget=32, seed=1)
    assert (result.best_parameters["k"], result.best_parameters["l"]) == ("c", "y")
    assert result.best_observed_mean > -0.05


def test_the_time_of_an_ask_does_not_grow_with_the_run_where_values_can_be_counted():
    space = Space({f"a{i}": Int(0, 9) for i in range(6)})
    domain, generator = space_domain(space), torch.Generator().manual_seed(0)
    everything = space.snap(torch.rand(100_000, 6, generator=generator, dtype=torch.float64))

    def seconds_of_an_ask(n: int) -> float:
        """Return the least of twenty: other processes share the machine."""
        domain.mended(everything[:1], seen=everything[:n], repeats=False, generator=generator)
        seconds = []
        for row in range(1, 21):
            seen = torch.cat([everything[: n + row], everything[-1:]])  # one more result, another one out
            start = time.process_time()
            made = domain.mended(everything[row : row + 1], seen=seen, repeats=False, generator=generator)
            seconds.append(time.process_time() - start)
            assert not bool((seen == made).all(dim=-1).any())
        return min(seconds)

    few = seconds_of_an_ask(100)
    assert seconds_of_an_ask(90_000) < 10.0 * few + 1e-3  # a set of them anew: 0.1 s


def test_where_all_feasible_points_are_evaluated_the_others_are_asked_for_once():
    """Every pick searches the whole box for another one: 50,000 calls of the feasibility function each time."""
    calls = 0

    def feasible(point):
        nonlocal calls
        calls += 1
        return point["a"] == point["b"] < 60

    space = Space({"a": Int(0, 199), "b": Int(0, 199)})
    every = space.encode([{"a": k, "b": k} for k in range(60)])
    domain = space_domain(space, feasible)
    made = []
    for seed in range(5):
        before, pick = calls, every[seed : seed + 1] + 1e-9
        generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
        made.append(domain.mended(pick, seen=every, repeats=False, generator=generators[0]))
        spent = calls - before
        if seed in (0, 4):  # a pick does not depend on the searches before
            other = space_domain(space, feasible).mended(pick, seen=every, repeats=False, generator=generators[1])
            assert torch.equal(other, made[-1])
            assert torch.equal(generators[0].get_state(), generators[1].get_state())
    assert torch.equal(torch.cat(made), every[:5])
    assert spent < 3_000
    assert torch.equal(domain.mended(every[7:8], seen=every[8:], repeats=False, generator=generators[0]), every[7:8])
    found = domain.mended(every[8:9], seen=every[8:], repeats=False, generator=generators[0])
    assert found[0].tolist() in every[:8].tolist()


def test_a_repeat_is_known_whatever_was_seen_in_the_call_before(generator):
    """Of rows that come, go and change between the calls, as when a run goes back, the present ones alone count."""
    space = Space({"a": Int(0, 9), "b": Int(0, 9), "c": Choice(*range(10)), "d": Int(0, 99)})
    domain = space_domain(space)
    every = space.snap(torch.rand(60, space.dims, generator=generator, dtype=torch.float64))
    for call in range(40):
        start, stop = sorted(torch.randint(0, 61, (2,), generator=generator).tolist())
        seen = torch.cat([every[: start // 2], every[start:stop]])
        picks = every[torch.randint(0, 60, (3,), generator=generator)]
        made = domain.mended(picks, seen=seen, repeats=False, generator=generator)
        for row, (pick, point) in enumerate(zip(picks, made, strict=True)):
            before = torch.cat([seen, made[:row]])
            repeated = bool((before == pick).all(dim=-1).any())
            assert torch.equal(pick, point) != repeated, call
            assert not bool((before == point).all(dim=-1).any())


@pytest.mark.parametrize(("space", "objective", "feasible"), [(MIXED, score, uneven), (SMALL, few, lambda p: p["n"] > 0)])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(space, objective, feasible, tmp_path):
    def told(loop, batches):
        for _ in range(batches):
            batch = loop.ask(4)
            loop.tell(batch.tickets, [objective(point) for point in batch.parameters])

    whole = AskTell(space=space, feasible=feasible, seed=3)
    told(whole, 4)
    asked = whole.history.parameters
    with AskTell(space=space, feasible=feasible, seed=3, storage=tmp_path / "run.journal") as first:
        told(first, 3)
    on_arms = isinstance(whole._domain, SpaceArms)
    with AskTell.resume(tmp_path / "run.journal", feasible=None if on_arms else feasible) as again:
        told(again, 1)
        assert again.history.parameters == asked
    if not on_arms:
        with pytest.raises(ValueError, match="a journal cannot store; pass feasible="):
            AskTell.resume(tmp_path / "run.journal")
    other = {**space, "more": Float(0, 1)}
    with pytest.raises(ValueError, match=r"another space than this call \(more: none, now Float\(low=0.0, high=1.0\)\);"):
        maximize(objective, space=other, feasible=feasible, seed=3, budget=30, storage=tmp_path / "run.journal", resume=True)
    result = maximize(
        objective, space=space, feasible=feasible, seed=3, budget=17, storage=tmp_path / "run.journal", resume=True
    )
    assert result.history.parameters[: len(asked)] == asked


def test_a_resumed_run_takes_its_space_from_the_journal_and_names_what_differs(tmp_path):
    run = {"policy": RandomSearch(), "storage": tmp_path / "run.journal"}
    maximize(few, space=SMALL, feasible=lambda point: point["n"] > 1, budget=2, **run)
    for feasible in (None, lambda point: point["n"] > 0):
        with pytest.raises(ValueError, match="had another feasible= over these parameters; pass another storage="):
            maximize(few, space=SMALL, feasible=feasible, budget=4, resume=True, **run)
    result = maximize(few, budget=4, resume=True, **run)
    assert len(result.history.parameters) == 4
    with pytest.raises(ValueError, match="this call asks for another one"):
        maximize(few, bounds=torch.tensor([[0.0], [1.0]], dtype=torch.float64), budget=4, resume=True, **run)


def test_numbers_of_numpy_are_pythons_own_in_a_space(tmp_path):
    space = {
        "lr": Float(np.float32(0.1), Fraction(7, 10), log=np.bool_(True)),
        "rate": Float(np.float32(0), np.float64(1), step=np.float32(0.25)),
        "depth": Int(np.int64(1), np.int32(9), step=np.int64(2)),
        "kind": Choice(*np.array(["a", "b"])),
        "width": Choice(*np.arange(3), ordered=np.bool_(True)),
    }
    types = []

    def objective(point):
        types.append([type(value) for value in point.values()])
        return point["rate"]

    first = ([{"lr": 0.5, "rate": 0.25, "depth": np.int64(3), "kind": "a", "width": np.int64(2)}], [0.0])
    run = {"space": space, "initial": first, "policy": RandomSearch(batch_size=2), "storage": tmp_path / "run.journal"}
    maximize(objective, **run, budget=4)
    result = maximize(objective, **run, budget=6, resume=True)
    assert types == [[float, float, int, str, int]] * 6
    asked = torch.tensor(result.history.points, dtype=torch.float64, device="cpu")
    torch.testing.assert_close(Space(space).encode(result.history.parameters), asked, rtol=0, atol=1e-14)


def test_initial_observations_are_dictionaries():
    points = [{"lr": 0.01, "depth": 3, "kind": "b", "on": True}, {"lr": 0.1, "depth": 12, "kind": "a", "on": False}]
    loop = AskTell(space=MIXED, initial=(points, [1.0, 2.0]))
    assert loop.result().best_observed_parameters == pytest.approx(points[1])
    loop = AskTell(space=SMALL, initial=([{"n": 2, "kind": "y", "rate": 0.5}], [1.0]))
    assert loop.result().best_parameters == {"n": 2, "kind": "y", "rate": 0.5}
    with pytest.raises(ValueError, match="that are feasible"):
        AskTell(space=SMALL, initial=([{"n": 2, "kind": "y", "rate": 0.5}], [1.0]), feasible=lambda point: point["n"] > 2)


def test_workers_get_dictionaries():
    here = maximize(few, space=SMALL, budget=10, policy=RandomSearch(batch_size=5))
    workers = Workers(executor="threads", count=2, asynchronous=False)
    there = maximize(few, space=SMALL, budget=10, policy=RandomSearch(batch_size=5), executor=workers)
    assert there.history.parameters == here.history.parameters
    together = maximize(
        lambda points: [few(point) for point in points],
        space=SMALL,
        budget=10,
        policy=RandomSearch(batch_size=5),
        vectorized=True,
        call_with="parameters",
    )
    assert together.history.parameters == here.history.parameters
    batch = AskTell(space=MIXED).ask(3)
    assert pickle.loads(pickle.dumps(batch)).parameters == batch.parameters
    assert batch.part(slice(1, 2)).parameters == batch.parameters[1:2]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Float(1, 0), ValueError, "exchange them"),
        (lambda: Int(5, 4), ValueError, "exchange them"),
        (lambda: Float(0, 1, log=True), ValueError, "raise low, or drop log=True"),
        (lambda: Int(0, 5, log=True), ValueError, "drop log=True"),
        (lambda: Float(math.nan, 1), ValueError, "finite low"),
        (lambda: Float(-1e308, 1e308), ValueError, "below 1.8e308"),
        (lambda: Float(0, 1, step=0), ValueError, "step > 0"),
        (lambda: Float(0, 10**400), ValueError, "high below 1.8e308"),
        (lambda: Float(1, 2, 0.5), TypeError, "log to be True or False, got float 0.5"),
        (lambda: Int(1, 2, log="no"), TypeError, "log to be True or False, got str 'no'"),
        (lambda: Choice(1, 2, ordered="no"), TypeError, "ordered to be True or False"),
        (lambda: Choice(*np.linspace(0, 1, 2), 1.0), ValueError, "1.0 more than once"),
        (lambda: Float(1, 2, log=True, step=0.5), ValueError, "got both"),
        (lambda: Float("0", 1), TypeError, "low to be a number"),
        (lambda: Int(0.5, 3), TypeError, "low to be an integer"),
        (lambda: Int(0, 2**60), ValueError, "2\\^53"),
        (lambda: Int(-(2**52), 2**52), ValueError, "below 2\\^53, and less than that apart"),
        (lambda: Int(1, 2**46, log=True), ValueError, "below 2\\^46, and less than that apart"),
        (lambda: Float(0, 2**46, step=1), ValueError, "fewer than 2\\^46 steps"),
        (lambda: Choice(), ValueError, "at least one value"),
        (lambda: Choice("a", "b", "a"), ValueError, "'a' more than once"),
        (lambda: Choice(["a", "b"]), TypeError, "write Choice\\(\\*values\\)"),
        (lambda: Choice(len), TypeError, "choose among names"),
        (lambda: Choice((64, 64)), TypeError, "one by one, got a collection \\(64, 64\\); write Choice\\(\\*values\\)"),
        (
            lambda: Space({"a": Choice((64, 64), (128,)), "b": Int(1, 3, when={"a": (64, 64)})}),
            ValueError,
            "write \\[\\(64, 64\\)\\], or widen 'a'",
        ),
        (lambda: Choice((64, len), (1,)), TypeError, "got builtin_function_or_method; choose among names"),
        (lambda: Choice((1.0, float("nan")), (1,)), ValueError, "expected finite choices, got nan"),
        (lambda: Choice((1, 2), [1, 2]), ValueError, "\\(1, 2\\) more than once"),
        (lambda: Choice({1}, {2}), TypeError, "tuples of these, got set"),
        (lambda: Space({}), ValueError, "at least one parameter"),
        (lambda: Space({"a": Int(1, 1)}), ValueError, "constants alone: a"),
        (lambda: Space({"a": (0, 1)}), TypeError, "'a' to be a Float, an Int or a Choice"),
        (lambda: Space({1: Int(0, 1)}), TypeError, "strings"),
        (lambda: Space({" ": Int(0, 1)}), ValueError, "not empty"),
        (lambda: Space([Int(0, 1)]), TypeError, "got list"),
        (lambda: AskTell(space=MIXED, bounds=torch.eye(2).double()), ValueError, "got both bounds= and space="),
        (lambda: AskTell(torch.rand(3, 2).double(), feasible=bool), ValueError, "expected feasible= with space="),
        (lambda: AskTell(space=MIXED, feasible=3), TypeError, "function of a dictionary"),
        (lambda: AskTell(space=SMALL, feasible=lambda point: False), ValueError, "got none; check feasible="),
        (
            lambda: AskTell(space=SMALL, feasible=lambda point: point["m"]),
            ValueError,
            "function failed at .*KeyError",
        ),
        (lambda: AskTell(space=SMALL, feasible=lambda point: None), ValueError, "True or False, got None"),
        (lambda: maximize(few, arms=torch.rand(3, 2), budget=1, call_with="parameters"), ValueError, "with space="),
        (lambda: AskTell(space=MIXED, initial=(OK, [1.0])), TypeError, "to be a list of dictionaries with .*, got dict"),
        (
            lambda: AskTell(space=MIXED, initial=(iter([OK]), [1.0])),
            TypeError,
            "as a list, an array or a tensor, got list_iterator; use list",
        ),
        (lambda: AskTell(space=MIXED, initial=(["lr"], [1.0])), TypeError, "got str in row 0"),
        (
            lambda: AskTell(space=MIXED, feasible=uneven, initial=([OK, OK | {"depth": 4}], [1.0, 2.0])),
            ValueError,
            "initial inputs that are feasible, got .*'depth': 4",
        ),
        (
            lambda: AskTell(space=SMALL, feasible=lambda p: p["n"] == 1, initial=([{"n": 2, "kind": "x", "rate": 0}], [1.0])),
            ValueError,
            "initial inputs that are feasible, got .*'n': 2",
        ),
        (lambda: Space(SMALL).encode([{"n": 1}]), ValueError, "no 'kind' in row 0"),
        (lambda: Space(SMALL).encode([{"n": 1, "kind": "x", "rate": 0.0, "z": 1}]), ValueError, "an unknown 'z' in row 0"),
        (lambda: Space(SMALL).encode([{"n": 1, "kind": "x", "rate": 0.1}]), ValueError, "one of its 5 steps"),
        (lambda: Space(SMALL).encode([{"n": 1, "kind": "w", "rate": 0.0}]), ValueError, "one of 'x', 'y', 'z', got 'w'"),
        (lambda: Space(SMALL).encode([{"n": 9, "kind": "x", "rate": 0.0}]), ValueError, "n in \\[0, 4\\], got 9"),
    ],
)
def test_what_does_not_fit_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_no_feasible_point_of_a_box_is_said_before_the_run():
    with pytest.raises(ValueError, match="got none among 50,000 drawn"):
        AskTell(space=MIXED, feasible=lambda point: False)


FILES = {
    "space.toml": 'lr = {type = "float", low = 1e-5, high = 1.0, log = true}\nkind = {type = "choice", values = ["a", "b"]}\n',
    "space.json": json.dumps({"lr": MIXED["lr"].describe(), "kind": {"type": "choice", "values": ["a", "b"]}}),
}


@pytest.mark.parametrize("name", FILES)
def test_a_space_is_read_from_a_file(name, tmp_path):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    assert Space.load(tmp_path / name).parameters == {"lr": Float(1e-5, 1, log=True), "kind": Choice("a", "b")}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("space.txt", "", "ending in .toml or .json"),
        ("space.toml", "lr = {", "cannot be read as TOML: [^;]*$"),
        ("space.toml", "a = {type='float', low=1, high=2, log = True}", "cannot be read as TOML.* true and false are in lower"),
        (
            "space.json",
            '{"a": {"type": "float", "low": 1, "high": 2, "log": True}}',
            "as JSON.* true and false are in lower case",
        ),
        ("space.toml", "a = {type='int', low=0, high=1}\na = {type='int', low=0, high=2}", "cannot be read as TOML"),
        ("space.json", '{"a": {"type": "int", "low": 0, "high": 1}, "a": 3}', "'a' twice"),
        ("space.json", "[1]", "a table of parameters"),
        ("space.toml", "a = 3", "expected parameter 'a' like"),
        ("space.toml", "a = {type='real', low=0, high=1}", "expected parameter 'a' like .*, got the type 'real'"),
        ("space.toml", "a = {type='int', low=0}", "no 'high'"),
        ("space.toml", "a = {type='int', low=0, high=1, logg=true}", "an unknown 'logg'"),
        ("space.toml", "a = {type='float', low=0, high=1, log=true}", "parameter 'a': expected low > 0"),
        ("space.toml", "", "at least one parameter"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(name, text, message, tmp_path):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        Space.load(tmp_path / name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_in_another_encoding_says_so(name, tmp_path):
    (tmp_path / name).write_text(FILES[name], encoding="utf-16")
    with pytest.raises(ValueError, match="a space in UTF-8, got other bytes in .*; save it as UTF-8"):
        Space.load(tmp_path / name)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([{"x": 0.5, "n_1": 2}], "got an unknown 'n_1' in row 0; did you mean 'n1'[?]"),
        ([{"x": 0.5, "n1": 2, "zzz": 3}], "got an unknown 'zzz' in row 0; take it out"),
        ([{"x": 0.5, "n1": 2}, {"x": 31.0, "n1": 2}], r"row 1 of the points: expected x in \[0, 1\], got 31.0"),
        ([{"x": 0.5, "n1": 2}, {"x": 1.0, "n1": 2.5}], "row 1 of the points: expected n1 to be an integer, got float 2.5"),
        ([{"x": 31.0, "n1": 2}], r"^expected x in \[0, 1\], got 31.0"),
    ],
)
def test_errors_of_points_name_row_and_fix(points, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Space({"x": Float(0, 1), "n1": Int(0, 5)}).encode(points)


def test_choices_may_be_tuples(tmp_path):
    layers = Choice((64, 64), (128,), "none", [256, (1, None)])
    space = Space({"layers": layers, "depth": Int(1, 3, when={"layers": [(64, 64)]})})
    assert layers.values == ((64, 64), (128,), "none", (256, (1, None)))
    described = json.loads(json.dumps(space.describe()))
    assert described == space.describe()
    assert Space.of(described).parameters == space.parameters
    (tmp_path / "space.toml").write_text('layers = {type = "choice", values = [[64, 64], [128]]}', encoding="utf-8")
    assert Space.load(tmp_path / "space.toml").parameters == {"layers": Choice((64, 64), (128,))}
    points = [{"layers": (64, 64), "depth": 2}, {"layers": (128,)}, {"layers": [128]}]
    assert space.decode(space.encode(points)) == [points[0], points[1], points[1]]
    path, seen = tmp_path / "run.journal", []

    def objective(point):
        seen.append(point["layers"])
        return float(len(point["layers"]))

    for budget in (6, 9):
        result = maximize(objective, space, budget=budget, storage=path, resume=True, policy=RandomSearch())
    assert {type(value) for value in seen} == {tuple, str}
    assert result.best.parameters["layers"] in layers.values
    again = AskTell(space=space, initial=(table := result.to_pandas(), table["value"]))
    assert again.history.parameters == result.history.parameters


def test_a_narrow_feasible_strip_is_not_evaluated_at_its_ends_alone():
    space = {"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}
    feasible = {"feasible": lambda p: abs(p["x"] + p["y"] - 1.0) <= 1e-4}
    result = maximize(lambda p: -((p["x"] - 0.3) ** 2), space, budget=24, **feasible)
    assert len({tuple(p.values()) for p in result.history.parameters}) >= 20
