"""Views of runs for figures and pages, from a result or a journal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.dictionary import Certificate
from sparse_bo.domains import Arms, ArmSet, Box, Choice, Domain, Space, SpaceArms, SpaceBox
from sparse_bo.errors import StorageError
from sparse_bo.evaluations.results import has_sds, sds_of
from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.journal import Journal
from sparse_bo.policies import BanditState, EliminationState, Report, State
from sparse_bo.policies.improvement.policy import ImprovementState
from sparse_bo.policies.states import BoxState, Summary
from sparse_bo.policies.trust_region.observations import Replicates, replicates_of
from sparse_bo.policies.trust_region.outcome_state import OutcomeModels, OutcomeState, warpings
from sparse_bo.policies.trust_region.region import RegionState
from sparse_bo.policies.trust_region.surrogate import FittedRegion, fitted_region
from sparse_bo.report.view import Observation, RunView, Slice, arm_name, spread
from sparse_bo.runs.columns import fitted_of, importance_of
from sparse_bo.runs.history import History, report_of
from sparse_bo.runs.recording import Recorded, recorded_in, replayed

SLICE_POINTS, REPLAYED_SECONDS = 41, 60.0
"""Limit of points of a slice; of the model's seconds up to which a whole run is computed again, for its residuals."""


class Predictions(NamedTuple):
    """Marginal posterior of the noiseless objective at n inputs."""

    lower: Tensor
    """``n`` quantiles at 2.5 % (y)."""
    median: Tensor
    """``n`` (y)."""
    upper: Tensor
    """``n`` quantiles at 97.5 % (y)."""
    floor: float | None = None
    """Value (y) below which the model does not tell observations apart: lower quantiles and medians there are ``-inf``, upper
    ones the floor itself; ``None`` without. In a run that minimises: above which, and ``inf``."""

    def above(self, floor: float) -> Predictions:
        """Return the posterior of a model that takes observations below ``floor`` for observations of it."""
        lower, median = (end.masked_fill(end <= floor, -math.inf) for end in (self.lower, self.median))
        return Predictions(lower, median, self.upper.clamp_min(floor), floor)

    def mirrored(self) -> Predictions:
        """Return the posterior of the objective with the other sign."""
        return Predictions(-self.upper, -self.median, -self.lower, None if self.floor is None else -self.floor)


Predict = Callable[[Tensor], Predictions | None]
Point = dict[str, Any]


def predictions_of(state: State, picks: Tensor, *, minimize: bool = False, widened: float = 1.0) -> Predictions | None:
    """Return the marginal posterior of a state's model at picks (``n`` arms, or ``n x d`` points); ``None`` without one.

    It is of y also where the state has −y: in a run that minimises. Intervals of a local model are ``widened`` times as wide
    as the model's (:func:`widening`).
    """
    floor = state.floor if isinstance(state, BanditState | BoxState) else None
    if isinstance(state, RegionState | ImprovementState) and (fitted := fitted_of(state)) is not None:
        U = state.box.to_unit(picks) if isinstance(state, RegionState) else state.unit[picks]
        found = _warped(fitted, U, state.y, widened)
    else:
        if isinstance(state, BanditState) and (posterior := state.posterior) is not None:
            mean, variance = posterior.means_at(picks).double(), posterior.leverages_at(picks) * posterior.prior.regularization
        elif isinstance(state, BoxState) and state.model is not None:
            mean, variance = (moment.detach().flatten() for moment in state.predicted(picks))
        else:
            return None
        spread = 1.96 * variance.clamp_min(0.0).sqrt()
        found = Predictions(mean - spread, mean, mean + spread)
        found = found if floor is None else found.above(floor)
    return found.mirrored() if minimize else found


def outcome_models(state: State, *, widen: bool = False) -> list[Predict]:
    """Return the marginal posterior of each of several outcomes, in the user's units; empty without models.

    With ``widen`` intervals are wider by the factor by which cross-validation shows them too narrow.
    """
    if not isinstance(state, OutcomeModels) or not state.fitted:
        return []
    return [_outcome(state, j, widen=widen) for j in range(len(state.fitted))]


