"""BKB Fig. 1 (Calandriello et al. 2019): variance starvation, DTC beside SoR at t = 6, 63, 215.

    python benchmarks/bkb_figures.py            # 20 seeds
    python benchmarks/bkb_figures.py --quick    # 3 seeds

One record a seed; that of seed 0 has the curves of the figure.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from gpytorch.kernels import RBFKernel
from harness.drawing import BLUE, INK, MUTED, ORANGE
from harness.experiment import Block, Experiment, Job, Picture, Table
from harness.records import Record, newest
from harness.runner import main
from matplotlib.figure import Figure
from torch import Tensor

from sparse_bo import BKB
from sparse_bo.dictionary import AllSampler
from sparse_bo.domains import Arms
from sparse_bo.gp import dtc
from sparse_bo.policies import BanditState

TIMES = (6, 63, 215)
NOISE_SD = 0.1
ARMS = 1001
SHOWN = 4
"""Every fourth arm is kept for the figure."""


def run_one(seed: int, device: torch.device) -> Record:
    """Return what one seed gives: at each time the posterior over the arms in three ways, and what it says of [0.6, 1]."""
    generator = torch.Generator().manual_seed(seed)
    arms = torch.linspace(0, 1, ARMS, dtype=torch.float64).unsqueeze(-1)
    kernel = RBFKernel().double()
    kernel.lengthscale = 0.1
    f = _draw(kernel(arms).to_dense().detach(), generator)
    picks = torch.randint((ARMS + 1) // 2, (max(TIMES),), generator=generator)
    y = f[picks] + NOISE_SD * torch.randn(len(picks), generator=generator, dtype=torch.float64)
    arms, f, picks, y = (value.to(device) for value in (arms, f, picks, y))
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
    return {"panels": panels, **({"f": _short(f[::SHOWN])} if seed == 0 else {})}


def _spread(state: BanditState, whole: BanditState) -> dict[str, Tensor]:
    """Return the standard deviation over the arms by DTC, SoR and the exact GP."""
    posterior, exact = state.posterior, whole.posterior
    assert posterior is not None
    assert exact is not None
    features = posterior.state.factor.features(posterior.kernel_rows(torch.arange(ARMS, device=posterior.means.device)))
    return {
        "DTC": posterior.leverages.sqrt() * NOISE_SD,
        "SoR": dtc.whitened(posterior.state, features).square().sum(dim=-1).sqrt(),
        "exact": exact.leverages.sqrt() * NOISE_SD,
    }


def _panel(f: Tensor, state: BanditState, whole: BanditState) -> Record:
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


def _curves(picks: Tensor, y: Tensor, state: BanditState, whole: BanditState) -> Record:
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


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield a job for each seed."""
    for seed in chosen.seeds:
        yield Job({"seed": seed}, partial(run_one, seed, chosen.device))


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the table over the seeds and the figure of seed 0."""
    seeds = newest(records, "seed")
    yield f"{len(seeds)} seeds. In the figure seed 0."
    yield table(list(seeds.values()))
    if (0,) in seeds:
        yield Picture("bkb_fig1", "Variance starvation: DTC and SoR at three times", partial(draw, seeds[0,]))


def table(records: list[Record]) -> Table:
    """Return the smallest ratios of standard deviations over the seeds, and how much of f lies within three of them."""
    rows = []
    for i, t in enumerate(TIMES):
        m = [r["panels"][i]["m"] for r in records]
        low = {(key, name): lowest(records, i, key, name) for key in ("seen", "unseen") for name in ("DTC", "SoR")}
        shares = [[r["panels"][i]["covered_unseen"][name] for r in records] for name in ("DTC", "SoR", "exact")]
        rows.append(
            (
                str(t),
                f"{min(m)} to {max(m)}",
                f"{low['seen', 'DTC']:.2f}, {low['seen', 'SoR']:.2g}",
                f"{low['unseen', 'DTC']:.2f}, {low['unseen', 'SoR']:.1g}",
                ", ".join(f"{100 * np.mean(share):.1f} %" for share in shares),
            )
        )
    columns = ("t", "m", "lowest sd / exact sd on [0, 0.5]: DTC, SoR", "on [0.6, 1]: DTC, SoR")
    return Table((*columns, "f within 3 sd there: DTC, SoR, exact"), rows)


def lowest(records: list[Record], i: int, key: str, name: str) -> float:
    """Return the lowest ratio of a standard deviation to the exact one at the i-th time over the seeds."""
    return min(r["panels"][i][f"sd_ratio_{key}"][name] for r in records)


def headline(records: list[Record]) -> str:
    """Return how far each standard deviation falls below the exact one."""
    found = list(newest(records, "seed").values())
    dtc_sd, sor = (min(lowest(found, i, "unseen", name) for i in range(len(TIMES))) for name in ("DTC", "SoR"))
    return f"where nothing was observed, DTC's sd is at least {dtc_sd:.2f} of the exact one, SoR's falls to {sor:.0e} of it"


def draw(record: Record) -> Figure:
    """Draw the figure of one record."""
    arms = np.linspace(0, 1, ARMS)
    x = arms[::SHOWN]
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    grid = figure.subplots(2, 3, sharex=True, sharey=True)
    for row, (name, colour) in zip(grid, (("DTC", BLUE), ("SoR", ORANGE)), strict=True):
        for axis, panel in zip(row, record["panels"], strict=True):
            mean, sd, exact = (np.array(v) for v in (panel["mean"], panel["sd"][name], panel["sd"]["exact"]))
            axis.fill_between(x, mean - 3 * sd, mean + 3 * sd, color=colour, alpha=0.25, lw=0, label=f"{name}: mean ± 3 sd")
            axis.plot(x, mean, color=colour, lw=1.6)
            middle = np.array(panel["exact_mean"])
            for sign in (-3, 3):
                label = "exact ± 3 sd" if sign > 0 else None
                axis.plot(x, middle + sign * exact, color=MUTED, lw=0.8, ls="--", label=label)
            axis.plot(x, record["f"], color=INK, lw=1.2, label="f")
            axis.plot(arms[panel["picks"]], panel["y"], ".", color=INK, ms=3, alpha=0.5)
            axis.plot(arms[panel["dictionary"]], np.full(panel["m"], -3.9), "|", color=colour, ms=9, label="dictionary")
            axis.set_title(f"{name}, t = {panel['t']}, m = {panel['m']}")
            axis.set_ylim(-4.2, 4.2)
            if name == "SoR":
                axis.set_xlabel("x")
        row[1].legend(loc="upper left", fontsize=7.5)
    return figure


EXPERIMENT = Experiment(
    script=__file__,
    title="BKB Fig. 1: variance starvation",
    question="Does BKB's posterior stay uncertain where nothing was observed?",
    about=f"""
A function is drawn from the GP on [0, 1] (kernel `exp(−50 (x − x′)²)`: the paper's "bandwidth σ² = 100") on {ARMS:,} arms.
BKB (q̄ = 2, λ = noise variance = 0.01; the paper states neither) is told {max(TIMES)} evaluations at uniform points of [0,
0.5], one at a time, with a new leverage-score dictionary after each. SoR has the same dictionary and mean, and `z(x)ᵀz(x)`
in place of `k(x, x)` in the variance (§3.1). Ratios are the smallest over the arms and seeds; DTC's should be near one,
SoR's fall to zero where nothing was observed.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    seeds=(20, 3, 1),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
