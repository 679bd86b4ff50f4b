"""Models on a second device: posteriors, gradients, draws and batches are those on the CPU."""

from collections.abc import Callable

import pytest
import torch
from botorch import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch import Tensor

from sparse_bo import AskTell, SparseGP, gradient_subset, optimize_batch
from sparse_bo.dictionary import KMeansPlusPlusSampler, LeverageSampler, RecursiveRLSSampler
from sparse_bo.models import ProductSizes, RefinementSettings, SparseSettings, VecchiaGP
from sparse_bo.models.sparse_gp.refinement import shorten
from sparse_bo.policies import QFFTS, SGPTS
from sparse_bo.seeding import seeded
from tests.builders import unit_box
from tests.models.sparse_problems import data, points
from tests.policies.builders import keep_parameters
from tests.pretend_device import PRETEND

Run = Callable[[torch.device], list[Tensor]]


def model(device: torch.device, dictionary: object = None, **options) -> SparseGP:
    moved = {name: value.to(device) for name, value in data(noise=options.pop("noise", False)).items()}
    return SparseGP(**moved, dictionary=dictionary or RecursiveRLSSampler(size=8), **options)


def posterior(**options) -> Run:
    def run(device: torch.device) -> list[Tensor]:
        gp, x = model(device, **options), points(5).to(device).requires_grad_()
        joint, single = gp.posterior(x), gp.posterior(x.detach().unsqueeze(-2), observation_noise=True)
        (joint.mean.sum() + joint.variance.sum()).backward()
        return [joint.mean, joint.distribution.covariance_matrix, single.mean, single.variance, x.grad]

    return run


def likelihood(device: torch.device) -> list[Tensor]:
    gp = model(device, fit="vfe").train()
    value = ExactMarginalLogLikelihood(gp.likelihood, gp)(gp(*gp.train_inputs), gp.train_targets)
    value.backward()
    return [value, *(parameter.grad for parameter in gp.parameters())]


def fit(device: torch.device) -> list[Tensor]:
    gp = model(device)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    predicted = gp.posterior(points(5).to(device))
    return [predicted.mean, predicted.variance]


def shortened(device: torch.device) -> list[Tensor]:
    gp = model(device).train()
    gp.covar_module.lengthscale, gp.likelihood.noise = 0.5, 0.01
    shorten(gp, size=8, generator=torch.Generator().manual_seed(0), settings=RefinementSettings())
    return [gp.covar_module.lengthscale]


def fantasies(device: torch.device) -> list[Tensor]:
    gp, x = model(device), points(3).to(device)
    gp.posterior(x)
    ahead = gp.fantasize(x, sampler=SobolQMCNormalSampler(torch.Size([2]), seed=1)).posterior(points(4, seed=2).to(device))
    told = gp.condition_on_observations(x, x[:, :1]).posterior(points(4, seed=2).to(device))
    return [ahead.mean, ahead.variance, told.mean, told.variance]


def paths(device: torch.device) -> list[Tensor]:
    gp = model(device)
    with seeded(torch.Generator().manual_seed(0), device=device):
        drawn = draw_matheron_paths(gp, torch.Size([3]))
    return [drawn(points(4).to(device))]


def large_root(device: torch.device) -> list[Tensor]:
    """Of an exact posterior, whose root is multiplied by blocks: variances, a fantasy's, rows after a baseline and paths."""
    X, Y = (value.to(device) for value in data().values())
    settings = SparseSettings(products=ProductSizes(block=11, large=22, recent=4))
    gp, x = SparseGP(X, Y, settings=settings), points(3, 1).to(device).requires_grad_()
    several = [gp.posterior(x).variance, gp.condition_on_observations(x, x[..., :1]).posterior(x).variance]
    baseline = points(5, seed=2).to(device)
    several.append(gp.posterior(torch.cat([baseline.expand(3, 5, 2), x], dim=-2)).distribution.covariance_matrix)
    (gradient,) = torch.autograd.grad(sum(part.square().sum() for part in several), x)
    with torch.no_grad():
        several.append(gp.posterior(points(6, 1).to(device)).variance)
    with seeded(torch.Generator().manual_seed(0), device=device):
        drawn = draw_matheron_paths(gp, torch.Size([3]))
    return [*several, gradient, drawn(points(4).to(device))]


