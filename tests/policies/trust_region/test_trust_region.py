"""The trust-region policy through AskTell and maximize: batches, pending points, failures, reports, hostile objectives."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement

import sparse_bo
from sparse_bo import AskTell, TrustRegion, maximize, optimize, problems
from sparse_bo.domains import Box, Choice, Float, space_domain
from sparse_bo.errors import ObjectiveError, PendingBatchError
from sparse_bo.policies import RegionState, Wait
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.trust_region.policy import RegionSearch
from sparse_bo.policies.trust_region.region import Region
from sparse_bo.policies.trust_region.surrogate import EXACT_NOISE
from tests.builders import arms, unit_box
from tests.policies.builders import bowl, box

NOTHING = box()[:0]


def told(policy, n=20, *, bounds=None, objective=bowl, seed=0):
    where = Box(box() if bounds is None else bounds)
    mechanism, generator = policy.on(where), torch.Generator().manual_seed(seed)
    X = where.uniform(n, generator=generator)
    return mechanism, mechanism.tell(mechanism.init(), X, objective(X), generator=generator), generator


@pytest.mark.slow
def test_a_smooth_maximum_is_found_to_three_digits():
    result = maximize(bowl, bounds=box(), policy=TrustRegion(), budget=24, seed=0)
    assert float(bowl(result.best_x.unsqueeze(0))) > -1e-3
    assert result.best_mean == pytest.approx(0.0, abs=1e-2)
    assert isinstance(result.state, RegionState)


def branin(X):
    x, y = X[:, 0], X[:, 1]
    valley = y - 5.1 / (4.0 * math.pi**2) * x.square() + 5.0 / math.pi * x - 6.0
    return -(valley.square() + 10.0 * (1.0 - 1.0 / (8.0 * math.pi)) * x.cos() + 10.0)


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [0, 1])
def test_branin_is_solved_in_sixty_evaluations(seed):
    bounds = torch.tensor([[-5.0, 0.0], [10.0, 15.0]], dtype=torch.float64)
    result = maximize(branin, bounds=bounds, policy=TrustRegion(), budget=60, seed=seed)
    assert result.best_mean == pytest.approx(-0.397887, abs=2e-3)


def valley(X):
    """Rosenbrock's valley over [−2, 2]²."""
    a, b = (4.0 * X - 2.0).unbind(dim=-1)
    return -(100.0 * (b - a.square()).square() + (1.0 - a).square())


def test_all_picks_of_a_large_batch_may_be_near_the_maximum():
    result = maximize(valley, bounds=unit_box(2), policy=TrustRegion(batch_size=20), budget=160, seed=2)
    assert -5e-8 < result.best_mean <= 0.0


def kinked(X):
    """The distance along two turned axes, one ten times as steep: its kinks meet at (0.37, 0.61)."""
    Z = (X - torch.tensor([0.37, 0.61], dtype=torch.float64)) @ torch.tensor([[0.6, -8.0], [0.8, 6.0]], dtype=torch.float64)
    return -Z.abs().sum(dim=-1)


@pytest.mark.slow
def test_a_local_region_gets_closer_to_a_kink():
    result = maximize(kinked, bounds=unit_box(), policy=TrustRegion(), budget=110, seed=0)
    assert float(kinked(result.best_x.unsqueeze(0))) > -1e-3


def in_local_region():
    """A run in a local region, whose model knows 40 of the 60 points evaluated before it and a few more."""
    policy = TrustRegion(batch_size=2, patience=1, first_length=0.4, shortest_length=0.3)
    X = arms(60, 2)
    loop = AskTell(bounds=unit_box(), policy=policy, budget=60, seed=0, initial=(X, kinked(X)))
    while not (loop.state.region and loop.state.region.local):
        batch = loop.ask()
        loop.tell(batch, kinked(batch.X))
    return loop


def test_in_a_local_region_picks_are_near_and_predictions_are_those_of_the_whole_box():
    loop = in_local_region()
    state = loop.state
    assert len(state.near.rows) == 40 < len(state.fitted.rows)
    picks = state.box.to_unit(loop.ask().X)
    learned = state.near.learned  # along other directions than the inputs
    sides = learned.axes.abs() @ state.region.half_sides(learned.lengthscales)
    assert float(sides.min()) < 0.5
    assert bool(((picks - state.U[state.region.centre]).abs() <= sides + 1e-12).all())
    assert state.pulls - 1 in state.fitted.rows.tolist()
    best = loop.result().predict(loop.result().best_x.unsqueeze(0))
    assert float(best["value"][0]) == pytest.approx(loop.result().best_mean, abs=1e-2)


