"""Names of arms: in batches, results, tables, pages and journals; taken wherever arms are."""

from __future__ import annotations

import math

import numpy as np
import pandas
import pytest
import torch

from sparse_bo import AskTell, Float, maximize, minimize, observations_of
from sparse_bo.domains import MemmapArms, NamedArms
from sparse_bo.policies import ExpectedImprovement, RandomSearch
from tests.builders import arms, waves

NAMES = [f"mol-{k}" for k in range(60)]


class PolarsSeries:
    """A column as Polars has it: without ``tolist``."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def to_list(self):
        return [*self.values]

    def to_numpy(self):
        return np.array(self.values)


def test_names_are_in_batches_results_tables_and_the_page():
    loop = AskTell(arms(), ExpectedImprovement(initial_design=6), names=NAMES)
    seen = []
    result = loop.run(waves, 14, on_result=lambda one: seen.append((one.index, one.parameters)))
    assert all(parameters == {"name": NAMES[index]} for index, parameters in seen)
    assert result.best.name == NAMES[result.best_index]
    assert result.history.names == [NAMES[i] for i in result.history.indices]
    frame = result.to_pandas()
    assert frame["name"].tolist() == result.history.names
    page = result.report()
    assert f"{result.best.name} (arm {result.best_index})" in page
    assert page.count("mol-") > 10
    batch = loop.ask(2)
    assert [one["name"] for one in batch.parameters] == [NAMES[i] for i in batch.indices]


def test_names_are_taken_where_arms_are():
    loop = AskTell(arms(), RandomSearch(), names=np.array(NAMES).tolist(), initial=(["mol-3", "mol-9"], [0.5, 1.5]))
    assert loop.history.indices == [3, 9]
    loop.add(["mol-4"], [2.5])
    loop.enqueue(["mol-7"])
    assert loop.ask().indices.tolist() == [7]
    assert loop.result().best.name == "mol-4"
    with pytest.raises(TypeError, match=r"a list of names or rows of the arms, got 'mol-7'; use \['mol-0', …\]"):
        loop.enqueue("mol-7")
    with pytest.raises(TypeError, match="a list of names or rows of the arms, got 'dict'"):
        loop.enqueue({"name": "mol-7"})
    with pytest.raises(ValueError, match="among the names of the arms, got 'mol-99'; did you mean 'mol-9'"):
        loop.add(["mol-99"], [1.0])
    loop.add([5], [0.0])
    assert loop.history.names[-1] == "mol-5"


def test_names_in_an_array_or_a_column_are_names():
    """``torch.as_tensor`` was advised, which takes no text."""
    pandas = pytest.importorskip("pandas")
    given = ["mol-3", "mol-9"]
    column = pandas.Series(given, index=[7, 2])
    forms = [np.array(given), np.array(given, dtype=object), column, column.astype("string"), column.to_frame("name")]
    for form in (*forms, pandas.Index(given), PolarsSeries(given)):
        loop = AskTell(arms(), RandomSearch(), names=NAMES, initial=(form, [0.5, 1.5]))
        assert loop.history.indices == [3, 9]
        loop.enqueue(form)
        assert loop.ask(1).indices.tolist() == [3]
        loop.add(form, [0.0, 0.0])
    with pytest.raises(ValueError, match="among the names of the arms, got 'mol-99'; did you mean 'mol-9'"):
        AskTell(arms(), RandomSearch(), names=NAMES, initial=(np.array(["mol-99"]), [0.5]))


def test_a_table_of_polars_is_refused_where_pandas_is_needed():
    table = PolarsSeries([[3.0, 1.0], [4.0, 2.0]])
    table.columns, table.to_dict, table.to_pandas = ["yield", "cost"], dict, list
    with pytest.raises(TypeError, match=r"outcomes as a pandas table, got one of .*; use to_pandas\(\)"):
        AskTell(arms(), objectives={"yield": "max", "cost": "min"}, initial=([0, 1], table))
    with pytest.raises(TypeError, match=r"list of dictionaries with x, got PolarsSeries; use to_pandas\(\)"):
        AskTell(space={"x": Float(0, 1)}, initial=(table, [1.0, 2.0]))


def test_names_of_a_column_in_another_order_than_the_arms_are_refused():
    """Arms of a table that was sorted got the names of others."""
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"x": [0.1, 0.2, 0.3], "name": ["a", "b", "c"]})
    mixed = table.sort_values("x", ascending=False)
    for call in (AskTell, lambda **given: maximize(lambda x: x[0], budget=1, **given)):
        with pytest.raises(ValueError, match=r"arms and names with their rows in one order.* use names\.loc\[arms\.index\]"):
            call(arms=mixed[["x"]], names=table["name"])
    loop = AskTell(arms=mixed[["x"]], names=table["name"].loc[mixed.index], policy=RandomSearch(batch_size=3))
    assert {one["name"]: float(x) for one, x in zip(*(lambda b: (b.parameters, b.X[:, 0]))(loop.ask(3)), strict=True)} == {
        "a": 0.1,
        "b": 0.2,
        "c": 0.3,
    }


def test_outcomes_of_the_best_arm_are_not_those_of_others_with_equal_inputs():
    loop = AskTell([[0.0], [1.0], [1.0]], names=["a", "b", "c"], objectives={"y": "max"})
    loop.add(["a", "b", "c", "b"], [[0.0], [10.0], [0.0], [12.0]])
    best = loop.result().best
    assert (best.name, best.outcomes) == ("b", {"y": 11.0})


def test_a_table_of_results_gives_them_to_the_arms_of_its_names():
    """Row numbers of the table are those of other arms."""
    pytest.importorskip("pandas")
    loop = AskTell(torch.tensor([[0.0], [1.0], [2.0]]).double(), names=["a", "b", "c"])
    loop.add(["b", "a"], [5.0, 1.0])
    table = loop.result().to_pandas()
    given = {"arms": torch.tensor([[2.0], [1.0], [0.0]]).double(), "policy": RandomSearch()}
    initial = (table, table["value"])
    assert AskTell(**given, names=["c", "b", "a"], initial=initial).history.names == ["b", "a"]
    by_row = (table.drop(columns=["name", "x1"]), table["value"])
    assert AskTell(**given, initial=by_row).history.indices == [1, 0]
    assert AskTell(**given, names=["c", "b", "a"], initial=by_row).history.names == ["b", "c"]


def test_an_index_of_distinct_texts_names_the_candidates(tmp_path):
    table = pandas.DataFrame({"x": torch.arange(12.0).numpy(), "id": NAMES[:12]})
    call = {"arms": table.set_index("id"), "storage": tmp_path / "a.journal", "policy": RandomSearch()}
    result = maximize(lambda x: float(x[0]), budget=3, **call)
    assert result.history.names == [NAMES[i] for i in result.history.indices]
    assert result.best.name == NAMES[max(result.history.indices)]
    assert maximize(lambda x: float(x[0]), budget=4, resume=True, **call).history.observations == 4
    with pytest.raises(ValueError, match="has other names of its arms, or none"):
        maximize(lambda x: float(x[0]), budget=5, resume=True, **{**call, "arms": table.set_index(table["id"] + "b")[["x"]]})
    for index in (range(12), ["a"] * 12, [*NAMES[:11], 3]):
        assert "names" not in AskTell(table[["x"]].set_index(pandas.Index(index, dtype=object))).about
    assert AskTell(table.set_index("id"), names=NAMES[12:24]).about["names"] == NAMES[12:24]


def test_a_journal_has_the_names(tmp_path):
    call = {"arms": arms(), "policy": RandomSearch(batch_size=4), "storage": tmp_path / "a.journal", "resume": True}
    maximize(waves, budget=8, names=NAMES, **call)
    result = maximize(waves, budget=12, **call)
    assert result.history.names == [NAMES[i] for i in result.history.indices]
    with AskTell.resume(tmp_path / "a.journal") as loop:
        loop.add(["mol-0"], [1.0])
    with pytest.raises(ValueError, match="has other names of its arms, or none"):
        maximize(waves, budget=12, names=NAMES[::-1], **call)
    other = AskTell(arms(), RandomSearch(), names=NAMES, initial=observations_of(tmp_path / "a.journal"))
    assert len(other.history.names) == 13


@pytest.mark.parametrize(
    ("rows", "names", "expected"),
    [
        ([0, 1, 1], "abc", ["b", "a", "c"]),
        ([0, 1, 1], "acb", ["b", "a", "c"]),  # the same arms in the journal's eyes
        ([1, 1, 0, 2], "cbad", ["b", "a", "c"]),
        ([1, 0, 1, 2], "dabc", ["b", "a", "d"]),  # c has other inputs: by inputs, the first
        ([2, 1, 0, 0], "bdea", ["d", "a", "d"]),
        ([2, 1, 0, 1], None, [1, 2, 1]),
    ],
)
def test_of_arms_with_equal_inputs_an_observation_is_that_of_its_name(rows, names, expected, tmp_path):
    def arms_of(numbers):
        return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)

    with AskTell(arms_of([0, 1, 1]), names=["a", "b", "c"], storage=tmp_path / "a.journal") as loop:
        loop.add(["b", "a", "c"], [5.0, 1.0, 2.0])
    again = None if names is None else [*names]
    other = AskTell(arms_of(rows), RandomSearch(), names=again, initial=observations_of(tmp_path / "a.journal"))
    assert (other.history.indices if names is None else other.history.names) == expected
    assert [value for row in other.history.rows for value in row.values] == [5.0, 1.0, 2.0]


def test_names_of_candidates_in_a_file_are_those_of_its_observations(tmp_path):
    np.save(tmp_path / "arms.npy", np.array([[0.0], [1.0], [1.0], [2.0]]))
    points = MemmapArms(tmp_path / "arms.npy")
    with AskTell(points, names=["a", "b", "c", "d"], storage=tmp_path / "a.journal") as loop:
        loop.add(["b", "a", "d"], [5.0, 1.0, 2.0])
    for names, expected in (("abcd", ["b", "a", "d"]), ("acbd", ["b", "a", "d"]), ("axyb", ["x", "a", "b"])):
        other = AskTell(points, RandomSearch(), names=[*names], initial=observations_of(tmp_path / "a.journal"))
        assert other.history.names == expected


def test_arms_without_names_have_their_numbers():
    result = minimize(waves, arms=arms(), policy=RandomSearch(batch_size=4), budget=8)
    assert result.best.name is None
    assert result.history.names == []
    assert "name" not in result.to_pandas()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"arms": arms(), "names": NAMES[:-1]}, ValueError, "a name for each of 60 arms, got 59"),
        ({"arms": arms(), "names": [*NAMES[:-1], "mol-4"]}, ValueError, "distinct names of arms, got 'mol-4' twice"),
        ({"arms": arms(), "names": range(60)}, TypeError, "names of arms as text, got 0"),
        ({"arms": arms(), "names": "abc"}, TypeError, "a list of texts, one for each arm, got str"),
        ({"bounds": [(0.0, 1.0)], "names": ["a"]}, ValueError, "expected names= with arms="),
    ],
)
def test_wrong_names_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        AskTell(**settings)


def test_single_precision_and_failures():
    loop = AskTell(arms().float(), ExpectedImprovement(initial_design=4), names=NAMES)
    assert isinstance(loop._domain, NamedArms)
    batch = loop.ask()
    loop.tell(batch.tickets, [math.nan, *waves(batch.X[1:].double()).tolist()])
    assert loop.result().best.name in loop.history.names
    assert torch.equal(loop.reissue().X, loop.reissue().X)
