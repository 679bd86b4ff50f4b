"""Rows of a tensor that are appended to, and shared by the values that know them."""

from __future__ import annotations

from torch import Tensor


class AppendedRows:
    """Rows that are only ever appended to; several values may share it, each sees the rows it knows.

    Until memory runs out: then the rows go, for all of them.
    """

    def __init__(self, rows: Tensor) -> None:
        """Begin with room for some rows (``r x a``), none of which is used yet."""
        self.rows, self.used, self.gone = rows, 0, False

    @classmethod
    def like(cls, X: Tensor, rows: int, *, most: int | None = None) -> AppendedRows:
        """Return no rows, with room for ``rows``, and as many again, of a number for each of ``a x d`` points.

        ``most``: rows there is memory for; ``None``: as many as that.
        """
        room = 2 * rows + 16
        return cls(X.new_empty(room if most is None else min(room, most), len(X)))

    def with_room(self, more: int, *, used: int, most: int | None = None) -> AppendedRows:
        """Return where a value that knows ``used`` rows appends ``more``: here if there is room and no other has. O(r a)."""
        if not more or (self.used == used and used + more <= len(self.rows)):
            return self
        grown = AppendedRows.like(self.rows.T, used + more, most=most)
        grown.rows[:used], grown.used = self.rows[:used], used
        return grown
