"""On a box, every pick is the maximum of the densely recomputed score up to the searches' tolerance, and honours all limits."""

import math

import pytest
import torch
from botorch.acquisition import qUpperConfidenceBound
from botorch.generation import gen
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_bo import SparseGP, optimize_batch
from tests.acquisition.dense import BOUNDS, OPTIONS, Ordinary, build, data, dense, grid

SIDE = 31
SUM = (torch.tensor([0, 1]), torch.tensor([1.0, 1.0], dtype=torch.float64))
NEGATIVE_SUM = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0], dtype=torch.float64))


def check_batch(model, X, values, *, width, pending=None, allowed=None, tolerance=1e-5, **oracle):
    """Each value is the dense score of its point given the points before it, and no grid point is better."""
    fine = grid(SIDE)
    fine = fine if allowed is None else fine[allowed(fine)]
    before = [] if pending is None else [pending]
    A = torch.cat([*before, X, fine])
    reference = dense(model, A, **oracle)
    picks = list(range(len(A) - len(fine) - len(X)))
    for row in range(len(picks), len(picks) + len(X)):
        scores = reference.mean + width * reference.after(picks).clamp_min(0.0).sqrt()
        value = float(values[row - len(A) + len(fine) + len(X)])
        assert value == pytest.approx(float(scores[row]), abs=1e-7)
        assert value >= float(scores[-len(fine) :].max()) - tolerance
        picks.append(row)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [SparseGP, SingleTaskGP, Ordinary])
@pytest.mark.parametrize("width", [2.0, 30.0])
def test_batch_of_an_exact_model_is_exact_gp_bucb(kind, width):
    model = build(kind)
    X, values = optimize_batch(model, BOUNDS, ratio_threshold=math.inf, max_q=4, beta=width**2)
    assert X.shape == (4, 2)
    check_batch(model, X, values, width=width)


def test_beside_a_scipy_that_botorch_does_not_know_the_search_is_as_good(monkeypatch):
    monkeypatch.delattr(gen, "fmin_l_bfgs_b_batched", raising=False)  # BoTorch imports it for the versions that it knows
    monkeypatch.setattr(gen, "check_scipy_version_at_least", lambda minor: True)
    model = build(SparseGP)
    options = {"pgtol": 1e-6, "factr": None}  # names that SciPy's own search warns of, and warnings are errors here
    X, values = optimize_batch(model, BOUNDS, ratio_threshold=math.inf, max_q=3, beta=900.0, options=options)
    check_batch(model, X, values, width=30.0)


@pytest.mark.parametrize("name", OPTIONS)
def test_transforms_noise_and_kernels(name):
    model = build(SparseGP, name)
    X, values = optimize_batch(model, BOUNDS, ratio_threshold=math.inf, max_q=4, beta=900.0)
    check_batch(model, X, values, width=30.0)


@pytest.mark.parametrize("in_batch", ["process", "fixed"])
def test_sparse_model_follows_its_in_batch_update(in_batch):
    rows = torch.arange(0, 30, 4)
    model = build(SparseGP, dictionary=rows)
    X, values = optimize_batch(model, BOUNDS, in_batch=in_batch, ratio_threshold=math.inf, max_q=5, beta=100.0)
    check_batch(model, X, values, width=10.0, dictionary=rows, in_batch=in_batch)


@pytest.mark.parametrize("sampled", [False, True])
def test_a_least_q_goes_beyond_the_ratio_with_the_picks_of_a_larger_one(sampled):
    model = build(SparseGP)
    short = {"num_restarts": 2, "raw_samples": 32}
    how = {"acq_function": qUpperConfidenceBound(model, beta=4.0), **short} if sampled else {}
    few, _ = optimize_batch(model, BOUNDS, ratio_threshold=1.5, **how)
    assert len(few) < 4
    X, values = optimize_batch(model, BOUNDS, ratio_threshold=1.5, min_q=4, **how)
    expected, at = optimize_batch(model, BOUNDS, ratio_threshold=math.inf, max_q=4, **how)
    assert torch.equal(X, expected)
    assert torch.equal(values, at)
    pending = BOUNDS.mean(dim=0, keepdim=True)
    assert len(optimize_batch(model, BOUNDS, ratio_threshold=1.0, X_pending=pending, **how)[0]) == 0
    X, values = optimize_batch(model, BOUNDS, ratio_threshold=1.0, X_pending=pending, min_q=2, **how)
    assert len(X) == len(values) == 2
    if not sampled:
        check_batch(model, X, values, width=2.0, pending=pending)


