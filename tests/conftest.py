"""Fixtures that every numeric test takes: where and in which precision it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from tests.pretend_device import PRETEND, pretend_device

# The matrices of the tests are small: one thread is faster, and does not stall where other processes hold the cores.
torch.set_num_threads(1)

DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
if os.environ.get("PRETEND_DEVICE"):  # tests/test_device.py uses it always; for all tests it would double their time
    DEVICES.append("pretend")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """The CPU, a GPU if there is one, and, with ``PRETEND_DEVICE=1`` in the environment, what stands in for one."""
    if request.param != "pretend":
        yield torch.device(request.param)
        return
    with pretend_device():
        yield PRETEND


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded CPU generator: the only randomness a test may use."""
    return torch.Generator().manual_seed(0)
