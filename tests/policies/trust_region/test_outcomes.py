"""The trust-region policy with several objectives and constraints: data, models, picks, batches, reports."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch
from botorch.utils.multi_objective.hypervolume import Hypervolume

from sparse_bo import AskTell, optimize
from sparse_bo.domains import Box, Float, Int, space_domain
from sparse_bo.gp.expected_improvement import front_rows, hypervolume
from sparse_bo.policies import TrustRegion, Wait
from sparse_bo.policies.outcomes import Outcomes
from sparse_bo.policies.trust_region.gain import CLIMBED, Limits, OutcomeGain
from sparse_bo.policies.trust_region.outcome_state import front_of, ranking_of
from sparse_bo.policies.trust_region.policy import OutcomeSearch
from sparse_bo.policies.trust_region.search import Corners, batch_of, candidates_of
from tests.builders import arms, unit_box
from tests.policies.builders import bowl, box, searched

TWO = Outcomes.of({"near": "min", "far": "max"})
"""Two objectives of :func:`pair`: the front is the line between two points."""
LIMITED = Outcomes.of({"cost": "min"}, {"width": (1.0, None), "left": (None, 0.6)})
"""One objective of :func:`limited`, with two limits."""


def pair(X):
    """Distance from one corner region, and nearness to another: in conflict along a line."""
    a, b = X.new_tensor([0.2, 0.3]), X.new_tensor([0.8, 0.6])
    return torch.stack([(X - a).square().sum(dim=-1), 3.0 - (X - b).square().sum(dim=-1)], dim=-1)


def limited(X):
    """The least cost where x + y >= 1 and x <= 0.6 is 0.5, at (0.5, 0.5)."""
    return torch.stack([X.square().sum(dim=-1), X.sum(dim=-1), X[:, 0]], dim=-1)


def told(outcomes, function, n=20, *, policy=None, bounds=None, seed=0, missing=None):
    """Return mechanism and state after n uniform points, and the generator; results with ``missing`` are NaN."""
    mechanism = (policy or TrustRegion()).on_outcomes(Box(unit_box() if bounds is None else bounds), outcomes)
    generator = torch.Generator().manual_seed(seed)
    X = mechanism.box.uniform(n, generator=generator)
    Y = function(X)
    if missing is not None:
        Y = Y.masked_fill(missing, torch.nan)
    return mechanism, mechanism.tell(mechanism.init(), X, Y, generator=generator), generator


def asked(mechanism, state, *, pending=None, max_q=10, seed=0):
    pending = state.X[:0] if pending is None else pending
    generator = torch.Generator().manual_seed(seed)
    return mechanism.ask(state, max_q=max_q, pending=pending, generator=generator)


@pytest.fixture(scope="module")
def short_run():
    """The mechanism and the state of a search of two objectives, which leaves torch's own generator alone."""
    before = torch.get_rng_state()
    found = searched(TrustRegion(), unit_box(), TWO, pair, budget=9)
    assert torch.equal(torch.get_rng_state(), before)
    return found


def test_feasible_results_are_ranked_before_others_and_missing_ones_last():
    Y = torch.tensor([[3.0, 2.0, 0.1], [1.0, 2.0, 0.5], [0.0, 0.5, 0.1], [0.0, 0.0, 0.9], [torch.nan, 2.0, 0.1]]).double()
    assert ranking_of(LIMITED, Y).argsort(descending=True).tolist() == [1, 0, 2, 3, 4]
    assert float(ranking_of(LIMITED, Y)[4]) == -math.inf
    assert float(ranking_of(LIMITED, Y)[2]) < 0.0 < float(ranking_of(LIMITED, Y)[0])


def test_of_several_objectives_the_front_is_ranked_first_extremes_before_the_crowded():
    Y = torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.52, 0.52], [1.0, 1.0], [0.9, 0.1]]).double()
    assert front_of(TWO, Y).tolist() == [0, 1, 2, 3]
    ranking = ranking_of(TWO, Y)
    assert set(ranking.argsort(descending=True)[:2].tolist()) == {1, 3}
    assert float(ranking[4]) < float(ranking[:4].min())


