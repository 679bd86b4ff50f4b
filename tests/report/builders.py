"""Views of runs made by hand, hostile words, and readers of pages."""

import re
from html.parser import HTMLParser

import numpy as np
import torch

from sparse_bo.report import Batches, Observation, RunView, Slice
from sparse_bo.widths.estimates import calibration

HOSTILE = {
    "a script": "</script><script>alert(1)</script>",
    "an image": "\"><img src=x onerror='alert(1)'>",
    "quotes": '" onload="alert(1)" \'',
    "the end of a style": "</style></svg></title>",
    "a comment": "<!-- --> ]]>",
    "an entity": "&lt;b&gt; &amp;amp;",
    "a template": "{{ 7 * 7 }}{% raw %}",
    "a formula": "$x^2$ \\oops_",
    "a token of a drawing": "~0~ ~1~",
    "other scripts": "λ é 中 🙂 עברית",
    "control characters": "\x1b[31m\r\x00",
    "half a character": "\udcff",
}
SHOWN = {"control characters": "\\x1b[31m\\r\\x00", "half a character": "\\udcff"}
TAGS = {
    "html", "head", "meta", "title", "style", "body", "a", "header", "nav", "main", "section", "footer", "div", "p", "ul", "li",
    "h1", "h2", "h3", "dl", "dt", "dd", "span", "strong", "figure", "details", "summary", "table", "caption", "thead", "tbody",
    "tr", "th", "td", "svg", "g", "path", "text", "defs", "clippath", "rect", "use",
}  # fmt: skip
"""Elements of a page without a hostile word."""


class Elements(HTMLParser):
    """Elements, attributes and texts of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.texts = set(), set(), []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.texts.append(data)


def batches(sizes=(1,), **columns):
    """Return columns of batches; those not named are NaN."""
    missing = np.full(len(sizes), np.nan)
    names = ("best_mean", "best_sd", "dictionary_size", "effective_dimension", "variance_factor")
    return Batches(sizes=np.array(sizes, float), **{"seconds": {}, **dict.fromkeys(names, missing), **columns})


def view(**changes):
    """Return the view of 200 evaluations with a value each."""
    nothing = {"names": [], "columns": {}, "logs": {}, "best": {}, "slices": [], "differing": []}
    none = ("best_mean", "best_interval", "best_observed", "variance_factor", "missing", "regret", "source")
    values = changes.get("values", np.random.default_rng(0).standard_normal(200))
    drawn = {"values": values, "residuals": np.random.default_rng(1).standard_normal(100)}
    counts = {"batches": batches((len(values),)), "asked": len(values), "succeeded": len(values), "failed": 0}
    residuals = torch.from_numpy(changes.get("residuals", drawn["residuals"]))
    counts["calibration"] = calibration(residuals)
    return RunView(**{"about": {"policy": "p", "seed": 0}, **counts, **nothing, **dict.fromkeys(none), **drawn, **changes})


def slice_along(name, values, *, lower, median, upper, floor=None):
    """Return a slice whose best point is its first value."""
    return Slice(name, values, False, values[0], np.asarray(lower), np.asarray(median), np.asarray(upper), floor)


def hostile_view(word):
    """Return a view with a word in every text."""
    x = np.array([0.0, 1.0, 2.0])
    numbers = slice_along(word, x.tolist(), lower=x - 1.0, median=x, upper=x + 1.0)
    choices = slice_along("kind", [word, "b", "c"], lower=x - 1.0, median=x, upper=x + 1.0)
    parameters = {word: {"kind": "float", "note": word}, "kind": {"values": [word]}}
    about = {
        "policy": word,
        "seed": 0,
        "why": word,
        "description": {"fields": {word: word}},
        "versions": {word: word},
        "notes": {word: word},
        "space": {"parameters": parameters},
    }
    return view(
        about=about,
        values=np.array([0.0, 1.0, np.nan, 2.0]),
        succeeded=3,
        failed=1,
        names=[word, "kind"],
        columns={word: [0.0, 1.0, 2.0, 0.5], "kind": [word, "b", "c", word]},
        logs={word: False, "kind": False},
        best={word: 1.0, "kind": word},
        best_mean=2.0,
        best_interval=(1.0, 3.0),
        best_observed=Observation(2.0, 1, {word: 1.0}),
        guarantees={word: word},
        slices=[numbers, choices],
        differing=[word],
        missing=word,
        source=word,
        batches=batches((4,), seconds={word: np.array([1.0])}),
    )


def table_after(page, mark):
    """Return the cells of the first table after a mark."""
    table = page[page.index(mark) :].partition("</table>")[0]
    return [re.findall(r"<td>(.*?)</td>", row) for row in table.split("<tr>")[2:]]
