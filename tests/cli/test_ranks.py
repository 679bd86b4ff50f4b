"""The command line on ranks: who prints, who computes where, and what cannot be spread."""

import pytest
import torch

from sparse_bo.cli import ranks
from sparse_bo.cli.console import console
from sparse_bo.sharding import Alone, rehearse


def test_without_a_job_there_is_one_rank(monkeypatch):
    for name in ranks.NEEDED:
        monkeypatch.delenv(name, raising=False)
    with ranks.ranks_of_job() as group:
        assert group.size == 1
        assert not console.quiet


def test_a_job_of_one_rank_is_no_job(monkeypatch):
    for name in ranks.NEEDED:
        monkeypatch.setenv(name, "1")
    with ranks.ranks_of_job() as group:
        assert isinstance(group, Alone)


def test_arms_are_spread_and_boxes_refused():
    arms = torch.rand(9, 2, dtype=torch.float64)
    assert ranks.spread_over({"arms": arms}, Alone())["arms"] is arms
    parts = rehearse(3, lambda group: len(ranks.spread_over({"arms": arms}, group)["arms"].part))
    assert parts == [3, 3, 3]
    (first, _) = rehearse(2, lambda group: ranks.spread_over({"bounds": arms[:2]}, group))
    assert isinstance(first, ValueError)
    assert "start it without torchrun" in str(first)


@pytest.mark.parametrize(("count", "expected"), [(None, False), ("0", False), ("2", True)])
def test_a_restart_is_known_by_torchruns_count(count, expected, monkeypatch):
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    if count is not None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert ranks.restarted() is expected


def test_a_rank_computes_on_the_gpu_of_its_number(monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "5")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    devices = rehearse(2, lambda group: ranks.device_on_rank(torch.device("cuda"), group))
    assert devices == [torch.device("cuda", 1)] * 2
    assert ranks.device_on_rank(torch.device("cpu"), Alone()) == torch.device("cpu")
