"""Tables of real data as arms whose true values are known."""

from __future__ import annotations

import gzip
from importlib import resources
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from sparse_bo.problems.base import Problem, check_noise
from sparse_bo.problems.names import SCALINGS
from sparse_bo.validation import check_choice

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
    with resources.files("sparse_bo.problems.datasets").joinpath("cal_housing.csv.gz").open("rb") as file:
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
    text = resources.files("sparse_bo.problems.datasets").joinpath("abalone.csv").read_text(encoding="utf-8")
    rows = [line.split(",") for line in text.split()]
    sex = {"M": 0.0, "F": 1.0, "I": 2.0}
    table = np.array([[sex[row[0]], *map(float, row[1:])] for row in rows])
    return _table("abalone", table, scaling, noise_sd, "rings of 4,177 abalones, scaled to [0, 1]")


def _table(name: str, table: np.ndarray, scaling: Scaling, noise_sd: float, description: str) -> Problem:
    check_noise(noise_sd)
    data = torch.from_numpy(table)
    y = data[:, -1]
    return Problem(name, scaled(data[:, :-1], scaling), (y - y.min()) / (y.max() - y.min()), float(noise_sd), description)
