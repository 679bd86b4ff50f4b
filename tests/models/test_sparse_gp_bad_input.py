"""Bad input raises what SingleTaskGP raises, or says what is wrong with the dictionary; numbers stay finite."""

import re

import numpy as np
import pytest
import torch
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models import SingleTaskGP
from botorch.utils.datasets import SupervisedDataset
from gpytorch.kernels import LinearKernel, RBFKernel
from linear_operator.utils.errors import NanError, NotPSDError

from sparse_bo.dictionary import AllSampler, Dictionary, FirstSampler, FixedSampler, LeverageSampler, UniformSampler
from sparse_bo.errors import DictionaryWarning
from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.models import (
    DictionarySettings,
    SparseGP,
    SparseMixedGP,
    SparseModelListGP,
    SparseMultiFidelityGP,
    SparseMultiTaskGP,
    SparseSettings,
    prune_baseline,
)
from sparse_bo.models.sparse_gp.dictionary_rule import warn_if_far
from tests.models.sparse_problems import D, N, data, make_sparse, pair, points

ROWS = torch.tensor([2, 11, 25])


def X_and_Y(**changes):
    return {**data(), **changes}


WRONG_DATA = {
    "no output dimension": (X_and_Y(train_Y=data()["train_Y"].squeeze(-1)), BotorchTensorDimensionError),
    "different dtypes": (X_and_Y(train_Y=data()["train_Y"].float()), InputDataError),
    "NaN inputs": (X_and_Y(train_X=torch.full((N, D), torch.nan, dtype=torch.float64)), InputDataError),
    "NaN outcomes": (X_and_Y(train_Y=torch.full((N, 1), torch.nan, dtype=torch.float64)), InputDataError),
    "noise of another shape": (X_and_Y(train_Yvar=torch.ones(N - 1, 1, dtype=torch.float64)), BotorchTensorDimensionError),
    "negative noise": (X_and_Y(train_Yvar=-torch.ones(N, 1, dtype=torch.float64)), InputDataError),
}


@pytest.mark.parametrize("case", WRONG_DATA)
def test_wrong_data_raise_what_the_exact_model_raises(case):
    train, error = WRONG_DATA[case]
    for model in (SingleTaskGP, SparseGP):
        with pytest.raises(error):
            model(**train)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_are_refused_with_what_to_do(dtype):
    X, Y = (torch.randint(0, 9, shape).to(dtype) for shape in ((N, D), (N, 1)))
    with pytest.raises(InputDataError, match=rf"train_X and train_Y of dtype torch.float64, got {dtype}; use .double\(\)"):
        make_sparse(X, Y)
    for train in ((X, Y.double()), (X.double(), Y)):
        with pytest.raises(InputDataError, match="same dtype"):
            make_sparse(*train)


def test_a_table_is_refused_with_code_that_makes_it_a_tensor():
    table = pytest.importorskip("pandas").DataFrame({"x": [0.1, 0.2, 0.4], "y": [1, 2, 4]})
    with pytest.raises(TypeError, match=r"got DataFrame; use torch.tensor\(train_X.to_numpy\(float\)\)$"):
        SparseGP(table[["x"]], table[["y"]])
    SparseGP(*(torch.tensor(columns.to_numpy(float)) for columns in (table[["x"]], table[["y"]])))


@pytest.mark.parametrize("options", [{}, {"dictionary": ROWS}], ids=["exact", "sparse"])
def test_wrong_points_raise_what_the_exact_model_raises(options):
    for model in (pair("plain")[0], pair("plain", **options)[1]):
        with pytest.raises(RuntimeError):
            model.posterior(torch.rand(2, D + 1, dtype=torch.float64))
    for model in (pair("batch")[0], pair("batch", **options)[1]):
        with pytest.raises(RuntimeError, match="broadcast"):
            model.posterior(points(3, 2))


def test_conditioning_errors_are_those_of_the_exact_model():
    for model in pair("plain", dictionary=ROWS):
        with pytest.raises(RuntimeError, match="Call the model on some data first"):
            model.get_fantasy_model(points(1), torch.ones(1, dtype=torch.float64))
        model.posterior(points(1))
        with pytest.raises(RuntimeError, match="must have either the same dimension"):
            model.get_fantasy_model(points(1), torch.ones(2, 2, 1, dtype=torch.float64))
    for model in pair("batch", dictionary=ROWS):
        model.posterior(points(2, 1))
        with pytest.raises(RuntimeError, match="not broadcastable"):
            model.get_fantasy_model(points(3, 1), torch.ones(3, 1, dtype=torch.float64))
    for model in pair("known noise", dictionary=ROWS):
        model.posterior(points(1))
        with pytest.raises(RuntimeError, match="noise"):
            model.get_fantasy_model(points(1), torch.ones(1, dtype=torch.float64))


