"""Ask and tell: tickets, partial and failed results, interruptions, results."""

import math

import pytest
import torch

import sparse_bo
from sparse_bo import BBKB, AskTell, ObjectiveError, RunInterrupted, maximize
from sparse_bo.errors import PendingBatchError, TicketError
from sparse_bo.policies import ExpectedImprovement, RandomSearch
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from tests.builders import arms, bbkb, rbf_kernel


def f(X: torch.Tensor) -> torch.Tensor:
    return -(X - 0.3).square().sum(-1)


def policy() -> BBKB:
    return bbkb(covar_module=rbf_kernel(0.5), regularization=0.01)


def loop_with_a_batch(size: int = 4) -> tuple[AskTell, sparse_bo.Batch]:
    """A loop whose second batch, of at least ``size``, is out."""
    loop = AskTell(arms(40), policy(), seed=0)
    loop.run(f, 30)
    batch = loop.ask()
    assert len(batch) >= size
    return loop, batch


def test_maximize_needs_no_setting_but_the_arms_and_the_budget():
    result = maximize(f, arms=arms(40), budget=30)
    assert result.best_index == int(f(arms(40)).argmax())
    assert torch.equal(result.best_x, arms(40)[result.best_index])
    assert result.best_observed_count >= 1


def test_a_batch_carries_the_arms_and_fresh_tickets():
    loop, batch = loop_with_a_batch()
    assert torch.equal(batch.X, arms(40)[batch.indices])
    assert batch.tickets == list(range(30, 30 + len(batch)))
    assert loop.pending == batch.tickets


def test_results_may_come_in_parts_and_in_any_order():
    whole, batch = loop_with_a_batch()
    whole.tell(batch.tickets, f(batch.X))
    parts, batch = loop_with_a_batch()
    half = len(batch) // 2
    parts.tell(batch.tickets[half:], f(batch.X[half:]).tolist())
    assert parts.state.round == whole.state.round - 1
    parts.tell(list(reversed(batch.tickets[:half])), f(batch.X[:half]).flip(0))
    assert torch.equal(parts.state.posterior.means, whole.state.posterior.means)
    assert parts.ask().indices.tolist() == whole.ask().indices.tolist()


def test_values_may_be_on_the_device_of_the_arms_or_have_gradients(device):
    loop = AskTell(arms(40).to(device), policy(), seed=0)
    batch = loop.ask()
    loop.tell(batch.tickets, f(batch.X).requires_grad_())
    assert loop.history.rows[0].values == f(batch.X).tolist()


def test_failed_evaluations_are_dropped_whether_told_as_nan_or_failed():
    one, batch = loop_with_a_batch()
    y = f(batch.X)
    y[1] = math.nan
    one.tell(batch.tickets, y)
    two, batch = loop_with_a_batch()
    two.fail(batch.tickets[1:2])
    two.tell([t for t in batch.tickets if t != batch.tickets[1]], f(batch.X)[torch.arange(len(batch)) != 1])
    for loop in (one, two):
        row = loop.history.rows[-1]
        assert (row.failed, math.isnan(row.values[1]), row.pulls) == (1, True, 30 + len(batch) - 1)
    assert torch.equal(one.state.posterior.means, two.state.posterior.means)


def test_a_batch_that_fails_whole_changes_nothing_but_the_round():
    loop, batch = loop_with_a_batch()
    before = loop.state
    loop.fail(batch.tickets)
    assert loop.state.round == before.round + 1
    assert loop.state.posterior is before.posterior
    assert loop.history.rows[-1].failed == len(batch)


def test_ask_while_a_full_batch_is_out_says_what_is_missing():
    loop, batch = loop_with_a_batch()
    with pytest.raises(
        PendingBatchError, match=rf"{len(batch)} evaluations are pending.* needs about \d+ .*tell them before"
    ) as caught:
        loop.ask()
    assert caught.value.pending == len(batch)
    assert 1 <= caught.value.needed <= len(batch)
    assert loop.pending == batch.tickets


@pytest.mark.parametrize(
    ("tickets", "message"),
    [
        ([10**6], r"are unknown: ask\(\) has not returned them; pending tickets"),
        ([30, 30], "more than once"),
        (["30"], "integer tickets"),
        ([True], "integer tickets"),
    ],
    ids=["unknown", "repeated", "text", "bool"],
)
def test_wrong_tickets_are_named_and_nothing_is_recorded(tickets, message):
    loop, batch = loop_with_a_batch()
    with pytest.raises(TicketError, match=message):
        loop.tell(tickets, [0.0] * len(tickets))
    assert loop.pending == batch.tickets


