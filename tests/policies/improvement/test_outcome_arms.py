"""Several outcomes over arms: picks against dense algebra, missing results, limits, journals, and how fast a front is found."""

from __future__ import annotations

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel
from torch import Tensor

from sparse_bo import maximize, optimize
from sparse_bo.domains import Arms, Box
from sparse_bo.gp.expected_improvement import Cells, front_rows, hypervolume, reference_point
from sparse_bo.gp.posterior import exact
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.policies import BBKB, ExpectedImprovement, Wait
from sparse_bo.policies.improvement.arm_acquisition import ArmSweep, ConditionedArms, correlations, moments_of_all
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.protocol import mechanism_of
from tests.builders import arms, unit_box, waves

NONE = torch.zeros(0, dtype=torch.int64)
NAN = torch.nan
TWO = Outcomes.of({"strength": "max", "cost": "min"})
LIMITED = Outcomes.of({"strength": "max", "cost": "min"}, {"weight": (None, 0.9)})
ONE = Outcomes.of({"strength": "max"}, {"weight": (0.4, 0.9)})


def properties(X: Tensor) -> Tensor:
    """Return strength, cost and weight of ``n x d`` arms."""
    return torch.stack([waves(X), (X - 0.4).square().sum(dim=-1), X.mean(dim=-1) + 0.2 * (5.0 * X[:, 0]).sin()], dim=-1)


def results(outcomes: Outcomes, X: Tensor) -> Tensor:
    columns = ["strength", "cost", "weight"]
    return properties(X)[:, [columns.index(name) for name in outcomes.names]]


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def told(outcomes, X, evaluated, Y, *, policy=None):
    policy = ExpectedImprovement(initial_design=len(evaluated), batch_size=8) if policy is None else policy
    mechanism = policy.on_outcomes(Arms(X), outcomes)
    return mechanism, mechanism.tell(mechanism.init(), evaluated, Y, generator=generator())


def ask(mechanism, state, q, pending=()):
    draws = generator(1)
    before = draws.get_state()
    proposal = mechanism.ask(state, max_q=q, pending=torch.tensor(pending, dtype=torch.long), generator=draws)
    assert torch.equal(draws.get_state(), before)  # draws nothing once there are models
    return proposal.picks.tolist()


def dense_moments(state, outcome: int, given: list[int]) -> tuple[Tensor, Tensor]:
    """Return means and variances of an outcome at all arms by joint Gaussian algebra, arms ``given`` pending."""
    learned, U = state.fitted[outcome].learned, state.unit
    seen, at = state.replicates[outcome], state.rows_of(outcome)
    y = state.fitted[outcome].warp(seen.values[seen.rows])
    evaluated = state.told[at][seen.rows]
    both = torch.cat([evaluated, torch.tensor(given, dtype=torch.long)])
    noise = torch.cat([1.0 / seen.counts[seen.rows].double(), torch.ones(len(given), dtype=torch.float64)])
    K = learned.cross(U[both], U[both]) + learned.noise * torch.diag(noise)
    k = learned.cross(U, U[both])
    n = len(evaluated)
    means = learned.mean + k[:, :n] @ torch.linalg.solve(K[:n, :n], y - learned.mean)
    return means, learned.scale * (1.0 - (k * torch.linalg.solve(K, k.T).T).sum(dim=-1)).clamp_min(1e-12)


@pytest.mark.parametrize("count", [1, 3])
def test_an_arm_that_the_data_determine_up_to_the_rounding_of_the_kernel_is_conditioned_on(count):
    X, some = arms(20), torch.arange(count)
    _, state = told(TWO, X, torch.arange(20), results(TWO, X))
    gp = exact(state.sweeps[0].gp.prior, state.unit[:5], waves(X)[:5], noise=1e-14, floor=1e-12)
    given = ConditionedArms(ArmSweep.of(gp, state.unit, torch.arange(5)), state.unit)
    before = given.variance
    given.condition(some, (1.0 - 1e-11) * correlations(gp.prior.kernel, state.unit, state.unit[some]))
    torch.testing.assert_close(given.variance, before, rtol=0.0, atol=1e-6)


