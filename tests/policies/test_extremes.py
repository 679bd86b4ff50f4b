"""Objectives with values up to the largest numbers: every policy goes on, and its report is of numbers."""

import math

import pytest
import torch

from sparse_bo import BBKB, GPUCB, GSSBO, SBPE, AskTell, TrustRegion, maximize, optimize
from sparse_bo.gp.expected_improvement import hypervolume
from sparse_bo.policies import (
    GPBUCB,
    QFFTS,
    SGPTS,
    EpsilonGreedy,
    ExpectedImprovement,
    MiniMETA,
    PosteriorEpsilonGreedy,
    SGPTSArms,
    SparseUCB,
    TwoStage,
)
from sparse_bo.policies.subset.surrogate_loop import SurrogateSettings
from tests.builders import arms, unit_box

LARGEST = 1e308
LOOP = {"initial_design": 4, "num_restarts": 1, "raw_samples": 8}
OVER_ARMS = [
    *(BBKB(), GPUCB(), GPBUCB(), MiniMETA(), TwoStage(after=14), ExpectedImprovement(), SGPTSArms()),
    *(PosteriorEpsilonGreedy(), EpsilonGreedy()),
]
ON_BOXES = [
    *(BBKB(), GPUCB(), TrustRegion(), TrustRegion(goal="cumulative"), GSSBO(**LOOP), SparseUCB(**LOOP)),
    *(SGPTS(**LOOP), QFFTS(**LOOP)),
]


def wave(X):
    return torch.sin(5.0 * X[:, 0]) * torch.cos(3.0 * X[:, 1])


OBJECTIVES = {
    "all large": lambda X: LARGEST * wave(X),
    "two values": lambda X: LARGEST * torch.where(X[:, 0] > 0.5, 1.0, -1.0).to(X),
    "some very low": lambda X: torch.where(X[:, 0] > 0.8, -LARGEST * torch.ones_like(X[:, 0]), wave(X)),
    "some very high": lambda X: torch.where(X[:, 0] > 0.8, LARGEST * torch.ones_like(X[:, 0]), wave(X)),
    "all small": lambda X: wave(X) / LARGEST,
}


@pytest.mark.filterwarnings(
    "ignore"
)  # of hyper-parameters that cannot be learned, and of a best point that is far from the rest
@pytest.mark.sampled(5)
@pytest.mark.parametrize("kind", OBJECTIVES)
@pytest.mark.parametrize(
    ("domain", "policy"),
    [("arms", policy) for policy in OVER_ARMS] + [("box", policy) for policy in ON_BOXES],
    ids=lambda value: getattr(value, "name", value),
)
def test_values_up_to_the_largest_number(domain, policy, kind):
    keyword = {"arms": arms(40)} if domain == "arms" else {"bounds": unit_box(2)}
    searches = isinstance(policy, SurrogateSettings)  # by BoTorch's optimiser, whose searches of rough functions are long
    loop, budget = AskTell(policy=policy, seed=3, **keyword), 22 if domain == "arms" else 7 if searches else 14
    result = loop.run(OBJECTIVES[kind], budget)
    seen = [value for row in result.history.rows for value in row.values]
    assert len(seen) == budget
    assert result.best_observed_mean == pytest.approx(max(seen), rel=1e-9, abs=0.0)
    assert math.isfinite(result.best_mean)
    assert result.best_sd is None or math.isfinite(result.best_sd)


def bowl(X, at):
    return -(X - at).square().sum(dim=-1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("goal", ["best", "cumulative"])
@pytest.mark.parametrize("size", [LARGEST, 1e-300])
def test_the_size_of_an_objective_changes_no_search(size, goal):
    result = AskTell(bounds=unit_box(2), policy=TrustRegion(goal=goal), seed=0).run(lambda X: size * bowl(X, 0.3), 14)
    assert (result.best_x - 0.3).abs().max() < 0.01
    assert math.isfinite(result.best_mean)


@pytest.mark.slow
@pytest.mark.parametrize("size", [LARGEST, 1e-300])
def test_the_size_of_outcomes_changes_no_search(size):
    def outcomes(X):
        return size * torch.stack([bowl(X, 0.3), bowl(X, 0.6)], dim=-1)

    options = {"bounds": unit_box(2), "budget": 10, "seed": 0}
    front = optimize(outcomes, objectives={"a": "max", "b": "max"}, **options).pareto_front
    found = torch.tensor([point.x.tolist() for point in front], dtype=torch.float64)
    reference = torch.tensor([-0.2, -0.2], dtype=torch.float64)
    assert hypervolume(outcomes(found) / size, reference) > 0.0305  # of 0.0343
    best = optimize(outcomes, objectives={"a": "max"}, constraints={"b": (-0.045 * size, None)}, **options).best_x
    assert (torch.as_tensor(best) - 0.45).abs().max() < 0.05


def test_repeats_of_an_arm_do_not_overflow():
    loop = AskTell(arms(5), EpsilonGreedy(epsilon=0.0), seed=0)
    result = loop.run(lambda X: torch.full_like(X[:, 0], 1.5 * LARGEST), 9)
    assert result.best_observed_mean == 1.5 * LARGEST
    assert result.best_observed_count == 9


@pytest.mark.filterwarnings("ignore")
def test_elimination_names_values_that_its_bounds_cannot_hold():
    loop = AskTell(arms(40), SBPE(horizon=40), seed=0)
    batch = loop.ask()
    with pytest.raises(ValueError, match="noise has a variance from 1e-30 to 1e\\+30, got .*; scale the objective"):
        loop.tell(batch.tickets, (LARGEST * wave(batch.X)).tolist())


def test_a_penalty_hides_no_noise():
    """Differences of 0.3 are rounding of 10⁹, but not of the other observations."""
    found = []
    for penalty in (-1e3, -1e9):
        noise = torch.Generator().manual_seed(1)

        def objective(X, penalty=penalty, noise=noise):
            y = -10 * (X - 0.4).square().sum(-1) + 0.3 * torch.randn(len(X), generator=noise, dtype=torch.float64)
            return torch.where(X[:, 0] > 0.8, penalty, y)

        found.append(maximize(objective, bounds=unit_box(), budget=24, seed=1))
    assert found[1].best_sd == pytest.approx(found[0].best_sd, rel=0.1)
    assert found[1].best_mean == pytest.approx(found[0].best_mean, abs=0.05)


def test_a_penalty_hides_no_front():
    volumes = []
    for penalty in (-2.0, -1e9):

        def objective(X, penalty=penalty):
            first, second = (-(X - c).square().sum(-1) for c in (0.2, 0.6))
            return {name: torch.where(X[:, 1] > 0.8, penalty, y) for name, y in (("a", first), ("b", second))}

        how = {"objectives": {"a": "max", "b": "max"}, "reference": {"a": -1.0, "b": -1.0}}
        volumes.append(optimize(objective, bounds=unit_box(), **how, budget=20, seed=0).hypervolume)
    assert volumes[1] == pytest.approx(volumes[0], rel=0.02)
