"""Built-in problems: tables of real data, test functions on their boxes, draws of a Gaussian process."""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable
from importlib import resources
from typing import Any, Literal

import numpy as np
import torch
from botorch.test_functions import EggHolder, Hartmann, Levy, Powell, Rastrigin
from torch import Tensor

from sparse_bo.problems.base import BoxProblem, Problem, check_noise
from sparse_bo.problems.names import SCALINGS
from sparse_bo.validation import check_choice, check_count, check_positive

DATA = resources.files("sparse_bo.problems") / "datasets"
Scaling = Literal["unit", "standardize", "none"]


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
    check_noise(noise_sd)
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
    check_noise(noise_sd)
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
    check_noise(noise_sd)
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
