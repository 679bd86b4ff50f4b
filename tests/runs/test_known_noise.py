"""Results of known noise through a run: what is accepted, recorded, resumed, taken over, and shown."""

import copy
import json
import math
import pickle
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch

from sparse_bo import BBKB, AskTell, Choice, Float, History, Measured, Storage, maximize, minimize, observations_of, optimize
from sparse_bo.policies import ExpectedImprovement
from sparse_bo.runs import read_run
from sparse_bo.runs.view import view_of
from tests.builders import unit_box

LINE = [(0.0, 1.0)]


def heights(x):
    """Return a height whose noise is known."""
    return Measured(-((x[0] - 0.3) ** 2), 0.1 + x[0])


def asked(loop, budget):
    while loop.asked < budget:
        batch = loop.ask(2)
        loop.tell(batch.tickets, [heights(x) for x in batch.X.tolist()])
    return loop


def rows_of(loop):
    return [repr(one) for row in loop.history.rows for one in row.results]


def test_a_measured_number_is_a_number_and_keeps_its_deviation():
    one = Measured(np.float32(2.5), sd=torch.tensor(0.5))
    assert (one, one.sd, one + 1.0, repr(one)) == (2.5, 0.5, 3.5, "Measured(2.5, sd=0.5)")
    for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one), copy.copy(one)):
        assert (type(again), again, again.sd) == (Measured, 2.5, 0.5)
    assert json.dumps([one]) == "[2.5]"
    assert math.isnan(Measured(math.nan, math.nan))


@pytest.mark.parametrize(
    ("value", "sd", "kind", "message"),
    [
        (1.0, -0.1, ValueError, "expected a standard deviation ≥ 0 of the result 1, got -0.1"),
        (1.0, math.nan, ValueError, "got nan; return the number alone if the noise is not known"),
        (1.0, math.inf, ValueError, "got inf"),
        ("high", 1.0, TypeError, "expected a result and its standard deviation as real numbers, got 'high' and 1.0"),
        (1.0, None, TypeError, "got 1.0 and None"),
    ],
)
def test_a_wrong_deviation_is_refused(value, sd, kind, message):
    with pytest.raises(kind, match=message):
        Measured(value, sd)


def test_a_pair_in_a_run_with_one_objective_is_an_error_that_says_how():
    loop = AskTell(bounds=LINE)
    with pytest.raises(ValueError, match=r"known standard deviation is sparse_bo.Measured\(value, sd\)"):
        loop.tell(loop.ask(1).tickets, [(1.0, 0.1)])
    with pytest.raises(Exception, match=r"known standard deviation is sparse_bo.Measured\(value, sd\)"):
        maximize(lambda x: (1.0, 0.1), bounds=LINE, budget=2)


def test_policies_of_one_noise_refuse_before_anything_is_recorded(tmp_path):
    with AskTell(bounds=LINE, policy=BBKB(), storage=tmp_path / "run.journal") as loop:
        batch = loop.ask(2)
        size = (tmp_path / "run.journal").stat().st_size
        with pytest.raises(TypeError, match="policy 'bbkb' takes results without standard deviations"):
            loop.tell(batch.tickets, [Measured(1.0, 0.1), 2.0])
        with pytest.raises(TypeError, match=r"begin the run with policy=sparse_bo.policies.TrustRegion\(\), or"):
            loop.add([[0.5]], [Measured(1.0, 0.1)])
        assert loop.pending == batch.tickets
        assert (tmp_path / "run.journal").stat().st_size == size
        loop.tell(batch.tickets, [1.0, 2.0])
    with pytest.raises(TypeError, match="takes results without standard deviations"):
        AskTell(bounds=LINE, policy=BBKB(), initial=([[0.5]], [Measured(1.0, 0.1)]), storage=tmp_path / "other.journal")
    assert not (tmp_path / "other.journal").exists()
    arms = torch.rand(20_000, 1, dtype=torch.float64)  # in a long run over arms the default is none for known noise
    with pytest.raises(TypeError, match=r"begin the run with policy=sparse_bo.policies.ExpectedImprovement\(\), or"):
        AskTell(arms, initial=([3], [Measured(1.0, 0.1)]))
    AskTell(arms, ExpectedImprovement(), initial=([3], [Measured(1.0, 0.1)]))


