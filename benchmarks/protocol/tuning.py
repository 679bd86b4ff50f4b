"""Eight settings of scikit-learn's gradient boosting on Abalone: what a user of a tuner tunes, at 0.1 s per evaluation."""

from __future__ import annotations

from functools import cache

import numpy as np

from sparse_bo.problems import abalone

__all__ = ["BEST_KNOWN", "DIMS", "SETTINGS", "TYPICAL", "score", "settings"]

SETTINGS: dict[str, tuple[float, float, str]] = {
    "learning_rate": (0.003, 1.0, "log"),
    "max_iter": (10, 100, "whole"),
    "max_leaf_nodes": (3, 32, "whole"),
    "max_depth": (1, 12, "whole"),
    "min_samples_leaf": (1, 100, "log whole"),
    "l2_regularization": (1e-4, 1e3, "log"),
    "max_bins": (4, 255, "log whole"),
    "max_features": (0.1, 1.0, ""),
}
"""Lower and upper end, and how [0, 1] is spread over them."""
DIMS = len(SETTINGS)
BEST_KNOWN = 0.5570
"""A score that was reached, rounded up to four digits: by CMA-ES in 300 evaluations (scikit-learn 1.9)."""
TYPICAL = 0.43226
"""The median over :func:`protocol.problems._sobol`."""
TRAINING = 1500
"""Rows that a model learns from; it is scored on the other 2,677."""


def settings(point: np.ndarray) -> dict[str, float | int]:
    """Return the settings that a point of [0, 1]⁸ stands for."""
    chosen: dict[str, float | int] = {}
    for share, (name, (low, high, spread)) in zip(point.tolist(), SETTINGS.items(), strict=True):
        value = low * (high / low) ** share if "log" in spread else low + (high - low) * share
        chosen[name] = round(value) if "whole" in spread else value
    return chosen


def score(inputs: np.ndarray) -> np.ndarray:
    """Return R² on the rows that are not learned from, ``q x 8`` -> ``q``; the same point always scores the same.

    Raises:
        ImportError: Without scikit-learn.
    """
    return np.array([_score(point) for point in inputs])


def _score(point: np.ndarray) -> float:
    from sklearn.ensemble import HistGradientBoostingRegressor

    X, y = _rows()
    model = HistGradientBoostingRegressor(**settings(point), early_stopping=False, random_state=0)
    model.fit(X[:TRAINING], y[:TRAINING])
    return float(model.score(X[TRAINING:], y[TRAINING:]))


@cache
def _rows() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and rings of all rows, shuffled once and for all."""
    table = abalone()
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(table.arms))
    return table.arms.numpy()[order], table.values.numpy()[order]
