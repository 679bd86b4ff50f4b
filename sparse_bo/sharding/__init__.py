"""Ranks: processes that share the arms or the data of one run, and their communication."""

from sparse_bo.sharding.alone import Alone
from sparse_bo.sharding.counted import Counted, Traffic
from sparse_bo.sharding.group import Group
from sparse_bo.sharding.processes import Processes
from sparse_bo.sharding.rehearsal import rehearse

__all__ = ["Alone", "Counted", "Group", "Processes", "Traffic", "rehearse"]
