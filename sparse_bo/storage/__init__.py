"""Runs on disk."""

from sparse_bo.storage.journal import Event, Journal, Row
from sparse_bo.storage.packing import pack, unpack

__all__ = ["Event", "Journal", "Row", "pack", "unpack"]
