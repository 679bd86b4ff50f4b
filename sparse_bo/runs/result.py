"""What a run returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sparse_bo.policies import State
from sparse_bo.runs.history import History, HistoryRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Result:
    """The best arms or points of a run, and how it went."""

    best_index: int | None
    """Arm with the highest posterior mean (without a model: with the highest mean observation); ``None`` without data, or on
    a box."""
    best_x: Tensor | None
    """``d``, that arm; on a box, the evaluated point with the highest posterior mean."""
    best_mean: float | None
    """Its posterior mean (mean observation)."""
    best_sd: float | None
    """Posterior standard deviation of the objective there; ``None`` without a model."""
    best_observed_index: int | None
    """Arm with the highest mean observation (a lucky arm seen once can win: prefer ``best_index`` under noise)."""
    best_observed_x: Tensor | None
    """``d``, that arm; on a box, the point with the highest observation."""
    best_observed_mean: float | None
    """Mean of its observations."""
    best_observed_count: int | None
    """Number of its observations."""
    history: History
    """One row per batch."""
    survivors: Tensor | None
    """Arms (ascending) that can still be optimal, for policies that eliminate: see :meth:`EliminationState.describe`; on a box,
    the candidates (``… x d``) that can. ``None`` where nothing is eliminated."""
    state: State
    """The state at the end: observations, posterior or model, width."""

    def plot(
        self, path: str | Path | None = None, *, regret: Sequence[float] | None = None, best_possible: float | None = None
    ) -> Figure:
        """Draw the run: best value, batch sizes, dictionary and effective dimension, time by phase.

        Args:
            path: Also save the figure there (the ending decides the format).
            regret: Of every evaluation in order, where the truth is known: draw its sum instead of the best value.
            best_possible: Highest true value, where it is known: draw the gap to it instead of the best value.

        Raises:
            ValueError: If the run has no batches.
            OSError: If the file cannot be written.
        """
        from sparse_bo.runs.figures import plot_history  # matplotlib is slow to import

        figure = plot_history(self.history, regret=regret, best_possible=best_possible)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def make_result(state: State, history: History, *, dtype: torch.dtype) -> Result:
    """Summarise a state; the best points are given in the user's ``dtype``."""
    report = state.report()
    return Result(
        best_index=report.best_index,
        best_x=None if report.best_x is None else report.best_x.to(dtype),
        best_mean=report.best_mean,
        best_sd=report.best_sd,
        best_observed_index=report.best_observed_index,
        best_observed_x=None if report.best_observed_x is None else report.best_observed_x.to(dtype),
        best_observed_mean=report.best_observed_mean,
        best_observed_count=report.best_observed_count,
        history=history,
        survivors=report.survivors,
        state=state,
    )


def make_row(
    state: State,
    *,
    indices: list[int],
    points: list[list[float]] | None,
    values: list[float | None],
    rechecked: int,
    variance_factor: float | None,
    seconds: dict[str, float],
) -> HistoryRow:
    """Return the history row of a batch, from the state after it."""
    report = state.report()
    return HistoryRow(
        round=state.round,
        pulls=state.pulls,
        batch_size=len(values),
        failed=sum(v is None for v in values),
        indices=indices,
        points=points,
        values=values,
        best_index=report.best_index,
        best_mean=report.best_mean,
        best_observed=report.best_observed_mean,
        dictionary_size=report.dictionary_size,
        rank=report.rank,
        jitter=report.jitter,
        effective_dimension=report.effective_dimension,
        width=report.width,
        survivors=None if report.survivors is None else len(report.survivors),
        rechecked=rechecked,
        variance_factor=variance_factor,
        seconds=seconds,
    )
