"""Observations that a run has not asked for, and evaluations that the user queues."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pandas
import pytest
import torch

from sparse_bo import AskTell, Choice, Float, Int, Storage, maximize, optimize
from sparse_bo.errors import ResumeWarning
from sparse_bo.policies import REMBO, SBPE, BoTorchUCB, ExpectedImprovement, RandomSearch, TrustRegion
from sparse_bo.runs import read_run
from tests.builders import arms, bbkb, rbf_kernel, waves
from tests.sharding.builders import rehearse, split

SPACE = {"lr": Float(1e-3, 1.0, log=True), "depth": Int(1, 12)}


def score(point):
    return -((math.log10(point["lr"]) + 1.5) ** 2) - 0.01 * (point["depth"] - 4) ** 2


POINTS = [[0.1, 0.2], [0.9, 0.4], [0.5, 0.5]]
CONFIGURATIONS = [{"lr": 0.01, "depth": 3}, {"lr": 0.1, "depth": 12}]
DOMAINS = {
    "arms": ({"arms": arms(), "policy": bbkb(initial_design=9, ratio_threshold=9.0)}, [3, 7, 3], [0.5, 2.5, 0.25]),
    "box": ({"bounds": [(0.0, 1.0)] * 2, "policy": TrustRegion(initial_design=9)}, POINTS, [0.5, 2.5, 0.25]),
    "space": ({"space": SPACE, "policy": TrustRegion(initial_design=9)}, CONFIGURATIONS, [0.5, 2.5]),
}


def evaluate(loop, batch):
    loop.tell(batch.tickets, [score(p) for p in batch.parameters] if batch.parameters else waves(batch.X.double()).tolist())


def picked(loop):
    return loop.history.parameters or loop.history.indices or loop.history.points


def whole_and_resumed(course, domain, storage):
    """Return the loop after a course, and that after the same with resumes in between, closed."""

    def resumed(loop):
        loop.close()
        with warnings.catch_warnings():
            warnings.simplefilter("error", ResumeWarning)
            return AskTell.resume(storage)

    whole = course(AskTell(**domain, seed=1), lambda loop: loop)
    again = course(AskTell(**domain, seed=1, storage=storage), resumed)
    again.close()
    return whole, again


@pytest.mark.parametrize("kind", DOMAINS)
def test_added_observations_are_in_the_state_at_once_and_cost_no_budget(kind):
    domain, X, y = DOMAINS[kind]
    loop = AskTell(**domain, seed=1)
    evaluate(loop, loop.ask(5))
    pending = loop.ask(2)
    asked, pulls = loop.asked, loop.state.pulls
    loop.add(X, y)
    assert loop.pending == pending.tickets
    assert (loop.asked, loop.state.pulls) == (asked, pulls + len(y))
    assert loop.history.rows[-1].added
    assert loop.history.rows[-1].values == y
    assert loop.result().best_observed_mean == 2.5
    evaluate(loop, pending)
    assert loop.state.pulls == pulls + len(y) + 2
    assert [row.added for row in loop.history.rows][-2:] == [True, False]
    assert sorted(t for row in loop.history.rows for t in row.tickets) == list(range(loop.asked + len(y)))


@pytest.mark.parametrize("kind", DOMAINS)
def test_queued_evaluations_are_asked_first_in_order(kind):
    domain, X, _ = DOMAINS[kind]
    loop = AskTell(**domain, seed=1)
    loop.ask(1)
    loop.enqueue(X)
    loop.enqueue(X[:1])
    first, second = loop.ask(2), loop.ask()
    wanted = [*X, X[0]]
    if kind == "space":
        assert [*first.parameters, *second.parameters] == [pytest.approx(x) for x in wanted]
    elif kind == "box":
        assert torch.cat([first.X, second.X]).tolist() == wanted
    else:
        assert torch.cat([first.indices, second.indices]).tolist() == wanted
    assert (len(first), len(second)) == (2, len(wanted) - 2)
    more = loop.ask(1)
    assert more.tickets == [1 + len(wanted)]


@pytest.mark.parametrize("beyond_batch", [False, True])
def test_a_batch_goes_on_with_the_picks_of_the_policy_behind_queued_ones(tmp_path, beyond_batch):
    path, arms = tmp_path / "run.journal", torch.rand(200, 3, generator=torch.Generator().manual_seed(0))
    loop, alike = AskTell(arms, seed=0, storage=path), AskTell(arms, seed=0)
    loop.enqueue([7, 9])
    alike.enqueue([7, 9])
    batch = loop.ask(6, beyond_batch=beyond_batch)
    assert batch.indices.tolist()[:2] == [7, 9]
    assert batch.tickets == loop.pending == [*range(6)]
    assert batch.indices.tolist() == [arm for q in (2, 4) for arm in alike.ask(q).indices.tolist()]
    loop.tell(batch, batch.X.sum(dim=-1))
    loop.enqueue([11])
    assert len(loop.ask()) == 1  # without a number no more than these
    loop.close()
    again = AskTell.resume(path, arms=arms)
    assert again.pending == [6]
    assert [*again.history.rows[0].indices] == batch.indices.tolist()


@pytest.mark.sampled
@pytest.mark.parametrize("seconds", [0.0, math.inf], ids=["snapshots", "replay"])
@pytest.mark.parametrize("kind", DOMAINS)
def test_both_are_in_the_journal_and_resumed(kind, seconds, tmp_path):
    domain, X, y = DOMAINS[kind]

    def course(loop, resumed):
        evaluate(loop, loop.ask(5))
        loop.add(X, y)
        loop = resumed(loop)
        evaluate(loop, loop.ask(3))
        loop.enqueue(X)
        loop = resumed(loop)
        evaluate(loop, loop.ask(1))
        loop = resumed(loop)
        evaluate(loop, loop.ask())
        loop.add(X[:2], [y[0], "failed"])
        loop = resumed(loop)
        evaluate(loop, loop.ask(4))
        return loop

    storage = Storage(tmp_path / "run.journal", replay_seconds=seconds)
    whole, again = whole_and_resumed(course, domain, storage)
    assert picked(again) == picked(whole)
    assert again.history.column("values") == whole.history.column("values")
    assert again.history.column("added") == whole.history.column("added")
    recorded = read_run(storage.path)
    assert (recorded.asked, recorded.added, recorded.failed) == (whole.asked, len(y) + 2, 1)
    assert recorded.told == whole.state.pulls
    assert recorded.history.column("added") == whole.history.column("added")


@pytest.mark.parametrize("kind", [*DOMAINS, "outcomes"])
def test_results_of_a_part_of_a_batch_told_before_an_addition_are_resumed(kind, tmp_path):
    domain, X, y = DOMAINS["box" if kind == "outcomes" else kind]
    if kind == "outcomes":
        domain, y = {**domain, "objectives": {"a": "max", "b": "min"}}, [{"a": value, "b": 1.0} for value in y]

    def result(batch, k):
        if batch.parameters:
            return score(batch.parameters[k])
        value = float(waves(batch.X[k : k + 1].double()))
        return {"a": value, "b": value} if kind == "outcomes" else value

    def course(loop, resumed):
        batch = loop.ask(4)
        loop.tell(batch.tickets[:3], [result(batch, k) for k in range(3)])
        loop.add(X, y)
        loop = resumed(loop)
        assert loop.pending == batch.tickets[3:]
        loop.tell(batch.tickets[3:], [result(batch, 3)])
        loop.ask(2)
        return loop

    whole, again = whole_and_resumed(course, domain, Storage(tmp_path / "run.journal", replay_seconds=0.0))
    assert sorted(t for row in again.history.rows for t in row.tickets) == list(range(4 + len(y)))
    assert repr(again.history.column("values")) == repr(whole.history.column("values"))
    assert picked(again) == picked(whole)


@pytest.mark.parametrize("kind", DOMAINS)
def test_results_at_other_inputs_than_asked_are_those_of_these_inputs(kind):
    domain, X, y = DOMAINS[kind]
    loop = AskTell(**domain, seed=1)
    evaluate(loop, loop.ask(5))
    batch = loop.ask(3)
    loop.tell(batch.tickets[:2], y[:2], X=X[:2])
    loop.tell(batch.tickets[2:], [0.0])
    assert loop.pending == []
    assert loop.history.rows[-1].tickets == batch.tickets
    assert picked(loop)[-3:-1] == [pytest.approx(x) for x in X[:2]]
    other = AskTell(**domain, seed=1)
    evaluate(other, other.ask(5))
    other.enqueue(X[:2])
    first, second = other.ask(2), other.ask(1)
    other.tell(first.tickets, y[:2])
    assert loop.result().best_observed_mean == other.result().best_observed_mean == max(y[:2])
    assert loop.state.pulls == 8
    assert len(second) == 1


@pytest.mark.sampled
@pytest.mark.parametrize("seconds", [0.0, math.inf], ids=["snapshots", "replay"])
@pytest.mark.parametrize("kind", DOMAINS)
def test_results_at_other_inputs_are_in_the_journal_and_resumed(kind, seconds, tmp_path):
    domain, X, y = DOMAINS[kind]

    def course(loop, resumed):
        evaluate(loop, loop.ask(6))
        batch = loop.ask(3)
        loop.tell(batch.tickets[1:2], y[:1], X=X[:1])
        loop = resumed(loop)
        loop.tell(batch.tickets[::2], [0.1, 0.2], X=X[:2])
        loop = resumed(loop)
        evaluate(loop, loop.ask(4))
        return loop

    storage = Storage(tmp_path / "run.journal", replay_seconds=seconds)
    whole, again = whole_and_resumed(course, domain, storage)
    assert picked(again) == picked(whole) == (read_run(storage.path).history.parameters or picked(again))
    assert again.history.column("values") == whole.history.column("values")
    recorded = read_run(storage.path).evaluations
    assert recorded.picks[6].tolist() == recorded.picks[7].tolist()  # both at the first of X


def test_elimination_asks_again_for_what_was_made_elsewhere():
    loop = AskTell(arms(), SBPE(horizon=40, covar_module=rbf_kernel(), regularization=0.02, prior_mean=0.0), seed=0)
    batch = loop.ask()
    missed = int(batch.indices[0])
    (other,) = [arm for arm in range(60) if arm not in batch.indices.tolist()][:1]
    loop.tell(batch, waves(batch.X), X=[other, *batch.indices.tolist()[1:]])
    assert loop.ask().indices.tolist() == [missed]


def test_where_an_embedding_knows_no_other_inputs_the_evaluation_stays_pending():
    loop = AskTell(bounds=[(0.0, 1.0)] * 4, policy=REMBO(target_dims=1, inner=BoTorchUCB(initial_design=4)))
    batch = loop.ask(2)
    with pytest.raises(ValueError, match="expected results at the inputs that policy 'rembo' has asked for"):
        loop.tell(batch, [0.0, 1.0], X=[[0.1, 0.2, 0.3, 0.4]] * 2)
    assert loop.pending == batch.tickets


def test_a_run_that_minimises_adds_values_in_its_own_sign():
    loop = AskTell(arms(), bbkb(), minimize=True)
    loop.add([1, 2], [5.0, -7.0])
    assert loop.result().best_observed_mean == -7.0
    assert loop.result().best_observed_index == 2


def test_elimination_keeps_its_bounds_to_its_own_picks():
    loop = AskTell(arms(), SBPE(horizon=40, covar_module=rbf_kernel(), regularization=0.02, prior_mean=0.0), seed=0)
    batch = loop.ask()
    loop.add([5], [9.0])
    loop.tell(batch.tickets, waves(batch.X))
    assert loop.result().best_observed_index == 5
    assert loop.state.pulls == len(batch) + 1


def test_patience_counts_the_evaluations_of_the_run(tmp_path):
    loop = AskTell(arms(), RandomSearch(batch_size=2), seed=0)
    loop.add(list(range(10)), [-1.0] * 9 + [100.0])
    result = loop.run(waves, 40, patience=6)
    assert loop.asked == 6
    assert "6 evaluations have brought no better result than 100" in result.ended


def test_queued_evaluations_are_part_of_the_budget_of_a_run():
    calls = []
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, policy=RandomSearch())
    loop.enqueue([[0.25, 0.75]])
    loop.run(lambda x: calls.append(x.tolist()) or 0.5, 3)
    assert calls[0] == [0.25, 0.75]
    assert len(calls) == 3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda loop: loop.add([60], [1.0]), "added inputs"),
        (lambda loop: loop.add([1, 2], [1.0]), "expected as many added values as inputs, got 1 values and 2 inputs"),
        (lambda loop: loop.add([1], [math.inf]), "added values"),
        (lambda loop: loop.add([1], [math.nan]), "added values"),
        (lambda loop: loop.enqueue([]), "expected enqueued inputs, at least one, got none"),
        (lambda loop: loop.enqueue([-1]), "enqueued inputs"),
        (lambda loop: loop.tell([0, 1], [1.0, 2.0], X=[3]), "expected an input for each of 2 results, got 1"),
        (lambda loop: loop.tell([0], [1.0], X=[60]), "told inputs"),
        (lambda loop: loop.tell([0], [math.inf], X=[3]), "inf"),
    ],
)
def test_wrong_additions_change_nothing(call, message, tmp_path):
    loop = AskTell(arms(), bbkb(initial_design=4), storage=tmp_path / "run.journal")
    loop.ask(2)
    size = (tmp_path / "run.journal").stat().st_size
    with pytest.raises(ValueError, match=message):
        call(loop)
    assert (tmp_path / "run.journal").stat().st_size == size
    assert loop.state.pulls == 0
    assert loop.ask(1).tickets == [2]


def test_ranks_add_and_queue_what_the_first_does():
    def run(group):
        loop = AskTell(split(arms(), group), bbkb(ratio_threshold=9.0), seed=3)
        loop.add([4, 9], [0.5, 1.5]) if group.leads else loop.add(None, None)
        loop.enqueue([7]) if group.leads else loop.enqueue(None)
        first = loop.ask(1)
        loop.tell(first, [0.3], X=[8]) if group.leads else loop.tell(None, None, X=[])
        batches = [first, loop.ask()]
        return [batch.indices.tolist() for batch in batches], loop.state.pulls

    alone = AskTell(arms(), bbkb(ratio_threshold=9.0), seed=3)
    alone.add([4, 9], [0.5, 1.5])
    alone.enqueue([7])
    alone.tell(alone.ask(1), [0.3], X=[8])
    expected = [[7], alone.ask().indices.tolist()], 3
    assert rehearse(2, run) == [expected] * 2


def test_more_workers_after_a_resume_are_all_busy(tmp_path):
    path = tmp_path / "run.journal"
    settings = {"bounds": [(0.0, 1.0)] * 2, "storage": path, "resume": True}
    maximize(lambda x: float(x[0]), budget=8, executor="threads", workers=2, **settings)
    result = maximize(lambda x: float(x[0]), budget=20, executor="threads", workers=6, **settings)
    assert result.state.pulls == 20
    assert np.isfinite(result.best.mean)


def test_inputs_that_are_told_are_copied():
    loop, where = AskTell(bounds=[(0.0, 1.0)] * 2, seed=1), np.full((1, 2), 0.3)
    batch = loop.ask(3)
    loop.tell(batch.tickets[:1], [1.0], X=where)
    where[:] = 7.0
    loop.tell(batch.tickets[1:], [0.1, 0.2])
    assert loop.history.points[0] == [0.3, 0.3]


TREES = {
    "kind": Choice("tree", "net", "none"),
    "rate": Float(1e-5, 1.0, log=True),
    "depth": Int(1, 12, when={"kind": "tree"}),
    "units": Int(1, 9, when={"kind": ["net", "none"]}),
}


def test_what_a_queued_point_lacks_is_that_of_the_next_pick():
    loop, other = (AskTell(space=TREES, seed=3) for _ in range(2))
    (pick,) = other.ask(1).parameters
    loop.enqueue([{"rate": 0.5}])
    (point,) = loop.ask(1).parameters
    assert point == {**pick, "rate": 0.5}
    following = loop.ask(1).parameters
    assert following == other.ask(1).parameters  # the queued point took the place of one of the design


def test_points_queued_one_by_one_differ_in_what_they_lack_and_from_the_next_picks():
    box = AskTell(bounds=[(0.0, 1.0), (0.0, 1.0)], policy=RandomSearch(), seed=0)
    for _ in range(2):
        box.enqueue([[math.nan, math.nan]])
    X = [box.ask(1).X, box.ask(1).X, box.ask(1).X]
    box.enqueue([[math.nan, math.nan]])  # nothing is drawn for a pick while points are queued
    assert len(torch.cat([*X, box.ask(1).X, box.ask(1).X]).unique()) == 10
    named = AskTell(space={"kind": Choice("a", "b"), "depth": Float(0, 1, when={"kind": "a"})}, policy=RandomSearch(), seed=0)
    for _ in range(4):
        named.enqueue([{"kind": "a"}])
    assert len({point["depth"] for _ in range(4) for point in named.ask(1).parameters}) == 4


def test_a_queued_value_brings_the_parameters_that_it_depends_on():
    loop = AskTell(space=TREES, seed=0)
    given = [{"depth": 5}, {"units": 7}, {"kind": "tree"}, {"kind": "net", "rate": 0.25}, {}]
    loop.enqueue(given)
    points = loop.ask(5).parameters
    for point, part in zip(points, given, strict=True):
        assert part.items() <= point.items()
        assert point.keys() == {"kind", "rate", "depth" if point["kind"] == "tree" else "units"}
    assert points[0]["kind"] == "tree"


def test_whole_points_are_queued_as_they_are():
    loop, whole = AskTell(space=TREES, seed=0), [{"kind": "tree", "rate": 0.01, "depth": 3}]
    loop.enqueue(whole)
    assert loop.ask(1).parameters == whole


def test_what_a_queued_point_of_a_box_lacks_is_nan():
    bounds = torch.tensor([[0.0, 5.0, -1.0], [1.0, 9.0, 1.0]], dtype=torch.float64)
    X = torch.tensor([[0.5, math.nan, math.nan], [0.25, 6.0, 0.0]], dtype=torch.float64)
    tensors, lists = (AskTell(bounds=b, seed=0) for b in (bounds, bounds.T.tolist()))
    tensors.enqueue(X)
    lists.enqueue(X.tolist())
    made = tensors.ask(2).X
    known = ~X.isnan()
    assert torch.equal(made[known], X[known])
    assert ((bounds[0] <= made) & (made <= bounds[1])).all()
    torch.testing.assert_close(lists.ask(2).X, made, rtol=0.0, atol=0.0)
    with pytest.raises(ValueError, match=r"expected finite added inputs"):
        tensors.add(X, [1.0, 2.0])


@pytest.mark.parametrize("arms", [True, False], ids=["arms", "box"])
def test_what_is_chosen_for_a_queued_point_is_feasible(arms):
    space = {"a": Int(1, 9), "b": Choice("u", "v", "w")} | ({} if arms else {"c": Float(0, 1)})
    loop = AskTell(space=space, feasible=lambda p: p["a"] > 7 or p["b"] == "w", seed=0)
    loop.enqueue([{"a": 2}, {"b": "u"}, {}])
    points = loop.ask(3).parameters
    assert (points[0]["a"], points[0]["b"]) == (2, "w")
    assert points[1]["b"] == "u"
    assert points[1]["a"] > 7
    with pytest.raises(ValueError, match="that are feasible"):
        loop.enqueue([{"a": 2, "b": "v"} | ({} if arms else {"c": 0.5})])
    if not arms:
        with pytest.raises(ValueError, match=r"expected a feasible point with \{'a': 2, 'b': 'v'\}, got none among 50,000"):
            loop.enqueue([{"a": 2, "b": "v"}])


def test_a_policy_that_waits_leaves_the_rest_of_a_queued_point_to_chance():
    space = {"a": Int(1, 50), "b": Int(1, 50)}
    loop = AskTell(space=space, policy=bbkb(initial_design=4, max_batch_size=4), seed=0)
    loop.ask(4)
    loop.enqueue([{"a": 7}] * 3)
    points = loop.ask(3).parameters
    assert [point["a"] for point in points] == [7, 7, 7]
    assert all(1 <= point["b"] <= 50 for point in points)
    loop.close()


def test_queued_parts_are_resumed_as_they_were_completed(tmp_path):
    with AskTell(space=TREES, seed=1, storage=tmp_path / "run.journal") as loop:
        loop.enqueue([{"rate": 0.5}, {"depth": 2}])
        first = loop.ask(1).parameters
    with AskTell(space=TREES, seed=1) as other:
        other.enqueue([{"rate": 0.5}, {"depth": 2}])
        expected = other.ask(2).parameters
    with AskTell.resume(tmp_path / "run.journal") as loop:
        assert [*first, *loop.ask(1).parameters] == expected


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([{"depht": 5}], "got an unknown 'depht' in row 0"),
        ([{"rate": 0.5}, {"rate": 7.0}], "row 1 of the enqueued inputs: expected rate in"),
        ([{"rate": 0.5}, {"kind": "tree", "units": 2}], "only where 'kind' is 'net' or 'none', got a 'units' in row 1"),
        ([{"depth": 2, "units": 2}], "in row 0; take it out"),
        ([{"kind": "tre"}], "did you mean 'tree'"),
    ],
)
def test_a_wrong_part_of_a_queued_point_is_named(points, message):
    loop = AskTell(space=TREES, seed=0)
    with pytest.raises(ValueError, match=message):
        loop.enqueue(points)
    assert loop.ask(1).parameters == AskTell(space=TREES, seed=0).ask(1).parameters


FROM_1200 = {
    "box": ({"bounds": [(0.0, 1.0)] * 2}, None),
    "outcomes": ({"bounds": [(0.0, 1.0)] * 2, "objectives": {"a": "max", "b": "max"}}, None),
    "arms": ({"arms": torch.rand(1300, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)}, 1200),
}


@pytest.mark.parametrize("kind", ["outcomes", "box", "arms"])
def test_failed_evaluations_of_an_archive_are_avoided_and_no_picks(kind):
    X = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    crashes = X[:, 0] > 0.5
    values = [{"a": a, "b": b} if kind == "outcomes" else a + b for a, b in X.tolist()]
    y = ["failed" if crash else value for crash, value in zip(crashes.tolist(), values, strict=True)]
    domain = {"arms": X} if kind == "arms" else {"bounds": [(0.0, 1.0)] * 2}
    initial = (torch.arange(60) if kind == "arms" else X[:60], y[:60])
    domain |= {"objectives": {"a": "max", "b": "max"}} if kind == "outcomes" else {}
    loop = AskTell(**domain, initial=initial)
    assert loop.history.rows[0].failed == int(crashes[:60].sum())
    assert loop.state.picked(0) == 0
    assert float(loop.ask(12).X[:, 0].max()) < 0.75


def test_the_word_failed_is_a_result_of_every_kind_of_run():
    loop = AskTell(arms())
    loop.tell(loop.ask(2), [1.0, " Failed"])
    loop.add([3, 4], np.array(["failed", 2.0], dtype=object))
    assert [row.failed for row in loop.history.rows] == [1, 1]
    several = {"objectives": {"a": "max", "b": "min"}}
    table = pandas.DataFrame({"a": [1.0, None, "failed"], "b": [2.0, 3.0, "failed"]}, dtype=object)
    for y in (table, [[1.0, 2.0], {"a": None, "b": 3.0}, "failed"], {"a": [1.0, None, "failed"], "b": [2.0, 3.0, None]}):
        loop = AskTell(arms(), **several, initial=([0, 1, 2], y))
        assert str(loop.history.rows[0].outcomes) == "[(1.0, 2.0), (nan, 3.0), (nan, nan)]"
    loop.tell(loop.ask(2), ["failed", {"a": 1.0, "b": "failed"}])
    assert loop.history.rows[1].failed == 1
    for y in (
        [math.nan],
        [np.float32("nan")],
        [{"a": None, "b": None}],
        pandas.DataFrame({"a": [None], "b": [None]}),
        torch.full((1, 2), math.nan),
    ):
        with pytest.raises(ValueError, match="got none in row 0; leave it out, or, if it failed, write 'failed' in place of"):
            loop.add([0], y)
    with pytest.raises(ValueError, match=r"in 1 row\(s\), the first at row 1; drop them, or write 'failed' in place of the"):
        AskTell(arms(), initial=([0, 1, 2], ["failed", math.nan, 1.0]))


@pytest.mark.parametrize("kind", FROM_1200)
def test_an_archive_makes_no_batch_larger(kind):
    """A batch grows by one for every 200 evaluations that the policy has picked."""
    domain, count = FROM_1200[kind]
    X = (
        torch.rand(1200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        if count is None
        else domain["arms"][:count]
    )
    y = [{"a": float(a), "b": float(b)} for a, b in X] if kind == "outcomes" else (X**2).sum(dim=-1)
    policy = ExpectedImprovement(model_size=40) if kind == "arms" else TrustRegion(model_size=40)
    domain = {**domain, "policy": policy, "seed": 0, "initial": (X if count is None else torch.arange(count), y)}
    assert len(AskTell(**domain).ask()) == 4
    if kind != "arms":  # where they are made in this process each is learned from before the next
        run = maximize if kind == "box" else optimize
        answer = (lambda x: float((x**2).sum())) if kind == "box" else lambda x: {"a": float(x[0]), "b": float(x[1])}
        result = run(answer, **domain, budget=3, vectorized=False)
        assert [len(row.tickets) for row in result.history.rows[1:]] == [1, 1, 1]


def test_the_default_dtype_changes_no_part_that_a_queued_point_lacks():
    def asked(dtype):
        torch.set_default_dtype(dtype)
        loop = AskTell(bounds=[(0.0, 1.0), (0.0, 1.0)], policy=RandomSearch())
        loop.ask(2)
        loop.enqueue([[0.5, math.nan]])
        return loop.ask(1).X.tolist()

    default = torch.get_default_dtype()
    try:
        assert asked(torch.float32) == asked(torch.float64)
    finally:
        torch.set_default_dtype(default)
