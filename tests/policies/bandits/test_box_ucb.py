"""Upper-confidence policies on a box: their rounds against dense algebra, and through AskTell and maximize."""

import math

import pytest
import torch

from sparse_bo import BBKB, BKB, GPBUCB, GPUCB, AskTell, maximize
from sparse_bo.dictionary import UniformSampler
from sparse_bo.domains.base import Box
from sparse_bo.policies import Wait
from tests.builders import rbf_kernel
from tests.oracles import exact_gp, rbf

BOUNDS = torch.tensor([[-1.0], [3.0]], dtype=torch.float64)
BOX = Box(BOUNDS)
FINE = torch.linspace(-1.0, 3.0, 401, dtype=torch.float64).unsqueeze(-1)
LENGTHSCALE, SCALE, NOISE = 0.5, 2.0, 0.1
NOTHING = BOUNDS[:0]


GIVEN = {"covar_module": rbf_kernel(LENGTHSCALE, scale=SCALE, ard_num_dims=1), "regularization": NOISE, "prior_mean": 0.3}


def objective(X):
    return torch.sin(3.0 * X[:, 0]) + 0.3 * X[:, 0]


def observations(n=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    X = BOX.uniform(n, generator=g)
    return X, objective(X) + 0.1 * torch.randn(n, generator=g, dtype=torch.float64)


def told(policy, n=12, *, seed=0):
    mechanism, generator = policy.on(BOX), torch.Generator().manual_seed(seed)
    return mechanism.tell(mechanism.init(), *observations(n), generator=generator)


def dense(X, y, A):
    k = lambda P, Q: rbf(P, Q, lengthscale=LENGTHSCALE, scale=SCALE)  # noqa: E731
    return exact_gp(k(X, X), k(X, A), k(A, A), y, noise=NOISE, prior_mean=0.3)


def test_the_exact_policies_have_the_exact_posterior_of_the_given_prior():
    X, y = observations()
    expected = dense(X, y, FINE)
    for policy in (GPUCB(**GIVEN), GPBUCB(**GIVEN)):
        state = told(policy)
        posterior = state.model.posterior(FINE)
        assert torch.allclose(posterior.mean.squeeze(-1), expected.mean, atol=1e-9)
        assert torch.allclose(posterior.variance.squeeze(-1), expected.variance, atol=1e-9)
        assert state.fitted.effective_dimension == pytest.approx(float(dense(X, y, X).variance.sum()) / NOISE)
        assert state.width == pytest.approx(2.0 * math.sqrt(NOISE))


def test_gp_ucb_picks_the_densely_computed_maximum():
    X, y = observations()
    policy = GPUCB(**GIVEN, width=3.0)
    proposal = policy.on(BOX).ask(told(policy), max_q=100, pending=NOTHING, generator=torch.Generator())
    reference = dense(X, y, torch.cat([proposal.picks, FINE]))
    scores = reference.mean + 3.0 * reference.variance.sqrt()
    assert proposal.picks.shape == (1, 1)
    assert float(scores[0]) >= float(scores[1:].max()) - 1e-6


def test_gp_bucb_batches_follow_the_product_rule():
    X, y = observations()
    policy = GPBUCB(**GIVEN, ratio_threshold=6.0)
    picks = policy.on(BOX).ask(told(policy), max_q=100, pending=NOTHING, generator=torch.Generator()).picks
    leverages = dense(X, y, picks).variance / NOISE
    products = (1.0 + leverages).cumprod(0)
    assert len(picks) > 2
    assert bool((products[:-1] <= 6.0).all())
    assert float(products[-1]) > 6.0


def test_bbkb_with_everything_in_the_dictionary_is_gp_bucb():
    everything = BBKB(**GIVEN, oversampling=1e9, in_batch="process", stop_rule="gp-bucb", ratio_threshold=6.0)
    exact = GPBUCB(**GIVEN, ratio_threshold=6.0)
    batches = [
        p.on(BOX).ask(told(p), max_q=100, pending=NOTHING, generator=torch.Generator()).picks for p in (everything, exact)
    ]
    assert torch.equal(*batches)


def test_bbkb_with_threshold_one_is_bkb():
    runs = [
        maximize(objective, bounds=BOUNDS, policy=policy, budget=8, seed=3)
        for policy in (BBKB(**GIVEN, ratio_threshold=1.0), BKB(**GIVEN))
    ]
    points = [[row.points for row in run.history.rows] for run in runs]
    assert points[0] == points[1]
    assert all(len(row) == 1 for row in points[0])


def test_the_dictionary_is_drawn_by_the_leverages_before_the_newest_batch():
    """Points whose leverage times oversampling is above one are always kept; the newest data has no say."""
    policy = BBKB(**GIVEN, oversampling=2.0)
    state = told(policy, 40)
    X, y = torch.tensor([[2.9], [2.9], [0.5]], dtype=torch.float64), torch.tensor([0.0, 0.1, 0.2], dtype=torch.float64)
    before = state.model.posterior(torch.cat([state.X, X]).unsqueeze(-2)).variance.flatten() / NOISE
    distinct = torch.unique(torch.cat([state.X, X]), dim=0)
    certain = torch.cat([state.X, X])[before * 2.0 >= 1.0]
    assert 0 < len(certain) < len(distinct)
    sizes = set()
    for seed in range(5):
        after = policy.on(BOX).tell(state, X, y, generator=torch.Generator().manual_seed(seed))
        rows = after.dictionary.indices
        assert torch.equal(after.X[rows], after.dictionary.points)
        for point in certain:
            assert bool((after.dictionary.points == point).all(dim=-1).any())
        sizes.add(after.dictionary.m)
    assert max(sizes) < len(distinct)


def test_pending_points_count_and_keep_their_effect():
    policy = GPBUCB(**GIVEN, ratio_threshold=6.0)
    state, generator = told(policy), torch.Generator()
    picks = policy.on(BOX).ask(state, max_q=100, pending=NOTHING, generator=generator).picks
    rest = policy.on(BOX).ask(state, max_q=100, pending=picks[:1], generator=generator)
    X, y = observations()
    products = (1.0 + dense(X, y, torch.cat([picks[:1], rest.picks])).variance / NOISE).cumprod(0)
    assert bool((products[:-1] <= 6.0).all())
    full = policy.on(BOX).ask(state, max_q=100, pending=picks, generator=generator)
    assert isinstance(full, Wait)
    costs = (1.0 + dense(X, y, picks).variance / NOISE).log()
    left = [float(costs[k:].sum()) for k in range(len(picks) + 1)]
    assert full.needed == next(k for k, cost in enumerate(left) if cost <= math.log(6.0))


def test_largest_batch_and_design_count_pending_points_too():
    policy = GPBUCB(**GIVEN, ratio_threshold=1e9, max_batch_size=3)
    state, generator = told(policy), torch.Generator()
    assert len(policy.on(BOX).ask(state, max_q=100, pending=NOTHING, generator=generator).picks) == 3
    full = policy.on(BOX).ask(state, max_q=100, pending=FINE[:3], generator=generator)
    assert full == Wait(1)
    design = GPBUCB(initial_design=5)
    empty = design.on(BOX).init()
    assert len(design.on(BOX).ask(empty, max_q=100, pending=NOTHING, generator=generator).picks) == 5
    assert len(design.on(BOX).ask(empty, max_q=100, pending=FINE[:3], generator=generator).picks) == 2
    waiting = design.on(BOX).ask(empty, max_q=100, pending=FINE[:5], generator=generator)
    assert waiting == Wait(5)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [BBKB(ratio_threshold=4.0), BKB(), GPUCB(), GPBUCB(ratio_threshold=4.0)])
