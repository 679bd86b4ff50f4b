"""The two consoles of the command line, stdout and stderr. Names and messages of users are shown as they are."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.text import Text

console = Console(markup=False, emoji=False, highlight=False)
errors = Console(stderr=True, markup=False, emoji=False, highlight=False)


def plain(text: object, *, style: str = "") -> Text:
    r"""Return a text for rich that is shown letter by letter: no markup, no emoji, no control sequences.

    Control characters (but for ends of lines and tabs) and halves of characters, as in file names that are not UTF-8, are
    written out as ``\x1b`` or ``\udcff``.

    Args:
        text: Anything with a text form.
        style: Of rich, for the whole text.
    """
    shown = "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in str(text))
    return Text(shown, style=style)


def shows(character: str) -> bool:
    """Return whether the encoding of stdout has a character."""
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
    """Print an error of the input; return the exception that ends the program with code 2."""
    complain("error", error)
    return typer.Exit(2)
