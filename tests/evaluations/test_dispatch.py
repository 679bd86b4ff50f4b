"""Evaluations on threads, processes, loky and Dask: the same picks, every result once, whatever the workers do."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import sys
import threading
import time
import weakref
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from types import ModuleType, SimpleNamespace

import pytest
import torch

from sparse_bo import AskTell, ObjectiveError, RunInterrupted, Workers, maximize
from sparse_bo.evaluations.dispatch import Dispatch
from sparse_bo.evaluations.executors import Threads
from sparse_bo.evaluations.job import Evaluate, Job
from sparse_bo.evaluations.pools import Pool
from sparse_bo.policies import RandomSearch
from sparse_bo.runs.recording import read_run
from tests.builders import arms, bbkb, unit_box
from tests.evaluations import flaky, light
from tests.forked import forked

distributed = pytest.importorskip("distributed")
loky = pytest.importorskip("loky")

pytestmark = [
    # Dask warns when a scheduler takes its time on a busy machine, and when its default port is taken.
    pytest.mark.filterwarnings("ignore:Port .* is already in use:UserWarning"),
    # Python 3.12+: processes are started by a fork server that runs no threads.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def dask_client():
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def loky_executor():
    pool = loky.ProcessPoolExecutor(2)
    yield pool
    pool.shutdown(kill_workers=True)


@pytest.fixture(params=["threads", "processes", "loky", pytest.param("dask", marks=pytest.mark.slow), "own threads"])
def executor(request):
    if request.param == "dask":
        yield request.getfixturevalue("dask_client").get_executor()
    elif request.param == "loky":
        yield request.getfixturevalue("loky_executor")
    elif request.param == "own threads":
        with ThreadPoolExecutor(3) as pool:
            yield pool
    else:
        yield request.param


def run(objective, **settings):
    chosen = {"arms": arms(), "policy": bbkb(), "budget": 50, "seed": 2, **settings}
    return maximize(objective, **chosen)


@pytest.mark.sampled(2)
def test_the_same_seed_gives_the_same_picks_on_every_executor(executor):
    reference = run(flaky.smooth).history
    history = run(flaky.smooth, executor=Workers(executor=executor, count=3)).history
    assert history.indices == reference.indices
    assert history.column("values") == reference.column("values")
    assert history.column("batch_size") == reference.column("batch_size")


@pytest.mark.sampled(2)
def test_asynchronous_runs_make_every_evaluation_once(executor, tmp_path):
    workers = Workers(executor=executor, count=3, asynchronous=True)
    result = run(flaky.slow, executor=workers, storage=tmp_path / "run.journal")
    history = result.history
    assert len(history.indices) == result.state.pulls == 50
    truth = flaky.smooth(arms()).tolist()
    values = [v for row in history.rows for v in row.values]
    assert values == [truth[i] for i in history.indices]
    assert read_run(tmp_path / "run.journal").told == 50


EXITS = {"threads": "thread", "processes": "process", "loky": "process", "dask": "raises"}
"""Dask's worker is a thread of this process here: its end would be ours."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("threads", 64),
        ("processes", 16),
        pytest.param("processes", 64, marks=pytest.mark.slow),
        pytest.param("loky", 64, marks=pytest.mark.slow),
        pytest.param("dask", 64, marks=pytest.mark.slow),
    ],
    ids=["threads", "processes", "64 processes", "loky", "dask"],
)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["batches", "asynchronous"])
def test_flaky_workers_end_with_the_right_observations(name, count, asynchronous, tmp_path):
    """Exceptions, NaN, hangs and exits: tried again where that helps, dropped where it does not, never told twice."""
    if name == "dask":
        cluster = distributed.LocalCluster(
            n_workers=1, threads_per_worker=count, processes=False, dashboard_address="127.0.0.1:0"
        )
        client = distributed.Client(cluster)
        executor = client.get_executor()
    else:
        executor = name
    try:
        workers = Workers(executor=executor, count=count, timeout=0.6, retries=4, on_error="drop", asynchronous=asynchronous)
        objective = light.Flaky(str(tmp_path), exits=EXITS[name])
        result = run(
            objective,
            executor=workers,
            call_with="batch",
            arrays="list",
            storage=tmp_path / "run.journal",
            budget=52,
            policy=bbkb(ratio_threshold=1e6, max_batch_size=26),
        )
    finally:
        if name == "dask":
            client.close()
            cluster.close()
    recorded = read_run(tmp_path / "run.journal")
    kinds = [objective.kind(t) for t in range(52)]
    dropped = {t for t, kind in enumerate(kinds) if kind in ("nan", "always raises")}
    assert {"raises", "nan", "hangs", "exits", "always raises"} <= set(kinds)
    assert (recorded.asked, recorded.failed) == (52, len(dropped))
    assert result.state.pulls == recorded.told == 52 - len(dropped)
    truth, values = flaky.smooth(arms()), [v for row in result.history.rows for v in row.values]
    noise = sorted(round(1000 * (v - float(truth[i]))) for i, v in zip(result.history.indices, values, strict=True) if v == v)
    assert noise == sorted(set(range(52)) - dropped)


