"""Products of float32 matrices as torch makes them where its process is set to TF32 or bfloat16, on any machine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

SETTINGS = ["ieee", "tf32", "bf16"]
_CUT = {"tf32": 13, "bf16": 16}
"""Bits of a float32 factor that get lost."""


def set_products(monkeypatch: pytest.MonkeyPatch, setting: str, *, said: str | None = None) -> None:
    """Multiply float32 matrices with factors cut as the setting cuts them; torch says so, unless it says something else."""
    for backend in (torch.backends.mkldnn, torch.backends.cuda):
        monkeypatch.setattr(type(backend.matmul), "fp32_precision", said or setting, raising=False)
    monkeypatch.setattr(Tensor, "__matmul__", _cutting(_PLAIN, _CUT.get(setting, 0)))


_PLAIN = Tensor.__matmul__


def _cutting(plain: Callable[[Tensor, Tensor], Tensor], bits: int) -> Callable[[Tensor, Tensor], Tensor]:
    def cut(X: Tensor) -> Tensor:
        whole = X.cpu().contiguous()
        return (whole.view(torch.int32) & -(2**bits)).view(torch.float32).to(X.device)

    def product(A: Tensor, B: Tensor) -> Tensor:
        single = isinstance(B, Tensor) and A.dtype == B.dtype == torch.float32
        return plain(cut(A), cut(B)) if single and bits else plain(A, B)

    return product
