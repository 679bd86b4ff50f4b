"""A whole run in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

from torch import Tensor

from sparse_bo.domains import ArmSet, Box, Feasible, Space, check_domain, space_domain
from sparse_bo.domains.sharded import checking, group_of
from sparse_bo.evaluations.job import Arrays, CallWith
from sparse_bo.evaluations.pools import Submits, Workers, packed, workers_of
from sparse_bo.journal import Storage, delete, storage_of
from sparse_bo.policies import Outcomes, Policy
from sparse_bo.policies.outcomes import Direction, Limits
from sparse_bo.policies.settings import Goal
from sparse_bo.runs import arguments, inputs
from sparse_bo.runs.arguments import ArmsLike, BoundsLike, naming_ours
from sparse_bo.runs.ask_tell import AskTell, Callback, Objective
from sparse_bo.runs.ends import Ends, Evaluation
from sparse_bo.runs.previous import CAN_LEARN, RunObservations, advice_to_begin, earlier_observations
from sparse_bo.runs.result import Result
from sparse_bo.validation import check_callable, check_choice, check_flag, check_given


@naming_ours
def maximize(
    objective: Objective,
    space: Space | Mapping[str, Any] | None = None,
    *,
    arms: ArmsLike | None = None,
    names: Iterable[str] | None = None,
    bounds: BoundsLike | None = None,
    feasible: Feasible | None = None,
    budget: int,
    policy: Policy | None = None,
    goal: Goal = "best",
    seed: int = 0,
    initial: tuple[Any, Any] | RunObservations | None = None,
    call_with: CallWith | None = None,
    vectorized: bool | None = None,
    arrays: Arrays | None = None,
    executor: str | Submits | Workers | None = None,
    workers: int | None = None,
    storage: str | Path | Storage | None = None,
    resume: bool = False,
    callback: Callback | None = None,
    on_result: Callable[[Evaluation], Any] | None = None,
    progress: bool = False,
    seconds: float | None = None,
    target: float | None = None,
    patience: int | None = None,
    stop: Callable[[AskTell], Any] | None = None,
) -> Result:
    """Maximise an objective over a finite arm set, a box or a space of named parameters; :func:`minimize` is its mirror.

    Example:
        >>> result = maximize(lambda x: -(x[0] - 0.3) ** 2, bounds=[(0.0, 1.0)], budget=20)
        >>> result.best.x, result.best.mean  # doctest: +SKIP
        (array([0.3]), 0.0)

    Args:
        objective: If arms or bounds are tensors, it is called with ``q x d`` points and returns ``q`` values. Otherwise it is
            called with one point, a NumPy array (``d``), or with ``space`` a dictionary, and returns a number. NaN marks a
            failed evaluation. A number whose noise is known is a :class:`sparse_bo.Measured`.
        space: Named parameters, instead of ``arms`` and ``bounds``: ``{"lr": Float(1e-5, 1, log=True), "depth": Int(1, 12),
            "kind": Choice("a", "b")}``. Up to 20,000 combinations without a continuous parameter are a finite arm set;
            otherwise the unit box of the encoded columns is searched (:class:`sparse_bo.Space`).
        arms: ``a x d`` candidates: a tensor or an array, which are not copied: leave them as they are during the run; a list; a
            table, of which the objective gets rows of numbers without the columns' names; or a :class:`sparse_bo.MemmapArms` or
            :class:`sparse_bo.ProductGrid`.
        names: A name for each arm: in batches, results, report and journal; :meth:`AskTell.add` and ``initial=`` take them.
            Default: the index of a pandas table, if it has distinct texts.
        bounds: Of a box, instead of ``arms``: ``d`` pairs ``(lower, upper)`` in a list or an array, as in SciPy, or a tensor of
            the lower and the upper corner (``2 x d``), as in BoTorch.
        feasible: With ``space``: feasibility function of a dictionary. On a box an infeasible pick is replaced by the nearest
            feasible point found.
        budget: Number of evaluations, those of a resumed run included. Evaluations that a resumed run had asked for
            are made even beyond the budget; a run that already has more is returned as it is.
        policy: Default by :func:`sparse_bo.runs.chosen_policy`: on a box :class:`sparse_bo.policies.TrustRegion`; over arms
            :class:`sparse_bo.policies.ExpectedImprovement`, in long runs followed by :class:`sparse_bo.BBKB`. It is
            :class:`sparse_bo.BBKB` alone if every evaluation counts and fewer than 10,000 are planned, or if there are too
            many candidates. All hyper-parameters are learned. The choice and its reason are logged, and in
            ``result.history.info``.
        goal: ``"best"``: the best point at the end counts. ``"cumulative"``: every evaluation counts, as in an experiment on
            patients or customers. Ignored with a ``policy`` and for a resumed run.
        seed: Seed of the policy.
        initial: Earlier observations: ``(indices, y)``, on a box ``(X, y)``, with a space ``(dictionaries, y)``; over arms also
            ``(X, y)`` with ``n x d`` inputs that need not be among the candidates (their rows in the result follow those of
            the arms; for ExpectedImprovement and upper-confidence policies, and arms in memory); or those of recorded runs, of
            other bounds or parameters too: :func:`sparse_bo.observations_of`. The word ``failed`` in place of a result: the
            evaluation failed. They do not count against the budget. For a resumed run: those of its start.
        call_with: Argument of the objective; with ``vectorized``, ``arrays``, ``executor``, ``workers`` and ``callback`` see
            :meth:`AskTell.run`.
        vectorized: Whether the objective takes many points at once; default: where arms or bounds are tensors.
        arrays: Type of points and indices: ``"torch"``, ``"numpy"`` or ``"list"``; default: that of the arms or bounds.
        executor: Where the objective runs; ``None``: in this process.
        workers: Concurrent evaluations; default: the executor's number of workers.
        storage: Path of a journal, or :class:`sparse_bo.Storage`: every result is recorded, and a run can be resumed.
        resume: Resume the run in ``storage`` if there is one, otherwise start it: a script that is run again continues.
        callback: Called with the loop and the new history row after each update of the state; ``True`` ends the run.
        on_result: Called with each :class:`sparse_bo.runs.Evaluation` once its result is recorded.
        progress: Whether to show a progress bar.
        seconds: The run ends after so many seconds of this call, once the evaluations that have begun are made.
        target: Value (y) of a result that ends the run.
        patience: Number of evaluations without a new best result of the run, after which it ends.
        stop: Called with the loop before evaluations; the run ends once it returns a true value.

    Raises:
        TypeError: If an argument has the wrong type or dtype, the policy does not support the domain, or the objective cannot
            be pickled for the workers.
        ValueError: If arms are empty or not finite, bounds are not those of a box, not exactly one domain is passed,
            settings do not fit it, or the recorded run is another one.
        FileExistsError: If there is a file at ``storage`` and ``resume`` is not set.
        StorageError: If the journal cannot be written.
        ObjectiveError: If the objective fails; has the loop and the result so far, as any other exception of the run.
        RunInterrupted: On Ctrl-C; has the loop and the result so far.

    An exception releases the journal: the same call with ``resume=True`` continues, and so does the exception's ``loop``. One
    raised before the first evaluation is asked leaves no journal.
    """
    return _whole(locals(), minimize=False)


@naming_ours
def minimize(
    objective: Objective,
    space: Space | Mapping[str, Any] | None = None,
    *,
    arms: ArmsLike | None = None,
    names: Iterable[str] | None = None,
    bounds: BoundsLike | None = None,
    feasible: Feasible | None = None,
    budget: int,
    policy: Policy | None = None,
    goal: Goal = "best",
    seed: int = 0,
    initial: tuple[Any, Any] | RunObservations | None = None,
    call_with: CallWith | None = None,
    vectorized: bool | None = None,
    arrays: Arrays | None = None,
    executor: str | Submits | Workers | None = None,
    workers: int | None = None,
    storage: str | Path | Storage | None = None,
    resume: bool = False,
    callback: Callback | None = None,
    on_result: Callable[[Evaluation], Any] | None = None,
    progress: bool = False,
    seconds: float | None = None,
    target: float | None = None,
    patience: int | None = None,
    stop: Callable[[AskTell], Any] | None = None,
) -> Result:
    """Minimise an objective: :func:`maximize` with the lowest value as the best one.

    Arguments and errors are those of :func:`maximize`. Results, history, journal and report have the objective's own sign;
    ``result.state`` and a ``callback``'s ``loop.state`` are those of a policy that maximises −y.

    Example:
        >>> from scipy.optimize import rosen
        >>> result = minimize(rosen, bounds=[(-2.0, 2.0), (-2.0, 2.0)], budget=60)
        >>> result.best.x, result.best.mean  # doctest: +SKIP
        (array([1.0, 1.0]), 0.0)
    """
    return _whole(locals(), minimize=True)


@naming_ours
def optimize(
    objective: Objective,
    space: Space | Mapping[str, Any] | None = None,
    *,
    objectives: Mapping[str, Direction],
    constraints: Mapping[str, Limits] | None = None,
    reference: Mapping[str, float] | None = None,
    arms: ArmsLike | None = None,
    names: Iterable[str] | None = None,
    bounds: BoundsLike | None = None,
    feasible: Feasible | None = None,
    budget: int,
    policy: Policy | None = None,
    seed: int = 0,
    initial: tuple[Any, Any] | RunObservations | None = None,
    call_with: CallWith | None = None,
    vectorized: bool | None = None,
    arrays: Arrays | None = None,
    executor: str | Submits | Workers | None = None,
    workers: int | None = None,
    storage: str | Path | Storage | None = None,
    resume: bool = False,
    callback: Callback | None = None,
    on_result: Callable[[Evaluation], Any] | None = None,
    progress: bool = False,
    seconds: float | None = None,
    target: float | None = None,
    patience: int | None = None,
    stop: Callable[[AskTell], Any] | None = None,
) -> Result:
    """Optimise several outcomes: one or more objectives, with or without constraints.

    With one objective the result has the best feasible point (``result.best``), and as long as no evaluation is feasible the
    one of the least violation (the sum over constraints, each in standard deviations of its outcome). With several it has the
    front (``result.pareto_front``) and its hypervolume.

    Example:
        >>> def experiment(point):
        ...     t = point["time"]
        ...     return {"yield": t * (2 - t), "cost": t**2, "impurity": 0.1 * t}
        >>> result = optimize(
        ...     experiment,
        ...     {"time": Float(0.0, 2.0)},
        ...     objectives={"yield": "max", "cost": "min"},
        ...     constraints={"impurity": (None, 0.15)},
        ...     budget=30,
        ... )
        >>> result.hypervolume  # doctest: +SKIP

    ``objective`` returns outcomes: a dictionary by name (names besides those below are ignored), or numbers in the order of
    ``objectives``, then of ``constraints`` on other outcomes. An objective that takes many points returns ``q x m`` numbers, or
    a dictionary of ``q`` values each. NaN: the outcome is missing, and the others count; the initial design goes on until each
    outcome has two results. All NaN: the evaluation failed. A pair for an outcome, ``{"cost": (0.8, 0.1)}``, is its value and
    the known standard deviation of its noise, as a :class:`sparse_bo.Measured` is.

    ``objectives`` are ``"max"`` or ``"min"`` by name, at most four. ``constraints`` are limits ``(lower, upper)`` by name,
    ``None`` where there is none. Outcomes may have noise: a model of each says how probable it is that a point is feasible.
    ``reference`` is the worst value of interest of every objective by name, from which hypervolumes are measured; by default it
    is inferred from the results and moves with them: worse than the front by a tenth of its span, or, if the front is a
    single point, by a tenth of the span of all results.

    The other arguments and errors are those of :func:`maximize`. Policies are :class:`sparse_bo.policies.TrustRegion` on boxes
    and :class:`sparse_bo.policies.ExpectedImprovement` over arms; others take one outcome. ``target`` needs a single
    objective; a feasible result has to reach it. ``patience`` counts evaluations without a new point of the front.
    """
    return _whole(locals() | {"goal": "best"}, minimize=False)


def _whole(given: dict[str, Any], *, minimize: bool) -> Result:
    of_run = ("policy", "names", "bounds", "space", "feasible", "seed", "initial", "objectives", "constraints", "reference")
    run: dict[str, Any] = {name: given.get(name) for name in of_run} | {"minimize": minimize}
    ends = {name: given[name] for name in ("seconds", "target", "patience", "stop")}
    names = ("call_with", "vectorized", "arrays", "executor", "workers", "callback", "on_result", "progress")
    how = ends | {name: given[name] for name in names}
    with checking(given["arms"]):
        budget, storage, resume = arguments.check_budget(given["budget"]), given["storage"], given["resume"]
        spread = workers_of(given["executor"], given["workers"])  # checked before a journal is created
        check_choice("goal", given["goal"], get_args(Goal))
        check_callable("objective", given["objective"])
        if spread is not None:
            packed(spread.executor, given["objective"])
        check_given(check_callable, callback=given["callback"], on_result=given["on_result"])
        for name in ("progress", "resume"):
            check_flag(name, given[name])
        Ends(**ends)
        if resume and storage is None:
            raise ValueError("expected storage= (the path of the journal) with resume=True, got None")
        arms = inputs.tensor_of("arms", given["arms"])
        there = storage is not None and resume and storage_of(storage).resolved().exists()
    resumed = resume and group_of(arms).from_first("looking for the journal", there)
    if resumed:
        loop = _resumed(storage, arms, given | run)
    else:
        at_a_time = None if spread is None else spread.count
        loop = AskTell(given["arms"], **run, storage=storage, goal=given["goal"], budget=budget, workers=at_a_time)
    result: Result | None = None
    begun = loop.asked, loop.history.observations
    try:
        result = loop.run(given["objective"], max(budget - loop.asked, 0), **how)
        loop.close()
    except BaseException as error:
        loop.release()
        unused = not resumed and (loop.asked, loop.history.observations) == begun
        if unused and storage is not None and isinstance(error, Exception) and group_of(arms).leads:
            with suppress(OSError):  # the error that is raised says more
                delete(storage_of(storage).resolved())  # it would block the corrected call
        if result is not None:  # exceptions of `run` have it already
            vars(error).update(loop=loop, result=result)
        raise
    return result


def _resumed(storage: str | Path | Storage, arms: ArmSet | None, run: Mapping[str, Any]) -> AskTell:
    """Return the recorded run, if it is that of the arguments. Outcomes without names have the order of the arguments."""
    group = group_of(arms)
    with checking(arms):
        corners = arguments.bounds_of(run["bounds"])
        if corners is not None:
            Box(corners)  # checked before the journal is opened
        asked = None if run["space"] is None else space_domain(run["space"], run["feasible"]).describe()["space"]
        on_arms = asked is not None and "restricted" not in asked  # the journal stores which are feasible
        several = arguments.checked_outcomes(run["objectives"], run["constraints"], run["reference"], minimize=run["minimize"])
    loop = AskTell.resume(storage, arms=run["arms"], feasible=None if on_arms else run["feasible"], policy=run["policy"])
    loop._about["arrays"] = arguments.arrays_of(run["arms"], run["bounds"])
    loop._names = () if several is None else several.names
    try:
        with checking(arms):
            other = _difference(loop, run, corners, asked, several)
            names = inputs.names_of(run["arms"], run["names"])
            if names is not None and [*names] != [*getattr(loop._domain, "names", ())][: getattr(loop._domain, "count", None)]:
                other = other or "has other names of its arms, or none"
            if other is None and run["initial"] is not None:
                same, before, _ = earlier_observations(run["initial"], loop._domain, loop._engine.outcomes, loop._names)
                if same is not loop._domain or before is None or not loop._engine.began_with(*before):
                    other = "has other initial observations, or none; initial= can only be passed to a new run"
            if other is not None:
                path = storage_of(storage).path
                if group.size > 1:  # the arms are those of the run
                    advice = CAN_LEARN.format(f"observations_of({str(path)!r})")
                else:
                    advice = advice_to_begin(path, check_domain(arms, corners, run["space"], run["feasible"]), several)
                raise ValueError(f"the run in {path} {other}; pass another storage= for a new run, {advice}")
            recorded = list(loop.about["space"]["parameters"]) if asked is not None else []
            call_with = run["call_with"]
            if asked is not None and call_with not in (None, "parameters") and recorded != list(asked["parameters"]):
                raise ValueError(
                    f"expected space= in the order of the run in {storage_of(storage).path} ({', '.join(recorded)}), which is "
                    f"that of the columns and arms of call_with={call_with!r}, got {', '.join(asked['parameters'])}; write it "
                    "in that order, or take dictionaries: call_with='parameters'"
                )
    except BaseException:
        loop.close()
        raise
    return loop


def _difference(
    loop: AskTell, run: Mapping[str, Any], bounds: Tensor | None, space: Mapping[str, Any] | None, outcomes: Outcomes | None
) -> str | None:
    about, recorded = loop.about, loop.about.get("space")
    if (space is not None or bounds is not None) and space != recorded:
        if space is not None and recorded is not None and space["parameters"] == recorded["parameters"]:
            return "had another feasible= over these parameters"
        if recorded is None or space is None:
            kind = "is on no space" if recorded is None else f"is on the space {Space.of(recorded)}"
            return f"{kind}; this call asks for another one"
        before, now = Space.of(recorded).parameters, Space.of(space).parameters
        names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        changed = ", ".join(f"{name}: {before.get(name, 'none')}, now {now.get(name, 'none')}" for name in names)
        return f"is on another space than this call ({changed or 'most_arms'})"
    if bounds is not None and "bounds" not in about:
        return "is among arms, this call searches a box; pass arms="
    if about.get("outcomes") != (described := None if outcomes is None else outcomes.describe()):
        recorded_ones = "one objective without a name" if "outcomes" not in about else f"the outcomes {about['outcomes']}"
        return f"has {recorded_ones}; this call has {'one without a name' if described is None else described}"
    if about["minimize"] != run["minimize"]:
        mine, other = ("minimises", "maximises") if about["minimize"] else ("maximises", "minimises")
        return f"{mine} its objective, this call {other} one"
    if about["seed"] != run["seed"]:
        return f"has seed {about['seed']}; this call asks for another one"
    if bounds is not None and str(bounds.dtype) != about["dtype"]:
        return f"has bounds of {about['dtype']}; this call asks for others, of {bounds.dtype}"
    if bounds is not None and bounds.tolist() != about["bounds"]:
        theirs, ours = (list(zip(*corners, strict=True)) for corners in (about["bounds"], bounds.tolist()))
        if len(theirs) != len(ours):
            return f"is on a box of {len(theirs)} inputs; this call asks for one of {len(ours)}"
        one = next(j for j, pair in enumerate(theirs) if pair != ours[j])
        return f"has bounds {theirs[one]} of x{one + 1}; this call asks for {ours[one]}"
    return None
