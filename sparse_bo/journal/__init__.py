"""Runs on disk."""

from sparse_bo.journal.journal import Event, Journal, Row
from sparse_bo.journal.packing import pack, unpack

__all__ = ["Event", "Journal", "Row", "pack", "unpack"]