def test_a_local_region_is_searched_and_thawed_with_its_own_model():
    state = in_local_region().state
    mechanism = TrustRegion(batch_size=2, patience=1, first_length=0.4, shortest_length=0.3).on(state.box)

    def picks(one):
        return mechanism.ask(one, max_q=2, generator=torch.Generator().manual_seed(5), pending=unit_box()[:0]).picks

    asked = picks(state)
    assert torch.equal(picks(mechanism.thaw(mechanism.freeze(state))), asked)
    assert torch.equal(picks(replace(state, fitted=state.near, near=None)), asked)
    assert not torch.equal(picks(replace(state, near=None)), asked)


def test_a_region_begins_at_the_best_point_of_a_restart_design_though_the_model_leaves_most_points_out():
    mechanism, state, generator = told(TrustRegion(model_size=20, batch_size=4), 200)
    X = mechanism.box.uniform(4, generator=generator)
    restarted = replace(state, region=Region(centre=0, length=0.8, start=200, kind="design"))
    after = mechanism.tell(restarted, X, bowl(X), generator=generator)
    assert after.region.centre == 200 + int(bowl(X).argmax())
    assert len(after.fitted.rows) == 20


def test_failures_alone_end_a_local_region():
    state = in_local_region().state
    mechanism = TrustRegion(batch_size=2, patience=1, first_length=0.4, shortest_length=0.3).on(state.box)
    generator, picks = torch.Generator(), state.X[:2] + 1e-3
    one = mechanism.fail(state.without_results(), picks[:1], generator=generator)
    assert one.region == replace(state.region, failures=1)
    two = mechanism.fail(one.without_results(), picks[1:], generator=generator)
    design = Region(centre=two.region.centre, length=0.4, start=state.pulls, kind="design")
    assert (two.region, two.near) == (design, None)


def test_noise_that_shows_in_a_local_region_is_learned_for_the_whole_box():
    state = in_local_region().state
    mechanism = TrustRegion(batch_size=2, patience=1, first_length=0.4, shortest_length=0.3).on(state.box)
    again, y = state.X[state.best_row].expand(2, -1), state.y.max() + torch.tensor([-2.0, 2.0], dtype=torch.float64)
    noisy = mechanism.tell(state, again, y, generator=torch.Generator())
    assert state.exact
    assert noisy.exact is False
    assert noisy.region.local
    assert state.fitted.gp.noise < 2.0 * EXACT_NOISE < noisy.fitted.gp.noise  # rounded


@pytest.mark.slow
def test_a_second_best_maximum_is_left():
    """Two bumps, the lower one wide: the run starts there, resolves it in 20 evaluations, and has to find the narrow one."""

    def bumps(X):
        wide = torch.exp(-0.5 * (X - 0.25).square().sum(dim=-1) / 0.2**2)
        return wide + 1.5 * torch.exp(-0.5 * (X - 0.85).square().sum(dim=-1) / 0.12**2)

    result = maximize(bumps, bounds=unit_box(2), policy=TrustRegion(), budget=60, seed=1, target=1.45)
    assert result.state.y[:20].max() < 1.1
    assert float(bumps(result.best_x.unsqueeze(0))) > 1.4


def test_batches_are_distinct_and_as_large_as_asked_for():
    for size in (1, 12):
        mechanism, state, generator = told(TrustRegion(batch_size=size))
        picks = mechanism.ask(state, max_q=10**6, pending=NOTHING, generator=generator).picks
        assert picks.shape == (size, 2)
        assert len(torch.unique((picks * 1e6).round(), dim=0)) == size
        assert torch.equal(picks, picks.clamp(box()[0], box()[1]))


def test_batches_grow_with_the_data_unless_their_size_is_given():
    assert [TrustRegion().largest_batch(n) for n in (10, 200, 2_000)] == [4, 4, 10]
    assert TrustRegion(batch_size=3).largest_batch(10**4) == 3