def _outcome(state: OutcomeModels, j: int, *, widen: bool) -> Predict:
    fitted, seen, widened = state.fitted[j], state.replicates[j], 1.0
    if widen:  # by models that are chosen as that of the state was
        kinds, rotates = warpings(state.outcomes, j), not isinstance(state, OutcomeState)
        widened = _widening(fitted, state.U[state.rows_of(j)], seen, kinds=kinds, rotates=rotates)

    def predict(picks: Tensor) -> Predictions:
        found = _warped(fitted, state.modelled(picks), seen.y, widened)
        return found.mirrored() if float(state.signs[j]) < 0.0 else found

    return predict


def widening(state: State) -> float:
    """Return the factor by which 95 % intervals of a local model are too narrow, 1 to 10; 1 for other models.

    Kernel, warping and hyper-parameters are chosen for the highest evidence, and predictions take them for certain. In
    cross-validation all of them are learned without the points that they predict.
    """
    if not isinstance(state, RegionState | ImprovementState):
        return 1.0
    fitted = fitted_of(state)
    return 1.0 if fitted is None else _widening(fitted, state.U, state.replicates)


def _widening(fitted: FittedRegion, U: Tensor, seen: Replicates, **options: Any) -> float:
    """Return the factor of :func:`widening`, of observations at ``n x d`` points of the unit cube; at most 150 take part.

    ``options``: of :func:`.fitted_region`, as the model was chosen. A kernel of the user's stays.
    """
    kernel, folds, most = fitted.gp.prior.kernel, 4, 150
    options["kernel"] = None if isinstance(kernel, Hyperparameters) else kernel
    if len(fitted.rows) < 2 * folds:
        return 1.0
    rows = fitted.rows[spread(len(fitted.rows), most)]
    order, scores = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0), device="cpu").to(rows.device), []
    for fold in range(folds):
        held, known = rows[order[fold::folds]], torch.cat([rows[order[k::folds]] for k in range(folds) if k != fold])
        told = torch.isin(seen.first, known)
        some, y = U[told], seen.y[told]
        sd = None if seen.sds is None else seen.sds[told] * seen.counts[told].sqrt()  # of one observation
        seen_then, centre = replicates_of(some, y, sd), some[y.argmax()]
        again = fitted_region(some, seen_then, centre=centre, before=None, since=0, most=most, **options)
        own = None if seen.sds is None else seen.sds[held]
        score, clipped = again.errors(U[held], seen.values[held], own), again.warp(seen.values[held]) <= again.warp(y.min())
        scores.append(torch.where(clipped, score.clamp(max=0.0), score).abs())  # "at most the floor" is right below it
    sizes = torch.cat(scores).sort().values
    largest = float(sizes[min(math.ceil(0.95 * (len(sizes) + 1)), len(sizes)) - 1])
    return min(max(largest / 1.96, 1.0), 10.0)


def _warped(fitted: FittedRegion, U: Tensor, y: Tensor, widened: float) -> Predictions:
    """Return the quantiles of a model of warped observations at ``n x d`` points of the unit cube, back in y.

    The model takes observations below the floor of its warping for observations of the floor. Where a quantile reaches the
    floor and some of ``y`` are below it, nothing bounds the objective from below; an upper quantile there is the floor. A mean
    within a standard deviation of an observation from the floor is that of observations below it, of which it knows no more. A
    warping grows exponentially: quantiles beyond the range of ``y`` by more than that range say that the model knows nothing,
    and are cut there.
    """
    at, warp, low, high = fitted.gp.moments(U), fitted.warp, float(y.min()), float(y.max())
    reach = high - low or math.inf
    spread = 1.96 * widened * at.variance.sqrt()
    floor = warp.floor if warp.floor is not None and bool((y < warp.floor).any()) else None
    lowest = warp(y.min())  # at the floor, if there is one
    below = at.mean - (at.variance + fitted.gp.noise_variance).sqrt() <= lowest

    def unwarped(t: Tensor, clipped: Tensor, value: float) -> Tensor:
        values = warp.inverse(t) if warp.kind == "plain" else warp.inverse(t).clamp(low - reach, high + reach)
        return values if floor is None else values.masked_fill(clipped, value)

    lower = unwarped(at.mean - spread, below | (at.mean - spread <= lowest), -math.inf)
    upper = unwarped(at.mean + spread, at.mean + spread <= lowest, -math.inf if floor is None else floor)
    return Predictions(lower, unwarped(at.mean, below, -math.inf), upper, floor)


