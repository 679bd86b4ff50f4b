"""A subclass with its own ``forward`` learns from it and predicts from it, as a subclass of SingleTaskGP does."""

from functools import partial

import pytest
import torch
from botorch.acquisition import qKnowledgeGradient
from botorch.cross_validation import loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.additive_gp import OrthogonalAdditiveGP
from botorch.models.kernels.orthogonal_additive_kernel import OrthogonalAdditiveKernel
from botorch.models.transforms import Normalize
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from gpytorch.distributions import MultivariateNormal
from gpytorch.means import LinearMean
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator import to_linear_operator

from sparse_bo import SparseGP, optimize_batch
from tests.models.sparse_problems import D, data, make_sparse, points

TOLERANCE = 1e-8
ROWS = torch.arange(0, 30, 4)


def deep(base):
    """A deep kernel: a small network between inputs and kernel."""

    class Deep(base):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            with torch.random.fork_rng():
                torch.manual_seed(0)
                network = torch.nn.Sequential(torch.nn.Linear(D, 5), torch.nn.Tanh(), torch.nn.Linear(5, D))
            self.network = network.to(args[0] if args else options["train_X"])

        def forward(self, x):
            z = self.network(self.transform_inputs(x) if self.training else x)
            return MultivariateNormal(self.mean_module(z), self.covar_module(z))

    return Deep


def trended(base):
    """A mean that is no mean module: a trend far from the data."""

    class Trended(base):
        def forward(self, x):
            plain = super().forward(x)
            trend = 10.0 * (self.transform_inputs(x) if self.training else x).sum(dim=-1)
            return MultivariateNormal(plain.mean + trend, plain.lazy_covariance_matrix)

    return Trended


def built_whole(base):
    """A covariance that is a tensor from the start, with something of its own in it."""

    class Whole(base):
        def forward(self, x):
            x = self.transform_inputs(x) if self.training else x
            K = self.covar_module(x).to_dense()
            scale = 1.0 + x[..., 0]
            return MultivariateNormal(self.mean_module(x), to_linear_operator(scale.unsqueeze(-1) * K * scale.unsqueeze(-2)))

    return Whole


KINDS = {"deep kernel": deep, "custom mean": trended, "whole matrix": built_whole}
TRAINS = {
    "plain": {},
    "normalized": {"input_transform": lambda: Normalize(D)},
    "known noise": {"noise": True},
    "two outputs": {"outputs": 2},
}


def pair(kind, train="plain", **own):
    options = dict(TRAINS[train])
    transform = {"input_transform": options.pop("input_transform")} if "input_transform" in options else {}
    models = []
    for base, extra in ((SingleTaskGP, {}), (SparseGP, own)):
        made = {name: make() for name, make in transform.items()}
        kind_of = KINDS[kind](base)
        model = kind_of if base is SingleTaskGP else partial(make_sparse, kind=kind_of)
        models.append(model(**data(**options), **made, **extra))
    exact, sparse = models
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.mul_(0.9)
    sparse.load_state_dict(exact.state_dict())
    return exact, sparse


def agree(one, two, tolerance=TOLERANCE):
    torch.testing.assert_close(one.mean, two.mean, rtol=0, atol=tolerance)
    torch.testing.assert_close(one.variance, two.variance, rtol=0, atol=tolerance)
    ours, theirs = (p.distribution.covariance_matrix for p in (one, two))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


@pytest.mark.sampled
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("train", TRAINS)
@pytest.mark.parametrize("shape", [(0,), (3,), (4, 1), (2, 3, 2)], ids=str)
def test_posterior_is_that_of_the_exact_subclass(kind, train, shape):
    exact, sparse = pair(kind, train)
    T = 3.0 * points(*shape)  # also far from the data, where the prior alone speaks
    if shape == (0,):
        assert sparse.posterior(T).mean.shape == exact.posterior(T).mean.shape
        return
    agree(sparse.posterior(T), exact.posterior(T))


