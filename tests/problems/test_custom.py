"""A user's own arms and objective: read from text, run, resumed."""

import gc
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from sparse_bo import History, MemmapArms
from sparse_bo.problems.custom import imported, own_problem, parsed_grid
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.recording import read_run
from tests.cli.builders import invoke

EXPERIMENT = '''
import torch

def measure(X):
    """Highest at (0.7, 0.3)."""
    assert X.dim() == 2
    return 2.0 - (X - torch.tensor([0.7, 0.3], dtype=X.dtype)).square().sum(-1)

def one(x):
    assert x.dim() == 1
    return float(measure(x[None]))

class Bench:
    def run(self, X):
        return X[:, 0]

bench = Bench()
NUMBER = 3.0
'''

pytestmark = pytest.mark.usefixtures("undrawn_figures")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with ``experiment.py`` and ``arms.npy`` (200 x 2)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "experiment.py").write_text(EXPERIMENT)
    np.save(tmp_path / "arms.npy", np.random.default_rng(0).random((200, 2)))
    yield tmp_path
    for name in ("experiment", "broken", "needs"):
        sys.modules.pop(name, None)


RUN = ["run", "--objective", "experiment:measure", "--budget", "24", "--seed", "1", "--kernel", "rbf", "--lengthscale", "0.5"]
RUN += ["--regularization", "0.01"]


@pytest.mark.parametrize(
    ("text", "axes"),
    [
        ("0:1:3", [[0.0, 0.5, 1.0]]),
        ("0:1:2,-5:5:3,2:2:1", [[0.0, 1.0], [-5.0, 0.0, 5.0], [2.0]]),
        ("1e-3:1e3:2", [[1e-3, 1e3]]),
        ("2x3", [[0.0, 1.0], [0.0, 0.5, 1.0]]),
        ("0:1:3e0", [[0.0, 0.5, 1.0]]),
        ("4", [[0.0, 1 / 3, 2 / 3, 1.0]]),
    ],
)
def test_a_grid_is_the_product_of_its_axes(text, axes):
    grid = parsed_grid(text)
    expected = torch.tensor(list(itertools.product(*axes)), dtype=torch.float64)
    assert torch.allclose(grid[:], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected --grid like 0:1:100"),
        ("3y3", "or 100x50 for the unit cube, got '3y3'"),
        ("3x0", "points >= 1, got 0"),
        ("²x3", "or 100x50 for the unit cube, got '²x3'"),
        ("0:1:²", "'0:1:²' for axis 0"),
        ("9" * 5000, "fewer than 2\\^62"),
        ("0:1", "'0:1' for axis 0"),
        ("0:1:5,0:1", "'0:1' for axis 1"),
        ("0:1:5,", "'' for axis 1"),
        ("0:1:2.5", "'0:1:2.5' for axis 0"),
        ("0:1:-4", "'0:1:-4' for axis 0"),
        ("0:one:5", "two numbers as the ends of axis 0"),
        ("0:1:5,1:0:5", "low < high on axis 1"),
        ("1:1:5", "low < high on axis 0"),
        ("0:1:5,-1:1:1", "at least 2 points from -1 to 1 on axis 1 .* got 1; a constant is written -1:-1:1"),
        ("0:inf:5", "finite ends"),
        ("nan:1:5", "finite ends"),
        (",".join(["0:1:1000000"] * 4), "fewer than 2\\^62"),
    ],
)
def test_a_grid_that_cannot_be_read_is_named(text, message):
    with pytest.raises(ValueError, match=message):
        parsed_grid(text)


@pytest.mark.parametrize("text", ["1000000000000", "0:1:1000000000000,0:1:2"])
def test_axes_that_do_not_fit_into_memory_are_named_before_they_are_made(text):
    with pytest.raises(MemoryError, match=f"free memory, got {text} with 37,253 GiB"):
        parsed_grid(text)


def test_functions_and_methods_are_found_in_the_working_folder(folder):
    X = torch.tensor([[0.7, 0.3], [0.0, 0.0]], dtype=torch.float64)
    assert imported("experiment:measure")(X).tolist() == pytest.approx([2.0, 1.42])
    assert imported("experiment:bench.run")(X).tolist() == [0.7, 0.0]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("experiment", "like package.module:function, got 'experiment'"),
        ("experiment:", "like package.module:function"),
        (":measure", "like package.module:function"),
        ("experiment.py:measure", "without .py"),
        ("sub/experiment.py:measure", "without .py"),
        ("here/experiment:measure", "with dots"),
        ("nowhere:measure", "no module 'nowhere' is in .* or installed; run the command in the folder of the module"),
        ("nowhere.deep:measure", "no module 'nowhere' is in"),
        ("experiment.deep:measure", "no module 'experiment.deep' is in"),
        ("experiment:measured", "has no 'measured' for --objective; it has Bench, measure, one"),
        ("broken:measure", "importing 'broken' for --objective failed: ZeroDivisionError: division by zero"),
        ("needs:measure", "importing 'needs' for --objective failed: No module named 'absent_package'"),
    ],
)
def test_an_objective_that_cannot_be_imported_is_named(path, message, folder):
    (folder / "broken.py").write_text("1 / 0\n")
    (folder / "needs.py").write_text("import absent_package\n")
    with pytest.raises(ValueError, match=message):
        imported(path)


