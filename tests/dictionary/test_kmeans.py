"""D² sampling in feature space: its law by enumeration, chi-square."""

import itertools

import pytest
import torch
from scipy.stats import chi2

from sparse_bo.dictionary import KMeansPlusPlusSampler
from tests.builders import arms
from tests.dictionary.builders import candidates, kernel_matrix, tabulated


def _law(K: torch.Tensor, counts: torch.Tensor, size: int) -> dict[tuple[int, ...], float]:
    """Probability of every set: the sum over its orders of the product of D² shares."""
    law: dict[tuple[int, ...], float] = {}
    squared = K.diagonal().unsqueeze(0) + K.diagonal().unsqueeze(1) - 2 * K
    for order in itertools.permutations(range(len(K)), size):
        p = float(counts[order[0]] / counts.sum())
        for step in range(1, size):
            mass = counts * squared[list(order[:step])].amin(dim=0)
            p *= float(mass[order[step]] / mass.sum())
        law[tuple(sorted(order))] = law.get(tuple(sorted(order)), 0.0) + p
    return law


def test_sets_have_the_probabilities_of_the_law(device):
    counts = torch.tensor([1.0, 4.0, 1.0, 2.0, 1.0], dtype=torch.float64, device=device)
    of = candidates(arms(5, seed=2, device=device), lengthscale=0.4, counts=counts)
    law = _law(kernel_matrix(of).cpu(), counts.cpu(), 3)
    assert sum(law.values()) == pytest.approx(1.0)
    generator, rounds, seen = torch.Generator().manual_seed(0), 1000, dict.fromkeys(law, 0)
    of = tabulated(of)
    for _ in range(rounds):
        seen[tuple(KMeansPlusPlusSampler(size=3).sample(of, generator=generator).indices.tolist())] += 1
    statistic = sum((seen[s] - rounds * p) ** 2 / (rounds * p) for s, p in law.items())
    assert statistic < chi2.ppf(0.999, len(law) - 1)
    uniform_law = sum((seen[s] - rounds / len(law)) ** 2 / (rounds / len(law)) for s in law)
    assert uniform_law > 10 * chi2.ppf(0.999, len(law) - 1), "the test must tell the law from a uniform one"


def test_one_uniform_number_per_point_is_drawn():
    generator, twin = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    dictionary = KMeansPlusPlusSampler(size=7).sample(candidates(arms(40)), generator=generator)
    torch.rand(7, generator=twin, dtype=torch.float64)
    assert torch.equal(generator.get_state(), twin.get_state())
    assert dictionary.m == 7
    assert dictionary.probabilities.tolist() == [7 / 40] * 7


def test_repeated_inputs_are_taken_once(generator):
    of = candidates(arms(4).repeat(5, 1))
    dictionary = KMeansPlusPlusSampler(size=10).sample(of, generator=generator)
    assert dictionary.m == 4
    assert len(torch.unique(dictionary.points, dim=0)) == 4
    same = candidates(torch.ones(20, 2, dtype=torch.float64))
    assert KMeansPlusPlusSampler(size=10).sample(same, generator=generator).m == 1


def test_all_are_taken_while_there_are_no_more(generator):
    before = generator.get_state()
    assert KMeansPlusPlusSampler(size=9).sample(candidates(arms(9)), generator=generator).m == 9
    assert torch.equal(generator.get_state(), before)


def test_bad_input_is_refused(generator):
    with pytest.raises(ValueError, match="size >= 1"):
        KMeansPlusPlusSampler(size=0)
    with pytest.raises(ValueError, match="KMeansPlusPlusSampler needs the prior covariance"):
        KMeansPlusPlusSampler(size=2).sample(candidates(arms(5))._replace(covariance=None), generator=generator)
