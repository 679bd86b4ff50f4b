"""BoTorch's acquisition functions: those of the exact model when exact, with true gradients when sparse."""

import pytest
import torch
from botorch.acquisition import (
    AnalyticAcquisitionFunction,
    ExpectedImprovement,
    LogExpectedImprovement,
    PosteriorMean,
    ProbabilityOfImprovement,
    ProximalAcquisitionFunction,
    UpperConfidenceBound,
    qExpectedImprovement,
    qKnowledgeGradient,
    qLogExpectedImprovement,
    qLogNoisyExpectedImprovement,
    qLowerBoundMaxValueEntropy,
    qMaxValueEntropy,
    qNegIntegratedPosteriorVariance,
    qSimpleRegret,
    qUpperConfidenceBound,
)
from botorch.acquisition.analytic import LogConstrainedExpectedImprovement, LogProbabilityOfImprovement
from botorch.acquisition.cost_aware import InverseCostWeightedUtility
from botorch.acquisition.joint_entropy_search import qJointEntropySearch
from botorch.acquisition.max_value_entropy_search import qMultiFidelityMaxValueEntropy
from botorch.acquisition.multi_objective import (
    qLogExpectedHypervolumeImprovement,
    qLogNoisyExpectedHypervolumeImprovement,
    qNoisyExpectedHypervolumeImprovement,
)
from botorch.acquisition.multi_step_lookahead import qMultiStepLookahead
from botorch.acquisition.objective import GenericMCObjective, LinearMCObjective, ScalarizedPosteriorTransform
from botorch.cross_validation import batch_cross_validation, gen_loo_cv_folds
from botorch.models import AffineFidelityCostModel, ModelListGP
from botorch.optim import optimize_acqf, optimize_acqf_discrete
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.multi_objective.box_decompositions import FastNondominatedPartitioning
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo.models import SparseGP
from tests.builders import unit_box
from tests.models.sparse_problems import CONFIGURATIONS, D, pair, points

pytestmark = pytest.mark.filterwarnings(
    # BoTorch recommends the logarithmic versions; users have both.
    "ignore:.*has known numerical issues:botorch.exceptions.NumericsWarning",
    "ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning",
    # torch 2.13 says so of the sparse matrices in BoTorch's hypervolume code.
    "ignore:Sparse invariant checks are implicitly disabled:UserWarning",
)
DETACHED = ("qNIPV", "multi-step")
"""Look-ahead where GPyTorch's exact fantasies drop a part of the gradient with respect to X; ours are complete."""

ROWS = torch.tensor([2, 11, 25])
BOUNDS = unit_box(D)

WEIGHTS = torch.ones(D, dtype=torch.float64)
FIRST = LinearMCObjective(torch.tensor([1.0, 0.0], dtype=torch.float64))


def sampler(size=8):
    return SobolQMCNormalSampler(torch.Size([size]), seed=0)


def candidates(seed=5):
    return points(40, seed=seed)


def optima():
    return points(3, seed=7), 0.5 + points(3, seed=6)[:, :1]


def feasible(samples):
    return samples[..., 1] - 1.5  # feasible where negative


def partitioning():
    reference = torch.zeros(2, dtype=torch.float64)
    fronts = torch.tensor([[1.0, 0.3], [0.3, 1.0]], dtype=torch.float64)
    return {"ref_point": reference.tolist(), "partitioning": FastNondominatedPartitioning(reference, fronts)}


def cost_aware_entropy(model):
    cost = AffineFidelityCostModel(fidelity_weights={1: 1.0}, fixed_cost=5.0).double()
    utility = InverseCostWeightedUtility(cost)
    return qMultiFidelityMaxValueEntropy(model, candidates(), num_fantasies=4, num_mv_samples=4, cost_aware_utility=utility)