def test_a_least_q_below_the_rules_changes_nothing():
    model = build(SparseGP)
    X, values = optimize_batch(model, BOUNDS, ratio_threshold=3.0)
    again, at = optimize_batch(model, BOUNDS, ratio_threshold=3.0, min_q=len(X))
    assert torch.equal(X, again)
    assert torch.equal(values, at)


def test_the_batch_ends_with_the_pick_that_exceeds_the_ratio():
    model = build(SparseGP)
    X, values = optimize_batch(model, BOUNDS, ratio_threshold=5.0)
    reference = dense(model, X)
    ratios = 1.0 + (reference.after([]) / reference.noise).cumsum(0)
    assert len(X) > 3
    assert bool((ratios[:-1] <= 5.0).all())
    assert float(ratios[-1]) > 5.0
    check_batch(model, X, values, width=2.0)


def test_pending_points_are_conditioned_on():
    model = build(SparseGP)
    pending = torch.tensor([[0.4, 0.4], [0.1, 0.8]], dtype=torch.float64)
    X, values = optimize_batch(model, BOUNDS, ratio_threshold=math.inf, max_q=3, X_pending=pending)
    check_batch(model, X, values, width=2.0, pending=pending)
    reference = dense(model, pending)
    needed = 1.0 + float((reference.after([]) / reference.noise).sum())
    assert len(optimize_batch(model, BOUNDS, ratio_threshold=needed - 1e-6, X_pending=pending)[0]) == 0
    assert len(optimize_batch(model, BOUNDS, ratio_threshold=needed + 1e-6, X_pending=pending)[0]) == 1


@settings(max_examples=4, deadline=None, derandomize=True)
@given(threshold=st.floats(1.0, 6.0), max_q=st.integers(1, 6), seed=st.integers(0, 5), beta=st.floats(0.0, 100.0))
def test_the_ratio_is_never_exceeded(threshold, max_q, seed, beta):
    model = build(SparseGP, seed=seed)
    X, _ = optimize_batch(model, BOUNDS, ratio_threshold=threshold, max_q=max_q, beta=beta, raw_samples=64, num_restarts=2)
    reference = dense(model, torch.cat([X, grid(15)]))
    start, before_last = reference.after([]), list(range(len(X) - 1))
    assert 1 <= len(X) <= max_q
    assert 1.0 + float((start / reference.noise)[before_last].sum()) <= threshold + 1e-9
    assert float((start / reference.after(before_last)).max()) <= threshold + 1e-6
    assert len(X) == max_q or 1.0 + float((start / reference.noise)[: len(X)].sum()) > threshold - 1e-9


def test_scales_of_inputs_and_outputs_do_not_matter():
    plain = build(SparseGP)
    X, Y = plain.train_inputs[0], plain.train_targets.unsqueeze(-1) * 1.4 + 4.8
    shift, spread = torch.tensor([-300.0, 5.0], dtype=torch.float64), torch.tensor([1e4, 1e-3], dtype=torch.float64)
    from botorch.models.transforms import Normalize

    big = SparseGP(shift + spread * X, 1e6 * Y, input_transform=Normalize(2, bounds=shift + spread * BOUNDS)).eval()
    small = SparseGP(X, Y).eval()
    for model in (big, small):
        model.covar_module.lengthscale = 0.4
        model.likelihood.noise = 0.1
    got, values = optimize_batch(big, shift + spread * BOUNDS, ratio_threshold=math.inf, max_q=4)
    expected, reference = optimize_batch(small, BOUNDS, ratio_threshold=math.inf, max_q=4)
    assert torch.allclose((got - shift) / spread, expected, atol=2e-3)
    assert torch.allclose(values / 1e6, reference, rtol=1e-5)


