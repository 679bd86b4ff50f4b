"""``previous=``: the posterior of grown data from the one before, against one made anew, and what is refused."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Log, Normalize, Standardize
from botorch.models.transforms.input import Warp
from botorch.models.transforms.outcome import ChainedOutcomeTransform
from gpytorch.kernels import MaternKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo.models import SparseGP, SparseSettings
from tests.models.sparse_problems import make_sparse

N, K = 60, 9
BOUNDS = torch.tensor([[0.0, 0.0], [1.0, 2.0]], dtype=torch.float64)


def data(outputs=1):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(N + 5 * K, 2, generator=g, dtype=torch.float64)
    Y = 3 + torch.sin(6 * X[:, :1]) + X[:, 1:] * torch.arange(1.0, outputs + 1).double()
    return X, Y + 0.1 * torch.rand(len(X), outputs, generator=g, dtype=torch.float64)


def first(**options):
    X, Y = data()
    made = SparseGP(X[:N], Y[:N], **options)
    made.covar_module.lengthscale = 0.3
    made.likelihood.noise = 0.02
    return made


def anew(like, X, Y, **options):
    """Return a model without a past, with the hyper-parameters, units and dictionary of ``like``."""
    fresh = SparseGP(
        X, Y, dictionary=None if like.cache().holds_all(like.train_targets.shape[-1]) else like.dictionary.indices, **options
    )
    fresh.load_state_dict({**fresh.state_dict(), **dict(like.named_parameters())})
    if hasattr(like, "outcome_transform"):
        fresh.outcome_transform.load_state_dict(like.outcome_transform.state_dict())
        Z, _ = fresh.outcome_transform.eval()(Y)
        fresh.set_train_data(targets=Z.mT if Y.shape[-1] > 1 else Z.squeeze(-1), strict=False)
    return fresh


def columns(model):
    """Return the columns of the root; one that has grown has one more for each new row, a new one as many as points."""
    return model.eval().representation().root.matrix.shape[-1]


def assert_same(one, other, T):
    with torch.no_grad():
        ours, theirs = one.posterior(T), other.posterior(T)
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=0, atol=1e-8)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=0, atol=1e-8)
        (ours, theirs) = (made(made.transform_inputs(T)).covariance_matrix for made in (one, other))
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)


TRANSFORMS = {
    "standardized": lambda: {},
    "raw": lambda: {"outcome_transform": None},
    "log": lambda: {"outcome_transform": Log()},
    "scaled": lambda: {"outcome_transform": Standardize(1), "input_transform": Normalize(2, bounds=BOUNDS)},
}


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore::botorch.exceptions.InputDataWarning")  # "raw" is not standardised, and means to
@pytest.mark.parametrize("options", TRANSFORMS)
@pytest.mark.parametrize("exact", [True, False])
def test_a_chain_is_the_model_made_anew(exact, options):
    settings = SparseSettings(growth=10.0)
    make = TRANSFORMS[options]
    X, Y = data()
    now = first(**({} if exact else {"dictionary": torch.arange(0, N, 3)}), **make())
    for step in range(1, 5):
        now = SparseGP(X[: N + step * K], Y[: N + step * K], previous=now, settings=settings, **make())
        now.posterior(X[:1])
        assert columns(now) == (N if exact else N // 3) + step * K
    assert_same(now, anew(now, X[: N + 4 * K], Y[: N + 4 * K], **make()), data()[0][-7:])


@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("way", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"])
def test_a_copy_grows_as_the_model_itself(way, steps, scale):
    scale(dictionary={"smallest": 5})
    X, Y = data()
    now = make_sparse(X[:N], Y[:N], max_dictionary=20)
    now.posterior(X[:1])
    for _ in range(steps):
        now = make_sparse(X[: N + 4], Y[: N + 4], previous=now)
        now.posterior(X[:1])
    n = len(now.train_targets) + 2
    grown = make_sparse(X[:n], Y[:n], previous=way(now))
    assert columns(grown) == 20 + n - N
    assert torch.equal(grown.dictionary.indices, now.dictionary.indices)
    assert_same(grown, anew(grown, X[:n], Y[:n]), X[-7:])


def test_a_root_with_too_many_columns_is_made_anew_over_the_same_points(scale):
    scale(dictionary={"smallest": 5})
    X, Y = data()
    old = make_sparse(X[:N], Y[:N], max_dictionary=20)
    now = make_sparse(X[: N + 20], Y[: N + 20], previous=old)
    assert columns(now) == 20
    assert torch.equal(now.dictionary.indices, old.dictionary.indices)
    assert_same(now, anew(now, X[: N + 20], Y[: N + 20]), X[-7:])


@pytest.mark.parametrize("exact", [True, False])
def test_a_learned_warp_is_that_of_before(exact):
    X, Y = data()
    options = {} if exact else {"dictionary": torch.arange(0, N, 3)}
    old = SparseGP(X[:N], Y[:N], input_transform=Warp(2, [0, 1], bounds=BOUNDS), **options)
    with torch.no_grad():
        old.input_transform.concentration0.fill_(1.7)
    now = SparseGP(X, Y, input_transform=Warp(2, [0, 1], bounds=BOUNDS), previous=old)
    assert_same(now, anew(now, X, Y, input_transform=Warp(2, [0, 1], bounds=BOUNDS)), X[-7:])


def test_several_outputs_grow_together():
    X, Y = data(outputs=2)
    now = SparseGP(X[:N], Y[:N])
    grown = SparseGP(X, Y, previous=SparseGP(X[:-K], Y[:-K], previous=now))
    assert_same(grown, anew(grown, X, Y), X[-7:])


def test_a_dictionary_is_chosen_anew_when_the_data_have_grown_by_half(scale):
    scale(dictionary={"smallest": 5})
    X, Y = data()
    old = SparseGP(X[:40], Y[:40], max_dictionary=20)
    one = SparseGP(X[:50], Y[:50], previous=old)
    rows = one.dictionary.indices
    two = SparseGP(X[:60], Y[:60], previous=one)
    assert torch.equal(two.dictionary.indices, rows)
    three = SparseGP(X[:100], Y[:100], previous=two)
    assert three.dictionary.m == 20
    assert not torch.equal(three.dictionary.indices, rows)


def test_past_the_cap_the_exact_posterior_becomes_a_sparse_one():
    X, Y = data()
    now = SparseGP(X, Y, previous=first(max_dictionary=N + 5))
    assert now.dictionary.m == N + 5


def test_after_another_fit_nothing_of_the_old_posterior_is_used():
    X, Y = data()
    now = SparseGP(X, Y, previous=first())
    torch.testing.assert_close(now.likelihood.noise, torch.tensor([0.02], dtype=torch.float64))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(now.likelihood, now))
    assert_same(now, anew(now, X, Y), X[-7:])


NOISES = {"learned": None, "known": 0.02, "known to be tiny": 1e-12}


@pytest.mark.filterwarnings("ignore:Very small noise values:linear_operator.utils.warnings.NumericalWarning")
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("transform", [lambda m: Standardize(m), lambda m: ChainedOutcomeTransform(a=Log(), b=Standardize(m))])
@pytest.mark.parametrize("outputs", [1, 2])
def test_rows_of_another_spread_leave_hyperparameters_in_the_users_units_as_they_are(outputs, transform, noise):
    """The posterior is that of the previous model, conditioned on the new rows."""
    X, Y = data(outputs)
    Y[N:] = 9.0 + 5.0 * Y[N:]
    known = torch.full_like(Y, NOISES[noise] or 0.0)
    train = [{"train_X": X[:n], "train_Y": Y[:n], "train_Yvar": None if noise == "learned" else known[:n]} for n in (N, len(X))]
    if noise != "learned" and not isinstance(transform(1), Standardize):
        pytest.skip("BoTorch's Log takes no known noise")
    old = SparseGP(**train[0], outcome_transform=transform(outputs))
    old.covar_module.lengthscale = 0.3
    grown = SparseGP(**train[1], outcome_transform=transform(outputs), previous=old)
    if noise != "learned":  # which conditioning takes in standardised units, at least 1e-6
        scaled = {"noise": (known[N:] / old.outcome_transform.stdvs.square()).clamp_min(1e-6)}
    old.posterior(X[:1])
    conditioned = old.condition_on_observations(X[N:], Y[N:], **({} if noise == "learned" else scaled))
    with torch.no_grad():
        ours, theirs = (model.eval().posterior(X[-7:] + 0.01) for model in (grown, conditioned))
        torch.testing.assert_close(ours.mean, theirs.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ours.variance, theirs.variance, rtol=1e-5, atol=1e-9)
    if isinstance(transform(1), Standardize):
        fit_gpytorch_mll(ExactMarginalLogLikelihood(grown.likelihood, grown))
        torch.testing.assert_close(grown.outcome_transform.stdvs, Y.std(dim=0, keepdim=True))
        back, variances = grown.outcome_transform.untransform(
            grown.train_targets.reshape(outputs, -1).mT, grown.likelihood.noise.reshape(outputs, -1).mT
        )
        torch.testing.assert_close(back, Y)
        if noise == "known":
            torch.testing.assert_close(variances, known)


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32:botorch.exceptions.InputDataWarning")
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_mean_far_beyond_the_spread_rounds_and_grows(dtype, known):
    """Standardising by an offset of a thousand standard deviations rounds; another result of the last digits is refused."""
    X, Y = (each.to(dtype) for each in data())
    Y = 1e3 + Y
    noise = [torch.full_like(Y[:n], 0.02) if known else None for n in (N, len(X))]
    old = SparseGP(X[:N], Y[:N], noise[0])
    grown = SparseGP(X, Y, noise[1], previous=old)
    assert torch.equal(grown.train_targets[:N], old.train_targets)
    grown.posterior(X[:1])
    assert columns(grown) == len(X)
    torch.testing.assert_close(grown.outcome_transform.untransform(grown.train_targets.unsqueeze(-1))[0], Y)
    Y[3] += 1e3 * torch.finfo(dtype).eps * Y[3]
    with pytest.raises(InputDataError, match="train_Y"):
        SparseGP(X, Y, noise[1], previous=old)


def test_corrected_noise_of_old_rows_counts_beside_a_row_that_has_been_switched_off():
    X, Y = data()
    noise = torch.full_like(Y, 1e-4)
    noise[0] = 1e12
    corrected = noise.clone()
    corrected[1:10] = 1e-2
    with torch.no_grad():
        before = SparseGP(X[:N], Y[:N], noise[:N])
        before.posterior(X[:1])
        grown, fresh = SparseGP(X, Y, corrected, previous=before), SparseGP(X, Y, corrected)
        fresh.load_state_dict({**fresh.state_dict(), **dict(before.named_parameters())})
        fresh.outcome_transform.load_state_dict(before.outcome_transform.state_dict())
        Z, variances = fresh.outcome_transform.eval()(Y, corrected)
        fresh.likelihood.noise_covar.noise = variances.squeeze(-1)
        fresh.set_train_data(targets=Z.squeeze(-1), strict=False)
        assert_same(grown, fresh, X[1:4])


def test_a_loop_keeps_one_model():
    X, Y = data()
    old = first()
    gone = weakref.ref(old)
    now = SparseGP(X, Y, previous=old)
    del old
    gc.collect()
    assert gone() is None
    now.posterior(X[:1])


@pytest.mark.filterwarnings("ignore::botorch.exceptions.InputDataWarning")  # the logarithm is not standardised
def test_what_does_not_continue_is_refused():
    X, Y = data()
    old = first()
    with pytest.raises(InputDataError, match="begin with the 60 rows .* or make a new model without previous"):
        SparseGP(X[1:], Y[1:], previous=old)
    with pytest.raises(ValueError, match=r"as many outputs \(2\) and inputs \(2\) as this model, got 1 and 2"):
        SparseGP(*data(outputs=2), previous=old)
    with pytest.raises(ValueError, match=r"as many outputs \(1\) and inputs \(1\) as this model, got 1 and 2"):
        SparseGP(X[:, :1], Y, previous=old)
    with pytest.raises(InputDataError, match="begin with the 60 rows"):
        SparseGP(X[:20], Y[:20], previous=old)
    with pytest.raises(InputDataError, match="train_Y"):
        SparseGP(X, Y.square(), previous=old)
    emptied = first()
    emptied.set_train_data(X[:0], Y[:0].squeeze(-1), strict=False)
    with pytest.raises(InputDataError, match="to have training data"):
        SparseGP(X, Y, previous=emptied)
    with pytest.raises(ValueError, match="covar_module"):
        SparseGP(X, Y, covar_module=ScaleKernel(MaternKernel()).double(), previous=old)
    with pytest.raises(ValueError, match="outcome_transform"):
        SparseGP(X, Y, outcome_transform=Log(), previous=old)
    with pytest.raises(TypeError, match="SparseGP"):
        SparseGP(X, Y, previous=old.state_dict())
    with pytest.raises(ValueError, match="leave dictionary out"):
        SparseGP(X, Y, dictionary=torch.arange(3), previous=old)
    moving = first(input_transform=Normalize(2))
    wider = X.clone()
    wider[-1] = 9.0
    with pytest.raises(ValueError, match="input transform"):
        SparseGP(wider, Y, input_transform=Normalize(2), previous=moving)
    moving.posterior(X[:1])
    with pytest.raises(ValueError, match="fantasies"):
        SparseGP(X, Y, input_transform=Normalize(2), previous=moving.condition_on_observations(X[:1], Y[:1]))


@pytest.mark.parametrize("change", [{"nu": 1.5}, {"active_dims": [1]}])
def test_a_kernel_that_differs_in_what_is_no_parameter_is_refused(change):
    X, Y = data()
    same = {"nu": 2.5, "active_dims": [0]}
    old = SparseGP(X[:N], Y[:N], covar_module=MaternKernel(**same))
    with pytest.raises(ValueError, match="same covar_module, got one of other values"):
        SparseGP(X, Y, covar_module=MaternKernel(**{**same, **change}), previous=old)


def test_a_smaller_dictionary_is_chosen_where_it_is_asked_for():
    X, Y = data()
    old = first(max_dictionary=40)
    old.posterior(X[:1])
    assert old.dictionary.m > 10
    small = SparseGP(X[: N + K], Y[: N + K], max_dictionary=10, previous=old)
    small.posterior(X[:1])
    assert small.dictionary.m <= 10


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.filterwarnings("ignore::botorch.exceptions.InputDataWarning")  # float32
def test_new_rows_far_from_the_dictionary_join_it(dtype, scale):
    """They changed the means everywhere, by more than the range of the results."""
    scale(dictionary={"smallest": 5})
    X, options = 0.3 * torch.rand(400, 2, generator=torch.Generator().manual_seed(0)).to(dtype), {"outcome_transform": None}
    X = torch.cat([X, torch.tensor([[0.8, 0.8], [0.8, 0.8], [0.1, 0.2], [1.0, 0.8]], dtype=dtype)])
    Y, noise = (6 * X).sin().sum(dim=-1, keepdim=True), torch.full((404, 1), 1e-2, dtype=dtype)
    old = SparseGP(X[:400], Y[:400], noise[:400], max_dictionary=100, **options)
    old.covar_module.lengthscale = 0.2
    old.posterior(X[:1])
    assert not old.cache().holds_all(400)
    grown = SparseGP(X, Y, noise, previous=old, max_dictionary=102, **options)
    exact = SingleTaskGP(X, Y, noise, **options)
    exact.covar_module.lengthscale = 0.2
    T = torch.rand(100, 2, generator=torch.Generator().manual_seed(1)).to(dtype)
    error = (grown.posterior(T).mean - exact.posterior(T).mean).abs().amax()
    assert error < 0.02
    assert grown.dictionary.indices.tolist() == [*old.dictionary.indices.tolist(), 400, 403]
