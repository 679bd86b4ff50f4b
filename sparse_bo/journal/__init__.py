"""Runs on disk: one append-only file per run."""

from sparse_bo.journal.format import End, Event, Row, pack, unpack
from sparse_bo.journal.reader import Journal, Storage, storage_of
from sparse_bo.journal.writer import Writer, delete

__all__ = ["End", "Event", "Journal", "Row", "Storage", "Writer", "delete", "pack", "storage_of", "unpack"]
