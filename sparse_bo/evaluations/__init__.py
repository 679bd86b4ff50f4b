"""Evaluations of an objective: batches, workers, executors. Imports nothing until it is asked for: workers stay light."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
