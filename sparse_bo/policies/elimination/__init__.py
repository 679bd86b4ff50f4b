"""Elimination policies, S-BPE and BPE, and regression designs."""

from sparse_bo.policies.elimination.policy import BPE, SBPE, RegressionDesign, max_variance_design
from sparse_bo.policies.elimination.settings import batch_schedule
from sparse_bo.policies.elimination.state import EliminationState

__all__ = ["BPE", "SBPE", "EliminationState", "RegressionDesign", "batch_schedule", "max_variance_design"]
