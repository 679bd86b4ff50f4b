"""Forecasts of a run before it is started: dictionary size, memory, time; and settings with which it fits."""

from sparse_bo.planning.costs import Plan
from sparse_bo.planning.forecast import plan

__all__ = ["Plan", "plan"]
