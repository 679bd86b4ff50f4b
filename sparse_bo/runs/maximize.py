"""A whole run in one call."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from sparse_bo.domains import ArmSet, Box, Feasible, Space, space_domain
from sparse_bo.domains.sharded import group_of
from sparse_bo.evaluations.pools import Submits, Workers, workers_of
from sparse_bo.evaluations.worker import Arrays, CallWith
from sparse_bo.journal import Storage, storage_of
from sparse_bo.policies import Policy
from sparse_bo.policies.settings import Goal
from sparse_bo.runs.arguments import check_budget
from sparse_bo.runs.ask_tell import AskTell, Callback, Objective
from sparse_bo.runs.result import Result
from sparse_bo.validation import check_callable, check_choice


def maximize(
    objective: Objective,
    *,
    arms: ArmSet | None = None,
    bounds: Tensor | None = None,
    space: Space | Mapping[str, Any] | None = None,
    feasible: Feasible | None = None,
    budget: int,
    policy: Policy | None = None,
    goal: Goal = "best",
    seed: int = 0,
    initial: tuple[Any, Any] | None = None,
    call_with: CallWith | None = None,
    vectorized: bool | None = None,
    arrays: Arrays = "torch",
    executor: str | Submits | Workers | None = None,
    workers: int | None = None,
    storage: str | Path | Storage | None = None,
    resume: bool = False,
    callback: Callback | None = None,
) -> Result:
    """Maximise an objective over a finite arm set, a box or a space of named parameters.

    Args:
        objective: Called with ``q x d`` points (or ``q`` indices of arms), returns ``q`` values; NaN marks a failed evaluation.
            With ``space``, called with one dictionary, returns a number.
        arms: ``a x d`` candidates, or a :class:`sparse_bo.MemmapArms` or :class:`sparse_bo.ProductGrid`.
        bounds: ``2 x d`` lower and upper corner of a box, instead of ``arms``.
        space: Named parameters, instead of both: ``{"lr": Float(1e-5, 1, log=True), "depth": Int(1, 12),
            "kind": Choice("a", "b")}``. At most 20,000 combinations are a finite arm set; otherwise the unit box of the encoded
            columns is searched (:class:`sparse_bo.Space`).
        feasible: With ``space``: feasibility function of a dictionary. On a box an infeasible pick is replaced by the nearest
            feasible point found.
        budget: Number of evaluations, those of a resumed run included.
        policy: Default by :func:`sparse_bo.runs.chosen_policy`: on a box :class:`sparse_bo.policies.TrustRegion`; over arms
            :class:`sparse_bo.policies.ExpectedImprovement`, in long runs followed by :class:`sparse_bo.BBKB`, which has all
            where every evaluation counts. All hyper-parameters are learned. The choice and its reason are logged, and in
            ``result.history.info``.
        goal: ``"best"``: the best point at the end counts. ``"cumulative"``: every evaluation counts, as in an experiment on
            patients or customers. Ignored with a ``policy`` and for a resumed run.
        seed: Seed of the policy.
        initial: Earlier observations: ``(indices, y)``, on a box ``(X, y)``, with a space ``(dictionaries, y)``; they do
            not count against the budget. For a resumed run: those of its start, or none.
        call_with: Argument of the objective; with ``vectorized``, ``arrays``, ``executor``, ``workers`` and ``callback`` see
            :meth:`AskTell.run`.
        vectorized: ``False``: the objective takes one point and returns a number.
        arrays: Type of points and indices: ``"torch"``, ``"numpy"`` or ``"list"``.
        executor: Where the objective runs; ``None``: in this process.
        workers: Concurrent evaluations; default: the executor's number of workers.
        storage: Path of a journal, or :class:`sparse_bo.Storage`: every result is recorded, and a run can be resumed.
        resume: Resume the run in ``storage`` if there is one, otherwise start it: a script that is run again continues.
        callback: Called with the loop and the new history row after each update of the state.

    Raises:
        TypeError: If an argument has the wrong type or dtype, the policy does not support the domain, or the objective cannot
            be pickled for the workers.
        ValueError: If arms are empty or not finite, bounds are not those of a box, not exactly one domain is passed,
            settings do not fit it, or the recorded run is another one.
        FileExistsError: If there is a file at ``storage`` and ``resume`` is not set.
        StorageError: If the journal cannot be written.
        ObjectiveError: If the objective fails; has the loop and the result so far, as any other exception of the run.
        RunInterrupted: On Ctrl-C; has the loop and the result so far.

    An exception releases the journal: the same call with ``resume=True`` continues, and so does the exception's ``loop``.
    """
    check_budget(budget)
    spread = workers_of(executor, workers)  # checked before a journal is created
    check_choice("goal", goal, get_args(Goal))
    check_callable("objective", objective)
    if callback is not None:
        check_callable("callback", callback)
    if resume and storage is None:
        raise ValueError("expected storage= (the path of the journal) with resume=True, got None")
    there = storage is not None and resume and storage_of(storage).resolved().exists()
    run: dict[str, Any] = {"policy": policy, "bounds": bounds, "space": space, "feasible": feasible, "seed": seed}
    if resume and group_of(arms).from_first("looking for the journal", there):
        assert storage is not None
        loop = _resumed(storage, arms, initial=initial, **run)
    else:
        at_a_time = None if spread is None else spread.count
        loop = AskTell(arms, **run, initial=initial, storage=storage, goal=goal, budget=budget, workers=at_a_time)
    how: dict[str, Any] = {"call_with": call_with, "vectorized": vectorized, "arrays": arrays, "callback": callback}
    result: Result | None = None
    try:
        result = loop.run(objective, max(budget - loop.asked, 0), executor=executor, workers=workers, **how)
        loop.close()
    except BaseException as error:
        loop.release()
        if result is not None:  # exceptions of `run` have it already
            vars(error).update(loop=loop, result=result)
        raise
    return result


def _resumed(
    storage: str | Path | Storage,
    arms: ArmSet | None,
    *,
    policy: Policy | None,
    bounds: Tensor | None,
    space: Space | Mapping[str, Any] | None,
    feasible: Feasible | None,
    seed: int,
    initial: tuple[Any, Any] | None,
) -> AskTell:
    """Return the recorded run, if it is that of the arguments."""
    if bounds is not None:
        Box(bounds)  # checked before the journal is opened
    asked = None if space is None else space_domain(space, feasible).describe()["space"]
    on_arms = asked is not None and "restricted" not in asked  # the journal stores which are feasible
    loop = AskTell.resume(storage, arms=arms, feasible=None if on_arms else feasible, policy=policy)
    try:
        other = _difference(loop.about, bounds, asked, seed)
        if other is None and initial is not None and not loop._began_with(initial):
            other = "has other initial observations, or none; initial= can only be passed to a new run"
        if other is not None:
            raise ValueError(
                f"the run in {storage_of(storage).path} {other}; pass another storage= for a new run, which can learn from the "
                "results of this one as initial=(inputs, results)"
            )
    except BaseException:
        loop.close()
        raise
    return loop


def _difference(about: Mapping[str, Any], bounds: Tensor | None, space: Mapping[str, Any] | None, seed: int) -> str | None:
    """Return the difference between a recorded run and the arguments, ``None`` if there is none."""
    recorded = about.get("space")
    if (space is not None or bounds is not None) and space != recorded:
        if space is not None and recorded is not None and space["parameters"] == recorded["parameters"]:
            return "had another feasible= over these parameters"
        kind = "is on no space" if recorded is None else f"is on the space {Space.of(recorded)}"
        return f"{kind}; this call asks for another one"
    if bounds is not None and "bounds" not in about:
        return "is among arms, this call searches a box; pass arms="
    if about["seed"] != seed:
        return f"has seed {about['seed']}; this call asks for another one"
    if bounds is not None and (bounds.tolist() != about["bounds"] or str(bounds.dtype) != about["dtype"]):
        return f"has bounds {about['bounds']} of {about['dtype']}; this call asks for others, of {bounds.dtype}"
    return None
