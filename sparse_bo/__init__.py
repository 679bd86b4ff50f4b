"""Bayesian optimisation past the exact GP's limit, for BoTorch users.

Start with :func:`maximize` or :class:`AskTell` and a policy (:class:`BBKB`);
In a BoTorch loop, :class:`SparseGP` takes the place of ``SingleTaskGP``.
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
from sparse_bo.errors import NumericalWarning, ObjectiveError, PendingBatchError, RunInterrupted, SamplerError, TicketError
from sparse_bo.evaluations import Batch
from sparse_bo.history import History, HistoryRow
from sparse_bo.loop import AskTell, maximize
from sparse_bo.models import SparseGP, gradient_subset
from sparse_bo.planning import Plan, plan
from sparse_bo.policies import BBKB, BKB, GPBUCB, GPUCB, GSSBO, RSSBO, BoTorchUCB, EpsilonGreedy, RandomSearch
from sparse_bo.result import Result
from sparse_bo.widths import BBKBAuthors, BBKBTheory, BKBAuthors, BKBTheory, ConstantWidth, botorch_beta

__all__ = [
    "BBKB",
    "BKB",
    "GPBUCB",
    "GPUCB",
    "GSSBO",
    "RSSBO",
    "AskTell",
    "BBKBAuthors",
    "BBKBTheory",
    "BKBAuthors",
    "BKBTheory",
    "Batch",
    "BoTorchUCB",
    "Certificate",
    "ConstantWidth",
    "Dictionary",
    "EpsilonGreedy",
    "FirstSampler",
    "FixedSampler",
    "GreedyVarianceSampler",
    "History",
    "HistoryRow",
    "IPASampler",
    "IVMSampler",
    "KDPPSampler",
    "KMeansPlusPlusSampler",
    "LazyArms",
    "LeverageSampler",
    "MemmapArms",
    "NumericalWarning",
    "ObjectiveError",
    "PendingBatchError",
    "Plan",
    "ProductGrid",
    "RandomSearch",
    "RecursiveRLSSampler",
    "Result",
    "RunInterrupted",
    "SamplerError",
    "SparseGP",
    "TicketError",
    "UniformSampler",
    "__version__",
    "botorch_beta",
    "certify",
    "core",
    "gradient_subset",
    "maximize",
    "optimize_batch",
    "plan",
    "problems",
    "residual_bound",
]
