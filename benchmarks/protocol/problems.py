"""The protocol's problems: all maximised, each with its best value and the range that regret is measured by.

*Range*: the best value minus the median, over 1,024 scrambled Sobol points (over all arms of a table). "x % behind" is x % of
it: a method that is 100 % behind does as well as one evaluation anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from botorch.test_functions import (
    Ackley,
    Branin,
    Bukin,
    Cosine8,
    DixonPrice,
    DropWave,
    EggHolder,
    Griewank,
    Hartmann,
    HolderTable,
    Levy,
    Michalewicz,
    Powell,
    Rastrigin,
    Rosenbrock,
    Shekel,
    StyblinskiTang,
)
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from sparse_bo.problems import abalone, cadata
from sparse_bo.problems.builtin import BoxProblem, Problem

from . import rover, tuning

__all__ = ["BOXES", "FURTHER", "KINDS", "PROBLEMS", "SETS", "TABLES", "Task", "make"]

TYPICAL_OVER = 1024
NOISE_SHARE = 0.05
"""Noise sd of noisy sets of arms, as a share of their range."""
TYPICAL = {"rover-60": rover.TYPICAL, "tuning-8": tuning.TYPICAL}
"""Medians that take a minute to find."""


@dataclass(frozen=True)
class Task:
    """A problem, and what a typical point of it is worth."""

    problem: BoxProblem | Problem
    typical: float
    """The median value."""

    @property
    def best(self) -> float:
        """The highest true value."""
        return self.problem.best_value

    @property
    def range(self) -> float:
        """What regret is measured by: best minus typical."""
        return self.best - self.typical

    def truth(self, where: Tensor) -> Tensor:
        """Return true values of points (``q x d``) or, on a table, of arms (``q`` indices)."""
        return self.problem.values[where] if isinstance(self.problem, Problem) else self.problem.function(where)


def make(name: str, seed: int) -> Task:
    """Return a problem by name.

    Args:
        name: One of :data:`PROBLEMS`.
        seed: Of the run. It decides which function a GP draw is and which points a set of arms has, and nothing of the other
            problems; noise is drawn by ``task.problem.objective(seed=…)``.

    Raises:
        ValueError: If there is no such problem.
    """
    if name not in PROBLEMS:
        raise ValueError(f"expected one of {', '.join(PROBLEMS)}, got problem {name!r}")
    return _make(name, seed if name in SEEDED else 0)


@cache
def _make(name: str, seed: int) -> Task:
    problem = {**BOXES, **FURTHER, **SETS, **TABLES}[name](seed)
    if name in TYPICAL:
        return Task(problem, TYPICAL[name])
    values = problem.values if isinstance(problem, Problem) else problem.function(_sobol(problem.bounds))
    return Task(problem, float(values.median()))


def _sobol(bounds: Tensor, count: int = TYPICAL_OVER) -> Tensor:
    return draw_sobol_samples(bounds, n=count, q=1, seed=0).squeeze(1)


def _unit(dims: int) -> Tensor:
    return torch.tensor([[0.0], [1.0]], dtype=torch.float64).expand(2, dims).clone()


def _botorch(name: str, function: Any, noise_sd: float = 0.0) -> BoxProblem:
    """Return one of BoTorch's test functions (negated), its box in float64."""
    bounds = function.bounds.to(torch.float64)
    return BoxProblem(name, bounds, function, float(function.optimal_value), noise_sd, type(function).__name__)


def _on_box(make: Callable[..., Any], dims: int, low: float, high: float) -> Any:
    return make(dim=dims, negate=True, bounds=[(low, high)] * dims)