ONE_OUTPUT = {
    "EI": (lambda m: ExpectedImprovement(m, best_f=0.5), 1),
    "LogEI": (lambda m: LogExpectedImprovement(m, best_f=0.5), 1),
    "PI": (lambda m: ProbabilityOfImprovement(m, best_f=0.5), 1),
    "LogPI": (lambda m: LogProbabilityOfImprovement(m, best_f=0.5), 1),
    "UCB": (lambda m: UpperConfidenceBound(m, beta=2.0), 1),
    "mean": (PosteriorMean, 1),
    "qEI": (lambda m: qExpectedImprovement(m, best_f=0.5, sampler=sampler()), 3),
    "qLogEI": (lambda m: qLogExpectedImprovement(m, best_f=0.5, sampler=sampler(), X_pending=points(2, seed=9)), 3),
    "qLogNEI, cached root": (lambda m: qLogNoisyExpectedImprovement(m, points(5), sampler=sampler(), cache_root=True), 3),
    "qLogNEI": (lambda m: qLogNoisyExpectedImprovement(m, points(5), sampler=sampler(), cache_root=False), 3),
    "qLogNEI, defaults": (lambda m: qLogNoisyExpectedImprovement(m, points(20)), 3),
    "qLogNEI, nothing pruned": (lambda m: qLogNoisyExpectedImprovement(m, points(20), prune_baseline=False), 3),
    "qLogNEI, pending": (lambda m: qLogNoisyExpectedImprovement(m, points(20), X_pending=points(2, seed=9)), 3),
    "qUCB": (lambda m: qUpperConfidenceBound(m, beta=2.0, sampler=sampler()), 3),
    "qSR": (lambda m: qSimpleRegret(m, sampler=sampler()), 3),
    "qNIPV": (lambda m: qNegIntegratedPosteriorVariance(m, mc_points=points(6)), 3),
    "qKG": (lambda m: qKnowledgeGradient(m, num_fantasies=4, sampler=sampler(4)), 2 + 4),
    "multi-step": (lambda m: qMultiStepLookahead(m, batch_sizes=[1, 1], samplers=[sampler(2), sampler(2)]), 1 + 2 + 4),
    "MES": (lambda m: qMaxValueEntropy(m, candidates(), num_fantasies=4, num_mv_samples=4), 1),
    "GIBBON": (lambda m: qLowerBoundMaxValueEntropy(m, candidates(), num_mv_samples=4, X_pending=points(2, seed=9)), 1),
    "MES by fidelity and cost": (cost_aware_entropy, 1),
    # With condition_noiseless=True GPyTorch's exact fantasies take the given noise in the variance, but not in the mean.
    "JES": (lambda m: qJointEntropySearch(m, *optima(), condition_noiseless=False), 2),
    "proximal": (lambda m: ProximalAcquisitionFunction(LogExpectedImprovement(m, 0.5), WEIGHTS, beta=1.0), 1),
}
TWO_OUTPUTS = {
    "qLogEHVI": (lambda m: qLogExpectedHypervolumeImprovement(m, sampler=sampler(), **partitioning()), 2),
    "qNEHVI": (lambda m: qNoisyExpectedHypervolumeImprovement(m, [0.0, 0.0], points(4), sampler=sampler(), cache_root=True), 2),
    "qLogNEHVI": (
        lambda m: qLogNoisyExpectedHypervolumeImprovement(m, [0.0, 0.0], points(4), sampler=sampler(), cache_root=True), 2
    ),
    "qLogNEHVI, defaults": (lambda m: qLogNoisyExpectedHypervolumeImprovement(m, [0.0, 0.0], points(20)), 2),
    "qLogNEHVI, pruned": (
        lambda m: qLogNoisyExpectedHypervolumeImprovement(m, [0.0, 0.0], points(20), prune_baseline=True), 2
    ),
    "qLogNEHVI, pending": (
        lambda m: qLogNoisyExpectedHypervolumeImprovement(m, [0.0, 0.0], points(20), X_pending=points(2, seed=9)), 2
    ),
    "qLogNEI, scalarized": (
        lambda m: qLogNoisyExpectedImprovement(
            m, points(20), posterior_transform=ScalarizedPosteriorTransform(torch.tensor([0.3, 0.7]).double())
        ), 2
    ),
    "qLogEI, constraint": (
        lambda m: qLogExpectedImprovement(
            m, 0.2, sampler=sampler(), objective=GenericMCObjective(lambda Y, X=None: Y[..., 0]), constraints=[feasible]
        ), 2
    ),
    "qLogNEI, constraint": (
        lambda m: qLogNoisyExpectedImprovement(
            m, points(4), sampler=sampler(), objective=FIRST, constraints=[feasible]
        ), 2
    ),
    "LogCEI": (lambda m: LogConstrainedExpectedImprovement(m, 0.2, 0, constraints={1: (None, 0.5)}), 1),
    "qUCB, scalarized": (
        lambda m: qUpperConfidenceBound(
            m, 2.0, sampler=sampler(), posterior_transform=ScalarizedPosteriorTransform(torch.tensor([0.3, 0.7]).double())
        ), 2
    ),
    "qKG, scalarized": (
        lambda m: qKnowledgeGradient(
            m, 4, sampler=sampler(4), posterior_transform=ScalarizedPosteriorTransform(torch.tensor([0.3, 0.7]).double())
        ), 1 + 4
    ),
}  # fmt: skip
CASES = {name: ("plain", *case) for name, case in ONE_OUTPUT.items()}
CASES["GIBBON"] = ("raw outcomes", *ONE_OUTPUT["GIBBON"])  # its repulsion term mixes units under an outcome transform
CASES |= {name: ("two outputs", *case) for name, case in TWO_OUTPUTS.items()}


def value_and_gradient(make, model, X):
    model.eval()
    torch.manual_seed(0)  # MES draws its samples of the maximum from torch's own generator
    acquisition = make(model)
    X = X.clone().requires_grad_()
    value = acquisition(X)
    (gradient,) = torch.autograd.grad(value.sum(), X)
    return acquisition, value.detach(), gradient


