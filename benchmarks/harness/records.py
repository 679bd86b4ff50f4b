"""Records of measurements: one JSON object a line, each with the code, versions and device it was measured with."""

from __future__ import annotations

import hashlib
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
CODE = ("sparse_bo", "pyproject.toml", "benchmarks/*.py", "benchmarks/data")
"""What a measurement depends on, as git's path patterns: an output that git tracks must not make its own code look changed."""
Record = dict[str, Any]


def environment(device: torch.device) -> Record:
    """Return what a measurement depends on besides its settings: code, versions, device, threads. Costs two calls of git."""
    return {
        "commit": code_state(BENCHMARKS.parent, Path(sparse_bo.__file__).parents[1]),
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


def code_state(repository: Path, package: Path) -> str:
    """Return which code is measured: the commit; with changes, ``commit-dirty-digest``; outside of git, ``files-digest``.

    Only :data:`CODE` is looked at, files that git does not know yet included. The digest is that of all Python files, so that
    the same changes have the same name.

    Args:
        repository: Folder that holds ``benchmarks``.
        package: Folder that holds the ``sparse_bo`` that is imported: another copy than the repository's has no commit here.
    """
    digest = _digest(package / "sparse_bo", repository / "benchmarks")
    described = _git(repository, "describe", "--always")
    if described is None or package.resolve() != repository.resolve():
        return f"files-{digest}"
    changed = _git(repository, "status", "--porcelain", "--", *CODE)
    return f"{described}-dirty-{digest}" if changed else described


def device_name(device: torch.device) -> str:
    """Return what the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()


def append(path: Path, record: Record) -> None:
    """Append one record with the time of day to a JSON-lines file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = json.dumps({**record, "date": datetime.now(UTC).isoformat(timespec="seconds")}) + "\n"
    with path.open("ab", buffering=0) as file:  # in one piece: several processes may append
        file.write(line.encode())


def read(path: Path) -> list[Record]:
    """Return the records of a JSON-lines file; empty if there is none."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


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


def _digest(*folders: Path) -> str:
    """Return eight digits that stand for the Python files of some folders."""
    found = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            found.update(str(path.relative_to(folder.parent)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:8]


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
