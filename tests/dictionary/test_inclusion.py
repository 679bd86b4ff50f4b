import pytest
import torch

from sparse_bo.dictionary.leverage_samplers import inclusion_probabilities
from tests import oracles
from tests.gp.builders import regression


def test_effective_dimension_is_the_trace_of_the_hat_matrix() -> None:
    p = regression(0, m=None)
    K = p.k(p.pulls, p.pulls)
    expected = torch.linalg.solve(K + p.noise * torch.eye(len(K), dtype=K.dtype), K).trace()
    got = (p.variance(p.X) / p.noise * p.counts).sum()
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("count", [1, 2, 5, 9])
@pytest.mark.parametrize("leverage", [1e-9, 0.02, 0.3, 0.5, 4.0])
def test_exact_law_is_the_union_of_independent_coins(leverage: float, count: int, dtype: torch.dtype) -> None:
    got = inclusion_probabilities(
        torch.tensor([leverage], dtype=dtype), torch.tensor([float(count)], dtype=dtype), oversampling=2.0, law="exact"
    )
    expected = oracles.inclusion_law(min(1.0, 2.0 * leverage), count)
    assert float(got) == pytest.approx(expected, rel=1e3 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(
    ("leverage", "count", "expected"), [(0.1, 1, 0.2), (0.1, 3, 0.6), (0.1, 9, 1.0), (3.0, 1, 1.0), (0.0, 9, 0.0)]
)
def test_union_law_is_the_count_times_one_pull(leverage: float, count: int, expected: float, device: torch.device) -> None:
    got = inclusion_probabilities(
        torch.tensor([leverage], dtype=torch.float64, device=device),
        torch.tensor([float(count)], dtype=torch.float64, device=device),
        oversampling=2.0,
        law="union",
    )
    assert float(got) == pytest.approx(expected)


def test_union_law_is_never_below_the_exact_law(generator: torch.Generator) -> None:
    leverages = 2.0 * torch.rand(200, generator=generator, dtype=torch.float64)
    counts = torch.randint(1, 50, (200,), generator=generator).double()
    exact = inclusion_probabilities(leverages, counts, oversampling=0.3, law="exact")
    union = inclusion_probabilities(leverages, counts, oversampling=0.3, law="union")
    assert bool((union >= exact - 1e-12).all())
    assert float((union - exact).max()) > 0.1
