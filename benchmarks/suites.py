"""Halves of the suites: mechanisms and settings are chosen on one half, figures are reported of the other.

Written down before any run of them. BBOB's five groups are separable functions (1 to 5), moderately (6 to 9) and badly (10 to
14) conditioned ones, and many-humped ones of clear (15 to 19) and weak (20 to 24) structure. Odd numbers choose and even ones
report, so that each group has functions in both halves. No instance is in both. Each half has noiseless and noisy variants in
2, 5, 10 and 20 inputs. Instances 1 to 4 of all functions have decided about devices before (``results/ABLATIONS.md``).
"""

from __future__ import annotations

from typing import NamedTuple


class Half(NamedTuple):
    """Functions and instances of BBOB, for every number of inputs and every noise."""

    functions: tuple[int, ...]
    instances: tuple[int, ...]


BBOB = {
    "choosing": Half(tuple(range(1, 25, 2)), tuple(range(1, 11))),
    "reporting": Half(tuple(range(2, 25, 2)), tuple(range(11, 21))),
}

LEARNERS = {
    "choosing": (
        "support vectors, digits", "random forest, breast cancer", "network, wine", "boosting, diabetes",
        "neighbours, cadata", "linear by gradients, breast cancer", "kernel ridge, abalone", "polynomial, diabetes",
    ),
    "reporting": (
        "support vectors, diabetes", "extra trees, abalone", "network, cadata", "boosting, wine",
        "neighbours, digits", "linear by gradients, digits", "kernel ridge, cadata", "kernel features, digits",
    ),
    "conditional": ("breast cancer", "wine", "digits", "diabetes", "abalone", "cadata"),
    "boosters": ("LightGBM, breast cancer", "LightGBM, abalone"),
}  # fmt: skip
"""Tasks of ``protocol/learners.py``, divided before any run of them: a kind of learner is in both halves, on other data. With
conditional settings, those of boosters too, all report."""

COCO = {
    "bbob-mixint": tuple(range(2, 25, 2)),
    "bbob-constrained": tuple(range(2, 55, 4)),
    "bbob-biobj": tuple(range(2, 55, 4)),
    "bbob-noisy": tuple(range(2, 31, 2)),
    "bbob-largescale": tuple(range(2, 25, 2)),
}
"""Functions of COCO's other suites that report, from 1 on within each suite; odd ones may choose."""
FIRST_INSTANCE = 11
"""Of those that report; 1 to 10 may choose. Instances 1 to 6 have been looked at, and nothing was chosen by them."""
