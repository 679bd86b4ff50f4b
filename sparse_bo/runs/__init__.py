"""Runs: ask and tell, its engine, records of a run, and a whole run in one call."""

from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.audit import Audit, audit_run
from sparse_bo.runs.default_policy import ChosenPolicy, chosen_policy
from sparse_bo.runs.ends import Evaluation
from sparse_bo.runs.history import History, HistoryRow
from sparse_bo.runs.maximize import maximize, minimize, optimize
from sparse_bo.runs.previous import RunObservations, observations_of
from sparse_bo.runs.recording import Recorded, read_run
from sparse_bo.runs.result import FrontPoint, Result

__all__ = [
    "AskTell",
    "Audit",
    "ChosenPolicy",
    "Evaluation",
    "FrontPoint",
    "History",
    "HistoryRow",
    "Recorded",
    "Result",
    "RunObservations",
    "audit_run",
    "chosen_policy",
    "maximize",
    "minimize",
    "observations_of",
    "optimize",
    "read_run",
]