@pytest.mark.parametrize("seconds", [0.0, math.inf], ids=["snapshots", "replay"])
def test_a_resumed_run_knows_the_noise(seconds, tmp_path):
    storage = Storage(tmp_path / "run.journal", replay_seconds=seconds)
    initial = ([[0.2], [0.9]], [Measured(0.1, 0.2), 0.3])
    with asked(AskTell(bounds=LINE, seed=2, initial=initial, storage=storage), 12) as loop:
        loop.add([[0.4]], [Measured(0.2, 0.7)])
        sd, rows = loop.state.sd, loop.history.rows
    whole = AskTell(bounds=LINE, seed=2, initial=initial)
    asked(whole, 12).add([[0.4]], [Measured(0.2, 0.7)])
    with AskTell.resume(storage) as again:
        assert repr(again.history.rows) == repr(rows)
        assert torch.equal(again.state.sd.nan_to_num(-1.0), sd.nan_to_num(-1.0))
        assert asked(again, 16).history.points == asked(whole, 16).history.points
        assert rows_of(again) == rows_of(whole)
    recorded = read_run(tmp_path / "run.journal")
    assert repr(recorded.history.column("sds")) == repr(whole.history.column("sds"))
    assert recorded.evaluations.sds[:2, 0].tolist() == pytest.approx([0.2, math.nan], nan_ok=True)


def test_the_first_result_of_known_noise_may_come_late(tmp_path):
    with AskTell(bounds=LINE, seed=2, storage=tmp_path / "run.journal") as loop:
        for k in range(8):
            batch = loop.ask(1)
            loop.tell(batch.tickets, [heights(batch.X[0].tolist()) if k > 5 else 1.0 * k])
        assert loop.state.sd.isnan().tolist() == [True] * 6 + [False] * 2
    assert read_run(tmp_path / "run.journal").evaluations.sds[:, 0].tolist()[:6] == pytest.approx([math.nan] * 6, nan_ok=True)


def test_a_run_is_found_again_by_its_initial_observations_and_their_noise(tmp_path):
    how = {"bounds": LINE, "budget": 6, "storage": tmp_path / "run.journal", "vectorized": False, "resume": True}
    X = [[0.2], [0.8]]
    maximize(heights, **how, initial=(X, [Measured(0.1, 0.2), 0.3]))
    maximize(heights, **how, initial=(X, [Measured(0.1, 0.2), 0.3]))
    for others in ([0.1, 0.3], [Measured(0.1, 0.3), 0.3]):
        with pytest.raises(ValueError, match="has other initial observations"):
            maximize(heights, **how, initial=(X, others))


def test_another_run_takes_the_noise_over(tmp_path):
    path = tmp_path / "run.journal"
    first = minimize(lambda x: heights(x), bounds=LINE, budget=10, storage=path, vectorized=False)
    then = AskTell(bounds=LINE, minimize=True, initial=observations_of(path))
    assert torch.equal(then.state.sd, first.state.sd)
    objectives = {"a": "max", "b": "min"}
    path = tmp_path / "outcomes.journal"
    several = optimize(lambda x: {"a": (x[0], 0.5), "b": x[0] ** 2}, bounds=LINE, objectives=objectives, budget=9, storage=path)
    then = AskTell(bounds=LINE, objectives={"b": "min", "c": "max"}, initial=observations_of(path))
    assert then.state.sds is None
    then = AskTell(bounds=LINE, objectives={"b": "min", "a": "max"}, initial=observations_of(path))
    assert torch.equal(then.state.sds[:, 1], several.state.sds[:, 0])


def test_history_files_and_tables_have_the_deviations(tmp_path):
    result = maximize(heights, bounds=LINE, budget=6, vectorized=False)
    result.history.save(tmp_path / "history.jsonl")
    assert repr(History.load(tmp_path / "history.jsonl").rows) == repr(result.history.rows)
    table = result.to_pandas()
    assert table["value_sd"].tolist() == pytest.approx((0.1 + table["x1"]).tolist())
    assert "value_sd" not in maximize(lambda x: float(heights(x)), bounds=LINE, budget=6, vectorized=False).to_pandas()


def test_workers_send_the_deviations():
    with ProcessPoolExecutor(1) as pool:
        result = maximize(heights, bounds=LINE, budget=4, executor=pool, workers=1, vectorized=False)
    assert result.state.sd.tolist() == pytest.approx((0.1 + result.state.X[:, 0]).tolist())


