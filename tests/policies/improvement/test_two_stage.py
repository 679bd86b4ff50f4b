"""Two stages: each is its own policy to the last pick, the second begins with all that the first saw; journals, failures."""

import pytest
import torch

from sparse_bo import BBKB, AskTell, TrustRegion, maximize
from sparse_bo.domains import Arms, Box, modelled_arms
from sparse_bo.policies import BanditState, ExpectedImprovement, ImprovementState, TwoStage
from tests.builders import arms, bbkb, noisy, unit_box, waves

FIRST = ExpectedImprovement(initial_design=6, batch_size=3)


def two_stage(after: int = 18) -> TwoStage:
    return TwoStage(first=FIRST, then=bbkb(), after=after)


def values(picks: torch.Tensor, tickets: list[int], X: torch.Tensor) -> torch.Tensor:
    return waves(X)[picks] + 0.05 * torch.tensor(tickets, dtype=torch.float64).cos()


def go_on(loop: AskTell, X: torch.Tensor, until: int, q: int | None = None) -> AskTell:
    while loop.asked < until:
        batch = loop.ask(q or until - loop.asked)
        loop.tell(batch.tickets, values(batch.indices, batch.tickets, X))
    return loop


def picks_of(loop: AskTell) -> list[int]:
    return loop.history.indices


def test_the_first_stage_is_expected_improvement_and_the_second_begins_with_its_observations():
    X = arms(90)
    loop = go_on(AskTell(X, two_stage(), seed=3), X, 60)
    alone = go_on(AskTell(X, FIRST, seed=3), X, 18)
    first = picks_of(alone)
    assert picks_of(loop)[:18] == first
    y = values(torch.tensor(first), list(range(18)), X)
    mechanism = loop.policy.on(Arms(X))
    generator = torch.Generator().manual_seed(9)
    handed = mechanism.tell(
        mechanism.first.tell(mechanism.init(), torch.tensor(first[:15]), y[:15], generator=generator),
        torch.tensor(first[15:]),
        y[15:],
        generator=torch.Generator().manual_seed(7),
    )
    told = bbkb().on(Arms(X))
    expected = told.tell(told.init(), torch.tensor(first), y, generator=torch.Generator().manual_seed(7))
    for state in (handed, expected):
        assert not isinstance(state, ImprovementState)
        assert state.observations.pulls == 18
    assert torch.equal(handed.posterior.means_at(torch.arange(90)), expected.posterior.means_at(torch.arange(90)))
    assert torch.equal(handed.observations.counts, expected.observations.counts)
    assert isinstance(loop.state, BanditState)
    assert loop.state.round == len(loop.history.rows)


@pytest.mark.parametrize("after", [12, 40])
def test_the_second_stage_begins_with_the_lengthscales_of_the_first(after: int):
    """In the user's units, until learning is due; of a sum (from four observations for each input) its reach."""
    X = arms(200, 3) * torch.tensor([1.0, 2.0, 0.1], dtype=torch.float64)
    loop = AskTell(X, TwoStage(first=FIRST, after=after), seed=0)
    while isinstance(loop.state, ImprovementState):
        last = loop.state
        batch = loop.ask(3)
        loop.tell(batch.tickets, values(batch.indices, batch.tickets, X))
    learned, fitted = last.surrogate.learned, loop.state.fitted
    kernel = fitted.posterior.prior.covariance.kernel.base_kernel
    torch.testing.assert_close(kernel.lengthscale.squeeze(0).detach(), learned.reach * (X.amax(dim=0) - X.amin(dim=0)))
    assert type(kernel).__name__ == ("RBFKernel" if learned.family == "rbf" else "MaternKernel")
    assert fitted.pulls_at_learning == loop.state.pulls


def test_lengthscales_along_other_directions_are_not_those_of_the_inputs():
    """GPyTorch has no such kernel: the second stage learns its own."""
    X = arms(200, 2)
    y = -(X[:, 0] + 0.7 * X[:, 1] - 0.6).square() - 1e3 * (X[:, 1] - 0.7 * X[:, 0] - 0.1).square()
    loop = AskTell(X, TwoStage(first=FIRST, after=40), seed=0)
    while isinstance(loop.state, ImprovementState):
        last = loop.state
        batch = loop.ask(3)
        loop.tell(batch.tickets, y[batch.indices])
    learned, prior = last.surrogate.learned, loop.state.fitted.posterior.prior
    assert learned.rotated
    assert not torch.allclose(prior.covariance.kernel.base_kernel.lengthscale.squeeze(0), learned.reach, rtol=0.05)
    assert loop.state.fitted.pulls_at_learning == loop.state.pulls


