"""Greedy variance, IPA and IVM against BoTorch and brute force."""

import itertools
import math
import re

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.utils.inducing_point_allocators import GreedyImprovementReduction, GreedyVarianceReduction

from sparse_bo.dictionary import GreedyVarianceSampler, IPASampler, IVMSampler
from tests.builders import arms
from tests.dictionary.builders import candidates, kernel_matrix

SAMPLERS = [GreedyVarianceSampler, IPASampler, IVMSampler]


@pytest.fixture
def fitted():
    """A BoTorch model on 60 observations, and 500 candidates with its kernel and its posterior at them."""
    train = arms(60, 3, seed=7)
    y = torch.sin(4.0 * train).sum(dim=-1, keepdim=True)
    model = SingleTaskGP(train, y, outcome_transform=None).eval()
    X = arms(500, 3, seed=8)
    with torch.no_grad():
        posterior = model.posterior(X)
    noise = 0.3
    of = candidates(X, regularization=noise)
    return model, of._replace(
        covariance=_Kernel(model.covar_module),
        leverages=posterior.variance.squeeze(-1) / noise,
        means=posterior.mean.squeeze(-1),
    )


class _Kernel:
    def __init__(self, kernel) -> None:
        self.kernel = kernel

    def cross(self, X, Y):
        with torch.no_grad():
            return self.kernel(X, Y).to_dense()

    def diagonal(self, X):
        with torch.no_grad():
            return self.kernel(X, diag=True)


def _rows(points: torch.Tensor, X: torch.Tensor) -> list[int]:
    return sorted((points.unsqueeze(1) == X).all(dim=-1).nonzero()[:, 1].tolist())


pytestmark = pytest.mark.filterwarnings(
    # The model's outcomes are raw on purpose: BoTorch's allocator and ours see the same posterior.
    "ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning"
)


@pytest.mark.parametrize("size", [1, 5, 40])
def test_greedy_variance_is_botorchs(size, fitted):
    model, of = fitted
    expected = GreedyVarianceReduction().allocate_inducing_points(of.X, model.covar_module, size, torch.Size([]))
    got = GreedyVarianceSampler(size=size).sample(of, generator=torch.Generator())
    assert got.indices.tolist() == _rows(expected, of.X)


@pytest.mark.parametrize("maximize", [True, False], ids=["maximize", "minimize"])
@pytest.mark.parametrize("size", [1, 5, 40])
def test_ipa_is_botorchs(size, maximize, fitted):
    model, of = fitted
    allocator = GreedyImprovementReduction(model, maximize=maximize)
    expected = allocator.allocate_inducing_points(of.X, model.covar_module, size, torch.Size([]))
    got = IPASampler(size=size, maximize=maximize).sample(of, generator=torch.Generator())
    assert got.indices.tolist() == _rows(expected, of.X)
    variance = GreedyVarianceSampler(size=size).sample(of, generator=torch.Generator())
    assert got.indices.tolist() != variance.indices.tolist()


def test_ipa_chooses_sensibly_where_improvements_underflow():
    """All but one candidate are thousands of standard deviations below the best: those nearer the best still come first."""
    of = candidates(arms(30), lengthscale=0.01, regularization=1.0)
    means = -torch.arange(30, dtype=torch.float64)
    of = of._replace(leverages=torch.full((30,), 1e-8, dtype=torch.float64), means=means)
    assert IPASampler(size=4).sample(of, generator=torch.Generator()).indices.tolist() == [0, 1, 2, 3]


def test_ipa_without_a_posterior_is_greedy_variance():
    of = candidates(arms(60))
    generator = torch.Generator()
    expected = GreedyVarianceSampler(size=9).sample(of, generator=generator).indices.tolist()
    assert IPASampler(size=9).sample(of, generator=generator).indices.tolist() == expected


