"""Monte Carlo acquisition functions get the points before a pick as X_pending."""

import math

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qMaxValueEntropy,
    qUpperConfidenceBound,
)
from botorch.acquisition.penalized import PenalizedAcquisitionFunction
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler

from sparse_bo import SparseGP, optimize_batch
from tests.acquisition.dense import BOUNDS, build, grid

CHOICES = grid(9)

# A choice that is pending already has a singular covariance with itself; BoTorch adds jitter, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:A not p.d.:linear_operator.utils.warnings.NumericalWarning")


def log_ei(model, X_pending=None):
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    return qLogExpectedImprovement(model, best_f=6.5, sampler=sampler, X_pending=X_pending)


@pytest.mark.parametrize("kind", [SparseGP, SingleTaskGP])
def test_over_choices_it_is_optimize_acqf_discrete(kind):
    model = build(kind)
    expected, values = optimize_acqf_discrete(log_ei(model), q=4, choices=CHOICES, unique=False)
    X, got = optimize_batch(model, choices=CHOICES, acq_function=log_ei(model), ratio_threshold=math.inf, max_q=4)
    assert torch.equal(X, expected)
    assert torch.allclose(got, values.flatten())


def test_picks_on_a_box_are_the_maxima_given_the_picks_before():
    model = build(SparseGP)
    X, values = optimize_batch(model, BOUNDS, acq_function=log_ei(model), ratio_threshold=math.inf, max_q=3, raw_samples=128)
    function = log_ei(model)
    for i in range(3):
        function.set_X_pending(X[:i] if i else None)
        with torch.no_grad():
            assert float(function(X[i : i + 1])) == pytest.approx(float(values[i]), abs=1e-9)
            assert float(values[i]) >= float(function(grid(41).unsqueeze(-2)).max()) - 1e-4


@pytest.mark.parametrize("where", ["box", "choices"])
def test_the_ratio_rule_decides_here_too(where):
    model = build(SparseGP)
    domain = {"bounds": BOUNDS} if where == "box" else {"choices": CHOICES}
    X, _ = optimize_batch(model, **domain, acq_function=log_ei(model), ratio_threshold=3.0, raw_samples=16, num_restarts=1)
    with torch.no_grad():
        noise = float(model.posterior(X[:1], observation_noise=True).variance - model.posterior(X[:1]).variance)
        ratios = 1.0 + (model.posterior(X.unsqueeze(-2)).variance.flatten() / noise).cumsum(0)
    assert bool((ratios[:-1] <= 3.0).all())
    assert float(ratios[-1]) > 3.0


def test_pending_points_come_first_and_the_function_is_left_as_it_was():
    model = build(SparseGP)
    own, given = CHOICES[:1], CHOICES[5:7]
    function, seen = log_ei(model, X_pending=own), []
    before, set_X_pending = function.X_pending, function.set_X_pending
    function.set_X_pending = lambda X: (seen.append(CHOICES[:0] if X is None else X), set_X_pending(X))
    X, _ = optimize_batch(model, choices=CHOICES, acq_function=function, X_pending=given, ratio_threshold=math.inf, max_q=2)
    assert any(len(s) == 3 and torch.equal(s, torch.cat([own, given])) for s in seen)
    assert any(len(s) == 4 and torch.equal(s, torch.cat([own, given, X[:1]])) for s in seen)
    assert function.X_pending is before
    assert torch.equal(before, own)


def test_the_function_is_left_as_it_was_after_an_error():
    model = build(SparseGP)
    function = log_ei(model)

    def boom(X):
        raise RuntimeError("boom")

    function.forward = boom
    with pytest.raises(RuntimeError, match="boom"):
        optimize_batch(model, choices=CHOICES, acq_function=function, X_pending=CHOICES[:1], ratio_threshold=math.inf)
    assert function.X_pending is None


