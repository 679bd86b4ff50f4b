"""The shape of a benchmark: a question, options in three sizes, jobs that end in records, a page made of the records."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from .records import RESULTS, Record, read

FORMS = ("full", "quick", "tiny")
"""The published sizes; minutes; seconds, through every line of the code (the tests run it)."""


@dataclass(frozen=True)
class Option:
    """A choice on the command line, with its value in each form.

    Args:
        help: What ``--help`` says.
        full: Value for the published experiment; a tuple takes several values.
        quick: Value with ``--quick``; ``None``: as ``full``.
        tiny: Value with ``--tiny``; ``None``: as with ``--quick``.
        choices: Names to choose from.
        parse: From what is typed to a value.
    """

    help: str
    full: Any
    quick: Any = None
    tiny: Any = None
    choices: Sequence[str] | None = None
    parse: Callable[[str], Any] = int

    def value(self, form: str) -> Any:
        """Return the value in a form."""
        sizes = (self.full, self.quick, self.tiny)
        given = [size for size in sizes[: FORMS.index(form) + 1] if size is not None]
        return given[-1] if given else None


@dataclass(frozen=True)
class Job:
    """One measurement.

    Args:
        key: Fields by which its record is known: with one of the same device in the file it is not made again.
        measure: Makes it, and returns the other fields of the record.
    """

    key: Record
    measure: Callable[[], Record]


@dataclass(frozen=True)
class Table:
    """A table of a page: names of the columns, and rows of text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Picture:
    """A figure of a page: its file's stem, what it shows in words, and what draws it."""

    name: str
    caption: str
    draw: Callable[[], Figure]


Block = str | Table | Picture


@dataclass(frozen=True)
class Experiment:
    """A benchmark.

    Args:
        script: Its file; the stem is its name.
        title: Of its page.
        question: What it answers, for the overview.
        about: What a reader needs to understand the page, in Markdown; no results, these come from the records.
        jobs: From the parsed command line to the jobs, always in the same order. The line has ``seeds`` (a range), ``device``,
            ``folder`` (where records go), ``form``, and what ``options`` name.
        page: From the records of one device (of all, if ``pooled``) to what the page shows.
        headline: From the same records to the figure of the overview.
        options: By name, what else can be chosen.
        seeds: How many, in each form.
        threads: Of torch, unless ``--threads`` says otherwise; ``None``: torch's choice.
        own_process: Whether each job has a process of its own, for its memory or what libraries spend once.
        devices: Where it can be run; the first is where it is.
        ignored: Warnings that are not shown.
        current: From a record to the same with facts that are known better since, such as the highest value of a problem.
        pooled: Whether one page shows the records of all devices, for results that do not depend on the device.
    """

    script: str
    title: str
    question: str
    about: str
    jobs: Callable[[Namespace], Iterable[Job]]
    page: Callable[[list[Record]], Iterator[Block]]
    headline: Callable[[list[Record]], str]
    options: Mapping[str, Option] = field(default_factory=dict)
    seeds: tuple[int, int, int] = (5, 1, 1)
    threads: int | None = 1
    own_process: bool = False
    devices: tuple[str, ...] = ("cpu", "cuda")
    ignored: tuple[type[Warning], ...] = ()
    current: Callable[[Record], Record] = dict
    pooled: bool = False

    @property
    def name(self) -> str:
        """The name of its script, its page and its records."""
        return Path(self.script).stem

    @property
    def records_name(self) -> str:
        """The name of the file of its records."""
        return f"{self.name}.jsonl.gz"

    def read(self, folder: Path = RESULTS) -> list[Record]:
        """Return its records, with facts as they are known now."""
        return [self.current(record) for record in read(folder / self.records_name)]
