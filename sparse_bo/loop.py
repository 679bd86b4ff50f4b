"""The ask/tell loop, the only mutable object of the package, and ``maximize`` on top of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.audit import Certificate, certify
from sparse_bo.domain import Box, check_domain, check_picks, like, no_picks
from sparse_bo.errors import ObjectiveError, PendingBatchError, RunInterrupted, TicketError
from sparse_bo.history import History, HistoryRow
from sparse_bo.policies import BBKB, BanditState, Policy, State
from sparse_bo.result import Result, make_result, make_row
from sparse_bo.validation import check_count, check_finite

Objective = Callable[[Tensor], Any]
Callback = Callable[["AskTell", HistoryRow], None]


@dataclass(frozen=True, eq=False)
class Batch:
    """Evaluations to make."""

    indices: Tensor | None
    """``q`` rows of the arm set, repeats allowed: evaluate each. ``None`` on a box."""
    X: Tensor
    """``q x d`` the arms or points themselves, in the user's dtype."""
    tickets: list[int]
    """``q`` numbers to hand back with the results; never used twice in a run."""

    @property
    def picks(self) -> Tensor:
        """What a policy is told: the indices on arms, the points in float64 on a box."""
        return self.X.to(torch.float64) if self.indices is None else self.indices

    def __len__(self) -> int:
        return len(self.tickets)


