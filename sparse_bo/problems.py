"""Real and synthetic problems, on arms and on boxes, for the command line, the tutorials and the benchmarks."""

from __future__ import annotations

import copy
import gzip
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from botorch.test_functions import EggHolder, Hartmann, Levy, Powell, Rastrigin
from torch import Tensor

from sparse_bo.evaluations import Batch
from sparse_bo.history import History, HistoryRow
from sparse_bo.names import SCALINGS
from sparse_bo.validation import check_choice, check_count, check_number, check_positive

Scaling = Literal["unit", "standardize", "none"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A finite set of arms whose true values are known."""

    name: str
    arms: Tensor
    """``a x d``, float64."""
    values: Tensor
    """``a`` true values."""
    noise_sd: float
    """Standard deviation of the Gaussian noise that an evaluation adds."""
    description: str
    call_with: ClassVar[Literal["X", "indices"]] = "indices"
    """What :meth:`sparse_bo.AskTell.run` calls the objective with."""

    @property
    def domain(self) -> dict[str, Any]:
        """The keyword that tells :class:`sparse_bo.AskTell` where to search."""
        return {"arms": self.arms}

    @property
    def best_value(self) -> float:
        """The highest true value."""
        return float(self.values.max())

    def objective(self, *, seed: int) -> Callable[[Tensor], Tensor]:
        """Return a noisy objective of arm *indices* (``q`` -> ``q``) with a generator of its own."""
        generator = torch.Generator().manual_seed(seed)

        def evaluate(indices: Tensor) -> Tensor:
            noise = torch.randn(len(indices), generator=generator, dtype=torch.float64)
            return self.values[indices] + self.noise_sd * noise.to(self.values.device)

        return evaluate

    def regret(self, indices: list[int]) -> Tensor:
        """Return the regret of each evaluation, ``len(indices)``: best value minus true value."""
        return self.best_value - self.values.cpu()[torch.tensor(indices, dtype=torch.long)]

    def regret_of(self, run: History | HistoryRow) -> Tensor:
        """Return the regret of every evaluation of a run or a batch, in order."""
        return self.regret(run.indices)

    def to(self, device: str | torch.device) -> Problem:
        """Return the problem with its tensors on ``device``."""
        return Problem(self.name, self.arms.to(device), self.values.to(device), self.noise_sd, self.description)


@dataclass(frozen=True, eq=False)
class BoxProblem:
    """A function on a box whose maximum is known."""

    name: str
    bounds: Tensor
    """``2 x d``, float64."""
    function: Callable[[Tensor], Tensor]
    """True values, ``q x d`` -> ``q``."""
    best_value: float
    """The highest true value."""
    noise_sd: float
    """Standard deviation of the Gaussian noise that an evaluation adds."""
    description: str
    call_with: ClassVar[Literal["X", "indices"]] = "X"
    """What :meth:`sparse_bo.AskTell.run` calls the objective with."""

    @property
    def domain(self) -> dict[str, Any]:
        """The keyword that tells :class:`sparse_bo.AskTell` where to search."""
        return {"bounds": self.bounds}

    def objective(self, *, seed: int) -> Callable[[Tensor], Tensor]:
        """Return a noisy objective of points (``q x d`` -> ``q``) with a generator of its own."""
        generator = torch.Generator().manual_seed(seed)

        def evaluate(X: Tensor) -> Tensor:
            noise = torch.randn(len(X), generator=generator, dtype=torch.float64)
            return self.function(X) + self.noise_sd * noise.to(X.device)

        return evaluate

    def regret(self, points: list[list[float]] | Tensor) -> Tensor:
        """Return the regret of each evaluation, ``q`` from ``q x d``: best value minus true value."""
        X = torch.as_tensor(points, dtype=torch.float64).to(self.bounds.device)
        return (self.best_value - self.function(X)).cpu()

    def regret_of(self, run: History | HistoryRow) -> Tensor:
        """Return the regret of every evaluation of a run or a batch, in order."""
        return self.regret(run.points or [])

    def to(self, device: str | torch.device) -> BoxProblem:
        """Return the problem with its bounds on ``device``; the function is called with points there."""
        function = self.function
        if isinstance(function, torch.nn.Module):
            function = copy.deepcopy(function).to(device)
        return replace(self, bounds=self.bounds.to(device), function=function)


@dataclass(frozen=True, eq=False)
class Repeatable:
    """A noisy objective whose noise depends on the ticket alone: the same on any worker, after any resume. Can be pickled.

    Called with a :class:`sparse_bo.Batch` (``call_with="batch"``).
    """

    truth: Callable[[Tensor], Tensor] | Tensor
    """True values of arms (``a``), or of points (``q x d`` -> ``q``)."""
    noise_sd: float
    seed: int

    def __call__(self, batch: Batch) -> Tensor:
        """Return ``q`` values."""
        if isinstance(self.truth, Tensor):
            assert batch.indices is not None
            values = self.truth[batch.indices.to(self.truth.device)]
        else:
            values = self.truth(batch.X.to(torch.float64))
        return values + self.noise_sd * ticket_noise(batch.tickets, seed=self.seed).to(values.device)


def repeatable(problem: Problem | BoxProblem, *, seed: int) -> Repeatable:
    """Return the problem's objective with noise by ticket; evaluated on the CPU."""
    on_cpu = problem.to("cpu")
    return Repeatable(on_cpu.values if isinstance(on_cpu, Problem) else on_cpu.function, problem.noise_sd, seed)


def ticket_noise(tickets: Sequence[int], *, seed: int) -> Tensor:
    """Return standard normal numbers, one per ticket, by SplitMix64 (Steele et al. 2014) and Box–Muller."""
    with np.errstate(over="ignore"):
        counters = np.asarray(tickets, np.uint64) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        first, second = ((_split_mix(np.uint64(2) * counters + np.uint64(k)) >> np.uint64(11)) * 2.0**-53 for k in (0, 1))
    return torch.from_numpy(np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * math.pi * second))