def sizes(objective, **settings):
    """Return the sizes of the batches that an objective gets."""
    seen = []

    def counted(X):
        seen.append(len(X))
        return objective(X)

    maximize(counted, bounds=box(), seed=0, **settings)
    return seen


@pytest.mark.sampled(1)
@pytest.mark.parametrize("objective", [lambda X: X.sum(dim=-1), bowl], ids=["maximum in a corner", "maximum inside"])
def test_until_a_repeat_has_shown_noise_only_the_best_point_is_evaluated_twice(objective):
    loop = AskTell(policy=TrustRegion(batch_size=12), bounds=box(), seed=0)
    seen = box()[:0]
    for repeats in (0, 1, 0):
        batch = loop.ask()
        seen = torch.cat([seen, batch.X])
        assert len(seen) - len(torch.unique(seen, dim=0)) == repeats + (len(seen) > 30)
        loop.tell(batch, objective(batch.X))


def test_in_this_process_the_first_batches_after_the_design_have_one_point():
    assert sizes(bowl, budget=9) == [3] + [1] * 6
    assert [TrustRegion().serial_batch(n) for n in (5, 49, 50, 99, 100)] == [1, 1, 2, 2, 3]
    assert sizes(bowl, budget=17, policy=TrustRegion(batch_size=4)) == [4, 4, 4, 4, 1]  # as many as are given
    assert len(AskTell(bounds=box(), seed=0).ask(4)) == 4  # whoever asks gets as many


def test_batches_have_four_points_once_there_is_noise():
    generator = torch.Generator().manual_seed(0)
    noisy = sizes(lambda X: bowl(X) + 0.1 * torch.randn(len(X), generator=generator, dtype=torch.float64), budget=19)
    assert noisy == [5, 1, 4, 4, 4, 1]


def test_pending_points_fill_the_batch_and_are_not_proposed_again():
    mechanism, state, generator = told(TrustRegion(batch_size=6))
    first = mechanism.ask(state, max_q=4, pending=NOTHING, generator=generator).picks
    more = mechanism.ask(state, max_q=10, pending=first, generator=generator).picks
    assert len(more) == 2
    assert float(torch.cdist(more, first).min()) > 1e-6
    waiting = mechanism.ask(state, max_q=10, pending=torch.cat([first, more, more]), generator=generator)
    assert isinstance(waiting, Wait)
    assert waiting.needed == 3


def test_the_number_of_results_that_it_waits_for_is_right():
    loop = AskTell(policy=TrustRegion(initial_design=4, batch_size=3), bounds=box(), seed=0)
    batch = loop.ask()
    assert len(batch) == 4
    for left in (4, 3, 2, 1):
        with pytest.raises(PendingBatchError) as caught:
            loop.ask()
        assert caught.value.needed == left
        open_ = loop.reissue(loop.pending[:1])
        loop.tell(open_.tickets, bowl(open_.X))
    assert len(loop.ask()) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "budget"),
    [(TrustRegion(batch_size=4), 24), (TrustRegion(goal="cumulative"), 32)],
    ids=["best", "cumulative"],
)
def test_a_run_on_results_that_come_late_and_in_another_order_ends_well(policy, budget):
    loop = AskTell(policy=policy, bounds=box(), seed=1)
    while loop.asked < budget:
        try:
            loop.ask(2)
        except PendingBatchError:
            open_ = loop.reissue([loop.pending[-1]])
            loop.tell(open_.tickets, bowl(open_.X))
    assert loop.state.report().best_mean == pytest.approx(0.0, abs=0.05)


def rough(X):
    """A bowl with teeth: to a model of few points they look like noise."""
    return bowl(X) + 0.5 * torch.sin(40.0 * X).sum(dim=-1)


def test_the_first_pick_after_the_design_repeats_its_best_point_once():
    mechanism, state, generator = told(TrustRegion(batch_size=3))
    picks = mechanism.ask(state, max_q=10, pending=NOTHING, generator=generator).picks
    assert picks.shape == (3, 2)
    assert torch.equal(picks[0], state.X[state.y.argmax()])
    assert not bool((mechanism.ask(state, max_q=10, pending=picks[:1], generator=generator).picks == picks[0]).all(dim=1).any())
    after = mechanism.tell(state, picks, rough(picks), generator=generator)
    again = mechanism.ask(after, max_q=10, pending=NOTHING, generator=generator).picks
    assert len(torch.unique(torch.cat([after.X, again]), dim=0)) == len(after.X) + len(again) - 1