class AskTell:
    """Bayesian optimisation of a finite arm set or a box by ask and tell.

    Everything random comes from ``seed``: the same domain, policy, seed and results give the same picks on any chunk size,
    thread count or device. The global generators are never touched.

    Args:
        arms: ``a x d`` candidates, float64 (float32 is computed with in float64); repeated rows are allowed.
        policy: Default :class:`sparse_bo.BBKB` with a learned kernel.
        bounds: ``2 x d`` lower and upper corner of a box, in place of ``arms``.
        seed: Non-negative integer.
        initial: Observations already made: ``(indices, y)``, each ``n``; on a box ``(X, y)``, ``X`` ``n x d``. They count as
            pulls.
        certify_every: Compute the certificate (:meth:`certificate`) every so many batches and report it in the history.

    Raises:
        TypeError: If an argument has the wrong kind or dtype.
        ValueError: If arms are empty or not finite, bounds are not those of a box, both or none are given, or settings do not
            fit them.
    """

    def __init__(
        self,
        arms: Tensor | None = None,
        policy: Policy[Any] | None = None,
        *,
        bounds: Tensor | None = None,
        seed: int = 0,
        initial: tuple[Tensor, Tensor] | None = None,
        certify_every: int | None = None,
    ) -> None:
        self._domain = check_domain(arms, bounds)
        self._device = like(self._domain).device
        self._policy: Policy[Any] = BBKB() if policy is None else policy
        if not isinstance(self._policy, Policy):
            raise TypeError(f"expected a policy such as sparse_bo.BBKB(...), got {type(policy).__name__}")
        check_count("seed", seed, minimum=0)
        if certify_every is not None:
            check_count("certify_every", certify_every)
        self._seed, self._certify_every = seed, certify_every
        self._generator = torch.Generator().manual_seed(seed)
        self._state: State = self._policy.init(self._domain.double())
        self._rows: list[HistoryRow] = []
        self._batch: Batch | None = None
        self._answers: dict[int, float | None] = {}
        self._next_ticket = 0
        self._asked = 0
        self._pending_row: dict[str, Any] = {}
        if initial is not None:
            self._observe_initial(*initial)

    @property
    def state(self) -> State:
        """Round, observations, posterior or model, dictionary and width after the last complete batch."""
        return self._state

    @property
    def policy(self) -> Policy[Any]:
        """The policy."""
        return self._policy

    @property
    def asked(self) -> int:
        """Evaluations handed out so far."""
        return self._asked

    @property
    def pending(self) -> list[int]:
        """Tickets that are out, in order."""
        if self._batch is None:
            return []
        return [t for t in self._batch.tickets if t not in self._answers]

    @property
    def history(self) -> History:
        """One row per complete batch."""
        domain = self._domain
        info = {
            "policy": self._policy.name,
            "seed": self._seed,
            **({"bounds": domain.bounds.tolist()} if isinstance(domain, Box) else {"arms": list(domain.shape)}),
            "versions": {"sparse_bo": __version__, "torch": torch.__version__},
            "device": str(self._device),
        }
        return History(tuple(self._rows), info)

    def ask(self, max_q: int | None = None) -> Batch:
        """Return the next evaluations to make; the policy decides how many.

        Args:
            max_q: At most so many (default: as many as the policy wants).

        Raises:
            PendingBatchError: If results of the last batch are still out; :meth:`tell` or :meth:`fail` them first.
            ValueError: If ``max_q`` < 1.
            TypeError: If ``max_q`` is not an integer.
        """
        if max_q is not None:
            check_count("max_q", max_q)
        if self.pending:
            raise PendingBatchError(
                f"{len(self.pending)} of {len(self._batch or ())} evaluations are still out (tickets "
                f"{_some(self.pending)}); tell or fail them before the next ask"
            )
        self._fold()
        start = time.perf_counter()
        limit = max_q if max_q is not None else 2**62
        proposal = self._policy.ask(self._state, max_q=limit, pending=no_picks(self._domain), generator=self._generator)
        q = len(proposal.picks)
        self._batch, self._answers = self._handed_out(proposal.picks, range(self._next_ticket, self._next_ticket + q)), {}
        self._next_ticket += q
        self._asked += q
        self._pending_row = {"rechecked": proposal.rechecked, "pick": time.perf_counter() - start}
        return self._batch

    def tell(self, tickets: Sequence[int] | Tensor, y: Sequence[float] | Tensor) -> None:
        """Hand back results, in any order and any number at a time; with the last one the posterior is updated.

        Args:
            tickets: Of :meth:`ask`.
            y: One finite value per ticket; NaN marks a failed evaluation, which is dropped.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered; nothing is recorded then.
            ValueError: If the number of values differs from the number of tickets, or a value is infinite.
        """
        numbers = _integers(tickets)
        values = torch.as_tensor(y, dtype=torch.float64).detach().cpu()
        if values.shape not in ((len(numbers),), (len(numbers), 1)):
            raise ValueError(f"expected one value for each of {len(numbers)} tickets, got y of shape {tuple(values.shape)}")
        if bool(torch.isinf(values).any()):
            raise ValueError("expected finite values (NaN marks a failed evaluation), got an infinite one")
        answers = [None if math.isnan(v) else v for v in values.flatten().tolist()]
        self._answer(dict(zip(self._checked(numbers), answers, strict=True)))

    def fail(self, tickets: Sequence[int] | Tensor) -> None:
        """Mark evaluations as failed; they are dropped, and the arms may be picked again.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered; nothing is recorded then.
        """
        self._answer(dict.fromkeys(self._checked(_integers(tickets))))

    def run(
        self,
        objective: Objective,
        budget: int,
        *,
        call_with: Literal["X", "indices"] = "X",
        callback: Callback | None = None,
    ) -> Result:
        """Ask, evaluate and tell until ``budget`` more evaluations have been asked.

        Args:
            objective: Called with ``q x d`` arms (or ``q`` indices), returns ``q`` values; NaN marks a failed evaluation.
            budget: Evaluations, failed ones included; 0 does nothing.
            call_with: What the objective is called with.
            callback: Called with the loop and the new history row after each batch.

        Raises:
            ObjectiveError: If the objective raises or returns the wrong number of values. The loop stays usable, with the
                failed batch out.
            RunInterrupted: On Ctrl-C; also a ``KeyboardInterrupt``.
        """
        check_count("budget", budget, minimum=0)
        end = self._asked + budget
        try:
            while self._asked < end or self.pending:
                self._step(objective, end, call_with)
                if callback is not None:
                    callback(self, self._rows[-1])
        except KeyboardInterrupt as interrupt:
            message = f"interrupted after {self._state.pulls} evaluations; they are in .result and .loop"
            raise RunInterrupted(message, loop=self, result=self.result()) from interrupt
        return self.result()

    def result(self) -> Result:
        """Return the best arms and the history so far."""
        return make_result(self._state, self.history, dtype=like(self._domain).dtype)

    def certificate(self) -> Certificate | None:
        """Bound how far the sparse posterior variance is from the exact one, anywhere; ``None`` without a model over arms.

        Uses a generator of its own: calling it does not change later picks. See :func:`sparse_bo.audit.certify` for the cost.
        """
        state = self._state
        if not isinstance(state, BanditState) or state.posterior is None:
            return None
        return certify(state.posterior, state.observations, generator=torch.Generator().manual_seed(self._seed))

    def _step(self, objective: Objective, end: int, call_with: str) -> None:
        if not self.pending:
            self.ask(max_q=end - self._asked)
        batch = self._batch
        assert batch is not None
        tickets = self.pending
        out = torch.tensor([t - batch.tickets[0] for t in tickets], device=self._device)
        inputs = batch.X if call_with == "X" else batch.indices
        if inputs is None:
            raise ValueError("call_with='indices' needs arms; on a box the objective is called with points")
        start = time.perf_counter()
        try:
            y = objective(inputs[out])
            self._pending_row["objective"] = time.perf_counter() - start
            self.tell(tickets, y)
        except Exception as error:
            if tickets != self.pending:
                raise
            message = (
                f"the objective failed on a batch of {len(tickets)} ({type(error).__name__}: {error}). "
                "Everything told before is in .result and .loop; tell or fail the tickets in .loop.pending, "
                "then go on with .loop.run(...)"
            )
            raise ObjectiveError(message, loop=self, result=self.result()) from error

    def _checked(self, tickets: list[int]) -> list[int]:
        out = set(self.pending)
        unknown = [t for t in tickets if t not in out]
        if unknown:
            known = f"tickets that are out: {_some(self.pending)}" if out else "no tickets are out; ask first"
            raise TicketError(f"tickets {_some(unknown)} are unknown or already answered; {known}")
        if len(set(tickets)) != len(tickets):
            repeated = sorted({t for t in tickets if tickets.count(t) > 1})
            raise TicketError(f"tickets {_some(repeated)} are given more than once")
        return tickets

    def _answer(self, answers: dict[int, float | None]) -> None:
        self._answers.update(answers)
        if answers and not self.pending:
            self._fold()

    def _fold(self) -> None:
        """Update the state with a complete batch. If that raises, the answers stay and the next ask tries again."""
        batch = self._batch
        if batch is not None:
            self._update(batch, [self._answers[t] for t in batch.tickets])
            self._batch = None

    def _update(self, batch: Batch, values: list[float | None]) -> None:
        good = [i for i, v in enumerate(values) if v is not None]
        if good:
            kept = torch.tensor(good, device=self._device)
            y = torch.tensor([v for v in values if v is not None], dtype=torch.float64, device=self._device)
            self._state = self._policy.tell(self._state, batch.picks[kept], y, generator=self._generator)
        else:
            self._state = self._state.without_results()
        timed: dict[str, float] = {k: v for k, v in self._pending_row.items() if k != "rechecked"}
        self._rows.append(
            make_row(
                self._state,
                indices=[] if batch.indices is None else batch.indices.tolist(),
                points=batch.X.tolist() if batch.indices is None else None,
                values=values,
                rechecked=self._pending_row.get("rechecked", 0),
                variance_factor=self._variance_factor(),
                seconds={**timed, **self._state.seconds},
            )
        )

    def _variance_factor(self) -> float | None:
        if self._certify_every is None or self._state.round % self._certify_every:
            return None
        certificate = self.certificate()
        return None if certificate is None else certificate.factor

    def _handed_out(self, picks: Tensor, tickets: Sequence[int]) -> Batch:
        if isinstance(self._domain, Box):
            return Batch(None, picks.to(self._domain.bounds.dtype), list(tickets))
        return Batch(picks, self._domain[picks], list(tickets))

    def _observe_initial(self, where: Tensor, y: Tensor) -> None:
        picks = check_picks("initial inputs", where, self._domain)
        values = torch.as_tensor(y, dtype=torch.float64).detach().flatten()
        if len(values) != len(picks) or not len(picks):
            raise ValueError(
                f"expected as many initial values as inputs, at least one, got {len(values)} values and {len(picks)} inputs"
            )
        check_finite("initial values", values)
        self._next_ticket = len(picks)
        self._update(self._handed_out(picks, range(len(picks))), values.tolist())


