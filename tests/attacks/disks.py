"""Disks that are full, read-only or slow, and other writers: nothing told is lost, and each failure is named.

A full disk is one of two: no file may grow (``RLIMIT_FSIZE``, so that the system's writes fail, half-way too), or a file system
of a few kilobytes. On a slow disk every event is waited for. Read-only is a file system mounted so: permissions do not bind
root. Both take the right to mount; without it (:func:`can_mount`) files that may not grow stand in for them.
"""

from __future__ import annotations

import contextlib
import os
import random
import resource
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sparse_bo import AskTell, Storage
from sparse_bo.errors import StorageError
from sparse_bo.runs.recording import read_run
from tests.attacks.builders import course, finished, scratch, started, step, told_lost

POLICY = "bbkb"


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
    path, told = folder / "run.journal", dict[int, float]()
    loop = started(POLICY, path)
    with no_file_larger(path.stat().st_size + generator.randrange(8000)):
        _tried(loop, told)
    _ended(path, loop, told, counts, expected)


@contextlib.contextmanager
def no_file_larger(size: int) -> Iterator[None]:
    """Let writes beyond ``size`` bytes of a file fail, half-way too."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _full(folder: Path, generator: random.Random, counts: Counter[str], expected: Any) -> None:
    disk, told = folder / "disk", dict[int, float]()
    with mounted(disk, "size=8m"):
        path = disk / "run.journal"
        loop = started(POLICY, path)
        used = sum(file.stat().st_blocks for file in disk.iterdir()) * 512
        _remount(disk, f"size={used + 4096 * generator.randrange(8)}")
        _tried(loop, told)
        _remount(disk, "size=8m")
        _ended(path, loop, told, counts, expected)


def _read_only(folder: Path, generator: random.Random, counts: Counter[str], expected: Any) -> None:
    disk, told = folder / "disk", dict[int, float]()
    with mounted(disk, "size=8m"):
        path = disk / "run.journal"
        loop = started(POLICY, path)
        for _ in range(generator.randrange(40)):
            if len(told) < 20:
                _stepped(loop, told)
        loop.close()
        _remount(disk, "ro")
        for attempt in (lambda: AskTell.resume(path), lambda: started(POLICY, disk / "new.journal")):
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
    path, told = folder / "run.journal", dict[int, float]()
    loop = started(POLICY, Storage(path, flush_seconds=0.0))
    while loop.asked < 24 or loop.pending:
        _stepped(loop, told)
        if not generator.randrange(8):  # others read meanwhile
            seen = read_run(path)
            counts["lost"] += seen.told + seen.failed != len(told)
    _ended(path, loop, told, counts, expected)


def writers(tries: int, seed: int) -> Counter[str]:
    """No file may grow any more, at random; then a second and a third writer, who are told by whom it is written."""
    generator, counts = random.Random(seed), Counter[str]()
    with scratch() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = course(finished(started(POLICY)))
        for n in range(tries):
            path, told = folder / f"{n}.journal", dict[int, float]()
            loop = started(POLICY, path)
            counts["tries"] += 1
            try:
                with no_file_larger(path.stat().st_size + generator.randrange(2000)):
                    _tried(loop, told)
            except Exception as error:
                counts["tracebacks"] += 1
                counts[f"{type(error).__name__}: {error}"[:120]] += 1
            for _ in range(n % 3):
                counts["tries"] += 1
                try:
                    AskTell.resume(path)
                except StorageError as error:
                    counts["wrong"] += f"open for writing in process {os.getpid()}" not in str(error)
                else:
                    counts["wrong"] += 1
            _ended(path, loop, told, counts, expected)
    return counts
