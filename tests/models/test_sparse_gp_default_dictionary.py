"""The default dictionary: as many points as predictions need, within the cap; and how a model says so."""

import logging

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel

from sparse_bo.dictionary import UniformSampler
from sparse_bo.models import DictionarySettings
from sparse_bo.models.sparse_gp.leverage_sampling import needed_size, race_winners
from tests.models.sparse_problems import data, make_sparse, points

N = 300


@pytest.fixture(autouse=True)
def small(scale):
    scale(dictionary={"smallest": 5, "first_size": 8, "oversampling": 1e6})


def made(lengthscale, noise=0.1, **options):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(N, 2, generator=g, dtype=torch.float64)
    Y = torch.sin(5 * X.sum(dim=-1, keepdim=True)) + 0.1 * torch.randn(N, 1, generator=g, dtype=torch.float64)
    model = make_sparse(X, Y, **options)
    model.covar_module.lengthscale = lengthscale
    model.likelihood.noise = noise
    return model


def unexplained(model):
    """Return what the dictionary leaves of the variance at the data, in units of the noise, densely."""
    X, rows = model.train_inputs[0], model.dictionary.indices
    K = model.covar_module(X).to_dense().detach()
    left = (K - K[:, rows] @ torch.linalg.inv(K[rows][:, rows]) @ K[rows]).diagonal()
    return float(left.mean() / model.likelihood.noise.item())


def allowed(m):
    """Return what m points may leave of it: half of what N observations may leave of what these points explain."""
    return 0.5 * m / N


def test_smooth_functions_need_few_points_and_rough_ones_the_cap():
    smooth, rough = made(0.8, max_dictionary=60), made(0.05, max_dictionary=60)
    assert smooth.dictionary.m < 30
    assert unexplained(smooth) <= allowed(smooth.dictionary.m)
    assert rough.dictionary.m == 60
    assert unexplained(rough) > allowed(60)


def test_the_last_point_was_needed_and_the_noise_decides():
    model = made(0.4, max_dictionary=100)
    m = model.dictionary.m
    assert m < 100
    fewer = made(0.4, max_dictionary=m - 1)
    assert unexplained(model) <= allowed(m)
    assert unexplained(fewer) > allowed(m - 1)
    assert made(0.4, noise=0.001, max_dictionary=100).dictionary.m > m


def test_observations_leave_what_is_allowed_at_most():
    model = made(0.05, max_dictionary=100)
    X, rows, noise = model.train_inputs[0], model.dictionary.indices, model.likelihood.noise.item()
    K = model.covar_module(X).to_dense().detach()
    nystrom = K[:, rows] @ torch.linalg.inv(K[rows][:, rows]) @ K[rows]
    left = nystrom - nystrom @ torch.linalg.inv(nystrom + noise * torch.eye(N, dtype=K.dtype)) @ nystrom
    share = float(left.diagonal().mean() / noise)
    assert 0.5 * len(rows) / N < share <= len(rows) / N  # a bound that is of use