@pytest.mark.parametrize(
    "y",
    [[Measured(1.0, 0.1)], (Measured(1.0, 0.1),), [[Measured(1.0, 0.1)]], np.array([Measured(1.0, 0.1)], dtype=object)],
    ids=["list", "tuple", "rows", "objects"],
)
def test_every_form_of_results_keeps_the_deviations(y):
    told, added = AskTell(bounds=LINE), AskTell(bounds=LINE)
    told.tell(told.ask(1).tickets, y)
    added.add([[0.5]], y)
    for loop in (told, added, AskTell(bounds=LINE, initial=([[0.5]], y))):
        assert loop.state.sd.tolist() == [0.1]


@pytest.mark.parametrize("pair", [((1.0, 0.1), 0.2), (Measured(1.0, 0.1), 0.2)], ids=["pair", "measured"])
def test_two_deviations_of_an_outcome_are_refused(pair):
    loop = AskTell(bounds=LINE, objectives={"a": "max", "b": "min"})
    with pytest.raises(TypeError, match="expected a number and one standard deviation for the outcome 'a', got"):
        loop.tell(loop.ask(1).tickets, [{"a": pair, "b": 2.0}])


@pytest.mark.parametrize(
    ("row", "sds"),
    [
        ({"a": (1.0, 0.5), "b": 2.0}, (0.5, math.nan)),
        ({"a": [1.0, 0.5], "b": (2.0, None)}, (0.5, math.nan)),
        ({"a": Measured(1.0, 0.5), "b": np.array([2.0, 0.25])}, (0.5, 0.25)),
        ([(1.0, 0.5), 2.0], (0.5, math.nan)),
        ((1.0, Measured(2.0, 0.25)), (math.nan, 0.25)),
        ({"a": (None, 0.5), "b": (2.0, 0.25)}, (math.nan, 0.25)),
    ],
)
def test_an_outcome_may_be_a_pair(row, sds):
    loop = AskTell(bounds=LINE, objectives={"a": "max", "b": "min"})
    loop.tell(loop.ask(1).tickets, [row])
    assert loop.state.sds[0].tolist() == pytest.approx(sds, nan_ok=True)
    assert loop.state.Y[0, 1] == 2.0


def test_a_wrong_deviation_of_an_outcome_is_refused():
    loop = AskTell(bounds=LINE, objectives={"a": "max", "b": "min"})
    with pytest.raises(ValueError, match="expected a standard deviation ≥ 0 of the result 1, got -1"):
        loop.tell(loop.ask(1).tickets, [{"a": (1.0, -1.0), "b": 2.0}])


def test_failures_among_results_of_known_noise_are_failures():
    loop = AskTell(bounds=unit_box(2), seed=1)
    batch = loop.ask(3)
    loop.tell(batch.tickets, [Measured(1.0, 0.1), math.nan, Measured(math.nan, 0.1)])
    assert (loop.state.pulls, loop.history.rows[0].failed) == (1, 2)
    assert loop.history.rows[0].sds == [
        (0.1,),
        (pytest.approx(math.nan, nan_ok=True),),
        (pytest.approx(math.nan, nan_ok=True),),
    ]


def test_slices_show_the_noise_of_each_result():
    drawn = {}
    for name, objective in {"some": lambda x: heights(x) if x[0] > 0.2 else -x[0], "none": lambda x: -x[0]}.items():
        loop = AskTell(bounds=LINE, seed=0)
        while loop.asked < 8:
            batch = loop.ask(4)
            values = [objective(x) for x in batch.X.tolist()]
            loop.tell(batch.tickets, [math.nan, *values[1:]] if loop.asked < 4 else values)
        result = loop.result()
        drawn[name] = view_of(result.history, result.state, result.domain), result.report()
    view, page = drawn["some"]
    sds, x = view.sds[""], np.array(view.columns["x1"])
    known = (x > 0.2) & ~np.isnan(view.values)
    assert sds[known] == pytest.approx(0.1 + x[known])
    assert np.isnan(sds[~known]).all()
    assert known.any()
    assert "with the noise told" in page
    view, page = drawn["none"]
    assert view.sds == {}
    assert "with the noise told" not in page


