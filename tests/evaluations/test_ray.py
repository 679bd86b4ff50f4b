"""Evaluations on Ray, through its adapter; needs the extra ``ray``."""

import os
import threading
import time
from concurrent.futures import CancelledError, wait

import pytest

from sparse_bo import ObjectiveError, Workers, maximize
from sparse_bo.evaluations import RayExecutor
from sparse_bo.runs.recording import read_run
from tests.builders import arms, bbkb
from tests.evaluations import flaky, light

ray = pytest.importorskip("ray", reason="Ray is not in the tested environment; pip install '.[ray]'")

pytestmark = [
    # Ray opens sockets, pipes and log files that it leaves to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # Ray announces that it will leave CUDA_VISIBLE_DEVICES alone where a task has no GPU.
    pytest.mark.filterwarnings("ignore:.*RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO.*:FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def executor():
    with RayExecutor() as pool:
        yield pool


def run(objective, **settings):
    return maximize(objective, **{"arms": arms(), "policy": bbkb(), "budget": 30, "seed": 2, **settings})


def test_results_and_exceptions_are_those_of_the_function(executor):
    assert executor.submit(divmod, 17, 5).result(timeout=60) == (3, 2)
    assert executor.submit(int, "20", base=3).result(timeout=60) == 6
    error = executor.submit(divmod, 1, 0).exception(timeout=60)
    assert type(error) is ZeroDivisionError
    assert "in call" in str(error.__cause__)  # the traceback on the worker


def test_cancelling_ends_a_running_task_and_frees_its_worker(executor):
    hanging = [executor.submit(time.sleep, 600) for _ in range(2)]
    time.sleep(1.0)
    assert all(future.cancel() for future in hanging)
    with pytest.raises(CancelledError):
        hanging[0].result()
    assert executor.submit(pow, 2, 5).result(timeout=60) == 32


def test_a_worker_that_dies_fails_its_task_alone(executor):
    error = executor.submit(os._exit, 3).exception(timeout=60)
    assert isinstance(error, ray.exceptions.WorkerCrashedError)
    assert executor.submit(pow, 2, 5).result(timeout=60) == 32


def test_after_shutdown_nothing_is_taken():
    executor = RayExecutor()
    futures = [executor.submit(time.sleep, 0.2) for _ in range(3)]
    executor.shutdown()
    assert all(future.done() for future in futures)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(pow, 2, 5)
    with pytest.raises(ValueError, match=r"\(RayExecutor\) is shut down; make a new one"):
        Workers(executor=executor)
    executor = RayExecutor()
    hanging = [executor.submit(time.sleep, 600) for _ in range(5)]
    executor.shutdown(cancel_futures=True)
    assert all(future.cancelled() for future in hanging)


def test_tasks_at_a_time_follow_from_what_they_need():
    assert RayExecutor()._max_workers == 2
    assert RayExecutor(num_cpus=0.5)._max_workers == 4
    with pytest.raises(ValueError, match="nonsense"):
        RayExecutor(nonsense=1)


@pytest.mark.parametrize("arrays", ["torch", "list"])
def test_the_same_seed_gives_the_same_picks(executor, arrays):
    objective = flaky.smooth if arrays == "torch" else light.smooth_all
    reference = run(objective, arrays=arrays).history
    history = run(objective, arrays=arrays, executor=executor).history
    assert history.indices == reference.indices
    assert history.column("values") == reference.column("values")


def test_asynchronous_runs_make_every_evaluation_once(executor, tmp_path):
    workers = Workers(executor=executor, asynchronous=True)
    result = run(flaky.slow, executor=workers, storage=tmp_path / "run.journal")
    assert result.state.pulls == read_run(tmp_path / "run.journal").told == 30


@pytest.mark.parametrize("asynchronous", [False, True], ids=["batches", "asynchronous"])
def test_flaky_workers_end_with_the_right_observations(executor, asynchronous, tmp_path):
    workers = Workers(executor=executor, timeout=1.0, retries=4, on_error="drop", asynchronous=asynchronous)
    objective = light.Flaky(str(tmp_path), exits="process", hang_seconds=600.0)
    settings = {"call_with": "batch", "arrays": "list", "budget": 30, "storage": tmp_path / "run.journal"}
    result = run(objective, executor=workers, **settings)
    recorded = read_run(tmp_path / "run.journal")
    dropped = {t for t in range(30) if objective.kind(t) in ("nan", "always raises")}
    assert (recorded.asked, recorded.failed) == (30, len(dropped))
    assert result.state.pulls == recorded.told == 30 - len(dropped)


def test_lambdas_travel_and_what_cannot_is_named(executor):
    assert run(lambda X: flaky.smooth(X), executor=executor, budget=4).state.pulls == 4
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        run(threading.Lock().acquire, executor=executor)
    with pytest.raises(ObjectiveError, match="ArithmeticError: the oven exploded"):
        run(flaky.raises, executor=executor)


def test_waiting_sees_futures_as_they_finish(executor):
    futures = [executor.submit(pow, 2, k) for k in range(6)]
    done, pending = wait(futures, timeout=60)
    assert sorted(future.result() for future in done) == [1, 2, 4, 8, 16, 32]
    assert pending == set()
