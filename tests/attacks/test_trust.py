"""Journals of strangers: ``resume`` asks before it imports what they name, ``report`` and ``audit`` import nothing."""

from __future__ import annotations

import sys

import pytest
import torch

from sparse_bo import Storage
from sparse_bo.gp.diagnostics import leave_one_out, trend
from sparse_bo.journal import Journal
from sparse_bo.policies import BBKB, RandomSearch
from sparse_bo.runs import AskTell, audit_run
from tests.cli.builders import QUICK, at_a_terminal, invoke
from tests.journal.runs import arms, finished, policy

pytestmark = pytest.mark.usefixtures("undrawn_figures")
HOSTILE = "raise RuntimeError('imported')\n"
HARMLESS = "def measure(X):\n    return -(X - 0.3).square().sum(-1)\n"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A run of an objective of its own, in whose working folder lies a module that must not be imported any more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"stranger_{abs(hash(tmp_path)) % 10**8}"
    module = tmp_path / f"{name}.py"
    module.write_text(HARMLESS)
    run = [
        "run",
        "--objective",
        f"{name}:measure",
        "--grid",
        "9x9",
        "--policy",
        "random",
        "--budget",
        "20",
        "--storage",
        "run.journal",
        "--out",
        "out",
    ]
    done = invoke(*run, "--quiet")
    assert done.exit_code == 0, done.output
    sys.modules.pop(name)
    module.write_text(HOSTILE)
    yield name
    sys.modules.pop(name, None)


def test_resume_says_what_a_journal_names_and_does_nothing_unless_it_may(own, tmp_path):
    done = invoke("resume", "run.journal", "--budget", "30")
    assert done.exit_code == 2
    assert f"import the module {own} (looked for in {tmp_path} first), and run {own}:measure" in done.stdout
    assert f"write into the folder {tmp_path / 'out'}" in done.stdout
    assert done.stderr == "error: nobody can be asked whether to do that; if you trust this journal, add --yes\n"
    assert own not in sys.modules
    (tmp_path / f"{own}.py").write_text(HARMLESS)
    done = invoke("resume", "run.journal", "--budget", "30", "--yes")
    assert done.exit_code == 0, done.output
    assert "30 asked, 30 told" in done.stdout


@pytest.mark.parametrize(("answer", "code"), [("n", 2), ("y", 0)])
def test_resume_asks_at_a_terminal(own, answer, code, tmp_path):
    (tmp_path / f"{own}.py").write_text(f"open('imported', 'w').close()\n{HARMLESS}")
    done = at_a_terminal("resume", "run.journal", "--budget", "25", "--quiet", typed=answer)
    assert done.exit_code == code, done.stderr
    assert "Do that? [y/N]: " in done.stdout
    assert (tmp_path / "imported").exists() == (answer == "y")
    assert ("not resumed; nothing was imported or written" in done.stderr) == (answer == "n")


def test_a_folder_that_a_journal_names_is_not_made_unasked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke(*QUICK, "--policy", "random", "--storage", "run.journal", "--out", "out", "--quiet").exit_code == 0
    for file in (tmp_path / "out").iterdir():
        file.unlink()
    (tmp_path / "out").rmdir()
    done = invoke("resume", "run.journal", "--budget", "40")
    assert done.exit_code == 2
    assert not (tmp_path / "out").exists()
    assert invoke("resume", "run.journal", "--budget", "40", "--out", "other", "--quiet").exit_code == 0
    assert not (tmp_path / "out").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("command", ["report", "audit"])
def test_report_and_audit_import_nothing(own, command):
    done = invoke(command, "run.journal")
    assert done.exit_code == 0, done.output
    assert "20 asked, 20 told" in done.stdout
    assert own not in sys.modules


def test_an_audit_of_a_run_that_goes_on_disturbs_nobody(tmp_path):
    path = tmp_path / "run.journal"
    with AskTell(arms(), policy(), seed=1, storage=path) as loop:
        finished(loop)
        found = audit_run(path)
        loop.ask(1)  # it still holds the lock
    assert found.recorded.told + found.recorded.failed == 120
    assert found.certificate is not None
    assert found.certificate.factor >= 1.0
    assert found.failing.failed == sum(t % 17 == 5 for t in range(120))
    assert found.differing == []
    assert found.repeated


