"""The local stop rule's ratios against their definition."""

import math

import pytest
import torch
from gpytorch.kernels import LinearKernel

from sparse_bo.arms.batch import LocalRatios
from sparse_bo.arms.in_batch import Conditioner
from sparse_bo.sharding import Alone
from tests.arms.builders import Problem, random_problem

KINDS = ("fixed", "process")
PICKS = [3, 7, 3, 0, 19, 3, 11, 7]


def _ratios(problem: Problem, kind: str, threshold: float = math.inf) -> LocalRatios:
    posterior = problem.posterior()
    return LocalRatios(posterior, Conditioner.at_start(posterior, kind), threshold, group=Alone())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("external", [False, True], ids=["arms", "external points"])
def test_ratios_are_those_of_the_definition(kind: str, external: bool, device: torch.device) -> None:
    p = random_problem(0, external=external, device=device)
    ratios = _ratios(p, kind)
    for part in (PICKS[:5], PICKS[5:]):
        _, ended = ratios.accept(torch.tensor(part, device=device), check=True)
        assert not ended
    torch.testing.assert_close(ratios.ratios, p.dense().local_ratios(PICKS, kind), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_the_batch_is_cut_after_the_pick_that_passes(kind: str) -> None:
    p = random_problem(1)
    worst = [float(p.dense().local_ratios(PICKS[: k + 1], kind).max()) for k in range(len(PICKS))]
    for k in range(1, len(PICKS)):
        threshold = 0.5 * (worst[k - 1] + worst[k])
        if worst[k] - worst[k - 1] < 1e-9:
            continue
        ratios = _ratios(p, kind, threshold)
        kept, ended = ratios.accept(torch.tensor(PICKS[:2]), check=True)
        if not ended:
            rest, ended = ratios.accept(torch.tensor(PICKS[2:]), check=True)
            kept = torch.cat([kept, rest])
        assert ended
        assert kept.tolist() == PICKS[: k + 1]


def test_without_a_check_nothing_is_cut() -> None:
    kept, ended = _ratios(random_problem(1), "fixed", 1.0).accept(torch.tensor(PICKS), check=False)
    assert kept.tolist() == PICKS
    assert not ended


@pytest.mark.parametrize("kind", KINDS)
def test_ratios_bound_the_shrinkage_and_stay_below_the_global_sum(kind: str) -> None:
    for seed in range(10):
        p = random_problem(seed, external=seed % 2 == 1, noise=0.3)
        ratios = _ratios(p, kind)
        ratios.accept(torch.tensor(PICKS), check=True)
        start = p.posterior().leverages
        shrinkage = start / p.dense().leverages_after(PICKS, kind)
        assert bool((shrinkage <= ratios.ratios * (1 + 1e-9)).all()), seed
        assert float(ratios.ratios.max()) <= 1.0 + float(start[PICKS].sum()) + 1e-9, seed


@pytest.mark.parametrize("kind", KINDS)
def test_an_arm_of_no_leverage_keeps_ratio_one(kind: str) -> None:
    arms = random_problem(2).prior.arms.clone()
    arms[4] = 0.0
    ratios = _ratios(random_problem(2, arms=arms, kernel=LinearKernel()), kind)
    ratios.accept(torch.tensor(PICKS), check=True)
    assert float(ratios.ratios[4]) == 1.0
    assert bool(torch.isfinite(ratios.ratios).all())


@pytest.mark.parametrize("kind", KINDS)
def test_the_memory_budget_changes_nothing(kind: str) -> None:
    p = random_problem(3)
    whole, parts = _ratios(p, kind, 4.0), _ratios(p.with_prior(memory_bytes=40 * 5 * 3), kind, 4.0)
    assert (
        whole.accept(torch.tensor(PICKS), check=True)[0].tolist() == parts.accept(torch.tensor(PICKS), check=True)[0].tolist()
    )
    torch.testing.assert_close(whole.ratios, parts.ratios)
