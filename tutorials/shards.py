"""Four ranks on one machine, each with a quarter of the arms: the script of shards.md.

torchrun --standalone --nproc-per-node 4 tutorials/shards.py
"""

import os

import torch

import sparse_bo
from sparse_bo.domains import ShardedArms

SIDE = 40 if os.environ.get("SMOKE_TEST") else 400


def measure(X: torch.Tensor) -> torch.Tensor:
    """Return what an evaluation gives, ``q``; called on rank 0 alone."""
    return torch.sin(5.0 * X[:, 0]) + X[:, 1] - (X[:, 2] - 0.3).square()


axis = torch.linspace(0.0, 1.0, SIDE, dtype=torch.float64)
grid = sparse_bo.ProductGrid([axis, axis, torch.linspace(0.0, 1.0, 4, dtype=torch.float64)])

arms = ShardedArms.split(grid)  # every rank keeps its quarter of the rows
result = sparse_bo.maximize(measure, arms=arms, budget=60, seed=0, storage="shards.journal", resume=True)

print(f"rank {arms.group.rank}: arms {arms.start:,} to {arms.start + len(arms.part) - 1:,} of {len(arms):,}; "
      f"best {result.best_index:,}", flush=True)  # fmt: skip
