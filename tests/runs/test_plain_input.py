"""Plain input: NumPy arrays, lists, integers, SciPy's bounds and objectives of one point are taken for what they are."""

import collections
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.optimize import Bounds, rosen

from sparse_bo import AskTell, Float, Int, Measured, Workers, maximize, minimize, optimize
from sparse_bo.errors import ObjectiveError
from sparse_bo.evaluations.results import FAILED
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.policies import ExpectedImprovement, RandomSearch, TrustRegion
from tests.evaluations import light

TENSOR = torch.tensor([[-2.0, 0.0, 1.0], [2.0, 1.0, 4.0]], dtype=torch.float64)
PAIRS = [(-2.0, 2.0), (0.0, 1.0), (1.0, 4.0)]
BOUNDS = {
    "pairs": PAIRS,
    "tuple": tuple(PAIRS),
    "lists": [list(pair) for pair in PAIRS],
    "integers": [(-2, 2), (0, 1), (1, 4)],
    "array": np.array(PAIRS),
    "array of integers": np.array([(-2, 2), (0, 1), (1, 4)]),
    "read-only": np.broadcast_to(np.array(PAIRS), (3, 2)),
    "SciPy's": Bounds([-2, 0, 1], [2, 1, 4]),
    "tensor": TENSOR,
    "tensor of integers": TENSOR.long(),
}
ROWS = np.random.default_rng(0).integers(0, 9, size=(40, 3))
ARMS = {
    "array": ROWS.astype(np.float64),
    "integers": ROWS,
    "bytes": ROWS.astype(np.uint8),
    "turned": np.asfortranarray(ROWS.astype(np.float64)),
    "every other": np.repeat(ROWS, 2, axis=0)[::2],
    "lists": ROWS.tolist(),
    "tensor": torch.from_numpy(ROWS).double(),
    "tensor of integers": torch.from_numpy(ROWS),
}


@pytest.mark.parametrize("bounds", BOUNDS.values(), ids=BOUNDS)
def test_every_form_of_bounds_is_the_same_box(bounds):
    loop = AskTell(bounds=bounds, policy=RandomSearch(batch_size=5), seed=3)
    reference = AskTell(bounds=TENSOR, policy=RandomSearch(batch_size=5), seed=3)
    assert loop.about["bounds"] == TENSOR.tolist()
    assert torch.equal(loop.ask().X, reference.ask().X)


@pytest.mark.parametrize("form", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float64], ids=lambda dtype: dtype.__name__)
def test_fingerprints_of_bits_and_bytes_are_those_of_floats(dtype, form):
    bits = np.random.default_rng(1).random((60, 40)) < 0.2
    policy = ExpectedImprovement(covar_module=TanimotoKernel(), batch_size=5)

    def picks(arms):
        return maximize(
            lambda i: float(bits[int(i)].sum()), arms=arms, policy=policy, budget=20, call_with="indices", vectorized=False
        ).history

    assert picks(form(bits.astype(dtype))).indices == picks(torch.from_numpy(bits).double()).indices


@pytest.mark.parametrize("arms", ARMS.values(), ids=ARMS)
def test_every_form_of_arms_is_the_same_set(arms):
    loop = AskTell(arms, RandomSearch(batch_size=5), seed=3)
    batch = loop.ask()
    assert loop.about["dtype"] == "torch.float64"
    assert batch.X.tolist() == ROWS[batch.indices].tolist()
    assert batch.indices.tolist() == AskTell(ARMS["tensor"], RandomSearch(batch_size=5), seed=3).ask().indices.tolist()


def test_float32_stays_what_it_is():
    assert AskTell(ARMS["array"].astype(np.float32), RandomSearch()).about["dtype"] == "torch.float32"
    assert AskTell(bounds=np.array(PAIRS, np.float32), policy=RandomSearch()).about["dtype"] == "torch.float32"


@pytest.mark.parametrize("domain", [{"bounds": PAIRS}, {"arms": ROWS}, {"arms": ROWS.tolist()}], ids=["box", "arms", "lists"])
def test_an_objective_of_arrays_gets_one_point_and_returns_a_number(domain):
    seen = []

    def objective(x):
        seen.append(x)
        return rosen(x)

    result = minimize(objective, **domain, policy=RandomSearch(batch_size=4), budget=8)
    assert all(isinstance(x, np.ndarray) and x.shape == (3,) and x.dtype == np.float64 for x in seen)
    values = [value for row in result.history.rows for value in row.values]
    assert values == [rosen(x) for x in seen]
    assert result.best.mean == min(values)
    assert result.best.x.tolist() == seen[int(np.argmin(values))].tolist()


def test_what_is_asked_for_comes_before_the_default():
    kinds = []
    maximize(lambda X: kinds.append(X) or X[:, 0], bounds=PAIRS, policy=RandomSearch(batch_size=4), budget=4, vectorized=True)
    maximize(lambda x: kinds.append(x) or 0.0, bounds=PAIRS, policy=RandomSearch(batch_size=4), budget=1, arrays="list")
    maximize(lambda i: kinds.append(i) or 0.0, arms=ROWS, policy=RandomSearch(), budget=1, call_with="indices")
    maximize(lambda b: kinds.append(b) or [0.0], arms=ROWS, policy=RandomSearch(batch_size=1), budget=1, call_with="batch")
    maximize(lambda X: kinds.append(X) or X[:, 0], bounds=TENSOR, policy=RandomSearch(batch_size=2), budget=2)
    assert isinstance(kinds[0], np.ndarray)
    assert kinds[0].shape == (4, 3)
    assert isinstance(kinds[1], list)
    assert isinstance(kinds[2], int | np.integer)
    assert kinds[3].tickets == [0]
    assert isinstance(kinds[4], torch.Tensor)


