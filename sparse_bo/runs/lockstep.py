"""The ranks of a run in step: what happens to the run on rank 0 happens on all, in the same order.

A run over arms in shards is one run on every rank: the same engine, the same generator, the same events. Rank 0 decides the
events: it evaluates the objective, writes the journal, and tells the others each ask and each result before it happens. Without
shards nothing is sent.
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
    """Something that happens to a run."""

    kind: Kind
    value: Any
    """Of an ask the limit, of a tell the answers by ticket, of a stop the reason."""


class Lockstep:
    """Keeps the ranks of a run in step. Owned by ``AskTell``."""

    def __init__(self, group: Group) -> None:
        self.group, self._events = group, hashlib.blake2b(digest_size=8)
        self._alone, self._leading = group.size == 1, False
        self.recording: Callable[[], AbstractContextManager[None]] = Boundary if self._alone else self._closing
        """Keeps signals from a change and its record, and closes the group if rank 0 cannot record what others have done."""

    @property
    def leads(self) -> bool:
        """Whether this rank decides what happens: rank 0, or the only process."""
        return self.group.leads

    def compare(self, settings: Callable[[], Mapping[str, Any]]) -> None:
        """Check that every rank has the same settings.

        Raises:
            ValueError: On every rank, if not; says in what they differ.
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
                    "a run over ShardedArms is started with the same arguments everywhere"
                )

    def given(self, answers: Callable[[], dict[int, float]]) -> dict[int, float]:
        """Let a tell happen on every rank: what rank 0 is given counts.

        Args:
            answers: Returns them; called on rank 0 alone.

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
        """Let an event happen on every rank: what rank 0 says of it counts.

        Args:
            kind: What this rank is about to do.
            value: Of rank 0; that of the others is not looked at.

        Raises:
            RankError: If rank 0 does something else, or the ranks have come apart, or one is lost.
        """
        if self._alone:
            return value
        told = self._exchanged(Occurrence(kind, value) if self.leads else None)
        if told.kind == "stop":
            raise RankError(f"rank 0 stopped: {told.value}")
        if told.kind != kind:
            raise self._apart(f"rank 0 is at {told.kind!r}, rank {self.group.rank} at {kind!r}; make the same calls everywhere")
        return told.value

    def next(self) -> Occurrence:
        """Return what rank 0 lets happen next; called on the other ranks.

        Raises:
            RankError: If rank 0 stopped or is lost.
        """
        told = self._exchanged(None)
        if told.kind == "stop":
            raise RankError(f"rank 0 stopped: {told.value}")
        return told

    def note(self, picks: NDArray[Any]) -> None:
        """Remember picks that were handed out: ranks that made others find out at the next event."""
        if not self._alone:
            self._events.update(picks.tobytes())

    def leading(self) -> AbstractContextManager[None]:
        """Tell the others, on rank 0, when what it does between events raises: they raise too, and the run can go on.

        Within another such block the outer one does: what is raised inside may be caught on the way.
        """
        return nullcontext() if self._alone else self._telling()

    @contextmanager
    def _telling(self) -> Iterator[None]:
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
        """Let rank 0 create the journal, and the others know if it cannot.

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
        """Tell the others that rank 0 goes no further; who is lost need not hear of it."""
        if self.group.size == 1 or not self.leads or self.group.closed is not None:
            return
        reason = f"{type(error).__name__}: {error}"
        try:
            self._exchanged(Occurrence("stop", reason[:2000]))
        except RankError as lost:
            logger.warning("the other ranks did not hear why rank 0 stopped: %s", lost)

    def _exchanged(self, mine: Occurrence | None) -> Occurrence:
        group = self.group
        group.await_first()
        every = group.objects(STEP, (self._events.hexdigest(), mine))
        rank = next((rank for rank, (digest, _) in enumerate(every) if digest != every[0][0]), None)
        if rank is not None:
            raise self._apart(f"rank {rank} has made other picks than rank 0: their hardware or libraries do not round alike")
        told: Occurrence | None = every[0][1]
        assert told is not None
        return told

    def _apart(self, message: str) -> RankError:
        self.group.closed = self.group.closed or message
        return RankError(message)
