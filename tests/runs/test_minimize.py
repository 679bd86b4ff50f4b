"""Minimisation: the mirror of maximisation, with results, history, journal, audit and page in the objective's own sign."""

import json
import math

import gpytorch
import numpy as np
import pytest
import torch

from sparse_bo import BBKB, SBPE, AskTell, Choice, Float, Int, RunInterrupted, Storage, TrustRegion, maximize, minimize
from sparse_bo.errors import ContradictionError
from sparse_bo.policies import ExpectedImprovement, RandomSearch, TwoStage
from sparse_bo.runs import History, audit_run, read_run
from sparse_bo.runs.view import predictions_of
from tests.builders import arms, bbkb, unit_box

BOX = unit_box()


def valley(X):
    """Return a valley around (0.3, 0.6) with its floor at 5."""
    return 5.0 + (X[:, 0] - 0.3) ** 2 + 2.0 * (X[:, 1] - 0.6) ** 2


def hill(X):
    return -valley(X)


def matern():
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(nu=2.5)).double()
    kernel.base_kernel.lengthscale = 0.5
    return kernel


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("domain", "policy", "mirrored"),
    [
        ({"bounds": BOX}, None, None),
        ({"arms": arms()}, None, None),
        ({"arms": arms()}, BBKB(), None),
        ({"bounds": BOX}, BBKB(), None),
        ({"arms": arms()}, TwoStage(first=ExpectedImprovement(initial_design=6), after=12), None),
        ({"bounds": BOX}, RandomSearch(batch_size=3), None),
        (
            {"arms": arms()},
            SBPE(horizon=30, covar_module=matern(), regularization=0.01, prior_mean=5.5, rkhs_norm=20.0),
            SBPE(horizon=30, covar_module=matern(), regularization=0.01, prior_mean=-5.5, rkhs_norm=20.0),
        ),
    ],
    ids=["box", "arms", "bbkb", "bbkb on a box", "two stages", "random", "s-bpe with a prior mean"],
)
def test_it_is_the_mirror_of_maximisation(domain, policy, mirrored):
    low = minimize(valley, **domain, policy=policy, budget=15)
    high = maximize(hill, **domain, policy=mirrored or policy, budget=15)
    for ours, theirs in zip(low.history.rows, high.history.rows, strict=True):
        assert (ours.indices, ours.points, ours.tickets) == (theirs.indices, theirs.points, theirs.tickets)
        assert ours.values == [-value for value in theirs.values]
        assert all(value >= 5.0 for value in ours.values)
        assert ours.best_observed_mean == -theirs.best_observed_mean
        assert ours.best_mean == (None if theirs.best_mean is None else -theirs.best_mean)
        assert (ours.best_sd, ours.width, ours.error_squares) == (theirs.best_sd, theirs.width, theirs.error_squares)
    assert low.best.x.tolist() == high.best.x.tolist()
    assert low.best.mean == -high.best.mean
    assert low.best_observed_mean == min(value for row in low.history.rows for value in row.values)
    assert low.best.sd == high.best.sd or math.isnan(low.best.sd)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("domain", [{"bounds": BOX}, {"arms": arms()}, {"space": {"a": Float(0, 1), "k": Choice("x", "y")}}])
def test_an_interrupted_run_goes_on_with_its_sign(domain, tmp_path):
    path, calls = tmp_path / "run.journal", []

    def objective(x):
        calls.append(x)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return 2.0 + (x["a"] - 0.5) ** 2 + (x["k"] == "x") if isinstance(x, dict) else float(valley(x.unsqueeze(0)))

    settings = {**domain, "budget": 12, "vectorized": False, "initial": None}
    whole = minimize(lambda x: objective(x) if len(calls) < 8 else objective(calls.append(x) or x), **settings)
    calls.clear()
    storage = Storage(path, replay_seconds=0.0)
    with pytest.raises(RunInterrupted):
        minimize(objective, **settings, storage=storage)
    with pytest.raises(ValueError, match="minimises its objective, this call maximises one; pass another storage="):
        maximize(objective, **settings, storage=storage, resume=True)
    result = minimize(objective, **settings, storage=storage, resume=True)
    assert result.best_observed_mean == whole.best_observed_mean
    assert [row.values for row in result.history.rows] == [row.values for row in whole.history.rows]
    recorded = read_run(path)
    assert recorded.about["minimize"] is True
    assert recorded.evaluations.values.tolist() == [value for row in whole.history.rows for value in row.values]
    assert recorded.history.rows[-1].best_mean == pytest.approx(whole.best_mean, rel=1e-9)
    assert AskTell.resume(path).result().best_mean == pytest.approx(whole.best_mean, rel=1e-9)