def test_what_is_asked_for_stays_where_a_debugger_reads_the_variables_of_every_line():
    kinds, before = [], sys.gettrace()

    def reads(frame, *_):
        assert frame.f_locals is not None
        return reads

    loop = AskTell(bounds=PAIRS, policy=RandomSearch(batch_size=4))
    sys.settrace(reads)
    try:
        loop.run(lambda x: kinds.append(x) or 0.0, 1, arrays="list")
    finally:
        sys.settrace(before)
    assert isinstance(kinds[0], list)


def test_workers_get_arrays_too():
    bounds = [(0.0, 1.0), (0.0, 1.0)]
    here = minimize(light.smooth, bounds=bounds, policy=RandomSearch(batch_size=4), budget=8)
    workers = Workers(executor="processes", count=2, asynchronous=False)
    there = minimize(light.smooth, bounds=bounds, policy=RandomSearch(batch_size=4), budget=8, executor=workers)
    assert [row.values for row in here.history.rows] == [row.values for row in there.history.rows]


def test_a_resume_calls_the_objective_as_before(tmp_path):
    path = tmp_path / "run.journal"
    minimize(rosen, arms=ROWS, policy=RandomSearch(batch_size=4), budget=4, storage=path)
    with AskTell.resume(path) as loop:
        loop.run(rosen, 4)
    with AskTell.resume(path, arms=ROWS) as loop:
        loop.run(rosen, 4)
    result = minimize(rosen, arms=ROWS, policy=RandomSearch(batch_size=4), budget=16, storage=path, resume=True)
    assert result.history.observations == 16
    again = tmp_path / "box.journal"
    for budget in (4, 8):
        minimize(rosen, bounds=PAIRS, policy=RandomSearch(batch_size=4), budget=budget, storage=again, resume=True)


def test_the_bounds_of_a_resumed_call_say_whether_the_objective_takes_many_points(tmp_path):
    how = {"policy": RandomSearch(batch_size=4), "storage": tmp_path / "run.journal", "resume": True}
    minimize(rosen, bounds=PAIRS, budget=4, **how)
    kinds = []

    def many(X):
        kinds.append((type(X), len(X)))
        return X.square().sum(dim=-1)

    minimize(many, bounds=torch.tensor(PAIRS, dtype=torch.float64).T, budget=8, **how)
    assert kinds == [(torch.Tensor, 4)]


@pytest.mark.parametrize("high", [9, 10**6])
@pytest.mark.parametrize("call_with", ["X", "indices", "batch"])
def test_columns_and_arms_of_a_space_in_another_order_are_refused(call_with, high, tmp_path):
    space = {"a": Int(0, high), "b": Int(0, high)}
    how = {"policy": RandomSearch(), "storage": tmp_path / "run.journal", "resume": True}
    maximize(lambda point: point["a"], space, budget=2, **how)
    with pytest.raises(ValueError, match=r"in the order of the run in .* \(a, b\), .* got b, a; write it in that order"):
        maximize(lambda x: 0.0, dict(reversed(space.items())), budget=4, call_with=call_with, **how)
    result = maximize(lambda point: point["a"], dict(reversed(space.items())), budget=4, **how)
    assert [value for row in result.history.rows for value in row.values] == [p["a"] for p in result.history.parameters]


TYPED = """
import numpy as np
import torch
from sparse_bo import AskTell, maximize, minimize

def f(x: np.ndarray) -> float:
    return float(x.sum())

result = minimize(f, bounds=[(0.0, 1.0), (0, 2)], budget=3, target=0.1, patience=3, seconds=3, progress=True)
mean: float = result.best.mean + result.best.sd + float(result.best.x.sum())
kind: str = result.best.parameters["kind"]
maximize(f, bounds=np.array([[0.0, 1.0]]), budget=3, stop=lambda loop: loop.asked > 2)
maximize(f, arms=[[0.0, 1.0]], budget=3, on_result=lambda one: print(one.value, one.x.sum(), one.parameters))
maximize(f, arms=np.zeros((3, 1)), budget=3)
maximize(f, bounds=torch.zeros(2, 3), budget=3)
AskTell(bounds=[[0, 1]], minimize=True)
"""


