import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_bo.linalg.chunking import chunk_rows, row_slices


@pytest.mark.parametrize(
    ("rows", "bytes_per_row", "memory_bytes", "expected"),
    [(100, 8, 80, 10), (100, 8, 87, 10), (3, 8, 10**9, 3), (100, 8, 8, 1), (0, 8, 80, 1), (5, 0, 80, 5)],
    ids=["exact fit", "remainder is left", "no more than there are", "one row", "no rows", "rows of no size"],
)
def test_chunk_is_what_fits_into_the_budget(rows: int, bytes_per_row: int, memory_bytes: int, expected: int) -> None:
    assert chunk_rows(rows, bytes_per_row=bytes_per_row, memory_bytes=memory_bytes) == expected


def test_a_row_larger_than_the_budget_is_refused_with_both_sizes() -> None:
    with pytest.raises(MemoryError, match=r"800 bytes.*100 bytes.*raise memory_bytes"):
        chunk_rows(10, bytes_per_row=800, memory_bytes=100)


@given(rows=st.integers(0, 200), chunk=st.integers(1, 250))
@settings(deadline=None, max_examples=50, derandomize=True)
def test_slices_cover_every_row_once_in_order(rows: int, chunk: int) -> None:
    slices = list(row_slices(rows, chunk=chunk))
    assert [i for part in slices for i in range(rows)[part]] == list(range(rows))
    assert all(part.stop - part.start <= chunk for part in slices)


def test_a_chunk_of_no_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row, got 0"):
        list(row_slices(3, chunk=0))
