"""The state machine under ``AskTell``: what is out, what the policy knows, and how events change it.

Everything that happens to a run is an event (:class:`sparse_bo.journal.Event`); the same events in the same order give the
same machine, to the last pick. That is how a run is resumed: from a snapshot, then the events after it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.dictionary.certificate import Certificate, certify
from sparse_bo.domains.base import Domain, like, no_picks
from sparse_bo.errors import ResumeWarning, StorageError
from sparse_bo.evaluations.batch import Batch
from sparse_bo.journal import Event
from sparse_bo.policies import BanditState, Policy, State
from sparse_bo.policies.persistence import Freezing
from sparse_bo.policies.protocol import keeps_batch_open
from sparse_bo.runs.history import HistoryRow
from sparse_bo.runs.ledger import Ahead, Handing, Ledger
from sparse_bo.runs.result import make_row

UNLIMITED = 2**62


class Engine:
    """A run without its journal. Owned and changed by ``AskTell`` alone."""

    def __init__(self, domain: Domain, policy: Policy[Any], *, seed: int, certify_every: int | None) -> None:
        self.domain, self.policy, self.seed, self.certify_every = domain, policy, seed, certify_every
        self.device = like(domain).device
        self.generator = torch.Generator().manual_seed(seed)
        self.state: State = policy.init(domain.double())
        self.ledger = Ledger(domain)
        self.rows: list[HistoryRow] = []
        self.row_tickets: list[list[int]] = []
        self.asked = self.next_ticket = 0
        self.seconds = 0.0
        """Spent on picks and updates since the last snapshot, about what a replay would cost."""
        self._open_batches = keeps_batch_open(policy)
        self._ahead = Ahead(domain, no_picks(domain))
        self._refused: int | None = None  # results that the policy needs, as long as neither state nor open picks change
        self._effort: dict[str, float] = {}

    @property
    def due(self) -> bool:
        """Whether results must be taken in before the policy is asked."""
        return self.ledger.answered > 0 and not (self._open_batches and self.ledger.outstanding)

    def picked_ahead(self, limit: int) -> bool:
        """Whether so many picks are made already: proposing them draws nothing."""
        return len(self._ahead) >= limit

    def propose(self, limit: int) -> Handing | int:
        """Return the next evaluations: those picked ahead, then what the policy adds. Nothing changes but the generator.

        Returns:
            The evaluations, or how many results the policy needs before there are any.
        """
        if self.picked_ahead(limit):
            return self._ahead.next(limit, self.next_ticket)
        if self._refused is not None:
            return self._refused
        start = time.perf_counter()
        picks = self._ahead.picks()
        pending = torch.cat([self.ledger.picks(), picks])
        before = self.generator.get_state()
        with self.undrawn():
            more = self.policy.ask(self.state, max_q=limit - len(picks), pending=pending, generator=self.generator)
        if not len(more.picks):
            self.generator.set_state(before)
        self._work("pick", time.perf_counter() - start)
        self._effort["rechecked"] = self._effort.get("rechecked", 0) + more.rechecked
        q = len(picks) + len(more.picks)
        if not q:
            self._refused = more.needed
            return more.needed
        rest = [] if more.ahead is None else [more.ahead]
        return Ahead(self.domain, torch.cat([picks, more.picks, *rest])).next(q, self.next_ticket)

    def hand_out(self, handing: Handing) -> None:
        """Record that evaluations are out."""
        q = len(handing.batch)
        self.ledger.add(handing.batch, handing.picks)
        self._ahead = handing.ahead
        self._ahead.drop(q)
        self._refused = None
        self.next_ticket += q
        self.asked += q

    def answer(self, answers: Mapping[int, float | None]) -> bool:
        """Record results; once none is out, take them in. Return whether the state changed."""
        self.ledger.answer(answers)
        if not answers or self.ledger.outstanding:
            return False
        self.fold()
        return True

    def fold(self) -> None:
        """Take in what is answered. If that raises, the answers stay and nothing is drawn."""
        batch, values = self.ledger.answers()
        self.update(batch, values)
        self.ledger.settle(batch.tickets)

    def observe(self, picks: Tensor, y: Tensor) -> None:
        """Take in observations made before the run."""
        self.next_ticket = len(picks)
        self.update(self.ledger.batch(picks, range(len(picks))), y.tolist())

    def update(self, batch: Batch, values: list[float | None]) -> None:
        """Update the state with results of ``batch`` and add a row to the history."""
        good = [i for i, v in enumerate(values) if v is not None]
        start = time.perf_counter()
        if good:
            kept = torch.tensor(good, device=self.device)
            y = torch.tensor([v for v in values if v is not None], dtype=torch.float64, device=self.device)
            with self.undrawn():
                self.state = self.policy.tell(self.state, batch.picks[kept], y, generator=self.generator)
        else:
            self.state = self.state.without_results()
        self._ahead, self._refused = Ahead(self.domain, no_picks(self.domain)), None
        self.seconds += time.perf_counter() - start
        effort, self._effort = self._effort, {}
        rechecked = int(effort.pop("rechecked", 0))
        row = make_row(
            self.state,
            indices=[] if batch.indices is None else batch.indices.tolist(),
            points=batch.X.tolist() if batch.indices is None else None,
            values=values,
            rechecked=rechecked,
            variance_factor=self._variance_factor(),
            seconds={**effort, **self.state.seconds},
        )
        self.rows.append(row)
        self.row_tickets.append(batch.tickets)

    def certificate(self) -> Certificate | None:
        """See :meth:`sparse_bo.AskTell.certificate`."""
        state = self.state
        if not isinstance(state, BanditState) or state.posterior is None:
            return None
        surrogate = state.posterior.prior
        return certify(
            state.observations,
            state.posterior.dictionary,
            covariance=surrogate.covariance,
            regularization=surrogate.regularization,
            memory_bytes=surrogate.memory_bytes,
            generator=torch.Generator().manual_seed(self.seed),
        )

    def spend(self, on: str, seconds: float) -> None:
        """Count time for the next row of the history."""
        self._effort[on] = self._effort.get(on, 0.0) + seconds

    @contextmanager
    def undrawn(self) -> Iterator[None]:
        """If what is done inside raises, it has drawn nothing: the next try gives what this one would have given."""
        before = self.generator.get_state()
        try:
            yield
        except BaseException:
            self.generator.set_state(before)
            raise

    def freeze(self) -> dict[str, Any] | None:
        """Return the machine right after an update as arrays; ``None`` if the policy cannot freeze its states."""
        frozen = self.policy.freeze(self.state) if isinstance(self.policy, Freezing) else None
        if frozen is None:
            return None
        tickets = self.ledger.pending
        return {
            **{f"state.{name}": value for name, value in frozen.items()},
            "generator": self.generator.get_state(),
            "open": self.ledger.handed_out(tickets).picks,
            "tickets": tickets,
            "rows": len(self.rows),
            "asked": self.asked,
            "next_ticket": self.next_ticket,
        }

    def thaw(self, frozen: Mapping[str, Any], rows: list[HistoryRow], row_tickets: list[list[int]]) -> None:
        """Restore what :meth:`freeze` returned, with the history up to then."""
        assert isinstance(self.policy, Freezing)
        parts = {name.removeprefix("state."): value for name, value in frozen.items() if name.startswith("state.")}
        self.state = self.policy.thaw(self.domain.double(), parts)
        self.generator.set_state(frozen["generator"])
        self.ledger.add(self.ledger.batch(frozen["open"].to(self.device), frozen["tickets"]))
        self.rows, self.row_tickets = rows[: frozen["rows"]], row_tickets[: frozen["rows"]]
        self.asked, self.next_ticket = frozen["asked"], frozen["next_ticket"]

    def redo(self, event: Event) -> None:
        """Let a recorded event happen again."""
        if event.kind == "tell":
            assert event.tickets is not None
            assert event.results is not None
            values = [None if v != v else v for v in event.results.tolist()]
            self.answer(dict(zip(event.tickets.tolist(), values, strict=True)))
        elif event.kind == "update":
            if self.ledger.answered:
                self.fold()
        elif event.kind == "ask":
            self._redo_ask(event)
        else:
            assert event.results is not None
            self.observe(self._tensor(event.picks), torch.from_numpy(event.results.copy()).to(self.device))

    def _redo_ask(self, event: Event) -> None:
        assert event.picks is not None
        if event.first != self.next_ticket:
            raise StorageError(f"the journal hands out ticket {event.first} after {self.next_ticket - 1}: it is damaged")
        handing = self.propose(UNLIMITED if event.max_q is None else event.max_q)
        if isinstance(handing, int) or not np.array_equal(handing.picks, event.picks):
            warnings.warn(
                f"the picks from ticket {event.first} on, made again, differ from those recorded (other hardware, or other "
                "versions of torch or sparse_bo); the recorded ones stay, later ones may differ from an uninterrupted run's",
                ResumeWarning,
                stacklevel=4,
            )
            handing = Ahead(self.domain, self._tensor(event.picks)).next(len(event.picks), event.first)
        self.hand_out(handing)

    def _tensor(self, picks: NDArray[Any] | None) -> Tensor:
        assert picks is not None
        return torch.from_numpy(np.array(picks)).to(self.device)

    def _work(self, on: str, seconds: float) -> None:
        self.spend(on, seconds)
        self.seconds += seconds

    def _variance_factor(self) -> float | None:
        if self.certify_every is None or self.state.round % self.certify_every:
            return None
        certificate = self.certificate()
        return None if certificate is None else certificate.factor
