"""Disks that are full, read-only or slow, and other writers: nothing told is lost, and each failure is named.

A full disk is one of three: no page more fits (SQLite's own limit), no file may grow (``RLIMIT_FSIZE``, so that the system's
writes fail, half-way too), or a file system of a few kilobytes. Read-only is a file system mounted so: permissions do not bind
root. Both take the right to mount; without it (:func:`can_mount`) files that may not grow stand in for them.
"""

from __future__ import annotations

import contextlib
import random
import resource
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparse_bo import AskTell
from sparse_bo.errors import StorageError
from sparse_bo.runs.records import read_run
from tests.attacks.builders import course, finished, scratch, started, step, told_lost

POLICY = "bbkb"
SLOW_SECONDS = 0.002
"""Of every statement, on the slow disk: a transaction takes as long as on a disk that turns."""


def can_mount(folder: Path) -> bool:
    """Return whether a file system can be mounted here."""
    try:
        with mounted(folder / "tried", "size=64k"):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


@contextlib.contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir()
    _quietly("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield
    finally:
        _quietly("umount", "-l", str(folder))


def _remount(folder: Path, options: str) -> None:
    _quietly("mount", "-o", f"remount,{options}", str(folder))


def _quietly(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def full_or_slow(tries: int, seed: int) -> Counter[str]:
    """Files that may not grow, full and read-only file systems, slow ones: a typed error, and the run goes on afterwards."""
    generator, counts = random.Random(seed), Counter[str]()
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = course(finished(started(POLICY)))
        able = can_mount(folder)
        counts["without mounts"] = 0 if able else 1
        kinds = [_no_growth, _full, _read_only, _slow] if able else [_no_growth, _no_growth, _no_growth, _slow]
        for n in range(tries):
            counts["tries"] += 1
            start = time.process_time()
            (folder / str(n)).mkdir()
            try:
                kinds[n % 4](folder / str(n), generator, counts, expected)
            except Exception as error:
                counts["tracebacks"] += 1
                counts[f"{kinds[n % 4].__name__}: {type(error).__name__}: {error}"[:160]] += 1
            counts["hangs"] += time.process_time() - start > 20.0
    return counts


def _tried(loop: AskTell, told: dict[int, float]) -> None:
    """Go on as far as the disk allows; what stops the run must say that it is the disk."""
    try:
        finished(loop, told)
    except StorageError as error:
        if not any(word in str(error) for word in ("full", "disk", "read-only")):
            raise


def _ended(path: Path, loop: AskTell, told: dict[int, float], counts: Counter[str], expected: Any) -> None:
    """Go on in the same process now that the disk is well, and compare memory, journal and what was told."""
    counts["wrong"] += course(finished(loop, told)) != expected
    loop.close()
    with AskTell.resume(path) as again:
        counts["wrong"] += course(again) != expected
        counts["lost"] += told_lost(again, told)


def _no_growth(folder: Path, generator: random.Random, counts: Counter[str], expected: Any) -> None:
    path, told = folder / "run.db", dict[int, float]()
    loop = started(POLICY, path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(file.stat().st_size for file in folder.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest + generator.randrange(8000), before[1]))
    try:
        _tried(loop, told)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    _ended(path, loop, told, counts, expected)


def _full(folder: Path, generator: random.Random, counts: Counter[str], expected: Any) -> None:
    disk, told = folder / "disk", dict[int, float]()
    with mounted(disk, "size=8m"):
        path = disk / "run.db"
        loop = started(POLICY, path)
        used = sum(file.stat().st_blocks for file in disk.iterdir()) * 512
        _remount(disk, f"size={used + 4096 * generator.randrange(8)}")
        _tried(loop, told)
        _remount(disk, "size=8m")
        _ended(path, loop, told, counts, expected)


def _read_only(folder: Path, generator: random.Random, counts: Counter[str], expected: Any) -> None:
    disk, told = folder / "disk", dict[int, float]()
    with mounted(disk, "size=8m"):
        path = disk / "run.db"
        loop = started(POLICY, path)
        for _ in range(generator.randrange(40)):
            if len(told) < 20:
                _stepped(loop, told)
        loop.close()
        _remount(disk, "ro")
        for attempt in (lambda: AskTell.resume(path), lambda: started(POLICY, disk / "new.db")):
            counts["wrong"] += not _refused(attempt)
        counts["lost"] += read_run(path).told + read_run(path).failed != len(told)
        _remount(disk, "rw")
        _ended(path, AskTell.resume(path), told, counts, expected)


def _stepped(loop: AskTell, told: dict[int, float]) -> None:
    done = step(loop)
    if done is not None:
        told[done[0]] = done[1]


def _refused(attempt: Callable[[], AskTell]) -> bool:
    """Return whether a read-only disk is named."""
    try:
        attempt().close()
    except StorageError as error:
        return any(word in str(error) for word in ("read-only", "readonly", "writable"))
    return False


def _slow(folder: Path, generator: random.Random, counts: Counter[str], expected: Any) -> None:
    path, told = folder / "run.db", dict[int, float]()
    loop = started(POLICY, path)
    journal = loop._steps.recorder.journal
    assert journal is not None
    seconds = SLOW_SECONDS * generator.random()
    journal._connection.set_trace_callback(lambda statement: time.sleep(seconds))
    while loop.asked < 24 or loop.pending:
        _stepped(loop, told)
        if not generator.randrange(8):  # others read meanwhile
            seen = read_run(path)
            counts["lost"] += seen.told + seen.failed != len(told)
    _ended(path, loop, told, counts, expected)


def writers(tries: int, seed: int) -> Counter[str]:
    """No page more fits, at random; then a second and a third writer, who are named."""
    generator, counts = random.Random(seed), Counter[str]()
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = course(finished(started(POLICY)))
        for n in range(tries):
            path, told = folder / f"{n}.db", dict[int, float]()
            loop = started(POLICY, path)
            journal = loop._steps.recorder.journal
            assert journal is not None
            connection = journal._connection
            pages = connection.execute("PRAGMA page_count").fetchone()[0]
            connection.execute(f"PRAGMA max_page_count = {pages + generator.randrange(4)}")
            counts["tries"] += 1
            try:
                _tried(loop, told)
            except Exception as error:
                counts["tracebacks"] += 1
                counts[f"{type(error).__name__}: {error}"[:120]] += 1
            connection.execute("PRAGMA max_page_count = 1000000")
            for _ in range(n % 3):
                counts["tries"] += 1
                try:
                    AskTell.resume(path)
                except StorageError as error:
                    counts["wrong"] += "open for writing" not in str(error)
                else:
                    counts["wrong"] += 1
            _ended(path, loop, told, counts, expected)
    return counts