@pytest.mark.parametrize("kind", KINDS)
def test_conditioning_fantasies_and_leave_one_out_follow(kind):
    exact, sparse = pair(kind)
    results = []
    for model in (sparse, exact):
        model.posterior(points(1))
        conditioned = model.condition_on_observations(points(2), torch.ones(2, 1, dtype=torch.float64))
        fantasy = model.fantasize(points(4, 1), SobolQMCNormalSampler(torch.Size([3]), seed=0))
        results.append((conditioned.posterior(points(5)), fantasy.posterior(points(5)), loo_cv(model).posterior))
    for one, two in zip(*results, strict=True):
        agree(one, two)


@pytest.mark.parametrize("kind", KINDS)
def test_over_a_dictionary_it_is_the_dense_dtc_posterior(kind):
    exact, sparse = pair(kind, dictionary=ROWS)
    exact.eval()
    T = points(6)
    (X,), y = exact.train_inputs, exact.train_targets
    joint = exact.forward(torch.cat([X, T]))
    K, mean = joint.covariance_matrix.detach(), joint.mean.detach()
    n = len(X)
    Q = K[:, ROWS] @ torch.linalg.inv(K[ROWS][:, ROWS]) @ K[ROWS]
    C = torch.linalg.inv(Q[:n, :n] + exact.likelihood.noise.detach() * torch.eye(n, dtype=torch.float64))
    sparse.eval()
    posterior = sparse(T)
    torch.testing.assert_close(posterior.mean, mean[n:] + Q[n:, :n] @ C @ (y - mean[:n]), rtol=0, atol=TOLERANCE)
    expected = K[n:, n:] - Q[n:, :n] @ C @ Q[:n, n:]
    torch.testing.assert_close(posterior.covariance_matrix, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fit", ["subset", "vfe", "dtc"])
def test_learning_follows_and_its_gradients_reach_every_parameter(kind, fit, scale):
    scale(learning={"subset": 12})
    exact, sparse = pair(kind, "normalized", dictionary=ROWS, fit=fit)
    exact.train()
    sparse.train()
    marginal = sparse.likelihood(sparse(*sparse.train_inputs), *sparse.train_inputs)
    value = marginal.log_prob(sparse.train_targets)
    dense = exact(*exact.train_inputs)
    K, residuals = dense.covariance_matrix, exact.train_targets - dense.mean
    noise = exact.likelihood.noise * torch.eye(len(K), dtype=torch.float64)
    normal = torch.distributions.MultivariateNormal
    if fit == "subset":
        rows = sparse.learner.rows(sparse)
        expected = normal(torch.zeros(12).double(), (K + noise)[rows][:, rows]).log_prob(residuals[rows]) * 30 / 12
    else:
        Q = K[:, ROWS] @ torch.linalg.inv(K[ROWS][:, ROWS]) @ K[ROWS]
        expected = normal(torch.zeros(30).double(), Q + noise).log_prob(residuals)
        expected = expected - (0.5 * (K - Q).diagonal().sum() / exact.likelihood.noise.squeeze() if fit == "vfe" else 0.0)
    torch.testing.assert_close(value, expected, rtol=1e-8, atol=0)
    names = [name for name, parameter in exact.named_parameters()]
    ours = torch.autograd.grad(value, list(sparse.parameters()))
    theirs = torch.autograd.grad(expected, list(exact.parameters()))
    for name, one, two in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-7, msg=lambda text, name=name: f"{name}: {text}")
    assert sparse.training


def test_a_fitted_deep_kernel_predicts_what_it_has_learned(scale):
    scale(learning={"subset": 60})
    model = make_sparse(**data(n=200), max_dictionary=100, kind=deep(SparseGP))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), optimizer_kwargs={"options": {"maxiter": 40}})
    test = data(n=100, seed=3)
    rmse = (model.posterior(test["train_X"]).mean - test["train_Y"]).square().mean().sqrt()
    assert rmse < 0.2  # the noise has a standard deviation of 0.1


