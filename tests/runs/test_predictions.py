"""The posterior that users see, in the objective's units."""

import pytest
import torch

from sparse_bo import AskTell, Choice, Float, Int, maximize
from sparse_bo.runs.predictions import predictions_of
from sparse_bo.runs.view import view_of_result

SPACE = {"lr": Float(1e-5, 1, log=True), "depth": Int(1, 12), "kind": Choice("tree", "linear", "net")}


def score(point):
    """Return README's example: 1 at best, −48 at a depth of 12."""
    return -((point["lr"] - 0.01) ** 2) - (point["depth"] - 5) ** 2 + (point["kind"] == "tree")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_slice_far_below_the_best_point_contains_the_value_there(seed):
    """A logarithmic warping clips what is far below: 0.975 ± 0.33 was shown at a depth of 12, where the value is −48."""
    found = view_of_result(maximize(score, space=SPACE, budget=30, seed=seed))
    depth = next(one for one in found.slices if one.name == "depth")
    at = list(depth.values).index(12)
    truth = score({**found.best, "depth": 12})
    assert depth.lower[at] <= truth <= depth.upper[at]
    assert bool((depth.lower <= depth.median).all())
    assert bool((depth.median <= depth.upper).all())


def observed(f, n=40):
    """Return the state after ``n`` observations at random, and their points."""
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    return AskTell(bounds=bounds, initial=(X, f(X)), seed=0).result().state, X


def bowl(X):
    return -((X - 0.3) ** 2).sum(-1)


def cliff(X):
    """Return a smooth function with a cliff to about −1e6 beyond 0.8."""
    return torch.where((X > 0.8).any(-1), -1e6 * X.sum(-1), bowl(X))


def test_clipped_observations_have_no_lower_bound_and_the_others_lie_in_their_intervals():
    state, X = observed(cliff)
    y, found = cliff(X), predictions_of(state, X)
    assert found.floor is not None
    clipped = y < found.floor
    assert 3 < int(clipped.sum()) < 35
    assert bool((found.lower[clipped] == -torch.inf).all())
    slack = 0.05 * float(y[~clipped].std())
    for side in (found.lower - slack <= y, y <= found.upper + slack):
        assert float(side.double().mean()) > 0.9


def test_intervals_without_clipped_observations_are_finite():
    state, X = observed(bowl)
    found = predictions_of(state, X)
    assert found.floor is None
    assert bool(torch.isfinite(found.lower).all())
    assert bool((found.lower <= found.median).all())
    assert bool((found.median <= found.upper).all())
    assert torch.allclose(found.median, bowl(X), atol=0.02)
