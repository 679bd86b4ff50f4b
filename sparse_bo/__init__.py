"""Bayesian optimisation past the exact GP's limit, for BoTorch users.

Start with :func:`maximize` or :class:`AskTell` and a policy (:class:`BBKB`);
in a BoTorch loop, :class:`SparseGP` takes the place of ``SingleTaskGP``, and :func:`optimize_batch` that of
``optimize_acqf``: it finds the batch size itself.
:mod:`sparse_bo.problems` has real data to try them on, :mod:`sparse_bo.core` the numerics underneath.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from sparse_bo._version import __version__ as __version__

_MODULES = {
    "AskTell": "sparse_bo.loop",
    "BBKB": "sparse_bo.policies",
    "BBKBAuthors": "sparse_bo.widths",
    "BBKBTheory": "sparse_bo.widths",
    "BKB": "sparse_bo.policies",
    "BKBAuthors": "sparse_bo.widths",
    "BKBTheory": "sparse_bo.widths",
    "BPE": "sparse_bo.policies",
    "Batch": "sparse_bo.evaluations",
    "BoTorchUCB": "sparse_bo.policies",
    "Certificate": "sparse_bo.audit",
    "ConstantWidth": "sparse_bo.widths",
    "ContradictionError": "sparse_bo.errors",
    "Dictionary": "sparse_bo.dictionary",
    "EpsilonGreedy": "sparse_bo.policies",
    "FirstSampler": "sparse_bo.dictionary",
    "FixedSampler": "sparse_bo.dictionary",
    "GPBUCB": "sparse_bo.policies",
    "GPUCB": "sparse_bo.policies",
    "GSSBO": "sparse_bo.policies",
    "GaussianBounds": "sparse_bo.widths",
    "GreedyVarianceSampler": "sparse_bo.dictionary",
    "HeSBO": "sparse_bo.policies",
    "History": "sparse_bo.history",
    "HistoryRow": "sparse_bo.history",
    "IPASampler": "sparse_bo.dictionary",
    "IVMSampler": "sparse_bo.dictionary",
    "KDPPSampler": "sparse_bo.dictionary",
    "KMeansPlusPlusSampler": "sparse_bo.dictionary",
    "LazyArms": "sparse_bo.armsets",
    "LeverageSampler": "sparse_bo.dictionary",
    "MemmapArms": "sparse_bo.armsets",
    "MemoryWarning": "sparse_bo.errors",
    "MiniMETA": "sparse_bo.policies",
    "NumericalWarning": "sparse_bo.errors",
    "ObjectiveError": "sparse_bo.errors",
    "PendingBatchError": "sparse_bo.errors",
    "PlainBatch": "sparse_bo.worker",
    "Plan": "sparse_bo.planning",
    "PosteriorEpsilonGreedy": "sparse_bo.policies",
    "ProductGrid": "sparse_bo.armsets",
    "QFFTS": "sparse_bo.policies",
    "QFFTSArms": "sparse_bo.policies",
    "REMBO": "sparse_bo.policies",
    "RSSBO": "sparse_bo.policies",
    "RandomSearch": "sparse_bo.policies",
    "RayExecutor": "sparse_bo.executors",
    "RecursiveRLSSampler": "sparse_bo.dictionary",
    "Result": "sparse_bo.result",
    "ResumeWarning": "sparse_bo.errors",
    "RunInterrupted": "sparse_bo.errors",
    "SBPE": "sparse_bo.policies",
    "SBPELightTailed": "sparse_bo.widths",
    "SBPETheory": "sparse_bo.widths",
    "SGPTS": "sparse_bo.policies",
    "SGPTSArms": "sparse_bo.policies",
    "SamplerError": "sparse_bo.errors",
    "ScheduleComplete": "sparse_bo.errors",
    "SparseGP": "sparse_bo.models",
    "SparseUCB": "sparse_bo.policies",
    "StorageError": "sparse_bo.errors",
    "TicketError": "sparse_bo.errors",
    "UniformSampler": "sparse_bo.dictionary",
    "VecchiaGP": "sparse_bo.models",
    "VecchiaUCB": "sparse_bo.policies",
    "Workers": "sparse_bo.execution",
    "botorch_beta": "sparse_bo.widths",
    "certify": "sparse_bo.audit",
    "core": "sparse_bo.core",
    "fit_to_rows": "sparse_bo.models",
    "gradient_subset": "sparse_bo.models.gradient_subset",
    "max_variance_design": "sparse_bo.policies",
    "maximize": "sparse_bo.runs",
    "optimize_batch": "sparse_bo.acquisition",
    "plan": "sparse_bo.planning",
    "problems": "sparse_bo.problems",
    "residual_bound": "sparse_bo.dictionary",
}
"""Public name -> where it is defined. A name is imported when it is used first: workers and ``--help`` need few of them."""

__all__ = ["__version__", *_MODULES]


if TYPE_CHECKING:
    from sparse_bo import core as core
    from sparse_bo import problems as problems
    from sparse_bo.acquisition import optimize_batch as optimize_batch
    from sparse_bo.armsets import LazyArms as LazyArms
    from sparse_bo.armsets import MemmapArms as MemmapArms
    from sparse_bo.armsets import ProductGrid as ProductGrid
    from sparse_bo.audit import Certificate as Certificate
    from sparse_bo.audit import certify as certify
    from sparse_bo.dictionary import Dictionary as Dictionary
    from sparse_bo.dictionary import FirstSampler as FirstSampler
    from sparse_bo.dictionary import FixedSampler as FixedSampler
    from sparse_bo.dictionary import GreedyVarianceSampler as GreedyVarianceSampler
    from sparse_bo.dictionary import IPASampler as IPASampler
    from sparse_bo.dictionary import IVMSampler as IVMSampler
    from sparse_bo.dictionary import KDPPSampler as KDPPSampler
    from sparse_bo.dictionary import KMeansPlusPlusSampler as KMeansPlusPlusSampler
    from sparse_bo.dictionary import LeverageSampler as LeverageSampler
    from sparse_bo.dictionary import RecursiveRLSSampler as RecursiveRLSSampler
    from sparse_bo.dictionary import UniformSampler as UniformSampler
    from sparse_bo.dictionary import residual_bound as residual_bound
    from sparse_bo.errors import ContradictionError as ContradictionError
    from sparse_bo.errors import MemoryWarning as MemoryWarning
    from sparse_bo.errors import NumericalWarning as NumericalWarning
    from sparse_bo.errors import ObjectiveError as ObjectiveError
    from sparse_bo.errors import PendingBatchError as PendingBatchError
    from sparse_bo.errors import ResumeWarning as ResumeWarning
    from sparse_bo.errors import RunInterrupted as RunInterrupted
    from sparse_bo.errors import SamplerError as SamplerError
    from sparse_bo.errors import ScheduleComplete as ScheduleComplete
    from sparse_bo.errors import StorageError as StorageError
    from sparse_bo.errors import TicketError as TicketError
    from sparse_bo.evaluations import Batch as Batch
    from sparse_bo.execution import Workers as Workers
    from sparse_bo.executors import RayExecutor as RayExecutor
    from sparse_bo.history import History as History
    from sparse_bo.history import HistoryRow as HistoryRow
    from sparse_bo.loop import AskTell as AskTell
    from sparse_bo.models import SparseGP as SparseGP
    from sparse_bo.models import VecchiaGP as VecchiaGP
    from sparse_bo.models import fit_to_rows as fit_to_rows
    from sparse_bo.models.gradient_subset import gradient_subset as gradient_subset
    from sparse_bo.planning import Plan as Plan
    from sparse_bo.planning import plan as plan
    from sparse_bo.policies import BBKB as BBKB
    from sparse_bo.policies import BKB as BKB
    from sparse_bo.policies import BPE as BPE
    from sparse_bo.policies import GPBUCB as GPBUCB
    from sparse_bo.policies import GPUCB as GPUCB
    from sparse_bo.policies import GSSBO as GSSBO
    from sparse_bo.policies import QFFTS as QFFTS
    from sparse_bo.policies import REMBO as REMBO
    from sparse_bo.policies import RSSBO as RSSBO
    from sparse_bo.policies import SBPE as SBPE
    from sparse_bo.policies import SGPTS as SGPTS
    from sparse_bo.policies import BoTorchUCB as BoTorchUCB
    from sparse_bo.policies import EpsilonGreedy as EpsilonGreedy
    from sparse_bo.policies import HeSBO as HeSBO
    from sparse_bo.policies import MiniMETA as MiniMETA
    from sparse_bo.policies import PosteriorEpsilonGreedy as PosteriorEpsilonGreedy
    from sparse_bo.policies import QFFTSArms as QFFTSArms
    from sparse_bo.policies import RandomSearch as RandomSearch
    from sparse_bo.policies import SGPTSArms as SGPTSArms
    from sparse_bo.policies import SparseUCB as SparseUCB
    from sparse_bo.policies import VecchiaUCB as VecchiaUCB
    from sparse_bo.policies import max_variance_design as max_variance_design
    from sparse_bo.result import Result as Result
    from sparse_bo.runs import maximize as maximize
    from sparse_bo.widths import BBKBAuthors as BBKBAuthors
    from sparse_bo.widths import BBKBTheory as BBKBTheory
    from sparse_bo.widths import BKBAuthors as BKBAuthors
    from sparse_bo.widths import BKBTheory as BKBTheory
    from sparse_bo.widths import ConstantWidth as ConstantWidth
    from sparse_bo.widths import GaussianBounds as GaussianBounds
    from sparse_bo.widths import SBPELightTailed as SBPELightTailed
    from sparse_bo.widths import SBPETheory as SBPETheory
    from sparse_bo.widths import botorch_beta as botorch_beta
    from sparse_bo.worker import PlainBatch as PlainBatch


def __getattr__(name: str) -> Any:
    """Import a public name, or a module of the package, when it is asked for first."""
    module = _MODULES.get(name)
    if module is None:
        module = f"{__name__}.{name}"
        if name.startswith("_") or importlib.util.find_spec(module) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = importlib.import_module(module)
    if module != f"{__name__}.{name}":
        found = getattr(found, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
