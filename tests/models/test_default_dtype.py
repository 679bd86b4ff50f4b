"""A user's default dtype changes nothing of a model whose data and modules have their own."""

import copy

import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.fit import fit_gpytorch_mll
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo.dictionary import LeverageSampler, UniformSampler
from sparse_bo.models import SparseGP, VecchiaGP, prune_baseline
from tests.models.sparse_problems import data, make_sparse, points

T = points(12, seed=5)
TRAIN = data(n=60)
MODULES = {name: getattr(SparseGP(**TRAIN), name) for name in ("likelihood", "covar_module", "mean_module")}


@pytest.fixture
def small(scale):
    scale(learning={"subset": 40, "coarse": 20, "coarse_from": 30}, joint={"dense": 10, "pivots": 6, "block": 4})


def make(**options):
    return make_sparse(**{**TRAIN, **copy.deepcopy(MODULES), **options}).eval()


def moments(model):
    posterior = model.posterior(T)
    return posterior.mean, posterior.variance


def fitted():
    model = make(max_dictionary=15, fit="subset").train()
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return [*moments(model.eval()), *model.parameters()]


def grown():
    first = make(train_X=TRAIN["train_X"][:-5], train_Y=TRAIN["train_Y"][:-5], max_dictionary=15)
    return moments(make(previous=first))


def conditioned():
    model = make(max_dictionary=15)
    model.posterior(T)
    return moments(model.condition_on_observations(T[:2], TRAIN["train_Y"][:2]))


def many():
    model = make(max_dictionary=15)
    torch.manual_seed(0)
    covariance = model.posterior(T).distribution.lazy_covariance_matrix
    return [covariance.zero_mean_mvn_samples(2), covariance.solve(T)]


def statistics():
    model = make(max_dictionary=15)
    left_out, certificate = model.leave_one_out().posterior, model.certify()
    return [left_out.mean, left_out.variance, torch.tensor([certificate.ratio, certificate.factor], dtype=torch.float64)]


def vecchia():
    model = VecchiaGP(**TRAIN, neighbors=5, covar_module=copy.deepcopy(MODULES["covar_module"]))
    model.likelihood = copy.deepcopy(MODULES["likelihood"])
    return moments(model.eval())


def pruned():
    torch.manual_seed(0)
    X, model = TRAIN["train_X"], make(max_dictionary=15)
    several = make(
        train_Y=torch.cat([TRAIN["train_Y"], X[:, :1]], dim=-1), covar_module=None, likelihood=None, mean_module=None
    )
    front = several.posterior(X).mean.mean(dim=0)
    constraints = [lambda values: values[..., 0] - 0.5, lambda values: values[..., 1] - 0.9]
    transform = ScalarizedPosteriorTransform(torch.ones(2, dtype=torch.float64))
    return [
        prune_baseline(model, X),
        prune_baseline(several, X, posterior_transform=transform, num_samples=64),
        prune_baseline(several, X, ref_point=front, num_samples=64),
        prune_baseline(several, X, ref_point=front, num_samples=64, constraints=constraints),
        prune_baseline(several, X, ref_point=front, num_samples=64, max_frac=0.1),
        prune_baseline(model, X, constraints=[lambda values: values[..., 0] + 9.0, lambda values: values[..., 0] + 8.0]),
    ]


USES = {
    "exact": lambda: moments(make()),
    "leverages": lambda: moments(make(max_dictionary=15)),
    "LeverageSampler": lambda: moments(make(dictionary=LeverageSampler())),
    "UniformSampler": lambda: moments(make(dictionary=UniformSampler(size=9))),
    "fitted": fitted,
    "grown": grown,
    "conditioned": conditioned,
    "many": many,
    "statistics": statistics,
    "Vecchia": vecchia,
    "pruned": pruned,
}


@pytest.mark.sampled(11)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("use", USES)
def test_the_default_dtype_changes_no_value(use, dtype, small):
    before = torch.get_default_dtype()
    with torch.random.fork_rng():
        expected = [part.detach() for part in USES[use]()]
        try:
            torch.set_default_dtype(dtype)
            found = USES[use]()
        finally:
            torch.set_default_dtype(before)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == torch.float64 or not one.is_floating_point()
        assert torch.equal(one.detach(), other)
