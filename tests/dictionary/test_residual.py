"""``λ_max(K − Q)`` of a dictionary against dense algebra over the pulls."""

import itertools

import mpmath
import pytest
import torch
from gpytorch.kernels import RBFKernel

from sparse_bo.dictionary import Dictionary, UniformSampler, residual_bound
from sparse_bo.kernels import covariance_function
from tests.builders import arms
from tests.dictionary.builders import candidates, kernel_matrix, pulls_matrix
from tests.oracles import nystrom


def _dense(of, points: torch.Tensor) -> float:
    """Over pulls, with the scale applied to both."""
    repeats = torch.repeat_interleave(torch.arange(len(of.X)), of.counts.long())
    scale = torch.as_tensor(of.regularization, dtype=torch.float64).expand(len(of.X))[repeats].rsqrt()
    K_DX = of.covariance.cross(points, of.X)[:, repeats] * scale
    return float(torch.linalg.eigvalsh(pulls_matrix(of) - nystrom(of.covariance.cross(points, points), K_DX, K_DX))[-1])


@pytest.mark.parametrize("memory_bytes", [2**12, 2**28], ids=["streamed", "kept"])
def test_bound_encloses_the_dense_value_with_counts_and_noise(memory_bytes, generator):
    counts = torch.tensor([1.0, 4.0, 2.0] * 15, dtype=torch.float64)
    of = candidates(arms(45), counts=counts, regularization=torch.linspace(0.1, 2.0, 45, dtype=torch.float64))
    of = of._replace(indices=3 * torch.arange(45))
    dictionary = UniformSampler(size=8).sample(of, generator=generator)
    bound = residual_bound(of, dictionary, memory_bytes=memory_bytes, generator=generator)
    exact = _dense(of, dictionary.points)
    assert bound.lower <= exact * (1 + 1e-9)
    assert exact <= bound.upper * (1 + 1e-9)
    assert bound.lower == pytest.approx(exact, rel=1e-6)


def test_the_trace_that_caps_the_bound_is_that_of_what_is_left_out(generator):
    """After one step from a random start Lanczos' own bound is far above the trace, which here is twice the eigenvalue."""
    of = candidates(torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], dtype=torch.float64))
    alone = Dictionary(of.X[:1], torch.ones(1, dtype=torch.float64), torch.tensor([0]))
    assert residual_bound(of, alone, steps=1, generator=generator).upper == pytest.approx(2.0 * _dense(of, of.X[:1]))


def test_external_points_and_full_dictionaries(generator):
    of = candidates(arms(20))
    points = arms(5, seed=9)
    external = Dictionary(points, torch.ones(5, dtype=torch.float64))
    assert residual_bound(of, external, generator=generator).lower == pytest.approx(_dense(of, points), rel=1e-6)
    everything = Dictionary(of.X, torch.ones(20, dtype=torch.float64), torch.arange(20))
    assert residual_bound(of, everything, generator=generator).upper < 1e-8


def test_inputs_of_their_own_are_used_for_rows_and_refused_for_points(generator):
    of = candidates(arms(20))
    scaled = of._replace(X=100.0 * of.X, inputs=of.X)
    rows = Dictionary(scaled.X[[2, 7]], torch.ones(2, dtype=torch.float64), torch.tensor([2, 7]))
    assert residual_bound(scaled, rows, generator=generator).lower == pytest.approx(_dense(of, of.X[[2, 7]]), rel=1e-6)
    with pytest.raises(ValueError, match="rows of these candidates"):
        residual_bound(scaled, Dictionary(arms(2, seed=1), torch.ones(2)), generator=generator)


def test_the_kernel_matrix_is_needed(generator):
    of = candidates(arms(4))
    dictionary = UniformSampler(size=2).sample(of, generator=generator)
    with pytest.raises(ValueError, match="residual_bound needs the prior covariance"):
        residual_bound(of._replace(covariance=None), dictionary, generator=generator)
    assert kernel_matrix(of).shape == (4, 4)


def _true_ratio(X: torch.Tensor, m: int, counts: torch.Tensor, noise: float, lengthscale: float) -> float:
    """ρ with 60 digits, for an RBF kernel and the first m rows as the dictionary."""
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(float(value)) for value in row] for row in X]
        K = mpmath.matrix(len(rows), len(rows))
        for (i, a), (j, b) in itertools.product(enumerate(rows), repeat=2):
            K[i, j] = mpmath.exp(-sum((u - v) ** 2 for u, v in zip(a, b, strict=True)) / (2 * mpmath.mpf(lengthscale) ** 2))
        left_out = K - K[:, :m] * K[:m, :m] ** -1 * K[:m, :]
        weight = [mpmath.sqrt(mpmath.mpf(float(count)) / mpmath.mpf(noise)) for count in counts]
        scaled = mpmath.matrix(len(rows), len(rows))
        for i, j in itertools.product(range(len(rows)), repeat=2):
            scaled[i, j] = weight[i] * left_out[i, j] * weight[j]
        return float(max(mpmath.eigsy(scaled, eigvals_only=True)))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    ("d", "offset", "lengthscale", "pulls", "noise"),
    [(1, 0.0, 0.5, 10**6, 0.1), (1, 100.0, 0.25, 10, 0.1), (2, 100.0, 0.25, 10**4, 1e-4)],
)
def test_the_upper_bound_holds_beyond_round_off(d, offset, lengthscale, pulls, noise, seed):
    """Many pulls, inputs far from zero and an ill-conditioned dictionary: the certificate covers what float64 loses.

    Without the kernel's own error (``_kernel_error``) the first case is 0.2 % below the truth at one of the seeds.
    """
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(12, d, generator=g, dtype=torch.float64) + offset
    counts = torch.randint(1, pulls, (12,), generator=g).double()
    kernel = RBFKernel()
    kernel.lengthscale = lengthscale  # rounded to float32 there, and used as it then is
    covariance = covariance_function(kernel, like=X)
    of = candidates(X, counts=counts, regularization=noise)._replace(covariance=covariance)
    width = float(covariance.kernel.lengthscale)
    dictionary = Dictionary(X[:8], torch.ones(8, dtype=torch.float64), torch.arange(8))
    assert residual_bound(of, dictionary, generator=g).upper >= _true_ratio(X, 8, counts, noise, width)
