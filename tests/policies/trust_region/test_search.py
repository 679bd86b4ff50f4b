"""The parts of a search on a box."""

from types import SimpleNamespace

import pytest
import torch

from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.gp.posterior import ProcessPrior, exact
from sparse_bo.policies.trust_region.gain import is_resolved
from sparse_bo.policies.trust_region.search import is_known
from tests.builders import arms


@pytest.mark.parametrize("dims", [1, 2, 5])
@pytest.mark.parametrize("known", [0, 1, 20])
def test_a_point_is_known_if_it_is_one_of_the_models_in_all_inputs(dims, known):
    generator = torch.Generator().manual_seed(dims)
    V = torch.randint(0, 3, (known, dims), generator=generator).double() / 2  # many agree in some inputs
    U = torch.randint(0, 3, (200, dims), generator=generator).double() / 2
    U += (torch.rand(200, dims, generator=generator, dtype=torch.float64) - 0.5) * 4e-9  # some are within 1e-9
    expected = [any(bool(((u - v).abs() < 1e-9).all()) for v in V) for u in U]
    assert is_known(SimpleNamespace(support=V), U).tolist() == expected
    if known == 20:
        assert 0 < sum(expected) < 200


@pytest.mark.parametrize(
    ("scale", "noise", "resolved"), [(1.0, 1e-6, False), (10.0, 1e-6, False), (1.0, 1e-2, True), (0.1, 1e-2, True)]
)
def test_noise_resolves_points_unless_the_objective_is_exact(scale, noise, resolved):
    """The least noise of a model of exact results is in units of the output scale."""
    X = arms(40, 1)
    kernel = Hyperparameters("rbf", torch.tensor([0.3], dtype=torch.float64), noise, 0.0, scale, 0.0)
    gp = exact(ProcessPrior(0.0, kernel, scale), X, scale**0.5 * X[:, 0], noise=noise)
    at = gp.moments(torch.tensor([[0.5]], dtype=torch.float64))
    assert float(at.variance) < 0.5 * noise * scale
    assert is_resolved(gp, at, share=0.5).item() is resolved
