"""Residuals of a fit: a ripple taken for noise is found, and observations that are off are named or left out."""

import copy
import pickle
import warnings

import pytest
import torch
from botorch.exceptions import InputDataWarning, UnsupportedError
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, RQKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo.models import (
    ShardedSparseGP,
    SparseGP,
    SparseMixedGP,
    SparseModelListGP,
    SparseMultiFidelityGP,
    SparseMultiTaskGP,
)
from sparse_bo.models.sparse_gp.refinement import autocorrelation, neighbour_correlation, residuals_given
from sparse_bo.sharding import Alone
from tests.models.sparse_problems import make_sparse

N = 300


def fitted(model, **options):
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **options)
    return model


@pytest.fixture
def half(scale):
    """Half the sizes of learning: exact up to 520 rows, first searches over 200 of 400 and more."""
    scale(learning={"subset": 520, "coarse": 200, "coarse_from": 400})


def wave(X):
    return torch.sin(5 * X[:, :1]) + torch.cos(4 * X[:, 1:2])


def data(n=N, *, bad=0, seed=0, noise=0.05, size=20.0):
    """Return inputs, observations of which ``bad`` are off by ``size`` deviations, and the rows of these, ascending."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 2, generator=g, dtype=torch.float64)
    Y = wave(X) + noise * torch.randn(n, 1, generator=g, dtype=torch.float64)
    rows = torch.randperm(n, generator=g)[:bad].sort().values
    signs = torch.where(torch.rand(bad, 1, generator=g, dtype=torch.float64) < 0.5, -1.0, 1.0)
    Y[rows] += size * wave(X).std() * signs
    return X, Y, rows


def error(model):
    """Return the root of the mean squared error in standard deviations of the function."""
    T = torch.rand(500, 2, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    with torch.no_grad():
        return float((model.posterior(T).mean - wave(T)).square().mean().sqrt() / wave(T).std())


def matern(d):
    return ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=d)).double()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_a_fine_ripple_on_a_trend_is_not_noise(seed):
    g = torch.Generator().manual_seed(seed)
    X, T = (torch.rand(1000, 4, generator=g, dtype=torch.float64) for _ in range(2))

    def ripple(X):
        return torch.sin(30 * X[:, :1]) + 0.3 * X[:, 1:2]

    model = fitted(SparseGP(X, ripple(X)))
    with torch.no_grad():
        assert float((model.posterior(T).mean - ripple(T)).square().mean().sqrt() / ripple(T).std()) < 0.02


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("n", [1000, 1200])
@pytest.mark.parametrize("kernel", [None, pytest.param(matern(4), marks=pytest.mark.slow)], ids=["default", "Matérn"])
def test_a_ripple_of_two_inputs_together_is_not_noise(n, seed, kernel):
    """Along one input at a time its residuals are not correlated: four of five fits ended at an error of 0.85 to 0.91."""
    g = torch.Generator().manual_seed(seed)
    X, T = (torch.rand(n, 4, generator=g, dtype=torch.float64) for _ in range(2))

    def ripple(X):
        return torch.sin(20 * X[:, :1]) * torch.cos(5 * X[:, 1:2]) + X[:, 2:3]

    Y = ripple(X) + 0.04 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    model = fitted(SparseGP(X, Y, covar_module=copy.deepcopy(kernel)))
    with torch.no_grad():
        assert float((model.posterior(T).mean - ripple(T)).square().mean().sqrt() / ripple(T).std()) < 0.05


TRENDS = {
    "one input": (4, lambda X: 5 * X.sum(-1) + torch.sin(20 * X[:, 0])),
    "two inputs": (3, lambda X: 5 * X.sum(-1) + torch.sin(12 * X[:, 0]) * torch.cos(12 * X[:, 1])),
    "two rates": (3, lambda X: 8 * X.sum(-1) + torch.sin(18 * X[:, 0]) * torch.sin(8 * X[:, 2])),
    "faint": (3, lambda X: 10 * (X - 0.3).square().sum(-1) + 0.3 * torch.sin(25 * X[:, 0])),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "trend", ["faint", *(pytest.param(name, marks=pytest.mark.slow) for name in TRENDS if name != "faint")]
)
def test_a_ripple_on_a_steep_trend_is_not_noise(trend, seed, half):
    g = torch.Generator().manual_seed(seed)
    d, function = TRENDS[trend]
    X, T = (torch.rand(n, d, generator=g, dtype=torch.float64) for n in (500, 300))
    Y = function(X).unsqueeze(-1) + 0.02 * torch.randn(500, 1, generator=g, dtype=torch.float64)
    model = fitted(make_sparse(X, Y))
    with torch.no_grad():
        assert float((model.posterior(T).mean.squeeze(-1) - function(T)).square().mean().sqrt()) < 0.05


@pytest.mark.sampled(1)
@pytest.mark.parametrize("times", [2, 30])
def test_repeated_points_with_a_ripple_are_searched_again(times):
    """The nearest point of most is an equal one: lengthscales were 0."""
    g = torch.Generator().manual_seed(0)
    X = torch.rand(300 // times, 2, generator=g, dtype=torch.float64).repeat(times, 1)
    model = fitted(SparseGP(X, torch.sin(20 * X[:, :1]) + 0.05 * torch.randn(len(X), 1, generator=g, dtype=torch.float64)))
    assert bool((model.covar_module.lengthscale.detach() > 0.0).all())
    assert float(model.likelihood.noise.detach()) < 0.02


@pytest.mark.parametrize("kernel", [None, pytest.param(matern(3), marks=pytest.mark.slow)], ids=["default", "Matérn"])
def test_few_data_with_a_ripple_are_searched_again(kernel):
    g = torch.Generator().manual_seed(1)
    X = torch.rand(300, 3, generator=g, dtype=torch.float64)
    model = fitted(SparseGP(X, torch.sin(30 * X[:, :1]) + 0.3 * X[:, 1:2], covar_module=copy.deepcopy(kernel)))
    assert float(model.likelihood.noise.detach()) < 0.01


def test_a_ripple_is_found_in_each_output_and_behind_an_input_transform():
    g = torch.Generator().manual_seed(1)
    X = 10.0 * torch.rand(200, 3, generator=g, dtype=torch.float64)
    Y = torch.cat([torch.sin(3 * X[:, :1]) + 0.03 * X[:, 1:2], X[:, 1:2]], dim=-1)
    model = fitted(SparseGP(X, Y, input_transform=Normalize(3)))
    assert float(model.likelihood.noise.detach().amax()) < 0.01


def test_autocorrelation_of_a_wave_and_of_noise():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(2000, 2, generator=g, dtype=torch.float64)
    noise = torch.randn(2, 2000, generator=g, dtype=torch.float64)
    found = autocorrelation(X, torch.stack([torch.sin(20 * X[:, 0]), noise[1]]) + torch.stack([0.1 * noise[0], noise[0]]))
    assert float(found.score[0, 0]) > 40.0
    assert float(torch.cat([found.score[0, 1:], found.score[1]]).abs().max()) < 4.0
    # a sine of frequency w correlates as cos(w s), which is 0.6 at s = 0.93/w; lags are powers of two
    assert 0.9 / 20 < float(found.distance[0, 0]) < 2 * 0.93 / 20


def test_correlation_among_neighbours_of_what_two_inputs_do_together():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(2000, 2, generator=g, dtype=torch.float64)
    both = torch.sin(6 * torch.pi * X[:, 0]) * torch.sin(6 * torch.pi * X[:, 1])
    noise = torch.randn(2000, generator=g, dtype=torch.float64)
    assert float(autocorrelation(X, both).score.abs().max()) < 4.0
    found = neighbour_correlation(X, torch.stack([both, noise]))
    apart = torch.cdist(X, X).fill_diagonal_(torch.inf).amin(dim=-1)
    assert found.distance.flatten().tolist() == [pytest.approx(float(apart.median()), rel=1e-9)] * 2
    assert float(found.score[0]) > 25.0
    twice = neighbour_correlation(X.repeat(2, 1), both.repeat(2))
    assert twice.distance.tolist() == [pytest.approx(float(apart.median()), rel=1e-9)]
    alone = neighbour_correlation(X[:1].repeat(30, 1), noise[:30])
    assert alone.distance.tolist() == [torch.inf]
    scores = neighbour_correlation(X, torch.randn(100, 2000, generator=g, dtype=torch.float64)).score
    assert 0.8 < float(scores.std()) < 1.2


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_good_observations_are_not_warned_of(noise, seed):
    X, Y, _ = data(seed=seed, noise=noise)
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputDataWarning)
        model = fitted(SparseGP(X, Y, robust=bool(seed % 2)))
    assert model.outlying_rows is None


def test_residuals_are_those_of_dense_algebra():
    X, Y, _ = data(40)
    model = SparseGP(X, Y)
    model.likelihood.noise = 1e-3
    known, rows = torch.arange(0, 40, 2), torch.arange(40)
    found = residuals_given(model.train(), known, rows)
    with torch.no_grad():
        K, targets = model.covar_module(X).to_dense(), model.train_targets - model.mean_module(X)
        for row in rows.tolist():
            others = known[known != row]
            S = K[others][:, others] + 1e-3 * torch.eye(len(others), dtype=K.dtype)
            weights = torch.linalg.solve(S, K[others, row])
            assert float(found.values[row]) == pytest.approx(float(targets[row] - weights @ targets[others]), abs=1e-8)
            assert float(found.variances[row]) == pytest.approx(float(K[row, row] - weights @ K[others, row]), abs=1e-8)


def test_robust_is_true_or_false():
    X, Y, _ = data()
    with pytest.raises(TypeError, match="expected robust to be True or False, got str 'yes'; pass one of them"):
        SparseGP(X, Y, robust="yes")
    with pytest.raises(UnsupportedError, match="drop them beforehand, and leave robust out"):
        ShardedSparseGP(X, Y, group=Alone(), robust=True)


def test_rows_that_are_off_are_named():
    X, Y, rows = data(bad=3)
    with pytest.warns(InputDataWarning, match="robust=True") as said:
        fitted(SparseGP(X, Y))
    (message,) = {str(warning.message) for warning in said}
    assert message.startswith("3 of 300 observations are more than 10 standard deviations off")
    assert {int(word) for word in message.partition("rows ")[2].partition(" of")[0].split(", ")} == set(rows.tolist())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (SparseMixedGP, {"cat_dims": [2]}),
        (SparseMultiFidelityGP, {"data_fidelities": [1]}),
    ],
)
def test_rows_that_are_off_are_named_by_kernels_without_a_closed_form(kind, options):
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(60, 3, generator=generator, dtype=torch.float64)
    X[:, 2] = torch.randint(0, 3, (60,), generator=generator)
    good = torch.sin(5.0 * X[:, :1]) + 0.05 * torch.randn(60, 1, generator=generator, dtype=torch.float64)
    bad = good.clone()
    bad[[3, 40]] += 20.0 * good.std()
    for Y, rows in ((good, None), (bad, {"3", "40"})):
        model = make_sparse(X, Y, kind=kind, **options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("ignore")  # those of linear_operator, about its own interpolation and jitter
            warnings.simplefilter("always", InputDataWarning)
            fitted(model, optimizer_kwargs={"options": {"maxiter": 15}})
        said = [str(one.message) for one in caught if "standard deviations off" in str(one.message)]
        named = [set(text.partition("rows ")[2].partition(" of train_X")[0].split(", ")) for text in said]
        assert named == ([] if rows is None else [rows])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(4))
def test_rows_that_are_off_are_named_where_the_noise_is_known(seed):
    X = torch.rand(300, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    Y = torch.sin(4 * X).sum(dim=-1, keepdim=True)
    Y[:3] += 20 * Y.std()  # lengthscales get so short that these rows are likely under the model
    with pytest.warns(InputDataWarning, match="robust=True") as said:
        fitted(SparseGP(X, Y, torch.full_like(Y, 1e-4)))
    named = str(said[0].message).partition("row")[2].removeprefix("s").partition(" of")[0].removesuffix(" …")
    assert {int(word) for word in named.split(", ")} <= {0, 1, 2}


def curved(X):
    return torch.sin(6 * X[:, :1]) + 3 * X[:, 1:2].square() + torch.cos(5 * X[:, 2:3] * X[:, 3:4])


def one_bad_row(n, seed, size):
    """n rows, row 7 off by ``size``, and 300 inputs."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=g, dtype=torch.float64)
    Y = curved(X) + 0.05 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    Y[7] += size
    return X, Y, torch.rand(300, 4, generator=g, dtype=torch.float64)


