"""The ask/tell loop, the only mutable object of the package, and ``maximize`` on top of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.armsets import ArmSet
from sparse_bo.audit import Certificate, certify
from sparse_bo.domain import Box, check_domain, check_picks, like, no_picks
from sparse_bo.errors import ObjectiveError, PendingBatchError, RunInterrupted
from sparse_bo.evaluations import Batch, Ledger, answers_of, some, tickets_of
from sparse_bo.history import History, HistoryRow
from sparse_bo.policies import BBKB, BanditState, Policy, State
from sparse_bo.policies.base import Proposal, keeps_batch_open
from sparse_bo.result import Result, make_result, make_row
from sparse_bo.validation import check_count, check_finite

Objective = Callable[[Tensor], Any]
Callback = Callable[["AskTell", HistoryRow], None]


class AskTell:
    """Bayesian optimisation of a finite arm set or a box by ask and tell.

    Everything random comes from ``seed``: the same domain, policy, seed and results give the same picks on any chunk size,
    thread count or device. The global generators are never touched.

    Args:
        arms: ``a x d`` candidates, float64 (float32 is computed with in float64); repeated rows are allowed. Or a
            :class:`sparse_bo.MemmapArms` or :class:`sparse_bo.ProductGrid` of up to 10⁹ arms.
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
        arms: ArmSet | None = None,
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
        self._ledger = Ledger(self._domain)
        self._ahead = no_picks(self._domain)
        self._next_ticket = 0
        self._asked = 0
        self._effort: dict[str, float] = {}
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
        return self._ledger.pending

    @property
    def history(self) -> History:
        """One row per update of the state: in a synchronous loop, per batch."""
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

        Evaluations may be out: they keep their effect on the variance, and the new ones continue their batch. Picks asked in
        pieces are those asked at once. When the batch is full (for BBKB: when the stop rule ends it), the results that have
        come in update the state, and the next batch starts, with the evaluations still out counting towards it. Policies
        without such batches take results in before every ask.

        Args:
            max_q: At most so many (default: as many as the policy wants).

        Raises:
            PendingBatchError: If nothing may be handed out before more results are told; says how many.
            ValueError: If ``max_q`` < 1.
            TypeError: If ``max_q`` is not an integer.
        """
        if max_q is not None:
            check_count("max_q", max_q)
        limit = 2**62 if max_q is None else max_q
        if self._ledger.answered and not (self._ledger.outstanding and keeps_batch_open(self._policy)):
            self._fold()
        proposal = self._propose(limit)
        if not len(proposal.picks) and self._ledger.answered:
            self._fold()
            proposal = self._propose(limit)
        q = len(proposal.picks)
        if not q:
            out = self._ledger.outstanding
            raise PendingBatchError(
                f"{out} evaluations are still out (tickets {some(self.pending)}), and the policy needs about "
                f"{proposal.needed} of their results before it hands out more; tell or fail them before the next ask",
                needed=proposal.needed,
                pending=out,
            )
        batch = self._ledger.batch(proposal.picks, range(self._next_ticket, self._next_ticket + q))
        self._ledger.add(batch)
        self._ahead = no_picks(self._domain) if proposal.ahead is None else proposal.ahead
        self._next_ticket += q
        self._asked += q
        return batch

    def tell(self, tickets: Sequence[int] | Tensor, y: Sequence[float] | Tensor) -> None:
        """Hand back results, in any order and any number at a time; once none is out the state is updated.

        Args:
            tickets: Of :meth:`ask`.
            y: One finite value per ticket; NaN marks a failed evaluation, which is dropped.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered; nothing is recorded then.
            ValueError: If the number of values differs from the number of tickets, or a value is infinite.
            TypeError: If the values are not real numbers.
        """
        numbers = tickets_of(tickets)
        answers = answers_of(numbers, y)
        self._ledger.check(numbers)
        self._answer(answers)

    def fail(self, tickets: Sequence[int] | Tensor) -> None:
        """Mark evaluations as failed; they are dropped, and the arms may be picked again from the next update on.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered; nothing is recorded then.
        """
        numbers = tickets_of(tickets)
        self._ledger.check(numbers)
        self._answer(dict.fromkeys(numbers))

    def reissue(self, tickets: Sequence[int] | Tensor | None = None) -> Batch:
        """Return evaluations that are out once more, for example after a worker is lost; nothing changes.

        A ticket stands for one evaluation: whoever tells it first is recorded, a second result raises :class:`TicketError`.

        Args:
            tickets: Default: all that are out.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered.
        """
        numbers = self._ledger.pending if tickets is None else tickets_of(tickets)
        self._ledger.check(numbers)
        return self._ledger.handed_out(numbers)

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
        batch = self.reissue() if self._ledger.outstanding else self.ask(max_q=end - self._asked)
        inputs = batch.X if call_with == "X" else batch.indices
        if inputs is None:
            raise ValueError("call_with='indices' needs arms; on a box the objective is called with points")
        start = time.perf_counter()
        try:
            y = objective(inputs)
            self._spend("objective", time.perf_counter() - start)
            self.tell(batch.tickets, y)
        except Exception as error:
            if not self._ledger.outstanding:
                raise
            message = (
                f"the objective failed on a batch of {len(batch)} ({type(error).__name__}: {error}). "
                "Everything told before is in .result and .loop; tell or fail the tickets in .loop.pending, "
                "then go on with .loop.run(...)"
            )
            raise ObjectiveError(message, loop=self, result=self.result()) from error

    def _propose(self, limit: int) -> Proposal:
        """Return the next picks: those made ahead, then what the policy adds. Nothing but the generator changes."""
        picks = self._ahead[:limit]
        if len(picks) == limit:
            return Proposal(picks, ahead=self._ahead[limit:])
        start = time.perf_counter()
        pending = torch.cat([self._ledger.picks(), picks])
        with self._undrawn():
            more = self._policy.ask(self._state, max_q=limit - len(picks), pending=pending, generator=self._generator)
        self._spend("pick", time.perf_counter() - start)
        self._spend("rechecked", more.rechecked)
        return more._replace(picks=torch.cat([picks, more.picks]))

    @contextmanager
    def _undrawn(self) -> Iterator[None]:
        """If what is done inside raises, it has drawn nothing: the next try gives what this one would have given."""
        before = self._generator.get_state()
        try:
            yield
        except BaseException:
            self._generator.set_state(before)
            raise

    def _spend(self, on: str, amount: float) -> None:
        self._effort[on] = self._effort.get(on, 0) + amount

    def _answer(self, answers: dict[int, float | None]) -> None:
        self._ledger.answer(answers)
        if answers and not self._ledger.outstanding:
            self._fold()

    def _fold(self) -> None:
        """Update the state with what is answered. If that raises, the answers stay and the next ask tries again."""
        batch, values = self._ledger.answers()
        self._update(batch, values)
        self._ledger.settle(batch.tickets)

    def _update(self, batch: Batch, values: list[float | None]) -> None:
        good = [i for i, v in enumerate(values) if v is not None]
        if good:
            kept = torch.tensor(good, device=self._device)
            y = torch.tensor([v for v in values if v is not None], dtype=torch.float64, device=self._device)
            with self._undrawn():
                self._state = self._policy.tell(self._state, batch.picks[kept], y, generator=self._generator)
        else:
            self._state = self._state.without_results()
        self._ahead = no_picks(self._domain)
        effort, self._effort = self._effort, {}
        rechecked = int(effort.pop("rechecked", 0))
        self._rows.append(
            make_row(
                self._state,
                indices=[] if batch.indices is None else batch.indices.tolist(),
                points=batch.X.tolist() if batch.indices is None else None,
                values=values,
                rechecked=rechecked,
                variance_factor=self._variance_factor(),
                seconds={**effort, **self._state.seconds},
            )
        )

    def _variance_factor(self) -> float | None:
        if self._certify_every is None or self._state.round % self._certify_every:
            return None
        certificate = self.certificate()
        return None if certificate is None else certificate.factor

    def _observe_initial(self, where: Tensor, y: Tensor) -> None:
        picks = check_picks("initial inputs", where, self._domain)
        values = torch.as_tensor(y, dtype=torch.float64).detach().flatten()
        if len(values) != len(picks) or not len(picks):
            raise ValueError(
                f"expected as many initial values as inputs, at least one, got {len(values)} values and {len(picks)} inputs"
            )
        check_finite("initial values", values)
        self._next_ticket = len(picks)
        self._update(self._ledger.batch(picks, range(len(picks))), values.tolist())


def maximize(
    objective: Objective,
    *,
    arms: ArmSet | None = None,
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
        arms: ``a x d`` candidates, or a :class:`sparse_bo.MemmapArms` or :class:`sparse_bo.ProductGrid`.
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
