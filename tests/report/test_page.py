"""The page of a run: what is on it, that it is whole, escaped and small, and that a real browser shows it at any width."""

import base64
import html
import json
import math
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Choice, Float, Int, Space, Storage, maximize
from sparse_bo.errors import StorageError
from sparse_bo.policies import RandomSearch
from sparse_bo.report import Observation
from sparse_bo.report.facts import advice_of, facts, interval
from sparse_bo.report.figures import MOST, Curve, Panel, thinned
from sparse_bo.report.page import run_page
from sparse_bo.report.plots import inputs_of, lines
from sparse_bo.runs.history import History, HistoryRow
from sparse_bo.runs.view import view_of, view_of_journal
from tests.builders import arms, bbkb, noisy
from tests.report.builders import view

EVIL = "<script>alert('x')</script>"
SPACE = {EVIL: Float(1e-3, 1, log=True), "depth & more": Int(1, 9), "kind": Choice("a", '"><img src=x>', "c")}
BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
VOID = {"meta", "br", "img", "link"}


def score(point):
    if point["depth & more"] == 9:
        return math.nan
    return -((math.log10(point[EVIL]) + 1) ** 2) + point["depth & more"] / 9 + (point["kind"] == "a")


class Checker(HTMLParser):
    """Reads a page strictly: every element closed in order; collects tags, ids, links and text."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.ids, self.links, self.texts = [], [], [], [], []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given["href"]] if "href" in given else []
        assert not {"src", "onload", "onclick"} & set(given)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Pages of a run on a space with failures, of one over arms with a certificate, and of their results."""
    folder = tmp_path_factory.mktemp("pages")
    on_space = maximize(score, space=SPACE, budget=16, storage=folder / "space.journal", policy=None, seed=2)
    X = arms(80)
    loop = AskTell(X, bbkb(), certify_every=2, storage=folder / "arms.journal", notes={"who": EVIL})
    on_arms = loop.run(noisy(X), 60, call_with="indices")
    loop.close()
    return {
        "space": run_page(view_of_journal(folder / "space.journal")),
        "arms": run_page(view_of_journal(folder / "arms.journal", regret_of=lambda history: torch.full((60,), 0.5))),
        "space, of the result": on_space.report(folder / "space.html"),
        "arms, of the result": on_arms.report(),
        "card": on_space._repr_html_(),
    }


