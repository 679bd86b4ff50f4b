"""Pages made of records alone: tables, figures, what was recorded with which code; and the overview's table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from .drawing import STYLE
from .experiment import Block, Experiment, Picture, Table
from .records import Record

BEGIN, END = "<!-- made by python benchmarks/report.py: begin -->", "<!-- end -->"


def render(experiment: Experiment, records: list[Record]) -> tuple[str, list[Picture]]:
    """Return a page as Markdown, and the figures it shows."""
    where = [f"records: [`{experiment.records_name}`]({experiment.records_name})"] if records else []
    blocks: list[Block] = [
        f"<!-- Made by python benchmarks/report.py from {experiment.records_name}: do not edit. -->\n\n# {experiment.title}",
        " · ".join([f"`python benchmarks/{experiment.name}.py`", *where, "[all benchmarks](../README.md)"]),
        experiment.about.strip(),
    ]
    for title, shown in _sections(experiment, records).items():
        blocks += [f"## {title}", *experiment.page(shown)]
    blocks += ["## Records", provenance(records)] if records else ["**Nothing recorded yet.**"]
    named, pictures = [], list[Picture]()
    for block in blocks:
        if isinstance(block, Picture):
            same = sum(other.name.partition("--")[0] == block.name for other in pictures)  # two devices may show the same
            pictures.append(replace(block, name=f"{block.name}--{same + 1}") if same else block)
        named.append(pictures[-1] if isinstance(block, Picture) else block)
    return "\n\n".join(map(_markdown, named)) + "\n", pictures


def write(experiment: Experiment, folder: Path, *, figures: bool = True) -> Path:
    """Write an experiment's page, and its figures, from the records of a folder; return the page's path."""
    text, pictures = render(experiment, experiment.read(folder))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{experiment.name}.md"
    path.write_text(text, encoding="utf-8")
    for picture in pictures if figures else ():
        with matplotlib.rc_context(STYLE):
            save(picture.draw(), folder / f"{picture.name}.png")
    return path


def save(figure: Figure, path: Path) -> None:
    """Write a figure as a PNG of at most 64 colours: a third of the bytes, with no difference to the eye."""
    drawn = BytesIO()
    figure.savefig(drawn, format="png", dpi=110)
    colours = Image.open(drawn).convert("RGB").quantize(64, dither=Image.Dither.NONE)
    colours.save(path, format="PNG", optimize=True)


def overview(experiments: Iterable[Experiment], folder: Path) -> str:
    """Return the overview's table: question, command, headline, page."""
    rows = []
    for experiment in experiments:
        records = experiment.read(folder)
        first = [r for r in records if experiment.pooled or r["device"] == _shown_first(records)]
        headline = experiment.headline(first) if first else "nothing recorded yet"
        command, page = f"`python benchmarks/{experiment.name}.py`", f"[page](results/{experiment.name}.md)"
        rows.append((experiment.question, command, headline, page))
    return _markdown(Table(("question", "command", "headline", "all of it"), rows))


def with_overview(text: str, table: str) -> str:
    """Return a text with what stands between the markers replaced.

    Raises:
        ValueError: If the markers are missing.
    """
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    if not (found and closed):
        raise ValueError(f"expected the lines {BEGIN!r} and {END!r} in benchmarks/README.md; put them back around its table")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _sections(experiment: Experiment, records: list[Record]) -> dict[str, list[Record]]:
    """Return a page's sections by their title: one of each device, or one of all."""
    named = devices(records)
    if experiment.pooled and named:
        return {" and ".join(named): records}
    return {device: [r for r in records if r["device"] == device] for device in named}


def devices(records: list[Record]) -> list[str]:
    """Return the devices of some records, that used last first: its records are of the newest code."""
    last = {r["device"]: r["date"] for r in sorted(records, key=lambda r: r["date"])}
    return sorted(last, key=lambda name: last[name], reverse=True)


def _shown_first(records: list[Record]) -> str | None:
    """Return the device of the headline: that used last, but for those that have measured a row or two of many."""
    made = Counter(r["device"] for r in records)
    return next((name for name in devices(records) if 10 * made[name] >= max(made.values())), None)


def provenance(records: list[Record]) -> str:
    """Return in words the number of records, their dates, commits, versions and threads."""
    dates = sorted({r["date"][:10] for r in records})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    commits = Counter(r["commit"] for r in records)
    listed = ", ".join(f"`{name}` {count}" if len(commits) > 1 else f"`{name}`" for name, count in commits.items())
    parts = []
    for field in ("sparse_bo", "torch", "threads"):
        values = Counter(str(r[field]) for r in records)
        shown = [name if len(values) == 1 else f"{name} ({count})" for name, count in values.items()]
        parts.append(f"{field} {', '.join(shown)}")
    return f"{len(records)} records of {when}: at {listed}; {', '.join(parts)}."


def mean_sd(values: Sequence[float], digits: int) -> str:
    """Return mean ± standard deviation; the value alone where there is one."""
    mean = f"{np.mean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {np.std(values):,.{digits}f}"


def short(value: float, digits: int = 3) -> str:
    """Return a number to some significant digits, with thousands apart and no exponent from 10⁻⁴ on."""
    if value == 0.0:
        return "0"
    if abs(value) < 1e-4:
        return f"{value:.{digits - 1}e}"
    decimals = max(digits - 1 - int(np.floor(np.log10(abs(value)))), 0)
    return f"{value:,.{decimals}f}"


def _markdown(block: Block) -> str:
    if isinstance(block, Table):
        lines = [block.columns, ["---"] * len(block.columns), *block.rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if isinstance(block, Picture):
        return f"![{block.caption}]({block.name}.png)"
    return block
