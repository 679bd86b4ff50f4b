"""Settings of policies on the command line: options of their own, ``--set name=value`` for all others, and their help."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import torch
import typer

from sparse_bo import AskTell, Storage
from sparse_bo.cli.options import app
from sparse_bo.cli.presets import FLAGS, OPTIONS_OF, POLICIES, flag, given_settings, read_settings, settings_of
from sparse_bo.policies import RandomSearch
from tests.cli.builders import invoke

WITHOUT_TEXT = {"acquisition", "first", "fitter", "inner", "surrogate", "then"}
"""Fields that hold functions and policies; the command line has no option for them."""


def parameters(command: str) -> dict:
    """Return the options of a command: name -> parameter."""
    return {p.name: p for p in typer.main.get_command(app).commands[command].params}


@pytest.mark.parametrize(
    ("policy", "text", "value"),
    [
        ("bbkb", "stop_rule=local", "local"),
        ("bbkb", "stop-rule = local", "local"),
        ("bbkb", "max_batch_size=5", 5),
        ("bbkb", "max_batch_size=1e3", 1000),
        ("bbkb", "oversampling=3", 3.0),
        ("bbkb", "width=theory", "theory"),
        ("bbkb", "width=2.5", 2.5),
        ("bbkb", "rkhs_norm=estimate", "estimate"),
        ("bbkb", "prior_mean=-1e-3", -0.001),
        ("bbkb", "prior_mean=none", None),
        ("bbkb", f"memory_bytes={2**53 + 1}", 2**53 + 1),
        ("gssbo", "warm_start=yes", True),
        ("gssbo", "warm_start=no", False),
        ("gssbo", "warm_start=True", True),
        ("gssbo", "buffer=model", "model"),
        ("gssbo", "buffer=80", 80),
        ("sbpe", "schedule=10,20, 30", [10, 20, 30]),
        ("sbpe", "schedule=10", [10]),
    ],
)
def test_the_type_of_the_field_decides_the_value(policy, text, value):
    (read,) = read_settings(given_settings({"set_": [text]}), POLICIES[policy]).values()
    assert read == value
    assert type(read) is type(value)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_field_of_a_policy_is_set_by_an_option_or_by_set(policy):
    kind = POLICIES[policy]
    names = {field.name for field in dataclasses.fields(kind) if field.init}
    assert set(settings_of(kind)) == names - WITHOUT_TEXT - set(OPTIONS_OF)
    done = invoke("settings", policy)
    assert done.exit_code == 0, done.output
    for name in settings_of(kind):
        assert f"\n  {name} " in done.stdout
        assert f"    {name}: " in done.stdout, f"{name} has no entry under Attributes:"


def test_settings_show_types_and_defaults():
    shown = " ".join(invoke("settings", "bbkb").stdout.split())
    assert "beside --precision, --kernel, --lengthscale, --outputscale, --dictionary, --dictionary-size:" in shown
    assert "stop_rule 'global' or 'local' or 'gp-bucb' or 'repeat' (default global)" in shown
    assert "max_batch_size a whole number (default 10000)" in shown
    assert "width a number or a name or none" in shown
    assert ":class:" not in shown
    assert "expected POLICY to be one of 'bbkb'," in invoke("settings", "magic").stderr


def test_settings_begin_with_the_policys_own_description():
    shown = invoke("settings", "posterior-epsilon-greedy").stdout
    assert "PosteriorEpsilonGreedy: With probability ε a random arm, otherwise the arm with the highest posterior mean" in shown


def test_settings_with_an_option_of_their_own_are_options_of_run():
    assert {flag(name) for name in FLAGS} <= {name for parameter in parameters("run").values() for name in parameter.opts}


@pytest.mark.parametrize("command", ["run", "compare", "plan", "resume", "report", "audit", "settings"])
def test_every_option_has_help_in_80_columns(command):
    text = invoke(command, "--help", columns=80).output
    for parameter in parameters(command).values():
        assert parameter.help or parameter.name == "help"
        assert parameter.param_type_name == "argument" or f" {parameter.opts[0]} " in text
    assert all(len(line) <= 80 for line in text.splitlines())
    assert command in invoke("--help").output


@pytest.mark.sampled(2)
@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["plan", "--help"], ["run", "--seed", "x"]])
def test_help_and_mistyped_options_load_no_torch(arguments):
    code = f"import sys\nfrom sparse_bo.cli.options import app\ntry:\n    app({arguments})\nexcept SystemExit:\n    pass\n"
    code += "print('torch' in sys.modules or 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("command", [["settings", "--help"], ["run", "--help"]])
def test_help_names_every_policy(command):
    text = invoke(*command, columns=80).output
    assert all(f" {policy}" in text for policy in POLICIES)


def test_compare_takes_every_option_that_its_help_lists(tmp_path):
    """Its help listed options that it refused."""
    drawn = ["--problem", "gp-draw", "--arms", "60", "--dims", "2", "--noise-sd", "0.1", "--seed", "1", "--quiet"]
    table = ["--problem", "abalone", "--scaling", "standardize", "--standardize", "--device", "cpu"]
    assert {f"--{name.replace('_', '-')}" for name in parameters("compare")} == {
        *(text for text in drawn + table if text.startswith("--")), "--budget", "--out"
    }  # fmt: skip
    for options in (drawn, table):
        done = invoke("compare", *options, "--budget", "4", "--out", tmp_path)
        assert done.exit_code == 0, done.stderr


def test_an_audit_without_arms_names_the_option(tmp_path):
    path, X = tmp_path / "run.journal", torch.rand(30, 2, dtype=torch.float64)
    with AskTell(X, RandomSearch(batch_size=5), storage=Storage(path, arms_bytes=10)) as loop:
        loop.run(lambda X: X.sum(dim=-1), 10)
    done = invoke("audit", path)
    assert done.exit_code == 2
    assert "pass --arms-file FILE.npy" in done.stderr
    assert "arms=" not in done.stderr
    np.save(tmp_path / "arms.npy", X.numpy())
    assert "computed again from the last snapshot on" in invoke("audit", path, "--arms-file", tmp_path / "arms.npy").stdout


def test_the_help_has_an_example_of_each_command_that_is_one_line_of_a_shell():
    shown = invoke("--help", columns=120).output
    assert all(f"│ {name} " in shown for name in typer.main.get_command(app).commands)
    for panel in ("Runs of a function", "Runs by files", "Results and settings"):
        assert f"─ {panel} ─" in shown
    for name in set(typer.main.get_command(app).commands) - {"audit", "settings"}:
        assert f"sparse-bo {name} " in invoke(name, "--help", columns=120).output