WRONG_OPTIONS = {
    "index out of range": ({"dictionary": torch.tensor([0, N])}, ValueError, "in \\[0, 30\\)"),
    "repeated index": ({"dictionary": torch.tensor([1, 1])}, ValueError, "distinct"),
    "no index": ({"dictionary": torch.tensor([], dtype=torch.long)}, ValueError, "at least one row"),
    "more indices than data": ({"dictionary": torch.arange(N + 1)}, ValueError, "in \\[0, 30\\)"),
    "two-dimensional indices": ({"dictionary": torch.ones(2, 2, dtype=torch.long)}, ValueError, "one dimension"),
    "boolean mask": ({"dictionary": torch.ones(N, dtype=torch.bool)}, TypeError, "use mask.nonzero\\(\\).squeeze\\(-1\\)"),
    "points of the wrong width": ({"dictionary": torch.rand(3, D + 1, dtype=torch.float64)}, ValueError, "2 columns"),
    "points of another dtype": ({"dictionary": torch.rand(3, D)}, TypeError, "float64"),
    "points with NaN": ({"dictionary": torch.full((3, D), torch.nan, dtype=torch.float64)}, ValueError, "finite"),
    "a list": ({"dictionary": [1, 2]}, TypeError, "list; use torch.as_tensor\\(dictionary\\)"),
    "an array": ({"dictionary": np.arange(3)}, TypeError, "ndarray; use torch.as_tensor\\(dictionary\\)"),
    "something else": ({"dictionary": "leverage"}, TypeError, "a tensor of row indices or of points, got str$"),
    "a number": (
        {"dictionary": 10},
        TypeError,
        "use max_dictionary=10, for exactly so many dictionary=UniformSampler\\(size=10\\)",
    ),
    "a NumPy number": ({"dictionary": np.int64(10)}, TypeError, "max_dictionary=10"),
    "a class of samplers": ({"dictionary": LeverageSampler}, TypeError, "pass an instance: dictionary=LeverageSampler\\("),
    "a vector of points": (
        {"dictionary": torch.rand(D, dtype=torch.float64)},
        ValueError,
        "one point is dictionary.unsqueeze\\(0\\)",
    ),
    "rows as floats": ({"dictionary": torch.arange(3).double()}, ValueError, "for rows of train_X use dictionary.long\\(\\)"),
    "seed as a float": ({"seed": 1.0}, TypeError, "integer"),
    "cap of zero": ({"max_dictionary": 0}, ValueError, "max_dictionary >= 1"),
    "unknown fit": ({"fit": "map"}, ValueError, "subset"),
    "settings of another kind": (
        {"settings": 3},
        TypeError,
        "settings to be SparseSettings, got int; use settings=SparseSettings",
    ),
    "BoTorch's name of a dictionary": (
        {"inducing_points": data()["train_X"]},
        TypeError,
        "unexpected argument 'inducing_points'; inducing points are dictionary= here",
    ),
    "a field of the settings": (
        {"need": 0.05},
        TypeError,
        r"write settings=SparseSettings\(dictionary=DictionarySettings\(need=…\)\)$",
    ),
    "a file as previous": ({"previous": "a.pt"}, TypeError, "got str; of a state dict make a SparseGP of the old data"),
    "negative seed": ({"seed": -1}, ValueError, "seed >= 0"),
}


@pytest.mark.parametrize("case", WRONG_OPTIONS)
def test_wrong_options_are_refused(case):
    options, error, message = WRONG_OPTIONS[case]
    with pytest.raises(error, match=message):
        make_sparse(**data(), **options)