def test_linear_inequalities_hold():
    model = build(SparseGP)
    X, values = optimize_batch(model, BOUNDS, inequality_constraints=[(*NEGATIVE_SUM, -0.5)], ratio_threshold=math.inf, max_q=2)
    assert bool((X.sum(dim=-1) <= 0.5 + 1e-7).all())
    check_batch(model, X, values, width=2.0, allowed=lambda A: A.sum(dim=-1) <= 0.5, tolerance=1e-3)


@pytest.mark.parametrize("kind", ["inequality_constraints", "nonlinear_inequality_constraints"])
def test_searches_find_the_edge_of_constraints_on_any_box(kind):
    model = build(SparseGP)
    bounds = torch.tensor([[-1.0, -0.5], [2.0, 1.5]], dtype=torch.float64)
    below = [(*NEGATIVE_SUM, -0.5)] if kind == "inequality_constraints" else [(lambda x: 0.5 - x.sum(), True)]
    X, values = optimize_batch(model, bounds, **{kind: below}, raw_samples=24, max_q=1, beta=0.0)
    assert float(X.sum()) == pytest.approx(0.5, abs=1e-4)  # the constraint holds with equality at the best point
    check_batch(model, X, values, width=0.0, allowed=lambda A: A.sum(dim=-1) <= 0.5, tolerance=1e-3)


def test_linear_equalities_hold():
    model = build(SparseGP)
    X, values = optimize_batch(model, BOUNDS, equality_constraints=[(*SUM, 0.6)], ratio_threshold=math.inf, max_q=2)
    assert torch.allclose(X.sum(dim=-1), torch.full((2,), 0.6, dtype=torch.float64), atol=1e-6)
    check_batch(model, X, values, width=2.0, allowed=lambda A: (A.sum(dim=-1) - 0.6).abs() < 1e-9, tolerance=1e-3)


def test_nonlinear_inequalities_hold():
    model = build(SparseGP)
    circle = (lambda x: 0.09 - (x - 0.8).square().sum(), True)
    X, values = optimize_batch(model, BOUNDS, nonlinear_inequality_constraints=[circle], ratio_threshold=math.inf, max_q=2)
    inside = lambda A: (A - 0.8).square().sum(dim=-1) <= 0.09  # noqa: E731
    assert bool(((X - 0.8).square().sum(dim=-1) <= 0.09 + 1e-6).all())
    check_batch(model, X, values, width=2.0, allowed=inside, tolerance=1e-3)


@pytest.mark.parametrize("constrained", [False, True])
def test_fixed_features_stay_fixed(constrained):
    constraints = [(*SUM, 0.9)] if constrained else None
    model = build(SparseGP)
    X, values = optimize_batch(
        model, BOUNDS, fixed_features={1: 0.25}, inequality_constraints=constraints, ratio_threshold=math.inf, max_q=3
    )
    assert bool((X[:, 1] == 0.25).all())
    allowed = (lambda A: (A[:, 1] == 0.25) & (A[:, 0] >= 0.65)) if constrained else (lambda A: A[:, 1] == 0.25)
    check_batch(model, X, values, width=2.0, allowed=allowed, tolerance=1e-3)


def test_everything_fixed_leaves_one_point():
    X, _ = optimize_batch(build(SparseGP), BOUNDS, fixed_features={0: 0.5, 1: 0.25}, ratio_threshold=math.inf, max_q=2)
    assert X.tolist() == [[0.5, 0.25], [0.5, 0.25]]


