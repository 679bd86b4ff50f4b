"""BKB Fig. 1 (Calandriello et al. 2019): variance starvation, DTC beside SoR at t = 6, 63, 215.

    python benchmarks/bkb_figures.py            # 20 seeds
    python benchmarks/bkb_figures.py --quick    # 3 seeds
    python benchmarks/bkb_figures.py --draw     # only draw, from results/bkb_figures.jsonl

A function is drawn from the GP on [0, 1] (kernel ``exp(−50 (x − x')²)``: "bandwidth σ² = 100") on 1,001 arms. BKB (q̄ = 2, λ =
noise variance = 0.01; the paper states neither) is told 215 evaluations at uniform points of [0, 0.5], one at a time, with a
new leverage-score dictionary after each. SoR has the same dictionary and mean, and ``z(x)ᵀz(x)`` in place of ``k(x, x)`` in
the variance (§3.1). Appends one record per seed to ``results/bkb_figures.jsonl``; the figure
shows seed 0, whose record has the curves.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import matplotlib
import numpy as np
import torch
from common import RESULTS, append, environment, read
from gpytorch.kernels import RBFKernel
from matplotlib.figure import Figure
from torch import Tensor

from sparse_bo import BKB
from sparse_bo.core import dtc
from sparse_bo.dictionary import AllSampler
from sparse_bo.domains import Arms
from sparse_bo.policies import BanditState
from sparse_bo.runs.figures import BLUE, INK, MUTED, ORANGE, STYLE

FILE = RESULTS / "bkb_figures.jsonl"
TIMES = (6, 63, 215)
NOISE_SD = 0.1
ARMS = 1001
SHOWN = 4
"""Every fourth arm is kept for the figure."""


def run_one(seed: int) -> dict[str, Any]:
    """Return the record of one seed: at each time the posterior over the arms in three ways, and what it says of [0.6, 1]."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.linspace(0, 1, ARMS, dtype=torch.float64).unsqueeze(-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.1
    f = _draw(kernel(arms).to_dense().detach(), generator)
    picks = torch.randint((ARMS + 1) // 2, (max(TIMES),), generator=generator)
    y = f[picks] + NOISE_SD * torch.randn(len(picks), generator=generator, dtype=torch.float64)
    policy = BKB(covar_module=kernel, regularization=NOISE_SD**2).on_arms(Arms(arms))
    exact = BKB(covar_module=kernel, regularization=NOISE_SD**2, dictionary=AllSampler()).on_arms(Arms(arms))
    state, panels = policy.init(), []
    for t in range(1, max(TIMES) + 1):
        state = policy.tell(state, picks[t - 1 : t], y[t - 1 : t], generator=generator)
        if t in TIMES:
            whole = exact.tell(exact.init(), picks[:t], y[:t], generator=generator)
            panel = _panel(f, state, whole)
            curves = _curves(picks[:t], y[:t], state, whole) if seed == 0 else {}
            panels.append({"t": t, **panel, **curves})
    return {"seed": seed, "panels": panels, **({"f": _short(f[::SHOWN])} if seed == 0 else {}), **environment()}


def _spread(state: BanditState, whole: BanditState) -> dict[str, Tensor]:
    """Return the standard deviation over the arms by DTC, SoR and the exact GP."""
    posterior, exact = state.posterior, whole.posterior
    assert posterior is not None
    assert exact is not None
    features = posterior.state.factor.features(posterior.kernel_rows(torch.arange(ARMS)))
    return {
        "DTC": posterior.leverages.sqrt() * NOISE_SD,
        "SoR": dtc.whitened(posterior.state, features).square().sum(dim=-1).sqrt(),
        "exact": exact.leverages.sqrt() * NOISE_SD,
    }


def _panel(f: Tensor, state: BanditState, whole: BanditState) -> dict[str, Any]:
    """Return the size of the dictionary, the smallest ratios of standard deviations, and the share of f within 3 of them."""
    posterior, spread = state.posterior, _spread(state, whole)
    assert posterior is not None
    seen, unseen = slice(None, (ARMS + 1) // 2), slice(int(0.6 * (ARMS - 1)), None)
    missed = (f - posterior.means).abs()
    return {
        "m": posterior.dictionary.m,
        "sd_ratio_seen": {name: float((sd / spread["exact"])[seen].min()) for name, sd in spread.items()},
        "sd_ratio_unseen": {name: float((sd / spread["exact"])[unseen].min()) for name, sd in spread.items()},
        "covered_unseen": {name: float((missed <= 3 * sd)[unseen].double().mean()) for name, sd in spread.items()},
    }


def _curves(picks: Tensor, y: Tensor, state: BanditState, whole: BanditState) -> dict[str, Any]:
    """Return what the figure shows."""
    posterior, exact = state.posterior, whole.posterior
    assert posterior is not None
    assert exact is not None
    assert posterior.dictionary.indices is not None
    return {
        "picks": picks.tolist(),
        "y": _short(y),
        "dictionary": posterior.dictionary.indices.tolist(),
        "mean": _short(posterior.means[::SHOWN]),
        "exact_mean": _short(exact.means[::SHOWN]),
        "sd": {name: _short(sd[::SHOWN]) for name, sd in _spread(state, whole).items()},
    }


def _draw(K: Tensor, generator: torch.Generator) -> Tensor:
    values, vectors = torch.linalg.eigh(K)
    return vectors @ (values.clamp_min(0.0).sqrt() * torch.randn(len(K), generator=generator, dtype=K.dtype))


def _short(values: Tensor) -> list[float]:
    return [round(v, 5) for v in values.tolist()]


def draw(record: dict[str, Any]) -> str:
    """Draw the figure of one record; return its file name."""
    arms = np.linspace(0, 1, ARMS)
    x = arms[::SHOWN]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 5.6), layout="constrained")
        for row, (name, colour) in zip(
            figure.subplots(2, 3, sharex=True, sharey=True), (("DTC", BLUE), ("SoR", ORANGE)), strict=True
        ):
            for axis, panel in zip(row, record["panels"], strict=True):
                mean, sd, exact = (np.array(v) for v in (panel["mean"], panel["sd"][name], panel["sd"]["exact"]))
                axis.fill_between(x, mean - 3 * sd, mean + 3 * sd, color=colour, alpha=0.25, lw=0, label=f"{name}: mean ± 3 sd")
                axis.plot(x, mean, color=colour, lw=1.6)
                middle = np.array(panel["exact_mean"])
                for sign in (-3, 3):
                    axis.plot(
                        x, middle + sign * exact, color=MUTED, lw=0.8, ls="--", label="exact ± 3 sd" if sign > 0 else None
                    )
                axis.plot(x, record["f"], color=INK, lw=1.2, label="f")
                axis.plot(arms[panel["picks"]], panel["y"], ".", color=INK, ms=3, alpha=0.5)
                axis.plot(arms[panel["dictionary"]], np.full(panel["m"], -3.9), "|", color=colour, ms=9, label="dictionary")
                axis.set_title(f"{name}, t = {panel['t']}, m = {panel['m']}")
                axis.set_ylim(-4.2, 4.2)
                if name == "SoR":
                    axis.set_xlabel("x")
            row[1].legend(loc="upper left", fontsize=7.5)
        figure.savefig(RESULTS / "bkb_fig1.png", dpi=120)
    return "bkb_fig1.png"