@pytest.mark.parametrize("options", [{}, {"dictionary": ROWS}], ids=["exact", "sparse"])
@pytest.mark.parametrize("width", [1, D + 1])
def test_points_of_another_width_are_refused_with_the_width(options, width):
    """One column too few would broadcast against the lengthscales without a word."""
    X = torch.rand(2, width, dtype=torch.float64)
    exact, sparse = pair("plain", **options)
    with pytest.raises(RuntimeError):
        exact.posterior(X)
    with pytest.raises(RuntimeError, match="expected X with 2 columns"):
        sparse.posterior(X)
    many = torch.rand(sparse.settings.joint.dense + 1, width, dtype=torch.float64)
    for ask in (sparse.posterior, lambda rows: prune_baseline(sparse, rows)):
        with pytest.raises(RuntimeError, match="expected X with 2 columns"):
            ask(many)
    sparse.posterior(points(1))
    with pytest.raises(RuntimeError, match="expected X with 2 columns"):
        sparse.get_fantasy_model(X, torch.ones(2, dtype=torch.float64))
    fantasy = sparse.get_fantasy_model(points(1), torch.ones(1, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="expected X with 2 columns"):
        fantasy.posterior(X)


def test_one_dimensional_points_are_those_of_one_input():
    x = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
    T = torch.linspace(0, 1, 5, dtype=torch.float64)
    theirs, ours = (model(x, x.sin()).posterior(T) for model in (SingleTaskGP, SparseGP))
    assert ours.mean.shape == theirs.mean.shape == (5, 1)
    torch.testing.assert_close(ours.mean, theirs.mean)
    torch.testing.assert_close(ours.variance, theirs.variance)
    with pytest.raises(ValueError, match=re.escape("use dictionary.unsqueeze(-1)")):
        make_sparse(x, x.sin(), dictionary=T)


def test_numpy_numbers_are_numbers():
    one = make_sparse(**data(n=200), max_dictionary=np.int64(12), seed=np.int64(3))
    two = make_sparse(**data(n=200), max_dictionary=12, seed=3)
    assert torch.equal(one.posterior(points(2)).mean, two.posterior(points(2)).mean)


@pytest.mark.parametrize("configuration", ["plain", "normalized inputs", "two outputs"])
def test_a_dictionary_far_from_all_data_warns(configuration):
    with pytest.warns(DictionaryWarning, match="units of train_X"):
        pair(configuration, dictionary=points(4) + 100.0)[1].posterior(points(2))
    near = torch.cat([points(1), points(4) + 100.0])  # one that knows something is enough to say nothing
    pair(configuration, dictionary=near)[1].posterior(points(2))


def test_a_dictionary_is_looked_at_beside_more_rows_than_float32_counts():
    """Between 2²⁴ + 2 and 2²⁴ + 4 float32 has one number, which is the number of a row that is not there."""
    X = torch.zeros(1, 1, dtype=torch.float64).expand(2**24 + 4, 1)
    with pytest.warns(DictionaryWarning, match="units of train_X"):
        warn_if_far(RBFKernel().double(), torch.full((1, 1), 9.0, dtype=torch.float64), X)


def test_rows_that_no_longer_exist_are_refused():
    model = pair("plain", dictionary=ROWS)[1]
    train = data(n=20)
    model.set_train_data(train["train_X"], train["train_Y"].squeeze(-1), strict=False)
    with pytest.raises(InputDataError, match="only 20 training points"):
        model.posterior(points(1))


@pytest.mark.parametrize("options", [{}, {"dictionary": ROWS}], ids=["exact", "sparse"])
def test_parameters_that_are_not_finite_raise_what_botorch_can_catch(options):
    for model in pair("plain", **options):
        model.covar_module.raw_lengthscale.data.fill_(torch.nan)
        with pytest.raises((NanError, NotPSDError)):
            model.posterior(points(1))


@pytest.mark.parametrize("noise", [1e-4, 1e6])
@pytest.mark.parametrize("kernel", [lambda: RBFKernel(lengthscale_constraint=None), LinearKernel], ids=["RBF", "rank two"])
def test_singular_dictionaries_give_finite_numbers(kernel, noise):
    train = data()
    model = make_sparse(**train, covar_module=kernel(), dictionary=torch.arange(0, N, 2))
    if isinstance(model.covar_module, RBFKernel):
        model.covar_module.lengthscale = 50.0  # numerically constant
    model.likelihood.noise = noise
    posterior = model.posterior(points(5, 1))
    assert torch.isfinite(posterior.mean).all()
    assert (posterior.variance >= 0).all()
    joint = model.posterior(points(5)).distribution.covariance_matrix.detach()
    assert safe_cholesky(joint).isfinite().all()


# The posterior at a training point with tiny noise is known to round-off, and GPyTorch reports that it rounds up.
@pytest.mark.filterwarnings("ignore:Negative variance values detected:linear_operator.utils.warnings.NumericalWarning")
@pytest.mark.filterwarnings("ignore:Negative variance values detected:gpytorch.utils.warnings.NumericalWarning")
def test_no_negative_variance_at_noise_free_data():
    train = data()
    noise = torch.full_like(train["train_Y"], 1e-6)
    for options in ({}, {"dictionary": torch.arange(20)}):
        model = make_sparse(**train, train_Yvar=noise, **options)
        posterior = model.posterior(train["train_X"])
        assert (posterior.variance >= 0).all()
        assert (posterior.distribution.lazy_covariance_matrix.diagonal() >= 0).all()


SAMPLERS = {
    "all": AllSampler(),
    "first": FirstSampler(size=5),
    "uniform": UniformSampler(size=5),
    "leverage": LeverageSampler(oversampling=1.0),
    "fixed": FixedSampler(points=points(4)),
    "dictionary of rows": Dictionary(data()["train_X"][:4], torch.ones(4), torch.arange(4)),
    "dictionary of points": Dictionary(points(4), torch.ones(4)),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("configuration", ["plain", "normalized inputs", "two outputs"])
def test_every_kind_of_dictionary_works(name, configuration):
    model = pair(configuration, dictionary=SAMPLERS[name])[1]
    posterior = model.posterior(points(3))
    assert torch.isfinite(posterior.mean).all()
    fantasy = model.condition_on_observations(points(1), torch.ones(1, model.num_outputs, dtype=torch.float64))
    fantasy.covar_module.raw_lengthscale.data.mul_(0.9)  # rebuilt from its own data and dictionary
    assert torch.isfinite(fantasy.posterior(points(3)).mean).all()


def test_a_sampled_dictionary_is_capped():
    model = pair("plain", dictionary=AllSampler(), max_dictionary=6)[1]
    assert model.representation().points.shape[-2] == 6


def test_a_sampler_of_points_needs_one_data_set():
    with pytest.raises(InputDataError, match="batch"):
        pair("batch", dictionary=FixedSampler(points=points(4)))[1].posterior(points(2, 1))


def test_the_default_dictionary_follows_the_cap_and_the_seed(scale):
    scale(dictionary={"smallest": 4})
    scale(dictionary={"pilot": 10})
    rows = {}
    for seed in (0, 0, 1):
        model = make_sparse(**data(n=200), max_dictionary=12, seed=seed)
        model.posterior(points(1))
        rows.setdefault(seed, []).append(model.prediction_strategy.chosen.rows)
    assert 4 <= len(rows[0][0]) <= 12
    assert torch.equal(rows[0][0], rows[0][1])
    assert not torch.equal(rows[0][0], rows[1][0])
    exact = make_sparse(**data(n=20), max_dictionary=20)
    exact.posterior(points(1))
    assert len(exact.prediction_strategy.chosen.rows) == 20


def test_leverage_sampling_prefers_points_far_from_the_others(scale):
    scale(dictionary={"smallest": 4})
    scale(dictionary={"pilot": 20})
    g = torch.Generator().manual_seed(0)
    crowd = 0.5 + 0.01 * torch.rand(190, D, generator=g, dtype=torch.float64)
    X = torch.cat([crowd, torch.rand(10, D, generator=g, dtype=torch.float64)])
    Y = torch.sin(5 * X).sum(dim=-1, keepdim=True)
    model = make_sparse(X, Y + 0.1 * torch.randn(200, 1, generator=g, dtype=torch.float64), max_dictionary=40)
    model.covar_module.lengthscale = 0.1
    model.posterior(points(1))
    assert (model.prediction_strategy.chosen.rows >= 190).sum() >= 9


def test_repeated_inputs_enter_the_default_dictionary_once():
    train = data(n=20)
    repeated = {name: value.repeat(3, 1) for name, value in train.items()}
    model = make_sparse(**repeated, max_dictionary=25)
    model.posterior(points(1))
    assert torch.equal(model.prediction_strategy.chosen.rows, torch.arange(20))


def test_own_options_pass_through_construct_inputs():
    train = data()
    dataset = SupervisedDataset(train["train_X"], train["train_Y"], feature_names=["a", "b"], outcome_names=["y"])
    model = make_sparse(**SparseGP.construct_inputs(dataset, dictionary=ROWS, fit="vfe", seed=3))
    assert model.representation().points.shape[-2] == 3
    with pytest.raises(TypeError):
        SparseGP.construct_inputs(train)


def test_posterior_transforms_are_applied():
    model = pair("two outputs", dictionary=ROWS)[1]
    transform = ScalarizedPosteriorTransform(torch.tensor([1.0, 2.0], dtype=torch.float64))
    posterior = model.posterior(points(3), posterior_transform=transform)
    expected = model.posterior(points(3)).mean @ torch.tensor([1.0, 2.0], dtype=torch.float64)
    torch.testing.assert_close(posterior.mean.squeeze(-1), expected)


def test_the_planned_dictionary_follows_time_and_memory():
    sizes = (10, 4096, 20_000, 100_000, 1_000_000, 10_000_000)
    assert [DictionarySettings().cap(n, 1) for n in sizes] == [4096, 4096, 2896, 3627, 4096, 1303]
    assert DictionarySettings().cap(1000, 8) == 4096
    size = DictionarySettings().cap(1000, 64)
    assert 32 * 64 * size**2 <= DictionarySettings().memory_bytes < 32 * 64 * (size + 1) ** 2
    assert DictionarySettings().cap(10**9, 10**6) == 1


def test_the_default_dictionary_follows_the_plan(scale):
    scale(dictionary={"work": 200 * 2 * 30**2})
    scale(dictionary={"smallest": 100})
    model = make_sparse(**data(n=200, outputs=2))
    model.posterior(points(1))
    assert len(model.prediction_strategy.chosen.rows) == 30


def test_parts_of_settings_have_their_own_kinds():
    with pytest.raises(TypeError, match="expected learning to be LearningSettings, got DictionarySettings; use learning="):
        SparseSettings(learning=DictionarySettings())


def test_a_list_is_of_models():
    with pytest.raises(ValueError, match=r"expected at least one model, got none; pass them as in SparseModelListGP\("):
        SparseModelListGP()
    with pytest.raises(TypeError, match=r"expected models of BoTorch, got int; pass them as in SparseModelListGP\("):
        SparseModelListGP(3)
    with pytest.raises(TypeError, match=r"got list; .*SparseModelListGP\(\*models\)"):
        SparseModelListGP([make_sparse(**data())])


@pytest.mark.parametrize("name", ["calibrated", "certify", "dictionary", "leave_one_out"])
def test_a_list_says_that_a_diagnostic_is_each_members(name):
    model = SparseModelListGP(make_sparse(**data()))
    assert not hasattr(model, name)
    assert hasattr(model.models[0], name)
    with pytest.raises(AttributeError, match=rf"has no {name}; ask each member, as in model.models\[0\].{name}"):
        getattr(model, name)


EMPTY = {
    "SparseGP": SparseGP,
    "SparseMixedGP": lambda X, Y: SparseMixedGP(X, Y, cat_dims=[0]),
    "SparseMultiFidelityGP": lambda X, Y: SparseMultiFidelityGP(X, Y, data_fidelities=[0]),
    "SparseMultiTaskGP": lambda X, Y: SparseMultiTaskGP(X, Y, task_feature=0),
}


@pytest.mark.parametrize("make", EMPTY.values(), ids=EMPTY)
def test_data_without_rows_or_columns_or_squares_are_refused_with_advice(make):
    X, Y = torch.rand(5, 2, dtype=torch.float64), torch.rand(5, 1, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"at least one row of train_X, got shape \(0, 2\).*outcome_transform=None"):
        make(X[:0], Y[:0])
    with pytest.raises(ValueError, match=r"at least one column of train_Y, got shape \(5, 0\)"):
        make(X, Y[:, :0])
    with pytest.raises(ValueError, match=r"at least one column of train_X, got shape \(5, 0\)"):
        make(X[:, :0], Y)
    with pytest.raises(ValueError, match=r"expected train_Y within ±1e\+150.*got 1e\+160; divide it"):
        make(X, 1e160 * torch.ones_like(Y))
    with pytest.raises(ValueError, match=r"expected train_Y within ±1e\+15, whose squares are float32 numbers"):
        make(X.float(), 1e30 * torch.ones_like(Y.float()))
    with pytest.raises(InputDataError, match=r"train_X and train_Y of dtype torch.float64, got torch.float16; use .double\(\)"):
        make(X.half(), Y.half())


def test_without_data_and_outcome_transform_the_posterior_is_the_prior():
    X = torch.rand(3, 2, dtype=torch.float64)
    model = SparseGP(X[:0], X[:0, :1], outcome_transform=None)
    torch.testing.assert_close(model.posterior(X).variance, torch.ones(3, 1, dtype=torch.float64))
