"""Ranks: processes that share the arms or the data of one run, and their communication."""

from sparse_bo.sharding.group import Alone, Group, Processes

__all__ = ["Alone", "Group", "Processes"]
