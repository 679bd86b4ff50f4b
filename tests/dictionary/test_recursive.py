"""Recursive ridge-leverage-score sampling against exact leverages."""

import math
import re

import gpytorch
import pytest
import torch

from sparse_bo.dictionary import Candidates, RecursiveRLSSampler, Sampler, UniformSampler, residual_bound
from sparse_bo.dictionary.base import whitened_gram
from sparse_bo.dictionary.leverage_samplers import Sketch, inclusion_of_size, ridge_scores, sketch_tail, systematic
from sparse_bo.kernels import covariance_function
from tests.builders import arms
from tests.dictionary.builders import candidates, kernel_matrix, leverage_scores, pulls_matrix

DELTA = 0.03


def _seeds(count: int):
    return (torch.Generator().manual_seed(seed) for seed in range(count))


def _repeated(n: int = 12, device: torch.device | str = "cpu") -> Candidates:
    counts = torch.tensor([1.0, 3.0, 2.0] * n, dtype=torch.float64, device=device)[:n]
    noise = torch.linspace(0.05, 0.5, n, dtype=torch.float64, device=device)
    return candidates(arms(n, device=device), counts=counts, regularization=noise)


def test_scores_of_a_full_sketch_are_the_exact_leverages_summed_over_repeats(device):
    of = _repeated(device=device)
    gram = whitened_gram(of, needed_by="test")
    rows = torch.arange(12, device=device)
    got = ridge_scores(gram, gram.diagonal(), Sketch(rows, torch.ones_like(of.counts)), rows, ridge=1.0)
    per_pull = leverage_scores(pulls_matrix(of))
    owner = torch.repeat_interleave(rows, of.counts.long())
    torch.testing.assert_close(got, torch.zeros_like(got).index_add(0, owner, per_pull))


def test_scores_of_a_weighted_sketch_are_the_papers_formula():
    of = candidates(arms(30), regularization=0.2)
    A, ridge = pulls_matrix(of), 0.7
    rows, p = torch.tensor([3, 11, 4, 25]), torch.tensor([0.5, 1.0, 0.1, 0.25], dtype=torch.float64)
    S = torch.zeros(30, 4, dtype=torch.float64)
    S[rows, torch.arange(4)] = p.rsqrt()
    inner = S.T @ A @ S
    expected = (A - A @ S @ torch.linalg.inv(inner + ridge * torch.eye(4, dtype=torch.float64)) @ S.T @ A).diagonal() / ridge
    gram = whitened_gram(of, needed_by="test")
    some = torch.tensor([0, 3, 29])
    torch.testing.assert_close(ridge_scores(gram, gram.diagonal(), Sketch(rows, p), some, ridge=ridge), expected[some])
    values = torch.linalg.eigvalsh(inner)
    assert sketch_tail(gram, Sketch(rows, p), rank=2) == pytest.approx(float(values[:2].sum()) / 2)


def _dense_scores(A: torch.Tensor, rows: torch.Tensor, p: torch.Tensor, ridge: float) -> torch.Tensor:
    columns = A[:, rows] * p.rsqrt()
    inner = columns[rows] * p.rsqrt().unsqueeze(-1)
    eye = torch.eye(len(rows), dtype=A.dtype)
    return (A.diagonal() - (columns * torch.linalg.solve(inner + ridge * eye, columns.T).T).sum(dim=-1)).clamp_min(0.0) / ridge


def test_sampling_with_confidence_is_the_algorithm_level_by_level():
    """Musco & Musco 2017, Alg. 2 with δ/3 at each level down, dense: three levels, rows left to chance at both upper ones."""
    n, every = 1900, torch.arange(1900)
    of = candidates(arms(n), lengthscale=1.0, regularization=20.0)
    A, generator = pulls_matrix(of), torch.Generator().manual_seed(5)
    half = every[torch.rand(n, generator=generator, dtype=torch.float64) < 0.5]
    quarter = half[torch.rand(len(half), generator=generator, dtype=torch.float64) < 0.5]
    assert n > 192 * math.log(1 / DELTA)
    assert len(half) > 192 * math.log(3 / DELTA)
    assert len(quarter) < 192 * math.log(9 / DELTA)
    rows, p = quarter, torch.ones(len(quarter), dtype=torch.float64)
    for depth, level in ((1, half), (0, every)):
        scores = 1.5 * _dense_scores(A, rows, p, 1.0)[level]
        chances = (16.0 * math.log(float(scores.sum()) * 3**depth / DELTA) * scores).clamp(max=1.0)
        kept = torch.rand(len(level), generator=generator, dtype=torch.float64) < chances
        rows, p = level[kept], chances[kept]
        assert float((chances < 1.0).double().mean()) > 0.3
    got = RecursiveRLSSampler(failure_probability=DELTA).sample(of, generator=torch.Generator().manual_seed(5))
    assert torch.equal(got.indices, rows)
    torch.testing.assert_close(got.probabilities, p)


