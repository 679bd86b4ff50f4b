"""Benchmarks run in their smallest form, resume, and name the code they ran; the committed pages are what the records give."""

import dataclasses
import importlib
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from sparse_bo import maximize
from tests.smallest_benchmarks import BENCHMARKS, ON_SECOND, RESULTS, ROOT, SCRIPTS, check_smallest_form, experiment, run


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the scripts importable; they choose the number of threads."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)


def test_the_overview_has_every_benchmark() -> None:
    assert sorted(importlib.import_module("report").SCRIPTS) == SCRIPTS
    assert len(SCRIPTS) == 26


def test_an_unknown_method_of_bbob_is_refused_before_any_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for library in ("cocoex", "cma", "optuna"):
        pytest.importorskip(library)
    out = tmp_path / "a.jsonl.gz"
    arguments = ["run", "--out", str(out), "--dims", "2", "--method", "cma", "--method", "magic"]
    monkeypatch.setattr("sys.argv", ["bbob.py", *arguments])
    with pytest.raises(SystemExit, match="expected --method default, cma, .*, cobyla or name=policy expression, got magic"):
        importlib.import_module("bbob").main()
    assert not out.exists()


def test_nothing_that_chooses_settings_is_reported() -> None:
    suites = importlib.import_module("suites").BBOB
    choosing, reporting = suites["choosing"], suites["reporting"]
    assert sorted(choosing.functions + reporting.functions) == list(range(1, 25))
    assert not {*choosing.instances} & {*reporting.instances}
    for group in (range(1, 6), range(6, 10), range(10, 15), range(15, 20), range(20, 25)):
        assert all({*half.functions} & {*group} for half in suites.values())
    for instances in (half.instances for half in suites.values()):
        assert len(instances) == 10


def test_the_page_of_bbob_counts_targets_and_compares_runs_of_the_same_problem() -> None:
    figures = importlib.import_module("bbob_figures")

    def record(method: str, function: int, precision: list[float], noise: float = 0.0) -> dict:
        about = {"dims": 2, "budget": 20, "noise": noise, "instance": 11, "seconds": 1.0, "at": [10, 20]}
        return {**about, "method": method, "function": function, "precision": precision, "recommended": 50.0}

    assert figures.reached([record("default", 2, [1.0, 1e-9])], 10) == 11 / 51  # 10^2, 10^1.8, ..., 10^0
    assert figures.reached([record("default", 2, [1.0, 1e-9])], 20) == 1.0
    assert figures.reached([record("default", 2, [1.0, 1e-9]), record("default", 4, [200.0, 200.0])], 20) == 0.5
    assert figures.reached([record("default", 2, [1.0, 1e-9])], 9) == 0.0
    runs = [record("default", f, [9.0, p]) for f, p in ((2, 1e-12), (4, 1.0), (6, 1.0), (8, 1.0))]
    runs += [record("cma", f, [9.0, p]) for f, p in ((2, 1e-8), (4, 10.0), (6, 0.1), (10, 0.1))]
    ((cell, methods),) = figures.cells_of(runs).items()
    assert cell == (0, 2, 0.0, 20)
    assert figures.counted(methods["default"], methods["cma"]) == (1, 1, 0.0)
    assert figures.headline(runs).endswith("CMA-ES 1–1")
    assert figures.ended(record("default", 2, [9.0, 1.0], noise=0.05)) == 50.0


