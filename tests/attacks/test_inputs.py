"""What generated inputs and numbers found: each raised something else than a typed error."""

from __future__ import annotations

import math

import pytest
import torch

from sparse_bo import SparseGP, maximize
from sparse_bo.errors import NumericalWarning
from sparse_bo.policies import BBKB
from tests.journal.runs import arms


@pytest.mark.parametrize("offset", [-1e6, 1e30])
def test_values_near_the_largest_number_are_learned_from(offset):
    """Their distance from the mean, squared, is none any more: before an OverflowError ended the run."""
    generator = torch.Generator().manual_seed(0)

    def objective(X):
        return offset + 1e300 * torch.rand(len(X), generator=generator, dtype=torch.float64)

    with pytest.warns(NumericalWarning, match="1e\\+140 for the model"):
        result = maximize(objective, arms=arms(30), budget=16, policy=BBKB())
    assert math.isfinite(result.best_mean)
    assert result.best_mean > 1e139


@pytest.mark.parametrize(("inputs", "outputs"), [(5, 4), (4, 5)])
def test_inputs_and_outputs_of_other_lengths_are_named(inputs, outputs):
    with pytest.raises(ValueError, match=f"as many rows of each, got {inputs} of train_X, {outputs} of train_Y"):
        SparseGP(torch.rand(inputs, 2, dtype=torch.float64), torch.ones(outputs, 1, dtype=torch.float64))
