"""Several outcomes on the command line: options, a run with all commands on its journal, and refusals."""

import json
import math
import re
import sys

import numpy as np
import pytest
from rich.console import Console

from sparse_bo import AskTell, History
from sparse_bo.cli.inputs import directions_of, limits_of, outcomes_of, values_of
from sparse_bo.runs import read_run
from sparse_bo.runs.ends import RunProgress
from sparse_bo.runs.history import HistoryRow
from tests.cli.builders import invoke

LIMITS = {
    "a<=1": (None, 1.0),
    "a >= 1e-3": (1e-3, None),
    "0<=a<=1": (0.0, 1.0),
    "1 >= a >= 0": (0.0, 1.0),
    "1<=a": (1.0, None),
    "-2.5>=a": (None, -2.5),
    "a≤1": (None, 1.0),
}


@pytest.mark.parametrize(("text", "limits"), LIMITS.items(), ids=LIMITS)
def test_limits_are_read(text, limits):
    assert limits_of([text]) == {"a": limits}


def test_two_texts_may_give_the_limits_of_one_outcome():
    assert limits_of(["a<=1", "b>=2", "a>=0"]) == {"a": (0.0, 1.0), "b": (2.0, None)}
    with pytest.raises(ValueError, match="one lower and one upper limit of 'a' by --constraint, got 'a<=2' too"):
        limits_of(["a<=1", "a<=2"])


def test_names_may_have_signs_of_their_own():
    assert directions_of("a:b:max, c-d : min") == {"a:b": "max", "c-d": "min"}
    assert limits_of(["c-d<=1e-3"]) == {"c-d": (None, 1e-3)}
    assert values_of("c-d=-1,a=2e3", {"a": "max", "c-d": "min"}) == {"a": 2e3, "c-d": -1.0}


WRONG = [
    (["--constraint", "a<1"], 'did you mean "a<=1"?'),
    (["--constraint", "a=>1"], 'did you mean "a>=1"?'),
    (["--constraint", "0<=a<1"], 'did you mean "0<=a<=1"?'),
    (["--constraint", "a=1"], 'did you mean "1<=a<=1"?'),
    (["--constraint", "a 5"], 'did you mean "a<=5"?'),
    (["--constraint", "a"], "got 'a'; a limit is missing"),
    (["--constraint", "a<=b"], "one side has to be the name of an outcome"),
    (["--constraint", "a<=1<=2"], "one side has to be the name of an outcome"),
    (["--constraint", "0<=a>=1"], "both limits are written with <=, or both with >="),
    (["--constraint", "a<=inf"], "a limit is a finite number"),
    (["--constraint", "2<=a<=1"], "lower <= upper for the constraint 'a', got (2.0, 1.0)"),
    (["--objectives", "yield"], "did you mean yield:max or yield:min?"),
    (["--objectives", "yield:maximise"], "did you mean yield:max?"),
    (["--objectives", "yield=min"], "did you mean yield:min?"),
    (["--objectives", "max:yield"], "did you mean yield:max?"),
    (["--objectives", "y:max,y:min"], "each of --objectives once, got 'y' twice"),
    (["--objectives", "a:max,b:max,c:max,d:max,e:max"], "at most 4 objectives, got 5"),
    (["--reference", "yeild=0,cost=1"], "got 'yeild'; did you mean yield?"),
    (["--reference", "yield=0"], "none of cost; add cost=VALUE"),
    (["--reference", "yield"], "expected --reference like yield=0,cost=0, got 'yield'"),
    (["--reference", "yield=nan,cost=0"], "finite number for 'yield' in --reference, got nan"),
    (["--minimize"], "--minimize contradicts --objectives"),
    (["--policy", "random"], "policy 'random' takes one outcome, got 2 (yield, cost); leave --policy out"),
    (["--certify-every", "2"], "certificates and plans are of policies for one outcome"),
    (["--rkhs-norm", "2"], "rkhs_norm is of policies for one outcome"),
    (["--target", "2"], "--target with one objective, got 2"),
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with a space and a function of several outcomes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "several_outcomes", raising=False)
    (tmp_path / "space.toml").write_text('t = {type = "float", low = 0, high = 1}\n', encoding="utf-8")
    (tmp_path / "several_outcomes.py").write_text(
        "calls = 0\n\n\ndef measure(point):\n    global calls\n    calls += 1\n    t = point['t']\n    if calls == 3:\n"
        "        return float('nan')\n    return {'yield': t * (2 - t), 'cost': t**2, 'impurity': 0.1 * t}\n",
        encoding="utf-8",
    )
    return tmp_path