def vecchia(device: torch.device) -> list[Tensor]:
    moved = {name: value.to(device) for name, value in data().items()}
    gp, x = VecchiaGP(**moved, neighbors=6), points(4).to(device).requires_grad_()
    predicted = gp.posterior(x)
    predicted.mean.sum().backward()
    return [predicted.mean, predicted.variance, x.grad, gp.log_likelihood()]


def subset(device: torch.device) -> list[Tensor]:
    X, Y = (value.to(device) for value in data().values())
    return [gradient_subset(SingleTaskGP(X, Y), X, Y, size=10, generator=torch.Generator().manual_seed(0))]


def batch(device: torch.device) -> list[Tensor]:
    options = {"ratio_threshold": 2.0, "max_q": 4, "num_restarts": 2, "raw_samples": 8}
    X, values = optimize_batch(model(device), unit_box(device=device), generator=torch.Generator().manual_seed(0), **options)
    return [X, values]


def thompson(policy: type) -> Run:
    def run(device: torch.device) -> list[Tensor]:
        chosen = policy(initial_design=4, num_restarts=1, raw_samples=8, fitter=keep_parameters)
        result = AskTell(policy=chosen, bounds=unit_box(device=device), seed=0).run(lambda X: X[:, 0] - X[:, 1].square(), 5)
        return [torch.tensor(result.history.points)]

    return run


RUNS: dict[str, Run] = {
    "posterior": posterior(),
    "posterior, known noise": posterior(noise=True, dictionary=KMeansPlusPlusSampler(size=7)),
    "posterior, leverage scores": posterior(dictionary=LeverageSampler()),
    "likelihood": likelihood,
    "fit": fit,
    "shortened": shortened,
    "fantasies": fantasies,
    "paths": paths,
    "large root": large_root,
    "vecchia": vecchia,
    "gradient subset": subset,
    "optimize_batch": batch,
    "s-gp-ts": thompson(SGPTS),
    "qff-ts": thompson(QFFTS),
}


SAME = ("vecchia", "gradient subset", "s-gp-ts", "qff-ts")
"""Others' kernels are evaluated in fewer launches off the CPU, by another formula: equal to rounding."""
SEARCHES = {"optimize_batch": 1e-5, "s-gp-ts": 1e-5, "qff-ts": 1e-5, "fit": 1e-4}
"""Where other round-off lets a search end elsewhere, and how far."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RUNS)
def test_results_are_those_on_the_cpu(name, accelerator):
    expected = RUNS[name](torch.device("cpu"))
    got = [value.cpu() for value in RUNS[name](accelerator)]
    pretended = accelerator == PRETEND and not torch.cuda.is_available()
    relative = 0.0 if pretended and name in SAME else 1e-9
    absolute = 1e-3 * relative if pretended else SEARCHES.get(name, 1e-3 * relative)
    for value, other in zip(expected, got, strict=True):
        torch.testing.assert_close(other, value, rtol=max(relative, absolute), atol=absolute)


def test_a_model_that_has_grown_moves_to_another_device(accelerator):
    if accelerator == PRETEND and not torch.cuda.is_available():
        pytest.skip("modules do not move off the pretended device: pytest --device second")
    whole = data()
    first, more = ({name: value[part] for name, value in whole.items()} for part in (slice(30), slice(None)))
    here, there = torch.device("cpu"), accelerator
    for start, end in ((there, here), (here, there)):
        on = [{name: value.to(start) for name, value in some.items()} for some in (first, more)]
        grown = SparseGP(**on[1], previous=SparseGP(**on[0]))
        before = grown.posterior(points(5).to(start)).mean.cpu()
        after = grown.to(end).posterior(points(5).to(end)).mean
        assert after.device.type == end.type
        torch.testing.assert_close(after.cpu(), before, rtol=1e-6, atol=1e-8)
