"""Bayesian optimisation past the exact GP's limit, for BoTorch users.

Start with :func:`maximize` or :class:`AskTell` and a policy (:class:`BBKB`);
In a BoTorch loop, :class:`SparseGP` takes the place of ``SingleTaskGP``, and :func:`optimize_batch` that of
``optimize_acqf``: it finds the batch size itself.
:mod:`sparse_bo.problems` has real data to try them on, :mod:`sparse_bo.core` the numerics underneath.
"""

from sparse_bo import core, problems
from sparse_bo._version import __version__
from sparse_bo.acquisition import optimize_batch
from sparse_bo.armsets import LazyArms, MemmapArms, ProductGrid
from sparse_bo.audit import Certificate, certify
from sparse_bo.dictionary import (
    Dictionary,
    FirstSampler,
    FixedSampler,
    GreedyVarianceSampler,
    IPASampler,
    IVMSampler,
    KDPPSampler,
    KMeansPlusPlusSampler,
    LeverageSampler,
    RecursiveRLSSampler,
    UniformSampler,
    residual_bound,
)
from sparse_bo.errors import (
    ContradictionError,
    NumericalWarning,
    ObjectiveError,
    PendingBatchError,
    ResumeWarning,
    RunInterrupted,
    SamplerError,
    ScheduleComplete,
    StorageError,
    TicketError,
)
from sparse_bo.evaluations import Batch
from sparse_bo.execution import Workers
from sparse_bo.executors import RayExecutor
from sparse_bo.history import History, HistoryRow
from sparse_bo.loop import AskTell
from sparse_bo.models import SparseGP, VecchiaGP, fit_to_rows, gradient_subset
from sparse_bo.planning import Plan, plan
from sparse_bo.policies import (
    BBKB,
    BKB,
    BPE,
    GPBUCB,
    GPUCB,
    GSSBO,
    QFFTS,
    REMBO,
    RSSBO,
    SBPE,
    SGPTS,
    BoTorchUCB,
    EpsilonGreedy,
    HeSBO,
    MiniMETA,
    PosteriorEpsilonGreedy,
    QFFTSArms,
    RandomSearch,
    SGPTSArms,
    SparseUCB,
    VecchiaUCB,
    max_variance_design,
)
from sparse_bo.result import Result
from sparse_bo.runs import maximize
from sparse_bo.widths import (
    BBKBAuthors,
    BBKBTheory,
    BKBAuthors,
    BKBTheory,
    ConstantWidth,
    GaussianBounds,
    SBPELightTailed,
    SBPETheory,
    botorch_beta,
)

__all__ = [
    "BBKB",
    "BKB",
    "BPE",
    "GPBUCB",
    "GPUCB",
    "GSSBO",
    "QFFTS",
    "REMBO",
    "RSSBO",
    "SBPE",
    "SGPTS",
    "AskTell",
    "BBKBAuthors",
    "BBKBTheory",
    "BKBAuthors",
    "BKBTheory",
    "Batch",
    "BoTorchUCB",
    "Certificate",
    "ConstantWidth",
    "ContradictionError",
    "Dictionary",
    "EpsilonGreedy",
    "FirstSampler",
    "FixedSampler",
    "GaussianBounds",
    "GreedyVarianceSampler",
    "HeSBO",
    "History",
    "HistoryRow",
    "IPASampler",
    "IVMSampler",
    "KDPPSampler",
    "KMeansPlusPlusSampler",
    "LazyArms",
    "LeverageSampler",
    "MemmapArms",
    "MiniMETA",
    "NumericalWarning",
    "ObjectiveError",
    "PendingBatchError",
    "Plan",
    "PosteriorEpsilonGreedy",
    "ProductGrid",
    "QFFTSArms",
    "RandomSearch",
    "RayExecutor",
    "RecursiveRLSSampler",
    "Result",
    "ResumeWarning",
    "RunInterrupted",
    "SBPELightTailed",
    "SBPETheory",
    "SGPTSArms",
    "SamplerError",
    "ScheduleComplete",
    "SparseGP",
    "SparseUCB",
    "StorageError",
    "TicketError",
    "UniformSampler",
    "VecchiaGP",
    "VecchiaUCB",
    "Workers",
    "__version__",
    "botorch_beta",
    "certify",
    "core",
    "fit_to_rows",
    "gradient_subset",
    "max_variance_design",
    "maximize",
    "optimize_batch",
    "plan",
    "problems",
    "residual_bound",
]
