"""Batches on boxes and over choices: the ratio rule decides their size."""

from sparse_bo.acquisition.optimize import optimize_batch

__all__ = ["optimize_batch"]