NAMES = ("space", "arms", "space, of the result", "arms, of the result")


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_whole_and_loads_and_runs_nothing(name, pages):
    page = pages[name]
    read = Checker(page)
    assert not {tag for tag, _ in read.tags} & {"script", "img", "link", "iframe", "object", "form", "input"}
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert len(page) < 400_000
    assert len(set(read.ids)) == len(read.ids)
    assert {link.removeprefix("#") for link in read.links} <= set(read.ids)
    assert [given.get("lang") for tag, given in read.tags if tag == "html"] == ["en"]
    headings = [int(tag[1]) for tag, _ in read.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    figures = [given for tag, given in read.tags if tag == "svg"]
    assert figures
    assert all(given["role"] == "img" and len(given["aria-label"]) > 10 for given in figures)
    assert page.count("<details>") == len(figures)  # a table behind each
    assert "nan" not in re.sub(r"<style>.*?</style>", "", page).lower().replace("nance", "")


def test_a_page_tells_of_a_run_on_a_space(pages):
    text = " ".join(Checker(pages["space"]).texts)
    sections = ["Best so far", "Warnings", "Progress", "Inputs", "Slices through the best point", "Calibration"]
    assert "Dictionary and certificate" not in text  # the trust region's model is exact
    assert "observed, at any other inputs" in text
    sections += ["Where the time went", "Failed evaluations", "Settings and versions"]
    for expected in [*sections, "95 % interval", "3 named parameters", EVIL, "depth & more", "version of torch"]:
        assert expected in text
    assert re.search(r"16 asked, \d+ told, \d+ failed", text)
    assert EVIL in " ".join(Checker(pages["card"]).texts)


def test_a_page_is_the_same_each_time_and_leaves_matplotlib_alone(tmp_path):
    with AskTell(arms(80), bbkb(), storage=tmp_path / "run.journal") as loop:
        loop.run(noisy(arms(80)), 20, call_with="indices")
    before = dict(matplotlib.rcParams)
    first, again = (run_page(view_of_journal(tmp_path / "run.journal")) for _ in range(2))
    assert first == again
    assert dict(matplotlib.rcParams) == before


def test_a_page_tells_of_a_run_over_arms(pages):
    text = " ".join(Checker(pages["arms"]).texts)
    for expected in [
        "80 arms with 2 inputs",
        "Regret per evaluation",
        "0.5 per evaluation",
        "Certificate",
        "effective dimension",
    ]:
        assert expected in text
    assert re.search(r"\d+ results less the prediction made before them.*\d+% within 68 % bounds", text)
    of_result = " ".join(Checker(pages["arms, of the result"]).texts)
    assert "Standardised residuals" not in of_result
    assert re.search(r"Of \d+ predictions, \d+% within 68 % bounds", of_result)


def test_residuals_are_normal_where_the_model_is_right(tmp_path):
    X = arms(200)
    with AskTell(X, bbkb(), storage=tmp_path / "run.journal") as loop:
        loop.run(noisy(X), 150, call_with="indices")
    z = view_of_journal(tmp_path / "run.journal").residuals
    assert len(z) > 100
    assert abs(z.mean()) < 0.5
    assert 0.5 < z.std() < 1.6


def test_a_running_journal_is_reported_and_left_alone(tmp_path):
    loop = AskTell(bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(), storage=tmp_path / "run.journal")
    page = run_page(view_of_journal(tmp_path / "run.journal"))
    assert "No result yet." in page
    batch = loop.ask()
    loop.tell(batch.tickets[:2], [1.0, math.nan])
    page = run_page(view_of_journal(tmp_path / "run.journal"))
    assert f"{len(batch)} asked, 1 told, 1 failed, {len(batch) - 2} out" in page
    assert "AskTell.resume(…).reissue() hands them out again" in page
    loop.tell(batch.tickets[2:], [0.5] * (len(batch) - 2))
    loop.close()


@pytest.mark.parametrize("damage", ["empty", "foreign", "cut"])
def test_what_is_no_journal_is_refused(damage, tmp_path):
    path = tmp_path / "run.journal"
    X = arms(30)
    with AskTell(X, RandomSearch(batch_size=5), storage=path) as loop:
        loop.run(noisy(X), 10, call_with="indices")
    path.write_bytes({"empty": b"", "foreign": b"PK\3\4 no journal", "cut": path.read_bytes()[:100]}[damage])
    with pytest.raises(StorageError, match="expected a journal|ends before the description"):
        view_of_journal(path)
    with pytest.raises(FileNotFoundError):
        view_of_journal(tmp_path / "none.journal")


def test_arms_that_were_not_recorded_leave_a_page_without_model(tmp_path):
    X = arms(30)
    with AskTell(X, RandomSearch(batch_size=5), storage=Storage(tmp_path / "run.journal", arms_bytes=10)) as loop:
        loop.run(noisy(X), 10, call_with="indices")
    found = view_of_journal(tmp_path / "run.journal")
    assert "pass arms=" in (found.missing or "")
    assert "The model could not be computed again" in run_page(found)
    assert view_of_journal(tmp_path / "run.journal", arms=X).missing is None


def many(n):
    """A result-like run of n evaluations, one at a time."""
    g = np.random.default_rng(0)
    values, points = g.standard_normal(n).tolist(), g.random((n, 3)).tolist()
    rows = []
    for i in range(n):
        what = {"indices": [], "points": [points[i]], "values": [values[i]], "best_mean": values[i]}
        rows.append(HistoryRow(round=i + 1, pulls=i + 1, seconds={"pick": 1e-3}, **what))
    return History(rows, {"policy": "random", "seed": 0, "bounds": [[0.0] * 3, [1.0] * 3]})


def test_a_page_does_not_grow_with_its_run():
    history, start = many(10_000), time.process_time()
    page = run_page(view_of(history, None, None))
    assert time.process_time() - start < 3.0
    assert len(page) < 400_000
    assert "10,000 asked" in page


DESCRIBED = {
    "parameters": {
        "lr": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
        "depth": {"type": "int", "low": 1, "high": 300, "log": False},
        "kind": {"type": "choice", "values": ["a", "b"]},
    }
}
"""As :meth:`sparse_bo.Space.describe` has it."""


@pytest.mark.parametrize(
    ("about", "best", "edge"),
    [
        ({"bounds": [[0.0, 0.0], [1.0, 9.0]]}, {"x1": 0.995, "x2": 1.0}, "of the range of x1"),
        ({"bounds": [[0.0, 0.0], [1.0, 9.0]]}, {"x1": 0.5, "x2": 1.0}, None),
        ({"space": DESCRIBED}, {"lr": 1.05e-4, "depth": 300, "kind": "a"}, "of the range of lr, depth"),
        ({"space": DESCRIBED}, {"lr": 2e-4, "depth": 3, "kind": "a"}, "of the range of depth"),
        ({"space": DESCRIBED}, {"lr": 2e-4, "kind": "a"}, None),
    ],
)
@pytest.mark.parametrize("computed", [True, False])
def test_a_best_point_at_an_end_of_its_range_is_told(about, best, edge, computed):
    known = {"best": best} if computed else {"best_observed": Observation(1.0, 1, best)}
    said = [one.warning for one in advice_of(view(about={"policy": "p", "seed": 0} | about, **known)) if "edge" in one.warning]
    assert said == ([] if edge is None else [f"The best point lies at the edge {edge}."])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"failed": 100, "succeeded": 100}, "100 of 200 evaluations failed"),
        ({"failed": 5, "succeeded": 0, "asked": 5}, "No evaluation has succeeded"),
        ({"asked": 230}, "30 evaluations are out"),
        ({"missing": "pass arms="}, "could not be computed again: pass arms="),
        ({"residuals": 3.0 * np.random.default_rng(1).standard_normal(100)}, "too sure"),
        (
            {"residuals": np.r_[np.full(44, 0.5), np.full(56, 1.91)]},
            "of 100 predictions, 44% within 68 % bounds (expected: 50% to 86%)",
        ),
        ({"residuals": np.r_[np.full(44, 0.5), np.full(56, 1.91)]}, "too sure"),
        ({"residuals": np.full(20, 1.49)}, "too sure"),
        ({"residuals": 0.2 * np.random.default_rng(1).standard_normal(100)}, "too unsure"),
        ({"residuals": np.r_[np.full(86, 0.5), np.full(14, 1.91)]}, None),  # no limit is passed that the text does not show
        ({"residuals": np.r_[np.full(172, 0.5), np.full(27, 1.91)]}, None),
        ({"values": np.ones(200)}, "All results are equal"),
        ({"values": np.ones(20)}, "All results are equal"),
        ({"values": np.r_[9.0, np.zeros(199)]}, "The highest result is number 1 of 200"),
        ({"about": {"bounds": [[0.0], [1.0]]}, "best": {"x1": 0.999}}, "at the edge of the range of x1"),
        ({"differing": ["picks differ"]}, "differ from those recorded: picks differ"),
    ],
)
def test_warnings_are_given_where_there_is_reason(changes, expected):
    given = view(**changes)
    if expected is None:
        given = view(values=np.r_[np.zeros(150), np.arange(50.0)])
        assert advice_of(given) == []
        assert advice_of(view(residuals=np.random.default_rng(1).standard_normal(100))) == []
        assert advice_of(view(residuals=np.full(19, 9.0))) == []  # too few
        assert advice_of(view(values=np.r_[9.0, np.zeros(199)], added=150)) == []  # of an order of the user's
    else:
        assert [one for one in advice_of(given) if expected in one.warning and one.remedy.endswith((".", ")"))]


