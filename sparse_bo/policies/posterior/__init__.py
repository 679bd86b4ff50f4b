"""Policies over arms on BKB's posterior with another choice of arms: greedy and Thompson sampling."""

from sparse_bo.policies.posterior.greedy import PosteriorEpsilonGreedy
from sparse_bo.policies.posterior.policy import PosteriorPolicy
from sparse_bo.policies.posterior.thompson import QFFTSArms, SGPTSArms

__all__ = ["PosteriorEpsilonGreedy", "PosteriorPolicy", "QFFTSArms", "SGPTSArms"]
