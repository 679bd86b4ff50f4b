"""The settings of each command beside those of its policy: a field is an option, its default the option's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sparse_bo.cli.names import KERNELS, POLICIES, PRECISIONS, PRESETS, PROBLEMS, SAMPLERS
from sparse_bo.cli.options import ARMS, MODEL, OWN, PLAN, POLICY, PROBLEM, RUN, option
from sparse_bo.problems.names import GRID_EXAMPLE, SCALINGS

OUT = Path("sparse_bo_run")
"""The folder for figures and histories, unless another is named."""
Quiet = Annotated[bool, option(RUN, "No progress bar and no summary.", "--quiet")]
Device = Annotated[str, option(RUN, "Where to compute: cpu (default), cuda, cuda:1, …")]


@dataclass(frozen=True, kw_only=True)
class KernelSettings:
    """The kernel of the model, and the precision of its sweeps: fields of policies that have no text form."""

    kernel: Annotated[
        str | None,
        option(MODEL, f"One of {', '.join(KERNELS)}; default as the problem's preset.", field="covar_module"),
    ] = None
    lengthscale: Annotated[float | None, option(MODEL, "Of the kernel, in units of the scaled inputs; with --kernel 1.")] = None
    outputscale: Annotated[float | None, option(MODEL, "Variance of the kernel (default 1).")] = None
    precision: Annotated[
        str | None,
        option(MODEL, f"Of a sweep: {', '.join(PRECISIONS)}; picks stay exact. Default float64.", field="sweep_dtype"),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """The policy, and the sampler of its dictionary: a field of policies that has no text form."""

    policy: Annotated[
        str | None,
        option(POLICY, f"One of {', '.join(POLICIES)} (default: bbkb over arms, on a box trust-region; see --goal)."),
    ] = None
    preset: Annotated[
        str,
        option(POLICY, f"On cadata and abalone: {PRESETS[0]} (default) or {PRESETS[1]}, the settings of the paper."),
    ] = PRESETS[0]
    goal: Annotated[
        str,
        option(
            POLICY, "best: the best point at the end counts (default); cumulative: every evaluation; for trust-region, too."
        ),
    ] = "best"
    dictionary: Annotated[
        str | None,
        option(POLICY, f"Sampler, one of {', '.join(SAMPLERS)}; default the policy's own.", field="dictionary"),
    ] = None
    dictionary_size: Annotated[int | None, option(POLICY, "Points of the dictionary (leverage finds its own).")] = None


@dataclass(frozen=True, kw_only=True)
class ProblemSettings:
    """What is optimised: a built-in problem, or arms and an objective of the user's."""

    problem: Annotated[str | None, option(PROBLEM, f"One of {', '.join(PROBLEMS)} (default cadata).")] = None
    scaling: Annotated[str | None, option(PROBLEM, f"Inputs: {', '.join(SCALINGS)} (default unit).")] = None
    standardize: Annotated[bool, option(PROBLEM, "Short for --scaling standardize.", "--standardize")] = False
    noise_sd: Annotated[float | None, option(PROBLEM, "Standard deviation of an evaluation's noise (default 0.1).")] = None
    arms: Annotated[int | None, option(PROBLEM, "gp-draw: number of arms (default 10,000).")] = None
    dims: Annotated[int | None, option(PROBLEM, "gp-draw: inputs per arm (default 4).")] = None
    objective: Annotated[str | None, option(OWN, "package.module:function, called with q x d arms, returns q values.")] = None
    arms_file: Annotated[Path | None, option(OWN, "A .npy file of arms (a x d), read as needed; for --objective.")] = None
    grid: Annotated[str | None, option(OWN, f"A product grid, as in {GRID_EXAMPLE}. For --objective.")] = None
    space: Annotated[
        Path | None,
        option(OWN, "A .toml or .json file of named parameters; --objective is called with one dictionary, returns a number."),
    ] = None
    one_by_one: Annotated[bool, option(OWN, "The objective takes one arm (d) and returns a number.", "--one-by-one")] = False


