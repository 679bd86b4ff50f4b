"""The trust-region policy where every evaluation counts: the value of an evaluation, and repeats of the best point."""

from dataclasses import replace

import pytest
import torch

from sparse_bo import AskTell, TrustRegion, maximize
from sparse_bo.domains import Box
from sparse_bo.gp.expected_improvement import log_expected_improvement
from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.policies.trust_region.gain import OnlineKnowledgeGradient
from sparse_bo.policies.trust_region.observations import KINDS, replicates_of, warp
from sparse_bo.policies.trust_region.surrogate import local_posterior
from tests.builders import arms, unit_box, waves
from tests.policies.builders import bowl, box

LEARNED = Hyperparameters("rbf", torch.full((2,), 0.4, dtype=torch.float64), 0.05, 0.3, 2.0, 0.0)
EVERY = TrustRegion(goal="cumulative")


def repeated(n=12, seed=0):
    """Points of which some are evaluated up to n/3 times, with noise."""
    generator = torch.Generator().manual_seed(seed)
    X = arms(n // 3, 2)[torch.cat([torch.arange(n // 3), torch.zeros(n - n // 3, dtype=torch.int64)])]
    X = X[torch.randperm(n, generator=generator)]
    return X, waves(X) + 0.1 * torch.randn(n, generator=generator, dtype=torch.float64)


def test_repeats_are_one_point_with_their_mean():
    X, y = repeated()
    found, same = replicates_of(X, y), (X.unsqueeze(1) == X).all(dim=-1)
    firsts = [min(row.nonzero().squeeze(-1).tolist()) for row in same]
    assert found.first.tolist() == firsts
    assert found.rows.tolist() == sorted(set(firsts))
    assert found.counts.tolist() == same.sum(dim=1).tolist()
    assert torch.allclose(found.values, torch.stack([y[row].mean() for row in same]))
    scatter = found.scatter(found.rows, 2.0 * y)
    spread = torch.stack([(y - y[row].mean()).square() * 4.0 for row in same]).where(same, 0.0).sum(dim=1)
    assert scatter.squares == pytest.approx(float(spread[found.rows].sum()))
    assert scatter.repeats == len(y) - len(found.rows)


def test_equal_observations_have_that_value_for_their_mean_to_the_last_bit():
    X = arms(1, 2).expand(7, 2)
    assert replicates_of(X, torch.full((7,), 0.1, dtype=torch.float64)).values.tolist() == [0.1] * 7


def test_where_the_best_point_counts_repeats_are_evaluations_of_their_own():
    X, y = repeated()
    state = TrustRegion().on(Box(unit_box())).init()
    seen = replace(state, X=X, y=y).replicates
    assert seen.rows.tolist() == seen.first.tolist() == list(range(12))
    assert torch.equal(seen.values, y)
    assert seen.counts.tolist() == [1] * 12
    assert seen.exact is False


def test_a_gp_of_means_is_the_gp_of_the_observations():
    X, y = repeated()
    found, A = replicates_of(X, y), arms(8, 2, seed=1)
    rows = found.rows
    at_once = local_posterior(X[rows], found.values[rows], LEARNED, counts=found.counts[rows]).moments(A)
    every = local_posterior(X, y, LEARNED).moments(A)
    assert torch.allclose(at_once.mean, every.mean)
    assert torch.allclose(at_once.variance, every.variance)


@pytest.mark.parametrize("kind", KINDS)
def test_the_knowledge_gradient_is_the_gain_less_the_cost_in_the_units_of_the_observations(kind):
    y = waves(arms(40, 2)).exp()
    bent = warp(kind, y)
    mean = torch.linspace(-1.5, 1.2, 7, dtype=torch.float64, requires_grad=True)
    variance = torch.linspace(0.1, 2.0, 7, dtype=torch.float64, requires_grad=True)
    best = bent(y).max()
    gain = log_expected_improvement(mean, variance, float(best))
    value = OnlineKnowledgeGradient(bent, best, horizon=20.0)(mean, gain)
    at = best.clone().requires_grad_()
    unit = torch.autograd.grad(bent.inverse(at), at)[0]
    expected = (bent.inverse(mean) - bent.inverse(best)) / unit + 20.0 * gain.value.exp()
    by_mean, by_variance = torch.autograd.grad(expected.sum(), (mean, variance))
    assert torch.allclose(value.value, expected)
    assert torch.allclose(value.by_mean, by_mean)
    assert torch.allclose(value.by_variance, by_variance)


def narrow(X):
    """A narrow maximum on a wavy plain: there is always something to explore."""
    return torch.exp(-40.0 * (X - 0.3).square().sum(dim=-1)) + 0.05 * torch.sin(25.0 * X).sum(dim=-1)


@pytest.mark.slow
def test_evaluations_gather_at_a_smooth_maximum():
    result = maximize(bowl, bounds=box(), policy=EVERY, budget=24, seed=0)
    assert result.best_mean > -1e-4
    values = bowl(result.state.X)
    assert float(values[-12:].median()) > -1e-2


@pytest.mark.slow
def test_evaluations_are_worth_more_than_those_of_a_search_for_the_best_point():
    sums = []
    for policy in (EVERY, TrustRegion()):
        result = maximize(bowl, bounds=box(), policy=policy, budget=80, seed=0)
        sums.append(float(bowl(result.state.X[10:]).sum()))  # both begin with a design
    assert sums[0] > 0.5 * sums[1]


def test_a_point_that_was_lucky_is_left():
    """A bad point had luck once: what it is worth comes out when it is evaluated again."""
    mechanism, generator = EVERY.on(Box(box())), torch.Generator().manual_seed(0)
    X = torch.cat([box().mean(dim=0, keepdim=True).expand(4, 2), mechanism.box.uniform(12, generator=generator)])
    y = bowl(X) + 0.02 * torch.randn(len(X), generator=generator, dtype=torch.float64)
    lucky = int(y.argmin())
    y[lucky] = y.max() + 0.05
    state = mechanism.tell(mechanism.init(), X, y, generator=generator)
    point = state.X[[lucky]].expand(6, 2)
    after = mechanism.tell(state, point, bowl(point), generator=generator)
    assert not torch.equal(after.X[after.best_row], after.X[lucky])


@pytest.mark.slow
def test_the_model_knows_the_noise_that_repeats_show():
    generator = torch.Generator().manual_seed(0)
    noisy = lambda X: bowl(X) + 0.3 * torch.randn(len(X), generator=generator, dtype=torch.float64)  # noqa: E731
    result = maximize(noisy, bounds=box(), policy=EVERY, budget=50, seed=0)
    fitted = result.state.fitted
    known = fitted.warp.inverse(torch.tensor([fitted.gp.noise_variance**0.5, 0.0], dtype=torch.float64))
    assert 0.1 < float(known[0] - known[1]) < 0.9
    assert len(fitted.rows) < 40
    assert float(bowl(result.best_x.unsqueeze(0))) > -0.2


def test_a_run_goes_on_from_its_journal_with_the_same_picks(tmp_path):
    def go_on(loop, until):
        while loop.asked < until:
            batch = loop.ask(until - loop.asked)
            loop.tell(batch.tickets, narrow(batch.X))
        return loop

    stops = (12, 15, 18)
    expected = AskTell(bounds=unit_box(2), policy=EVERY, seed=0)
    for stop in stops:
        go_on(expected, stop)
    with AskTell(bounds=unit_box(2), policy=EVERY, seed=0, storage=tmp_path / "run.journal") as loop:
        go_on(loop, stops[0])
    for stop in stops[1:]:
        with AskTell.resume(tmp_path / "run.journal") as again:
            assert again.policy == EVERY
            go_on(again, stop)
            assert again.history.points == expected.history.points[: len(again.history.points)]
            state = again.state
    assert state.region == expected.state.region


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
def test_a_best_point_that_fails_is_not_asked_for_again_at_once():
    loop = AskTell(bounds=box(), policy=EVERY, seed=0)
    while True:
        batch = loop.ask(4)
        best = None if loop.state.fitted is None else loop.state.X[loop.state.best_row]
        if best is not None and bool((best == batch.X).all()):
            break
        assert loop.asked < 120
        loop.tell(batch.tickets, bowl(batch.X))
    loop.fail(batch.tickets)
    assert not bool((best == loop.ask().X).all(dim=-1).any())


def test_an_unknown_goal_is_refused():
    with pytest.raises(ValueError, match="goal"):
        TrustRegion(goal="worst")
