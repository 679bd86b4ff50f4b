"""Every policy picks the same arms over 1, 2, 3 and 8 shards as in one process."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_bo import BBKB, BKB, AskTell, ProductGrid
from sparse_bo.arms import ArmPrior, KernelColumns, StopRule, arm_posterior, fit_arms, pick_batch
from sparse_bo.arms.prior import Sizes
from sparse_bo.dictionary import Dictionary, LeverageSampler
from sparse_bo.domains import ShardedArms
from sparse_bo.gp.objective_prior import KnownPrior
from sparse_bo.gp.observations import add_observations, no_observations
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.policies.comparators.baselines import PosteriorEpsilonGreedy
from sparse_bo.policies.comparators.thompson import QFFTSArms, SGPTSArms
from tests.sharding.builders import Counted, bbkb, kernel, objective, picks_of, rehearse, sbpe, scattered, split

GIVEN = {"covar_module": kernel(), "regularization": 0.5}
POLICIES = {
    **{f"bbkb-{rule}": bbkb(stop_rule=rule) for rule in ("global", "local", "gp-bucb", "repeat")},
    "bbkb-process": bbkb(in_batch="process"),
    "bbkb-float32": bbkb(sweep_dtype=torch.float32),
    "bbkb-learning": BBKB(),
    "sbpe": sbpe(),
    "sbpe-inexact": sbpe(dictionary=LeverageSampler(oversampling=3.0), rkhs_norm=2.0, width="theory"),
    "bkb": BKB(**GIVEN),
    "thompson": SGPTSArms(batch_size=4, **GIVEN),
    "quadrature": QFFTSArms(batch_size=3, **GIVEN),
    "epsilon-greedy": PosteriorEpsilonGreedy(batch_size=3, **GIVEN),
}


@cache
def alone(name: str) -> list[int]:
    return picks_of(scattered(), POLICIES[name])


FEW = ("sbpe-inexact", "bbkb-process", "bbkb-float32", "bbkb-learning", "quadrature", "epsilon-greedy")
"""Of these, three ranks are enough: what they share with the others is tried there."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "ranks"),
    [(name, ranks) for name in POLICIES for ranks in (1, 2, 3, 8) if ranks == 3 or name not in FEW],
)
def test_the_picks_are_those_of_one_process(name, ranks):
    rounds = 4 if ranks == 8 else 6
    outcomes = rehearse(ranks, lambda group: picks_of(split(scattered(), group), POLICIES[name], rounds=rounds))
    assert len(outcomes[0]) >= 4
    assert outcomes == [alone(name)[: len(outcomes[0])]] * ranks


@settings(max_examples=3, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(0, 60), min_size=1, max_size=4), rule=st.sampled_from(["global", "local", "gp-bucb"]))
def test_where_the_cuts_lie_is_of_no_account(cuts, rule):
    arms, policy = scattered(60), bbkb(stop_rule=rule)
    ends = [0, *sorted(cuts), 60]

    def script(group):
        return picks_of(ShardedArms(arms[ends[group.rank] : ends[group.rank + 1]], group=group), policy, rounds=4)

    expected = picks_of(arms, policy, rounds=4)
    assert rehearse(len(ends) - 1, script) == [expected] * (len(ends) - 1)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_grid_in_shards_is_picked_from_as_in_memory(streamed):
    axis = torch.linspace(0, 1, 200, dtype=torch.float64)
    grid, policy = ProductGrid([axis, axis]), bbkb(memory_bytes=2**20 if streamed else 2**28)
    expected = picks_of(grid[:], policy, rounds=6)

    def script(group):
        arms = split(grid, group)
        return picks_of(arms, policy, rounds=6), arms.group.size

    assert rehearse(3, script) == [(expected, 3)] * 3


@pytest.mark.parametrize("in_batch", ["fixed", "process"])
def test_few_contenders_give_the_same_picks_by_more_passes(in_batch):
    pulled = torch.tensor([5, 60, 170, 230, 390])
    rule = StopRule("global", 6.0)

    def script(arms, sizes):
        prior = replace(ArmPrior.over(arms, KnownPrior(kernel(), 0.0, 2.0)), sizes=sizes)
        observations = add_observations(no_observations(arms), arms, pulled, objective(scattered()[pulled]))
        dictionary = Dictionary(arms[pulled], torch.ones(5, dtype=torch.float64), pulled)
        fit, _ = fit_arms(prior, observations, dictionary, KernelColumns(2**20))
        posterior = arm_posterior(fit, width=2.0, stop_rule=rule)
        picks = pick_batch(posterior, width=2.0, stop_rule=rule, in_batch=in_batch, max_q=60).indices.tolist()
        return picks, posterior

    expected, _ = script(scattered(), Sizes())
    outcomes = rehearse(3, lambda group: script(split(scattered(), group), Sizes(gathered=4)))
    assert [picks for picks, _ in outcomes] == [expected] * 3
    assert not set(expected) <= set(outcomes[0][1].contenders.indices.tolist())