def test_a_program_as_the_objective_is_named():
    with pytest.raises(ValueError, match=r"like package.module:function, got '\./sim.sh'; name a function"):
        own_problem(objective="./sim.sh", arms_file=None, grid="0:1:3", one_by_one=True)


def test_the_home_folder_is_found_in_every_path(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    done = invoke(*RUN, "--arms-file=~/arms.npy", "--out=~/out")
    assert done.exit_code == 0, done.output
    assert Path("out/measure-bbkb-seed1.jsonl").exists()


def test_an_objective_that_cannot_be_called_is_named(folder):
    with pytest.raises(TypeError, match="to be a function, got float"):
        imported("experiment:NUMBER")


@pytest.mark.parametrize(
    "arms", [["--arms-file", "arms.npy"], ["--grid", "0:1:21,0:1:11"], ["--grid", "21x11"]], ids=lambda a: a[1]
)
def test_a_users_arms_run_with_a_users_objective(arms, folder):
    done = invoke(*RUN, *arms, "--out", "out")
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in Path("out").iterdir()) == ["measure-bbkb-seed1.jsonl", "measure-bbkb-seed1.png"]
    history = History.load("out/measure-bbkb-seed1.jsonl")
    problem = own_problem(objective="experiment:measure", one_by_one=False, **_source(arms))
    values = imported("experiment:measure")(problem.arms[:])
    assert len(history.indices) == 24
    assert values[history.rows[-1].best_index] > values.max() - 0.01
    told = [v for row in history.rows for v in row.values]
    assert told == pytest.approx(values[history.indices].tolist())
    for text in ("arm = ", "at", "best observed"):
        assert text in done.output
    assert "│ regret" not in done.output


def _source(arms):
    name = arms[0].removeprefix("--").replace("-", "_")
    return {"arms_file": None, "grid": None, name: arms[1]}


def test_an_objective_of_single_arms_and_arms_that_are_streamed(folder):
    np.save("large.npy", np.random.default_rng(1).random((40_000, 2)).astype(np.float32))
    done = invoke(
        *RUN, "--arms-file", "large.npy", "--objective", "experiment:one", "--one-by-one", "--set", "memory_bytes=1048576"
    )
    assert done.exit_code == 0, done.output
    assert "40,000" in done.output
    history = History.load("sparse_bo_run/one-bbkb-seed1.jsonl")
    assert history.info["arms"] == [40_000, 2]
    assert max(v for row in history.rows for v in row.values) > 1.99


def test_workers_find_the_objective_too(folder):
    done = invoke(*RUN, "--grid", "15x15", "--executor", "processes", "--workers", "1")
    assert done.exit_code == 0, done.output
    assert "24 told" in done.output


@pytest.mark.parametrize("arms", [["--arms-file", "arms.npy"], ["--grid", "0:1:21,0:1:11"]], ids=lambda a: a[1])
def test_a_run_that_was_cut_goes_on_as_if_nothing_had_happened(arms, folder, monkeypatch):
    assert invoke(*RUN, *arms, "--storage", "whole.journal", "--quiet").exit_code == 0
    original, told = AskTell.tell, []

    def dies(self, tickets, y):
        original(self, tickets, y)
        told.append(1)
        if len(told) == 4:
            raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr(AskTell, "tell", dies)
        assert invoke(*RUN, *arms, "--storage", "cut.journal", "--out", "cut", "--quiet").exit_code != 0
    gc.collect()  # the dead run's hold on the journal ends with it
    assert 4 <= read_run("cut.journal").told < 24
    reported = invoke("report", "cut.journal", "--out", "c")
    assert reported.exit_code == 0, reported.output
    assert "told" in reported.output
    monkeypatch.chdir(folder)
    done = invoke("resume", "cut.journal", "--yes")
    assert done.exit_code == 0, done.output
    assert read_run("cut.journal").history.indices == read_run("whole.journal").history.indices
    assert read_run("cut.journal").history.column("values") == read_run("whole.journal").history.column("values")


