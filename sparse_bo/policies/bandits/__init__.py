"""Upper-confidence policies: BKB, BBKB, GP-UCB and GP-BUCB, over arms and boxes."""

from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.bbkb import BBKB
from sparse_bo.policies.bandits.bkb import BKB
from sparse_bo.policies.bandits.box_mechanism import BoxUCB, BoxUCBState
from sparse_bo.policies.bandits.gp_ucb import GPBUCB, GPUCB
from sparse_bo.policies.bandits.policy import UCBPolicy
from sparse_bo.policies.bandits.state import BanditState

__all__ = ["BBKB", "BKB", "GPBUCB", "GPUCB", "ArmUCB", "BanditState", "BoxUCB", "BoxUCBState", "UCBPolicy"]
