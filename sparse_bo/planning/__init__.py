"""Forecasts of a run before it is started: dictionary size, memory, time; and settings with which it fits."""

from sparse_bo.planning.forecast import plan
from sparse_bo.planning.plans import Plan

__all__ = ["Plan", "plan"]
