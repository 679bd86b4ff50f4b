"""Baselines pruned by bounds: nothing that can be best is left out, and what is not settled stays BoTorch's."""

import itertools

import pytest
import torch
from botorch.acquisition import logei, qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective import utils as several
from botorch.acquisition.multi_objective.objective import WeightedMCMultiOutputObjective
from botorch.acquisition.objective import GenericMCObjective, LinearMCObjective, ScalarizedPosteriorTransform
from botorch.models import ModelListGP, SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.multi_objective.pareto import is_non_dominated

from sparse_bo.models import SparseGP
from sparse_bo.models.sparse_gp import covariance, pruning
from sparse_bo.models.sparse_gp.model import DictionaryPosterior
from tests.models.sparse_problems import data

ROWS = torch.arange(0, 200, 5)
WEIGHTS = torch.tensor([1.0, -0.5], dtype=torch.float64)


@pytest.fixture
def many(monkeypatch):
    """More than eight points are many; variances are bounded by 4, 8, 16, 32 columns and then exactly."""
    monkeypatch.setattr(covariance, "LARGE_Q", 8)
    monkeypatch.setattr(pruning, "FIRST_COLUMNS", 4)
    monkeypatch.setattr(pruning, "CONTENDERS", 16)


def sparse(outputs=1, *, seed=0):
    train = data(outputs=outputs, n=200, seed=seed)
    model = SparseGP(**train, dictionary=ROWS)
    model.covar_module.lengthscale = 0.4
    model.likelihood.noise = 0.01
    model.eval()
    return model, train["train_X"], train["train_Y"]


def two_members():
    (first, X, _), second = sparse(), sparse()[0]
    second.set_train_data(X, (1.0 - X.square().sum(dim=-1)), strict=False)
    return ModelListGP(first, second), X


def exact_samples(model, X, monkeypatch, count=4000):
    with monkeypatch.context() as patch, torch.no_grad():
        patch.setattr(covariance, "LARGE_Q", 10**6)
        posterior = model.posterior(X)
        C = posterior.distribution.covariance_matrix
        root = torch.linalg.cholesky(C + 1e-8 * torch.eye(len(C), dtype=C.dtype))
        g = torch.Generator().manual_seed(0)
        values = torch.randn(count, len(C), generator=g, dtype=torch.float64) @ root.mT
        outputs = posterior.mean.shape[-1]
        return posterior.mean + values.reshape(count, outputs, len(X)).mT


def left(model, X, **options):
    weights = pruning._weights_of(options.pop("objective", None), options.pop("posterior_transform", None), model.num_outputs)
    rows = pruning.possible_best(model, X, weights, ref_point=options.pop("ref_point", None))
    assert rows.tolist() == sorted(set(rows.tolist()))
    return rows


def test_every_point_that_is_best_in_a_sample_is_left(many, monkeypatch):
    model, X, _ = sparse()
    best = exact_samples(model, X, monkeypatch).squeeze(-1).argmax(dim=-1)
    rows = left(model, X)
    assert set(best.tolist()) <= set(rows.tolist())
    assert len(set(best.tolist())) > 1
    assert len(rows) < 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_equal_means_the_first_set_the_level(dtype, many):
    """``topk`` of equal entries is another choice on another device."""
    model, X, _ = sparse()
    weights = torch.ones(1, 1, dtype=torch.float64)
    centre = torch.zeros(len(X), 1, dtype=dtype)
    sds = model.posterior(X[: pruning.CONTENDERS].unsqueeze(-2)).variance.sqrt()
    torch.testing.assert_close(pruning._level(model, X, centre, weights).squeeze(), -pruning.CERTAIN * sds.min())


@pytest.mark.parametrize("way", ["objective", "transform"])
def test_a_weighted_sum_of_outputs_is_one_objective(way, many, monkeypatch):
    model, X, _ = sparse(outputs=2)
    options = {
        "objective": {"objective": LinearMCObjective(WEIGHTS)},
        "transform": {"posterior_transform": ScalarizedPosteriorTransform(WEIGHTS, offset=7.0)},
    }[way]
    best = (exact_samples(model, X, monkeypatch) @ WEIGHTS).argmax(dim=-1)
    rows = left(model, X, **options)
    assert set(best.tolist()) <= set(rows.tolist())
    assert len(rows) < 150


@pytest.mark.parametrize("outcomes", [None, [1, 0]])
@pytest.mark.parametrize("listed", [False, True])
def test_every_point_of_a_front_is_left(listed, outcomes, many, monkeypatch):
    model, X = two_members() if listed else sparse(outputs=2)[:2]
    objective = WeightedMCMultiOutputObjective(torch.tensor([1.0, 2.0]), outcomes=outcomes)
    reference = torch.tensor([0.2, 0.1], dtype=torch.float64)
    values = objective(exact_samples(model, X, monkeypatch, count=300))
    front = is_non_dominated(values, deduplicate=False) & (values > reference).all(dim=-1)
    rows = left(model, X, objective=objective, ref_point=reference)
    assert set(front.any(dim=0).nonzero().squeeze(-1).tolist()) <= set(rows.tolist())
    assert len(rows) < 190
    assert bool(front.any())


def ranges(model, X):
    """Return what is eight deviations below and above the means, of each point alone."""
    posterior = model.posterior(X.unsqueeze(-2))
    mean, spread = (part.detach().squeeze(-2) for part in (posterior.mean, 8.0 * posterior.variance.sqrt()))
    return mean - spread, mean + spread