@pytest.mark.slow
def test_a_type_checker_accepts_plain_input_and_results_without_assertions(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed: pip install '.[dev]'")
    (tmp_path / "typed.py").write_text(TYPED)
    project = Path(__file__).parents[2] / "pyproject.toml"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(project), str(tmp_path / "typed.py")]
    done = subprocess.run(command, cwd=project.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("X", [ROWS[:2] / 9.0, (ROWS[:2] / 9.0).tolist(), torch.from_numpy(ROWS[:2] / 9.0)], ids=type)
@pytest.mark.parametrize("y", [[1.0, 2.0], (1, 2), np.array([1, 2]), np.array([[1.0], [2.0]]), range(1, 3)], ids=repr)
def test_observations_from_before_the_run_in_any_form(X, y):
    loop = AskTell(bounds=[(0.0, 1.0)] * 3, initial=(X, y), policy=RandomSearch())
    assert loop.history.points == (ROWS[:2] / 9.0).tolist()
    assert loop.history.rows[0].values == [1.0, 2.0]


@pytest.mark.parametrize("indices", [[3, 1], np.array([3, 1]), torch.tensor([3, 1])], ids=type)
def test_arms_from_before_the_run_in_any_form(indices):
    assert AskTell(ROWS, initial=(indices, [1, 2]), policy=RandomSearch()).history.indices == [3, 1]


@pytest.mark.parametrize(
    "make",
    [iter, lambda rows: (row for row in rows), lambda rows: map(list, rows), lambda rows: dict(enumerate(rows)).values()],
    ids=["iterator", "generator", "map", "values"],
)
@pytest.mark.parametrize("part", ["inputs", "values"])
def test_observations_that_are_no_sequence_name_the_fix(part, make):
    rows = (ROWS[:2] / 9.0).tolist()
    initial = (make(rows), [1.0, 2.0]) if part == "inputs" else (rows, make(rows))
    with pytest.raises(TypeError, match=rf"expected initial {part} as a list, an array or a tensor, got \w+; use list\(…\)$"):
        AskTell(bounds=[(0.0, 1.0)] * 3, initial=initial)
    if part == "inputs":  # the advice, followed
        assert AskTell(bounds=[(0.0, 1.0)] * 3, initial=(list(make(rows)), [1.0, 2.0])).history.points == rows


@pytest.mark.parametrize(
    ("domain", "initial", "message"),
    [
        ({"bounds": [(0.0, 1.0)] * 3}, (ROWS[:2] / 9.0, {1.0, 2.0}), "got set; pass a list, in the order of the other part"),
        ({"arms": ROWS}, (torch.tensor([1, 2], dtype=torch.uint8), [1.0, 2.0]), r"got torch.uint8; use .long\(\)"),
        ({"arms": ROWS}, ([0.0, 1.0], [1.0, 2.0]), r"got torch.float32; use .long\(\)"),
        ({"arms": ROWS}, (torch.ones(2, dtype=torch.bool), [1.0, 2.0]), r"got torch.bool; use .nonzero\(\).flatten\(\)"),
        ({"space": {"a": Float(0, 1)}}, ({"a": 0.5}, [1.0]), r"got dict; use \[point\]"),
        ({"space": {"a": Float(0, 1)}}, (({"a": v} for v in [0.5]), [1.0]), r"got generator; use list\(…\)"),
    ],
    ids=["set", "bytes", "floats", "mask", "one point", "generator"],
)
def test_observations_of_another_kind_name_a_fix_that_helps(domain, initial, message):
    with pytest.raises(TypeError, match=f"expected initial .*{message}$"):
        AskTell(**domain, initial=initial)


@pytest.mark.parametrize("flag", ["vectorized", "resume", "progress", "asynchronous"])
@pytest.mark.parametrize("value", ["no", 1, torch.tensor(False)], ids=type)
def test_flags_are_not_read_by_their_truth_value(flag, value, tmp_path):
    def run(**how):
        return maximize(lambda x: 0.0, bounds=[(0.0, 1.0)], budget=2, storage=tmp_path / "run.journal", **how)

    with pytest.raises(TypeError, match=f"expected {flag} to be True or False, got "):
        run(executor=Workers(asynchronous=value)) if flag == "asynchronous" else run(**{flag: value})


@pytest.mark.parametrize(
    ("y", "got"),
    [
        (None, "NoneType; pass a list, an array or a tensor, one number per input"),
        ("12", "str; pass a list, an array or a tensor, one number per input"),
        ({"a": 1.0, "b": 2.0}, "dict; pass a list, an array or a tensor, one number per input"),
        ([0.1, None], "NoneType None at position 1; leave out inputs without a result"),
        (np.array([None, 0.1], dtype=object), "NoneType None at position 0; leave out inputs without a result"),
        (["a", "b"], "str 'a' at position 0; pass one number per input"),
        ([0.1, "2"], "str '2' at position 1; pass one number per input"),
        ([0.1, [1.0, 2.0]], r"list \[1.0, 2.0\] at position 1; pass one number per input"),
        ([10**400, 1], "an integer beyond 1.8e308 at position 0; pass one number per input"),
        (np.array([1j, 0.5]), "complex 1j at position 0; pass one number per input"),
    ],
    ids=repr,
)
def test_values_that_are_no_numbers_name_the_fix(y, got):
    with pytest.raises(TypeError, match=f"^expected initial values to be numbers, got {got}$"):
        AskTell(bounds=[(0.0, 1.0)] * 3, initial=(ROWS[:2] / 9.0, y))


@pytest.mark.parametrize("y", [[Fraction(1, 2), 3], np.array([0.5, 3], dtype=object)], ids=repr)
def test_numbers_of_any_kind_are_values(y):
    run = AskTell(bounds=[(0.0, 1.0)] * 3, initial=(ROWS[:2] / 9.0, y))
    assert run.history.rows[0].values == [0.5, 3.0]


def test_a_table_of_arms_may_have_columns_of_truth_values_beside_numbers():
    """``pandas.get_dummies`` makes truth values, ``convert_dtypes`` and ``Result.to_pandas`` nullable integers."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"share": [0.5, 0.25, 1.5], "hours": pandas.array([4, 8, 2], dtype="Int64")})
    table["MEK"] = [True, False, True]
    loop = AskTell(table, initial=(pandas.Series([1, 2], index=[11, 7]), [1.0, 2.0]))
    assert loop.history.indices == [1, 2]
    assert loop.result().best_x.tolist() == [1.5, 2.0, 1.0]


def test_missing_entries_of_nullable_columns_are_missing_results():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [1.0, None, None], "b": [2, None, 3], "a_sd": [0.5, 0.5, None]}).convert_dtypes()
    ends = [(1.0, 2.0), (FAILED, FAILED), (FAILED, 3.0)]
    for given in (table, [row for _, row in table[["a", "b"]].iterrows()], [(1.0, 2), pandas.NA, {"a": pandas.NA, "b": 3}]):
        loop = AskTell(bounds=[(0.0, 1.0)], objectives={"a": "max", "b": "max"}, workers=3)
        loop.tell(loop.ask(3).tickets, given)
        assert loop.history.rows[0].outcomes == ends
    loop = AskTell(bounds=[(0.0, 1.0)], workers=3)
    loop.tell(loop.ask(3).tickets, table["a"])
    assert loop.history.rows[0].failed == 2
    with pytest.raises(ValueError, match="expected finite initial values, got NaN"):
        AskTell(bounds=[(0.0, 1.0)], initial=([[0.1], [0.2], [0.3]], table["a"]))


@pytest.mark.parametrize("names", [None, ["A", "B", "C"]])
def test_results_have_the_names_of_the_columns_of_a_table_of_arms(names, tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"share (%)": [0.5, 0.25, 1.5], "name": [4.0, 8.0, 2.0], "arm": [1, 1, 2], "arm_": [3, 1, 2]})
    run = AskTell(table, names=names, seed=0, storage=tmp_path / "run.journal")
    run.tell(run.ask(3).tickets, [0.5, 1.0, 2.0])
    run.close()
    with AskTell.resume(tmp_path / "run.journal") as again:
        for result in (run.result(), again.result()):
            frame = result.to_pandas()
            assert [*frame.columns[:4]] == ["share (%)", "name_", "arm_", "arm__"]
            assert frame["share (%)"].tolist() == table["share (%)"].iloc[frame["arm"]].tolist()
            assert "share (%)" in result.report()
            assert [*result.best.parameters.items()] == [*zip(frame, table.iloc[result.best_index], strict=False)]
    both = AskTell(table, names=names, seed=0, objectives={"a": "max", "b": "max"})
    both.tell(both.ask(3).tickets, [(0.5, 1.0), (1.0, 0.5), (0.0, 0.0)])
    for point in both.result().pareto_front:
        assert [*point.parameters.values()] == table.iloc[point.index].tolist()
    plain = AskTell(pandas.DataFrame(table.to_numpy()), seed=0)  # columns 0, 1, … are no names
    plain.tell(plain.ask(1).tickets, [0.5])
    assert [*plain.result().to_pandas().columns[:4]] == ["x1", "x2", "x3", "x4"]


@pytest.mark.parametrize("objectives", [None, {"yield": "max"}])
def test_inputs_of_a_table_are_not_taken_for_results(objectives):
    pandas = pytest.importorskip("pandas")
    named = "value" if objectives is None else "yield"
    table = pandas.DataFrame({named: [0.5, 0.25, 1.5], f"{named}_sd": [4.0, 8.0, 2.0], " ticket ": [7, 8, 9]})
    run = AskTell(table, seed=0, objectives=objectives)
    batch = run.ask(3)
    run.tell(batch.tickets, [1.0, 2.0, 3.0])
    frame = run.result().to_pandas()
    assert [*frame.columns[:4]] == [f"{named}_", f"{named}_sd_", "ticket_", "ticket"]
    again = AskTell(table, seed=0, objectives=objectives, initial=(frame, frame[named] if objectives is None else frame))
    assert again.result().to_pandas()[named].tolist() == [1.0, 2.0, 3.0]
    assert f"{named}_sd" not in again.result().to_pandas()


def test_numbers_of_arms_beside_the_inputs_of_others_are_refused():
    """A table of results of a run among other candidates: its numbers would be those of others here."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"resin": [1.0, 2.0, 0.125], "filler": [4.0, 5.0, 6.1]})
    run = AskTell(table)
    run.add([2, 0], [3.0, 1.0])
    frame = run.result().to_pandas()
    read = frame.assign(filler=frame["filler"] * (1.0 - 2.0**-52))  # pandas may differ from the file by a last digit
    for written in (frame, read, frame.astype({"filler": "float32"}), frame.round(2), frame.drop(columns="filler")):
        assert AskTell(table, initial=(written, frame["value"])).history.indices == [2, 0]
    longer = AskTell(pandas.concat([pandas.DataFrame({"resin": [0.0], "filler": [9.0]}), table], ignore_index=True))
    for given in (lambda: longer.add(frame, frame["value"]), lambda: longer.enqueue(frame)):
        with pytest.raises(ValueError, match=r"got 0.125 for 'resin' in row 0, where arm 2 has 2: arm numbers are rows"):
            given()


def test_a_column_of_inputs_is_not_taken_for_numbers_of_arms():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"dose": [2, 1, 0], "hours": [4, 5, 6]})
    loop = AskTell(table)
    for given in (lambda: loop.add(table["dose"], [1.0, 2.0, 3.0]), lambda: loop.enqueue(table["dose"])):
        with pytest.raises(TypeError, match="row numbers of the arms, got their input 'dose'; pass integers"):
            given()
    loop.add(pandas.Series([1], name="row"), [1.0])
    assert loop.history.indices == [1]