@pytest.mark.slow
def test_dask_workers_that_die_are_replaced_and_their_evaluations_repeated(dask_client, tmp_path):
    objective = light.Flaky(str(tmp_path), exits="process", hang_seconds=0.0)
    workers = Workers(executor=dask_client.get_executor(), retries=4, on_error="drop")
    result = run(objective, executor=workers, call_with="batch", budget=30, policy=bbkb(ratio_threshold=1e6, max_batch_size=15))
    dropped = [t for t in range(30) if objective.kind(t) in ("nan", "always raises")]
    assert result.state.pulls == 30 - len(dropped)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["batches", "asynchronous"])
def test_an_objective_that_raises_ends_the_run_with_everything_told_and_the_rest_out(asynchronous, tmp_path):
    lock, calls = threading.Lock(), []

    def sometimes(X):
        with lock:
            calls.append(len(X))
            if len(calls) == 20:
                raise ArithmeticError("the oven exploded")
        return flaky.smooth(X)

    workers = Workers(executor="threads", count=4, asynchronous=asynchronous, chunk=1)
    with pytest.raises(ObjectiveError, match=r"on ticket \d+ \(ArithmeticError: the oven exploded\)") as caught:
        run(sometimes, executor=workers, storage=tmp_path / "run.journal")
    loop = caught.value.loop
    assert loop.pending
    told = read_run(tmp_path / "run.journal").told
    assert told >= 16
    result = loop.run(flaky.smooth, 50 - loop.asked, executor=workers)
    assert result.state.pulls == loop.asked == 50
    loop.close()


KINDS = {
    "cannot be loaded": "kiln at 900 degrees",
    "cannot be sent": "kiln at 900 degrees",
    "broken pool": "kiln at 900 degrees",
    "ends the program": "kiln at 900 degrees",
    "has no message": "Speechless",
}


@pytest.fixture(params=[None, "threads", "processes", "loky", "dask", "own threads", "own processes", "own loky"])
def anywhere(request):
    if request.param == "own processes":
        with ProcessPoolExecutor(2) as pool:
            yield pool
    elif request.param == "dask":
        yield request.getfixturevalue("dask_client").get_executor()
    elif request.param == "own loky":
        yield request.getfixturevalue("loky_executor")
    elif request.param == "own threads":
        with ThreadPoolExecutor(2) as pool:
            yield pool
    else:
        yield request.param


@pytest.mark.sampled(20)
@pytest.mark.parametrize("kind", KINDS)
def test_any_exception_of_an_objective_is_one_of_its_evaluation(anywhere, kind):
    """Those that do not unpickle broke the pool, a broken pool of the objective's own was taken for ours."""
    how = {"policy": RandomSearch(batch_size=5), "call_with": "batch", "arrays": "list", "budget": 5}
    spread = None if anywhere is None else Workers(executor=anywhere, count=2, chunk=1)
    with pytest.raises(ObjectiveError, match=rf"on (ticket 2|a batch of 5) \(.*{KINDS[kind]}") as caught:
        run(light.RaisesAt(kind), executor=spread, **how)
    assert 2 in caught.value.loop.pending
    assert caught.value.result is not None
    if spread is not None:
        spread = Workers(executor=anywhere, count=2, chunk=1, on_error="drop")
        history = run(light.RaisesAt(kind), executor=spread, **how).history
        values = dict(zip(history.rows[0].tickets, history.rows[0].values, strict=True))
        assert [ticket for ticket, value in values.items() if value != 1.0] == [2]


def test_reasons_of_failed_evaluations_are_logged(caplog):
    """They were nowhere; a misspelt outcome used up the budget."""

    def diverges(x):
        raise RuntimeError(f"diverged at {float(x[0]) * 0 + 17:g}")

    spread = Workers(executor="threads", count=2, on_error="drop")
    policy = RandomSearch(batch_size=2)
    with caplog.at_level("INFO", logger="sparse_bo.evaluations.dispatch"):
        maximize(diverges, bounds=[(0.0, 1.0)], policy=policy, executor=spread, budget=8, vectorized=False)
    said = [record for record in caplog.records if "counts as failed (RuntimeError: diverged at 17)" in record.getMessage()]
    assert [record.levelname for record in said] == ["WARNING"] * 5 + ["INFO"] * 3


