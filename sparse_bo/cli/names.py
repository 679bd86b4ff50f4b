"""Names on the command line: policies, problems, samplers, kernels. Literals, so that ``--help`` loads no torch.

``tests/cli/test_presets.py`` compares them with the classes and tables that they name.
"""

from __future__ import annotations

from collections.abc import Mapping

from sparse_bo.problems.names import TABLES

POLICIES: Mapping[str, str] = {
    "bbkb": "BBKB",
    "bkb": "BKB",
    "botorch-ucb": "BoTorchUCB",
    "bpe": "BPE",
    "epsilon-greedy": "EpsilonGreedy",
    "expected-improvement": "ExpectedImprovement",
    "gp-bucb": "GPBUCB",
    "gp-ucb": "GPUCB",
    "gssbo": "GSSBO",
    "hesbo": "HeSBO",
    "mini-meta": "MiniMETA",
    "posterior-epsilon-greedy": "PosteriorEpsilonGreedy",
    "qff-ts": "QFFTS",
    "qff-ts-arms": "QFFTSArms",
    "random": "RandomSearch",
    "rembo": "REMBO",
    "rssbo": "RSSBO",
    "s-gp-ts": "SGPTS",
    "s-gp-ts-arms": "SGPTSArms",
    "sbpe": "SBPE",
    "sparse-ucb": "SparseUCB",
    "trust-region": "TrustRegion",
    "two-stage": "TwoStage",
    "vecchia-ucb": "VecchiaUCB",
}
"""Name -> class in :mod:`sparse_bo.policies`."""
SYNTHETIC = ("eggholder2", "hartmann6", "levy20", "powell50", "rastrigin100")
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
"""Name -> class in :mod:`sparse_bo.dictionary`; these samplers need a size."""
SAMPLERS = ("leverage", "recursive-rls", *SIZED_SAMPLERS)
MATERN: Mapping[str, float] = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
"""Name -> smoothness of a Matérn kernel."""
KERNELS = ("rbf", *MATERN, "learned")
PRECISIONS = ("float64", "float32")
PRESETS = ("learned", "published")
"""Initial settings of a policy on the two data sets: everything learned, or the settings of the published experiments."""
