"""Earlier observations of inputs that are none of the candidates: models know them, no policy picks them."""

from __future__ import annotations

import warnings

import numpy as np
import pandas
import pytest
import torch

from sparse_bo import BBKB, BKB, AskTell, Storage, maximize, observations_of
from sparse_bo.domains import ProductGrid
from sparse_bo.errors import NumericalWarning, ResumeWarning, ScheduleComplete, StorageError
from sparse_bo.policies import GPUCB, SBPE, ExpectedImprovement, TwoStage
from tests.builders import arms, waves

LIBRARY = arms()
OLD = torch.cat([0.5 * LIBRARY[::7] + 0.25, LIBRARY[3:5], LIBRARY[:1] + 0.01, LIBRARY[:1] + 0.01])
NEW = len(OLD) - 3
"""Distinct rows that are no candidates."""


def run(policy, rounds=6, device="cpu", **domain):
    loop = AskTell(LIBRARY.to(device), policy, initial=(OLD.to(device), waves(OLD)), seed=1, **domain)
    picks = []
    for _ in range(rounds):
        batch = loop.ask(4)
        picks += batch.indices.tolist()
        loop.tell(batch, waves(batch.X))
    return loop, picks


POLICIES = {
    "default": None,
    "no repeats": ExpectedImprovement(repeats=False),
    "bbkb": BBKB(),
    "local": BBKB(stop_rule="local"),
    "repeat": BBKB(stop_rule="repeat"),
    "plates": BBKB(batch_size=4, repeats=False),
    "bkb": BKB(),
    "gp-ucb": GPUCB(),
    "stages": TwoStage(after=len(OLD) + 8),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_they_are_known_and_never_picked(policy, device):
    loop, picks = run(policy, device=device)
    assert max(picks) < len(LIBRARY)
    first = loop.history.rows[0]
    assert first.added
    assert max(first.indices) == len(LIBRARY) + NEW - 1
    assert first.indices[-4:] == [3, 4, len(LIBRARY) + NEW - 1, len(LIBRARY) + NEW - 1]
    assert torch.equal(loop._domain.points[first.indices].cpu(), OLD)
    best = float(waves(LIBRARY).max())
    assert float(waves(LIBRARY)[picks].max()) > best - 0.3  # they were learned from


@pytest.mark.parametrize("policy", [ExpectedImprovement(repeats=False), BBKB(batch_size=4, repeats=False)], ids=["ei", "bbkb"])
def test_picks_are_those_of_a_run_in_which_they_are_candidates_that_were_evaluated(policy):
    """Where no candidate is evaluated twice, it makes no difference whether the earlier inputs are candidates."""
    loop, picks = run(policy)
    whole, rows = loop._domain.points, loop.history.rows[0].indices
    other = AskTell(whole, policy, initial=(rows, waves(OLD)), seed=1)
    for start in range(0, len(picks), 4):
        batch = other.ask(4)
        assert batch.indices.tolist() == picks[start : start + 4]
        other.tell(batch, waves(batch.X))


def test_several_outcomes_know_them():
    Y = torch.stack([waves(OLD), OLD[:, 0]], dim=-1)
    Y[0, 0] = 9.0
    loop = AskTell(LIBRARY, objectives={"a": "max", "b": "min"}, initial=(OLD, Y))
    for _ in range(4):
        batch = loop.ask(3)
        assert int(batch.indices.max()) < len(LIBRARY)
        loop.tell(batch, torch.stack([waves(batch.X), batch.X[:, 0]], dim=-1))
    assert any(point.index >= len(LIBRARY) for point in loop.result().pareto_front)


def test_the_best_of_them_is_not_repeated_to_look_for_noise():
    y = waves(OLD[:-1])
    y[0] = 9.0
    loop = AskTell(LIBRARY, initial=(OLD[:-1], y))
    assert loop.state.exact is None
    assert loop.result().best_index == len(LIBRARY)
    assert int(loop.ask(8).indices.max()) < len(LIBRARY)


def test_with_noise_they_are_not_picked_again_although_they_are_better_than_all_candidates():
    far = LIBRARY[:, 0] > 0.5
    X = torch.cat([LIBRARY[far]] * 2)
    noise = 0.1 * torch.randn(len(X), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loop = AskTell(LIBRARY[~far], initial=(X, noise - (X[:, 0] - 0.9) ** 2))
    assert loop.state.exact is False
    assert int(loop.ask(8).indices.max()) < int((~far).sum())


@pytest.mark.parametrize("arms_bytes", [8 * 2**20, 10], ids=["in the journal", "too large"])
def test_runs_are_resumed_with_them(arms_bytes, tmp_path):
    storage = Storage(tmp_path / "a.journal", arms_bytes=arms_bytes)
    names = [f"m{k}" for k in range(len(LIBRARY))]
    whole, _ = run(None, rounds=2, names=names)
    loop, _ = run(None, rounds=1, names=names, storage=storage)
    loop.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResumeWarning)
        again = AskTell.resume(storage, arms=LIBRARY)
    batch = again.ask(4)
    again.tell(batch, waves(batch.X))
    again.close()
    assert again.history.indices == whole.history.indices
    labels = [f"initial {k}" for k in range(len(OLD))]
    assert again.history.names[: len(OLD)] == [*labels[: NEW - 1], "m3", "m4", *[labels[-2]] * 2]
    if arms_bytes > 10:
        AskTell.resume(storage).close()
    else:
        with pytest.raises(ValueError, match=f"the {len(LIBRARY)} arms of the run in .* are not in it"):
            AskTell.resume(storage)
    with pytest.raises(ValueError, match=rf"expected the arms of the run in .* \({len(LIBRARY)} x 2, torch.float64\)"):
        AskTell.resume(storage, arms=LIBRARY + 1.0)
    given = {"arms": LIBRARY, "names": names, "storage": storage, "resume": True, "seed": 1}
    result = maximize(waves, **given, initial=(OLD, waves(OLD)), budget=9)
    assert result.history.observations == 9 + len(OLD)
    for initial in ((OLD + 0.001, waves(OLD)), (OLD, waves(OLD) + 1.0)):
        with pytest.raises(ValueError, match="has other initial observations"):
            maximize(waves, **given, initial=initial, budget=10)
    before = observations_of(storage.path)
    small = {"arms": LIBRARY[:50], "initial": before}
    if arms_bytes == 10:  # of arms that are not in the journal only those of the run itself are known
        small["arms"] = LIBRARY
    other = AskTell(**small)  # candidates that are no longer there are left out, other inputs are not
    left = sum(len(small["arms"]) <= arm < len(LIBRARY) for arm in result.history.indices)
    taken = f"{9 + len(OLD) - left} observations of a.journal" + (f"; left out: {left} outside the domain" if left else "")
    assert other.about["taken"] == taken
    assert other._domain.others == NEW
    known, found = (one._domain.points[of.history.indices].tolist() for one, of in ((loop, result), (other, other)))
    assert all(x in known for x in found)
    again = maximize(waves, **small, budget=1, storage=tmp_path / "b.journal")
    assert again.history.indices[: len(found)] == other.history.indices
    assert (
        maximize(waves, **small, budget=2, storage=tmp_path / "b.journal", resume=True).history.observations == len(found) + 2
    )


def test_tables_are_read_by_their_columns_and_rows():
    library = pandas.DataFrame(LIBRARY.numpy(), columns=["x", "y"], index=[f"m{k}" for k in range(len(LIBRARY))])
    old = pandas.DataFrame({"z": 0.0, " y ": OLD[:, 1].numpy(), "x": OLD[:, 0].numpy(), "value": waves(OLD).numpy()})
    old.index = ["m0", *(f"o{k}" for k in range(1, len(OLD)))]
    loop = AskTell(library, initial=(old, old["value"]))
    assert torch.equal(loop._domain.points[loop.history.indices], OLD)
    assert loop.history.names[:2] == ["m0_", "o1"]
    assert loop.history.names[-4:] == ["m3", "m4", old.index[-2], old.index[-2]]
    line = f"{len(LIBRARY)} arms with 2 inputs, 2 of them evaluated; earlier observations at {NEW} others"
    assert line in loop.result().report()
    with pytest.raises(ValueError, match=r"with the columns of the arms \(x, y\), or a column arm or name, got no 'x'"):
        AskTell(library, initial=(old.drop(columns="x"), old["value"]))
    for given in (lambda: loop.enqueue(["o1"]), lambda: loop.add(["o1"], [1.0])):
        with pytest.raises(ValueError, match="among the names of the arms, got 'o1'"):
            given()


def test_tables_are_read_by_their_columns_where_the_arms_have_no_names_of_inputs():
    old = pandas.DataFrame({"x2": OLD[:, 1].numpy(), "value": waves(OLD).numpy(), "value_sd": 0.1, "x1": OLD[:, 0].numpy()})
    loop = AskTell(LIBRARY, initial=(old, old["value"]))
    assert torch.equal(loop._domain.points[loop.history.indices], OLD)
    assert loop.history.rows[0].results[0].sd == 0.1
    with pytest.raises(ValueError, match=r"with the columns of the arms \(x1, x2\), or a column arm or name, got no 'x1'"):
        AskTell(LIBRARY, initial=(old.rename(columns={"x1": "x3"}), old["value"]))


@pytest.mark.parametrize("name", ["arm", "name"])
def test_a_column_that_may_be_an_input_or_the_rows_of_arms_is_refused(name):
    library = pandas.DataFrame({name: range(5), "x": [0.1, 0.5, 0.2, 0.9, 0.4]})
    old = library[::-1]
    with pytest.raises(ValueError, match=f"without a column '{name}', .* their input {name}_"):
        AskTell(library, initial=(old, [1.0, 2.0, 3.0, 4.0, 5.0]))
    loop = AskTell(library, initial=(old.rename(columns={name: f"{name}_"}), [1.0, 2.0, 3.0, 4.0, 5.0]))
    assert loop.history.indices == [4, 3, 2, 1, 0]
    again = AskTell(library, initial=(loop.result().to_pandas(), loop.result().to_pandas()["value"]))
    assert again.history.indices == [4, 3, 2, 1, 0]


def test_a_run_of_several_runs_over_a_large_library_is_resumed(tmp_path):
    """Of candidates that are not in the journals, some runs had other inputs, too."""
    before = [Storage(tmp_path / name, arms_bytes=10) for name in ("a.journal", "b.journal")]
    maximize(waves, arms=LIBRARY, budget=3, storage=before[0])
    maximize(waves, arms=LIBRARY, budget=3, initial=(OLD, waves(OLD)), storage=before[1])
    given = {"arms": LIBRARY, "initial": observations_of(*(one.path for one in before)), "resume": True}
    for budget in (1, 2):
        result = maximize(waves, **given, budget=budget, storage=Storage(tmp_path / "c.journal", arms_bytes=10))
    assert result.history.observations == 6 + len(OLD) + 2


@pytest.mark.parametrize("scale", [1.0, 1e9])
def test_candidates_are_found_by_inputs_that_a_spreadsheet_has_rounded(scale):
    library = scale * torch.cat([LIBRARY, 1.0 - LIBRARY.sum(dim=-1, keepdim=True)], dim=-1)
    library[7, 2] = 0.0
    saved = torch.tensor([[float(f"{x:.15g}") for x in row] for row in library[:20].tolist()], dtype=torch.float64)
    saved[7, 2] = 1e-17 * scale
    saved = torch.cat([saved, saved[:1] * (1.0 + 1e-9)])
    assert int((saved[:20] != library[:20]).sum()) > 20
    loop = AskTell(library, ExpectedImprovement(repeats=False), initial=(saved, waves(saved / scale)))
    assert loop.history.indices == [*range(20), len(library)]


def test_a_report_counts_failures_among_them_apart():
    loop = AskTell(LIBRARY, initial=(OLD[:3], ["failed", 1.0, "failed"]))
    batch = loop.ask(2)
    loop.tell(batch, [2.0, float("nan")])
    assert "2 asked, 1 told, 1 failed, 3 added (2 of them failed)." in loop.result().report()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("form", [np.asarray, np.ndarray.tolist, torch.from_numpy], ids=["array", "list", "tensor"])
def test_failed_ones_are_known_in_every_form(form, dtype):
    points = np.array([[0.5, 0.5], [0.25, 0.75]])
    loop = AskTell(LIBRARY.to(dtype), initial=(form(points), ["failed", 1.0]))
    assert loop.history.rows[0].failed == 1
    assert loop.state.failures.where.tolist() == [len(LIBRARY)]


def test_candidates_that_are_written_with_fewer_digits_are_named():
    X, y = LIBRARY[[2, 5]].numpy().copy(), [1.0, 2.0]
    X[1] = X[1].round(5)
    with pytest.warns(
        NumericalWarning, match=r"1 of the initial inputs are .* more digits \(the first is row 1, near candidate 5"
    ):
        loop = AskTell(LIBRARY, initial=(X, y))
    assert loop.about["others"] == 1
    with pytest.warns(NumericalWarning, match="near candidate 7"):
        AskTell(LIBRARY.double(), initial=(LIBRARY[7:8].float().double().numpy(), [1.0]))
    constant = torch.cat([LIBRARY, torch.full_like(LIBRARY[:, :1], 0.3)], dim=-1).double()
    with pytest.warns(NumericalWarning, match="near candidate 9"):
        AskTell(constant, initial=(constant[9:10].numpy().round(5), [1.0]))


def test_they_are_taken_by_initial_alone():
    loop = AskTell(LIBRARY)
    for given in (lambda: loop.add(OLD, waves(OLD)), lambda: loop.enqueue(OLD.numpy()), lambda: loop.enqueue(OLD.tolist())):
        with pytest.raises(TypeError, match="as rows or names of the arms, got inputs; inputs are taken by initial="):
            given()


@pytest.mark.parametrize(
    ("domain", "X", "message"),
    [
        ({"arms": LIBRARY}, OLD[:, :1], r"rows or names of arms, or n x 2 inputs, got \d+ x 1"),
        ({"arms": LIBRARY}, torch.full((1, 2), torch.nan), "expected finite initial inputs"),
        (
            {"arms": ProductGrid([LIBRARY[:5, 0].sort().values] * 2)},
            OLD,
            "not in memory, got their inputs; pass rows",
        ),
        ({"arms": LIBRARY, "policy": SBPE(horizon=40)}, OLD, "'sbpe' takes earlier observations of candidates alone"),
    ],
    ids=["width", "nan", "lazy", "policy"],
)
def test_wrong_ones_are_named(domain, X, message):
    with pytest.raises(ValueError, match=message):
        AskTell(**domain, initial=(X, [1.0] * len(X)))


@pytest.mark.parametrize("policy", [ExpectedImprovement(repeats=False), BBKB(batch_size=4, repeats=False)], ids=["ei", "bbkb"])
def test_every_candidate_is_evaluated_before_the_end(policy):
    X = LIBRARY[:9]
    loop = AskTell(X, policy, initial=(OLD, waves(OLD)))
    picks = []
    while len(picks) < len(X) - 2:  # two were evaluated before
        batch = loop.ask()
        picks += batch.indices.tolist()
        loop.tell(batch, waves(batch.X))
    assert sorted([*picks, 3, 4]) == list(range(len(X)))
    with pytest.raises(ScheduleComplete, match="all 9 candidates have been evaluated"):
        loop.ask()


def test_a_journal_whose_earlier_inputs_are_damaged_is_named(tmp_path):
    path = tmp_path / "a.journal"
    AskTell(LIBRARY, initial=(OLD, waves(OLD)), storage=path).close()
    data = bytearray(path.read_bytes())
    data[data.index(OLD[1].numpy().tobytes())] ^= 255
    path.write_bytes(data)
    for read in (lambda: AskTell.resume(path, arms=LIBRARY), lambda: AskTell(LIBRARY, initial=observations_of(path))):
        with pytest.raises(StorageError, match="the inputs of earlier observations in .*a.journal are damaged; take another"):
            read()
