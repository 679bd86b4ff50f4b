import torch

from sparse_bo.arms.sweep import AppendedRows


def _appended(storage: AppendedRows, value: float) -> AppendedRows:
    storage.rows[storage.used] = value
    storage.used += 1
    return storage


def test_rows_are_appended_in_place_while_there_is_room() -> None:
    first = _appended(AppendedRows.like(torch.zeros(3, 1), 1), 1.0)
    second = _appended(first.with_room(1, used=1), 2.0)
    assert second is first
    assert second.rows[:2].tolist() == [[1.0] * 3, [2.0] * 3]


def test_two_successors_of_a_value_do_not_overwrite_each_other() -> None:
    first = _appended(AppendedRows.like(torch.zeros(3, 1), 1), 1.0)
    one = _appended(first.with_room(1, used=1), 2.0)
    other = _appended(first.with_room(1, used=1), 3.0)
    assert one.rows[:2].tolist() == [[1.0] * 3, [2.0] * 3]
    assert other.rows[:2].tolist() == [[1.0] * 3, [3.0] * 3]
    assert first.with_room(0, used=1) is first  # to read is not to append


def test_without_room_rows_move_to_a_larger_storage() -> None:
    small = AppendedRows.like(torch.zeros(2, 1), 1, most=1)
    _appended(small, 1.0)
    grown = small.with_room(3, used=1, most=7)
    assert grown is not small
    assert grown.rows.shape == (7, 2)  # twice what is asked for and some, of what memory there is
    assert grown.used == 1
    assert grown.rows[0].tolist() == [1.0, 1.0]