def test_too_many_tickets_or_values_are_an_error_and_nothing_is_recorded():
    loop, batch = loop_with_a_batch()
    with pytest.raises(ValueError, match=f"one value for each of {len(batch)} tickets, got y of shape"):
        loop.tell(batch.tickets, f(batch.X)[:-1])
    with pytest.raises(TicketError, match="unknown"):
        loop.tell([*batch.tickets, 999], [0.0] * (len(batch) + 1))
    with pytest.raises(ValueError, match="infinite"):
        loop.tell(batch.tickets, [math.inf] * len(batch))
    assert loop.pending == batch.tickets
    loop.tell(batch.tickets, f(batch.X))
    with pytest.raises(TicketError, match="already answered.* no tickets are pending"):
        loop.tell(batch.tickets[:1], [0.0])


@pytest.mark.parametrize("call_with", ["X", "indices"])
def test_the_objective_is_called_with_what_was_asked(call_with):
    seen = []

    def objective(argument):
        seen.append(argument)
        return f(arms(40)[argument] if call_with == "indices" else argument)

    AskTell(arms(40), policy(), seed=0).run(objective, 10, call_with=call_with)
    assert all((s.dim() == 2) == (call_with == "X") for s in seen)


def test_an_objective_that_raises_loses_nothing():
    calls = []

    def objective(X):
        calls.append(len(X))
        if len(calls) == 5:
            raise RuntimeError("the oven exploded")
        return f(X)

    with pytest.raises(ObjectiveError, match="the oven exploded") as caught:
        AskTell(arms(40), policy(), seed=0).run(objective, 60)
    error = caught.value
    told = sum(calls[:4])
    assert error.result.state.observations.pulls == told
    assert len(error.loop.pending) == calls[4]
    error.loop.run(f, 60 - error.loop.asked)
    uninterrupted = AskTell(arms(40), policy(), seed=0).run(f, 60)
    assert error.loop.history.indices == uninterrupted.history.indices


def test_an_objective_with_the_wrong_number_of_values_is_named():
    with pytest.raises(ObjectiveError, match="one value for each of 1 tickets"):
        AskTell(arms(40), policy(), seed=0).run(lambda X: torch.zeros(len(X) + 1), 5)


def test_an_objective_that_always_fails_ends_with_the_budget():
    result = AskTell(arms(40), policy(), seed=0).run(lambda X: torch.full((len(X),), math.nan), 12)
    assert sum(result.history.column("failed")) == 12
    assert result.best_index is None


def test_ctrl_c_keeps_what_was_told_and_the_run_can_go_on():
    calls = []

    def objective(X):
        calls.append(len(X))
        if len(calls) == 4:
            raise KeyboardInterrupt
        return f(X)

    with pytest.raises(RunInterrupted) as caught:
        maximize(objective, arms=arms(40), budget=40, policy=policy())
    assert caught.value.result.state.observations.pulls == sum(calls[:3])
    loop = caught.value.loop
    assert (
        loop.run(f, 40 - loop.asked).history.indices == maximize(f, arms=arms(40), budget=40, policy=policy()).history.indices
    )


def test_an_update_that_fails_keeps_the_answers_for_the_next_try(monkeypatch):
    loop, batch = loop_with_a_batch()
    original, broken = ArmUCB.tell, []

    def breaks_once(self, *args, **kwargs):
        if not broken:
            broken.append(True)
            raise RuntimeError("out of memory")
        return original(self, *args, **kwargs)

    monkeypatch.setattr(ArmUCB, "tell", breaks_once)
    with pytest.raises(RuntimeError, match="out of memory"):
        loop.tell(batch.tickets, f(batch.X))
    loop.ask()
    assert loop.state.observations.pulls == 30 + len(batch)


def test_initial_observations_count_and_start_the_run():
    index = torch.tensor([3, 3, 8])
    loop = AskTell(arms(40), policy(), seed=0, initial=(index, f(arms(40)[index])))
    assert loop.state.observations.pulls == 3
    assert loop.state.posterior is not None
    assert loop.history.rows[0].indices == [3, 3, 8]
    assert loop.ask().tickets[0] == 3


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        ((torch.tensor([99]), torch.tensor([0.0])), r"initial inputs in \[0, 40\)"),
        ((torch.tensor([1, 2]), torch.tensor([0.0])), "as many initial values as inputs"),
        ((torch.tensor([1]), torch.tensor([math.nan])), "finite initial values"),
    ],
    ids=["range", "length", "nan"],
)
def test_bad_initial_observations_are_named(initial, message):
    with pytest.raises(ValueError, match=message):
        AskTell(arms(40), policy(), initial=initial)


