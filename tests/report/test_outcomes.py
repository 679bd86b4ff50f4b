"""Several outcomes on pages, in figures and in facts."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Float, optimize
from sparse_bo.gp.expected_improvement import hypervolume
from sparse_bo.policies import Outcomes
from sparse_bo.report.facts import advice_of, facts
from sparse_bo.report.figures import fronts_over_time, hypervolume_so_far, trade_offs
from sparse_bo.report.page import result_card, run_page
from sparse_bo.runs import History
from sparse_bo.runs.columns import entering, outcome_columns
from sparse_bo.runs.history import HistoryRow
from sparse_bo.runs.recording import read_run
from sparse_bo.runs.view import view_of, view_of_journal, view_of_recorded
from tests.report.builders import HOSTILE, SHOWN, TAGS, Elements, table_after, view

TWO = Outcomes.of({"yield": "max", "cost": "min"}, {"impurity": (None, 0.5)}, {"yield": 0.0, "cost": 2.0})
ONE = Outcomes.of({"cost": "min"}, {"yield": (0.4, None), "impurity": (0.1, 0.9)})


def results(n=60, m=3, seed=0):
    return np.random.default_rng(seed).random((n, m)).tolist()


def seen(outcomes=TWO, rows=None, **changes):
    """Return the view of results with several outcomes at two inputs."""
    rows = results(m=len(outcomes.names)) if rows is None else rows
    columns = outcome_columns(outcomes, rows)
    inputs = np.random.default_rng(1).random((2, len(rows))).tolist()
    given = {"names": ["a", "b"], "columns": dict(zip("ab", inputs, strict=True)), "about": {"policy": "p", "seed": 0}}
    failed = int(columns.failed.sum())
    return view(
        values=np.array([row[0] for row in rows]),
        outcomes=columns,
        residuals=np.random.default_rng(1).standard_normal(100),
        **{"succeeded": len(rows) - failed, "failed": failed, **given, **changes},
    )


def test_columns_are_those_of_a_count_by_hand():
    rows = results(80)
    found = outcome_columns(TWO, rows)
    feasible = [k for k, row in enumerate(rows) if row[2] <= 0.5]

    def dominates(k, j):
        return k != j and rows[k][0] >= rows[j][0] and rows[k][1] <= rows[j][1]

    front = [k for k in feasible if not any(dominates(j, k) for j in feasible)]
    assert list(found.front) == sorted(front, key=lambda k: -rows[k][0])
    assert np.flatnonzero(found.entered).tolist() == [
        k for k in feasible if not any(dominates(j, k) for j in feasible if j < k)
    ]
    area, cost = 0.0, 2.0  # a sum of rectangles, the highest yield first
    for k in found.front:
        area, cost = area + rows[k][0] * (cost - rows[k][1]), rows[k][1]
    assert found.hypervolume == pytest.approx(area, rel=1e-12)
    at, volumes = found.volumes
    assert (at[0], at[-1], volumes[-1]) == (1.0, 80.0, pytest.approx(area))
    assert (np.diff(volumes) >= -1e-12).all()
    gains = torch.tensor([[rows[k][0], -rows[k][1]] for k in feasible if k < 40], dtype=torch.float64)
    half = volumes[np.searchsorted(at, 40, side="right") - 1]
    assert half == pytest.approx(hypervolume(gains, torch.tensor([0.0, -2.0], dtype=torch.float64)))
    beyond = [rows[k][0] * (2.0 - rows[k][1]) for k in found.front]
    assert found.best_row == found.front[int(np.argmax(beyond))]


def test_missing_outcomes_neither_enter_nor_count():
    nan = math.nan
    gains = np.array([[nan, 9.0], [1.0, 1.0], [1.0, 1.0], [2.0, 0.0], [0.5, 0.5], [3.0, 3.0]])
    assert entering(gains).tolist() == [False, True, False, True, False, True]
    found = outcome_columns(TWO, [(nan, 0.1, 0.1), (0.5, 0.5, nan), (nan, nan, nan), (0.2, 1.0, 0.4)])
    assert list(found.front) == [3]
    assert found.failed.tolist() == [False, False, True, False]
    assert np.isnan(found.ranking).tolist() == [True, True, True, False]


def test_a_reference_point_is_inferred_from_the_front_and_said_to_be():
    inferred = Outcomes.of(TWO.objectives, TWO.constraints)
    text = facts(seen(inferred))["hypervolume"]
    assert "inferred from the results" in text
    assert "yield = 0, cost = 2 (as given)" in facts(seen())["hypervolume"]
    assert outcome_columns(inferred, [(1.0, 1.0, 0.9)]).reference == {}


def test_facts_of_a_front_and_of_a_best_feasible_point():
    found = seen()
    lines = facts(found)
    feasible, front = int(found.outcomes.feasible.sum()), found.outcomes.front
    assert lines["feasible"] == f"{feasible} of 60 evaluations"
    assert lines["front"] == f"{len(front)} evaluations"
    assert lines["aims"] == "maximise yield, minimise cost, impurity at most 0.5"
    assert "best" not in lines
    assert lines["calibration"].startswith("of 100 predictions, 3 outcomes together, ")
    assert "Of 100 predictions, 3 outcomes together, " in run_page(replace(found, residuals=np.empty(0)))
    one = seen(ONE, best_mean=0.125, best={"a": 0.5, "b": 1.0})
    lines = facts(one)
    row = one.outcomes.best_row
    values = {name: y[row] for name, y in one.outcomes.values.items()}
    lowest = min(y for y, good in zip(one.outcomes.values["cost"], one.outcomes.feasible, strict=True) if good)
    assert values["cost"] == lowest
    assert lines["best feasible"].startswith("0.125")
    assert lines["with"] == f"yield = {values['yield']:.4g}, impurity = {values['impurity']:.4g}"
    assert lines["aims"] == "minimise cost, yield at least 0.4, impurity from 0.1 to 0.9"


def test_results_of_an_incomplete_batch_are_on_the_page_and_counted_where_there_is_no_model(tmp_path):
    """The report of a laboratory's journal, between two results of a plate."""
    path, aims = tmp_path / "run.journal", {"objectives": {"y": "max"}, "constraints": {"c": (None, 5.0)}}
    with AskTell(bounds=[(0.0, 1.0)], storage=path, **aims) as loop:
        loop.tell(loop.ask(4).tickets[:3], [{"y": 1.0, "c": 2.0}, {"y": 3.0, "c": 2.0}, {"y": 9.0, "c": 7.0}])
        result = loop.result()
    before = path.read_bytes()
    found = facts(view_of_recorded(read_run(path)))
    assert found["evaluations"] == "4 asked, 3 told, 0 failed, 1 out (3 results of the unfinished batch are left out below)"
    assert not {"feasible", "best", "best feasible"} & found.keys()
    seen = view_of_journal(path)
    assert facts(seen)["evaluations"] == "4 asked, 3 told, 0 failed, 1 out"
    assert facts(seen)["feasible"] == "2 of 3 evaluations"
    assert facts(seen)["best feasible"].startswith("3; ")
    assert seen.best == {"x1": result.best.x[0]}
    assert "best 0" not in run_page(replace(view_of_recorded(read_run(path)), missing="no arms"))
    assert path.read_bytes() == before


