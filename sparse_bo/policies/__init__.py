"""Policies over arm sets and boxes: frozen choices of parts, with pure ``init / ask / tell`` on a state value."""

from sparse_bo.policies.bandits.policy import BBKB, BKB, GPBUCB, GPUCB, MiniMETA
from sparse_bo.policies.bandits.state import BanditState
from sparse_bo.policies.comparators.baselines import EpsilonGreedy, PosteriorEpsilonGreedy, RandomSearch
from sparse_bo.policies.comparators.surrogate_ucb import REMBO, BoTorchUCB, HeSBO, SparseUCB, VecchiaUCB
from sparse_bo.policies.comparators.thompson import QFFTS, SGPTS, QFFTSArms, SGPTSArms
from sparse_bo.policies.elimination.policy import BPE, SBPE, RegressionDesign, max_variance_design
from sparse_bo.policies.elimination.settings import batch_schedule
from sparse_bo.policies.elimination.state import EliminationState
from sparse_bo.policies.improvement.policy import ExpectedImprovement, ImprovementState, TwoStage
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.protocol import Mechanism, Policy, Proposal, Wait
from sparse_bo.policies.states import BoxState, Report, State
from sparse_bo.policies.subset.gssbo import GSSBO, RSSBO
from sparse_bo.policies.subset.subsets import SurrogateState
from sparse_bo.policies.trust_region.policy import TrustRegion
from sparse_bo.policies.trust_region.region import RegionState

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
    "Outcomes",
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
