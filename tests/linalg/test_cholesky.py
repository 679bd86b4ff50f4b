import pytest
import torch

from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.linalg.cholesky import WIDEST, round_off, safe_cholesky, safe_factors, solve_lower, try_cholesky
from tests.oracles import tolerance


def _psd(n: int, rank: int, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    half = torch.randn(n, rank, generator=generator, dtype=torch.float64)
    return (half @ half.T).to(dtype=dtype, device=device)


def test_a_positive_definite_matrix_needs_no_jitter(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    A = _psd(6, 12, dtype=dtype, device=device, generator=generator)
    L = safe_cholesky(A)
    assert torch.equal(L, torch.linalg.cholesky(A))
    torch.testing.assert_close(L @ L.T, A, rtol=tolerance(dtype), atol=tolerance(dtype))
    assert torch.equal(L, L.tril())


def test_a_pivot_that_round_off_has_eaten_is_none(device: torch.device) -> None:
    """One of 2·10⁻¹⁶ where the noise on the diagonal was 10⁻¹²: solutions were divided by its root."""
    A = torch.tensor([[1.0, 1.0], [1.0, 1.0 + 2.0**-52]], dtype=torch.float64, device=device)
    assert float(safe_cholesky(A)[1, 1]) == 2.0**-26
    L = safe_cholesky(A, least=1e-12)
    assert float(L[1, 1].square()) > 0.5e-12
    assert float((L @ L.T - A).abs().max()) < 1e-10
    assert torch.equal(safe_cholesky(A, least=2.0**-53), safe_cholesky(A))


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12], ids=["tiny", "unit", "huge"])
def test_the_jitter_of_a_singular_matrix_is_its_own_round_off(
    scale: float, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    A = scale * _psd(8, 3, dtype=dtype, device=device, generator=generator)
    L = safe_cholesky(A)
    assert float((L @ L.T - A).abs().max()) <= 1.01e3 * round_off(A)


def test_the_first_jitter_is_ten_times_the_round_off(dtype: torch.dtype, device: torch.device) -> None:
    A = torch.ones(8, 8, dtype=dtype, device=device)
    assert torch.equal(safe_cholesky(A), try_cholesky(A, jitter=10.0 * round_off(A)))


def test_round_off_follows_size_precision_and_scale(dtype: torch.dtype) -> None:
    A = 3.0 * torch.eye(5, dtype=dtype)
    assert round_off(A) == pytest.approx(5 * torch.finfo(dtype).eps * 3.0)
    assert round_off(A[:0, :0]) == 0.0


def test_an_indefinite_matrix_is_refused() -> None:
    with pytest.raises(ValueError, match=r"not positive semi-definite even with jitter"):
        safe_cholesky(torch.diag(torch.tensor([1.0, -0.5], dtype=torch.float64)))


def test_a_matrix_with_nan_is_refused() -> None:
    A = torch.eye(3, dtype=torch.float64)
    A[1, 1] = torch.nan
    with pytest.raises(ValueError, match="finite matrix"):
        safe_cholesky(A)


def test_try_cholesky_says_none_instead_of_raising() -> None:
    A = torch.diag(torch.tensor([1.0, -0.5], dtype=torch.float64))
    assert try_cholesky(A, jitter=0.0) is None
    L = try_cholesky(A, jitter=1.0)
    assert L is not None
    torch.testing.assert_close(L @ L.T, A + torch.eye(2, dtype=torch.float64))


def test_a_batch_of_matrices_is_factorised_together(generator: torch.Generator) -> None:
    half = torch.randn(3, 4, 6, generator=generator, dtype=torch.float64)
    A = half @ half.mT
    L = safe_cholesky(A)
    torch.testing.assert_close(L @ L.mT, A)


def test_a_matrix_with_inf_on_the_diagonal_is_refused() -> None:
    A = torch.eye(3, dtype=torch.float64)
    A[1, 1] = torch.inf
    with pytest.raises(ValueError, match="finite matrix"):
        safe_cholesky(A)


@pytest.mark.parametrize("where", [(1, 0), (1, 1), (0, 2)], ids=["below", "on", "above the diagonal"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_no_nan_passes_where_the_factorisation_does_not_say_so(
    where: tuple[int, int], value: float, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's answers NaN with NaN and info = 0."""
    plain = torch.linalg.cholesky_ex

    def silent(A: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        factor, info = plain(A)
        if bool(A.isfinite().all()):
            return factor, info
        return torch.full_like(factor, torch.nan), torch.zeros_like(info)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", silent)
    A = torch.eye(3, dtype=torch.float64, device=device)
    A[where] = A[where[::-1]] = value
    assert try_cholesky(A, jitter=0.0) is None
    with pytest.raises(ValueError, match="finite matrix"):
        safe_cholesky(A)
    with pytest.raises(ValueError, match="finite kernel matrix"):
        nystrom_factor(A)


def test_a_nan_beside_the_diagonal_is_no_error_of_lapack(device: torch.device) -> None:
    A = torch.eye(3, dtype=torch.float64, device=device)
    A[0, 1] = A[1, 0] = torch.nan
    with pytest.raises(ValueError, match="finite kernel matrix"):
        nystrom_factor(A)


def test_jitter_as_large_as_the_matrix_is_no_jitter(device: torch.device) -> None:
    A = torch.eye(300, dtype=torch.float32, device=device)
    A[0, 1] = A[1, 0] = 1.2  # an eigenvalue of -0.2
    with pytest.raises(ValueError, match=r"jitter 1.0e-02; .* torch.float64$"):
        safe_cholesky(A)
    with pytest.raises(ValueError, match=r"finite$"):
        safe_cholesky(A.double())


def test_factors_of_a_batch_are_those_of_each(device: torch.device, generator: torch.Generator) -> None:
    regular, singular = (_psd(6, rank, dtype=torch.float64, device=device, generator=generator) for rank in (12, 2))
    found = safe_factors(torch.stack([regular, singular, 1e6 * regular]))
    each = [safe_cholesky(A) for A in (regular, singular, 1e6 * regular)]
    assert try_cholesky(singular, jitter=0.0) is None
    for factor, alone in zip(found, each, strict=True):
        torch.testing.assert_close(factor, alone)


def test_a_triangle_solves_more_columns_than_go_in_one_call(device: torch.device, generator: torch.Generator) -> None:
    L = torch.tensor([[2.0, 0.0], [1.0, 0.5]], dtype=torch.float64, device=device)
    B = torch.rand(2, WIDEST + 3, generator=generator, dtype=torch.float64).to(device)
    torch.testing.assert_close(L @ solve_lower(L, B), B)
