"""Policies that the papers compare with: random search, Thompson sampling, REMBO, HeSBO, mini-META, GP-UCB by BoTorch."""

from sparse_bo.policies.bandits.policy import MiniMETA
from sparse_bo.policies.comparators.baselines import EpsilonGreedy, RandomSearch
from sparse_bo.policies.comparators.embedded_search import REMBO, HeSBO
from sparse_bo.policies.comparators.posterior import PosteriorEpsilonGreedy, PosteriorPolicy
from sparse_bo.policies.comparators.surrogate_ucb import BoTorchUCB, SparseUCB, VecchiaUCB
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
