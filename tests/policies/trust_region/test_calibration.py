"""Predictions of the default on a box: right on average at random points, too high at its picks (decision 114)."""

import pytest
import torch

from sparse_bo import AskTell
from sparse_bo.problems import synthetic


@pytest.mark.slow
def test_the_default_is_calibrated_at_random_points_of_levy20():
    problem, draws = synthetic("levy20"), torch.Generator().manual_seed(0)
    loop, random, picked = AskTell(bounds=problem.bounds, budget=120, seed=0), [], []
    while loop.asked < 120:
        batch, state = loop.ask(), loop.state
        if state.fitted is not None:
            U = torch.rand(100, 20, generator=draws, dtype=torch.float64)
            for errors, at in ((random, U), (picked, state.box.to_unit(batch.X))):
                errors.append(state.fitted.errors(at, problem.function(state.box.from_unit(at))))
        loop.tell(batch.tickets, problem.function(batch.X))
    z = torch.cat(random)
    assert abs(float(z.mean())) < 0.2
    assert float(z.std()) < 1.5
    assert 0.5 < float((z.abs() < 1.0).double().mean()) < 0.86
    assert float(torch.cat(picked).mean()) < -1.0
