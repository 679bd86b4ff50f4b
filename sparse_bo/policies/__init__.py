"""Policies over finite arm sets: frozen choices of parts, with pure ``init / ask / tell`` on a state value."""

from sparse_bo.policies.base import BanditState, Policy, Proposal
from sparse_bo.policies.baselines import EpsilonGreedy, RandomSearch
from sparse_bo.policies.bbkb import BBKB
from sparse_bo.policies.bkb import BKB
from sparse_bo.policies.gp_ucb import GPBUCB, GPUCB

__all__ = ["BBKB", "BKB", "GPBUCB", "GPUCB", "BanditState", "EpsilonGreedy", "Policy", "Proposal", "RandomSearch"]
