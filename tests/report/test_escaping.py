"""Names and values of users on a page: shown letter by letter, never markup."""

import numpy as np
import pytest

from sparse_bo.report.page import result_card, run_page
from tests.report.builders import HOSTILE, SHOWN, TAGS, Elements, hostile_view, slice_along, table_after, view


@pytest.fixture(scope="module")
def plain():
    return Elements(run_page(hostile_view("plain")))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_words_are_shown_letter_by_letter(kind, plain):
    word, shown = HOSTILE[kind], SHOWN.get(kind, HOSTILE[kind])
    page = run_page(hostile_view(word))
    read = Elements(page)
    assert (read.tags, read.attributes) == (plain.tags, plain.attributes)
    assert read.tags <= TAGS
    assert "script" not in read.tags
    text = "".join(read.texts)
    shortened = 3  # the names of parallel axes, and lists of values as JSON
    assert text.count(shown) >= "".join(plain.texts).count("plain") - shortened > 20
    card = Elements(result_card(hostile_view(word)))
    assert card.tags <= TAGS
    assert shown in "".join(card.texts)
    page.encode("utf-8")


def test_numbers_of_a_page_are_those_of_the_view():
    rng = np.random.default_rng(0)
    values = rng.standard_normal(7)
    x = np.linspace(0.0, 1.0, 5)
    along = slice_along("x1", x.tolist(), lower=x - 2.0, median=x, upper=x + 3.0)
    page = run_page(view(values=values, slices=[along], names=["x1"], columns={"x1": rng.random(7).tolist()}))
    results = table_after(page, "<h3>Results</h3>")
    assert results == [["results", str(n), f"{value:.4g}"] for n, value in enumerate(values, start=1)]
    progress = table_after(page, "<h3>Best so far</h3>")
    highest = np.maximum.accumulate(values)
    assert progress[:7] == [["highest result", str(n), f"{value:.4g}"] for n, value in enumerate(highest, start=1)]
    rows = table_after(page, "<h3>x1</h3>")
    assert rows == [[f"{v:g}", f"{v - 2:g}", f"{v:g}", f"{v + 3:g}"] for v in x]


def test_an_interval_without_a_lower_end_says_so():
    x = np.array([0.0, 1.0])
    floored = {"lower": np.full(2, -np.inf), "median": np.array([-np.inf, 2.0]), "upper": x + 3.0, "floor": -7.5}
    page = run_page(
        view(slices=[slice_along("x1", x.tolist(), **floored)], names=["x1"], best_mean=1.0, best_interval=(-np.inf, 3.0))
    )
    assert table_after(page, "<h3>x1</h3>") == [["0", "below -7.5", "below -7.5", "3"], ["1", "below -7.5", "2", "4"]]
    assert "95 % interval of the model: below 3" in page
    assert "nan" not in page.partition("<h3>x1</h3>")[2].partition("</svg>")[0]


def test_slices_through_the_largest_numbers_are_drawn():
    """The frame of a band without an end, of a warped model, lay beyond all numbers."""
    x = np.array([0.0, 1.0])
    band = {"lower": np.full(2, -np.inf), "median": np.array([-1e308, 1e308]), "upper": np.array([-1e308, 1.7e308])}
    page = run_page(view(slices=[slice_along("x1", x.tolist(), **band, floor=-1e308)], names=["x1"], best_mean=1e308))
    assert "1e+308" in page.partition("<h3>x1</h3>")[2]


@pytest.mark.parametrize("huge", [1e308, -1e308])
def test_the_largest_numbers_are_drawn(huge):
    values = np.array([huge, -huge, 0.0, 1.0])
    columns = {"x1": [0.0, 1.0, 2.0, 3.0], "x2": [huge, -huge, 0.0, 1.0]}
    page = run_page(view(values=values, columns=columns, names=["x1", "x2"], best={"x1": 0.0, "x2": huge}, best_mean=1e308))
    assert "1e+308" in page
