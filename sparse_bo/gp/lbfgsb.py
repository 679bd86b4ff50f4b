"""SciPy's L-BFGS-B for few numbers, on one thread of its BLAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, minimize
from threadpoolctl import ThreadpoolController


def lbfgsb(
    function: Callable[[np.ndarray], tuple[float, np.ndarray]], first: np.ndarray, *, limits: Any, **options: Any
) -> OptimizeResult:
    """Minimise a function of ``p`` numbers, which returns value and gradient, by SciPy's L-BFGS-B on one thread of its BLAS.

    More threads of it gain nothing with so few numbers, and their waiting takes as much processor time as the function.
    """
    with _one_blas_thread():
        return minimize(function, first, jac=True, method="L-BFGS-B", bounds=limits, options=options)


_LIMITS = Lock()
"""Held by the thread that has limited BLAS: of overlapping limits the last to end would restore the first one's."""


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    if not _LIMITS.acquire(blocking=False):
        yield
        return
    try:
        with _blas().limit(limits=1):
            yield
    finally:
        _LIMITS.release()


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")