@pytest.mark.parametrize(
    ("n", "seed", "size"),
    [(520, 2, 100.0), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(500, 7, 1e4), (520, 2, 1e4), (521, 4, 1e4)])],
)
def test_a_row_that_its_neighbours_follow_is_left_out(n, seed, size, half):
    """A learned spike at the row spoils the predictions of its ten nearest: by their scale the row was not far off."""
    X, Y, T = one_bad_row(n, seed, size)
    model = fitted(make_sparse(X, Y, robust=True))
    assert model.outlying_rows.tolist() == [7]
    with torch.no_grad():
        assert float((model.posterior(T).mean - curved(T)).square().mean().sqrt()) < 0.05


@pytest.mark.parametrize(
    ("n", "seed"),
    [(1500, 2), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(250, 2), (520, 5), (521, 4), (750, 2)])],
)
def test_a_row_that_no_search_has_seen_is_named(n, seed, half):
    """All rows are looked at, not those alone that hyper-parameters are learned from."""
    X, Y, _ = one_bad_row(n, seed, 1e4)
    with pytest.warns(InputDataWarning, match=f"1 of {n} observations .*: row 7 of train_X"):
        fitted(make_sparse(X, Y))


def test_residuals_without_two_rows_are_those_of_dense_algebra():
    X, Y, _ = one_bad_row(60, 0, 3.0)
    model = SparseGP(X, Y).train()
    rows = torch.arange(60)
    known, nearest = rows[::2], torch.stack([torch.arange(30).roll(1), torch.arange(30).roll(5)], dim=-1)
    found = residuals_given(model, known, rows)
    with torch.no_grad():
        x, y = X[known], model.train_targets[known] - model.mean_module(X[known])
        K = model.covar_module(x).to_dense() + model.likelihood.noise * torch.eye(30, dtype=torch.float64)
        for i, j in ((0, 1), (7, 0), (29, 1)):
            at = int(nearest[i, j])
            kept = [k for k in range(30) if k not in (i, at)]
            assert found.without(nearest)[i, j].item() == pytest.approx(
                float(y[at] - K[at, kept] @ torch.linalg.solve(K[kept][:, kept], y[kept])), rel=1e-8
            )


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:Very small noise values:linear_operator.utils.warnings.NumericalWarning")  # as all rows'
@pytest.mark.parametrize("size", [1e4, 1e5])
def test_known_noise_is_that_of_the_other_rows(size):
    """BoTorch's least noise, in units of all rows, was 0.4 to 4 here, in place of 0.05."""
    X, Y, T = one_bad_row(200, 0, size)
    noise, good = torch.full_like(Y, 0.05**2), torch.arange(200) != 7
    model, without = fitted(SparseGP(X, Y, noise, robust=True)), fitted(SparseGP(X[good], Y[good], noise[good]))
    assert model.outlying_rows.tolist() == [7]
    with torch.no_grad():
        torch.testing.assert_close(model.posterior(T).mean, without.posterior(T).mean, rtol=0.0, atol=1e-3)
        torch.testing.assert_close(model.posterior(T).stddev, without.posterior(T).stddev, rtol=1e-2, atol=0.0)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("share", [0.01, 0.05])
