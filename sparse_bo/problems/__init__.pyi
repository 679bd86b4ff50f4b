from .base import BoxProblem, Problem, Repeatable, repeatable, ticket_noise
from .builtin import SYNTHETIC, abalone, cadata, gp_draw, scaled, synthetic
from .custom import OwnProblem, own_problem

__all__ = [
    "SYNTHETIC",
    "BoxProblem",
    "OwnProblem",
    "Problem",
    "Repeatable",
    "abalone",
    "cadata",
    "gp_draw",
    "own_problem",
    "repeatable",
    "scaled",
    "synthetic",
    "ticket_noise",
]
