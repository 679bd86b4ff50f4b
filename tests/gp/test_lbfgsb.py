"""Searches by L-BFGS-B: the threads that they take."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from sparse_bo.gp.learn import lbfgsb


def threads_of_blas():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


def test_searches_take_one_thread_of_blas_and_leave_their_number_alone():
    """Also where they overlap in threads of the process, and where the function raises."""
    both, before = Barrier(2), threads_of_blas()

    def search(_):
        inside = []

        def function(x):
            inside.append(threads_of_blas())
            if len(inside) == 1:
                both.wait(timeout=60)
            return float(x @ x), 2.0 * x

        return lbfgsb(function, np.full(2, 0.5), limits=[(-1.0, 1.0)] * 2, maxiter=9).x, inside

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(search, range(2)))
    assert all(np.allclose(x, 0.0) for x, _ in found)
    assert {1} in [inside[0] for _, inside in found]  # the first one's
    assert threads_of_blas() == before
    with pytest.raises(ZeroDivisionError):
        lbfgsb(lambda x: 1 / 0, np.zeros(1), limits=[(-1.0, 1.0)])
    assert threads_of_blas() == before
