"""Names and options of the command line that several commands share.

Names are literals, so that ``--help`` loads no torch; ``tests/cli/test_presets.py`` compares them with the classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sparse_bo.errors import without_password
from sparse_bo.problems import GRID_EXAMPLE, SCALINGS, TABLES

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
KERNELS = ("rbf", *MATERN, "tanimoto", "learned")
PRECISIONS = ("float64", "float32")
PRESETS = ("learned", "published")
"""Initial settings of a policy on the two data sets: everything learned, or the settings of the published experiments."""
OUT = Path("sparse_bo_run")


def listed(names: Iterable[str]) -> str:
    """Return names separated by commas."""
    return ", ".join(names)


def whole_number(text: str | int) -> int:
    """Return a whole number from 0 to 2⁶², also written as 1e6."""
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
    """Return a number."""
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"a number, such as 0.1 or 1e-3, got {text!r}") from error


def gibibytes(text: str) -> int:
    """Return a number of GiB in bytes."""
    try:
        if 0.0 < float(text) < 2**32:
            return int(float(text) * 2**30)
    except ValueError:
        pass
    raise typer.BadParameter(f"a number of GiB above 0 and below 2^32, such as 16 or 0.5, got {text!r}")


def journal(text: str) -> Path:
    """Return the path of a journal.

    Raises:
        typer.BadParameter: If it is a URL; the message completes "expected --option to be".
    """
    if "://" in text:
        address = without_password(text)
        raise typer.BadParameter(f"a file such as run.journal, got the URL {address!r}; a journal is no database")
    return Path(text).expanduser()


def option(panel: str, text: str, *flags: str, **settings: Any) -> Any:
    """Return an option for a panel of ``--help``."""
    return typer.Option(*flags, help=text, rich_help_panel=panel, **settings)


count = partial(option, parser=whole_number, metavar="<int>")
real = partial(option, parser=real_number, metavar="<float>")
constraint = option(
    "Your own problem",
    'Limits of an outcome, as "impurity<=0.05" or "0<=a<=1"; repeatable.',
    "--constraint",
    metavar="<limits>",
)
memory = partial(option, parser=gibibytes, metavar="<float>")

Budget = Annotated[int | None, count("Run", "Evaluations (default 10,000; on a box or of your own objective 200).")]
Seed = Annotated[int, count("Run", "Decides everything random.")]
Out = Annotated[Path, option("Run", "Folder for figures and histories.")]
Device = Annotated[str, option("Run", "Device of the computation: cpu, cuda, cuda:1, …")]
Quiet = Annotated[bool, option("Run", "No progress bar and no summary.", "--quiet")]
Traceback = Annotated[bool, option("Run", "Print the traceback of an error in the objective.", "--traceback")]
NumWorkers = Annotated[int | None, count("Run", "Concurrent evaluations, with --executor.", "--workers")]
ASYNCHRONOUS_HELP = "Evaluate whenever a worker is free, or in batches (default: the former with --one-by-one, --space)."
SECONDS_HELP = "End after so many seconds."
Target = Annotated[float | None, real("Run", "End with a result as good as this (y).")]
Patience = Annotated[int | None, count("Run", "End after so many evaluations without a better result.")]
Journal = Annotated[
    Path, typer.Argument(help="Journal of `run --storage` or AskTell(storage=...).", parser=journal, metavar="STORAGE")
]

ProblemName = Annotated[str | None, option("Built-in problem", f"One of {listed(PROBLEMS)} (default cadata).")]
Scaling = Annotated[str | None, option("Built-in problem", f"Scaling of the inputs: {listed(SCALINGS)} (default unit).")]
Standardize = Annotated[bool, option("Built-in problem", "Short for --scaling standardize.", "--standardize")]
NoiseSD = Annotated[float | None, real("Built-in problem", "Standard deviation of the noise (default 0.1).")]
NumArms = Annotated[int | None, count("Built-in problem", "gp-draw: number of arms (default 10,000).", "--arms")]
NumDims = Annotated[int | None, count("Built-in problem", "gp-draw: inputs of an arm (default 4).", "--dims")]
GRID_HELP = f"A product grid, as in {GRID_EXAMPLE}."

InitialDesign = Annotated[int | None, count("Policy", "Evaluations before the first model.")]
Width = Annotated[
    str | None, option("Policy", "Posterior standard deviations of the bounds, or the name of a width such as theory.")
]
RKHSNorm = Annotated[str | None, option("Policy", "F > 0, bound on the RKHS norm of objective minus prior mean; or estimate.")]
FailureProbability = Annotated[float | None, real("Policy", "δ in (0, 1) of the width.")]
SET_HELP = "A setting of the policy, as stop_rule=local; repeatable. `settings POLICY` lists them."
Set = Annotated[list[str] | None, option("Policy", SET_HELP, "--set", metavar="<name=value>")]

Kernel = Annotated[str | None, option("Model", f"One of {listed(KERNELS)} (default: learned).")]
PlanKernel = Annotated[str | None, option("Model", f"One of {listed(KERNELS)} (default: rbf, as BoTorch's prior favours it).")]
Lengthscale = Annotated[float | None, real("Model", "Length scale of --kernel, in units of the scaled inputs (default 1).")]
Outputscale = Annotated[float | None, real("Model", "Variance of --kernel (default 1).")]
Precision = Annotated[str | None, option("Model", f"Precision of a sweep: {listed(PRECISIONS)}; picks are exact with both.")]
Regularization = Annotated[float | None, real("Model", "λ > 0 (y²); default: the noise variance, learned.")]
NoiseVariance = Annotated[float | None, real("Model", "ξ² > 0 (y²), noise of an evaluation in the width; default: λ.")]
