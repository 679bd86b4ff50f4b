"""Policies whose model is fitted to a subset of the observations: GSSBO and RSSBO, through BoTorch's acquisition functions."""

from sparse_bo.policies.subset.gssbo import GSSBO, RSSBO
from sparse_bo.policies.subset.subsets import SurrogateState

__all__ = ["GSSBO", "RSSBO", "SurrogateState"]
