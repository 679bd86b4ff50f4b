"""With every input in the dictionary, SparseGP is SingleTaskGP on every method."""

import copy

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import ModelListGP
from botorch.models.transforms import Log
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo.models import JointSettings, SparseGP, SparseSettings
from tests.models.sparse_problems import CONFIGURATIONS, N, data, pair, points

TOLERANCE = 1e-8
"""Of values and gradients. Both sides factorise covariances with noise about 0.01, so round-off is far below it."""

pytestmark = pytest.mark.filterwarnings(
    # Some data here are deliberately not standardised ("raw outcomes"), as users' data may be.
    "ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning"
)


def agree(one, two, *, joint=True):
    torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(one.variance, two.variance, rtol=0, atol=TOLERANCE)
    if joint:
        ours, theirs = (p.distribution.covariance_matrix for p in (one, two))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=TOLERANCE)


def batch_of(model, *shape):
    """Points that broadcast against the model: a batch dimension of its own size at the end."""
    return points(*shape[:-1], *model.batch_shape, shape[-1])


@pytest.mark.sampled
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
@pytest.mark.parametrize("shape", [(1,), (3,), (4, 1), (5, 3), (2, 3, 2)], ids=str)
def test_posterior_is_the_exact_one(configuration, shape):
    exact, sparse = pair(configuration)
    X = batch_of(exact, *shape)
    agree(sparse.posterior(X), exact.posterior(X))


@pytest.mark.parametrize("configuration", ["plain", "warped inputs"])
@pytest.mark.parametrize("shape", [(0,), (0, 1), (0, 3), (2, 0, 3), (3, 0)], ids=str)
def test_no_points_have_an_empty_posterior(shape, configuration):
    exact, sparse = pair(configuration)
    X = batch_of(exact, *shape)
    agree(sparse.posterior(X), exact.posterior(X))
    with torch.no_grad():
        agree(sparse.posterior(X), exact.posterior(X))


@pytest.mark.parametrize("configuration", ["plain", "known noise", "batch", "two outputs", "batch of two outputs"])
def test_posterior_broadcasts_points_without_the_models_batch(configuration):
    exact, sparse = pair(configuration)
    agree(sparse.posterior(points(3)), exact.posterior(points(3)))


@pytest.mark.parametrize("dense", [4096, 2], ids=["few points", "many points"])
@pytest.mark.parametrize("configuration", ["plain", "two outputs"])
def test_points_of_a_narrower_dtype_have_the_posterior_of_wider_ones(configuration, dense, scale):
    """As of float32 bounds or whole-numbered choices beside float64 data, which GPyTorch joins."""
    scale(joint={"dense": dense})
    exact, sparse = pair(configuration)
    for X in (points(3).float(), torch.tensor([[0, 1], [1, 0], [1, 1]])):
        agree(sparse.posterior(X), exact.posterior(X), joint=dense > 2)
    sampler = SobolQMCNormalSampler(torch.Size([2]), seed=0)
    agree(*(model.fantasize(points(1).float(), sampler).posterior(points(1)) for model in (sparse, exact)))
    drawn = []
    for model in (sparse, exact):
        torch.manual_seed(0)
        drawn.append(draw_matheron_paths(model, torch.Size([2]))(points(3).float()))
    torch.testing.assert_close(*drawn, rtol=0, atol=1e-5)