@dataclass(frozen=True, kw_only=True)
class RunSettings(KernelSettings, PolicySettings, ProblemSettings):
    """Options of ``run``."""

    budget: Annotated[int | None, option(RUN, "Evaluations to make (default 10,000; on a box or of your own 200).")] = None
    seed: Annotated[int, option(RUN, "Decides everything random (default 0).")] = 0
    out: Annotated[Path, option(RUN, f"Folder for the figure and the history (default {OUT}).")] = OUT
    device: Device = "cpu"
    certify_every: Annotated[int | None, option(RUN, "Report the certified variance factor every so many batches.")] = None
    quiet: Quiet = False
    storage: Annotated[Path | None, option(RUN, "Journal to create: `resume` and `report` read it.")] = None
    executor: Annotated[str | None, option(RUN, "threads, processes or loky: where to evaluate (default: here).")] = None
    workers: Annotated[int | None, option(RUN, "Evaluations at a time, with --executor.")] = None
    asynchronous: Annotated[bool, option(RUN, "Do not wait for whole batches, with --executor.", "--asynchronous")] = False
    memory: Annotated[float | None, option(PLAN, "GiB: plan first, and take settings that fit (bbkb, bkb over arms).")] = None
    seconds: Annotated[float | None, option(PLAN, "The same with the seconds that the run may take.")] = None


@dataclass(frozen=True, kw_only=True)
class PlanSettings(KernelSettings):
    """Options of ``plan``."""

    arms: Annotated[str | None, option(ARMS, "Number of arms, as in 1000000 or 1e6.")] = None
    dims: Annotated[int | None, option(ARMS, "Inputs per arm.")] = None
    arms_file: Annotated[Path | None, option(ARMS, "A .npy file of arms (a x d).")] = None
    grid: Annotated[str | None, option(ARMS, f"A product grid, as in {GRID_EXAMPLE}.")] = None
    budget: Annotated[str, option(RUN, "Evaluations, as in 100000 or 1e5 (default 10000).")] = "10000"
    device: Device = "cpu"
    memory: Annotated[float | None, option(RUN, "GiB that may be used (default: what is free).")] = None
    seconds: Annotated[float | None, option(RUN, "Seconds that may be used (default: any).")] = None
    pilot_seconds: Annotated[float, option(RUN, "Seconds that the pilots may take (default 20).")] = 20.0
    ranks: Annotated[int, option(RUN, "Processes over which the arms are spread (default 1).")] = 1
    seed: Annotated[int, option(RUN, "Of the pilots (default 0).")] = 0


@dataclass(frozen=True, kw_only=True)
class CompareSettings(ProblemSettings):
    """``compare``."""

    budget: Annotated[int | None, option(RUN, "Evaluations of each policy (default 10,000; on a box 200).")] = None
    seed: Annotated[int, option(RUN, "Decides everything random (default 0).")] = 0
    out: Annotated[Path, option(RUN, f"Folder for the figure and the histories (default {OUT}).")] = OUT
    device: Device = "cpu"
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class ResumeSettings:
    """``resume``."""

    storage: Annotated[Path, typer.Argument(help="Journal of `run --storage`.")]
    budget: Annotated[int | None, option(RUN, "Evaluations to make in all (default: as planned).")] = None
    out: Annotated[Path | None, option(RUN, "Folder for the figure and the history (default: as before).")] = None
    executor: Annotated[str | None, option(RUN, "threads, processes, loky, or here (default: as before).")] = None
    workers: Annotated[int | None, option(RUN, "Evaluations at a time.")] = None
    yes: Annotated[bool, option(RUN, "Do not ask whether to import and to write what the journal names.", "--yes")] = False
    quiet: Quiet = False


@dataclass(frozen=True, kw_only=True)
class AuditSettings:
    """``audit``."""

    storage: Annotated[Path, typer.Argument(help="Journal of `run --storage`, or of AskTell(storage=...).")]
    arms_file: Annotated[Path | None, option(ARMS, "Arms (.npy) that were too large to be kept (AskTell alone).")] = None


@dataclass(frozen=True, kw_only=True)
class ReportSettings:
    """``report``."""

    storage: Annotated[Path, typer.Argument(help="Journal of `run --storage`, or of AskTell(storage=...).")]
    html: Annotated[
        Path | None, option(RUN, "Write one page of HTML there, in place of figure and history: everything about the run.")
    ] = None
    out: Annotated[Path, option(RUN, f"Folder for the figure and the history (default {OUT}).")] = OUT
