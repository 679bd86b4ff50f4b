import re
from typing import Any

import pytest
import torch

from sparse_bo.dictionary import Candidates, LeverageSampler
from tests import oracles

LEVERAGES = [0.01, 0.05, 0.2, 0.4, 3.0, 0.0]
COUNTS = [1.0, 7.0, 3.0, 1.0, 2.0, 50.0]


def _candidates(
    leverages: list[float] | None = LEVERAGES, counts: list[float] = COUNTS, device: torch.device | str = "cpu"
) -> Candidates:
    n = len(counts)
    return Candidates(
        torch.arange(2.0 * n, dtype=torch.float64, device=device).reshape(n, 2),
        torch.tensor(counts, dtype=torch.float64, device=device),
        None if leverages is None else torch.tensor(leverages, dtype=torch.float64, device=device),
        torch.arange(n, device=device),
        10 + torch.arange(n, device=device),
    )


def _frequencies(sampler: LeverageSampler, candidates: Candidates, rounds: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    hits = torch.zeros(len(candidates.counts), dtype=torch.float64)
    for _ in range(rounds):
        hits[sampler.sample(candidates, generator=generator).indices.cpu() - 10] += 1
    return hits / rounds


def test_exact_law_samples_as_one_coin_per_pull(device: torch.device) -> None:
    """Against coins thrown pull by pull, not against the formula for them."""
    rounds, oversampling = 4000, 1.5
    got = _frequencies(LeverageSampler(oversampling=oversampling, inclusion="exact"), _candidates(device=device), rounds)
    generator = torch.Generator().manual_seed(4)
    p = (oversampling * torch.tensor(LEVERAGES, dtype=torch.float64)).clamp(max=1.0)
    coins = [torch.rand(rounds, int(c), generator=generator, dtype=torch.float64) < q for c, q in zip(COUNTS, p, strict=True)]
    expected = torch.stack([heads.any(dim=1).double().mean() for heads in coins])
    torch.testing.assert_close(got, expected, rtol=0, atol=5 * (2 * 0.25 / rounds) ** 0.5)


def test_union_law_samples_with_the_summed_probability() -> None:
    rounds = 4000
    got = _frequencies(LeverageSampler(oversampling=1.5, inclusion="union"), _candidates(), rounds)
    expected = torch.tensor([min(1.0, c * 1.5 * s) for c, s in zip(COUNTS, LEVERAGES, strict=True)], dtype=torch.float64)
    torch.testing.assert_close(got, expected, rtol=0, atol=5 * (0.25 / rounds) ** 0.5)


def test_probabilities_of_the_law_come_with_the_points(generator: torch.Generator) -> None:
    counts = [1.0, 7.0, 3.0, 1.0, 2.0, 5.0]
    for _ in range(20):
        dictionary = LeverageSampler(oversampling=1.5, inclusion="exact").sample(
            _candidates(counts=counts), generator=generator
        )
        for index, p in zip(dictionary.indices.tolist(), dictionary.probabilities.tolist(), strict=True):
            law = oracles.inclusion_law(min(1.0, 1.5 * LEVERAGES[index - 10]), int(counts[index - 10]))
            assert p == pytest.approx(law)


def test_union_law_keeps_whatever_the_exact_law_keeps() -> None:
    for seed in range(50):
        kept = {
            law: LeverageSampler(oversampling=1.0, inclusion=law).sample(
                _candidates(), generator=torch.Generator().manual_seed(seed)
            )
            for law in ("exact", "union")
        }
        assert set(kept["exact"].indices.tolist()) <= set(kept["union"].indices.tolist())


def test_one_uniform_per_distinct_input_is_drawn_in_order() -> None:
    sampler, seed = LeverageSampler(oversampling=1.0, inclusion="union"), 8
    generator = torch.Generator().manual_seed(seed)
    indices = sampler.sample(_candidates(), generator=generator).indices
    twin = torch.Generator().manual_seed(seed)
    draws = torch.rand(len(COUNTS), generator=twin, dtype=torch.float64)
    p = torch.tensor([min(1.0, c * s) for c, s in zip(COUNTS, LEVERAGES, strict=True)], dtype=torch.float64)
    assert (indices - 10).tolist() == (draws < p).nonzero().squeeze(-1).tolist()
    assert torch.equal(generator.get_state(), twin.get_state())


@pytest.mark.parametrize("inclusion", ["exact", "union"])
def test_never_empty_the_most_probable_input_is_kept(inclusion: Any, device: torch.device) -> None:
    candidates = _candidates([1e-12, 3e-12, 2e-12], [1.0, 1.0, 1.0], device)
    dictionary = LeverageSampler(inclusion=inclusion).sample(candidates, generator=torch.Generator().manual_seed(0))
    assert dictionary.indices.tolist() == [11]


def test_inputs_of_no_leverage_still_give_one_point(generator: torch.Generator) -> None:
    dictionary = LeverageSampler().sample(_candidates([0.0, 0.0], [1.0, 1.0]), generator=generator)
    assert dictionary.indices.tolist() == [10]


def test_certain_inputs_are_always_kept() -> None:
    for seed in range(50):
        generator = torch.Generator().manual_seed(seed)
        assert 14 in LeverageSampler(oversampling=2.0).sample(_candidates(), generator=generator).indices.tolist()


def test_before_there_is_a_posterior_everything_is_kept_and_nothing_drawn(generator: torch.Generator) -> None:
    before = generator.get_state()
    dictionary = LeverageSampler().sample(_candidates(None), generator=generator)
    assert dictionary.m == len(COUNTS)
    assert torch.equal(generator.get_state(), before)


def test_the_global_generator_is_left_alone(generator: torch.Generator) -> None:
    before = torch.get_rng_state()
    LeverageSampler().sample(_candidates(), generator=generator)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"oversampling": 0.0}, "oversampling > 0, got 0.0"),
        ({"oversampling": float("nan")}, "finite oversampling"),
        ({"inclusion": "both"}, "inclusion to be one of 'exact', 'union', got 'both'"),
    ],
    ids=["zero", "nan", "law"],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        LeverageSampler(**settings)


def test_a_maximal_size_bounds_the_dictionary_and_scales_the_probabilities(generator: torch.Generator) -> None:
    g = torch.Generator().manual_seed(3)
    leverages = torch.rand(400, generator=g, dtype=torch.float64)
    X = torch.rand(400, 2, generator=g, dtype=torch.float64)
    ones = torch.ones(400, dtype=torch.float64)
    candidates = Candidates(X, ones, leverages, torch.arange(400), torch.arange(400))
    sizes = []
    for _ in range(30):
        got = LeverageSampler(max_size=50).sample(candidates, generator=generator)
        assert got.indices is not None
        sizes.append(got.m)
        assert got.m <= 50
        assert bool((got.indices.diff() > 0).all())
        expected = (2.0 * leverages).clamp(0.0, 1.0)
        torch.testing.assert_close(got.probabilities, (expected * 50 / expected.sum())[got.indices])
    assert min(sizes) >= 30
    free = LeverageSampler(max_size=400).sample(candidates, generator=torch.Generator().manual_seed(1))
    same = LeverageSampler().sample(candidates, generator=torch.Generator().manual_seed(1))
    assert torch.equal(free.points, same.points)


def test_a_maximal_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="max_size >= 1"):
        LeverageSampler(max_size=0)
