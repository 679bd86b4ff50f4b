"""Baselines pruned by bounds: nothing that can be best is left out, and what is not settled stays BoTorch's."""

import itertools
from dataclasses import replace

import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.acquisition.multi_objective.objective import IdentityMCMultiOutputObjective, WeightedMCMultiOutputObjective
from botorch.acquisition.objective import GenericMCObjective, LinearMCObjective, ScalarizedPosteriorTransform
from botorch.acquisition.utils import prune_inferior_points
from botorch.models import ModelListGP, SingleTaskGP
from botorch.sampling import SobolQMCNormalSampler
from botorch.utils.multi_objective.pareto import is_non_dominated

from sparse_bo.models import SparseGP
from sparse_bo.models.sparse_gp.pruning import bounding_models, objective_weights, possible_best, prune_baseline
from tests.models.sparse_problems import data, joint_sizes, make_sparse

ROWS = torch.arange(0, 200, 5)
WEIGHTS = torch.tensor([1.0, -0.5], dtype=torch.float64)


def sparse(outputs=1, *, seed=0):
    train = data(outputs=outputs, n=200, seed=seed)
    model = make_sparse(**train, dictionary=ROWS)
    model.covar_module.lengthscale = 0.4
    model.likelihood.noise = 0.01
    model.eval()
    return model, train["train_X"], train["train_Y"]


def two_members():
    (first, X, _), second = sparse(), sparse()[0]
    second.set_train_data(X, (1.0 - X.square().sum(dim=-1)), strict=False)
    return ModelListGP(first, second), X


def exact_samples(model, X, count=4000):
    with joint_sizes(model, dense=10**6), torch.no_grad():
        posterior = model.posterior(X)
        C = posterior.distribution.covariance_matrix
        root = torch.linalg.cholesky(C + 1e-8 * torch.eye(len(C), dtype=C.dtype))
        g = torch.Generator().manual_seed(0)
        values = torch.randn(count, len(C), generator=g, dtype=torch.float64) @ root.mT
        outputs = posterior.mean.shape[-1]
        return posterior.mean + values.reshape(count, outputs, len(X)).mT


def left(model, X, *, few=16, **options):
    """The rows that bounds leave: by 4, 8, 16, 32 columns and then exactly."""
    weights = objective_weights(options.pop("objective", None), options.pop("posterior_transform", None), model.num_outputs)
    rows = possible_best(model, X, weights, ref_point=options.pop("ref_point", None), first_columns=4, few=few)
    assert rows.tolist() == sorted(set(rows.tolist()))
    return rows


def test_every_point_that_is_best_in_a_sample_is_left(many):
    model, X, _ = sparse()
    best = exact_samples(model, X).squeeze(-1).argmax(dim=-1)
    rows = left(model, X)
    assert set(best.tolist()) <= set(rows.tolist())
    assert len(set(best.tolist())) > 1
    assert len(rows) < 100


@pytest.mark.parametrize("way", ["objective", "transform"])
def test_a_weighted_sum_of_outputs_is_one_objective(way, many):
    model, X, _ = sparse(outputs=2)
    options = {
        "objective": {"objective": LinearMCObjective(WEIGHTS)},
        "transform": {"posterior_transform": ScalarizedPosteriorTransform(WEIGHTS, offset=7.0)},
    }[way]
    best = (exact_samples(model, X) @ WEIGHTS).argmax(dim=-1)
    rows = left(model, X, **options)
    assert set(best.tolist()) <= set(rows.tolist())
    assert len(rows) < 150


@pytest.mark.sampled(2)
@pytest.mark.parametrize("outcomes", [None, [1, 0]])
@pytest.mark.parametrize("listed", [False, True])
def test_every_point_of_a_front_is_left(listed, outcomes, many):
    model, X = two_members() if listed else sparse(outputs=2)[:2]
    objective = WeightedMCMultiOutputObjective(torch.tensor([1.0, 2.0]), outcomes=outcomes)
    reference = torch.tensor([0.2, 0.1], dtype=torch.float64)
    values = objective(exact_samples(model, X, count=300))
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


def test_what_is_left_is_within_eight_deviations_of_the_level(many):
    # few=0: all bounds are used, and the best mean alone sets the level
    model, X, _ = sparse()
    low, high = ranges(model, X)
    rows = left(model, X, few=0)
    assert 1 < len(rows) < len(X)
    assert rows.tolist() == (high >= low[(low + high).argmax()]).squeeze(-1).nonzero().squeeze(-1).tolist()


def test_all_objectives_of_what_is_left_can_exceed_the_reference_point(many):
    model, X, _ = sparse(outputs=2)
    _, high = ranges(model, X)
    everything = left(model, X, few=0)
    reference = high[everything].median(dim=0).values
    able = high > reference
    expected = [row for row in everything.tolist() if bool(able[row].all())]
    assert 0 < len(expected) < int(able[everything].any(dim=-1).sum())
    assert left(model, X, few=0, ref_point=reference).tolist() == expected


def test_a_root_that_is_not_triangular_is_not_cut(many):
    model, _, _ = sparse()
    cache = model.cache()
    form = cache.representation
    model.prediction_strategy = replace(cache, representation=replace(form, root=replace(form.root, triangular=False)))
    assert list(bounding_models(model, 4)) == [model]


