"""Names of the built-in problems, and the format of a grid. Imports nothing, so that ``--help`` is fast."""

from __future__ import annotations

SCALINGS = ("unit", "standardize", "none")
TABLES = ("cadata", "abalone")
GRID_EXAMPLE = "0:1:100,-5:5:50 (low:high:points of each axis), or 100x50 for the unit cube"
