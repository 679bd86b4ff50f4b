"""Ask and tell with evaluations out: picks in pieces, late, partial and missing results."""

from __future__ import annotations

import pytest
import torch

from sparse_bo import BKB, GPBUCB, AskTell
from sparse_bo.arms import pick_batch
from sparse_bo.errors import PendingBatchError, TicketError
from sparse_bo.policies import EpsilonGreedy, Policy, RandomSearch
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from tests.builders import arms, bbkb, rbf_kernel, waves

POLICIES = {
    "global": bbkb(),
    "local": bbkb(stop_rule="local"),
    "process": bbkb(in_batch="process"),
    "gp-bucb rule": bbkb(stop_rule="gp-bucb"),
    "gp-bucb": GPBUCB(covar_module=rbf_kernel(), regularization=0.02, ratio_threshold=3.0),
    "float32": bbkb(sweep_dtype=torch.float32),
}


def started(policy: Policy, told: int = 20) -> AskTell:
    """A loop after some synchronous batches, with nothing out."""
    loop = AskTell(arms(), policy, seed=0)
    loop.run(waves, told)
    return loop


def asked(loop: AskTell, pieces: list[int]) -> list[int]:
    return [i for q in pieces for i in loop.ask(q).indices.tolist()]


def test_a_result_has_the_results_of_an_incomplete_batch_and_changes_nothing():
    looked, other = started(bbkb()), started(bbkb())
    batch, _ = looked.ask(), other.ask()
    best = int(waves(batch.X).argmax())
    first = [*[ticket for k, ticket in enumerate(batch.tickets) if k != best][:2], batch.tickets[best]]
    values = dict(zip(batch.tickets, waves(batch.X).tolist(), strict=True))
    for loop in (looked, other):
        loop.tell(first, [values[t] for t in first])
    pulls = looked.state.pulls
    result = looked.result()
    assert sum(len(row.tickets) for row in result.history.rows) == 23
    assert result.state.pulls == 23
    assert result.best_observed_count >= 1
    assert looked.state.pulls == pulls == 20
    assert len(looked.history.rows) == len(result.history.rows) - 1
    rest = [t for t in batch.tickets if t not in first]
    for loop in (looked, other):
        loop.tell(rest, [values[t] for t in rest])
    assert looked.ask().indices.tolist() == other.ask().indices.tolist()
    assert looked.history.indices == other.history.indices


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_picks_asked_in_pieces_are_those_asked_at_once(policy):
    whole = started(policy).ask().indices.tolist()
    assert len(whole) >= 5
    for piece in (1, 2, 3, 5):
        loop, picks = started(policy), []
        while len(picks) < len(whole):
            picks += loop.ask(piece).indices.tolist()
        assert picks == whole, piece
        with pytest.raises(PendingBatchError):
            loop.ask(1)
    half = len(whole) // 2
    assert asked(started(policy), [half]) + asked(started(policy), [half, half])[half:] == whole[: 2 * half]


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_results_inside_a_batch_change_neither_its_picks_nor_the_state(policy):
    whole = started(policy).ask().indices.tolist()
    loop = started(policy)
    first = loop.ask(2)
    before = loop.state
    loop.tell(first.tickets[1:], waves(first.X[1:]))
    loop.ask(1)
    loop.fail(first.tickets[:1])
    assert [*first.indices.tolist(), whole[2], *loop.ask().indices.tolist()] == whole
    assert loop.state is before


@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_a_batch_in_pieces_told_in_any_order_ends_like_the_synchronous_one(order):
    reference = started(bbkb())
    batch = reference.ask()
    reference.tell(batch.tickets, waves(batch.X))
    loop = started(bbkb())
    pieces = []
    while sum(map(len, pieces)) < len(batch):
        pieces.append(loop.ask(2))
    for piece in pieces if order == "forwards" else reversed(pieces):
        loop.tell(piece.tickets, waves(piece.X))
    assert torch.equal(loop.state.posterior.means, reference.state.posterior.means)
    assert loop.ask().indices.tolist() == reference.ask().indices.tolist()


