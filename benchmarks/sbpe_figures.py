"""S-BPE (Vakili et al. 2022): regret and batches beside BBKB, BPE and GP-UCB, and the design's error beside Theorem 4.1.

    python benchmarks/sbpe_figures.py                  # 5 seeds, N = 1,000; designs of up to 3,200 points; Cadata, N = 10,000
    python benchmarks/sbpe_figures.py --quick          # 2 seeds, N = 400; designs of up to 800 points
    python benchmarks/sbpe_figures.py --parts table    # only S-BPE on Cadata, 10 seeds
    python benchmarks/sbpe_figures.py --parts regret --budget 4000 --seeds 2

Shown by budget: the newest record of each kernel, method and seed.
"""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel
from harness.drawing import BLUE, GREEN, INK, MUTED, ORANGE, PURPLE, RED, band, plain_ticks
from harness.experiment import Block, Experiment, Job, Option, Picture, Table
from harness.pages import mean_sd, short
from harness.records import Record, most, newest, stopwatch
from harness.runner import main
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sparse_bo import BBKB, BPE, GPUCB, SBPE, AskTell
from sparse_bo.cli.inputs import make_problem
from sparse_bo.cli.presets import make_policy as preset
from sparse_bo.dictionary import RecursiveRLSSampler
from sparse_bo.errors import CertificateWarning, ContradictionError
from sparse_bo.kernels import covariance_function
from sparse_bo.policies import max_variance_design
from sparse_bo.policies.elimination.batches import interval
from sparse_bo.problems.builtin import Problem
from sparse_bo.widths import SBPETheory

KERNELS = ("SE", "Matérn 5/2")
COLOURS = {
    "S-BPE": RED,
    "S-BPE, tight": ORANGE,
    "S-BPE, m ≤ 64": PURPLE,
    "BPE": BLUE,
    "BBKB": GREEN,
    "GP-UCB": MUTED,
}
PARTS = ("table", "design", "regret")
DASHES = {"BPE": (0, (4, 3)), "S-BPE, m ≤ 64": (0, (1, 1.5))}
"""S-BPE with the tight constant often *is* BPE: both lines have to be seen."""
METHODS = tuple(COLOURS)
ON_CADATA = {"warn": "S-BPE, warned", "widen": "S-BPE, widened"}
NOISE_SD, DELTA, ARMS, CENTRES = 0.1, 0.05, 1000, 20
CHECKPOINTS = 200


class Member(NamedTuple):
    """An objective in the RKHS of a kernel, which stays on the CPU: policies take it to where the arms are."""

    problem: Problem
    kernel: Kernel
    norm: float


def member(kernel_name: str, seed: int, device: torch.device) -> Member:
    """Return ``f = Σ α_i k(·, c_i)`` scaled to a range of 2, and its norm ``√(αᵀKα)``."""
    kernel = RBFKernel() if kernel_name == "SE" else MaternKernel(nu=2.5)
    kernel = kernel.double()
    kernel.lengthscale = 0.3
    kernel.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    arms = torch.quasirandom.SobolEngine(2, scramble=True, seed=seed).draw(ARMS, dtype=torch.float64)
    centres = torch.rand(CENTRES, 2, generator=generator, dtype=torch.float64)
    weights = torch.randn(CENTRES, generator=generator, dtype=torch.float64)
    values = kernel(arms, centres).to_dense() @ weights
    scale = 2.0 / float(values.max() - values.min())
    norm = scale * float((weights @ kernel(centres, centres).to_dense() @ weights).sqrt())
    problem = Problem(kernel_name, arms, scale * values, NOISE_SD, f"a member of the RKHS of {kernel_name}, norm {norm:.2f}")
    return Member(problem.to(device), kernel, norm)


def make_policy(method: str, task: Member, budget: int) -> Any:
    """Return a policy by name, with what it is told of the objective."""
    common = {
        "covar_module": task.kernel,
        "regularization": NOISE_SD**2,
        "noise_variance": NOISE_SD**2,
        "rkhs_norm": task.norm,
        "failure_probability": DELTA,
    }
    if method == "BBKB":
        return BBKB(width="authors", oversampling=4.0, **common)
    if method == "GP-UCB":
        return GPUCB(width="authors", **common)
    if method == "BPE":
        return BPE(horizon=budget, **common)
    small = RecursiveRLSSampler(size=64) if method == "S-BPE, m ≤ 64" else None
    return SBPE(horizon=budget, width="theory" if method == "S-BPE" else "tight", dictionary=small, **common)


