"""The ranks of a run: every event of rank 0 happens on all ranks, in the same order.

A run over sharded arms is one run on every rank: the same engine, generator and events. Rank 0 evaluates the objective, writes
the journal, and sends each ask and each result to the others before it is applied. Without shards nothing is sent.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from sparse_bo.errors import RankError
from sparse_bo.runs.boundary import Boundary
from sparse_bo.sharding import Group

STEP = "the next event"
Kind = Literal["ask", "tell", "run", "end", "stop"]

logger = logging.getLogger(__name__)


class Occurrence(NamedTuple):
    """An event of a run."""

    kind: Kind
    value: Any
    """The limit of an ask, the results by ticket of a tell, the reason of a stop."""


class Lockstep:
    """Synchronises the ranks of a run. Owned by ``AskTell``."""

    def __init__(self, group: Group) -> None:
        self.group, self._events = group, hashlib.blake2b(digest_size=8)
        self._alone, self._leading = group.size == 1, False
        self.recording: Callable[[], AbstractContextManager[None]] = Boundary if self._alone else self._closing
        """Context of a change and its record: delays signals, and closes the group if rank 0 cannot record the change."""

    @property
    def leads(self) -> bool:
        """Whether this rank is rank 0, or the only process."""
        return self.group.leads

    def compare(self, settings: Callable[[], Mapping[str, Any]]) -> None:
        """Check that every rank has the same settings.

        Raises:
            ValueError: On every rank, if settings differ; the message names the first.
            RankError: If a rank has failed or is lost.
        """
        if self.group.size == 1:
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

    def answers(self, answers: Callable[[], dict[int, float]]) -> dict[int, float]:
        """Return the results of rank 0 on every rank, as a tell event.

        Args:
            answers: Returns the results; called on rank 0 only.

        Raises:
            RankError: As :meth:`agree`; on the other ranks, if ``answers`` raises.
        """
        if self._alone:
            return answers()
        mine: dict[int, float] = {}
        if self.leads:
            with self.leading():
                mine = answers()
        return self.agree("tell", mine)

    def agree(self, kind: Kind, value: Any = None) -> Any:
        """Synchronise an event, and return rank 0's value of it.

        Args:
            kind: Event of this rank.
            value: Value of rank 0; ignored on the others.

        Raises:
            RankError: If rank 0 is at another event, the ranks' picks differ, or a rank is lost.
        """
        if self._alone:
            return value
        event = self._exchanged(Occurrence(kind, value) if self.leads else None)
        if event.kind == "stop":
            raise RankError(f"rank 0 stopped: {event.value}")
        if event.kind != kind:
            raise self._apart(
                f"rank 0 is at {event.kind!r}, rank {self.group.rank} at {kind!r}; make the same calls everywhere"
            )
        return event.value

    def next(self) -> Occurrence:
        """Return the next event of rank 0; called on the other ranks.

        Raises:
            RankError: If rank 0 stopped or is lost.
        """
        event = self._exchanged(None)
        if event.kind == "stop":
            raise RankError(f"rank 0 stopped: {event.value}")
        return event

    def note(self, picks: NDArray[Any]) -> None:
        """Add picks to the digest of events; a rank with other picks is detected at the next event."""
        if not self._alone:
            self._events.update(picks.tobytes())

    def leading(self) -> AbstractContextManager[None]:
        """Return a context that notifies the other ranks of an exception on rank 0; they raise too, and the run can continue.

        Nested contexts leave the notice to the outermost, since an inner exception may be caught.
        """
        return nullcontext() if self._alone else self._notifying()

    @contextmanager
    def _notifying(self) -> Iterator[None]:
        outermost, self._leading = not self._leading, True
        try:
            yield
        except BaseException as error:
            if outermost and not isinstance(error, RankError):
                self.stop(error)
            raise
        finally:
            self._leading = not outermost

    @contextmanager
    def creating(self) -> Iterator[None]:
        """Create the journal on rank 0; the others raise if that fails.

        Raises:
            RankError: On the other ranks, if rank 0 raised.
        """
        step = "creating the journal"
        with self.group.shielded(step):
            yield
        if self.group.size > 1:
            self.group.exchange(step)

    @contextmanager
    def _closing(self) -> Iterator[None]:
        try:
            with Boundary():
                yield
        except Exception as error:
            if self.leads and self.group.closed is None:
                with suppress(RankError):
                    self.group.await_first()
                    self.group.give_up(STEP, f"{type(error).__name__}: {error}")
            raise

    def stop(self, error: BaseException) -> None:
        """Notify the other ranks that rank 0 has stopped."""
        if self.group.size == 1 or not self.leads or self.group.closed is not None:
            return
        reason = f"{type(error).__name__}: {error}"
        try:
            self._exchanged(Occurrence("stop", reason[:2000]))
        except RankError as lost:
            logger.warning("the other ranks were not notified of the reason why rank 0 stopped: %s", lost)

    def _exchanged(self, mine: Occurrence | None) -> Occurrence:
        group = self.group
        group.await_first()
        every = group.objects(STEP, (self._events.hexdigest(), mine))
        rank = next((rank for rank, (digest, _) in enumerate(every) if digest != every[0][0]), None)
        if rank is not None:
            raise self._apart(f"rank {rank} has other picks than rank 0: their hardware or libraries round differently")
        event: Occurrence | None = every[0][1]
        assert event is not None
        return event

    def _apart(self, message: str) -> RankError:
        self.group.closed = self.group.closed or message
        return RankError(message)