@pytest.mark.parametrize("n", [N, 750])
def test_a_robust_fit_leaves_out_the_rows_that_are_off(n, share, half):
    X, Y, rows = data(n, bad=int(share * n))
    model = fitted(make_sparse(X, Y, robust=True))
    assert torch.equal(model.outlying_rows, rows)
    assert f"{len(rows)} outlying rows left out" in repr(model)
    good = torch.ones(n, dtype=torch.bool)
    good[rows] = False
    assert error(model) < 0.05
    assert error(model) == pytest.approx(error(fitted(make_sparse(X[good], Y[good]))), abs=0.01)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("error::botorch.exceptions.InputDataWarning")
@pytest.mark.parametrize(("size", "known"), [(1e3, False), (1e6, False), (30.0, True)], ids=["1e3", "1e6", "known noise"])
@pytest.mark.parametrize("outputs", [1, 2])
def test_the_units_of_the_others_are_not_those_of_a_row_that_is_far_off(size, outputs, known):
    X, Y, rows = data(bad=1, size=size)
    Y = torch.cat([Y, X[:, :1]], dim=-1)[:, :outputs]
    noise = {"train_Yvar": torch.full_like(Y, 0.05**2)} if known else {}
    model = fitted(SparseGP(X, Y, robust=True, **noise))
    assert torch.equal(model.outlying_rows, rows)
    T = torch.rand(500, 2, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    with torch.no_grad():
        mean = model.posterior(T).mean[:, :1]
        assert float((mean - wave(T)).square().mean().sqrt() / wave(T).std()) < 0.05
    good = torch.arange(N) != rows
    torch.testing.assert_close(model.outcome_transform.stdvs, Y[good].std(dim=0, keepdim=True))
    Y_again, _ = model.outcome_transform.untransform(model.train_targets.reshape(outputs, N).mT)
    torch.testing.assert_close(Y_again, Y, rtol=1e-9, atol=1e-9)
    if known:
        scaled = model.likelihood.noise_covar.noise.reshape(outputs, N).mT * model.outcome_transform.stdvs.square()
        torch.testing.assert_close(scaled, noise["train_Yvar"])
    more = torch.rand(40, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    Z = torch.cat([wave(more), more[:, :1]], dim=-1)[:, :outputs]
    Z[7, 0] += size
    noise = {"train_Yvar": torch.full((N + 40, outputs), 0.05**2, dtype=torch.float64)} if known else {}
    grown = SparseGP(torch.cat([X, more]), torch.cat([Y, Z]), robust=True, previous=model, **noise).eval()
    assert torch.equal(grown.outlying_rows, torch.tensor([int(rows), N + 7]))
    with torch.no_grad():
        mean = grown.posterior(T).mean[:, :1]
        assert float((mean - wave(T)).square().mean().sqrt() / wave(T).std()) < 0.05


OPTIONS = {
    "sparse": {"max_dictionary": 60},
    "vfe": {"fit": "vfe", "max_dictionary": 60},
    "no closed form": {"covar_module": ScaleKernel(RQKernel(ard_num_dims=2)).double()},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_every_likelihood_learns_without_them(options):
    X, Y, rows = data(150, bad=4)
    model = fitted(SparseGP(X, Y, robust=True, **copy.deepcopy(OPTIONS[options])))
    assert torch.equal(model.outlying_rows, rows)
    assert error(model) < 0.1


@pytest.mark.filterwarnings("ignore:.*standard deviations off:botorch.exceptions.InputDataWarning")
def test_with_known_noise_most_are_left_out_and_no_good_one():
    X, Y, rows = data(bad=6)  # lengthscales grow so short that some are explained
    options = {"train_Yvar": torch.full((N, 1), 0.05**2, dtype=torch.float64)}
    model = fitted(SparseGP(X, Y, robust=True, **options))
    assert set(model.outlying_rows.tolist()) <= set(rows.tolist())
    assert len(model.outlying_rows) >= 3
    assert error(model) < error(fitted(SparseGP(X, Y, **options)))


def test_a_row_is_left_out_of_all_outputs():
    X, Y, rows = data(100, bad=3)
    model = fitted(SparseGP(X, torch.cat([wave(X), Y], dim=-1), robust=True))
    assert torch.equal(model.outlying_rows, rows)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_task_of_several_can_have_rows_that_are_off():
    X, Y, rows = data(60, bad=3)
    tasks = (torch.arange(60) % 2).double().unsqueeze(-1)
    model = fitted(
        SparseMultiTaskGP(torch.cat([X, tasks], dim=-1), Y, task_feature=-1, robust=True),
        optimizer_kwargs={"options": {"maxiter": 15}},
    )
    assert torch.equal(model.outlying_rows, rows)


def test_copies_and_grown_models_leave_out_the_same_rows():
    X, Y, _ = data(bad=6)
    options = {"robust": True, "max_dictionary": 60}
    model = fitted(make_sparse(X[:-5], Y[:-5], **options))
    T = X[:7] + 0.01
    before = model.posterior(T).mean.detach()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other.outlying_rows, model.outlying_rows)
        torch.testing.assert_close(other.posterior(T).mean.detach(), before)
    grown = make_sparse(X, Y, previous=model, **options)
    assert torch.equal(grown.outlying_rows, model.outlying_rows)
    assert grown.representation().root.matrix.shape[-1] == model.representation().root.matrix.shape[-1] + 5
    assert error(grown) < 0.1
    grown.set_train_data(X, Y.squeeze(-1), strict=False)
    assert grown.outlying_rows is None


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("known", [False, True], ids=["learned noise", "known noise"])
def test_a_state_dict_keeps_the_rows_that_are_left_out(outputs, known):
    X, Y, rows = data(bad=1, size=30.0)
    Y = torch.cat([Y, X[:, :1]], dim=-1)[:, :outputs]
    options = {"robust": True} | ({"train_Yvar": torch.full_like(Y, 0.05**2)} if known else {})
    model, again = fitted(SparseGP(X, Y, **options)), SparseGP(X, Y, **options)
    assert torch.equal(model.outlying_rows, rows)
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.outlying_rows, model.outlying_rows)
    torch.testing.assert_close(again.posterior(X).mean, model.posterior(X).mean)
    torch.testing.assert_close(again.posterior(X).variance, model.posterior(X).variance)
    again.load_state_dict(SparseGP(X, Y, **options).state_dict())
    assert again.outlying_rows is None


def test_a_state_dict_goes_through_lists_likelihoods_and_files(tmp_path):
    X, Y, rows = data(100, bad=3)
    model = fitted(SparseGP(X, Y, robust=True))
    first, second = (SparseModelListGP(SparseGP(X, Y, robust=True), SparseGP(X, Y)) for _ in range(2))
    first.models[0].load_state_dict(model.state_dict())
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second.load_state_dict(torch.load(tmp_path / "state.pt"))
    assert torch.equal(second.models[0].outlying_rows, rows)
    assert second.models[1].outlying_rows is None
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.load_state_dict(mll.state_dict())  # as fit_gpytorch_mll does after a search that has failed
    assert torch.equal(model.outlying_rows, rows)
    other = SparseGP(X, Y, robust=True)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*outlying_rows"):  # its outcomes keep the units of all rows
        ExactMarginalLogLikelihood(other.likelihood, other).load_state_dict(mll.state_dict())


def test_a_state_dict_of_other_data_leaves_out_no_row_and_says_so():
    X, Y, _ = data(100, bad=3)
    model, other = fitted(SparseGP(X, Y, robust=True)), SparseGP(X[:90], Y[:90], robust=True)
    with pytest.warns(InputDataWarning, match="leaves out 3 of 100 rows, this model has 90, and leaves out none; fit it"):
        other.load_state_dict(model.state_dict())
    assert other.outlying_rows is None


def test_calibration_is_by_the_other_rows():
    X, Y, _ = data(bad=3, noise=0.0)
    model = fitted(SparseGP(X, Y, robust=True, max_dictionary=8))
    assert 0.1 < float(model.calibrated().covar_module.outputscale.detach()) < 20.0  # with these rows: thousands


@pytest.mark.slow
def test_one_bad_row_in_a_hundred_of_many_is_named_or_left_out():
    X, Y, bad = data(8000, bad=80)
    with pytest.warns(InputDataWarning, match="robust=True"):
        plain = fitted(SparseGP(X, Y))
    robust = fitted(SparseGP(X, Y, robust=True))
    assert torch.equal(robust.outlying_rows, bad)
    assert error(robust) < 0.005 < 0.05 < error(plain)  # of clean rows 0.003


@pytest.mark.slow
@pytest.mark.parametrize("n", [1040, 1041])
def test_a_function_of_a_few_of_many_inputs_is_learned(n):
    g = torch.Generator().manual_seed(0)
    X, T = torch.rand(n, 500, generator=g, dtype=torch.float64), torch.rand(500, 500, generator=g, dtype=torch.float64)
    frequencies = 2.0 + 0.6 * torch.arange(8, dtype=torch.float64)

    def function(X):
        return (frequencies * X[:, :8]).sin().sum(dim=-1, keepdim=True)

    model = fitted(SparseGP(X, function(X)))
    with torch.no_grad():
        assert float((model.posterior(T).mean - function(T)).square().mean().sqrt() / function(T).std()) < 0.12


def test_new_rows_far_off_the_predictions_of_a_previous_robust_model_are_left_out_too():
    X, Y, rows = data(bad=6, seed=1)
    model = fitted(SparseGP(X[:200], Y[:200], robust=True))
    grown = SparseGP(X, Y, previous=model, robust=True)
    assert torch.equal(grown.outlying_rows, rows)
    at = torch.rand(200, 2, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    with torch.no_grad():
        error = (grown.posterior(at).mean - wave(at)).square().mean().sqrt() / wave(at).std()
    assert error < 0.05
    plain = SparseGP(X, Y, previous=model)
    assert torch.equal(plain.outlying_rows, model.outlying_rows)  # not robust: as the previous model, until it is fitted
    with pytest.warns(InputDataWarning, match="robust=True"):
        assert fitted(plain).outlying_rows is None