def maximize(
    objective: Objective,
    *,
    arms: Tensor | None = None,
    bounds: Tensor | None = None,
    budget: int,
    policy: Policy[Any] | None = None,
    seed: int = 0,
    initial: tuple[Tensor, Tensor] | None = None,
    call_with: Literal["X", "indices"] = "X",
    callback: Callback | None = None,
) -> Result:
    """Maximise an objective over a finite arm set or a box.

    Args:
        objective: Called with ``q x d`` points (or ``q`` indices of arms), returns ``q`` values; NaN marks a failed evaluation.
        arms: ``a x d`` candidates.
        bounds: ``2 x d`` lower and upper corner of a box, in place of ``arms``.
        budget: Evaluations to make.
        policy: Default :class:`sparse_bo.BBKB` with a learned kernel: no further setting is needed.
        seed: Decides everything random in the policy.
        initial: Observations already made: ``(indices, y)``, on a box ``(X, y)``; they do not count against the budget.
        call_with: What the objective is called with.
        callback: Called with the loop and the new history row after each batch.

    Raises:
        TypeError: If an argument has the wrong kind or dtype, or the policy does not work on this domain.
        ValueError: If arms are empty or not finite, bounds are not those of a box, both or none are given, or settings do not
            fit them.
        ObjectiveError: If the objective raises; carries the loop and the result so far.
        RunInterrupted: On Ctrl-C; carries the loop and the result so far.
    """
    loop = AskTell(arms, policy, bounds=bounds, seed=seed, initial=initial)
    return loop.run(objective, budget, call_with=call_with, callback=callback)


def _integers(tickets: Sequence[int] | Tensor) -> list[int]:
    numbers = tickets.tolist() if isinstance(tickets, Tensor) else list(tickets)
    if any(isinstance(t, bool) or not isinstance(t, int) for t in numbers):
        raise TicketError(f"expected integer tickets from ask(), got {_some(numbers)}")
    return numbers


def _some(items: Sequence[Any]) -> str:
    shown = ", ".join(map(str, items[:5]))
    return f"[{shown}, … {len(items) - 5} more]" if len(items) > 5 else f"[{shown}]"