def run_one(kernel: str, method: str, *, budget: int, seed: int, device: torch.device) -> Record:
    """Return what one run gives: cumulative and simple regret at checkpoints, batches, surviving arms."""
    task, clock = member(kernel, seed, device), stopwatch(device)
    problem = task.problem
    loop = AskTell(problem.arms, make_policy(method, task, budget), seed=seed)
    start = clock()
    loop.run(problem.objective(seed=1000 + seed), budget, call_with="indices")
    seconds = clock() - start
    history = loop.history
    sizes = np.array(history.column("batch_size"))
    regret = np.cumsum(problem.regret(history.indices).cpu().numpy())
    best = problem.regret(history.column("best_index")).cpu().numpy()  # of the arm recommended after each batch
    at = np.unique(np.geomspace(1, budget, CHECKPOINTS).astype(int))
    after = np.searchsorted(np.cumsum(sizes), at, side="right") - 1  # last complete batch at each checkpoint
    simple = np.where(after >= 0, best[np.maximum(after, 0)], np.nan)
    survivors = history.column("survivors")
    optimal = int(problem.values.argmax())
    return {
        "norm": task.norm,
        "at": at.tolist(),
        "regret": np.round(regret[at - 1], 4).tolist(),
        "simple": [None if np.isnan(v) else float(v) for v in simple],
        "batches": len(sizes),
        "batch_sizes": sizes.tolist() if len(sizes) < 100 else [],
        "survivors": survivors if survivors[-1] is not None else [],
        "optimal_survives": None if loop.state.report().survivors is None else optimal in loop.state.report().survivors,
        "dictionary_size": history.rows[-1].dictionary_size,
        "largest_dictionary": max(m or 0 for m in history.column("dictionary_size")),
        "distinct_arms": len(set(history.indices)),
        "cpu_seconds": round(seconds, 3),
    }


def run_design(kernel: str, *, sizes: Sequence[int], seed: int, device: torch.device) -> Record:
    """Return sup |f − mean| of designs of growing size for one objective, and the bounds on it."""
    task = member(kernel, seed, device)
    problem, noise = task.problem, NOISE_SD**2
    common = {"rkhs_norm": task.norm, "noise_variance": noise, "failure_probability": DELTA}
    paper, tight = SBPETheory(**common), SBPETheory(**common, bias="tight")
    rows = []
    for n in sizes:
        plan = max_variance_design(
            n,
            arms=problem.arms,
            covar_module=task.kernel,
            regularization=noise,
            generator=torch.Generator().manual_seed(seed),
        )
        indices = plan.indices
        assert indices is not None
        random = torch.randint(ARMS, (n,), generator=torch.Generator().manual_seed(seed)).to(device)
        rows.append(
            {
                "n": n,
                "error": sup_error(task, indices, seed),
                "random": sup_error(task, random, seed),
                "reached": plan.error_bound(paper),
                "reached_tight": plan.error_bound(tight),
                "rate": plan.rate_bound(paper),
                "distinct": len(indices.unique()),
                "information_gain": plan.information_gain,
            }
        )
    return {"norm": task.norm, "rows": rows}


def sup_error(task: Member, indices: torch.Tensor, seed: int) -> float:
    """Return sup |f − mean| over the arms of the exact posterior mean, from one noisy result at each of ``indices``."""
    problem, noise = task.problem, NOISE_SD**2
    y = problem.objective(seed=2000 + seed)(indices)
    distinct, group = torch.unique(indices, return_inverse=True)
    nothing = torch.zeros_like(y[: len(distinct)])
    counts = nothing.index_add(0, group, torch.ones_like(y))
    means = nothing.index_add(0, group, y) / counts
    K = covariance_function(task.kernel, like=problem.arms).cross(problem.arms[distinct], problem.arms)
    mean = K.T @ torch.linalg.solve(K[:, distinct] + torch.diag(noise / counts), means)
    return float((mean - problem.values).abs().max())


