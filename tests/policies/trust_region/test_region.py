"""The parts of the trust-region policy: posterior, warpings, region, candidates and picks."""

import math
from dataclasses import replace

import pytest
import torch

from sparse_bo import maximize
from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.gp.learn import FAMILIES, PRIORS
from sparse_bo.journal import pack, unpack
from sparse_bo.policies import TrustRegion
from sparse_bo.policies.failures import failed
from sparse_bo.policies.persistence import freeze_fields
from sparse_bo.policies.trust_region.gain import CLIMBED, Improvement
from sparse_bo.policies.trust_region.observations import KINDS, replicates_of, unrepeated, warp, warps
from sparse_bo.policies.trust_region.region import Region
from sparse_bo.policies.trust_region.search import Corners, batch_of, candidates_of, points_along, points_around
from sparse_bo.policies.trust_region.surrogate import (
    HIGHEST,
    LearningData,
    fitted_region,
    known_rows,
    local_posterior,
    thaw_region,
)
from tests.builders import arms, waves
from tests.oracles import exact_gp, rbf

SETTINGS = TrustRegion()
LEARNED = Hyperparameters("rbf", torch.full((2,), 0.4, dtype=torch.float64), 0.05, 0.3, 2.0, 0.0)


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
    assert torch.allclose(gp.covariance(A), expected.covariance)


def test_candidates_after_a_pick_are_those_of_the_conditioned_posterior(generator):
    _, _, gp = posterior()
    U, u = arms(40, 2, seed=5), arms(1, 2, seed=6)
    bounds = Corners(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    pool = candidates_of(gp, U, bounds, gain=Improvement(-5.0)).after(gp, u, gp.moments(u))
    assert torch.allclose(pool.moments.variance, gp.condition(u).moments(U).variance)
    assert pool.gain.best == pytest.approx(float(gp.mean(u)))


def test_a_pick_is_a_local_maximum_and_no_candidate_is_better():
    _, _, gp = posterior()
    bounds = Corners(torch.tensor([0.1, 0.2]).double(), torch.tensor([0.9, 0.7]).double())
    pool = candidates_of(gp, bounds.lower + bounds.span * arms(200, 2, seed=5), bounds, gain=Improvement(0.5))
    u = pool.pick(gp)
    score = lambda V: pool.gain(*gp.moments(V)[:2]).value  # noqa: E731
    assert float(score(u)) >= float(score(pool.U).max()) - 1e-9
    assert bool(((u >= bounds.lower) & (u <= bounds.upper)).all())
    near = (u + 1e-3 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).double()).clamp(
        bounds.lower, bounds.upper
    )
    assert float(score(near).max()) <= float(score(u)) + 1e-4


