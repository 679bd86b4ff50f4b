"""Policies on a box through BoTorch's acquisition functions: GSSBO, RSSBO and comparators."""

from sparse_bo.policies.botorch.embeddings import REMBO, HeSBO
from sparse_bo.policies.botorch.gssbo import GSSBO, RSSBO
from sparse_bo.policies.botorch.sparse_ucb import SparseUCB, VecchiaUCB
from sparse_bo.policies.botorch.surrogate import BoTorchUCB, SurrogateState
from sparse_bo.policies.botorch.thompson import QFFTS, SGPTS

__all__ = ["GSSBO", "QFFTS", "REMBO", "RSSBO", "SGPTS", "BoTorchUCB", "HeSBO", "SparseUCB", "SurrogateState", "VecchiaUCB"]
