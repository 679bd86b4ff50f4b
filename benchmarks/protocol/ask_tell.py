"""Methods as a pair of ask and tell in the unit cube, and the loop that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from .problems import Task
from .trace import Trace

__all__ = ["Peer", "run_peer"]


class Peer(Protocol):
    """A method on the unit cube."""

    def ask(self, left: int) -> Tensor:
        """Return at most ``left`` points, ``q x d``."""
        ...

    def tell(self, X: Tensor, y: Tensor) -> None:
        """Take in their values, ``q``; they are those of the last ask."""
        ...

    def recommend(self) -> Tensor | None:
        """Return the point (``d``) that it holds to be the best; ``None`` before there is any."""
        ...


def run_peer(make: Callable[[int, int, int], Peer], task: Task, trace: Trace, seed: int) -> None:
    """Run a method until the budget is spent.

    Args:
        make: From inputs, budget and seed to the method. Torch's global generator, which BoTorch uses, has the seed too.
        task: A box.
        trace: Evaluates.
        seed: Of the method.

    Raises:
        TimeOver: If its time is over before the budget is.
    """
    torch.manual_seed(seed)
    lower, upper = task.problem.bounds
    peer = make(lower.numel(), trace.budget, seed)
    while trace.left:
        X = peer.ask(trace.left)
        y = trace.evaluate(lower + (upper - lower) * X)
        peer.tell(X, y)
        trace.offers(lambda: _on_box(peer.recommend(), lower, upper))


def _on_box(point: Tensor | None, lower: Tensor, upper: Tensor) -> Tensor | None:
    return None if point is None else lower + (upper - lower) * point
