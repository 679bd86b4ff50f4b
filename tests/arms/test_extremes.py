"""Results near the largest number there is: the picks are those of the same results scaled down."""

import math
import warnings
from dataclasses import replace

import pytest
import torch

from sparse_bo import AskTell
from sparse_bo.arms import StopRule, arm_posterior, pick_batch
from sparse_bo.policies import BBKB, GPUCB
from tests.arms.builders import random_problem
from tests.builders import rbf_kernel

ARMS = torch.rand(60, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
RESULTS = {
    "a wave": lambda X: torch.sin(6.0 * X[:, 0]),
    "two values": lambda X: torch.where(X[:, 0] > 0.5, 1.0, -1.0).to(X),
    "one of few": lambda X: torch.where(X[:, 0] > 0.9, 1.0, 1e-300 * X[:, 1]),
}


@pytest.mark.parametrize("largest", [1e290, 1e308, 1.7e308])
def test_picks_are_those_of_results_scaled_down(largest):
    rule = StopRule("global", 3.0)
    for seed in range(5):
        p = random_problem(seed, a=60, pulls=20, noise=0.01)
        y = p.y / p.y.abs().max()
        indices = []
        for unit in (1e280, largest):
            posterior = arm_posterior(replace(p, y=y * unit).posterior(), width=2.0, stop_rule=rule)
            assert bool(posterior.means.isfinite().all())
            indices.append(pick_batch(posterior, width=2.0, stop_rule=rule, max_q=1).indices.tolist())
        assert indices[0] == indices[1], seed


@pytest.mark.parametrize("results", RESULTS)
@pytest.mark.parametrize("given", [True, False], ids=["given prior", "learned prior"])
@pytest.mark.parametrize("policy", [BBKB, GPUCB])
def test_a_run_ends_and_its_best_arm_is_the_best(policy, given, results):
    settings = {"covar_module": rbf_kernel(0.3), "regularization": 0.1} if given else {}
    loop = AskTell(ARMS, policy(**settings), seed=0)
    f = RESULTS[results]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while len(loop.history.indices) < 40:
            batch = loop.ask(4)
            loop.tell(batch.tickets, 1e308 * f(batch.X))
    found = max(float(f(ARMS[index : index + 1])) for index in loop.history.indices)
    assert math.isfinite(found)
    assert found >= 0.95 * float(f(ARMS).max())
