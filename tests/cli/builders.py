"""A short run, and the call of a command in this process."""

import os
import subprocess
import sys

from typer.testing import CliRunner

from sparse_bo.cli.app import app

QUICK = ["run", "--problem", "gp-draw", "--arms", "300", "--dims", "2", "--budget", "30", "--seed", "1"]
BOX_ONLY = {"gssbo", "rssbo", "botorch-ucb", "sparse-ucb", "vecchia-ucb", "s-gp-ts", "qff-ts", "rembo", "hesbo", "trust-region"}
"""Policies that search a box alone."""


def invoke(*arguments, columns=300):
    """Run a command in this process."""
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": str(columns)})


def at_a_terminal(*arguments, typed):
    """Run a command in a process of its own whose input is a terminal with the line ``typed``."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, f"{typed}\n".encode())
        command = [sys.executable, "-m", "sparse_bo", *map(str, arguments)]
        return subprocess.run(command, stdin=theirs, capture_output=True, text=True, timeout=120, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
