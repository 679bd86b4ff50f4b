"""Problems to optimise: real tables, test functions, draws of a Gaussian process, and a user's own."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