def test_results_of_an_incomplete_batch_are_in_the_view_of_one_outcome(tmp_path):
    path = tmp_path / "run.journal"
    with AskTell(bounds=[(0.0, 1.0)], storage=path) as loop:
        batch = loop.ask(4)
        loop.tell(batch.tickets[:1], [1.0])
        found = facts(view_of_recorded(read_run(path)))
        assert found["evaluations"].endswith(", 3 out (1 result of the unfinished batch is left out below)")
        loop.tell(batch.tickets[1:3], [4.0, 2.0])
    seen = view_of_journal(path, regret_of=lambda history: 5.0 - torch.tensor([y for row in history.rows for y in row.values]))
    assert seen.values.tolist() == [1.0, 4.0, 2.0]
    assert seen.regret.tolist() == [4.0, 1.0, 3.0]
    assert facts(seen)["best"].startswith("4")


@pytest.mark.parametrize(
    ("rows", "caption"), [([(0.1, math.nan, 0.5)], "none with all outcomes: "), ([(0.1, 0.2, 0.3)], "the best one: ")]
)
def test_the_table_of_the_best_evaluations_counts_them(rows, caption):
    assert caption in run_page(seen(ONE, rows))


def test_without_a_feasible_evaluation_the_least_violation_is_named():
    rows = [(0.5, 0.1, 0.5), (0.6, 0.3, 1.5), (0.7, 0.35, 0.5), (0.1, math.nan, 0.5)]
    found = seen(ONE, rows, best_mean=0.7)
    text = facts(found)["best"]
    assert text == (
        "no feasible evaluation yet; the least violation is yield = 0.35, which has to be at least 0.4 (evaluation 3 of 4)"
    )
    page = run_page(found)
    assert "No feasible evaluation yet." in page
    assert "yield = 0.35, which has to be at least 0.4" in page
    assert "No evaluation has succeeded." in run_page(seen(ONE, [(math.nan,) * 3] * 2))


