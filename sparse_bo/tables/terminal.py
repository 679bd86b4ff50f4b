"""Text and curves for a terminal. Names and messages of users are no markup, emoji or control sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.text import Text

DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Bits of a braille character, by row and column."""
COLOURS = ("blue", "yellow", "bright_black", "green", "magenta", "cyan")
WIDEST, NARROWEST = 100, 40
HEIGHT = 12
"""Lines of the picture."""
LABEL = 9
"""Characters of a label of the vertical axis."""


def braille_curves(curves: Mapping[str, Sequence[float]], *, title: str, width: int, dots: bool = True) -> Text:
    """Return curves over 1, 2, … on logarithmic axes, with their names below.

    Args:
        curves: Positive values by name; what is not positive is left out.
        title: Above them.
        width: Columns of the terminal.
        dots: Whether the terminal has braille characters; else stars.
    """
    columns = min(width, WIDEST) - LABEL - 1
    shown = {name: [(i + 1, v) for i, v in enumerate(values) if v > 0] for name, values in curves.items()}
    every = [v for points in shown.values() for _, v in points]
    longest = max((len(values) for values in curves.values()), default=0)
    if not every or longest < 2 or columns < NARROWEST - LABEL:
        return Text("")
    low, high = math.log(min(every)), math.log(max(every))
    cells = [[0] * columns for _ in range(HEIGHT)]
    owner = [[""] * columns for _ in range(HEIGHT)]
    for colour, points in zip(COLOURS, shown.values(), strict=False):
        for i, value in points:
            x = round(math.log(i) / math.log(longest) * (2 * columns - 1))
            y = round((high - math.log(value)) / max(high - low, 1e-12) * (4 * HEIGHT - 1))
            cells[y // 4][x // 2] |= DOTS[y % 4][x % 2]
            owner[y // 4][x // 2] = colour
    picture = Text(f"{title}\n", style="bold")
    for row in range(HEIGHT):
        at = math.exp(high - (high - low) * row / (HEIGHT - 1))
        picture.append(f"{f'{at:.3g}' if row % 4 == 0 or row == HEIGHT - 1 else '':>{LABEL}} ", style="not bold dim")
        for bits, colour in zip(cells[row], owner[row], strict=True):
            mark = (chr(0x2800 + bits) if dots else "*") if bits else " "
            picture.append(mark, style=f"not bold {colour}".strip())
        picture.append("\n")
    end = f"{longest:,} evaluations"
    picture.append(f"{'':>{LABEL}} 1{end:>{columns - 1}}\n", style="not bold dim")
    picture.append(" " * LABEL, style="not bold")
    for colour, name in zip(COLOURS, shown, strict=False):
        picture.append(f" {chr(0x28FF) if dots else '*'} {name}", style=f"not bold {colour}")
    return picture


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