def test_the_page_of_outcomes_compares_runs_of_the_same_problem() -> None:
    outcomes = importlib.import_module("outcomes")

    def record(problem: str, method: str, seed: int, reached: float | None) -> dict[str, object]:
        about = {"problem": problem, "method": method, "budget": 200, "seed": seed}
        return {**about, "at": [200], "reached": [reached], "seconds": 20.0}

    runs = [record("welded beam", "default", k, y) for k, y in enumerate((1.7, 1.8, 2.0, None, None))]
    runs += [record("welded beam", "tpe", k, y) for k, y in enumerate((1.8, 1.7, None, None, None))]
    runs += [record("ZDT1-30", "default", 0, 0.75 * outcomes.Task("ZDT1-30").problem.max_hv), record("ZDT1-30", "tpe", 0, 1.0)]
    one = "the default's wins–losses; one objective, measured constraints, 200 evaluations: TPE 2–1"
    assert outcomes.headline(runs) == one  # several objectives have fewer than five seeds
    blocks = [block.rows for block in outcomes.page(runs) if not isinstance(block, str)]
    assert blocks[0] == [["welded beam", "1.8 (3 of 5 feasible)", "1.75 (2 of 5 feasible)"]]
    assert [row[2:] for row in blocks[1]] == [["", "0.100"], ["2–1 (1)", "0.100"]]
    assert blocks[2][0][1] == "25 %"


def test_the_page_of_learners_ranks_runs_of_the_same_task_and_seed() -> None:
    learners, suites = importlib.import_module("learners"), importlib.import_module("suites").LEARNERS
    task, other = suites["reporting"][:2]

    def record(task: str, method: str, seed: int, *lowest: float) -> dict[str, object]:
        about = {"half": "reporting", "task": task, "method": method, "budget": 2, "seed": seed}
        return {**about, "lowest": list(lowest), "seconds": 0.1}

    records = [record(task, "default", 0, 0.5, 0.2), record(task, "default", 1, 0.5, 0.4), record(other, "default", 0, 0, 0)]
    records += [record(task, "tpe", 0, 0.4, 0.3), record(task, "tpe", 1, 0.6, 0.4)]
    runs = learners.runs_of(records, "reporting")
    assert learners.counted(runs["default"], runs["tpe"]) == (1, 0)  # one tie; the third run has no partner
    assert learners.ranks(runs, 1) == {"default": 1.5, "tpe": 1.5}
    assert learners.ranks(runs, 2) == {"default": 1.25, "tpe": 1.75}
    assert learners.headline(records) == "mean rank after 2 trials: default 1.25, TPE 1.75"
    assert learners.runs_of(records, "choosing") == {}


def test_the_page_of_coco_suites_compares_runs_of_the_same_function_and_instance() -> None:
    coco = importlib.import_module("coco_suites")

    def record(suite: str, method: str, function: int, *reached: float | None) -> dict[str, object]:
        about = {"suite": suite, "function": function, "dims": 5, "method": method, "budget": 100, "seed": 11}
        return {**about, "reached": list(reached), "seconds": 10.0}

    records = [record("bbob-constrained", "default", f, None, 2.0, y) for f, y in ((2, 1.0), (6, 1.0), (10, 3.0))]
    records += [record("bbob-constrained", "tpe", f, None, 1.0, y) for f, y in ((2, 1.0 + 1e-9), (6, None), (14, 0.0))]
    records += [record("bbob-biobj", m, 2, 0.1, 0.2, v) for m, v in (("default", 0.5), ("tpe", 0.4))]
    assert coco.headline(records) == "the default's wins–losses; measured constraints: TPE 1–0; two objectives: TPE 1–0"
    constrained, _ = (block.rows for block in coco.page(records) if not isinstance(block, str))
    assert constrained == [
        ["default", "3", "", "", "", "", "3", "0.100"],
        ["TPE", "3", "0–0", "0–2", "1–0", "1", "2", "0.100"],
    ]


def test_each_task_of_learners_is_in_one_half() -> None:
    learners, halves = importlib.import_module("protocol.learners"), importlib.import_module("suites").LEARNERS
    assert sorted(halves["choosing"] + halves["reporting"]) == sorted(learners.TASKS)
    assert halves["conditional"] == tuple(learners.CONDITIONAL)
    assert halves["boosters"] == tuple(learners.BOOSTED)


