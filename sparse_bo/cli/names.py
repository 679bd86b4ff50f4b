"""What can be chosen by name. Imports nothing, so that ``--help`` answers at once."""

from __future__ import annotations

POLICIES = {
    "bbkb": "BBKB",
    "bkb": "BKB",
    "gp-ucb": "GPUCB",
    "gp-bucb": "GPBUCB",
    "sbpe": "SBPE",
    "bpe": "BPE",
    "mini-meta": "MiniMETA",
    "s-gp-ts-arms": "SGPTSArms",
    "qff-ts-arms": "QFFTSArms",
    "epsilon-greedy": "EpsilonGreedy",
    "posterior-epsilon-greedy": "PosteriorEpsilonGreedy",
    "random": "RandomSearch",
    "gssbo": "GSSBO",
    "rssbo": "RSSBO",
    "botorch-ucb": "BoTorchUCB",
    "sparse-ucb": "SparseUCB",
    "vecchia-ucb": "VecchiaUCB",
    "s-gp-ts": "SGPTS",
    "qff-ts": "QFFTS",
    "rembo": "REMBO",
    "hesbo": "HeSBO",
}
"""Name on the command line -> class in :mod:`sparse_bo.policies`."""
SIZED_SAMPLERS = {
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
KERNELS = ("rbf", "matern12", "matern32", "matern52", "learned")
PRECISIONS = ("float64", "float32", "tf32")
