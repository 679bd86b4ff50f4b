"""Both in-batch updates against recomputation with the picks among the pulls."""

import pytest
import torch

from sparse_bo.arms.in_batch import Conditioner
from tests.arms.builders import Problem, random_problem

KINDS = ("fixed", "process")
CLOSE = 1e-9


def _absorb(conditioner: Conditioner, indices: list[int], picks: list[int], device: torch.device) -> Conditioner:
    """Absorb ``picks`` (positions among ``indices``, repeats allowed)."""
    arms = torch.tensor(indices, device=device)
    positions, counts = torch.tensor(picks, device=device).unique(return_counts=True)
    return conditioner.absorb(arms, conditioner.block(arms), positions, counts.double())


@pytest.fixture(params=[False, True], ids=["arms", "external points"])
def problem(request: pytest.FixtureRequest, device: torch.device) -> Problem:
    return random_problem(0, external=request.param, device=device)


@pytest.mark.parametrize("kind", KINDS)
def test_leverages_before_any_pick_are_the_posteriors(kind: str, problem: Problem) -> None:
    posterior = problem.posterior()
    every = torch.arange(20, device=posterior.means.device)
    torch.testing.assert_close(
        sum(Conditioner.at_start(posterior, kind).leverages(every)), posterior.leverages, rtol=0, atol=CLOSE
    )


@pytest.mark.parametrize("kind", KINDS)
def test_leverages_after_two_blocks_of_picks(kind: str, problem: Problem) -> None:
    device = problem.y.device
    conditioner = _absorb(Conditioner.at_start(problem.posterior(), kind), [2, 5, 9], [0, 2, 2], device)
    conditioner = _absorb(conditioner, [5, 9, 14, 19], [1, 3, 3, 3, 0], device)
    expected = problem.dense().leverages_after([2, 9, 9, 9, 19, 19, 19, 5], kind)
    got = sum(conditioner.leverages(torch.arange(20, device=device)))
    torch.testing.assert_close(got, expected, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_has_the_leverages_on_its_diagonal(kind: str, problem: Problem) -> None:
    device = problem.y.device
    conditioner = _absorb(Conditioner.at_start(problem.posterior(), kind), [2, 5, 9], [0, 2, 2], device)
    arms = torch.tensor([1, 2, 9, 17], device=device)
    block = conditioner.block(arms)
    torch.testing.assert_close(
        block.covariance.diagonal() + block.residual, sum(conditioner.leverages(arms)), rtol=0, atol=CLOSE
    )
    torch.testing.assert_close(block.covariance, block.covariance.T, rtol=0, atol=CLOSE)


def test_a_process_block_is_the_joint_posterior(problem: Problem) -> None:
    device = problem.y.device
    conditioner = _absorb(Conditioner.at_start(problem.posterior(), "process"), [2, 5, 9], [0, 2, 2], device)
    arms = [1, 2, 9, 17]
    expected = problem.dense().process_covariance([2, 9, 9])[arms][:, arms] / problem.prior.regularization
    got = conditioner.block(torch.tensor(arms, device=device))
    torch.testing.assert_close(got.covariance, expected, rtol=0, atol=CLOSE)
    assert float(got.residual.abs().max()) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_start_covariance_stays_that_of_the_batch_start(kind: str, problem: Problem) -> None:
    dense, posterior = problem.dense(), problem.posterior()
    arms, device = problem.prior.arms, problem.y.device
    conditioner = _absorb(Conditioner.at_start(posterior, kind), [2, 5, 9], [0, 2, 2], device)
    weights, anchors = conditioner.start_covariance(torch.tensor([3, 7], device=device))
    got = dense.K_DA.T @ weights
    if anchors is not None:
        got = got + problem.prior.covariance.cross(arms, anchors) / problem.prior.regularization
    expected = dense.dtc().covariance[:, [3, 7]]
    if kind == "fixed":
        pinv = torch.linalg.pinv(dense.K_DD, hermitian=True)
        expected = expected - (dense.K_AA - dense.K_DA.T @ pinv @ dense.K_DA)[:, [3, 7]]
    torch.testing.assert_close(got, expected / problem.prior.regularization, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_absorbing_leaves_the_old_value_alone(kind: str, problem: Problem) -> None:
    conditioner = Conditioner.at_start(problem.posterior(), kind)
    every = torch.arange(20, device=problem.y.device)
    before = sum(conditioner.leverages(every))
    _absorb(conditioner, [2, 5, 9], [0, 1, 2], problem.y.device)
    assert torch.equal(sum(conditioner.leverages(every)), before)


@pytest.mark.parametrize("kind", KINDS)
def test_counts_are_repeated_picks(kind: str, problem: Problem) -> None:
    device = problem.y.device
    every = torch.arange(20, device=device)
    at_once = _absorb(Conditioner.at_start(problem.posterior(), kind), [2, 5], [1, 1, 1], device)
    one_by_one = Conditioner.at_start(problem.posterior(), kind)
    for _ in range(3):
        one_by_one = _absorb(one_by_one, [2, 5], [1], device)
    torch.testing.assert_close(sum(at_once.leverages(every)), sum(one_by_one.leverages(every)), rtol=0, atol=CLOSE)


def test_process_picks_reduce_what_fixed_picks_cannot() -> None:
    """Outside the dictionary's span the fixed update leaves the residual; the process update brings it to the noise level."""
    p = random_problem(3, m=1)
    posterior = p.posterior()
    arm = int(posterior.leverages.argmax())
    cpu = torch.device("cpu")
    after = {kind: _absorb(Conditioner.at_start(posterior, kind), [arm], [0] * 50, cpu) for kind in KINDS}
    index = torch.tensor([arm])
    assert float(sum(after["process"].leverages(index))) <= 1 / 50
    assert float(sum(after["fixed"].leverages(index))) > 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_more_picks_than_features(kind: str, problem: Problem) -> None:
    """Block by block, given at once, and both: whatever a conditioner keeps of its picks, they are all in it."""
    device = problem.y.device
    posterior, every = problem.posterior(), torch.arange(20, device=device)
    expected = problem.dense().leverages_after([*range(20), *range(12), 3], kind)
    by_block = Conditioner.at_start(posterior, kind)
    for start in (0, 4, 8, 12, 16):
        by_block = _absorb(by_block, list(range(start, start + 4)), [0, 1, 2, 3], device)
    at_once = Conditioner.at_start(posterior, kind).given(every, torch.ones(20, dtype=torch.float64, device=device))
    for conditioner in (by_block, at_once):
        conditioner = _absorb(conditioner, list(range(12)), list(range(12)), device)
        conditioner = conditioner.given(torch.tensor([3], device=device), torch.ones(1, dtype=torch.float64, device=device))
        torch.testing.assert_close(sum(conditioner.leverages(every)), expected, rtol=0, atol=CLOSE)
