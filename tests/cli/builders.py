"""A short run, and the call of a command in this process."""

import functools
import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout
from types import SimpleNamespace
from unittest import mock

from typer.main import get_command
from typer.testing import CliRunner, Result

from sparse_bo.cli.options import app

QUICK = ["run", "--problem", "gp-draw", "--arms", "300", "--dims", "2", "--budget", "30", "--seed", "1"]
BOX_ONLY = {"gssbo", "rssbo", "botorch-ucb", "sparse-ucb", "vecchia-ucb", "s-gp-ts", "qff-ts", "rembo", "hesbo", "trust-region"}
"""Policies that search a box alone."""


@functools.cache
def commands():
    """Return the commands, which :meth:`CliRunner.invoke` would make anew at each call, for 30 ms."""
    return get_command(app)


def invoke(*arguments, columns=300):
    """Run a command in this process, as :meth:`CliRunner.invoke` does."""
    runner, status, error = CliRunner(), 0, None
    with runner.isolation(env={"COLUMNS": str(columns)}) as printed:
        try:
            commands().main(args=list(map(str, arguments)), prog_name="root")
        except SystemExit as end:
            status, error = end.code or 0, end if end.code else None
        except Exception as raised:
            status, error = 1, raised
        sys.stdout.flush()
        sys.stderr.flush()
        texts = [text.getvalue() for text in printed]
    return Result(runner, *texts, return_value=None, exit_code=status, exception=error)


def at_a_terminal(*arguments, typed):
    """Run a command in this process, with a terminal for its input, on which ``typed`` is entered."""
    ours, theirs = os.openpty()
    out, err = io.StringIO(), io.StringIO()
    with os.fdopen(ours, "wb", buffering=0) as keyboard, os.fdopen(theirs) as terminal:
        keyboard.write(f"{typed}\n".encode())
        with mock.patch("sys.stdin", terminal), redirect_stdout(out), redirect_stderr(err):
            status = app(list(map(str, arguments)), standalone_mode=False)
    return SimpleNamespace(exit_code=status or 0, stdout=out.getvalue(), stderr=err.getvalue())