def run_table(*, on_refuted: str, budget: int, seed: int, device: torch.device) -> Record:
    """Return what S-BPE gives over the rows of Cadata: seconds, survivors, and whether it notices that F is too small."""
    problem = make_problem("cadata", scaling=None, noise_sd=NOISE_SD, arms=None, dims=None, seed=seed)
    assert isinstance(problem, Problem)
    problem, clock = problem.to(device), stopwatch(device)
    policy = preset("sbpe", {"on_refuted": on_refuted}, problem="cadata", budget=budget)
    loop = AskTell(problem.arms, policy, seed=seed)
    start = clock()
    with warnings.catch_warnings(), suppress(ContradictionError):  # the state says so
        warnings.simplefilter("ignore", CertificateWarning)
        loop.run(problem.objective(seed=1000 + seed), budget, call_with="indices")
    seconds = clock() - start
    state, values = loop.state, problem.values
    refuted = [number for number, row in enumerate(loop.history.rows, start=1) if row.refuted is not None]
    best = values == values.max()
    outside = []
    for finding in state.findings:
        bounds, truth = interval(finding, state.width), values[finding.members]
        outside.append(int(((truth < bounds.lower) | (truth > bounds.upper)).sum()))
    return {
        "cpu_seconds": round(seconds, 3),
        "batch_sizes": list(state.sizes),
        "active": [len(finding.members) for finding in state.findings],
        "outside": outside,
        "coverages": [list(pair) for pair in state.coverages],
        "norm": state.norm,
        "norm_at_least": state.norm_at_least,
        "doublings": state.doublings,
        "contradicted": state.contradiction is not None,
        "refuted_in_batch": refuted[0] if refuted else None,
        "left": len(state.survivors),
        "best_arms": int(best.sum()),
        "best_left": int(best[state.survivors].sum()),
        "gap": float(problem.best_value - values[state.report().best_index]),
        "regret": float(problem.regret(loop.history.indices).mean()),
        "largest_dictionary": max(m or 0 for m in loop.history.column("dictionary_size")),
    }


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield S-BPE on Cadata, then designs and runs, seed by seed."""
    if "table" in chosen.parts:
        for seed in range(chosen.seeds[0], chosen.seeds[0] + chosen.table_seeds):
            for on_refuted, method in ON_CADATA.items():
                key = {"budget": chosen.table_budget, "seed": seed}
                run = partial(run_table, on_refuted=on_refuted, **key, device=chosen.device)
                yield Job({"part": "table", "kernel": "cadata", "method": method, **key}, run)
    for seed in chosen.seeds:
        for kernel in chosen.kernels:
            same = {"kernel": kernel, "budget": chosen.budget, "seed": seed}
            if "design" in chosen.parts:
                run = partial(run_design, kernel, sizes=chosen.sizes, seed=seed, device=chosen.device)
                yield Job({"part": "design", "method": "design", **same}, run)
            for method in chosen.methods if "regret" in chosen.parts else ():
                run = partial(run_one, method=method, **same, device=chosen.device)
                yield Job({"part": "regret", "method": method, **same}, run)


Runs = dict[tuple[Any, ...], Record]


def part(records: list[Record], name: str) -> dict[int, Runs]:
    """Return by budget the newest record of each kernel, method and seed of one part."""
    found = [r for r in records if r["part"] == name]
    budgets = sorted({r["budget"] for r in found})
    return {b: newest([r for r in found if r["budget"] == b], "kernel", "method", "seed") for b in budgets}


def page(records: list[Record]) -> Iterator[Block]:
    """Yield regret by budget, the design, and Cadata."""
    for budget, runs in part(records, "regret").items():
        yield f"### Regret and batches, N = {budget:,}"
        yield table(runs)
        yield Picture(f"sbpe_regret-N{budget}", "Cumulative and simple regret, arms left", partial(draw_regret, runs))
    for budget, runs in part(records, "design").items():
        yield "### The design's error and its bounds"
        yield table_of_design(runs)
        yield Picture(f"sbpe_design-N{budget}", "Error of the design, and its bounds", partial(draw_design, runs))
    for budget, runs in part([r for r in records if r["method"] in ON_CADATA.values()], "table").items():
        yield f"### Cadata, N = {budget:,}, F = 20"
        yield from on_cadata(runs)


def table(runs: Runs) -> Table:
    """Return means over the seeds of regret, batches, arms left."""
    rows = []
    for kernel in KERNELS:
        for method in METHODS:
            chosen = [r for (k, m, _), r in runs.items() if (k, m) == (kernel, method)]
            if not chosen:
                continue
            regret = mean_sd([r["regret"][-1] / r["budget"] for r in chosen], 3)
            left = [r["survivors"][-1] for r in chosen if r["survivors"]]
            kept = [r["optimal_survives"] for r in chosen if r["optimal_survives"] is not None]
            rows.append(
                (
                    *(kernel, method, str(len(chosen)), regret, f"{np.mean([r['simple'][-1] for r in chosen]):.4f}"),
                    f"{np.mean([r['batches'] for r in chosen]):,.0f}",
                    f"{np.mean(left):,.0f}" if left else "–",
                    f"{sum(kept)} of {len(kept)}" if kept else "–",
                    str(max(r["largest_dictionary"] for r in chosen)),
                    f"{np.mean([r['cpu_seconds'] for r in chosen]):.1f}",
                )
            )
    columns = ("kernel", "method", "seeds", "regret per evaluation", "final simple regret", "batches", "arms left")
    return Table((*columns, "best arm kept", "largest m", "s"), rows)


def table_of_design(runs: Runs) -> Table:
    """Return geometric means over the objectives of the errors, and of the bounds over the error."""
    rows = []
    for kernel in KERNELS:
        designs = [r["rows"] for (k, _, _), r in runs.items() if k == kernel]
        for at in zip(*designs, strict=True):
            cells = [short(gmean([row[key] for row in at]), 2) for key in ("error", "random")]
            for key in ("reached", "reached_tight", "rate"):
                ratios = [row[key] / row["error"] for row in at]
                cells.append(f"{short(gmean(ratios), 2)} ({short(min(ratios), 2)} to {short(max(ratios), 2)})")
            rows.append((kernel, f"{at[0]['n']:,}", str(len(at)), *cells))
    bounds = ("Thm 3.5 / error", "with the tight constant", "Thm 4.1 / error")
    return Table(("kernel", "n", "objectives", "sup error", "of random arms", *bounds), rows)


def gmean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return float(np.exp(np.mean(np.log(values))))


def on_cadata(runs: Runs) -> Iterator[Block]:
    """Yield what S-BPE does on Cadata with an F that is too small: whether it notices, and what it keeps."""
    rows = []
    for method in ON_CADATA.values():
        chosen = [r for (_, m, _), r in runs.items() if m == method]
        if not chosen:
            continue
        outside = [sum(r["outside"][1:]) / sum(r["active"][1:]) for r in chosen]
        inputs = [n for r in chosen for n, _ in r["coverages"][-2:]]
        inside = [k for r in chosen for _, k in r["coverages"][-2:]]
        noticed = sorted({str(r["refuted_in_batch"]) for r in chosen if r["refuted_in_batch"] is not None})
        kept = [r["best_left"] / r["best_arms"] for r in chosen]
        rows.append(
            (
                *(method, str(len(chosen)), _span([r["norm"] for r in chosen], "{:.0f}")),
                _span([r["norm_at_least"] for r in chosen], "{:.0f}"),
                f"{sum(inside):,} of {sum(inputs):,} ({sum(inside) / sum(inputs):.0%})",
                _span([100.0 * share for share in outside], "{:.0f} %"),
                f"{len([r for r in chosen if r['refuted_in_batch']])} of {len(chosen)}, batch {' or '.join(noticed)}"
                if noticed
                else "not any more",
                *(_span([100.0 * share for share in kept], "{:.0f} %"), _span([r["left"] for r in chosen], "{:,.0f}")),
                *(mean_sd([r["regret"] for r in chosen], 3), _span([r["cpu_seconds"] for r in chosen], "{:.1f}")),
            )
        )
    columns = ("policy", "seeds", "F at the end", "norm at least", "mean results inside, last two batches", "labels outside")
    yield Table((*columns, "refuted", "best arms kept", "arms left", "regret per evaluation", "s"), rows)
    yield (
        "*Labels outside*: of the arms active in batches 2 to 5, those whose label lies outside of the interval of their own\n"
        "batch, which only who knows the labels can see. *Mean results inside*: what the policy sees, of the intervals\n"
        "promised before the batch; 99 % are promised. *Best arms*: those that share the highest label. Widened: F = 20 is\n"
        'multiplied by 2 until the results agree (`on_refuted="widen"`).'
    )


def _span(values: Sequence[float], form: str) -> str:
    """Return the least and the most of some numbers."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def headline(records: list[Record]) -> str:
    """Return batches, time and regret beside BBKB's and GP-UCB's."""
    found = most([r for r in records if r["part"] == "regret"], "budget")
    runs = newest(found, "kernel", "method", "seed")

    def ratios(key: str, other: str, form: str) -> str | None:
        """S-BPE's numbers over those of another method with the same seeds, by kernel, where all of them have been run."""

        def value(r: Record) -> float:
            return r["regret"][-1] if key == "regret" else r[key]

        told = []
        for kernel in KERNELS:
            pairs = [(runs.get((k, "S-BPE", seed)), r) for (k, m, seed), r in runs.items() if (k, m) == (kernel, other)]
            both = [(value(ours), value(theirs)) for ours, theirs in pairs if ours]
            if not both:
                return None
            ours, theirs = np.mean(both, axis=0)
            told.append(f"{ours / theirs:{form}}")
        return " and ".join(told)

    batches = sorted({r["batches"] for r in found if r["method"] == "S-BPE"})
    seconds, regret = ratios("cpu_seconds", "GP-UCB", ".2f"), ratios("regret", "BBKB", ".1f")
    parts = [f"{' to '.join(map(str, batches))} batches"]
    parts += [f"{seconds} of GP-UCB's time"] if seconds else []
    parts += [f"{regret} times BBKB's regret"] if regret else []
    return f"N = {found[0]['budget']:,}: {', '.join(parts)} ({', '.join(KERNELS)})"