def dense_picks(state, q: int, pending: list[int]) -> list[int]:
    """Return ``q`` arms after ``pending`` ones: at each the whole acquisition function over all arms, by its formula.

    With noise no arm is left out.
    """
    outcomes, warps = state.outcomes, [fitted.warp for fitted in state.fitted]
    k = len(outcomes.objectives)
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    signed = state.signs * state.estimates
    values = torch.stack([warp(y) for warp, y in zip(warps, signed.unbind(-1), strict=True)], dim=-1)
    limits = []
    for name, pair in outcomes.constraints.items():
        j = outcomes.names.index(name)
        low, high = (-math.inf if pair[0] is None else pair[0], math.inf if pair[1] is None else pair[1])
        ends = torch.tensor([low, high] if state.signs[j] > 0.0 else [-high, -low], dtype=torch.float64)
        low, high = warps[j](ends).where(ends.isfinite(), ends).tolist()
        limits.append((j, low, high))

    def kept(at: Tensor) -> Tensor:
        inside = torch.ones(len(at), dtype=torch.bool)
        for j, low, high in limits:
            inside &= (at[:, j] >= low) & (at[:, j] <= high)
        return inside

    means = torch.stack([dense_moments(state, j, [])[0] for j in range(len(warps))], dim=-1)
    filled = torch.where(values.isnan(), means[state.told], values)
    reached = torch.cat([filled[kept(filled)], means[pending][kept(means[pending])]])[:, :k]
    reference = None
    picks = list(pending)
    for _ in range(q):
        if reference is None and len(reached):
            expected = means[kept(means)][:, :k] if k > 1 else reached
            reference = reference_point(torch.cat([reached, expected]))
        variances = torch.stack([dense_moments(state, j, picks)[1] for j in range(len(warps))], dim=-1)
        if len(reached):
            score = Cells.of(reached, reference).log_improvement(means[:, :k], variances[:, :k]).value
            if state.exact is False:  # Huang's factor, the geometric mean over objectives
                noise = torch.tensor([fitted.gp.noise_variance for fitted in state.fitted[:k]], dtype=torch.float64)
                score = score + (1.0 - (noise / (variances[:, :k] + noise)).sqrt()).log().mean(dim=-1)
        else:
            score = 0.1 * means[:, :k].mean(dim=-1)
        for j, low, high in limits:
            sd = variances[:, j].sqrt()
            below, above = (means[:, j] - low) / sd, (high - means[:, j]) / sd  # one of them may be infinite
            tails = torch.special.log_ndtr(torch.minimum(below, above))
            both = (normal.cdf(below) - normal.cdf(-above)).log()
            score = score + (both if math.isfinite(high - low) else tails)
        number = len(picks) - len(pending)
        resolution = 1e-7 if number < 4 else 1e-4 * (number / 4) ** 2
        score[(variances < resolution**2).all(dim=-1)] = -torch.inf  # known well enough
        if state.exact is not False:
            score[torch.cat([state.told, torch.tensor(picks, dtype=torch.long)])] = -torch.inf
        picks.append(int(score.argmax()))
        at = means[picks[-1:]]
        reached = torch.cat([reached, at[kept(at)][:, :k]])
    return picks[len(pending) :]


