"""The figure of a run."""

import pytest
import torch

from sparse_bo import AskTell, History
from sparse_bo.policies import RandomSearch
from sparse_bo.runs.history import HistoryRow

ARMS = {"policy": "bbkb", "arms": [1000, 3], "seed": 3}


def row(number: int = 1, **settings) -> HistoryRow:
    usual = {"best_index": 0, "best_mean": 0.5, "best_observed_mean": 0.7, "dictionary_size": 4, "effective_dimension": 2.0}
    size = settings.pop("batch_size", 2)
    values = settings.pop("values", [0.1] * size)
    return HistoryRow(
        **{"round": number, "pulls": 2 * number, "indices": [0] * size, "values": values},
        **{**usual, **settings},
        seconds={"pick": 0.1},
    )


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("info", "title"),
    [
        (ARMS, "bbkb   ·   1,000 arms x 3 inputs   ·   seed 3"),
        ({"policy": "bbkb", "bounds": [[0.0, 0.0], [1.0, 1.0]], "seed": 3}, "bbkb   ·   a box of 2 inputs   ·   seed 3"),
        ({"policy": "bbkb"}, "bbkb"),
        ({}, ""),
        ({"policy": "bbkb", "space": {"parameters": {"\x1b[31mred": {}}}}, "bbkb   ·   \\x1b[31mred"),
        ({**ARMS, "policy": "$\\oops$ $"}, "$\\oops$ $   ·   1,000 arms x 3 inputs   ·   seed 3"),
    ],
)
def test_the_title_says_what_is_known(info, title, tmp_path):
    figure = History((row(), row(2)), info).plot()
    assert figure.get_suptitle() == title
    figure.savefig(tmp_path / "figure.png", dpi=20)


@pytest.mark.parametrize("known", [{}, {"regret": [0.3]}, {"best_possible": 2.0}])
def test_a_single_value_is_a_point(known):
    figure = History((row(batch_size=1, variance_factor=1.5),), ARMS).plot(**known)
    for axis in figure.axes[:3]:
        assert axis.lines
        assert all(line.get_marker() in ("o", ".") for line in axis.lines)
    line = History((row(), row(2)), ARMS).plot().axes[0].lines[0]
    assert line.get_marker() == "None"


def test_legends_are_above_the_lines_and_below_the_titles():
    rows = [row(i, best_mean=float(i), best_observed_mean=2.0 * i, variance_factor=1.1) for i in range(1, 9)]
    figure = History(rows, ARMS).plot()
    figure.draw_without_rendering()
    for axis in (figure.axes[0], figure.axes[2]):
        box = axis.get_legend().get_window_extent()
        assert box.y0 >= axis.get_window_extent().y1 - 1.0
        title = axis._left_title.get_window_extent()
        assert box.y1 <= title.y0 + 1.0


def test_a_run_without_a_success_says_so():
    nothing = {"best_index": None, "best_mean": None, "best_observed_mean": None, "dictionary_size": None}
    figure = History((row(**nothing, effective_dimension=None, values=[float("nan"), float("nan")]),), ARMS).plot()
    assert figure.axes[0].get_title(loc="left") == "Best so far: no evaluation succeeded"
    assert not figure.axes[0].lines


def test_a_dictionary_without_an_effective_dimension_is_drawn_alone():
    figure = History((row(effective_dimension=None), row(2, effective_dimension=None)), ARMS).plot()
    assert [line.get_label() for line in figure.axes[2].lines] == ["dictionary"]


def test_a_first_batch_that_failed_is_left_out():
    nan = float("nan")
    figure = History((row(best_mean=None, best_observed_mean=None, values=[nan, nan]), row(2, values=[0.7, 0.3])), ARMS).plot()
    highest, mean = figure.axes[0].lines
    assert (highest.get_xdata().tolist(), highest.get_ydata().tolist()) == ([3.0, 4.0], [0.7, 0.7])
    assert (mean.get_xdata().tolist(), mean.get_ydata().tolist()) == ([4.0], [0.5])


def test_a_box_is_named():
    bounds = torch.tensor([[0.0] * 4, [1.0] * 4], dtype=torch.float64)
    loop = AskTell(bounds=bounds, policy=RandomSearch(), seed=5)
    figure = loop.run(lambda X: X.sum(-1), 3).plot()
    assert figure.get_suptitle() == "random   ·   a box of 4 inputs   ·   seed 5"
