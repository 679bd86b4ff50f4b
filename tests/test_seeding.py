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


def _global_states():
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return [torch.get_rng_state(), *cuda], np.random.get_state(), random.getstate()  # noqa: NPY002


def _same(first, second):
    torch_same = all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    numpy_same = first[1][2:] == second[1][2:] and bool((first[1][1] == second[1][1]).all())
    return torch_same and numpy_same and first[2] == second[2]


def test_the_same_generator_gives_the_same_draws_and_the_next_section_others(device):
    draws = []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        for _ in range(2):
            with seeded(generator):
                draws.append(torch.cat([torch.rand(4), torch.rand(4, device=device).cpu()]))
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1], draws[3])
    assert not torch.equal(draws[0], draws[1])


def test_what_was_drawn_before_does_not_matter(generator):
    first = torch.Generator().manual_seed(1)
    with seeded(first):
        expected = torch.rand(3)
    with torch.random.fork_rng():
        torch.rand(17)
        with seeded(torch.Generator().manual_seed(1)):
            assert torch.equal(torch.rand(3), expected)


def test_the_global_generators_stay_untouched_by_botorch(generator, device):
    X = torch.rand(8, 2, generator=generator, dtype=torch.float64).to(device)
    model = SingleTaskGP(X, (X * X).sum(-1, keepdim=True))
    bounds = unit_box(device=device)

    def candidate(seed):
        with seeded(torch.Generator().manual_seed(seed)):
            acquisition = qUpperConfidenceBound(model, beta=2.0, sampler=SobolQMCNormalSampler(torch.Size([16])))
            return optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=8)[0]

    before = _global_states()
    first = candidate(5)
    assert _same(before, _global_states())
    assert torch.equal(first, candidate(5))
    assert not torch.equal(first, candidate(6))


def test_the_global_generator_is_put_back_after_an_exception(generator):
    def draw_and_fail():
        with seeded(generator):
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
    with pytest.raises(TypeError, match=r"expected a torch.Generator, got int; use torch.Generator\(\)"), seeded(3):
        pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="only CUDA has generators that are not on the CPU")
def test_generators_on_a_gpu_are_refused():
    with pytest.raises(ValueError, match="expected a CPU generator"), seeded(torch.Generator(device="cuda")):
        pass
