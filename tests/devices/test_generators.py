"""The generators of another device: nothing of the package draws from them, or leaves them seeded."""

import pytest
import torch

from sparse_bo import GPUCB, AskTell
from sparse_bo.acquisition.feasible import check_feasible
from sparse_bo.policies import BoTorchUCB
from tests.builders import rbf_kernel, unit_box, waves

CPU = torch.device("cpu")


@pytest.fixture
def state(accelerator):
    return torch.get_device_module(accelerator).get_rng_state


def feasible(device):
    constraint = (torch.tensor([0, 1], device=device), torch.tensor([1.0, -1.0], dtype=torch.float64, device=device), 0.1)
    return check_feasible(unit_box(3, device=device), inequality=[constraint], equality=None, nonlinear=None, fixed={2: 0.5})


def test_samples_under_linear_constraints_are_those_on_the_cpu(accelerator, state):
    before = [torch.get_rng_state(), state()]
    got = feasible(accelerator).sample(16, generator=torch.Generator().manual_seed(1))
    assert all(map(torch.equal, before, [torch.get_rng_state(), state()]))  # before any other call seeds them alike
    expected = feasible(CPU).sample(16, generator=torch.Generator().manual_seed(1))
    assert torch.equal(got.cpu(), expected)
    assert bool((expected[:, 0] - expected[:, 1] >= 0.1 - 1e-6).all())


@pytest.mark.parametrize(
    "policy",
    [BoTorchUCB(initial_design=4, num_restarts=2, raw_samples=8), GPUCB(covar_module=rbf_kernel(0.3), regularization=0.05)],
    ids=lambda policy: policy.name,
)
def test_a_run_leaves_them_as_they_were(policy, accelerator, state):
    before = [torch.get_rng_state(), state()]
    AskTell(bounds=unit_box(device=accelerator), policy=policy, seed=0).run(waves, 7)
    assert all(map(torch.equal, before, [torch.get_rng_state(), state()]))