def test_the_traceback_of_a_worker_is_a_note_of_the_exception():
    with pytest.raises(ObjectiveError) as caught:
        run(light.RaisesAt("cannot be sent"), executor="processes", workers=1, call_with="batch", arrays="list")
    assert any("in __call__" in note and "Unsendable" in note for note in caught.value.__cause__.__notes__)


NOTEBOOK = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from sparse_bo import AskTell
from sparse_bo.policies import RandomSearch
import torch
def objective(X):
    return [x[0] for x in X]
own = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
for executor in ("processes", own, "loky"):
    loop = AskTell(bounds=torch.tensor([[0.0], [1.0]], dtype=torch.float64), policy=RandomSearch(batch_size=2))
    message = ""
    try:
        loop.run(objective, 2, executor=executor, workers=1, arrays="list")
    except TypeError as error:
        message = str(error)
    print(loop.asked, message)
"""


def test_a_function_of_a_notebook_is_refused_before_anything_is_asked_or_runs(tmp_path):
    """Workers import modules; a pool of the standard library broke at the first evaluation."""

    def notebook():
        sys.modules["__main__"] = module = ModuleType("__main__")
        exec(NOTEBOOK, vars(module))

    done = forked(notebook, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    *refused, loky = done.stdout.decode().splitlines()
    assert len(refused) == 2  # by processes of ours and by a pool of the user's
    for line in refused:
        assert line.startswith("0 the objective cannot be sent to another process (a worker cannot load it: AttributeError")
        assert "executor='loky', which takes functions of notebooks" in line
    assert loky == "2 "


def test_what_finished_with_an_evaluation_that_ends_the_run_is_told():
    gate = threading.Barrier(3)

    def objective(batch):
        gate.wait()
        if batch.tickets[0] != 2:
            raise ValueError(f"of ticket {batch.tickets[0]}")
        return [1.0]

    class Together(ThreadPoolExecutor):
        """Its tasks have all finished when the last is submitted."""

        def submit(self, fn, /, *args, **kwargs):
            futures.append(super().submit(fn, *args, **kwargs))
            if len(futures) == 3:
                wait(futures)
            return futures[-1]

    futures = []
    with Together(3) as pool:
        how = {"executor": Workers(executor=pool, chunk=1), "call_with": "batch", "policy": RandomSearch(batch_size=3)}
        with pytest.raises(ObjectiveError, match=r"ticket 0 .*of ticket 0") as caught:
            maximize(objective, arms=arms(), budget=3, **how)
    assert caught.value.loop.pending == [0, 1]


@pytest.mark.parametrize("name", ["threads", "processes"])
def test_what_has_started_beside_an_evaluation_that_ends_the_run_is_waited_for_and_told(name, caplog):
    """Processes were killed over it; ticket 2 has not started."""
    workers = Workers(executor=name, count=2, chunk=1)
    with pytest.raises(ObjectiveError, match="ticket 0 .*the oven exploded") as caught:
        run(flaky.raises_at_first, executor=workers, call_with="batch", policy=RandomSearch(batch_size=3), budget=3)
    assert caught.value.loop.pending == [0, 2]
    assert "waiting for 1 that have started" in caplog.text


def test_what_has_started_where_an_executor_does_not_say_so_is_told_too():
    """Futures of Dask can be cancelled until they have a result."""
    failed = threading.Event()

    class Remote(ThreadPoolExecutor):
        def submit(self, fn, /, *args):
            future = Future()

            def work():
                outcome = fn(*args)
                future.set_result(outcome)
                if outcome.error is not None:
                    failed.set()

            threading.Thread(target=work).start()
            return future

    def objective(batch):
        if batch.tickets[0] == 0:
            raise ArithmeticError
        failed.wait()
        time.sleep(0.2)
        return [1.0]

    workers = Workers(executor=Remote(), count=2, chunk=1)
    with pytest.raises(ObjectiveError, match="ticket 0 .*ArithmeticError") as caught:
        run(objective, executor=workers, call_with="batch", policy=RandomSearch(batch_size=3), budget=3)
    assert caught.value.loop.pending == [0, 2]


def test_ctrl_c_ends_the_waiting_and_what_has_finished_is_told():
    ended, begun = threading.Event(), threading.Event()
    log = logging.getLogger("sparse_bo.evaluations.dispatch")

    def objective(batch):
        if batch.tickets[0] == 0:
            begun.wait()
            raise ArithmeticError
        begun.set()
        ended.wait()
        return [1.0]

    class Interrupting(logging.Handler):
        """As Ctrl-C right after the message that evaluations are waited for."""

        def emit(self, record):
            ended.set()
            time.sleep(0.3)
            signal.raise_signal(signal.SIGINT)

    workers = Workers(executor="threads", count=2, chunk=1, asynchronous=False)
    log.addHandler(handler := Interrupting())
    try:
        with pytest.raises(RunInterrupted) as caught:
            run(objective, executor=workers, call_with="batch", policy=RandomSearch(batch_size=2), budget=2)
    finally:
        log.removeHandler(handler)
    assert caught.value.loop.pending == [0]


def test_what_has_started_beside_an_evaluation_that_ends_the_run_is_waited_for_until_its_time_is_over():
    ends = threading.Event()

    def objective(batch):
        if batch.tickets[0] == 0:
            raise ArithmeticError
        ends.wait()
        return [1.0]

    workers = Workers(executor="threads", count=2, chunk=1, timeout=0.3)
    try:
        with pytest.raises(ObjectiveError, match="ticket 0 .*ArithmeticError") as caught:
            run(objective, executor=workers, call_with="batch", policy=RandomSearch(batch_size=2), budget=2)
    finally:
        ends.set()
    assert caught.value.loop.pending == [0, 1]


@pytest.mark.parametrize(("budget", "started"), [(2, 2), (9, 3)])
def test_an_own_pool_has_no_more_workers_than_there_are_evaluations(budget, started):
    before, running = len(multiprocessing.active_children()), []

    def count(loop, row):
        running.append(len(multiprocessing.active_children()) - before)

    workers = Workers(executor="processes", count=3)
    run(light.smooth_all, executor=workers, policy=RandomSearch(batch_size=4), budget=budget, arrays="list", callback=count)
    assert set(running) == {started}


@pytest.mark.parametrize("spread", [None, Workers(executor="threads", count=2, chunk=2)], ids=["here", "threads"])
def test_what_somebody_else_has_told_of_an_evaluation_stays(spread):
    """A callback that gave up on a slow evaluation ended the run once its result came."""
    loop = AskTell(arms(), RandomSearch(batch_size=4))

    def objective(batch):
        loop.fail(batch.tickets[:1])
        return [1.0] * len(batch)

    passed = {}
    how = {"call_with": "batch", "executor": spread, "on_result": lambda one: passed.update({one.ticket: one.value})}
    result = loop.run(objective, 12, **how)
    assert loop.pending == []
    values = [value for row in result.history.rows for value in row.values]
    assert passed == {ticket: value for ticket, value in enumerate(values) if value == 1.0}
    assert [ticket for ticket, value in enumerate(values) if value != 1.0] == list(range(0, 12, 4 if spread is None else 2))


def test_an_evaluation_that_somebody_else_has_told_may_raise():
    loop = AskTell(arms(), RandomSearch(batch_size=4))

    def objective(batch):
        loop.tell(batch.tickets, [2.0])
        raise OSError

    result = loop.run(objective, 12, call_with="batch", executor=Workers(executor="threads", count=2, chunk=1))
    assert result.state.pulls == 12


@pytest.mark.parametrize("ends", [OSError, KeyboardInterrupt])
def test_what_has_finished_when_a_callback_or_ctrl_c_ends_the_run_is_told(ends):
    """Tickets 1 to 3 have finished when the first row is shown, which comes of the ask for ticket 3.

    With a timeout nothing is submitted in advance, however long the machine takes for an evaluation.
    """
    go, futures = threading.Event(), []

    def objective(batch):
        if batch.tickets[0] in (1, 2):
            go.wait()
        return [1.0]

    class Together(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            futures.append(super().submit(fn, *args, **kwargs))
            if len(futures) == 4:
                go.set()
            if len(futures) in (1, 4):
                wait(futures)
            return futures[-1]

    def callback(loop, row):
        raise ends

    with Together(3) as pool:
        how = {"executor": Workers(executor=pool, chunk=1, asynchronous=True, timeout=60), "policy": RandomSearch(batch_size=1)}
        with pytest.raises(ends) as caught:
            maximize(objective, arms=arms(), budget=12, call_with="batch", callback=callback, **how)
    assert caught.value.loop.asked == 4
    assert caught.value.loop.pending == []
    assert caught.value.result.state.pulls == 4


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        (flaky.raises, "ArithmeticError: the oven exploded"),
        (flaky.too_many, "one value for each of 1 tickets"),
        (flaky.complex_values, "real values"),
        (flaky.infinite, "finite values"),
    ],
)
@pytest.mark.parametrize("executor", [None, "threads", "processes"])
def test_wrong_results_are_named(objective, message, executor):
    with pytest.raises(ObjectiveError, match=message) as caught:
        run(objective, executor=executor)
    assert caught.value.loop.pending == [0]
    assert caught.value.loop.state.pulls == 0


def test_ctrl_c_leaves_a_run_that_can_be_resumed(tmp_path):
    calls = []

    def interrupted(X):
        calls.append(1)
        if len(calls) == 15:
            raise KeyboardInterrupt
        return flaky.smooth(X)

    with pytest.raises(RunInterrupted) as caught:
        run(interrupted, executor=Workers(executor="threads", count=3, chunk=1), storage=tmp_path / "run.journal")
    told = read_run(tmp_path / "run.journal").told
    assert told >= 11
    caught.value.loop.close()
    with pytest.raises(FileExistsError):
        run(flaky.smooth, storage=tmp_path / "run.journal")
    result = run(flaky.smooth, executor="threads", workers=7, storage=tmp_path / "run.journal", resume=True)
    assert result.history.indices == run(flaky.smooth).history.indices
    again = run(flaky.smooth, storage=tmp_path / "run.journal", resume=True)
    assert again.history.indices == result.history.indices


def test_resuming_another_run_is_refused(tmp_path):
    run(flaky.smooth, storage=tmp_path / "run.journal", budget=5)
    with pytest.raises(ValueError, match="has seed 2; this call asks for another one"):
        run(flaky.smooth, storage=tmp_path / "run.journal", resume=True, seed=3)
    with pytest.raises(ValueError, match="another problem"):
        run(flaky.smooth, storage=tmp_path / "run.journal", resume=True, arms=arms(61))
    with pytest.raises(ValueError, match="expected bounds as d pairs"):
        run(flaky.smooth, storage=tmp_path / "run.journal", resume=True, arms=None, bounds=[[0.0], [1.0]])
    with pytest.raises(ValueError, match="with resume=True, got None"):
        run(flaky.smooth, resume=True)
    assert run(flaky.smooth, storage=tmp_path / "new.journal", resume=True, budget=5).state.pulls == 5


@pytest.mark.parametrize("executor", [None, "threads", "loky"])
def test_single_evaluations_get_one_point_or_a_batch_of_one(executor, loky_executor):
    executor = loky_executor if executor == "loky" else executor
    reference = run(flaky.smooth).history
    workers = executor and Workers(executor=executor, asynchronous=False)  # asynchronous picks depend on the order of results
    assert run(flaky.one, executor=workers, vectorized=False).history.indices == reference.indices
    result = run(flaky.one_batch, executor=executor, vectorized=False, call_with="batch", budget=9)
    assert sorted(v for row in result.history.rows for v in row.values) == list(range(9))  # results come in any order


def test_loky_takes_lambdas_and_the_standard_library_says_before_anything_is_asked_that_it_does_not(tmp_path, loky_executor):
    assert run(lambda X: flaky.smooth(X), executor=loky_executor, budget=6).state.pulls == 6
    for executor in ("processes", ProcessPoolExecutor(1)):
        path = tmp_path / f"{type(executor).__name__}.journal"
        with pytest.raises(TypeError, match="cannot be sent to another process.*at the top level of a module.*loky"):
            run(lambda X: X[:, 0], executor=executor, storage=path)
        assert not path.exists()
    with pytest.raises(TypeError, match="cannot be sent to another process"):
        run(threading.Lock().acquire, executor=loky_executor)


@pytest.mark.parametrize(
    "wrong",
    [
        {"call_with": "parameters"},
        {"vectorized": "yes"},
        {"arrays": "tensors"},
        {"executor": SimpleNamespace(submit=lambda f, *args: None)},
        {"executor": "processes", "objective": flaky.Unloadable()},
        {"stop": lambda loop: 1 / 0},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_call_refused_before_its_first_evaluation_leaves_no_journal_that_blocks_the_corrected_one(wrong, tmp_path):
    path, wrong = tmp_path / "run.journal", {**wrong}
    with pytest.raises((TypeError, ValueError, ZeroDivisionError)):
        run(wrong.pop("objective", flaky.smooth), storage=path, initial=([3], [0.5]), budget=4, **wrong)
    assert not path.exists()
    assert run(flaky.smooth, storage=path, initial=([3], [0.5]), budget=4).history.observations == 5


def test_a_refused_call_keeps_the_journal_that_it_resumes_and_observations_that_were_added_before(tmp_path):
    AskTell(arms=arms(), policy=bbkb(), seed=2, storage=tmp_path / "old.journal").close()

    def adds(loop):
        loop.add([3], [0.5])
        raise RuntimeError("no evaluation was asked")

    with pytest.raises(ValueError, match="call_with"):
        run(flaky.smooth, storage=tmp_path / "old.journal", resume=True, call_with="parameters")
    with pytest.raises(RuntimeError, match="no evaluation was asked"):
        run(flaky.smooth, storage=tmp_path / "new.journal", stop=adds)
    with pytest.raises(ValueError, match="has seed 2.*of this one: .*got 0 observations of old.journal$"):
        run(flaky.smooth, storage=tmp_path / "old.journal", resume=True, seed=3)
    assert (tmp_path / "old.journal").exists()
    assert read_run(tmp_path / "new.journal").history.observations == 1


def test_executors_that_are_shut_down_or_none_are_named():
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(ValueError, match=r"\(ThreadPoolExecutor\) is shut down; make a new one"):
        run(flaky.smooth, executor=pool)
    processes = ProcessPoolExecutor(1)
    processes.shutdown()
    with pytest.raises(ValueError, match="is shut down"):
        run(flaky.smooth, executor=processes)
    with pytest.raises(TypeError, match="an object with submit.*got int"):
        run(flaky.smooth, executor=4)
    with pytest.raises(TypeError, match="an object with submit.*got the class ThreadPoolExecutor; call it"):
        run(flaky.smooth, executor=ThreadPoolExecutor)
    with pytest.raises(ValueError, match="one of 'threads', 'processes', 'loky', got 'cluster'"):
        run(flaky.smooth, executor="cluster")
    with pytest.raises(ValueError, match=r"for dask, pass client.get_executor\(\)"):
        run(flaky.smooth, executor="dask")


class ShutsDown:
    """An executor that is shut down while it is used."""

    def __init__(self) -> None:
        self.left = 11  # the first one is no evaluation: it shows that there are futures

    def submit(self, fn, /, *args) -> Future:
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = Future()
        future.set_result(fn(*args))
        return future


def test_an_executor_shut_down_during_a_run_loses_nothing(tmp_path):
    with pytest.raises(ObjectiveError, match=r"takes no more evaluations \(RuntimeError: cannot schedule") as caught:
        run(flaky.smooth, executor=Workers(executor=ShutsDown(), count=2, chunk=1), storage=tmp_path / "run.journal")
    assert read_run(tmp_path / "run.journal").told >= 9
    caught.value.loop.close()


class Jobs:
    """What some libraries call an executor: its jobs are no futures."""

    def submit(self, fn, /, *args):
        return f"job of {fn.__name__}"


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_an_executor_without_futures_is_named_before_anything_is_asked(timeout):
    loop = AskTell(arms(), RandomSearch(), seed=0)
    with pytest.raises(TypeError, match=r"submit\(\) of the executor \(Jobs\) to return a concurrent.futures.Future, got str"):
        loop.run(flaky.smooth, 5, executor=Workers(executor=Jobs(), count=2, timeout=timeout))
    assert loop.asked == 0


def test_an_executor_that_is_one_by_its_class_is_held_to_its_futures():
    class Lazy(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            return lambda: fn(*args, **kwargs)

    with Lazy(1) as pool, pytest.raises(TypeError, match=r"Lazy\) to return a concurrent.futures.Future, got function"):
        run(flaky.smooth, executor=pool)


def test_evaluations_that_a_pool_cancels_are_not_waited_for():
    """Where nothing else was to end or to be submitted, the run waited for ever."""
    submitted, errors = threading.Semaphore(0), []

    class Counted(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            future = super().submit(fn, *args, **kwargs)
            submitted.release()
            return future

    pool = Counted(1)

    def ends(X):
        for _ in range(3):
            submitted.acquire()
        pool.shutdown(wait=False, cancel_futures=True)
        return X.sum(-1)

    def go():
        loop = AskTell(arms(), RandomSearch(batch_size=3), seed=0)
        try:
            loop.run(ends, 3, executor=Workers(executor=pool, count=3, chunk=1))
        except ObjectiveError as error:
            errors.append(error.reason)

    running = threading.Thread(target=go, daemon=True)
    running.start()
    running.join(timeout=30.0)
    assert errors == ["the objective failed on ticket 1 (CancelledError: )"]


@pytest.mark.parametrize("kind", ["processes", pytest.param("loky", marks=pytest.mark.slow)])
def test_what_ran_on_a_pool_that_takes_no_more_is_evaluated_again(kind, monkeypatch):
    """The standard library's pool, at a death while it starts a worker: what was cancelled with it was waited for."""
    submit, calls, ended = Pool.submit, [], []

    def closing(self, fn, *args):
        calls.append(fn)
        if len(calls) == 3:
            raise OSError("handle is closed")
        return submit(self, fn, *args)

    monkeypatch.setattr(Pool, "submit", closing)
    loop = AskTell(arms(), RandomSearch(batch_size=5), seed=0)

    def go():
        workers = Workers(executor=kind, count=3, chunk=1)
        ended.append(loop.run(light.smooth_soon, 5, executor=workers, arrays="list").state.pulls)

    running = threading.Thread(target=go, daemon=True)
    running.start()
    running.join(timeout=100.0)
    assert ended == [5]