def test_where_a_repeat_shows_no_noise_the_highest_observation_is_recommended():
    mechanism, state, generator = told(TrustRegion(), objective=rough)
    best = state.X[state.y.argmax()].unsqueeze(0)
    same = mechanism.tell(state, best, rough(best), generator=generator)
    report = same.report()
    assert torch.equal(report.best_x, best[0])
    assert (report.best_mean, report.best_sd) == (float(rough(best)), 0.0)
    assert same.fitted.learned.noise <= EXACT_NOISE * (1.0 + 1e-9)
    other = mechanism.tell(state, best, rough(best) - 1.0, generator=generator)
    assert other.report().best_sd > 0.0


def test_a_model_that_has_learned_nothing_recommends_one_of_the_five_highest_observations():
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)

        def noise(X, generator=generator):  # of seven decades
            return -(10.0 ** (7.0 * torch.rand(len(X), generator=generator, dtype=torch.float64)))

        mechanism, state, own = told(TrustRegion(), n=100, objective=noise, seed=seed)
        state = mechanism.tell(state, state.X[:1], noise(state.X[:1]), generator=own)
        highest = state.replicates.values.topk(5).values
        assert float(state.replicates.values[(state.report().best_x == state.X).all(dim=-1)].max()) in highest.tolist()


def test_a_model_that_explains_the_observations_recommends_by_its_mean_among_a_quarter():
    """Nine observations far above the slope are noise, as the other evaluation of one of them shows."""

    def slope(X, high=()):
        y = X[:, 0].clone()
        y[list(high)] += 0.25
        return y

    generator = torch.Generator().manual_seed(0)
    where = Box(unit_box(1))
    mechanism, X = TrustRegion().on(where), torch.linspace(0.0, 1.0, 100, dtype=torch.float64).unsqueeze(-1)
    noisy = slope(X, high=range(78, 94, 2)) + 0.05 * torch.randn(100, generator=generator, dtype=torch.float64)
    state = mechanism.tell(mechanism.init(), X, noisy, generator=generator)
    state = mechanism.tell(state, X[78:79], slope(X[78:79]), generator=generator)
    highest = state.X[state.y.topk(5).indices]
    best = state.report().best_x
    assert float(best) > 0.95
    assert not bool((highest == best).all(dim=-1).any())


def test_the_report_is_in_the_units_of_the_user():
    _, state, _ = told(TrustRegion(), n=30, objective=lambda X: 1e6 + 1e3 * bowl(X))
    report = state.report()
    assert report.best_x.tolist() == state.X[state.y.argmax()].tolist()
    assert report.best_mean == pytest.approx(float(state.y.max()), abs=0.05 * float(state.y.std()))
    assert report.dictionary_size is None  # the model is exact
    assert 0.0 <= report.best_sd < float(state.y.std())


def test_the_model_is_a_botorch_model_in_the_units_of_the_user():
    _, state, _ = told(TrustRegion(), n=30)
    with torch.no_grad():
        posterior = state.model.posterior(state.X)
        alone = state.model.posterior(state.X.unsqueeze(-2))
    assert torch.allclose(posterior.mean.squeeze(-1), state.y, atol=0.1)
    assert torch.allclose(alone.mean.flatten(), posterior.mean.flatten())
    assert torch.allclose(alone.variance.flatten(), posterior.variance.flatten(), atol=1e-3)  # jitter of joint ones
    acquisition = qLogNoisyExpectedImprovement(state.model, state.X, prune_baseline=False)
    U = state.X[:3].unsqueeze(-2).clone().requires_grad_()
    (gradient,) = torch.autograd.grad(acquisition(U).sum(), U)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")  # half of the design fails
