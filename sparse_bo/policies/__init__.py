"""Policies over arm sets and boxes: frozen choices of parts, with pure ``init / ask / tell`` on a state value."""

from sparse_bo.policies.arm_states import BanditState
from sparse_bo.policies.baselines import EpsilonGreedy, RandomSearch
from sparse_bo.policies.botorch.embedded_search import REMBO, HeSBO
from sparse_bo.policies.botorch.gssbo import GSSBO, RSSBO
from sparse_bo.policies.botorch.surrogate_state import SurrogateState
from sparse_bo.policies.botorch.thompson import QFFTS, SGPTS
from sparse_bo.policies.botorch.ucb import BoTorchUCB, SparseUCB, VecchiaUCB
from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.elimination.regression import RegressionDesign, max_variance_design
from sparse_bo.policies.elimination.sbpe import BPE, SBPE
from sparse_bo.policies.elimination.schedule import batch_schedule
from sparse_bo.policies.elimination.state import EliminationState
from sparse_bo.policies.posterior.greedy import PosteriorEpsilonGreedy
from sparse_bo.policies.posterior.thompson import QFFTSArms, SGPTSArms
from sparse_bo.policies.protocol import Mechanism, Policy, Proposal, Wait
from sparse_bo.policies.region.arm_state import ImprovementState
from sparse_bo.policies.region.improvement import ExpectedImprovement
from sparse_bo.policies.region.policy import TrustRegion
from sparse_bo.policies.region.state import RegionState
from sparse_bo.policies.states import Report, State
from sparse_bo.policies.two_stage import TwoStage
from sparse_bo.policies.ucb.bbkb import BBKB
from sparse_bo.policies.ucb.bkb import BKB
from sparse_bo.policies.ucb.gp_ucb import GPBUCB, GPUCB
from sparse_bo.policies.ucb.mini_meta import MiniMETA

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
    "ExpectedImprovement",
    "HeSBO",
    "ImprovementState",
    "Mechanism",
    "MiniMETA",
    "Policy",
    "PosteriorEpsilonGreedy",
    "Proposal",
    "QFFTSArms",
    "RandomSearch",
    "RegionState",
    "RegressionDesign",
    "Report",
    "SGPTSArms",
    "SparseUCB",
    "State",
    "SurrogateState",
    "TrustRegion",
    "TwoStage",
    "VecchiaUCB",
    "Wait",
    "batch_schedule",
    "max_variance_design",
]
