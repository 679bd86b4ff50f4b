"""Results near the largest number there is: the picks are those of the same results scaled down."""

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
    "one of few": lambda X: torch.where(X[:, 0] > 0.9, 1.0, -0.25 * X[:, 1]),
}


@pytest.mark.filterwarnings("ignore:observations, or differences of repeats")
@pytest.mark.parametrize("largest", [1e290, 1e308, 1.7e308])
def test_picks_are_those_of_results_scaled_down(largest, device):
    rule = StopRule("global", 3.0)
    for seed in range(5):
        p = random_problem(seed, a=60, pulls=20, noise=0.01, device=device)
        y = p.y / p.y.abs().max()
        indices = []
        for unit in (1e280, largest):
            posterior = arm_posterior(replace(p, y=y * unit).posterior(), width=2.0, stop_rule=rule)
            assert bool(posterior.means.isfinite().all())
            indices.append(pick_batch(posterior, width=2.0, stop_rule=rule, max_q=1).indices.tolist())
        assert indices[0] == indices[1], seed


def test_a_posterior_that_is_not_finite_is_said_to_be():
    posterior = random_problem(1).posterior()
    posterior = replace(posterior, means=posterior.means * torch.nan)
    with pytest.raises(ValueError, match="divide the objective by its largest value"):
        pick_batch(posterior, width=2.0, stop_rule=StopRule("single"), max_q=1)


def run(policy, results, unit, **settings):
    loop = AskTell(ARMS, policy(**settings), seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while len(loop.history.indices) < 40:
            batch = loop.ask(4)
            loop.tell(batch.tickets, unit * RESULTS[results](batch.X))
    return loop.history.indices


@pytest.mark.sampled
@pytest.mark.parametrize("results", RESULTS)
@pytest.mark.parametrize("policy", [BBKB, GPUCB])
def test_with_a_given_prior_a_run_is_that_of_results_scaled_down(policy, results):
    prior = {"covar_module": rbf_kernel(0.3), "regularization": 0.1}
    assert run(policy, results, 1e308, **prior) == run(policy, results, 1e200, **prior)
