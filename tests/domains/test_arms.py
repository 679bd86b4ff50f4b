"""Arms drawn at random."""

import pytest
import torch

from sparse_bo.domains import Arms


def line(a):
    return Arms(torch.linspace(0.0, 1.0, a, dtype=torch.float64).unsqueeze(-1))


@pytest.mark.parametrize("a", [30, 500], ids=["permuted", "drawn"])
def test_drawn_arms_are_distinct_and_unseen_as_long_as_there_are_such(a, generator):
    seen = torch.arange(0, 20)
    for _ in range(20):
        drawn = line(a).uniform(10, seen=seen, generator=generator).tolist()
        assert len(set(drawn)) == 10
        assert all(20 <= i < a for i in drawn)


def test_many_arms_drawn_from_few_are_distinct(generator):
    for _ in range(20):
        assert len(set(line(100).uniform(20, seen=torch.arange(0), generator=generator).tolist())) == 20


def test_when_all_arms_are_seen_any_arm_is_drawn(generator):
    drawn = line(5).uniform(200, seen=torch.tensor([0, 1, 2, 4]), generator=generator).tolist()
    assert drawn[0] == 3
    assert set(drawn) == set(range(5))


@pytest.mark.parametrize("q", [3, 8], ids=["drawn", "permuted"])
def test_every_unseen_arm_is_as_likely(q, generator):
    counts = torch.zeros(40)
    for _ in range(3000):
        counts[line(40).uniform(q, seen=torch.tensor([7, 8]), generator=generator)] += 1
    assert counts[[7, 8]].tolist() == [0.0, 0.0]
    share = counts[counts > 0] / (3000 * q)
    assert float((share * 38 - 1).abs().max()) < 0.3  # four standard deviations


@pytest.mark.parametrize("columns", [("a", "a"), ("a",), ("a", "b", "c")])
def test_columns_have_a_name_each(columns):
    with pytest.raises(ValueError, match="a name for each of 2 columns of arms, all distinct, got 'a'"):
        Arms(torch.rand(5, 2), columns)
