"""Numbers out of a run: tables of pandas, a callback for every evaluation, a progress bar."""

import math
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Choice, Float, Int, RunInterrupted, Workers, maximize, minimize
from sparse_bo.policies import RandomSearch
from sparse_bo.policies.comparators.baselines import WithoutModel
from tests.builders import arms, unit_box

FOUR = RandomSearch(batch_size=4)
SPACE = {"lr": Float(1e-3, 1.0, log=True), "value": Int(1, 9), "kind": Choice("a", "b")}


def train(point):
    return math.nan if point["value"] == 3 else math.log10(point["lr"]) + point["value"] + (point["kind"] == "b")


@pytest.fixture
def pandas():
    return pytest.importorskip("pandas")


def test_a_table_has_every_evaluation_with_its_inputs(pandas):
    result = minimize(train, space=SPACE, policy=FOUR, budget=30, seed=2)
    table = result.to_pandas()
    assert list(table.columns) == ["lr", "value", "kind", "ticket", "batch", "value_"]
    assert len(table) == 30
    assert table["ticket"].tolist() == list(range(30))
    assert table["batch"].tolist() == [1 + k // 4 for k in range(30)]
    expected = [train(point) for point in table[["lr", "value", "kind"]].to_dict("records")]
    np.testing.assert_allclose(table["value_"], expected, rtol=1e-12)
    assert table["value_"].isna().sum() == (table["value"] == 3).sum() > 0


CONDITIONAL = {
    "kind": Choice("tree", "line", None),
    "depth": Int(1, 9, when={"kind": "tree"}),
    "features": Choice("sqrt", None, when={"kind": "tree"}),
    "width": Choice(1, 2, 4, when={"kind": ["line", None]}, ordered=True),
    "rate": Float(0.0, 1.0),
}


@pytest.mark.parametrize("by", ["table", "csv"])
def test_the_table_of_a_run_starts_another(by, pandas, tmp_path):
    result = maximize(lambda point: point["rate"] + point.get("depth", 0), space=CONDITIONAL, budget=12, seed=1)
    table = result.to_pandas()
    assert str(table["depth"].dtype) == "Int64"
    if by == "csv":  # integers beside empty cells come back as floats, None as an empty cell
        table.to_csv(tmp_path / "run.csv", index=False)
        table = pandas.read_csv(tmp_path / "run.csv")
    better = table["value"] + 1.0
    loop = AskTell(space=CONDITIONAL, initial=(table, better), seed=0)
    again = loop.result().to_pandas()
    assert again[list(CONDITIONAL)].equals(result.to_pandas()[list(CONDITIONAL)])
    assert again["value"].tolist() == better.tolist()
    assert again["added"].all()
    assert "added" not in table
    loop.add(table[:2], [0.5, 0.25])
    loop.enqueue(table[3:4])
    assert loop.ask(1).parameters == result.space.points_of(table[3:4])


def test_a_table_is_checked_as_points_are(pandas):
    table = maximize(lambda point: point["rate"], space=CONDITIONAL, budget=4).to_pandas()
    loop = AskTell(space=CONDITIONAL)
    values = [0.5] * len(table)
    with pytest.raises(ValueError, match="got no 'rate' in row 0; add it"):
        loop.add(table.drop(columns="rate"), values)
    wrong = table[:1].assign(kind="tree", depth=2.5, features="sqrt", width=None)
    with pytest.raises(TypeError, match=r"expected depth to be an integer, got float 2\.5"):
        loop.add(wrong, [0.5])
    with pytest.raises(ValueError, match="with 'depth' where 'kind' is 'tree', got no 'depth' in row 0"):
        loop.add(wrong.assign(depth=None), [0.5])
    with pytest.raises(ValueError, match="with 'width' only where 'kind' is 'line' or None, got a 'width' in row 0"):
        loop.add(wrong.assign(depth=2, width=4), [0.5])


def test_arms_are_in_the_table_by_number_and_inputs(pandas, tmp_path):
    X = arms()
    result = maximize(lambda X: X[:, 0], arms=X, policy=FOUR, budget=10, initial=([7, 8], [0.5, 0.25]))
    table = result.to_pandas()
    assert list(table.columns) == ["x1", "x2", "ticket", "batch", "arm", "added", "value"]
    assert table["arm"].tolist()[:2] == [7, 8]
    np.testing.assert_array_equal(table[["x1", "x2"]], X[table["arm"].tolist()])
    np.testing.assert_array_equal(table["value"][2:], table["x1"][2:])
    table.to_csv(tmp_path / "run.csv", index=False)
    assert pandas.read_csv(tmp_path / "run.csv").equals(table)


def test_the_history_is_a_table_of_batches(pandas):
    history = maximize(lambda X: X.sum(dim=-1), bounds=unit_box(), budget=12).history
    table = history.to_pandas()
    assert len(table) == len(history.rows)
    assert table["best_mean"].tolist() == history.column("best_mean")
    assert table["batch_size"].sum() == 12
    assert table["seconds_objective"].tolist() == [row.seconds["objective"] for row in history.rows]
    assert not {"indices", "points", "values", "tickets", "seconds"} & set(table.columns)
    empty = AskTell(bounds=unit_box()).result()
    assert len(empty.to_pandas()) == len(empty.history.to_pandas()) == 0


def test_without_pandas_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    result = AskTell(bounds=[(0, 1)]).result()
    for table in (result.to_pandas, result.history.to_pandas):
        with pytest.raises(ImportError, match=r"pandas is not installed; install it with: pip install '\.\[pandas\]'"):
            table()


WAYS = {
    "here": {"vectorized": False},
    "here, together": {"vectorized": True},
    "threads": {"executor": Workers(executor="threads", count=3, asynchronous=True), "vectorized": False},
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_every_evaluation_is_passed_on_once_with_its_result(way, tmp_path):
    seen, recorded = [], []
    loop = AskTell(arms(), FOUR, storage=tmp_path / "run.journal")

    def objective(x):
        y = x[..., 0].clone()
        y[y > 0.8] = math.nan
        return y if y.dim() else float(y)

    def on_result(evaluation):
        seen.append(evaluation)
        recorded.append(evaluation.ticket not in loop.pending)

    loop.run(objective, 22, on_result=on_result, **way)
    assert sorted(one.ticket for one in seen) == list(range(22))
    assert all(recorded)
    X = arms().numpy()
    for one in seen:
        np.testing.assert_array_equal(one.x, X[one.index])
        assert one.value == one.x[0] or (math.isnan(one.value) and one.x[0] > 0.8)
        assert one.parameters == {}
    assert "executor" in way or any(math.isnan(one.value) for one in seen)  # threads decide which arms are picked


def test_a_dropped_evaluation_is_passed_on_as_failed():
    seen = []

    def objective(point):
        if point["value"] > 4:
            raise OSError
        return train(point)

    workers = Workers(executor="threads", count=2, on_error="drop", asynchronous=False)
    maximize(objective, space=SPACE, policy=FOUR, budget=20, executor=workers, on_result=seen.append)
    assert {one.ticket: math.isnan(one.value) for one in seen} == {
        one.ticket: one.parameters["value"] > 4 or one.parameters["value"] == 3 for one in seen
    }
    assert len(seen) == 20


def test_an_exception_of_the_callback_ends_the_run_and_loses_nothing():
    loop = AskTell(arms(), FOUR)
    with pytest.raises(ZeroDivisionError) as caught:
        loop.run(lambda X: X[:, 0], 12, on_result=lambda one: 1 / 0)
    assert caught.value.loop is loop
    assert loop.state.pulls == 4


def test_evaluations_that_the_run_has_not_asked_for_are_counted_as_added(capsys):
    loop = AskTell(bounds=[(0.0, 1.0)], policy=FOUR, initial=([[0.1], [0.5], [0.9]], [1.0, 2.0, 3.0]))
    result = loop.run(lambda x: float(x[0]), 4, progress=True)
    assert " 4/4 " in capsys.readouterr().err
    assert "4 asked, 4 told, 0 failed, 3 added" in result.report()
    assert (result.history.observations, result.history.added) == (7, 3)


@pytest.mark.parametrize("run", [maximize, minimize])
def test_the_bar_goes_to_the_error_stream_and_ends_at_the_budget(run, capsys):
    run(lambda X: X[:, 0], bounds=unit_box(), policy=FOUR, budget=12, progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "12/12" in shown.err
    run(lambda X: X[:, 0], bounds=unit_box(), policy=FOUR, budget=12)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"on_result": 1}, "expected on_result to be callable"), ({"progress": "yes"}, "expected progress to be True or False")],
    ids=str,
)
def test_wrong_arguments_are_named_before_a_journal_is_created(wrong, message, tmp_path):
    with pytest.raises(TypeError, match=message):
        maximize(lambda X: X[:, 0], bounds=unit_box(), budget=4, storage=tmp_path / "run.journal", **wrong)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TypeError, match=message):
        AskTell(bounds=torch.tensor([[0.0], [1.0]])).run(lambda X: X[:, 0], 4, **wrong)


@dataclass(frozen=True, kw_only=True)
class PressesCtrlC(WithoutModel):
    """Is interrupted in the update after the fifth result."""

    def tell(self, state, picks, y, *, generator):
        if state.pulls == 4 and not PRESSED:
            PRESSED.append(True)
            raise KeyboardInterrupt
        return super().tell(state, picks, y, generator=generator)


PRESSED = []


@dataclass(frozen=True)
class Interrupted(RandomSearch):
    def on(self, domain):
        return PressesCtrlC(**vars(super().on(domain)))


def test_an_interrupt_during_an_update_loses_no_result():
    PRESSED.clear()
    seen = []
    loop = AskTell(bounds=[(0.0, 1.0)], policy=Interrupted(), seed=0)
    with pytest.raises(RunInterrupted, match="interrupted after 5 of 9 evaluations .1 not in the model yet") as caught:
        loop.run(lambda x: x[0], 9, on_result=seen.append)
    assert [one.ticket for one in seen] == list(range(5))
    assert len(caught.value.result.to_pandas()) == 5
    assert caught.value.result.best_observed_mean == max(one.value for one in seen)
    loop.run(lambda x: x[0], 4, on_result=seen.append)
    assert [one.ticket for one in seen] == list(range(9))
