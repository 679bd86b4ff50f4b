"""What a worker runs: the objective in each of its forms, its answers, and what it loads for that."""

import math
import multiprocessing
import pickle
import runpy
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sparse_bo import Batch, ObjectiveError, Workers, maximize
from sparse_bo.evaluations.job import Evaluate, PlainBatch, evaluate_remotely
from sparse_bo.evaluations.results import answers_of, results_of
from sparse_bo.policies import RandomSearch
from tests.evaluations import light
from tests.forked import forked

KINDS = {"torch": torch.Tensor, "numpy": np.ndarray, "list": list}
X = torch.tensor([[0.25, 0.5], [1.0, 0.0], [0.75, 0.125]], dtype=torch.float64)
BATCH = Batch(torch.tensor([4, 1, 4]), X, [10, 11, 12])


@pytest.mark.parametrize("arrays", KINDS)
@pytest.mark.parametrize("call_with", ["X", "indices", "batch"])
def test_the_objective_gets_what_it_takes(call_with, arrays):
    seen = []

    def objective(argument):
        seen.append(argument)
        return [0.0] * len(argument)

    evaluate = Evaluate(objective, call_with, True, arrays)
    evaluate(evaluate.packed(BATCH))
    (argument,) = seen
    if call_with == "batch":
        assert isinstance(argument, Batch if arrays == "torch" else PlainBatch)
        assert argument.tickets == [10, 11, 12]
        points, indices = argument.X, argument.indices
    else:
        points, indices = (argument, None) if call_with == "X" else (None, argument)
    for got, wanted in ((points, X.tolist()), (indices, [4, 1, 4])):
        if got is not None:
            assert isinstance(got, KINDS[arrays])
            assert (got if arrays == "list" else got.tolist()) == wanted


@pytest.mark.parametrize(("arrays", "point", "number"), [("torch", torch.Tensor, torch.Tensor), ("list", list, int)])
def test_single_evaluations_get_one_of_each(arrays, point, number):
    for call_with, kind in (("X", point), ("indices", number)):
        seen = []

        def objective(argument, seen=seen):
            seen.append(argument)
            return float(len(seen))

        evaluate = Evaluate(objective, call_with, False, arrays)
        assert evaluate(evaluate.packed(BATCH)) == [1.0, 2.0, 3.0]
        assert all(isinstance(argument, kind) for argument in seen)


def test_points_of_a_float32_box_are_those_that_are_recorded():
    narrow = Batch(None, X.float() / 3.0, [0, 1, 2])
    assert narrow.X.double().tolist() == Evaluate(len, arrays="list").packed(narrow).X


def test_batches_travel_between_processes_as_arrays():
    data = pickle.dumps(BATCH)
    assert b"_rebuild_tensor" not in data
    again = pickle.loads(data)
    assert torch.equal(again.X, X)
    assert torch.equal(again.indices, BATCH.indices)
    assert again.tickets == BATCH.tickets
    assert pickle.loads(pickle.dumps(Batch(None, X, [1, 2, 3]))).indices is None


FORMS = {
    "list": list,
    "tuple": tuple,
    "array": np.array,
    "tensor": lambda y: torch.tensor(y, dtype=torch.float64),
    "list of tensors": lambda y: [torch.tensor(v, dtype=torch.float64) for v in y],
    "list of NumPy numbers": lambda y: [np.float64(v) for v in y],
    "column": lambda y: torch.tensor(y, dtype=torch.float64).unsqueeze(-1),
    "with gradient": lambda y: torch.tensor(y, dtype=torch.float64, requires_grad=True),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS)
@given(y=st.lists(st.floats(allow_infinity=False), min_size=1, max_size=5))
def test_answers_are_the_values_whatever_holds_them(form, y):
    tickets = list(range(7, 7 + len(y)))
    assert answers_of(tickets, FORMS[form](y)) == dict(zip(tickets, results_of(y), strict=True))


