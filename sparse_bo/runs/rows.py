"""The history's row of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from torch import Tensor

from sparse_bo.policies import State
from sparse_bo.policies.states import Summary
from sparse_bo.policies.timing import Phase
from sparse_bo.runs.history import HistoryRow
from sparse_bo.widths.calibration import Calibration, calibration


def make_row(
    state: State,
    *,
    indices: list[int],
    points: list[list[float]] | None,
    values: list[float],
    rechecked: int,
    errors: Tensor | None,
    variance_factor: float | None,
    seconds: Mapping[Phase, float],
) -> HistoryRow:
    """Return the history row of a batch, from the state after it and the standardised errors of its results before it."""
    report = state.report()
    found = Calibration(0, 0, 0, 0.0) if errors is None else calibration(errors)
    return HistoryRow(
        **{field.name: getattr(report, field.name) for field in fields(Summary)},
        round=state.round,
        pulls=state.pulls,
        indices=indices,
        points=points,
        values=values,
        survivors=None if report.survivors is None else len(report.survivors),
        rechecked=rechecked,
        predicted=found.results,
        inside_68=found.inside_68,
        inside_95=found.inside_95,
        error_squares=found.squares,
        variance_factor=variance_factor,
        seconds=seconds,
    )