@pytest.mark.parametrize("outcomes", [TWO, LIMITED, ONE], ids=["two", "limited", "one"])
def test_picks_are_those_of_dense_algebra(outcomes):
    X = arms(400)
    evaluated = torch.cat([torch.arange(0, 400, 25), torch.tensor([0])])  # an arm twice: there is no noise
    mechanism, state = told(outcomes, X, evaluated, results(outcomes, X[evaluated]))
    assert len(state.front) > 0
    assert ask(mechanism, state, 4) == dense_picks(state, 4, [])
    assert ask(mechanism, state, 3, [5, 50, 7]) == dense_picks(state, 3, [5, 50, 7])


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_picks_stay_those_of_dense_algebra_while_hyper_parameters_are_kept(noise):
    X, draws = arms(800, 2), generator(3)
    rough = torch.stack([(17.0 * X[:, 0]).sin() + (13.0 * X[:, 1]).cos(), (33.0 * X.prod(dim=-1)).sin(), X.sum(dim=-1)], dim=-1)

    def values(at):
        return rough[at] + noise * torch.randn(len(at), 3, generator=draws, dtype=torch.float64)

    outcomes = Outcomes.of({"a": "max", "b": "max"}, {"c": (None, 1.4)})
    order = rough[:, 2].argsort()  # the infeasible ones come last, and are no record
    evaluated = torch.cat([order[torch.arange(0, 700, 6)], order[:2], order[:1]])  # beyond 100, learned seldom
    mechanism, state = told(outcomes, X, evaluated, values(evaluated))
    first = state.fitted
    for arm in (order[-1:], order[-2:-1]):
        picks = torch.cat([arm, order[-1:]])
        state = mechanism.tell(state, picks, values(picks), generator=draws)
        assert all(new.learned is old.learned for new, old in zip(state.fitted, first, strict=True))
        for fitted, sweep in zip(state.fitted, state.sweeps, strict=True):
            at = fitted.gp.moments(state.unit)
            torch.testing.assert_close(sweep.bound, at.variance, rtol=1e-6, atol=1e-11)
            torch.testing.assert_close(sweep.mean, at.mean)
        assert ask(mechanism, state, 3, [7]) == dense_picks(state, 3, [7])


def test_picks_for_one_objective_without_limits_are_those_of_maximize():
    X = torch.rand(200, 3, dtype=torch.float64, generator=generator())
    y = 0.2 * (6.0 * X[:, 0]).sin() - (X[:, 0] - 0.6).square() - (4.0 * X[:, 1] - 2.7).square() - 0.3 * (X[:, 2] - 0.2).square()
    y[::7] = NAN
    one = maximize(lambda i: y[i], arms=X, budget=25, seed=1, call_with="indices")
    other = optimize(lambda i: {"y": y[i]}, arms=X, objectives={"y": "max"}, budget=25, seed=1, call_with="indices")
    assert other.history.indices == one.history.indices


def test_the_ends_of_a_front_are_found():
    """One objective has its best values far from the other's: the evaluated arms are in the middle."""
    x = torch.linspace(0.0, 1.0, 501, dtype=torch.float64)
    X = x.unsqueeze(-1)
    values = torch.stack([x, 1.0 - x.square()], dim=-1)
    outcomes = Outcomes.of({"a": "max", "b": "max"})
    evaluated = torch.tensor([200, 230, 250, 270, 300, 250])
    mechanism, state = told(outcomes, X, evaluated, values[evaluated])
    for _ in range(2):
        picks = torch.tensor(ask(mechanism, state, 4))
        state = mechanism.tell(state, picks, values[picks], generator=generator())
    assert int(state.told.min()) < 100
    assert int(state.told.max()) > 400


def test_large_batches_of_one_objective_are_those_of_dense_algebra():
    """Means of many picks are each higher than all before."""
    x = torch.linspace(0.0, 1.0, 301, dtype=torch.float64).unsqueeze(-1)
    outcomes = Outcomes.of({"height": "max"}, {"width": (0.1, None)})
    values = torch.cat([(2.0 * x).exp(), x], dim=-1)
    evaluated = torch.tensor([0, 10, 30, 45, 60, 75, 90, 60])
    policy = ExpectedImprovement(initial_design=8, batch_size=12)
    mechanism, state = told(outcomes, x, evaluated, values[evaluated], policy=policy)
    assert ask(mechanism, state, 11) == dense_picks(state, 11, [])


def test_results_depend_on_no_device(device):
    X = arms(200)
    evaluated = torch.cat([torch.arange(0, 200, 12), torch.tensor([0])])
    Y = results(LIMITED, X[evaluated])
    _, state = told(LIMITED, X, evaluated, Y)
    mechanism, there = told(LIMITED, X.to(device), evaluated.to(device), Y.to(device))
    pending = torch.tensor([7], device=device)
    picks = mechanism.ask(there, max_q=4, pending=pending, generator=generator()).picks
    assert picks.device.type == torch.device(device).type
    assert picks.tolist() == dense_picks(state, 4, [7])
    assert there.report().hypervolume == pytest.approx(state.report().hypervolume)
    assert there.report().front.tolist() == state.report().front.tolist()


