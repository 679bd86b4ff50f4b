"""Test functions on their boxes, and draws of a Gaussian process over arms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from botorch.test_functions import EggHolder, Hartmann, Levy, Powell, Rastrigin
from torch import Tensor

from sparse_bo.problems.base import BoxProblem, Problem, check_noise
from sparse_bo.validation import check_choice, check_count, check_positive

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
