"""What a page tells of a run, gathered from its journal or from its result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.dictionary import Certificate
from sparse_bo.domains import Arms, ArmSet, Box, Domain, Int, Space, SpaceArms, SpaceBox
from sparse_bo.domains.encoded import names_of
from sparse_bo.errors import StorageError
from sparse_bo.policies import Report, State
from sparse_bo.runs.history import History
from sparse_bo.runs.predictions import predictions_of, replayed
from sparse_bo.runs.records import read_run

SLICE_POINTS = 41
MOST_SLICES = 12
"""Inputs whose slices are drawn, at most."""


@dataclass(frozen=True)
class Slice:
    """The model along one input through the best point."""

    name: str
    values: list[Any]
    """Of the input: numbers, or names."""
    log: bool
    here: Any
    """Its value at the best point."""
    mean: NDArray[np.float64]
    sd: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Everything that a page tells."""

    about: Mapping[str, Any]
    """What identifies the run."""
    history: History
    asked: int
    told: int
    failed: int
    names: Sequence[str]
    """Of the inputs."""
    columns: Mapping[str, list[Any]]
    """Value of each input at every evaluation, in the order of the history."""
    values: NDArray[np.float64]
    """Result of every evaluation, NaN where it failed, in that order."""
    best: Mapping[str, Any]
    """The best point by name; empty without one."""
    report: Report | None
    slices: Sequence[Slice]
    certificate: Certificate | None
    residuals: NDArray[np.float64]
    differing: Sequence[str]
    missing: str | None
    """Why there is no model, if there is none for a reason."""
    regret: NDArray[np.float64] | None
    source: str | None
    """Name of the journal."""
    logs: Mapping[str, bool]
    """Which inputs are on a logarithmic scale."""


def facts_of_journal(path: str | Path, *, arms: ArmSet | None = None, regret: Sequence[float] | None = None) -> Facts:
    """Gather what a journal says, also while it is being written. Costs what a resume costs; writes nothing.

    Args:
        path: Of the journal.
        arms: Those of the run, where they were too many to be kept.
        regret: Of every evaluation in order, where the truth is known.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of a newer version.
    """
    recorded = read_run(path)
    domain: Domain | None = None
    state: State | None = None
    certificate: Certificate | None = None
    residuals: list[float] = []
    differing: list[str] = []
    missing: str | None = None
    try:
        domain, state, certificate, residuals, differing = replayed(path, arms=arms)
    except StorageError:
        raise
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        missing = str(error)
    return _facts(
        recorded.about,
        recorded.history,
        (recorded.asked + recorded.before, recorded.told, recorded.failed),
        domain=domain,
        state=state,
        certificate=certificate,
        residuals=residuals,
        differing=differing,
        missing=missing,
        regret=regret,
        source=Path(path).name,
    )


class Finished(Protocol):
    """What is needed of a :class:`sparse_bo.Result`, which makes its page itself."""

    @property
    def history(self) -> History:
        """One row per batch."""
        ...

    @property
    def state(self) -> State:
        """At the end."""
        ...

    @property
    def domain(self) -> Domain | None:
        """Where was searched."""
        ...


def facts_of_result(result: Finished, *, regret: Sequence[float] | None = None) -> Facts:
    """Gather what a result in memory says: no residuals, as predictions before the results are not kept."""
    values = [value for row in result.history.rows for value in row.values]
    failed = sum(map(math.isnan, values))
    counts = (len(values), len(values) - failed, failed)
    return _facts(result.history.info, result.history, counts, domain=result.domain, state=result.state, regret=regret)


def _facts(
    about: Mapping[str, Any],
    history: History,
    counts: tuple[int, int, int],
    *,
    domain: Domain | None,
    state: State | None,
    certificate: Certificate | None = None,
    residuals: Sequence[float] = (),
    differing: Sequence[str] = (),
    missing: str | None = None,
    regret: Sequence[float] | None = None,
    source: str | None = None,
) -> Facts:
    report = None if state is None else state.report()
    names, columns, logs = _columns(about, history, domain)
    best = {} if report is None or report.best_x is None else _named(report.best_x, names, domain)
    return Facts(
        about=about,
        history=history,
        asked=counts[0],
        told=counts[1],
        failed=counts[2],
        names=names,
        columns=columns,
        logs=logs,
        values=np.array([value for row in history.rows for value in row.values], np.float64),
        best=best,
        report=report,
        slices=[] if state is None or domain is None or not best else _slices(state, domain, names, report),
        certificate=certificate,
        residuals=np.array(residuals, np.float64),
        differing=differing,
        missing=missing,
        regret=None if regret is None else np.asarray(regret, np.float64),
        source=source,
    )


def _columns(
    about: Mapping[str, Any], history: History, domain: Domain | None
) -> tuple[list[str], dict[str, list[Any]], dict[str, bool]]:
    """Return the names of the inputs, and the value of each at every evaluation, as far as it is known."""
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
    said = predictions_of(state, picks) if len(values) > 2 or isinstance(domain, SpaceArms | SpaceBox) else None
    if said is None or len(values) < 2:
        return None
    return Slice(name, list(values), log, here, said.mean.cpu().numpy(), said.sd.cpu().numpy())


def _along(space: Space, name: str) -> list[Any]:
    """Return values of a parameter, spread over its range."""
    parameter = space.parameters[name]
    low, high = getattr(parameter, "low", None), getattr(parameter, "high", None)
    if low is None or high is None:
        return list(parameter.values)[:SLICE_POINTS]  # type: ignore[union-attr]  # a Choice
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
