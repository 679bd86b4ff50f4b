"""With a learned prior, t evaluations are of at least 2 √t different arms."""

import math
from dataclasses import replace

import pytest
import torch

from sparse_bo import BBKB, BKB, GPUCB, AskTell, ProductGrid
from sparse_bo.arms import pick_batch
from sparse_bo.domains import Arms
from sparse_bo.domains.sharded import is_streamed
from sparse_bo.policies import MiniMETA
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from tests.builders import arms, rbf_kernel

LOOKS = ArmUCB.exploration

SURE = BBKB(width=0.0, initial_design=10)
"""Looks where the mean is highest, and nowhere else."""


def spike(X):
    """One arm in the middle is good, its neighbours are like all others: nothing foresees where it is."""
    return torch.where(torch.arange(len(X)) == 7, 1.0, 0.0).to(torch.float64)


def run(policy, X, budget, seed=0):
    """Return what was evaluated, and of each batch: evaluations before it, different arms before and with it, its length."""
    loop, values = AskTell(X, policy, seed=seed), spike(X)
    evaluated, batches = [], []
    while len(evaluated) < budget:
        batch = loop.ask(budget - len(evaluated))
        before = len(set(evaluated))
        evaluated += batch.indices.tolist()
        batches.append((loop.state.pulls, before, len(set(evaluated)), len(batch.indices)))
        loop.tell(batch.tickets, values[batch.indices.cpu()])
    return evaluated, batches


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", [SURE, BKB(width=0.0, initial_design=10), GPUCB(width=0.0, initial_design=10)])
def test_every_batch_looks_at_what_is_missing(policy):
    X = arms(300)
    budget = 60 if isinstance(policy, (BKB, GPUCB)) else 400
    _, batches = run(policy, X, budget)
    for pulls, before, after, length in batches[1:]:
        due = max(int(LOOKS * math.sqrt(pulls)) - before, 0)
        assert after - before >= min(due, length, 1)  # with a width of 0 an arm may be taken twice
    assert batches[-1][2] >= int(LOOKS * math.sqrt(batches[-1][0]))


class WithoutExploration:
    """:data:`SURE` that evaluates no arm for its novelty."""

    name = "without-exploration"

    def on(self, domain):
        return replace(SURE.on(domain), exploration=0.0)


@pytest.mark.slow  # that looks are made, the test above says of every batch
def test_without_looks_the_same_run_settles():
    X = arms(300)
    looked = len(set(run(SURE, X, 400)[0]))
    settled = len(set(run(WithoutExploration(), X, 400)[0]))
    assert settled < 0.75 * looked
    assert looked >= 2 * math.sqrt(300)


def test_a_batch_in_pieces_is_the_batch_at_once():
    X = arms(300)
    for width in (0.0, 2.0):
        policy = replace(SURE, width=width)
        loops = [AskTell(X, policy, seed=1) for _ in range(2)]
        values = spike(X)
        for loop in loops:  # a design at random is another one in pieces
            design = loop.ask(10)
            values[design.indices[0]] = -0.01  # while all are equal, it goes on
            loop.tell(design.tickets, values[design.indices])
        for _ in range(4):
            whole = loops[0].ask(1000)
            parts = [loops[1].ask(1) for _ in range(min(len(whole.indices), 7))]
            if len(whole.indices) > 7:
                parts.append(loops[1].ask(1000))
            assert torch.equal(torch.cat([part.indices for part in parts]), whole.indices)
            loops[0].tell(whole.tickets, values[whole.indices])
            tickets = torch.tensor([ticket for part in parts for ticket in part.tickets])
            loops[1].tell(tickets.tolist(), values[whole.indices])


def test_looks_are_the_best_of_the_arms_never_evaluated():
    X = arms(300)
    loop = AskTell(X, replace(SURE, width=1.5), seed=2)
    values = spike(X)
    found = 0
    for _ in range(20):
        state, batch = loop.state, loop.ask(1000)
        if state.fitted is not None:
            posterior, rows = state.fitted.posterior, state.observations.rows
            due = int(LOOKS * math.sqrt(state.pulls)) - len(rows)
            if due > 0:
                everywhere = torch.arange(len(X))
                scores = posterior.means_at(everywhere) + state.fitted.width * posterior.leverages_at(everywhere).sqrt()
                scores[rows] = -math.inf
                assert float(scores.amax() - scores[batch.indices[0]]) < 1e-9
                first = batch.indices[: min(due, len(batch.indices))]
                assert not torch.isin(first, rows).any()
                found += 1
        loop.tell(batch.tickets, values[batch.indices])
    assert found


def test_with_fewer_arms_than_looks_every_arm_is_looked_at():
    X = arms(12)
    evaluated, _ = run(SURE, X, 80)
    assert set(evaluated) == set(range(12))


def test_a_given_prior_is_taken_at_its_word():
    X = arms(300)
    policy = BBKB(covar_module=rbf_kernel(0.3), regularization=0.05, width=0.0)
    loop = AskTell(X, policy, seed=0)
    values = spike(X)
    for _ in range(6):
        fitted = loop.state.fitted
        batch = loop.ask(50)
        if fitted is not None:
            alone = pick_batch(fitted.posterior, width=fitted.width, stop_rule=policy.parts.stop_rule, max_q=50)
            assert torch.equal(batch.indices, alone.indices)
        loop.tell(batch.tickets, values[batch.indices])


def test_one_arm_per_batch_stays_one_arm_per_batch():
    loop = AskTell(arms(300), MiniMETA(initial_design=10), seed=0)
    values = spike(arms(300))
    for i in range(12):
        batch = loop.ask(1000)
        assert i < 1 or len(set(batch.indices.tolist())) == 1
        values[batch.indices[0]] -= 0.01 * (i < 1)  # while all are equal, the design goes on
        loop.tell(batch.tickets, values[batch.indices])


def test_arms_that_fail_are_not_looked_at_again_and_again():
    X = arms(60)
    loop, values, asked = AskTell(X, SURE, seed=0), spike(X), []
    for _ in range(40):
        batch = loop.ask(20)
        y = torch.where(batch.indices % 3 == 0, math.nan, values[batch.indices])
        asked += batch.indices.tolist()
        loop.tell(batch.tickets, y)
    failing = [arm for arm in asked if arm % 3 == 0]
    assert len(failing) < 0.4 * len(asked)
    assert loop.state.observations.n >= min(int(LOOKS * math.sqrt(loop.state.pulls)) - 2, 40)


def test_looks_on_a_device_are_those_on_the_host(device):
    X = arms(300)
    assert run(SURE, X.to(device), 60)[0] == run(SURE, X, 60)[0]


def test_the_looks_of_streamed_arms_are_those_of_arms_in_memory():
    axis = torch.linspace(0.0, 1.0, 300, dtype=torch.float64)
    grid, policy = ProductGrid([axis, axis]), replace(SURE, width=1.0)
    small = replace(policy, memory_bytes=2**20)
    assert is_streamed(small.on(Arms(grid)).arms)
    assert not is_streamed(policy.on(Arms(grid)).arms)
    picks = []
    for each in (small, policy):
        loop = AskTell(grid, each, seed=0)
        picks.append([])
        while len(picks[-1]) < 40:
            batch = loop.ask(40)
            picks[-1] += batch.indices.tolist()
            loop.tell(batch.tickets, (batch.X.sum(dim=-1) < 0.3).double())
    assert picks[0] == picks[1]
    assert len(set(picks[0])) >= int(LOOKS * math.sqrt(30))