def draw_regret(runs: Runs) -> Figure:
    """Draw cumulative regret, simple regret and surviving arms, a column for each kernel."""
    budget = next(iter(runs.values()))["budget"]
    figure = Figure(figsize=(11, 9.6), layout="constrained")
    axes = figure.subplots(3, len(KERNELS), sharex="row")
    for column, kernel in enumerate(KERNELS):
        top, middle, bottom = axes[:, column]
        for method in METHODS:
            chosen = [r for (k, m, _), r in runs.items() if (k, m) == (kernel, method)]
            if chosen:
                _curves(top, middle, bottom, method, chosen)
        top.set(title=f"{kernel}: cumulative regret", xlabel="evaluations")
        middle.set(title=f"{kernel}: regret of the recommended arm (mean)", xlabel="evaluations", xscale="log")
        middle.set_yscale("symlog", linthresh=1e-3)
        middle.set_ylim(bottom=0.0)
        bottom.set(title=f"{kernel}: arms not eliminated after each batch", xlabel="evaluations", yscale="log", xscale="log")
        plain_ticks(bottom.yaxis)
        for axis in (middle, bottom):
            axis.set_xlim(1, 1.1 * budget)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _curves(top: Axes, middle: Axes, bottom: Axes, method: str, chosen: list[Record]) -> None:
    """Draw one method: mean ± sd of the regret, the mean of the simple regret, geometric mean and range of the arms left."""
    colour, at = COLOURS[method], np.array(chosen[0]["at"])
    look: dict[str, Any] = {"color": colour, "lw": 1.7, "ls": DASHES.get(method, "-")}
    band(top, at, [r["regret"] for r in chosen], label=f"{method} ({len(chosen)} seeds)", **look)
    simple = np.array([[np.nan if v is None else v for v in r["simple"]] for r in chosen])
    seen = ~np.isnan(simple).any(axis=0)
    middle.plot(at[seen], simple[:, seen].mean(0), drawstyle="steps-post", **look)
    if all(r["survivors"] for r in chosen):
        ends = np.cumsum([r["batch_sizes"] for r in chosen], axis=1)[0]  # the schedule is the same for every seed
        left = np.array([r["survivors"] for r in chosen], dtype=float)
        bottom.plot(ends, np.exp(np.log(left).mean(0)), marker="o", ms=4, **look)
        bottom.fill_between(ends, left.min(0), left.max(0), color=colour, alpha=0.08, lw=0)