def test_all_columns_that_are_no_numbers_are_named():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"id": ["F-1", "F-2"], "share": ["44,0", "54,9"], "hours": [4, 8]})
    with pytest.raises(TypeError, match=r"other entries in the columns id, share; convert them .*get_dummies.*names="):
        AskTell(table)
    with pytest.raises(ValueError, match="finite arms, got NaN or infinite entries in 1 row"):
        AskTell(table[["hours"]].assign(MEK=pandas.array([1, None], dtype="Int64")))
    missing = table[["hours"]].assign(MEK=pandas.array([True, None], dtype="boolean"))
    with pytest.raises(TypeError, match="other entries in the column MEK;"):
        AskTell(missing)
    with pytest.raises(TypeError, match="initial inputs of numbers, got other entries in the columns id, share; "):
        AskTell(ROWS, initial=(table, [1.0, 2.0]))


def test_a_table_of_one_column_is_its_column():
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x1": [0.1, 0.2], "value": [0.5, 3.0]})
    X, bounds = ROWS[:2] / 9.0, [(0.0, 1.0)] * 3
    with pytest.raises(TypeError, match=r"one column, got a table of x1, value; pass one of them: table\['value'\]$"):
        AskTell(bounds=bounds, initial=(X, table))
    with pytest.raises(TypeError, match=r"got a table of x1, value, value_sd; pass one of them: table\['value'\]$"):
        AskTell(bounds=bounds, initial=(X, table.assign(value_sd=0.1)))
    assert AskTell(bounds=bounds, initial=(X, table["value"])).history.rows[0].values == [0.5, 3.0]  # the advice, followed
    loop = AskTell(bounds=bounds, initial=(X, table[["value"]]))
    loop.add(X[:1], table[["value"]][:1])
    loop.tell(loop.ask(2).tickets, table[["value"]])
    assert [row.values for row in loop.history.rows] == [[0.5, 3.0], [0.5], [0.5, 3.0]]
    made = maximize(lambda X: pandas.DataFrame({"value": X.sum(-1)}), bounds=bounds, budget=3, vectorized=True)
    assert made.history.observations == 3