def test_a_learned_run_finds_the_maximum(policy):
    result = maximize(objective, bounds=BOUNDS, policy=policy, budget=24, seed=1)
    best = float(objective(FINE).max())
    assert float(objective(result.best_x.unsqueeze(0))) > best - 0.05
    assert result.history.rows[-1].dictionary_size >= 1
    assert result.history.rows[-1].effective_dimension > 0.0
    assert result.history.rows[-1].width > 0.0


@pytest.mark.parametrize("width", ["theory", "authors"])
@pytest.mark.parametrize("kind", [BBKB, BKB])
def test_named_widths_work_on_a_box(kind, width):
    policy = kind(**GIVEN, width=width, rkhs_norm=2.0)
    state = told(policy)
    assert state.width > math.sqrt(NOISE) * 2.0
    assert len(policy.on(BOX).ask(state, max_q=1, pending=NOTHING, generator=torch.Generator()).picks) == 1


def test_same_seed_same_run_and_the_global_generator_stays():
    runs = []
    for noise in (0, 1):
        torch.manual_seed(noise)
        state = torch.random.get_rng_state()
        runs.append(maximize(objective, bounds=BOUNDS, policy=BBKB(ratio_threshold=4.0), budget=16, seed=5))
        assert torch.equal(torch.random.get_rng_state(), state)
    assert [row.points for row in runs[0].history.rows] == [row.points for row in runs[1].history.rows]


