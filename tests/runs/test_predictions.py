"""The posterior that users see, in the objective's units."""

import numpy as np
import pytest
import torch

from sparse_bo import BBKB, GPUCB, AskTell, Choice, Float, Int, maximize, minimize, optimize
from sparse_bo.policies import RandomSearch
from sparse_bo.runs.view import predictions_of, view_of, widening
from tests.builders import arms, rbf_kernel, unit_box
from tests.oracles import exact_gp, rbf

SPACE = {"lr": Float(1e-5, 1, log=True), "depth": Int(1, 12), "kind": Choice("tree", "linear", "net")}


def score(point):
    """Return README's example: 1 at best, −48 at a depth of 12."""
    return -((point["lr"] - 0.01) ** 2) - (point["depth"] - 5) ** 2 + (point["kind"] == "tree")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_slice_far_below_the_best_point_contains_the_value_there(seed):
    """A logarithmic warping clips what is far below: 0.975 ± 0.33 was shown at a depth of 12, where the value is −48."""
    result = maximize(score, space=SPACE, budget=30, seed=seed)
    found = view_of(result.history, result.state, result.domain)
    depth = next(one for one in found.slices if one.name == "depth")
    at = list(depth.values).index(12)
    truth = score({**found.best, "depth": 12})
    assert depth.lower[at] <= truth <= depth.upper[at]
    assert bool((depth.lower <= depth.median).all())
    assert bool((depth.median <= depth.upper).all())


def observed(f, n=40):
    """Return the state after ``n`` observations at random, and their points."""
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bounds = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    return AskTell(bounds=bounds, initial=(X, f(X)), seed=0).result().state, X


def bowl(X):
    return -((X - 0.3) ** 2).sum(-1)


def cliff(X):
    """Return a smooth function with a cliff to about −1e6 beyond 0.8."""
    return torch.where((X > 0.8).any(-1), -1e6 * X.sum(-1), bowl(X))


def test_clipped_observations_have_no_lower_bound_and_the_others_lie_in_their_intervals():
    state, X = observed(cliff)
    y, found = cliff(X), predictions_of(state, X)
    assert found.floor is not None
    clipped = y < found.floor
    assert 3 < int(clipped.sum()) < 35
    assert bool((found.lower[clipped] == -torch.inf).all())
    slack = 0.05 * float(y[~clipped].std())
    for side in (found.lower - slack <= y, y <= found.upper + slack):
        assert float(side.double().mean()) > 0.9


