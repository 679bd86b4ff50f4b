import re

import pytest
import torch

from sparse_bo.dictionary import AllSampler, Candidates, FirstSampler, FixedSampler, Sampler, UniformSampler
from sparse_bo.dictionary.base import candidates_of
from sparse_bo.gp.observations import add_observations, no_observations


def _candidates(device: torch.device | str = "cpu") -> Candidates:
    """Arms 1, 3, 4, 6 and 8, first seen in the order 6, 1, 8, 3, 4."""
    arms = torch.arange(20.0, dtype=torch.float64, device=device).reshape(10, 2)
    indices = torch.tensor([6, 1, 6, 8, 3, 1, 4], device=device)
    observations = add_observations(no_observations(arms), arms, indices, torch.zeros(7, dtype=torch.float64, device=device))
    return candidates_of(observations, None)


def test_all_takes_every_distinct_input_and_draws_nothing(device: torch.device, generator: torch.Generator) -> None:
    before = generator.get_state()
    dictionary = AllSampler().sample(_candidates(device), generator=generator)
    assert dictionary.indices is not None
    assert dictionary.indices.tolist() == [1, 3, 4, 6, 8]
    assert dictionary.probabilities.tolist() == [1.0] * 5
    assert dictionary.m == 5
    assert torch.equal(generator.get_state(), before)


@pytest.mark.parametrize(("size", "expected"), [(1, [6]), (2, [1, 6]), (4, [1, 3, 6, 8]), (50, [1, 3, 4, 6, 8])])
def test_first_takes_those_seen_first(size: int, expected: list[int], device: torch.device, generator: torch.Generator) -> None:
    before = generator.get_state()
    candidates = _candidates(device)
    dictionary = FirstSampler(size=size).sample(candidates, generator=generator)
    assert dictionary.indices is not None
    assert dictionary.indices.tolist() == expected
    assert dictionary.points[:, 0].tolist() == [2.0 * i for i in expected]
    assert torch.equal(generator.get_state(), before)


def test_uniform_takes_each_input_equally_often(device: torch.device, generator: torch.Generator) -> None:
    rounds, candidates = 3000, _candidates(device)
    hits = torch.zeros(10)
    for _ in range(rounds):
        dictionary = UniformSampler(size=2).sample(candidates, generator=generator)
        assert dictionary.m == 2
        assert dictionary.probabilities.tolist() == [0.4, 0.4]
        hits[dictionary.indices.cpu()] += 1
    five_sigma = 5 * (0.4 * 0.6 / rounds) ** 0.5
    torch.testing.assert_close(hits[[1, 3, 4, 6, 8]] / rounds, torch.full((5,), 0.4), rtol=0, atol=five_sigma)


def test_uniform_indices_ascend_and_do_not_repeat(generator: torch.Generator) -> None:
    for _ in range(50):
        indices = UniformSampler(size=4).sample(_candidates(), generator=generator).indices.tolist()
        assert indices == sorted(set(indices))


def test_uniform_takes_all_while_there_are_fewer(generator: torch.Generator) -> None:
    dictionary = UniformSampler(size=9).sample(_candidates(), generator=generator)
    assert dictionary.m == 5
    assert dictionary.probabilities.tolist() == [1.0] * 5


def test_fixed_returns_the_users_points(device: torch.device, generator: torch.Generator) -> None:
    points = torch.tensor([[0.5, 0.5], [9.0, 9.0]], dtype=torch.float64, device=device)
    dictionary = FixedSampler(points=points).sample(_candidates(device), generator=generator)
    assert torch.equal(dictionary.points, points)
    assert dictionary.indices is None


@pytest.mark.parametrize(
    ("points", "error", "message"),
    [
        (torch.zeros(2, 3, dtype=torch.float64), ValueError, "expected points with 2 columns"),
        (torch.zeros(2, 2), TypeError, "expected points of dtype torch.float64"),
    ],
    ids=["width", "dtype"],
)
def test_fixed_points_must_fit_the_inputs(points: torch.Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        FixedSampler(points=points).sample(_candidates(), generator=torch.Generator())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: FirstSampler(size=0), "size >= 1"),
        (lambda: UniformSampler(size=0), "size >= 1"),
        (lambda: FixedSampler(points=torch.zeros(0, 2)), "at least one row"),
        (lambda: FixedSampler(points=torch.tensor([[0.0], [torch.nan]])), "first at row 1"),
    ],
    ids=["first", "uniform", "empty", "nan"],
)
def test_settings_that_make_no_sense_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize(
    "sampler", [AllSampler(), FirstSampler(size=1), UniformSampler(size=1)], ids=lambda s: type(s).__name__
)
def test_free_inputs_are_numbered_by_position(sampler: Sampler, generator: torch.Generator) -> None:
    free = _candidates()._replace(indices=None)
    dictionary = sampler.sample(free, generator=generator)
    assert dictionary.indices is not None
    assert torch.equal(free.X[dictionary.indices], dictionary.points)


@pytest.mark.parametrize(
    "sampler", [AllSampler(), FirstSampler(size=2), UniformSampler(size=2)], ids=lambda s: type(s).__name__
)
def test_samplers_leave_the_global_generator_alone(sampler: Sampler, generator: torch.Generator) -> None:
    before = torch.get_rng_state()
    sampler.sample(_candidates(), generator=generator)
    assert torch.equal(torch.get_rng_state(), before)
    assert isinstance(sampler, Sampler)
