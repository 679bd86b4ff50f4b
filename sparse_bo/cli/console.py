"""The two consoles of the command line, stdout and stderr. Names and messages of users are shown as they are."""

from __future__ import annotations

import codecs
import io
import os
import sys
import traceback as tracebacks
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import IO, TYPE_CHECKING, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from sparse_bo.report.facts import Advice


class Stream(io.TextIOBase):
    """The present ``sys.stdout`` or ``sys.stderr``. Text is dropped without one (``>&-``), and once it cannot be written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost: OSError | ValueError | None = None
        """Error of a full disk, a closed pipe, or a stream that the objective has closed."""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # read-only here
        """Encoding of the stream; ASCII if Python does not know it."""
        encoding = getattr(getattr(sys, self.name), "encoding", None) or "utf-8"
        try:
            return codecs.lookup(encoding).name
        except LookupError:
            return "ascii"

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        stream = getattr(sys, self.name)
        return stream is not None and not getattr(stream, "closed", False) and bool(stream.isatty())

    def write(self, text: str) -> int:
        """Write the text and flush it."""
        stream = getattr(sys, self.name)
        try:
            if stream is not None:
                stream.write(text)
                stream.flush()
        except (OSError, ValueError) as error:
            self.lose(error)
        return len(text)

    def lose(self, error: OSError | ValueError) -> None:
        """Drop the rest of the output after an error: the text that Python still holds must not fail again when it ends."""
        self.lost = error
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, self.name).fileno())


stdout = Stream("stdout")
console = Console(file=cast("IO[str]", stdout), markup=False, emoji=False, highlight=False)
errors = Console(file=cast("IO[str]", Stream("stderr")), stderr=True, markup=False, emoji=False, highlight=False)


def plain(text: object, *, style: str = "") -> Text:
    r"""Return a text for rich that is shown letter by letter: no markup, no emoji, no control sequences.

    Control characters (but for ends of lines and tabs) and halves of characters, as in file names that are not UTF-8, are
    written out as ``\x1b`` or ``\udcff``, as by :func:`sparse_bo.report.view.visible`, which help cannot have: it loads NumPy.
    """
    return Text("".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in str(text)), style=style)


def say(text: object) -> None:
    """Print a text as it is, one line of it on one line."""
    console.print(plain(text), soft_wrap=True)


def complain(word: str, text: object, *, style: str = "red") -> None:
    """Print ``word: text`` to stderr, the word in colour, the text as it is."""
    errors.print(plain(f"{word}:", style=style).append(" ").append(plain(text)), soft_wrap=True)


def refused(text: str, *, traceback: BaseException | None = None) -> typer.Exit:
    """Print an error of the input, with its traceback if asked for; return the exception that ends the program with code 2."""
    if traceback is not None:
        show_traceback(traceback)
    complain("error", text)
    return typer.Exit(2)


def show_traceback(error: BaseException) -> None:
    """Print the traceback of an error to stderr."""
    errors.print(plain("".join(tracebacks.format_exception(error)).rstrip()), soft_wrap=True)


def table(title: str, lines: Mapping[str, str]) -> Table:
    """Return a table of two columns; names and messages in it are shown as they are by any console."""
    made = Table(title=plain(title), show_header=False, title_justify="left")
    for name, text in lines.items():
        made.add_row(plain(name), plain(text))
    return made


def show(made: Table, advice: Iterable[Advice] = ()) -> None:
    """Print a table, and a line for each warning below it."""
    console.print(made)
    for one in advice:
        say(f"- {one.warning} {one.remedy}")
