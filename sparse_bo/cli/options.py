"""Options of the command line: their names, types, sections of ``--help`` and help texts.

Names are literals, so that ``--help`` loads no torch; ``tests/cli/test_presets.py`` compares them with the classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sparse_bo.problems.names import GRID_EXAMPLE, SCALINGS, TABLES

POLICIES: Mapping[str, str] = {
    "bbkb": "BBKB",
    "bkb": "BKB",
    "botorch-ucb": "BoTorchUCB",
    "bpe": "BPE",
    "epsilon-greedy": "EpsilonGreedy",
    "expected-improvement": "ExpectedImprovement",
    "gp-bucb": "GPBUCB",
    "gp-ucb": "GPUCB",
    "gssbo": "GSSBO",
    "hesbo": "HeSBO",
    "mini-meta": "MiniMETA",
    "posterior-epsilon-greedy": "PosteriorEpsilonGreedy",
    "qff-ts": "QFFTS",
    "qff-ts-arms": "QFFTSArms",
    "random": "RandomSearch",
    "rembo": "REMBO",
    "rssbo": "RSSBO",
    "s-gp-ts": "SGPTS",
    "s-gp-ts-arms": "SGPTSArms",
    "sbpe": "SBPE",
    "sparse-ucb": "SparseUCB",
    "trust-region": "TrustRegion",
    "two-stage": "TwoStage",
    "vecchia-ucb": "VecchiaUCB",
}
"""Name -> class in :mod:`sparse_bo.policies`."""
SYNTHETIC = ("eggholder2", "hartmann6", "levy20", "powell50", "rastrigin100")
PROBLEMS = (*TABLES, "gp-draw", *SYNTHETIC)
SIZED_SAMPLERS: Mapping[str, str] = {
    "uniform": "UniformSampler",
    "first": "FirstSampler",
    "greedy-variance": "GreedyVarianceSampler",
    "ipa": "IPASampler",
    "ivm": "IVMSampler",
    "kmeans++": "KMeansPlusPlusSampler",
    "k-dpp": "KDPPSampler",
}
"""Name -> class in :mod:`sparse_bo.dictionary`; these samplers need a size."""
SAMPLERS = ("leverage", "recursive-rls", *SIZED_SAMPLERS)
MATERN: Mapping[str, float] = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Name -> smoothness of a Matérn kernel."""
KERNELS = ("rbf", *MATERN, "learned")
PRECISIONS = ("float64", "float32")
PRESETS = ("learned", "published")
"""Initial settings of a policy on the two data sets: everything learned, or the settings of the published experiments."""
OUT = Path("sparse_bo_run")


def listed(names: Any) -> str:
    """Return names separated by commas."""
    return ", ".join(names)


def whole_number(text: str | int) -> int:
    """Return a whole number from 0 to 2⁶², also written as 1e6.

    Raises:
        typer.BadParameter: If it is none; the message completes "expected --option to be".
    """
    written = str(text)  # of a default: a number
    value: float = -1
    if re.fullmatch(r"[0-9]{1,19}", written):
        value = int(written)
    elif re.fullmatch(r"[0-9]+(\.[0-9]*)?e\+?[0-9]{1,2}", written, re.IGNORECASE):
        value = float(written)
    if 0 <= value < 2**62 and int(value) == value:  # sums of two fit into 64 bits
        return int(value)
    raise typer.BadParameter(f"a whole number from 0 to 2^62, such as 1000000 or 1e6, got {written!r}")


def real_number(text: str | float) -> float:
    """Return a number.

    Raises:
        typer.BadParameter: If it is none; the message completes "expected --option to be".
    """
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"a number, such as 0.1 or 1e-3, got {text!r}") from error


def _in(panel: str, text: str, *flags: str, **settings: Any) -> Any:
    return typer.Option(*flags, help=text, rich_help_panel=panel, **settings)


_count = partial(_in, parser=whole_number, metavar="<int>")
_float = partial(_in, parser=real_number, metavar="<float>")
_run, _policy, _model = partial(_in, "Run"), partial(_in, "Policy"), partial(_in, "Model")
_problem, _own = partial(_in, "Built-in problem"), partial(_in, "Your own problem")

# Run
Budget = Annotated[int | None, _count("Run", "Evaluations (default 10,000; on a box or with --objective 200).")]
Seed = Annotated[int, _count("Run", "Decides everything random.")]
Out = Annotated[Path, _run("Folder for figures and histories.")]
Device = Annotated[str, _run("Device of the computation: cpu, cuda, cuda:1, …")]
Quiet = Annotated[bool, _run("No progress bar and no summary.", "--quiet")]
NewJournal = Annotated[Path | None, _run("Journal to create, as run.journal; `resume`, `report` and `audit` read it.")]
Executor = Annotated[str | None, _run("threads, processes or loky: evaluate there instead of in this process.")]
NumWorkers = Annotated[int | None, _count("Run", "Concurrent evaluations, with --executor.", "--workers")]
Asynchronous = Annotated[bool, _run("Start an evaluation whenever one ends, with --executor.", "--asynchronous")]
CertifyEvery = Annotated[int | None, _count("Run", "Batches between two certificates of the variances.")]