@pytest.mark.parametrize(
    ("out", "notes", "source", "remedy"),
    [
        (30, {}, None, "Tell the results; AskTell.resume(…).reissue() hands them out again, and run(…) makes them first."),
        (1, {}, None, "Tell the result; AskTell.resume(…).reissue() hands it out again, and run(…) makes it first."),
        (
            1,
            {"created": {}},
            "a.journal",
            "`python -m sparse_bo tell` reports the result; `ask --again` writes the point into a file again.",
        ),
        (2, {"problem": {}}, "a.journal", "`python -m sparse_bo resume` makes them first."),
        (2, {"problem": {}}, None, "Begin it again with --storage RUN.journal: a run without a journal cannot go on."),
    ],
)
def test_evaluations_that_are_out_come_back_by_the_command_of_their_run(out, notes, source, remedy):
    given = view(asked=200 + out, about={"policy": "p", "seed": 0, "notes": notes}, source=source)
    assert [one.remedy for one in advice_of(given) if "out: asked for" in one.warning] == [remedy]


@pytest.mark.parametrize(
    ("ends", "text"),
    [
        ((1.0, 3.0), "1 to 3"),
        ((0.2, 0.2), "0.2, as results are exact"),
        ((0.2, 0.2 + 3e-9), "0.2, about 3e-09 wide"),
        ((-math.inf, 3.0), "below 3"),
        ((1.0, math.inf), "above 1"),
    ],
)
def test_an_interval_says_what_its_digits_do_not_show(ends, text):
    assert interval(view(best_interval=ends)) == f"95 % interval of the model: {text}"


