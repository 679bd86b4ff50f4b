"""The history on disk and as a figure."""

import json
import math
from dataclasses import replace

import pytest
import torch
from matplotlib.figure import Figure

from sparse_bo import AskTell, History, Int, Result, maximize
from sparse_bo.policies import RandomSearch


@pytest.fixture(scope="module")
def result():
    X = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return AskTell(X, seed=0, certify_every=1).run(lambda X: X.sum(-1), 40)


def test_saving_and_loading_gives_the_same_history(result, tmp_path):
    result.history.save(tmp_path / "run.jsonl")
    loaded = History.load(tmp_path / "run.jsonl")
    assert loaded == result.history
    assert list(tmp_path.iterdir()) == [tmp_path / "run.jsonl"]


def test_a_result_is_printed_in_a_line(result):
    found = f"best_index={result.best_index}, best_x={[float(f'{x:.6g}') for x in result.best_x.tolist()]}"
    assert repr(result) == (
        f"Result(policy='bbkb', observations=40, {found}, best_mean={result.best_mean}, best_sd={result.best_sd})"
    )
    assert repr(result.history) == f"History(policy='bbkb', batches={len(result.history.rows)}, observations=40)"
    wide = torch.stack([torch.zeros(200), torch.ones(200)]).double()
    assert "'… 188 more'" in repr(maximize(lambda X: X.sum(-1), bounds=wide, budget=1))
    named = maximize(lambda point: math.nan if point["n"] else 1.0, space={"n": Int(0, 1)}, budget=2)
    assert repr(named).startswith(
        "Result(policy='expected-improvement', observations=2, failed=1, best_parameters={'n': 0}, best_mean=1.0"
    )
    assert repr(AskTell(bounds=wide).result()) == "Result(policy='trust-region', observations=0)"


@pytest.mark.parametrize("regret", [[], [0.1] * 39, torch.zeros(41)], ids=["none", "one too few", "one too many"])
@pytest.mark.parametrize("drawn", [Result.plot, Result.report])
def test_the_regret_of_other_evaluations_is_refused(result, drawn, regret):
    with pytest.raises(ValueError, match=f"regret of every evaluation, 40 numbers, got {len(regret)}"):
        drawn(result, regret=regret)


def test_a_damaged_history_is_named_by_line(result, tmp_path):
    path = tmp_path / "run.jsonl"
    result.history.save(path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], lines[3][:-20]]))
    with pytest.raises(ValueError, match="line 4 of .* is not a row of a history"):
        History.load(path)
    path.write_text("\n".join([lines[0], "[1]"]))
    with pytest.raises(ValueError, match="line 2 of .* is not a row of a history .expected a JSON object"):
        History.load(path)
    path.write_text("\n".join([lines[0], '{"colour": 1}']))
    with pytest.raises(ValueError, match="line 2 of .* is not a row"):
        History.load(path)


@pytest.mark.parametrize("header", ["", "{}", json.dumps({"sparse_bo_history": 99})], ids=["empty", "other", "newer"])
def test_a_file_of_another_kind_or_version_is_refused(header, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(header)
    with pytest.raises(ValueError, match="expected a history file of version 1"):
        History.load(path)


def test_plot_draws_four_panels_and_saves(result, tmp_path):
    figure = result.plot(tmp_path / "run.png", best_possible=2.0)
    assert isinstance(figure, Figure)
    assert len(figure.axes) == 4
    assert (tmp_path / "run.png").stat().st_size > 10_000
    drawn = figure.axes[1].lines[0].get_ydata()
    assert drawn.tolist() == result.history.column("batch_size")


def test_plot_draws_cumulative_regret_where_it_is_known(result):
    regret = [0.5] * 40
    figure = result.history.plot(regret=regret)
    assert figure.axes[0].lines[0].get_ydata()[-1] == pytest.approx(20.0)


def test_plot_of_a_policy_without_a_model_and_of_nothing():
    loop = AskTell(torch.rand(9, 1, dtype=torch.float64), RandomSearch(), seed=0)
    with pytest.raises(ValueError, match="at least one batch"):
        loop.result().plot()
    assert "No dictionary" in loop.run(lambda X: X[:, 0], 5).plot().axes[2].get_title(loc="left")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "run.jsonl").write_bytes(b"\x7fELF\xff")
    with pytest.raises(ValueError, match="expected a history file, got .*run.jsonl, which is no text; was it written by Hist"):
        History.load(tmp_path / "run.jsonl")


def test_a_page_that_cannot_be_written_is_refused_before_it_is_made(result, tmp_path):
    """The error named ``x.html.partial``, after all had been computed."""
    evaluated = replace(result, state=None)  # no page can be made of it
    for folder in ("none", "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match=rf"{folder}.x.html'$"):
            evaluated.report(tmp_path / folder / "x.html")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_history_that_cannot_be_written_leaves_the_file_that_was_there(result, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text("before")
    with pytest.raises(TypeError, match="not JSON serializable"):
        History(result.history.rows, {"policy": object()}).save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.jsonl"]
    assert path.read_text() == "before"
