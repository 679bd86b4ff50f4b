"""The ask/tell loop, the only mutable object of the package."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_bo.dictionary.certificate import Certificate
from sparse_bo.domains import Arms, Domain, Feasible, Space, check_domain, with_names
from sparse_bo.domains.sharded import checking, group_of
from sparse_bo.errors import StorageError
from sparse_bo.evaluations.job import Arrays, Batch, CallWith, check_same_order, tickets_of
from sparse_bo.evaluations.pools import Submits, Workers
from sparse_bo.evaluations.results import Value, answers_of, failed_of, outcomes_of
from sparse_bo.journal import Storage
from sparse_bo.policies import Policy, State
from sparse_bo.policies.outcomes import Direction, Limits
from sparse_bo.policies.settings import Goal
from sparse_bo.runs import arguments, inputs
from sparse_bo.runs.arguments import ArmsLike, BoundsLike, naming_ours
from sparse_bo.runs.default_policy import ChosenPolicy, chosen_policy
from sparse_bo.runs.description import about_run, domain_of, policy_of, recorded_outcomes, run_info, shared_settings
from sparse_bo.runs.ends import Evaluation
from sparse_bo.runs.engine import UNLIMITED, Engine
from sparse_bo.runs.evaluate import make_evaluations, warn_if_infeasible
from sparse_bo.runs.history import History, HistoryRow
from sparse_bo.runs.previous import RunObservations, earlier_observations
from sparse_bo.runs.recording import Recorder, opened, replay
from sparse_bo.runs.result import Result, result_of
from sparse_bo.runs.steps import Lockstep, Steps
from sparse_bo.validation import check_count, check_flag

logger = logging.getLogger(__name__)

Objective = Callable[[Any], Any]
Callback = Callable[["AskTell", HistoryRow], Any]


class AskTell:
    """Bayesian optimisation of a finite arm set, a box or a space of named parameters by ask and tell.

    Everything random comes from ``seed``; the global generators are never touched. The same domain, policy, seed and results in
    the same order give the same picks for any chunk size and thread count. Over arms they are the same on any device, unless
    two scores differ by round-off only. On a box :class:`sparse_bo.TrustRegion` computes on the CPU wherever the bounds are;
    points of other policies agree to round-off, or to the tolerance of a search.

    Args:
        arms: With ``bounds``, ``space``, ``feasible`` and ``goal`` as in :func:`sparse_bo.maximize`. A model of float32 arms is
            computed in float64. A journal cannot store ``feasible``. :attr:`Batch.parameters` has named parameters.
        names: A name for each arm; batches have them as ``{"name": …}`` in :attr:`Batch.parameters`, :meth:`add` takes them.
        policy: Default by :func:`sparse_bo.runs.chosen_policy`; the choice is logged, with its reason ``about["why"]``, as is
            a :class:`sparse_bo.runs.ChosenPolicy` that is passed.
        budget: Planned evaluations, for the choice of the policy.
        workers: Concurrent evaluations. The choice of the policy depends on it, and by default :meth:`ask` returns at most so
            many points.
        minimize: Whether the lowest value is the best one. Results, history, journal and report have the objective's sign;
            policies maximise −y, which is what :attr:`state` has.
        objectives: With ``constraints`` and ``reference`` as in :func:`sparse_bo.optimize`: several outcomes;
            :meth:`tell` takes a dictionary by name for each ticket then.
        seed: Non-negative integer.
        initial: Earlier observations, as those of :meth:`add`: ``(X, y)``; or :func:`sparse_bo.observations_of` other runs.
        certify_every: Number of batches between certificates (:meth:`certificate`) in the history, of upper-confidence policies
            over arms; ``None``: none.
        storage: Path of a journal to create, or :class:`sparse_bo.Storage` with settings. Every result is in the file before
            :meth:`tell` returns, and :meth:`resume` goes on after a crash. Close it (:meth:`close`, or ``with``) when done.
        notes: Kept in the journal: a dictionary of anything that ``json`` takes.

    Raises:
        TypeError: If an argument has the wrong type or dtype.
        ValueError: If arms are empty or not finite, bounds are not those of a box, not exactly one domain is passed, or
            settings do not fit it.
        FileExistsError: If there is a file at ``storage``.
        StorageError: If the journal cannot be written.
    """

    def __init__(
        self,
        arms: ArmsLike | Domain | None = None,
        policy: Policy | ChosenPolicy | None = None,
        *,
        names: Iterable[str] | None = None,
        minimize: bool = False,
        objectives: Mapping[str, Direction] | None = None,
        constraints: Mapping[str, Limits] | None = None,
        reference: Mapping[str, float] | None = None,
        goal: Goal = "best",
        budget: int | None = None,
        workers: int | None = None,
        bounds: BoundsLike | None = None,
        space: Space | Mapping[str, Any] | None = None,
        feasible: Feasible | None = None,
        seed: int = 0,
        initial: tuple[Any, Any] | RunObservations | None = None,
        certify_every: int | None = None,
        storage: str | Path | Storage | None = None,
        notes: Mapping[str, Any] | None = None,
    ) -> None:
        part = arms.points if isinstance(arms, Arms) else arms
        with checking(part):
            check_same_order(arms=arms, names=names)
            domain = check_domain(inputs.tensor_of("arms", arms), arguments.bounds_of(bounds), space, feasible)
            minimize = check_flag("minimize", minimize)
            outcomes = arguments.checked_outcomes(objectives, constraints, reference, minimize=minimize)
            domain = with_names(domain, inputs.names_of(arms, names), inputs.input_names_of(arms, outcomes))
            self._domain, before, taken = earlier_observations(initial, domain, outcomes)
            planned: dict[str, Any] = {
                "budget": budget,
                "workers": workers,
                "observed": 0 if before is None else len(before[1]),
            }
            planned |= {"certified": certify_every is not None, "several": outcomes is not None}
            choice = chosen_policy(self._domain, goal=goal, **planned)
            if policy is not None:
                choice = policy if isinstance(policy, ChosenPolicy) else ChosenPolicy(policy, "")
            chosen, why = arguments.check_policy(choice.policy), choice.why or None
            seed, kept = arguments.check_seed(seed), arguments.check_notes(notes, kept=storage is not None)
            if certify_every is not None:
                certify_every = check_count("certify_every", certify_every)
            how: dict[str, Any] = {"seed": seed, "certify_every": certify_every, "minimize": minimize, "outcomes": outcomes}
            said: dict[str, Any] = {"why": why, "taken": taken, "arrays": arguments.arrays_of(arms, bounds)}
            said["workers"] = None if workers is None else check_count("workers", workers)
        self._about = about_run(self._domain, chosen, **how, notes=kept, **said)
        self._names = () if outcomes is None else outcomes.names  # in the order of rows without names
        ranks = Lockstep(group_of(part))
        ranks.compare(partial(shared_settings, self._about, before))
        self._engine = Engine(self._domain, chosen, **how)
        if before is not None:
            self._engine.check_noise(before[1])
        if why is not None:
            logger.info("chose %s: %s", chosen, why)
        recorder = Recorder.create(storage, self._about, self._domain, before, ranks.group)
        self._steps = Steps(self._engine, recorder, ranks)
        if before is not None:
            self._steps.observe(*before)

    @classmethod
    def resume(
        cls,
        storage: str | Path | Storage,
        *,
        arms: ArmsLike | None = None,
        feasible: Feasible | None = None,
        policy: Policy | None = None,
        device: str | torch.device | None = None,
    ) -> AskTell:
        """Resume a recorded run with all its results; the next picks are those of the uninterrupted run.

        The last snapshot of the state is loaded, and later events are applied again. Pending evaluations are still
        :attr:`pending`; :meth:`reissue` returns them. Results and picks are equal to the last bit; posterior values (such as
        ``best_mean``) are computed in another order and agree to rounding.

        Args:
            storage: Path of the journal, or :class:`sparse_bo.Storage`.
            arms: Arms of the run; required only if they are not in the journal: more than 8 MiB, or in a file
                (:class:`sparse_bo.MemmapArms`, ``--arms-file``) of any size.
            feasible: Feasibility function of the run; required only if a space was searched as a box.
            policy: Policy of the run; required only if it has parts of your own, or a kernel that cannot be rebuilt.
            device: Device of the computations; default: the recorded one.

        Raises:
            FileNotFoundError: If there is no journal.
            StorageError: If it is damaged, of another format, read-only, or open for writing elsewhere.
            ValueError: If arms or policy are not those of the run, or are missing.

        Warns:
            ResumeWarning: If picks computed again differ from the recorded ones (other hardware or versions), which stay valid.
        """
        candidates = inputs.tensor_of("arms", arms)
        with opened(storage, candidates, device) as (writer, journal):
            domain, about = domain_of(journal, candidates, device, feasible=feasible, asking=True), journal.about
            settings = {name: about[name] for name in ("seed", "certify_every", "minimize", "notes")}
            settings |= {} if (outcomes := recorded_outcomes(journal)) is None else outcomes.describe()
            with checking(candidates):
                columns = inputs.input_names_of(arms, outcomes)
                if columns and columns != about.get("inputs", columns):
                    raise ValueError(
                        f"expected the arms of the run in {journal.path} with the columns {', '.join(about['inputs'])}, got "
                        f"{', '.join(columns)}; pass the table as it was"
                    )
                chosen = policy_of(journal, policy)
            loop = cls(domain, chosen, **settings)
            loop._about |= {name: about[name] for name in ("why", "taken", "arrays", "workers") if name in about}
            loop._steps.recorder = Recorder(writer)
            loop._steps.recorder.resumed(loop._engine, replay(loop._engine, journal))
        return loop

    def close(self) -> None:
        """Write the rest of the history to the journal, and release it. Does nothing without one."""
        with self._steps.lock:
            self._steps.recorder.close()

    def release(self) -> None:
        """Release the journal until the next ask or tell, so that another process may resume it. Every result is in it."""
        with self._steps.lock:
            self._steps.recorder.release()

    def __enter__(self) -> AskTell:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Close the journal. An exception of the block propagates, with a note if the journal cannot be closed."""
        try:
            self.close()
        except StorageError as failure:
            if error is None:
                raise
            note = f"The journal could not be closed either; call close() again: {failure}"
            logger.warning("%s", note)  # the notes of a SystemExit are not shown
            error.add_note(note)

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            "expected no pickle or copy of an AskTell, which owns its run and its journal; pickle loop.result(), or pass "
            "storage= and use AskTell.resume(...) in another process"
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
        """Description of the run, with policy, seed, domain, versions, and ``notes``."""
        return self._about

    def __repr__(self) -> str:
        return f"AskTell(policy={self._about['policy']!r}, asked={self.asked}, pending={len(self.pending)})"

    @property
    def asked(self) -> int:
        """Number of evaluations asked so far."""
        return self._engine.asked

    @property
    def pending(self) -> list[int]:
        """Tickets without a result, in order."""
        with self._steps.lock:
            return self._engine.ledger.pending

    @property
    def history(self) -> History:
        """One row per update of the state; in a synchronous loop, per batch."""
        return History(tuple(self._engine.rows), run_info(self._about))

    def ask(self, max_q: int | None = None, *, beyond_batch: bool = False) -> Batch:
        """Return the next evaluations; the policy decides their number.

        They continue the batch of those that are pending, and picks asked in pieces are those asked at once, but for the random
        designs over arms. When the batch is full (for BBKB: when the stop rule ends it), the results so far update the state,
        and the next batch starts. Policies without such batches update before every ask.

        Args:
            max_q: Maximum number of evaluations; default: as many as the loop's ``workers`` that have none pending, at
                least one; without ``workers`` the policy's choice (``batch_size=``).
            beyond_batch: Return ``max_q`` evaluations, conditioned on all pending ones, although the policy's batch is full or
                its initial design is pending: for workers that would be idle. Policies whose bounds limit the pending ones
                (:class:`sparse_bo.BBKB`, :class:`sparse_bo.BKB`, …) still raise.

        Raises:
            PendingBatchError: If the policy needs results of pending evaluations first; the message says how many.
            ScheduleComplete: If the policy has no evaluations left.
            ValueError: If ``max_q`` < 1, or it is missing with ``beyond_batch``.
            StorageError: If the journal cannot be written; the loop is as the journal has it then.
        """
        if check_flag("beyond_batch", beyond_batch) and max_q is None:
            raise ValueError("expected ask(max_q, beyond_batch=True), got no max_q; pass the number of idle workers")
        workers = self._about.get("workers")
        idle = UNLIMITED if workers is None else max(workers - len(self.pending), 1)
        limit = idle if max_q is None else check_count("max_q", max_q)
        return self._steps.ask(limit, beyond_batch=beyond_batch).on(self._domain.device)

    def tell(
        self, tickets: Batch | Sequence[int] | Tensor, y: Sequence[Any] | Mapping[str, Any] | Tensor, *, X: Any = None
    ) -> None:
        """Report results, in any order and number; an :meth:`ask`, or a tell that leaves none pending, updates the state.

        Args:
            tickets: Of :meth:`ask`: ``batch.tickets``, some of them, or the batch itself for all.
            y: One finite value per ticket, of known noise a :class:`sparse_bo.Measured`; NaN marks a failed evaluation, as
                :meth:`fail` does. With several outcomes a dictionary or a row for each ticket, see :func:`sparse_bo.optimize`.
            X: Where they were measured, if not where they were asked for (at 70 °C in place of 65): an input for each ticket,
                as those of :meth:`add`; it must be in the domain, and at a step where there are steps. It replaces the asked
                one in state, history and journal, in the journal even if writing the results fails then.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered; nothing is recorded then.
            ValueError: If the number of values or inputs differs from the number of tickets, a value is infinite, an input is
                not in the domain, the policy knows only its own inputs, or pandas has the rows of two arguments in different
                orders; nothing is recorded then.
            TypeError: If the values are not real numbers, or the policy takes none of known noise; nothing is recorded then.
            StorageError: If the journal cannot be written; no result is recorded then.

        Warns:
            FailureWarning: Once, if more than half of at least 20 evaluations have failed.
        """
        names, outcomes = self._names, self._engine.outcomes
        check_same_order(tickets=self._engine.ledger.labelled(tickets), y=y, X=X)

        def answers() -> dict[int, Value]:
            known = self._known(tickets)
            return answers_of(known, y) if outcomes is None else outcomes_of(known, y, names, outcomes.names)

        self._steps.answer(answers, None if X is None else lambda: inputs.checked_inputs("told", X, self._domain))

    def fail(self, tickets: Batch | Sequence[int] | Tensor) -> None:
        """Mark evaluations as failed: they give no observation, and inputs that fail again are picked less and less.

        Errors: :meth:`tell`.
        """
        self._steps.answer(lambda: dict.fromkeys(self._known(tickets), failed_of(self._names)))

    def add(self, X: Any, y: Any) -> None:
        """Add observations that this run has not asked for, such as a colleague's results; the state is updated at once.

        They do not count against a budget, and pending evaluations stay pending. Optuna has ``add_trial`` for it.

        Args:
            X: ``n`` indices or names of arms; on a box ``n x d`` points, with a space ``n`` dictionaries; or a pandas table
                with their columns.
            y: ``n`` finite values (y), or rows of outcomes as those of :meth:`tell`, NaN for one that is missing; the word
                ``failed`` for an evaluation that failed. NaN alone is refused: an empty cell may be of one not made yet.

        Raises:
            TypeError: If inputs or values have the wrong type or dtype.
            ValueError: If their numbers differ, a value is infinite, a row has none, or an input is not in the domain.
            StorageError: If the journal cannot be written; nothing is added then.
        """
        outcomes = self._engine.outcomes
        self._steps.add(lambda: arguments.checked_observations("added", (X, y), self._domain, outcomes, self._names))

    def enqueue(self, X: Any) -> None:
        """Queue evaluations: the next :meth:`ask` returns them, in order, and then picks of the policy.

        ``X``, and errors: :meth:`add`. Optuna has ``enqueue_trial`` for it. A dictionary may lack parameters, and a point of a
        box may have NaN: these have the values of the policy's next pick, or uniform ones while it waits for results. Tables
        may have empty cells, and lack columns of inputs; those that do may have no others than :meth:`Result.to_pandas` has.
        """
        engine = self._engine
        self._steps.enqueue(
            lambda: inputs.completed_inputs(X, self._domain, engine.suggested, engine.generator_ahead(), self._names)
        )

    def reissue(self, tickets: Batch | Sequence[int] | Tensor | None = None) -> Batch:
        """Return pending evaluations again (default: all), for example after a worker is lost; nothing changes.

        Raises:
            TicketError: If a ticket is unknown, repeated or already answered.
        """
        with self._steps.lock:
            numbers = self.pending if tickets is None else self._known(tickets)
            return self._engine.ledger.handed_out(numbers).on(self._domain.device)

    @naming_ours
    def run(
        self,
        objective: Objective,
        budget: int,
        *,
        call_with: CallWith | None = None,
        vectorized: bool | None = None,
        arrays: Arrays | None = None,
        executor: str | Submits | Workers | None = None,
        workers: int | None = None,
        callback: Callback | None = None,
        on_result: Callable[[Evaluation], Any] | None = None,
        progress: bool = False,
        seconds: float | None = None,
        target: float | None = None,
        patience: int | None = None,
        stop: Callable[[AskTell], Any] | None = None,
    ) -> Result:
        """Ask, evaluate and tell until ``budget`` more evaluations have been asked; pending ones are evaluated first.

        It may end earlier (``seconds``, ``target``, ``patience``, ``stop``, ``callback``, or a policy has no evaluations left):
        :attr:`Result.ended` has the reason, and evaluations that were asked and have not begun stay pending.

        Args:
            objective: Returns ``q`` values; NaN marks a failed evaluation.
            budget: Number of evaluations, failed ones included; 0 evaluates pending ones only.
            call_with: Argument of the objective. ``"X"``: ``q x d`` points; ``"indices"``: ``q`` arms; ``"batch"``: a
                :class:`Batch`, whose tickets can seed a random objective, so that it repeats after a resume;
                ``"parameters"``: dictionaries of a space. Default: dictionaries with a space, else points.
            vectorized: ``False``: the objective takes one point (``d``), index, dictionary or batch of one and returns a
                number. Default: ``True`` where arms or bounds are tensors, else ``False``. Its results are reported as they
                come, those of a twentieth of a second together.
            arrays: Type of points and indices: ``"torch"`` tensors, ``"numpy"`` arrays, or ``"list"``: lists and numbers; with
                these, worker processes load torch only if the objective does. Default: that of the arms or bounds. Tensors are
                on the device of the arms or bounds in this process (threads included), and on the CPU in others.
            executor: ``"threads"``, ``"processes"``, ``"loky"``, an executor with ``submit`` (Dask: ``client.get_executor()``),
                or :class:`Workers` with timeouts, retries and more; ``None``: this process, batch by batch. Where the objective
                takes one point, a free worker gets the next one at once: see ``Workers.asynchronous``.
            workers: Concurrent evaluations; default: the executor's number of workers.
            callback: Called with the loop and the new history row after each update of the state; ``True`` ends the run. It may
                ask and tell: its evaluations count towards the budget, and those without a result are evaluated here while
                budget remains. A result that it reports for a running evaluation takes precedence.
            on_result: Called with each :class:`sparse_bo.runs.Evaluation` once its result is recorded; not with those that a
                callback has reported.
            progress: Whether to show a progress bar.
            seconds: Wall-clock seconds of this call, after which no more evaluations begin.
            target: Value (y) of a result that ends the run.
            patience: Number of evaluations, failed ones included, without a new best result of the run, after which it ends.
            stop: Called with the loop before evaluations; the run ends once it returns a true value.

        Raises:
            ObjectiveError: If the objective fails, or does not return one value per evaluation. The loop stays usable, with the
                failed evaluations pending.
            RunInterrupted: On Ctrl-C; also a ``KeyboardInterrupt``.
            TypeError: If an argument has the wrong type, or the objective cannot be pickled for the workers.

        Any exception during the run has the loop and the result so far as attributes ``loop`` and ``result``.
        """
        given, default = locals(), self._about["arrays"]  # under new names: a debugger writes the old ones into `given`
        ended = make_evaluations(self, self._steps, self._so_far, given, outcomes=self._names, arrays=default)
        result = replace(self.result(), ended=ended)
        if self._steps.ranks.group.leads:
            warn_if_infeasible(result)
        return result

    def result(self) -> Result:
        """Return the best arms and the history so far, with the results of an incomplete batch.

        These update a copy of the state, which takes as long as an update; in a sharded run they are left out. An interrupted
        update is completed.
        """
        self._steps.settle(complete=True)
        return self._result(*self._steps.with_incomplete_batch())

    def certificate(self) -> Certificate | None:
        """Bound the ratio of sparse and exact variance (:func:`sparse_bo.certify`).

        ``None`` but for upper-confidence policies over arms, once they have a model.
        """
        return self._engine.certificate()

    def _known(self, tickets: Batch | Sequence[int] | Tensor) -> list[int]:
        self._engine.ledger.check(numbers := tickets_of(tickets), issued=self._engine.next_ticket)
        return numbers

    def _so_far(self) -> Result:
        """Return :meth:`result` for an exception; without an incomplete batch where that raises, or on a second Ctrl-C."""
        try:
            return self._result(*self._steps.with_incomplete_batch())
        except (Exception, KeyboardInterrupt):
            return self._result(self._engine.state, self._engine.rows)

    def _result(self, state: State, rows: Sequence[HistoryRow]) -> Result:
        history = History(tuple(rows), run_info(self._about))
        return result_of(state, history, self._engine.domain, like=self._domain.like)
