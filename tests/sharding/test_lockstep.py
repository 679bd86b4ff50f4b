"""One run on all ranks: evaluated once, recorded once, stopped everywhere, resumed on another number."""

import resource
import threading

import pytest
from gpytorch.kernels import RBFKernel

import sparse_bo
from sparse_bo import AskTell, maximize
from sparse_bo.errors import ObjectiveError, PendingBatchError, RankError, StorageError, TicketError
from tests.sharding.builders import Described, bbkb, objective, picks_in, rehearse, scattered, split


def run(group, **how):
    return maximize(
        how.pop("objective", objective), arms=split(scattered(), group), policy=bbkb(), seed=3, **{"budget": 40, **how}
    )


def test_the_objective_is_evaluated_once_and_every_rank_has_the_result(tmp_path):
    calls, rows = [], []

    def counted(X):
        calls.append(len(X))
        return objective(X)

    alone = maximize(objective, arms=scattered(), policy=bbkb(), budget=25, seed=3)
    outcomes = rehearse(
        2,
        lambda group: run(
            group, budget=25, objective=counted, storage=tmp_path / "run.journal", callback=lambda _, row: rows.append(row)
        ),
    )
    assert sum(calls) == 25
    assert len(rows) == len(alone.history.rows)
    assert [picks_in(result.history) for result in outcomes] == [picks_in(alone.history)] * 2
    assert [result.best_index for result in outcomes] == [alone.best_index] * 2
    assert (tmp_path / "run.journal").exists()


def test_an_executor_spreads_the_evaluations_of_rank_0():
    alone = maximize(objective, arms=scattered(), policy=bbkb(), budget=30, seed=3, executor="threads", workers=1)
    outcomes = rehearse(2, lambda group: run(group, budget=30, executor="threads", workers=1))
    assert [picks_in(result.history) for result in outcomes] == [picks_in(alone.history)] * 2
    assert outcomes[1].best_index == alone.best_index


def test_an_objective_that_fails_stops_every_rank():
    def failing(X):
        if len(X) > 2:
            raise ValueError("broken")
        return objective(X)

    first, *others = rehearse(3, lambda group: run(group, objective=failing))
    assert isinstance(first, ObjectiveError)
    assert all(isinstance(error, RankError) and "broken" in str(error) for error in others)
    assert others[0].result.history.rows


@pytest.mark.sampled(1)
@pytest.mark.parametrize("then", [1, 2, 4])
def test_a_resume_on_another_number_of_ranks_makes_the_same_picks(then, tmp_path):
    storage = tmp_path / "run.journal"

    def play(group, rounds, *, resume):
        arms = split(scattered(), group)
        loop = AskTell.resume(storage, arms=arms) if resume else AskTell(arms, policy=bbkb(), seed=3, storage=storage)
        picks = []
        for _ in range(rounds):
            batch = loop.reissue() if loop.pending else loop.ask()
            picks += batch.indices.tolist()
            loop.tell(batch.tickets, objective(batch.X))
        if not resume:
            loop.ask()  # out when the run ends
        loop.close()
        return picks

    whole = rehearse(3, lambda group: play(group, 6, resume=False))[0]
    storage.unlink()
    before = rehearse(3, lambda group: play(group, 3, resume=False))[0]
    after = rehearse(then, lambda group: play(group, 3, resume=True))
    assert [before + picks for picks in after] == [whole] * then


def test_rank_0_alone_may_ask_for_the_result(tmp_path):
    """The rows of evaluated arms are known on every rank, of a resumed run too."""
    storage = tmp_path / "run.journal"

    def recommended(loop, group):
        result = loop.result() if group.leads else None
        return result and (result.best_index, result.best_x.tolist(), result.best_mean, result.best_sd)

    def first(group):
        with AskTell(split(scattered(), group), policy=bbkb(), seed=3, storage=storage) as loop:
            for _ in range(9):
                batch = loop.ask()
                loop.tell(batch.tickets, objective(batch.X))
            return recommended(loop, group)

    known = rehearse(3, first)
    resumed = rehearse(2, lambda group: recommended(AskTell.resume(storage, arms=split(scattered(), group)), group))
    assert known == [known[0], None, None]
    assert resumed == [(*known[0][:2], *(pytest.approx(value) for value in known[0][2:])), None]


