"""The budget of whoever has not named one follows the device."""

import pytest
import torch

from sparse_bo import BBKB
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, DEVICE_SHARE, LEAST_MEMORY_BYTES, default_memory_bytes


def test_fixed_on_the_cpu() -> None:
    assert default_memory_bytes(torch.device("cpu")) == DEFAULT_MEMORY_BYTES
    assert BBKB().sweep_budget(torch.device("cpu")) == DEFAULT_MEMORY_BYTES


@pytest.mark.parametrize("free", [140 * 2**30, 2**10])
def test_a_share_of_what_is_free_on_a_gpu(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (free, 141 * 2**30))
    expected = max(int(DEVICE_SHARE * free), LEAST_MEMORY_BYTES)
    assert default_memory_bytes(torch.device("cuda")) == expected
    assert BBKB().sweep_budget(torch.device("cuda")) == expected
    assert BBKB(memory_bytes=2**21).sweep_budget(torch.device("cuda")) == 2**21
