"""The command line on ranks: who prints, who computes where, and what cannot be spread."""

import sys

import torch

from sparse_bo.cli.console import console
from sparse_bo.cli.launch import device_on_rank, ranks_of_job, spread_over
from sparse_bo.cli.presets import policy_of
from sparse_bo.policies import BBKB
from sparse_bo.sharding import Alone
from sparse_bo.sharding.group import NAMES_OF_A_JOB
from tests.cli.builders import invoke
from tests.sharding.builders import rehearse


def test_without_a_job_there_is_one_rank(monkeypatch):
    for name in NAMES_OF_A_JOB:
        monkeypatch.delenv(name, raising=False)
    with ranks_of_job() as group:
        assert group.size == 1
        assert not console.quiet


def test_a_job_of_one_rank_is_no_job(monkeypatch):
    for name in NAMES_OF_A_JOB:
        monkeypatch.setenv(name, "1")
    with ranks_of_job() as group:
        assert isinstance(group, Alone)


def test_arms_are_spread_and_boxes_refused():
    arms = torch.rand(9, 2, dtype=torch.float64)
    assert spread_over({"arms": arms}, Alone())["arms"] is arms
    parts = rehearse(3, lambda group: len(spread_over({"arms": arms}, group)["arms"].part))
    assert parts == [3, 3, 3]
    (first, _) = rehearse(2, lambda group: spread_over({"bounds": arms[:2]}, group))
    assert isinstance(first, ValueError)
    assert "start it without torchrun" in str(first)


def test_without_a_name_ranks_get_a_policy_that_takes_shards():
    arms = torch.rand(60, 2, dtype=torch.float64)
    settings = {"name": "own", "goal": "best", "budget": 20, "preset": "learned"}
    chosen = rehearse(2, lambda group: policy_of(None, {}, domain=spread_over({"arms": arms}, group), **settings).policy)
    assert [type(policy) for policy in chosen] == [BBKB, BBKB]


def test_a_rank_computes_on_the_gpu_of_its_number(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    devices = rehearse(2, lambda group: device_on_rank(torch.device("cuda"), group))
    assert devices == [torch.device("cuda", 1)] * 2
    assert device_on_rank(torch.device("cpu"), Alone()) == torch.device("cpu")


def test_started_again_the_command_goes_on_with_its_own_journal_unasked(tmp_path, monkeypatch):
    (tmp_path / "own_of_ranks.py").write_text("def measure(X):\n    return X.sum(dim=1)\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    command = [
        "run",
        "--objective",
        "own_of_ranks:measure",
        "--policy",
        "random",
        "--budget",
        "6",
        "--storage",
        "run.journal",
        "--quiet",
    ]
    assert invoke(*command, "--grid", "0:1:9,0:1:9").exit_code == 0
    again = invoke(*command, "--grid", "0:1:9,0:1:9")
    assert again.exit_code == 2, again.output  # the journal is there
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = invoke(*command, "--grid", "0:1:9,0:1:9")
    assert again.exit_code == 0, again.output
    other = invoke(*command, "--grid", "0:1:9,0:1:8")
    assert other.exit_code == 2
    assert "is of another problem" in other.output