def test_a_full_batch_with_some_results_resparsifies_and_goes_on_from_what_is_still_out():
    loop = started(bbkb())
    batch = loop.ask()
    told = len(batch) - 2
    loop.tell(batch.tickets[:told], waves(batch.X[:told]))
    assert loop.state.pulls == 20
    more = loop.ask(3)
    assert loop.state.pulls == 20 + told
    out = batch.indices[told:]
    policy, state = loop.policy, loop.state
    expected = pick_batch(state.posterior, width=state.width, stop_rule=policy.parts.stop_rule, max_q=3, given=out)
    assert more.indices.tolist() == expected.indices.tolist()
    assert loop.pending == [*batch.tickets[told:], *more.tickets]


def test_late_results_of_an_earlier_batch_are_taken_in():
    loop = started(bbkb())
    batch = loop.ask()
    loop.tell(batch.tickets[1:], waves(batch.X[1:]))
    more = loop.ask()
    assert loop.pending == [batch.tickets[0], *more.tickets]
    loop.tell(more.tickets, waves(more.X))
    loop.tell(batch.tickets[:1], waves(batch.X[:1]))
    assert loop.pending == []
    assert loop.state.pulls == loop.asked == 20 + len(batch) + len(more)
    assert sorted(loop.history.rows[-1].indices) == sorted([int(batch.indices[0]), *more.indices.tolist()])


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_one_result_that_never_comes_does_not_stop_the_run(policy):
    loop = started(policy)
    lost = loop.ask(1)
    while loop.asked < 60:
        batch = loop.ask(60 - loop.asked)
        loop.tell(batch.tickets, waves(batch.X))
    assert loop.pending == lost.tickets
    # The results of the last batch wait for the next ask.
    assert loop.state.pulls + len(batch) + len(lost) == 60


@pytest.mark.parametrize("kind", ["global", "gp-bucb"])
def test_the_rule_holds_for_all_that_is_out_whatever_comes_back(kind):
    policy = bbkb(stop_rule=kind)
    loop, generator = started(policy), torch.Generator().manual_seed(3)
    rule, out, refused = policy.parts.stop_rule, {}, 0
    for _ in range(150):
        if not out or torch.rand((), generator=generator) < 0.6:
            before = loop.state
            try:
                batch = loop.ask(int(torch.randint(1, 5, (), generator=generator)))
            except PendingBatchError:
                refused += 1
                continue
            if loop.state is not before:  # what was told is in the new state
                out = {t: i for t, i in out.items() if t in loop.pending}
            out.update(zip(batch.tickets, batch.indices.tolist(), strict=True))
            held = list(out.values())[:-1]
            assert float(rule.costs(loop.state.posterior.leverages[held]).sum()) <= rule.allowance + 1e-12
        else:
            ticket = loop.pending[int(torch.randint(len(loop.pending), (), generator=generator))]
            before = loop.state
            loop.tell([ticket], waves(arms()[[out[ticket]]]))
            if loop.state is not before or not loop.pending:
                out = {}
    assert refused > 5


def test_how_many_results_are_needed_is_enough_here():
    loop = started(bbkb())
    batch = loop.ask()
    with pytest.raises(PendingBatchError) as caught:
        loop.ask()
    needed = caught.value.needed
    loop.tell(batch.tickets[-needed:], waves(batch.X[-needed:]))
    assert len(loop.ask(1)) == 1


def test_bkb_keeps_one_evaluation_out_and_says_so():
    loop = started(BKB(covar_module=rbf_kernel(), regularization=0.02))
    loop.ask(8)
    with pytest.raises(PendingBatchError, match="1 evaluations are pending.*needs about 1 of"):
        loop.ask(8)


