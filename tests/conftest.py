"""Fixtures that every numeric test takes: where and in which precision it runs."""

from __future__ import annotations

import pytest
import torch

# The matrices of the tests are small: one thread is faster, and does not stall where other processes hold the cores.
torch.set_num_threads(1)

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> torch.device:
    return torch.device(request.param)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded CPU generator: the only randomness a test may use."""
    return torch.Generator().manual_seed(0)
