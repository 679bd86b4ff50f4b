"""Evaluations of an objective: batches, workers, executors. Names are imported on first use, so that workers stay light."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
