"""Several outcomes through evaluations, journal, history and results, under a policy that draws points at random."""

import math
import re
from dataclasses import dataclass, field, replace
from itertools import chain, repeat
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sparse_bo import BBKB, AskTell, Choice, Float, ObjectiveError, Workers, observations_of, optimize
from sparse_bo.domains import Box
from sparse_bo.errors import InfeasibleWarning
from sparse_bo.policies import Mechanism, Outcomes, Proposal, Report, State
from sparse_bo.policies.persistence import KEPT, freeze_fields, thaw_fields
from sparse_bo.report.facts import facts
from sparse_bo.runs import History, read_run
from sparse_bo.runs.view import view_of_recorded
from tests.builders import arms, unit_box

BOX = unit_box()
OBJECTIVES, CONSTRAINTS = {"yield": "max", "cost": "min"}, {"impurity": (None, 0.6), "cost": (None, 0.9)}
NAMES = ("yield", "cost", "impurity")


def experiment(x):
    """Return the outcomes of one point by name."""
    return {"impurity": float(x[0]), "yield": float(x[0] + x[1]), "cost": float(x[1]), "colour": "not an outcome of the run"}


@dataclass(frozen=True, kw_only=True, eq=False)
class ScatteredState(State):
    """All results of random picks."""

    where: Tensor = field(metadata=KEPT)
    Y: Tensor = field(metadata=KEPT)
    outcomes: Any = None

    @property
    def pulls(self):
        return len(self.Y)

    @property
    def succeeded(self):
        return self.where

    def report(self):
        return Report(feasible=int(self.outcomes.feasible(self.Y).sum()))

    def standardised_errors(self, picks, y):
        return torch.where(y.isnan(), torch.nan, 0.5)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scattering(Mechanism):
    """Random picks."""

    domain: Any
    outcomes: Outcomes

    def init(self):
        return ScatteredState(
            where=self.domain.no_picks,
            Y=torch.zeros(0, len(self.outcomes.names), dtype=torch.float64, device=self.domain.device),
            outcomes=self.outcomes,
        )

    def ask(self, state, *, max_q, pending, generator):
        if isinstance(self.domain, Box):
            U = torch.rand(min(max_q, 3), self.domain.dims, generator=generator, dtype=torch.float64, device="cpu")
            return Proposal(self.domain.from_unit(U.to(self.domain.device)))
        return Proposal(torch.randint(self.domain.count, (min(max_q, 3),), generator=generator, device="cpu"))

    def tell(self, state, picks, y, *, generator):
        where, Y = torch.cat([state.where, picks]), torch.cat([state.Y, y])
        return replace(state, where=where, Y=Y, round=state.round + 1)

    def freeze(self, state):
        return freeze_fields(state)

    def thaw(self, frozen):
        return replace(self.init(), **thaw_fields(ScatteredState, frozen))


@dataclass(frozen=True)
class Scatter:
    """Random points, with several outcomes."""

    name: str = "scatter"

    def on(self, domain):
        raise AssertionError("several outcomes are asked for")

    def on_outcomes(self, domain, outcomes):
        return Scattering(domain=domain, outcomes=outcomes)


def scattered(objective=experiment, **others):
    how = {"bounds": BOX, "vectorized": False, "objectives": OBJECTIVES, "constraints": CONSTRAINTS, "budget": 12}
    return optimize(objective, **{**how, **others}, policy=Scatter())


def dominated(one, other):
    return other["yield"] >= one["yield"] and other["cost"] <= one["cost"] and other != one


def test_the_front_is_the_feasible_points_that_none_dominates():
    result = scattered(budget=60)
    every = [dict(zip(NAMES, row, strict=True)) for batch in result.history.rows for row in batch.outcomes]
    feasible = [row for row in every if row["impurity"] <= 0.6 and row["cost"] <= 0.9]
    expected = [row for row in feasible if not any(dominated(row, other) for other in feasible)]
    found = [point.outcomes for point in result.pareto_front]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert found == sorted(found, key=lambda row: -row["yield"])
    for point in result.pareto_front:
        assert experiment(point.x)["yield"] == point.outcomes["yield"]
        assert every[point.ticket] == point.outcomes
    assert result.feasible == len(feasible) < 60
    with pytest.raises(ValueError, match=r"expected one objective, got 2 \(yield, cost\).*result.pareto_front"):
        _ = result.best


