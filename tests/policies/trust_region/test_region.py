"""The parts of the trust-region policy: its GP, its warpings, how the region moves, and where its candidates lie."""

from dataclasses import replace
from functools import partial
from statistics import NormalDist

import pytest
import torch

from sparse_bo.domains import Box
from sparse_bo.gp.hyperparameters import ADDITIVE, Hyperparameters
from sparse_bo.policies import TrustRegion
from sparse_bo.policies.trust_region import search
from sparse_bo.policies.trust_region.hills import SURPRISE, VALLEY, but_hills, on_hills, surprising
from sparse_bo.policies.trust_region.region import (
    AGAIN,
    FEW_DIMS,
    HITS,
    LAST_SCOUT,
    SHORTEST,
    WHOLE,
    Region,
    first_region,
    moved,
    scouts,
)
from sparse_bo.policies.trust_region.repeats import exact
from sparse_bo.policies.trust_region.search import Bounds
from sparse_bo.policies.trust_region.surrogate import HIGHEST, known_rows, local_posterior
from sparse_bo.policies.trust_region.warping import KINDS, warp, warps
from tests.builders import arms, unit_box, waves
from tests.oracles import exact_gp, rbf

LEARNED = Hyperparameters("rbf", torch.full((2,), 0.4, dtype=torch.float64), 0.05, 0.3, 2.0, 0.0)


SUM = replace(
    LEARNED,
    family=ADDITIVE,
    alone=torch.tensor([0.2, 0.3], dtype=torch.float64),
    shares=torch.tensor([0.5, 0.2], dtype=torch.float64),
)


def posterior(n=15, learned=LEARNED):
    X = arms(n, 2)
    return X, waves(X), local_posterior(X, waves(X), learned)


def dense(X, y, A):
    k = lambda P, Q: rbf(P, Q, lengthscale=0.4, scale=2.0)  # noqa: E731
    return exact_gp(k(X, X), k(X, A), k(A, A), y, noise=0.1, prior_mean=0.3)


def test_the_posterior_of_a_region_is_the_dense_one():
    (X, y, gp), A = posterior(), arms(8, 2, seed=1)
    expected = dense(X, y, A)
    mean, variance, _ = gp.moments(A)
    assert torch.allclose(mean, expected.mean)
    assert torch.allclose(variance, expected.variance)
    assert torch.allclose(gp.mean(A), expected.mean)
    assert torch.allclose(gp.joint(A).covariance, expected.covariance)


def test_conditioning_shrinks_variances_as_data_does_and_leaves_the_mean():
    (X, y, gp), P, A = posterior(), arms(3, 2, seed=2), arms(8, 2, seed=1)
    after = gp.condition(P[:1]).condition(P[1:])
    expected = dense(torch.cat([X, P]), torch.cat([y, waves(P)]), A)
    assert torch.allclose(after.moments(A).variance, expected.variance)
    assert torch.allclose(after.mean(A), gp.mean(A))


@pytest.mark.parametrize("learned", [LEARNED, SUM])
def test_slopes_are_the_gradients_of_the_moments(learned):
    _, _, gp = posterior(learned=learned)
    gp = gp.condition(arms(2, 2, seed=4))
    U = arms(5, 2, seed=3).requires_grad_()
    mean, variance, _ = gp.moments(U)
    slopes = gp.gradients(U.detach())
    assert torch.allclose(slopes.mean, mean)
    assert torch.allclose(slopes.variance, variance)
    assert torch.allclose(slopes.mean_gradient, torch.autograd.grad(mean.sum(), U, retain_graph=True)[0])
    assert torch.allclose(slopes.variance_gradient, torch.autograd.grad(variance.sum(), U)[0])


