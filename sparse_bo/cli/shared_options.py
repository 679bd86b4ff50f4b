"""Names and options of the command line that several commands share.

Names are literals, so that ``--help`` loads no torch; ``tests/cli/test_presets.py`` compares them with the classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    return file(text)


def file(text: str | Path) -> Path:
    """Return a path; ``~`` is the home folder: shells leave it as it is in ``--option=~/file``."""
    return Path(text).expanduser()


def option(panel: str, text: str, *flags: str, **settings: Any) -> Any:
    """Return an option for a panel of ``--help``."""
    return typer.Option(*flags, help=text, rich_help_panel=panel, **settings)


count = partial(option, parser=whole_number, metavar="<int>")
real = partial(option, parser=real_number, metavar="<float>")
memory = partial(option, parser=gibibytes, metavar="<float>")
path = partial(option, parser=file, metavar="<path>")

Budget = Annotated[int | None, count("Run", "Evaluations (default 10,000; on a box or of your own objective 200).")]
Seed = Annotated[int, count("Run", "Decides everything random.")]
Out = Annotated[Path, path("Run", "Folder for figures and histories.")]
Device = Annotated[str, option("Run", "Device of the computation: cpu, cuda, cuda:1, …")]
Quiet = Annotated[bool, option("Run", "No progress bar and no summary.", "--quiet")]
Traceback = Annotated[bool, option("Run", "Print the traceback of an error in the objective.", "--traceback")]
NumWorkers = Annotated[int | None, count("Run", "Concurrent evaluations, with --executor.", "--workers")]
ASYNCHRONOUS_HELP = "Evaluate whenever a worker is free, or in batches (default: the former with --one-by-one, --space)."
SECONDS_HELP = "End after so many seconds."
Target = Annotated[float | None, real("Run", "End with a result as good as this (y).")]
Patience = Annotated[int | None, count("Run", "End after so many evaluations without a better result.")]
Journal = Annotated[
    Path, typer.Argument(help="Journal of `run --storage`, `create`, AskTell(storage=...).", parser=journal, metavar="STORAGE")
]

ProblemName = Annotated[str | None, option("Built-in problem", f"One of {', '.join(PROBLEMS)} (default cadata).")]
Scaling = Annotated[str | None, option("Built-in problem", f"Scaling of the inputs: {', '.join(SCALINGS)} (default unit).")]
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

Kernel = Annotated[str | None, option("Model", f"One of {', '.join(KERNELS)} (default: learned).")]
PlanKernel = Annotated[str | None, option("Model", f"One of {', '.join(KERNELS)} (default: rbf of length scale 0.2 √d).")]
Lengthscale = Annotated[float | None, real("Model", "Length scale of a named --kernel, in the scaled inputs (default 1).")]
Outputscale = Annotated[float | None, real("Model", "Variance of --kernel (default 1).")]
Precision = Annotated[str | None, option("Model", f"Precision of a sweep: {', '.join(PRECISIONS)}; picks are exact with both.")]
Regularization = Annotated[float | None, real("Model", "λ > 0 (y²); default: the noise variance, learned.")]
NoiseVariance = Annotated[float | None, real("Model", "ξ² > 0 (y²), noise of an evaluation in the width; default: λ.")]

OWN = "Your own problem"
ArmsFile = Annotated[Path | None, path(OWN, "A .npy file of arms (a x d), read as needed.")]
Names = Annotated[Path | None, path(OWN, "A text file with a name for each of --arms-file, one a line.")]
Grid = Annotated[str | None, option(OWN, GRID_HELP)]
Minimize = Annotated[bool, option(OWN, "The lowest value is the best.", "--minimize")]
Objectives = Annotated[str | None, option(OWN, "Several outcomes by name, as yield:max,cost:min.")]
Constraint = Annotated[
    list[str] | None,
    option(OWN, 'Limits of an outcome, as "impurity<=0.05" or "0<=a<=1"; repeatable.', "--constraint", metavar="<limits>"),
]
Reference = Annotated[str | None, option(OWN, "Worst value of interest of each objective, as yield=0,cost=10.")]
Initial = Annotated[
    list[Path] | None, option("Run", "A journal whose results to start from; repeatable.", parser=journal, metavar="<path>")
]
Default = Annotated[
    list[str] | None, option("Run", "Value of a parameter that --initial lacks; repeatable.", metavar="<name=value>")
]
Policy = Annotated[str | None, option("Policy", f"One of {', '.join(POLICIES)} (default: by problem).")]
Goal = Annotated[str, option("Policy", "best: the point at the end counts; cumulative: every evaluation.")]
BatchSize = Annotated[int | None, count("Policy", "Evaluations of a batch.")]
PointsFile = Annotated[
    Path, typer.Argument(help="CSV file: a line of names, then a row for each point.", parser=file, metavar="FILE")
]
JournalArms = Annotated[Path | None, path("Run", "Arms (.npy), where the journal does not have them.", "--arms-file")]

HELP = """Bayesian optimisation over candidates, boxes and named parameters.

To begin with:

  sparse-bo                                                       an example, in half a minute
  sparse-bo run --problem hartmann6 --storage run.journal         a built-in problem
  sparse-bo run --objective experiment:train --space space.toml   a function of yours
  sparse-bo create lab.journal --space space.toml                 results by hand, in CSV files

`COMMAND --help` has examples and all options of a command. `sparse-bo` is short for `python -m sparse_bo`.
"""
RUN_HELP = """Run one policy on one problem; write a figure and a history file.

