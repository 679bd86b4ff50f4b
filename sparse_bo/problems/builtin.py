"""Built-in problems with known true values: tables of real data, test functions on their boxes, draws of a Gaussian process.

The noise of an evaluation is drawn from a generator, or is a function of its ticket, and then the same on every worker.
"""

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

from sparse_bo.evaluations.job import Batch
from sparse_bo.policies import Report
from sparse_bo.problems import SCALINGS
from sparse_bo.runs.history import History, HistoryRow
from sparse_bo.validation import check_choice, check_count, check_number, check_positive

DATA = resources.files("sparse_bo.problems") / "datasets"
Scaling = Literal["unit", "standardize", "none"]


@dataclass(frozen=True, eq=False)
class Problem:
    """A finite arm set with known true values."""

    name: str
    arms: Tensor
    """``a x d``, float64."""
    values: Tensor
    """``a`` true values."""
    noise_sd: float
    """Standard deviation of the Gaussian noise of an evaluation."""
    description: str
    call_with: ClassVar[Literal["X", "indices"]] = "indices"
    """Argument of the objective, for :meth:`sparse_bo.AskTell.run`."""

    @property
    def domain(self) -> dict[str, Any]:
        """Keyword arguments of :class:`sparse_bo.AskTell` for the domain."""
        return {"arms": self.arms}

    @property
    def best_value(self) -> float:
        """The highest true value."""
        return float(self.values.max())

    def objective(self, *, seed: int) -> Callable[[Tensor], Tensor]:
        """Return a noisy objective of arm *indices* (``q`` -> ``q``) with a generator of its own."""
        return _noisy(self.values.__getitem__, self.noise_sd, seed)

    def regret(self, indices: list[int]) -> Tensor:
        """Return the regret of each evaluation, ``len(indices)``: best value minus true value."""
        return self.best_value - self.values.cpu()[torch.tensor(indices, dtype=torch.long, device="cpu")]

    def regret_of(self, run: History | HistoryRow) -> Tensor:
        """Return the regret of every evaluation of a run or a batch, in order."""
        return self.regret(run.indices)

    def truth_at(self, best: Report) -> dict[str, str]:
        """Return the true value of the best arm as a line of text, by name; empty without one."""
        if best.best_index is None:
            return {}
        true = self.values[best.best_index]
        better = f"{int((self.values > true).sum()):,} arms are better"
        return {"true value there": f"{float(true):.4g} of at most {self.best_value:.4g}; {better}"}

    def to(self, device: str | torch.device) -> Problem:
        """Return the problem with its tensors on ``device``."""
        return replace(self, arms=self.arms.to(device), values=self.values.to(device))


@dataclass(frozen=True, eq=False)
class BoxProblem:
    """A function on a box with a known maximum."""

    name: str
    bounds: Tensor
    """``2 x d``, float64."""
    function: Callable[[Tensor], Tensor]
    """True values, ``q x d`` -> ``q``."""
    best_value: float
    """The highest true value."""
    noise_sd: float
    """Standard deviation of the Gaussian noise of an evaluation."""
    description: str
    call_with: ClassVar[Literal["X", "indices"]] = "X"
    """Argument of the objective, for :meth:`sparse_bo.AskTell.run`."""

    @property
    def domain(self) -> dict[str, Any]:
        """Keyword arguments of :class:`sparse_bo.AskTell` for the domain."""
        return {"bounds": self.bounds}

    def objective(self, *, seed: int) -> Callable[[Tensor], Tensor]:
        """Return a noisy objective of points (``q x d`` -> ``q``) with a generator of its own."""
        return _noisy(self.function, self.noise_sd, seed)

    def regret(self, points: list[list[float]] | Tensor) -> Tensor:
        """Return the regret of each evaluation, ``q`` from ``q x d``: best value minus true value."""
        X = torch.as_tensor(points, dtype=torch.float64, device=self.bounds.device)
        return (self.best_value - self.function(X)).cpu()

    def regret_of(self, run: History | HistoryRow) -> Tensor:
        """Return the regret of every evaluation of a run or a batch, in order."""
        return self.regret(run.points or [])

    def truth_at(self, best: Report) -> dict[str, str]:
        """Return the true value of the best point as a line of text, by name; empty without one."""
        if best.best_x is None:
            return {}
        gap = float(self.regret(best.best_x[None]))
        return {"true value there": f"{self.best_value - gap:.4g} of at most {self.best_value:.4g}"}

    def to(self, device: str | torch.device) -> BoxProblem:
        """Return the problem with its bounds on ``device``; the function is called with points there."""
        function = self.function
        if isinstance(function, torch.nn.Module):
            function = copy.deepcopy(function).to(device)
        return replace(self, bounds=self.bounds.to(device), function=function)


