"""This package's policies as methods: ``maximize`` with no settings, with a policy by name, or with an expression."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

import sparse_bo
from sparse_bo import AskTell, maximize, policies
from sparse_bo.cli.presets import make_policy
from sparse_bo.policies import Policy
from sparse_bo.runs.history import HistoryRow
from sparse_bo.runs.result import Result

from .problems import Task
from .trace import Trace

__all__ = ["NAMED", "MakePolicy", "from_expression", "run_ours"]

MakePolicy = Callable[[Task, int], Policy | None]
"""From a task and a budget to a policy; ``None``: no settings."""


def run_ours(make: MakePolicy, task: Task, trace: Trace, seed: int) -> None:
    """Run ``maximize`` until the budget is spent.

    Args:
        make: The policy.
        task: Box or table.
        trace: Evaluates; recommended is ``Result.best_x``, on a table ``best_index``.
        seed: Of the run.

    Raises:
        TimeOver: If its time is over before the budget is.
    """

    def offer(loop: AskTell, row: HistoryRow) -> None:
        trace.offers(lambda: _recommended(loop.result()))

    policy = make(task, trace.budget)
    settings = {} if policy is None else {"policy": policy}
    how = task.problem.call_with
    maximize(trace.evaluate, **task.problem.domain, budget=trace.budget, seed=seed, call_with=how, callback=offer, **settings)


def _recommended(result: Result) -> Tensor | None:
    """Return the best arm (a scalar), on a box the best point (``d``)."""
    return result.best_x if result.best_index is None else torch.tensor(result.best_index)


def from_expression(text: str) -> MakePolicy:
    """Return what makes a policy from Python such as ``BBKB(width=1.5)``: names are those of the package and its policies.

    Raises:
        ValueError: If it is no such expression, or gives something else than a policy.
    """
    names = {**vars(sparse_bo.policies), **{name: getattr(sparse_bo, name) for name in sparse_bo.__all__}}

    def make(_: Task | None = None, budget: int = 100) -> Policy:
        try:
            made = eval(text, {**names, "budget": budget})  # whoever starts a benchmark may run any code
        except Exception as error:
            raise ValueError(f"{text!r} makes no policy: {type(error).__name__}: {error}") from error
        if not isinstance(made, Policy) or isinstance(made, type):
            raise ValueError(f"expected an expression for a policy, such as BBKB(width=1.5), got {text!r}")
        return made

    make()
    return make


def _published(name: str) -> MakePolicy:
    return lambda task, budget: make_policy(name, {}, problem=task.problem.name, budget=budget)


NAMED: Mapping[str, MakePolicy] = {
    "default": lambda *_: None,
    "bbkb-published": _published("bbkb"),
    "gp-ucb": _published("gp-ucb"),
    "epsilon-greedy": lambda *_: policies.EpsilonGreedy(),
    "random": lambda *_: policies.RandomSearch(batch_size=10),
}
