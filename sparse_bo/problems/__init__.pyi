from .base import BoxProblem, Problem, Repeatable, repeatable, ticket_noise
from .custom import OwnProblem, own_problem
from .synthetic import SYNTHETIC, gp_draw, synthetic
from .tables import abalone, cadata, scaled

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
