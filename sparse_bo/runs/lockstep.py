"""The ranks of a run in step: a run over sharded arms is one run on every rank, with the same engine, generator and events.

Rank 0 evaluates the objective, writes the journal, and sends each ask and each result to the others before it is applied.
Without shards nothing is sent.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

from numpy.typing import NDArray

from sparse_bo.errors import RankError
from sparse_bo.sharding import Group

STEP = "the next event"
ARGUMENTS = "checking the arguments"
Kind = Literal["ask", "add", "enqueue", "tell", "run", "end", "stop"]

Occurrence = tuple[Kind, Any]
"""An event of a run: its kind, and the arguments of the method of :class:`.Steps` that applies it, or the reason of a stop."""
logger = logging.getLogger(__name__)


class Lockstep:
    """Synchronises the ranks of a run. Owned by ``AskTell``.

    Its methods raise :class:`RankError` on every rank if rank 0 stops or is at another event, if picks differ, or if a rank is
    lost.
    """

    def __init__(self, group: Group) -> None:
        self.group, self._events = group, hashlib.blake2b(digest_size=8)
        self.alone, self._leading = group.size == 1, False

    def compare(self, settings: Callable[[], Mapping[str, Any]]) -> None:
        """Check that every rank has the same settings."""
        if self.alone:
            return
        every = self.group.objects("comparing settings", dict(settings()))
        for name in every[0]:
            values = [other.get(name) for other in every]
            rank = next((rank for rank, value in enumerate(values) if value != values[0]), None)
            if rank is not None:
                raise ValueError(
                    f"expected the same {name} on every rank, got {values[0]} on rank 0 and {values[rank]} on rank {rank}; "
                    "start a run over ShardedArms with the same arguments on every rank"
                )

    def from_first(self, kind: Kind, value: Callable[[], Any]) -> Any:
        """Return on every rank, as an event of a kind, the value that ``value`` returns on rank 0."""
        if self.alone:
            return value()
        mine: Any = None
        if self.group.leads:
            with self.leading():
                mine = value()
        return self.agree(kind, mine)

    def agree(self, kind: Kind, value: Any = None) -> Any:
        """Synchronise an event of this rank, and return rank 0's value of it."""
        if self.alone:
            return value
        first, value = self._exchanged((kind, value) if self.group.leads else None)
        if first != kind:
            raise self._apart(f"rank 0 is at {first!r}, rank {self.group.rank} at {kind!r}; make the same calls everywhere")
        return value

    def next(self) -> Occurrence:
        """Return the next event of rank 0; called on the other ranks."""
        return self._exchanged(None)

    def note(self, picks: NDArray[Any]) -> None:
        """Add picks to the digest of events; a rank with other picks is detected at the next event."""
        if not self.alone:
            self._events.update(picks.tobytes())

    @contextmanager
    def leading(self) -> Iterator[None]:
        """Notify the other ranks of an exception on rank 0; they raise too, and the run can continue.

        Nested contexts leave the notice to the outermost, since an inner exception may be caught.
        """
        outermost, self._leading = not self._leading, True
        try:
            yield
        except BaseException as error:
            if outermost and not isinstance(error, RankError) and self._open:
                try:
                    self._exchanged(("stop", f"{type(error).__name__}: {error}"[:2000]))
                except RankError as lost:
                    logger.warning("the other ranks were not notified of the reason why rank 0 stopped: %s", lost)
            raise
        finally:
            self._leading = not outermost

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Close the group if rank 0 cannot record a change."""
        try:
            yield
        except Exception as error:
            if self._open:
                with suppress(RankError):
                    self.group.await_first()
                    self.group.give_up(STEP, f"{type(error).__name__}: {error}")
            raise

    @property
    def _open(self) -> bool:
        """Whether this is rank 0 of others that wait for it."""
        return not self.alone and self.group.leads and self.group.closed is None

    def _exchanged(self, mine: Occurrence | None) -> Occurrence:
        group = self.group
        group.await_first()
        every = group.objects(STEP, (self._events.hexdigest(), mine))
        rank = next((rank for rank, (digest, _) in enumerate(every) if digest != every[0][0]), None)
        if rank is not None:
            raise self._apart(f"rank {rank} has other picks than rank 0: their hardware or libraries round differently")
        event: Occurrence | None = every[0][1]
        assert event is not None
        if event[0] == "stop" and mine is None:
            raise RankError(f"rank 0 stopped: {event[1]}")
        return event

    def _apart(self, message: str) -> RankError:
        self.group.closed = self.group.closed or message
        return RankError(message)
