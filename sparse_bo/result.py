"""What a run returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from sparse_bo.history import History
from sparse_bo.policies import BanditState

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Result:
    """The best arms of a run, and how it went."""

    best_index: int | None
    """Arm with the highest posterior mean (without a model: with the highest mean observation); ``None`` without data."""
    best_x: Tensor | None
    """``d``, that arm."""
    best_mean: float | None
    """Its posterior mean (mean observation)."""
    best_sd: float | None
    """Posterior standard deviation of the objective there; ``None`` without a model."""
    best_observed_index: int | None
    """Arm with the highest mean observation (a lucky arm seen once can win: prefer ``best_index`` under noise)."""
    best_observed_x: Tensor | None
    """``d``, that arm."""
    best_observed_mean: float | None
    """Mean of its observations."""
    best_observed_count: int | None
    """Number of its observations."""
    history: History
    """One row per batch."""
    state: BanditState
    """The state at the end: observations, posterior, dictionary, width."""

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
        from sparse_bo.plotting import plot_history  # matplotlib is slow to import

        figure = plot_history(self.history, regret=regret, best_possible=best_possible)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def make_result(state: BanditState, history: History, arms: Tensor) -> Result:
    """Summarise a state; ``arms`` (``a x d``) are the user's own, in their dtype."""
    index, mean, sd = best_by_mean(state)
    observed_index, observed_mean, count = best_by_observation(state)
    return Result(
        best_index=index,
        best_x=None if index is None else arms[index],
        best_mean=mean,
        best_sd=sd,
        best_observed_index=observed_index,
        best_observed_x=None if observed_index is None else arms[observed_index],
        best_observed_mean=observed_mean,
        best_observed_count=count,
        history=history,
        state=state,
    )


def best_by_mean(state: BanditState) -> tuple[int | None, float | None, float | None]:
    """Return the arm with the highest posterior mean, its mean and its posterior standard deviation."""
    posterior = state.posterior
    if posterior is None:
        return (*best_by_observation(state)[:2], None)
    best = int(posterior.means.argmax())
    variance = float(posterior.leverages[best]) * posterior.surrogate.regularization
    return best, float(posterior.means[best]), variance**0.5


def best_by_observation(state: BanditState) -> tuple[int | None, float | None, int | None]:
    """Return the arm with the highest mean observation, that mean and the number of observations."""
    observations = state.observations
    if observations.n == 0:
        return None, None, None
    assert observations.indices is not None
    mean, position = observations.means.max(dim=0)
    return int(observations.indices[position]), float(mean), int(observations.counts[position])
