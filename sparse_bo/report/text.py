"""Text of users, objectives and files as it is: never markup, never an emoji, never a control sequence of the terminal."""

from __future__ import annotations

from rich.text import Text


def plain(text: object, *, style: str = "") -> Text:
    r"""Return a text for rich that is shown letter by letter.

    Control characters (but for ends of lines and tabs) and halves of characters, as in file names that are not UTF-8, are
    written out as ``\x1b`` or ``\udcff``, so that no name or message colours the screen, moves the cursor or cannot be
    printed.

    Args:
        text: Anything with a text form.
        style: Of rich, for the whole text.
    """
    shown = "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in str(text))
    return Text(shown, style=style)
