"""Batches on boxes and over choices whose size the variance-ratio rule decides."""

from sparse_bo.acquisition.optimize import optimize_batch

__all__ = ["optimize_batch"]
