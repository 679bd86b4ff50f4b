"""Results of known noise: means by precision, posteriors and evidence by dense algebra, and the picks that follow."""

import math

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal

from sparse_bo import AskTell, Measured, TrustRegion, maximize, optimize
from sparse_bo.gp.learn import PRIORS, Given, LogPosterior
from sparse_bo.gp.likelihood import Scatter, correlation_of
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.policies import ExpectedImprovement
from sparse_bo.policies.trust_region.observations import KINDS, replicates_of, warp, warps
from tests.builders import unit_box

BOX = unit_box(2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def measured(X, *, seed=0):
    """Return a result at each point with noise of its own known standard deviation: 0.02 on the left, 0.4 on the right."""
    rng = np.random.default_rng(seed)
    sds = np.where(X[:, 0].numpy() < 0.5, 0.02, 0.4)
    truth = -((X - 0.35) ** 2).sum(dim=-1).numpy() * 4.0
    return [Measured(y + sd * rng.normal(), sd) for y, sd in zip(truth, sds, strict=True)]


def told(loop, rounds, **how):
    for seed in range(rounds):
        batch = loop.ask(4)
        loop.tell(batch.tickets, measured(batch.X.double(), seed=seed, **how))
    return loop


def test_observations_of_a_point_are_merged_by_precision():
    X = torch.tensor([[0.1], [0.2], [0.1], [0.1], [0.2]], dtype=torch.float64)
    y, sd = torch.tensor([1.0, 5.0, 2.0, 4.0, 7.0]).double(), torch.tensor([1.0, 2.0, 0.5, 2.0, 2.0]).double()
    seen = replicates_of(X, y, sd)
    w = sd.pow(-2)
    for rows in ([0, 2, 3], [1, 4]):
        assert seen.values[rows].tolist() == pytest.approx([float((w * y)[rows].sum() / w[rows].sum())] * len(rows))
        assert seen.sds[rows].tolist() == pytest.approx([float(w[rows].sum() ** -0.5)] * len(rows))
    assert (seen.exact, seen.rows.tolist(), seen.counts.tolist()) == (False, [0, 1], [3, 2, 3, 3, 2])
    alone = replicates_of(X, y, sd, merge=False)
    assert torch.equal(alone.values, y)
    assert torch.allclose(alone.sds, sd)


def test_an_unknown_standard_deviation_counts_as_the_median_of_the_others():
    X, y = torch.rand(5, 1, dtype=torch.float64), torch.arange(5.0).double()
    sd = torch.tensor([0.1, math.nan, 0.3, 0.5, math.nan]).double()
    assert replicates_of(X, y, sd).sds.tolist() == pytest.approx([0.1, 0.3, 0.3, 0.5, 0.3])
    nothing = replicates_of(X, y, torch.full_like(y, math.nan))
    assert (nothing.sds, nothing.exact) == (None, None)


def test_standard_deviations_of_0_say_that_there_is_no_noise():
    X, y = torch.rand(5, 1, dtype=torch.float64), torch.arange(5.0).double()
    seen = replicates_of(X, y, torch.zeros_like(y))
    assert (seen.sds, seen.exact) == (None, True)
    some = replicates_of(X, y, torch.tensor([0.0, 1.0, 0.0, 1.0, 1.0]).double())
    assert some.exact is False
    assert bool((some.sds > 0.0).all())


def test_a_result_that_says_nothing_leaves_the_others_as_precise_as_they_are():
    X, sd = torch.rand(6, 1, dtype=torch.float64), torch.tensor([1e-8, 1.0, 1e6, 1e300, 0.0, 1e-300]).double()
    seen = replicates_of(X[:5], torch.arange(5.0).double(), sd[:5])
    assert seen.sds[:3].tolist() == pytest.approx(sd[:3].tolist())
    assert 0.0 < float(seen.sds[4]) < 1e-13
    assert bool(torch.isfinite(replicates_of(X, torch.arange(6.0).double(), sd).values).all())


@pytest.mark.sampled
@pytest.mark.parametrize("sd", [1e-300, 1e-9, 1e300])
@pytest.mark.parametrize("dims", [1, 2])
def test_any_deviation_ends_in_a_sensible_recommendation(dims, sd):
    """A linear objective: its scale is large, so that the noise is tiny beside it."""
    loop = AskTell(bounds=[(0.0, 1.0)] * dims, minimize=True)
    while loop.state.pulls < 18:
        batch = loop.ask(3)
        loop.tell(batch.tickets, [Measured(x[0], sd) for x in batch.X.tolist()])
    best = loop.result().best
    assert 0.0 <= best.x[0] < (1e-4 if sd < 1.0 else 0.7)
    assert math.isfinite(best.mean)
    assert math.isfinite(best.sd)


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("kind", KINDS)
def test_noise_in_warped_units_is_that_of_the_slope(kind, unit):
    y = torch.tensor([-8.0, -3.0, -1.0, -0.9, 0.0, 0.5, 0.6, 1.0]).double() * unit
    bend = warp(kind, y)
    step = 1e-6 * unit
    slope = (bend(y - step) - bend(y + step)).abs() / (2.0 * step)
    if kind == "log":
        slope[y == y.max()] *= 2.0  # beyond the best observation the logarithm is clipped at most at 1
        slope = slope[:-1]
    sd = 0.01 * unit
    found = bend.noise(y, torch.full_like(y, sd))[: len(slope)]
    assert torch.allclose(found.sqrt(), sd * slope, rtol=1e-4)


def test_no_logarithm_ends_within_the_noise_above_the_best_result():
    y = -(10.0 ** torch.linspace(-1.0, 2.0, 41)).double()
    width = 0.3 * float(y.max() - y.median())
    assert [made.kind for made in warps(y, sd=0.49 * width)] == [*KINDS]
    assert [made.kind for made in warps(y, sd=0.51 * width)] == [kind for kind in KINDS if kind != "log"]


@pytest.mark.parametrize(("highest", "logarithmic"), [(1e-6, True), (1.0, False)])
def test_the_noise_of_the_best_result_decides_on_logarithms(highest, logarithmic):
    """Noise that grows with the value: its median says nothing about the best result, at which a logarithm is steepest."""
    X = torch.rand(60, 2, dtype=torch.float64, generator=generator(1))
    y = -(10.0 ** (4.0 * (X - 0.4).square().sum(dim=-1)))
    sd = torch.where(y > y.topk(10).values[-1], highest * float(y.max() - y.median()), 1e-6)
    results = [Measured(*pair) for pair in zip(y.tolist(), sd.tolist(), strict=True)]
    state = AskTell(X, policy=ExpectedImprovement(), initial=([*range(60)], results)).state
    assert (state.surrogate.warp.kind == "log") == logarithmic


def test_the_best_arm_is_found_where_the_noise_is_known():
    X = torch.rand(500, 4, dtype=torch.float64, generator=generator(1))
    y = -2.0 * (X - 0.35).square().sum(dim=-1)
    noise = iter((0.1 * torch.randn(40, dtype=torch.float64, generator=generator(11))).tolist())
    how = {"arms": X, "budget": 40, "seed": 0, "call_with": "indices", "vectorized": False}
    result = maximize(lambda i: Measured(y[i] + next(noise), 0.1), **how)
    assert float(y.max() - y[result.best_index]) < 0.05


@pytest.mark.parametrize("theta", [[-1.0, 0.3, 0.2], [0.5, -0.7, -0.4]])
def test_the_evidence_is_that_of_means_with_their_own_noise(theta):
    """By dense algebra, and its gradient by central differences: a mean of variance v is one of g/v observations."""
    X, means = torch.rand(9, 2, generator=generator(), dtype=torch.float64), torch.randn(9, generator=generator(1)).double()
    v = torch.rand(9, generator=generator(2)).double() + 0.01
    g = float(v.median())
    scatter = Scatter(g / v, squares=0.0, repeats=0.0, log_counts=0.0)
    density = LogPosterior(X.numpy(), means.numpy(), scatter, "rbf", PRIORS, Given(noise=g, mean=0.2), None)
    found = density.likelihood(np.array(theta), gradient=False)
    scale = math.exp(theta[-1])
    K = scale * torch.from_numpy(correlation_of(np.array(theta[:2]), X.numpy(), family="rbf").value) + v.diag()
    same = K + (g - v).diag()  # equal noise of all, without a scatter: the prior of the scale is in both
    others = LogPosterior(X.numpy(), means.numpy(), None, "rbf", PRIORS, Given(noise=g, mean=0.2), None).likelihood(
        np.array(theta)
    )
    dense, equal = (float(MultivariateNormal(torch.full_like(means, 0.2), C).log_prob(means)) for C in (K, same))
    assert found.value - others.value == pytest.approx(dense - equal, abs=1e-7)
    _, gradient = density(np.array(theta))
    for k in range(3):
        step = np.eye(3)[k] * 1e-5
        difference = (density(np.array(theta) + step)[0] - density(np.array(theta) - step)[0]) / 2e-5
        assert gradient[k] == pytest.approx(difference, rel=1e-5, abs=1e-7)


def arms():
    return torch.rand(60, 2, generator=generator(4), dtype=torch.float64)


@pytest.mark.parametrize(
    ("where", "policy"),
    [
        pytest.param({"bounds": BOX}, TrustRegion(), id="box"),
        pytest.param({"bounds": BOX}, TrustRegion(goal="cumulative"), id="cumulative"),
        pytest.param({"arms": arms()}, ExpectedImprovement(), id="arms"),
        pytest.param({"arms": arms()}, ExpectedImprovement(covar_module=TanimotoKernel()), id="kernel"),
    ],
)
def test_the_posterior_is_that_of_dense_algebra_with_noise_of_each_result(where, policy):
    state = told(AskTell(**where, policy=policy, seed=3), 5).state
    fitted = state.fitted if "bounds" in where else state.surrogate
    seen, gp, rows = state.replicates, fitted.gp, fitted.rows
    t = fitted.warp(seen.values[rows])
    step = 1e-7 * float(seen.y.std())
    slope = (t - fitted.warp(seen.values[rows] - step)) / step
    v = (seen.sds[rows] * slope).square()
    assert gp.noise_variance == pytest.approx(float((v * seen.counts[rows]).median()), rel=0.3)  # of some rows, to learn from
    X, new = state.U[rows], torch.rand(20, 2, generator=generator(9), dtype=torch.float64)
    prior = gp.prior
    K = prior.scale * prior.kernel.cross(X, X) + v.diag()
    k = prior.scale * prior.kernel.cross(new, X)
    mean = prior.mean_at(new) + k @ torch.linalg.solve(K, t - prior.mean_at(X))
    variance = prior.scale * prior.kernel.diagonal(new) - (k * torch.linalg.solve(K, k.mT).mT).sum(dim=-1)
    at = gp.moments(new)
    assert torch.allclose(at.mean, mean, atol=1e-5)
    assert torch.allclose(at.variance, variance, atol=1e-5)


@pytest.mark.parametrize("where", [{"bounds": BOX}, {"arms": arms()}], ids=["box", "arms"])
def test_nothing_is_repeated_to_learn_of_noise_that_is_known(where):
    def asked(results):
        loop = AskTell(**where, seed=0, budget=40, policy=None if "bounds" in where else ExpectedImprovement())
        while loop.state.pulls < 9:
            batch = loop.ask(1)
            loop.tell(batch.tickets, results(batch.X.double()))
        return loop.history.points or loop.history.indices

    plain = asked(lambda X: [float(y) for y in measured(X)])
    known = asked(measured)
    exact = asked(lambda X: [Measured(y, 0.0) for y in measured(X)])
    assert len({str(x) for x in plain}) < len(plain)
    assert len({str(x) for x in exact}) == len(exact)
    first = next(k for k in range(9) if plain[k] in plain[:k])
    assert known[first] not in known[:first]


def test_predictions_are_judged_with_the_noise_of_each_result():
    loop = told(AskTell(bounds=BOX, policy=TrustRegion(), seed=3), 4)
    fitted, state = loop.state.fitted, loop.state
    X, y = torch.rand(3, 2, generator=generator(5), dtype=torch.float64), torch.tensor([-0.5, -0.2, -0.9]).double()
    errors = state.standardised_errors(X, y, torch.tensor([0.0, 0.7, math.nan]).double())
    at = fitted.gp.moments(X)
    sd = torch.tensor([0.0, 0.7, 0.0]).double()
    noise = fitted.warp.noise(y, sd)
    noise[0], noise[2] = 0.0, fitted.gp.noise_variance
    assert torch.allclose(errors, (fitted.warp(y) - at.mean) / (at.variance + noise).sqrt(), rtol=1e-6)


@pytest.mark.parametrize("where", [{"bounds": BOX.tolist()}, {"arms": arms().tolist()}], ids=["box", "arms"])
def test_each_outcome_has_its_own_noise(where):
    rng = np.random.default_rng(0)

    def objective(x):
        gain = -((x[0] - 0.3) ** 2) - (x[1] - 0.6) ** 2
        return {"gain": (gain + 0.3 * rng.normal(), 0.3), "cost": Measured(x[0], 0.0), "heat": x[1] + 0.01 * rng.normal()}

    bounds = where.pop("bounds", None)
    where |= {} if bounds is None else {"bounds": [*zip(*bounds, strict=True)]}
    limits = {"cost": (None, 0.8), "heat": (None, 0.9)}
    result = optimize(objective, **where, objectives={"gain": "max"}, constraints=limits, budget=9, seed=1)
    gain, cost, heat = result.state.replicates
    assert (gain.exact, cost.exact, heat.sds) == (False, True, None)
    once = gain.counts == 1
    assert gain.sds[once].tolist() == pytest.approx([0.3] * int(once.sum()))
    gp = result.state.fitted[0].gp
    slope = result.state.fitted[0].warp.inverse_slope(torch.zeros(1, dtype=torch.float64))
    if result.state.fitted[0].warp.kind == "plain":
        assert gp.noise_variance == pytest.approx(float((0.3 / slope) ** 2), rel=0.5)
    assert result.to_pandas()["gain_sd"].tolist() == [0.3] * 9
    assert result.to_pandas()["heat_sd"].isna().all()


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("where", ["box", "arms"])
def test_a_precise_result_is_recommended_before_the_highest_of_much_noise(where, limited):
    generator = np.random.default_rng(3)
    X = generator.random((80, 2))
    distance = ((X - 0.5) ** 2).sum(axis=1)
    sd = np.where(distance > np.sort(distance)[12], 3.0, 0.01)
    y = -4.0 * distance + sd * generator.normal(size=80)
    results = [{"y": Measured(value, own), "c": 0.0} for value, own in zip(y, sd, strict=True)]
    aims = {"objectives": {"y": "max"}} | ({"constraints": {"c": (None, 1.0)}} if limited else {})
    if where == "box":
        loop = AskTell(bounds=[(0.0, 1.0)] * 2, policy=TrustRegion(), initial=(X, results), **aims)
    else:
        loop = AskTell(X, policy=ExpectedImprovement(), initial=([*range(80)], results), **aims)
    best = loop.state.report().best_x
    assert -4.0 * float((best - 0.5).square().sum()) > -0.05
