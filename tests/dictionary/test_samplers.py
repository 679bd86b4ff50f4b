"""What all samplers have in common: they work at the edges, know only their generator, and never ask for the whole matrix."""

import pytest
import torch

from sparse_bo.dictionary import (
    AllSampler,
    FirstSampler,
    GreedyVarianceSampler,
    IPASampler,
    IVMSampler,
    KDPPSampler,
    KMeansPlusPlusSampler,
    LeverageSampler,
    RecursiveRLSSampler,
    Sampler,
    UniformSampler,
)
from tests.builders import arms
from tests.dictionary.builders import candidates

SIZED = [
    UniformSampler,
    RecursiveRLSSampler,
    GreedyVarianceSampler,
    IPASampler,
    IVMSampler,
    KMeansPlusPlusSampler,
    KDPPSampler,
]
everyone = pytest.mark.parametrize("sampler", SIZED, ids=lambda s: s.__name__)


def _told(of):
    n = len(of.X)
    return of._replace(leverages=torch.linspace(0.0, 2.0, n).to(of.X), means=torch.linspace(-1.0, 1.0, n).to(of.X))


def _check(dictionary, of) -> None:
    rows = dictionary.indices.tolist()
    assert rows == sorted(set(rows))
    assert torch.equal(dictionary.points, of.X[dictionary.indices])
    assert dictionary.points.dtype == dictionary.probabilities.dtype == of.X.dtype
    assert bool(((dictionary.probabilities > 0.0) & (dictionary.probabilities <= 1.0)).all())


@pytest.mark.sampled
@everyone
@pytest.mark.parametrize("regularization", [1e-8, 1.0, 1e6])
@pytest.mark.parametrize("size", [1, 39])
def test_extreme_noise_and_sizes_work(sampler, regularization, size, dtype, device, generator):
    of = _told(candidates(arms(40, device=device).to(dtype), lengthscale=0.05, regularization=regularization))
    dictionary = sampler(size=size).sample(of, generator=generator)
    assert dictionary.m == size
    _check(dictionary, of)


@everyone
def test_equal_and_far_apart_inputs_work(sampler, generator):
    for X in (torch.zeros(30, 2).double(), 1e6 * arms(30), 1e-12 * arms(30)):
        of = _told(candidates(X))
        dictionary = sampler(size=7).sample(of, generator=generator)
        assert 1 <= dictionary.m <= 7
        _check(dictionary, of)


@pytest.mark.parametrize("told", [False, True])
@pytest.mark.parametrize(
    "sampler",
    [*(s(size=3) for s in (*SIZED, FirstSampler)), RecursiveRLSSampler(), LeverageSampler(), AllSampler()],
    ids=lambda s: type(s).__name__,
)
def test_no_candidates_are_refused(sampler, told, generator):
    of = candidates(arms(0))
    with pytest.raises(ValueError, match=f"{type(sampler).__name__} expected at least one candidate to choose from, got none"):
        sampler.sample(_told(of) if told else of, generator=generator)


class _Rank:
    """A scaled linear kernel: of rank d, whatever n; of no variance at all with scale 0."""

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def cross(self, X, Y):
        return self.scale * (X @ Y.mT)

    def diagonal(self, X):
        return self.scale * X.square().sum(dim=-1)


@everyone
@pytest.mark.parametrize(("scale", "rank"), [(1.0, 2), (0.0, 0)], ids=["rank two", "no variance"])
def test_singular_kernel_matrices_work(sampler, scale, rank, generator):
    """Those that stop where nothing is left to explain stop there; none comes back empty or with a point twice."""
    of = _told(candidates(arms(30)))._replace(covariance=_Rank(scale))
    dictionary = sampler(size=7).sample(of, generator=generator)
    _check(dictionary, of)
    if sampler in (GreedyVarianceSampler, IPASampler, KDPPSampler):
        assert dictionary.m == max(rank, 1)
    else:
        assert 1 <= dictionary.m <= 7


@everyone
def test_a_single_candidate_is_taken(sampler, generator):
    of = _told(candidates(arms(1)))
    assert sampler(size=3).sample(of, generator=generator).indices.tolist() == [0]


@pytest.mark.parametrize("regularization", [1e-8, 1e6])
def test_sampling_with_confidence_survives_extreme_noise(regularization, generator):
    of = candidates(arms(750), lengthscale=1.0, regularization=regularization)
    _check(RecursiveRLSSampler(failure_probability=0.03).sample(of, generator=generator), of)


@everyone
def test_randomness_comes_from_the_generator_alone(sampler):
    of, before = _told(candidates(arms(80))), torch.get_rng_state()
    once, twice = (sampler(size=12).sample(of, generator=torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(once.indices, twice.indices)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(sampler(size=1), Sampler)


@everyone
def test_the_whole_kernel_matrix_is_never_asked_for(sampler, generator):
    n, size, asked = 2000, 10, []
    of = _told(candidates(arms(n)))
    kernel = of.covariance

    class Watched:
        def cross(self, X, Y):
            asked.append(X.shape[0] * Y.shape[0])
            return kernel.cross(X, Y)

        def diagonal(self, X):
            return kernel.diagonal(X)

    assert sampler(size=size).sample(of._replace(covariance=Watched()), generator=generator).m == size
    assert sum(asked) <= 8 * n * size
    assert asked or sampler is UniformSampler