def test_slices_show_the_noise_of_each_outcome():
    def both(x):
        return {"gain": (x[0], 0.1), "loss": x[0] ** 2}

    result = optimize(both, bounds=LINE, objectives={"gain": "max", "loss": "min"}, budget=6, seed=0, vectorized=False)
    gain, loss = view_of(result.history, result.state, result.domain).sds.values()
    assert gain.tolist() == [0.1] * 6
    assert np.isnan(loss).all()


def test_a_table_brings_its_noise():
    X, names = [[0.1], [0.5], [0.9]], {"objectives": {"a": "max", "b": "min"}}
    told = [Measured(1.0, 0.3), 2.0, Measured(3.0, 0.1)]
    for how, values in (({}, told), (names, [{"a": y, "b": -y} for y in told])):
        before = AskTell(bounds=LINE, initial=(X, values), **how).result().to_pandas()
        results = before["value"] if not how else before[["b", "a"]]
        after = AskTell(bounds=LINE, initial=(before, results), **how).result().to_pandas()
        assert after.equals(before)
        without = AskTell(bounds=LINE, initial=(before[["x1"]], results), **how).result().to_pandas()
        assert not any(name.endswith("_sd") for name in without.columns)
    for space, aims in (({"x": Float(0.0, 1.0)}, {"y": "max", "y_sd": "min"}), ({"value": Float(0.0, 1.0)}, None)):
        loop = AskTell(space=space, objectives=aims)  # of columns of one name the later one has another
        (name,) = space
        row = Measured(1.0, 0.3) if aims is None else {"y": Measured(1.0, 0.3), "y_sd": 0.1}
        loop.add([{name: 0.5}], [row])
        table, other = loop.result().to_pandas(), AskTell(space=space, objectives=aims)
        other.add(table, table["value_"] if aims is None else table[[*aims]])
        assert other.result().to_pandas().equals(table)
    space = {"x": Float(0.0, 1.0), "value_sd": Float(0.0, 1.0)}  # a parameter of that name is no noise
    loop = AskTell(space=space, initial=(pd.DataFrame({"x": [0.5], "value_sd": [0.2]}), pd.Series([1.0], name="value")))
    assert loop.result().to_pandas().columns.tolist() == ["x", "value_sd", "ticket", "batch", "added", "value"]


def test_noise_among_the_results_of_a_table_is_known():
    table = pd.DataFrame({"x1": [0.1, 0.2, 0.5], "y": [1.0, 2.0, 3.0], "y_sd": [0.1, math.nan, 0.2], "c": [1.0, 1.0, 2.0]})
    how = {"bounds": LINE, "objectives": {"y": "max"}, "constraints": {"c": (None, 2.0)}}
    for results in (table, table[["y", "c"]], table[["c", "y_sd", "y"]], table.convert_dtypes()):
        found = AskTell(**how, initial=(table, results)).result().to_pandas()
        assert found["y_sd"].fillna(0.0).tolist() == [0.1, 0.0, 0.2]
    loop = AskTell(**how)
    loop.tell(loop.ask(3), table[["y", "y_sd", "c"]])
    assert loop.result().to_pandas()["y_sd"].fillna(0.0).tolist() == [0.1, 0.0, 0.2]
    whole = table.convert_dtypes()
    found = AskTell(bounds=LINE, initial=(whole[["x1", "y", "y_sd"]], whole["y"])).result().to_pandas()
    assert found["value_sd"].fillna(0.0).tolist() == [0.1, 0.0, 0.2]


def test_a_row_of_a_table_with_text_keeps_the_deviations():
    loop = AskTell(bounds=[(0.0, 1.0)], objectives={"y": "max"})
    batch = loop.ask(1)
    loop.tell(batch, [pd.Series({"y": Measured(1.0, 0.1), "note": "calm"})])
    assert loop.history.rows[0].results[0][0].sd == 0.1


def test_columns_of_values_with_a_name_that_inputs_have_bring_their_noise():
    space = {"value_": Choice("a", "b"), "value": Float(0, 1)}
    loop = AskTell(space=space)
    loop.tell(loop.ask(2), [Measured(1.0, 0.1), Measured(2.0, 0.2)])
    table = loop.result().to_pandas()
    again = AskTell(space=space, initial=(table, table["value__"]))
    assert [value.sd for value in again.history.rows[0].results] == [0.1, 0.2]
