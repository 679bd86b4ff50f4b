"""Upper-confidence policies: BKB, BBKB and their exact forms, over arms and boxes."""

from sparse_bo.policies.ucb.arms import ArmUCB
from sparse_bo.policies.ucb.bbkb import BBKB
from sparse_bo.policies.ucb.bkb import BKB
from sparse_bo.policies.ucb.box import BoxUCB, BoxUCBState
from sparse_bo.policies.ucb.gp_ucb import GPBUCB, GPUCB
from sparse_bo.policies.ucb.mini_meta import MiniMETA
from sparse_bo.policies.ucb.policy import UCBPolicy

__all__ = ["BBKB", "BKB", "GPBUCB", "GPUCB", "ArmUCB", "BoxUCB", "BoxUCBState", "MiniMETA", "UCBPolicy"]