def draw_design(runs: Runs) -> Figure:
    """Draw the design's error and its bounds against n."""
    lines = {
        "error": ("sup error, maximum-variance design", RED, "-"),
        "random": ("sup error, random design", MUTED, "-"),
        "reached_tight": ("width · largest sd, tight constant", ORANGE, "--"),
        "reached": ("width · largest sd (Thm 3.5)", BLUE, "--"),
        "rate": ("Theorem 4.1, corrected constant", INK, ":"),
    }
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    axes = figure.subplots(1, len(KERNELS), sharey=True)
    for axis, kernel in zip(axes, KERNELS, strict=True):
        chosen = [r["rows"] for (k, _, _), r in runs.items() if k == kernel]
        for key, (label, colour, style) in lines.items() if chosen else ():
            values = np.array([[row[key] for row in rows] for rows in chosen])
            n = [row["n"] for row in chosen[0]]
            axis.plot(n, np.exp(np.log(values).mean(0)), style, color=colour, lw=1.6, label=label)
            axis.fill_between(n, values.min(0), values.max(0), color=colour, alpha=0.12, lw=0)
        axis.set(
            xscale="log", yscale="log", title=f"{kernel} ({len(chosen)} objectives)", xlabel="n, evaluations of the design"
        )
    axes[0].set_ylabel("sup |f − mean| over the arms")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


