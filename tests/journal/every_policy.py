"""Every policy of the command line, on arms and on boxes, with settings that make a run of seconds."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from sparse_bo.cli.presets import make_policy
from sparse_bo.policies import BoTorchUCB, Policy
from sparse_bo.policies.bandits import box_mechanism as box_ucb
from sparse_bo.policies.subset import surrogate_loop

KERNEL = {"kernel": "rbf", "lengthscale": 0.4, "regularization": 0.05, "width": 2.0}
POSTERIOR = {"kernel": "rbf", "lengthscale": 0.4, "regularization": 0.05, "batch_size": 2}
SURROGATE = {"initial_design": 4, "num_restarts": 1, "raw_samples": 8}
BATCHES = {"batch_size": 2}
ELIMINATION = {**KERNEL, "regularization": 0.01, "width": "gaussian"}
ON_ARMS: dict[str, dict[str, Any]] = {
    "bbkb": {**KERNEL, "ratio_threshold": 3.0},
    "bkb": KERNEL,
    "gp-ucb": KERNEL,
    "gp-bucb": KERNEL,
    "sbpe": ELIMINATION,
    "bpe": ELIMINATION,
    "mini-meta": {**KERNEL, "ratio_threshold": 4.0},
    "s-gp-ts-arms": POSTERIOR,
    "qff-ts-arms": POSTERIOR,
    "epsilon-greedy": BATCHES,
    "expected-improvement": {"initial_design": 5, **BATCHES},
    "posterior-epsilon-greedy": {**POSTERIOR, "epsilon": 0.3},
    "random": BATCHES,
    "two-stage": {"after": 12},
}
ON_BOXES: dict[str, dict[str, Any]] = {
    "bbkb": {**KERNEL, "ratio_threshold": 3.0},
    "bkb": KERNEL,
    "gp-ucb": KERNEL,
    "gp-bucb": KERNEL,
    "sbpe": {**ELIMINATION, "candidates": 64},
    "bpe": {**ELIMINATION, "candidates": 64},
    "random": BATCHES,
    "gssbo": {**SURROGATE, "buffer": 6},
    "gssbo, all known": {**SURROGATE, "buffer": 6, "condition_on": "all"},
    "rssbo": {**SURROGATE, "buffer": 6},
    "botorch-ucb": {**SURROGATE, **BATCHES},
    "sparse-ucb": SURROGATE,
    "vecchia-ucb": {**SURROGATE, "neighbors": 3},
    "s-gp-ts": {**SURROGATE, **BATCHES},
    "qff-ts": {**SURROGATE, **BATCHES},
    "trust-region": {"initial_design": 3, **BATCHES},
    "trust-region, own sizes": {"initial_design": 3, "exploration": 0.5},
    "trust-region, every evaluation": {"initial_design": 3, "goal": "cumulative", **BATCHES},
    "rembo": {"target_dims": 1, "inner": BoTorchUCB(**SURROGATE)},
    "hesbo": {"target_dims": 1, "inner": BoTorchUCB(**SURROGATE)},
}
RUNS = [("arms", name) for name in ON_ARMS] + [("box", name) for name in ON_BOXES]
BUDGET = {"arms": 24, "box": 8}


def policy_of(domain: str, name: str) -> Policy:
    """Return the policy of one of :data:`RUNS`."""
    options = (ON_ARMS if domain == "arms" else ON_BOXES)[name]
    problem = "hartmann6" if domain == "box" else "gp-draw"
    return make_policy(name.split(",")[0], options, problem=problem, budget=BUDGET[domain])


def shorten_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches take a few steps: what is compared is the same search twice, however short it is."""
    short = {"options": {"maxiter": 4}}
    quick = functools.partial(box_ucb.optimize_batch, num_restarts=1, raw_samples=8, **short)
    monkeypatch.setattr(box_ucb, "optimize_batch", quick)
    monkeypatch.setattr(surrogate_loop, "optimize_acqf", functools.partial(surrogate_loop.optimize_acqf, **short))
