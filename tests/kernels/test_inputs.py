"""Inputs that are prepared once give the values of those that are not."""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import LinearKernel
from torch import Tensor

from sparse_bo.kernels import FixedInputs, covariance_function
from tests.kernels.builders import NAMES, covariance_of, exact, interpreted_module


def points(n: int, d: int = 3, seed: int = 0) -> Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("m", [1, 3, 5, 40])
def test_values(name: str, m: int, device: torch.device) -> None:
    X, Y = points(300).to(device), points(m, seed=1).to(device)
    Y[0] = X[17]
    covariance = covariance_of(name, like=X, lengthscale=0.4)
    fixed = FixedInputs(covariance, X, 2**20)
    assert (fixed.prepared is not None) == (device.type == "cpu")
    kept = torch.full((m, 300), 7.0, dtype=torch.float64, device=device)
    for part in (slice(0, 1), slice(1, 200), slice(200, 300)):
        assert fixed.cross(Y, part, out=kept[:, part]).shape == (m, part.stop - part.start)
    torch.testing.assert_close(kept, exact(covariance.structure, Y, X), rtol=0, atol=2e-12)


def test_inputs_far_from_zero() -> None:
    X = 1e6 + points(200)
    covariance = covariance_of("scaled matern52 ard", like=X, lengthscale=0.4)
    fixed = FixedInputs(covariance, X, 2**20)
    for m in (2, 20):
        out = torch.empty(m, 200, dtype=torch.float64)
        fixed.cross(X[:m], slice(None), out=out)
        torch.testing.assert_close(out, exact(covariance.structure, X[:m], X), rtol=0, atol=2e-12)


def test_what_is_prepared_is_prepared_once_and_counts_against_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    X = points(1000)
    covariance = covariance_of("rbf ard", like=X, lengthscale=0.4)
    fixed = FixedInputs(covariance, X, 2**20)
    out = torch.empty(20, 1000, dtype=torch.float64)
    fixed.cross(X[:20], slice(None), out=out)
    (others,) = fixed.prepared.values()
    right = others.right
    fixed.cross(X[20:40], slice(None), out=out)
    assert others.right is right
    assert FixedInputs(covariance, X, 8 * 2 * 8 * 4 * 1000 - 1).prepared is None
    assert FixedInputs(covariance, X, 8 * 2 * 8 * 4 * 1000).prepared is not None
    by_gpytorch = covariance_function(LinearKernel().double(), like=X)
    assert FixedInputs(by_gpytorch, X, 2**30).prepared is None
    torch.testing.assert_close(
        FixedInputs(by_gpytorch, X, 2**30).cross(X[:20], slice(5, 9), out=out[:, :4]), by_gpytorch.cross(X[:20], X[5:9])
    )


def test_on_a_gpu_the_transpose_is_kept_and_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted_module("triton_kernel", monkeypatch)
    X, Y = points(90), points(4, seed=1)
    covariance = covariance_of("chosen inputs", like=X, lengthscale=0.4)
    fixed, out = FixedInputs(covariance, X, 2**20), torch.empty(4, 70, dtype=torch.float64)
    assert fixed.turned is not None
    assert fixed.turned.is_contiguous()
    assert torch.equal(fixed.cross(Y, slice(10, 80), out=out), covariance.cross(Y, X[10:80]))
    torch.testing.assert_close(out, exact(covariance.structure, Y, X[10:80]), rtol=0, atol=1e-13)
    assert FixedInputs(covariance, X, 64 * 3 * 90 - 1).turned is None
