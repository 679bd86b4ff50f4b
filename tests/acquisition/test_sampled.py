"""Monte Carlo acquisition functions on the closed form: BoTorch's values, without asking the model for the picks again."""

import math
import warnings

import pytest
import torch
from botorch.acquisition import (
    qExpectedImprovement,
    qLogExpectedImprovement,
    qNoisyExpectedImprovement,
    qProbabilityOfImprovement,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.objective import GenericMCObjective, ScalarizedPosteriorTransform
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.sampling import SobolQMCNormalSampler

from sparse_bo import SparseGP, optimize_batch
from sparse_bo.acquisition.botorch_functions import SAMPLED, KnownPicks, is_sampled
from sparse_bo.acquisition.posteriors import batch_posterior
from tests.acquisition.dense import BOUNDS, OPTIONS, build

FUNCTIONS = {
    "qUCB": lambda model, **k: qUpperConfidenceBound(model, beta=4.0, **k),
    "qEI": lambda model, **k: qExpectedImprovement(model, best_f=6.0, **k),
    "qLogEI": lambda model, **k: qLogExpectedImprovement(model, best_f=6.0, **k),
    "qPI": lambda model, **k: qProbabilityOfImprovement(model, best_f=6.0, tau=0.5, **k),
    "qSR": lambda model, **k: qSimpleRegret(model, **k),
}
# BoTorch advises against qEI, which has to work all the same; and says so when it adds jitter beside a pick.
pytestmark = [
    pytest.mark.filterwarnings("ignore:q(Noisy)?ExpectedImprovement has known numerical issues"),
    pytest.mark.filterwarnings("ignore:A not p.d.:linear_operator.utils.warnings.NumericalWarning"),
]
PICKS = torch.tensor([[0.2, 0.7], [0.9, 0.1], [0.5, 0.5]], dtype=torch.float64)
MODELS = [(SparseGP, name, {}) for name in OPTIONS] + [(SingleTaskGP, "plain", {}), (SparseGP, "plain", {"max_dictionary": 12})]


def sampler(samples: int = 64) -> SobolQMCNormalSampler:
    return SobolQMCNormalSampler(torch.Size([samples]), seed=0)


def points(n: int, *, seed: int = 3) -> torch.Tensor:
    return torch.rand(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def known(model, picks: torch.Tensor) -> KnownPicks:
    closed = batch_posterior(model, in_batch="process", like=BOUNDS)
    stand_in = KnownPicks(closed)
    for row in picks.split(1):
        stand_in.add(closed.prepare(row))
    return stand_in


@pytest.mark.parametrize(("kind", "options", "more"), MODELS, ids=lambda v: getattr(v, "__name__", str(v)))
@pytest.mark.parametrize("count", [0, 1, 3], ids="{} picks".format)
def test_the_joint_posterior_is_the_models(kind, options, more, count):
    model = build(kind, options, **more)
    stand_in = known(model, PICKS[:count])
    X = torch.cat([points(5).unsqueeze(1), PICKS[:count].expand(5, -1, -1)], dim=1)
    got, expected = stand_in.posterior(X), model.posterior(X)
    assert torch.allclose(got.mean, expected.mean, atol=1e-7)
    assert torch.allclose(got.distribution.covariance_matrix, expected.distribution.covariance_matrix, atol=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("kind", [SparseGP, SingleTaskGP])
def test_values_and_gradients_are_the_functions_own(kind, name):
    model = build(kind)
    found = {}
    for who in (model, known(model, PICKS)):
        function = FUNCTIONS[name](model, sampler=sampler(), X_pending=PICKS)
        function.model = who
        X = points(6).unsqueeze(1).requires_grad_(True)
        values = function(X)
        found[who is model] = values.detach(), torch.autograd.grad(values.sum(), X)[0]
    for got, expected in zip(found[False], found[True], strict=True):
        assert torch.allclose(got, expected, atol=1e-6, rtol=1e-6)
        assert bool(expected.abs().max() > 0.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_picks_are_no_worse_than_botorchs_and_their_values_are_right(name):
    model = build(SparseGP)
    X, values = optimize_batch(
        model, BOUNDS, acq_function=FUNCTIONS[name](model, sampler=sampler()), ratio_threshold=math.inf, max_q=4
    )
    function = FUNCTIONS[name](model, sampler=sampler())
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        theirs, _ = optimize_acqf(function, BOUNDS, q=4, num_restarts=8, raw_samples=128, sequential=True)
    function.set_X_pending(None)
    judge = FUNCTIONS[name](model, sampler=sampler(4096))
    with torch.no_grad():
        for i in range(4):
            function.set_X_pending(X[:i] if i else None)
            assert float(function(X[i : i + 1])) == pytest.approx(float(values[i]), abs=1e-6)
        # Greedy picks of either are within Monte Carlo error of each other as a batch.
        assert float(judge(X)) >= float(judge(theirs)) - 0.02 * float(judge(theirs).abs())


def test_pending_points_and_what_the_function_held_count_as_picks():
    model = build(SparseGP)
    function = FUNCTIONS["qUCB"](model, sampler=sampler(), X_pending=PICKS[:1])
    X, values = optimize_batch(
        model, BOUNDS, acq_function=function, X_pending=PICKS[1:], ratio_threshold=math.inf, max_q=2, raw_samples=64
    )
    assert torch.equal(function.X_pending, PICKS[:1])
    assert function.model is model
    with torch.no_grad():
        function.set_X_pending(torch.cat([PICKS, X[:1]]))
        assert float(function(X[1:])) == pytest.approx(float(values[1]), abs=1e-6)


def test_fixed_features_post_processing_and_constraints_hold():
    model = build(SparseGP)
    make = lambda m: FUNCTIONS["qLogEI"](m, sampler=sampler())  # noqa: E731
    common = {"acq_function": make(model), "ratio_threshold": math.inf, "max_q": 3, "raw_samples": 64, "num_restarts": 2}
    X, _ = optimize_batch(model, BOUNDS, fixed_features={1: 0.25}, **common)
    assert bool((X[:, 1] == 0.25).all())
    X, values = optimize_batch(model, BOUNDS, post_processing_func=lambda X: (4.0 * X).round() / 4.0, **common)
    assert torch.equal(X, (4.0 * X).round() / 4.0)
    with torch.no_grad():
        assert float(make(model)(X[:1])) == pytest.approx(float(values[0]), abs=1e-6)
    constraint = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0], dtype=torch.float64), -0.5)
    X, _ = optimize_batch(model, BOUNDS, inequality_constraints=[constraint], **common)
    assert bool((X.sum(dim=-1) <= 0.5 + 1e-6).all())


def test_objectives_and_posterior_transforms_are_kept():
    model = build(SparseGP)
    X = torch.cat([points(4).unsqueeze(1), PICKS.expand(4, -1, -1)], dim=1)
    made = {
        "objective": lambda who: qUpperConfidenceBound(
            who, beta=4.0, sampler=sampler(), objective=GenericMCObjective(lambda Y, X=None: -((Y[..., 0] - 4.0) ** 2))
        ),
        "transform": lambda who: qUpperConfidenceBound(
            who,
            beta=4.0,
            sampler=sampler(),
            posterior_transform=ScalarizedPosteriorTransform(torch.tensor([-1.0], dtype=torch.float64)),
        ),
    }
    for make in made.values():
        function = make(model)
        expected = function(X)
        function.model = known(model, PICKS)
        assert torch.allclose(function(X), expected, atol=1e-6)


def test_only_what_is_known_to_ask_nothing_else_is_taken():
    model = build(SparseGP)
    closed = batch_posterior(model, in_batch="process", like=BOUNDS)
    fixed = batch_posterior(model, in_batch="fixed", like=BOUNDS)
    assert all(is_sampled(make(model), model, closed) for make in FUNCTIONS.values())
    assert {type(make(model)) for make in FUNCTIONS.values()} == set(SAMPLED)
    function = FUNCTIONS["qUCB"](model)
    assert not is_sampled(function, build(SparseGP), closed)
    assert not is_sampled(function, model, fixed)
    assert not is_sampled(qNoisyExpectedImprovement(model, points(3), cache_root=False), model, closed)


def test_batches_repeat_and_leave_the_global_generator_alone():
    model = build(SparseGP)
    before = torch.random.get_rng_state()
    settings = {"acq_function": FUNCTIONS["qUCB"](model), "ratio_threshold": math.inf, "max_q": 3, "raw_samples": 64}
    first, _ = optimize_batch(model, BOUNDS, generator=torch.Generator().manual_seed(1), **settings)
    again, _ = optimize_batch(model, BOUNDS, generator=torch.Generator().manual_seed(1), **settings)
    assert torch.equal(first, again)
    assert torch.equal(torch.random.get_rng_state(), before)