def _split_mix(counters: np.ndarray) -> np.ndarray:
    z = counters * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


SYNTHETIC: dict[str, tuple[Callable[[], Any], str]] = {
    "eggholder2": (lambda: EggHolder(negate=True), "Eggholder, 2 inputs: many deep valleys"),
    "hartmann6": (lambda: Hartmann(dim=6, negate=True), "Hartmann, 6 inputs: six peaks"),
    "levy20": (lambda: Levy(dim=20, negate=True), "Levy, 20 inputs"),
    "powell50": (lambda: Powell(dim=50, negate=True), "Powell, 50 inputs, of which the last two have no effect"),
    "rastrigin100": (lambda: Rastrigin(dim=100, negate=True), "Rastrigin, 100 inputs"),
}
"""The functions of the GSSBO paper (§6), BoTorch's implementations, negated: all are maximised here."""


def synthetic(name: str, *, noise_sd: float = 0.0) -> BoxProblem:
    """Return a test function on its box, negated to be maximised.

    Args:
        name: A key of :data:`SYNTHETIC`.
        noise_sd: Of an evaluation.

    Raises:
        ValueError: If the name is unknown or the noise is negative.
        TypeError: If the noise is not a number.
    """
    check_choice("problem", name, tuple(SYNTHETIC))
    _check_noise(noise_sd)
    make, description = SYNTHETIC[name]
    function = make()
    return BoxProblem(name, function.bounds, function, float(function.optimal_value), float(noise_sd), description)


def scaled(X: Tensor, scaling: Scaling) -> Tensor:
    """Return inputs scaled to [0, 1] (``"unit"``), to mean 0 and variance 1 (``"standardize"``), or as they are.

    Constant columns become 0.

    Args:
        X: ``a x d``.
        scaling: Which.

    Raises:
        ValueError: If ``scaling`` is none of these.
    """
    check_choice("scaling", scaling, SCALINGS)
    if scaling == "none":
        return X
    shift = X.amin(dim=0) if scaling == "unit" else X.mean(dim=0)
    scale = X.amax(dim=0) - shift if scaling == "unit" else X.std(dim=0, correction=0)
    return (X - shift) / torch.where(scale > 0, scale, torch.ones_like(scale))