def test_one_objective_has_a_best_point_with_its_outcomes():
    result = scattered(objectives={"yield": "max"}, constraints={"impurity": (None, 0.6)}, budget=30)
    (best,) = result.pareto_front
    every = [row for batch in result.history.rows for row in batch.outcomes]
    assert best.outcomes["yield"] == max(y for y, impurity in every if impurity <= 0.6)


FORMS = {
    "dictionaries": lambda x: experiment(x),
    "rows": lambda x: [experiment(x)[name] for name in NAMES],
    "arrays": lambda x: np.array([experiment(x)[name] for name in NAMES]),
    "tensors": lambda x: torch.tensor([experiment(x)[name] for name in NAMES], dtype=torch.float64),
    "numbers of NumPy": lambda x: {name: np.float64(value) for name, value in experiment(x).items() if name in NAMES},
}
MANY = {
    "columns": lambda X: {"yield": X.sum(dim=1), "cost": X[:, 1].numpy(), "impurity": X[:, 0].tolist()},
    "a tensor": lambda X: torch.stack([X.sum(dim=1), X[:, 1], X[:, 0]], dim=1),
    "dictionaries": lambda X: [experiment(x) for x in X],
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_all_forms_of_outcomes_are_the_same_run(form):
    assert [row.outcomes for row in scattered(form).history.rows] == [row.outcomes for row in scattered().history.rows]


@pytest.mark.parametrize("form", MANY.values(), ids=MANY)
def test_so_are_those_of_many_points(form):
    many = scattered(form, vectorized=True)
    assert [row.outcomes for row in many.history.rows] == [row.outcomes for row in scattered().history.rows]


def test_missing_outcomes_are_missing_and_failed_ones_fail():
    def partly(x):
        if x[0] > 0.8:
            return math.nan
        return experiment(x) | ({"cost": None} if x[1] > 0.5 else {})

    result = scattered(partly, budget=40)
    rows = [(x, y) for row in result.history.rows for x, y in zip(row.points, row.outcomes, strict=True)]
    for x, y in rows:
        assert math.isnan(y[1]) == (x[0] > 0.8 or x[1] > 0.5)
        assert math.isnan(y[0]) == (x[0] > 0.8)
    failed = sum(x[0] > 0.8 for x, _ in rows)
    assert sum(row.failed for row in result.history.rows) == failed > 0
    assert result.state.pulls == 40 - failed
    table = result.to_pandas()
    assert list(table.columns) == ["x1", "x2", "ticket", "batch", *NAMES, "feasible"]
    assert table["feasible"].sum() == result.feasible > 0


WRONG = [
    ({"yield": 1.0, "cost": 2.0}, ValueError, "none of impurity among 'yield', 'cost'; return nan"),
    ({"yield": 1.0, "cost": 2.0, "impurities": 0.0}, ValueError, r"did you mean 'impurity'\? The names of the run"),
    ({"yield": 1.0, "cost": math.inf, "impurity": 0.0}, ValueError, "finite value of 'cost'"),
    ({"yield": 1.0, "cost": "2", "impurity": 0.0}, TypeError, "real number for the outcome 'cost', got '2'"),
    ([1.0, 2.0], ValueError, r"expected 3 outcomes \(yield, cost, impurity\), got \[1.0, 2.0\]"),
    (3.0, ValueError, "expected 3 outcomes"),
    ("yield", ValueError, "expected 3 outcomes"),
]


@pytest.mark.parametrize(("value", "error", "message"), WRONG, ids=str)
def test_other_results_are_named(value, error, message):
    with pytest.raises(ObjectiveError, match=message) as caught:
        scattered(lambda x: value)
    assert len(caught.value.loop.pending) == 3
    with pytest.raises(error, match=message):
        caught.value.loop.tell(caught.value.loop.pending[:1], [value])
    caught.value.loop.tell(caught.value.loop.pending, [experiment((0.1, 0.2))] * 3)
    assert caught.value.loop.state.pulls == 3


SETTINGS = [
    ({"objectives": {}}, ValueError, "at least one objective"),
    ({"objectives": ["yield"]}, TypeError, "objectives= as a dictionary"),
    ({"objectives": {"yield": "maximise"}}, ValueError, "'max' or 'min' for the objective 'yield', got 'maximise'"),
    ({"objectives": {1: "max"}}, TypeError, "names of outcomes as non-empty strings"),
    ({"objectives": dict.fromkeys("abcde", "max")}, ValueError, "at most 4 objectives, got 5"),
    ({"constraints": {"impurity": 0.05}}, TypeError, r"\(lower, upper\) for the constraint 'impurity'"),
    ({"constraints": {"impurity": (0.5, 0.1)}}, ValueError, "lower <= upper for the constraint 'impurity'"),
    ({"constraints": {"impurity": (None, None)}}, ValueError, "leave it out"),
    ({"constraints": {"impurity": (None, math.inf)}}, ValueError, "finite number for 'impurity'.*None where there is no limit"),
    ({"reference": {"yield": 0.0}}, ValueError, r"a reference value for each objective \(yield, cost\)"),
    ({"target": 3.0}, ValueError, "target= with one objective, got 2"),
    ({"policy": BBKB()}, TypeError, r"policy 'bbkb' takes one outcome, got 3 \(yield, cost, impurity\)"),
]


@pytest.mark.parametrize(("others", "error", "message"), SETTINGS, ids=str)
def test_wrong_outcomes_are_refused_before_any_evaluation(others, error, message):
    def never(x):
        raise AssertionError("evaluated")

    how = {"bounds": BOX, "objectives": OBJECTIVES, "constraints": CONSTRAINTS, "budget": 9, "policy": Scatter()}
    with pytest.raises(error, match=message):
        optimize(never, **{**how, **others})


def test_constraints_need_objectives():
    with pytest.raises(ValueError, match="expected objectives= with constraints="):
        AskTell(bounds=BOX, constraints={"impurity": (None, 1.0)})
    with pytest.raises(ValueError, match='write {"cost": "min"}'):
        AskTell(bounds=BOX, objectives={"cost": "min"}, minimize=True)


@pytest.mark.parametrize("domain", [{"bounds": BOX}, {"arms": arms()}], ids=["box", "arms"])
def test_a_resumed_run_is_the_uninterrupted_one(domain, tmp_path):
    path = tmp_path / "run.journal"
    how = {"objectives": OBJECTIVES, "constraints": CONSTRAINTS, "policy": Scatter(), "vectorized": False, **domain}
    start = domain.get("arms", torch.tensor([[0.1, 0.2], [0.3, 0.4]], dtype=torch.float64))
    where = torch.tensor([3, 5]) if "arms" in domain else start
    X = start[where] if "arms" in domain else start
    before = (where, [experiment(x) | {"cost": math.nan} for x in X])
    whole = optimize(experiment, **how, initial=before, budget=20)
    optimize(experiment, **how, initial=before, budget=7, storage=path)
    resumed = AskTell.resume(path, policy=Scatter())
    assert resumed.history.outcomes == Outcomes.of(OBJECTIVES, CONSTRAINTS)
    resumed.close()
    result = optimize(experiment, **how, initial=before, budget=20, storage=path, resume=True)
    every = [row for batch in whole.history.rows for row in batch.outcomes]
    again = [row for batch in result.history.rows for row in batch.outcomes]
    assert str(again) == str(every)
    recorded = read_run(path)
    np.testing.assert_array_equal(recorded.evaluations.values, np.array(every))
    assert (recorded.told, recorded.failed, int(recorded.evaluations.added.sum())) == (22, 0, 2)
    for name, other in (("objectives", {"yield": "max"}), ("constraints", None), ("reference", {"yield": 0.0, "cost": 1.0})):
        with pytest.raises(ValueError, match="has the outcomes"):
            optimize(experiment, **{**how, name: other}, budget=20, storage=path, resume=True)


@pytest.mark.parametrize("vectorized", [False, True])
def test_rows_of_a_resumed_call_are_in_the_order_of_its_names(vectorized, tmp_path):
    path, seen = tmp_path / "run.journal", []
    start = [[0.1, 0.2], [0.3, 0.4]]

    def call(names, limits, budget, **how):
        order = [*names, *(name for name in limits if name not in names)]

        def rows(X):
            found = [[experiment(x)[name] for name in order] for x in (X if vectorized else [X])]
            return found if vectorized else found[0]

        def add(loop, row):
            if row.round == 1:
                loop.add([[0.5, 0.6]], [[experiment([0.5, 0.6])[name] for name in order]])

        initial = (start, [[experiment(x)[name] for name in order] for x in start])
        aims = {"objectives": {name: OBJECTIVES[name] for name in names}, "constraints": {n: CONSTRAINTS[n] for n in limits}}
        how |= {"initial": initial, "vectorized": vectorized, "callback": add, "storage": path, "resume": True}
        return optimize(rows, bounds=[(0, 1), (0, 1)], policy=Scatter(), budget=budget, **aims, **how)

    call(["yield", "cost"], ["impurity", "cost"], 6)
    result = call(["cost", "yield"], ["cost", "impurity"], 12, on_result=seen.append)
    evaluated = [(x, row) for batch in result.history.rows for x, row in zip(batch.points, batch.outcomes, strict=True)]
    assert (len(evaluated) > 12, len(seen)) == (True, 6)
    for x, row in evaluated:
        assert dict(zip(NAMES, row, strict=True)) == {name: experiment(x)[name] for name in NAMES}
    for one in seen:
        assert one.outcomes == {name: experiment(one.x)[name] for name in NAMES}


def test_a_history_keeps_its_outcomes_in_a_file(tmp_path):
    with pytest.warns(InfeasibleWarning, match=r"none of 12 evaluations is feasible: cost is NaN in all of them"):
        history = scattered(lambda x: experiment(x) | {"cost": None}).history
    history.save(tmp_path / "history.jsonl")
    loaded = History.load(tmp_path / "history.jsonl")
    assert str(loaded.rows) == str(history.rows)
    assert loaded.outcomes == history.outcomes


def test_the_warning_of_no_feasible_evaluation_names_an_outcome_that_is_never_there():
    aims = {"objectives": {"yield": "max"}, "constraints": {"impurity": (None, 1.0), "cost": (None, 1.0)}}
    with pytest.warns(InfeasibleWarning) as caught:
        optimize(lambda x: {"yield": x[0], "impurity": math.nan, "cost": 0.0}, bounds=[(0, 1)], budget=6, **aims)
    expected = "none of 6 evaluations is feasible: impurity is NaN in all of them; check the objective function"
    assert [str(warning.message) for warning in caught] == [expected]


@pytest.mark.parametrize(
    ("outcomes", "text"),
    [
        ({"yield": 1.0, "temp": 50.0, "stress": 9.0}, "result.best violates limits (stress) the least"),
        ({"yield": 1.0, "temp": 2e3, "stress": 9.0}, "result.best violates limits (temp, stress) the least"),
        ({"yield": math.nan, "temp": 50.0, "stress": -9.0}, "result.best violates no limit, but yield is NaN in it"),
    ],
)
def test_the_warning_of_no_feasible_evaluation_names_the_limits_that_the_nearest_violates(outcomes, text):
    rows = chain([{"yield": 0.0, "temp": 3e3, "stress": 99.0}], repeat(outcomes))
    aims = {"objectives": {"yield": "max"}, "constraints": {"temp": (None, 1e3), "stress": (None, -5.0)}}
    with pytest.warns(InfeasibleWarning, match=re.escape(text)):
        optimize(lambda x: next(rows), bounds=[(0, 1)], budget=6, **aims)


@pytest.mark.parametrize(
    ("direction", "fix"),
    [
        ("minimize", "{'drag': 'min'}"),
        ("MAX", "{'drag': 'max'}"),
        ("lower", "{'drag': 'min'}"),
        (-1, "'max'} or {'drag': 'min'}"),
    ],
)
def test_a_direction_in_other_words_is_refused_with_its_own_word(direction, fix):
    with pytest.raises(ValueError, match=f"write .*{re.escape(fix)}$"):
        AskTell(bounds=[(0, 1)], objectives={"drag": direction})


@pytest.mark.parametrize(
    "run",
    [
        lambda f, **how: AskTell(**how).run(f, 3),
        lambda f, **how: optimize(f, budget=3, **how),
        lambda f, **how: optimize(f, budget=3, executor="threads", workers=2, **how),
    ],
)
def test_the_warning_of_no_feasible_evaluation_is_of_the_callers_line(run):
    aims = {"objectives": {"yield": "max"}, "constraints": {"impurity": (None, 0.0)}}
    with pytest.warns(InfeasibleWarning, match=r"result.best violates limits \(impurity\) the least") as caught:
        run(lambda x: {"yield": x[0], "impurity": 1.0}, bounds=[(0, 1), (0, 1)], **aims)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_workers_return_outcomes(executor):
    result = scattered(executor=Workers(executor=executor, count=2, asynchronous=False))
    assert [row.outcomes for row in result.history.rows] == [row.outcomes for row in scattered().history.rows]


def test_ends_and_callbacks_know_outcomes():
    seen = []
    result = scattered(budget=60, patience=8, on_result=seen.append)
    assert "evaluations have brought no new point of the front (" in result.ended
    assert [one.outcomes for one in seen] == [
        dict(zip(NAMES, row, strict=True)) for batch in result.history.rows for row in batch.outcomes
    ]
    front = {point.ticket for point in result.pareto_front}
    assert max(front) <= len(seen) - 8
    one = scattered(objectives={"cost": "min"}, constraints={"impurity": (0.5, None)}, budget=60, target=0.3)
    assert one.ended is not None
    assert one.ended.startswith("a result of 0.")
    (last,) = [x for x in one.history.rows[-1].outcomes if x[0] <= 0.3 and x[1] >= 0.5][:1]
    earlier = [x for row in one.history.rows[:-1] for x in row.outcomes]
    assert not any(cost <= 0.3 and impurity >= 0.5 for cost, impurity in earlier), last


def test_named_parameters_of_the_front():
    space = {"depth": Float(0.0, 1.0), "kind": Choice("a", "b")}
    result = scattered(
        lambda point: {"yield": point["depth"], "cost": point["depth"] ** 2, "impurity": 0.0},
        bounds=None,
        space=space,
        vectorized=None,
    )
    for point in result.pareto_front:
        assert point.parameters["depth"] == point.outcomes["yield"]
        assert point.estimates == point.outcomes  # no model says otherwise
    assert set(result.to_pandas().columns) >= {"depth", "kind", *NAMES, "feasible", "ticket"}


def test_failures_of_all_outcomes_are_marked():
    loop = AskTell(bounds=BOX, objectives=OBJECTIVES, constraints=CONSTRAINTS, policy=Scatter())
    batch = loop.ask()
    loop.fail(batch.tickets[:1])
    loop.tell(batch.tickets[1:], {"yield": [1.0, 2.0], "cost": [0.5, math.nan], "impurity": [0.1, 0.2]})
    (row,) = loop.history.rows
    assert str(row.outcomes) == "[(nan, nan, nan), (1.0, 0.5, 0.1), (2.0, nan, 0.2)]"
    assert (row.failed, loop.state.pulls) == (1, 2)
    assert row.predicted == 5


def test_observations_are_added_and_taken_over_by_name(tmp_path):
    before, after = tmp_path / "before.journal", tmp_path / "after.journal"
    with AskTell(bounds=BOX, objectives=OBJECTIVES, constraints=CONSTRAINTS, policy=Scatter(), storage=before) as loop:
        loop.add([[0.1, 0.2], [0.3, 0.4]], [{"yield": 1.0, "cost": math.nan, "impurity": 0.2}, (2.0, 0.5, 0.3)])
        batch = loop.ask()
        with pytest.raises(ValueError, match=r"got 2 of yield; .* for each ticket: \[{'yield': \(value, sd\)"):
            loop.tell(batch.tickets[:1], {"yield": (3.0, 0.1), "cost": 0.1, "impurity": 0.4})
        loop.tell(batch.tickets, {"yield": [3.0, 4.0, 5.0], "cost": [0.1, 0.2, 0.3], "impurity": [0.4] * 3})
        with pytest.raises(ValueError, match="at least one outcome of every added observation, got none in row 0"):
            loop.add([[0.5, 0.5]], [math.nan])
    assert str(AskTell.resume(before, policy=Scatter()).history.rows[0].outcomes) == "[(1.0, nan, 0.2), (2.0, 0.5, 0.3)]"
    fewer = {"objectives": {"cost": "min"}, "constraints": {"colour": (None, 1.0)}}
    with AskTell(bounds=BOX, **fewer, policy=Scatter(), initial=observations_of(before), storage=after) as other:
        (row,) = other.history.rows
    assert [cost for cost, _ in row.outcomes] == [0.5, 0.1, 0.2, 0.3]  # the first has no cost
    assert all(math.isnan(colour) for _, colour in row.outcomes)
    with pytest.raises(ValueError, match="has the outcomes yield, cost, impurity, this one has others; pass objectives="):
        AskTell(bounds=BOX, initial=observations_of(before))


@pytest.mark.parametrize("domain", [{"bounds": BOX}, {"arms": arms()}], ids=["box", "arms"])
def test_a_run_without_results_has_an_empty_front(domain):
    loop = AskTell(**domain, objectives=OBJECTIVES, policy=Scatter())
    batch = loop.ask()
    result = loop.result()
    assert result.pareto_front == []
    assert len(result.to_pandas()) == 0
    loop.tell(batch.tickets[1:2], [{"yield": 1.0, "cost": 2.0}])  # others of the batch are out
    assert [point.outcomes for point in loop.result().pareto_front] == [{"yield": 1.0, "cost": 2.0}]
    assert len(loop.result().to_pandas()) == 1


def test_arms_of_the_front_have_their_names():
    names = [f"arm {k}" for k in range(len(arms()))]
    result = scattered(bounds=None, arms=arms(), names=names)
    assert [point.name for point in result.pareto_front] == [f"arm {point.index}" for point in result.pareto_front] != []


def test_one_objective_whose_constraint_was_never_measured_says_so():
    with pytest.warns(InfeasibleWarning):
        result = scattered(
            lambda x: {"yield": x[0], "impurity": None}, objectives={"yield": "max"}, constraints={"impurity": (0, 1)}
        )
    assert result.pareto_front == []
    loop = AskTell(bounds=BOX, objectives={"yield": "max"}, constraints={"impurity": (0, 1)})
    with pytest.raises(ValueError, match="successful evaluation with all of yield, impurity, got none"):
        _ = loop.result().best


@pytest.mark.parametrize("objectives", [{"mass": "min"}, {"mass": "min", "cost": "min"}], ids=["one", "two"])
def test_under_noise_the_front_keeps_the_limits_as_measured_and_holds_the_best(objectives, tmp_path):
    """By its estimate alone a point would be on the front that broke a limit when it was measured."""
    random = np.random.default_rng(2)

    def measured(point):
        x, y = point["x"], point["y"]
        outcomes = {"mass": x + y, "cost": (x - 2.0) ** 2, "stiffness": x * y}
        return {name: value + 0.05 * random.standard_normal() for name, value in outcomes.items()}

    space = {"x": Float(0.0, 2.0), "y": Float(0.0, 2.0)}
    path = tmp_path / "run.journal"
    limits = {"stiffness": (1.0, None)}
    result = optimize(measured, space, objectives=objectives, constraints=limits, budget=16, seed=2, storage=path)
    assert any(one.estimates != one.outcomes for one in result.pareto_front)
    table = result.to_pandas().set_index("ticket")
    assert table.loc[[one.ticket for one in result.pareto_front], "feasible"].all()
    recorded = view_of_recorded(read_run(path))
    if len(objectives) == 1:
        (one,) = result.pareto_front
        assert one.parameters == result.best.parameters
        assert one.estimates["mass"] == pytest.approx(result.best.mean)
        row = table.reset_index().loc[recorded.outcomes.best_row]
        assert facts(recorded)["best feasible"] == f"{row['mass']:.4g}; as observed"
        assert recorded.best == {"x": row["x"], "y": row["y"]}