def with_column(rows, column, value):
    return [(*row[:column], value(row) if callable(value) else value, *row[column + 1 :]) for row in rows]


ADVICE = {
    "nothing feasible": (
        with_column(results(), 2, lambda row: 0.6 + row[2]),
        "No evaluation is feasible after 60: impurity is not at most 0.5 in 60 of them, by 0.1",
    ),
    "an outcome is missing": (
        with_column(results(), 1, lambda row: math.nan if row[0] > 0.5 else row[1]),
        "cost is missing in",
    ),
    "an objective is constant": (with_column(results(), 1, 3.25), "The objective cost is 3.25 in all evaluations"),
    "a constraint is constant": (with_column(results(), 2, 0.25), "The constrained outcome impurity is 0.25 in all"),
    "the same twice": (with_column(results(), 1, lambda row: row[0]), "yield and cost are the same in all evaluations."),
    "the negative": (with_column(results(), 1, lambda row: -row[0]), "yield and cost are the same in all evaluations, up to"),
    "a front that stays": (
        [(1.0, 0.0, 0.0), *with_column(results(150), 0, lambda row: row[0] - 1.0)],
        "The last improvement is evaluation 1 of 151: the front has not changed since.",
    ),
}


@pytest.mark.parametrize(("rows", "expected"), ADVICE.values(), ids=ADVICE)
def test_advice_is_given_where_there_is_reason(rows, expected):
    found = [one for one in advice_of(seen(rows=rows)) if expected in one.warning]
    assert len(found) == 1
    assert found[0].remedy.endswith(".")


def test_without_limits_nothing_is_called_feasible():
    given = seen(Outcomes.of({"yield": "max"}, {}), results(m=1))
    assert {"feasible", "best feasible"}.isdisjoint(facts(given))
    assert "best" in facts(given)
    assert "evaluations are feasible" not in run_page(given)


def test_a_run_without_a_reason_gets_no_advice():
    rows = [(0.01 * k, 1.0 + 0.02 * (k * 7 % 5), 0.3 + 0.001 * k) for k in range(150)]
    assert advice_of(seen(rows=rows)) == []
    assert advice_of(seen(rows=[(9.0, 0.0, 0.0), *rows], added=100)) == []  # in an order of the user's


def test_trade_offs_show_every_pair_and_connect_the_front_of_two():
    (panel,) = trade_offs(seen().outcomes)
    steps, dots = (curve for curve in panel.curves if curve.name == "front")
    assert len(steps.x) == 2 * len(dots.x) - 1
    assert set(zip(dots.x, dots.y, strict=True)) <= set(zip(steps.x, steps.y, strict=True))
    assert ((np.diff(steps.x) == 0.0) | (np.diff(steps.y) == 0.0)).all()
    inside = {curve.name: curve for curve in panel.curves if curve.dots}["feasible"]
    for x, y in zip(inside.x, inside.y, strict=True):  # nothing feasible is beyond a step
        assert any(x <= a and y >= b for a, b in zip(dots.x, dots.y, strict=True))
    three = outcome_columns(Outcomes.of({"a": "max", "b": "min", "c": "max"}), results())
    assert [(one.x_name, one.y_name) for one in trade_offs(three)] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert all(sum(curve.name == "front" for curve in one.curves) == 1 for one in trade_offs(three))
    assert fronts_over_time(three) is None
    over_time = fronts_over_time(seen().outcomes)
    assert over_time is not None
    assert over_time.curves[-1].x.tolist() == steps.x.tolist()
    volumes = hypervolume_so_far(seen().outcomes)
    assert volumes is not None
    assert volumes.curves[0].y[-1] == seen().outcomes.hypervolume


