"""Maximum-variance designs against designs that recompute every arm densely after every pick."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

import sparse_bo.arms.design
from sparse_bo.arms import ArmPrior
from sparse_bo.arms.design import Design, Resampling, design
from sparse_bo.arms.prior import Sizes
from sparse_bo.dictionary import AllSampler, FirstSampler, LeverageSampler, RecursiveRLSSampler, Sampler
from tests.arms.builders import cross, make_prior
from tests.builders import arms, matern_kernel, rbf_kernel
from tests.oracles import exact_design, sparse_design

DECISIVE = 1e-10


def _design(prior: ArmPrior, q: int, sampler: Sampler, *, ratio_threshold: float = 2.0, seed: int = 0) -> Design:
    resampling = Resampling(sampler=lambda picks: sampler, ratio_threshold=ratio_threshold)
    return design(prior, q, resampling=resampling, generator=torch.Generator().manual_seed(seed))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "kernel", [rbf_kernel(0.3, scale=1.0), rbf_kernel(1.5, scale=1.0), matern_kernel()], ids=["short", "long", "matern"]
)
@pytest.mark.parametrize("noise", [0.01, 0.3, 5.0])
def test_exact_picks_are_those_of_full_recomputation(kernel, noise, device):
    compared = 0
    for seed in range(2):
        prior = make_prior(arms(70, seed=seed).to(device), kernel=kernel, noise=noise)
        expected, gap = exact_design(cross(prior, prior.arms, prior.arms), noise, 50)
        if gap < DECISIVE:
            continue
        compared += 1
        for block in (4, 64):
            assert _design(replace(prior, sizes=Sizes(block=block)), 50, AllSampler()).indices.tolist() == expected, (
                f"{seed=} {block=}"
            )
    assert compared >= 1


@pytest.mark.sampled(1)
@pytest.mark.parametrize("threshold", [1.0, 1.5, 4.0])
def test_sparse_picks_are_those_of_full_recomputation(threshold):
    """A deterministic dictionary that soon no longer holds every pick; no stretch is cut short by the cost of refreshing."""
    compared = 0
    for seed in range(4):
        noise = [0.05, 0.5][seed % 2]
        prior = make_prior(arms(60, seed=seed), kernel=matern_kernel(), noise=noise, sizes=Sizes(sweep_share=1e-9))
        K = cross(prior, prior.arms, prior.arms)
        expected, gap = sparse_design(K, noise, 50, size=8, threshold=threshold)
        if gap < DECISIVE:
            continue
        compared += 1
        got = _design(prior, 50, FirstSampler(size=8), ratio_threshold=threshold)
        assert got.indices.tolist() == expected, seed
        assert got.dictionary.m == 8
        assert not got.exact
    assert compared >= 3


def test_exact_picks_do_not_depend_on_how_they_are_computed():
    prior = make_prior(arms(200, seed=3), kernel=matern_kernel(), noise=0.05)
    reference = _design(prior, 180, AllSampler())
    assert len(reference.indices) == 180
    assert reference.observations.n < 180, "some arms should be worth repeating"
    for share, longest in ((1e-9, 10_000), (1_000, 10_000), (8, 3)):
        cut = replace(prior, sizes=Sizes(sweep_share=share, longest_stretch=longest))
        assert torch.equal(_design(cut, 180, AllSampler()).indices, reference.indices), (share, longest)


def test_a_sampler_that_keeps_everything_gives_the_exact_design():
    """Recursive RLS with the constants of its proof keeps some thousand points: S-BPE is BPE up to there."""
    prior = make_prior(arms(200, seed=5), kernel=matern_kernel(), noise=0.1)
    exact = _design(prior, 150, AllSampler())
    for threshold in (1.0, 2.0):
        recursive = _design(prior, 150, RecursiveRLSSampler(failure_probability=0.01), ratio_threshold=threshold)
        assert recursive.exact
        assert torch.equal(recursive.indices, exact.indices)


@pytest.mark.parametrize("sampler", [AllSampler(), FirstSampler(size=20)], ids=["exact", "sparse"])
def test_a_float32_sweep_gives_the_same_picks(sampler):
    X = arms(300, seed=7)
    high = make_prior(X, kernel=matern_kernel(), noise=0.2)
    low = make_prior(X, kernel=matern_kernel(), noise=0.2, sweep_dtype=torch.float32)
    assert torch.equal(
        _design(low, 60, sampler, ratio_threshold=1.0).indices, _design(high, 60, sampler, ratio_threshold=1.0).indices
    )


@pytest.mark.parametrize("a", [1, 3, 7])
def test_fewer_arms_than_a_block(a):
    prior = make_prior(arms(a, seed=1), noise=0.1)
    picks = _design(prior, 40, AllSampler()).indices.tolist()
    assert picks == exact_design(cross(prior, prior.arms, prior.arms), 0.1, 40)[0]


def test_repeated_rows_count_as_one_arm_and_ties_go_to_the_first():
    X = arms(30, seed=2)
    prior = make_prior(torch.cat([X, X]), noise=0.1)
    picks = _design(prior, 60, AllSampler()).indices
    assert int(picks[0]) == 0
    assert int(picks.max()) < 30


def test_the_prior_mean_plays_no_part():
    X = arms(100, seed=4)
    plain, shifted = make_prior(X, noise=0.1), make_prior(X, noise=0.1, prior_mean=3.0)
    assert torch.equal(_design(shifted, 40, AllSampler()).indices, _design(plain, 40, AllSampler()).indices)


def test_a_design_draws_from_its_generator_alone(generator):
    prior = make_prior(arms(200, seed=6), kernel=matern_kernel(), noise=2.0)
    sampler = LeverageSampler(oversampling=1.0)
    before = torch.random.get_rng_state()
    first = _design(prior, 80, sampler, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first.indices, _design(prior, 80, sampler, seed=1).indices)
    assert not torch.equal(first.indices, _design(prior, 80, sampler, seed=2).indices)


def test_it_goes_on_without_sweeps_only_as_far_as_the_sampler_keeps_everything():
    """Ten distinct picks fit into the dictionary; from then on C̃ = 1 asks for a new one after each."""
    prior = make_prior(arms(50, seed=8), kernel=matern_kernel(0.1), noise=1.0)
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
def test_how_many_picks_a_sampler_is_known_to_keep(sampler, kept):
    assert sparse_bo.arms.design._keeps_all_up_to(sampler) == pytest.approx(kept)


def test_the_sampler_learns_how_many_picks_there_are():
    seen: list[int] = []

    def sampler(picks: int) -> Any:
        seen.append(picks)
        return FirstSampler(size=3)

    prior = make_prior(arms(50, seed=8), kernel=matern_kernel(), noise=1.0)
    made = design(
        prior, 20, resampling=Resampling(sampler=sampler, ratio_threshold=1.0), generator=torch.Generator().manual_seed(0)
    )
    assert seen[-1] == 20
    assert seen == sorted(seen)
    assert made.resparsifications == 20
