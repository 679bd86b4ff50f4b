"""A sparse model of data over ranks is that of one process with all of it."""

import warnings

import pytest
import torch
from botorch.acquisition import qLogExpectedImprovement
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import OptimizationWarning
from botorch.fit import fit_gpytorch_mll
from botorch.models.transforms.input import Normalize
from botorch.sampling import SobolQMCNormalSampler
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo import SparseGP
from sparse_bo.errors import RankError
from sparse_bo.models import ShardedSparseGP
from tests.models.sparse_problems import make_sparse
from tests.sharding.builders import Counted, rehearse

AGREES = {"rtol": 1e-10, "atol": 1e-10}
CUTS = [0, 100, 330, 500]
GENERATOR = torch.Generator().manual_seed(0)
X = torch.rand(500, 3, generator=GENERATOR, dtype=torch.float64)
Y = torch.sin(6.0 * X[:, :1]) + X[:, 1:2] ** 2 + 0.1 * torch.randn(500, 1, generator=GENERATOR, dtype=torch.float64)
TEST = torch.rand(20, 3, generator=GENERATOR, dtype=torch.float64)


def part(group) -> slice:
    return slice(CUTS[group.rank], CUTS[group.rank + 1])


def sharded(group, **options):
    return ShardedSparseGP(X[part(group)], Y[part(group)], group=group, **options)


def posterior(model):
    model.eval()
    found = model.posterior(TEST)
    return found.mean.detach(), found.variance.detach()


def objective(model):
    """Return the learning objective and its gradients."""
    model.train()
    value = ExactMarginalLogLikelihood(model.likelihood, model)(model(*model.train_inputs), model.train_targets)
    value.backward()
    return value.detach(), torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


OPTIONS = {
    "leverages": {"max_dictionary": 280},
    "points": {"dictionary": X[::7]},
    "all rows": {},
    "normalised": {
        "max_dictionary": 280,
        "input_transform": Normalize(3, bounds=torch.tensor([[0.0, -1.0, 0.0], [2.0, 1.0, 1.0]]).double()),
    },
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_posterior_is_that_of_one_process(name):
    expected = posterior(SparseGP(X, Y, **OPTIONS[name]))
    for found in rehearse(3, lambda group: posterior(sharded(group, **OPTIONS[name]))):
        torch.testing.assert_close(found, expected, **AGREES)


def test_many_rows_cost_no_digits(scale):
    """Beyond ``MANY_ROWS`` sums are whitened together, and the mean loses nothing by it, whatever order the sums are in."""
    many_X = torch.rand(6000, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    many_Y = torch.sin(6.0 * many_X[:, :1]) + many_X[:, 1:2] ** 2
    test_X, cuts = many_X[:50] ** 2, [0, 2500, 2503, 6000]

    def found(model):
        model.eval()
        of_all = model.posterior(test_X)
        return of_all.mean.detach(), of_all.variance.detach()

    def script(group):
        some = slice(cuts[group.rank], cuts[group.rank + 1])
        return found(ShardedSparseGP(many_X[some], many_Y[some], group=group, dictionary=many_X[:200]))

    together = found(make_sparse(many_X, many_Y, dictionary=many_X[:200]))
    over_ranks = rehearse(3, script)
    scale(sums={"together_from": 10**6})
    row_by_row = found(make_sparse(many_X, many_Y, dictionary=many_X[:200]))
    for each in (together, *over_ranks):
        torch.testing.assert_close(each, row_by_row, rtol=0, atol=1e-12)


def test_known_noise_is_that_of_every_row():
    noise = 0.01 + 0.1 * X[:, :1]
    expected = posterior(SparseGP(X, Y, noise, max_dictionary=280))

    def script(group):
        some = part(group)
        return posterior(ShardedSparseGP(X[some], Y[some], noise[some], group=group, max_dictionary=280))

    for found in rehearse(3, script):
        torch.testing.assert_close(found, expected, **AGREES)


# GPyTorch's likelihood has the noise of this rank's rows, and is given the prior of all, whose likelihood has their noise.
@pytest.mark.filterwarnings("ignore:You have passed data through a FixedNoiseGaussianLikelihood")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("known", [False, True], ids=["learned noise", "known noise"])
@pytest.mark.parametrize("fit", ["subset", "dtc", "vfe", "exact"])
def test_likelihoods_and_gradients_are_those_of_one_process(fit, known):
    noise, options = 0.01 + 0.1 * X[:, :1] if known else None, {"max_dictionary": 60, "fit": fit}
    expected = objective(SparseGP(X, Y, noise, **options))

    def script(group):
        some = part(group)
        return objective(ShardedSparseGP(X[some], Y[some], noise[some] if known else None, group=group, **options))

    outcomes = rehearse(3, script)
    for found in outcomes:
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    assert outcomes[0][1].equal(outcomes[2][1])


def test_what_is_learned_is_what_one_process_learns():
    def learned(model):
        options = {"optimizer_kwargs": {"options": {"maxiter": 4}}}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OptimizationWarning)  # four steps are not all
            fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model), **options)
        return posterior(model)

    expected = learned(SparseGP(X, Y, max_dictionary=60, fit="vfe"))
    for found in rehearse(3, lambda group: learned(sharded(group, max_dictionary=60, fit="vfe"))):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