def test_the_region_beyond_the_steps_is_empty():
    """Every corner between two points is worse than one of them in one objective, and equal in the other."""
    found = seen().outcomes
    steps = next(curve for curve in trade_offs(found)[0].curves if curve.name == "front")
    front = [(found.values["yield"][k], found.values["cost"][k]) for k in found.front]
    for x, y in zip(steps.x, steps.y, strict=True):
        assert any(x <= a and y >= b for a, b in front)


def history(outcomes, n=40, seed=0, policy="p"):
    rows = [
        HistoryRow(
            round=k + 1,
            pulls=k + 1,
            indices=[],
            points=[[k / n, 0.5]],
            values=[row[0]],
            outcomes=[tuple(row)],
            tickets=[k],
            seconds={"pick": 0.1},
        )
        for k, row in enumerate(results(n, len(outcomes.names), seed))
    ]
    return History(rows, {"policy": policy, "seed": 0, "bounds": [[0.0, 0.0], [1.0, 1.0]], "outcomes": outcomes.describe()})


@pytest.mark.filterwarnings("ignore:Glyph")  # the font lacks a letter
@pytest.mark.parametrize("count", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (3, 4)), 2])
def test_figures_of_one_to_four_objectives(count, tmp_path):
    names = ["cost in $", "a_b", "\x1b[31mred", "中"][:count]
    many = history(Outcomes.of(dict.fromkeys(names, "max"), {"z": (0.2, None)}))
    figure = many.plot()
    pairs = count * (count - 1) // 2
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles[-1] == "Seconds so far"
    assert len(titles) == (4 if count == 1 else pairs + 3)
    assert ("Best feasible so far" in titles) == (count == 1)
    assert ("Hypervolume so far" in titles) == (count > 1)
    figure.savefig(tmp_path / "figure.png", dpi=20)
    if count > 1:
        with pytest.raises(ValueError, match=f"expected regret= with one objective, got {count}"):
            many.plot(regret=[0.0] * 40)
    page = run_page(view_of(many, None, None))
    assert page.count("<svg") >= 5
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page)


def test_a_page_lists_the_front_with_all_outcomes():
    found = seen()
    found = replace(found, tickets=range(3, 3 + len(found.values)))
    page = run_page(found)
    rows = table_after(page, '<h2 id="evaluations-h">Front</h2>')
    values = found.outcomes.values
    assert [row[:5] for row in rows] == [
        [str(k + 3), *(f"{values[name][k]:.5g}" for name in TWO.names), "yes"] for k in found.outcomes.front[:20]
    ]
    one = seen(ONE)
    rows = table_after(run_page(one), '<h2 id="evaluations-h">Best evaluations</h2>')
    order = np.argsort(np.where(one.outcomes.feasible, one.values, np.inf), kind="stable")[:10]
    assert [row[0] for row in rows] == [str(k) for k in order]


def smooth(x):
    return {"gain": float(x[0] - x[1] ** 2), "loss": 2.0 + float((x[0] - 0.5) ** 2 + x[1]), "heat": float(x[0] + 0.5 * x[1])}


def told(function, n, **aims):
    """Return the result of a run that has been told ``n`` random points of the unit square, without picks of its own."""
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return AskTell(bounds=[(0.0, 1.0), (0.0, 1.0)], initial=(X, [function(x) for x in X]), seed=0, **aims).result()