def test_constraints_reach_optimize_acqf():
    model = build(SparseGP)
    options = {"ratio_threshold": math.inf, "max_q": 1, "raw_samples": 16, "num_restarts": 1, "acq_function": log_ei(model)}
    ones = torch.ones(2, dtype=torch.float64)
    X, _ = optimize_batch(model, BOUNDS, inequality_constraints=[(torch.tensor([0, 1]), -ones, -0.5)], **options)
    assert bool((X.sum(dim=-1) <= 0.5 + 1e-6).all())
    X, _ = optimize_batch(model, BOUNDS, fixed_features={0: 0.3}, **options)
    assert bool((X[:, 0] == 0.3).all())
    circle = (lambda x: 0.09 - (x - 0.8).square().sum(), True)
    X, _ = optimize_batch(model, BOUNDS, nonlinear_inequality_constraints=[circle], **options)
    assert bool(((X - 0.8).square().sum(dim=-1) <= 0.09 + 1e-6).all())
    X, _ = optimize_batch(model, BOUNDS, post_processing_func=lambda X: (8 * X).round() / 8, **options)
    assert torch.equal(8 * X, (8 * X).round())


def baseline_ei(model, X_pending=None):
    """Keeps pending points in its baseline and recomputes what it knows of it."""
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    return qLogNoisyExpectedImprovement(model, CHOICES[::9], sampler=sampler, X_pending=X_pending, prune_baseline=False)


def entropy_search(model, X_pending=None):
    """Fantasises its model on pending points."""
    torch.manual_seed(0)
    return qMaxValueEntropy(model, CHOICES, num_fantasies=2, num_mv_samples=4, num_y_samples=8, X_pending=X_pending)


def penalized(model, X_pending=None):
    """Hands pending points to the function that it wraps."""
    return PenalizedAcquisitionFunction(log_ei(model, X_pending), lambda X: X.sum(dim=(-1, -2)), 0.1)


@pytest.mark.parametrize("make", [log_ei, baseline_ei, entropy_search, penalized])
@pytest.mark.parametrize("own", [None, CHOICES[40:42]], ids=["none", "own"])
def test_any_function_knows_all_points_before_a_pick_and_is_left_as_it_was(make, own):
    model, given, probe = build(SparseGP), CHOICES[5:7], CHOICES[30:34].unsqueeze(-2)
    function, oracle = (make(model, None if own is None else own.clone()) for _ in range(2))
    options = {"choices": CHOICES, "acq_function": function, "ratio_threshold": math.inf}
    with torch.no_grad():
        before = function(probe)
        optimize_batch(model, **options, max_q=1)
        assert torch.equal(function(probe), before)
        X, values = optimize_batch(model, **options, max_q=2, X_pending=given)
        assert torch.equal(function(probe), before)
        oracle.set_X_pending(torch.cat([part for part in (own, given, X[:1]) if part is not None]))
        # A repeated pick makes the joint covariance singular: whether BoTorch adds 1e-8 to it is up to round-off.
        assert float(oracle(X[1:])) == pytest.approx(float(values[1]), abs=1e-5)


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (
            lambda model: LogExpectedImprovement(model, best_f=0.0),
            UnsupportedError,
            "LogExpectedImprovement takes no X_pending",
        ),
        (lambda model: qKnowledgeGradient(model, num_fantasies=2), UnsupportedError, "use optimize_acqf"),
        (lambda _: "ucb", TypeError, r"got str; pass an instance: qLogExpectedImprovement\(model, best_f=…\)"),
        (lambda _: qUpperConfidenceBound, TypeError, "got the class qUpperConfidenceBound; pass an instance: qLog"),
        (
            lambda _: log_ei,
            TypeError,
            r"got function; pass an instance: .* your subclass of AcquisitionFunction that takes X",
        ),
        (lambda _: log_ei(build(SparseGP)), ValueError, "built on the model .* a qLogExpectedImprovement of another SparseGP"),
    ],
    ids=["analytic", "one-shot", "name", "class", "function", "another model"],
)
def test_what_is_no_acquisition_function_of_the_model_with_pending_points_is_refused(make, error, match):
    model = build(SparseGP)
    with pytest.raises(error, match=match):
        optimize_batch(model, BOUNDS, acq_function=make(model))


def test_a_function_without_a_model_attribute_will_do():
    class Wrapped(AcquisitionFunction):
        def __init__(self, function):
            torch.nn.Module.__init__(self)
            self.function = function

        def set_X_pending(self, X_pending=None):
            self.function.set_X_pending(X_pending)

        def forward(self, X):
            return self.function(X)

    model = build(SparseGP)
    common = {"choices": CHOICES, "ratio_threshold": math.inf, "max_q": 3}
    X, _ = optimize_batch(model, acq_function=Wrapped(log_ei(model)), **common)
    assert torch.equal(X, optimize_batch(model, acq_function=log_ei(model), **common)[0])