@pytest.mark.parametrize("configuration", ["plain", "known noise", "two outputs, known noise", "batch"])
def test_observation_noise_in_all_its_forms(configuration):
    exact, sparse = pair(configuration)
    X = batch_of(exact, 2)
    noise = 0.1 + torch.rand(*X.shape[:-1], exact.num_outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for observation_noise in (True, noise):
        agree(sparse.posterior(X, observation_noise=observation_noise), exact.posterior(X, observation_noise=observation_noise))


@pytest.mark.parametrize("dense", [4096, 2], ids=["few points", "many points"])
@pytest.mark.parametrize("transform", ["standardized", "logarithms", "none"])
@pytest.mark.parametrize("chosen", [[2, 1, 0], [1, 0], [0, 2], [2], [-1, 1], []], ids=str)
def test_chosen_outputs_are_those_of_all_in_the_order_asked_for_and_in_their_own_units(dense, transform, chosen):
    """BoTorch un-standardises the first outputs chosen by the mean and the spread of the first outputs."""
    given, options = data(outputs=3), {} if transform == "standardized" else {"outcome_transform": None}
    given["train_Y"] = 10.0 + given["train_Y"] * torch.tensor([1.0, 100.0, 0.1], dtype=torch.float64)
    if transform == "logarithms":
        given["train_Y"], options = given["train_Y"].exp().clamp_max(1e3), {"outcome_transform": Log()}
    model = SparseGP(**given, **options, settings=SparseSettings(joint=JointSettings(dense=dense)))
    noise = 0.1 + torch.rand(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for observation_noise in (False, True, noise):
        some = model.posterior(points(3), output_indices=chosen, observation_noise=observation_noise)
        every = model.posterior(points(3), observation_noise=observation_noise)
        torch.testing.assert_close(some.mean, every.mean[..., chosen or [0, 1, 2]])
        torch.testing.assert_close(some.variance, every.variance[..., chosen or [0, 1, 2]])
        base = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
        drawn = every.rsample_from_base_samples(torch.Size([2]), base)[..., chosen or [0, 1, 2]]
        torch.testing.assert_close(some.rsample_from_base_samples(torch.Size([2]), base[..., chosen or [0, 1, 2]]), drawn)


def test_an_output_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="Index 2 out of bounds"):
        pair("two outputs")[1].posterior(points(3), output_indices=[0, 2])


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_conditioning_is_the_exact_one(configuration):
    exact, sparse = pair(configuration)
    X = batch_of(exact, 2)
    Y = torch.ones(*X.shape[:-1], exact.num_outputs, dtype=torch.float64)
    options = {"noise": torch.full_like(Y, 0.05)} if "noise" in configuration else {}
    for model in (exact, sparse):
        model.posterior(X)
    ours, theirs = (model.condition_on_observations(X, Y, **options) for model in (sparse, exact))
    T = batch_of(exact, 3)
    agree(ours.posterior(T), theirs.posterior(T))
    torch.testing.assert_close(ours.train_inputs[0], theirs.train_inputs[0])
    torch.testing.assert_close(ours.train_targets, theirs.train_targets)
    assert ours.batch_shape == theirs.batch_shape
    assert ours.num_outputs == theirs.num_outputs


@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_nested_fantasies_are_the_exact_ones(configuration):
    exact, sparse = pair(configuration)
    first, second = batch_of(exact, 5, 2), batch_of(exact, 3, 5, 1)
    fantasies = []
    for model in (sparse, exact):
        for step, X in enumerate((first, second)):
            model = model.fantasize(X, SobolQMCNormalSampler(torch.Size([3 + step]), seed=step))
        fantasies.append(model)
    T = batch_of(exact, 4, 3, 5, 2)
    agree(fantasies[0].posterior(T), fantasies[1].posterior(T))
    assert fantasies[0].batch_shape == fantasies[1].batch_shape


# BoTorch's fantasize conditions on no points outside of its fantasize_flag: SingleTaskGP warns here as well.
@pytest.mark.filterwarnings("ignore:Non-strict enforcement:botorch.exceptions.BotorchTensorDimensionWarning")
def test_fantasies_without_points_are_the_model():
    exact, sparse = pair("plain")
    sampler = SobolQMCNormalSampler(torch.Size([3]), seed=0)
    for model in (exact, sparse):
        model.posterior(points(1))
    ours, theirs = (model.fantasize(points(0), sampler) for model in (sparse, exact))
    agree(ours.posterior(points(2)), theirs.posterior(points(2)))


@pytest.mark.parametrize("configuration", ["two outputs", "two outputs, known noise", "batch of two outputs"])
def test_subset_of_outputs_is_the_exact_one(configuration):
    exact, sparse = pair(configuration)
    sparse.posterior(batch_of(sparse, 1))  # a cache of two outputs that the subset must not use
    X = batch_of(exact, 3)
    agree(sparse.subset_output([1]).posterior(X), exact.subset_output([1]).posterior(X))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("configuration", ["plain", "known noise", "two outputs", "batch"])
def test_learning_small_data_is_the_exact_one(configuration):
    models = pair(configuration)
    for model in models:
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-8)


