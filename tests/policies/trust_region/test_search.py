"""The parts of a search on a box."""

from types import SimpleNamespace

import pytest
import torch

from sparse_bo.policies.trust_region.search import is_known


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