def _noisy(truth: Callable[[Tensor], Tensor], noise_sd: float, seed: int) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def evaluate(at: Tensor) -> Tensor:
        noise = torch.randn(len(at), generator=generator, device="cpu", dtype=torch.float64)
        values = truth(at)
        return values + noise_sd * noise.to(values.device)

    return evaluate


@dataclass(frozen=True, eq=False)
class Repeatable:
    """A noisy objective whose noise depends on the ticket only: equal on any worker and after any resume. Picklable.

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
            values = self.truth(batch.X.to(device="cpu", dtype=torch.float64))
        return values + self.noise_sd * ticket_noise(batch.tickets, seed=self.seed).to(values.device)


def repeatable(problem: Problem | BoxProblem, *, seed: int) -> Repeatable:
    """Return the problem's objective with noise by ticket; evaluated on the CPU."""
    on_cpu = problem.to("cpu")
    return Repeatable(on_cpu.values if isinstance(on_cpu, Problem) else on_cpu.function, problem.noise_sd, seed)


def ticket_noise(tickets: Sequence[int], *, seed: int) -> Tensor:
    """Return standard normal numbers, one per ticket, by SplitMix64 (Steele et al. 2014) and Box–Muller."""

    def uniform(k: int) -> np.ndarray:
        z = (np.uint64(2) * counters + np.uint64(k)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((z ^ (z >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53

    with np.errstate(over="ignore"):
        counters = np.asarray(tickets, np.uint64) + np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        return torch.from_numpy(np.sqrt(-2.0 * np.log1p(-uniform(0))) * np.cos(2.0 * math.pi * uniform(1)))


def scaled(X: Tensor, scaling: Scaling) -> Tensor:
    """Return inputs scaled to [0, 1] (``"unit"``), to mean 0 and variance 1 (``"standardize"``), or as they are.

    Constant columns become 0.

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
    text = gzip.decompress((DATA / "cal_housing.csv.gz").read_bytes()).decode("ascii")
    table = np.loadtxt(text.splitlines(), delimiter=",")
    return _table("cadata", table, scaling, noise_sd, "median house value of 20,640 Californian blocks, scaled to [0, 1]")


def abalone(*, scaling: Scaling = "unit", noise_sd: float = 0.1) -> Problem:
    """Return Abalone (Nash et al. 1994): 4,177 arms with 8 inputs (sex as M=0, F=1, I=2), reward = rings scaled to [0, 1].

    Args:
        scaling: Of the inputs.
        noise_sd: Of an evaluation.

    Raises:
        ValueError: If a setting is out of range.
    """
    rows = [line.split(",") for line in (DATA / "abalone.csv").read_text(encoding="utf-8").split()]
    sex = {"M": 0.0, "F": 1.0, "I": 2.0}
    table = np.array([[sex[row[0]], *map(float, row[1:])] for row in rows])
    return _table("abalone", table, scaling, noise_sd, "rings of 4,177 abalones, scaled to [0, 1]")


def _table(name: str, table: np.ndarray, scaling: Scaling, noise_sd: float, description: str) -> Problem:
    check_number("noise_sd", noise_sd, minimum=0.0)
    data = torch.from_numpy(table)
    y = data[:, -1]
    return Problem(name, scaled(data[:, :-1], scaling), (y - y.min()) / (y.max() - y.min()), float(noise_sd), description)


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
    check_number("noise_sd", noise_sd, minimum=0.0)
    make, description = SYNTHETIC[name]
    function = make()
    return BoxProblem(name, function.bounds, function, float(function.optimal_value), float(noise_sd), description)


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
    check_number("noise_sd", noise_sd, minimum=0.0)
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cpu", dtype=torch.float64)

    X = torch.rand(arms, dims, generator=generator, device="cpu", dtype=torch.float64)
    frequencies = normal(dims, features) / lengthscale
    phases = torch.rand(features, generator=generator, device="cpu", dtype=torch.float64)
    weights = normal(features) * math.sqrt(2.0 / features)
    values = torch.cat([(part @ frequencies + 2.0 * math.pi * phases).cos() @ weights for part in torch.split(X, 8192)])
    text = f"a Gaussian-process draw (lengthscale {lengthscale:g}) over {arms:,} arms in [0, 1]^{dims}"
    return Problem("gp-draw", X, values, float(noise_sd), text)
