"""Distinct and repeated rows, found by hashes, against a search through all rows."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from sparse_bo.linalg.reductions import distinct_rows, repeated_rows


def by_search(X: Tensor) -> tuple[list[int], list[int]]:
    """Return the first row of each distinct row, and the number of every row's."""
    first: dict[tuple[float, ...], int] = {}
    rows = [tuple(row) for row in X.tolist()]
    for k, row in enumerate(rows):
        first.setdefault(row, k)
    return list(first.values()), [list(first).index(row) for row in rows]


def check(X: Tensor) -> None:
    expected, group = by_search(X)
    found = distinct_rows(X)
    assert (found[0].tolist(), found[1].tolist()) == (expected, group)
    later = [row for row in range(len(X)) if row not in expected]
    repeats = repeated_rows(X)
    assert (later or None) == (None if repeats is None else repeats.tolist())


@pytest.mark.parametrize("size", [(0, 2), (1, 2), (40, 2), (60, 5)])
@pytest.mark.parametrize("seed", range(3))
def test_repeats_of_a_row_are_found(seed: int, size: tuple[int, int], dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(seed)
    check(torch.randint(3, size, generator=generator).to(dtype) - 1.0)
    check(torch.rand(*size, generator=generator).to(dtype))
    check(torch.finfo(dtype).max * (torch.randint(3, size, generator=generator).to(dtype) - 1.0))
    check(torch.zeros(*size, dtype=dtype) * torch.tensor([-1.0, 1.0]).repeat(size[0] // 2 + 1)[: size[0], None])  # −0 equals 0


def test_rows_that_share_a_hash_are_told_apart() -> None:
    one, other = (1.5 + math.sin(j * 2.0**0.5) for j in (1, 2))
    pairs = [(a, a * one / other) for a in torch.rand(100, generator=torch.Generator().manual_seed(0)).tolist()]
    a, b = next((a, b) for a, b in pairs if a * one == b * other)
    X = torch.tensor([[a, 0.0], [0.0, b], [a, 0.0], [0.5, 0.5], [0.0, b]], dtype=torch.float64)
    assert distinct_rows(X)[1].tolist() == [0, 1, 0, 2, 1]
    check(X)
