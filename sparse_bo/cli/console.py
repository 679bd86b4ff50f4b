"""The two consoles of the command line: results go to stdout, errors to stderr."""

from __future__ import annotations

from rich.console import Console

console = Console(stderr=False)
errors = Console(stderr=True)