def test_a_journal_of_other_arms_is_refused_everywhere(tmp_path):
    storage = tmp_path / "run.journal"
    rehearse(2, lambda group: run(group, storage=storage))
    outcomes = rehearse(2, lambda group: AskTell.resume(storage, arms=split(scattered(seed=5), group)))
    assert all(isinstance(error, ValueError) and "another problem" in str(error) for error in outcomes)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seed": 1}, "the same seed on every rank, got 0 on rank 0 and 1 on rank 2"),
        ({"policy": bbkb(regularization=0.6)}, "the same settings of the policy"),
        ({"certify_every": 3}, "certify_every"),
    ],
    ids=["seed", "policy", "certify"],
)
def test_ranks_with_other_settings_find_out_at_the_start(settings, message):
    def script(group):
        return AskTell(split(scattered(), group), **{"policy": bbkb(), **(settings if group.rank == 2 else {})})

    assert all(isinstance(error, ValueError) and message in str(error) for error in rehearse(3, script))


WRONG = [
    ({"initial": ([0, 1], [1.0])}, "as many initial values as inputs"),
    ({"initial": ([0], [float("nan")])}, "finite"),
    ({"names": ["a"]}, "a name for each of 400 arms"),
    ({"workers": 0}, "workers"),
    ({"notes": 3}, "notes"),
]


@pytest.mark.parametrize(("settings", "message"), WRONG, ids=[name for settings, _ in WRONG for name in settings])
@pytest.mark.parametrize("wrong", [0, 2])
def test_a_wrong_argument_on_one_rank_is_an_error_everywhere_and_the_ranks_can_begin_again(settings, message, wrong):
    def script(group):
        arms = split(scattered(), group)
        with pytest.raises((ValueError, TypeError, RankError)) as raised:
            AskTell(arms, policy=bbkb(), **(settings if group.rank == wrong else {}))
        loop = AskTell(arms, policy=bbkb(), seed=3)
        return raised.value, loop.ask().indices.tolist()

    errors, picks = zip(*rehearse(3, script), strict=True)
    assert picks == (picks[0],) * 3
    for rank, error in enumerate(errors):
        assert isinstance(error, RankError) != (rank == wrong)
        assert message in str(error)
        assert rank == wrong or f"rank {wrong} of 3 stopped: " in str(error)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": -1}, "budget"),
        ({"callback": 3}, "callback"),
        ({"resume": True}, "expected storage="),
        ({"seconds": -1}, "seconds"),
    ],
    ids=["budget", "callback", "resume", "seconds"],
)
def test_a_wrong_argument_of_maximize_on_one_rank_is_an_error_everywhere(settings, message):
    errors = rehearse(3, lambda group: run(group, **(settings if group.rank == 1 else {})))
    assert [isinstance(error, RankError) for error in errors] == [True, False, True]
    assert all(message in str(error) for error in errors)


def test_a_wrong_argument_of_a_resume_on_one_rank_is_an_error_everywhere(tmp_path):
    storage = tmp_path / "run.journal"
    rehearse(2, lambda group: run(group, budget=10, storage=storage))

    def script(group, **how):
        return run(group, **{"storage": storage, "resume": True, "budget": 12, **(how if group.rank else {})})

    for wrong in ({"initial": ([0], [1.0])}, {"initial": ([0, 1], [1.0])}):
        first, second = rehearse(2, lambda group, wrong=wrong: script(group, **wrong))
        assert isinstance(first, RankError)
        assert isinstance(second, ValueError)
        assert str(second)[:100] in str(first)

    def with_policy(group):
        return AskTell.resume(storage, arms=split(scattered(), group), policy=bbkb(regularization=0.6) if group.rank else None)

    first, second = rehearse(2, with_policy)
    assert isinstance(first, RankError)
    assert "expected the policy of the run" in str(first)
    assert isinstance(second, ValueError)
    assert all(result.history.observations == 12 for result in rehearse(2, script))


def test_ranks_of_other_versions_find_out_at_the_start():
    def script(group):
        older = {"versions": {"sparse_bo": sparse_bo.__version__, "torch": "2.0"}}
        return split(scattered(), group if group.rank else Described(group, **older))

    outcomes = rehearse(2, script)
    assert all(
        isinstance(error, ValueError) and "one version of torch on every rank, got 2.0" in str(error) for error in outcomes
    )


