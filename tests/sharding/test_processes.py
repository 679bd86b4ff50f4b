"""Shards over real gloo processes: the same picks, one journal, and no hang when a rank is lost."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from sparse_bo import maximize
from sparse_bo.errors import RankError
from sparse_bo.runs.engine import Engine
from sparse_bo.runs.recording import read_run
from sparse_bo.sharding import group as processes
from tests.sharding.builders import bbkb, killed, objective, on_processes, picks_in, scattered, split

BUDGET = 40


def scenario(group, where: str):
    """Make a whole run, one whose settings differ, and one in which rank 3 is killed."""
    storage, found = Path(where) / "whole.journal", {}
    result = maximize(objective, arms=split(scattered(), group), policy=bbkb(), budget=BUDGET, seed=3, storage=storage)
    found["picks"] = picks_in(result.history)
    try:
        maximize(objective, arms=split(scattered(), group), policy=bbkb(), budget=BUDGET, seed=group.rank)
    except ValueError as error:
        found["seeds"] = str(error)
    if group.rank == 3:
        folded, rounds = Engine.next_update, []

        def killed_in_round_8(engine):
            rounds.append(engine)
            if len(rounds) == 8:
                killed()
            return folded(engine)

        Engine.next_update = killed_in_round_8  # of this process alone
    start = time.monotonic()
    try:
        maximize(
            objective, arms=split(scattered(), group), policy=bbkb(), budget=BUDGET, seed=3, storage=Path(where) / "cut.journal"
        )
    except RankError as error:
        found["lost"], found["seconds"] = str(error), time.monotonic() - start
    return found


def going_on(group, where: str):
    """Go on with the run that lost a rank."""
    storage = Path(where) / "cut.journal"
    result = maximize(
        objective, arms=split(scattered(), group), policy=bbkb(), budget=BUDGET, seed=3, storage=storage, resume=True
    )
    return picks_in(result.history)


def hanging(group, waited: Path):
    """Let rank 1 never come, until rank 0 waits no more."""
    start = time.monotonic()
    if group.rank == 1:
        while not waited.exists() and time.monotonic() < start + 20.0:
            time.sleep(0.02)
        return None
    with pytest.raises(RankError, match="waited more than 1 s"):
        group.exchange("step")
    seconds = time.monotonic() - start
    waited.touch()
    return seconds


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return folder, on_processes(4, scenario, folder, where=str(folder))


def test_four_processes_make_the_picks_of_one(outcomes):
    expected = picks_in(maximize(objective, arms=scattered(), policy=bbkb(), budget=BUDGET, seed=3).history)
    assert [found["picks"] for found in outcomes[1][:3]] == [expected] * 3


def test_processes_with_different_seeds_find_out(outcomes):
    assert all("the same seed on every rank, got 0 on rank 0 and 1 on rank 1" in found["seeds"] for found in outcomes[1][:3])


def test_a_killed_process_is_an_error_on_the_others_at_once(outcomes):
    assert outcomes[1][3] is None
    for found in outcomes[1][:3]:
        assert "has lost another rank" in found["lost"]
        assert found["seconds"] < 15.0


def test_two_processes_go_on_where_four_lost_one(outcomes):
    folder, found = outcomes
    assert on_processes(2, going_on, folder, where=str(folder)) == [found[0]["picks"]] * 2


def test_a_process_that_never_comes_is_an_error_within_the_time_limit(tmp_path):
    waited = on_processes(2, hanging, tmp_path, time_limit=1.0, waited=tmp_path / "waited")
    assert 0.5 < waited[0] < 5.0


@pytest.mark.parametrize(("restart", "key"), [("0", "address"), ("2", "restart 2/address")])
def test_ranks_that_are_started_again_do_not_read_what_those_before_them_wrote(restart, key, monkeypatch):
    server = dist.TCPStore("localhost", 0, is_master=True)
    job = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": str(server.port)}
    torchruns = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": restart}
    for name, value in (job | torchruns).items():
        monkeypatch.setenv(name, value)
    joined = []
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: joined.append(how["store"]))
    assert processes.join_job()
    joined[0].set("address", "1.2.3.4")
    assert server.check([key])


def test_without_a_job_there_is_nothing_to_join(monkeypatch):
    for name in processes.NAMES_OF_A_JOB:
        monkeypatch.delenv(name, raising=False)
    assert not processes.join_job()


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
LOST = f"""
import os, sys
sys.path.insert(0, {os.getcwd()!r})
from tests.sharding.builders import bbkb, killed, objective, picks_in, scattered, split
first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
"""


def started(command: list[str], folder: Path) -> None:
    done = subprocess.run([*TORCHRUN, *command], cwd=folder, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    assert "exitcode: -9" in done.stderr  # a rank was lost


@pytest.mark.slow
def test_torchrun_starts_ranks_again_and_the_run_goes_on(tmp_path):
    (tmp_path / "script.py").write_text(
        LOST
        + f"""
from sparse_bo import maximize
from sparse_bo.sharding import Processes
def seen(loop, row):
    if first and loop.asked > 20:
        killed()
group = Processes(time_limit=20)
result = maximize(objective, arms=split(scattered(), group), policy=bbkb(), budget={BUDGET}, seed=3,
                  storage="run.journal", resume=True, callback=seen)
if group.leads:
    open("picks", "w").write(repr(picks_in(result.history)))
""",
        encoding="utf-8",
    )
    started(["script.py"], tmp_path)
    expected = picks_in(maximize(objective, arms=scattered(), policy=bbkb(), budget=BUDGET, seed=3).history)
    assert (tmp_path / "picks").read_text() == repr(expected)


@pytest.mark.slow
def test_the_command_line_goes_on_where_torchrun_starts_it_again(tmp_path):
    (tmp_path / "own.py").write_text(
        LOST
        + """
asked = []
def measure(X):
    asked.extend(X)
    if first and len(asked) > 20:
        killed()
    return objective(X)
""",
        encoding="utf-8",
    )
    options = ["--objective", "own:measure", "--grid", "0:1:30,0:1:30", "--policy", "bbkb", "--budget", "40", "--seed", "3"]
    command = ["-m", "sparse_bo", "run", *options, "--quiet", "--storage", "run.journal", "--out", "out"]
    started(command, tmp_path)
    first, cut = (tmp_path / "own.py").read_text(), read_run(tmp_path / "run.journal")
    (tmp_path / "own.py").write_text(first.replace('== "0"', '== "never"'), encoding="utf-8")
    alone = [sys.executable, *command[:-3], "whole.journal", "--out", "whole"]
    subprocess.run(alone, cwd=tmp_path, check=True, capture_output=True, env={**os.environ, "TORCHELASTIC_RESTART_COUNT": "0"})
    assert cut.history.indices == read_run(tmp_path / "whole.journal").history.indices
    assert cut.told == 40
