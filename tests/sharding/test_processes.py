"""Shards over real gloo processes: the same picks, one journal, and no hang when a rank is lost."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sparse_bo import maximize
from sparse_bo.errors import RankError
from sparse_bo.runs.engine import Engine
from tests.sharding.builders import bbkb, killed, objective, on_processes, picks_in, scattered, split

BUDGET = 60


def scenario(group, where: str):
    """Make a whole run, one whose settings differ, and one in which rank 3 is killed."""
    storage, found = Path(where) / "whole.db", {}
    result = maximize(objective, arms=split(scattered(), group), policy=bbkb(), budget=BUDGET, seed=3, storage=storage)
    found["picks"] = picks_in(result.history)
    try:
        maximize(objective, arms=split(scattered(), group), policy=bbkb(), budget=BUDGET, seed=group.rank)
    except ValueError as error:
        found["seeds"] = str(error)
    if group.rank == 3:
        folded, rounds = Engine.folded, []

        def killed_in_round_8(engine):
            rounds.append(engine)
            if len(rounds) == 8:
                killed()
            return folded(engine)

        Engine.folded = killed_in_round_8  # of this process alone
    start = time.monotonic()
    try:
        maximize(
            objective, arms=split(scattered(), group), policy=bbkb(), budget=BUDGET, seed=3, storage=Path(where) / "cut.db"
        )
    except RankError as error:
        found["lost"], found["seconds"] = str(error), time.monotonic() - start
    return found


def going_on(group, where: str):
    """Go on with the run that lost a rank."""
    storage = Path(where) / "cut.db"
    result = maximize(
        objective, arms=split(scattered(), group), policy=bbkb(), budget=BUDGET, seed=3, storage=storage, resume=True
    )
    return picks_in(result.history)


def hanging(group):
    """Let rank 1 never come."""
    if group.rank == 1:
        time.sleep(6.0)
        return None
    start = time.monotonic()
    with pytest.raises(RankError, match="waited more than 1 s"):
        group.exchange("step")
    return time.monotonic() - start


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
    waited = on_processes(2, hanging, tmp_path, time_limit=1.0)
    assert 0.5 < waited[0] < 5.0


@pytest.mark.slow
def test_torchrun_starts_ranks_again_and_the_run_goes_on(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import os, sys, torch
sys.path.insert(0, {os.getcwd()!r})
from sparse_bo import maximize
from tests.sharding.builders import bbkb, killed, objective, picks_in, scattered, split
from sparse_bo.sharding import Processes
torch.distributed.init_process_group("gloo")
group, first = Processes(time_limit=20), os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
def seen(loop, row):
    if first and loop.asked > 20:
        killed()
result = maximize(objective, arms=split(scattered(), group), policy=bbkb(), budget={BUDGET}, seed=3,
                  storage={str(tmp_path / "run.db")!r}, resume=True, callback=seen)
if group.leads:
    open({str(tmp_path / "picks")!r}, "w").write(repr(picks_in(result.history)))
""",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", "1"]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    expected = picks_in(maximize(objective, arms=scattered(), policy=bbkb(), budget=BUDGET, seed=3).history)
    assert (tmp_path / "picks").read_text() == repr(expected)