def view_of_journal(
    path: str | Path, *, arms: ArmSet | None = None, regret_of: Callable[[History], Tensor | None] | None = None
) -> RunView:
    """Return the view of a recorded run, also while it is being written. Costs as much as a resume; writes nothing.

    As in :meth:`sparse_bo.AskTell.result`, the results of an incomplete batch are in. ``arms`` are those of the run, where the
    journal does not hold them; ``regret_of`` returns ``n`` differences from the best possible value (y). Errors:
    :func:`sparse_bo.runs.read_run`.
    """
    journal = Journal.read(path)
    recorded = recorded_in(journal)
    others: dict[str, Any] = {"source": Path(path).name}
    try:
        engine, course, others["differing"] = replayed(journal, arms, most_seconds=REPLAYED_SECONDS, so_far=True)
        recorded = recorded._replace(history=History(tuple(engine.rows), recorded.history.info))
        others["residuals"], certificate = np.array(course.residuals, np.float64), engine.certificate()
        others |= {"certificate": certificate, "state": engine.state, "domain": engine.domain}
    except StorageError:
        raise
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        others["missing"] = str(error)
    if regret_of is not None and recorded.history.rows and (regret := regret_of(recorded.history)) is not None:
        others["regret"] = regret.tolist()
    return view_of_recorded(recorded, **others)


def view_of_recorded(recorded: Recorded, **others: Any) -> RunView:
    """Return the view of a run that was read from a journal, by default without its model; see :func:`view_of`."""
    counts = {"asked": recorded.asked + recorded.added, "succeeded": recorded.told, "failed": recorded.failed}
    return view_of(recorded.history, **{"about": recorded.about, "added": recorded.added, **counts, **others})


