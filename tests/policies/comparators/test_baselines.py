"""Random search and ε-greedy."""

import pytest
import torch

from sparse_bo import AskTell, ProductGrid, Storage
from sparse_bo.domains import Arms
from sparse_bo.domains.sharded import in_memory
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES
from sparse_bo.policies import EpsilonGreedy, PosteriorEpsilonGreedy, RandomSearch
from sparse_bo.policies.comparators.baselines import WithoutModel


def line(a: int = 50) -> torch.Tensor:
    """Arms in the order of their values, where these are the coordinates."""
    return torch.linspace(0, 1, a, dtype=torch.float64).unsqueeze(-1)


def test_random_search_repeats_no_arm_while_there_are_others():
    history = AskTell(line(), RandomSearch(batch_size=7), seed=0).run(lambda X: X[:, 0], 50).history
    assert sorted(history.indices) == list(range(50))


def test_random_search_goes_on_when_every_arm_is_known():
    history = AskTell(line(5), RandomSearch(batch_size=4), seed=0).run(lambda X: X[:, 0], 12).history
    assert len(history.indices) == 12


def test_epsilon_zero_stays_with_the_first_arm_and_one_explores():
    greedy = AskTell(line(), EpsilonGreedy(epsilon=0.0), seed=0).run(lambda X: X[:, 0], 20).history
    assert len(set(greedy.indices)) == 1
    explorer = AskTell(line(), EpsilonGreedy(epsilon=1.0), seed=0).run(lambda X: X[:, 0], 60).history
    assert len(set(explorer.indices)) > 25


def test_the_greedy_arm_is_that_of_the_highest_mean_not_of_the_highest_sum(generator):
    policy = EpsilonGreedy(epsilon=0.0, batch_size=3).on(Arms(line()))
    state = policy.init()
    y = torch.tensor([1.0, 1.0, 1.0, 2.0], dtype=torch.float64)
    state = policy.tell(state, torch.tensor([3, 3, 3, 5]), y, generator=generator)
    assert policy.ask(state, max_q=3, pending=torch.empty(0, dtype=torch.int64), generator=generator).picks.tolist() == [5] * 3


def test_epsilon_greedy_explores_as_often_as_it_says():
    X = line(10_000)
    history = AskTell(X, EpsilonGreedy(epsilon=0.3, batch_size=2000), seed=0).run(lambda X: X[:, 0], 6000).history
    values = [i for row in history.rows[1:] for i in row.indices]
    top = max(set(values), key=values.count)
    share = sum(i != top for i in values) / len(values)
    assert 0.25 < share < 0.66  # the best arm changes once, after the first batch


def test_a_policy_without_a_model_reports_the_best_mean_observation():
    result = AskTell(line(), RandomSearch(), seed=0).run(lambda X: X[:, 0], 20)
    assert result.best_index == result.best_observed_index == max(result.history.indices)
    assert result.best_sd is None
    assert result.state.dictionary is None
    assert AskTell(line(), RandomSearch()).certificate() is None


@pytest.mark.parametrize("policy", [RandomSearch(batch_size=3), EpsilonGreedy(epsilon=0.5)], ids=lambda p: p.name)
def test_arms_that_do_not_fit_into_memory_are_resumed_from_a_snapshot(policy, tmp_path, monkeypatch):
    """Neither the run nor its snapshots ever look at more than the pulled arms."""
    storage = Storage(tmp_path / "run.journal", replay_seconds=0.0)
    axis = torch.linspace(0.0, 1.0, 4000, dtype=torch.float64)
    grid = ProductGrid([axis, axis])
    assert in_memory(grid, memory_bytes=DEFAULT_MEMORY_BYTES) is grid
    whole = AskTell(grid, policy, seed=3)
    whole.run(lambda X: X.sum(dim=-1), 24)
    loop = AskTell(grid, policy, seed=3, storage=storage)
    loop.run(lambda X: X.sum(dim=-1), 12)
    loop.close()
    with monkeypatch.context() as patch:  # what follows is read from the snapshot, not made again
        patch.setattr(WithoutModel, "tell", None)
        loop = AskTell.resume(storage, arms=grid)
    loop.run(lambda X: X.sum(dim=-1), 12)
    loop.close()
    assert loop.history.indices == whole.history.indices
    assert torch.equal(loop.result().best_observed_x, whole.result().best_observed_x)


def test_policies_with_other_settings_are_other_policies():
    assert EpsilonGreedy(epsilon=0.2) == EpsilonGreedy(epsilon=0.2) != EpsilonGreedy(epsilon=0.3)
    assert PosteriorEpsilonGreedy(regularization=1.0) != PosteriorEpsilonGreedy(regularization=2.0)


def test_bad_settings():
    with pytest.raises(ValueError, match=r"epsilon in \[0, 1\]"):
        EpsilonGreedy(epsilon=1.5)
    with pytest.raises(ValueError, match="batch_size >= 1"):
        RandomSearch(batch_size=0)
