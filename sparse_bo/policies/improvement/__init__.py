"""Expected improvement over arms, alone and as the first stage of an upper-confidence policy."""

from sparse_bo.policies.improvement.policy import ExpectedImprovement, ImprovementState
from sparse_bo.policies.improvement.two_stage import TwoStage

__all__ = ["ExpectedImprovement", "ImprovementState", "TwoStage"]
