"""The pictures of three pages: ``python docs/pictures.py`` writes them, ``python docs/pictures.py gallery`` one page's.

Those of the *Gallery*, ``docs/gallery/*.png``, are the last figures that are stored in the tutorials. The others are drawn by
the package's own functions. Those of *How it works*, ``docs/how/*.png``, have one problem: a function on [0, 1], many results
on the left, few on the right, a Gaussian kernel, noise sd 0.1. Those of *How to read the report*, ``docs/report/*.svg``, are
panels of the pages of two runs.
"""

from __future__ import annotations

import base64
import io
import json
import math
import re
import sys
import tempfile
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from PIL import Image
from torch import Tensor

from sparse_bo import BBKB, AskTell, Choice, Float, Int, maximize
from sparse_bo.dictionary.certificate import certified_factor
from sparse_bo.dictionary.leverage_samplers import inclusion_probabilities
from sparse_bo.gp import dtc
from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.problems import gp_draw
from sparse_bo.report.page import sections_of
from sparse_bo.runs.view import view_of_journal

mpl.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

HERE, REPORT, GALLERY = (Path(__file__).parent / name for name in ("how", "report", "gallery"))
TUTORIALS = Path(__file__).parents[1] / "tutorials"
WIDTH = 640
"""Pixels of a picture of the gallery."""
NOISE = 0.01
LENGTHSCALE = 0.08
EXACT, SPARSE, POINTS = "0.45", "#1f6fb4", "#c8401e"


def kernel(A: Tensor, B: Tensor) -> Tensor:
    """Return the Gaussian kernel between two sets of points of the line."""
    return torch.exp(-0.5 * ((A[:, None] - B[None, :]) / LENGTHSCALE).square())