def test_a_resume_refuses_arms_that_have_changed(folder):
    assert invoke(*RUN, "--arms-file", "arms.npy", "--storage", "run.journal", "--quiet").exit_code == 0
    arms = np.load("arms.npy")
    arms[150, 1] += 1e-9
    np.save("arms.npy", arms)
    done = invoke("resume", "run.journal", "--budget", "50", "--yes")
    assert done.exit_code == 2
    assert "run.journal (200 x 2, torch.float64), got others" in done.stderr.replace("\n", " ")
    np.save("arms.npy", arms[:150])
    done = invoke("resume", "run.journal", "--budget", "50", "--yes")
    assert "got others (150 x 2, torch.float64)" in done.stderr.replace("\n", " ")
    Path("arms.npy").unlink()
    done = invoke("resume", "run.journal", "--budget", "50", "--yes")
    assert done.exit_code == 2
    assert "got no such file" in done.stderr


def test_a_file_is_known_by_its_contents_wherever_it_lies(folder):
    np.save("copy.npy", np.load("arms.npy"))
    assert MemmapArms("copy.npy").digest() == MemmapArms("arms.npy").digest()
    assert parsed_grid("0:1:21,0:1:11").digest() == parsed_grid("21x11").digest()
    assert parsed_grid("0:1:21,0:1:12").digest() != parsed_grid("21x11").digest()


def test_an_objective_that_fails_keeps_what_was_told_and_can_be_resumed(folder):
    (folder / "broken.py").write_text("calls = []\ndef f(X):\n    calls.append(1)\n    return 1 / (len(calls) < 4) * X[:, 0]\n")
    done = invoke(*RUN, "--objective", "broken:f", "--grid", "9x9", "--storage", "run.journal")
    assert done.exit_code == 1
    assert "the objective failed" in done.stderr.replace("\n", " ")
    before = read_run("run.journal").told
    assert before >= 3
    sys.modules.pop("broken")
    (folder / "broken.py").write_text("def f(X):\n    return X[:, 0]\n")
    assert invoke("resume", "run.journal", "--yes").exit_code == 0
    assert read_run("run.journal").told == 24


def test_arms_of_a_built_in_problem_that_are_too_many_for_the_journal_are_made_again(folder):
    run = ["run", "--problem", "gp-draw", "--arms", "27000", "--dims", "40", "--policy", "random", "--budget", "3"]
    assert invoke(*run, "--storage", "run.journal", "--quiet").exit_code == 0
    done = invoke("resume", "run.journal", "--budget", "6", "--quiet")
    assert done.exit_code == 0, done.output
    assert read_run("run.journal").told == 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--grid", "9x9"], "--grid needs --objective package.module:function"),
        (["--arms-file", "arms.npy"], "--arms-file needs --objective"),
        (["--objective", "experiment:measure"], "got none; pass --arms-file FILE.npy, or --grid"),
        (["--objective", "experiment:measure", "--grid", "9x9", "--arms-file", "arms.npy"], "got both; drop one"),
        (["--objective", "experiment:measure", "--grid", "9x9", "--problem", "cadata"], "--problem: of the built-in problems"),
        (
            ["--objective", "experiment:measure", "--grid", "9x9", "--noise-sd", "0", "--dims", "2"],
            "--noise-sd, --dims: of the",
        ),
        (["--objective", "experiment:measure", "--grid", "9x9", "--standardize"], "--standardize: of the built-in problems"),
        (["--objective", "experiment:absent", "--grid", "9x9"], "has no 'absent'"),
        (["--objective", "experiment:measure", "--grid", "9y9"], "got '9y9'"),
        (["--objective", "experiment:measure", "--arms-file", "absent.npy"], "got no such file"),
        (["--objective", "experiment:measure", "--arms-file", "nan.npy"], "the first at row 17"),
        (["--objective", "experiment:measure", "--arms-file", "whole.npy"], "expected float64 or float32 arms"),
        (["--objective", "experiment:measure", "--grid", "9x9", "--policy", "gssbo"], "searches a box, got an arm set"),
        (
            ["--objective", "experiment:measure", "--grid", "2000x2000", "--set=memory_bytes=1048576", "--set=stop_rule=local"],
            "loc",
        ),
        (["--problem", "abalone", "--one-by-one"], "--one-by-one needs --objective"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input_is_named_and_nothing_is_written(arguments, message, folder):
    arms = np.zeros((30, 2))
    arms[17, 1] = np.nan
    np.save("nan.npy", arms)
    np.save("whole.npy", np.zeros((3, 2), dtype=np.int64))
    done = invoke("run", *arguments, "--out", "out")
    assert done.exit_code == 2, done.output
    assert message in done.stderr.replace("\n", " ")
    assert not Path("out").exists()


def test_help_tells_how_to_bring_an_objective():
    text = invoke("run", "--help").output
    for part in ("--objective", "--arms-file", "--grid", "0:1:100,-5:5:50", "experiment:measure"):
        assert part in text
    assert "0:1:100,-5:5:50" in invoke("plan", "--help").output
