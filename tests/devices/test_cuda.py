"""What only a card can show: the package's own kernels as they are compiled, the same picks, memory that follows the card.

``pytest -m gpu`` runs these, and with ``--device cuda`` everything that depends on the device; without a card they are skipped.
"""

import pytest
import torch

from sparse_bo import BBKB, AskTell
from sparse_bo.kernels import FixedInputs, add_squares, covariance_function, differentiable_cross
from sparse_bo.kernels.tiles import triton_is_there
from tests.builders import rbf_kernel
from tests.kernels.builders import NAMES, kernels, set_to

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device; torch sees none"),
]
CUDA = torch.device("cuda")


def inputs(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_triton_is_there() -> None:
    assert triton_is_there()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "d"), [(1, 1, 1), (100, 3_001, 6), (33, 70_000, 20)])
def test_the_compiled_kernel_gives_the_cpus_values(name: str, m: int, n: int, d: int) -> None:
    X, Y = inputs(m, d), inputs(n, d, 1)
    Y[: min(m, n)] = X[: min(m, n)]
    kernel = kernels(d)[name].double()
    here = covariance_function(kernel, like=X).cross(X, Y)
    there = covariance_function(kernel, like=X.to(CUDA)).cross(X.to(CUDA), Y.to(CUDA))
    torch.testing.assert_close(there.cpu(), here, rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
def test_the_compiled_kernel_reads_what_is_prepared(name: str) -> None:
    X, Y = inputs(5_000, 4).to(CUDA), inputs(65, 4, 1).to(CUDA)
    covariance = covariance_function(set_to(kernels(4)[name], lengthscale=0.5), like=X)
    fixed, out = FixedInputs(covariance, X, 2**30), X.new_empty(65, 3_000)
    fixed.cross(Y, slice(1_000, 4_000), out=out)
    assert fixed.turned is not None
    assert torch.equal(out, covariance.cross(Y, X[1_000:4_000]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n", "d"), [(1, 1, 1), (100, 3_001, 6)])
def test_the_compiled_gradients_are_the_cpus(name: str, m: int, n: int, d: int) -> None:
    found = []
    for device in ("cpu", "cuda"):
        kernel = set_to(kernels(d)[name], lengthscale=0.5).to(device)
        X, Y = (inputs(count, d, seed).to(device).requires_grad_() for seed, count in enumerate((m, n)))
        K = differentiable_cross(kernel, X, Y)
        assert K is not None
        gradients = torch.autograd.grad(K.square().sum(), [X, Y, *kernel.parameters()])
        found.append([part.detach().cpu() for part in (K, *gradients)])
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(there, here, rtol=0, atol=1e-10 * float(here.abs().max()))


@pytest.mark.parametrize(("r", "n"), [(1, 1), (256, 8_192), (1_000, 5_001)])
def test_the_compiled_sums_of_squares(r: int, n: int) -> None:
    product, out = inputs(r, n), torch.ones(n, dtype=torch.float64)
    there = out.to(CUDA)
    add_squares(product.to(CUDA), there)
    torch.testing.assert_close(there.cpu(), out + product.square().sum(dim=0), rtol=1e-13, atol=0)


def test_a_run_picks_what_it_picks_on_the_cpu() -> None:
    arms = inputs(30_000, 3)

    def indices(device: torch.device | str) -> list[int]:
        loop = AskTell(arms.to(device), BBKB(covar_module=rbf_kernel(), regularization=0.01), seed=0)
        for _ in range(6):
            batch = loop.ask(40)
            loop.tell(batch.tickets, -(batch.X.cpu() - 0.4).square().sum(-1))
        return loop.history.indices

    assert indices(CUDA) == indices("cpu")


def test_a_sweep_holds_tiles_and_vectors_but_no_block_of_all_arms() -> None:
    a = 2**22
    loop = AskTell(inputs(a, 3).to(CUDA), BBKB(covar_module=rbf_kernel(), regularization=0.01), seed=0)
    for _ in range(4):
        batch = loop.ask(200)
        loop.tell(batch.tickets, (9.0 * batch.X).sin().sum(-1))
    torch.cuda.reset_peak_memory_stats()
    held = torch.cuda.memory_allocated()
    batch = loop.ask(10)
    loop.tell(batch.tickets, (9.0 * batch.X).sin().sum(-1))
    m = loop.state.dictionary.m
    assert torch.cuda.max_memory_allocated() - held < min(8 * m * a, 2**30 + 8 * 12 * a)