def test_bounds_fall_to_the_models_own_variances(many):
    model, X, _ = sparse()
    few = X[:8].unsqueeze(-2)
    variances = [part.posterior(few).variance.detach() for part in bounding_models(model, 4)]
    assert len(variances) == 5
    for above, below in itertools.pairwise(variances):
        assert bool((above >= below - 1e-12).all())
    assert bool((variances[0] > variances[-1]).any())
    torch.testing.assert_close(variances[-1], model.posterior(few).variance.detach(), rtol=0, atol=0)
    assert model.representation().root.matrix.shape[-1] == len(ROWS)


def test_what_is_kept_is_botorchs_choice_among_what_is_left(many):
    model, X, _ = sparse()
    sampler = SobolQMCNormalSampler(torch.Size([256]), seed=0)
    kept = prune_baseline(model, X, sampler=sampler)
    weights = objective_weights(None, None, 1)
    assert torch.equal(kept, prune_inferior_points(model, X[possible_best(model, X, weights)], sampler=sampler))
    assert 1 <= len(kept) < len(X)
    assert bool((kept.unsqueeze(1) == X).all(dim=-1).any(dim=-1).all())
    acquisition = qLogNoisyExpectedImprovement(model, kept, prune_baseline=False)
    assert bool(acquisition(X[:3].unsqueeze(-2)).isfinite().all())


@pytest.mark.parametrize(
    "options",
    [
        {"objective": GenericMCObjective(lambda Y, X=None: -Y[..., 0].abs())},
        {
            "objective": GenericMCObjective(lambda Y, X=None: -Y[..., 0].abs()),
            "posterior_transform": ScalarizedPosteriorTransform(torch.ones(1, dtype=torch.float64)),
        },
        {"constraints": [lambda Y: Y[..., 0] - 0.5]},
    ],
)
def test_what_bounds_do_not_settle_is_left_to_botorch(options, many):
    model, X, _ = sparse()
    kept = []
    for function in (prune_baseline, prune_inferior_points):
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the sampler's seed is drawn from torch's own generator
            kept.append(function(model, X, num_samples=64, **options))
    assert torch.equal(*kept)


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning")
def test_fantasies_and_other_models_are_left_to_botorch():
    model, X, Y = sparse()
    model.posterior(X[:1])
    fantasy, exact = model.condition_on_observations(X[:3] + 0.01, Y[:3]), SingleTaskGP(X[:30], Y[:30])
    for each, objective in ((fantasy, None), (exact, None), (ModelListGP(model, exact), LinearMCObjective(WEIGHTS))):
        kept = []
        for function in (prune_baseline, prune_inferior_points):
            with torch.random.fork_rng():
                torch.manual_seed(0)
                kept.append(function(each, X[:20], objective=objective, num_samples=16))
        assert torch.equal(*kept)


def test_a_front_is_pruned_by_its_reference_point(many):
    model, X, _ = sparse(outputs=2)
    reference = torch.tensor([0.2, 0.1], dtype=torch.float64)
    kept = prune_baseline(model, X, ref_point=reference, num_samples=64)
    assert 1 <= len(kept) < len(X)
    nothing = torch.tensor([100.0, 100.0], dtype=torch.float64)
    assert len(left(model, X, ref_point=nothing)) == 1
    assert len(prune_baseline(model, X, ref_point=nothing, num_samples=8)) == 0


def test_a_batch_of_baselines_is_refused():
    model, X, _ = sparse()
    with pytest.raises(ValueError, match="n x d"):
        prune_baseline(model, X.expand(2, *X.shape))


def test_a_baseline_of_numpy_and_a_reference_point_of_other_objectives_are_refused_with_the_way_out():
    X = torch.rand(12, 2, dtype=torch.float64)
    model = ModelListGP(*(make_sparse(X, y.unsqueeze(-1)) for y in (X[:, 0], X[:, 1], X.sum(-1))))
    with pytest.raises(TypeError, match="expected X to be a torch.Tensor, got ndarray"):
        prune_baseline(model, X.numpy(), ref_point=torch.zeros(3, dtype=torch.float64))
    two = torch.zeros(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"for each of 3 outputs, got shape \(2,\); objective= says"):
        prune_baseline(model, X, ref_point=two)
    found = prune_baseline(model, X, ref_point=two, objective=IdentityMCMultiOutputObjective(outcomes=[0, 1]))
    assert 1 <= len(found) <= len(X)


def test_an_empty_baseline_is_refused_by_name():
    X = torch.rand(8, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = SparseGP(X, X.sum(dim=-1, keepdim=True))
    with pytest.raises(ValueError, match=r"with n >= 1, got \(0, 2\)"):
        prune_baseline(model, X[:0])


def test_anything_but_a_model_is_refused_by_name():
    X = sparse()[1]
    with pytest.raises(TypeError, match=r"expected model to be a BoTorch Model, got int; pass the fitted model first"):
        prune_baseline(3, X)
    with pytest.raises(TypeError, match="got Tensor"):
        prune_baseline(X, X)


def test_several_objectives_need_a_reference_point():
    model, X = (
        SparseGP(torch.rand(30, 2, dtype=torch.float64), torch.rand(30, 2, dtype=torch.float64)),
        torch.rand(5, 2).double(),
    )
    with pytest.raises(ValueError, match="expected ref_point= for 2 objectives"):
        prune_baseline(model, X)
    with pytest.raises(TypeError, match="expected ref_point to be a torch.Tensor, got list"):
        prune_baseline(model, X, ref_point=[0.0, 0.0])