def test_a_level_below_is_small_enough_at_its_own_failure_probability():
    """Half of 1,400 rows are more than 192 log(1/δ), but fewer than 192 log(3/δ), what that level may keep: it is the last."""
    generator, twin = (torch.Generator().manual_seed(2) for _ in range(2))
    RecursiveRLSSampler(failure_probability=DELTA).sample(candidates(arms(1400), lengthscale=1.0), generator=generator)
    half = int((torch.rand(1400, generator=twin, dtype=torch.float64) < 0.5).sum())
    assert 192 * math.log(1 / DELTA) < half < 192 * math.log(3 / DELTA)
    torch.rand(1400, generator=twin, dtype=torch.float64)
    assert torch.equal(generator.get_state(), twin.get_state())


def test_sampling_of_fixed_size_is_the_algorithm_level_by_level():
    """After Musco & Musco 2017, Alg. 3, dense: the ridge is the sample's own tail beyond rank k = ⌈10/(1 + log 10)⌉ = 4."""
    of, generator = candidates(arms(40), counts=torch.tensor([1.0, 2.0] * 20).double()), torch.Generator().manual_seed(6)
    scale = (of.counts / 0.1).sqrt()
    A = scale.unsqueeze(-1) * kernel_matrix(of) * scale
    order = torch.randperm(40, generator=generator)
    rows, p = order[:10], torch.ones(10, dtype=torch.float64)
    for level in (order[:20], torch.arange(40)):
        inner = p.rsqrt().unsqueeze(-1) * A[rows][:, rows] * p.rsqrt()
        ridge = float(torch.linalg.eigvalsh(inner)[:6].sum()) / 4
        chances = inclusion_of_size(_dense_scores(A, rows, p, ridge)[level], 10)
        kept = systematic(chances, generator=generator)
        rows, p = level[kept], chances[kept]
    got = RecursiveRLSSampler(size=10).sample(of, generator=torch.Generator().manual_seed(6))
    assert torch.equal(got.indices, rows.sort().values)
    torch.testing.assert_close(got.probabilities, p[rows.argsort()])


def test_inclusion_probabilities_are_at_least_the_exact_leverages_and_the_residual_below_lambda():
    """Lemma 3.8 over seeds: p_i ≥ min(1, 16 log(·) l_i) ≥ min(1, l_i), and λ_max(K − Q) ≤ λ; counts, not averages.

    A clump and 12 inputs far from it and from each other: without one of these, λ_max is 2 λ.
    """
    far = torch.linspace(5.0, 60.0, 12, dtype=torch.float64).unsqueeze(-1).expand(12, 2)
    of = candidates(torch.cat([0.02 * arms(700, seed=1), far]), lengthscale=1.0, regularization=0.5)
    exact = leverage_scores(pulls_matrix(of))
    sampler = RecursiveRLSSampler(failure_probability=DELTA)
    seeds, low, large, large_uniform, sizes = 10, 0, 0, 0, []
    for generator in _seeds(seeds):
        dictionary = sampler.sample(of, generator=generator)
        theory = (16.0 * math.log(float(exact.sum()) / DELTA) * exact[dictionary.indices]).clamp(max=1.0)
        low += bool((dictionary.probabilities < theory - 1e-12).any())
        large += residual_bound(of, dictionary, generator=generator).upper > 1.0  # against dense algebra in test_residual
        same_size = UniformSampler(size=dictionary.m).sample(of, generator=generator)
        large_uniform += residual_bound(of, same_size, generator=generator).lower > 1.0
        sizes.append(dictionary.m)
    assert max(sizes) < 500, "the dictionary must be a real sample for this test to say anything"
    assert large_uniform > seeds / 2, "as must be its bound"
    assert low <= DELTA * seeds, f"{low} of {seeds} seeds underestimate a leverage"
    assert large <= DELTA * seeds, f"{large} of {seeds} seeds have λ_max(K − Q) > λ"


