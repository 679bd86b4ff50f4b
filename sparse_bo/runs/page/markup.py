"""HTML and SVG as text, in which everything that is not markup is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable


class Safe(str):
    """Text that is markup already."""

    __slots__ = ()


Content = object


def escaped(text: object) -> Safe:
    """Return a text as markup that shows it letter by letter; control characters are written out."""
    if isinstance(text, Safe):
        return text
    shown = "".join(c if c in "\n\t" or c.isprintable() else repr(c)[1:-1] for c in str(text))
    return Safe(html.escape(shown))


def element(tag: str, *children: Content, **attributes: object) -> Safe:
    """Return an element; ``class_`` is ``class``, ``aria_label`` is ``aria-label``; what is ``None`` is left out."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escaped(value)}"' for name, value in attributes.items() if value is not None
    )
    return Safe(f"<{tag}{given}>{''.join(map(escaped, children))}</{tag}>")


def joined(parts: Iterable[Content]) -> Safe:
    """Return parts one after another."""
    return Safe("".join(map(escaped, parts)))


def table(columns: Iterable[object], rows: Iterable[Iterable[object]], *, caption: object = None) -> Safe:
    """Return a table with a row of headings."""
    head = element("tr", *(element("th", name, scope="col") for name in columns))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    named = [] if caption is None else [element("caption", caption)]
    inside = element("table", *named, element("thead", head), element("tbody", *body))
    return element("div", inside, class_="wide", tabindex=0, role="region", aria_label=caption or "table")


def pairs(rows: Iterable[tuple[object, object]]) -> Safe:
    """Return names and what they are."""
    return element("dl", *(joined([element("dt", name), element("dd", value)]) for name, value in rows))


def number(value: float | None, digits: int = 4) -> str:
    """Return a number in few digits, thousands parted; a dash for none."""
    if value is None or value != value:
        return "–"
    if float(value).is_integer() and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"