@pytest.mark.parametrize(
    ("objectives", "name"), [({"gain": "max", "loss": "min"}, "front"), ({"loss": "min"}, "best point")], ids=["two", "one"]
)
def test_slices_are_of_each_outcome(objectives, name):
    limits = {"heat": (0.2, 1.0), "gain": (0.0, None)}
    result = told(smooth, 10, objectives=objectives, constraints=limits)
    found = view_of(result.history, result.state, result.domain)
    assert {(one.outcome, one.name) for one in found.slices} == {(y, x) for y in ("gain", "loss", "heat") for x in ("x1", "x2")}
    for one in found.slices:
        at = int(np.abs(np.array(one.values) - one.here).argmin())
        observed = found.outcomes.values[one.outcome][found.outcomes.best_row]
        assert one.median[at] == pytest.approx(observed, abs=0.1)
        assert (one.lower <= one.median).all()
        assert (one.median <= one.upper).all()
    page = run_page(found)
    assert f"Slices through the {name}" in page
    assert "<h3>loss along x2</h3>" in page
    heat = page[page.index("<h3>heat along x1</h3>") :].partition("</figure>")[0]
    assert ">limit<" in heat
    facts_of = facts(found)
    if name == "front":
        assert facts_of["hypervolume"].startswith(f"{result.hypervolume:.6g} beyond")
        assert found.outcomes.hypervolume == result.hypervolume
    else:
        assert facts_of["at"] == ", ".join(f"x{j + 1} = {x:.6g}" for j, x in enumerate(result.best.x))


def test_the_interval_of_the_best_point_is_the_models_with_and_without_slices():
    noise = (0.2 * torch.randn(20, generator=torch.Generator().manual_seed(0))).tolist()
    how = {"objectives": {"loss": "min"}, "constraints": {"heat": (0.2, 1.0)}}
    result = told(lambda x: smooth(x) | {"loss": float(x[0]) + noise.pop()}, 20, **how)
    page, table = (view_of(result.history, result.state, result.domain, most_slices=most) for most in (12, 0))
    assert page.best_interval == table.best_interval
    assert table.best_interval[0] < result.best.mean < table.best_interval[1]


def test_a_page_without_models_says_that_it_has_no_slices():
    found = seen()
    without = replace(found, outcomes=replace(found.outcomes, models=False))
    assert "no slices" in run_page(without)
    assert "no slices" not in run_page(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_names_of_outcomes_are_shown_letter_by_letter(kind):
    word, shown = HOSTILE[kind], SHOWN.get(kind, HOSTILE[kind])
    rows = with_column(results(), 1, math.nan)
    for outcomes in (Outcomes.of({word: "max", "b": "min"}, {f"{word}!": (2.0, None)}), Outcomes.of({word: "min"})):
        some = rows if len(outcomes.names) == 3 else [row[:1] for row in rows]
        for page in (run_page(seen(outcomes, some)), result_card(seen(outcomes, some))):
            read = Elements(page)
            assert read.tags <= TAGS
            assert "script" not in read.tags
            assert shown in "".join(read.texts)
            page.encode("utf-8")


def test_a_long_run_is_drawn_in_seconds_and_stays_small():
    rows = results(30_000, 3)
    page = run_page(seen(rows=rows))
    assert len(page) < 400_000
    assert "of 30,000 evaluations" in page


def test_the_best_point_is_shown_by_an_evaluation_with_results():
    """Its first evaluation has failed."""
    loop = AskTell([[0.0], [1.0], [2.0]], objectives={"y": "max"}, constraints={"c": (None, 1.0)})
    loop.enqueue([1, 1, 0, 2])
    failed = {"y": math.nan, "c": math.nan}
    loop.tell(loop.ask(4), [failed, {"y": 9.0, "c": 0.5}, {"y": 1.0, "c": 0.2}, {"y": 2.0, "c": 0.3}])
    page = run_page(view_of(loop.history, loop.state, loop._domain))
    assert view_of(loop.history, loop.state, loop._domain).outcomes.best_row == 1
    assert "y –" not in page


def test_a_front_that_is_empty_by_the_estimates_is_said():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(40, 2, dtype=torch.float64, generator=generator)

    def noisy(X):
        outcomes = torch.stack([X[:, 0], X[:, 1], torch.full((len(X),), 0.5, dtype=torch.float64)], dim=-1)
        return outcomes + 0.3 * torch.randn(len(X), 3, generator=generator, dtype=torch.float64)

    aims = {"objectives": {"yield": "max", "cost": "min"}, "constraints": {"impurity": (None, 0.1)}}
    result = optimize(noisy, arms=X, **aims, budget=14)
    assert result.feasible == 1
    assert not result.pareto_front
    page = result.report()
    assert "No front yet." in page
    assert "no evaluation is feasible both as observed and by the models" in page


def page_of(loop):
    result = loop.result()
    return run_page(view_of(result.history, result.state, result.domain))


def test_a_limited_outcome_that_ends_above_is_not_shown_as_one_that_ends_below():
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, objectives={"a": "max"}, constraints={"c": (None, 1.0)}, seed=0)
    for _ in range(10):
        batch = loop.ask(4)
        steep = 1e7 * (batch.X[:, 1] - 0.7).clamp_min(0.0)
        loop.tell(batch, {"a": batch.X[:, 0], "c": (batch.X - 0.3).square().sum(dim=-1) + steep})
    page = page_of(loop)
    assert re.search(r"Above [\d.]+ the model does not tell values apart", page)
    assert not re.search(r"Below [\d.]+ the model does not tell values apart", page)


