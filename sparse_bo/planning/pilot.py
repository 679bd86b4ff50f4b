"""Pilots: short runs on a sample of the arms, extrapolated to the dictionary size and batches of the run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean, geometric_mean
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.kernels import covariance_function
from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.policies.bandits.policy import UCBPolicy
from sparse_bo.runs.ask_tell import AskTell

DRAWS = 8
"""Number of objectives, draws of a Gaussian process."""


class PilotForecast(NamedTuple):
    """Forecast of a run of ``budget`` evaluations on ``arms`` arms."""

    dictionary_size: float
    """Points in the last dictionary."""
    mean_size: float
    """Root mean square over the batches."""
    batches: float
    batches_range: tuple[float, float]
    """Of the draws with the fewest and the most."""
    distinct: float
    """Distinct arms pulled."""
    overhead: float
    """Seconds of one batch at the pilot's number of arms, without its picks."""


class Step(NamedTuple):
    """A pilot after one of its batches."""

    pulls: float
    batches: float
    size: float
    distinct: float


class Trace(NamedTuple):
    """One pilot."""

    rows: Sequence[Step]
    seconds: float

    def at(self, pulls: float, of: Callable[[Step], float]) -> float:
        """Return a quantity after the first batch with at least ``pulls`` evaluations, or after the last."""
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
) -> PilotForecast:
    """Run the policy on prior draws over samples of the arms and extrapolate in the number of arms and evaluations.

    A pilot runs the whole budget if its share of the time suffices. Otherwise batches and dictionary are extrapolated from its
    last three quarters: the geometric mean of a line in log T (smooth kernels) and a power law (rough ones). Growth with the
    number of arms comes from the same draws restricted to a quarter of the arms, so that differences between draws cancel.
    The forecast is the geometric mean over draws, since its error is a ratio. All pilots together take about ``seconds``;
    ``seconds_per_pick`` are subtracted from their time. ``sample`` draws ``p x d`` arms.
    """
    budget = _most(policy, budget, arms)
    # Arms of a pilot; a second one on a quarter of them gives the growth with the number of arms.
    X = sample(min(2048, arms))
    most, d = X.shape
    sizes = [most] if most == arms else [max(most // 4, 1), most]
    traces = run_draws(X, sizes, policy, budget, seconds, generator)
    whole = [of_draw[-1] for of_draw in traces]

    def growth(of: Callable[[Step], float]) -> float:
        """Return the ratio of a quantity on all arms of a pilot to that on a quarter of them."""
        pairs = [(small, large, min(small.rows[-1].pulls, large.rows[-1].pulls)) for small, large in traces]
        return geometric_mean([large.at(pulls, of) / small.at(pulls, of) for small, large, pulls in pairs])

    def forecast(of: Callable[[Step], float], model: Callable[..., float] = saturating) -> float:
        value = geometric_mean([continued(trace, of, budget) for trace in whole])
        return value if most == arms else value * model(growth(of), quarter=sizes[0], most=most, arms=arms, d=d)

    size = min(forecast(lambda row: row.size), float(arms))
    squares = fmean([fmean([row.size**2 for row in trace.rows]) ** 0.5 for trace in whole])
    mean_size = min(size, squares * size / fmean([trace.rows[-1].size for trace in whole]))
    batches = min(forecast(lambda row: row.batches), float(budget))
    each = [continued(trace, lambda row: row.batches, budget) for trace in whole]
    busy = sum(trace.seconds - seconds_per_pick * trace.rows[-1].pulls for trace in whole)
    return PilotForecast(
        dictionary_size=size,
        mean_size=mean_size,
        batches=batches,
        batches_range=(batches * min(each) / geometric_mean(each), min(batches * max(each) / geometric_mean(each), budget)),
        distinct=min(forecast(lambda row: row.distinct, powered), float(budget), float(arms)),
        overhead=max(busy / sum(len(trace.rows) for trace in whole), 1e-4) * max(1.0, mean_size / squares),
    )


def saturating(growth: float, *, quarter: int, most: int, arms: int, d: int) -> float:
    """Return the growth factor of dictionary and batches from ``most`` to ``arms`` arms.

    The arm nearest to the maximum of a smooth score is at a distance ``h ~ a^{-1/d}`` and loses ``h²``. So
    ``v(a) = v(∞) − c a^{-2/d}``, and two sizes give both constants (Richardson). The factor is at most ``(arms/most)^0.1``,
    which bounds the effect of noise in many dimensions. ``growth`` is ``v(most)/v(quarter)``.
    """
    per_step = (most / quarter) ** (2.0 / d) - 1.0
    missing = (1.0 - (most / arms) ** (2.0 / d)) / per_step
    factor = 1.0 + max(1.0 - 1.0 / growth, 0.0) * missing
    return min(factor, (arms / most) ** 0.1)


def powered(growth: float, *, quarter: int, most: int, arms: int, d: int) -> float:
    """Return the growth factor of distinct pulled arms, a power law: arms near the best ones do not run out."""
    exponent = min(max(math.log(growth) / math.log(most / quarter), 0.0), 0.5)
    return (arms / most) ** exponent


def _most(policy: UCBPolicy, budget: int, arms: int) -> int:
    """Return the evaluations that a policy makes of so many arms."""
    return budget if getattr(policy, "repeats", True) else min(budget, arms)


def run_draws(
    X: Tensor, sizes: Sequence[int], policy: UCBPolicy, budget: int, seconds: float, generator: torch.Generator
) -> list[list[Trace]]:
    """Return the traces of each draw by size; the smaller pilot has a random subset of the arms and the same function."""
    assert policy.covar_module is not None
    assert policy.regularization is not None
    covariance = covariance_function(policy.covar_module, like=X)
    L = safe_cholesky(covariance.cross(X, X))
    noise_sd = (policy.noise_variance or policy.regularization) ** 0.5
    order = torch.randperm(len(X), generator=generator, device="cpu").to(X.device)

    def normal(n: int) -> Tensor:
        return torch.randn(n, generator=generator, device="cpu", dtype=X.dtype).to(X.device)

    def pilot(draw: int, f: Tensor, some: Tensor) -> Trace:
        loop, start, pulled, steps = AskTell(X[some], policy, seed=draw), time.perf_counter(), set[int](), list[Step]()
        most = _most(policy, budget, len(some))
        while loop.asked < most and (not steps or time.perf_counter() - start < seconds / (DRAWS * len(sizes))):
            batch = loop.ask(max_q=most - loop.asked)
            assert batch.indices is not None
            pulled.update(batch.indices.tolist())
            loop.tell(batch.tickets, f[some[batch.indices]] + noise_sd * normal(len(batch)))
            steps.append(Step(loop.asked, len(steps) + 1.0, float(loop.history.rows[-1].dictionary_size or 1), len(pulled)))
        return Trace(steps, time.perf_counter() - start)

    traces = []
    for draw in range(DRAWS):
        f = L @ normal(len(X)) + (policy.prior_mean or 0.0)
        traces.append([pilot(draw, f, order[:size].sort().values) for size in sizes])
    return traces


def continued(trace: Trace, of: Callable[[Step], float], budget: int) -> float:
    """Return a quantity of a pilot continued to ``budget`` evaluations: between a line in log T and a power law."""
    end = trace.rows[-1]
    if end.pulls >= budget or end.pulls < 8:
        return of(end)
    early = trace.at(end.pulls / 4, of)
    first = next(row.pulls for row in trace.rows if row.pulls >= end.pulls / 4)
    if first == end.pulls or of(end) <= early:
        return of(end)
    further = math.log(budget / end.pulls) / math.log(max(end.pulls / first, 2.0))  # one large batch says little
    straight = of(end) + (of(end) - early) * further
    power = of(end) * (of(end) / early) ** further
    return math.sqrt(straight * power)
