"""What the tests of the command line share: a short run, and how commands are typed."""

from typer.testing import CliRunner

from sparse_bo.cli.app import app

QUICK = ["run", "--problem", "gp-draw", "--arms", "300", "--dims", "2", "--budget", "30", "--seed", "1"]
BOX_ONLY = {"gssbo", "rssbo", "botorch-ucb", "sparse-ucb", "vecchia-ucb", "s-gp-ts", "qff-ts", "rembo", "hesbo", "trust-region"}
"""Policies that search a box alone."""


def invoke(*arguments, columns=200):
    return CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": str(columns)})