def test_failing_arms_are_left_out_alike():
    def script(arms):
        loop, picks = AskTell(arms, policy=bbkb(), seed=1), []
        for _ in range(9):
            batch = loop.ask(20)
            y = torch.where(batch.X[:, 0] > 0.7, torch.nan, objective(batch.X))
            picks += batch.indices.tolist()
            loop.tell(batch.tickets, y)
        return picks

    expected = script(scattered())
    assert rehearse(3, lambda group: script(split(scattered(), group))) == [expected] * 3


def test_pending_picks_keep_their_effect():
    def script(arms):
        loop, picks = AskTell(arms, policy=bbkb(ratio_threshold=9.0), seed=1), []
        for _ in range(5):
            batch = loop.ask()
            loop.tell(batch.tickets, objective(batch.X))
        for _ in range(3):  # batches of several in pieces, the first result of each piece alone
            pieces = [loop.ask(2), loop.ask(1)]
            for piece in pieces:
                picks += piece.indices.tolist()
                loop.tell(piece.tickets[:1], objective(piece.X)[:1])
        return picks

    expected = script(scattered())
    assert rehearse(2, lambda group: script(split(scattered(), group))) == [expected] * 2


def test_a_round_takes_a_fixed_number_of_messages_and_few_bytes():
    def script(group):
        counted = Counted(group)
        arms = split(scattered(2000), counted)
        loop, spent = AskTell(arms, policy=bbkb(), seed=1), []
        for _ in range(8):
            before = counted.traffic.collectives, counted.traffic.bytes
            batch = loop.ask()
            loop.tell(batch.tickets, objective(batch.X))
            spent.append((counted.traffic.collectives - before[0], counted.traffic.bytes - before[1]))
        return spent

    for spent in rehearse(4, script):
        assert max(calls for calls, _ in spent[1:]) <= 8
        assert max(size for _, size in spent[1:]) <= 600 * 64 + 8 * 512


def test_random_choices_depend_on_the_number_of_an_arm_alone():
    expected = AskTell(scattered(), policy=bbkb(initial_design=30), seed=4).ask().indices.tolist()
    outcomes = rehearse(3, lambda group: AskTell(split(scattered(), group), policy=bbkb(initial_design=30), seed=4).ask())
    assert [batch.indices.tolist() for batch in outcomes] == [expected] * 3


def test_a_local_rule_over_streamed_shards_is_refused_everywhere():
    axis = torch.linspace(0, 1, 300, dtype=torch.float64)
    grid = ProductGrid([axis, axis])
    outcomes = rehearse(2, lambda group: picks_of(split(grid, group), bbkb(stop_rule="local", memory_bytes=2**20)))
    assert all(isinstance(error, ValueError) and "local" in str(error) for error in outcomes)


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_repeats_no_copy_of_an_evaluated_arm_is_evaluated_while_others_are_left(ranks):
    X = scattered(100)
    arms, policy = torch.cat([X, X]), bbkb(repeats=False, batch_size=10)
    expected = picks_of(arms, policy, rounds=4, most=10)
    assert len({arm % 100 for arm in expected}) == len(expected)
    ends = [0, 200] if ranks == 1 else [0, 70, 200]

    def script(group):
        return picks_of(ShardedArms(arms[ends[group.rank] : ends[group.rank + 1]], group=group), policy, rounds=4, most=10)

    assert rehearse(ranks, script) == [expected] * ranks


def test_copies_of_fingerprints_are_not_evaluated_over_ranks_either():
    bits = (torch.rand(200, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64) < 0.2).double()
    arms, settings = torch.cat([bits, bits]), {"repeats": False, "regularization": 0.05, "batch_size": 8}
    policy = BBKB(covar_module=TanimotoKernel(), **settings)
    expected = picks_of(arms, policy, rounds=4, most=8)
    assert len({arm % 200 for arm in expected}) == len(expected)
    assert rehearse(2, lambda group: picks_of(split(arms, group), policy, rounds=4, most=8)) == [expected] * 2


def test_every_rank_knows_why_a_run_has_ended_and_one_process_goes_on_from_its_journal(tmp_path):
    X, path = scattered(60), tmp_path / "run.journal"

    def script(group):
        loop = AskTell(split(X, group), bbkb(), storage=path)
        return loop.run(objective, 40, patience=5).ended

    ended = rehearse(2, script)
    assert ended[0] == ended[1] is not None
    again = AskTell.resume(path, arms=X, policy=bbkb())
    assert again.asked < 40
    assert len(again.ask()) > 0
