"""What a run will take before it is started: dictionary size, memory, time; and settings with which it fits."""

from sparse_bo.planning.forecast import Plan, plan

__all__ = ["Plan", "plan"]