def test_far_from_the_data_the_own_mean_speaks():
    _, sparse = pair("custom mean", dictionary=ROWS)
    far = torch.full((1, D), 30.0, dtype=torch.float64)
    scale = sparse.outcome_transform.stdvs.item()
    assert sparse.posterior(far).mean.item() > 500 * scale


def test_networks_of_single_precision_are_asked_in_theirs():
    with pytest.warns(match="float"):
        model = deep(SparseGP)(**{name: value.float() for name, value in data().items()}, dictionary=ROWS)
    wide = deep(SparseGP)(**data(), dictionary=ROWS)
    wide.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    torch.testing.assert_close(
        model.posterior(points(5).float()).mean.double(),
        wide.posterior(points(5)).mean,
        rtol=0,
        atol=5e-2,  # the jitter of float32, on points that the network brings close together
    )


def test_look_ahead_and_batches_go_through_it():
    _, sparse = pair("deep kernel", dictionary=ROWS)
    acquisition = qKnowledgeGradient(sparse, num_fantasies=4)
    assert torch.isfinite(acquisition(points(2, 5))).all()
    bounds = torch.tensor([[0.0] * D, [1.0] * D], dtype=torch.float64)
    one, values = optimize_batch(
        sparse, bounds, max_q=3, num_restarts=2, raw_samples=16, generator=torch.Generator().manual_seed(0)
    )
    variance = sparse.posterior(one[:1]).variance
    torch.testing.assert_close(
        values[0], sparse.posterior(one[:1]).mean.squeeze() + 2.0 * variance.sqrt().squeeze(), rtol=1e-6, atol=0
    )


def test_paths_are_refused_with_a_reason():
    with pytest.raises(UnsupportedError, match="forward"):
        draw_matheron_paths(pair("deep kernel")[1], torch.Size([2]))


@pytest.mark.parametrize("name", ["_get_train_prior_distribution", "_get_test_prior_mean_and_covariances"])
def test_an_own_way_to_predict_that_nothing_would_call_is_refused(name):
    def own(self, *args, **kwargs):
        raise AssertionError("never called")

    with pytest.raises(UnsupportedError, match=f"Own overrides {name}.*override forward"):
        type("Own", (SparseGP,), {name: own})(**data())


def test_components_of_an_additive_model_are_refused_rather_than_summed():
    class SparseAdditive(OrthogonalAdditiveGP, SparseGP):
        pass

    with pytest.raises(UnsupportedError, match="SparseAdditive overrides _get_test_prior_mean_and_covariances"):
        SparseAdditive(**data())
    kernel = OrthogonalAdditiveKernel(dim=D, dtype=torch.float64)
    sparse, exact = SparseGP(**data(), covar_module=kernel), OrthogonalAdditiveGP(**data(), covar_module=kernel)
    agree(sparse.posterior(points(3)), exact.posterior(points(3)))


def test_a_forward_that_returns_something_else_is_refused():
    class Strange(SparseGP):
        def forward(self, x):
            return self.covar_module(x)

    with pytest.raises(UnsupportedError, match="MultivariateNormal"):
        Strange(**data()).posterior(points(1))


def test_a_covariance_that_pytorch_factorises_is_refused_with_what_to_do():
    class Plain(SparseGP):
        def forward(self, x):
            return MultivariateNormal(self.mean_module(x), self.covar_module(x).to_dense())

    with pytest.raises(UnsupportedError, match="to_linear_operator"):
        Plain(**data(), dictionary=ROWS).posterior(points(1))


def test_without_an_own_forward_the_kernel_is_asked_directly():
    model = SparseGP(**data(), mean_module=LinearMean(D))
    assert model.prior_kernel is model.covar_module
    assert not isinstance(deep(SparseGP)(**data()).prior_kernel, type(model.covar_module))