def test_arms_have_their_names_in_tables_of_several_outcomes_and_of_failures():
    arms = torch.eye(16, dtype=torch.float64)[:, :12]
    names = [f"mol{k}" for k in range(16)]
    loop = AskTell(arms=arms, names=names, objectives={"a": "max", "b": "min"}, seed=0)
    batch = loop.ask(12)
    loop.tell(batch, [[math.nan] * 2 if arm % 5 == 0 else [float(arm), float(arm)] for arm in batch.indices.tolist()])
    page = page_of(loop)
    failed = [arm for arm in batch.indices.tolist() if arm % 5 == 0]
    assert failed
    assert all(f">{names[arm]}<" in page for arm in failed)
    assert sum(f">{name}<" in page for name in names) > len(failed) + 3


def test_without_a_feasible_evaluation_nothing_is_said_of_the_best_point():
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, objectives={"a": "max"}, constraints={"c": (None, -1.0)}, seed=0)
    for _ in range(6):
        batch = loop.ask(4)
        loop.tell(batch, {"a": batch.X[:, 0], "c": batch.X[:, 1]})
    result = loop.result()
    assert not any("best point" in one.warning for one in advice_of(view_of(result.history, result.state, result.domain)))


def test_a_failed_evaluation_is_not_the_least_violation():
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, objectives={"a": "max", "b": "min"}, seed=0)
    loop.tell(loop.ask(2), [{"a": math.nan, "b": math.nan}, {"a": 1.0, "b": math.nan}])
    result = loop.result()
    assert view_of(result.history, result.state, result.domain).outcomes.best_row == 1


def test_beside_many_outcomes_two_inputs_are_drawn():
    names = [f"c{k}" for k in range(11)]
    loop = AskTell(bounds=[(0.0, 1.0)] * 3, objectives={"a": "max"}, constraints=dict.fromkeys(names, (None, 2.0)), seed=0)
    for _ in range(6):
        batch = loop.ask(2)
        loop.tell(batch, {"a": batch.X[:, 0]} | {name: batch.X[:, k % 3] for k, name in enumerate(names)})
    assert "The 2 of 3 inputs that correlate most" in page_of(loop)


def test_outcomes_far_from_zero_are_told_apart():
    """All were 1.7e+09, in the facts and in the tables."""
    base = 1.7e9
    space = {"x": Float(0.0, 1.0), "time": Float(base, base + 50.0)}
    aims = {"objectives": {"y": "max"}, "constraints": {"z": (None, base + 0.9)}}
    result = optimize(lambda p: {"y": base - p["x"], "z": base + p["x"] ** 2}, space, budget=12, seed=0, **aims)
    made = view_of(result.history, result.state, result.domain)
    said = facts(made)
    assert "z at most 1700000000.9" in said["aims"]
    assert float(said["best feasible"].partition(";")[0].replace(",", "")) == pytest.approx(result.best_mean, abs=1e-3)
    page = re.sub("<svg.*?</svg>", "", run_page(made), flags=re.DOTALL)  # axes have room for few digits
    assert page.count("1.7e+09") == 0
