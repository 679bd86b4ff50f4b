"""Benchmarks run in their smallest form, resume, and name the code they ran; the committed pages are what the records give."""

import dataclasses
import importlib
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.smallest_benchmarks import BENCHMARKS, ON_SECOND, RESULTS, ROOT, SCRIPTS, check_smallest_form, experiment, run


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the scripts importable; they choose the number of threads."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)


def test_the_overview_has_every_benchmark() -> None:
    assert sorted(importlib.import_module("report").SCRIPTS) == SCRIPTS
    assert len(SCRIPTS) == 21


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name not in ON_SECOND])
def test_runs_in_its_smallest_form(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_smallest_form(name, tmp_path, capsys, monkeypatch)


def test_records_say_with_what_they_were_made(tmp_path: Path) -> None:
    (record,) = run("bkb_figures", tmp_path)
    assert re.fullmatch(r"\S+-dirty-[0-9a-f]{8}|files-[0-9a-f]{8}|[0-9a-f]{7,}|\S+-g[0-9a-f]{7,}", record["commit"])
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


def test_a_part_that_fails_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(bench: object, *sizes: object) -> Iterator[dict]:
        yield {"what": "half of it", "value": 1.0, "unit": "s"}
        raise ValueError("no such thing")

    monkeypatch.setattr(importlib.import_module("gpu"), "picks", broken)
    with pytest.raises(RuntimeError, match="2 measurements failed") as told:
        run("gpu", tmp_path)
    assert "ValueError: no such thing" in str(told.value.__cause__)
    written = [json.loads(line)["part"] for line in (tmp_path / "gpu.jsonl").read_text(encoding="utf-8").splitlines()]
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
    written = [json.loads(line)["part"] for line in (tmp_path / "gpu.jsonl").read_text(encoding="utf-8").splitlines()]
    assert "recursive RLS" not in written
    assert len(written) == 12
    assert int(first) == written.index("model") + 1
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


def test_the_committed_pages_are_what_the_records_give(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("report").main(["--check"])
    assert capsys.readouterr().out == ""
    assert ended.value.code == 0


def test_a_number_changed_by_hand_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = importlib.import_module("report")
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


def test_two_devices_have_a_section_each(tmp_path: Path) -> None:
    pages = importlib.import_module("harness.pages")
    (record,) = run("bkb_figures", tmp_path)
    text, pictures = pages.render(experiment("bkb_figures"), [record, {**record, "device": "another"}])
    assert text.count("\n## ") == 3
    assert [picture.name for picture in pictures] == ["bkb_fig1", "bkb_fig1--2"]


def test_what_does_not_depend_on_the_device_has_one_section(tmp_path: Path) -> None:
    pages = importlib.import_module("harness.pages")
    (record,) = run("bkb_figures", tmp_path)
    pooled = dataclasses.replace(experiment("bkb_figures"), pooled=True)
    text, pictures = pages.render(pooled, [record, {**record, "device": "another", "date": "2999-01-01T00:00:00+00:00"}])
    assert f"\n## another and {record['device']}\n" in text
    assert text.count("\n## ") == 2
    assert [picture.name for picture in pictures] == ["bkb_fig1"]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_state_of_the_code_is_judged_on_the_code_alone(tmp_path: Path) -> None:
    state = importlib.import_module("harness.records").code_state
    results, script = tmp_path / "benchmarks/results/a.jsonl", tmp_path / "benchmarks/a.py"
    for path in (tmp_path / "sparse_bo/__init__.py", script, results, tmp_path / "README.md"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("1\n", encoding="utf-8")
    assert re.fullmatch(r"files-[0-9a-f]{8}", state(tmp_path, tmp_path))
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "describe", "--always")
    results.write_text("2\n", encoding="utf-8")
    (results.parent / "a.png").write_text("figure", encoding="utf-8")
    (tmp_path / "README.md").write_text("2\n", encoding="utf-8")
    assert state(tmp_path, tmp_path) == commit
    script.write_text("2\n", encoding="utf-8")
    first = state(tmp_path, tmp_path)
    assert re.fullmatch(rf"{commit}-dirty-[0-9a-f]{{8}}", first)
    script.write_text("3\n", encoding="utf-8")
    assert state(tmp_path, tmp_path) not in (first, commit)
    script.write_text("1\n", encoding="utf-8")
    (tmp_path / "sparse_bo/new.py").write_text("1\n", encoding="utf-8")
    assert state(tmp_path, tmp_path).startswith(f"{commit}-dirty-")
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "sparse_bo").mkdir(parents=True)
    assert state(tmp_path, elsewhere).startswith("files-")
