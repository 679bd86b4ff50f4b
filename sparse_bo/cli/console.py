"""The two consoles of the command line: results go to stdout, errors to stderr; plain text, in any encoding."""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata
from collections.abc import Mapping

import typer
from rich.console import Console

from sparse_bo.tables.terminal import plain

console = Console(markup=False, emoji=False, highlight=False)
errors = Console(stderr=True, markup=False, emoji=False, highlight=False)

SPELLED: Mapping[str, str] = {
    **{"λ": "lambda", "δ": "delta", "ε": "epsilon", "μ": "mu", "µ": "u", "ξ": "xi", "σ": "sigma", "τ": "tau", "α": "alpha"},
    **{"Γ": "Gamma", "Σ": "sum", "Π": "prod", "√": "sqrt", "\u0304": "bar", "\u0303": "~", "§": "section "},
    **{"≥": ">=", "≤": "<=", "−": "-", "×": "x", "·": "*", "±": "+-", "→": "->", "²": "^2", "³": "^3", "¹": "^1"},
    **{"—": "-", "–": "-", "…": "...", "’": "'", "“": '"', "”": '"'},
}
"""How characters are written where the terminal or the file has none for them."""


def shows(character: str) -> bool:
    """Return whether stdout has a character, and need not spell it."""
    try:
        character.encode(console.encoding)
    except (UnicodeError, LookupError):
        return False
    return True


def say(text: object) -> None:
    """Print a text as it is, one line of it on one line."""
    console.print(plain(text), soft_wrap=True)


def complain(word: str, text: object, *, style: str = "red") -> None:
    """Print ``word: text`` to stderr, the word in colour, the text as it is."""
    errors.print(plain(f"{word}:", style=style).append(" ").append(plain(text)), soft_wrap=True)


def refused(error: object) -> typer.Exit:
    """Say what is wrong with the input, and return what ends the program with code 2."""
    complain("error", error)
    return typer.Exit(2)


def accept_any_encoding() -> None:
    """Let stdout and stderr write characters that their encoding lacks by their names: ``λ`` as ``lambda``."""
    codecs.register_error("sparse_bo.spelled", _spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="sparse_bo.spelled")


def _spelled(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(map(_spelling, error.object[error.start : error.end])), error.end


def _spelling(character: str) -> str:
    near = unicodedata.normalize("NFKD", character).encode("ascii", "ignore").decode("ascii")
    return SPELLED.get(character) or near or character.encode("ascii", "backslashreplace").decode("ascii")
