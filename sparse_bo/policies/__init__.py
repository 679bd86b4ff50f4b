"""Policies over arm sets and boxes: frozen choices of parts, with pure ``init / ask / tell`` on a state value."""

from sparse_bo.policies.base import Policy, Proposal
from sparse_bo.policies.baselines import EpsilonGreedy, RandomSearch
from sparse_bo.policies.bbkb import BBKB
from sparse_bo.policies.bkb import BKB
from sparse_bo.policies.embeddings import REMBO, HeSBO
from sparse_bo.policies.gp_ucb import GPBUCB, GPUCB
from sparse_bo.policies.gssbo import GSSBO, RSSBO
from sparse_bo.policies.sparse_ucb import SparseUCB, VecchiaUCB
from sparse_bo.policies.states import BanditState, BoxState, Report, State
from sparse_bo.policies.surrogate import BoTorchUCB, SurrogateState
from sparse_bo.policies.thompson import QFFTS, SGPTS

__all__ = [
    "BBKB",
    "BKB",
    "GPBUCB",
    "GPUCB",
    "GSSBO",
    "QFFTS",
    "REMBO",
    "RSSBO",
    "SGPTS",
    "BanditState",
    "BoTorchUCB",
    "BoxState",
    "EpsilonGreedy",
    "HeSBO",
    "Policy",
    "Proposal",
    "RandomSearch",
    "Report",
    "SparseUCB",
    "State",
    "SurrogateState",
    "VecchiaUCB",
]
