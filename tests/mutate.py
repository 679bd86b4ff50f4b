"""Check that tests catch faults: apply each mutant of ``mutants.toml`` to a copy of the tree and run its tests.

    python tests/mutate.py                  # all mutants, then mutants.md
    python tests/mutate.py --only box lazy  # those whose file or description has one of these words; writes nothing

A mutant is caught when one of its tests fails, and missed when they pass. The table is wrong if its text does not occur
exactly once in its file, or its tests are not found. Status 1 unless all are caught.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "mutants.toml"
PAGE = ROOT / "tests" / "mutants.md"
COPIED = ("sparse_bo", "tests", "benchmarks", "pyproject.toml")
FAILED = 1
"""Exit status of pytest after failed tests; others than 0 and this are errors, such as tests that are not found."""


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

    def applied(self, text: str) -> str:
        """Return the text of the file with the fault.

        Raises:
            ValueError: If the old text does not occur exactly once.
        """
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"got {count} occurrences of {self.old!r} in {self.file}, expected one: mend {TABLE.name}")
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
        path.write_text(mutant.applied(text), encoding="utf-8")
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests]
        environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
            )
        except subprocess.TimeoutExpired:
            return "caught"  # a loop without end
    except ValueError as error:
        return f"error: {error}"
    finally:
        path.write_text(text, encoding="utf-8")
    if done.returncode in (0, FAILED):
        return "caught" if done.returncode == FAILED else "missed"
    return f"error: pytest ended with {done.returncode}: {(done.stdout + done.stderr).strip().splitlines()[-1:]}"


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the mutants and, unless only some are chosen, write the page."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mutants whose file or fault has one of these words")
    chosen = parser.parse_args(arguments)
    mutants = [m for m in read() if chosen.only is None or any(word in f"{m.file} {m.fault}" for word in chosen.only)]
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__", "results"))
            else:
                shutil.copy(source, folder / part)
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