@pytest.mark.parametrize("thawed", [False, True])
def test_the_second_stage_knows_columns_over_decades_by_their_logarithms(thawed):
    X = arms(200, 2)
    X = torch.stack([10.0 ** (4.0 * X[:, 0]), X[:, 1]], dim=1)
    y = -(X[:, 0].log10() - 2.0).square() - X[:, 1]
    loop = AskTell(X, TwoStage(first=FIRST, after=40), seed=0)
    while isinstance(loop.state, ImprovementState):
        last = loop.state
        batch = loop.ask(3)
        loop.tell(batch.tickets, y[batch.indices])
    mechanism, state = loop.policy.on(Arms(X)), loop.state
    state = mechanism.thaw(mechanism.freeze(state)) if thawed else state
    prior, report = state.posterior.prior, state.report()
    kernel = prior.covariance.kernel.base_kernel
    torch.testing.assert_close(kernel.lengthscale.squeeze(0).detach(), last.surrogate.learned.reach)
    torch.testing.assert_close(prior.arms, modelled_arms(Arms(X), X))
    torch.testing.assert_close(state.observations.X, prior.arms[state.observations.rows])
    assert report.best_x.tolist() == X[report.best_index].tolist()
    assert report.best_observed_x.tolist() == X[report.best_observed_index].tolist()


def test_the_stage_ends_with_the_batch_that_completes_it_whatever_is_out():
    X = arms(90)
    loop = AskTell(X, two_stage(after=10), seed=0)
    design = loop.ask(6)
    loop.tell(design.tickets, values(design.indices, design.tickets, X))
    out = loop.ask(3)
    loop.tell(out.tickets[:1], values(out.indices[:1], out.tickets[:1], X))
    more = loop.ask(1)
    loop.tell(out.tickets[1:], values(out.indices[1:], out.tickets[1:], X))
    assert isinstance(loop.state, ImprovementState)
    loop.tell(more.tickets, values(more.indices, more.tickets, X))
    late = loop.ask(2)
    assert not isinstance(loop.state, ImprovementState)
    loop.tell(late.tickets, values(late.indices, late.tickets, X))
    assert loop.result().history.rows
    assert loop.state.pulls >= 10


def test_observations_from_before_the_run_count():
    X = arms(90)
    where = torch.arange(20)
    loop = AskTell(X, two_stage(), seed=0, initial=(where, waves(X)[where]))
    assert not isinstance(loop.state, ImprovementState)
    few = AskTell(X, two_stage(), seed=0, initial=(where[:8], waves(X)[:8]))
    assert isinstance(few.state, ImprovementState)
    assert not isinstance(go_on(few, X, 12).state, ImprovementState)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("stop", [12, 30], ids=["in the first stage", "in the second"])
def test_a_run_goes_on_from_its_journal_with_the_same_picks(stop, tmp_path):
    X = arms(90)
    expected = picks_of(go_on(AskTell(X, two_stage(), seed=1), X, 50, 4))
    with AskTell(X, two_stage(), seed=1, storage=tmp_path / "run.journal") as loop:
        go_on(loop, X, stop, 4)
    with AskTell.resume(tmp_path / "run.journal", arms=X) as again:
        assert isinstance(again.policy, TwoStage)
        assert again.policy.after == 18
        assert picks_of(go_on(again, X, 50, 4)) == expected


@pytest.mark.parametrize("stop", [12, 30], ids=["in the first stage", "in the second"])
def test_a_state_is_frozen_and_thawed(stop):
    X = arms(90)
    loop = go_on(AskTell(X, two_stage(), seed=1), X, stop, 4)
    mechanism = loop.policy.on(Arms(X))
    again = mechanism.thaw(mechanism.freeze(loop.state))
    assert type(again) is type(loop.state)
    picks = [
        mechanism.ask(state, max_q=3, pending=torch.tensor([4]), generator=torch.Generator().manual_seed(0)).picks.tolist()
        for state in (loop.state, again)
    ]
    assert picks[0] == picks[1]


def test_failures_of_the_first_stage_are_remembered_in_the_second():
    X = arms(90)
    broken = X[:, 0] > 0.8
    evaluate = noisy(X)

    def objective(i: torch.Tensor) -> torch.Tensor:
        y = evaluate(i)
        y[broken[i]] = torch.nan
        return y

    result = maximize(objective, arms=X, policy=two_stage(), budget=60, seed=0, call_with="indices")
    state = result.state
    assert not isinstance(state, ImprovementState)
    assert state.failures is not None
    assert bool(broken[state.failures.where].all())
    assert not broken[result.best_index]


def test_what_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="expected first to be an ExpectedImprovement"):
        TwoStage(first=BBKB())
    with pytest.raises(TypeError, match="expected then to be an upper-confidence policy"):
        TwoStage(then=TrustRegion())
    with pytest.raises(ValueError, match="after"):
        TwoStage(after=0)
    with pytest.raises(TypeError, match="'two-stage' chooses among arms"):
        TwoStage().on(Box(unit_box()))
    with pytest.raises(TypeError, match="box"):
        maximize(waves, bounds=unit_box(), policy=TwoStage(), budget=5)
