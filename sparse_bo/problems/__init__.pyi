from .builtin import (
    SYNTHETIC,
    BoxProblem,
    Problem,
    Repeatable,
    abalone,
    cadata,
    gp_draw,
    repeatable,
    scaled,
    synthetic,
    ticket_noise,
)
from .custom import OwnProblem, own_problem

SCALINGS: tuple[str, ...]
TABLES: tuple[str, ...]
GRID_EXAMPLE: str

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