def test_state_dicts_are_interchangeable():
    exact, sparse = pair("normalized inputs", dictionary=torch.arange(3))
    assert exact.state_dict().keys() == sparse.state_dict().keys()
    assert {name for name, _ in exact.named_parameters()} == {name for name, _ in sparse.named_parameters()}
    exact.load_state_dict(sparse.state_dict())


def test_acquisition_function_and_its_gradient_are_the_exact_ones():
    values, gradients = [], []
    for model in pair("plain"):
        X = points(4, 1).requires_grad_()
        value = LogExpectedImprovement(model, best_f=1.0)(X)
        values.append(value.detach())
        gradients.append(torch.autograd.grad(value.sum(), X)[0])
    torch.testing.assert_close(values[1], values[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-8)


def test_the_posterior_of_a_model_list_is_the_exact_one():
    lists = [ModelListGP(*models) for models in zip(pair("plain"), pair("known noise"), strict=True)]
    agree(lists[1].posterior(points(3)), lists[0].posterior(points(3)))


def test_external_points_at_all_inputs_give_the_exact_posterior():
    exact, sparse = pair("known noise", dictionary=data(noise=True)["train_X"])
    posterior, expected = sparse.posterior(points(5)), exact.posterior(points(5))
    # K_DD without noise is nearly singular: the DTC algebra cannot do better than the jitter of its factor.
    torch.testing.assert_close(posterior.mean, expected.mean, rtol=0, atol=1e-5)
    torch.testing.assert_close(posterior.variance, expected.variance, rtol=0, atol=1e-5)


def test_copy_of_the_exact_model_is_independent():
    _, sparse = pair("plain")
    before = sparse.posterior(points(2)).mean.detach()
    other = copy.deepcopy(sparse)
    other.set_train_data(targets=torch.zeros(N, dtype=torch.float64))
    assert not torch.allclose(other.posterior(points(2)).mean, before)
    torch.testing.assert_close(sparse.posterior(points(2)).mean, before)
    assert isinstance(other, SparseGP)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.InputDataWarning")  # neither in the unit cube nor in float64
@pytest.mark.parametrize("far", [100.0, 1e4])
@pytest.mark.parametrize("kernel", [RBFKernel, MaternKernel])
def test_the_variance_in_float32_is_that_of_float64_far_from_the_origin(kernel, far):
    """Products of inputs that are not centred lose the digits of their differences."""
    generator = torch.Generator().manual_seed(0)
    X, T = (far + torch.rand(n, 2, generator=generator) for n in (300, 40))
    Y = torch.sin(6.0 * (X[:, :1] - far)) + 0.1 * torch.randn(300, 1, generator=generator)
    with torch.no_grad():
        narrow, wide = (
            SparseGP(X.to(dtype), Y.to(dtype), covar_module=ScaleKernel(kernel())).eval().posterior(T.to(dtype)).variance
            for dtype in (torch.float32, torch.float64)
        )
    torch.testing.assert_close(narrow.double(), wide, rtol=0.02, atol=0.0)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.InputDataWarning")
def test_learning_does_not_depend_on_the_origin():
    generator = torch.Generator().manual_seed(0)
    X = torch.randint(2**20, (100, 2), generator=generator).double() / 2**20  # exact, however far they are moved
    Y = torch.sin(6.0 * X[:, :1]) + X[:, 1:] + 0.1 * torch.randn(100, 1, generator=generator, dtype=torch.float64)
    noises = []
    for far in (0.0, 1e7):
        model = SparseGP(X + far, Y, covar_module=ScaleKernel(MaternKernel(ard_num_dims=2)))
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        noises.append(model.likelihood.noise.item())
    assert noises[1] == pytest.approx(noises[0], rel=1e-3)