def test_after_the_first_posterior_nobody_is_asked():
    def script(group):
        counted = Counted(group)
        model = sharded(counted, max_dictionary=280)
        model.eval()
        model.representation()
        before = counted.traffic.collectives
        sampler = SobolQMCNormalSampler(torch.Size([16]), seed=0)
        value = qLogExpectedImprovement(model, best_f=0.5, sampler=sampler)(TEST[None, :3])
        fantasy = model.condition_on_observations(TEST[:2], Y[:2])
        fantasy.posterior(TEST)
        return counted.traffic.collectives - before, float(value.detach())

    outcomes = rehearse(3, script)
    assert outcomes == [(0, outcomes[0][1])] * 3


def test_bytes_grow_with_the_dictionary_and_not_with_the_data():
    def spent(rows):
        def script(group):
            counted = Counted(group)
            model = ShardedSparseGP(X[:rows], Y[:rows], group=counted, dictionary=X[:20])
            model.eval()
            before = counted.traffic.bytes
            model.representation()
            return counted.traffic.bytes - before

        return rehearse(2, script)

    assert spent(100) == spent(500)
    assert spent(100)[0] < 8 * 20 * 20 + 8 * 1024


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda group: {"train_X": X[: 10 * group.rank], "train_Y": Y[: 10 * group.rank]}, ValueError, "on rank 0"),
        (lambda group: {"train_X": X[:9, : 1 + group.rank], "train_Y": Y[:9]}, ValueError, "got .* on rank 1"),
        (lambda group: {"train_X": X[:9], "train_Y": Y[:9].expand(9, 2)}, ValueError, "n x 1"),
        (lambda group: {"train_X": X[:9], "train_Y": Y[:9], "seed": group.rank}, ValueError, "got .* on rank 1"),
        (lambda group: {"train_X": X[:9], "train_Y": Y[:9], "dictionary": X[group.rank :: 7]}, ValueError, "same dictionary"),
        (
            lambda group: {"train_X": X[:9], "train_Y": Y[:9], "train_Yvar": Y[:9] ** 2 if group.rank else None},
            ValueError,
            "same kind of noise",
        ),
        (lambda group: {"train_X": X[:9], "train_Y": Y[:9], "input_transform": Normalize(3)}, UnsupportedError, "bounds="),
        (lambda group: {"train_X": X[:9], "train_Y": Y[:9], "dictionary": torch.arange(3)}, UnsupportedError, "got rows"),
    ],
    ids=["no rows", "widths", "outputs", "seeds", "dictionaries", "noise", "learning transform", "rows as dictionary"],
)
def test_data_that_make_no_set_are_an_error_on_every_rank(change, error, message):
    def script(group):
        with pytest.raises(error, match=message):
            ShardedSparseGP(**change(group), group=group)
        return True

    assert rehearse(2, script) == [True, True]


def test_what_needs_all_data_in_one_place_says_so():
    def script(group):
        model = sharded(group, max_dictionary=280)
        for call in (model.leave_one_out, model.calibrated, model.certify):
            with pytest.raises(UnsupportedError, match="in one place"):
                call()
        return True

    assert rehearse(3, script) == [True] * 3


def test_a_rank_that_goes_is_an_error_on_the_others():
    def script(group):
        model = sharded(group, max_dictionary=280)
        return None if group.rank == 1 else posterior(model)

    outcomes = rehearse(3, script)
    assert isinstance(outcomes[0], RankError)
    assert isinstance(outcomes[2], RankError)


def test_ranks_with_other_hyperparameters_find_out():
    def script(group):
        model = sharded(group, dictionary=X[::7])
        model.likelihood.noise = 0.1 * (1 + group.rank // 2)
        return posterior(model)

    outcomes = rehearse(3, script)
    assert all(isinstance(error, ValueError) and "raw_noise on every rank" in str(error) for error in outcomes)


@pytest.mark.parametrize("data", [{"train_Y": torch.full_like(Y[:9], torch.nan)}, {"train_Yvar": -torch.ones_like(Y[:9])}])
def test_a_rank_with_data_that_are_no_numbers_is_heard_of(data):
    """As SparseGP refuses them; one rank's NaN would be in the mean of all."""

    def script(group):
        given = {"train_X": X[:9], "train_Y": Y[:9], "train_Yvar": torch.ones_like(Y[:9])}
        return ShardedSparseGP(**{**given, **(data if group.rank == 1 else {})}, group=group)

    outcomes = rehearse(2, script)
    assert isinstance(outcomes[1], InputDataError)
    assert isinstance(outcomes[0], RankError)
    assert "rank 1" in str(outcomes[0])


def test_a_rank_with_a_choice_of_its_own_that_is_refused_is_heard_of():
    def script(group):
        return sharded(group, **({"dictionary": torch.arange(3)} if group.rank == 1 else {}))

    outcomes = rehearse(3, script)
    assert isinstance(outcomes[1], UnsupportedError)
    assert all(isinstance(error, RankError) and "rank 1" in str(error) for error in outcomes[::2])
