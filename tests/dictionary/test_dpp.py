"""The swap chain's law against every subset's determinant."""

import itertools

import pytest
import torch

from sparse_bo.dictionary import GreedyVarianceSampler, KDPPSampler
from sparse_bo.dictionary.base import kernel_gram
from sparse_bo.dictionary.diverse_samplers import swap_chain, swap_proposal
from sparse_bo.linalg.cholesky import pivoted_cholesky
from tests.builders import arms
from tests.dictionary.builders import candidates, kernel_matrix, tabulated


def _marginals(A: torch.Tensor, size: int) -> torch.Tensor:
    """Inclusion probabilities under ``P(S) ∝ det A_SS``, by enumeration."""
    total, hits = 0.0, torch.zeros(len(A), dtype=torch.float64)
    for rows in itertools.combinations(range(len(A)), size):
        weight = float(torch.linalg.det(A[list(rows)][:, list(rows)]))
        total += weight
        hits[list(rows)] += weight
    return hits / total


@pytest.mark.parametrize(("n", "size", "repeats"), [(9, 3, False), (8, 3, True)], ids=["9 choose 3", "counts"])
def test_marginals_are_the_exact_ones(n, size, repeats):
    counts = torch.tensor([1.0, 6.0] * (n // 2), dtype=torch.float64) if repeats else torch.ones(n, dtype=torch.float64)
    X = torch.cat([0.2 * arms(n - 3, seed=5), 0.2 + arms(3, seed=6)])
    of = candidates(X, lengthscale=0.3, counts=counts)
    exact = _marginals(kernel_matrix(of) * counts.sqrt() * counts.sqrt().unsqueeze(-1), size)
    assert float(exact.max() - exact.min()) > 0.4, "the marginals must differ for this test to say anything"
    generator, rounds = torch.Generator().manual_seed(0), 200
    hits, of = torch.zeros(n, dtype=torch.float64), tabulated(of)
    for _ in range(rounds):
        hits[KDPPSampler(size=size, steps=20).sample(of, generator=generator).indices] += 1
    torch.testing.assert_close(hits / rounds, exact, rtol=0, atol=4.5 * (0.25 / rounds) ** 0.5)


def test_a_swap_is_accepted_by_the_ratio_of_determinants():
    """One proposal at a time, on a smooth kernel whose determinants are small: nothing is added to them that would count."""
    of = candidates(arms(14), lengthscale=1.0)
    gram, A = kernel_gram(of, needed_by="test"), kernel_matrix(of)
    start = torch.tensor([0, 3, 7, 11])
    law = swap_proposal(gram, start)
    ends = law.cumsum(0)

    def walk(i: int, j: int, u: float) -> list[int]:
        draws = torch.tensor([[(i + 0.5) / 4], [float((ends[j] - 0.5 * law[j]) / ends[-1])], [u]], dtype=torch.float64)
        return swap_chain(gram, start, draws).tolist()

    undecided = 0
    for i, j in itertools.product(range(4), range(14)):
        if j in start.tolist():
            assert walk(i, j, 0.0) == start.tolist(), "a member cannot join again"
            continue
        swapped = start.clone()
        swapped[i] = j
        odds = float(torch.linalg.det(A[swapped][:, swapped]) / torch.linalg.det(A[start][:, start]) * law[start[i]] / law[j])
        assert walk(i, j, min(0.999 * odds, 0.999)) == swapped.tolist()
        if odds < 0.99:
            assert walk(i, j, 1.001 * odds) == start.tolist()
            undecided += 1
    assert 10 < undecided < 40


def test_a_long_chain_keeps_its_inverse(generator):
    """After many swaps, refreshed or not, the chain is where exact arithmetic would have taken it."""
    gram = kernel_gram(candidates(arms(200), lengthscale=0.2), needed_by="test")
    start = pivoted_cholesky(gram.column, gram.diagonal(), size=20)
    draws = torch.rand(3, 400, generator=generator, dtype=torch.float64)
    refreshed = swap_chain(gram, start, draws)
    assert torch.equal(refreshed, swap_chain(gram, start, draws, refresh=1))
    assert torch.equal(refreshed, swap_chain(gram, start, draws, block=7))
    assert len(set(start.tolist()) & set(refreshed.tolist())) < 15


def test_without_steps_it_is_greedy_variance(generator):
    of = candidates(arms(50))
    expected = GreedyVarianceSampler(size=6).sample(of, generator=generator).indices
    assert torch.equal(KDPPSampler(size=6, steps=0).sample(of, generator=generator).indices, expected)


def test_three_numbers_per_proposal_are_drawn_from_the_generator_alone(device):
    generator, twin = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    before = torch.get_rng_state()
    dictionary = KDPPSampler(size=7).sample(candidates(arms(40, device=device)), generator=generator)
    torch.rand(3, 70, generator=twin, dtype=torch.float64)
    assert torch.equal(generator.get_state(), twin.get_state())
    assert torch.equal(torch.get_rng_state(), before)
    assert dictionary.indices.tolist() == sorted(set(dictionary.indices.tolist()))
    assert dictionary.probabilities.tolist() == [7 / 40] * 7


def test_sets_are_no_larger_than_the_rank(generator):
    of = candidates(arms(4).repeat(5, 1))
    dictionary = KDPPSampler(size=10).sample(of, generator=generator)
    assert dictionary.m == 4
    assert len(torch.unique(dictionary.points, dim=0)) == 4
    same = candidates(torch.ones(20, 2, dtype=torch.float64))
    assert KDPPSampler(size=10).sample(same, generator=generator).m == 1


def test_all_are_taken_while_there_are_no_more(generator):
    before = generator.get_state()
    assert KDPPSampler(size=9).sample(candidates(arms(9)), generator=generator).m == 9
    assert torch.equal(generator.get_state(), before)


def test_bad_input_is_refused(generator):
    with pytest.raises(ValueError, match="size >= 1"):
        KDPPSampler(size=0)
    with pytest.raises(ValueError, match="steps >= 0"):
        KDPPSampler(size=2, steps=-1)
    with pytest.raises(ValueError, match="KDPPSampler needs the prior covariance"):
        KDPPSampler(size=2).sample(candidates(arms(5))._replace(covariance=None), generator=generator)
