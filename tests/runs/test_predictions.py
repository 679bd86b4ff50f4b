"""The posterior that users see, in the objective's units."""

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Choice, Float, Int, maximize
from sparse_bo.runs.predictions import predictions_of
from sparse_bo.runs.view import view_of_result

SPACE = {"lr": Float(1e-5, 1, log=True), "depth": Int(1, 12), "kind": Choice("tree", "linear", "net")}


def score(point):
    """Return README's example: 1 at best, −48 at a depth of 12."""
    return -((point["lr"] - 0.01) ** 2) - (point["depth"] - 5) ** 2 + (point["kind"] == "tree")


@pytest.mark.parametrize("seed", [0, 1])
def test_slices_far_below_the_best_point_have_no_lower_bound(seed):
    """A logarithmic warping clips what is far below: 0.975 ± 0.33 was shown at a depth of 12, where the value is −48."""
    found = view_of_result(maximize(score, space=SPACE, budget=30, seed=seed))
    slices = {one.name: one for one in found.slices}
    inside = []
    for name in ("depth", "kind"):
        one = slices[name]
        for value, lower, median, upper in zip(one.values, one.lower, one.median, one.upper, strict=True):
            truth = score({**found.best, name: value})
            inside.append(lower - 0.05 <= truth <= upper + 0.05)
            assert lower <= median <= upper
    assert np.mean(inside) > 0.8
    deepest = slices["depth"].lower[slices["depth"].values.index(12)]
    assert np.isneginf(deepest) or deepest < -40.0


def told(f, n=40):
    """Return a run on a box and its evaluated points."""
    loop = AskTell(bounds=torch.tensor([[0.0, 0.0], [1.0, 1.0]]).double(), seed=0)
    result = loop.run(f, n)
    return result, torch.tensor(result.history.points, dtype=torch.float64)


def cliff(X):
    """Return a smooth hill with a cliff to −1e6 at the border of a quarter."""
    top = -((X - 0.3) ** 2).sum(-1)
    return torch.where((X > 0.6).any(-1), -1e6 * X.sum(-1), top)


def test_clipped_observations_have_no_lower_bound_and_the_others_lie_in_their_intervals():
    result, X = told(cliff)
    y = cliff(X)
    found = predictions_of(result.state, X)
    assert found.floor is not None
    assert bool((y < found.floor).any())
    assert bool((found.lower[y < found.floor] == -torch.inf).all())
    slack = 0.05 * float(y[y >= found.floor].std())
    for side in (found.lower - slack <= y, y <= found.upper + slack):
        assert float(side.double().mean()) > 0.9


def test_intervals_without_clipped_observations_are_finite():
    def bowl(X):
        return -((X - 0.3) ** 2).sum(-1)

    result, X = told(bowl)
    found = predictions_of(result.state, X)
    assert found.floor is None
    assert bool(torch.isfinite(found.lower).all())
    assert bool((found.lower <= found.median).all())
    assert bool((found.median <= found.upper).all())
    assert torch.allclose(found.median, bowl(X), atol=0.02)
