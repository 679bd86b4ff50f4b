"""Greedy pivoted Cholesky against a dense one that recomputes everything at every step."""

import re

import pytest
import torch

from sparse_bo.linalg.cholesky import pivoted_cholesky
from tests.oracles import rbf


def _matrix(n: int = 40, *, seed: int = 0, device: torch.device | str = "cpu", lengthscale: float = 0.4) -> torch.Tensor:
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device)
    weights = torch.linspace(0.5, 2.0, n, dtype=torch.float64, device=device)  # no two variances tie
    return weights.unsqueeze(-1) * rbf(X, X, lengthscale=lengthscale) * weights


def _dense(A: torch.Tensor, size: int, noise: torch.Tensor, score) -> list[int]:
    """Condition on all chosen rows anew at every step."""
    chosen: list[int] = []
    for _ in range(size):
        inner = A[chosen][:, chosen] + torch.diag(noise[chosen])
        variances = (A - A[:, chosen] @ torch.linalg.inv(inner) @ A[chosen]).diagonal() if chosen else A.diagonal()
        scores = score(variances.clone())
        scores[chosen] = -torch.inf
        chosen.append(int(scores.argmax()))
    return chosen


def _run(A: torch.Tensor, size: int, **options):
    return pivoted_cholesky(lambda p: A[:, p], A.diagonal().clone(), size=size, **options)


def test_rows_are_those_of_dense_conditioning(device: torch.device) -> None:
    A = _matrix(device=device)
    assert _run(A, 12).tolist() == _dense(A, 12, torch.zeros_like(A.diagonal()), lambda d: d)


def test_noise_and_scores_enter_as_conditioning_on_noisy_observations() -> None:
    A = _matrix(seed=1)
    noise = torch.linspace(0.02, 0.4, 40, dtype=torch.float64)
    assert _run(A, 15, noise=noise, score=lambda d: d / noise).tolist() == _dense(A, 15, noise, lambda d: d / noise)


def test_it_stops_at_the_numerical_rank() -> None:
    G = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert len(_run(G @ G.T, 20)) == 3
    assert _run(torch.ones(9, 9, dtype=torch.float64), 5).tolist() == [0]
    assert len(_run(torch.zeros(9, 9, dtype=torch.float64), 5)) == 0


def test_rows_above_round_off_are_chosen_however_small() -> None:
    A = torch.diag(torch.tensor([1.0, 1e-13, 0.0], dtype=torch.float64))
    assert _run(A, 3).tolist() == [0, 1]


def test_rows_of_score_minus_infinity_are_never_chosen() -> None:
    A = _matrix()
    banned = torch.zeros(40, dtype=torch.float64)
    banned[20:] = -torch.inf
    assert sorted(_run(A, 40, score=lambda d: d + banned).tolist())[-1] < 20


def test_the_diagonal_is_left_as_it_is() -> None:
    A, diagonal = _matrix(), _matrix().diagonal().clone()
    pivoted_cholesky(lambda p: A[:, p], diagonal, size=5)
    assert torch.equal(diagonal, A.diagonal())


@pytest.mark.parametrize(
    ("diagonal", "size", "message"),
    [(torch.ones(3), 0, "size >= 1, got 0"), (torch.tensor([1.0, torch.nan]), 1, "finite variances")],
    ids=["size", "nan"],
)
def test_bad_input_is_refused(diagonal: torch.Tensor, size: int, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        pivoted_cholesky(lambda p: diagonal, diagonal, size=size)


@pytest.mark.parametrize("size", [1, 3, 6])
def test_round_off_does_not_choose_among_equal_rows(size: int) -> None:
    """Each input twice, and the second one's variance is larger by the last digit: the first ones are chosen all the same."""
    once = _matrix(8, lengthscale=0.8)
    twice = once.repeat(2, 2)
    raised = twice.diagonal() * torch.cat([torch.ones(8), torch.full((8,), 1.0 + 2.0**-51, dtype=torch.float64)])
    chosen = pivoted_cholesky(lambda i: twice[:, i], raised, size=size)
    assert chosen.tolist() == _run(once, size).tolist()
