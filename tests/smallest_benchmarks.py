"""Benchmarks in their smallest form, for the tests that run them."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
RESULTS = BENCHMARKS / "results"
SCRIPTS = sorted(
    path.stem for path in BENCHMARKS.glob("*.py") if "EXPERIMENT = Experiment(" in path.read_text(encoding="utf-8")
)
ARGUMENTS = {"gpu": ["--device", "cpu"], "batches": ["--here"], "peers": ["--here"], "device_costs": ["--here"]}
ON_SECOND = ["device_costs"]
"""Run by ``tests/devices``: they need the device made of host memory."""


def experiment(name: str) -> ModuleType:
    return importlib.import_module(name).EXPERIMENT


def run(name: str, folder: Path, *arguments: str) -> list[dict]:
    """Run a benchmark in its smallest form, and return its records."""
    runner = importlib.import_module("harness.runner")
    runner.main(experiment(name), None, ["--tiny", "--out", str(folder), *ARGUMENTS.get(name, []), *arguments])
    return importlib.import_module("harness.records").read(folder / experiment(name).records_name)


def check_smallest_form(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> list[dict]:
    """Run it, and again, when nothing is left to measure; check page, tables and headline, and return the records."""
    records = run(name, tmp_path)
    assert records
    page = (tmp_path / f"{name}.md").read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.+\|\n)+", page, re.MULTILINE)
    assert tables
    assert "nan" not in page
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1
        assert len(table.splitlines()) > 2
    for figure in re.findall(r"\]\((\S+\.png)\)", page):
        assert (tmp_path / figure).stat().st_size > 1000
    assert experiment(name).headline(experiment(name).read(tmp_path))
    monkeypatch.setattr("harness.runner.write", lambda *_: None)
    capsys.readouterr()
    assert run(name, tmp_path) == records  # what is there is not measured again
    assert f"{name}: 0 of " in capsys.readouterr().out
    return records