def test_what_is_left_is_within_eight_deviations_of_the_level(many, monkeypatch):
    monkeypatch.setattr(pruning, "CONTENDERS", 0)  # all bounds are used, and the best mean alone sets the level
    model, X, _ = sparse()
    low, high = ranges(model, X)
    rows = left(model, X)
    assert 1 < len(rows) < len(X)
    assert rows.tolist() == (high >= low[(low + high).argmax()]).squeeze(-1).nonzero().squeeze(-1).tolist()


def test_all_objectives_of_what_is_left_can_exceed_the_reference_point(many, monkeypatch):
    monkeypatch.setattr(pruning, "CONTENDERS", 0)
    model, X, _ = sparse(outputs=2)
    low, high = ranges(model, X)
    monkeypatch.setattr(pruning, "_level", lambda *_: low)
    front = ~(high.unsqueeze(1) < low).all(dim=-1).any(dim=-1)
    reference = high[front].median(dim=0).values
    able = high > reference
    assert len(left(model, X, ref_point=reference)) < int((front & able.any(dim=-1)).sum())
    assert left(model, X, ref_point=reference).tolist() == (front & able.all(dim=-1)).nonzero().squeeze(-1).tolist()


def test_a_root_that_is_not_triangular_is_not_cut(many):
    model, _, _ = sparse()
    cache = model._cache()
    cache.representation.__dict__["triangular"] = False
    assert list(pruning._bounding(model)) == [model]


def test_bounds_fall_to_the_models_own_variances(many):
    model, X, _ = sparse()
    few = X[:8].unsqueeze(-2)
    variances = [part.posterior(few).variance.detach() for part in pruning._bounding(model)]
    assert len(variances) == 5
    for above, below in itertools.pairwise(variances):
        assert bool((above >= below - 1e-12).all())
    assert bool((variances[0] > variances[-1]).any())
    torch.testing.assert_close(variances[-1], model.posterior(few).variance.detach(), rtol=0, atol=0)
    assert model.representation().root.shape[-1] == len(ROWS)


def test_botorch_samples_only_what_is_left(many, monkeypatch):
    model, X, _ = sparse()
    rows, asked = left(model, X), []
    theirs = type(model).posterior
    monkeypatch.setattr(type(model), "posterior", lambda self, X, *a, **k: asked.append(X.shape) or theirs(self, X, *a, **k))
    acquisition = qLogNoisyExpectedImprovement(model, X)
    assert torch.Size([len(rows), 2]) in asked
    kept = acquisition.X_baseline
    assert 1 <= len(kept) <= len(rows)
    assert bool((kept.unsqueeze(1) == X[rows]).all(dim=-1).any(dim=-1).all())


@pytest.mark.parametrize(
    "options",
    [
        {"max_frac": 0.5},
        {"sampler": SobolQMCNormalSampler(torch.Size([64]), seed=0)},
        {
            "objective": GenericMCObjective(lambda Y, X=None: -Y[..., 0].abs()),
            "posterior_transform": ScalarizedPosteriorTransform(torch.ones(1, dtype=torch.float64)),
        },
        {"constraints": [lambda Y: Y[..., 0] - 0.5]},
        {"objective": GenericMCObjective(lambda Y, X=None: -Y[..., 0].abs())},
    ],
)
def test_what_bounds_do_not_settle_is_left_to_botorch(options, many, monkeypatch):
    monkeypatch.setattr(pruning, "possible_best", lambda *_, **__: pytest.fail("bounds were asked for"))
    model, X, _ = sparse()
    kept = []
    for function in (logei.prune_inferior_points, logei.prune_inferior_points.__wrapped__):
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the sampler's seed is drawn from torch's own generator
            kept.append(function(model, X, num_samples=64, **options))
    assert torch.equal(*kept)


def test_mixtures_and_fantasies_are_left_to_botorch(many):
    model, X, Y = sparse()
    usual = {"X": X, "max_frac": 1.0, "marginalize_dim": None, "constraints": None}
    assert pruning._applies(model, usual, DictionaryPosterior)
    model.posterior(X[:1])
    assert not pruning._applies(model.condition_on_observations(X[:3] + 0.01, Y[:3]), usual, DictionaryPosterior)
    assert not pruning._applies(model, {**usual, "marginalize_dim": -3}, DictionaryPosterior)


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning")
def test_few_points_and_other_models_are_left_to_botorch(monkeypatch):
    model, X, Y = sparse()
    monkeypatch.setattr(pruning, "possible_best", lambda *_, **__: pytest.fail("bounds were asked for"))
    exact = SingleTaskGP(X[:30], Y[:30])
    for each, objective, most in (
        (model, None, 20), (exact, None, 8), (ModelListGP(model, exact), LinearMCObjective(WEIGHTS), 8)
    ):  # fmt: skip
        monkeypatch.setattr(covariance, "LARGE_Q", most)
        assert len(logei.prune_inferior_points(each, X[:20], objective=objective, num_samples=16)) >= 1


def test_where_nothing_reaches_the_reference_point_one_point_is_asked_about(many):
    model, X, _ = sparse(outputs=2)
    reference = torch.tensor([100.0, 100.0], dtype=torch.float64)
    assert len(left(model, X, ref_point=reference)) == 1
    assert len(several.prune_inferior_points_multi_objective(model, X, reference, num_samples=8)) == 0


def test_it_is_put_in_front_once():
    before = logei.prune_inferior_points
    pruning.prune_by_bounds(DictionaryPosterior)
    assert {module.prune_inferior_points for module in pruning.MODULES if hasattr(module, "prune_inferior_points")} == {before}
