"""The ask/tell loop, the only mutable object of the package."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_bo.dictionary.certificate import Certificate
from sparse_bo.domains import Arms, ArmSet, Domain, Feasible, Space, SpaceArms, SpaceBox, check_domain
from sparse_bo.domains.sharded import group_of
from sparse_bo.errors import StorageError
from sparse_bo.evaluations.answers import FAILED, answers_of
from sparse_bo.evaluations.batch import Batch, tickets_of
from sparse_bo.evaluations.dispatch import Dispatch
from sparse_bo.evaluations.pools import Submits
from sparse_bo.evaluations.serial import evaluation_of, run_serially
from sparse_bo.evaluations.worker import Arrays, CallWith
from sparse_bo.evaluations.workers import Workers, workers_of
from sparse_bo.journal import Storage
from sparse_bo.policies import Policy, State
from sparse_bo.policies.settings import Goal
from sparse_bo.runs.choice import chosen_policy
from sparse_bo.runs.ends import carrying
from sparse_bo.runs.engine import UNLIMITED, Engine
from sparse_bo.runs.given import check_budget, check_notes, check_policy, check_seed, checked_initial, count_initial
from sparse_bo.runs.history import History, HistoryRow
from sparse_bo.runs.lockstep import Lockstep
from sparse_bo.runs.past import past_of
from sparse_bo.runs.progress import Progress
from sparse_bo.runs.recorder import Recorder
from sparse_bo.runs.records import about_run, run_info, settings_of_run
from sparse_bo.runs.result import Result
from sparse_bo.runs.steps import Steps
from sparse_bo.validation import check_callable, check_count

logger = logging.getLogger(__name__)

Objective = Callable[[Any], Any]
Callback = Callable[["AskTell", HistoryRow], None]


class AskTell:
    """Bayesian optimisation of a finite arm set, a box or a space of named parameters by ask and tell.

    Everything random comes from ``seed`` and is drawn on the CPU, whatever the device; the global generators are never touched.
    The same domain, policy, seed and results give the same picks for any chunk size and thread count. Over arms they are the
    same on any device too, unless two arms' scores differ by no more than the devices' round-off (some 10⁻¹³ of them); of
    observations that tie, as repeated ones do, buffers, neighbours and dictionaries take the first on any device. On a
    box points agree to round-off while searches take the same steps, and where one stops earlier to the searches' tolerances,
    about 10⁻⁵ of the box's width; from there on runs on two devices are two runs.

    Args:
        arms: ``a x d`` candidates, float64 (float32 is computed with in float64); repeated rows are allowed. Or a
            :class:`sparse_bo.MemmapArms` or :class:`sparse_bo.ProductGrid` of up to 10⁹ arms.
        policy: Default by :func:`sparse_bo.runs.chosen_policy`: on a box :class:`sparse_bo.policies.TrustRegion` with the goal;
            over arms :class:`sparse_bo.policies.ExpectedImprovement` where the best arm counts and arms and evaluations are
            few, else :class:`sparse_bo.BBKB`. All of it learned. The choice is logged; it is :attr:`policy`, and why
            ``about["why"]``.
        goal: What the default policy is chosen for: ``"best"``, the best point at the end, or ``"cumulative"``, where every
            evaluation counts. Has no effect on a policy that is given.
        budget: Evaluations that are planned, for the same choice; ``None``: not known.
        workers: Evaluations that can be made at a time, for the same choice; ``None``: not known.
        bounds: ``2 x d`` lower and upper corner of a box, in place of ``arms``.
        space: Named parameters, in place of both: a dictionary of :class:`sparse_bo.Float`, :class:`sparse_bo.Int` and
            :class:`sparse_bo.Choice`, or a :class:`sparse_bo.Space`, which says how they are encoded. What is handed out has
            them as :attr:`Batch.parameters`.
        feasible: With ``space``: says of a dictionary whether it may be evaluated. A journal cannot keep it.
        seed: Non-negative integer.
        initial: Observations already made, which count as pulls: ``(indices, y)``; on a box ``(X, y)``, ``X`` ``n x d``; with
            a space, ``(dictionaries, y)``.
        certify_every: Compute the certificate (:meth:`certificate`) every so many batches and report it in the history.
        storage: Path of a journal to create, or :class:`sparse_bo.Storage` with settings. Every result is in the file before
            :meth:`tell` returns, and :meth:`resume` goes on after a crash. Close it (:meth:`close`, or ``with``) when done.
        notes: Kept in the journal: a dictionary of anything that ``json`` takes.

    Raises:
        TypeError: If an argument has the wrong kind or dtype.
        ValueError: If arms are empty or not finite, bounds are not those of a box, both or none are given, or settings do not
            fit them.
        FileExistsError: If there is a file at ``storage``.
        StorageError: If the journal cannot be written.
    """

    def __init__(
        self,
        arms: ArmSet | Domain | None = None,
        policy: Policy | None = None,
        *,
        goal: Goal = "best",
        budget: int | None = None,
        workers: int | None = None,
        bounds: Tensor | None = None,
        space: Space | Mapping[str, Any] | None = None,
        feasible: Feasible | None = None,
        seed: int = 0,
        initial: tuple[Any, Any] | None = None,
        certify_every: int | None = None,
        storage: str | Path | Storage | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        self._domain = check_domain(arms, bounds, space, feasible)
        certified, observed = certify_every is not None, count_initial(initial)
        known: dict[str, Any] = {"budget": budget, "workers": workers, "certified": certified, "observed": observed}
        choice = chosen_policy(self._domain, goal=goal, **known)
        chosen, why = (choice.policy, choice.why) if policy is None else (check_policy(policy), None)
        seed, kept = check_seed(seed), check_notes(notes, kept=storage is not None)
        if certify_every is not None:
            certify_every = check_count("certify_every", certify_every)
        self._ranks = Lockstep(group_of(self._domain.points if isinstance(self._domain, Arms) else None))
        self._ranks.compare(lambda: settings_of_run(chosen, seed=seed, certify_every=certify_every, initial=initial))
        self._engine = Engine(self._domain, chosen, seed=seed, certify_every=certify_every)
        before = None if initial is None else checked_initial(initial, self._domain)
        self._about = about_run(self._domain, chosen, seed=seed, certify_every=certify_every, notes=kept, why=why)
        if why is not None:
            logger.info("chose %s: %s", chosen, why)
        with self._ranks.creating():  # the journal is rank 0's
            recorder = Recorder.create(storage if self._ranks.leads else None, self._about, self._domain, before)
        self._steps = Steps(self._engine, recorder, self._ranks)
        if before is not None:
            try:
                self._engine.take(self._engine.observed(*before))
                recorder.updated(self._engine)
            except BaseException:
                recorder.release()
                raise

    @classmethod
    def resume(
        cls,
        storage: str | Path | Storage,
        *,
        arms: ArmSet | None = None,
        feasible: Feasible | None = None,
        policy: Policy | None = None,
        device: str | torch.device | None = None,
    ) -> AskTell:
        """Go on with a recorded run: every value told is there, and the next picks are those of the uninterrupted run.

        The last snapshot of the state is loaded and what happened after it is done again. Evaluations that were out are still
        :attr:`pending`; :meth:`reissue` returns them. Results and picks are the same to the last bit; what a model says of them
        (such as ``best_mean``) is computed again, in another order, and agrees to rounding.

        Args:
            storage: Path of the journal, or :class:`sparse_bo.Storage`.
            arms: Those of the run; needed only where they were too large to be recorded (more than 8 MB).
            feasible: That of the run; needed only where a space was searched as a box.
            policy: That of the run; needed only where it has parts of your own, or a kernel that cannot be rebuilt.
            device: Where to compute; default as before.

        Raises:
            FileNotFoundError: If there is no journal.
            StorageError: If it is damaged, of another format, read-only, or open for writing elsewhere.
            ValueError: If arms or policy are not those of the run, or are needed.

        Warns:
            ResumeWarning: If picks computed again differ from those recorded (other hardware or versions). Those recorded stay.
        """
        past = past_of(storage, arms, policy, device, feasible)
        try:
            loop = cls(past.domain, past.policy, **past.settings)
            loop._about = {**loop._about, **past.why}
            loop._steps.recorder = Recorder(past.writer)
            loop._steps.recorder.repeat(loop._engine, past.start, past.events)
        except BaseException:
            if past.writer is not None:
                past.writer.close()
            raise
        return loop

    def close(self) -> None:
        """Write the rest of the history to the journal, and release it. Does nothing without one."""
        with self._steps.lock:
            self._steps.recorder.close()

    def release(self) -> None:
        """Release the journal until the next ask or tell, so that another process may resume it.

        Every result is in it. Where its disk has become full, rows of the history may be missing. They follow from the results:
        that is logged, and they are written at the next ask or tell.
        """
        with self._steps.lock:
            self._steps.recorder.release()

    def __enter__(self) -> AskTell:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the journal. What the block has raised comes out in any case, with a note if the journal cannot be closed."""
        try:
            self.close()
        except StorageError as failure:
            if error is None:
                raise
            note = f"Nor could the journal be closed, which close() tries again: {failure}"
            logger.warning("%s", note)  # nobody sees the notes of a SystemExit
            error.add_note(note)

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Refuse to be pickled or copied: two loops cannot own one run.

        Raises:
            TypeError: Always.
        """
        raise TypeError(
            "an AskTell cannot be pickled or copied, as it owns its run and its journal; pickle loop.result(), or give "
            "storage= and go on by AskTell.resume(...) in another process"
        )

    @property
    def state(self) -> State:
        """Round, observations, posterior or model, dictionary and width after the last update."""
        return self._engine.state

    @property
    def policy(self) -> Policy:
        """The policy."""
        return self._engine.policy

    @property
    def about(self) -> Mapping[str, Any]:
        """What identifies the run: policy, seed, domain, versions, and what was given as ``notes``."""
        return self._about

    @property
    def asked(self) -> int:
        """Evaluations handed out so far."""
        return self._engine.asked

    @property
    def pending(self) -> list[int]:
        """Tickets that are out, in order."""
        with self._steps.lock:
            return self._engine.ledger.pending

    @property
    def history(self) -> History:
        """One row per update of the state: in a synchronous loop, per batch."""
        return History(tuple(self._engine.rows), run_info(self._about))

    def ask(self, max_q: int | None = None) -> Batch:
        """Return the next evaluations to make; the policy decides how many.

        Evaluations may be out: they keep their effect on the variance, and the new ones continue their batch. Picks asked in
        pieces are those asked at once. When the batch is full (for BBKB: when the stop rule ends it), the results that have
        come in update the state, and the next batch starts, with the evaluations still out counting towards it. Policies
        without such batches take results in before every ask.

        Args:
            max_q: At most so many (default: as many as the policy wants: for more at a time, the loop's ``workers=`` or the
                policy's ``batch_size=``).

        Raises:
            PendingBatchError: If nothing may be handed out before more results are told; says how many.
            ValueError: If ``max_q`` < 1.
            TypeError: If ``max_q`` is not an integer.
            StorageError: If the journal cannot be written; nothing is handed out then.
        """
        if max_q is not None:
            check_count("max_q", max_q)
        return self._steps.ask(UNLIMITED if max_q is None else max_q)

    def tell(self, tickets: Sequence[int] | Tensor, y: Sequence[float] | Tensor) -> None:
        """Hand back results, in any order and any number at a time; once none is out the state is updated.

        Args:
            tickets: Of :meth:`ask`.
            y: One finite value per ticket; NaN marks a failed evaluation, as :meth:`fail` does.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered; nothing is recorded then.
            ValueError: If the number of values differs from the number of tickets, or a value is infinite.
            TypeError: If the values are not real numbers.
            StorageError: If the journal cannot be written; nothing is recorded then, and the same can be told again.

        Warns:
            FailureWarning: Once, if more than half of at least 20 evaluations have failed.
        """
        self._steps.answer(lambda: answers_of(self._known(tickets), y))

    def fail(self, tickets: Sequence[int] | Tensor) -> None:
        """Mark evaluations as failed: they give no observation, and what keeps failing is picked ever more rarely.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered; nothing is recorded then.
            StorageError: If the journal cannot be written; nothing is recorded then.
        """
        self._steps.answer(lambda: dict.fromkeys(self._known(tickets), FAILED))

    def reissue(self, tickets: Sequence[int] | Tensor | None = None) -> Batch:
        """Return evaluations that are out once more, for example after a worker is lost; nothing changes.

        A ticket stands for one evaluation: whoever tells it first is recorded, a second result raises :class:`TicketError`.

        Args:
            tickets: Default: all that are out.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered.
        """
        with self._steps.lock:
            ledger = self._engine.ledger
            numbers = ledger.pending if tickets is None else tickets_of(tickets)
            ledger.check(numbers)
            return ledger.handed_out(numbers)

    def run(
        self,
        objective: Objective,
        budget: int,
        *,
        call_with: CallWith | None = None,
        vectorized: bool | None = None,
        arrays: Arrays = "torch",
        executor: str | Submits | Workers | None = None,
        workers: int | None = None,
        callback: Callback | None = None,
    ) -> Result:
        """Ask, evaluate and tell until ``budget`` more evaluations have been asked; what is out already is evaluated first.

        Args:
            objective: Returns ``q`` values; NaN marks a failed evaluation.
            budget: Evaluations, failed ones included; 0 evaluates what is out.
            call_with: ``"X"``: with ``q x d`` points; ``"indices"``: with ``q`` arms; ``"batch"``: with a :class:`Batch`, whose
                tickets can seed a random objective, so that it repeats after a resume; ``"parameters"``: with dictionaries of a
                space. Default: with dictionaries where there is a space, else with points.
            vectorized: ``False``: the objective takes one point (``d``), index, dictionary or batch of one and returns a
                number. Default: ``False`` for dictionaries, ``True`` for anything else. Its results are told as they come,
                those of a twentieth of a second together.
            arrays: ``"torch"``, ``"numpy"`` or ``"list"``: what points and indices are, see :func:`sparse_bo.maximize`. Tensors
                are on the device of the arms or bounds wherever the objective runs in this process, here or on threads, and
                on the CPU in others.
            executor: Where to evaluate: ``"threads"``, ``"processes"``, ``"loky"``, an executor with ``submit`` (Dask:
                ``client.get_executor()``), or :class:`Workers` with timeouts, retries and more; ``None``: here, batch by batch.
            workers: Evaluations at a time; default: as many as the executor has workers.
            callback: Called with the loop and the new history row after each update of the state. It may ask and tell too,
                which counts towards the budget: what it asks for and does not tell is evaluated here, or, once the budget is
                spent, stays out. Of evaluations that are being made, what it tells or fails stays.

        Raises:
            ObjectiveError: If the objective fails, or returns something else than one value per evaluation. The loop stays
                usable, with the failed evaluations out.
            RunInterrupted: On Ctrl-C; also a ``KeyboardInterrupt``.
            TypeError: If the objective or the callback cannot be called, the objective cannot be sent to the workers, or the
                executor's ``submit`` returns no future.
            StorageError: If the journal cannot be written.

        Whatever is raised while the run goes on, by the policy or the callback too, has the loop and the result so far as its
        attributes ``loop`` and ``result``.
        """
        if not self._ranks.leads:
            with carrying(self, self._so_far):
                self._steps.follow()
            return self.result()
        with self._ranks.leading():
            if callback is not None:
                check_callable("callback", callback)
            spread = workers_of(executor, workers)
            end = self.asked + check_budget(budget)
            named = isinstance(self._domain, SpaceArms | SpaceBox)
            evaluate = evaluation_of(objective, call_with, vectorized, arrays, indexed=self._domain.indexed, named=named)
            progress = Progress(self._engine, end, None if callback is None else partial(callback, self))
            with carrying(self, self._so_far):
                self._ranks.agree("run")
                if spread is None:
                    run_serially(self, evaluate, end, progress)
                else:
                    Dispatch(self, evaluate, spread, end, progress).run()
                self._ranks.agree("end")
        return self.result()

    def result(self) -> Result:
        """Return the best arms and the history so far; takes in what an interrupted update left."""
        self._steps.catch_up()
        return self._so_far()

    def certificate(self) -> Certificate | None:
        """Bound how far the sparse posterior variance is from the exact one, anywhere; ``None`` without a model over arms.

        Uses a generator of its own: calling it does not change later picks. See :func:`sparse_bo.certify` for the cost.
        """
        return self._engine.certificate()

    def _began_with(self, initial: tuple[Any, Any]) -> bool:
        """Return whether the run began with these observations."""
        first = self._engine.rows[0] if self._engine.next_ticket > self._engine.asked else None
        picks, y = checked_initial(initial, self._domain)
        where = self._domain.recorded(picks).tolist()
        return first is not None and (first.points or first.indices, first.values) == (where, y.tolist())

    def _known(self, tickets: Sequence[int] | Tensor) -> list[int]:
        """Return tickets that are out."""
        numbers = tickets_of(tickets)
        self._engine.ledger.check(numbers)
        return numbers

    def _so_far(self) -> Result:
        state = self._engine.state
        return Result(state.report(), self.history, state, self._domain.dtype, self._domain)