def test_the_acquisition_function_has_the_derivatives_of_its_values():
    generator = torch.Generator().manual_seed(0)
    limits = Limits(torch.tensor([0, 3]), torch.tensor([-0.5, -torch.inf]).double(), torch.tensor([torch.inf, 0.4]).double())
    draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    mean, variance = draw(6, 4), draw(6, 4).exp()
    reached = torch.stack([torch.linspace(-1.0, 1.0, 5), -torch.linspace(-1.0, 1.0, 5)], dim=-1).double()
    for points, edge in ((reached, 0.0), (reached[:0], 0.0), (reached, 1.0)):
        gain = OutcomeGain(limits, points, None, 2, edge)
        at = gain(mean, variance)
        for which, slope in ((0, at.by_mean), (1, at.by_variance)):
            for column in range(4):
                step = torch.zeros(6, 4, dtype=torch.float64)
                step[:, column] = 1e-6
                up, down = ([m + s * step if j == which else m for j, m in enumerate((mean, variance))] for s in (1.0, -1.0))
                assert torch.allclose(slope[:, column], (gain(*up).value - gain(*down).value) / 2e-6, rtol=1e-5, atol=1e-7)


def test_a_pick_with_feasible_means_counts_as_reached_and_another_one_does_not():
    limits = Limits(torch.tensor([1]), torch.tensor([0.0]).double(), torch.tensor([torch.inf]).double())
    gain = OutcomeGain(limits, torch.tensor([[0.25]]).double(), None, 1)
    assert gain.given(torch.tensor([[2.0, 0.5]]).double()).reached.tolist() == [[0.25], [2.0]]
    assert gain.given(torch.tensor([[2.0, -0.5]]).double()).reached.tolist() == [[0.25]]


def test_moments_and_gradients_are_those_of_each_outcome():
    _, state, _ = told(TWO, pair)
    gp, A = state.posteriors.condition(arms(2, 2, seed=3)), arms(7, 2, seed=1)
    at, slopes = gp.moments(A), gp.gradients(A)
    for j, of in enumerate(gp.each):
        assert torch.equal(at.mean[:, j], of.moments(A).mean)
        assert torch.equal(at.variance[:, j], of.moments(A).variance)
        assert torch.equal(slopes.mean_gradient[:, j], of.gradients(A).mean_gradient)
        assert torch.equal(slopes.variance_gradient[:, j], of.gradients(A).variance_gradient)
    x = arms(1, 2, seed=5)
    given = gp.moments_given(A, at, x, gp.moments(x))
    assert torch.allclose(given.variance, gp.condition(x).moments(A).variance)