@pytest.mark.parametrize(
    ("initial", "message"),
    [
        (3, r"expected initial=\(inputs, results\), got int"),
        (([0], [1.0], [2.0]), "got 3 parts"),
        (([0], ["high"]), "initial values to be numbers, got str 'high' at position 0"),
        (([0], None), "initial values to be numbers, got NoneType"),
        (([0], torch.tensor([1j])), "real initial values, got torch.complex64"),
        (([0], torch.tensor([1.0]).to_sparse()), "initial values as a dense tensor, got layout torch.sparse_coo"),
        (([0], torch.zeros(1, device="meta")), "initial values to be numbers, got Tensor"),
    ],
    ids=["kind", "parts", "strings", "none", "complex", "sparse", "no data"],
)
def test_initial_observations_of_another_kind_are_named(initial, message):
    with pytest.raises(TypeError, match=message):
        AskTell(arms(40), policy(), initial=initial)


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        (torch.zeros(3, dtype=torch.float64), ValueError, "two dimensions"),
        (torch.zeros(0, 2, dtype=torch.float64), ValueError, "at least one row"),
        (torch.zeros(3, 2, dtype=torch.complex64), TypeError, "dtype torch.float64"),
        (torch.tensor([[0.0, 1.0], [math.nan, 1.0]]), ValueError, "first at row 1"),
        ({0.0: 1.0}, TypeError, "torch.Tensor, got dict"),
    ],
    ids=["rank", "empty", "dtype", "nan", "kind"],
)
def test_bad_arms_are_named(bad, error, message):
    with pytest.raises(error, match=message):
        AskTell(bad)


def test_other_bad_arguments_are_named():
    with pytest.raises(TypeError, match="expected a policy such as"):
        AskTell(arms(40), "bbkb")
    with pytest.raises(ValueError, match="seed >= 0"):
        AskTell(arms(40), seed=-1)
    with pytest.raises(ValueError, match="budget >= 0"):
        maximize(f, arms=arms(40), budget=-1)
    with pytest.raises(TypeError, match="budget to be an integer"):
        maximize(f, arms=arms(40), budget=1e3)
    with pytest.raises(ValueError, match="budget of at most 1,000,000,000, got 10,000,000,000,000"):
        maximize(f, arms=arms(40), budget=10**13)
    with pytest.raises(ValueError, match="max_q >= 1"):
        AskTell(arms(40)).ask(max_q=0)


def test_a_budget_of_zero_does_nothing():
    result = maximize(f, arms=arms(40), budget=0)
    assert result.best_index is None
    assert len(result.history.rows) == 0


def test_max_q_cuts_a_batch_to_its_first_picks():
    loop, batch = loop_with_a_batch()
    again, _ = loop_with_a_batch()
    again = AskTell(arms(40), policy(), seed=0)
    again.run(f, 30)
    assert again.ask(max_q=2).indices.tolist() == batch.indices[:2].tolist()
    assert loop.pending == batch.tickets


def test_certificates_are_reported_as_often_as_asked_and_change_no_pick():
    plain = AskTell(arms(40), policy(), seed=0).run(f, 40).history
    certified = AskTell(arms(40), policy(), seed=0, certify_every=2).run(f, 40).history
    assert certified.indices == plain.indices
    factors = certified.column("variance_factor")
    assert [factor is not None for factor in factors] == [(i + 1) % 2 == 0 for i in range(len(factors))]
    assert all(factor >= 1.0 for factor in factors if factor is not None)


@pytest.mark.parametrize(
    "how",
    [{"bounds": [(0.0, 1.0)]}, {"arms": arms(40), "policy": ExpectedImprovement()}, {"bounds": [(0.0, 1.0)], "policy": BBKB()}],
)
def test_certificates_of_policies_that_have_none_are_refused(how):
    with pytest.raises(ValueError, match="certify_every= is for upper-confidence policies over arms, got"):
        AskTell(**how, certify_every=2)


def test_history_rows_add_up():
    history = AskTell(arms(40), policy(), seed=0).run(f, 60).history
    assert sum(history.column("batch_size")) == history.rows[-1].pulls == 60
    assert history.column("round") == list(range(1, len(history.rows) + 1))
    assert all(row.dictionary_size >= row.rank >= 1 for row in history.rows)
    assert {"pick", "objective", "fit"} <= set(history.rows[-1].seconds)
    with pytest.raises(ValueError, match="expected a field of HistoryRow"):
        history.column("regrets")


def test_random_search_over_a_gpu_sized_set_does_not_permute_it_each_time():
    loop = AskTell(torch.rand(100_000, 1, dtype=torch.float64), RandomSearch(batch_size=5), seed=0)
    loop.run(lambda X: X[:, 0], 25)
    assert len(set(loop.history.indices)) == 25


def test_its_text_says_what_runs_and_how_far():
    loop = AskTell(arms(), RandomSearch(batch_size=3), seed=0)
    batch = loop.ask()
    loop.tell(batch.tickets[:1], batch.X[:1].sum(-1))
    assert repr(loop) == "AskTell(policy='random', asked=3, pending=2)"