def test_a_worker_that_dies_in_the_users_own_pool_is_named(tmp_path):
    objective = light.Flaky(str(tmp_path), exits="process")
    with (
        ProcessPoolExecutor(2) as pool,
        pytest.raises(ObjectiveError, match="a worker died and the executor with it.*would be restarted"),
    ):
        run(objective, executor=Workers(executor=pool, retries=5, on_error="drop"), call_with="batch")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"count": 0}, ValueError, "workers >= 1"),
        ({"count": 2.0}, TypeError, "workers to be an integer"),
        ({"timeout": 0.0}, ValueError, "timeout > 0"),
        ({"retries": -1}, ValueError, "retries >= 0"),
        ({"on_error": "ignore"}, ValueError, "'raise', 'drop'"),
        ({"chunk": 0}, ValueError, "chunk >= 1"),
    ],
    ids=str,
)
def test_bad_settings_are_named(settings, error, message):
    with pytest.raises(error, match=message):
        Workers(**settings)


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_a_timeout_does_not_count_for_evaluations_that_wait_for_a_worker(kind, tmp_path):
    """Those that the executor had not begun when their time was over were dropped as failed."""
    message = "at most 2 evaluations at a time, as many as the .* has workers, got 8"
    with kind(2) as pool:
        with pytest.raises(ValueError, match=message):
            Workers(executor=pool, timeout=1.0, count=8)
        with pytest.raises(ValueError, match=message):
            run(flaky.smooth, executor=Workers(executor=pool, timeout=1.0), workers=8, storage=tmp_path / "run.journal")
        assert not list(tmp_path.iterdir())
        assert Workers(executor=pool, count=8).count == 8
        assert Workers(executor=pool, count=2, timeout=1.0).count == 2