def test_powers_of_ten_are_drawn_as_formulas(tmp_path: Path) -> None:
    """The package's figures draw a "$" of a user's name as it is: the benchmarks' logarithmic axes are formulas."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**importlib.import_module("harness.drawing").STYLE, "svg.fonttype": "none"}):
        figure = Figure()
        figure.subplots().set(xscale="log", xlim=(1e-3, 1e5))
        figure.savefig(tmp_path / "a.svg", metadata={"Date": None})
    assert "mathdefault" not in re.sub(r"<!--.*?-->", "", (tmp_path / "a.svg").read_text())


def test_bbob_refuses_the_other_half(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for library in ("cocoex", "cma", "optuna"):
        pytest.importorskip(library)
    for wrong in (["--functions", "1-3"], ["--instances", "10-12"], ["--half", "reporting", "--functions", "1"]):
        monkeypatch.setattr("sys.argv", ["bbob.py", "run", "--out", str(tmp_path / "a.jsonl.gz"), *wrong])
        with pytest.raises(SystemExit, match="they are the other half's"):
            importlib.import_module("bbob").main()


def test_bbob_among_other_inputs_is_the_function_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for library in ("cocoex", "cma", "optuna"):
        pytest.importorskip(library)
    bbob = importlib.import_module("bbob")
    trace = bbob.Trace(bbob.Run("default", 3, 1, 2, 10, 0.0, among=7))
    assert len(set(trace.columns.tolist())) == 3
    x = torch.linspace(-4.0, 4.0, 7, dtype=torch.float64)
    value = trace.problem(x[trace.columns].tolist()) - trace.problem.best_value()
    assert trace(x) == -value
    others = torch.ones(7, dtype=torch.bool).index_fill(0, trace.columns, False)
    assert trace(x.masked_fill(others, 5.0)) == -value
    monkeypatch.setattr("sys.argv", ["bbob.py", "run", "--out", str(tmp_path / "a.jsonl.gz"), "--among", "4"])
    with pytest.raises(SystemExit, match="--among of at least --dims, got 4 below 5"):
        bbob.main()


@pytest.fixture
def ablations() -> ModuleType:
    for library in ("cocoex", "cma", "optuna"):
        pytest.importorskip(library)
    return importlib.import_module("ablations")


def test_a_device_is_off_in_its_own_runs_alone(ablations: ModuleType) -> None:
    """Every replaced attribute is the package's, and is there again afterwards."""
    for device in ablations.DEVICES.values():
        before = [getattr(where, name) for where, name, _ in device.replaced]
        with device.off():
            assert all(getattr(where, name) is value for where, name, value in device.replaced)
        assert [getattr(where, name) for where, name, _ in device.replaced] == before
        assert sum(map(bool, (device.replaced, device.kinds, device.settings))) == 1


@pytest.mark.parametrize("name", ["asinh", "own-best"])
def test_a_run_without_a_device_ends(ablations: ModuleType, name: str) -> None:
    """What takes the place of a function of the package is called as that is."""
    with ablations.DEVICES[name].off():
        result = maximize(lambda X: -X.square().sum(dim=-1), bounds=torch.tensor([[-1.0], [2.0]]), budget=8)
    assert result.history.observations == 8


def test_ablations_keep_to_the_choosing_half_and_take_each_of_its_instances(ablations: ModuleType) -> None:
    half = importlib.import_module("suites").BBOB["choosing"]
    every = [cell for dims in ablations.DIMS for cell in ablations.cells(dims)]
    assert {function for function, _ in every} == {*half.functions} - {1, 5}
    assert {instance for _, instance in every} == {*half.instances}


def test_the_table_of_ablations_compares_runs_of_the_same_problem(ablations: ModuleType) -> None:
    def record(method: str, instance: int, precision: float) -> dict[str, object]:
        about = {"dims": 2, "function": 1, "budget": 50, "noise": 0.0}
        return {**about, "method": method, "instance": instance, "precision": [9.0, precision]}

    wholes = [record("default", i, 1.0) for i in range(30)]
    others = [record("asinh", i, 10.0 if i < 20 else 1e-2 if i < 25 else 1.001) for i in range(27)]
    unpaired, few = record("asinh", 99, 1e-9), [record("log", i, 1.0) for i in range(19)]
    _, _, *rows = ablations.table([*wholes, *others, unpaired, *few], "precision")
    assert len(rows) == 1
    assert rows[0].startswith("| `asinh` | 27 | 5–20 | 5–20 0–0 0–0 0–0 | +1.000 (+1.000 to +1.000) | +0.370 (")