def test_asynchronous_results_in_any_order():
    loop = AskTell(bounds=BOUNDS, policy=BBKB(**GIVEN, ratio_threshold=4.0, initial_design=4), seed=0)
    first = loop.ask()
    assert len(first) == 4
    loop.tell(list(reversed(first.tickets)), objective(first.X.flip(0)))
    second = loop.ask()
    loop.tell(second.tickets[:1], objective(second.X[:1]))
    loop.fail(second.tickets[1:])
    third = loop.ask()
    assert len(third) >= 1
    assert loop.state.pulls == 5


def test_many_observations_at_the_start_begin_from_a_uniform_dictionary():
    X, y = observations(600)
    mechanism = BBKB(**GIVEN).on(BOX)
    state = mechanism.tell(mechanism.init(), X, y, generator=torch.Generator().manual_seed(0))
    assert 1 <= state.dictionary.m < 200
    expected = dense(X, y, FINE)
    assert float((state.model.posterior(FINE).mean.squeeze(-1) - expected.mean).abs().max()) < 0.1


def test_learning_again_when_inputs_have_grown_by_half():
    policy = BBKB(initial_design=8)
    state = told(policy, 8)
    assert state.fitted.pulls_at_learning == 8
    same = policy.on(BOX).tell(state, *observations(3, seed=1), generator=torch.Generator().manual_seed(0))
    assert same.fitted.pulls_at_learning == 8
    assert same.fitted.prior is state.fitted.prior
    again = policy.on(BOX).tell(state, *observations(4, seed=1), generator=torch.Generator().manual_seed(0))
    assert again.fitted.pulls_at_learning == 12
    assert again.fitted.prior is not state.fitted.prior


def test_another_sampler():
    state = told(BBKB(**GIVEN, dictionary=UniformSampler(size=5)))
    assert state.dictionary.m == 5


def test_float32_bounds_are_computed_with_in_float64():
    loop = AskTell(bounds=BOUNDS.float(), policy=BKB(**GIVEN, initial_design=3), seed=0)
    for _ in range(3):
        batch = loop.ask()
        assert batch.X.dtype == torch.float32
        loop.tell(batch.tickets, objective(batch.X))
    assert loop.state.X.dtype == torch.float64


@pytest.mark.parametrize(
    ("policy", "match"),
    [
        (BBKB(stop_rule="local"), "on a box use stop_rule='global'"),
        (BBKB(sweep_dtype=torch.float32), "sweep_dtype=torch.float64 on a box"),
        (BBKB(covar_module=rbf_kernel(LENGTHSCALE, scale=SCALE, ard_num_dims=3)), "ard_num_dims"),
    ],
)
def test_what_does_not_work_on_a_box_is_refused(policy, match):
    with pytest.raises(ValueError, match=match):
        AskTell(bounds=BOUNDS, policy=policy)


@pytest.mark.parametrize("policy", [BBKB(ratio_threshold=4.0), BBKB(**GIVEN, ratio_threshold=4.0), GPBUCB(**GIVEN)])
def test_a_frozen_state_thaws_to_the_same_picks(policy):
    mechanism = policy.on(BOX)
    for state in (mechanism.init(), told(policy)):
        again = mechanism.thaw(mechanism.freeze(state))
        picks, same = (
            mechanism.ask(s, max_q=4, pending=NOTHING, generator=torch.Generator().manual_seed(2)).picks for s in (state, again)
        )
        assert torch.allclose(picks, same, atol=1e-6)
        data = observations(4, seed=9)
        after, replay = (mechanism.tell(s, *data, generator=torch.Generator().manual_seed(4)) for s in (state, again))
        assert (after.fitted is None) == (replay.fitted is None)
        if after.fitted is not None:
            assert after.fitted.pulls_at_learning == replay.fitted.pulls_at_learning
            assert after.fitted.information == pytest.approx(replay.fitted.information)
            assert torch.equal(after.dictionary.points, replay.dictionary.points)