def test_after_a_pick_the_two_highest_scores_are_those_of_all_candidates():
    _, state, _ = told(TWO, pair)
    gp, corners = state.posteriors, Corners(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    make = partial(candidates_of, gp, corners=corners, gain=state.gain(torch.ones(20, dtype=torch.bool)))
    best = make(arms(400, 2, seed=1)).pick(gp)
    pool = make(torch.cat([arms(400, 2, seed=1), (best + 0.02 * arms(200, 2, seed=2) - 0.01).clamp(0.0, 1.0)]))
    for _ in range(3):
        u = pool.pick(gp)
        pool, gp = pool.after(gp, u, gp.moments(u)), gp.condition(u)
        mean, variance, _ = gp.moments(pool.U)
        assert torch.equal(pool.scores.topk(2).indices, pool.gain(mean, variance).value.topk(2).indices)


def test_of_several_objectives_later_picks_of_a_batch_climb():
    _, state, generator = told(TWO, pair)
    gp, corners = state.posteriors, Corners(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    pool = candidates_of(gp, arms(200, 2, seed=1), corners, gain=state.gain(torch.ones(20, dtype=torch.bool)))
    picks = batch_of(gp, [pool], 3 * CLIMBED, exploration=0.0, generator=generator)
    assert not bool((picks[CLIMBED:].unsqueeze(1) == pool.U).all(dim=-1).any())


def test_improvement_is_beyond_all_points_of_a_front_of_two_objectives():
    """150 points of a line leave little to gain between two of them, though a third of them would leave more."""
    x = torch.linspace(0.0, 1.0, 150, dtype=torch.float64)
    nothing = torch.empty(0, dtype=torch.float64)
    gain = OutcomeGain(Limits(nothing.long(), nothing, nothing), torch.stack([x, 1.0 - x], dim=-1), None, 2)
    between = torch.stack([x[:-1], 1.0 - x[1:]], dim=-1) + 1e-9
    volume = gain(between, torch.full_like(between, 1e-20)).value.exp()
    assert float(volume.max()) < 1e-12


def test_lengthscales_stay_along_the_inputs_as_one_region_serves_all_models():
    def valley(X):
        across = X[:, 1] - 0.7 * X[:, 0] - 0.1
        return torch.stack([(X.sum(dim=-1) - 0.6).square() + 1e3 * across.square(), X[:, 0]], dim=-1)

    _, state, _ = told(Outcomes.of({"cost": "min"}, {"left": (None, 0.9)}), valley, 60)
    assert not any(fitted.learned.rotated for fitted in state.fitted)


def test_limits_are_those_of_the_users_in_the_units_of_the_models():
    outcomes = Outcomes.of({"cost": "min"}, {"cost": (None, 1.5), "width": (0.8, 1.4), "left": (None, 0.6)})
    _, state, _ = told(outcomes, limited, n=40)
    X = arms(200, 2, seed=7)
    warped = torch.stack(
        [fitted.warp(y) for fitted, y in zip(state.fitted, (state.signs * limited(X)).unbind(-1), strict=True)], dim=-1
    )
    assert torch.equal(state.limits.kept(warped), outcomes.feasible(limited(X)))
    assert 0 < int(outcomes.feasible(limited(X)).sum()) < 200


def test_batches_are_distinct_inside_and_conditioned_on_pending_points():
    mechanism, state, _ = told(TWO, pair, policy=TrustRegion(batch_size=6), bounds=box())
    first = asked(mechanism, state, max_q=4).picks
    assert first.shape == (4, 2)
    more = asked(mechanism, state, pending=first).picks
    assert len(more) == 2
    together = mechanism.box.to_unit(torch.cat([first, more]))
    assert float(torch.pdist(together).min()) > 1e-6
    assert torch.equal(first, first.clamp(box()[0], box()[1]))
    waiting = asked(mechanism, state, pending=torch.cat([first, more, more]))
    assert isinstance(waiting, Wait)
    assert waiting.needed == 3


def test_the_first_pick_after_the_design_repeats_a_point_of_the_front_once():
    mechanism, state, generator = told(TWO, pair)
    proposal = asked(mechanism, state)
    best = int(ranking_of(TWO, state.Y).argmax())
    assert best in front_of(TWO, state.Y).tolist()
    assert torch.equal(proposal.picks[0], state.X[best])
    assert proposal.repeats
    after = mechanism.tell(state, proposal.picks, pair(proposal.picks), generator=generator)
    assert after.exact is True
    again = asked(mechanism, after)
    assert not again.repeats
    assert len(torch.unique(torch.cat([after.X, again.picks]), dim=0)) == len(after.X) + len(again.picks) - 1


def test_a_thawed_state_has_the_same_picks_and_the_same_report(short_run):
    for mechanism, state in (short_run, searched(TrustRegion(), unit_box(), LIMITED, limited, budget=8)):
        again = mechanism.thaw(mechanism.freeze(state))
        assert again.region == state.region
        assert torch.allclose(asked(mechanism, again).picks, asked(mechanism, state).picks, atol=1e-9)
        one, other = again.report(), state.report()
        assert (one.feasible, one.front.tolist()) == (other.feasible, other.front.tolist())
        assert one.hypervolume == other.hypervolume
        design = mechanism.thaw(mechanism.freeze(mechanism.init()))
        assert (design.pulls, design.region, design.fitted) == (0, None, ())


@pytest.fixture(scope="module")
def local_run():
    """The mechanism and the state of a search with a limit in a local region, whose models know 40 points of more than 60."""
    outcomes = Outcomes.of({"cost": "min"}, {"sum": (0.9, None)})

    def kinked(X):
        return torch.stack([(X - X.new_tensor([0.6, 0.45])).abs().sum(dim=-1), X.sum(dim=-1)], dim=-1)

    policy = TrustRegion(batch_size=2, patience=1, first_length=0.4, shortest_length=0.3)
    mechanism, state, generator = told(outcomes, kinked, 60, policy=policy)
    while not state.region.local:
        assert state.pulls < 120
        picks = mechanism.ask(state, max_q=2, pending=state.X[:0], generator=generator).picks
        state = mechanism.tell(state, picks, kinked(picks), generator=generator)
    return mechanism, state


def test_with_limits_a_local_region_is_searched_and_thawed_with_its_own_models(local_run):
    mechanism, state = local_run
    assert [len(one.rows) for one in state.near] == [40, 40]
    assert min(len(one.rows) for one in state.fitted) > 60
    picks = asked(mechanism, state).picks
    lower, upper = state.region.corners(state.U[state.region.centre], state.searched.reach)
    assert bool(((picks >= lower) & (picks <= upper)).all())
    assert torch.equal(asked(mechanism, mechanism.thaw(mechanism.freeze(state))).picks, picks)
    assert torch.equal(asked(mechanism, replace(state, fitted=state.near, near=None)).picks, picks)
    assert not torch.equal(asked(mechanism, replace(state, near=None)).picks, picks)


def test_with_limits_failures_alone_end_a_local_region(local_run):
    mechanism, state = local_run
    generator, picks = torch.Generator(), state.X[:2] + 1e-3
    one = mechanism.fail(state.without_results(), picks[:1], generator=generator)
    assert (one.region, one.near) == (replace(state.region, failures=state.region.failures + 1), state.near)
    two = mechanism.fail(one.without_results(), picks[1:], generator=generator)
    assert two.region.design
    assert two.near is None


def test_with_limits_a_local_region_learns_from_its_own_results(local_run):
    mechanism, state = local_run
    picks = asked(mechanism, state).picks
    Y = torch.stack([torch.full((2,), 9.0, dtype=torch.float64), picks.sum(dim=-1)], dim=-1)
    after = mechanism.tell(state, picks, Y, generator=torch.Generator())
    assert after.fitted[0].learned == state.fitted[0].learned
    assert set(range(state.pulls, after.pulls)) <= {*after.fitted[0].rows.tolist()}
    assert after.region.local
    assert after.near[0].learned != state.near[0].learned


def test_of_one_objective_a_result_without_its_limit_is_not_reached():
    """It may be far above the best feasible one, where the model of the limit has nothing but its mean to say."""
    outcomes = Outcomes.of({"gain": "max"}, {"away": (None, 0.5)})

    def rising(X):
        s = X.sum(dim=-1)
        return torch.stack([s, torch.where(s > 1.0, torch.nan, X[:, 0] * (1.0 - s))], dim=-1)

    _, state, _ = told(outcomes, rising)
    every = torch.ones(len(state.Y), dtype=torch.bool)
    feasible = outcomes.feasible(state.Y)
    assert float(state.warped[:, 0].max()) > float(state.warped[feasible, 0].max())
    assert torch.equal(state.gain(every).reached, state.warped[feasible, :1])


def test_a_missing_outcome_leaves_out_its_own_model_only():
    missing = torch.zeros(20, 3, dtype=torch.bool)
    missing[3, 1] = missing[7, 0] = True
    mechanism, state, generator = told(LIMITED, limited, missing=missing)
    assert [len(fitted.rows) for fitted in state.fitted] == [19, 19, 20]
    assert not {3, 7} & set(state.outcomes.feasible(state.Y).nonzero().flatten().tolist())
    picks = asked(mechanism, state).picks
    Y = limited(picks)
    Y[:, 1] = torch.nan
    after = mechanism.tell(state, picks, Y, generator=generator)
    assert [len(fitted.rows) for fitted in after.fitted] == [19 + len(picks), 19, 20 + len(picks)]
    errors = state.standardised_errors(picks, Y)
    assert errors.shape == (len(picks), 3)
    assert bool(errors[:, 1].isnan().all())
    assert bool(torch.isfinite(errors[:, [0, 2]]).all())


def test_the_design_goes_on_while_an_outcome_has_no_results():
    mechanism, state, generator = told(LIMITED, limited, missing=torch.tensor([False, True, False]))
    assert state.fitted == ()
    assert state.standardised_errors(state.X, state.Y) is None
    picks = asked(mechanism, state).picks
    assert torch.equal(picks, mechanism.box.design(len(picks), start=20, generator=torch.Generator().manual_seed(0)))
    assert len(mechanism.tell(state, picks, limited(picks), generator=generator).fitted) == 3


def test_the_design_is_up_to_twice_as_long_while_one_of_several_objectives_is_constant():
    def plateau(X):
        return pair(X) * X.new_tensor([0.0, 1.0])

    policy = TrustRegion(initial_design=6)
    for n, designing in ((6, True), (11, True), (12, False)):
        mechanism, state, _ = told(TWO, plateau, n, policy=policy)
        assert (state.fitted == ()) == designing
        design = mechanism.box.design(4, start=n, generator=torch.Generator().manual_seed(0))
        assert torch.equal(asked(mechanism, state).picks, design) == designing
    assert told(TWO, pair, 6, policy=policy)[1].fitted


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
def test_failures_count_in_the_longer_design_of_a_constant_objective():
    loop = AskTell(bounds=[(0.0, 1.0)] * 2, policy=TrustRegion(initial_design=6), objectives={"a": "max", "b": "max"})
    for k in range(12):
        assert loop.state.fitted == ()
        batch = loop.ask(1)
        loop.tell(batch.tickets, [(0.0, float(batch.X[0, 0])) if k % 2 else math.nan])
    assert loop.state.fitted


def test_without_a_feasible_point_the_least_violation_is_sought_and_reported():
    never = Outcomes.of({"cost": "min"}, {"width": (3.0, None)})
    _, state = searched(TrustRegion(), unit_box(), never, lambda X: limited(X)[:, :2], budget=13)
    report = state.report()
    assert report.feasible == 0
    assert report.front.tolist() == []
    assert report.best_observed_x is None
    assert report.best_x.tolist() == pytest.approx([1.0, 1.0], abs=0.02)


def test_several_objectives_without_a_feasible_point_have_no_volume():
    never = Outcomes.of({"near": "min", "far": "max"}, {"sum": (5.0, None)})
    f = lambda X: torch.cat([pair(X), X.sum(dim=-1, keepdim=True)], dim=-1)  # noqa: E731
    _, state = searched(TrustRegion(), unit_box(), never, f, budget=10)
    report = state.report()
    assert (report.feasible, report.hypervolume, report.reference) == (0, 0.0, None)
    assert float(state.X[-4:].sum(dim=-1).max()) > 1.9


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "function",
    [
        lambda X: torch.stack([X[:, 0], torch.full_like(X[:, 0], 2.0)], dim=-1),
        lambda X: torch.full((len(X), 2), 2.0, dtype=torch.float64),
        lambda X: -X[:, :1].square().expand(-1, 2),
    ],
    ids=["a constant", "constants", "equal columns"],
)
def test_outcomes_that_tell_nothing_do_no_harm(function):
    _, state = searched(TrustRegion(), unit_box(), Outcomes.of({"a": "max", "b": "max"}), function, budget=10)
    report = state.report()
    assert len(torch.unique(state.X, dim=0)) >= 9
    assert len(report.front) >= 1
    assert math.isfinite(report.hypervolume)


def test_reports_are_in_the_units_and_directions_of_the_users():
    outcomes = Outcomes.of({"near": "min", "far": "max"}, reference={"near": 2.0, "far": 1.0})
    _, state, _ = told(outcomes, pair)
    report = state.report()
    gains = state.Y * torch.tensor([-1.0, 1.0]).double()
    assert report.front.tolist() == front_rows(gains).tolist()
    assert report.reference.tolist() == [2.0, 1.0]
    expected = Hypervolume(torch.tensor([-2.0, 1.0]).double()).compute(gains[report.front])
    assert report.hypervolume == pytest.approx(expected)
    assert report.feasible == 20
    inferred = told(TWO, pair)[1].report()
    assert bool((inferred.reference[0] > state.Y[report.front, 0]).all())
    assert bool((inferred.reference[1] < state.Y[report.front, 1]).all())


@pytest.mark.slow
def test_a_maximum_on_a_limit_is_found_to_three_digits():
    _, state = searched(TrustRegion(), unit_box(), LIMITED, limited, budget=15)
    assert state.report().best_mean == pytest.approx(0.5, abs=1e-3)


def test_the_best_point_of_one_objective_is_feasible():
    _, state, _ = told(LIMITED, limited)
    report, feasible = state.report(), LIMITED.feasible(state.Y)
    best = int(state.Y[:, 0].masked_fill(~feasible, torch.inf).argmin())
    assert report.best_x.tolist() == report.best_observed_x.tolist() == state.X[best].tolist()
    assert report.best_observed_mean == float(state.Y[best, 0])
    assert report.best_mean == pytest.approx(report.best_observed_mean, abs=1e-5)  # the model's: no point is repeated
    assert (report.best_observed_count, report.feasible) == (1, int(feasible.sum()))
    assert float(state.Y[best, 0]) > float(state.Y[:, 0].min())


@pytest.mark.slow
def test_where_replicates_show_noise_front_and_volume_are_those_of_the_models():
    generator = torch.Generator().manual_seed(0)
    noisy = lambda X: pair(X) + 0.2 * torch.randn(len(X), 2, generator=generator, dtype=torch.float64)  # noqa: E731
    outcomes = Outcomes.of({"near": "min", "far": "max"}, reference={"near": 1.0, "far": 2.0})
    _, state = searched(TrustRegion(), unit_box(), outcomes, noisy, budget=20)
    assert state.exact is False
    report = state.report()
    signs, reference = torch.tensor([-1.0, 1.0]).double(), torch.tensor([-1.0, 2.0]).double()
    lucky, truth = (hypervolume(signs * values, reference) for values in (state.Y, pair(state.X)))
    assert abs(report.hypervolume - truth) < 0.5 * abs(lucky - truth)


def test_with_noise_front_and_volume_are_the_same_everywhere():
    generator = torch.Generator().manual_seed(1)

    def measured(p):
        noise = 0.1 * torch.randn(2, generator=generator, dtype=torch.float64, device="cpu")
        return {"v": p["x"] - p["y"] ** 2 + float(noise[0]), "w": p["x"] ** 2 + abs(p["y"] - 0.3) + float(noise[1])}

    space = {"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)}
    result = optimize(measured, space, objectives={"v": "max", "w": "min"}, budget=10, seed=1)
    assert result.state.exact is False
    columns = result.history.outcome_columns(result)
    assert sorted(result.front.tolist()) == sorted(columns.front) == sorted(point.ticket for point in result.pareto_front)
    for point in result.pareto_front:
        assert list(point.estimates.values()) == result.estimates[point.ticket].tolist()
        assert point.estimates != point.outcomes
    assert columns.hypervolume == result.hypervolume == pytest.approx(columns.volumes[1][-1])
    assert list(columns.reference.values()) == result.reference.tolist()


def test_points_where_evaluations_fail_are_avoided():
    mechanism, state, _ = told(TWO, pair)
    failed = asked(mechanism, state).picks[1:2]
    after = mechanism.fail(state, failed, generator=torch.Generator())
    again = asked(mechanism, after).picks
    assert float((again[1:] - failed).norm(dim=-1).min()) > 1e-3


def test_a_space_is_searched_on_its_values_and_no_point_twice():
    domain = space_domain({"n": Int(1, 500), "x": Int(0, 300)})
    outcomes = Outcomes.of({"a": "max", "b": "min"})
    _, state = searched(TrustRegion(), domain, outcomes, pair, budget=16)
    U = state.U
    assert torch.allclose(U, domain.snap(U))
    assert len(torch.unique(U, dim=0)) == 15  # one replicate
    assert isinstance(domain.space.parameters["n"], Int)


@pytest.mark.slow
def test_one_objective_without_constraints_is_solved_as_without_outcomes():
    outcomes = Outcomes.of({"y": "max"})
    _, state = searched(TrustRegion(), box(), outcomes, lambda X: bowl(X).unsqueeze(-1), budget=17)
    assert float(bowl(state.report().best_x.unsqueeze(0))) > -1e-3


def test_picks_do_not_depend_on_the_default_dtype(short_run):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64 if before == torch.float32 else torch.float32)
        assert torch.equal(searched(TrustRegion(), unit_box(), TWO, pair, budget=9)[1].X, short_run[1].X)
    finally:
        torch.set_default_dtype(before)


def test_a_search_of_bounds_on_another_device_is_that_on_the_cpu(device, short_run):
    got = searched(TrustRegion(), unit_box(device=device), TWO, pair, budget=9)[1]
    assert got.Y.device.type == "cpu"
    assert torch.equal(got.X, short_run[1].X)


def test_a_goal_that_sums_one_objective_and_arms_are_refused():
    with pytest.raises(ValueError, match="goal='best'"):
        TrustRegion(goal="cumulative").on_outcomes(Box(unit_box()), TWO)
    with pytest.raises(TypeError, match="searches a box"):
        TrustRegion().on_outcomes(space_domain({"n": Int(1, 5)}), TWO)
    assert isinstance(TrustRegion().on_outcomes(space_domain({"x": Float(0, 1)}), TWO), OutcomeSearch)