@pytest.mark.parametrize("names", [["temp", "p"], [0, 1], ["x1", "x2"]], ids=str)
def test_a_table_of_a_box_is_taken_by_name_or_else_by_position(names):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame([[0.25, 0.75]], columns=names)
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, initial=(table, [1.0]))
    loop.add(table, [2.0])
    loop.enqueue(table)
    assert loop.ask(1).X.tolist() == [[0.25, 0.75]]
    assert loop.history.points == [[0.25, 0.75]] * 2


@pytest.mark.parametrize("columns", [["x2", "foo"], ["X2", "X1"], ["x2 ", "x1 "]])
def test_a_table_that_lacks_an_input_is_not_taken_by_position(columns):
    pandas = pytest.importorskip("pandas")
    loop, table = AskTell(bounds=[(0.0, 9.0)] * 2), pandas.DataFrame([[5.0, 0.2]], columns=columns)
    for call in (lambda: loop.add(table, [1.0]), lambda: loop.enqueue(table)):
        with pytest.raises(ValueError, match=r"^expected (columns x1 to x2, got no 'x1'; name all inputs so, or none$|.*foo)"):
            call()
    assert not loop.history.rows


@pytest.mark.parametrize(
    ("domain", "column", "message"),
    [
        (
            {"space": {"lr": Float(0.0, 1.0), "wd": Float(0.0, 1.0)}},
            "LR",
            "lr, wd of .*, got 'LR' and no 'lr'; did you mean 'lr'",
        ),
        ({"space": {"lr": Float(0.0, 1.0), "wd": Float(0.0, 1.0)}}, "lr_", "lr, wd of .*, got 'lr_' and no 'lr'; did you mean"),
        ({"bounds": [(0.0, 1.0)] * 2}, "foo", "x1, x2 of .*, got 'foo' and no 'x1'; drop that column, or give it the name of"),
    ],
)
def test_a_misspelt_column_of_enqueued_inputs_is_not_left_to_the_policy(domain, column, message):
    pandas = pytest.importorskip("pandas")
    loop, last = AskTell(**domain, objectives={"gain": "max"}), "wd" if "space" in domain else "x2"
    with pytest.raises(ValueError, match=f"^expected columns {message}"):
        loop.enqueue(pandas.DataFrame({column: [0.25], last: [0.5]}))
    loop.enqueue(pandas.DataFrame({last: [0.5], "ticket": [3], "gain": [1.0], "gain_sd": [0.1], "feasible": [True]}))
    batch = loop.ask(1)
    assert (batch.parameters[0]["wd"] if batch.parameters else batch.X[0, 1]) == 0.5
    whole = {"lr": [0.25], "wd": [0.5]} if "space" in domain else {"x1": [0.25], "x2": [0.5]}
    loop.enqueue(pandas.DataFrame({**whole, column: [1.0]}))  # nothing is left to the policy
    batch = loop.ask(1)
    assert (batch.parameters or batch.X.tolist()) == ([{"lr": 0.25, "wd": 0.5}] if "space" in domain else [[0.25, 0.5]])


def test_results_in_a_sparse_tensor_name_the_fix():
    y, several = torch.tensor([1.0, 0.0]).to_sparse(), torch.eye(2).to_sparse()
    message = r"expected y as a dense tensor, got layout torch.sparse_\w+; use y.to_dense\(\)"
    for given, named in ((y, {}), (several, {"objectives": {"a": "max", "b": "min"}})):
        loop = AskTell(bounds=[(0.0, 1.0)] * 3, **named)
        batch = loop.ask(2)
        with pytest.raises(TypeError, match=message):
            loop.tell(batch.tickets, given)
        loop.tell(batch.tickets, given.to_dense())
        assert loop.history.observations == 2
    with pytest.raises(ObjectiveError, match=message):
        maximize(lambda x: torch.tensor([1.0]).to_sparse(), bounds=[(0.0, 1.0)], budget=2)
    with pytest.raises(ObjectiveError, match=message):
        optimize(lambda x: torch.eye(2)[0].to_sparse(), bounds=[(0.0, 1.0)], objectives={"a": "max", "b": "min"}, budget=2)


def test_advice_on_inputs_of_another_dtype_is_code():
    with pytest.raises(TypeError, match=r"; use \.to\(dtype=torch\.float64, device='cpu'\)$"):
        AskTell(bounds=[(0.0, 1.0)] * 2, initial=(torch.zeros(1, 2, dtype=torch.float32), [0.0]))


