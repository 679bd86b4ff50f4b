"""Maximum-variance designs against designs that recompute every arm densely after every pick."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel
from torch import Tensor

import sparse_bo.arms.batch
import sparse_bo.arms.design
from sparse_bo.arms import ArmPrior
from sparse_bo.arms.design import Design, Resampling, design
from sparse_bo.dictionary import AllSampler, FirstSampler, LeverageSampler, RecursiveRLSSampler, Sampler
from tests.arms.builders import cross, make_prior, rbf_kernel
from tests.oracles import exact_gp, nystrom

DECISIVE = 1e-10


def _arms(seed: int, a: int, d: int = 2) -> Tensor:
    return torch.rand(a, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _matern(lengthscale: float = 0.3) -> Kernel:
    kernel = MaternKernel(nu=1.5).double()
    kernel.lengthscale = lengthscale
    return kernel


def _design(prior: ArmPrior, q: int, sampler: Sampler, *, ratio_threshold: float = 2.0, seed: int = 0) -> Design:
    resampling = Resampling(sampler=lambda picks: sampler, ratio_threshold=ratio_threshold)
    return design(prior, q, resampling=resampling, generator=torch.Generator().manual_seed(seed))


def _best(variance: Tensor) -> tuple[int, float]:
    """The first of the arms that tie for the highest variance, and the distance to the best that does not."""
    best = variance.max()
    ties = variance >= best - 1e-12
    gap = math.inf if bool(ties.all()) else float(best - variance[~ties].max())
    return int(ties.nonzero()[0]), gap


def dense_exact(K: Tensor, noise: float, q: int) -> tuple[list[int], float]:
    """``argmax`` of the exact posterior variance, ``q`` times over."""
    picks: list[int] = []
    smallest = math.inf
    for _ in range(q):
        variance = exact_gp(K[picks][:, picks], K[picks], K, K.new_zeros(len(picks)), noise=noise).variance
        pick, gap = _best(variance)
        picks.append(pick)
        smallest = min(smallest, gap)
    return picks, smallest


def dense_sparse(K: Tensor, noise: float, q: int, *, size: int, threshold: float) -> tuple[list[int], float]:
    """The same with the first ``size`` distinct picks as dictionary, taken anew when ``1 + Σ leverage > threshold``.

    Between two dictionaries the DTC process is conditioned on the picks.
    """
    picks: list[int] = []
    smallest = math.inf
    while len(picks) < q:
        D = list(dict.fromkeys(picks))[:size] or [0]
        Q = nystrom(K[D][:, D], K[D], K[D])
        C = K - Q + exact_gp(Q[picks][:, picks], Q[picks], Q, K.new_zeros(len(picks)), noise=noise).covariance
        start, spent, fresh = C.diagonal() / noise, 0.0, []
        while len(picks) + len(fresh) < q and (spent <= threshold - 1.0 or not fresh):
            now = exact_gp(C[fresh][:, fresh], C[fresh], C, C.new_zeros(len(fresh)), noise=noise).variance
            pick, gap = _best(now)
            fresh.append(pick)
            smallest = min(smallest, gap)
            spent += float(start[pick])
        picks += fresh
    return picks, smallest


@pytest.mark.parametrize(
    "kernel", [rbf_kernel(lengthscale=0.3), rbf_kernel(lengthscale=1.5), _matern()], ids=["short", "long", "matern"]
)
@pytest.mark.parametrize("noise", [0.01, 0.3, 5.0])
def test_exact_picks_are_those_of_full_recomputation(
    kernel: Kernel, noise: float, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = 0
    for seed in range(3):
        prior = make_prior(_arms(seed, 70).to(device), kernel=kernel, noise=noise)
        expected, gap = dense_exact(cross(prior, prior.arms, prior.arms), noise, 50)
        if gap < DECISIVE:
            continue
        compared += 1
        for block in (4, 64):
            monkeypatch.setattr(sparse_bo.arms.batch, "BLOCK", block)
            assert _design(prior, 50, AllSampler()).indices.tolist() == expected, f"{seed=} {block=}"
    assert compared >= 2


@pytest.mark.parametrize("threshold", [1.0, 1.5, 4.0])
def test_sparse_picks_are_those_of_full_recomputation(threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deterministic dictionary that soon no longer holds every pick; no stretch is cut short by the cost of refreshing."""
    monkeypatch.setattr(sparse_bo.arms.design, "SWEEP_SHARE", 1e-9)
    compared = 0
    for seed in range(6):
        noise = [0.05, 0.5][seed % 2]
        prior = make_prior(_arms(seed, 60), kernel=_matern(), noise=noise)
        K = cross(prior, prior.arms, prior.arms)
        expected, gap = dense_sparse(K, noise, 50, size=8, threshold=threshold)
        if gap < DECISIVE:
            continue
        compared += 1
        got = _design(prior, 50, FirstSampler(size=8), ratio_threshold=threshold)
        assert got.indices.tolist() == expected, seed
        assert got.dictionary.m == 8
        assert not got.exact
    assert compared >= 4


