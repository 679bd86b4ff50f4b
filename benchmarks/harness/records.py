"""Records of measurements: compressed lines of JSON, each with the commit, versions and device of the measurement."""

from __future__ import annotations

import gzip
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botorch
import gpytorch
import torch

import sparse_bo

BENCHMARKS = Path(__file__).parents[1]
RESULTS = BENCHMARKS / "results"
PACKAGE = Path(sparse_bo.__file__).parents[1]
"""The folder that the package is imported from."""
CODE = ("sparse_bo", "pyproject.toml", "benchmarks/*.py", "benchmarks/data")
"""Paths that a measurement depends on, as git's patterns. Results are not among them: recording leaves the tree clean."""
Record = dict[str, Any]


class UncommittedCode(RuntimeError):
    """The code to measure is no commit of this repository."""


def environment(device: torch.device, repository: Path = BENCHMARKS.parent) -> Record:
    """Return the conditions of a measurement: code, versions, device, threads.

    The commit is ``"uncommitted"`` where :func:`committed` raises. Costs two calls of git.
    """
    try:
        commit = committed(repository, PACKAGE)
    except UncommittedCode:
        commit = "uncommitted"
    return {
        "commit": commit,
        "sparse_bo": sparse_bo.__version__,
        "torch": torch.__version__,
        "gpytorch": gpytorch.__version__,
        "botorch": botorch.__version__,
        "python": platform.python_version(),
        "device": device_name(device),
        "device_type": device.type,
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
    }


def committed(repository: Path, package: Path) -> str:
    """Return the short name of the commit that is measured.

    Args:
        repository: Folder of ``benchmarks``.
        package: Folder of the imported ``sparse_bo``.

    Raises:
        UncommittedCode: If the package is not the repository's, there is no commit, or a path of :data:`CODE` has changed.
    """
    if package.resolve() != repository.resolve():
        raise UncommittedCode(
            f"got sparse_bo from {package}, expected that of {repository}, whose commit a record names: "
            f"set PYTHONPATH={repository}, or add --dry to print records only"
        )
    commit = _git(repository, "rev-parse", "--short=7", "HEAD")
    if commit is None:
        raise UncommittedCode(
            f"got no commit in {repository}, expected a git checkout, as a record names its commit: "
            "clone the repository, or add --dry to print records only"
        )
    if changed := _git(repository, "status", "--porcelain", "--", *CODE):
        paths = [line.strip().split(maxsplit=1)[-1] for line in changed.splitlines()]
        shown = ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
        raise UncommittedCode(
            f"got changes since commit {commit} ({shown}), expected a clean tree, as a record names its commit: "
            "commit or stash them, or add --dry to print records only"
        )
    return commit


def in_history(commit: str, repository: Path = BENCHMARKS.parent) -> bool:
    """Return whether a commit is HEAD or one of its ancestors."""
    return _git(repository, "merge-base", "--is-ancestor", commit, "HEAD") is not None


def device_name(device: torch.device) -> str:
    """Return what the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def append(path: Path, record: Record) -> None:
    """Append one record with the time of day to a file of compressed lines of JSON.

    Each record is a gzip member of its own, written in one piece: several processes may append.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({**record, "date": datetime.now(UTC).isoformat(timespec="seconds")}) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(gzip.compress(line.encode(), mtime=0))


def write(path: Path, records: Iterable[Record]) -> None:
    """Write records over a file, as one gzip member: far smaller than one for each."""
    path.write_bytes(gzip.compress("".join(json.dumps(record) + "\n" for record in records).encode(), mtime=0))


def read(path: Path) -> list[Record]:
    """Return the records of a file; empty if there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def newest(records: Iterable[Record], *fields: str) -> dict[tuple[Any, ...], Record]:
    """Return the last record of each combination of fields, in the order of their first ones."""
    return {tuple(record[field] for field in fields): record for record in records}


def most(records: Iterable[Record], *fields: str) -> list[Record]:
    """Return the records of that combination of fields which has most of them."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record[field] for field in fields), []).append(record)
    return max(groups.values(), key=len, default=[])


def stopwatch(device: torch.device) -> Callable[[], float]:
    """Return a clock that other work disturbs least: processor seconds; on a GPU wall seconds, after waiting for it."""
    if device.type != "cuda":
        return time.process_time

    def waited() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return waited


def _git(folder: Path, *arguments: str) -> str | None:
    """Return what git answers; ``None`` outside of a repository or without git."""
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