@pytest.mark.parametrize(
    ("domain", "error", "message"),
    [
        (
            {"bounds": [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]},
            ValueError,
            r"as d pairs .*got shape \(2, 3\); .*torch.as_tensor\(bounds",
        ),
        ({"bounds": [0.0, 1.0]}, ValueError, r"as d pairs \[\(lower, upper\), …\], got shape \(2,\)"),
        (
            {"bounds": [[0.0, 0.0], [1.0, 1.0]]},
            ValueError,
            r"expected lower < upper bounds, got \[0.0, 0.0\] for input 0; .*rows of a tensor",
        ),
        ({"bounds": [[0.0, 0.0], [1.0, 10.0]]}, ValueError, "input 0; exchange them, .*rows of a tensor.*: transpose it"),
        ({"bounds": {"chord": (0.0, 1.0)}}, TypeError, "got dict; named parameters are space="),
        ({"bounds": [(0.0, 1.0), (2.0,)]}, TypeError, "expected bounds as rows of equal length"),
        ({"bounds": [(0.0, None)]}, TypeError, "expected bounds of numbers, got list of dtype object; convert it to float"),
        ({"bounds": [("a", "b")]}, TypeError, "expected bounds of numbers, got list of dtype <U1"),
        ({"bounds": [(0.0, np.inf)]}, ValueError, "finite bounds"),
        ({"bounds": []}, ValueError, r"as d pairs .*got shape \(0,\)"),
        ({"arms": []}, ValueError, "expected arms of shape"),
        ({"arms": [1.0, 2.0]}, ValueError, r"expected arms of shape .*got shape \(2,\)"),
        ({"arms": [["a"]]}, TypeError, "expected arms of numbers"),
        ({"arms": [[1.0, 2.0], [3.0]]}, TypeError, "expected arms as rows of equal length"),
        ({"arms": np.array([[1.0, np.nan]])}, ValueError, "finite arms"),
        ({"arms": "arms.npy"}, TypeError, "expected arms to be"),
        ({"bounds": "0:1"}, TypeError, "expected bounds to be"),
    ],
    ids=str,
)
def test_what_is_no_domain_is_refused_with_the_fix(domain, error, message):
    with pytest.raises(error, match=message):
        AskTell(**domain)


def test_a_space_may_come_second_and_bounds_there_say_their_name():
    space = {"x": Float(-1.0, 1.0)}
    second = maximize(lambda p: -(p["x"] ** 2), space, budget=6)
    assert second.best.parameters == maximize(lambda p: -(p["x"] ** 2), space=space, budget=6).best.parameters
    with pytest.raises(TypeError, match="expected a space .* got list; .* bounds of a box as bounds="):
        minimize(rosen, PAIRS, budget=6)


def test_outcomes_with_names_are_read_by_name():
    pandas = pytest.importorskip("pandas")
    named = collections.namedtuple("named", "cost gain")
    aims = {"objectives": {"gain": "max"}, "constraints": {"cost": (None, 0.5)}}
    for f in (
        lambda p: pandas.Series({"cost": p["x"], "gain": 10.0 + p["x"]}),
        lambda p: named(p["x"], 10.0 + p["x"]),
        lambda p: pandas.Series([10.0 + p["x"], p["x"]]),
    ):
        table = optimize(f, {"x": Float(0.0, 1.0)}, budget=3, **aims).to_pandas()
        assert table["cost"].tolist() == table["x"].tolist()
        assert table["gain"].tolist() == pytest.approx((10.0 + table["x"]).tolist())
    loop = AskTell(space={"x": Float(0.0, 1.0)}, **aims)
    batch = loop.ask(2)
    loop.tell(batch, pandas.DataFrame({"cost": [1.0, 0.2], "gain": [10.0, 20.0]}).to_records(index=False))
    assert loop.result().best.outcomes == {"gain": 20.0, "cost": 0.2}


