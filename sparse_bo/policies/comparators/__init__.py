"""Policies that the papers compare with: random search, Thompson sampling, REMBO, HeSBO, mini-META, GP-UCB by BoTorch."""

from sparse_bo.policies.bandits.policy import MiniMETA
from sparse_bo.policies.comparators.arm_thompson import QFFTSArms, SGPTSArms
from sparse_bo.policies.comparators.baselines import EpsilonGreedy, RandomSearch
from sparse_bo.policies.comparators.box_thompson import QFFTS, SGPTS
from sparse_bo.policies.comparators.embedded_search import REMBO, HeSBO
from sparse_bo.policies.comparators.posterior_policy import PosteriorEpsilonGreedy, PosteriorPolicy
from sparse_bo.policies.comparators.surrogate_ucb import BoTorchUCB, SparseUCB, VecchiaUCB

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
