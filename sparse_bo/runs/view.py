"""Views of runs for figures and pages, from a result or a journal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sparse_bo.domains import Arms, ArmSet, Box, Choice, Domain, Int, Space, SpaceArms, SpaceBox
from sparse_bo.domains.encoded import names_of
from sparse_bo.errors import StorageError
from sparse_bo.policies import Report, State
from sparse_bo.report.view import Observation, RunView, Slice
from sparse_bo.runs.history import History
from sparse_bo.runs.predictions import Replayed, predictions_of, replayed
from sparse_bo.runs.records import read_run

SLICE_POINTS = 41
MOST_SLICES = 12
"""Inputs with a slice, at most."""


def view_of_journal(path: str | Path, *, arms: ArmSet | None = None, regret: Sequence[float] | None = None) -> RunView:
    """Return the view of a recorded run, also while it is being written. Costs as much as a resume; writes nothing.

    Args:
        path: Of the journal.
        arms: Those of the run, where the journal does not hold them.
        regret: ``n`` differences from the best possible value (y), where it is known.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of another format.
    """
    recorded = read_run(path)
    again: Replayed | None = None
    missing: str | None = None
    try:
        again = replayed(path, arms=arms)
    except StorageError:
        raise
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        missing = str(error)
    counts = (recorded.asked + recorded.before, recorded.told, recorded.failed)
    return _view(recorded.about, recorded.history, counts, again=again, missing=missing, regret=regret, source=Path(path).name)


class Finished(Protocol):
    """The parts of a :class:`sparse_bo.Result` that a view needs."""

    @property
    def history(self) -> History:
        """One row per batch."""
        ...

    @property
    def state(self) -> State:
        """State at the end."""
        ...

    @property
    def domain(self) -> Domain | None:
        """Domain of the search."""
        ...


def view_of_result(result: Finished, *, regret: Sequence[float] | None = None) -> RunView:
    """Return the view of a result in memory. It has no residuals: a result has no predictions from before the results."""
    values = [value for row in result.history.rows for value in row.values]
    failed = sum(map(math.isnan, values))
    counts = (len(values), len(values) - failed, failed)
    return _view(result.history.info, result.history, counts, domain=result.domain, state=result.state, regret=regret)


def _view(
    about: Mapping[str, Any],
    history: History,
    counts: tuple[int, int, int],
    *,
    domain: Domain | None = None,
    state: State | None = None,
    again: Replayed | None = None,
    missing: str | None = None,
    regret: Sequence[float] | None = None,
    source: str | None = None,
) -> RunView:
    if again is not None:
        domain, state = again.domain, again.state
    report = None if state is None else state.report()
    names, columns, logs = _columns(about, history, domain)
    best = {} if report is None or report.best_x is None else _named(report.best_x, names, domain)
    batches = history.batches()
    mean = float(batches.best_mean[-1]) if report is None and history.rows else None if report is None else report.best_mean
    observed = None
    if report is not None and report.best_observed_mean is not None:
        observed = Observation(report.best_observed_mean, report.best_observed_count or 1)
    certificate = None if again is None else again.certificate
    return RunView(
        about=about,
        batches=batches,
        asked=counts[0],
        succeeded=counts[1],
        failed=counts[2],
        values=np.array([value for row in history.rows for value in row.values], np.float64),
        names=names,
        columns=columns,
        logs=logs,
        best=best,
        best_mean=None if mean is None or math.isnan(mean) else mean,
        best_interval=None if state is None or report is None else _interval(state, domain, report),
        best_observed=observed,
        slices=[] if state is None or domain is None or not best else _slices(state, domain, names, report),
        variance_factor=None if certificate is None else certificate.factor,
        residuals=np.array([] if again is None else again.residuals, np.float64),
        differing=[] if again is None else again.differing,
        missing=missing,
        regret=None if regret is None else np.asarray(regret, np.float64),
        source=source,
    )


def _interval(state: State, domain: Domain | None, report: Report) -> tuple[float, float] | None:
    """Return the 95 % interval at the best point (y); ``None`` without a model."""
    if report.best_mean is None or report.best_sd is None:
        return None
    x, index = report.best_x, report.best_index
    found = None
    if report.best_sd > 0.0 and isinstance(domain, Box) and x is not None:
        found = predictions_of(state, x.to(device="cpu", dtype=torch.float64).unsqueeze(0))
    elif report.best_sd > 0.0 and index is not None:
        found = predictions_of(state, torch.tensor([index], dtype=torch.long, device="cpu"))
    if found is not None:
        return float(found.lower[0]), float(found.upper[0])
    return report.best_mean - 1.96 * report.best_sd, report.best_mean + 1.96 * report.best_sd


def _columns(
    about: Mapping[str, Any], history: History, domain: Domain | None
) -> tuple[list[str], dict[str, list[Any]], dict[str, bool]]:
    """Return the names of the inputs, the values of each at all evaluations, and the scale of each; empty where unknown."""
    if "space" in about:
        names, named = names_of(about["space"])
        points = named(history.indices or history.points)
        parameters = Space.of(about["space"]).parameters
        logs = {name: bool(getattr(parameters[name], "log", False)) for name in names}
        return names, {name: [point[name] for point in points] for name in names}, logs
    if history.points:
        X = np.array(history.points, np.float64)
    elif isinstance(domain, Arms) and history.indices:
        X = domain.inputs(torch.tensor(history.indices, dtype=torch.long, device="cpu")).double().cpu().numpy()
    else:
        return [], {}, {}
    names = [f"x{j + 1}" for j in range(X.shape[1])]
    return names, {name: X[:, j].tolist() for j, name in enumerate(names)}, dict.fromkeys(names, False)


def _named(x: Tensor, names: Sequence[str], domain: Domain | None) -> dict[str, Any]:
    if isinstance(domain, SpaceArms | SpaceBox):
        return domain.space.decode(x.unsqueeze(0))[0]
    return dict(zip(names or [f"x{j + 1}" for j in range(len(x))], x.tolist(), strict=True))


def _slices(state: State, domain: Domain, names: Sequence[str], report: Report | None) -> list[Slice]:
    """Return the model along each of the first inputs through the best point, as far as the domain has points there."""
    x = None if report is None else report.best_x
    if x is None:
        return []
    x = x.to(device="cpu", dtype=torch.float64)
    made = [_slice(state, domain, x, j, name) for j, name in enumerate(names[:MOST_SLICES])]
    return [one for one in made if one is not None]


def _slice(state: State, domain: Domain, x: Tensor, j: int, name: str) -> Slice | None:
    here: Any = float(x[j]) if not isinstance(domain, SpaceArms | SpaceBox) else None
    log = False
    if isinstance(domain, SpaceArms | SpaceBox):
        point = domain.space.decode(x.unsqueeze(0))[0]
        values, here, log = _along(domain.space, name), point[name], bool(getattr(domain.space.parameters[name], "log", False))
        try:
            picks = domain.check("slice", [{**point, name: value} for value in values])
        except ValueError:  # some of these combinations are no arms, for they are not feasible
            return None
    elif isinstance(domain, Box):
        low, high = domain.bounds.double()[:, j].tolist()
        values = np.linspace(low, high, SLICE_POINTS).tolist()
        picks = x.repeat(SLICE_POINTS, 1)
        picks[:, j] = torch.tensor(values, dtype=torch.float64, device="cpu")
    else:
        assert isinstance(domain, Arms)
        picks = _arms_along(domain, x, j)
        values = domain.inputs(picks).double()[:, j].tolist()
    if len(values) < (2 if isinstance(domain, SpaceArms | SpaceBox) else 3):
        return None
    found = predictions_of(state, picks)
    if found is None:
        return None
    lower, median, upper = (column.double().cpu().numpy() for column in (found.lower, found.median, found.upper))
    return Slice(name, list(values), log, here, lower, median, upper, found.floor)


def _along(space: Space, name: str) -> list[Any]:
    """Return values of a parameter, spread over its range."""
    parameter = space.parameters[name]
    if isinstance(parameter, Choice):
        return list(parameter.values)[:SLICE_POINTS]
    n = min(parameter.count or SLICE_POINTS, SLICE_POINTS)
    u = torch.linspace(0.0, 1.0, n, dtype=torch.float64, device="cpu").unsqueeze(-1)[:, : parameter.width]
    values = parameter.decode(u)
    return list(dict.fromkeys(values)) if isinstance(parameter, Int) or parameter.count else list(values)


def _arms_along(domain: Arms, x: Tensor, j: int) -> Tensor:
    """Return the arms that differ from a point in one input alone, by that input; only of arms in memory."""
    if not isinstance(domain.points, Tensor):
        return torch.zeros(0, dtype=torch.long, device="cpu")
    X = domain.points.double()
    others = [k for k in range(X.shape[1]) if k != j]
    rows = (X[:, others] == x[others]).all(dim=-1).nonzero().squeeze(-1)
    order = X[rows, j].argsort(stable=True)
    rows = rows[order]
    return rows[torch.linspace(0, len(rows) - 1, min(len(rows), SLICE_POINTS), device="cpu").round().long()]