def test_points_where_evaluations_fail_are_avoided():
    def half(X):
        y = bowl(X)
        return torch.where(X[:, 0] > 1.0, torch.nan, y)  # the maximum is on the edge

    result = maximize(half, bounds=box(), policy=TrustRegion(), budget=120, seed=0)
    failed = [math.isnan(v) for values in result.history.column("values") for v in values]
    assert sum(failed[60:]) < 25  # of 60; half of the box fails
    assert result.best_mean == pytest.approx(0.0, abs=0.05)


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
def test_failures_of_a_linear_objective_condemn_their_neighbours_alone():
    def disc(x):
        return math.nan if math.hypot(*x) > 1.0 else float(x.sum())  # the maximum, 1.414, is on the border

    bests = [maximize(disc, bounds=[(0.0, 1.0)] * 2, budget=40, seed=seed).best.mean for seed in (0, 1, 4)]
    assert min(bests) > 1.39  # 1.32 to 1.37 where the distances are those of lengthscales of hundreds of sides


def test_picks_do_not_depend_on_the_number_of_threads():
    hartmann = problems.synthetic("hartmann6", noise_sd=0.0).function
    before = torch.get_num_threads()
    runs = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            runs.append(maximize(hartmann, bounds=unit_box(6), policy=TrustRegion(), budget=14, seed=3).history.points)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert runs[0] == runs[1]


def test_a_run_is_the_same_on_another_device(device):
    expected = maximize(bowl, bounds=box(), policy=TrustRegion(), budget=10, seed=0)
    got = maximize(bowl, bounds=box(device), policy=TrustRegion(), budget=10, seed=0)
    assert torch.allclose(got.best_x.cpu(), expected.best_x, atol=1e-3)
    assert got.best_x.device.type == torch.device(device).type  # the state stays on the CPU


def test_the_global_generator_is_left_alone():
    state = torch.get_rng_state()
    maximize(bowl, bounds=box(), policy=TrustRegion(), budget=8, seed=0)
    assert torch.equal(torch.get_rng_state(), state)


def test_settings_are_checked_and_defaults_follow_the_dimension():
    with pytest.raises(ValueError, match="batch_size >= 1"):
        TrustRegion(batch_size=0)
    with pytest.raises(TypeError, match="initial_design"):
        TrustRegion(initial_design=2.5)
    with pytest.raises(ValueError, match="exploration"):
        TrustRegion(exploration=1.5)
    with pytest.raises(TypeError, match="searches a box"):
        AskTell(unit_box(2), TrustRegion())
    made = {d: TrustRegion().on(Box(unit_box(d))) for d in (1, 6, 20, 60, 1000)}
    assert all(isinstance(m, RegionSearch) for m in made.values())
    assert [m.design_size for m in made.values()] == [5, 10, 20, 20, 20]
    assert [TrustRegion(goal="cumulative").design_size(d) for d in (1, 6, 1000)] == [5, 10, 10]
    for setting in ({"patience": 0}, {"shortest_length": 0.0}, {"candidates": 0}, {"horizon": -1.0}, {"model_size": 0}):
        with pytest.raises(ValueError, match=next(iter(setting))):
            TrustRegion(**setting)
    assert sparse_bo.policies.TrustRegion is TrustRegion


def test_a_category_counts_as_one_input():
    """It has a column for each of its values: five to eight settings of a learner have up to twenty columns."""
    space = space_domain({"x": Float(0, 1), "kind": Choice(*"abcdef"), "how": Choice(*"uvwxyz")})
    assert (space.dims, space.parameter_count) == (13, 3)
    assert TrustRegion().on(space).design_size == TrustRegion().on(Box(unit_box(3))).design_size == 6
    assert TrustRegion().on_outcomes(space, Outcomes.of({"a": "max", "b": "min"})).design_size == 6


def cauchy(u):
    """Return what quantiles of a Student-t distribution of one degree of freedom are."""
    return torch.tan(math.pi * (u - 0.5))


def heavy_tails():
    """Heavy-tailed noise, another value at every evaluation."""
    generator = torch.Generator().manual_seed(0)
    return lambda X: bowl(X) + 0.1 * cauchy(torch.rand(len(X), generator=generator, dtype=torch.float64, device="cpu").to(X))


def outliers(X):
    """Heavy tails by place: the same whenever a place is evaluated, so that they are the objective's own."""
    u = (1e4 * (X * torch.tensor([12.9898, 7.233]).double()).sum(dim=-1).sin()).frac().abs()
    return bowl(X) + 0.1 * cauchy(u)