def summary(records: list[dict[str, Any]]) -> str:
    """Return a Markdown table over the seeds."""
    lines = [
        "| t | m | lowest sd / exact sd on [0, 0.5]: DTC, SoR | on [0.6, 1]: DTC, SoR | f within 3 sd there: DTC, SoR, exact |",
        "|---|---|---|---|---|",
    ]
    for i, t in enumerate(TIMES):
        panels = [r["panels"][i] for r in records]
        m = [p["m"] for p in panels]
        low = {
            (key, name): min(p[key][name] for p in panels)
            for key in ("sd_ratio_seen", "sd_ratio_unseen")
            for name in ("DTC", "SoR")
        }
        covered = {name: math.fsum(p["covered_unseen"][name] for p in panels) / len(panels) for name in ("DTC", "SoR", "exact")}
        lines.append(
            f"| {t} | {min(m)} to {max(m)} | {low['sd_ratio_seen', 'DTC']:.2f}, {low['sd_ratio_seen', 'SoR']:.2g} | "
            f"{low['sd_ratio_unseen', 'DTC']:.2f}, {low['sd_ratio_unseen', 'SoR']:.1g} | "
            + ", ".join(f"{100 * covered[name]:.1f} %" for name in ("DTC", "SoR", "exact"))
            + " |"
        )
    return "\n".join(lines)


def main() -> None:
    """Parse arguments, run what was asked, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="3 seeds")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw from the file")
    parser.add_argument("--seeds", type=int, default=20)
    arguments = parser.parse_args()
    if not arguments.draw:
        for seed in range(3 if arguments.quick else arguments.seeds):
            append(FILE, run_one(seed))
            print(f"seed {seed} done", flush=True)
    newest = {r["seed"]: r for r in read(FILE)}
    print(summary(list(newest.values())))
    print("figure:", draw(newest[0]))


if __name__ == "__main__":
    main()
