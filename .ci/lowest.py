"""Print the lowest versions that ``pyproject.toml`` names, as constraints for pip: ``python .ci/lowest.py > lowest.txt``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
EXTRAS = ("optuna", "dask", "loky", "test")
"""What the tests of versions install."""


def lowest(path: Path = PROJECT) -> list[str]:
    """Return ``name==version`` of every requirement of the package and of the tests.

    Raises:
        ValueError: If a requirement names no lowest version.
    """
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    found = []
    for line in wanted:
        if line.startswith(project["name"]):
            continue
        match = re.fullmatch(r"([\w.-]+)>=([\d.]+)", line)
        if match is None:
            raise ValueError(f"expected 'name>=version' in {path.name}, got {line!r}")
        found.append(f"{match[1]}=={match[2]}")
    return found


if __name__ == "__main__":
    print("\n".join(lowest()))
