"""The state machine of ``AskTell``: pending evaluations, the policy's state, and their changes by events.

The same events (:class:`sparse_bo.journal.Event`) in the same order give the same machine, to the last pick. So a run is
resumed from a snapshot and the events after it.

A change is first computed by functions without side effects (:meth:`Engine.propose`, :meth:`Engine.next_update`), and then
applied by functions that copy references and can fail only when memory runs out (:meth:`Engine.hand_out`,
:meth:`Ledger.answer`, :meth:`Engine.apply`); :meth:`Engine.back_to` reverts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.dictionary import Certificate, certify
from sparse_bo.domains import Arms, Box, Domain, SpaceArms
from sparse_bo.errors import ContradictionError, ResumeWarning, ScheduleComplete, StorageError, warn_caller
from sparse_bo.evaluations.job import Batch
from sparse_bo.evaluations.results import Value, has_sds, is_failed, sds_of
from sparse_bo.journal import Event
from sparse_bo.policies import BanditState, Mechanism, Outcomes, Policy, Proposal, State, Wait
from sparse_bo.policies.persistence import on_device
from sparse_bo.policies.protocol import BatchMechanism, mechanism_of
from sparse_bo.policies.states import Phase, PointState
from sparse_bo.runs.default_policy import for_negative
from sparse_bo.runs.history import HistoryRow, make_row
from sparse_bo.runs.ledger import Ahead, Handing, Ledger, LedgerMark
from sparse_bo.seeding import generator_of

UNLIMITED = 2**62
Mark = tuple[dict[str, Any], int, LedgerMark]  # the fields, the length of the history, and the mark of the ledger
F = TypeVar("F", bound=Callable[..., Any])


def with_gradients(function: F) -> F:
    """Return the function with gradients enabled, regardless of the caller's ``no_grad`` or ``inference_mode``."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():  # the usual case; the modes cost 4 µs
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.enable_grad():
            return function(*args, **kwargs)

    return called  # type: ignore[return-value]  # `wraps` keeps the signature


@dataclass(frozen=True, eq=False)
class Update:
    """The next state of the machine by the results so far, not yet applied."""

    state: State
    row: HistoryRow
    errors: Tensor | None
    """Standardised errors of the predictions before the results, in the objective's sign, with several outcomes of all of them;
    ``None`` without a model."""
    generator: torch.Generator
    seconds: float
    """Approximate cost of a replay (s)."""


