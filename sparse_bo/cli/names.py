"""The names that can be chosen on the command line: policies, problems, samplers, kernels, precisions. Imports nothing heavy.

Each is written once: a policy's name is its class's ``name``, synthetic problems and precisions are the keys of their tables,
all read from their source.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparse_bo.cli.source import Defined, exported, keys, property_of
from sparse_bo.problems.names import TABLES


def _policies() -> dict[str, Defined]:
    named = {property_of(thing, "name"): thing for thing in exported("sparse_bo.policies")}
    return {name: named[name] for name in sorted(name for name in named if isinstance(name, str))}


POLICIES: Mapping[str, Defined] = _policies()
"""Name on the command line -> class in :mod:`sparse_bo.policies`, as it is written there."""
SYNTHETIC = keys("sparse_bo.problems.synthetic", "SYNTHETIC")
PROBLEMS = (*TABLES, "gp-draw", *SYNTHETIC)
SIZED_SAMPLERS: Mapping[str, str] = {
    "uniform": "UniformSampler",
    "first": "FirstSampler",
    "greedy-variance": "GreedyVarianceSampler",
    "ipa": "IPASampler",
    "ivm": "IVMSampler",
    "kmeans++": "KMeansPlusPlusSampler",
    "k-dpp": "KDPPSampler",
}
"""Name on the command line -> class in :mod:`sparse_bo.dictionary`; they are given their size."""
SAMPLERS = ("leverage", "recursive-rls", *SIZED_SAMPLERS)
MATERN: Mapping[str, float] = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Name on the command line -> smoothness of a Matérn kernel."""
PRESETS = ("learned", "published")
"""What a policy starts from on the two data sets: everything learned, or the settings of the published experiments."""
KERNELS = ("rbf", *MATERN, "learned")
PRECISIONS = keys("sparse_bo.arms.moments", "PRECISIONS")
