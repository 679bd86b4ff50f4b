"""A row of the history, from the state after its batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from sparse_bo.policies import State
from sparse_bo.policies.states import Summary
from sparse_bo.policies.timing import Phase
from sparse_bo.runs.history import HistoryRow


def make_row(
    state: State,
    *,
    indices: list[int],
    points: list[list[float]] | None,
    values: list[float],
    rechecked: int,
    variance_factor: float | None,
    seconds: Mapping[Phase, float],
) -> HistoryRow:
    """Return the history row of a batch, from the state after it."""
    report = state.report()
    return HistoryRow(
        **{field.name: getattr(report, field.name) for field in fields(Summary)},
        round=state.round,
        pulls=state.pulls,
        indices=indices,
        points=points,
        values=values,
        survivors=None if report.survivors is None else len(report.survivors),
        rechecked=rechecked,
        variance_factor=variance_factor,
        seconds=seconds,
    )