def here() -> int:
    """Return the rank whose turn it is in a rehearsal."""
    return int(threading.current_thread().name.removeprefix("rank-"))


class Rounding(RBFKernel):
    """A kernel that rounds on every rank otherwise."""

    def forward(self, *inputs, **options):
        return super().forward(*inputs, **options) * (1.0 + 1e-15 * here())


def test_ranks_whose_posteriors_round_differently_find_out():
    def one_round(group):
        loop = AskTell(split(scattered(), group), policy=bbkb(covar_module=Rounding().double()), seed=3)
        batch = loop.ask()
        loop.tell(batch.tickets, objective(batch.X))

    assert all("do not round alike" in str(error) for error in rehearse(2, one_round))


def test_a_journal_that_is_there_already_stops_every_rank(tmp_path):
    storage = tmp_path / "run.journal"
    storage.write_text("")
    first, second = rehearse(2, lambda group: AskTell(split(scattered(), group), policy=bbkb(), storage=storage))
    assert isinstance(first, FileExistsError)
    assert isinstance(second, RankError)


def test_a_journal_that_cannot_be_written_stops_every_rank(tmp_path):
    path, before = tmp_path / "run.journal", resource.getrlimit(resource.RLIMIT_FSIZE)

    def full(X):
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, before[1]))
        return objective(X)

    try:
        first, second = rehearse(2, lambda group: run(group, objective=full, storage=path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert isinstance(first, StorageError)
    assert isinstance(second, RankError)
    assert "no larger file" in str(second)


def test_only_what_rank_0_tells_counts():
    def script(group):
        loop = AskTell(split(scattered(), group), policy=bbkb(), seed=3)
        batch = loop.ask()
        loop.tell(batch.tickets, objective(batch.X) if group.leads else [])
        return loop.result().best_observed_mean

    values = rehearse(3, script)
    assert values[0] is not None
    assert values == [values[0]] * 3


def test_wrong_tickets_on_rank_0_are_an_error_everywhere_and_the_run_goes_on():
    def script(group):
        loop = AskTell(split(scattered(), group), policy=bbkb(), seed=3)
        batch = loop.ask()
        with pytest.raises(TicketError if group.leads else RankError, match="unknown"):
            loop.tell([99], [1.0])
        loop.tell(batch.tickets, objective(batch.X))
        return loop.ask().indices.tolist()

    first, second = rehearse(2, script)
    assert first == second


def test_an_ask_too_many_is_an_error_everywhere_and_the_run_goes_on():
    def script(group):
        loop = AskTell(split(scattered(), group), policy=bbkb(), seed=3)
        batch = loop.ask()
        with pytest.raises(PendingBatchError):
            loop.ask()
        loop.tell(batch.tickets, objective(batch.X))
        return loop.ask().indices.tolist()

    first, second = rehearse(2, script)
    assert first == second


def test_ranks_that_do_different_things_find_out():
    def script(group):
        loop = AskTell(split(scattered(), group), policy=bbkb(), seed=3)
        batch = loop.ask()
        if group.rank:
            loop.tell(batch.tickets, [])
        else:
            loop.ask()

    first, second = rehearse(2, script)
    assert "rank 0 is at 'ask', rank 1 at 'tell'" in str(second)
    assert isinstance(first, (RankError, PendingBatchError))


class Short(RBFKernel):
    """A kernel for whose values over many arms the second rank has no memory."""

    def forward(self, x1, x2, diag=False, **options):
        if here() == 1 and not diag and len(x2) > 100:
            raise MemoryError("no room")
        return super().forward(x1, x2, diag=diag, **options)


def test_a_rank_that_runs_out_of_memory_is_named_by_the_others():
    def one_round(group):
        loop = AskTell(split(scattered(), group), policy=bbkb(covar_module=Short().double()), seed=3)
        batch = loop.ask()
        loop.tell(batch.tickets, objective(batch.X))

    first, second, third = rehearse(3, one_round)
    assert isinstance(second, MemoryError)
    assert "rank 1 of 3 stopped: MemoryError: no room" in str(first)
    assert str(first) == str(third)
