"""The kernel for GPUs, in Triton's interpreter: every form, every edge of a tile."""

import pytest
import torch

from tests.kernels.builders import NAMES, covariance_of, exact, interpreted_module, kernels, set_to


@pytest.fixture
def interpreted(monkeypatch):
    """The module of the kernel, imported so that Triton interprets it; the one that the package may have is left alone."""
    return interpreted_module("triton_kernel", monkeypatch)


def inputs(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "d"), [(1, 1, 1), (33, 65, 3), (7, 130, 2)])
def test_values(interpreted, name, m, n, d):
    X, Y = inputs(m, d), inputs(n, d, 1)
    Y[: min(m, n)] = X[: min(m, n)]
    structure = covariance_of(name, like=X, lengthscale=0.4).structure
    kept = torch.full((m, n + 5), 7.0, dtype=torch.float64)
    interpreted.fill(structure, X, Y, kept[:, 2 : n + 2])
    torch.testing.assert_close(kept[:, 2 : n + 2], exact(structure, X, Y), rtol=0, atol=1e-14 * 20)
    assert bool((kept[:, :2] == 7.0).all() and (kept[:, n + 2 :] == 7.0).all())


def test_strides_of_inputs(interpreted):
    X, Y = inputs(5, 3), inputs(70, 3, 1)
    structure = covariance_of("chosen inputs", like=X, lengthscale=0.4).structure
    given = (
        (X, X.T.contiguous().T, torch.cat([X, X], dim=1)[:, 3:]),
        (Y, Y.T.contiguous().T, Y.repeat_interleave(2, dim=0)[::2]),
    )
    out = torch.empty(5, 70, dtype=torch.float64)
    expected = exact(structure, X, Y)
    for left, right in zip(*given, strict=True):
        interpreted.fill(structure, left, right, out.zero_())
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)


def test_many_inputs(interpreted):
    X, Y = inputs(5, 128), inputs(9, 128, 1)
    structure = covariance_of("scaled matern52 ard", like=X, lengthscale=3.0).structure
    out = torch.empty(5, 9, dtype=torch.float64)
    interpreted.fill(structure, X, Y, out)
    torch.testing.assert_close(out, exact(structure, X, Y), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["rbf", "matern12", "nested"])
def test_float32(interpreted, name):
    from sparse_bo.kernels import covariance_function

    X, Y = inputs(20, 3).float(), inputs(70, 3, 1).float()
    structure = covariance_function(set_to(kernels(3)[name], lengthscale=0.4), like=X).structure
    out = torch.empty(20, 70)
    interpreted.fill(structure, X, Y, out)
    torch.testing.assert_close(out.double(), exact(structure, X, Y), rtol=0, atol=2e-5)


def test_rows_beyond_one_grid(interpreted):
    X, Y = inputs(40, 2), inputs(10, 2, 1)
    structure = covariance_of("sum", like=X, lengthscale=0.4).structure
    out = torch.empty(40, 10, dtype=torch.float64)
    interpreted.fill(structure, X, Y, out, most_rows=16)
    torch.testing.assert_close(out, exact(structure, X, Y), rtol=0, atol=1e-13)


def test_nothing_to_evaluate(interpreted):
    X = inputs(4, 2)
    structure = covariance_of("rbf", like=X, lengthscale=0.4).structure
    for m, n in ((0, 4), (4, 0)):
        interpreted.fill(structure, X[:m], X[:n], torch.empty(m, n, dtype=torch.float64))
