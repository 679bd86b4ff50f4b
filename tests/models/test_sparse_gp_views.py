"""What a model shows of its approximation: dictionary, certificate, one line in its repr, one line in the log."""

import logging

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError

from sparse_bo import SparseMixedGP
from sparse_bo.dictionary import UniformSampler
from tests.models.sparse_problems import N, data, make_sparse, noise_of, pair, points

ROWS = torch.tensor([2, 11, 25])


@pytest.mark.parametrize("configuration", ["plain", "normalized inputs", "two outputs", "batch"])
def test_the_dictionary_is_shown_in_the_users_units(configuration):
    model = pair(configuration, dictionary=ROWS)[1]
    shown = model.train().dictionary  # from training mode, too
    train_X = data(batch=(2,))["train_X"] if configuration == "batch" else data()["train_X"]
    assert torch.equal(shown.points, train_X[..., ROWS, :])
    assert torch.equal(shown.indices, ROWS)
    assert shown.m == 3 or configuration == "batch"
    transformed = model.representation().points
    torch.testing.assert_close(transformed, model.transform_inputs(shown.points).expand(transformed.shape))


def test_points_of_the_user_have_no_rows_and_a_fantasy_adds_its_own():
    external = points(4)
    model = pair("normalized inputs", dictionary=external)[1]
    assert torch.equal(model.dictionary.points, external)
    assert model.dictionary.indices is None
    T = points(2, seed=7)
    fantasy = model.condition_on_observations(T, torch.ones(2, 1, dtype=torch.float64))
    torch.testing.assert_close(fantasy.dictionary.points, torch.cat([external, T]))
    of_rows = pair("plain", dictionary=ROWS)[1]
    of_rows.posterior(points(1))
    fantasy = of_rows.condition_on_observations(T, torch.ones(2, 1, dtype=torch.float64))
    assert fantasy.dictionary.indices.tolist() == [2, 11, 25, N, N + 1]
    torch.testing.assert_close(fantasy.dictionary.points[-2:], T)


def test_the_whole_data_are_the_dictionary_of_an_exact_model():
    shown = pair("plain")[1].dictionary
    assert torch.equal(shown.points, data()["train_X"])
    assert torch.equal(shown.probabilities, torch.ones(N, dtype=torch.float64))


@pytest.mark.parametrize("configuration", ["plain", "known noise", "Matern"])
def test_the_certificate_bounds_every_variance(configuration):
    exact, model = pair(configuration, dictionary=torch.arange(0, N, 3))
    certificate = model.certify()
    K = model.covar_module(model.train_inputs[0]).to_dense().detach()
    rows = torch.arange(0, N, 3)
    left = K - K[:, rows] @ torch.linalg.inv(K[rows][:, rows]) @ K[rows]
    scale = noise_of(model).rsqrt()
    largest = torch.linalg.eigvalsh(scale[:, None] * left * scale)[-1]
    assert certificate.ratio_lower <= largest * (1 + 1e-6)
    assert largest <= certificate.ratio * (1 + 1e-6)
    T = points(200)
    ratio = model.posterior(T).variance / exact.posterior(T).variance
    assert ratio.max() <= certificate.factor * (1 + 1e-9)
    assert ratio.min() >= 1 / certificate.factor * (1 - 1e-9)
    assert ratio.max() > 1.0001  # something was left out


def test_an_exact_model_is_certified_without_work_and_many_posteriors_are_refused():
    assert pair("plain")[1].certify().factor == 1.0
    several = pair("two outputs", dictionary=ROWS)[1]
    with pytest.raises(UnsupportedError, match=r"one output, got 2; certify each, as in model.subset_output\(\[0\]\).certify"):
        several.certify()
    assert several.prediction_strategy is None  # refused before any work
    mixed = SparseMixedGP(*data(outputs=2).values(), cat_dims=[1])
    with pytest.raises(UnsupportedError, match="one output, got 2; make and certify one model per output"):
        mixed.certify()  # BoTorch's subset_output of it raises NotImplementedError
    assert several.subset_output([0]).certify().factor > 1.0
    with pytest.raises(UnsupportedError, match=r"one data set, got batch shape \(2,\); certify the model of each"):
        pair("batch", dictionary=ROWS)[1].certify()
    model = pair("plain", dictionary=ROWS)[1]
    model.posterior(points(1))
    with pytest.raises(UnsupportedError, match="fantasies; certify the model before conditioning"):
        model.condition_on_observations(points(1), torch.ones(1, 1, dtype=torch.float64)).certify()


def line(model):
    return repr(model).splitlines()[1].strip()


def test_the_repr_says_what_is_known_and_computes_nothing(scale):
    model = pair("plain", dictionary=ROWS)[1]
    assert line(model) == "n=30, m chosen at the next posterior, learns by fit='exact', not certified"
    assert "RBFKernel" in repr(model)
    assert model.prediction_strategy is None
    model.posterior(points(1))
    assert line(model) == "n=30, m=3, learns by fit='exact', not certified"
    factor = model.certify().factor
    assert line(model) == f"n=30, m=3, learns by fit='exact', variances within a factor of {factor:.3g} of the exact ones"
    model.covar_module.lengthscale = 0.3
    assert line(model) == "n=30, m chosen at the next posterior, learns by fit='exact', not certified"
    whole = pair("plain", fit="vfe")[1]
    whole.posterior(points(1))
    assert line(whole) == "n=30, m=30, learns by fit='vfe', exact"
    fantasy = whole.condition_on_observations(points(2), torch.ones(2, 1, dtype=torch.float64))
    assert line(fantasy) == "n=32, m=32, learns by fit='vfe', exact"
    scale(learning={"subset": 20})
    assert "fit='subset'" in line(make_sparse(**data()))


def test_a_model_without_data_says_so():
    model = make_sparse(**data())
    model.train_inputs = None
    assert line(model) == "no data"


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="sparse_bo")
    return caplog


def test_a_default_that_is_crossed_is_logged_once(log, scale):
    scale(learning={"subset": 19}, dictionary={"largest": 26})  # sizes that no other test has: once per process and text
    for n in (19, 22, 24):
        make_sparse(**data(n=n))
    assert [record.message.split(":")[0] for record in log.records] == ["SparseGP has more than 19 training points"]
    make_sparse(**data(n=30))
    assert [record.message.split(":")[0] for record in log.records][1:] == ["SparseGP has more than 26 training points"]
    make_sparse(**data(n=30))
    assert len(log.records) == 2
    assert 'fit="exact"' in log.records[0].message
    assert "model.certify()" in log.records[1].message
    make_sparse(**data(n=30), cat_dims=[1], kind=SparseMixedGP)
    assert len(log.records) == 4  # another kind of model is another surprise


def test_what_the_user_has_chosen_is_not_logged(log, scale):
    scale(learning={"subset": 20}, dictionary={"largest": 25})
    make_sparse(**data(), fit="vfe", max_dictionary=10)
    make_sparse(**data(), fit="subset", dictionary=UniformSampler(size=5))
    assert not log.records
