"""Spaces of named parameters and pages of runs on the command line."""

import os
import re
import sqlite3
import sys

import pytest

from sparse_bo import AskTell
from tests.cli.builders import invoke

SPACE = """
lr = {type = "float", low = 1e-4, high = 1.0, log = true}
depth = {type = "int", low = 1, high = 3}
kind = {type = "choice", values = ["adam", "sgd"]}
"""
OBJECTIVE = """
import math

def train(point):
    return -(math.log10(point["lr"]) + 2) ** 2 + point["depth"] + (point["kind"] == "sgd")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a space and an objective."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "named_experiment", raising=False)
    (tmp_path / "space.toml").write_text(SPACE, encoding="utf-8")
    (tmp_path / "named_experiment.py").write_text(OBJECTIVE, encoding="utf-8")
    return tmp_path


RUN = ["run", "--objective", "named_experiment:train", "--space", "space.toml", "--out", "out", "--quiet"]


def test_a_space_is_run_resumed_and_reported_by_name(folder):
    done = invoke(*RUN[:-1], "--budget", 8, "--storage", "run.journal")
    assert done.exit_code == 0, done.output
    assert "lr = " in done.output
    assert re.search("kind = (adam|sgd)", done.output)
    assert "3 named parameters" in done.output
    (folder / "space.toml").unlink()  # the journal has it
    again = invoke("resume", "run.journal", "--budget", 10, "--yes", "--quiet")
    assert again.exit_code == 0, again.output
    with AskTell.resume("run.journal") as loop:
        assert len(loop.history.parameters) == 10
        assert set(loop.history.parameters[0]) == {"lr", "depth", "kind"}
    page = invoke("report", "run.journal", "--html", "run.html")
    assert page.exit_code == 0, page.output
    assert "10 asked, 10 told" in page.output
    assert re.search("observed at .*lr = .*depth = .*kind = (adam|sgd)", page.output)
    text = (folder / "run.html").read_text(encoding="utf-8")
    assert "3 named parameters: 10 asked, 10 told" in text
    assert "parameter depth" in text


@pytest.mark.parametrize("name", ["space.toml", "space.json"])
def test_a_space_file_may_begin_with_a_byte_order_mark(name, folder):
    """As Windows' editors write it."""
    text = SPACE if name.endswith("toml") else '{"lr": {"type": "float", "low": 0.1, "high": 1.0}}'
    (folder / name).write_text(text, encoding="utf-8-sig")
    done = invoke("run", "--objective", "math:log", "--space", name, "--policy", "no-such")
    assert "expected --policy to be one of" in done.stderr


def test_the_page_of_a_built_in_problem_has_its_regret(folder):
    invoke(
        "run",
        "--problem",
        "gp-draw",
        "--arms",
        200,
        "--dims",
        2,
        "--budget",
        12,
        "--storage",
        "run.journal",
        "--quiet",
        "--out",
        "out",
    )
    done = invoke("report", "run.journal", "--html", "run.html", "--out", "other")
    assert done.exit_code == 0, done.output
    assert "Regret per evaluation" in (folder / "run.html").read_text(encoding="utf-8")
    assert (folder / "other").is_dir()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--space", "space.toml"], "--space needs --objective"),
        ([*RUN, "--grid", "3x3"], "got --space with another"),
        ([*RUN[:3], "--space", "none.toml"], "none.toml"),
        ([*RUN[:3], "--space", "named_experiment.py"], "ending in .toml or .json"),
        ([*RUN, "--problem", "cadata"], "--problem"),
        ([*RUN, "--policy", "bkb", "--memory", "1"], "plans runs of bbkb and bkb over arms"),
    ],
)
def test_options_that_do_not_fit_are_refused(arguments, message, folder):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message in done.output
    assert not (folder / "out").exists()


@pytest.mark.parametrize("kind", ["empty", "foreign", "none"])
def test_a_page_of_what_is_no_journal_is_refused(kind, folder):
    if kind == "foreign":
        sqlite3.connect("run.journal").execute("CREATE TABLE t (x)").connection.close()
    elif kind == "empty":
        (folder / "run.journal").touch()
    done = invoke("report", "run.journal", "--html", "run.html")
    assert done.exit_code == 2
    assert "run.journal" in done.output
    assert not (folder / "run.html").exists()


def test_a_page_that_cannot_be_written_is_said(folder):
    assert invoke(*RUN, "--budget", 4, "--storage", "run.journal").exit_code == 0
    before = (folder / "run.journal").read_bytes()
    done = invoke("report", "run.journal", "--html", "no/such/folder.html")
    assert (done.exit_code, "could not write no/such/folder.html" in done.output) == (1, True)
    done = invoke("report", "run.journal", "--html", "run.journal")
    assert (done.exit_code, "is the journal itself" in done.output) == (2, True)
    assert (folder / "run.journal").read_bytes() == before
    os.mkfifo(folder / "pipe.html")
    done = invoke("report", "run.journal", "--html", "pipe.html")
    assert (done.exit_code, "could not write pipe.html: a folder, pipe or device is there" in done.output) == (1, True)
    assert (folder / "pipe.html").is_fifo()
