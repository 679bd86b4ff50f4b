"""Figures and the page of a run, from a value of plain columns."""

from sparse_bo.report.view import Batches, Observation, OutcomeColumns, RunView, Slice

__all__ = ["Batches", "Observation", "OutcomeColumns", "RunView", "Slice"]