def test_the_initial_design_counts_what_is_out():
    loop = AskTell(arms(), bbkb(initial_design=6), seed=0)
    first, second = loop.ask(4), loop.ask(4)
    assert (len(first), len(second)) == (4, 2)
    assert len({*first.indices.tolist(), *second.indices.tolist()}) == 6
    with pytest.raises(PendingBatchError, match="needs about 6"):
        loop.ask()
    loop.tell(first.tickets, waves(first.X))
    with pytest.raises(PendingBatchError, match="needs about 2") as caught:
        loop.ask()
    assert caught.value.pending == 2
    loop.fail(second.tickets)
    assert loop.state.posterior is not None  # failures count
    assert loop.state.pulls == 4


def test_max_batch_size_bounds_what_is_out():
    loop = started(bbkb(max_batch_size=3))
    batch = loop.ask()
    assert len(batch) == 3
    with pytest.raises(PendingBatchError):
        loop.ask()


@pytest.mark.parametrize("policy", [RandomSearch(batch_size=2), EpsilonGreedy(epsilon=0.0)], ids=lambda p: p.name)
def test_policies_without_batches_take_results_in_before_every_ask(policy):
    loop = AskTell(arms(), policy, seed=0)
    first, second = loop.ask(), loop.ask()
    loop.tell(first.tickets, waves(first.X))
    assert loop.state.pulls == 0
    third = loop.ask()
    assert loop.state.pulls == len(first)
    assert loop.pending == [*second.tickets, *third.tickets]


def test_random_search_does_not_repeat_arms_that_are_out():
    loop = AskTell(arms(30), RandomSearch(), seed=0)
    assert sorted(int(loop.ask().indices) for _ in range(30)) == list(range(30))


def test_a_lost_evaluation_can_be_issued_again():
    loop = started(bbkb())
    batch = loop.ask(4)
    again = loop.reissue(batch.tickets[1:3])
    assert again.indices.tolist() == batch.indices[1:3].tolist()
    assert torch.equal(again.X, batch.X[1:3])
    assert again.tickets == batch.tickets[1:3]
    loop.tell(again.tickets, waves(again.X))
    with pytest.raises(TicketError, match=r"already answered, and results do not change: add\(X, y\)"):
        loop.tell(batch.tickets[1:2], [0.0])
    assert loop.reissue().tickets == loop.pending == [batch.tickets[0], batch.tickets[3]]
    with pytest.raises(TicketError):
        loop.reissue(batch.tickets[1:2])


def test_asynchronous_evaluations_on_a_box():
    bounds = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float32)
    loop = AskTell(bounds=bounds, policy=RandomSearch(), seed=0)
    batches = [loop.ask() for _ in range(3)]
    assert len({tuple(batch.X[0].tolist()) for batch in batches}) == 3
    assert loop.reissue().X.dtype == torch.float32
    assert torch.equal(loop.reissue().X, torch.cat([b.X for b in batches]))
    loop.tell(batches[2].tickets, [1.0])
    loop.ask()
    assert torch.equal(loop.state.X, batches[2].X.double())


def test_an_ask_that_raises_draws_nothing(monkeypatch):
    loop, reference = AskTell(arms(), bbkb(), seed=0), AskTell(arms(), bbkb(), seed=0)
    original = ArmUCB.ask

    def broken(self, state, **kwargs):
        original(self, state, **kwargs)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(ArmUCB, "ask", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        loop.ask()
    monkeypatch.setattr(ArmUCB, "ask", original)
    assert (loop.asked, loop.pending) == (0, [])
    assert loop.ask().indices.tolist() == reference.ask().indices.tolist()


@pytest.mark.parametrize(
    ("y", "message"), [([1j], "real values, got complex"), (["high"], "to be 1 numbers"), ([None], "to be 1 numbers")], ids=str
)
def test_results_of_the_wrong_kind_are_named_and_nothing_is_recorded(y, message):
    loop = started(bbkb())
    batch = loop.ask(1)
    with pytest.raises(TypeError, match=message):
        loop.tell(batch.tickets, y)
    assert loop.pending == batch.tickets
