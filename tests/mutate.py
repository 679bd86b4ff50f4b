"""Check that tests catch faults: apply each mutant of ``mutants.toml`` to a copy of the tree and run its tests.

    python tests/mutate.py                  # all mutants, then mutants.md
    python tests/mutate.py --only box lazy  # those whose file or description has one of these words; writes nothing

A mutant is caught when one of its tests fails, and missed when they pass. Nothing is run if a text of the table does not
occur exactly once in its file, or a test fails without any fault. Status 1 unless all are caught.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "mutants.toml"
PAGE = ROOT / "tests" / "mutants.md"
COPIED = ("sparse_bo", "tests", "benchmarks", "pyproject.toml")
FAILED = 1
"""Exit status of pytest after failed tests; others than 0 and this are errors, such as tests that are not found."""
TIME_LIMIT = 300.0
"""Of the tests of one mutant (s)."""
PROCESSES = multiprocessing.get_context("forkserver")
"""One process for each mutant, forked from one that has imported the large libraries: that takes longer than most tests."""
PROCESSES.set_forkserver_preload(
    ["botorch.acquisition", "botorch.models", "botorch.optim", "botorch.test_functions", "pytest", "scipy.stats", "sympy"]
)


@dataclass(frozen=True)
class Mutant:
    """A fault and the tests that catch it.

    Args:
        file: Path from the root of the repository.
        fault: The fault in words.
        old: Text of the file; occurs once.
        new: Its replacement.
        tests: Ids for pytest.
    """

    file: str
    fault: str
    old: str
    new: str
    tests: tuple[str, ...]

    def mutated(self, folder: Path) -> str:
        """Return the text of the file with the fault.

        Raises:
            ValueError: If there is no such file, or the old text does not occur exactly once in it.
        """
        path = folder / self.file
        if not path.is_file():
            raise ValueError(f"{self.file} ({self.fault}): got no such file; name the one that the text has moved to")
        text = path.read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(
                f"{self.file} ({self.fault}): expected one occurrence of {self.old!r}, got {count}; change old and new"
            )
        return text.replace(self.old, self.new)


def read(path: Path = TABLE) -> list[Mutant]:
    """Return the mutants of the table."""
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def outcome(mutant: Mutant, folder: Path) -> str:
    """Return ``"caught"``, ``"missed"`` or an error, from a run of the mutant's tests in a copy of the tree."""
    path = folder / mutant.file
    text = path.read_text(encoding="utf-8")
    try:
        path.write_text(mutant.mutated(folder), encoding="utf-8")
        status, last = status_of(mutant.tests, folder)
    finally:
        path.write_text(text, encoding="utf-8")
    if status is None or status == FAILED:  # a loop without end, or a failed test
        return "caught"
    return "missed" if status == 0 else f"error: pytest ended with {status}: {last}"


def status_of(tests: Sequence[str], folder: Path, *, limit: float | None = TIME_LIMIT) -> tuple[int | None, str]:
    """Return pytest's exit status in a process of its own, ``None`` after ``limit`` (s), and its last line."""
    output = folder / "output.txt"
    process = PROCESSES.Process(target=run, args=(tests, folder, output))
    process.start()
    try:
        process.join(limit)
        status = process.exitcode
    finally:
        process.kill()
        process.join()
    return status, (output.read_text(encoding="utf-8").strip().splitlines() or [""])[-1]


def run(tests: Sequence[str], folder: Path, output: Path) -> None:
    """Run tests in this process, which has imported the large libraries already; exit with pytest's status."""
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    os.environ.update(PYTHONPATH=str(folder), PYTHONDONTWRITEBYTECODE="1")
    with output.open("w", encoding="utf-8") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
        sys.exit(int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])))


def page(mutants: Iterable[Mutant]) -> str:
    """Return the list of mutants as Markdown."""
    lines = [
        "<!-- Made by python tests/mutate.py from mutants.toml: do not edit. -->",
        "",
        "# Mutants",
        "",
        "Each fault below is caught by the test beside it. `python tests/mutate.py` applies every one to a copy of the tree",
        "and runs its test.",
        "",
        "| file | fault | caught by |",
        "| --- | --- | --- |",
    ]
    for mutant in sorted(mutants, key=lambda m: (m.file, m.fault)):
        tests = ", ".join(f"`{test.removeprefix('tests/')}`" for test in mutant.tests)
        lines.append(f"| `{mutant.file.removeprefix('sparse_bo/')}` | {mutant.fault.replace('|', chr(92) + '|')} | {tests} |")
    return "\n".join(lines) + "\n"


def wrong(mutants: Iterable[Mutant], folder: Path) -> list[str]:
    """Return a line for each mutant whose text is not in its file once."""
    lines = []
    for mutant in mutants:
        try:
            mutant.mutated(folder)
        except ValueError as error:
            lines.append(str(error))
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the mutants and, unless only some are chosen, write the page."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mutants whose file or fault has one of these words")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in read() if chosen.only is None or any(word in f"{m.file} {m.fault}" for word in chosen.only)]
    if not mutants:
        sys.exit(f"expected words of mutants' files or faults, got {' '.join(chosen.only)}, which none has")
    if lines := wrong(mutants, ROOT):
        sys.exit("\n".join([f"{TABLE.name} does not fit the code:", *lines]))
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
            else:
                shutil.copy(source, folder / part)
        status, last = status_of(list(dict.fromkeys(test for mutant in mutants for test in mutant.tests)), folder, limit=None)
        if status != 0:
            sys.exit(f"expected tests that pass without faults, got status {status} of pytest: {last}")
        for mutant in mutants:
            found = outcome(mutant, folder)
            bad += found != "caught"
            print(f"{found}: {mutant.file}: {mutant.fault}", flush=True)
    print(f"{len(mutants) - bad} of {len(mutants)} caught")
    if bad:
        sys.exit(1)
    if chosen.only is None:
        PAGE.write_text(page(mutants), encoding="utf-8")


if __name__ == "__main__":
    main()
