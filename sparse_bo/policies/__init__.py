"""Policies over arm sets and boxes: frozen choices of parts, with pure ``init / ask / tell`` on a state value."""

from sparse_bo.policies.base import Policy, Proposal
from sparse_bo.policies.baselines import EpsilonGreedy, RandomSearch
from sparse_bo.policies.bbkb import BBKB
from sparse_bo.policies.bkb import BKB
from sparse_bo.policies.embeddings import REMBO, HeSBO
from sparse_bo.policies.gp_ucb import GPBUCB, GPUCB
from sparse_bo.policies.gssbo import GSSBO, RSSBO
from sparse_bo.policies.mini_meta import MiniMETA
from sparse_bo.policies.posterior_greedy import PosteriorEpsilonGreedy
from sparse_bo.policies.regression import RegressionDesign, max_variance_design
from sparse_bo.policies.sbpe import BPE, SBPE
from sparse_bo.policies.sbpe_state import EliminationState
from sparse_bo.policies.schedule import batch_schedule
from sparse_bo.policies.sparse_ucb import SparseUCB, VecchiaUCB
from sparse_bo.policies.states import BanditState, BoxState, Report, State
from sparse_bo.policies.surrogate import BoTorchUCB, SurrogateState
from sparse_bo.policies.thompson import QFFTS, SGPTS
from sparse_bo.policies.thompson_arms import QFFTSArms, SGPTSArms

__all__ = [
    "BBKB",
    "BKB",
    "BPE",
    "GPBUCB",
    "GPUCB",
    "GSSBO",
    "QFFTS",
    "REMBO",
    "RSSBO",
    "SBPE",
    "SGPTS",
    "BanditState",
    "BoTorchUCB",
    "BoxState",
    "EliminationState",
    "EpsilonGreedy",
    "HeSBO",
    "MiniMETA",
    "Policy",
    "PosteriorEpsilonGreedy",
    "Proposal",
    "QFFTSArms",
    "RandomSearch",
    "RegressionDesign",
    "Report",
    "SGPTSArms",
    "SparseUCB",
    "State",
    "SurrogateState",
    "VecchiaUCB",
    "batch_schedule",
    "max_variance_design",
]