def test_while_nothing_is_feasible_picks_are_probably_feasible():
    X = arms(300)
    outcomes = Outcomes.of({"strength": "max", "cost": "min"}, {"weight": (None, 0.25)})
    values = results(outcomes, X)
    bad = (values[:, 2] > 0.4).nonzero().squeeze(-1)[:12]
    evaluated = torch.cat([bad, bad[:1]])
    mechanism, state = told(outcomes, X, evaluated, values[evaluated])
    assert state.report().feasible == 0
    assert state.report().hypervolume == 0.0
    assert ask(mechanism, state, 4) == dense_picks(state, 4, [])
    found = 0
    for _ in range(6):
        picks = torch.tensor(ask(mechanism, state, 1))
        state = mechanism.tell(state, picks, values[picks], generator=generator())
        found = state.report().feasible
    assert found >= 3  # of 300 arms few are: see below
    assert float(outcomes.feasible(values).double().mean()) < 0.1


def test_a_missing_outcome_is_left_out_of_its_own_model_alone():
    X = arms(200)
    evaluated = torch.cat([torch.arange(0, 200, 12), torch.tensor([0])])
    Y = results(LIMITED, X[evaluated])
    Y[3, 0], Y[5, 2], Y[6] = NAN, NAN, torch.tensor([NAN, 0.3, NAN])
    mechanism, state = told(LIMITED, X, evaluated, Y)
    sizes = [len(sweep.support) for sweep in state.sweeps]
    n = len(evaluated) - 1
    assert sizes == [n - 2, n, n - 2]
    assert not set(state.front.tolist()) & {3, 5, 6}
    assert ask(mechanism, state, 3) == dense_picks(state, 3, [])


def test_the_design_goes_on_while_an_outcome_is_unknown():
    X = arms(60)
    mechanism = ExpectedImprovement(initial_design=6, batch_size=3).on_outcomes(Arms(X), TWO)
    state = mechanism.init()
    for missing in (True, True, True, False):
        picks = mechanism.ask(state, max_q=3, pending=NONE, generator=generator(state.pulls)).picks
        assert len(picks) == 3
        assert not set(picks.tolist()) & set(state.told.tolist())
        Y = results(TWO, X[picks])
        if missing:
            Y[:, 1] = NAN
        assert not state.fitted
        state = mechanism.tell(state, picks, Y, generator=generator())
    assert len(state.fitted) == 2
    assert isinstance(mechanism.ask(state, max_q=3, pending=torch.tensor([1, 2, 3]), generator=generator()), Wait)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("outcome", [0, 1, 2])
