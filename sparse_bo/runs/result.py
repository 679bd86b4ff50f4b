"""The result of a run: best arms or points, history, state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains import Domain, Int, Space, SpaceArms, SpaceBox
from sparse_bo.evaluations.executors import optional
from sparse_bo.evaluations.results import has_sds, sds_of, unused
from sparse_bo.policies import Outcomes, Report, State
from sparse_bo.runs.columns import estimated, front_of, importance_of
from sparse_bo.runs.history import History, report_of, written_whole
from sparse_bo.runs.inputs import checked_inputs
from sparse_bo.runs.view import columns_of, inputs_of, outcome_models, predictions_of, view_of, widening
from sparse_bo.widths.estimates import Calibration

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


@dataclass(frozen=True, kw_only=True, eq=False)
class Best:
    """The best point of a run: ``mean`` and ``sd`` are estimates, ``outcomes`` were measured."""

    x: NDArray[np.float64]
    """``d`` inputs."""
    mean: float
    """Posterior mean of the objective there (without a model: mean observation)."""
    sd: float
    """Posterior standard deviation there; NaN without a model."""
    parameters: Mapping[str, Any]
    """The point by name; empty without a space, or a table of arms with names of columns."""
    outcomes: Mapping[str, float] = field(default_factory=dict)
    """Mean of the observed outcomes there, by name; empty with one outcome."""
    name: str | None = None
    """Name of the arm; ``None`` without names."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FrontPoint:
    """A feasible evaluation that no other one dominates: none is at least as good in all objectives, and better in one."""

    x: NDArray[np.float64]
    """``d`` inputs."""
    index: int | None
    """Row of the arm; ``None`` on a box."""
    parameters: Mapping[str, Any]
    """The point by name; empty without a space, or a table of arms with names of columns."""
    outcomes: Mapping[str, float]
    """Observed outcomes by name."""
    estimates: Mapping[str, float]
    """Medians of the outcomes by the models where replicates show noise, else the observed outcomes. The front is theirs."""
    ticket: int
    """Number of the evaluation."""
    name: str | None = None
    """Name of the arm; ``None`` without names."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Result(Report):
    """The best arms or points of a run (:class:`sparse_bo.policies.Report`, points in the user's dtype), and how it went."""

    history: History
    """One row per batch."""
    state: State
    """The state at the end, with observations, posterior or model, and width; of −y in a run that minimises."""
    domain: Domain
    """Where was searched."""
    ended: str | None = None
    """Reason for an end before the budget; ``None`` without one."""

    @property
    def space(self) -> Space | None:
        """Of the named parameters, if the run has such."""
        return self.domain.space if isinstance(self.domain, SpaceArms | SpaceBox) else None

    @property
    def best(self) -> Best:
        """The best point in plain types, with the fields ``x``, ``mean``, ``sd``, ``parameters``, ``outcomes`` and ``name``.

        With constraints: the best feasible one; while none is feasible, that of the least violation.

        Raises:
            ValueError: If no evaluation has succeeded, or there are several objectives.
        """
        outcomes = self.history.outcomes
        if outcomes is not None and outcomes.only is None:
            raise ValueError(
                f"expected one objective, got {len(outcomes.objectives)} ({', '.join(outcomes.objectives)}), of which no "
                "point is the best; choose one of result.pareto_front"
            )
        if self.best_x is None or self.best_mean is None:
            every = "" if outcomes is None else f" with all of {', '.join(outcomes.names)}"
            raise ValueError(f"expected a successful evaluation{every}, got none: there is no best point yet; evaluate more")
        sd = math.nan if self.best_sd is None else self.best_sd
        x = self.best_x.to("cpu", torch.float64, copy=True).numpy()
        observed: dict[str, float] = {}
        if outcomes is not None:
            Y, X, _ = self._evaluations(outcomes)
            arms = self.history.indices  # other arms may have equal inputs
            there = (x == X).all(axis=1) if self.best_index is None else np.array(arms) == self.best_index
            at = Y[torch.from_numpy(there)]
            observed = dict(zip(outcomes.names, at.nanmean(dim=0).tolist(), strict=True))
        names = self.history.info.get("names")
        name = None if names is None or self.best_index is None else names[self.best_index]
        return Best(x=x, mean=self.best_mean, sd=sd, parameters=self.best_parameters or {}, outcomes=observed, name=name)

    @property
    def pareto_front(self) -> list[FrontPoint]:
        """The feasible evaluations that no other one dominates, by their first objective, the best first; O(n²).

        Where replicates show noise, by the models' estimates, as some results are better by luck; limits are kept by the result
        and by its estimate. With one objective it is the point of ``best``, if that is feasible.

        Raises:
            ValueError: If the run has one outcome.
        """
        outcomes = self.history.outcomes
        if outcomes is None:
            raise ValueError("expected a run with objectives=, got one of one outcome; its best point is result.best")
        Y, X, named = self._evaluations(outcomes)
        _, rows = front_of(outcomes, Y, self)
        estimates = estimated(Y, self)
        tickets, arms, names = self.history.tickets, self.history.indices, self.history.info.get("names")
        return [
            FrontPoint(
                x=X[k],
                index=arms[k] if arms else None,
                parameters=(self._named(torch.from_numpy(X[k])) or {}) if named is None else named[k],
                outcomes=dict(zip(outcomes.names, Y[k].tolist(), strict=True)),
                estimates=dict(zip(outcomes.names, estimates[k].tolist(), strict=True)),
                ticket=tickets[k],
                name=names[arms[k]] if names and arms else None,
            )
            for k in rows.tolist()
        ]

    def _evaluations(self, outcomes: Outcomes) -> tuple[Tensor, NDArray[np.float64], list[dict[str, Any]] | None]:
        """Return the outcomes (``n x m``), the inputs (``n x d``) and the named parameters of all evaluations, in order."""
        Y = torch.tensor(self.history.results, dtype=torch.float64, device="cpu").reshape(-1, len(outcomes.names))
        X = inputs_of(self.history, self.domain)
        return Y, np.zeros((0, self.domain.dims)) if X is None else X, self.history.parameters

    @property
    def best_parameters(self) -> dict[str, Any] | None:
        """:attr:`best_x` by name; ``None`` without data, or without a space or a table of arms with names of columns."""
        return self._named(self.best_x)

    @property
    def best_observed_parameters(self) -> dict[str, Any] | None:
        """:attr:`best_observed_x` by name; ``None`` as for :attr:`best_parameters`."""
        return self._named(self.best_observed_x)

    def _named(self, x: Tensor | None) -> dict[str, Any] | None:
        if x is None:
            return None
        if self.space is not None:
            return self.space.decode(x.unsqueeze(0))[0]
        columns: list[str] = self.history.info.get("inputs", [])  # of a table of arms
        return dict(zip(columns, x.tolist(), strict=True)) if columns else None

    @property
    def calibration(self) -> Calibration | None:
        """Distances of the results from the predictions made before their batches; ``None`` without a model."""
        return self.history.calibration

    @cached_property
    def importance(self) -> dict[str, float] | None:
        """Share of each input in the variance of the posterior mean, by name, the largest first; they add up to 1.

        An input's part is its total effect (Homma & Saltelli 1996), with its interactions, under the uniform distribution on
        the box, or on the bounding box of the arms as the model knows them (columns over decades by their logarithms:
        :class:`sparse_bo.policies.ExpectedImprovement`): in closed form for a Gaussian kernel, else from a fixed Sobol sample.
        An input with one value in all evaluations has none. In place of the local model of :class:`sparse_bo.TrustRegion` one
        is learned from up to 300 evaluations of the whole run. ``None`` without a model, and under those that have one over the
        arms alone (:class:`sparse_bo.BBKB`, …).

        Raises:
            ValueError: If the run has several outcomes: :attr:`importance_by_outcome`.
        """
        if (outcomes := self.history.outcomes) is not None and len(outcomes.names) > 1:
            raise ValueError(f"expected one outcome, got {', '.join(outcomes.names)}; use result.importance_by_outcome")
        found = importance_of(self.state, self.domain)
        return next((dict(one.shares) for one in found.values()), None)

    @cached_property
    def importance_by_outcome(self) -> dict[str, dict[str, float]]:
        """:attr:`importance` of the inputs for each outcome, by its name; one without a model, or with a flat one, is left out.

        Raises:
            ValueError: If the objective has no name.
        """
        if self.history.outcomes is None:
            raise ValueError("expected a run with objectives=, got one whose objective has no name; use result.importance")
        return {name: dict(found.shares) for name, found in importance_of(self.state, self.domain).items()}

    def predict(self, X: Any) -> dict[str, NDArray[np.float64]]:
        """Return the model's predictions of the objective without noise, in its units: columns for a table.

        ``value`` (with several outcomes, the name of each) is the median; ``value_lower`` and ``value_upper`` are the quantiles
        at 2.5 % and 97.5 %, as wide as in the slices of the report. Values worse than some limit the model does
        not tell apart: a median or a worse end there is infinite, a better end is that limit. The local model of
        :class:`sparse_bo.TrustRegion` knows at most ``model_size`` points, most of them near the best one. Where an outcome has
        the name of a quantile of another, that quantile ends in ``_``.

        Args:
            X: ``n`` points, dictionaries of a space, rows or names of arms, or a pandas table, as those of
                :meth:`sparse_bo.AskTell.add`.

        Returns:
            ``n`` numbers in each column.

        Raises:
            TypeError: If inputs have the wrong type or dtype.
            ValueError: If an input is not in the domain, or the run has no model.

        Example:
            >>> pandas.DataFrame(result.predict([{"temperature": 67.0, "time": 30}]))
        """
        X = X.to(self.domain.like.device) if isinstance(X, Tensor) else X  # local models of a box are on the CPU
        picks, minimize = checked_inputs("predicted", X, self.domain), self.history.minimize
        outcomes, state = self.history.outcomes, self.state
        if outcomes is None:
            found = {"value": predictions_of(state, picks, minimize=minimize, widened=widening(state))}
        else:
            models = outcome_models(state, widen=True)
            found = {name: model(picks) for name, model in zip(outcomes.names, models, strict=bool(models))}
        table = dict[str, NDArray[np.float64]]()
        for of, each in found.items():
            if each is not None:
                names = of, unused(f"{of}_lower", found), unused(f"{of}_upper", found)
                ends = each.median, each.lower, each.upper
                table |= {name: numbers.to("cpu", torch.float64).numpy() for name, numbers in zip(names, ends, strict=True)}
        if not table:
            raise ValueError(
                f"expected a run with a model, got policy {self.history.info.get('policy')!r} after "
                f"{self.history.observations:,} evaluations, which has none (yet)"
            )
        return table

    def to_pandas(self) -> DataFrame:
        """Return one row per evaluation, in order: its inputs by name, ``ticket``, ``batch`` and ``value`` (y).

        Candidates have ``arm``, their row number, too; inputs of a pandas table have the names of its columns, with ``_``
        behind one that is the name of another column here.

        ``initial=``, :meth:`sparse_bo.AskTell.add` and ``enqueue`` take the table as inputs: a parameter that is not there has
        an empty cell. Arms with names have ``name``, too; ``added`` says which evaluations the run has not asked for, if there
        are any. A failed evaluation has the value NaN; ``initial=`` takes the word ``failed`` in its place. With several
        outcomes there is a column for each, and ``feasible``. Where the noise of some results is known, there are their
        standard deviations: ``value_sd``, or one for each outcome. Of columns of one name, inputs first, later ones end in
        ``_``.

        Raises:
            ImportError: If pandas is not installed.
        """
        rows = self.history.rows
        own: dict[str, Any] = {
            "ticket": self.history.tickets,
            "batch": [row.round for row in rows for _ in row.values],
            **({"arm": self.history.indices} if self.history.indices and self.space is None else {}),
            **({"name": self.history.names} if self.history.names else {}),
            **({"added": [row.added for row in rows for _ in row.values]} if any(row.added for row in rows) else {}),
        }
        results: list[tuple[str, list[Any]]] = [("value", [value for row in rows for value in row.values])]
        if (outcomes := self.history.outcomes) is not None:
            Y, _, _ = self._evaluations(outcomes)
            results = [*zip(outcomes.names, Y.T.tolist(), strict=True), ("feasible", outcomes.feasible(Y).tolist())]
        if has_sds(every := self.history.results):
            names = ("value",) if outcomes is None else outcomes.names
            results += [(f"{name}_sd", [*column]) for name, column in zip(names, zip(*sds_of(every), strict=True), strict=True)]
        pandas, (_, inputs, _) = optional("pandas"), columns_of(self.history, self.domain)
        kinds = {} if self.space is None else self.space.parameters
        table = {  # integers stay integers beside empty cells
            name: pandas.array([None if x != x else x for x in column], dtype="Int64")
            if isinstance(kinds.get(name), Int) and kinds[name].when is not None
            else column
            for name, column in inputs.items()
        }
        for name, column in (*own.items(), *results):
            table[unused(name, table)] = column
        frame: DataFrame = pandas.DataFrame(table)
        return frame

    def plot(
        self, path: str | Path | None = None, *, regret: Sequence[float] | None = None, best_possible: float | None = None
    ) -> Figure:
        """Draw the run, as :meth:`History.plot` does; with a ``path``, whose ending decides the format, save the figure there.

        Raises:
            ValueError: If the run has no batches, or has not as many evaluations as ``regret`` has numbers.
            OSError: If the file cannot be written.
        """
        self._check_regret(regret)
        figure = self.history.plot(regret=regret, best_possible=best_possible)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure

    def report(self, path: str | Path | None = None, *, regret: Sequence[float] | None = None) -> str:
        """Return the run as one page of HTML: best point, warnings, progress, inputs, slices of the posterior, time, settings.

        It needs no network and runs no script. A journal has the residuals of single results, too:
        ``python -m sparse_bo report run.journal --html out.html``.

        Args:
            path: Also write it there; an existing file is replaced once all is written.
            regret: Of every evaluation in order, where the truth is known.

        Raises:
            ValueError: If the run has not as many evaluations as ``regret`` has numbers.
            OSError: If the file cannot be written.
        """
        self._check_regret(regret)
        from sparse_bo.report.page import run_page  # matplotlib is slow to import

        view = partial(view_of, self.history, self.state, self.domain, regret=regret)
        return run_page(view()) if path is None else write_page(path, lambda: run_page(view()))

    def _check_regret(self, regret: Sequence[float] | None) -> None:
        evaluations = self.history.observations
        if regret is not None and len(regret) != evaluations:
            raise ValueError(f"expected the regret of every evaluation, {evaluations} numbers, got {len(regret)}")

    def __repr__(self) -> str:
        """Return the best point and how many observations there are, those before the run included, in one line."""
        best: dict[str, Any] = {"best_index": self.best_index, "best_x": _shown(self.best_x)}
        if self.space is not None:
            best = {"best_parameters": self.best_parameters}
        said = {
            "policy": self.history.info.get("policy"),
            "observations": self.history.observations,
            "failed": sum(row.failed for row in self.history.rows) or None,
            **best,
            "best_mean": self.best_mean,
            "best_sd": self.best_sd,
            "feasible": self.feasible,
            "front": None if self.front is None else len(self.front),
            "hypervolume": self.hypervolume,
        }
        return f"Result({', '.join(f'{name}={value!r}' for name, value in said.items() if value is not None)})"

    def _repr_html_(self) -> str:
        """Return the best point and a table of the run, for notebooks."""
        from sparse_bo.report.page import result_card

        return result_card(view_of(self.history, self.state, self.domain, most_slices=0))


def result_of(state: State, history: History, domain: Domain, *, like: Tensor) -> Result:
    """Return the result of a run with this state; points have dtype and device of ``like``."""
    report = report_of(state, minimize=history.minimize)
    values = {field.name: getattr(report, field.name) for field in fields(Report)}
    for name, value in values.items():
        if isinstance(value, Tensor):  # a copy: the state keeps its own
            dtype = like.dtype if name in ("best_x", "best_observed_x") else value.dtype
            values[name] = value.to(like.device, dtype, copy=True)
    return Result(**values, history=history, state=state, domain=domain)


def _shown(x: Tensor | None) -> list[float | str] | None:
    """Return a point for a line of text: its first twelve inputs, and how many more there are."""
    if x is None:
        return None
    shown: list[float | str] = [float(f"{value:.6g}") for value in x[:12].tolist()]
    return shown if len(x) <= 12 else [*shown, f"… {len(x) - 12} more"]


def write_page(path: str | Path, made: Callable[[], str]) -> str:
    """Make a page and write it, if it can be written; an existing file is replaced only once all is written."""
    with written_whole(path) as partial:
        page = made()
        partial.write_text(page, encoding="utf-8", errors="backslashreplace")
    return page