def test_rows_of_one_table_in_two_orders_are_not_matched_by_position():
    """Points that were sorted got the results of others, without a word."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": [0.1, 0.2, 0.3], "value": [1.0, 2.0, 3.0]})
    mixed = table[["x"]].iloc[[2, 0, 1]]
    call = {"space": {"x": Float(0, 1)}, "policy": RandomSearch(batch_size=3)}
    loop = AskTell(**call)
    batch = loop.ask(3)
    answers = pandas.DataFrame({"ticket": batch.tickets, "value": [1.0, 2.0, 3.0]})
    for tried in (
        lambda: AskTell(**call, initial=(mixed, table["value"])),
        lambda: AskTell(space=call["space"], objectives={"value": "max"}, initial=(mixed, table[["value"]])),
        lambda: loop.add(mixed, table["value"]),
        lambda: loop.tell(batch.tickets, table["value"], X=mixed),
        lambda: loop.tell(answers["ticket"].iloc[::-1], answers["value"]),
    ):
        with pytest.raises(ValueError, match=r"rows in one order, got the same labels in two; use \w+\.loc\[\w+\.index\]"):
            tried()
    assert loop.history.rows == ()
    named = {"arms": [[0.0], [1.0], [2.0]], "names": list("abc"), "policy": RandomSearch(batch_size=3)}
    by_name = pandas.Series({"c": 3.0, "a": 1.0, "b": 2.0})
    two = {"objectives": {"value": "max", "other": "min"}}
    apart = {"value": table["value"], "other": table["value"].iloc[::-1]}
    backwards = pandas.Series([1.0, 2.0, 3.0], index=list(batch.tickets)[::-1])
    with_names = AskTell(**named)
    named_batch = with_names.ask(3)
    by_name_backwards = pandas.Series([1.0, 2.0, 3.0], index=[p["name"] for p in named_batch.parameters][::-1])
    for tried in (  # labels are names, tickets, or the rows of points
        lambda: AskTell(**named, initial=(list("abc"), by_name)),
        lambda: loop.tell(batch, backwards),
        lambda: loop.tell(list(batch.tickets), backwards),
        lambda: loop.tell(np.array(batch.tickets), backwards),
        lambda: with_names.tell(named_batch, by_name_backwards),
        lambda: with_names.tell(list(named_batch.tickets), by_name_backwards),
        lambda: AskTell(space=call["space"], **two, initial=(table[["x"]], apart)),
        lambda: maximize(lambda points: pandas.DataFrame(points)["x"].iloc[::-1], **call, budget=3, vectorized=True),
    ):
        with pytest.raises((ValueError, ObjectiveError), match="rows in one order, got the same labels in two; use"):
            tried()
    triple = {"x": table["x"], "value": [3, 1, 2], "other": table["value"].iloc[::-1]}  # numbers between two indices
    with pytest.raises(ValueError, match="rows in one order"):
        AskTell(space=call["space"], **two, initial=(table[["x"]], {name: triple[name] for name in ("value", "other")}))
    assert loop.history.rows == ()
    for initial in ((list("abc"), by_name.loc[list("abc")]), ([2, 0, 1], table["value"])):  # in order, and counted from 0
        assert AskTell(**named, initial=initial).result().to_pandas()["value"].tolist() == [1.0, 2.0, 3.0]
    for inputs, values in (
        (mixed, table["value"].loc[mixed.index]),
        (mixed.reset_index(drop=True), table["value"].iloc[[2, 0, 1]].tolist()),
        (mixed, pandas.Series([3.0, 1.0, 2.0], index=list("abc"))),
    ):
        frame = AskTell(**call, initial=(inputs, values)).result().to_pandas()
        assert (frame["value"] == 10.0 * frame["x"]).all()
        assert frame["value"].tolist() == [3.0, 1.0, 2.0]


def test_a_table_of_a_run_begins_another_by_the_names_of_its_columns():
    pytest.importorskip("pandas")
    for where in ({"bounds": [(0, 1), (0, 2)]}, {"arms": [[0.0, 1.0], [1.0, 0.0], [2.0, 2.0]]}):
        run = maximize(lambda x: float(x[0]) - float(x[1]), budget=3, seed=0, **where)
        table = run.to_pandas()
        for inputs in (table, table[list(reversed(table.columns))]):
            again = maximize(lambda x: 0.0, budget=0, initial=(inputs, table["value"]), **where)
            assert again.history.points == run.history.points
            assert again.history.indices == run.history.indices


def test_what_lies_below_a_mask_is_no_data():
    masked = np.ma.masked_equal([1.0, 999.0, 2.0], 999.0)
    arms = [[0.0], [1.0], [2.0]]
    with pytest.raises(ValueError, match="expected initial values without masked entries"):
        maximize(lambda x: -x[0], arms=arms, budget=4, initial=([0, 1, 2], masked))
    for name, call in {
        "arms": lambda: AskTell(masked[:, None]),
        "bounds": lambda: AskTell(bounds=np.ma.masked_equal([[0.0, 999.0]], 999.0)),
        "enqueued inputs": lambda: AskTell(bounds=[(0, 1)]).enqueue(masked[:, None]),
    }.items():
        with pytest.raises(ValueError, match=f"expected {name} without masked entries, got some; leave those rows out"):
            call()
    assert len(AskTell(np.ma.array(arms)).ask(1)) == 1  # nothing is masked


def test_all_bits_of_a_seed_count():
    def points(seed):
        return maximize(lambda x: -x[0], bounds=[(0, 1)] * 2, budget=4, seed=seed).history.points

    assert points(0) == points(0) != points(2**32)
    assert points(3) != points(2**40 + 3) == points(2**40 + 3)


def test_tensors_that_are_views_of_another_sign_are_taken_for_their_values():
    generator = torch.Generator().manual_seed(0)
    parts = torch.rand(2, 30, 2, dtype=torch.float64, generator=generator)
    X = torch.complex(*parts).conj().imag
    assert X.is_neg()
    best = maximize(lambda x: x.sum(dim=-1), arms=X, budget=8, seed=0)
    assert torch.equal(best.best_x, maximize(lambda x: x.sum(dim=-1), arms=X.clone(), budget=8, seed=0).best_x)
    loop = AskTell(bounds=[(-1.0, 0.0)] * 2, seed=0)
    loop.add(X[:6], X[:6].sum(dim=-1))
    assert torch.equal(loop.state.X, X[:6])
    assert loop.ask().X.shape == (4, 2)


def test_lists_of_tensors_that_require_gradients_are_taken_for_their_values():
    one, rows = torch.ones((), dtype=torch.float64, requires_grad=True), torch.from_numpy(ROWS[:4] / 9.0).requires_grad_()
    box = AskTell(bounds=[(0.0, one)] * 3, initial=(list(rows), list(rows.sum(dim=-1))), policy=RandomSearch())
    box.add([[one, 0.5, one]], [one])
    box.enqueue(list(rows[:1]))
    assert box.ask(1).X.tolist() == rows[:1].tolist()
    assert box.history.points == [*rows.tolist(), [1.0, 0.5, 1.0]]
    arms = AskTell(list(rows), initial=([0, 1], [Measured(one, sd=one), 2.0]), policy=ExpectedImprovement())
    assert arms.result().best_x.tolist() in rows.tolist()
    assert arms.history.rows[0].values == [1.0, 2.0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: maximize(f, bounds=[(0, 1)], n_trials=30), r"expected budget=, got n_trials=, .*; write budget=30"),
        (lambda f: minimize(f, bounds=[(0, 1)], max_evals=30), r"expected budget=, got max_evals="),
        (lambda f: optimize(f, bounds=[(0, 1)], objectives={"y": "max"}, iterations=30), r"expected budget=, got iterations="),
        (lambda f: AskTell(bounds=[(0, 1)]).run(f, n_trials=30), r"expected budget=, got n_trials="),
        (lambda f: maximize(f, bounds=[(0, 1)], budget=9, random_state=1), r"expected seed=, got random_state=.*write seed=1"),
        (lambda f: maximize(f, bounds=[(0, 1)], budget=9, n_jobs=2), r"expected workers=, got n_jobs="),
        (lambda f: maximize(f, bounds=[(0, 1)], budget=9, timeout=2.0), r"expected seconds=, got timeout="),
        (lambda f: maximize(f, bounds=[(0, 1)], budget=9, direction="minimize"), "got 'minimize'; call maximize or minimize"),
        (lambda f: maximize(f, bounds=[(0, 1)], budget=9, other=2.0), r"unexpected keyword argument 'other'"),
        (lambda f: maximize(f, bounds=[(0, 1)]), r"missing 1 required keyword-only argument: 'budget'"),
    ],
)
def test_names_of_other_libraries_are_answered_with_those_here(call, message):
    calls = []
    with pytest.raises(TypeError, match=message):
        call(calls.append)
    assert calls == []


class Dataset:
    """A column of a file: an array without ``tolist``, as those of h5py and zarr are."""

    ndim = 1

    def __init__(self, *values):
        self.values = np.array(values)
        self.shape, self.dtype = self.values.shape, self.values.dtype

    def __len__(self):
        return len(self.values)

    def __getitem__(self, row):
        return self.values[row]

    def __iter__(self):
        return iter(self.values)

    def __array__(self, dtype=None, copy=None):
        return self.values


def test_columns_of_files_are_taken():
    loop = AskTell([[0.0], [1.0]], names=Dataset("a", "b"), initial=(Dataset(0, 1), [1.0, 2.0]))
    loop.ask(2)
    loop.tell(Dataset(2, 3), [3.0, 4.0], X=Dataset(0, 1))
    assert loop.result().state.pulls == 4


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[ns]"])
def test_dates_and_durations_are_not_results(dtype):
    pandas = pytest.importorskip("pandas")
    loop = AskTell(bounds=[(0, 1)], seed=0)
    batch = loop.ask(2)
    times = np.array([3, 4], dtype=dtype)
    for given in (times, pandas.Series(times), [*times], pandas.DataFrame({"seconds": times}), [[time] for time in times]):
        with pytest.raises(TypeError, match="expected y"):
            loop.tell(batch, given)
    several = AskTell(bounds=[(0, 1)], objectives={"a": "max", "b": "min"}, seed=0)
    with pytest.raises(TypeError, match="expected y"):
        several.tell(several.ask(2), {"a": [1.0, 2.0], "b": times})
    named = [{"a": 1.0, "b": time} for time in times]
    for rows in ({"a": [1.0, 2.0], "b": [*times]}, named, [[1.0, time] for time in times], [[1.0, [time]] for time in times]):
        with pytest.raises(TypeError, match="expected y"):
            several.tell(several.pending, rows)
    for given in (times, [*times], [[time] for time in times]):
        with pytest.raises(TypeError, match="expected y"):
            AskTell(bounds=[(0, 1)], initial=([[0.1], [0.2]], given))
    if dtype.startswith("time"):
        with pytest.raises(TypeError, match="expected a result and its standard deviation as real numbers"):
            Measured(1.0, times[0])


def test_messages_about_rows_of_a_space_name_row_and_remedy():
    pandas = pytest.importorskip("pandas")
    space = {"rate": Float(0, 1), "depth": Int(1, 9)}
    table = pandas.DataFrame({"rate": [0.1, 0.2], "depth": [3, 4], "gain": [1.0, 2.0], "cost": ["1", "<0.01"]})
    loop = AskTell(space=space, objectives={"gain": "max", "cost": "min"})
    with pytest.raises(TypeError, match=r"got '<0.01' \(row 1\)$"):
        loop.add(table, [{"gain": 1.0, "cost": 1.0}, {"gain": 1.0, "cost": "<0.01"}])
    for given, fix in ((table[["rate", "depth"]].to_numpy(), "pass a table, or"), (table.iloc[0], r"use \[row.to_dict\(\)\]")):
        with pytest.raises(TypeError, match=fix):
            AskTell(space=space).add(given, [1.0, 2.0])
    with pytest.raises(ValueError, match="got an unknown 'dept' in row 0; did you mean 'depth'"):
        loop.enqueue([{"dept": 3}])


def test_results_by_arm_may_be_in_the_order_of_the_batch():
    pandas = pytest.importorskip("pandas")
    X = np.random.default_rng(0).random((6, 2))
    values = pandas.Series(X[:, 0])
    policy = ExpectedImprovement(batch_size=6)
    loop = AskTell(X, policy, seed=0)
    for whole in (True, False):
        loop = AskTell(X, policy, seed=0)
        batch = loop.ask()
        arms = batch.indices.tolist()
        assert sorted(arms) == [*range(6)] != arms
        loop.tell(batch if whole else list(batch.tickets), values.loc[arms])
        assert loop.result().to_pandas()["value"].tolist() == X[arms, 0].tolist()
    found = maximize(lambda i: values.loc[i], arms=X, budget=6, vectorized=True, call_with="indices", seed=0, policy=policy)
    assert found.best_observed_mean == X[:, 0].max()


def test_an_outcome_that_a_table_lacks_needs_no_noise():
    pandas = pytest.importorskip("pandas")
    loop = AskTell(bounds=[(0.0, 1.0)], objectives={"u": "max", "v": "min"}, policy=TrustRegion(batch_size=3))
    lacking = pandas.Series([1.0, None, 3.0], dtype=object)
    loop.tell(loop.ask(3), pandas.DataFrame({"u": lacking, "v": [1.0, 2.0, 3.0], "u_sd": [0.1] * 3}))
    assert loop.result().to_pandas()["u"].isna().tolist() == [False, True, False]