def test_ivm_is_the_greedy_maximum_of_the_information():
    """½ log det(I + N^{-1/2} K N^{-1/2}) over pulls of each set one larger, by brute force."""
    counts = torch.tensor([1.0, 5.0, 2.0, 1.0, 9.0, 3.0, 1.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    noise = torch.linspace(0.05, 2.0, 10, dtype=torch.float64)
    of = candidates(arms(10, seed=3), counts=counts, regularization=noise)
    K = kernel_matrix(of)

    def information(rows: list[int]) -> float:
        pulls = [i for i in rows for _ in range(int(counts[i]))]
        scale = noise[pulls].rsqrt()
        A = scale.unsqueeze(-1) * K[pulls][:, pulls] * scale
        return 0.5 * float(torch.linalg.slogdet(torch.eye(len(pulls), dtype=torch.float64) + A).logabsdet)

    chosen: list[int] = []
    for size in range(1, 10):
        chosen.append(max((i for i in range(10) if i not in chosen), key=lambda i: information([*chosen, i])))
        got = IVMSampler(size=size).sample(of, generator=torch.Generator()).indices.tolist()
        assert got == sorted(chosen)
    best = max(information(list(rows)) for rows in itertools.combinations(range(10), 4))
    assert information(chosen[:4]) >= (1 - 1 / math.e) * best


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.__name__)
def test_nothing_is_drawn_and_all_are_taken_while_there_are_no_more(sampler, device, generator):
    before = generator.get_state()
    of = candidates(arms(8, device=device))
    for size in (8, 20):
        dictionary = sampler(size=size).sample(of, generator=generator)
        assert dictionary.indices.tolist() == list(range(8))
    dictionary = sampler(size=5).sample(of, generator=generator)
    assert dictionary.m == 5
    assert dictionary.points.device == of.X.device
    assert dictionary.probabilities.tolist() == [1.0] * 5
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize("sampler", [GreedyVarianceSampler, IPASampler], ids=lambda s: s.__name__)
def test_repeated_inputs_are_taken_once(sampler):
    of = candidates(arms(4).repeat(5, 1))
    assert sampler(size=10).sample(of, generator=torch.Generator()).indices.tolist() == [0, 1, 2, 3]
    same = candidates(torch.ones(20, 2, dtype=torch.float64))
    assert sampler(size=10).sample(same, generator=torch.Generator()).m == 1


def test_ivm_takes_repeated_inputs_as_repeated_observations():
    same = candidates(torch.ones(20, 2, dtype=torch.float64))
    assert IVMSampler(size=3).sample(same, generator=torch.Generator()).m == 3


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.__name__)
def test_candidates_without_covariance_are_refused(sampler):
    of = candidates(arms(5))._replace(covariance=None)
    with pytest.raises(ValueError, match=f"{sampler.__name__} needs the prior covariance"):
        sampler(size=3).sample(of, generator=torch.Generator())


@pytest.mark.parametrize(
    ("sampler", "change", "message"),
    [
        (IVMSampler, {"regularization": None}, "IVMSampler needs the regularization"),
        (IPASampler, {"means": None}, "IPASampler needs the posterior mean of every candidate, got means=None"),
        (IPASampler, {"means": torch.ones(3)}, "got means=(3,) for 5"),
        (IPASampler, {"means": torch.full((5,), torch.nan)}, "finite posterior means"),
        (IPASampler, {"regularization": None}, "IPASampler needs the regularization"),
    ],
    ids=["noise", "means", "length", "nan", "scale"],
)
def test_candidates_without_what_it_needs_are_refused(sampler, change, message):
    ones = torch.ones(5, dtype=torch.float64)
    of = candidates(arms(5), leverages=ones, means=ones)._replace(**change)
    with pytest.raises(ValueError, match=re.escape(message)):
        sampler(size=3).sample(of, generator=torch.Generator())


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: s.__name__)
@pytest.mark.parametrize(("size", "error"), [(0, ValueError), (1.5, TypeError)])
def test_sizes_that_make_no_sense_are_refused(sampler, size, error):
    with pytest.raises(error, match="expected size"):
        sampler(size=size)