def test_of_many_inputs_those_are_shown_that_the_value_goes_with():
    """Not a switch that does nothing: its equal values, ranked in the order of time, would seem to rise with the results."""
    rng = np.random.default_rng(0)
    values = np.arange(200.0)
    told = {f"x{k}": (values + 200.0 * rng.standard_normal(200)).tolist() for k in range(10)}
    switches = {f"switch{k}": rng.integers(0, 2, 200).tolist() for k in range(3)}
    columns = {**switches, **told}
    page = run_page(view(values=values, columns=columns, names=list(columns)))
    shown = page[page.index("Inputs and values") :]
    assert all(f">{name}<" in shown for name in told)
    assert not any(f">{name}<" in shown for name in switches)


def test_of_equal_results_the_last_are_shown():
    page = run_page(view(values=(np.arange(2000) % 3 == 0).astype(float)))
    drawn = page[page.index("<h3>Results</h3>") :].partition("</svg>")[0]
    dots = [(float(y), float(x)) for x, y in re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', drawn)]
    highest = sorted(x for y, x in dots if y == min(dots)[0])[-40:]
    steps = np.diff(highest)
    assert len(steps) == 39
    assert steps.max() < 1.2 * steps.min()  # every third evaluation, none left out


def test_a_long_curve_keeps_its_extremes():
    x, y = thinned(np.arange(1e5), np.sin(np.arange(1e5)))
    assert len(x) <= MOST + 2
    assert y.max() > 0.999


PROBE = """<!doctype html><meta charset=utf-8><pre id=o></pre>
<iframe id=f width=WIDTH height=900 style="border:0"></iframe><script>
const start = performance.now(), f = document.getElementById('f');
f.srcdoc = new TextDecoder().decode(Uint8Array.from(atob('PAGE'), c => c.charCodeAt(0)));
f.onload = () => {
  const d = f.contentDocument, e = d.documentElement, s = f.contentWindow.getComputedStyle(d.body);
  const heights = [...d.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height);
  document.getElementById('o').textContent = JSON.stringify({
    scroll: e.scrollWidth, client: e.clientWidth, ms: performance.now() - start,
    paper: s.backgroundColor, smallest: Math.min(...heights), text: d.body.innerText.length});
};
</script>"""


def measured(page, folder, *, width, dark):
    """Return what a browser says of a page in a frame: overflow, milliseconds until it is shown, colour, smallest text."""
    inner = base64.b64encode(page.encode()).decode()
    probe = folder / "probe.html"
    probe.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", inner), encoding="utf-8")
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    command += ["--blink-settings=preferredColorScheme=0"] if dark else []
    command += ["--virtual-time-budget=20000", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="o">(.*?)</pre>', done.stdout, re.DOTALL)
    return json.loads(html.unescape(found.group(1)))


@pytest.mark.skipif(BROWSER is None, reason="no chromium here: apt-get install chromium")
@pytest.mark.parametrize("width", [360, 1400])
def test_a_real_browser_shows_it(width, pages, tmp_path):
    shown = measured(pages["space"], tmp_path, width=width, dark=width == 360)
    assert shown["scroll"] <= shown["client"] + 1  # nothing sticks out: tables scroll inside
    assert shown["text"] > 1000
    assert shown["ms"] < 2000
    assert shown["smallest"] > 7
    assert shown["paper"] == ("rgb(20, 20, 23)" if width == 360 else "rgb(255, 255, 255)")


CONDITIONS = {
    "kind": Choice("tree", "net", "never"),
    "rate": Float(0.0, 1.0),
    "depth": Int(1, 12, when={"kind": "tree"}),
    "layers": Int(1, 4, when={"kind": "net"}),
    "width": Choice(32, 64, 128, when={"layers": [2, 3]}, ordered=True),
    "only": Float(0.0, 3.0, when={"kind": "never"}),
}


def test_a_slice_has_the_inputs_that_other_values_bring_from_the_best_evaluation_with_them():
    observed = [
        ({"kind": "tree", "rate": 0.5, "depth": 6}, 9.0),
        ({"kind": "net", "rate": 0.1, "layers": 2, "width": 128}, 3.0),
        ({"kind": "net", "rate": 0.2, "layers": 4}, 5.0),
        ({"kind": "net", "rate": 0.3, "layers": 1}, 4.0),
        *(({"kind": "tree", "rate": 0.5, "depth": k}, 9.0 - 0.5 * abs(k - 6)) for k in range(1, 13) if k != 6),
    ]
    points, values = zip(*observed, strict=True)
    loop = AskTell(space=CONDITIONS, initial=(list(points), list(values)), seed=0)
    seen = view_of(loop.history, loop.state, loop._domain)
    assert [one.name for one in seen.slices] == ["kind", "rate", "depth"]
    kind, rate, _ = seen.slices
    assert kind.values == ["tree", "net", "never"]
    assert kind.brought == [{}, {"layers": 4}, {"only": 1.5}]
    assert rate.brought == ()
    at = [
        {"kind": "tree", "rate": 0.5, "depth": 6},
        {"kind": "net", "rate": 0.5, "layers": 4},
        {"kind": "never", "rate": 0.5, "only": 1.5},
    ]
    np.testing.assert_allclose(kind.median, loop.result().predict(at)["value"], rtol=1e-12)
    page = run_page(seen)
    assert "The point has no layers, width, only: no slices along them." in page
    assert "Inputs that other values bring are those of the best evaluation with that value" in page
    assert "layers = 4" in page


def test_a_slice_of_several_outcomes_has_them_from_the_front():
    rows = [
        ({"kind": "tree", "rate": 0.5, "depth": 6}, (9.0, 9.0)),
        ({"kind": "net", "rate": 0.1, "layers": 2, "width": 128}, (3.0, 1.0)),
        ({"kind": "net", "rate": 0.2, "layers": 4}, (2.0, 4.0)),
        *(({"kind": "tree", "rate": 0.5, "depth": k}, (9.0 - abs(k - 6), 9.0 + abs(k - 6))) for k in range(1, 13) if k != 6),
    ]
    points, values = zip(*rows, strict=True)
    aims = {"objectives": {"yield": "max", "cost": "min"}}
    loop = AskTell(space=CONDITIONS, initial=(list(points), list(values)), seed=0, **aims)
    (kind, *_), names = (slices := view_of(loop.history, loop.state, loop._domain).slices), {one.outcome for one in slices}
    assert names == {"yield", "cost"}
    assert (kind.name, kind.here) == ("kind", "tree")
    assert kind.brought == [{}, {"layers": 2, "width": 128}, {"only": 1.5}]


def test_another_value_of_a_parameter_keeps_what_still_holds():
    space = Space(CONDITIONS)
    net = {"kind": "net", "rate": 0.5, "layers": 2, "width": 32}
    assert space.changed(net, "layers", 3, {}) == {**net, "layers": 3}
    assert space.changed(net, "layers", 1, {}) == {"kind": "net", "rate": 0.5, "layers": 1}
    assert space.changed(net, "kind", "tree", {"depth": 2, "rate": 0.9}) == {"kind": "tree", "rate": 0.5, "depth": 2}
    tree = {"kind": "tree", "rate": 0.5, "depth": 2}
    assert space.changed(tree, "kind", "net", {}) == {"kind": "net", "rate": 0.5, "layers": 2, "width": 64}


def test_a_table_of_numbers_says_how_many_it_has_of_a_curve():
    def table(n):
        curve = Curve("value", np.arange(n, dtype=float), np.arange(n, dtype=float), "s1")
        return lines(Panel("Results", "Every result.", [curve])).table

    assert table(20).caption == "numbers behind the figure"
    assert table(28).caption == "numbers behind the figure: 20 of 28"


def test_a_slice_of_many_choices_is_spread_over_them_and_has_the_best_one():
    values = range(0, 200, 2)
    points = [{"n": n, "x": 0.3} for n in values[::2]]
    loop = AskTell(space={"n": Choice(*values), "x": Float(0.0, 1.0)})
    loop.add(points, [-((p["n"] - 144) ** 2) / 1e3 for p in points])
    (one, *_) = view_of(loop.history, loop.state, loop._domain).slices
    assert len(one.values) <= 41
    assert (min(one.values), max(one.values)) == (0, 198)
    assert 144 in one.values
    mixed = AskTell(space={"n": Choice(*range(50), "auto"), "x": Float(0.0, 1.0)})
    mixed.add([{"n": n, "x": 0.3} for n in (*range(30), "auto")], [-float(n) for n in range(31)])
    assert "posterior of the objective" in run_page(view_of(mixed.history, mixed.state, mixed._domain))


def test_failures_at_points_that_differ_beyond_the_columns_shown_are_apart():
    space = {f"p{k}": Choice("a", "b") for k in range(10)}
    loop, first = AskTell(space=space), dict.fromkeys(space, "a")
    loop.enqueue([first, first | {"p8": "b"}, first | {"p9": "b"}, first | {"p0": "b"}])
    loop.tell(loop.ask(4), [math.nan, math.nan, math.nan, 1.0])
    page = run_page(view_of(loop.history, loop.state, loop._domain))
    rows = re.findall(r"<tr>(?:<td>a</td>){8}<td>(\d+)</td></tr>", re.sub(r"<td[^>]*>", "<td>", page))
    assert rows == ["1", "1", "1"]


def test_numbers_that_agree_in_their_leading_digits_are_shown_with_those_that_differ():
    loop = AskTell(bounds=[(1.7e9, 1.7e9 + 1.0)] * 2, seed=0)
    for _ in range(6):
        batch = loop.ask(3)
        loop.tell(batch, 1e6 - (batch.X - 1.7e9 - 0.3).square().sum(dim=-1))
    result = loop.result()
    found = facts(view_of(result.history, result.state, result.domain))
    assert found["observed at"].startswith("x1 = 1700000000.")


def test_the_ends_of_an_axis_are_whole_numbers():
    """A number of more than nine characters lost its last digits."""
    low, high = 12_345_678, 951_163_184
    loop = AskTell(space={"n": Int(low, high), "kind": Choice(*"abc")}, policy=RandomSearch(), seed=0)
    loop.enqueue([{"n": low, "kind": "a"}, {"n": high, "kind": "b"}])
    loop.tell(loop.ask(2), [0.0, 1.0])
    plot = inputs_of(view_of(loop.history, loop.state, loop._domain))
    assert {"12,345,678", "951,163,184"} <= set(re.findall(r">([\d,]+)<", plot.svg))