A built-in problem:

  sparse-bo run --problem abalone --standardize --budget 2000
  sparse-bo run --problem gp-draw --arms 100000 --dims 6 --policy bbkb --set stop_rule=local
  sparse-bo run --problem cadata --executor processes --workers 4 --storage run.journal
  sparse-bo resume run.journal

Your own: experiment.py has a function of a q x d tensor that returns q values. Higher is better; NaN is a failed evaluation.

  sparse-bo run --objective experiment:measure --arms-file arms.npy --budget 500 --storage run.journal
  sparse-bo run --objective experiment:measure --grid 0:1:1000,0:1:1000,-5:5:50 --one-by-one

Named parameters of mixed kinds: a function of one dict that returns a number, and space.toml with a line for each:

  lr = {type = "float", low = 1e-5, high = 1.0, log = true}
  kind = {type = "choice", values = ["adam", "sgd"]}
  momentum = {type = "float", low = 0, high = 1, when = {kind = "sgd"}}

  sparse-bo run --objective experiment:train --space space.toml --budget 200 --storage run.journal

Kernel, mean and noise are learned by default. With --preset published, policies on cadata and abalone start from the settings \
of the paper (Gaussian kernel of width² 5, regularization 0.2, noise variance 0.01, RKHS norm 20, failure probability \
1/budget, width authors). On these two and on gp-draw the policies sbpe and bpe have a fixed prior with any preset. Options \
replace settings of a preset.

Several outcomes: the function returns a dictionary by name, or numbers in the order of the options.

  sparse-bo run --objective experiment:measure --space space.toml --objectives yield:max,cost:min --constraint "impurity<=0.05"

Arms that do not fit into memory_bytes (--set) are streamed (bbkb, bkb).
"""
PLAN_HELP = """Forecast a BBKB run: dictionary size, memory, time; and settings with which it fits.

Pilot runs on this machine show how the dictionary grows; sweeps are timed with it. A number of arms stands for uniform arms \
in the unit cube. Exit code 3: the run does not fit.

  sparse-bo plan --arms 1e6 --dims 6 --budget 1e5 --kernel matern52 --lengthscale 0.5
  sparse-bo plan --arms-file arms.npy --budget 10000 --memory 8
  sparse-bo plan --grid 0:1:1000,0:1:1000,-5:5:500 --budget 10000 --device cuda
"""
COMPARE_HELP = """Run the default policy beside ε-greedy and random choice on a built-in problem, and draw them together.

On a box, which ε-greedy cannot search, random choice alone is beside it. For example:

  sparse-bo compare --problem abalone --budget 2000
  sparse-bo compare --problem hartmann6 --noise-sd 0.05
"""
RESUME_HELP = """Go on with a run of `run --storage`: its picks are those of a run that was never interrupted.

A run that has made all its evaluations goes on with a larger --budget, which counts them too. For example:

  sparse-bo resume run.journal
  sparse-bo resume run.journal --budget 500
"""
REPORT_HELP = """Summarise a journal, also while its run goes on.

With --html it writes the report, one page; with --out the figure and the history. For example:

  sparse-bo report run.journal --html run.html
"""
AUDIT_HELP = """Check a run by its journal: damage, picks, failures, calibration of the model, drift of the objective.

Upper-confidence policies over candidates have a certificate, too: a bound on their variances. No objective is imported.
"""
CREATE_HELP = """Create the journal of a run by files: `ask` writes points, people fill in results, `tell` reads them.

space.toml has a line for each parameter (see `run --help`); candidates are --arms-file or --grid. Higher is better (with \
--minimize lower). `ask` and `tell` are repeated:

  sparse-bo create lab.journal --space space.toml --workers 8
  sparse-bo ask lab.journal --out monday.csv
  sparse-bo tell lab.journal monday.csv

Several outcomes have names:

  sparse-bo create lab.journal --space space.toml --objectives yield:max,cost:min --constraint "impurity<=0.05"
"""
ASK_HELP = """Write the next points to evaluate into a CSV file, with an empty column for each outcome.

The points are pending until `tell` reads their results. Those of `enqueue` come first. If a file is lost, --again writes all \
pending points. For example:

  sparse-bo ask lab.journal 8 --out monday.csv
"""
TELL_HELP = """Report the results in a CSV file of `ask`.

Fill in the column value, or the one of each outcome: a number, or `failed`. Points without a result stay pending, and the \
file can be told again when they have one. If a point was evaluated elsewhere (70 °C in place of 65), change it in the file; \
a file whose rows all have other inputs is refused without --yes, as it may be another run's. \
Known standard deviations are in a column value_sd, or yield_sd for yield (yield_sd_ if the run has a yield_sd). \
Cells are separated by commas, tabs or semicolons; with semicolons numbers may have decimal commas. For example:

  sparse-bo tell lab.journal monday.csv
"""
ADD_HELP = """Add results of points that the run has not asked for, such as a colleague's.

They are learned from, and not counted. The file has the columns of the inputs (parameters; x1, x2, … of a box; arm or name of \
candidates) and of the results (value, or the names of the outcomes). It may grow and be added again: rows with the inputs and \
the result of one that was added before are left out.

For example:

  sparse-bo add run.journal colleague.csv
"""
ENQUEUE_HELP = """Queue points to try: the next `ask`, or `resume`, evaluates them first.

The file has the columns of the inputs, as for `add`. A missing column or an empty cell is chosen by the policy; if a \
column is missing, all others have to be the run's. For example:

  sparse-bo enqueue run.journal try.csv
"""