@dataclass(frozen=True)
class Fit:
    """A DTC posterior of results ``(X, y)`` on a dictionary ``D``; the exact one where ``D`` is ``X``."""

    X: Tensor
    y: Tensor
    D: Tensor

    @property
    def state(self) -> dtc.DTC:
        """The posterior as the package computes it."""
        factor = nystrom_factor(kernel(self.D, self.D))
        precision = torch.full_like(self.X, 1 / NOISE)
        return dtc.fit(factor, factor.features(kernel(self.D, self.X)), precision, self.y / NOISE)

    def moments(self, at: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance at points."""
        state = self.state
        features = state.factor.features(kernel(self.D, at))
        return dtc.mean(state, features), dtc.variance(state, features, torch.ones_like(at))

    def covariance(self, A: Tensor, B: Tensor) -> Tensor:
        """Return the covariance of the posterior process between points."""
        state = self.state
        left, right = (state.factor.features(kernel(self.D, points)) for points in (A, B))
        return kernel(A, B) - left @ right.T + dtc.whitened(state, left) @ dtc.whitened(state, right).T

    @property
    def ratio(self) -> float:
        """ρ: the largest eigenvalue of K − Q over the results, divided by λ."""
        features = nystrom_factor(kernel(self.D, self.D)).features(kernel(self.D, self.X))
        return max(float(torch.linalg.eigvalsh(kernel(self.X, self.X) - features @ features.mT)[-1]) / NOISE, 0.0)


def problem() -> tuple[Tensor, Tensor, Tensor]:
    """Return 120 inputs, their noisy results, and a grid of the line."""
    generator = torch.Generator().manual_seed(3)
    left, right = torch.rand(110, generator=generator).double() * 0.55, 0.6 + 0.4 * torch.rand(10, generator=generator).double()
    X = torch.cat([left, right]).sort().values
    y = truth(X) + math.sqrt(NOISE) * torch.randn(len(X), generator=generator).double()
    return X, y, torch.linspace(0, 1, 401, dtype=torch.float64)


def truth(x: Tensor) -> Tensor:
    """Return the function that is sought."""
    return torch.sin(9 * x) * (0.6 + x) + 0.4 * torch.cos(25 * x)


def band(axes: Axes, grid: Tensor, mean: Tensor, variance: Tensor, color: str, label: str) -> None:
    """Draw a mean with two standard deviations around it."""
    sd = 2 * variance.sqrt()
    axes.plot(grid, mean, color=color, label=label)
    axes.fill_between(grid, mean - sd, mean + sd, color=color, alpha=0.2, linewidth=0)


def posterior_picture() -> None:
    """DTC on twelve points beside the exact posterior of 120 results."""
    X, y, grid = problem()
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    D = greedy(X, 12)
    axes.plot(X, y, ".", color="0.7", markersize=4, label="results")
    band(axes, grid, *Fit(X, y, X).moments(grid), EXACT, "exact: 120 points")
    band(axes, grid, *Fit(X, y, D).moments(grid), SPARSE, f"DTC: {len(D)} points")
    axes.plot(D, torch.full_like(D, -2.4), "^", color=POINTS, label="dictionary")
    axes.legend(ncols=2, frameon=False, fontsize=8)
    axes.set(xlabel="x", ylabel="f(x)", ylim=(-2.6, 3.4))
    save(figure, "posterior")


def leverage_picture() -> None:
    """Leverages, and what is kept of the inputs: few where results are many."""
    X, y, _ = problem()
    leverages = Fit(X, y, X).moments(X)[1] / NOISE
    probability = inclusion_probabilities(leverages, torch.ones_like(X), oversampling=2.0, law="union")
    kept = torch.rand(len(X), generator=torch.Generator().manual_seed(1), dtype=torch.float64) < probability
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    axes.vlines(X, 0, leverages, color="0.7", linewidth=1)
    total = float(leverages.sum())
    axes.plot(X, leverages, ".", color="0.5", label=f"{len(X)} inputs; leverages sum to {total:.1f}")
    label = f"kept, each with probability 2 × leverage: {int(kept.sum())}"
    axes.plot(X[kept], leverages[kept], "o", color=POINTS, markersize=5, label=label)
    axes.legend(frameon=False, fontsize=8)
    axes.set(xlabel="x", ylabel="leverage", ylim=(0, None))
    save(figure, "leverage")


def batch_picture() -> None:
    """The scores before a batch and at its end, and the sum that ends it."""
    X, y, grid = problem()
    X, y = X[::3], y[::3]
    fit, width, threshold = Fit(X, y, X), 2.0, 200.0
    mean, variance = fit.moments(grid)
    start, picks, total = variance.clone(), [], 1.0
    columns: list[Tensor] = []
    while total <= threshold:
        pick = int((mean + width * variance.sqrt()).argmax())
        total += float(start[pick]) / NOISE
        column = fit.covariance(grid, grid[pick : pick + 1]).squeeze(-1) - sum(
            (c * c[pick] for c in columns), torch.zeros_like(grid)
        )
        columns.append(column / (column[pick] + NOISE).sqrt())
        variance = (variance - columns[-1].square()).clamp_min(0.0)
        picks.append(pick)
    figure, axes = plt.subplots(figsize=(7, 2.8), layout="constrained")
    axes.plot(grid, mean, color=EXACT, label="mean, frozen during the batch")
    axes.plot(grid, mean + width * start.sqrt(), color=SPARSE, linestyle="--", label="score before the batch")
    axes.plot(grid, mean + width * variance.sqrt(), color=SPARSE, label=f"score after its {len(picks)} picks")
    axes.plot(grid[picks], (mean + width * variance.sqrt())[picks], "o", color=POINTS, markersize=4, label="picks")
    axes.legend(frameon=False, fontsize=8)
    axes.set(xlabel="x", ylabel="score")
    save(figure, "batch")


def conditioning_picture() -> None:
    """A pending point far from the dictionary: what either update makes of the variance."""
    X, y, grid = problem()
    left = X < 0.5
    fit = Fit(X[left], y[left], X[left][::9])
    before = fit.moments(grid)[1]
    point = torch.tensor([0.62], dtype=torch.float64)
    column = fit.covariance(grid, point).squeeze(-1)
    process = before - column.square() / (fit.moments(point)[1] + NOISE)
    both = Fit(torch.cat([fit.X, point]), torch.cat([fit.y, point * 0]), fit.D)
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    axes.plot(grid, before, color=EXACT, linestyle="--", label="before")
    axes.plot(grid, both.moments(grid)[1], color=POINTS, label="fixed dictionary")
    axes.plot(grid, process, color=SPARSE, label="process conditioning")
    axes.axvline(0.62, color="0.7", linewidth=1)
    axes.annotate("pending", (0.63, 0.03), fontsize=8)
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set(xlabel="x", ylabel="variance of f", ylim=(0, 1.05))
    save(figure, "conditioning")


def certificate_picture() -> None:
    """Ratio of sparse and exact variance for dictionaries of three sizes, inside its certified band."""
    X, y, grid = problem()
    exact = Fit(X, y, X).moments(grid)[1]
    figure, panels = plt.subplots(1, 3, figsize=(7, 2.5), sharey=True, layout="constrained")
    for axes, size in zip(panels, (10, 16, 22), strict=True):
        fit = Fit(X, y, greedy(X, size))
        factor = certified_factor(fit.ratio)
        axes.axhspan(1 / factor, factor, color=SPARSE, alpha=0.15, linewidth=0)
        axes.plot(grid, fit.moments(grid)[1] / exact, color=SPARSE)
        axes.set(title=f"m = {size}: factor {factor:.3g}", xlabel="x", yscale="log")
        axes.title.set_fontsize(9)
    panels[0].set_ylabel("sparse / exact variance")
    save(figure, "certificate")


def greedy(X: Tensor, size: int) -> Tensor:
    """Return the inputs of largest residual variance, one after another."""
    D = X[:1]
    while len(D) < size:
        features = nystrom_factor(kernel(D, D)).features(kernel(D, X))
        D = torch.cat([D, X[dtc.residual(features, torch.ones_like(X)).argmax()].reshape(1)])
    return D


def save(figure: plt.Figure, name: str) -> None:
    """Write a picture and forget it."""
    figure.savefig(HERE / f"{name}.png", dpi=150, metadata={"Software": None})
    plt.close(figure)


def report_pictures() -> None:
    """Write every panel of the pages of two runs: named parameters with failures, and arms with a certificate."""

    def train(point: dict[str, Any]) -> float:
        if point["depth"] == 12:
            return math.nan
        better = 0.3 if point["kind"] == "tree" else 0.0
        return better - (math.log10(point["rate"]) + 2.0) ** 2 - 0.05 * (point["depth"] - 5) ** 2

    space = {"rate": Float(1e-4, 1.0, log=True), "depth": Int(1, 12), "kind": Choice("tree", "linear")}
    problem = gp_draw(arms=1_000, dims=2, noise_sd=0.1)
    with tempfile.TemporaryDirectory() as folder:
        maximize(train, space=space, budget=60, storage=f"{folder}/named.journal")
        with AskTell(problem.arms, BBKB(), storage=f"{folder}/arms.journal", certify_every=4) as loop:
            loop.run(problem.objective(seed=1), 400, call_with="indices")
        named = view_of_journal(f"{folder}/named.journal")
        over_arms = view_of_journal(f"{folder}/arms.journal", regret_of=problem.regret_of)
    sections = [*sections_of(named), *(section for section in sections_of(over_arms) if section.name != "inputs")]
    plots = {plot.title: plot for section in sections for plot in section.plots if plot.svg}
    colours = re.findall(r":root\{.*?\}", page_source(), re.DOTALL)
    light, dark = (re.sub(r";?color-scheme:light dark|\s", "", text) for text in colours)
    style = f"{light}@media(prefers-color-scheme:dark){{{dark}}}"
    for title, plot in plots.items():
        name = title.lower().replace(" ", "-")
        spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        head = f'<svg {spaces} viewBox="{plot.box}" width="440">'
        font = "text{font-family:system-ui,sans-serif}"
        text = f"{head}<title>{plot.title}</title><style>{style}{font}</style>{plot.svg}</svg>\n"
        (REPORT / f"{name}.svg").write_text(text, encoding="utf-8")


def page_source() -> str:
    """Return the template of a page, whose style sheet has the colours."""
    return (resources.files("sparse_bo.report") / "page.html.jinja").read_text(encoding="utf-8")


def gallery_pictures() -> None:
    """Write the last figure of each tutorial, smaller."""
    for path in sorted(TUTORIALS.glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        found = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
        picture = Image.open(io.BytesIO(base64.b64decode("".join(found[-1])))).convert("RGB")
        smaller = picture.resize((WIDTH, round(WIDTH * picture.height / picture.width)), Image.Resampling.LANCZOS)
        smaller.quantize(64, dither=Image.Dither.NONE).save(GALLERY / f"{path.stem}.png", optimize=True)


if __name__ == "__main__":
    gallery_pictures()
    if sys.argv[1:] == ["gallery"]:
        raise SystemExit
    report_pictures()
    for draw in (posterior_picture, leverage_picture, batch_picture, conditioning_picture, certificate_picture):
        draw()
