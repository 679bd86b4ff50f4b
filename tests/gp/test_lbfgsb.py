"""Searches by L-BFGS-B: the threads that they take."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from sparse_bo.gp.learn import lbfgsb


def threads_of_blas():
    return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}


@pytest.fixture
def two_threads():
    """Two threads of BLAS, set by a thread that ends: threadpoolctl obeys one thread of the process while it lives."""
    with ThreadPoolExecutor(1) as pool:
        limit = pool.submit(threadpool_limits, 2, user_api="blas").result()
    yield
    with ThreadPoolExecutor(1) as pool:
        pool.submit(limit.restore_original_limits).result()


def search(wait=lambda: None):
    """Return the minimum of a parabola, and the numbers of threads of BLAS at its evaluations."""
    inside = []

    def function(x):
        inside.append(threads_of_blas())
        if len(inside) == 1:
            wait()
        return float(x @ x), 2.0 * x

    return lbfgsb(function, np.full(2, 0.5), limits=[(-1.0, 1.0)] * 2, maxiter=9).x, inside


@pytest.mark.usefixtures("two_threads")
def test_searches_take_one_thread_of_blas_and_leave_their_number_alone():
    """Also where they overlap in threads of the process, after one in another thread, and where the function raises."""
    assert threads_of_blas() == {2}
    found, both = [search()], Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        found += pool.map(lambda _: search(lambda: both.wait(timeout=60)), range(2))
    assert all(np.allclose(x, 0.0) and set.union(*inside) == {1} for x, inside in found)
    assert threads_of_blas() == {2}
    with pytest.raises(ZeroDivisionError):
        lbfgsb(lambda x: 1 / 0, np.zeros(1), limits=[(-1.0, 1.0)])
    assert threads_of_blas() == {2}


@pytest.mark.usefixtures("two_threads")
def test_the_number_is_restored_whichever_search_ends_last():
    first, last = Barrier(2), Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        stays = pool.submit(search, lambda: (first.wait(timeout=60), last.wait(timeout=60)))
        leaves = pool.submit(search, lambda: first.wait(timeout=60))
        assert set.union(*leaves.result()[1]) == {1}
        assert threads_of_blas() == {1}
        last.wait(timeout=60)
        assert set.union(*stays.result()[1]) == {1}
        assert threads_of_blas() == {2}


@pytest.mark.usefixtures("two_threads")
def test_a_thread_that_has_set_the_number_searches_on_one():
    with threadpool_limits(2, user_api="blas"):
        assert set.union(*search()[1]) == {1}
        assert threads_of_blas() == {2}
