"""The trust-region policy on published problems with several objectives or constraints, with few evaluations."""

import math

import pytest
import torch
from botorch import test_functions

from sparse_bo import optimize
from sparse_bo.policies import TrustRegion
from sparse_bo.policies.outcomes import Outcomes
from tests.builders import unit_box
from tests.policies.builders import searched


def volume(problem, *, reference, budget, limits=None, seed=0):
    """Return the hypervolume after a search of a problem of BoTorch, whose objectives are minimised."""
    problem = problem.double()
    names = [f"f{j}" for j in range(problem.num_objectives)]
    outcomes = Outcomes.of(dict.fromkeys(names, "min"), limits, dict.fromkeys(names, reference))
    slacks = (lambda X: torch.cat([problem(X), problem.evaluate_slack(X)], dim=-1)) if limits else problem
    _, state = searched(TrustRegion(batch_size=8), problem.bounds, outcomes, slacks, budget=budget, seed=seed)
    return state.report().hypervolume


@pytest.mark.slow
def test_the_front_of_zdt1_is_reached():
    assert volume(test_functions.ZDT1(dim=6), reference=11.0, budget=44) > 120.4  # of 120.66


@pytest.mark.slow
def test_the_front_of_dtlz2_is_reached():
    assert volume(test_functions.DTLZ2(dim=4, num_objectives=2), reference=1.1, budget=40) > 0.37  # of 0.4246


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_ends_of_a_front_are_found(seed):
    """Below the front that was reached, points beyond its ends would have no improvement."""
    outcomes = Outcomes.of({"yield": "max", "cost": "min"}, {"impurity": (None, 0.05)})

    def reactor(X):
        heat, hours = X.unbind(-1)
        return torch.stack([heat * hours, hours + heat.square(), 0.1 * heat], dim=-1)

    bounds = torch.tensor([[0.0, 1.0], [1.0, 12.0]], dtype=torch.float64)
    _, state = searched(TrustRegion(), bounds, outcomes, reactor, budget=13, seed=seed)
    best = state.Y[state.report().front, 0].max()
    assert best > 5.2  # of 6, at heat 0.5 and 12 hours


@pytest.mark.slow
def test_three_objectives_are_searched():
    assert volume(test_functions.DTLZ2(dim=4, num_objectives=3), reference=1.1, budget=24) > 0.4  # of 0.8; random points 0.36


@pytest.mark.slow  # at each change the reactor above has a front and a limit
def test_a_constrained_front_is_reached():
    assert (
        volume(test_functions.C2DTLZ2(dim=4, num_objectives=2), limits={"c": (0.0, None)}, reference=1.1, budget=32) > 0.28
    )  # of 0.4


def welded_beam(X):
    """Cost of a welded beam and what limits it (Coello & Mezura-Montes 2002, "Constraint-handling in genetic algorithms")."""
    h, length, t, b = X.unbind(-1)
    load, arm, young, shear = 6000.0, 14.0, 30e6, 12e6
    moment, radius = load * (arm + length / 2), (length.square() / 4 + ((h + t) / 2).square()).sqrt()
    inertia = 2.0 * (math.sqrt(2.0) * h * length * (length.square() / 12 + ((h + t) / 2).square()))
    direct, bending = load / (math.sqrt(2.0) * h * length), moment * radius / inertia
    stress = (direct.square() + direct * bending * length / radius + bending.square()).sqrt()
    buckling = 4.013 * young * (t.square() * b**6 / 36).sqrt() / arm**2 * (1.0 - t / (2 * arm) * math.sqrt(young / (4 * shear)))
    cost = 1.10471 * h.square() * length + 0.04811 * t * b * (14.0 + length)
    normal, deflection = 6 * load * arm / (b * t.square()), 4 * load * arm**3 / (young * t**3 * b)
    return torch.stack([cost, stress, normal, h - b, deflection, buckling], dim=-1)


BEAM = Outcomes.of(
    {"cost": "min"},
    {
        "stress": (None, 13_600.0),
        "normal": (None, 30_000.0),
        "weld": (None, 0.0),
        "deflection": (None, 0.25),
        "buckling": (6_000.0, None),
    },
)


def beam(budget, seed=0):
    bounds = torch.tensor([[0.125, 0.1, 0.1, 0.1], [10.0, 10.0, 10.0, 10.0]], dtype=torch.float64)
    return searched(TrustRegion(batch_size=8), bounds, BEAM, welded_beam, budget=budget, seed=seed)[1].report()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_cheapest_beam_is_found(seed):
    """Few random beams carry their load."""
    assert beam(250, seed).best_mean == pytest.approx(1.7249, abs=0.02)


@pytest.mark.slow
def test_ackley_with_two_constraints_is_solved():
    def ackley(X):
        value = -20.0 * torch.exp(-0.2 * X.square().mean(dim=-1).sqrt()) - torch.exp(torch.cos(2 * math.pi * X).mean(dim=-1))
        return torch.stack([value + 20.0 + math.e, X.sum(dim=-1), X.norm(dim=-1)], dim=-1)

    bounds = 15.0 * unit_box(10) - 5.0
    outcomes = Outcomes.of({"value": "min"}, {"sum": (None, 0.0), "norm": (None, 5.0)})
    _, state = searched(TrustRegion(), bounds, outcomes, ackley, budget=200)
    assert state.report().best_mean < 0.5


def test_the_lightest_gear_is_found_where_models_know_the_limits():
    """Eleven limits of seven inputs: an edge as steep as the models know it ends climbs at 3,000 and more."""
    gear = test_functions.SpeedReducer().double()
    limits = [f"slack{j}" for j in range(gear.num_constraints)]

    def measured(x):
        X = x.unsqueeze(0)
        return {"weight": float(gear(X)), **dict(zip(limits, gear.evaluate_slack(X)[0].tolist(), strict=True))}

    result = optimize(
        measured,
        bounds=gear.bounds,
        objectives={"weight": "min"},
        constraints=dict.fromkeys(limits, (0.0, None)),
        budget=20,
        seed=40,
        vectorized=False,
    )
    assert result.best_mean < 2_998.0  # of 2,996.3
