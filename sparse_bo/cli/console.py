"""Where the command line writes: results to stdout, what went wrong to stderr."""

from __future__ import annotations

from rich.console import Console

console = Console(stderr=False)
errors = Console(stderr=True)