def test_a_pool_after_a_pick_is_the_pool_of_the_conditioned_gp(generator):
    _, _, gp = posterior()
    U, u = arms(40, 2, seed=5), arms(1, 2, seed=6)
    bounds = Bounds(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    pool = search.pool_of(gp, U, bounds, best=-5.0).after(gp, u, gp.moments(u))
    assert torch.allclose(pool.moments.variance, gp.condition(u).moments(U).variance)
    assert pool.best == pytest.approx(float(gp.mean(u)))


def test_combined_candidates_have_the_best_value_of_each_input(generator):
    """The function has two waves along each input; its values at 60 points tell them apart, and where both are highest."""
    X = arms(60, 2)
    y = torch.sin(12.0 * X).sum(dim=-1)
    learned = replace(
        SUM, noise=1e-6, alone=torch.full((2,), 0.15, dtype=torch.float64), shares=torch.full_like(SUM.shares, 0.499)
    )
    U = search.combined(local_posterior(X, y, learned), X[0], generator=generator)
    assert bool(((U >= 0.0) & (U <= 1.0)).all())
    assert float(torch.sin(12.0 * U).sum(dim=-1).max()) > 1.95
    kept = X[0] == U
    assert bool(kept.any())
    assert int(kept.all(dim=-1).sum()) < len(U) // 2


def test_a_pick_is_a_local_maximum_and_no_candidate_is_better():
    _, _, gp = posterior()
    bounds = Bounds(torch.tensor([0.1, 0.2]).double(), torch.tensor([0.9, 0.7]).double())
    pool = search.pool_of(gp, bounds.lower + bounds.span * arms(200, 2, seed=5), bounds, best=0.5)
    u = search.pick(gp, pool)
    score = lambda V: pool.gain(*gp.moments(V)[:2]).value  # noqa: E731
    assert float(score(u)) >= float(score(pool.U).max()) - 1e-9
    assert bool(((u >= bounds.lower) & (u <= bounds.upper)).all())
    near = (u + 1e-3 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).double()).clamp(
        bounds.lower, bounds.upper
    )
    assert float(score(near).max()) <= float(score(u)) + 1e-4


def test_refused_points_are_neither_candidates_nor_picks():
    _, _, gp = posterior()
    bounds = Bounds(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    unrefused = search.pick(gp, search.pool_of(gp, arms(200, 2, seed=5), bounds, best=0.5))
    refuse = lambda V: (V - unrefused).norm(dim=-1) < 0.2  # noqa: E731
    pool = search.pool_of(gp, arms(200, 2, seed=5), bounds, best=0.5, refuse=refuse)
    assert not bool(refuse(pool.U).any())
    assert not bool(refuse(search.pick(gp, pool)).any())


def test_climbs_in_many_dimensions_move_few_coordinates(generator):
    X = arms(30, 60)
    learned = replace(LEARNED, lengthscales=torch.full((60,), 4.0, dtype=torch.float64))
    gp, centre = local_posterior(X, waves(X), learned), X[3]
    bounds = Bounds((centre - 0.2).clamp(0, 1), (centre + 0.2).clamp(0, 1))
    U = search.around(centre, bounds, generator=generator)[: search.CANDIDATES]
    u = search.pick(gp, search.pool_of(gp, U, bounds, best=0.5, centre=centre))
    assert 1 <= int((u != centre).sum()) < 40
    alone = search.pool_of(gp, centre.unsqueeze(0), bounds, best=0.5, centre=centre)
    assert bool((search.pick(gp, alone) == centre).all())


@pytest.mark.parametrize("dims", [2, 60])
def test_candidates_lie_in_the_region_and_change_few_coordinates_of_the_centre(dims, generator):
    centre = torch.full((dims,), 0.9, dtype=torch.float64)
    bounds = Bounds((centre - 0.2).clamp(0, 1), (centre + 0.2).clamp(0, 1))
    U = search.around(centre, bounds, generator=generator)
    assert bool(((bounds.lower <= U) & (bounds.upper >= U)).all())
    changed = (U[: search.CANDIDATES] != centre).sum(dim=-1)
    assert int(changed.min()) >= 1
    if dims > FEW_DIMS:
        assert float(changed.double().mean()) == pytest.approx(search.CHANGED + 1.0 - search.CHANGED / dims, rel=0.05)


def test_repeats_tell_whether_an_objective_is_exact():
    X = arms(6, 2)
    y, twice = torch.arange(6).double(), torch.cat([X, X[2:3]])
    assert exact(X, y) is None
    assert exact(twice, torch.cat([y, y[2:3]])) is True
    assert exact(twice, torch.cat([y, y[2:3] + 1e-9])) is False
    assert exact(twice, torch.ones(7).double()) is None  # two labels would agree by chance
    assert exact(twice, torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]).double()) is None


@pytest.mark.parametrize("kind", KINDS)
def test_warpings_rise_and_are_undone(kind):
    y = torch.cat([torch.linspace(-3.0, 2.0, 40).double(), torch.tensor([-50.0]).double()])
    made = warp(kind, y)
    t = made(y)
    assert torch.equal(t.argsort(), y.argsort())
    assert float(t.std(correction=0)) == pytest.approx(1.0)
    assert torch.allclose(made.inverse(t), y, rtol=1e-6, atol=1e-6)
    middle = y.clone().requires_grad_()
    slope = torch.autograd.grad(made(middle).sum(), middle)[0].log()
    difference = made.log_slope(y) - slope
    assert torch.allclose(difference, difference[0].expand_as(y), atol=1e-8)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plain"])
