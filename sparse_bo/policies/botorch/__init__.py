"""Policies on a box through BoTorch's acquisition functions: GSSBO, RSSBO and comparators."""

from sparse_bo.policies.botorch.embedded_search import REMBO, HeSBO
from sparse_bo.policies.botorch.gssbo import GSSBO, RSSBO
from sparse_bo.policies.botorch.surrogate_state import SurrogateState
from sparse_bo.policies.botorch.thompson import QFFTS, SGPTS
from sparse_bo.policies.botorch.ucb import BoTorchUCB, SparseUCB, VecchiaUCB

__all__ = ["GSSBO", "QFFTS", "REMBO", "RSSBO", "SGPTS", "BoTorchUCB", "HeSBO", "SparseUCB", "SurrogateState", "VecchiaUCB"]
