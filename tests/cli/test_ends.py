"""``run --minimize``, and runs that end before their budget: ``--seconds``, ``--target``, ``--patience``."""

from pathlib import Path

import pytest

from sparse_bo.runs import History, read_run
from tests.cli.builders import QUICK, invoke

VALLEY = """
def measure(X):
    return 2.0 + (X - 0.25).square().sum(dim=-1)
"""
OWN = ["run", "--objective", "valley_of_a_test:measure", "--grid", "21x21", "--budget", "40", "--seed", "1"]


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "valley_of_a_test.py").write_text(VALLEY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return [*OWN, "--minimize", "--storage", "run.journal", "--out", "out"]


def test_a_run_that_minimises_reports_resumes_and_audits_in_the_sign_of_its_objective(own):
    done = invoke(*own, "--target", "2.5")
    assert done.exit_code == 0, done.output
    recorded = read_run("run.journal")
    assert recorded.about["minimize"]
    assert 2.0 <= min(recorded.evaluations.values[recorded.evaluations.known]) <= 2.5
    done = invoke("resume", "run.journal", "--yes", "--quiet")
    assert done.exit_code == 0, done.output
    assert read_run("run.journal").told == 40
    done = invoke("report", "run.journal", "--html", "run.html")
    assert done.exit_code == 0, done.output
    page = Path("run.html").read_text(encoding="utf-8")
    assert "Minimising over 441 arms with 2 inputs" in page
    assert invoke("audit", "run.journal").exit_code == 0
    (name,) = Path("out").glob("*.jsonl")
    assert History.load(name).rows[-1].best_mean == pytest.approx(2.0, abs=0.05)


def test_a_built_in_problem_has_its_own_direction(tmp_path):
    done = invoke(*QUICK, "--minimize", "--out", tmp_path)
    assert done.exit_code == 2
    assert "--minimize needs --objective package.module:function; add it, or drop --minimize" in done.stderr


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (["--target", "-9"], "ended: a result of "),
        (["--patience", "3"], "ended: 3 evaluations have brought no better result than "),
        (["--seconds", "0.0001"], "ended: 0.0001 seconds are over"),
    ],
    ids=["target", "patience", "seconds"],
)
def test_a_run_ends_and_goes_on_by_resume(end, says, tmp_path):
    path = tmp_path / "run.journal"
    run = [*QUICK, "--policy", "random", "--storage", path, "--out", tmp_path]
    done = invoke(*run, *end)
    assert done.exit_code == 0, done.output
    assert says in done.stdout
    assert read_run(path).told < 30
    assert invoke("resume", path, "--quiet").exit_code == 0
    assert read_run(path).told == 30
    done = invoke("resume", path, "--budget", "60", *(["--patience", "1"] if end[0] == "--patience" else end))
    assert done.exit_code == 0
    assert "ended: " in done.stdout


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--seconds", "0"], "expected --seconds > 0"),
        (["--target", "nan"], "expected a finite --target"),
        (["--patience", "0"], "expected --patience >= 1"),
    ],
    ids=str,
)
def test_wrong_ends_are_named_before_a_journal_is_created(wrong, says, tmp_path):
    done = invoke(*QUICK, *wrong, "--storage", tmp_path / "run.journal", "--out", tmp_path)
    assert done.exit_code == 2
    assert says in done.stderr
    assert not (tmp_path / "run.journal").exists()
