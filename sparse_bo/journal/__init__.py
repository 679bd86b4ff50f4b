"""Runs on disk: one append-only file per run."""

from sparse_bo.journal.format import End, Event, Row, pack, unpack
from sparse_bo.journal.journal import Journal
from sparse_bo.journal.storage import Storage, delete, storage_of
from sparse_bo.journal.writer import Writer

__all__ = [
    "End",
    "Event",
    "Journal",
    "Row",
    "Storage",
    "Writer",
    "delete",
    "pack",
    "storage_of",
    "unpack",
]
