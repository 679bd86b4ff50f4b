"""Problems to optimise: real tables, test functions, draws of a Gaussian process, and a user's own."""

from __future__ import annotations

import lazy_loader

SCALINGS = ("unit", "standardize", "none")
TABLES = ("cadata", "abalone")
GRID_EXAMPLE = "0:1:100,-5:5:50 (low:high:points of each axis), or 100x50 for the unit cube"
"""Words of the command line, here so that ``--help`` is fast."""

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