def cadata(*, scaling: Scaling = "unit", noise_sd: float = 0.1) -> Problem:
    """Return the California housing blocks (Pace & Barry 1997): 20,640 arms, 8 inputs, reward = median value in [0, 1].

    Settings of BBKB §4: noise sd 0.1 on labels scaled to [0, 1].

    Args:
        scaling: Of the inputs.
        noise_sd: Of an evaluation.

    Raises:
        ValueError: If a setting is out of range.
    """
    with resources.files("sparse_bo.datasets").joinpath("cal_housing.csv.gz").open("rb") as file:
        table = np.loadtxt(gzip.decompress(file.read()).decode("ascii").splitlines(), delimiter=",")
    return _table("cadata", table, scaling, noise_sd, "median house value of 20,640 Californian blocks, scaled to [0, 1]")


def abalone(*, scaling: Scaling = "unit", noise_sd: float = 0.1) -> Problem:
    """Return Abalone (Nash et al. 1994): 4,177 arms with 8 inputs (sex as M=0, F=1, I=2), reward = rings scaled to [0, 1].

    Args:
        scaling: Of the inputs.
        noise_sd: Of an evaluation.

    Raises:
        ValueError: If a setting is out of range.
    """
    text = resources.files("sparse_bo.datasets").joinpath("abalone.csv").read_text(encoding="utf-8")
    rows = [line.split(",") for line in text.split()]
    sex = {"M": 0.0, "F": 1.0, "I": 2.0}
    table = np.array([[sex[row[0]], *map(float, row[1:])] for row in rows])
    return _table("abalone", table, scaling, noise_sd, "rings of 4,177 abalones, scaled to [0, 1]")


def gp_draw(
    *, arms: int = 10_000, dims: int = 4, lengthscale: float = 0.3, noise_sd: float = 0.1, seed: int = 0, features: int = 2048
) -> Problem:
    """Return a draw of a GP with unit variance and Gaussian kernel over arms uniform in the unit cube.

    The function is a sum of random Fourier features (Rahimi & Recht 2007), so any number of arms costs O(arms · features).

    Args:
        arms: Number of arms.
        dims: Inputs per arm.
        lengthscale: Of the kernel.
        noise_sd: Of an evaluation.
        seed: Of arms and function.
        features: Cosines in the sum.

    Raises:
        ValueError: If a setting is out of range.
        TypeError: If a setting has the wrong kind.
    """
    for name, count in (("arms", arms), ("dims", dims), ("features", features)):
        check_count(name, count)
    check_count("seed", seed, minimum=0)
    check_positive("lengthscale", lengthscale)
    _check_noise(noise_sd)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    X = torch.rand(arms, dims, generator=generator, dtype=torch.float64)
    frequencies, phases = normal(dims, features) / lengthscale, torch.rand(features, generator=generator, dtype=torch.float64)
    weights = normal(features) * math.sqrt(2.0 / features)
    values = torch.cat([(part @ frequencies + 2.0 * math.pi * phases).cos() @ weights for part in torch.split(X, 8192)])
    text = f"a Gaussian-process draw (lengthscale {lengthscale:g}) over {arms:,} arms in [0, 1]^{dims}"
    return Problem("gp-draw", X, values, float(noise_sd), text)


def _table(name: str, table: np.ndarray, scaling: Scaling, noise_sd: float, description: str) -> Problem:
    _check_noise(noise_sd)
    data = torch.from_numpy(table)
    y = data[:, -1]
    return Problem(name, scaled(data[:, :-1], scaling), (y - y.min()) / (y.max() - y.min()), float(noise_sd), description)


def _check_noise(noise_sd: float) -> None:
    if check_number("noise_sd", noise_sd) < 0.0:
        raise ValueError(f"expected noise_sd >= 0, got {noise_sd!r}")
