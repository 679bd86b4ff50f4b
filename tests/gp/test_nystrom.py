import itertools
import warnings

import mpmath
import pytest
import torch

from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.linalg.cholesky import round_off
from tests.oracles import nystrom, rbf, tolerance

VISIBLE = {torch.float64: 1e-7, torch.float32: 1e-2}
"""What a rank cut or a round-off jitter may do to ``q(x, x')`` of a singular dictionary (about √(m·eps))."""


def _points(n: int, *, dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(n, 2, generator=generator, dtype=torch.float64).to(dtype=dtype, device=device)


def test_features_reproduce_the_nystrom_kernel(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
    X = _points(12, dtype=dtype, device=device, generator=generator)
    D = X[:5]
    K_DD, K_DX = rbf(D, D, lengthscale=0.3), rbf(D, X, lengthscale=0.3)
    Z = nystrom_factor(K_DD).features(K_DX)
    atol = tolerance(dtype, condition=float(torch.linalg.cond(K_DD)))
    torch.testing.assert_close(Z @ Z.T, nystrom(K_DD, K_DX, K_DX), rtol=0, atol=atol)


def test_factor_whitens_the_dictionary(dtype: torch.dtype, device: torch.device, generator: torch.Generator) -> None:
    D = _points(5, dtype=dtype, device=device, generator=generator)
    K_DD = rbf(D, D, lengthscale=0.3)
    factor = nystrom_factor(K_DD)
    P = factor.lift(torch.eye(factor.rank, dtype=dtype, device=device))
    atol = tolerance(dtype, condition=float(torch.linalg.cond(K_DD)))
    torch.testing.assert_close(P.T @ K_DD @ P, torch.eye(5, dtype=dtype, device=device), rtol=0, atol=atol)


def test_lift_is_the_transpose_of_features(generator: torch.Generator) -> None:
    K_DD = rbf(D := _points(6, dtype=torch.float64, device=torch.device("cpu"), generator=generator), D)
    K_DX, w = torch.randn(2, 6, 3, generator=generator, dtype=torch.float64)
    factor = nystrom_factor(K_DD)
    torch.testing.assert_close(factor.features(K_DX) @ w, K_DX.T @ factor.lift(w), rtol=1e-8, atol=1e-8)


def test_a_well_conditioned_dictionary_takes_plain_cholesky(generator: torch.Generator) -> None:
    D = _points(5, dtype=torch.float64, device=torch.device("cpu"), generator=generator)
    factor = nystrom_factor(rbf(D, D, lengthscale=0.1))
    assert (factor.triangular, factor.jitter, factor.rank) == (True, 0.0, 5)


SINGULAR = {
    "repeated points": lambda X: rbf(X[[0, 1, 1, 2, 0]], X[[0, 1, 1, 2, 0]]),
    "constant kernel": lambda X: torch.ones(5, 5, dtype=X.dtype, device=X.device),
    "linear kernel of low rank": lambda X: X[:5] @ X[:5].T,
    "very smooth kernel": lambda X: rbf(X, X, lengthscale=30.0),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_a_singular_dictionary_is_regularised_by_round_off(
    name: str, dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    K = SINGULAR[name](_points(9, dtype=dtype, device=device, generator=generator))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factor = nystrom_factor(K)
    assert factor.triangular
    assert 0.0 < factor.jitter <= 10.001 * round_off(K)
    Z = factor.features(K)
    torch.testing.assert_close(Z @ Z.T, K, rtol=0, atol=VISIBLE[dtype])


@pytest.mark.parametrize("name", SINGULAR)
def test_the_residual_of_a_singular_dictionary_is_never_negative(name: str, dtype: torch.dtype) -> None:
    X = _points(9, dtype=dtype, device=torch.device("cpu"), generator=torch.Generator().manual_seed(1))
    K = SINGULAR[name](X)
    Z = nystrom_factor(K).features(K)
    assert float((K.diagonal() - Z.square().sum(dim=-1)).min()) >= -tolerance(dtype) / 10


def test_an_indefinite_matrix_is_truncated_with_a_warning(device: torch.device) -> None:
    Q = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q.to(device)
    values = torch.tensor([2.0, 1.0, 5e-4, -1e-4], dtype=torch.float64, device=device)
    with pytest.warns(NumericalWarning, match=r"4 dictionary points is indefinite .*kept rank 2"):
        factor = nystrom_factor(Q @ torch.diag(values) @ Q.T)
    assert (factor.triangular, factor.rank) == (False, 2)
    K = Q[:, :2] @ torch.diag(values[:2]) @ Q[:, :2].T  # 5e-4 is within 10 times the error level 1e-4 that -1e-4 reveals
    Z = factor.features(K)
    torch.testing.assert_close(Z @ Z.T, K, rtol=0, atol=1e-12)


def test_a_truncated_factor_lifts_to_dictionary_coefficients() -> None:
    K = torch.diag(torch.tensor([2.0, 1.0, -0.01], dtype=torch.float64))
    with pytest.warns(NumericalWarning):
        factor = nystrom_factor(K)
    P = factor.lift(torch.eye(factor.rank, dtype=torch.float64))
    torch.testing.assert_close(P.T @ K @ P, torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize(
    ("K", "message"),
    [
        (torch.empty(0, 0, dtype=torch.float64), "at least one point"),
        (torch.full((2, 2), float("nan"), dtype=torch.float64), "finite kernel matrix"),
        (-torch.eye(2, dtype=torch.float64), "no positive eigenvalue"),
    ],
    ids=["empty", "nan", "negative definite"],
)
def test_a_matrix_that_is_no_kernel_is_refused(K: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nystrom_factor(K)


def test_an_indefinite_batch_is_refused() -> None:
    with pytest.raises(ValueError, match="batch of kernel matrices is indefinite"):
        nystrom_factor(torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64)).expand(3, 2, 2))


def test_a_batch_of_dictionaries_equals_one_by_one(generator: torch.Generator) -> None:
    D = torch.rand(3, 4, 2, generator=generator, dtype=torch.float64)
    X = torch.rand(3, 7, 2, generator=generator, dtype=torch.float64)
    K_DD, K_DX = rbf(D, D, lengthscale=0.2), rbf(D, X, lengthscale=0.2)
    together = nystrom_factor(K_DD).features(K_DX)
    for i in range(3):
        torch.testing.assert_close(together[i], nystrom_factor(K_DD[i]).features(K_DX[i]))


def test_round_off_jitter_errs_towards_larger_variances() -> None:
    """A dictionary that is singular to round-off: what is left of points is never less than by the pseudo-inverse of 60 digits.

    The paper has that inverse; with jitter a residual may be larger (by what lies within the round-off of ``K_DD``), so a
    leverage too, and the certificate covers it.
    """
    g = torch.Generator().manual_seed(0)
    D, X = torch.rand(9, 1, generator=g, dtype=torch.float64), torch.rand(30, 1, generator=g, dtype=torch.float64)
    factor = nystrom_factor(rbf(D, D, lengthscale=1.0))
    assert factor.jitter > 0.0
    features = factor.features(rbf(D, X, lengthscale=1.0))
    left = 1.0 - features.square().sum(dim=-1)
    with mpmath.workdps(60):
        points, others = ([mpmath.mpf(float(x)) for x in Z] for Z in (D, X))
        K = mpmath.matrix(9, 9)
        for i, j in itertools.product(range(9), repeat=2):
            K[i, j] = mpmath.exp(-((points[i] - points[j]) ** 2) / 2)
        inverse, exact = K**-1, []
        for x in others:
            k = mpmath.matrix([mpmath.exp(-((x - p) ** 2) / 2) for p in points])
            exact.append(float(1 - (k.T * inverse * k)[0]))
    assert float((left - torch.tensor(exact, dtype=torch.float64)).min()) > -1e-15
