"""A calibrated model: c times the covariance at the same mean, everywhere, with the c that held-out rows ask for."""

import copy

import pytest
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.sampling.pathwise import draw_matheron_paths

from sparse_bo.gp.diagnostics import variance_factor
from sparse_bo.models import SparseGP, SparseMultiTaskGP
from tests.models.sparse_problems import CONFIGURATIONS, data, dense_dtc, noise_of, pair, points

ROWS = torch.tensor([2, 5, 11, 17, 25])
TOLERANCE = 1e-8

pytestmark = pytest.mark.filterwarnings(
    "ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning"
)


def held(configuration, n=400):
    """Rows that the model has not seen, with its batch shape and outputs, and no noise."""
    given = CONFIGURATIONS[configuration]()
    X = points(*given["train_X"].shape[:-2], n, seed=7)
    Y = torch.stack([torch.sin((3 + k) * X).sum(dim=-1) for k in range(given["train_Y"].shape[-1])], dim=-1)
    return X, Y, torch.zeros_like(Y)


def squared_z(model, X, Y):
    with torch.no_grad():
        posterior = model.posterior(X)
        return ((Y - posterior.mean).square() / posterior.variance).mean(dim=-2)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("configuration", list(CONFIGURATIONS))
@pytest.mark.parametrize("rows", [ROWS, None], ids=["sparse", "exact"])
def test_covariances_are_scaled_and_means_stay(configuration, rows):
    model = pair(configuration, dictionary=rows)[1]
    X, Y, Yvar = held(configuration)
    before = squared_z(model, X, Y)
    scaled = model.calibrated(X, Y, Yvar)
    torch.testing.assert_close(scaled.covar_module.outputscale.reshape(before.shape), before, rtol=1e-6, atol=0)
    torch.testing.assert_close(squared_z(scaled, X, Y), torch.ones_like(before), rtol=1e-6, atol=0)
    torch.testing.assert_close(squared_z(model, X, Y), before)  # this one is as it was
    T = points(*X.shape[:-2], 6)
    with torch.no_grad():
        ours, theirs = scaled(*inputs(scaled, T)), model(*inputs(model, T))
        factor = scaled.covar_module.outputscale[..., None, None]
        torch.testing.assert_close(ours.mean, theirs.mean)
        torch.testing.assert_close(ours.covariance_matrix, factor * theirs.covariance_matrix)
        noise = scaled.posterior(T, observation_noise=True).variance - scaled.posterior(T).variance
        torch.testing.assert_close(noise, model.posterior(T, observation_noise=True).variance - model.posterior(T).variance)
        scaled.prediction_strategy = None  # from kernel, data and noise, not from the posterior before
        anew = scaled(*inputs(scaled, T))
        torch.testing.assert_close(anew.mean, theirs.mean, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(anew.covariance_matrix, factor * theirs.covariance_matrix, rtol=0, atol=TOLERANCE)


def inputs(model, T):
    """Return points as the posterior takes them: transformed, with a dimension of outputs."""
    T = model.transform_inputs(T)
    return (T.unsqueeze(-3) if model.num_outputs > 1 else T,)


def test_it_is_the_dense_posterior_of_the_scaled_kernel_and_noise():
    model = pair("plain", dictionary=ROWS)[1]
    scaled = model.calibrated(*held("plain"))
    c, noise = float(scaled.covar_module.outputscale), float(noise_of(model)[0])
    dense = SparseGP(**data(), covar_module=scaled.covar_module, dictionary=ROWS)
    dense.likelihood.noise, dense.mean_module.constant = c * noise, model.mean_module.constant.detach()
    dense.eval()
    T = points(6)
    mean, covariance = dense_dtc(dense, T, ROWS)
    with torch.no_grad():
        found = scaled(T)
    torch.testing.assert_close(found.mean, mean.detach(), rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(found.covariance_matrix, covariance.detach(), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("configuration", ["plain", "two outputs"])
def test_without_rows_it_is_by_leave_one_out(configuration):
    given = {**data(n=300, outputs=2 if configuration == "two outputs" else 1), "dictionary": ROWS}
    model = SparseGP(**given).eval()
    kept = torch.ones(300, dtype=torch.bool)
    kept[ROWS] = False
    scaled = model.calibrated()
    results = scaled.leave_one_out(observation_noise=False, untransform=False)
    errors = (results.observed_Y - results.posterior.mean)[..., 0, :][kept]
    variances = results.posterior.variance[..., 0, :][kept]
    noise = scaled.likelihood.noise.detach().reshape(-1)

    def density(share):
        total = share * variances + noise
        return (-0.5 * (total.log() + errors.square() / total)).sum(dim=0)

    assert bool((density(1.0) > torch.maximum(density(0.98), density(1.02))).all())
    torch.testing.assert_close(
        scaled.calibrated().covar_module.outputscale, torch.ones_like(noise).squeeze(), rtol=1e-4, atol=0
    )


def test_of_an_exact_posterior_all_rows_are_held_out():
    model = SparseGP(**data(n=300)).eval()
    results = model.leave_one_out(observation_noise=False, untransform=False)
    errors = (results.observed_Y - results.posterior.mean).flatten()
    noise = model.likelihood.noise.detach().expand(300)
    expected = variance_factor(errors.detach(), results.posterior.variance.detach().flatten(), noise).factor
    torch.testing.assert_close(model.calibrated().covar_module.outputscale, expected)


@pytest.mark.parametrize("configuration", ["plain", "two outputs"])
@pytest.mark.parametrize("known", [True, False])
def test_the_noise_of_held_out_rows_is_not_the_functions(known, configuration):
    model = pair(configuration, dictionary=ROWS)[1]
    X, Y, Yvar = held(configuration)
    with torch.no_grad():
        posterior, noisy = model.posterior(X), model.posterior(X, observation_noise=True)
        noise = Yvar + 0.02 if known else noisy.variance - posterior.variance
        expected = variance_factor((Y - posterior.mean).mT, posterior.variance.mT, noise.mT).factor
    scaled = model.calibrated(X, Y, noise) if known else model.calibrated(X, Y)
    torch.testing.assert_close(scaled.covar_module.outputscale.flatten(), expected, rtol=1e-6, atol=0)


def test_the_dictionary_stays():
    model = SparseGP(**data(n=200), max_dictionary=15).eval()
    scaled = model.calibrated(*held("plain"))
    T = points(6)
    with torch.no_grad():
        before = scaled(T).covariance_matrix
        assert scaled.certify().factor == pytest.approx(model.certify().factor)
        scaled.prediction_strategy = None
        torch.testing.assert_close(scaled(T).covariance_matrix, before, rtol=0, atol=TOLERANCE)
        scaled.data_noise_factor.mul_(9.0)
        assert not torch.allclose(scaled(T).covariance_matrix, before, rtol=1e-3, atol=0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_a_prior_that_no_factor_reaches_is_refused():
    X = torch.cat([points(40), (torch.arange(40) % 2).double().unsqueeze(-1)], dim=-1)
    model = SparseMultiTaskGP(X, torch.sin(3.0 * X).sum(dim=-1, keepdim=True), task_feature=-1)
    with pytest.raises(UnsupportedError, match=r"with one factor for each task the means would change.*leave_one_out"):
        model.calibrated()

    class Own(SparseGP):
        def forward(self, x):
            return super().forward(x)

    with pytest.raises(UnsupportedError, match="the prior of Own is that of its forward"):
        Own(**data()).calibrated()


def test_no_model_follows_a_calibrated_one():
    given = data(n=60)
    scaled = SparseGP(**given, dictionary=ROWS).calibrated(*held("plain"))
    more = {name: torch.cat([part, part[:1] + 0.01]) for name, part in given.items()}
    with pytest.raises(ValueError, match="expected previous not to be calibrated"):
        SparseGP(**more, covar_module=copy.deepcopy(scaled.covar_module), previous=scaled)


def test_factors_multiply():
    model = pair("plain", dictionary=ROWS)[1]
    X, Y, Yvar = held("plain")
    once = model.calibrated(X, Y, Yvar)
    twice = once.calibrated(X, 3.0 * Y, Yvar)
    T = points(6)
    with torch.no_grad():
        expected = once.covar_module.outputscale * twice.covar_module.outputscale
        torch.testing.assert_close(twice.data_noise_factor, expected)
        torch.testing.assert_close(twice(T).covariance_matrix, expected * model(T).covariance_matrix)
        twice.prediction_strategy = None
        torch.testing.assert_close(twice(T).mean, model(T).mean, rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(twice(T).covariance_matrix, expected * model(T).covariance_matrix, rtol=0, atol=TOLERANCE)


def test_fantasies_condition_the_scaled_process():
    model = pair("plain", dictionary=ROWS)[1]
    scaled = model.calibrated(*held("plain"))
    F, y, T = points(3, seed=3), torch.randn(3, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64), points(4)
    with torch.no_grad():
        process = scaled(torch.cat([F, T]))
        fantasy = scaled.condition_on_observations(F, y)
        C, noise = process.covariance_matrix, noise_of(model)[0]
        gain = C[3:, :3] @ torch.linalg.inv(C[:3, :3] + noise * torch.eye(3, dtype=C.dtype))
        targets = scaled.outcome_transform(y)[0].squeeze(-1)
        found = fantasy(T)
        torch.testing.assert_close(found.mean, process.mean[3:] + gain @ (targets - process.mean[:3]))
        torch.testing.assert_close(found.covariance_matrix, C[3:, 3:] - gain @ C[:3, 3:])
    with pytest.raises(UnsupportedError, match="calibrate it before"):
        fantasy.calibrated(*held("plain"))


def test_paths_are_of_the_scaled_posterior():
    scaled = pair("plain", dictionary=ROWS)[1].calibrated(*held("plain"))
    T = points(5)
    torch.manual_seed(0)
    with torch.no_grad():
        paths = draw_matheron_paths(scaled, sample_shape=torch.Size([2048]))(T)
        expected = scaled.posterior(T).variance.squeeze(-1)
    torch.testing.assert_close(paths.reshape(2048, 5).var(dim=0), expected, rtol=0.25, atol=0)


def test_the_factor_is_in_the_state_dict_of_a_calibrated_model_alone():
    model = pair("plain", dictionary=ROWS)[1]
    assert set(model.state_dict()) == set(SingleTaskGP(**data()).state_dict())
    scaled, other = model.calibrated(*held("plain")), model.calibrated(*(part[:60] for part in held("plain")))
    T = points(6)
    with torch.no_grad():
        before = other.posterior(T).variance
        other.load_state_dict(scaled.state_dict())
        assert not torch.allclose(other.posterior(T).variance, before, rtol=1e-3)
        torch.testing.assert_close(other.posterior(T).variance, scaled.posterior(T).variance, rtol=0, atol=TOLERANCE)
    with pytest.raises(RuntimeError, match="data_noise_factor"):
        model.load_state_dict(scaled.state_dict())


def test_bad_rows_are_refused():
    model = pair("two outputs", dictionary=ROWS)[1]
    X, Y, Yvar = held("two outputs")
    for rows, told in (
        ((X,), "neither"),
        ((X, Y[:, :1]), "got"),
        ((X[:0], Y[:0]), "h at least 1"),
        ((X, Y, -1.0 - Yvar), "negative"),
        ((X, Y * torch.nan), "not finite"),
        ((X[:3], Y[:3], Yvar[:3]), "3 held-out rows tell the factor to within .*; give more rows$"),
        ((X[:3], Y[:3]), "give more rows, or Yvar= if their noise is known to be smaller$"),
        ((X, Y, 1e6 + Yvar), "no better than 100%"),
        ((), "give more rows, or held-out rows X, Y with their Yvar$"),
        ((X, Y + 1e6, Yvar), "outside 0.0001 to 8103"),
        ((None, None, Yvar), "train_Yvar"),
    ):
        with pytest.raises(InputDataError, match=told):
            model.calibrated(*rows)
    with pytest.raises(TypeError, match=r"expected Y to be a torch\.Tensor"):
        model.calibrated(X, [1.0])
    with pytest.raises(ValueError, match="as many rows"):
        model.calibrated(X, Y[1:])
    with pytest.raises(RuntimeError, match="expected X with 2 columns"):
        model.calibrated(X[:, :1], Y, Yvar)  # which the kernel would broadcast
    assert model.data_noise_factor is None