def test_the_history_and_its_file_have_the_objectives_sign(tmp_path):
    history = minimize(valley, bounds=BOX, budget=12).history
    history.save(tmp_path / "run.jsonl")
    again = History.load(tmp_path / "run.jsonl")
    assert again.minimize
    assert not maximize(hill, bounds=BOX, budget=4, policy=RandomSearch()).history.minimize
    assert [row.best_mean for row in again.rows] == [row.best_mean for row in history.rows]
    assert json.loads((tmp_path / "run.jsonl").read_text().splitlines()[-1])["best_mean"] >= 5.0
    line = history.plot(best_possible=5.0).axes[0].lines[0]
    assert (line.get_ydata() >= 0.0).all()
    assert line.get_ydata()[-1] == pytest.approx(history.rows[-1].best_mean - 5.0)


@pytest.mark.parametrize("domain", [{"bounds": BOX}, {"arms": arms()}], ids=["box", "arms"])
def test_predictions_are_of_the_objective(domain):
    result = minimize(valley, **domain, policy=BBKB() if "arms" in domain else None, budget=24)
    X = arms()[:50]
    found = predictions_of(result.state, torch.arange(50) if "arms" in domain else X, minimize=True)
    assert ((found.lower <= found.median) & (found.median <= found.upper)).all()
    near = valley(X) < 5.1
    assert (found.median[near] - valley(X)[near]).abs().max() < 0.1


def test_the_page_says_lowest_and_shows_values_above_the_clip():
    values = iter([5.0, 6.0, 5.5, 1e6, 5.2, 4.9, 5.1, 1e7, 5.3, 5.05, 4.8, 5.6] + [5.0 + k % 7 / 10 for k in range(28)])
    page = minimize(lambda x: next(values), bounds=[(0.0, 1.0), (0.0, 1.0)], budget=40).report()
    assert "Minimising over a box of 2 inputs: 40 " in page
    assert "Lowest observed: " in page
    assert "lowest result" in page
    assert "the ten lowest results" in page
    assert "ighest" not in page
    assert "the model does not tell values apart" not in page or "Above " in page


def test_an_audit_finds_the_same_as_of_the_mirror(tmp_path):
    noise = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for run, sign, name in ((minimize, 1.0, "low"), (maximize, -1.0, "high")):
        drawn = iter(noise.tolist())
        run(
            lambda X, drawn=drawn, sign=sign: sign * (valley(X) + 0.1 * torch.tensor([next(drawn) for _ in X])),
            arms=arms()[:12],
            policy=bbkb(),
            budget=60,
            storage=tmp_path / name,
        )
    low, high = audit_run(tmp_path / "low"), audit_run(tmp_path / "high")
    assert low.calibration == high.calibration
    assert low.drift.slope == pytest.approx(-high.drift.slope)
    assert low.drift.score == pytest.approx(-high.drift.score)


def test_tickets_are_told_in_the_objectives_sign():
    loop = AskTell(bounds=BOX, minimize=True, seed=1, initial=(BOX.mean(dim=0, keepdim=True), [5.3]))
    mirror = AskTell(bounds=BOX, seed=1, initial=(BOX.mean(dim=0, keepdim=True), [-5.3]))
    for _ in range(4):
        batch, other = loop.ask(), mirror.ask()
        assert torch.equal(batch.X, other.X)
        loop.tell(batch.tickets, valley(batch.X))
        mirror.tell(other.tickets, hill(other.X))
    assert loop.history.rows[0].values == [5.3]
    assert loop.result().best_mean == -mirror.result().best_mean
    assert "best_mean=5." in repr(loop.result())


def test_a_contradiction_names_whose_values_it_has():
    policy = SBPE(horizon=60, covar_module=matern(), regularization=1e-6, rkhs_norm=0.01, prior_mean=0.0)
    with pytest.raises(ContradictionError, match=r"\(The run minimises: these values are of −y\.\)"):
        minimize(valley, arms=arms(), policy=policy, budget=60)


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_the_direction_is_a_bool(wrong):
    with pytest.raises(TypeError, match="expected minimize to be True or False"):
        AskTell(bounds=BOX, minimize=wrong)


def test_the_best_point_has_plain_types():
    result = minimize(lambda p: (p["n"] - 7) ** 2 + 1.0, space={"n": Int(1, 12), "kind": Choice("a", "b")}, budget=15)
    assert result.best.parameters["n"] == 7
    assert isinstance(result.best.x, np.ndarray)
    assert result.best.mean == pytest.approx(1.0, abs=0.01)
    best = minimize(valley, bounds=BOX, budget=8, policy=RandomSearch()).best
    assert math.isnan(best.sd)
    assert best.parameters == {}
    empty = AskTell(bounds=BOX, policy=TrustRegion()).result()
    with pytest.raises(ValueError, match="expected a successful evaluation, got none: .*evaluate more"):
        _ = empty.best
