"""One arm per batch, until its variance has fallen by the threshold: against the dense exact GP."""

import pytest
import torch

from sparse_bo.arms import StopRule, pick_batch
from tests.arms.builders import Problem, all_pulled, random_problem

WIDTH = 0.8


def problem(seed: int, device: torch.device) -> Problem:
    return all_pulled(random_problem(seed, noise=[0.1, 1.0, 4.0][seed % 3], device=device))


@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("threshold", [1.5, 2.0, 10.0])
def test_the_batch_ends_when_the_exact_variance_has_fallen_by_the_threshold(seed, threshold, device):
    p = problem(seed, device)
    picks = pick_batch(p.posterior(), width=WIDTH, stop_rule=StopRule("repeat", threshold), max_q=1000).indices.tolist()
    dense = p.dense()
    mean, start = dense.exact().mean, dense.leverages_after([], "process")
    arm = int((mean + WIDTH * start.sqrt()).argmax())
    assert set(picks) == {arm}
    # all_pulled: the process of the dictionary is the exact GP
    assert float(dense.leverages_after(picks, "process")[arm]) < float(start[arm]) / threshold
    assert float(dense.leverages_after(picks[:-1], "process")[arm]) >= float(start[arm]) / threshold * (1.0 - 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_in_pieces_it_is_the_same_batch(seed, device):
    posterior, rule = problem(seed, device).posterior(), StopRule("repeat", 8.0)
    whole = pick_batch(posterior, width=WIDTH, stop_rule=rule, max_q=1000).indices
    given = whole[:0]
    for _ in range(len(whole)):
        given = torch.cat([given, pick_batch(posterior, width=WIDTH, stop_rule=rule, max_q=1, given=given).indices])
    assert given.tolist() == whole.tolist()
    after = pick_batch(posterior, width=WIDTH, stop_rule=rule, max_q=5, given=given)
    assert len(after.indices) == 0
    assert 1 <= after.needed <= len(whole)


def test_other_arms_that_are_out_count_towards_the_sum(device):
    posterior, rule = problem(1, device).posterior(), StopRule("repeat", 8.0)
    alone = len(pick_batch(posterior, width=WIDTH, stop_rule=rule, max_q=1000).indices)
    given = posterior.leverages.argmax().repeat(2)
    batch = pick_batch(posterior, width=WIDTH, stop_rule=rule, max_q=1000, given=given)
    assert 1 <= len(batch.indices) < alone


def test_threshold_one_and_the_cap(device):
    posterior = problem(2, device).posterior()
    assert len(pick_batch(posterior, width=WIDTH, stop_rule=StopRule("repeat", 1.0), max_q=50).indices) == 1
    assert len(pick_batch(posterior, width=WIDTH, stop_rule=StopRule("repeat", 1e6), max_q=50).indices) == 50
    out = posterior.leverages.argmax().unsqueeze(0)
    assert len(pick_batch(posterior, width=WIDTH, stop_rule=StopRule("repeat", 1.0), max_q=5, given=out).indices) == 0
