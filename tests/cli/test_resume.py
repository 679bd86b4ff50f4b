"""``resume`` and ``report``: runs that go on from their journal, and journals that are told of."""

import gc
import math
import os
import sys

import numpy as np
import pytest
import torch

from sparse_bo import BBKB, Float, History, observations_of
from sparse_bo.domains import ProductGrid
from sparse_bo.journal import Storage
from sparse_bo.policies import RandomSearch
from sparse_bo.runs import audit_run
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.recording import read_run
from tests.cli.builders import QUICK, invoke

JOURNAL = ["--policy", "bbkb", "--kernel", "rbf", "--regularization", "0.05", "--width", "2"]


def test_a_run_killed_in_the_middle_and_resumed_ends_as_if_nothing_had_happened(tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole.journal", tmp_path / "cut.journal"
    done = invoke(*QUICK, *JOURNAL, "--storage", str(whole), "--out", str(tmp_path / "a"), "--executor", "threads")
    assert done.exit_code == 0, done.output
    original, told = AskTell.tell, []

    def dies(self, tickets, y):
        original(self, tickets, y)
        told.append(1)
        if len(told) == 4:
            raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr(AskTell, "tell", dies)
        assert invoke(*QUICK, *JOURNAL, "--storage", str(cut), "--out", str(tmp_path / "b")).exit_code != 0
    gc.collect()  # the dead run's hold on the journal ends with it
    before = read_run(cut)
    assert 4 <= before.told < 30
    reported = invoke("report", str(cut), "--out", str(tmp_path / "c"))
    assert f"{before.told} told" in reported.output
    assert (tmp_path / "c" / "cut.png").exists()
    done = invoke("resume", str(cut), "--executor", "threads", "--workers", "3")
    assert done.exit_code == 0, done.output
    assert "30 told" in done.output
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["gp-draw-bbkb-seed1.jsonl", "gp-draw-bbkb-seed1.png"]
    assert read_run(cut).history.indices == read_run(whole).history.indices
    assert read_run(cut).history.column("values") == read_run(whole).history.column("values")


def test_a_box_is_resumed_and_reported_too(tmp_path):
    path = str(tmp_path / "run.journal")
    run = ["run", "--problem", "hartmann6", "--policy", "random", "--storage", path, "--out", str(tmp_path), "--quiet"]
    assert invoke(*run, "--budget", "6", "--batch-size", "3").exit_code == 0
    done = invoke("resume", path, "--budget", "9")
    assert done.exit_code == 0, done.output
    assert read_run(path).told == 9
    assert "9 asked, 9 told" in invoke("report", path, "--out", str(tmp_path)).output


def test_a_budget_below_what_there_is_is_named(tmp_path):
    path = tmp_path / "run.journal"
    run = ["run", "--problem", "hartmann6", "--policy", "random", "--storage", path, "--out", tmp_path, "--quiet"]
    assert invoke(*run, "--budget", "20").exit_code == 0
    before = path.read_bytes()
    done = invoke("resume", path, "--budget", "10")
    assert done.exit_code == 2
    assert done.stderr == (
        f"error: expected --budget of at least the 20 evaluations in {path}, got 10; it counts all of them: raise it\n"
    )
    assert path.read_bytes() == before
    again = invoke("resume", path, "--budget", "25")
    assert again.exit_code == 0
    assert "since the resume" in again.stdout
    assert "25 told" in again.stdout


def test_arms_that_the_journal_lacks_are_asked_for_by_their_option(tmp_path):
    X, path = torch.rand(200, 2, dtype=torch.float64), tmp_path / "run.journal"
    with AskTell(X, RandomSearch(), storage=Storage(path, arms_bytes=10)) as loop:
        loop.run(lambda X: X[:, 0], 12)
    done = invoke("audit", path)
    assert done.exit_code == 2
    assert done.stderr.endswith("pass --arms-file FILE.npy\n")
    np.save(tmp_path / "arms.npy", X.numpy())
    assert invoke("audit", path, "--arms-file", tmp_path / "arms.npy").exit_code == 0


def test_a_resume_takes_arms_from_where_they_are_now(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_arms.py").write_text("def first(X):\n    return X[:, 0]\n")
    X = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    np.save("before.npy", X.numpy())
    path, run = tmp_path / "run.journal", ["--policy", "random", "--budget", "6", "--quiet", "--out", tmp_path]
    assert invoke("run", "--objective", "of_arms:first", "--arms-file", "before.npy", "--storage", path, *run).exit_code == 0
    (tmp_path / "before.npy").rename("now.npy")
    done = invoke("resume", path, "--yes", "--budget", "9")
    assert done.exit_code == 2
    assert done.stderr.endswith("; pass --arms-file PATH\n")
    np.save("other.npy", X.flip(0).numpy())
    done = invoke("resume", path, "--yes", "--budget", "9", "--arms-file", "other.npy")
    assert done.exit_code == 2
    assert "this journal belongs to another problem" in done.stderr
    done = invoke("resume", path, "--yes", "--budget", "9", "--arms-file", "now.npy")
    assert done.exit_code == 0, done.stderr
    assert read_run(path).told == 9
    assert f"read arms from {tmp_path / 'now.npy'}" in done.stdout
    sys.modules.pop("of_arms", None)


def test_a_file_of_arms_for_a_run_without_one_is_refused(tmp_path):
    path = tmp_path / "run.journal"
    run = ["run", "--problem", "hartmann6", "--policy", "random", "--storage", path, "--out", tmp_path, "--quiet"]
    assert invoke(*run, "--budget", "2").exit_code == 0
    done = invoke("resume", path, "--budget", "4", "--arms-file", "arms.npy")
    assert done.exit_code == 2
    assert "has no arms in a file; leave --arms-file out" in done.stderr


def test_a_grid_is_in_its_journal(tmp_path):
    grid = ProductGrid([torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64), torch.linspace(-1.0, 1.0, 7, dtype=torch.float64)])
    path = tmp_path / "run.journal"
    with AskTell(grid, BBKB(initial_design=4), storage=path, seed=2) as loop:
        loop.run(lambda X: X.sum(-1), 9)
        following = loop.ask(3).indices.tolist()
    done = invoke("audit", path)
    assert done.exit_code == 0, done.stderr
    assert "as recorded; computed again from the last snapshot on" in done.stdout
    assert invoke("report", path, "--html", tmp_path / "run.html").exit_code == 0
    with AskTell.resume(path) as loop:
        assert loop.reissue().indices.tolist() == following
        assert loop.reissue().X.tolist() == grid[torch.tensor(following)].tolist()
    begun = AskTell(bounds=[(0.0, 1.0), (-1.0, 1.0)], initial=observations_of(path))
    told = [index for row in loop.history.rows for index in row.indices]
    assert begun.history.points == grid[torch.tensor(told)].tolist()


def test_an_audit_compares_no_picks_of_a_run_whose_feasibility_function_it_lacks(tmp_path):
    """It computed them without that function, and said that they differ because of other hardware or versions."""
    path, space = tmp_path / "run.journal", {"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)}
    with AskTell(space=space, feasible=lambda p: p["a"] + p["b"] <= 0.4, storage=path) as loop:
        loop.run(lambda p: p["a"] + p["b"], 9)
    with AskTell(space=space, storage=tmp_path / "free.journal") as loop:
        loop.run(lambda p: p["a"] + p["b"], 9)
    assert audit_run(path).differing == []
    assert "a journal cannot store the feasibility" in invoke("audit", path).stdout
    assert "as recorded; computed again" in invoke("audit", tmp_path / "free.journal").stdout


def test_a_budget_that_no_run_comes_to_is_named(tmp_path):
    path = str(tmp_path / "run.journal")
    run = ["run", "--problem", "hartmann6", "--policy", "random", "--storage", path, "--out", str(tmp_path), "--quiet"]
    assert invoke(*run, "--budget", "2").exit_code == 0
    done = invoke("resume", path, "--budget", "2e9")
    assert done.exit_code == 2
    assert "error: expected --budget" in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("problem", ["reactor 3", {"reactor": 3}, {"objective": "yield"}, ["a"], None], ids=str)
def test_what_users_note_of_their_problem_is_theirs(problem, tmp_path):
    """`run` notes its problem under that name too, and reads it back: of other journals it made neither head nor tail."""
    path = tmp_path / "run.journal"
    with AskTell(torch.rand(9, 1, dtype=torch.float64), RandomSearch(), storage=path, notes={"problem": problem}) as loop:
        loop.run(lambda X: X[:, 0], 4)
    assert invoke("report", path, "--out", tmp_path).exit_code == 0
    assert invoke("report", path, "--html", tmp_path / "run.html").exit_code == 0
    assert invoke("audit", path).exit_code == 0
    done = invoke("resume", path, "--yes")
    assert done.exit_code == 2
    assert "was not made by `run`" in done.stderr.replace("\n", " ")


def test_a_journal_that_was_not_made_here_is_reported_but_not_resumed(tmp_path):
    path = tmp_path / "run.journal"
    with AskTell(torch.rand(9, 1, dtype=torch.float64), RandomSearch(), storage=path) as loop:
        loop.run(lambda X: X[:, 0], 4)
    done = invoke("resume", str(path))
    assert done.exit_code == 2
    assert "was not made by `run`" in done.stderr.replace("\n", " ")
    assert "4 told" in invoke("report", str(path), "--out", str(tmp_path)).output


def test_a_report_writes_figure_and_history(tmp_path, drawn):
    path = tmp_path / "run.journal"
    assert invoke(*QUICK, "--policy", "random", "--storage", path, "--out", tmp_path / "a", "--quiet").exit_code == 0
    done = invoke("report", path, "--out", tmp_path / "b")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "b" / "run.png").read_bytes().startswith(b"\x89PNG")
    written = History.load(tmp_path / "b" / "run.jsonl")
    assert written.indices == History.load(tmp_path / "a" / "gp-draw-random-seed1.jsonl").indices


def test_a_report_claims_nothing_of_a_model_that_it_did_not_compute_and_warns(tmp_path):
    path = tmp_path / "run.journal"
    with AskTell(bounds=[(0.0, 1.0)], storage=path) as loop:
        loop.run(lambda x: math.nan if x[0] > 0.3 else x[0], 24)
    done = invoke("report", path, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    assert "│ best " in done.stdout
    assert "no model" not in done.stdout
    assert f"- {sum(row.failed for row in loop.history.rows)} of 24 evaluations failed." in done.stdout


def test_a_schedule_that_has_ended_is_said_on_resume(tmp_path):
    path = tmp_path / "run.journal"
    assert invoke(*QUICK, "--policy", "sbpe", "--storage", path, "--out", tmp_path, "--quiet").exit_code == 0
    done = invoke("resume", path, "--budget", "40")
    assert done.exit_code == 0, done.output
    assert "(30 evaluations) of the horizon 30 are complete" in " ".join(done.output.split())
    assert "30 told" in done.stdout


@pytest.mark.parametrize("command", ["resume", "report"])
def test_a_journal_that_is_not_there_is_said_in_words_of_the_command_line(command, tmp_path):
    done = invoke(command, tmp_path / "no [/x] run.journal")
    assert done.exit_code == 2
    path = tmp_path / "no [/x] run.journal"
    assert done.stderr == (
        f"error: expected a journal at {path}, found none; `python -m sparse_bo run --storage '{path}'` or `create '{path}'` "
        "starts one\n"
    )


def test_a_run_starts_from_the_observations_of_another(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "measured_elsewhere.py").write_text("def train(point):\n    return point['lr'] + point.get('momentum', 0.0)\n")
    (tmp_path / "old.toml").write_text('lr = {type = "float", low = 0.0, high = 1.0}\n')
    new = '\nmomentum = {type = "float", low = 0.0, high = 1.0}\n'
    (tmp_path / "new.toml").write_text('lr = {type = "float", low = 0.0, high = 0.5}' + new)
    before = tmp_path / "before.journal"
    run = ["run", "--objective", "measured_elsewhere:train", "--policy", "random", "--out", tmp_path, "--budget", "6"]
    assert invoke(*run, "--space", tmp_path / "old.toml", "--storage", before, "--quiet").exit_code == 0
    more = [*run, "--out", tmp_path / "after", "--space", tmp_path / "new.toml", "--storage", tmp_path / "after.journal"]
    done = invoke(*more, "--initial", before, "--default", "momentum=0.25")
    assert done.exit_code == 0, done.output
    inside = sum(point[0] <= 0.5 for point in read_run(before).history.points)
    assert 0 < inside < 6
    assert f"starts from {inside} observations of before.journal; left out: {6 - inside} outside the domain" in done.output
    assert " 6/6 " in done.output
    counted = f"6 asked, 6 told, 0 failed, {inside} added"
    assert f"{counted} " in done.output
    assert f"{counted} " in invoke("report", tmp_path / "after.journal").output
    assert "since the" not in done.output  # neither the last update nor a resume
    first = read_run(tmp_path / "after.journal").history
    assert first.rows[0].added
    assert {point["momentum"] for point in first.parameters[:inside]} == {0.25}
    for wrong, message in [
        (["--initial", before], "got none for 'momentum'"),
        (["--default", "momentum=0.25"], "--default momentum=0.25 needs --initial"),
        (["--initial", before, "--default", "momentum"], "expected --default name=value, got 'momentum'"),
        (["--initial", tmp_path / "none.journal"], "none.journal"),
    ]:
        done = invoke(*more[:-1], tmp_path / "other.journal", *wrong)
        assert done.exit_code == 2
        assert message in done.output
        assert not (tmp_path / "other.journal").exists()


def test_names_of_arms_are_read_from_a_file(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "measured_by_name.py").write_text("def f(X):\n    return X.sum(-1)\n")
    np.save(tmp_path / "arms.npy", np.random.default_rng(0).random((12, 2)))
    (tmp_path / "names.txt").write_text("".join(f"plate-{k}\n" for k in range(12)))
    run = ["run", "--objective", "measured_by_name:f", "--arms-file", tmp_path / "arms.npy", "--names", tmp_path / "names.txt"]
    run += ["--policy", "random"]
    done = invoke(*run, "--budget", "6", "--out", tmp_path / "run", "--storage", tmp_path / "run.journal")
    assert done.exit_code == 0, done.output
    assert "plate-" in done.output
    assert len(read_run(tmp_path / "run.journal").history.names) == 6
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "names.txt").read_bytes())  # a byte-order mark
    done = invoke(*run, "--budget", "12", "--out", tmp_path / "marked", "--storage", tmp_path / "marked.journal")
    assert done.exit_code == 0, done.output
    assert sorted(read_run(tmp_path / "marked.journal").history.names) == sorted(f"plate-{k}" for k in range(12))
    for wrong, message in {
        b"one\n": "a name for each of 12 arms, got 1",
        b"\xff": "names.txt to be a text file in UTF-8",
    }.items():
        (tmp_path / "names.txt").write_bytes(wrong)
        done = invoke(*run, "--budget", "6", "--out", tmp_path)
        assert done.exit_code == 2
        assert message in done.output
    (tmp_path / "names.txt").unlink()
    os.mkfifo(tmp_path / "names.txt")  # nobody writes into it
    assert "which is no file" in invoke(*run, "--policy", "random", "--budget", "6", "--out", tmp_path).output


def test_the_page_of_a_run_whose_arms_have_moved_does_without_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "measured_and_moved.py").write_text("def f(X):\n    return X.sum(-1)\n")
    np.save(tmp_path / "arms.npy", np.random.default_rng(0).random((12, 2)))
    run = ["run", "--objective", "measured_and_moved:f", "--arms-file", tmp_path / "arms.npy", "--budget", "12"]
    done = invoke(*run, "--out", tmp_path, "--storage", tmp_path / "run.journal")
    assert done.exit_code == 0, done.output
    (tmp_path / "arms.npy").rename(tmp_path / "moved.npy")
    done = invoke("report", tmp_path / "run.journal", "--html", tmp_path / "page.html")
    assert done.exit_code == 0, done.output
    assert "The model could not be computed again" in (tmp_path / "page.html").read_text()
    assert "pass --arms-file" in invoke("audit", tmp_path / "run.journal").output
    assert invoke("audit", tmp_path / "run.journal", "--arms-file", tmp_path / "moved.npy").exit_code == 0
