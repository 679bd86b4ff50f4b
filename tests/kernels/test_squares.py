"""Sums of squares: what every device computes, and the GPU's kernel in Triton's interpreter."""

import pytest
import torch

from sparse_bo.kernels import add_squares
from tests.kernels.builders import interpreted_module


def numbers(r: int, n: int) -> torch.Tensor:
    return torch.randn(r, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_squares_are_added(device: torch.device) -> None:
    product, out = numbers(5, 7).to(device), torch.ones(7, dtype=torch.float64, device=device)
    expected = 1.0 + product.square().sum(dim=0)
    add_squares(product, out)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("r", "n"), [(1, 1), (16, 64), (37, 130), (0, 3)])
def test_the_kernel_for_gpus(r: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module = interpreted_module("triton_kernel", monkeypatch)
    kept, out = numbers(r, n + 3), torch.full((n,), 2.0, dtype=torch.float64)
    module.add_squares(kept[:, 1 : n + 1], out)
    torch.testing.assert_close(out, 2.0 + kept[:, 1 : n + 1].square().sum(dim=0), rtol=0, atol=1e-13)