def _rotated(make: Callable[..., Any], dims: int, low: float, high: float, *, seed: int = 0) -> Any:
    """Return a test function, best at the origin, of inputs turned about the box's middle: no sum of functions of one input.

    Raises:
        ValueError: If the optimum is turned out of the box.
    """
    middle, reach = (low + high) / 2.0, (high - low) * dims**0.5 / 2.0
    function = _on_box(make, dims, middle - reach, middle + reach)
    normal = torch.randn(dims, dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    turn = torch.linalg.qr(normal)[0]
    best = middle - middle * turn.sum(0)
    if not ((best > low) & (best < high)).all():
        raise ValueError(f"expected the turned optimum inside of the box, got {best.tolist()}: take another seed than {seed}")

    def turned(X: Tensor) -> Tensor:
        return function((X - middle) @ turn.T + middle)

    turned.bounds = torch.tensor([[low], [high]], dtype=torch.float64).expand(2, dims).clone()
    turned.optimal_value = function.optimal_value
    return turned


def _embedded(function: Any, dims: int) -> Any:
    """Return a test function over ``dims`` inputs of [0, 1], every one of them but some without effect."""
    low, high = function.bounds.to(torch.float64)
    places = torch.linspace(0, dims - 1, len(low)).long()

    def embedded(X: Tensor) -> Tensor:
        return function(X[..., places] * (high - low) + low)

    embedded.bounds, embedded.optimal_value = _unit(dims), function.optimal_value
    return embedded


def _points(name: str, function: Callable[[], Any], count: int, noise_share: float, seed: int) -> Problem:
    """Return points of a test function's box as arms, with noise of a share of their range."""
    made = function()
    X = draw_sobol_samples(made.bounds.to(torch.float64), n=count, q=1, seed=seed).squeeze(1)
    values = made(X)
    return Problem(name, X, values, noise_share * float(values.max() - values.median()), f"{count:,} points")


def _rover() -> BoxProblem:
    def reward(X: Tensor) -> Tensor:
        return torch.from_numpy(rover.reward(X.cpu().numpy()))

    return BoxProblem("rover-60", _unit(rover.DIMS), reward, rover.BEST_KNOWN, 0.0, "a path through obstacles")


def _tuning() -> BoxProblem:
    def score(X: Tensor) -> Tensor:
        return torch.from_numpy(tuning.score(X.cpu().numpy()))

    return BoxProblem("tuning-8", _unit(tuning.DIMS), score, tuning.BEST_KNOWN, 0.0, "R² of gradient boosting on Abalone")


def _gp_draw(seed: int, *, dims: int = 4, lengthscale: float = 0.2, features: int = 2048, noise_sd: float = 0.1) -> BoxProblem:
    """Return a draw of a GP with unit variance and Gaussian kernel, by random features, and its maximum.

    The maximum is the best of 32 local ones, climbed to from the best of 2¹³ Sobol points: about 0.5 s.
    """
    generator = torch.Generator().manual_seed(seed)
    frequencies = torch.randn(dims, features, generator=generator, dtype=torch.float64) / lengthscale
    phases = 2.0 * torch.pi * torch.rand(features, generator=generator, dtype=torch.float64)
    weights = torch.randn(features, generator=generator, dtype=torch.float64) * (2.0 / features) ** 0.5

    def function(X: Tensor) -> Tensor:
        return torch.cat([(part @ frequencies + phases).cos() @ weights for part in X.split(4096)])

    bounds = _unit(dims)
    starts = _sobol(bounds, 2**13)
    X = starts[function(starts).topk(32).indices]
    best = float(function(_climbed(function, X)).max())
    return BoxProblem("gp-draw-4", bounds, function, best, noise_sd, "a draw of a Gaussian process")


def _climbed(function: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    """Return points of the unit cube climbed to their local maxima by L-BFGS over logits."""
    logits = X.clamp(1e-6, 1.0 - 1e-6).logit().requires_grad_()
    optimizer = torch.optim.LBFGS([logits], max_iter=150, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = -function(logits.sigmoid()).sum()
        total.backward()
        return total

    optimizer.step(loss)
    return logits.detach().sigmoid()


BOXES: dict[str, Callable[[int], BoxProblem]] = {
    "hartmann-6": lambda _: _botorch("hartmann-6", Hartmann(dim=6, negate=True), noise_sd=0.05),
    "branin": lambda _: _botorch("branin", Branin(negate=True)),
    "ackley-20": lambda _: _botorch("ackley-20", _on_box(Ackley, 20, -5.0, 10.0)),
    "levy-20": lambda _: _botorch("levy-20", _on_box(Levy, 20, -10.0, 10.0)),
    "rosenbrock-8": lambda _: _botorch("rosenbrock-8", _on_box(Rosenbrock, 8, -5.0, 10.0)),
    # The usual box would have the optimum in its middle, where some methods begin.
    "rastrigin-10": lambda _: _botorch("rastrigin-10", _on_box(Rastrigin, 10, -4.0, 5.0)),
    "rover-60": lambda _: _rover(),
    "tuning-8": lambda _: _tuning(),
    "gp-draw-4": _gp_draw,
}
FURTHER: dict[str, Callable[[int], BoxProblem]] = {
    "rotated-rastrigin-8": lambda _: _botorch("rotated-rastrigin-8", _rotated(Rastrigin, 8, -4.0, 5.0)),
    "rotated-ackley-10": lambda _: _botorch("rotated-ackley-10", _rotated(Ackley, 10, -5.0, 10.0)),
    "michalewicz-10": lambda _: _botorch("michalewicz-10", Michalewicz(dim=10, negate=True)),
    "styblinski-20": lambda _: _botorch("styblinski-20", StyblinskiTang(dim=20, negate=True)),
    "griewank-6": lambda _: _botorch("griewank-6", _on_box(Griewank, 6, -500.0, 600.0)),
    "dixon-price-12": lambda _: _botorch("dixon-price-12", DixonPrice(dim=12, negate=True)),
    "powell-24": lambda _: _botorch("powell-24", Powell(dim=24, negate=True)),
    "shekel-4": lambda _: _botorch("shekel-4", Shekel(negate=True)),
    "egg-holder-2": lambda _: _botorch("egg-holder-2", EggHolder(negate=True)),
    "holder-table-2": lambda _: _botorch("holder-table-2", HolderTable(negate=True)),
    "drop-wave-2": lambda _: _botorch("drop-wave-2", DropWave(bounds=[(-4.0, 5.12)] * 2, negate=True)),
    "bukin-2": lambda _: _botorch("bukin-2", Bukin(negate=True)),
    "cosine-8": lambda _: _botorch("cosine-8", Cosine8(), noise_sd=0.1),
    "hartmann-3": lambda _: _botorch("hartmann-3", Hartmann(dim=3, negate=True), noise_sd=0.5),
    "levy-6": lambda _: _botorch("levy-6", _on_box(Levy, 6, -10.0, 10.0), noise_sd=5.0),
    "hartmann-6-of-40": lambda _: _botorch("hartmann-6-of-40", _embedded(Hartmann(dim=6, negate=True), 40)),
    "branin-of-25": lambda _: _botorch("branin-of-25", _embedded(Branin(negate=True), 25)),
}
"""Boxes that came when the defaults had been chosen on the others."""
TABLES: dict[str, Callable[[int], Problem]] = {
    "cadata": lambda _: cadata(),
    "cadata-standardised": lambda _: cadata(scaling="standardize"),
    "abalone": lambda _: abalone(),
    "abalone-standardised": lambda _: abalone(scaling="standardize"),
}
"""Noise sd 0.1 on values in [0, 1]."""
SETS: dict[str, Callable[[int], Problem]] = {
    name: partial(_points, name, *about)
    for name, about in {
        "branin-512": (lambda: Branin(negate=True), 512, 0.0),
        "rastrigin-3-512": (lambda: _on_box(Rastrigin, 3, -4.0, 5.0), 512, 0.0),
        "rosenbrock-4-1024": (lambda: _on_box(Rosenbrock, 4, -5.0, 10.0), 1024, 0.0),
        "levy-4-2048": (lambda: _on_box(Levy, 4, -10.0, 10.0), 2048, 0.0),
        "hartmann-6-2048": (lambda: Hartmann(dim=6, negate=True), 2048, 0.0),
        "levy-4-2048-noisy": (lambda: _on_box(Levy, 4, -10.0, 10.0), 2048, NOISE_SHARE),
        "hartmann-6-2048-noisy": (lambda: Hartmann(dim=6, negate=True), 2048, NOISE_SHARE),
    }.items()
}
"""Points of boxes as arms, others for each seed; they came when the defaults had been chosen on the other problems."""
KINDS = {"boxes": BOXES, "further": FURTHER, "sets": SETS, "tables": TABLES}
PROBLEMS = (*BOXES, *FURTHER, *SETS, *TABLES)
SEEDED = ("gp-draw-4", *SETS)
"""Problems that are another one for each seed."""
