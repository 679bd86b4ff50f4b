"""The Tanimoto kernel against integers, dense algebra and its own formula; models and runs over fingerprints."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from sparse_bo import BBKB, AskTell, Result, SparseGP, maximize
from sparse_bo.dictionary import GreedyVarianceSampler, candidates_of
from sparse_bo.gp.observations import merge_observations
from sparse_bo.kernels import FixedInputs, TanimotoKernel, covariance_function, differentiable_cross
from tests.kernels.builders import interpreted_module
from tests.oracles import exact_gp

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64]


def bits(n: int, d: int, *, share: float = 0.1, seed: int = 0) -> Tensor:
    """Return ``n x d`` fingerprints, ``bool``; the last is empty."""
    found = torch.rand(n, d, generator=torch.Generator().manual_seed(seed)) < share
    found[-1] = False
    return found


def of_integers(X: Tensor, Y: Tensor) -> Tensor:
    """Return the similarities by integer arithmetic, which CUDA does not have, and one division in float64."""
    X, Y, device = X.long().cpu(), Y.long().cpu(), X.device
    common = X @ Y.T
    union = X.square().sum(dim=-1).unsqueeze(-1) + Y.square().sum(dim=-1) - common
    return torch.where(union == 0, 1.0, common.double() / union.double()).to(device)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("m", "n", "d"), [(1, 1, 1), (3, 40, 64), (600, 700, 65), (9, 5000, 130)])
def test_bits_are_compared_exactly(m: int, n: int, d: int, dtype: torch.dtype, device: torch.device) -> None:
    X, Y = bits(m, d).to(device, dtype), bits(n, d, seed=1).to(device, dtype)
    expected = of_integers(X, Y)
    covariance = covariance_function(TanimotoKernel(), like=X)
    assert covariance.structure is not None
    kept = FixedInputs(covariance, Y, 2**30).cross(X, slice(0, n), out=torch.empty_like(expected))
    wide = torch.float32 if dtype == torch.float32 else torch.float64
    for got in (covariance.cross(X, Y), TanimotoKernel()(X, Y).to_dense(), differentiable_cross(TanimotoKernel(), X, Y), kept):
        assert torch.equal(got.to(wide), expected.to(wide))
    assert torch.equal(covariance.diagonal(X), torch.ones(m, dtype=wide, device=device))
    assert torch.equal(TanimotoKernel()(X, X, diag=True).to(wide), torch.ones(m, dtype=wide, device=device))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float64], ids=str)
@pytest.mark.parametrize("largest", [90, 255, 4000])
def test_counts_are_compared_exactly(largest: int, dtype: torch.dtype) -> None:
    """Sums of 2,048 products of counts above 90 exceed what float32 holds exactly."""
    largest = min(largest, 255) if dtype == torch.uint8 else largest
    X, Y = (torch.randint(largest // 2, largest + 1, (n, 2048), generator=torch.Generator().manual_seed(n)) for n in (7, 20))
    X, Y = X.to(dtype), Y.to(dtype)
    covariance = covariance_function(TanimotoKernel(), like=X)
    assert torch.equal(covariance.cross(X, Y), of_integers(X, Y))
    assert torch.equal(TanimotoKernel()(X, Y).to_dense(), of_integers(X, Y))


def test_values_of_reals_of_one_that_is_not_finite_and_of_empty_rows() -> None:
    g = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(n, 5, generator=g, dtype=torch.float64) for n in (20, 30))
    X[3], Y[4], X[5] = 0.0, 0.0, math.nan
    common = (X.unsqueeze(1) * Y).sum(dim=-1)
    expected = common / (X.square().sum(dim=-1).unsqueeze(1) + Y.square().sum(dim=-1) - common)
    expected[3, 4] = 1.0
    K = covariance_function(TanimotoKernel(), like=Y).cross(X, Y)
    torch.testing.assert_close(K, expected, rtol=1e-12, atol=1e-13, equal_nan=True)
    assert bool(K[5].isnan().all())
    assert float(K[3, 4]) == 1.0
    assert not K[3, :4].any()


def test_it_is_positive_semi_definite() -> None:
    B = torch.cat([bits(60, 30), bits(60, 30)]).double()
    Z = torch.randn(60, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for X in (B, Z):
        assert float(torch.linalg.eigvalsh(TanimotoKernel()(X, X).to_dense())[0]) > -1e-12


def test_gradients_are_finite_differences() -> None:
    g = torch.Generator().manual_seed(0)
    X, Y = (torch.rand(n, 4, generator=g, dtype=torch.float64).requires_grad_() for n in (3, 5))
    kernel = ScaleKernel(TanimotoKernel()).double()

    def value(X: Tensor, Y: Tensor, raw: Tensor) -> Tensor:
        return torch.func.functional_call(Cross(kernel), {"kernel.raw_outputscale": raw}, (X, Y))

    assert torch.autograd.gradcheck(value, (X, Y, kernel.raw_outputscale))


class Cross(torch.nn.Module):
    """``differentiable_cross`` as a module."""

    def __init__(self, kernel: ScaleKernel) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, X: Tensor, Y: Tensor) -> Tensor:
        K = differentiable_cross(self.kernel, X, Y)
        assert K is not None
        return K


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64], ids=str)
def test_on_a_gpu_it_is_its_librarys_product(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    interpreted_module("triton_kernel", monkeypatch)
    X, Y = bits(33, 40).to(dtype), bits(65, 40, seed=1).to(dtype)
    kernel = ScaleKernel(TanimotoKernel()).double()
    kernel.outputscale = 2.0
    covariance = covariance_function(kernel, like=X)
    torch.testing.assert_close(covariance.cross(X, Y), 2.0 * of_integers(X, Y), rtol=1e-15, atol=0.0)


def molecules(n: int = 80, d: int = 64) -> tuple[Tensor, Tensor]:
    """Return fingerprints and a property that a few bits determine."""
    X = bits(n, d, share=0.2).double()
    return X, activity(X)


def activity(X: Tensor) -> Tensor:
    """Return the property of ``n x d`` fingerprints, ``n``."""
    return X[:, :6] @ torch.tensor([2.0, 1.5, 1.0, -1.0, -0.5, 0.7], dtype=torch.float64)


def test_a_sparse_model_of_all_fingerprints_is_the_exact_gp() -> None:
    X, y = molecules()
    kernel = ScaleKernel(TanimotoKernel()).double()
    kernel.outputscale = 1.5
    model = SparseGP(X[:50], y[:50, None], covar_module=kernel, outcome_transform=None, dictionary=torch.arange(50)).eval()
    model.likelihood.noise, model.mean_module.constant = 0.1, 0.0
    k = lambda A, B: 1.5 * of_integers(A, B)  # noqa: E731
    expected = exact_gp(k(X[:50], X[:50]), k(X[:50], X), k(X, X), y[:50], noise=0.1)
    found = model.posterior(X)
    torch.testing.assert_close(found.mean.squeeze(-1), expected.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.variance.squeeze(-1), expected.variance, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8], ids=str)
def test_a_dictionary_of_bits_is_that_of_floats(dtype: torch.dtype) -> None:
    X, y = molecules()
    found = []
    for inputs in (X, X.to(dtype)):
        of = candidates_of(merge_observations(X, y), None, covariance=covariance_function(TanimotoKernel(), like=inputs))
        chosen = GreedyVarianceSampler(size=10).sample(of._replace(inputs=of.X.to(inputs.dtype)), generator=torch.Generator())
        found.append(chosen.indices)
    assert torch.equal(*found)


def test_a_run_over_fingerprints_goes_on_from_its_journal(tmp_path: Path) -> None:
    X, y = molecules()
    storage = tmp_path / "run.journal"
    kernel = ScaleKernel(TanimotoKernel()).double()

    def run(budget: int, **more: Any) -> Result:
        policy = BBKB(covar_module=kernel, regularization=0.05)
        return maximize(activity, arms=X, policy=policy, budget=budget, seed=1, **more)

    def picks(result: Result) -> list[int]:
        return [index for row in result.history.column("indices") for index in row]

    whole = run(40)
    run(20, storage=storage)
    again = run(40, storage=storage, resume=True)
    assert picks(again) == picks(whole)
    assert int(y.argmax()) in picks(again)
    assert str(AskTell.resume(storage).policy.covar_module) == str(kernel)  # rebuilt from the journal alone


def test_negative_bytes_are_negative_numbers() -> None:
    A = torch.tensor([[-1, 2, 0], [1, 1, 3]], dtype=torch.int8)
    torch.testing.assert_close(TanimotoKernel()(A, A).to_dense().double(), TanimotoKernel()(A.double(), A.double()).to_dense())