def view_of(
    history: History,
    state: State | None = None,
    domain: Domain | None = None,
    certificate: Certificate | None = None,
    *,
    regret: Sequence[float] | None = None,
    most_slices: int = 12,
    **others: Any,
) -> RunView:
    """Return the view of a run, with slices along at most ``most_slices`` inputs.

    Without a state and its domain (they could not be computed) it has no model. ``others`` are fields of the view; default:
    those of a run in memory.
    """
    minimize = history.minimize
    report = Report() if state is None else report_of(state, minimize=minimize)
    names, columns, logs = columns_of(history, domain)
    values = np.array([value for row in history.rows for value in row.values], np.float64)
    last: Summary = history.rows[-1] if state is None and history.rows else report
    over_arms = "space" not in history.info  # combinations of named parameters have no number that a user knows
    bounds: dict[str, str | None] = {}
    if isinstance(state, EliminationState):
        bounds = {"not eliminated": None if state.survivors is None else state.describe(), "bounds": state.held()}

    def named(x: Tensor | None) -> Point:
        if x is None or domain is None:
            return {}
        if isinstance(domain, SpaceArms | SpaceBox):
            return domain.space.decode(x.unsqueeze(0))[0]
        return dict(zip(names or domain.input_names, x.tolist(), strict=True))

    several, best_x = history.outcome_columns(report), report.best_x
    if several is not None:  # the first evaluation of the report's best point with a result
        at = report.best_index if history.indices or best_x is None else best_x.tolist()
        rows = (row for row, one in enumerate(history.indices or history.points) if one == at and not several.failed[row])
        several = replace(several, best_row=next(rows, several.best_row))
        X = inputs_of(history, domain)
        best_x = None if X is None or several.best_row is None else torch.from_numpy(X[several.best_row])
    order = np.argsort(values if history.minimize else -values, kind="stable")
    ranked = [row for row in order.tolist() if values[row] == values[row]]  # those with results, the best first
    if several is not None:  # those of the front, then in order
        ranked = list(dict.fromkeys([*several.front, *np.flatnonzero(~several.failed).tolist()]))
    best, slices, widened, interval = named(best_x), list[Slice | None](), 1.0, None
    best = _evaluated(columns, several.best_row) if several is not None and not best else best
    if best_x is not None and state is not None and domain is not None:
        if several is not None:
            models = dict(zip(several.values, outcome_models(state, widen=most_slices > 0), strict=False))
            several = replace(several, models=bool(models))
            some, first = names[: 2 * most_slices // max(len(models), 2)], next(iter(outcome_models(state)), None)
        else:
            widened, some = widening(state) if most_slices else 1.0, names[:most_slices]
            first = partial(predictions_of, state, minimize=minimize)
            models = {"": partial(first, widened=widened)}
        interval = None if first is None else _interval(first, domain, report)
        x, shown = best_x.to("cpu", torch.float64), [*enumerate(some)]

        def beside(name: str, value: Any) -> Point:
            return _evaluated(columns, next((row for row in ranked if columns[name][row] == value), None))

        slices = [_slice(predict, domain, x, j, name, best, beside, of) for of, predict in models.items() for j, name in shown]
    highest = None
    if last.best_observed_mean is not None:
        index = last.best_observed_index if over_arms else None
        point = {} if index is None else {"arm": arm_name(index, history.info.get("names"))}
        lucky = ranked[0] if ranked else None
        if not history.points:  # of an arm by its mean
            lucky = next((row for row, arm in enumerate(history.indices) if arm == last.best_observed_index), None)
        point |= named(report.best_observed_x) or _evaluated(columns, lucky)
        highest = Observation(last.best_observed_mean, last.best_observed_count or 1, point)
    sds = np.array(sds_of(history.results), np.float64).T if has_sds(history.results) else ()
    failed, added = sum(row.failed for row in history.rows), [row for row in history.rows if row.added]
    in_memory = {"about": history.info, "asked": len(values), "succeeded": len(values) - failed, "failed": failed}
    in_memory |= {"added": history.added, "added_failed": sum(row.failed for row in added)}
    return RunView(
        batches=history.batches(),
        values=values,
        sds=dict(zip(("",) if several is None else several.values, sds, strict=False)),  # none without known noise
        names=names,
        columns=columns,
        logs=logs,
        best=best,
        best_mean=last.best_mean if several is None or state is not None else None,  # recorded of another point than `best`
        best_index=last.best_index if over_arms else None,
        arms=history.names,
        tickets=history.tickets,
        distinct=len(set(history.indices)) or None,
        guarantees={name: text for name, text in bounds.items() if text is not None},
        calibration=history.calibration,
        best_interval=interval,
        best_observed=highest,
        slices=[one for one in slices if one is not None],
        importance=importance_of(state, domain) if state is not None and domain is not None and most_slices else {},
        computed=state is not None,
        widened=widened,
        variance_factor=None if certificate is None else certificate.factor,
        regret=None if regret is None else np.asarray(regret, np.float64),
        outcomes=several,
        **{**in_memory, **others},
    )


def _evaluated(columns: Mapping[str, Sequence[Any]], row: int | None) -> Point:
    """Return the inputs of an evaluation by name, those left out that it does not have."""
    return {} if row is None else {name: values[row] for name, values in columns.items() if values[row] == values[row]}


def inputs_of(history: History, domain: Domain | None) -> NDArray[np.float64] | None:
    """Return the inputs of all evaluations (``n x d``); ``None`` where they are unknown, and without any."""
    if history.points:
        return np.array(history.points, np.float64)
    if domain is None or not history.indices:
        return None
    return domain.inputs(torch.tensor(history.indices, device=domain.device)).to("cpu", torch.float64).numpy()


def _interval(predict: Predict, domain: Domain, report: Report) -> tuple[float, float] | None:
    """Return the 95 % interval at the best point (y); ``None`` without a model."""
    if report.best_mean is None or report.best_sd is None:
        return None
    best = report.best_index if domain.indexed or report.best_x is None else report.best_x.tolist()
    if report.best_sd > 0.0 and best is not None and (found := predict(domain.stacked([best]))) is not None:
        return float(found.lower[0]), float(found.upper[0])
    return report.best_mean - 1.96 * report.best_sd, report.best_mean + 1.96 * report.best_sd


def columns_of(history: History, domain: Domain | None) -> tuple[list[str], dict[str, list[Any]], dict[str, bool]]:
    """Return the names of the inputs, the values of each at all evaluations, and the scale of each; empty where unknown."""
    if "space" in history.info:
        parameters, points = Space.of(history.info["space"]).parameters, history.parameters or []
        logs = {name: bool(getattr(parameter, "log", False)) for name, parameter in parameters.items()}
        return [*logs], {name: [point.get(name, math.nan) for point in points] for name in logs}, logs
    if (X := inputs_of(history, domain)) is None:
        return [], {}, {}
    names = history.info.get("inputs") or [f"x{j + 1}" for j in range(X.shape[1])]
    return names, {name: X[:, j].tolist() for j, name in enumerate(names)}, dict.fromkeys(names, False)


def _slice(
    predict: Predict, domain: Domain, x: Tensor, j: int, name: str, best: Point, beside: Callable[[str, Any], Point], of: str
) -> Slice | None:
    """Return the model along input ``j`` through the best point.

    Inputs that another value of a parameter brings are those of ``beside(name, value)``. ``None`` without a model, with too few
    points there, and along a parameter that the best point does not have.
    """
    fewest, log, brought = 3, False, list[Point]()
    if isinstance(domain, SpaceArms | SpaceBox):
        if name not in best:
            return None
        values, fewest = _along(domain.space, name, best[name]), 2
        points = [domain.space.changed(best, name, value, beside(name, value)) for value in values]
        brought = [{other: v for other, v in point.items() if other not in best} for point in points]
        log = bool(getattr(domain.space.parameters[name], "log", False))
        try:
            picks = domain.check("slice", points)
        except ValueError:  # some of these combinations are no arms, for they are not feasible
            return None
    elif isinstance(domain, Box):
        low, high = domain.bounds.double()[:, j].tolist()
        values = np.linspace(low, high, SLICE_POINTS).tolist()
        picks = x.repeat(SLICE_POINTS, 1)
        picks[:, j] = torch.tensor(values, dtype=torch.float64, device="cpu")
    else:
        assert isinstance(domain, Arms)
        picks = _arms_along(domain, x, j).to(domain.device)
        values = domain.inputs(picks).double()[:, j].tolist()
    if len(values) < fewest or (found := predict(picks.to(domain.device))) is None:
        return None
    lower, median, upper = (column.double().cpu().numpy() for column in (found.lower, found.median, found.upper))
    return Slice(name, values, log, best[name], lower, median, upper, found.floor, of, brought if any(brought) else ())


def _along(space: Space, name: str, here: Any) -> list[Any]:
    """Return values of a parameter, spread over its range; of a choice, ``here`` among them."""
    parameter = space.parameters[name]
    if isinstance(parameter, Choice):
        some = {*spread(len(parameter.values), SLICE_POINTS - 1).tolist(), parameter.values.index(here)}
        return [parameter.values[k] for k in sorted(some)]
    n = min(parameter.count or SLICE_POINTS, SLICE_POINTS)
    u = torch.linspace(0.0, 1.0, n, dtype=torch.float64, device="cpu").unsqueeze(-1)[:, : parameter.width]
    return list(dict.fromkeys(parameter.decode(u)))


def _arms_along(domain: Arms, x: Tensor, j: int) -> Tensor:
    """Return the arms that differ from a point in one input alone, by that input; only of arms in memory."""
    if not isinstance(domain.points, Tensor):
        return torch.zeros(0, dtype=torch.long, device="cpu")
    X = domain.points.double().cpu()
    others = [k for k in range(X.shape[1]) if k != j]
    rows = (X[:, others] == x[others]).all(dim=-1).nonzero().squeeze(-1)
    rows = rows[X[rows, j].argsort(stable=True)]
    return rows[spread(len(rows), SLICE_POINTS)]