def test_an_outcome_that_does_not_vary(outcome):
    X = arms(120)
    values = results(LIMITED, X)
    values[:, outcome] = 0.5
    evaluated = torch.cat([torch.arange(0, 120, 10), torch.tensor([0])])
    policy = ExpectedImprovement(initial_design=len(evaluated) // 2, batch_size=8)  # twice its length
    mechanism, state = told(LIMITED, X, evaluated, values[evaluated], policy=policy)
    for _ in range(2):
        picks = torch.tensor(ask(mechanism, state, 4))
        assert len(set(picks.tolist())) == 4
        state = mechanism.tell(state, picks, values[picks], generator=generator())
    report = state.report()
    assert math.isfinite(report.hypervolume)
    assert report.hypervolume > 0.0


def test_replicates_that_differ_are_noise_and_may_be_evaluated_again():
    X = arms(8, 1)  # fewer arms than evaluations
    evaluated = torch.arange(8).repeat(2)
    noise = 0.3 * torch.randn(16, 2, generator=generator(3), dtype=torch.float64)
    mechanism, state = told(TWO, X, evaluated, results(TWO, X[evaluated]) + noise)
    assert state.exact is False
    assert torch.isfinite(state.estimates).all()
    assert not torch.equal(state.estimates, state.Y)
    assert len(ask(mechanism, state, 3)) == 3


def test_with_noise_an_arm_is_in_the_front_once():
    X = arms(300)
    at = torch.arange(61) % 47 * 6  # products of an odd number of rows end in another loop, which rounds otherwise
    for seed in range(8):
        noise = 0.05 * torch.randn(61, 2, dtype=torch.float64, generator=generator(seed))
        _, state = told(TWO, X, at, results(TWO, X[at]) + noise)
        assert torch.equal(state.estimates[47:], state.estimates[:14])
        assert len(state.told[state.front].unique()) == len(state.front)


@pytest.mark.parametrize("outcomes", [ONE, TWO], ids=["one", "two"])
def test_where_nothing_is_repeated_results_may_be_luck_and_are_estimated(outcomes):
    X = arms(400)
    evaluated = torch.randperm(400, generator=generator(2))[:150]
    noise = 0.3 * torch.randn(150, 2, generator=generator(3), dtype=torch.float64)
    once = ExpectedImprovement(initial_design=150, repeats=False)
    truth = results(outcomes, X[evaluated])
    _, state = told(outcomes, X, evaluated, truth + noise * torch.tensor([1.0, 0.0]), policy=once)
    assert state.exact is None
    off = (state.estimates - truth)[:, 0].abs()
    assert float(off.mean()) < 0.5 * float(noise[:, 0].abs().mean())
    report = state.report()
    if outcomes is ONE:
        assert report.best_mean < report.best_observed_mean
        assert abs(report.best_mean - float(results(ONE, report.best_x.unsqueeze(0))[0, 0])) < 3.0 * report.best_sd
    else:
        front = report.front
        assert float(off[front].mean()) < 0.5 * float(noise[front, 0].abs().mean())


def test_reports_are_in_the_users_signs_and_units():
    X = arms(200)
    evaluated = torch.cat([torch.arange(0, 200, 8), torch.tensor([0])])
    outcomes = Outcomes.of({"strength": "max", "cost": "min"}, {"weight": (None, 0.9)}, {"strength": 0.0, "cost": 0.7})
    Y = results(outcomes, X[evaluated])
    _, state = told(outcomes, X, evaluated, Y)
    report = state.report()
    feasible = Y[:, 2] <= 0.9
    assert report.feasible == int(feasible.sum())
    assert report.reference.tolist() == [0.0, 0.7]
    gains = Y[:, :2] * torch.tensor([1.0, -1.0], dtype=torch.float64)
    rows = feasible.nonzero().squeeze(-1)
    assert report.front.tolist() == rows[front_rows(gains[rows])].tolist()
    assert report.hypervolume == pytest.approx(hypervolume(gains[rows], torch.tensor([0.0, -0.7], dtype=torch.float64)))
    assert report.best_x is None

    least = Outcomes.of({"cost": "min"}, {"weight": (0.5, None)})
    Y = results(least, X[evaluated])
    _, state = told(least, X, evaluated, Y)
    report, allowed = state.report(), Y[:, 1] >= 0.5
    best = int(Y[:, 0].masked_fill(~allowed, torch.inf).argmin())
    assert report.best_index == report.best_observed_index == int(evaluated[best])
    assert torch.equal(report.best_x, X[evaluated[best]])
    assert report.best_mean == pytest.approx(float(Y[best, 0]))
    assert report.best_observed_mean == pytest.approx(float(Y[best, 0]))


def test_errors_of_predictions_are_by_outcome():
    X = arms(200)
    evaluated = torch.cat([torch.arange(0, 200, 8), torch.tensor([0])])
    mechanism, state = told(LIMITED, X, evaluated, results(LIMITED, X[evaluated]))
    assert mechanism.init().standardised_errors(evaluated, state.Y) is None
    picks = torch.tensor([1, 2, 3])
    Y = results(LIMITED, X[picks])
    Y[1, 1] = NAN
    errors = state.standardised_errors(picks, Y)
    assert errors.shape == (3, 3)
    assert errors.isnan().tolist() == [[False] * 3, [False, True, False], [False] * 3]
    mean, variance = dense_moments(state, 1, [])
    warped = state.fitted[1].warp(-Y[0, 1])
    sd = (variance[1] + state.fitted[1].gp.noise_variance).sqrt()
    assert float(errors[0, 1]) == pytest.approx(float((warped - mean[1]) / sd), rel=1e-3)


def test_a_thawed_state_makes_the_same_picks():
    X = arms(150)
    evaluated = torch.cat([torch.arange(0, 150, 9), torch.tensor([0])])
    Y = results(LIMITED, X[evaluated])
    Y[2, 1] = NAN
    mechanism, state = told(LIMITED, X, evaluated, Y)
    state = mechanism.fail(state, torch.tensor([4, 5]), generator=torch.Generator())
    again = mechanism.thaw(mechanism.freeze(state))
    assert again.learned_at == state.learned_at
    assert torch.equal(again.Y.isnan(), state.Y.isnan())
    assert ask(mechanism, again, 4, [7]) == ask(mechanism, state, 4, [7])
    early = mechanism.tell(mechanism.init(), evaluated[:2], Y[:2], generator=generator())
    assert mechanism.thaw(mechanism.freeze(early)).told.tolist() == early.told.tolist()


def test_failed_arms_are_left_alone():
    X = arms(100)
    evaluated = torch.cat([torch.arange(0, 100, 9), torch.tensor([0])])
    mechanism, state = told(TWO, X, evaluated, results(TWO, X[evaluated]))
    first = ask(mechanism, state, 2)
    state = mechanism.fail(state, torch.tensor(first), generator=torch.Generator())
    assert not set(first) & set(ask(mechanism, state, 4))
    design = mechanism.fail(mechanism.init(), torch.tensor([3]), generator=torch.Generator())
    picks = mechanism.ask(design, max_q=4, pending=NONE, generator=generator()).picks
    assert len(picks) == 4


def test_fingerprints_under_a_kernel_of_the_users():
    bits = (torch.rand(300, 64, generator=generator(5), dtype=torch.float64) < 0.15).double()
    weights = torch.randn(64, 2, generator=generator(6), dtype=torch.float64)
    Y = bits @ weights
    policy = ExpectedImprovement(covar_module=TanimotoKernel(), initial_design=30, batch_size=10)
    outcomes = Outcomes.of({"potency": "max", "solubility": "max"})
    evaluated = torch.arange(0, 300, 10)
    mechanism, state = told(outcomes, bits, evaluated, Y[evaluated], policy=policy)
    start = state.report()
    for _ in range(4):
        picks = torch.tensor(ask(mechanism, state, 10))
        state = mechanism.tell(state, picks, Y[picks], generator=generator())
    reference = reference_point(Y)
    assert hypervolume(state.Y, reference) > hypervolume(Y[evaluated], reference)
    assert ask(mechanism, mechanism.thaw(mechanism.freeze(state)), 5) == ask(mechanism, state, 5)
    assert start.hypervolume > 0.0


def test_a_kernel_is_not_asked_for_no_points():
    class Own(RBFKernel):
        def forward(self, x1, x2, diag=False, **params):
            assert diag or x1.numel() > 0 < x2.numel()
            return super().forward(x1, x2, diag=diag, **params)

    X = arms(60)
    policy = ExpectedImprovement(covar_module=Own(), initial_design=8, batch_size=2)
    mechanism, state = told(TWO, X, torch.arange(8), results(TWO, X[:8]), policy=policy)
    picks = torch.tensor(ask(mechanism, state, 2))
    Y = results(TWO, X[picks]) * torch.tensor([1.0, math.nan], dtype=torch.float64)
    assert len(ask(mechanism, mechanism.tell(state, picks, Y, generator=generator()), 2)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("outcomes", [TWO, LIMITED], ids=["two", "limited"])
def test_a_tenth_of_a_library_has_nine_tenths_of_the_front(outcomes):
    draws = generator(11)
    X = torch.rand(1000, 5, generator=draws, dtype=torch.float64)
    Z = X @ torch.randn(5, 3, generator=draws, dtype=torch.float64)
    properties = torch.stack(
        [(2.0 * Z[:, 0]).sin() + X[:, 1], (X[:, 2] - 0.3).square() + 0.5 * (3.0 * Z[:, 1]).cos(), Z[:, 2]], dim=-1
    )
    values = properties[:, : len(outcomes.names)]
    if outcomes is LIMITED:
        outcomes = Outcomes.of(outcomes.objectives, {"weight": (None, float(values[:, 2].quantile(0.3)))})
    gains, feasible = outcomes.gains(values), outcomes.feasible(values)
    reference = reference_point(gains[feasible])
    mechanism = ExpectedImprovement(initial_design=25, batch_size=25).on_outcomes(Arms(X), outcomes)
    state = mechanism.init()
    while state.pulls < 100:
        picks = mechanism.ask(state, max_q=25, pending=NONE, generator=draws).picks
        state = mechanism.tell(state, picks, values[picks], generator=draws)
    found = state.told[feasible[state.told]]
    assert hypervolume(gains[found], reference) > 0.9 * hypervolume(gains[feasible], reference)
    random = torch.randperm(1000, generator=draws)[:100]
    assert hypervolume(gains[random[feasible[random]]], reference) < 0.9 * hypervolume(gains[feasible], reference)


def test_wrong_domains_and_policies_are_refused():
    with pytest.raises(TypeError, match="chooses among arms, got a box"):
        ExpectedImprovement().on_outcomes(Box(unit_box(2)), TWO)
    with pytest.raises(TypeError, match="policy 'bbkb' takes one outcome, got 2"):
        mechanism_of(BBKB(), Arms(arms(20)), TWO)
    assert mechanism_of(ExpectedImprovement(), Arms(arms(20)), TWO).outcomes is TWO


def test_limits_of_results_that_were_not_repeated_are_for_the_results():
    """An exact count never is on its limit by a model's median, so that no result would be feasible."""
    X = arms(60, 2)
    n = (4.0 * X.sum(dim=-1)).round()
    Y = torch.stack([waves(X), X[:, 0], n], dim=-1)
    for names in (["y"], ["y", "z"]):
        outcomes = Outcomes.of(dict.fromkeys(names, "max"), {"n": (4.0, 4.0)})
        _, state = told(outcomes, X, torch.arange(30), Y[:30, [0, 2] if names == ["y"] else [0, 1, 2]])
        assert state.exact is None
        feasible = n[:30] == 4.0
        assert torch.equal(state.estimates[:, -1], n[:30])
        if names == ["y"]:
            assert bool(feasible[state.best_row])
        else:
            assert len(state.report().front) > 0
            assert bool(feasible[state.report().front].all())


@pytest.mark.parametrize("every", [1, 3], ids=["all known", "some unknown"])
def test_with_known_noise_variances_of_a_sweep_are_those_of_dense_algebra(every):
    X = torch.rand(80, 1, generator=generator(5), dtype=torch.float64)
    mechanism = ExpectedImprovement(initial_design=8, batch_size=1).on_outcomes(Arms(X), Outcomes.of({"y": "max"}))
    state, draws = mechanism.init(), generator(6)
    for i in range(110):
        arm = torch.randint(80, (1,), generator=draws)
        sd = 0.02 if i % 2 else 1.0
        y = (6.0 * X[arm]).sin() + sd * torch.randn(1, 1, generator=draws, dtype=torch.float64)
        known = torch.full_like(y, NAN if i % every else sd)
        state = mechanism.tell(state, arm, y, sd=known, generator=draws)
        if state.sweeps:
            sweep = state.sweeps[0]
            exact = moments_of_all(sweep.gp, state.unit, sweep.columns).variance
            assert float((sweep.bound / exact - 1.0).abs().max()) < 1e-6


def test_of_arms_with_equal_inputs_the_best_result_is_that_of_its_arm():
    outcomes = Outcomes.of({"y": "max"})
    X = torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)
    _, state = told(outcomes, X, torch.arange(3), torch.tensor([[0.0], [10.0], [0.0]], dtype=torch.float64))
    report = state.report()
    assert (report.best_observed_index, report.best_observed_mean, report.best_observed_count) == (1, 10.0, 1)