HOSTILE = {
    "1e30": lambda X: torch.where(X[:, 0] < 0.0, -1e30, bowl(X)),
    "all huge": lambda X: 1e30 * bowl(X),
    "tiny": lambda X: 1e-30 * bowl(X),
    "heavy tails": heavy_tails(),
    "far away": lambda X: bowl(X) + 1e9,
    "labels": lambda X: (bowl(X) > -2.0).double() + (bowl(X) > -0.4).double(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_values_end_in_a_sensible_recommendation(name):
    result = maximize(HOSTILE[name], bounds=box(), budget=20, seed=1)
    assert float(bowl(result.best_x.unsqueeze(0))) > -0.5
    assert math.isfinite(result.best_mean)


@pytest.mark.slow
def test_an_outlier_that_is_the_objectives_own_is_recommended():
    result = maximize(outliers, bounds=box(), budget=50, seed=0)
    highest = max(value for row in result.history.rows for value in row.values)
    assert float(outliers(result.best_x.unsqueeze(0))) == pytest.approx(highest)
    assert highest > 0.0  # the bowl's own values are not


def test_a_constant_objective_is_explored_to_the_end():
    result = maximize(lambda X: torch.full((len(X),), 7.0).double(), bounds=box(), budget=16, seed=0)
    assert result.best_mean == pytest.approx(7.0)
    points = torch.tensor([x for row in result.history.points for x in row]).reshape(-1, 2)
    assert len(torch.unique(points, dim=0)) == 16


def test_where_noise_hides_all_improvement_picks_stay_near_the_best_point():
    """Of many noisy results the model knows every point better than an evaluation shows: picks were anywhere in the box."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(150, 2, generator=generator, dtype=torch.float64)
    y = -(X - 0.3).square().sum(dim=-1)
    noise = 0.1 * torch.randn(150, generator=generator, dtype=torch.float64)
    loop = AskTell(bounds=unit_box(2), policy=TrustRegion(exploration=0.0), initial=(X, y + noise), seed=0)
    for _ in range(10):
        batch = loop.ask(1)
        loop.tell(batch.tickets, -(batch.X - 0.3).square().sum(dim=-1))
    assert float((loop.state.X[150:] - 0.3).abs().amax(dim=-1).quantile(0.8)) < 0.2


def test_an_infinite_value_is_refused_and_nothing_is_lost(tmp_path):
    calls = []

    def objective(X):
        calls.append(len(X))
        return bowl(X) if len(calls) < 4 else torch.full((len(X),), math.inf).double()

    with pytest.raises(ObjectiveError, match="finite values") as caught:
        maximize(objective, bounds=box(), budget=16, seed=0, storage=tmp_path / "run.journal")
    told = sum(calls[:3])
    assert caught.value.result.state.pulls == told
    result = maximize(bowl, bounds=box(), budget=16, seed=0, storage=tmp_path / "run.journal", resume=True)
    assert result.state.pulls == 16
    assert result.best_mean == pytest.approx(0.0, abs=1e-2)


@pytest.mark.slow
def test_failures_of_thirty_percent_do_not_matter():
    def flaky(X):
        u = (1e4 * (X * torch.tensor([12.9898, 7.233]).double()).sum(dim=-1).sin()).frac().abs()
        return torch.where(u < 0.3, torch.nan, bowl(X))

    result = maximize(flaky, bounds=box(), budget=30, seed=0)
    assert float(bowl(result.best_x.unsqueeze(0))) > -0.01


@pytest.mark.parametrize("budget", [1, 2, 9])
def test_a_budget_below_the_design_ends_with_the_best_seen(budget):
    result = maximize(bowl, bounds=box(), budget=budget, seed=0)
    assert result.state.pulls == budget
    values = [v for row in result.history.column("values") for v in row]
    assert result.best_x is not None
    assert result.best_observed_mean == pytest.approx(max(values))


def test_one_input_is_enough():
    result = maximize(lambda X: -(X[:, 0] - 0.3).square(), bounds=unit_box(1), budget=14, seed=0)
    assert float(result.best_x) == pytest.approx(0.3, abs=0.01)


@pytest.mark.slow
def test_a_thousand_inputs_end_above_the_median_of_their_design():
    def sphere(X):
        return -(X - 0.4).square().sum(dim=-1)

    result = maximize(sphere, bounds=unit_box(1000), budget=30, seed=0)
    design = [value for values in result.history.column("values") for value in values][:20]
    assert float(sphere(result.best_x.unsqueeze(0))) > sorted(design)[10]  # 30 evaluations teach little of 1,000 inputs


def test_while_all_results_are_equal_the_design_goes_on():
    """A model of equal results is sure that all others are, and the region shrinks around the first of them."""

    def hill(x):
        return max(0.0, 1.0 - 6.0 * float(np.linalg.norm(np.asarray(x) - [0.7, 0.2, 0.6])))

    result = maximize(hill, bounds=[(0.0, 1.0)] * 3, budget=60, seed=0)
    assert hill(result.best_x.tolist()) > 0.9
    flat = AskTell(bounds=[(0.0, 1.0)] * 3, seed=0, workers=4)
    for _ in range(6):
        batch = flat.ask(4)
        assert len(batch) == 4
        flat.tell(batch, [0.0] * 4)
    assert flat.result().best_mean == 0.0


def test_a_limit_that_is_kept_or_not_is_looked_for_until_it_is_kept_once():
    def inside(x):
        return {"y": float(sum(x)), "c": float(np.linalg.norm(np.asarray(x) - 0.3) < 0.25)}

    result = optimize(inside, bounds=[(0.0, 1.0)] * 3, objectives={"y": "max"}, constraints={"c": (1, None)}, budget=60, seed=0)
    assert result.feasible > 3
    assert result.best.outcomes["y"] > 1.2


def test_limits_that_are_measured_by_turns_have_models():
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, objectives={"y": "max"}, constraints={"c": (None, 0.5), "d": (None, 0.5)}, seed=0)
    for _ in range(6):
        batch = loop.ask(4)
        limits = batch.X.clone()
        limits[::2, 0] = limits[1::2, 1] = math.nan
        loop.tell(batch, {"y": batch.X.sum(dim=-1), "c": limits[:, 0], "d": limits[:, 1]})
    assert loop.state.fitted


@pytest.mark.parametrize("limits", [{}, {"low": (None, 3.0)}], ids=["no limit", "a limit that is kept"])
def test_while_all_outcomes_are_equal_the_design_goes_on(limits):
    def hill(x):
        top = max(0.0, 1.0 - 6.0 * float(np.linalg.norm(np.asarray(x) - [0.7, 0.2, 0.6])))
        return {"y": top, "low": float(sum(x))}

    result = optimize(hill, bounds=[(0.0, 1.0)] * 3, objectives={"y": "max"}, constraints=limits, budget=30, seed=0)
    assert result.best_mean > 0.3


@pytest.mark.parametrize("beside", ["another limit", "a missing result"])
def test_a_limit_that_is_never_kept_is_looked_for_beside(beside):
    """Another limit that varies, or one result that is missing, says nothing of where it is kept."""
    seen = []

    def inside(x):
        seen.append(x)
        kept = float(np.linalg.norm(np.asarray(x) - 0.3) < 0.25)
        lost = beside == "a missing result" and len(seen) == 3
        return {"y": float(sum(x)), "c": math.nan if lost else kept, "d": float(x[0] - x[1])}

    limits = {"c": (1, None)} | ({"d": (None, 0.2)} if beside == "another limit" else {})
    result = optimize(inside, bounds=[(0.0, 1.0)] * 3, objectives={"y": "max"}, constraints=limits, budget=45, seed=0)
    assert result.feasible > 2


def test_results_on_both_sides_of_a_band_are_apart():
    """They miss it by the same: the search was left to chance."""

    def ramp(x):
        return {"y": float(x[1]), "c": min(max(500.0 * (float(x[0]) - 0.55), 0.0), 10.0)}  # 4 to 6 on 0.4 % of the range

    band = {"c": (4.0, 6.0)}
    result = optimize(ramp, bounds=[(0.0, 1.0)] * 2, objectives={"y": "max"}, constraints=band, budget=40, seed=0)
    assert result.feasible > 0
    assert result.best_mean > 0.99
