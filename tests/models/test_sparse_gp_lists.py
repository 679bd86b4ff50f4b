"""Lists of models at many points: what the members say, and no dense matrix."""

import copy
import pickle

import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.models import ModelListGP
from botorch.models.transforms import Log
from botorch.posteriors import PosteriorList
from botorch.sampling import IIDNormalSampler, SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.low_rank import extract_batch_covar

from sparse_bo.errors import MemoryWarning
from sparse_bo.models import SparseModelListGP
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from sparse_bo.models.sparse_gp.model_list import StackedRoot
from tests.models.sparse_problems import data, dense_log_prob, joint_sizes, make_sparse, pair, points

ROWS = torch.tensor([2, 11, 25])
Q = 23
SHAPE = torch.Size([5])


def members(configuration="plain"):
    return [pair(configuration, dictionary=rows)[1] for rows in (ROWS, ROWS + 1, ROWS[:2])]


def by_dense_values(models, X, sampler, **options):
    with joint_sizes(models, dense=4096):
        posterior = models.posterior(X, **options)
        return posterior.mean, posterior.variance, sampler(posterior)


@pytest.mark.parametrize("shape", [(Q,), (2, 3, Q)], ids=str)
@pytest.mark.parametrize("exact_member", [False, True])
def test_log_densities_and_entropies_are_those_of_the_dense_path(shape, exact_member, many):
    models = SparseModelListGP(*members(), *([pair("plain")[0]] if exact_member else []))
    lazy = models.posterior(points(*shape), observation_noise=True).distribution
    with joint_sizes(models, dense=4096):
        dense = models.posterior(points(*shape), observation_noise=True).distribution
    away = torch.rand(dense.mean.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = dense.mean.detach() + 0.1 * away
    torch.testing.assert_close(lazy.log_prob(values), dense_log_prob(dense, values), rtol=0, atol=1e-9)
    torch.testing.assert_close(lazy.entropy(), dense.entropy(), rtol=0, atol=1e-9)


@pytest.mark.sampled
@pytest.mark.parametrize("sampler", [SobolQMCNormalSampler, IIDNormalSampler])
@pytest.mark.parametrize("observation_noise", [False, True])
@pytest.mark.parametrize(
    ("configuration", "shape"), [("plain", (Q,)), ("plain", (3, Q)), ("batch", (Q,)), ("known noise", (2, 3, Q))]
)
def test_samples_are_those_of_the_dense_covariance(sampler, observation_noise, configuration, shape, nothing_dense):
    models, X, options = SparseModelListGP(*members(configuration)), points(*shape), {"observation_noise": observation_noise}
    sampler = sampler(SHAPE, seed=0)
    posterior = models.posterior(X, **options)
    found = posterior.mean, posterior.variance, sampler(posterior)
    expected = by_dense_values(models, X, sampler, **options)
    for value, dense in zip(found, expected, strict=True):
        torch.testing.assert_close(value, dense, rtol=0, atol=1e-8)


def test_samples_without_base_samples_have_the_shape_and_spread_of_the_posterior(nothing_dense):
    with torch.random.fork_rng():
        torch.manual_seed(0)  # rsample draws from torch's own generator
        posterior = SparseModelListGP(*members()).posterior(points(Q))
        samples = posterior.rsample(torch.Size([2000])).detach()
    assert samples.shape == (2000, Q, 3)
    # Monte Carlo error of an sd from 2,000 samples: 1.6 % per standard error, of 69 the largest
    torch.testing.assert_close(samples.std(dim=0), posterior.variance.detach().sqrt(), rtol=0.07, atol=0)


def test_each_output_has_its_own_models_law(nothing_dense, scale):
    """Also where pivots are few, so that laws are approximate."""
    scale(joint={"pivots": 6, "block": 5})
    models = members()
    posterior = SparseModelListGP(*models).posterior(points(Q))
    base = torch.randn(*SHAPE, Q, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = posterior.rsample_from_base_samples(SHAPE, base)
    for output, model in enumerate(models):
        alone = model.posterior(points(Q)).rsample_from_base_samples(SHAPE, base[..., output])
        torch.testing.assert_close(samples[..., output : output + 1], alone, rtol=0, atol=1e-12)


def test_a_member_may_have_several_outputs(nothing_dense):
    models = [pair("two outputs", dictionary=ROWS)[1], pair("plain", dictionary=ROWS)[1]]
    posterior = SparseModelListGP(*models).posterior(points(Q + 1))
    base = torch.randn(*SHAPE, Q + 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = posterior.rsample_from_base_samples(SHAPE, base)
    for model, outputs in zip(models, (slice(0, 2), slice(2, 3)), strict=True):
        alone = model.posterior(points(Q + 1))
        torch.testing.assert_close(posterior.mean[..., outputs], alone.mean)
        torch.testing.assert_close(posterior.variance[..., outputs], alone.variance)
        expected = alone.rsample_from_base_samples(SHAPE, base[..., outputs].squeeze(-1))
        torch.testing.assert_close(samples[..., outputs], expected, rtol=0, atol=1e-9)


def test_a_member_may_be_exact(many):
    exact, sparse = pair("plain", dictionary=ROWS)
    models, sampler = SparseModelListGP(exact, sparse), SobolQMCNormalSampler(SHAPE, seed=0)
    expected = by_dense_values(models, points(Q), sampler)[2]
    torch.testing.assert_close(sampler(models.posterior(points(Q))), expected, rtol=0, atol=1e-8)


def test_a_root_solves_what_it_multiplies(nothing_dense):
    covar = extract_batch_covar(SparseModelListGP(*members()).posterior(points(Q)).distribution)
    root = covar.root_decomposition().root.to_dense()
    assert isinstance(root, StackedRoot)
    base = torch.randn(4, 3, Q, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.solve_triangular(root, root.matmul(base), upper=False), base, rtol=0, atol=1e-6)


def test_gradients_reach_the_points(nothing_dense):
    models, X = SparseModelListGP(*members()), points(Q).requires_grad_()
    base = torch.randn(2, Q, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def total(inputs):
        return models.posterior(inputs).rsample_from_base_samples(torch.Size([2]), base).square().sum()

    (gradient,) = torch.autograd.grad(total(X), X)
    direction = torch.randn(X.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        difference = (total(X + 1e-6 * direction) - total(X - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-4, atol=1e-6)


def test_paths_go_member_by_member(nothing_dense):
    with torch.random.fork_rng():
        torch.manual_seed(0)  # BoTorch's prior paths draw from torch's own generator
        paths = draw_matheron_paths(SparseModelListGP(*members()), torch.Size([4]))
    assert [values.shape for values in paths(points(Q))] == [(4, Q)] * 3


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning")
def test_outputs_that_only_samples_can_untransform_stay_a_list(nothing_dense):
    train = data()
    train["train_Y"] = train["train_Y"].exp()
    models = SparseModelListGP(*[make_sparse(**train, outcome_transform=Log(), dictionary=ROWS) for _ in range(2)])
    posterior = models.posterior(points(Q))
    assert isinstance(posterior, PosteriorList)
    assert posterior.rsample(SHAPE).shape == (5, Q, 2)


WEIGHTED = ScalarizedPosteriorTransform(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64), offset=0.3)


@pytest.mark.sampled
@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning")
@pytest.mark.parametrize("sampler", [SobolQMCNormalSampler])
@pytest.mark.parametrize("observation_noise", [False, True])
@pytest.mark.parametrize(
    ("configuration", "shape"), [("plain", (Q,)), ("plain", (3, Q)), ("raw outcomes", (Q,)), ("known noise", (2, 3, Q))]
)
def test_a_weighted_sum_of_members_is_that_of_the_dense_covariances(
    sampler, observation_noise, configuration, shape, nothing_dense
):
    models, X = SparseModelListGP(*members(configuration)), points(*shape)
    options = {"observation_noise": observation_noise, "posterior_transform": WEIGHTED}
    sampler = sampler(SHAPE, seed=0)
    posterior = models.posterior(X, **options)
    assert isinstance(posterior.distribution.lazy_covariance_matrix, JointCovariance)
    found = posterior.mean, posterior.variance, sampler(posterior)
    expected = by_dense_values(models, X, sampler, **options)
    for value, dense in zip(found, expected, strict=True):
        torch.testing.assert_close(value, dense, rtol=0, atol=1e-7)


def test_a_weighted_sum_of_many_has_exact_variances_and_pivots(nothing_dense, scale):
    scale(joint={"pivots": 6, "block": 5})
    models, X = SparseModelListGP(*members()), points(Q)
    operator = models.posterior(X, posterior_transform=WEIGHTED).distribution.lazy_covariance_matrix
    root = operator.root_decomposition().root.matmul(torch.eye(Q, dtype=torch.float64)).detach()
    law = root @ root.mT
    with joint_sizes(models, dense=4096):
        members_own = [model.posterior(X).distribution.covariance_matrix for model in models.models]
    C = sum(weight**2 * own for weight, own in zip(WEIGHTED.weights, members_own, strict=True)).detach()
    torch.testing.assert_close(law.diagonal(), C.diagonal(), rtol=0, atol=1e-8)
    chosen = operator.root_decomposition().root.order[:6]
    torch.testing.assert_close(law[chosen], C[chosen], rtol=0, atol=1e-8)


def test_gradients_of_a_weighted_sum_reach_the_points(nothing_dense):
    models, base = (
        SparseModelListGP(*members()),
        torch.randn(2, Q, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
    )

    def total(inputs):
        posterior = models.posterior(inputs, posterior_transform=WEIGHTED)
        return posterior.rsample_from_base_samples(torch.Size([2]), base).square().sum()

    X = points(Q).requires_grad_()
    (gradient,) = torch.autograd.grad(total(X), X)
    direction = torch.randn(X.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        difference = (total(X + 1e-6 * direction) - total(X - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-4, atol=1e-6)


def test_members_with_inputs_of_their_own_are_added(many):
    """Input transforms give each member other points."""
    plain, normalized = pair("plain", dictionary=ROWS)[1], pair("normalized inputs", dictionary=ROWS)[1]
    transform = ScalarizedPosteriorTransform(torch.tensor([0.5, 2.0], dtype=torch.float64))
    models, sampler = SparseModelListGP(plain, normalized), SobolQMCNormalSampler(SHAPE, seed=0)
    expected = by_dense_values(models, points(Q), sampler, posterior_transform=transform)
    posterior = models.posterior(points(Q), posterior_transform=transform)
    torch.testing.assert_close(sampler(posterior), expected[2], rtol=0, atol=1e-7)


def test_a_weighted_sum_with_outputs_of_one_member_is_that_of_all(many):
    weighted = ScalarizedPosteriorTransform(torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64))
    models = SparseModelListGP(pair("two outputs", dictionary=ROWS)[1], pair("plain", dictionary=ROWS)[1])
    posterior = models.posterior(points(Q), posterior_transform=weighted)
    torch.testing.assert_close(posterior.mean.squeeze(-1), models.posterior(points(Q)).mean @ weighted.weights)
    torch.testing.assert_close(posterior.variance.squeeze(-1), models.posterior(points(Q)).variance @ weighted.weights.square())
    assert posterior.rsample(SHAPE).shape == (5, Q, 1)


@pytest.mark.parametrize("q", [4, 5])
def test_outputs_of_a_member_are_its_own_for_any_number_of_points(q):
    """BoTorch cuts them from a block-diagonal covariance, wrongly where the points are a multiple of the outputs."""
    models = SparseModelListGP(pair("two outputs")[1], pair("plain")[1])
    noise = 0.1 + torch.rand(q, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for given, parts in ((False, (False, False)), (noise, noise.split([2, 1], dim=-1))):
        found = models.posterior(points(q), observation_noise=given)
        own = [model.posterior(points(q), observation_noise=part) for model, part in zip(models.models, parts, strict=True)]
        torch.testing.assert_close(found.mean, torch.cat([each.mean for each in own], dim=-1))
        torch.testing.assert_close(found.variance, torch.cat([each.variance for each in own], dim=-1))


def test_a_sum_with_a_dense_member_is_right(many):
    weighted = ScalarizedPosteriorTransform(torch.tensor([1.0, -2.0], dtype=torch.float64))
    models = SparseModelListGP(pair("plain", dictionary=ROWS)[1], pair("plain")[0])
    found, (one, other) = models.posterior(points(Q), posterior_transform=weighted), models.models
    mean = one.posterior(points(Q)).mean - 2.0 * other.posterior(points(Q)).mean
    torch.testing.assert_close(found.mean, mean)


def test_botorchs_own_list_says_what_to_use_instead(many):
    own = ModelListGP(*members())
    assert own.posterior(points(Q)).mean.shape == (Q, 3)
    with pytest.warns(MemoryWarning, match="use SparseModelListGP"):
        assert own.posterior(points(Q)).rsample(SHAPE).shape == (5, Q, 3)


def test_copies_and_few_points_are_left_to_botorch(many):
    models = SparseModelListGP(*members())
    for other in (copy.deepcopy(models), pickle.loads(pickle.dumps(models))):
        torch.testing.assert_close(other.posterior(points(Q)).variance, models.posterior(points(Q)).variance)
    few = models.posterior(points(3)).distribution.lazy_covariance_matrix
    assert not isinstance(few.root_decomposition().root, StackedRoot)
    exact = SparseModelListGP(pair("plain")[0], pair("plain")[0])
    assert exact.posterior(points(Q)).rsample(SHAPE).shape == (5, Q, 2)


def test_an_acquisition_function_keeps_its_root_of_the_baseline(nothing_dense):
    """BoTorch's defaults: the stack is what it solves with for new points."""
    weights = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    acquisition = qLogNoisyExpectedImprovement(
        SparseModelListGP(*members()), points(Q), objective=lambda Y, X=None: Y @ weights, prune_baseline=False
    )
    assert isinstance(acquisition._baseline_L, StackedRoot)
    values = acquisition(points(2, 1, seed=8))
    assert values.shape == (2,)
    assert bool(torch.isfinite(values).all())


@pytest.mark.sampled
@pytest.mark.parametrize("q", [5, Q], ids=["dense", "lazy"])
@pytest.mark.parametrize("outputs", [[2, 1, 0], [1, 0], [0, 2, 1], [2, 0], [-1, 1], [1], [0, 1, 2]], ids=str)
def test_outputs_come_in_the_order_that_is_asked_for(outputs, q, many):
    """A member with two outputs; BoTorch's list keeps its order, or raises an error of GPyTorch."""
    two, one = (pair(name, dictionary=ROWS)[1] for name in ("two outputs", "plain"))
    models, X = SparseModelListGP(two, one), points(q)
    noise = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64).expand(q, 3)
    for options, own in (
        ({}, [{}, {}]),
        ({"observation_noise": noise}, [{"observation_noise": noise[:, k]} for k in ([0, 1], [2])]),
    ):
        whole = [model.posterior(X, **of) for model, of in zip((two, one), own, strict=True)]
        some = {name: value[..., outputs] for name, value in options.items()}
        for posterior in (
            models.posterior(X, output_indices=outputs, **options),
            models.subset_output(outputs).posterior(X, **some),
        ):
            for name in ("mean", "variance"):
                expected = torch.cat([getattr(part, name) for part in whole], dim=-1)[:, outputs]
                torch.testing.assert_close(getattr(posterior, name), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("index", [2, -3])
def test_outputs_that_a_list_does_not_have_are_named(index):
    """BoTorch's list takes the index modulo the number of outputs, and so another output."""
    models = SparseModelListGP(*(pair("plain", dictionary=ROWS)[1] for _ in range(2)))
    for ask in (models.subset_output, lambda some: models.posterior(points(1), output_indices=some)):
        with pytest.raises(IndexError, match=f"expected indices of 2 outputs, got {index}"):
            ask([0, index])


def test_a_weighted_sum_with_a_member_of_two_outputs():
    models, X = SparseModelListGP(*(pair(name, dictionary=ROWS)[1] for name in ("two outputs", "plain"))), points(5)
    whole, total = models.posterior(X), models.posterior(X, posterior_transform=WEIGHTED)
    torch.testing.assert_close(total.mean.squeeze(-1), whole.mean @ WEIGHTED.weights + WEIGHTED.offset)
    parts = [model.posterior(X) for model in (*(models.models[0].subset_output([k]) for k in (0, 1)), models.models[1])]
    own = [weight**2 * part.distribution.covariance_matrix for weight, part in zip(WEIGHTED.weights, parts, strict=True)]
    torch.testing.assert_close(total.distribution.covariance_matrix, sum(own))


def test_fantasies_with_a_member_of_two_outputs_are_those_of_single_ones():
    """``ModelListGP`` counts outputs in place of members: an ``IndexError``."""
    two, plain = (pair(name, dictionary=ROWS)[1] for name in ("two outputs", "plain"))
    lists = [SparseModelListGP(two, plain), SparseModelListGP(two.subset_output([0]), two.subset_output([1]), plain)]
    X = points(5)
    found, expected = (
        models.fantasize(X[:2], SobolQMCNormalSampler(torch.Size([3]), seed=0)).posterior(X[2:]) for models in lists
    )
    assert found.mean.shape == (3, 3, 3)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