# Resume, report, audit
Journal = Annotated[Path, typer.Argument(help="Journal of `run --storage` or AskTell(storage=...).")]
TotalBudget = Annotated[int | None, _count("Run", "Evaluations in all (default: as planned).")]
SameOut = Annotated[Path | None, _run("Folder for the figure and the history (default: as before).")]
OtherExecutor = Annotated[str | None, _run("threads, processes, loky, or here (default: as before).")]
Yes = Annotated[bool, _run("Import and write everything that the journal names, unasked.", "--yes")]
Html = Annotated[Path | None, _run("Write the run as one page of HTML there, in place of figure and history.")]
StoredArms = Annotated[Path | None, _run("Arms (.npy) that are too large for the journal of an AskTell.", "--arms-file")]

# Problem
ProblemName = Annotated[str | None, _problem(f"One of {listed(PROBLEMS)} (default cadata).")]
Scaling = Annotated[str | None, _problem(f"Scaling of the inputs: {listed(SCALINGS)} (default unit).")]
Standardize = Annotated[bool, _problem("Short for --scaling standardize.", "--standardize")]
NoiseSD = Annotated[float | None, _float("Built-in problem", "Standard deviation of the noise (default 0.1).")]
NumArms = Annotated[int | None, _count("Built-in problem", "gp-draw: number of arms (default 10,000).", "--arms")]
NumDims = Annotated[int | None, _count("Built-in problem", "gp-draw: inputs of an arm (default 4).", "--dims")]
Objective = Annotated[str | None, _own("package.module:function of q x d arms that returns q values.")]
ArmsFile = Annotated[Path | None, _own("A .npy file of arms (a x d), read as needed.")]
Grid = Annotated[str | None, _own(f"A product grid, as in {GRID_EXAMPLE}.")]
SpaceFile = Annotated[Path | None, _own("A .toml or .json file of named parameters: --objective takes one dictionary.")]
OneByOne = Annotated[bool, _own("--objective takes one arm (d) and returns a number.", "--one-by-one")]

# Plan
Arms = Annotated[int | None, _count("Arms", "Number of arms, as in 1000000 or 1e6.")]
Dims = Annotated[int | None, _count("Arms", "Inputs of an arm.")]
PlannedArmsFile = Annotated[Path | None, _in("Arms", "A .npy file of arms (a x d).", "--arms-file")]
PlannedGrid = Annotated[str | None, _in("Arms", f"A product grid, as in {GRID_EXAMPLE}.", "--grid")]
PlannedBudget = Annotated[int, _count("Run", "Evaluations, as in 100000 or 1e5.", "--budget")]
Memory = Annotated[float | None, _float("Plan", "GiB of memory: plan, and take settings that fit (bbkb, bkb over arms).")]
Seconds = Annotated[float | None, _float("Plan", "Seconds of the run: plan, and take settings that fit.")]
FreeMemory = Annotated[float | None, _float("Plan", "GiB of memory (default: all that is free).", "--memory")]
AnySeconds = Annotated[float | None, _float("Plan", "Seconds of the run (default: any number).", "--seconds")]
PilotSeconds = Annotated[float, _float("Plan", "Seconds of the pilot runs.")]
Ranks = Annotated[int, _count("Plan", "Processes that share the arms.")]

# Policy
PolicyName = Annotated[str | None, _policy(f"One of {listed(POLICIES)} (default: by --goal, problem and budget).", "--policy")]
Preset = Annotated[str, _policy(f"On cadata and abalone: {PRESETS[0]}, or {PRESETS[1]}, the settings of the paper.")]
Goal = Annotated[str, _policy("best: the best point at the end counts; cumulative: every evaluation counts.")]
BatchSize = Annotated[int | None, _count("Policy", "Evaluations of a batch.")]
InitialDesign = Annotated[int | None, _count("Policy", "Evaluations before the first model.")]
Width = Annotated[str | None, _policy("Posterior standard deviations of the bounds, or the name of a width such as theory.")]
RKHSNorm = Annotated[str | None, _policy("F > 0, bound on the RKHS norm of objective minus prior mean; or estimate.")]
FailureProbability = Annotated[float | None, _float("Policy", "δ in (0, 1) of the width.")]
Dictionary = Annotated[str | None, _policy(f"Sampler of the dictionary: {listed(SAMPLERS)}.")]
DictionarySize = Annotated[int | None, _count("Policy", "Points of the dictionary; leverage finds its own number.")]
Set = Annotated[
    list[str] | None,
    _in(
        "Policy",
        "A setting of the policy, as stop_rule=local; repeatable. `settings POLICY` lists them.",
        "--set",
        metavar="<name=value>",
    ),
]

# Model
Kernel = Annotated[str | None, _model(f"One of {listed(KERNELS)} (default: by --preset).")]
Lengthscale = Annotated[float | None, _float("Model", "Length scale of --kernel, in units of the scaled inputs (default 1).")]
Outputscale = Annotated[float | None, _float("Model", "Variance of --kernel (default 1).")]
Precision = Annotated[str | None, _model(f"Precision of a sweep: {listed(PRECISIONS)}; picks are exact with both.")]
Regularization = Annotated[float | None, _float("Model", "λ > 0 (y²); default: the noise variance, learned.")]
NoiseVariance = Annotated[float | None, _float("Model", "ξ² > 0 (y²), noise of an evaluation in the width; default: λ.")]