class Engine:
    """A run without its journal. Only ``AskTell`` owns and changes it.

    Results, history and journal have the objective's sign. Policies maximise: if ``minimize``, mechanism and state have −y.
    With several outcomes, results are rows, and the policy knows their directions.
    """

    @with_gradients
    def __init__(
        self, domain: Domain, policy: Policy, *, seed: int, certify_every: int | None, minimize: bool, outcomes: Outcomes | None
    ) -> None:
        if isinstance(domain, Box) and domain.bounds.is_inference():
            domain = replace(domain, bounds=domain.bounds.clone())  # bounds that support gradients
        self.policy, self.seed, self.certify_every = policy, seed, certify_every
        self.generator = generator_of(seed)
        self.minimize, self.outcomes = minimize, outcomes
        self.mechanism: Mechanism[Any] = mechanism_of(for_negative(policy) if minimize else policy, domain.double(), outcomes)
        if certify_every is not None and not self.mechanism.has_certificates:
            raise ValueError(
                f"certify_every= is for upper-confidence policies over arms, got {policy.name}, whose approximation has no "
                "certificate; leave it out, or pass policy=BBKB() over arms"
            )
        if isinstance(domain, Arms) and domain.others and not self.mechanism.knows_others:
            raise ValueError(
                f"policy {policy.name!r} takes earlier observations of candidates alone, got other inputs in initial=; use "
                "ExpectedImprovement, TwoStage or BBKB, or leave them out"
            )
        if isinstance(domain, Box) and self.mechanism.on_cpu:
            domain = domain.cpu()
        self.domain = domain
        self.state: State = self.mechanism.init()
        self.ledger, self.rows = Ledger(domain), list[HistoryRow]()
        self.asked = self.next_ticket = 0
        self.seconds = 0.0
        """Seconds of picks and updates since the last snapshot, the approximate cost of a replay."""
        self._ahead, self._at = Ahead(domain), 0  # picks made ahead, and the number of them that were asked
        self._queue, self._queue_at = Ahead(domain), 0  # picks of the user, likewise
        self._refused: int | None = None  # results that the policy needs, until state or pending picks change
        self._effort, self._rechecked = dict[Phase, float](), 0

    @property
    def due(self) -> bool:
        """Whether the state must be updated before the policy is asked."""
        return self.ledger.complete if self.mechanism.keeps_batch_open else self.ledger.answered > 0

    def propose(self, limit: int) -> Handing | int:
        """Return the next evaluations, or the number of results that the policy needs first. Only timings change."""
        if queued := self._queued(limit):
            return queued
        if self._ahead.count - self._at >= limit:
            return self._ahead.part(self._at, limit, self.next_ticket, self.generator)
        return self._refused if self._refused is not None else self._picked(limit, self.mechanism.ask)

    def propose_beyond_batch(self, limit: int) -> Handing | int:
        """Return as many evaluations as :meth:`propose` has not, or a number of results again; those of the user first."""
        return self._queued(limit) or self._picked(limit, self.mechanism.ask_beyond_batch)

    def _queued(self, limit: int) -> Handing | None:
        """Return evaluations that the user has queued; ``None`` without any."""
        q = min(self.queued, limit)
        return self._queue.part(self._queue_at, q, self.next_ticket, self.generator) if q else None

    @property
    def queued(self) -> int:
        """Number of queued picks that no ask has returned yet."""
        return self._queue.count - self._queue_at

    def generator_ahead(self) -> torch.Generator:
        """Return a copy of the generator for the parts that queued points lack: at other draws after every pick, queued or not.

        It keeps the seed, by which an initial design goes on.
        """
        generator, number = self.generator.clone_state(), self.next_ticket + self.queued
        draws = int(torch.randint(1, 2**20, (), generator=generator_of(number), device="cpu"))
        torch.rand(draws, generator=generator, dtype=torch.float32, device="cpu")
        return generator

    @with_gradients
    def suggested(self, q: int, generator: torch.Generator) -> Tensor:
        """Return ``q`` picks of the policy after those that are pending or queued; uniform ones where it waits or has ended."""
        made, before = self.domain.no_picks, torch.cat([self.ledger.picks(), self._queue.picks[self._queue_at :]])
        while len(made) < q:
            seen = torch.cat([before, made])
            try:
                more = self.mechanism.ask_beyond_batch(self.state, max_q=q - len(made), pending=seen, generator=generator)
            except ScheduleComplete:
                more = Wait(1)
            if isinstance(more, Wait):
                assert isinstance(self.domain, Box | SpaceArms)  # others have no parts
                where = {"seen": seen} if isinstance(self.domain, SpaceArms) else {}
                return torch.cat([made, self.domain.uniform(q - len(made), **where, generator=generator).to(made)])
            made = torch.cat([made, more.picks])
        return made

    @with_gradients
    def _picked(self, limit: int, ask: Callable[..., Proposal | Wait]) -> Handing | int:
        """Return the remaining picks made ahead and new ones, or the number of results that the policy needs first."""
        start = time.perf_counter()
        picks, generator = self._ahead.picks[self._at :], self.generator.clone_state()  # the run's advances with used draws
        pending = torch.cat([self.ledger.picks(), picks])
        try:
            more = ask(self.state, max_q=limit - len(picks), pending=pending, generator=generator)
        except ContradictionError as error:
            if self.minimize:
                error.args = (f"{error} (The run minimises: these values are of −y.)",)
            raise
        self.spend("pick", seconds := time.perf_counter() - start)
        self.seconds += seconds
        if isinstance(more, Wait):
            if len(picks):
                return self._ahead.part(self._at, len(picks), self.next_ticket, self.generator)
            self._refused = more.needed
            return more.needed
        self._rechecked += more.rechecked
        made = more.picks if more.ahead is None else torch.cat([more.picks, more.ahead])
        seen, state = pending, self.state
        if isinstance(state, PointState):
            seen = torch.cat([state.X, state.left_alone(), pending])  # evaluated and failed ones, too
        made = self.domain.mended(made, seen=seen, repeats=more.repeats, generator=generator)
        q = len(picks) + len(more.picks)
        return Ahead(self.domain, torch.cat([picks, made])).part(0, q, self.next_ticket, generator)

    def mark(self) -> Mark:
        """Return a mark for :meth:`back_to`. O(1)."""
        return vars(self).copy(), len(self.rows), self.ledger.mark()

    def back_to(self, mark: Mark) -> None:
        """Revert the machine to a mark: one :meth:`hand_out`, answer or :meth:`apply` since, complete or not."""
        fields, rows, ledger = mark
        self.ledger.back_to(ledger)
        del self.rows[rows:]
        vars(self).update(fields)

    def hand_out(self, handing: Handing) -> None:
        """Mark evaluations as asked."""
        q = len(handing.picks)
        self.ledger.add(handing.batch.tickets, handing.picks)
        if handing.ahead is self._queue:  # picks made ahead did not know of these
            self._queue_at = handing.start + q
            self._ahead, self._at = Ahead(self.domain), 0
        else:
            self._ahead, self._at = handing.ahead, handing.start + q
        self.generator, self._refused = handing.generator, None
        self.next_ticket += q
        self.asked += q

    def next_update(self) -> Update:
        """Return the update by the results so far."""
        return self._updated(*self.ledger.answers(), self.mechanism.tell)

    def observed(self, picks: Tensor, values: list[Value]) -> Update:
        """Return the update by observations that the run has not asked for, with the next tickets."""
        tickets = list(range(self.next_ticket, self.next_ticket + len(picks)))
        return self._updated(self.ledger.batch(picks, tickets), values, self.mechanism.observe, added=True)

    def check_noise(self, values: Iterable[Value]) -> None:
        """Raise a ``TypeError`` if the noise of a result is known, and the policy cannot use that."""
        if not isinstance(self.mechanism, BatchMechanism) and has_sds(values):
            other = "ExpectedImprovement" if self.domain.indexed else "TrustRegion"
            raise TypeError(
                f"policy {self.policy.name!r} takes results without standard deviations, as all have the same noise, got a "
                f"sparse_bo.Measured; begin the run with policy=sparse_bo.policies.{other}(), or tell its value alone"
            )

    def move(self, where: tuple[list[int], NDArray[Any]]) -> None:
        """Say where evaluations without a result (tickets) are made instead: picks as the journal has them."""
        self.ledger.move(*where)
        self._ahead, self._at, self._refused = Ahead(self.domain), 0, None

    def enqueue(self, picks: Tensor) -> None:
        """Add picks that the next asks return first."""
        self._queue, self._queue_at = Ahead(self.domain, torch.cat([self._queue.picks[self._queue_at :], picks])), 0

    def apply(self, update: Update) -> None:
        """Apply an update of :meth:`next_update` or :meth:`observed`."""
        tickets = update.row.tickets
        self.rows.append(update.row)
        self.state, self.generator, self.seconds = update.state, update.generator, self.seconds + update.seconds
        self._ahead, self._at, self._refused = Ahead(self.domain), 0, None
        self._effort, self._rechecked = {}, 0
        self.next_ticket = max(self.next_ticket, 1 + max(tickets, default=-1))
        self.ledger.settle(tickets)

    def began_with(self, picks: Tensor, values: list[Value]) -> bool:
        """Return whether the run has these initial observations."""
        there = [(row.points or row.indices, repr(row.results)) for row in self.rows[:1] if row.added]
        return there == [(self.domain.recorded(picks).tolist(), repr(values))]

    def spend(self, on: Phase, seconds: float) -> None:
        """Add time to a phase of the next history row."""
        self._effort[on] = self._effort.get(on, 0.0) + seconds

    def freeze(self) -> dict[str, Any] | None:
        """Return a snapshot of the machine right after an update.

        ``None`` if the policy has no snapshots, and where an update by added observations has left results of asked evaluations
        for the next one: a snapshot has none of these.
        """
        frozen = None if self.ledger.answered else self.mechanism.freeze(self.state)
        if frozen is None:
            return None
        tickets = self.ledger.pending
        counts = {"rows": len(self.rows), "asked": self.asked, "next_ticket": self.next_ticket}
        return {
            **{f"state.{name}": value for name, value in frozen.items()},
            "generator": self.generator.get_state(),
            "open": self.ledger.handed_out(tickets).picks,
            "queue": self._queue.picks[self._queue_at :],
            "tickets": tickets,
            **counts,
        }

    @with_gradients
    def thaw(self, frozen: Mapping[str, Any], rows: list[HistoryRow]) -> None:
        """Restore a snapshot of :meth:`freeze`, with the history up to it, which it must fit.

        Raises:
            StorageError: If it does not.
        """
        for name in ("rows", "asked", "next_ticket"):
            if type(count := frozen[name]) is not int or count < 0:
                raise StorageError(f"expected {name} in the snapshot as a count, got {count!r:.100}; take another copy")
        parts = {name.removeprefix("state."): value for name, value in frozen.items() if name.startswith("state.")}
        self._check_picks(open=frozen["open"], queue=frozen["queue"])
        self.state = self.mechanism.thaw(on_device(parts, self.domain.device))
        self._check_picks(evaluated=self.state.succeeded)
        self.generator.set_state(frozen["generator"])
        self.ledger.add(frozen["tickets"], self.domain.recorded(frozen["open"]))
        self.enqueue(frozen["queue"].to(self.domain.device))
        self.rows, pulls = rows[: frozen["rows"]], self.state.pulls
        if self.rows and pulls != (wanted := self.rows[-1].pulls):
            both = f"expected {wanted:,} results in the snapshot, as in the history, got {pulls:,}"
            raise StorageError(f"{both}; take another copy")
        self.asked, self.next_ticket = frozen["asked"], frozen["next_ticket"]

    def _check_picks(self, **recorded: Tensor) -> None:
        """Raise :class:`StorageError` if picks of a snapshot are not such of the domain."""
        like = self.mechanism.init().succeeded
        for name, picks in recorded.items():
            if picks.shape[1:] != like.shape[1:] or picks.dtype != like.dtype:
                wanted = f"n{''.join(f' x {size}' for size in like.shape[1:])} {like.dtype}"
                got = f"{tuple(picks.shape)} {picks.dtype}; take another copy"
                raise StorageError(f"expected {name} picks in the snapshot as {wanted}, got {got}")

    def redo(self, event: Event) -> Update | None:
        """Apply a recorded event; return the update of the state that it causes."""
        tickets = [] if event.tickets is None else event.tickets.tolist()
        self.ledger.check(tickets)
        picks: Any = event.picks
        update = None
        if event.kind == "ask":
            self._redo_ask(event, picks)
        elif event.kind == "enqueue":
            self.enqueue(self.tensor(picks))
        elif event.kind == "move":
            self.move((tickets, picks))
        elif event.kind == "add":
            update = self.observed(self.tensor(picks), event.values)
        else:
            if event.kind == "tell":
                self.ledger.answer(dict(zip(tickets, event.values, strict=True)))
            if self.ledger.complete or (event.kind == "update" and self.ledger.answered):
                update = self.next_update()
        if update is not None:
            self.apply(update)
        return update

    def _redo_ask(self, event: Event, picks: NDArray[Any]) -> None:
        if event.first != self.next_ticket:
            raise StorageError(f"expected ticket {self.next_ticket} in the journal, got {event.first}: the journal is damaged")
        limit = UNLIMITED if event.max_q is None else event.max_q
        handing = self.propose(limit)
        if isinstance(handing, int) or len(handing.picks) < len(picks):  # only an ask beyond the batch has so many
            handing = self.propose_beyond_batch(limit)
        if isinstance(handing, int) or not np.array_equal(handing.picks, picks):
            warn_caller(
                f"the picks from ticket {event.first} on, computed again, differ from the recorded ones (other hardware, other "
                "versions of torch or sparse_bo, or another feasible=); the recorded ones are used, later ones may differ from "
                "an uninterrupted run's",
                ResumeWarning,
            )
            generator = self.generator if isinstance(handing, int) else handing.generator
            handing = Ahead(self.domain, self.tensor(picks)).part(0, len(picks), event.first, generator)
        self.hand_out(handing)

    @with_gradients
    def _updated(self, batch: Batch, values: list[Value], tell: Callable[..., State], *, added: bool = False) -> Update:
        """Return the update by results of ``batch`` through the mechanism's ``tell`` or ``observe``."""
        good, bad = ([i for i, v in enumerate(values) if is_failed(v) == failed] for failed in (False, True))
        generator, start = self.generator.clone_state(), time.perf_counter()
        tensor, errors = partial(torch.tensor, device=self.domain.device), None
        if good:
            results = [values[i] for i in good]
            y = tensor(results, dtype=torch.float64)
            picks, known = batch.picks[tensor(good)], dict[str, Any]()
            if has_sds(results):
                known["sd"] = tensor(sds_of(results), dtype=torch.float64).reshape(y.shape)
            y = -y if self.minimize else y
            errors = self.state.standardised_errors(picks, y, **known)
            if errors is not None and self.outcomes is not None:
                errors = errors[~errors.isnan()]  # none of missing ones
            before = self.state.with_not_picked(len(good)) if added else self.state
            state = tell(before, picks, y, generator=generator, **known)
        else:
            state = self.state.without_results()
        if bad:
            state = state.with_not_picked(len(bad)) if added else state
            state = self.mechanism.fail(state, batch.picks[tensor(bad)], generator=generator)
        seconds = time.perf_counter() - start
        certificate = self.certificate(state) if self.certify_every and state.round % self.certify_every == 0 else None
        how: dict[str, Any] = {"added": added, "errors": errors, "minimize": self.minimize, "rechecked": self._rechecked}
        how["variance_factor"] = None if certificate is None else certificate.factor
        row = make_row(state, batch, values, seconds={**self._effort, **state.seconds}, **how)
        errors = -errors if self.minimize and errors is not None else errors
        return Update(state, row, errors, generator, seconds)

    def certificate(self, state: State | None = None) -> Certificate | None:
        """See :meth:`sparse_bo.AskTell.certificate`; default: of the present state."""
        state = self.state if state is None else state
        if not isinstance(state, BanditState) or state.posterior is None:
            return None
        prior = state.posterior.prior
        how = {name: getattr(prior, name) for name in ("covariance", "regularization", "memory_bytes")}
        generator = torch.Generator().manual_seed(self.seed)
        return certify(state.observations, state.posterior.dictionary, generator=generator, **how)

    def tensor(self, picks: NDArray[Any]) -> Tensor:
        """Return recorded picks on the device of the domain."""
        return torch.from_numpy(np.array(picks)).to(self.domain.device)