def test_the_page_of_ablations_is_that_of_its_records(ablations: ModuleType) -> None:
    page = ablations.PAGE.read_text(encoding="utf-8")
    assert page.partition(ablations.BEGIN)[2].partition(ablations.END)[0] == ablations.page_text()


AT_EACH_CHANGE = {"execution", "gpu", "optuna_trials"}
"""They have no other test, and with the other tests run every part of the harness."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in AT_EACH_CHANGE else [pytest.mark.slow]) for n in SCRIPTS if n not in ON_SECOND],
)
def test_runs_in_its_smallest_form(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in {
        "bbob_figures": ("cocoex", "cma"),
        "learners": ("sklearn", "optuna"),
        "coco_suites": ("cocoex", "cma", "optuna"),
    }.get(name, ()):
        pytest.importorskip(library)
    check_smallest_form(name, tmp_path, capsys, monkeypatch)


@pytest.fixture
def record() -> dict:
    """Return a committed record of a benchmark."""
    return importlib.import_module("harness.records").read(RESULTS / "bkb_figures.jsonl.gz")[0]


def test_records_say_with_what_they_were_made(tmp_path: Path) -> None:
    (record,) = run("bkb_figures", tmp_path)
    assert re.fullmatch(r"[0-9a-f]{7,}|uncommitted", record["commit"])
    assert record["device_type"] == "cpu"
    assert {"date", "torch", "gpytorch", "botorch", "python", "threads", "cores", "device"} <= record.keys()


def test_again_measures_anew_and_minutes_stop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.runner.write", lambda *_: None)
    few = ["--problems", "abalone", "--methods", "BBKB", "ε-greedy"]
    first = run("bbkb_figures", tmp_path, *few)
    again = run("bbkb_figures", tmp_path, *few, "--again")
    assert again[:2] == first
    assert [r["method"] for r in again] == ["BBKB", "ε-greedy"] * 2
    assert run("bbkb_figures", tmp_path, *few, "--again", "--minutes", "0") == again
    assert "2 left" in capsys.readouterr().out
    assert [r["seed"] for r in run("bbkb_figures", tmp_path, *few, "--first-seed", "1", "--seeds", "2")[4:]] == [1, 1, 2, 2]


def test_a_job_that_fails_in_its_own_process_says_why(tmp_path: Path) -> None:
    script = tmp_path / "failing.py"
    script.write_text("import sys; sys.exit(f'no idea of {sys.argv[1:]}')", encoding="utf-8")
    failing = replace(experiment("batches"), script=str(script))
    with pytest.raises(RuntimeError, match=r"(?s)job 3 of failing ended with 1:.*no idea of \['--quick', '--job', '3'\]"):
        importlib.import_module("harness.runner")._in_own_process(failing, ["--quick"], 3)


def some_parts(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the benchmark of a GPU have some of its parts alone."""
    gpu = importlib.import_module("gpu")
    parts = gpu.parts
    monkeypatch.setattr(gpu, "parts", lambda chosen: [part for part in parts(chosen) if part[0] in names])


def test_a_part_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(bench: object, *sizes: object) -> Iterator[dict]:
        yield {"what": "half of it", "value": 1.0, "unit": "s"}
        raise ValueError("no such thing")

    some_parts(monkeypatch, "picks", "streamed")
    monkeypatch.setattr(importlib.import_module("gpu"), "picks", broken)
    with pytest.raises(RuntimeError, match="2 measurements failed") as told:
        run("gpu", tmp_path)
    assert "ValueError: no such thing" in str(told.value.__cause__)
    written = [record["part"] for record in importlib.import_module("harness.records").read(tmp_path / "gpu.jsonl.gz")]
    assert written.count("streamed") == 2
    assert "picks" not in written
    assert (tmp_path / "gpu.md").exists()


