"""Sections with seeded global generators: reproducible inside, invisible outside."""

import random

import numpy as np
import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

from sparse_bo.seeding import seeded
from tests.builders import unit_box

CPU = torch.device("cpu")


def _global_states(device=CPU):
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    other = [] if device.type in ("cpu", "cuda") else [torch.get_device_module(device).get_rng_state(0)]
    return [torch.get_rng_state(), *cuda, *other], np.random.get_state(), random.getstate()  # noqa: NPY002


def _same(first, second):
    torch_same = all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    numpy_same = first[1][2:] == second[1][2:] and bool((first[1][1] == second[1][1]).all())
    return torch_same and numpy_same and first[2] == second[2]


def test_the_same_generator_gives_the_same_draws_and_the_next_section_others(device):
    draws = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        for _ in range(2):
            with seeded(generator, device=device):
                draws.append(torch.cat([torch.rand(4), torch.rand(4, device=device).cpu()]))
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[3])
    assert not torch.equal(draws[0], draws[1])


def test_what_was_drawn_before_does_not_matter(generator):
    first = torch.Generator().manual_seed(1)
    with seeded(first, device=CPU):
        expected = torch.rand(3)
    with torch.random.fork_rng():
        torch.rand(17)
        with seeded(torch.Generator().manual_seed(1), device=CPU):
            assert torch.equal(torch.rand(3), expected)


def test_the_global_generators_stay_untouched_by_botorch(generator, device):
    X = torch.rand(8, 2, generator=generator, dtype=torch.float64).to(device)
    model = SingleTaskGP(X, (X * X).sum(-1, keepdim=True))
    bounds = unit_box(device=device)

    def candidate(seed):
        with seeded(torch.Generator().manual_seed(seed), device=device):
            acquisition = qUpperConfidenceBound(model, beta=2.0, sampler=SobolQMCNormalSampler(torch.Size([16])))
            return optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=8)[0]

    before = _global_states(device)
    first = candidate(5)
    assert _same(before, _global_states(device))
    assert torch.equal(first, candidate(5))
    assert not torch.equal(first, candidate(6))


def test_the_global_generator_is_put_back_after_an_exception(generator):
    def draw_and_fail():
        with seeded(generator, device=CPU):
            torch.rand(2)
            raise RuntimeError("boom")

    before = _global_states()
    with pytest.raises(RuntimeError, match="boom"):
        draw_and_fail()
    assert _same(before, _global_states())


def test_the_check_itself_notices_a_draw():
    with torch.random.fork_rng():
        before = _global_states()
        torch.rand(1)
        assert not _same(before, _global_states())


def test_bad_generators():
    with pytest.raises(TypeError, match=r"expected a torch.Generator, got int; use torch.Generator\(\)"), seeded(3, device=CPU):
        pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only CUDA has generators that are not on the CPU")
def test_generators_on_a_gpu_are_refused():
    with pytest.raises(ValueError, match="expected a CPU generator"), seeded(torch.Generator(device="cuda"), device=CPU):
        pass


def _draws(device):
    """Numbers of every kind that torch draws from a global generator."""
    x = torch.linspace(0.1, 0.9, 6, dtype=torch.float64).to(device)
    like = torch.empty(3, dtype=torch.float64, device=device)
    return [
        torch.rand(3, device=device),
        torch.randn(3, device=device),
        torch.randint(9, (3,), device=device),
        torch.randperm(5, device=device),
        torch.rand_like(like),
        torch.randn_like(like),
        torch.randint_like(like, 9),
        torch.normal(x, 2.0 * x),
        torch.multinomial(x, 3),
        x.multinomial(2),
        torch.bernoulli(x),
        torch.poisson(x),
        torch.distributions.Gamma(x, x).rsample(),
        torch.distributions.Normal(x, x).rsample(),
        *(getattr(like.clone(), f"{name}_")() for name in ("normal", "uniform", "exponential", "random", "bernoulli")),
        torch.rand(3),
    ]


def test_draws_on_another_device_are_those_on_the_cpu(accelerator):
    drawn = []
    for device in (CPU, accelerator):
        with seeded(torch.Generator().manual_seed(4), device=device):
            drawn.append(_draws(device))
    for expected, got in zip(*drawn, strict=True):
        assert torch.equal(expected, got.cpu())
    assert {x.device.type for x in drawn[1][:-1]} == {accelerator.type}


def test_a_generator_of_ones_own_is_left_alone(second):
    generator = torch.Generator().manual_seed(1)
    with seeded(torch.Generator().manual_seed(4), device=torch.device("second", 0)):
        got = torch.rand(3, generator=generator)
    assert torch.equal(got, torch.rand(3, generator=torch.Generator().manual_seed(1)))