def test_exact_picks_do_not_depend_on_how_they_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    prior = make_prior(_arms(3, 400), kernel=_matern(), noise=0.05)
    reference = _design(prior, 300, AllSampler())
    assert len(reference.indices) == 300
    assert reference.observations.n < 300, "some arms should be worth repeating"
    for share, longest in ((1e-9, 10_000), (1_000, 10_000), (8, 3)):
        monkeypatch.setattr(sparse_bo.arms.design, "SWEEP_SHARE", share)
        monkeypatch.setattr(sparse_bo.arms.design, "LONGEST_STRETCH", longest)
        assert torch.equal(_design(prior, 300, AllSampler()).indices, reference.indices), (share, longest)


def test_a_sampler_that_keeps_everything_gives_the_exact_design() -> None:
    """Recursive RLS with the constants of its proof keeps some thousand points: S-BPE is BPE up to there."""
    prior = make_prior(_arms(5, 200), kernel=_matern(), noise=0.1)
    exact = _design(prior, 150, AllSampler())
    for threshold in (1.0, 2.0):
        recursive = _design(prior, 150, RecursiveRLSSampler(failure_probability=0.01), ratio_threshold=threshold)
        assert recursive.exact
        assert torch.equal(recursive.indices, exact.indices)


@pytest.mark.parametrize("sampler", [AllSampler(), FirstSampler(size=20)], ids=["exact", "sparse"])
def test_a_float32_sweep_gives_the_same_picks(sampler: Sampler) -> None:
    arms = _arms(7, 300)
    high = make_prior(arms, kernel=_matern(), noise=0.2)
    low = make_prior(arms, kernel=_matern(), noise=0.2, sweep_dtype=torch.float32)
    assert torch.equal(
        _design(low, 120, sampler, ratio_threshold=1.0).indices, _design(high, 120, sampler, ratio_threshold=1.0).indices
    )


@pytest.mark.parametrize("a", [1, 3, 7])
def test_fewer_arms_than_a_block(a: int) -> None:
    prior = make_prior(_arms(1, a), noise=0.1)
    picks = _design(prior, 40, AllSampler()).indices.tolist()
    assert picks == dense_exact(cross(prior, prior.arms, prior.arms), 0.1, 40)[0]


def test_repeated_rows_count_as_one_arm_and_ties_go_to_the_first() -> None:
    arms = _arms(2, 30)
    prior = make_prior(torch.cat([arms, arms]), noise=0.1)
    picks = _design(prior, 60, AllSampler()).indices
    assert int(picks[0]) == 0
    assert int(picks.max()) < 30


def test_the_prior_mean_plays_no_part() -> None:
    arms = _arms(4, 100)
    plain, shifted = make_prior(arms, noise=0.1), make_prior(arms, noise=0.1, prior_mean=3.0)
    assert torch.equal(_design(shifted, 40, AllSampler()).indices, _design(plain, 40, AllSampler()).indices)


def test_a_design_draws_from_its_generator_alone(generator: torch.Generator) -> None:
    prior = make_prior(_arms(6, 200), kernel=_matern(), noise=2.0)
    sampler = LeverageSampler(oversampling=1.0)
    before = torch.random.get_rng_state()
    first = _design(prior, 80, sampler, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.indices, _design(prior, 80, sampler, seed=1).indices)
    assert not torch.equal(first.indices, _design(prior, 80, sampler, seed=2).indices)


def test_it_goes_on_without_sweeps_only_as_far_as_the_sampler_keeps_everything() -> None:
    """Ten distinct picks fit into the dictionary; from then on C̃ = 1 asks for a new one after each."""
    prior = make_prior(_arms(8, 50), kernel=_matern(0.1), noise=1.0)
    made = _design(prior, 20, RecursiveRLSSampler(size=10), ratio_threshold=1.0)
    assert len(set(made.indices[:10].tolist())) == 10
    assert made.resparsifications == 11


@pytest.mark.parametrize(
    ("sampler", "kept"),
    [
        (RecursiveRLSSampler(failure_probability=0.02), 192 * math.log(50)),
        (RecursiveRLSSampler(size=7), 7),
        (AllSampler(), math.inf),
        (FirstSampler(size=7), 0),
    ],
    ids=["confidence", "size", "all", "unknown"],
)
def test_how_many_picks_a_sampler_is_known_to_keep(sampler: Sampler, kept: float) -> None:
    assert sparse_bo.arms.design._keeps_all_up_to(sampler) == pytest.approx(kept)


def test_the_sampler_learns_how_many_picks_there_are() -> None:
    seen: list[int] = []

    def sampler(picks: int) -> Any:
        seen.append(picks)
        return FirstSampler(size=3)

    prior = make_prior(_arms(8, 50), kernel=_matern(), noise=1.0)
    made = design(
        prior, 20, resampling=Resampling(sampler=sampler, ratio_threshold=1.0), generator=torch.Generator().manual_seed(0)
    )
    assert seen[-1] == 20
    assert seen == sorted(seen)
    assert made.resparsifications == 20
