"""Monte Carlo acquisition functions get the points before a pick as X_pending."""

import math

import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    LogExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qUpperConfidenceBound,
)
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
    X, got = optimize_batch(model, choices=CHOICES, acquisition=log_ei, ratio_threshold=math.inf, max_q=4)
    assert torch.equal(X, expected)
    assert torch.allclose(got, values.flatten())


def test_a_function_and_what_makes_it_give_the_same():
    model = build(SparseGP)
    made, _ = optimize_batch(model, BOUNDS, acquisition=log_ei(model), ratio_threshold=math.inf, max_q=2)
    factory, _ = optimize_batch(model, BOUNDS, acquisition=log_ei, ratio_threshold=math.inf, max_q=2)
    assert torch.equal(made, factory)


def test_picks_on_a_box_are_the_maxima_given_the_picks_before():
    model = build(SparseGP)
    X, values = optimize_batch(model, BOUNDS, acquisition=log_ei, ratio_threshold=math.inf, max_q=3, raw_samples=128)
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
    X, _ = optimize_batch(model, **domain, acquisition=log_ei, ratio_threshold=3.0, raw_samples=16, num_restarts=1)
    with torch.no_grad():
        noise = float(model.posterior(X[:1], observation_noise=True).variance - model.posterior(X[:1]).variance)
        ratios = 1.0 + (model.posterior(X.unsqueeze(-2)).variance.flatten() / noise).cumsum(0)
    assert bool((ratios[:-1] <= 3.0).all())
    assert float(ratios[-1]) > 3.0


def test_pending_points_come_first_and_the_function_is_left_as_it_was():
    model = build(SparseGP)
    own, given = CHOICES[:1], CHOICES[5:7]
    function, seen = log_ei(model, X_pending=own), []
    set_X_pending = function.set_X_pending
    function.set_X_pending = lambda X: (seen.append(X), set_X_pending(X))
    X, _ = optimize_batch(model, choices=CHOICES, acquisition=function, X_pending=given, ratio_threshold=math.inf, max_q=2)
    assert any(len(s) == 3 and torch.equal(s, torch.cat([own, given])) for s in seen)
    assert any(len(s) == 4 and torch.equal(s, torch.cat([own, given, X[:1]])) for s in seen)
    assert torch.equal(function.X_pending, own)


def test_the_function_is_left_as_it_was_after_an_error():
    model = build(SparseGP)
    function = log_ei(model)

    def boom(X):
        raise RuntimeError("boom")

    function.forward = boom
    with pytest.raises(RuntimeError, match="boom"):
        optimize_batch(model, choices=CHOICES, acquisition=function, X_pending=CHOICES[:1], ratio_threshold=math.inf)
    assert function.X_pending is None


def test_constraints_reach_optimize_acqf():
    model = build(SparseGP)
    options = {"ratio_threshold": math.inf, "max_q": 1, "raw_samples": 16, "num_restarts": 1, "acquisition": log_ei}
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


@pytest.mark.parametrize(
    ("acquisition", "error", "match"),
    [
        (
            lambda model: LogExpectedImprovement(model, best_f=0.0),
            UnsupportedError,
            "LogExpectedImprovement takes no X_pending",
        ),
        (lambda model: qKnowledgeGradient(model, num_fantasies=2), UnsupportedError, "use optimize_acqf"),
        (lambda model: "ucb", TypeError, "to return an AcquisitionFunction, got str"),
        ("qLogEI", TypeError, "or a callable that makes one from a model, got str"),
    ],
)
def test_what_is_no_acquisition_function_with_pending_points_is_refused(acquisition, error, match):
    with pytest.raises(error, match=match):
        optimize_batch(build(SparseGP), BOUNDS, acquisition=acquisition)


def test_a_class_with_defaults_will_do():
    class Curious(qUpperConfidenceBound):
        def __init__(self, model):
            super().__init__(model, beta=4.0, sampler=SobolQMCNormalSampler(torch.Size([32]), seed=0))

    assert issubclass(Curious, AcquisitionFunction)
    X, _ = optimize_batch(build(SparseGP), choices=CHOICES, acquisition=Curious, ratio_threshold=math.inf, max_q=2)
    assert X.shape == (2, 2)
