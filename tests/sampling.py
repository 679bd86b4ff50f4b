"""Samples of long matrices of cases: some at every change, all of them every night (``-m "slow or not slow"``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def sampled(cases: Sequence[Any], *, every: int, ids: Sequence[str] | None = None) -> list[Any]:
    """Return the cases as parameters of a test, all but each ``every``-th of them, from the first on, marked as slow.

    Args:
        cases: A value, or a tuple of values, for each case.
        every: Distance of the cases that run at every change.
        ids: A name for each case; ``None``: pytest's.
    """
    params = []
    for k, case in enumerate(cases):
        values = case if isinstance(case, tuple) else (case,)
        marks = () if k % every == 0 else (pytest.mark.slow,)
        params.append(pytest.param(*values, marks=marks, id=None if ids is None else ids[k]))
    return params
