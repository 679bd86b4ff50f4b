"""Small runs on a sample of the arms, from which dictionary size and batches of the whole run are extrapolated."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from sparse_bo.core.linalg import safe_cholesky
from sparse_bo.history import HistoryRow
from sparse_bo.kernels import covariance_function
from sparse_bo.loop import AskTell
from sparse_bo.policies.ucb import UCBPolicy

PILOT_ARMS = 2048
"""Arms of a pilot; another with a quarter of them shows how the dictionary grows with their number."""
DRAWS = 3
"""Objectives per size: one draw of a Gaussian process is not like another."""
SHRINKING = 0.5
"""Growth with the number of arms slows down beyond the pilots: share of their exponent that is believed."""


@dataclass(frozen=True)
class Growth:
    """What a run of ``budget`` evaluations on ``arms`` arms is expected to do."""

    dictionary_size: float
    """Points in the last dictionary."""
    mean_size: float
    """Root mean square over the batches."""
    batches: float
    distinct: float
    """Distinct arms pulled."""
    overhead: float
    """Seconds of one batch at the pilot's number of arms, without its picks."""
    seconds: float
    """That the pilots took."""


@dataclass(frozen=True)
class _Trace:
    """One pilot."""

    rows: Sequence[HistoryRow]
    seconds: float

    def at(self, pulls: float, of: Callable[[HistoryRow], float]) -> float:
        return next((of(row) for row in self.rows if row.pulls >= pulls), of(self.rows[-1]))


def run_pilots(
    sample: Callable[[int], Tensor],
    policy: UCBPolicy,
    *,
    arms: int,
    budget: int,
    seconds: float,
    seconds_per_pick: float,
    generator: torch.Generator,
) -> Growth:
    """Run the policy on prior draws over samples of the arms and extrapolate in the number of arms and evaluations.

    Every pilot runs the whole budget if it can in its share of the time; else batches and dictionary are continued from its
    last three quarters, halfway between a straight line in log T (smooth kernels) and a power law (rough ones).

    Args:
        sample: Draws ``p x d`` arms.
        policy: With kernel and regularization.
        arms: Of the run.
        budget: Evaluations of the run.
        seconds: For all pilots together, about.
        seconds_per_pick: Measured elsewhere; taken off the pilots' time.
        generator: CPU generator.
    """
    start = time.perf_counter()
    most = min(PILOT_ARMS, arms)
    sizes = [most] if most == arms else [max(most // 4, 1), most]
    traces = {size: _pilots(sample(size), policy, budget, seconds / len(sizes), generator) for size in sizes}
    whole = traces[most]

    def forecast(of: Callable[[HistoryRow], float]) -> float:
        value = fmean([_continued(trace, of, budget) for trace in whole])
        if most == arms:
            return value
        smaller = fmean([trace.at(budget, of) for trace in traces[sizes[0]]])
        larger = fmean([trace.at(min(budget, traces[sizes[0]][0].rows[-1].pulls), of) for trace in whole])
        exponent = min(max(math.log(larger / smaller) / math.log(most / sizes[0]), 0.0), 0.2)
        return value * (arms / most) ** (SHRINKING * exponent)

    size = forecast(lambda row: float(row.dictionary_size or 1))
    squares = [fmean([float(row.dictionary_size or 1) ** 2 for row in trace.rows]) ** 0.5 for trace in whole]
    last = fmean([float(trace.rows[-1].dictionary_size or 1) for trace in whole])
    batches = sum(len(trace.rows) for trace in whole)
    busy = sum(trace.seconds - seconds_per_pick * trace.rows[-1].pulls for trace in whole)
    mean_size = min(size, fmean(squares) * size / last)
    return Growth(
        dictionary_size=size,
        mean_size=mean_size,
        batches=min(forecast(lambda row: float(row.round)), float(budget)),
        distinct=min(forecast(_distinct), float(budget), float(arms)),
        overhead=max(busy / batches, 1e-4) * max(1.0, mean_size / fmean(squares)),
        seconds=time.perf_counter() - start,
    )


def _distinct(row: HistoryRow) -> float:
    """Return about how many distinct arms stand behind a dictionary: leverage sampling keeps most of them."""
    return float(row.dictionary_size or 1) * 1.5


def _pilots(X: Tensor, policy: UCBPolicy, budget: int, seconds: float, generator: torch.Generator) -> list[_Trace]:
    assert policy.covar_module is not None
    assert policy.regularization is not None
    covariance = covariance_function(policy.covar_module, like=X)
    L = safe_cholesky(covariance.cross(X, X)).factor
    noise_sd = (policy.noise_variance or policy.regularization) ** 0.5

    def normal(n: int) -> Tensor:
        return torch.randn(n, generator=generator, dtype=X.dtype).to(X.device)

    traces = []
    for draw in range(DRAWS):
        f = L @ normal(len(X)) + (policy.prior_mean or 0.0)
        loop, start = AskTell(X, policy, seed=draw), time.perf_counter()
        while loop.asked < budget and time.perf_counter() - start < seconds / DRAWS:
            batch = loop.ask(max_q=budget - loop.asked)
            assert batch.indices is not None
            loop.tell(batch.tickets, f[batch.indices] + noise_sd * normal(len(batch)))
        traces.append(_Trace(loop.history.rows, time.perf_counter() - start))
    return traces


def _continued(trace: _Trace, of: Callable[[HistoryRow], float], budget: int) -> float:
    end = trace.rows[-1]
    if end.pulls >= budget or end.pulls < 8:
        return of(end)
    early = trace.at(end.pulls / 4, of)
    first = next(row.pulls for row in trace.rows if row.pulls >= end.pulls / 4)
    if first == end.pulls or of(end) <= early:
        return of(end)
    further = math.log(budget / end.pulls) / math.log(end.pulls / first)
    straight = of(end) + (of(end) - early) * further
    power = of(end) * (of(end) / early) ** further
    return math.sqrt(straight * power)
