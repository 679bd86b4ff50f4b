"""A short run, and the call of a command in this process."""

import io
import os
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from unittest import mock

from typer.testing import CliRunner

from sparse_bo.cli.options import app

QUICK = ["run", "--problem", "gp-draw", "--arms", "300", "--dims", "2", "--budget", "30", "--seed", "1"]
BOX_ONLY = {"gssbo", "rssbo", "botorch-ucb", "sparse-ucb", "vecchia-ucb", "s-gp-ts", "qff-ts", "rembo", "hesbo", "trust-region"}
"""Policies that search a box alone."""


def invoke(*arguments, columns=300):
    """Run a command in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": str(columns)})


def at_a_terminal(*arguments, typed):
    """Run a command in this process, with a terminal for its input, on which ``typed`` is entered."""
    ours, theirs = os.openpty()
    out, err = io.StringIO(), io.StringIO()
    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs) as terminal:
        keyboard.write(f"{typed}\n".encode())
        with mock.patch("sys.stdin", terminal), redirect_stdout(out), redirect_stderr(err):
            status = app(list(map(str, arguments)), standalone_mode=False)
    return SimpleNamespace(exit_code=status or 0, stdout=out.getvalue(), stderr=err.getvalue())