@pytest.mark.parametrize(
    ("y", "error", "message"),
    [
        ([1.0], ValueError, r"one value for each of 2 tickets, got y of shape \(1,\)"),
        (3.0, ValueError, r"got y of shape \(\)"),
        (torch.zeros(2, 2), ValueError, r"got y of shape \(2, 2\); this run has one objective"),
        ([(1.0, 2.0), (3.0, 4.0)], ValueError, r"got y of shape \(2, 2\); this run has one objective"),
        (torch.zeros(2, 1, 1), ValueError, r"got y of shape \(2, 1, 1\)"),
        (np.zeros((1, 2)), ValueError, r"got y of shape \(1, 2\)"),
        ([[1.0, 2.0], [3.0]], ValueError, r"got y of shape \(2,\)"),
        ([1.0, math.inf], ValueError, "finite values"),
        (np.array([1.0, -np.inf]), ValueError, "finite values"),
        ([1j, 2.0], TypeError, "real values, got complex"),
        (torch.zeros(2, dtype=torch.complex64), TypeError, "real values, got complex"),
        (["1", "2"], TypeError, "to be 2 numbers, got list: entry 0 is the text '1'; pass float"),
        (["1", "n.d."], TypeError, "to be 2 numbers, got list: entry 1 is the text 'n.d.'"),
        ([None, 1.0], TypeError, "to be 2 numbers"),
        (None, TypeError, "to be 2 numbers, got NoneType"),
        ({"a": 1.0, "b": 2.0}, TypeError, "to be 2 numbers, got dict"),
        ("12", TypeError, "to be 2 numbers, got str"),
    ],
    ids=str,
)
def test_answers_of_the_wrong_kind_are_named(y, error, message):
    with pytest.raises(error, match=message):
        answers_of([0, 1], y)


@pytest.mark.parametrize(
    "loads", [{"list": 0.0, "numpy": 1.0}, pytest.param({"torch": 3.0}, marks=pytest.mark.slow)], ids=["light", "torch"]
)
def test_a_worker_of_a_plain_objective_loads_nothing_heavy(loads):
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for arrays, expected in loads.items():
            evaluate = Evaluate(light.loaded, "X", True, arrays)
            outcome = pool.submit(evaluate_remotely, evaluate, evaluate.packed(BATCH), 0).result()
            assert outcome.values == [expected] * 3, arrays


SCRIPT = """
import torch
from sparse_bo import maximize
from sparse_bo.policies import RandomSearch
def objective(X):
    return [x[0] for x in X]
bounds = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
def main():
    maximize(objective, bounds=bounds, budget=2, policy=RandomSearch(), arrays="list", executor="processes", workers=1)
"""


@pytest.mark.slow
def test_a_script_without_the_main_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "main()\n")
    done = forked(lambda: runpy.run_path(str(script), run_name="__main__"), folder=tmp_path)
    said = done.stderr.decode()
    assert done.returncode == 1
    assert "RuntimeError: the worker processes end before their first task" in said
    assert "under `if __name__ == '__main__':`" in said


@pytest.mark.parametrize("executor", [None, "threads", "processes"])
def test_runs_with_lists_make_the_picks_of_runs_with_tensors(executor):
    arms = torch.rand(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    settings = {"arms": arms, "policy": RandomSearch(batch_size=6), "budget": 20, "seed": 1}
    workers = None if executor is None else Workers(executor=executor, count=2, asynchronous=False)
    expected = maximize(lambda x: light.smooth(x), vectorized=False, **settings).history
    for vectorized, objective in ((True, light.smooth_all), (False, light.smooth)):
        history = maximize(objective, vectorized=vectorized, arrays="list", executor=workers, **settings).history
        assert history.indices == expected.indices
        assert history.column("values") == expected.column("values")


@pytest.mark.parametrize("value", [(1.0, 2.0), np.zeros(2), torch.zeros(2)], ids=["tuple", "array", "tensor"])
def test_two_objectives_are_said_to_be_one_too_many(value):
    with pytest.raises(ObjectiveError, match="got .*; this run has one objective, several outcomes are named"):
        maximize(lambda x: value, arms=X, policy=RandomSearch(), budget=2, vectorized=False)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"arrays": "pandas"}, ValueError, "'torch', 'numpy', 'list', got 'pandas'"),
        ({"call_with": "index"}, ValueError, "'X', 'indices', 'batch', 'parameters', got 'index'"),
        ({"objective": 3}, TypeError, "expected objective to be callable, got int"),
    ],
    ids=str,
)
def test_bad_forms_are_named_before_anything_is_asked(settings, error, message):
    objective = settings.pop("objective", light.smooth_all)
    with pytest.raises(error, match=message):
        maximize(objective, arms=X, policy=RandomSearch(), budget=2, **settings)