def test_an_audit_of_a_run_that_goes_on_is_of_one_moment(tmp_path, monkeypatch):
    """It read the journal twice: one count had what the other lacked."""
    path, read = tmp_path / "run.journal", Journal.read
    with AskTell(arms(), RandomSearch(batch_size=9), seed=1, storage=path) as loop:
        loop.ask()

        def read_after_another(path):
            loop.fail(loop.pending[:1])
            return read(path)

        monkeypatch.setattr(Journal, "read", read_after_another)
        found = audit_run(path)
    assert found.recorded.failed == found.failing.failed > 0


@pytest.mark.parametrize("slope", [0.0, 0.02])
def test_an_audit_finds_an_objective_that_changes_with_time(slope, tmp_path):
    generator, told = torch.Generator().manual_seed(0), [0]

    def objective(X):
        told[0] += len(X)
        noise = 0.1 * torch.randn(len(X), generator=generator, dtype=torch.float64)
        return torch.sin(5.0 * X[:, 0]) + slope * told[0] + noise

    with AskTell(arms(), RandomSearch(batch_size=5), seed=1, storage=tmp_path / "run.journal") as loop:
        loop.run(objective, 200)
    drift = audit_run(tmp_path / "run.journal").drift
    assert drift is not None
    assert (abs(drift.score) > 4.0) == (slope > 0.0)
    assert drift.slope == pytest.approx(slope, abs=0.001)


@pytest.mark.parametrize("where", ["arms", pytest.param("box", marks=pytest.mark.slow)])
def test_an_audit_finds_a_model_that_is_too_sure(where, tmp_path):
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    domain = {"arms": arms(60)} if where == "arms" else {"bounds": bounds}
    spreads = {}
    for regularization in (0.25, 1e-4):
        generator = torch.Generator().manual_seed(0)

        def noisy(X, generator=generator):
            return torch.sin(5.0 * X[:, 0]) + 0.5 * torch.randn(len(X), generator=generator, dtype=torch.float64)

        path = tmp_path / f"{regularization}.journal"
        sure = policy(regularization=regularization, width=3.0)
        with AskTell(policy=sure, seed=1, storage=path, **domain) as loop:
            loop.run(noisy, 60 if where == "arms" else 24)
        spreads[regularization] = audit_run(path).calibration.spread
    assert spreads[1e-4] > 3.0
    assert 0.4 < spreads[0.25] < 1.6


def test_leave_one_out_is_that_of_leaving_out_one():
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(7, 7, generator=generator, dtype=torch.float64)
    covariance, noise = root @ root.T, torch.rand(7, generator=generator, dtype=torch.float64) + 0.1
    residuals = torch.randn(7, generator=generator, dtype=torch.float64)
    errors, scores = leave_one_out(covariance, noise, residuals)
    for i in range(7):
        rest = [j for j in range(7) if j != i]
        S = covariance[rest][:, rest] + torch.diag(noise[rest])
        k = covariance[i, rest]
        mean = k @ torch.linalg.solve(S, residuals[rest])
        variance = covariance[i, i] + noise[i] - k @ torch.linalg.solve(S, k)
        assert float(errors[i]) == pytest.approx(float(residuals[i] - mean))
        assert float(scores[i]) == pytest.approx(float((residuals[i] - mean) / variance.sqrt()))


def test_a_trend_is_that_of_least_squares_with_a_level_per_group():
    t = torch.arange(40.0, dtype=torch.float64)
    groups = torch.arange(40) % 4
    found = trend(t, 3.0 * groups + 0.5 * t, groups)
    assert found.slope == pytest.approx(0.5)
    assert found.score > 1e6
    wave = t.sin() + 0.5 * t
    for unit in (1e-200, 1e200):  # squares are beyond the range of numbers
        scaled = trend(t, unit * wave, groups)
        assert scaled.score == pytest.approx(trend(t, wave, groups).score)
        assert scaled.slope == pytest.approx(unit * trend(t, wave, groups).slope)
        last_digits = unit * (0.3 + 5.6e-17 * (t < 20).double())
        assert trend(t, last_digits, groups) == (0.0, 0.0)
    assert trend(t[:9], t[:9], groups[:9]) is None
    assert trend(t[:0], t[:0], groups[:0]) is None
    assert trend(torch.ones(40), t, torch.zeros(40, dtype=torch.int64)) is None


def test_an_audit_needs_the_arms_that_were_not_recorded(tmp_path):
    path = tmp_path / "run.journal"
    with AskTell(arms(), BBKB(), storage=Storage(path, arms_bytes=8)) as loop:
        loop.run(lambda X: X[:, 0], 20)
    with pytest.raises(ValueError, match="are not in it .*; pass arms="):
        audit_run(path)
    assert audit_run(path, arms=arms()).recorded.told == 20