def test_workers_without_an_executor_is_named():
    with pytest.raises(ValueError, match=r"workers=4 needs executor=.*once by itself, pass a policy with batch_size=4"):
        run(flaky.smooth, workers=4)
    with pytest.raises(ValueError, match="expected workers"):  # not advice to make batches of 0
        run(flaky.smooth, workers=0)


class Counting(ThreadPoolExecutor):
    """Counts tasks, and how many are in flight."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self.sizes, self.most, self.now, self.guard = [], 0, 0, threading.Lock()

    def submit(self, fn, /, *args, **kwargs):
        self.sizes.append(len(args[1]))
        with self.guard:
            self.now += 1
            self.most = max(self.most, self.now)
        future = super().submit(fn, *args, **kwargs)
        future.add_done_callback(self._done)
        return future

    def _done(self, _):
        with self.guard:
            self.now -= 1


def test_short_evaluations_travel_in_chunks_and_long_ones_alone():
    big = bbkb(ratio_threshold=1e6, max_batch_size=500)
    with Counting(2) as pool:
        result = run(flaky.smooth, executor=pool, policy=big, budget=1001)
    assert sum(pool.sizes) == result.state.pulls == 1001
    assert max(pool.sizes) > 50
    assert pool.most <= 2
    with Counting(2) as pool:
        run(flaky.slow, executor=Workers(executor=pool, chunk=None), policy=big, budget=60)
    assert max(pool.sizes) <= 8
    with Counting(2) as pool:
        run(flaky.smooth, executor=Workers(executor=pool, chunk=10), policy=big, budget=101)
    assert max(pool.sizes) == 10


def test_asynchronous_workers_are_kept_busy_while_a_slow_one_works():
    """With one evaluation of 1 s among many of 10 ms, the others go on; batch by batch they would wait."""
    started = time.monotonic()
    finished = []

    def uneven(batch):
        time.sleep(1.0 if 1 in batch.tickets else 0.01)
        finished.append((batch.tickets[0], time.monotonic() - started))
        return flaky.smooth(batch.X)

    workers = Workers(executor="threads", count=4, asynchronous=True, chunk=1)
    run(uneven, executor=workers, call_with="batch", policy=RandomSearch(), budget=60)
    order = [ticket for ticket, _ in finished]
    assert order.index(1) > 20


@pytest.mark.slow
def test_the_worker_count_may_change_while_it_runs(dask_client):
    evaluate = Evaluate(flaky.smooth, "X", True)
    seen = []

    class Grows(ThreadPoolExecutor):
        def submit(self, fn, /, *args, **kwargs):
            seen.append(self._max_workers)
            self._max_workers = min(8, self._max_workers + 1)
            return super().submit(fn, *args, **kwargs)

    with Grows(1) as pool:
        loop = AskTell(arms(), RandomSearch(batch_size=40), seed=0)
        job = Job(loop, evaluate, 40, lambda seconds: None, lambda: None)
        Dispatch(job, Workers(executor=pool, chunk=1)).run()
    assert max(seen) == 8
    assert loop.state.pulls == 40


def test_callbacks_see_every_row_once():
    rows = []
    history = run(flaky.smooth, executor="threads", workers=2, callback=lambda loop, row: rows.append(row)).history
    assert rows == list(history.rows)
    assert all(row.seconds["objective"] > 0.0 for row in rows)


def test_random_search_on_a_box_with_an_executor():
    bounds = unit_box(dtype=torch.float32)
    result = maximize(flaky.smooth, bounds=bounds, policy=RandomSearch(batch_size=5), budget=20, executor="threads")
    assert result.state.pulls == 20
    with pytest.raises(ValueError, match="expected call_with='indices' with arms="):
        maximize(flaky.smooth, bounds=bounds, policy=RandomSearch(), budget=2, call_with="indices")


class Queue(ThreadPoolExecutor):
    """A cluster as Dask describes it, whose workers come late; tasks wait for them."""

    def __init__(self, seconds):
        super().__init__(2)
        self.there = threading.Event()
        self._client = SimpleNamespace(nthreads=lambda: {"a": 2} if self.there.is_set() else {})
        threading.Timer(seconds, self.there.set).start()

    def submit(self, fn, /, *args):
        return super().submit(lambda: (self.there.wait(), fn(*args))[1])


def test_time_in_the_queue_of_a_cluster_is_no_time_of_an_evaluation():
    with Queue(1.2) as cluster:
        workers = Workers(executor=cluster, count=2, timeout=0.6, on_error="drop")
        result = run(flaky.smooth, executor=workers, policy=RandomSearch(), budget=6)
    assert sum(result.history.column("failed")) == 0
    with Queue(0.0) as cluster:
        workers = Workers(executor=cluster, count=2, timeout=0.1, on_error="drop")
        result = run(lambda X: time.sleep(0.4) or flaky.smooth(X), executor=workers, policy=RandomSearch(), budget=2)
    assert sum(result.history.column("failed")) == 2


def test_after_a_failure_no_evaluation_without_a_worker_is_waited_for():
    class OneWorker(ThreadPoolExecutor):
        """A cluster whose tasks wait for its only worker."""

        _client = SimpleNamespace(nthreads=lambda: {"a": 1})
        worker = threading.Lock()

        def submit(self, fn, /, *args):
            def waits():
                with self.worker:
                    return fn(*args)

            return super().submit(waits)

    def objective(x):
        if not began:
            began.append(True)
            raise ValueError("no such file")
        time.sleep(4.0)

    began, start = [], time.monotonic()
    cluster = OneWorker(3)
    workers = Workers(executor=cluster, count=3, timeout=0.5)
    with pytest.raises(ObjectiveError, match="no such file"):
        run(objective, executor=workers, policy=RandomSearch(batch_size=3), budget=3, vectorized=False)
    assert time.monotonic() - start < 3.5
    cluster.shutdown(wait=False, cancel_futures=True)


def test_the_time_of_evaluations_that_raise_is_counted():
    def slow(x):
        time.sleep(0.05)
        return float(x[0]) if x[0] >= 0.5 else 1 / 0

    workers = Workers(executor="threads", count=1, on_error="drop")
    result = maximize(slow, bounds=[(0.0, 1.0)], budget=8, policy=RandomSearch(batch_size=4), executor=workers)
    assert 0 < sum(row.failed for row in result.history.rows) < 8
    assert sum(row.seconds.get("objective", 0.0) for row in result.history.rows) >= 8 * 0.05


class Argument:
    """An object that can be referred to weakly."""


def test_threads_hold_no_argument_once_a_result_is_there():
    """A thread that frees a tensor while the program ends aborts it."""
    threads, held = Threads(1), []

    def evaluate(argument):
        held.append(weakref.ref(argument))
        return 1.0

    gate, gone = threading.Event(), []
    done = threads.submit(lambda argument: gate.wait() and evaluate(argument), Argument())
    done.add_done_callback(lambda _: gone.append(held[0]() is None))
    gate.set()
    assert done.result() == 1.0
    threads.shutdown()
    assert gone == [True]
