"""Sums, rows and choices over data that is spread over ranks: what a sparse posterior and its likelihoods need of all rows.

A rank holds ``n_r`` of the ``n`` rows, numbered through all ranks in their order. What travels are sums of size m² and a few
rows: O(m²) bytes for a posterior or a likelihood, O(parameters) for its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.gp.woodbury import LowRankSums
from sparse_bo.models.sparse_gp.leverage_sampling import (
    PILOT_POINTS,
    distinct_inputs,
    judged_rows,
    needed_size,
    pilot_posterior,
    race_weights,
    race_winners,
    sample_size,
    uniform_rows,
)
from sparse_bo.models.sparse_gp.representation import PriorKernel
from sparse_bo.models.sparse_gp.row_sums import fit_dtc_among
from sparse_bo.sharding import Group

SUMS = "sums over rows"


class Rows:
    """Where the rows of a data set lie. A value."""

    def __init__(self, group: Group, here: int) -> None:
        """Tell every rank how many rows the others hold.

        Args:
            group: The ranks.
            here: Rows of this one.

        Raises:
            RankError: If a rank has failed or is lost.
        """
        self.group = group
        counts = [int(told[0]) for told in group.numbers("counting rows", [here])]
        self.starts = [0, *accumulate(counts)]

    @property
    def total(self) -> int:
        """Number n of rows on all ranks."""
        return self.starts[-1]

    @property
    def start(self) -> int:
        """Number of this rank's first row."""
        return self.starts[self.group.rank]

    @property
    def here(self) -> slice:
        """Numbers of this rank's rows."""
        return slice(self.start, self.starts[self.group.rank + 1])

    def own(self, numbers: Tensor) -> Tensor:
        """See :class:`~sparse_bo.models.sparse_gp.row_sums.AllRows`."""
        mine = numbers - self.start
        return mine[(mine >= 0) & (mine < self.here.stop - self.start)]

    def summed(self, parts: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """See :class:`~sparse_bo.models.sparse_gp.row_sums.AllRows`. Two collectives; no gradients."""
        with self.group.shielded(SUMS):
            local = list(parts())
        return self.group.total(SUMS, local)

    def gathered(self, numbers: Tensor, *columns: Tensor) -> list[Tensor]:
        """Return some rows (``q`` numbers, ascending) of every tensor, ``q x …``, on every rank. Two collectives."""
        mine = self.own(numbers)
        told = self.group.tensors("gathering rows", [column.detach()[mine] for column in columns])
        return [torch.cat([part[place] for part in told]).to(column) for place, column in enumerate(columns)]


def _sums(rows: Rows, parts: Sequence[Tensor]) -> LowRankSums:
    gram, projected, squares, log_noise, unexplained = parts
    return LowRankSums(gram, projected, squares, log_noise, unexplained, rows.total)


class _Total(torch.autograd.Function):
    """Sums over all ranks of sums over local rows, as a function of parameters that every rank has.

    The derivative by a parameter is the sum of every rank's share: the backward pass computes this rank's sums once more, with
    gradients, and adds the shares up. So every rank ends with the same gradient, that of all rows.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, local: Callable[[], Sequence[Tensor]], *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.local = group, local
        ctx.save_for_backward(*parameters)
        with torch.no_grad():
            return tuple(group.total(SUMS, list(local())))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parameters = ctx.saved_tensors
        with torch.enable_grad():
            sums = ctx.local()
            shares = torch.autograd.grad(sums, parameters, gradients, allow_unused=True)
        filled = [torch.zeros_like(p) if share is None else share for p, share in zip(parameters, shares, strict=True)]
        return None, None, *ctx.group.total("gradients", filled)


def differentiable_sums(rows: Rows, local: Callable[[], LowRankSums], parameters: Sequence[Tensor]) -> LowRankSums:
    """Return the sums over the rows of all ranks, with gradients by the parameters. Two collectives, two more for the gradient.

    Args:
        rows: Where the rows lie.
        local: Returns this rank's sums, computed from the parameters as they are.
        parameters: Of the model, the same on every rank; those that require gradients.
    """

    def parts() -> list[Tensor]:
        sums = local()
        return [sums.gram, sums.projected, sums.squares, sums.log_noise, sums.unexplained]

    total: tuple[Tensor, ...] = _Total.apply(rows.group, parts, *parameters)  # type: ignore[no-untyped-call]  # as torch types it
    return _sums(rows, total)


def fit_of_all(rows: Rows, kernel: PriorKernel, points: Tensor, X: Tensor, *, residuals: Tensor, noise: Tensor) -> dtc.DTC:
    """Fit the DTC posterior over a dictionary to the rows of all ranks, the same everywhere. O(n_r m² + m³) a rank.

    Args:
        rows: Where the rows lie.
        kernel: The prior covariance.
        points: ``m x d``, the dictionary, transformed.
        X: ``n_r x d``, this rank's inputs, transformed.
        residuals: ``n_r``: targets less the prior mean.
        noise: ``n_r`` noise variances.

    Raises:
        ValueError: If a kernel matrix is not finite or has no positive eigenvalue.
    """
    state = fit_dtc_among(rows, kernel, points, X, residuals=residuals, noise=noise)
    largest = rows.group.largest("the largest precision", [float(state.largest_precision)])[0]
    return replace(state, largest_precision=state.largest_precision.new_tensor(largest))


def chosen_points(
    rows: Rows, kernel: PriorKernel, X: Tensor, raw: Tensor, noise: Tensor, *, size: int, generator: torch.Generator
) -> Tensor:
    """Choose a dictionary of at most ``size`` rows by leverages, as one process with all rows would. O(n_r p²).

    The law of :func:`sparse_bo.models.sparse_gp.leverage_sampling.default_rows`: every rank computes the leverages of its own
    rows from a pilot that all of them share, and runs the exponential races with the numbers that belong to its rows; the
    winners of all ranks meet. Rows that repeat are not merged before, but a point enters once. Draws on every rank what one
    process draws.

    Args:
        rows: Where the rows lie.
        kernel: The prior covariance.
        X: ``n_r x d``, transformed.
        raw: ``n_r x d``, in the user's units.
        noise: ``n_r`` noise variances (y²).
        size: At most so many points, ≥ 1.
        generator: A CPU generator in the same state on every rank.

    Returns:
        ``m x d`` points in the user's units, the same on every rank.
    """
    n = rows.total
    numbers = uniform_rows(n, min(PILOT_POINTS, size), generator=generator, device=X.device)
    (pilot,) = rows.gathered(numbers, X)
    with rows.group.shielded("leverages"):
        weights = race_weights(pilot_posterior(kernel, pilot, X, torch.zeros_like(noise), noise, among=rows).leverages)
    (dimension,) = rows.group.total("leverages", [weights.sum()])
    wanted = sample_size(float(dimension), size)
    draws = torch.rand(n, generator=generator, device="cpu", dtype=torch.float64)[rows.here].to(X.device)
    races = draws.log() / weights
    first = race_winners(races, wanted)
    mine = [races[first], first + rows.start, raw[first], X[first]]
    told = rows.group.tensors("choosing a dictionary", mine)
    values, indices, points, inputs = (torch.cat([part[place] for part in told]) for place in range(4))
    winners = race_winners(values, wanted)
    winners = winners[distinct_inputs(points[winners]).rows]
    judged_X, judged_noise = rows.gathered(judged_rows(n, X.device), X, noise)
    winners = winners[: needed_size(kernel, inputs[winners].to(X), judged_X, judged_noise, n=n).size]
    return points[winners[indices[winners].argsort()]].to(raw)