def falling(X):
    """Return ten to the power of up to 6 in one direction: most of the square is far above the lowest values."""
    return 10.0 ** (6.0 * X[:, 0])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_an_interval_beyond_the_floor_still_contains_the_values_there(sign):
    """It was from infinity to infinity, although these values are known to be beyond the floor."""
    X, new = (torch.rand(n, 2, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (40, 200))
    X = X**3  # most of them are near the lowest value
    loop = AskTell(bounds=unit_box(), initial=(X, sign * falling(X)), minimize=sign > 0.0, seed=0)
    table = {name: torch.from_numpy(sign * column) for name, column in loop.result().predict(new).items()}
    low, high = sorted((table["value_lower"], table["value_upper"]), key=lambda end: float(end.min()))
    beyond, y = torch.isinf(table["value"]), falling(new)
    assert int(beyond.sum()) > 20
    assert bool((high[beyond] == torch.inf).all())
    assert bool(torch.isfinite(low).all())
    assert float((low <= y)[beyond].double().mean()) > 0.95


@pytest.mark.parametrize("policy", [BBKB(), GPUCB()], ids=lambda policy: policy.name)
@pytest.mark.parametrize("where", ["arms", "box"])
def test_values_below_the_floor_of_an_upper_confidence_model_have_no_lower_bound(policy, where, tmp_path):
    """Its model takes them for the floor: 13.767 ± 0.001 was predicted where 69 had been observed."""
    X = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.exp(14.0 * (X[:, 0] - 0.3) ** 2)
    domain, seen = ({"arms": X}, torch.arange(40)) if where == "arms" else ({"bounds": unit_box()}, X)
    with AskTell(**domain, policy=policy, initial=(seen, y), minimize=True, seed=0, storage=tmp_path / "run.journal") as loop:
        result = loop.result()
    with AskTell.resume(tmp_path / "run.journal") as again:
        assert predictions_of(again.result().state, seen, minimize=True).floor == pytest.approx(result.state.floor * -1.0)
    found = {name: torch.from_numpy(column) for name, column in result.predict(seen).items()}
    floor = -result.state.floor
    clipped = y > floor
    assert 2 <= int(clipped.sum()) < 10
    assert bool((found["value_upper"][clipped] == torch.inf).all())
    assert bool((found["value_lower"] <= y + 0.01 * floor).all())
    assert bool(torch.isfinite(found["value_upper"][y < 0.5 * floor]).all())
    errors = result.state.standardised_errors(seen, -y)
    assert float(errors[clipped].abs().max()) < 4.0


def ridge(X):
    """Return a smooth function with a quadratic penalty from a sum of 1 on."""
    return torch.sin(5.0 * X).sum(-1) - 1e4 * (X.sum(-1) - 1.0).clamp_min(0.0) ** 2


def steep(X):
    return -torch.exp(12.0 * ((X - 0.3) ** 2).sum(-1))


def test_intervals_of_warped_models_cover_values_that_they_have_not_seen():
    """The models' own, of hyper-parameters taken for certain, cover 85 % of them."""
    shares = []
    for f in (cliff, ridge, steep):
        generator = torch.Generator().manual_seed(0)
        X, new = (torch.rand(n, 2, generator=generator, dtype=torch.float64) for n in (40, 500))
        state = AskTell(bounds=unit_box(), initial=(X, f(X)), seed=0).result().state
        found, y = predictions_of(state, new, widened=widening(state)), f(new)
        shares.append(float(((found.lower <= y) & (y <= found.upper)).double().mean()))
    assert sum(shares) / len(shares) > 0.92
    assert min(shares) > 0.7


def steep_both_ways(X):
    return torch.sinh(14.0 * (X.sum(-1) - 1.0)) + torch.sinh(5.0 * torch.sin(9.0 * X[:, 0]))


@pytest.mark.parametrize("f", [steep, steep_both_ways])
def test_intervals_of_warped_models_end_where_they_tell_nothing(f):
    """They were up to 10²⁶: a warping grows exponentially, and intervals are widened before it."""
    generator = torch.Generator().manual_seed(0)
    X, new = (torch.rand(n, 2, generator=generator, dtype=torch.float64) for n in (15, 500))
    y = f(X)
    found = predictions_of(AskTell(bounds=unit_box(), initial=(X, y), seed=0).result().state, new, widened=10.0)
    reach = y.max() - y.min()
    assert bool((found.upper <= y.max() + 1.001 * reach).all())
    assert bool(((found.lower >= y.min() - 1.001 * reach) | (found.lower == -torch.inf)).all())
    assert bool((found.lower <= found.median).all())
    assert bool((found.median <= found.upper).all())


def test_intervals_of_a_model_that_covers_are_its_own():
    state, _ = observed(bowl)
    assert widening(state) == 1.0
    page = view_of((result := maximize(bowl, bounds=unit_box(), budget=8, seed=0)).history, result.state, result.domain)
    assert 1.0 <= page.widened <= 10.0


def test_intervals_without_clipped_observations_are_finite():
    state, X = observed(bowl)
    found = predictions_of(state, X)
    assert found.floor is None
    assert bool(torch.isfinite(found.lower).all())
    assert bool((found.lower <= found.median).all())
    assert bool((found.median <= found.upper).all())
    assert torch.allclose(found.median, bowl(X), atol=0.02)


@pytest.mark.parametrize("kind", ["arms", "box"])
def test_intervals_of_a_known_model_are_those_of_the_exact_gaussian_process(kind):
    """Posterior mean ± 1.96 standard deviations of the noiseless objective, in the units of the results."""
    X, chosen = arms(40), GPUCB(covar_module=rbf_kernel(0.3), regularization=0.01)
    domain = {"arms": X} if kind == "arms" else {"bounds": unit_box()}
    loop = AskTell(**domain, policy=chosen, seed=0)
    loop.run(lambda X: torch.sin(9.0 * X).sum(dim=-1), 12 if kind == "arms" else 6)
    history = loop.history
    seen = X[history.indices] if kind == "arms" else torch.tensor(history.points, dtype=torch.float64)
    y = torch.tensor([v for row in history.rows for v in row.values], dtype=torch.float64)
    found = predictions_of(loop.state, torch.arange(40) if kind == "arms" else X)
    K = lambda A, B: rbf(A, B, lengthscale=0.3)  # noqa: E731
    for k in range(40):
        new = X[k : k + 1]
        exact = exact_gp(K(seen, seen), K(seen, new), K(new, new), y, noise=0.01)
        mean, half = float(exact.mean), 1.96 * float(exact.variance) ** 0.5
        got = [float(column[k]) for column in found[:3]]
        assert got == pytest.approx([mean - half, mean, mean + half], abs=1e-4)
    table = loop.result().predict(range(40) if kind == "arms" else X)
    assert list(table) == ["value", "value_lower", "value_upper"]
    for column, expected in zip(table.values(), (found.median, found.lower, found.upper), strict=True):
        assert column.tolist() == pytest.approx(expected.tolist(), rel=1e-12)


def test_predictions_at_points_of_ones_own_have_the_names_and_the_sign_of_the_run():
    points = [{"lr": 0.01, "depth": 5, "kind": "tree"}, {"lr": 0.02, "depth": 6, "kind": "net"}]
    seen = [{"lr": 10.0 ** -(1 + k % 4), "depth": 1 + k % 12, "kind": SPACE["kind"].values[k % 3]} for k in range(24)]
    seen += points[:1]
    y = torch.tensor([score(point) for point in seen], dtype=torch.float64)
    high = maximize(score, space=SPACE, budget=0, seed=0, initial=(seen, y)).predict(points)
    low = minimize(lambda point: -score(point), space=SPACE, budget=0, seed=0, initial=(seen, -y)).predict(points)
    assert low["value"].tolist() == pytest.approx((-high["value"]).tolist())
    assert low["value_lower"].tolist() == pytest.approx((-high["value_upper"]).tolist())
    assert high["value_lower"][0] <= score(points[0]) <= high["value_upper"][0]

    def two(x):
        return {"sum": x[0] + x[1], "square": x[0] ** 2}

    X = arms(16)
    aims = {"objectives": {"sum": "max", "square": "min"}, "initial": (X, [tuple(two(x).values()) for x in X.tolist()])}
    found = optimize(two, bounds=[(0, 1)] * 2, **aims, budget=0, seed=0).predict([[0.4, 0.8]])
    assert list(found) == [f"{of}{end}" for of in ("sum", "square") for end in ("", "_lower", "_upper")]
    assert float(found["sum"][0]) == pytest.approx(1.2, abs=0.01)
    assert float(found["square"][0]) == pytest.approx(0.16, abs=0.05)


def test_an_outcome_with_the_name_of_a_quantile_has_columns_of_its_own():
    X = [[k / 15] for k in range(16)]

    def table(*names):
        y = [(x, -100 * x, 1 - x) for (x,) in X]
        aims = {"objectives": dict.fromkeys(names, "max"), "initial": (X, y)}
        return optimize(lambda x: None, bounds=[(0, 1)], **aims, budget=0, seed=0).predict([[0.5]])

    found, plain = table("gain", "gain_lower", "gain_upper"), table("a", "b", "c")
    renamed = ["gain", "gain_lower_", "gain_upper_", "gain_lower", "gain_lower_lower", "gain_lower_upper", "gain_upper"]
    assert list(found)[:7] == renamed
    assert [column.tolist() for column in found.values()] == [column.tolist() for column in plain.values()]
    assert float(found["gain_lower"][0]) == pytest.approx(-50.0, abs=0.1)
    assert 0.4 < float(found["gain_lower_"][0]) <= float(found["gain"][0]) <= float(found["gain_upper_"][0]) < 0.6


def test_predictions_need_a_model_and_points_of_the_domain():
    result = maximize(lambda x: x[0], bounds=[(0, 1)], budget=3, seed=0, policy=RandomSearch())
    with pytest.raises(
        ValueError, match="expected a run with a model, got policy 'random' after 3 evaluations, which has none"
    ):
        result.predict([[0.5]])
    with pytest.raises(ValueError, match="expected predicted inputs inside the bounds, got 1 outside"):
        result.predict([[1.5]])


def test_a_median_is_the_value_or_beyond_all_that_the_model_tells_apart():
    """Far from the best the model knows "at most this" of the observations; its mean there is a little above it."""
    result = minimize(lambda x: 3 * (x[0] - 0.3) ** 2 + 0.5 * (x[1] - 0.6) ** 2, bounds=[(0.0, 1.0)] * 2, budget=40, seed=0)
    table = result.to_pandas()
    found = result.predict(table[["x1", "x2"]].to_numpy())
    known = np.isfinite(found["value"])
    assert 4 <= (~known).sum() <= 20
    assert found["value"][known] == pytest.approx(table["value"].to_numpy()[known], rel=0.01, abs=1e-6)
    assert (found["value_lower"][~known] < table["value"].to_numpy()[~known]).all()
