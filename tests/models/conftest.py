"""Sizes of sparse models for the time of a test."""

from collections.abc import Callable, Iterator

import pytest

from tests.models.sparse_problems import forget_sizes, set_sizes


@pytest.fixture
def scale() -> Iterator[Callable[..., None]]:
    """A function that sets sizes of the models that the test makes by ``make_sparse`` and ``pair``."""
    yield set_sizes
    forget_sizes()


@pytest.fixture
def many(scale: Callable[..., None]) -> None:
    """More than eight points are many; all of them are pivots, so that everything is exact."""
    scale(joint={"dense": 8})


@pytest.fixture
def few_pivots(scale: Callable[..., None]) -> None:
    """More than eight points are many, six of them pivots, the others in blocks of five."""
    scale(joint={"dense": 8, "pivots": 6, "block": 5, "chunk": 10})


@pytest.fixture
def nothing_dense(scale: Callable[..., None]) -> None:
    """More than eight points are many, and more than seven are never made dense."""
    scale(joint={"dense": 8, "largest_dense": 7})