EXPERIMENT = Experiment(
    script=__file__,
    title="S-BPE: regret, batches, arms left, and the design's error",
    question="S-BPE beside BBKB, BPE and GP-UCB: how few batches, at what regret, and do its bounds hold?",
    about=f"""
Objectives are members of the kernel's RKHS (lengthscale 0.3) of known norm F, range 2, over {ARMS:,} arms in the unit
square, noise sd {NOISE_SD}, λ = ξ² = {NOISE_SD**2:.2g}, δ = {DELTA}; every seed is an objective of its own, means ±
standard deviation over them. Every method is told F, the noise and the kernel; BBKB and GP-UCB use their authors' widths,
which are narrower than their theory's and promise nothing here. "Tight" is S-BPE with the tight constant of F; "m ≤ 64" has
fixed-size recursive RLS. Processor seconds.

- *Few batches, planned before their results, is what S-BPE gives*; its price is cumulative regret: it explores all of what
  is left, while BBKB and GP-UCB exploit from the start. It alone says which arms can still be optimal.
- *S-BPE is BPE at this size.* The constants of recursive RLS leave nothing out below some thousand distinct picks: the rows
  differ by the constant of F only, and with the tight one they are equal.
- *A dictionary that is really small* eliminates little where the certified λ_max is far above λ (Matérn), and the width
  says so. It also resamples at almost every pick, hence its time.
- *The design*: ratios above one are bounds that hold; Theorem 4.1 has its constant corrected. Geometric means, in brackets
  least and most.
- *Cadata* has the published kernel, λ = ξ² = 0.01, width "tight" and F = 20, which is too small for these labels: the
  results refute it in the second batch.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "budget": Option("evaluations of a run", 1_000, 400, 60),
        "table_budget": Option("evaluations on Cadata", 10_000, None, 200),
        "table_seeds": Option("seeds on Cadata", 10, None, 1),
        "sizes": Option("of the designs", (50, 100, 200, 400, 800, 1600, 3200), (50, 100, 200, 400, 800), (10, 20)),
        "kernels": Option("kernels", KERNELS, choices=KERNELS),
        "methods": Option("methods", METHODS, choices=METHODS),
        "parts": Option("what to run", PARTS, ("design", "regret"), PARTS, choices=PARTS),
    },
    seeds=(5, 2, 1),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