def test_where_the_device_computes_no_more_a_new_process_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After an illegal access CUDA fails at everything else that the process asks."""
    runner, parts = importlib.import_module("harness.runner"), importlib.import_module("gpu")
    commands: list[list[str]] = []

    def started(command: list[str], **_: object) -> subprocess.CompletedProcess:
        commands.append(command)
        with pytest.MonkeyPatch.context() as other:
            other.setattr(runner, "answers", lambda _: True)
            other.setattr(parts, "recursive", recursive)
            runner.main(parts.EXPERIMENT, None, command[2:])
        return subprocess.CompletedProcess(command, 0)

    def broken(bench: object, *sizes: object) -> Iterator[dict]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield

    some_parts(monkeypatch, "streamed", "recursive RLS", "plates")
    recursive = parts.recursive
    monkeypatch.setattr(parts, "recursive", broken)
    monkeypatch.setattr(runner, "answers", lambda _: False)
    # git is asked by records, not here
    monkeypatch.setattr(runner, "subprocess", SimpleNamespace(run=started))
    with pytest.raises(RuntimeError, match="1 measurements failed"):
        run("gpu", tmp_path)
    ((*_, option, first, elapsed, seconds),) = commands
    assert (option, elapsed) == ("--first-job", "--elapsed")
    assert float(seconds) > 0.0
    written = [record["part"] for record in importlib.import_module("harness.records").read(tmp_path / "gpu.jsonl.gz")]
    assert "recursive RLS" not in written
    assert len(written) == 3
    assert int(first) == written.index("plates") + 1
    assert "computes no more" in capsys.readouterr().out


def test_a_device_that_answers() -> None:
    answers = importlib.import_module("harness.runner").answers
    assert answers(torch.device("cpu"))
    if not torch.cuda.is_available():
        assert not answers(torch.device("meta"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("gpu", "cuda", "no CUDA device"),
        ("plan_check", "cuda", "runs on cpu"),
        ("bkb_figures", "abacus", "runs on cpu or cuda"),
        ("gpu", "second", "made of host memory"),
    ],
)
def test_says_where_it_cannot_run(
    name: str, device: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = importlib.import_module("harness.runner")
    with pytest.raises(SystemExit):
        runner.main(experiment(name), None, ["--device", device, "--out", str(tmp_path)])
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_committed_pages_are_what_the_records_give_and_a_number_changed_by_hand_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report, known = importlib.import_module("report"), {}
    read = report.Experiment.read

    def read_once(self: object, *folder: Path) -> list[dict]:
        if self.name not in known:
            known[self.name] = read(self, *folder)
        return known[self.name]

    monkeypatch.setattr(report.Experiment, "read", read_once)
    with pytest.raises(SystemExit) as ended:
        report.main(["--check"])
    assert capsys.readouterr().out == ""
    assert ended.value.code == 0
    text = report.README.read_text(encoding="utf-8")
    changed = re.sub(r"T = 10,000 in 0", "T = 10,000 in 9", text, count=1)
    assert changed != text
    (tmp_path / "README.md").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(report, "README", tmp_path / "README.md")
    assert report.stale() == [tmp_path / "README.md"]


def test_an_overview_without_its_markers_is_refused() -> None:
    pages = importlib.import_module("harness.pages")
    with pytest.raises(ValueError, match="put them back around its table"):
        pages.with_overview("# Benchmarks\n", "| a |")


def test_every_figure_is_shown_and_every_shown_figure_is_there() -> None:
    pages = [*RESULTS.glob("*.md"), ROOT / "README.md"]
    shown = {name for page in pages for name in re.findall(r"\]\((?:\S+/)?([^/\s]+\.png)\)", page.read_text(encoding="utf-8"))}
    assert {path.name for path in RESULTS.glob("*.png")} == shown


def test_two_devices_have_a_section_each(record: dict) -> None:
    pages = importlib.import_module("harness.pages")
    text, pictures = pages.render(experiment("bkb_figures"), [record, {**record, "device": "another"}])
    assert text.count("\n## ") == 3
    assert [picture.name for picture in pictures] == ["bkb_fig1", "bkb_fig1--2"]


def test_what_does_not_depend_on_the_device_has_one_section(record: dict) -> None:
    pages = importlib.import_module("harness.pages")
    pooled = dataclasses.replace(experiment("bkb_figures"), pooled=True)
    text, pictures = pages.render(pooled, [record, {**record, "device": "another", "date": "2999-01-01T00:00:00+00:00"}])
    assert f"\n## another and {record['device']}\n" in text
    assert text.count("\n## ") == 2
    assert [picture.name for picture in pictures] == ["bkb_fig1"]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a git repository with a package, a benchmark, results and a README."""
    for path in ("sparse_bo/__init__.py", "benchmarks/a.py", "benchmarks/results/a.jsonl.gz", "README.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("1\n", encoding="utf-8")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


@pytest.mark.parametrize("path", ["benchmarks/results/a.jsonl.gz", "benchmarks/results/a.png", "README.md"])
def test_results_and_texts_leave_the_code_as_committed(path: str, repository: Path) -> None:
    (repository / path).write_text("2\n", encoding="utf-8")
    commit = importlib.import_module("harness.records").committed(repository, repository)
    assert commit == git(repository, "rev-parse", "--short=7", "HEAD")


@pytest.mark.parametrize("path", ["benchmarks/a.py", "sparse_bo/__init__.py", "sparse_bo/new.py", "benchmarks/harness/new.py"])
def test_changed_code_has_no_commit(path: str, repository: Path) -> None:
    (repository / path).parent.mkdir(exist_ok=True)
    (repository / path).write_text("2\n", encoding="utf-8")
    records = importlib.import_module("harness.records")
    with pytest.raises(records.UncommittedCode, match=r"got changes since commit \w{7} \(.*\), expected a clean tree.*--dry"):
        records.committed(repository, repository)


def test_another_package_and_a_folder_without_git_have_no_commit(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    records, elsewhere = importlib.import_module("harness.records"), tmp_path_factory.mktemp("elsewhere")
    with pytest.raises(records.UncommittedCode, match="got sparse_bo from .*elsewhere.*set PYTHONPATH="):
        records.committed(repository, elsewhere)
    with pytest.raises(records.UncommittedCode, match="got no commit in .*elsewhere.*clone the repository"):
        records.committed(elsewhere, elsewhere)


def test_full_size_is_refused_without_a_commit_and_dry_writes_nothing(
    repository: Path, tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    runner, out = importlib.import_module("harness.runner"), tmp_path_factory.mktemp("out")
    with pytest.raises(SystemExit, match="bkb_figures records nothing: got sparse_bo from .*--dry"):
        runner.main(experiment("bkb_figures"), None, ["--out", str(out)], repository=repository)
    assert list(out.iterdir()) == []
    runner.main(experiment("bkb_figures"), None, ["--tiny", "--dry", "--out", str(out)], repository=repository)
    assert '"commit": "uncommitted"' in capsys.readouterr().out
    assert list(out.iterdir()) == []


def test_every_record_names_a_commit_of_this_history() -> None:
    records = importlib.import_module("harness.records")
    if (
        subprocess.run(["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True).stdout
        != "false\n"
    ):
        pytest.skip("needs the whole history of a git checkout")
    commits = {r["commit"] for path in RESULTS.glob("*.jsonl.gz") for r in records.read(path)}
    assert len(commits) > 20
    history = git(ROOT, "rev-list", "HEAD").split()
    assert [commit for commit in sorted(commits) if not any(known.startswith(commit) for known in history)] == []
    assert records.in_history(max(commits))
    assert not records.in_history("0" * 40)


def test_results_stay_small() -> None:
    assert sum(path.stat().st_size for path in RESULTS.iterdir() if path.is_file()) < 6_000_000