@pytest.fixture(params=[4096, 10, 3])
def large(request, scale):
    """What counts as many points: nothing here, candidate sets, baselines."""
    scale(joint={"dense": request.param})


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_the_exact_model(name, large):
    configuration, make, q = CASES[name]
    X = points(3, q, seed=8)
    (_, expected, slope), (_, value, gradient) = (value_and_gradient(make, m, X) for m in pair(configuration))
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-7)
    if name not in DETACHED:
        torch.testing.assert_close(gradient, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.sampled
@pytest.mark.parametrize("options", [{"dictionary": ROWS}, {}], ids=["sparse", "exact"])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name, options, large):
    configuration, make, q = CASES[name]
    model = pair(configuration, **options)[1]
    X = points(3, q, seed=8)
    acquisition, value, gradient = value_and_gradient(make, model, X)
    direction = torch.randn(X.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    h = 1e-6
    with torch.no_grad():
        difference = (acquisition(X + h * direction) - acquisition(X - h * direction)) / (2 * h)
    assert torch.isfinite(value).all()
    assert bool((gradient != 0).any())
    torch.testing.assert_close((gradient * direction).sum(dim=(-2, -1)), difference, rtol=1e-3, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:.*is made dense:sparse_bo.errors.MemoryWarning")  # weighted sums of a list's outputs
@pytest.mark.parametrize("name", TWO_OUTPUTS)
def test_a_list_of_sparse_models_serves_several_objectives(name, scale):
    """With the same values whatever counts as many points: nothing here, candidate sets, baselines."""
    make, q = TWO_OUTPUTS[name]
    found = []
    for many in (4096, 10, 3):
        scale(joint={"dense": many})
        models = [pair("plain", dictionary=ROWS)[1], pair("plain", dictionary=ROWS + 1)[1]]
        found.append(value_and_gradient(make, ModelListGP(*models), points(3, q, seed=8))[1:])
    for value, gradient in found[1:]:
        torch.testing.assert_close(value, found[0][0], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(gradient, found[0][1], rtol=1e-4, atol=1e-6)


OTHERS = [("qLogEI", False), ("qUCB", False), ("qUCB", True), ("qKG", False), ("qKG", True)]


@pytest.mark.parametrize(
    ("name", "sequential"),
    [("LogEI", False), ("qLogEI", True), *(pytest.param(*other, marks=pytest.mark.slow) for other in OTHERS)],
)
def test_optimize_acqf_finds_what_a_grid_finds(name, sequential):
    make, _ = ONE_OUTPUT[name]
    model = pair("plain", dictionary=ROWS)[1]
    q = 1 if isinstance(make(model), AnalyticAcquisitionFunction) or name == "qKG" else 2
    torch.manual_seed(0)  # optimize_acqf draws starting points from torch's own generator
    X, value = optimize_acqf(make(model), BOUNDS, q=q, num_restarts=3, raw_samples=32, sequential=sequential)
    assert X.shape == (q, D)
    if q == 1 and name != "qKG":
        grid = torch.cartesian_prod(*[torch.linspace(0, 1, 41, dtype=torch.float64)] * D).unsqueeze(-2)
        with torch.no_grad():
            assert float(value) >= float(make(model)(grid).max()) - 1e-6
    else:
        assert torch.isfinite(value).all()


def test_optimize_acqf_over_discrete_choices_is_brute_force():
    model = pair("plain", dictionary=ROWS)[1]
    choices = points(50, seed=4)
    acquisition = LogExpectedImprovement(model, best_f=0.5)
    X, value = optimize_acqf_discrete(acquisition, q=1, choices=choices)
    values = acquisition(choices.unsqueeze(-2))
    torch.testing.assert_close(X, choices[values.argmax()].unsqueeze(0))
    torch.testing.assert_close(value, values.max(), rtol=0, atol=0)
    batch, _ = optimize_acqf_discrete(qLogExpectedImprovement(model, best_f=0.5, sampler=sampler()), q=3, choices=choices)
    assert len(torch.unique(batch, dim=0)) == 3


def test_batch_cross_validation_runs_on_the_sparse_model():
    train = CONFIGURATIONS["plain"]()
    folds = gen_loo_cv_folds(train["train_X"][:8], train["train_Y"][:8])
    options = {"dictionary": torch.tensor([0, 2, 5])}
    results = batch_cross_validation(SparseGP, ExactMarginalLogLikelihood, folds, model_init_kwargs=options)
    assert results.posterior.mean.shape == (8, 1, 1)
    assert bool((results.posterior.variance > 0).all())


def test_a_baseline_of_a_fantasy_has_the_gradient_by_its_points():
    _, model = pair("plain")
    model.posterior(points(2))
    baseline, ahead = points(5, seed=3), points(3, seed=4).unsqueeze(-2).requires_grad_()

    def value(X):
        fantasy = model.condition_on_observations(X, X.sum(dim=-1, keepdim=True))
        return fantasy.posterior(torch.cat([baseline.expand(3, 5, D), ahead], dim=-2)).mean.sum()

    def detached(X):
        return float(value(X).detach())

    X = points(1, seed=8).requires_grad_()
    (slope,) = torch.autograd.grad(value(X), X)
    step = torch.zeros_like(X)
    step[0, 0] = 1e-5
    expected = (detached(X.detach() + step) - detached(X.detach() - step)) / 2e-5
    assert float(slope[0, 0]) == pytest.approx(expected, rel=1e-4)
