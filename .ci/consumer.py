"""A user's script: run with the installed wheel from another folder, and checked by mypy, for which it needs ``py.typed``."""

from pathlib import Path

import torch

import sparse_bo
from sparse_bo import maximize, problems


def objective(X: torch.Tensor) -> torch.Tensor:
    """Return the negative squared distance from the centre."""
    return -(X - 0.5).square().sum(-1)


result = maximize(objective, arms=torch.rand(50, 2, dtype=torch.float64), budget=10)
best: float | None = result.best_mean
wrong: str = result.best_mean  # type: ignore[assignment]  # an unused ignore is an error: mypy knows the type
assert best is not None
assert best <= 0.1
assert len(problems.cadata().arms) == 20_640, "the wheel has no data sets"
assert "site-packages" in Path(sparse_bo.__file__).parts, "this is the checkout, not the wheel"
