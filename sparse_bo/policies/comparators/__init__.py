"""Policies that the papers compare with: random search, Thompson sampling, REMBO, HeSBO, mini-META, GP-UCB by BoTorch."""

from sparse_bo.policies.bandits.policy import MiniMETA
from sparse_bo.policies.comparators.baselines import EpsilonGreedy, PosteriorEpsilonGreedy, PosteriorPolicy, RandomSearch
from sparse_bo.policies.comparators.surrogate_ucb import REMBO, BoTorchUCB, HeSBO, SparseUCB, VecchiaUCB
from sparse_bo.policies.comparators.thompson import QFFTS, SGPTS, QFFTSArms, SGPTSArms

__all__ = [
    "QFFTS",
    "REMBO",
    "SGPTS",
    "BoTorchUCB",
    "EpsilonGreedy",
    "HeSBO",
    "MiniMETA",
    "PosteriorEpsilonGreedy",
    "PosteriorPolicy",
    "QFFTSArms",
    "RandomSearch",
    "SGPTSArms",
    "SparseUCB",
    "VecchiaUCB",
]
