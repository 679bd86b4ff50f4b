"""Upper-confidence policies: BKB, BBKB, GP-UCB, GP-BUCB and mini-META, over arms and boxes."""

from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.box_mechanism import BoxUCB, BoxUCBState
from sparse_bo.policies.bandits.policy import BBKB, BKB, GPBUCB, GPUCB, MiniMETA, UCBPolicy
from sparse_bo.policies.bandits.state import BanditState

__all__ = ["BBKB", "BKB", "GPBUCB", "GPUCB", "ArmUCB", "BanditState", "BoxUCB", "BoxUCBState", "MiniMETA", "UCBPolicy"]