def test_how_bad_the_worst_values_are_changes_little(kind):
    y = torch.linspace(-3.0, 2.0, 41).double()
    bad, worse = (torch.cat([y, torch.tensor([-x]).double()]) for x in (1e6, 1e30))
    assert torch.equal(warp(kind, bad)(bad), warp(kind, worse)(worse))


def test_the_unit_of_observations_decides_no_warping():
    y = torch.rand(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for made, large in zip(warps(y), warps(y * 2.0**60), strict=True):
        assert made.kind == large.kind
        torch.testing.assert_close(made(y), large(y * 2.0**60), rtol=1e-12, atol=1e-12)


def test_without_a_spread_only_the_plain_warping_is_left():
    for y in (torch.zeros(5), torch.full((5,), 3.0), torch.tensor([0.0, 1.0, 1.0, 1.0, 1.0])):
        kinds = [made.kind for made in warps(y.double())]
        assert kinds[0] == "plain"
        assert all(bool(torch.isfinite(made(y.double())).all()) for made in warps(y.double()))
    for value in (0.0, 1e13, 1e160):
        assert [made.kind for made in warps(torch.full((5,), value, dtype=torch.float64))] == ["plain"]


def test_values_near_the_largest_float_do_not_overflow():
    y = torch.tensor([1e308, -1e308, 0.0, 1e300], dtype=torch.float64)
    for made in warps(y):
        assert bool(torch.isfinite(made(y)).all())


def test_a_run_starts_with_the_whole_box_unless_there_are_many_inputs():
    assert first_region(3, dims=8) == Region(centre=3, length=WHOLE)
    assert first_region(3, dims=13) == Region(centre=3, length=AGAIN)


def told(region, best_old, best_new, *, n=10, q=4, dims=3, noise=0.0):
    rows = torch.arange(n + q)
    means = torch.full((n + q,), -1.0, dtype=torch.float64)
    means[3], means[n] = best_old, best_new
    own = rows >= region.start
    return moved(region, rows=rows, own=own, means=means, newest=n, total=n + q, dims=dims, noise=noise)


def test_a_region_grows_after_progress_and_follows_the_best_mean():
    region = Region(centre=3, length=0.4)
    for hits in range(1, HITS + 1):
        region = told(region, 0.0, 1.0)
        assert region.centre == 10
        assert region.hits == hits % HITS
    assert region.length == 0.8


def test_a_region_shrinks_after_d_evaluations_without_progress():
    region = told(Region(centre=3), 1.0, 0.0, dims=7)
    assert (region.length, region.misses) == (WHOLE, 4)
    region = told(region, 1.0, 0.0, dims=7)
    assert (region.length, region.misses, region.centre) == (WHOLE / 2, 0, 3)


def test_noise_is_no_progress():
    region = Region(centre=3)
    assert told(region, 0.0, 0.05, noise=1.0).hits == 0
    assert told(region, 0.0, 0.05, noise=0.1).hits == 1


def test_a_resolved_region_is_left_for_one_that_is_scouted():
    region = told(Region(centre=3, length=SHORTEST), 1.0, 0.0)
    assert region.scouting
    assert (region.start, region.restarts, region.length, region.ended) == (14, 1, AGAIN, (3,))
    rows, means = torch.arange(18), torch.zeros(18, dtype=torch.float64)
    means[3], means[15] = 1.0, 0.2
    after = moved(region, rows=rows, own=rows >= 14, means=means, newest=14, total=18, dims=3, noise=0.0)
    assert not after.scouting
    assert after.centre == 15  # the best of its own; the resolved one is better
    waiting = moved(region, rows=rows[:15], own=rows[:15] >= 14, means=means[:15], newest=14, total=15, dims=3, noise=0.0)
    assert waiting.scouting
    assert scouts(3) == 4


def test_scouting_goes_on_until_a_point_is_off_the_ended_hills_but_not_for_ever():
    region = Region(centre=3, start=14, scouting=True, ended=(3,), restarts=2, avoiding=True)
    for q, scouting in ((4, True), (LAST_SCOUT * scouts(3), False)):
        rows = torch.arange(14 + q)
        means = torch.linspace(1.0, 0.0, 14 + q, dtype=torch.float64)
        none = torch.zeros(14 + q, dtype=torch.bool)
        after = moved(region, rows=rows, own=none, means=means, newest=14, total=14 + q, dims=3, noise=0.0)
        assert after.scouting is scouting
    assert after.avoided == ()
    assert after.centre == 14


def test_evaluations_on_the_hill_of_an_ended_maximum_are_no_progress():
    region = Region(centre=12, length=0.4, start=10, ended=(3,), restarts=2, avoiding=True)
    rows, means = torch.arange(18), torch.zeros(18, dtype=torch.float64)
    means[3], means[12], means[15] = 3.0, 1.0, 2.0
    own = (rows >= 10) & (rows != 15)
    after = moved(region, rows=rows, own=own, means=means, newest=14, total=18, dims=3, noise=0.0)
    assert (after.centre, after.hits, after.length) == (12, 0, 0.2)


def test_only_a_surprised_region_is_followed_by_one_that_stays_off_the_hills_that_are_known():
    region = Region(centre=12, length=SHORTEST, start=10, ended=(3,), restarts=1)
    rows, means = torch.arange(18), torch.zeros(18, dtype=torch.float64)
    means[12] = 1.0
    end = partial(moved, region, rows=rows, own=rows >= 10, means=means, newest=14, total=18, dims=3, noise=0.0)
    assert (end(surprised=True, returned=True).avoided, end(surprised=True, returned=True).ended) == ((3,), (3,))
    assert (end(surprised=True).avoided, end().ended) == ((3, 12), (3, 12))
    assert end(returned=True).avoided == ()


def two_hills():
    """A posterior of two bumps along the first input, at 0.2 and 0.8, and the flat land between and beside them."""
    X = arms(80, 2)
    bump = lambda at: torch.exp(-0.5 * ((X - torch.tensor([at, 0.5])) / 0.12).square().sum(dim=-1))  # noqa: E731
    learned = replace(LEARNED, lengthscales=torch.full((2,), 0.15, dtype=torch.float64), noise=1e-4, mean=0.0)
    return local_posterior(X, 3.0 * bump(0.2) + 2.0 * bump(0.8), learned)


def test_a_point_is_on_a_hill_if_no_valley_is_between():
    gp, tops = two_hills(), torch.tensor([[0.2, 0.5]], dtype=torch.float64)
    U = torch.tensor([[0.2, 0.5], [0.25, 0.6], [0.12, 0.4], [0.8, 0.5], [0.75, 0.45]], dtype=torch.float64)
    assert on_hills(gp, U, tops).tolist() == [True, True, True, False, False]
    assert on_hills(gp, U, torch.cat([tops, U[3:4]])).all()
    assert on_hills(gp, U, tops[:0]).tolist() == [False] * 5
    assert on_hills(gp, U[:0], tops).shape == (0,)
    line = tops + torch.linspace(0.0, 1.0, 9, dtype=torch.float64).unsqueeze(-1) * (U[3] - tops)
    assert float(gp.mean(line).min()) < float(gp.mean(U[3:4])) - VALLEY  # the dense sight of that valley


def test_a_peak_higher_than_the_model_foresees_is_a_surprise():
    gp = two_hills()
    top = float(gp.mean(gp.support).max())
    cells, short = (1.0 / 0.15) ** 2, torch.full((2,), 0.15, dtype=torch.float64)
    for chance, surprised in ((SURPRISE / 2.0, True), (SURPRISE * 2.0, False)):
        sd = top / -NormalDist().inv_cdf(chance / cells)
        assert surprising(gp, replace(LEARNED, lengthscales=short, mean=0.0, scale=sd**2)) is surprised


def test_hills_are_refused_above_a_limit_alone():
    gp, tops = two_hills(), torch.tensor([[0.2, 0.5]], dtype=torch.float64)
    U = torch.tensor([[0.25, 0.5], [0.3, 0.9], [0.8, 0.5]], dtype=torch.float64)
    right = lambda V: V[:, 0] > 0.7  # noqa: E731
    assert but_hills(gp, tops, above=1.0, refuse=None)(U).tolist() == [True, False, False]
    assert but_hills(gp, tops, above=1.0, refuse=right)(U).tolist() == [True, False, True]
    assert but_hills(gp, tops, above=5.0, refuse=right)(U).tolist() == [False, False, True]
    assert but_hills(gp, tops[:0], above=1.0, refuse=right) is right


@pytest.mark.parametrize("scouting", [True, False])
def test_a_region_that_stays_off_hills_makes_no_pick_on_them(scouting, generator):
    mechanism = TrustRegion(initial_design=40, anywhere=0.0).on(Box(torch.tensor([[0.0, 0.0], [1.0, 1.0]])))
    bump = lambda X, at: torch.exp(-0.5 * ((X - torch.tensor([at, 0.5])) / 0.12).square().sum(dim=-1))  # noqa: E731
    top = torch.tensor([[0.25, 0.5]], dtype=torch.float64)  # beside the maximum: what is left to gain is on its hill
    X = torch.cat([arms(40, 2), top, top])
    state = mechanism.tell(mechanism.init(), X, 3.0 * bump(X, 0.2) + bump(X, 0.8), generator=generator)
    region = Region(centre=40, length=WHOLE, start=40, scouting=scouting, ended=(40,))
    picks = [
        mechanism.ask(
            replace(state, region=replace(region, avoiding=avoiding)), max_q=3, pending=X[:0], generator=generator
        ).picks
        for avoiding in (False, True)
    ]
    climbs, stays_off = (bool(((U - torch.tensor([0.2, 0.5])).norm(dim=-1) < 0.1).any()) for U in picks)
    assert climbs
    assert not stays_off


def short(ell, d=2):
    return replace(LEARNED, lengthscales=torch.full((d,), ell, dtype=torch.float64))


def test_a_cube_of_few_dimensions_with_more_places_than_evaluations_is_unresolved():
    few, most = search.FILLED_FROM, search.FILLED_DIMS
    assert search.unresolved(short(0.1), evaluated=99)
    assert not search.unresolved(short(0.1), evaluated=100)  # as many places
    assert not search.unresolved(short(0.1), evaluated=2 * few - 1)
    assert [search.unresolved(short(0.1, d), evaluated=few * d) for d in (most, most + 1)] == [True, False]
    # No input is longer than the cube.
    long = replace(LEARNED, lengthscales=torch.tensor([0.005, 40.0], dtype=torch.float64))
    assert search.unresolved(long, evaluated=199)


def test_the_emptiest_candidate_is_furthest_from_its_nearest_point():
    U, X = arms(50, 3), arms(9, 3, seed=1)
    expected = max(range(50), key=lambda i: float((X - U[i]).norm(dim=1).min()))
    assert torch.equal(search.emptiest(U, X), U[[expected]])
    assert torch.equal(search.emptiest(U[[4, 7, 4, 7]], X), U[[max((4, 7), key=lambda i: float((X - U[i]).norm(dim=1).min()))]])


def ripples(X):
    return torch.cos(90.0 * (X - 0.41).square().sum(dim=-1).sqrt())


@pytest.mark.parametrize("scouting", [True, False])
@pytest.mark.parametrize("goal", ["best", "cumulative"])
def test_picks_anywhere_fill_the_box_while_the_model_is_unresolved(goal, scouting, generator):
    """Each is further from all points before than nine of ten places are; where every evaluation counts not all are."""
    mechanism = TrustRegion(initial_design=40, anywhere=0.0 if scouting else 1.0, goal=goal).on(Box(unit_box(2)))
    X = torch.cat([arms(60, 2), arms(1, 2)])  # a repeated point: exact
    state = mechanism.tell(mechanism.init(), X, ripples(X), generator=generator)
    assert search.unresolved(state.fitted.learned, evaluated=len(X))
    state = replace(state, region=replace(state.region, scouting=scouting))
    picks = mechanism.ask(state, max_q=4, pending=X[:0], generator=generator).picks
    fill = []
    for i, pick in enumerate(picks):
        before = torch.cat([X, picks[:i]])
        empty = torch.cdist(arms(2_000, 2, seed=5), before).amin(dim=1).quantile(0.9)
        fill.append(float((before - pick).norm(dim=1).min()) > float(empty))
    assert all(fill) if goal == "best" else not all(fill)


def test_sides_follow_the_lengthscales_and_stay_in_the_cube():
    centre = torch.tensor([0.05, 0.5], dtype=torch.float64)
    lower, upper = Region(centre=0, length=0.2).sides(centre, torch.tensor([1.0, 4.0], dtype=torch.float64))
    assert (upper - lower).tolist() == pytest.approx([0.1, 0.4])
    lower, upper = Region(centre=0).sides(centre, torch.tensor([1e-3, 4.0], dtype=torch.float64))
    assert (lower.tolist(), upper.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_the_model_knows_the_highest_the_nearest_and_some_of_everywhere():
    X, y = arms(600, 2), waves(arms(600, 2))
    centre = torch.tensor([0.1, 0.9], dtype=torch.float64)
    rows = known_rows(X, y, centre=centre, lengthscales=None, most=200)
    assert len(rows) == len(set(rows.tolist())) == 200
    assert torch.isin(y.topk(HIGHEST).indices, rows).all()
    distance = (X - centre).norm(dim=-1)
    assert torch.isin(distance.argsort()[:100], rows).all()
    assert float(distance[rows].max()) > 0.9 * float(distance.max())
    assert torch.equal(known_rows(X[:50], y[:50], centre=centre, lengthscales=None, most=200), torch.arange(50))
