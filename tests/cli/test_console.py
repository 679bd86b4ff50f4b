"""What is printed: text as it is, in any encoding."""

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from sparse_bo.cli.console import complain, say
from sparse_bo.cli.options import accept_any_encoding, app
from tests.cli.builders import invoke
from tests.forked import command as command_line
from tests.forked import forked

HOSTILE = "failed in [/opt/solver] [red]x[/red] :bug: [link=a]"
OBJECTIVE = f"""
def fails(X):
    raise RuntimeError({HOSTILE!r} + chr(27) + "[31m")

def works(X):
    return X[:, 0]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with an objective."""
    (tmp_path / "hostile.py").write_text(OBJECTIVE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("hostile", None)


RUN = ["run", "--policy", "random", "--grid", "5x5", "--budget", "4", "--objective"]


def test_what_an_objective_says_is_shown_as_it_is(folder):
    done = invoke(*RUN, "hostile:fails", "--out", "out")
    assert done.exit_code == 1
    advice = "return NaN for an evaluation that has to count as failed"
    assert done.stderr == f"stopped: the objective failed on a batch of 1 (RuntimeError: {HOSTILE}\\x1b[31m); {advice}\n"


def test_names_of_folders_and_journals_are_shown_as_they_are(folder):
    out, journal = "[bold]a[", "b[italic] :bug:.journal"
    done = invoke(*RUN, "hostile:works", "--out", out, "--storage", journal)
    assert done.exit_code == 0, done.output
    assert f"history  {out}/works-random-seed0.jsonl\nfigure   {out}/works-random-seed0.png\n" in done.stdout
    done = invoke("report", journal, "--out", out)
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"random, seed 0, in {journal}")
    assert f"figure   {out}/b[italic] :bug:.png\n" in done.stdout
    done = invoke("resume", journal, "--budget", "6", "--yes")
    assert done.exit_code == 0, done.output
    assert "6 of them evaluated" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--problem", "[/x]"],
        ["run", "--objective", "[/x]:b", "--grid", "2x2"],
        ["run", "--grid", "[/x]", "--objective", "hostile:works"],
        ["run", "--arms-file", "[/x]", "--objective", "hostile:works"],
        ["run", "--device", "[/x]"],
        ["run", "--storage", "[/x]/run.journal"],
        ["resume", "[/x]"],
        ["report", "[/x]"],
        ["plan", "--arms", "[/x]"],
        ["run", "--budget", "[/x]", "--no-such-option"],
        ["[/x]"],
    ],
    ids=" ".join,
)
def test_what_was_typed_is_shown_as_it_is_in_errors(arguments, folder):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert "[/x]" in done.stderr or "--no-such-option" in done.stderr


def test_colours_and_other_controls_are_written_out(capsys):
    say("a\x1b[31mb\a\udcff\u202e[i]")
    complain("stopped", "[/x] :bug:\n:b:\x1b[2J")
    shown = capsys.readouterr()
    assert shown.out == "a\\x1b[31mb\\x07\\udcff\\u202e[i]\n"
    assert shown.err == "stopped: [/x] :bug:\n:b:\\x1b[2J\n"


def test_lines_are_not_broken(capsys):
    say("x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"


@pytest.mark.parametrize(
    ("encoding", "command", "code", "written"),
    [
        ("cp1252", ["run", "--help"], 0, "lambda > 0 (y²)".encode("cp1252")),
        ("ascii", ["run", "--seed", "λ"], 2, b"got 'lambda'"),
    ],
)
def test_outputs_that_cannot_write_greek_get_its_names(encoding, command, code, written, tmp_path):
    done = forked(command_line(*command), folder=tmp_path, encoding=encoding)
    assert done.returncode == code, done.stderr
    assert written in done.stdout + done.stderr
    assert b"Traceback" not in done.stderr


class Elsewhere(io.StringIO):
    """A terminal with an encoding that Python does not know."""

    encoding = "klingon"

    def isatty(self):
        return True


def test_a_terminal_of_unknown_encoding_gets_ascii(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdout", terminal := Elsewhere())
    arguments = ["compare", "--problem", "hartmann6", "--budget", "8", "--out"]
    app([*arguments, str(tmp_path)], standalone_mode=False)
    written = terminal.getvalue()
    assert "random" in written
    assert "regret" in written
    assert "epsilon-greedy chooses among arms, and is left out on a box" in written
    assert not any("\u2800" <= c <= "\u28ff" for c in written)  # dots of a figure


def test_a_run_without_a_stream_to_print_to(tmp_path):
    run = ["run", "--problem", "hartmann6", "--policy", "random", "--budget", "4", "--out", "out"]
    done = forked(command_line(*run), folder=tmp_path, stdout=None)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "out/hartmann6-random-seed0.jsonl").exists()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs the device of a full disk")
@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        pytest.param("run --problem hartmann6 --policy random --budget 4 --out out >&- 2>&-", 0, "", marks=pytest.mark.slow),
        ("--version >&- 2>&-", 0, ""),
        ("--version >/dev/full", 1, "error: could not print everything (No space left on device)\n"),
        ("run --help >/dev/full", 1, "error: could not print everything (No space left on device)\n"),
    ],
)
def test_without_a_stream_to_print_to(command, code, said, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    shell = f"{sys.executable} -m sparse_bo {command}"
    done = subprocess.run(shell, shell=True, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, said)
    assert (tmp_path / "out/hartmann6-random-seed0.jsonl").exists() == command.startswith("run --problem")


@pytest.mark.parametrize(
    ("text", "written"),
    [("λ ≥ q̄²", "lambda >= qbar^2"), ("é … ±", "e ... +-"), ("中", "\\u4e2d"), ("C̃", "C~")],
)
def test_characters_are_spelled(text, written, monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    accept_any_encoding()
    Console().print(text)
    sys.stdout.flush()
    assert raw.getvalue() == written.encode("ascii") + b"\n"