def test_more_data_need_more_points():
    kernel = made(0.4).covar_module
    X = torch.rand(60, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    noise = torch.full((60,), 0.1, dtype=torch.float64)
    small = DictionarySettings(smallest=5, first_size=8)
    sizes = [needed_size(kernel, X, X, noise, n=n, settings=small)[0] for n in (60, 6000, 600_000)]
    assert sizes[0] < sizes[1] < sizes[2]


def test_repr_and_log_say_what_is_left(caplog):
    model = made(0.4, max_dictionary=100)
    with caplog.at_level(logging.INFO, logger="sparse_bo"):
        m = model.dictionary.m
    said = f"m={m} (leaves {unexplained(model):.2g} of the noise variance unexplained)"
    assert said in repr(model)
    assert f"dictionary of {m} of {N} points: leaves" in caplog.text
    model.likelihood.noise = 0.2
    assert "unexplained" not in repr(model)
    assert "unexplained" not in repr(made(0.4, dictionary=torch.arange(7)))


def test_sums_whitened_at_the_end_are_those_of_whitened_rows(scale):
    T = torch.rand(20, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = []
    for allowed, many in ((0.0, N), (0.0, 0), (1e9, 0)):  # as few rows are summed; then the two ways of many
        scale(sums={"largest_error": allowed, "together_from": many, "memory_bytes": 2**13})  # several blocks
        with torch.no_grad():
            posterior = made(0.2, dictionary=torch.arange(30)).posterior(T)
            found.append((posterior.mean, posterior.variance))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-10)
    torch.testing.assert_close(found[2], found[0], rtol=1e-7, atol=1e-9)
    assert not torch.equal(found[1][0], found[2][0])  # two ways


def test_round_off_of_sums_whitened_at_the_end_leaves_a_posterior(scale):
    """It made eigenvalues of a sum of squares negative, in directions of which the data say nothing: there was no root."""
    generator = torch.Generator().manual_seed(1)
    X = torch.rand(1200, 2, generator=generator, dtype=torch.float64)
    Y = torch.sin(3.0 * X).sum(dim=-1, keepdim=True)
    found = []
    for allowed in (0.0, 1.0):
        scale(sums={"largest_error": allowed, "together_from": 0})
        model = make_sparse(X, Y, covar_module=MaternKernel(nu=2.5), dictionary=torch.arange(250))
        model.covar_module.lengthscale, model.likelihood.noise = 0.5, 0.1
        model.eval()
        with torch.no_grad():
            posterior = model.posterior(X[:50])
            found.append((posterior.mean, posterior.variance))
    assert torch.equal(found[1][0], found[0][0])
    assert torch.equal(found[1][1], found[0][1])


@pytest.mark.parametrize("dictionary", [None, points(3), UniformSampler(size=3)])
def test_a_model_whose_data_was_taken_away_is_its_prior(dictionary):
    """As an exact GP is; its dictionary is empty."""
    given = data(n=12)
    X, Y = given["train_X"], given["train_Y"]
    found, expected = make_sparse(X, Y, dictionary=dictionary), SingleTaskGP(X, Y)
    for model in (found, expected):
        model.set_train_data(X[:0], Y[:0].squeeze(-1), strict=False)
        model.eval()
    assert torch.allclose(found.posterior(X[:3]).mean, expected.posterior(X[:3]).mean)
    assert torch.allclose(found.posterior(X[:3]).variance, expected.posterior(X[:3]).variance)
    with pytest.raises(InputDataError, match="0 held-out rows"):
        found.calibrated()


def test_of_equal_races_the_first_inputs_win():
    """Weights that vanish make many races −∞."""
    races = torch.full((500,), -torch.inf, dtype=torch.float64)
    races[[7, 300]] = torch.tensor([-2.0, -1.0], dtype=torch.float64)
    assert race_winners(races, 5).tolist() == [300, 7, 0, 1, 2]


def unchanged(model):
    return model


@pytest.mark.parametrize("options", [{}, {"dictionary": UniformSampler(size=40)}], ids=["default", "sampler"])
@pytest.mark.parametrize("converted", [unchanged, lambda model: model.float().double()], ids=["made", "converted"])
def test_repeats_count_once_however_outputs_hold_their_inputs(options, converted):
    X = points(40).repeat(4, 1)
    Y = torch.stack([torch.sin(20 * X).sum(dim=-1), torch.cos(20 * X).sum(dim=-1)], dim=-1)
    model = converted(make_sparse(X, Y, input_transform=Normalize(2), max_dictionary=40, **options))
    model.covar_module.lengthscale = 0.1
    assert model.dictionary.points.shape == (40, 2)
    assert len(torch.unique(model.dictionary.points, dim=0)) == 40
    assert model.dictionary.indices.tolist() == list(range(40))  # the first replicate of each


def test_inputs_with_replicates_are_more_likely_in_the_dictionary():
    """All inputs are uncorrelated, and their leverages far below 1."""
    X = points(60)
    rows = torch.cat([torch.arange(60), torch.arange(10).repeat(99)])
    model = make_sparse(X[rows], torch.sin(X[rows]).sum(dim=-1, keepdim=True), max_dictionary=10)
    model.covar_module.lengthscale, model.likelihood.noise = 0.001, 300.0
    indices = model.dictionary.indices
    assert len(indices) >= 5
    assert (indices < 10).double().mean() > 0.5


def test_the_points_of_a_batch_of_several_outputs_are_one_set_per_batch_element():
    model = make_sparse(**data(batch=(3,), outputs=2), dictionary=torch.arange(4))
    assert model.dictionary.points.shape == (3, 4, 2)