OWN = ["run", "--objective", "several_outcomes:measure", "--space", "space.toml", "--out", "out"]
RUN = [*OWN, "--objectives", "yield:max,cost:min", "--constraint", "impurity<=0.08", "--reference", "yield=0,cost=2"]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=lambda v: " ".join(v) if isinstance(v, list) else "")
def test_wrong_options_are_named_and_nothing_is_written(arguments, message, folder):
    given = [] if "--objectives" in arguments else ["--objectives", "yield:max,cost:min"]
    done = invoke(*OWN, *given, *arguments, "--storage", "run.journal", "--quiet")
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir() if path.suffix) == ["several_outcomes.py", "space.toml"]
    assert not (folder / "out").exists()


def test_constraints_and_names_need_what_they_are_of(folder):
    for option, value in (("--constraint", "a<=1"), ("--reference", "a=1")):
        done = invoke(*OWN, option, value)
        assert (done.exit_code, f"{option} needs --objectives, got none" in done.stderr) == (2, True)
    done = invoke("run", "--objectives", "a:max", "--problem", "hartmann6")
    assert (done.exit_code, "--objectives needs --objective package.module:function" in done.stderr) == (2, True)
    assert outcomes_of(None, None, None) is None


def test_compare_has_no_objectives():
    done = invoke("compare", "--objectives", "a:max", "--problem", "hartmann6", "--budget", 5)
    assert done.exit_code == 2
    assert "--objectives" in done.stderr


def test_every_command_works_on_a_run_with_outcomes(folder):
    done = invoke(*RUN, "--budget", 8, "--storage", "run.journal")
    assert done.exit_code == 0, done.output
    assert "maximise yield, minimise cost, impurity at most 0.08" in done.output
    unbroken = " ".join(done.output.replace("│", " ").split())  # of cells of a table
    assert "beyond the reference point yield = 0, cost = 2 (as given)" in unbroken
    assert "8 asked, 7 told, 1 failed" in done.output
    resumed = invoke("resume", "run.journal", "--budget", 10, "--yes", "--quiet")
    assert resumed.exit_code == 0, resumed.output
    recorded = read_run("run.journal")
    assert recorded.evaluations.values.shape == (10, 3)
    (history,) = (folder / "out").glob("*.jsonl")
    assert str(History.load(history).rows) == str(recorded.history.rows)
    header, first, *_ = history.read_text(encoding="utf-8").splitlines()
    assert json.loads(header)["outcomes"]["constraints"] == {"impurity": [None, 0.08]}
    assert all(len(row) == 3 for row in json.loads(first)["outcomes"])
    assert len(list((folder / "out").glob("*.png"))) == 1
    with AskTell.resume("run.journal") as loop:
        feasible, volume = loop.result().feasible, loop.result().hypervolume
        assert loop.history.outcomes.reference == {"yield": 0.0, "cost": 2.0}
    shown = invoke("report", "run.journal")
    assert shown.exit_code == 0, shown.output
    assert f"{feasible} of 10 evaluations" in shown.output
    assert f"{volume:.6g} beyond" in shown.output
    page = invoke("report", "run.journal", "--html", "run.html")
    assert page.exit_code == 0, page.output
    assert "cost along t" in (folder / "run.html").read_text(encoding="utf-8")
    audit = invoke("audit", "run.journal")
    assert audit.exit_code == 0, audit.output
    assert re.search(r"failures\s*│ 1 of 10", audit.output)
    assert re.search(r"missing\s*│ yield in 0 of 9, cost in 0 of 9, impurity in 0 of 9", audit.output)
    assert re.search(r"leave-one-out\s*│ only for runs with one outcome", audit.output)


def test_an_audit_counts_what_is_missing_and_finds_what_drifts(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(float(rng.normal()), math.nan if k % 10 == 0 else 0.1 * k + 0.1 * float(rng.normal())) for k in range(60)]
    outcomes = {"objectives": {"a": "max"}, "constraints": {"b": (None, 9.0)}}
    path = tmp_path / "run.journal"
    AskTell(bounds=[(0.0, 1.0)], **outcomes, storage=path, initial=([[0.25], [0.75]] * 30, rows)).close()
    audit = invoke("audit", path)
    assert audit.exit_code == 0, audit.output
    assert re.search(r"missing\s*│ a in 0 of 60, b in 6 of 60", audit.output)
    assert re.search(r"repeated evaluations of b move by \+(9\d|10\d)(\.\d+)? per 1,000", audit.output)
    assert "The outcome b changes with time" in audit.output


def test_the_bar_shows_hypervolume_or_the_best_feasible_value():
    def status(**report):
        row = HistoryRow(round=1, pulls=1, indices=[], values=[0.5], **report)
        bar = RunProgress(History([row], {"policy": "p"}), 9, console=Console(quiet=True))
        return bar.tasks[0].fields["status"]

    assert status(feasible=2, hypervolume=1.25) == "hypervolume 1.25 batch of 1"
    assert status(feasible=2, best_mean=0.75) == "best feasible 0.75 batch of 1"
    assert status(feasible=0, best_mean=0.75) == "none feasible batch of 1"
    assert status(best_mean=0.75) == "best 0.75 batch of 1"
