"""Runs on disk."""

from sparse_bo.journal.journal import Journal
from sparse_bo.journal.packing import pack, unpack
from sparse_bo.journal.tables import Event, Row

__all__ = ["Event", "Journal", "Row", "pack", "unpack"]