def test_a_size_below_the_bound_where_the_bound_is_below_n():
    """A linear kernel has few directions: leverages of 2,500 inputs are exact by scalar algebra."""
    X = 0.1 * torch.randn(2500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = gpytorch.kernels.LinearKernel().double()
    kernel.variance = 1.0
    of = candidates(X, regularization=1.0)._replace(covariance=covariance_function(kernel, like=X))
    exact = (X @ torch.linalg.inv(X.T @ X + torch.eye(1, dtype=torch.float64)) * X).sum(dim=-1)
    dimension = float(exact.sum())
    bound = 384 * dimension * math.log(3 * dimension / DELTA)
    assert bound < 2000
    over = under = 0
    for generator in _seeds(8):
        dictionary = RecursiveRLSSampler(failure_probability=DELTA).sample(of, generator=generator)
        over += dictionary.m > bound
        under += bool((dictionary.probabilities < exact[dictionary.indices].clamp(max=1.0)).any())
        assert dictionary.m > 20
    assert (over, under) == (0, 0)


def test_reported_probabilities_are_those_of_the_draw():
    """Horvitz–Thompson: Σ 1/p over the dictionary estimates n without bias, whatever the scores are."""
    of = candidates(arms(800, seed=2), lengthscale=1.5, regularization=20.0)
    for sampler, rounds in ((RecursiveRLSSampler(failure_probability=DELTA), 20), (RecursiveRLSSampler(size=40), 50)):
        estimates = torch.stack([sampler.sample(of, generator=g).probabilities.reciprocal().sum() for g in _seeds(rounds)])
        error = float(estimates.std()) / rounds**0.5
        assert 0.0 < error < 40.0
        assert abs(float(estimates.mean()) - 800.0) < 4.0 * error


@pytest.mark.parametrize("n", [1, 6, 664])
def test_few_candidates_are_all_kept_and_nothing_is_drawn(n, generator):
    before = generator.get_state()
    dictionary = RecursiveRLSSampler(failure_probability=0.031).sample(candidates(arms(n)), generator=generator)
    assert dictionary.m == n
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("size", [1, 2, 3, 17, 120])
def test_fixed_size_is_the_size(size, device, generator):
    dictionary = RecursiveRLSSampler(size=size).sample(candidates(arms(300, device=device)), generator=generator)
    assert dictionary.m == size
    assert dictionary.indices is not None
    assert dictionary.indices.tolist() == sorted(set(dictionary.indices.tolist()))
    assert bool(((dictionary.probabilities > 0) & (dictionary.probabilities <= 1)).all())


def test_fixed_size_takes_all_while_there_are_fewer(generator):
    dictionary = RecursiveRLSSampler(size=9).sample(candidates(arms(7)), generator=generator)
    assert dictionary.indices is not None
    assert dictionary.indices.tolist() == list(range(7))


def test_fixed_size_beats_a_uniform_sample_where_inputs_cluster():
    """990 inputs in a clump, 10 scattered: leverage scores find the scattered ones, a uniform sample does not."""
    clump, scattered = 0.01 * arms(990, seed=3), 5.0 * arms(10, seed=4) + 1.0
    of = candidates(torch.cat([clump, scattered]), regularization=0.01)
    sampler = RecursiveRLSSampler(size=40)
    found = [int((sampler.sample(of, generator=g).indices >= 990).sum()) for g in _seeds(20)]
    assert min(found) >= 9
    bounds = [residual_bound(of, sampler.sample(of, generator=g), generator=g).upper for g in _seeds(3)]
    assert max(bounds) < 100.0  # a missing scattered input alone costs k/λ = 100


@pytest.mark.parametrize("size", [None, 5])
def test_constant_kernels_and_repeated_inputs_give_finite_probabilities(size, generator):
    X = torch.ones(1000, 2, dtype=torch.float64)
    dictionary = RecursiveRLSSampler(size=size).sample(candidates(X), generator=generator)
    assert 1 <= dictionary.m <= 1000
    assert bool(torch.isfinite(dictionary.probabilities).all())


@pytest.mark.parametrize("size", [None, 5])
def test_inputs_of_next_to_no_leverage_still_give_a_point(size, generator):
    dictionary = RecursiveRLSSampler(size=size).sample(candidates(arms(1000), regularization=1e12), generator=generator)
    assert dictionary.m >= 1


def test_float32_candidates_and_arm_indices_come_back_as_they_are(generator):
    X = arms(50).float()
    of = candidates(X)._replace(indices=100 + 2 * torch.arange(50))
    dictionary = RecursiveRLSSampler(size=8).sample(of, generator=generator)
    assert dictionary.points.dtype == torch.float32
    assert dictionary.probabilities.dtype == torch.float32
    assert torch.equal(X[(dictionary.indices - 100) // 2], dictionary.points)


@pytest.mark.parametrize("size", [None, 30])
def test_same_generator_same_dictionary_and_the_global_one_is_left_alone(size):
    of, sampler = candidates(arms(900), lengthscale=1.0, regularization=10.0), RecursiveRLSSampler(size=size)
    before = torch.get_rng_state()
    once, twice = (sampler.sample(of, generator=torch.Generator().manual_seed(5)).indices for _ in range(2))
    other = sampler.sample(of, generator=torch.Generator().manual_seed(6)).indices
    assert torch.equal(once, twice)
    assert not torch.equal(once, other)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(sampler, Sampler)


def test_inclusion_of_size_sums_to_the_size():
    scores = torch.tensor([5.0, 0.1, 0.0, 0.2, 0.1, 9.0], dtype=torch.float64)
    p = inclusion_of_size(scores, 3)
    torch.testing.assert_close(p, torch.tensor([1.0, 0.25, 0.0, 0.5, 0.25, 1.0], dtype=torch.float64))
    assert inclusion_of_size(scores, 5).tolist() == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    assert inclusion_of_size(torch.zeros(4, dtype=torch.float64), 2).tolist() == [0.5] * 4


def test_systematic_draws_have_exactly_the_probabilities():
    p = torch.tensor([1.0, 0.7, 0.1, 0.05, 0.9, 0.25], dtype=torch.float64)
    rounds = 4000
    generator = torch.Generator().manual_seed(0)
    hits = torch.zeros(6, dtype=torch.float64)
    for _ in range(rounds):
        rows = systematic(p, generator=generator)
        assert len(rows) == 3
        hits[rows] += 1
    torch.testing.assert_close(hits / rounds, p, rtol=0, atol=5 * (0.25 / rounds) ** 0.5)
    assert hits[0] == rounds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"covariance": None}, "RecursiveRLSSampler needs the prior covariance"),
        ({"regularization": None}, "needs the regularization"),
        ({"regularization": -1.0}, "positive, finite candidates.regularization"),
        ({"regularization": float("nan")}, "positive, finite candidates.regularization"),
        ({"regularization": torch.ones(3)}, "a number or 5 of them, got shape (3,)"),
        ({"inputs": torch.ones(4, 2)}, "as many rows of candidates.inputs"),
    ],
    ids=["covariance", "regularization", "negative", "nan", "length", "inputs"],
)
def test_candidates_without_what_it_needs_are_refused(change, message):
    of = candidates(arms(5))._replace(**change)
    with pytest.raises(ValueError, match=re.escape(message)):
        RecursiveRLSSampler().sample(of, generator=torch.Generator())


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"size": 0}, ValueError, "size >= 1, got 0"),
        ({"size": 2.0}, TypeError, "size to be an integer"),
        ({"failure_probability": 0.05}, ValueError, "failure_probability < 1/32"),
        ({"failure_probability": 0.0}, ValueError, r"failure_probability in (0, 1)"),
    ],
    ids=["zero", "float", "large", "none"],
)
def test_settings_that_make_no_sense_are_refused(settings, error, message):
    with pytest.raises(error, match=re.escape(message)):
        RecursiveRLSSampler(**settings)