def test_the_first_picks_of_a_batch_climb_and_later_ones_are_the_best_candidates(generator):
    _, _, gp = posterior()
    bounds = Corners(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    pool = candidates_of(gp, arms(200, 2, seed=5), bounds, gain=Improvement(-0.5))
    picks = batch_of(gp, [pool], 9, exploration=0.0, generator=generator)
    is_candidate = (picks.unsqueeze(1) == pool.U).all(dim=-1).any(dim=-1)
    assert is_candidate.tolist() == [False] * CLIMBED + [True] * (9 - CLIMBED)
    given = gp.condition(picks[:-1])
    pool = candidates_of(given, pool.U, bounds, gain=Improvement(max(-0.5, float(gp.mean(picks[:-1]).max()))))
    assert torch.equal(picks[-1], pool.U[pool.scores.argmax()])


def test_refused_points_are_neither_candidates_nor_picks():
    _, _, gp = posterior()
    bounds = Corners(torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    unrefused = candidates_of(gp, arms(200, 2, seed=5), bounds, gain=Improvement(0.5)).pick(gp)
    refuse = lambda V: (V - unrefused).norm(dim=-1) < 0.2  # noqa: E731
    pool = candidates_of(gp, arms(200, 2, seed=5), bounds, gain=Improvement(0.5), refuse=refuse)
    assert not bool(refuse(pool.U).any())
    assert not bool(refuse(pool.pick(gp)).any())


def test_climbs_move_the_inputs_that_their_candidate_shares_with_the_centre(generator):
    X = arms(30, 60)
    learned = replace(LEARNED, lengthscales=torch.full((60,), 4.0, dtype=torch.float64))
    gp, centre = local_posterior(X, waves(X), learned), X[3]
    bounds = Corners((centre - 0.2).clamp(0, 1), (centre + 0.2).clamp(0, 1))
    U = points_around(centre, bounds, SETTINGS, groups=torch.arange(60), generator=generator)[: SETTINGS.candidates]
    u = candidates_of(gp, U, bounds, gain=Improvement(0.5)).pick(gp)
    assert int((centre != U).sum(dim=-1).amax()) < 20 < int((u != centre).sum())


@pytest.mark.parametrize("dims", [2, 60])
def test_candidates_lie_in_the_region_and_change_few_coordinates_of_the_centre(dims, generator):
    centre = torch.full((dims,), 0.9, dtype=torch.float64)
    bounds = Corners((centre - 0.2).clamp(0, 1), (centre + 0.2).clamp(0, 1))
    U = points_around(centre, bounds, SETTINGS, groups=torch.arange(dims), generator=generator)
    assert bool(((bounds.lower <= U) & (bounds.upper >= U)).all())
    changed = (U[: SETTINGS.candidates] != centre).sum(dim=-1)
    assert int(changed.min()) >= 1
    if dims > SETTINGS.many_inputs:
        assert float(changed.double().mean()) == pytest.approx(5.0 + 1.0 - 5.0 / dims, rel=0.05)


def test_replicates_show_whether_an_objective_is_exact():
    X = arms(6, 2)
    y, twice = torch.arange(6).double(), torch.cat([X, X[2:3]])
    assert replicates_of(X, y).exact is None
    assert replicates_of(twice, torch.cat([y, y[2:3]])).exact is True
    assert replicates_of(twice, torch.cat([y, y[2:3] + 1e-6])).exact is False
    assert replicates_of(twice, torch.cat([y, y[2:3] + 1e-9])).exact is True  # as programs round
    far = 1e12 + y  # where the last digit is 1e-4
    assert replicates_of(twice, torch.cat([far, far[2:3] + 1e-4])).exact is True
    assert replicates_of(twice, torch.cat([far, far[2:3] + 0.01])).exact is False
    huge = 1.7e308 * torch.cat([y / 2.5 - 1.0, y[2:3] / 2.5 - 1.0 + 0.1])
    assert replicates_of(twice, huge).exact is False
    assert replicates_of(twice, torch.ones(7).double()).exact is None  # two labels would agree by chance
    assert replicates_of(twice, torch.tensor([0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0]).double()).exact is None


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


def ripples(X):
    return torch.cos(90.0 * (X - 0.41).square().sum(dim=-1).sqrt())


def moved(region, best_old, best_new, *, n=10, q=4, inputs=3, noise=0.0, settings=SETTINGS):
    """The region after a batch of ``q``; row 3 has the best mean before it, row ``n`` the best of the batch."""
    rows = torch.arange(n + q)
    means = torch.full((n + q,), -1.0, dtype=torch.float64)
    means[3], means[n] = best_old, best_new
    return region.after(settings, rows=rows, means=means, newest=n, total=n + q, inputs=inputs, noise=noise)


def test_a_region_grows_after_progress_and_follows_the_best_mean():
    region = Region(centre=3, length=0.4)
    for successes in (1, 2, 0):
        region = moved(region, 0.0, 1.0)
        assert (region.centre, region.successes) == (10, successes)
    assert region.length == 0.8
    assert moved(Region(centre=3, length=1.6, successes=2), 0.0, 1.0).length == 1.6  # the longest


@pytest.mark.parametrize(("inputs", "batches"), [(3, 1), (7, 2)])
def test_a_region_shrinks_after_d_evaluations_without_progress(inputs, batches):
    region = Region(centre=3, length=0.8)
    for batch in range(batches):
        assert (region.length, region.failures) == (0.8, 4 * batch)
        region = moved(region, 1.0, 0.0, inputs=inputs)
    assert (region.length, region.failures, region.centre) == (0.4, 0, 3)


def test_progress_ends_a_series_of_failures():
    assert moved(Region(centre=3, length=0.8, failures=3), 0.0, 1.0).failures == 0


def test_noise_is_no_progress():
    region = Region(centre=3, length=0.8)
    assert moved(region, 0.0, 0.05, noise=1.0).successes == 0
    assert moved(region, 0.0, 0.05, noise=0.1).successes == 1


def test_the_settings_say_when_a_length_changes():
    quick = TrustRegion(patience=1, first_length=0.5, shortest_length=0.3)
    assert moved(Region(centre=3, length=0.4), 0.0, 1.0, settings=quick).length == 0.8
    assert moved(Region(centre=3, length=1.0), 0.0, 1.0, settings=quick).length == 1.0
    assert moved(Region(centre=3, length=0.5), 1.0, 0.0, settings=quick).length == 0.5  # the restart's
    assert moved(Region(centre=3, length=0.5), 1.0, 0.0, settings=quick).start == 14


def test_a_short_region_gives_way_to_one_around_the_best_of_a_restart_design():
    region = moved(Region(centre=3, length=2.0**-7), 1.0, 0.0)
    assert region == Region(centre=3, length=0.8, start=14, kind="design")
    rows, means = torch.arange(18), torch.zeros(18, dtype=torch.float64)
    means[3], means[15] = 1.0, 0.2
    known = {"rows": rows, "means": means, "newest": 14, "total": 18, "inputs": 3, "noise": 0.0}
    after = region.after(SETTINGS, **known)
    assert after == Region(centre=15, length=0.8, start=14)  # row 3 is better, and of the region before
    assert region.after(SETTINGS, **known | {"rows": rows[:17], "means": means[:17]}) == region
    U = torch.rand(18, 2, generator=torch.Generator().manual_seed(0)).double()
    U[15] = U[3] + 0.01  # asked for before the restart
    late = region.late(U, U[3], torch.ones(2, dtype=torch.float64), SETTINGS)
    assert late.nonzero().squeeze(-1).tolist() == [3, 15]
    assert region.after(SETTINGS, **known, late=late) == region
    assert not after.late(U, U[3], torch.ones(2, dtype=torch.float64), SETTINGS).any()


def test_a_local_region_follows_one_that_ends_around_the_best_point():
    rows, means = torch.arange(14), torch.zeros(14, dtype=torch.float64)
    means[6] = 1.0
    known = {"rows": rows, "means": means, "newest": 10, "total": 14, "inputs": 3, "noise": 0.0}
    ends = Region(centre=6, length=2.0**-7, start=5)
    local = Region(centre=6, length=2.0**-4, kind="local")
    assert ends.after(SETTINGS, **known, may_be_local=True) == local
    elsewhere = Region(centre=6, length=0.8, start=14, kind="design")
    assert ends.after(SETTINGS, **known) == elsewhere
    assert Region(centre=8, length=2.0**-7, start=7).after(SETTINGS, **known, may_be_local=True) == replace(
        elsewhere, centre=8
    )  # a worse one
    smaller = local.after(SETTINGS, **known, may_be_local=True)
    assert (smaller.centre, smaller.length, smaller.local) == (6, 2.0**-5, True)
    short = Region(centre=6, length=2.0**-14, kind="local")
    assert short.after(SETTINGS, **known, may_be_local=True) == elsewhere
    known |= {"rows": rows[:10], "means": means[:10]}  # no new point near it
    assert local.after(SETTINGS, **known, may_be_local=True) == elsewhere


def test_late_results_away_from_a_local_region_do_not_end_it_at_once():
    rows, means = torch.arange(10), torch.zeros(10, dtype=torch.float64)
    means[6] = 1.0
    known = {"rows": rows, "means": means, "inputs": 3, "noise": 0.0, "may_be_local": True}
    local = Region(centre=6, length=2.0**-4, kind="local")
    late = local.after(SETTINGS, **known, newest=11, total=13)
    assert late == Region(centre=6, length=2.0**-4, failures=2, kind="local")
    assert not late.after(SETTINGS, **known, newest=13, total=15).local  # four of them


def test_evaluations_before_the_region_are_no_progress():
    region = Region(centre=12, length=0.4, start=11)
    rows, means = torch.arange(18), torch.zeros(18, dtype=torch.float64)
    means[3], means[12], means[15] = 3.0, 1.0, 2.0
    after = region.after(SETTINGS, rows=rows, means=means, newest=14, total=18, inputs=3, noise=0.0)
    assert (after.centre, after.successes) == (15, 1)


def test_sides_follow_the_lengthscales_and_stay_in_the_cube():
    centre = torch.tensor([0.05, 0.5], dtype=torch.float64)
    lower, upper = Region(centre=0, length=0.2).corners(centre, torch.tensor([1.0, 4.0], dtype=torch.float64))
    assert (upper - lower).tolist() == pytest.approx([0.1, 0.4])
    lower, upper = Region(centre=0, length=0.2).corners(centre, torch.tensor([1e-9, 1e9], dtype=torch.float64))
    assert (upper - lower).tolist() == pytest.approx([0.02, 1.0])  # a tenth, and ten times but for the faces


def test_the_model_knows_the_highest_the_nearest_and_some_of_everywhere():
    X, y = arms(600, 2), waves(arms(600, 2))
    centre = torch.tensor([0.1, 0.9], dtype=torch.float64)
    rows = known_rows(X, y, centre=centre, learned=None, most=200)
    assert len(rows) == len(set(rows.tolist())) == 200
    assert torch.isin(y.topk(HIGHEST).indices, rows).all()
    distance = (X - centre).norm(dim=-1)
    assert torch.isin(distance.argsort()[:100], rows).all()
    assert float(distance[rows].max()) > 0.9 * float(distance.max())
    assert torch.isin(torch.arange(575, 600), rows).all()  # the newest, else they would be evaluated again
    assert torch.equal(known_rows(X[:50], y[:50], centre=centre, learned=None, most=200), torch.arange(50))
    near = known_rows(X, y, centre=centre, learned=None, most=200, local=True)
    assert torch.equal(near, distance.argsort()[:200].sort().values)


def ridge(X, *, slope):
    """A narrow valley along ``x2 = slope · x1``, steep across."""
    along, across = X[:, 0] + slope * X[:, 1], X[:, 1] - slope * X[:, 0]
    return -(along - 0.6).square() - 1e3 * (across - 0.1).square() - (X[:, 2:] - 0.5).square().sum(dim=-1)


@pytest.mark.parametrize(("slope", "rotated"), [(0.7, True), (0.0, False)])
def test_lengthscales_are_along_other_directions_where_the_evidence_pays_for_their_angles(slope, rotated):
    X = arms(60, 3)
    y = ridge(X, slope=slope)
    seen = replicates_of(X, y)
    fitted = fitted_region(X, seen, centre=X[0], before=None, since=0, most=400)
    assert fitted.learned.rotated is rotated
    if rotated:
        data = LearningData(X, seen.values, seen.rows, seen)
        inputs = data.learned(fitted.warp, FAMILIES, PRIORS)
        assert fitted.learned.evidence > inputs.evidence + 1.5 * math.log(60)  # three angles
        steepest = fitted.learned.axes[:, fitted.learned.lengthscales.argmin()].abs()
        assert torch.allclose(steepest, torch.tensor([0.7, 1.0, 0.0], dtype=torch.float64) / math.sqrt(1.49), atol=0.05)
        more = torch.cat([X, arms(3, 3, seed=9)])
        again = replicates_of(more, ridge(more, slope=slope))
        after = fitted_region(more, again, centre=X[0], before=fitted, since=60, most=400)
        assert torch.equal(after.learned.axes, fitted.learned.axes)  # until the data has grown by a fourth


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_other_directions_only_fit_by_chance_lengthscales_stay_along_the_inputs(seed):
    X = arms(20, 4, seed=seed)
    y = torch.sin(4.0 * X[:, :3] + 1.0).prod(dim=1) + 0.3 * X[:, 3] * X[:, 0]
    fitted = fitted_region(X, replicates_of(X, y), centre=X[0], before=None, since=0, most=400)
    assert not fitted.learned.rotated


def test_a_rotated_model_is_thawed_as_it_was():
    X = arms(60, 3)
    seen = replicates_of(X, ridge(X, slope=0.7))
    fitted = fitted_region(X, seen, centre=X[0], before=None, since=0, most=400)
    assert fitted.learned.rotated
    back, A = thaw_region(unpack(pack(freeze_fields(fitted))), X, seen), arms(9, 3, seed=1)
    assert torch.equal(back.gp.moments(A).variance, fitted.gp.moments(A).variance)
    assert fitted.learned.axes.is_contiguous()  # as it comes back: products of other strides round differently


def test_logarithms_bend_at_three_depths():
    """Among points that crowd around the best one, a deeper one bends where the objective does."""
    X = arms(80, 2)
    X[20:] = 0.5 + 0.2 * (X[20:] - 0.5)
    y = -torch.expm1(20.0 * (X - 0.5).square().sum(dim=-1))  # log(1 - y) is a parabola
    widths = {made.kind: made.width for made in warps(y)}
    assert widths["deep log"] == pytest.approx(10.0 * widths["log"])
    assert widths["deepest log"] == pytest.approx(100.0 * widths["log"])
    fitted = fitted_region(X, replicates_of(X, y), centre=X[20], before=None, since=0, most=400)
    assert fitted.warp.kind in ("deep log", "deepest log")
    assert 0.1 < fitted.warp.width < 10.0


def test_candidates_along_other_directions_lie_in_their_box(generator):
    centre, half = torch.full((3,), 0.5, dtype=torch.float64), torch.tensor([0.3, 0.02, 0.1], dtype=torch.float64)
    axes = torch.linalg.qr(arms(3, 3, seed=5)).Q
    U = points_along(centre, half, axes, SETTINGS, generator=generator)
    steps = ((U - centre) @ axes / half).abs()
    assert U.shape == (1_000, 3)
    assert float(steps[:800].amax()) <= 1.0 + 1e-12
    assert bool((steps[:800].amax(dim=0) > 0.99).all())
    assert bool((steps[800:].square().mean(dim=0).sqrt() < 0.6).all())


@pytest.mark.slow
def test_a_valley_across_the_inputs_is_followed_to_its_end():
    """With lengthscales along the inputs 5e-8 are left after 80 evaluations."""
    bounds = torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64)
    found = maximize(lambda X: ridge(X, slope=0.7), bounds=bounds, budget=60, seed=0)
    assert float(found.best_mean) > -1e-8


@pytest.mark.parametrize("penalty", [-1e9, -1e20, -1e300])
def test_a_penalty_of_any_size_hides_no_noise(penalty):
    X = arms(6, 2)
    y = torch.tensor([0.1, 0.2, 0.3, 0.4, penalty, 0.5], dtype=torch.float64)
    again, all_X = torch.cat([y, y[:1] + 0.2]), torch.cat([X, X[:1]])
    assert replicates_of(all_X, again).exact is False
    assert replicates_of(all_X, torch.cat([y, y[:1]])).exact is True


def test_a_replicate_that_failed_is_not_asked_for_at_the_next_best_point():
    X, y = arms(6, 2), waves(arms(6, 2))
    best = X[y.argmax()].unsqueeze(0)
    elsewhere, there = failed(None, X[:1] + 0.1, pulls=6), failed(None, X[2:3], pulls=6)
    assert torch.equal(unrepeated(X, y, X[:0], failures=None), best)
    assert torch.equal(unrepeated(X, y, X[:0], failures=elsewhere), best)
    assert not len(unrepeated(X, y, X[:0], failures=there))


def test_a_high_value_of_one_evaluation_hides_no_noise_and_a_peak_that_is_repeated_does():
    X = arms(6, 2)
    y = torch.tensor([0.1, 0.2, 0.3, 0.4, 1e12, 0.5], dtype=torch.float64)
    assert replicates_of(torch.cat([X, X[:1]]), torch.cat([y, y[:1] + 0.2])).exact is False
    assert replicates_of(torch.cat([X, X[4:5]]), torch.cat([y, y[4:5] + 1.0])).exact is True  # rounding of 10¹²


def test_a_precise_result_is_recommended_before_lucky_ones_of_much_noise():
    X = arms(60, 2)
    truth = -4.0 * (X - torch.tensor([0.3, 0.6])).square().sum(dim=-1)
    sd = torch.tensor([0.01, 3.0], dtype=torch.float64).repeat(30)
    y = truth + sd * torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    seen = replicates_of(X, y, sd)
    fitted = fitted_region(X, seen, centre=X[0], before=None, since=0, most=200)
    row, median, _ = fitted.recommended(X, seen)
    assert float(truth[row]) > -0.04
    assert median == pytest.approx(float(truth[row]), abs=0.05)