def test_post_processed_points_are_what_is_conditioned_on():
    model = build(SparseGP)
    X, values = optimize_batch(
        model, BOUNDS, post_processing_func=lambda X: (8 * X).round() / 8, ratio_threshold=math.inf, max_q=4, beta=400.0
    )
    assert torch.equal(8 * X, (8 * X).round())
    check_batch(model, X, values, width=20.0, tolerance=math.inf)
    assert len(torch.unique(X, dim=0)) > 1


def test_options_reach_the_searches():
    model = build(SparseGP)
    _, few = optimize_batch(model, BOUNDS, options={"maxiter": 0}, raw_samples=8, num_restarts=1, max_q=1)
    _, many = optimize_batch(model, BOUNDS, raw_samples=8, num_restarts=1, max_q=1)
    assert float(many) > float(few) + 1e-3


@pytest.mark.parametrize("acquisition", [None, "qLogEI"])
def test_same_seed_same_batch_and_the_global_generator_stays(acquisition):
    from botorch.acquisition import qLogExpectedImprovement

    make = None if acquisition is None else lambda model: qLogExpectedImprovement(model, best_f=6.0)
    before = torch.random.get_rng_state()
    batches = []
    for seed in (3, 3, 4):
        torch.manual_seed(len(batches))
        state = torch.random.get_rng_state()
        generator = torch.Generator().manual_seed(seed)
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the acquisition function draws its base samples when it is made
            model = build(SparseGP)
            made = None if make is None else make(model)
        options = {"ratio_threshold": math.inf, "max_q": 2, "raw_samples": 32, "num_restarts": 2}
        batches.append(optimize_batch(model, BOUNDS, acq_function=made, generator=generator, **options)[0])
        assert torch.equal(torch.random.get_rng_state(), state)
    torch.random.set_rng_state(before)
    assert torch.equal(batches[0], batches[1])
    assert not torch.equal(batches[0], batches[2])


def test_gradients_of_the_closed_form():
    from sparse_bo.acquisition.posteriors import batch_posterior

    for in_batch in ("process", "fixed"):
        model = build(SparseGP, dictionary=torch.arange(0, 30, 4))
        posterior = batch_posterior(model, in_batch=in_batch, like=BOUNDS)
        with torch.no_grad():
            for row in grid(3)[:4]:
                posterior = posterior.condition(posterior.prepare(row.unsqueeze(0)))

        def score(X, posterior=posterior):
            points = posterior.prepare(X)
            return points.mean + posterior.variance(points)

        assert torch.autograd.gradcheck(score, (grid(3)[4:] * 0.93).requires_grad_(), atol=1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("scale", [1e-200, 1e140])
def test_constraints_hold_in_any_units(scale):
    """The chain that samples a polytope starts from a linear program with absolute tolerances."""
    (X, Y), bounds = data(), scale * torch.tensor([[-1.0, -1.0], [1.0, 1.0]], dtype=torch.float64)
    model = SparseGP(scale * (2.0 * X - 1.0), Y, input_transform=Normalize(2, bounds=bounds))
    below = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0], dtype=torch.float64), -0.5 * scale)
    picks, _ = optimize_batch(model, bounds, inequality_constraints=[below], max_q=2, raw_samples=64)
    assert float((picks / scale).sum(dim=-1).max()) <= 0.5 + 1e-6
    assert float((picks / scale).abs().max()) <= 1.0
    on = (torch.tensor([0, 1]), torch.tensor([1.0, 1.0], dtype=torch.float64), 0.6 * scale)
    picks, _ = optimize_batch(model, bounds, equality_constraints=[on], max_q=2, raw_samples=64)
    torch.testing.assert_close(
        (picks / scale).sum(dim=-1), torch.full((len(picks),), 0.6, dtype=torch.float64), rtol=0, atol=1e-6
    )


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
def test_outcomes_whose_square_overflows_are_said_to_be_too_large():
    X, Y = data()
    with pytest.raises(ValueError, match="square of the outcomes' scale overflows; divide"):
        optimize_batch(SingleTaskGP(X, 1e160 * Y), BOUNDS)
