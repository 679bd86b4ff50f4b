"""The joint law of many points: exact where it says so, the same from base samples, roots, slices and gradients."""

import copy
import pickle

import pytest
import torch
from botorch.acquisition import qLogNoisyExpectedImprovement
from botorch.acquisition.objective import ScalarizedPosteriorTransform
from botorch.acquisition.utils import compute_best_feasible_objective, get_infeasible_cost, prune_inferior_points
from botorch.exceptions.warnings import BotorchWarning, InputDataWarning
from botorch.generation.sampling import ConstrainedMaxPosteriorSampling, MaxPosteriorSampling
from botorch.models import ModelListGP, SingleTaskGP
from botorch.models.kernels import InfiniteWidthBNNKernel
from botorch.models.transforms import Bilog, ChainedOutcomeTransform, Log, Power, Standardize
from botorch.models.transforms.outcome import StratifiedStandardize
from botorch.optim.initializers import sample_points_around_best
from botorch.sampling import SobolQMCNormalSampler
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.low_rank import extract_batch_covar
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import (
    AdditiveKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RFFKernel,
    RQKernel,
    ScaleKernel,
)
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.warnings import NumericalWarning

from sparse_bo.models import JointSettings, SparseGP
from sparse_bo.models.sparse_gp.joint_root import JointRoot, RootedCovariance, root_of
from sparse_bo.models.sparse_gp.pivots import partition, preferred
from sparse_bo.models.sparse_gp.posterior import begins_with, constant_rows, shared_rows
from tests.builders import unit_box
from tests.models.sparse_problems import D, N, data, dense_log_prob, joint_sizes, make_sparse, pair, points

ROWS = torch.tensor([2, 11, 25])
Q = 23
TIGHT = {"rtol": 0, "atol": 1e-9}


def operator_of(posterior):
    mvn = posterior.distribution
    return extract_batch_covar(mvn) if mvn.event_shape != mvn.loc.shape[-1:] else mvn.lazy_covariance_matrix


def dense(model, X, **options):
    """The covariance and the posterior of the dense path."""
    with joint_sizes(model, dense=4096):
        posterior = model.posterior(X, **options)
        operator = posterior.distribution.lazy_covariance_matrix
        operator = operator.base_linear_op if model.num_outputs > 1 and hasattr(operator, "base_linear_op") else operator
        return operator.to_dense().detach(), posterior


def matrix(root, q=Q):
    return root.matmul(torch.eye(q, dtype=torch.float64).expand(*root.shape[:-2], q, q))


@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch", "batch of two outputs", "known noise", "Matern"])
@pytest.mark.parametrize("observation_noise", [False, True])
def test_the_law_is_exact_on_variances_at_pivots_and_in_blocks(configuration, observation_noise, few_pivots):
    model = pair(configuration, dictionary=ROWS)[1]
    operator = operator_of(model.posterior(points(Q), observation_noise=observation_noise))
    root = operator.root_decomposition().root
    law = (matrix(root) @ matrix(root).mT).detach()
    exact, _ = dense(model, points(Q), observation_noise=observation_noise)
    order = root.order
    assert order.sort().values.tolist() == list(range(Q))
    torch.testing.assert_close(law.diagonal(dim1=-2, dim2=-1), exact.diagonal(dim1=-2, dim2=-1), **TIGHT)
    torch.testing.assert_close(law[..., order[:6], :], exact[..., order[:6], :], **TIGHT)
    for start in range(6, Q, 5):
        block = order[start : start + 5]
        torch.testing.assert_close(law[..., block, :][..., block], exact[..., block, :][..., block], **TIGHT)
    assert float((law - exact).abs().max()) > 1e-6  # the rest is what pivots explain, so the test above says something


def test_as_many_points_as_models_have_their_own_variances(scale):
    batch = torch.Size([2])
    kernels = [ScaleKernel(MaternKernel(batch_shape=batch), batch_shape=batch) for _ in range(2)]
    for kernel in kernels:
        kernel.outputscale = torch.tensor([1.0, 3.0], dtype=torch.float64)
    exact = SingleTaskGP(**data(batch=(2,)), covar_module=kernels[0])
    X = points(10)
    scale(joint={"dense": 8, "chunk": 4})  # the last two points are as many as models
    sparse = make_sparse(**data(batch=(2,)), covar_module=kernels[1])
    torch.testing.assert_close(sparse.posterior(X).variance, exact.posterior(X).variance, **TIGHT)


@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch of two outputs"])
def test_a_root_solves_what_it_multiplies(configuration, few_pivots):
    root = operator_of(pair(configuration, dictionary=ROWS)[1].posterior(points(Q))).root_decomposition().root
    assert isinstance(root.to_dense(), JointRoot)
    base = torch.randn(4, *root.shape[:-1], 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.solve_triangular(root, root.matmul(base), upper=False), base, rtol=0, atol=1e-6)
    small = base[0]
    torch.testing.assert_close(torch.linalg.solve_triangular(root, root.matmul(small), upper=False), small, rtol=0, atol=1e-6)


def test_columns_are_made_a_few_at_a_time(few_pivots):
    with torch.no_grad():
        root = (
            pair("plain", dictionary=ROWS)[1].posterior(points(Q)).distribution.lazy_covariance_matrix.root_decomposition().root
        )
        samples = torch.randn(Q, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        expected = torch.cat([root.matmul(samples[:, start : start + 100]) for start in (0, 100, 200)], dim=-1)
        torch.testing.assert_close(root.matmul(samples), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch", "batch of two outputs", "known noise"])
@pytest.mark.parametrize("observation_noise", [False, True])
def test_samples_are_those_of_the_dense_path(configuration, observation_noise, many):
    model = pair(configuration, dictionary=ROWS)[1]
    sampler = SobolQMCNormalSampler(torch.Size([5]), seed=0)
    samples = sampler(model.posterior(points(Q), observation_noise=observation_noise))
    _, posterior = dense(model, points(Q), observation_noise=observation_noise)
    torch.testing.assert_close(samples, sampler(posterior), rtol=0, atol=1e-7)


@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch", "batch of two outputs", "known noise"])
@pytest.mark.parametrize("shape", [(), (2, 1)], ids=str)
def test_log_densities_and_entropies_are_those_of_the_dense_path(configuration, shape, many):
    model = pair(configuration, dictionary=ROWS)[1]
    X = points(*shape, Q)
    lazy = model.posterior(X, observation_noise=True).distribution
    exact = dense(model, X, observation_noise=True)[1].distribution
    away = torch.rand(exact.mean.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    values = exact.mean.detach() + 0.1 * away
    torch.testing.assert_close(lazy.log_prob(values), dense_log_prob(exact, values), **TIGHT)
    torch.testing.assert_close(lazy.entropy(), exact.entropy(), **TIGHT)
    if model.num_outputs == 1:
        several = values + torch.rand(3, *values.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        torch.testing.assert_close(lazy.log_prob(several), exact.log_prob(several), **TIGHT)


@pytest.mark.parametrize("scaled", [False, True])
def test_log_densities_are_those_of_the_law_that_samples_follow(scaled, few_pivots):
    model = pair("plain", dictionary=ROWS)[1]
    baseline, new = points(Q), points(3, seed=8)
    with torch.no_grad():
        for X in (baseline, torch.cat([baseline, new])):  # the second is appended to the law of the first
            plain = model.posterior(X).distribution
            operator = plain.lazy_covariance_matrix
            factors = torch.linspace(0.5, 2.0, len(X), dtype=torch.float64)
            lazy = MultivariateNormal(plain.mean, operator.scaled(factors) if scaled else operator)
            root = matrix(lazy.lazy_covariance_matrix.root_decomposition().root, len(X))
            values = lazy.mean + root @ torch.randn(len(X), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
            law = torch.distributions.MultivariateNormal(lazy.mean, root @ root.mT)
            torch.testing.assert_close(lazy.log_prob(values), law.log_prob(values), rtol=1e-6, atol=1e-6)
            torch.testing.assert_close(lazy.entropy(), law.entropy(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", [8, 4096])
@pytest.mark.parametrize("configuration", ["plain", "two outputs"])
def test_rows_after_a_baseline_are_those_of_the_dense_path(size, configuration):
    """As BoTorch's cached root asks for them, for a baseline of many and of few points, with gradients."""
    model = pair(configuration, dictionary=ROWS)[1]
    baseline, X = points(Q), points(4, 2, seed=8).requires_grad_()
    joint = torch.cat([baseline.expand(4, Q, D), X], dim=-2)
    expected = model.posterior(joint.detach()[..., :1, :]), *(dense(model, joint[i]) for i in range(4))
    with joint_sizes(model, dense=size):
        with torch.no_grad():
            operator_of(model.posterior(baseline)).root_decomposition()
        posterior = model.posterior(joint)
        rows = operator_of(posterior)[..., -2:, :].to_dense()
    assert model.prediction_strategy.baseline.base.rows == Q
    torch.testing.assert_close(rows.detach(), torch.stack([part[0][..., -2:, :] for part in expected[1:]]), **TIGHT)
    torch.testing.assert_close(posterior.mean, torch.stack([part[1].mean for part in expected[1:]]), **TIGHT)
    torch.testing.assert_close(posterior.variance, torch.stack([part[1].variance for part in expected[1:]]), **TIGHT)
    (gradient,) = torch.autograd.grad(rows.square().sum(), X)
    model.prediction_strategy.baseline.put(None)
    slow = model.posterior(joint * 1.0).distribution.covariance_matrix  # a product hides the constant rows
    outputs = [slow[..., part, :][..., part] for part in (slice(0, Q + 2), slice(Q + 2, None))[: model.num_outputs]]
    (slope,) = torch.autograd.grad(sum(part[..., -2:, :].square().sum() for part in outputs), X)
    torch.testing.assert_close(gradient, slope, rtol=1e-8, atol=1e-10)


def test_a_longer_baseline_takes_the_place_of_a_short_one():
    """Rows after a short one would be computed for every element of a batch, at every call."""
    model = pair("plain", dictionary=ROWS)[1]
    baseline, X = points(Q).expand(4, Q, D), points(4, 2, seed=8).requires_grad_()
    model.posterior(X)
    for first, last in ((2, Q), (Q - 3, Q - 3)):  # 21 rows of each of four elements are more than 23; three are less
        model.prediction_strategy.baseline.put(None)
        model.posterior(torch.cat([baseline[:, :first], X], dim=-2))
        assert model.prediction_strategy.baseline.base.rows == first
        joint = torch.cat([baseline, X], dim=-2)
        found = model.posterior(joint).variance
        assert model.prediction_strategy.baseline.base.rows == last
        torch.testing.assert_close(found, model.posterior(joint * 1.0).variance, **TIGHT)


def test_up_to_the_dense_size_a_root_is_exact_whatever_the_number_of_pivots(scale):
    scale(joint={"dense": Q + 2, "pivots": 4, "block": 3})
    model = pair("plain", dictionary=ROWS)[1]
    X = points(4, 2, seed=8).requires_grad_()
    operator = operator_of(model.posterior(torch.cat([points(Q).expand(4, Q, D), X], dim=-2)))
    assert isinstance(operator, RootedCovariance)
    root = operator.root_decomposition().root.to_dense()
    torch.testing.assert_close(root @ root.mT, operator.to_dense(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("configuration", ["plain", "two outputs"])
def test_rows_may_be_appended_to_a_law(configuration, few_pivots):
    """The root of a longer baseline begins with that of the shorter, and agrees with the rows' entries: one joint Gaussian."""
    model = pair(configuration, dictionary=ROWS)[1]
    baseline, new = points(Q), points(3, seed=8)
    with torch.no_grad():
        first = matrix(operator_of(model.posterior(baseline)).root_decomposition().root)
        longer = operator_of(model.posterior(torch.cat([baseline, new])))
        whole = matrix(longer.root_decomposition().root, Q + 3)
        law = whole @ whole.mT
        torch.testing.assert_close(whole[..., :Q, :Q], first, rtol=0, atol=0)
        torch.testing.assert_close(longer[..., -3:, :].to_dense(), law[..., -3:, :], **TIGHT)
        torch.testing.assert_close(longer[..., -2:, :].to_dense(), law[..., -2:, :], **TIGHT)
        torch.testing.assert_close(longer.diagonal(), law.diagonal(dim1=-2, dim2=-1), **TIGHT)
        exact = model.posterior(new.unsqueeze(-2)).variance.squeeze(-2)
    torch.testing.assert_close(longer.diagonal()[..., -3:], exact.mT.reshape(longer.diagonal()[..., -3:].shape), **TIGHT)


def rbf(X, Y):
    return RBFKernel().double()(X, Y).to_dense()


def test_pivots_are_what_any_preference_puts_first():
    generator = torch.Generator().manual_seed(0)
    line = torch.linspace(0, 1, 50, dtype=torch.float64)
    assert preferred(line.unsqueeze(0), 6, generator=generator).tolist() == [0, 1, 2, 47, 48, 49]
    front = torch.stack([line, 1 - line.square()])  # every row is a best trade-off
    assert len(preferred(front, 64, generator=generator)) > 15
    for m in (1, 2):  # where there is nothing to prefer, the first and not whatever NaN gives
        assert preferred(torch.zeros(m, 50), 2 * m, generator=generator)[0] == 0
    outputs = torch.rand(1, 500, generator=generator, dtype=torch.float64)
    X = torch.rand(500, D, generator=generator, dtype=torch.float64)
    chosen = partition(X, outputs, prior=rbf, settings=JointSettings())
    assert (chosen.pivots, chosen.order.tolist()) == (500, list(range(500)))


def test_memory_bounds_pivots_and_blocks():
    settings = JointSettings(factor_bytes=500 * 8 * 40)
    outputs = torch.rand(1, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    X = torch.rand(500, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    chosen = partition(X, outputs, prior=rbf, settings=settings)
    assert (chosen.pivots, chosen.block) == (40, 40)
    assert chosen.order.sort().values.tolist() == list(range(500))
    again = partition(X, outputs, prior=rbf, settings=settings)
    assert torch.equal(chosen.order, again.order)


def test_blocks_are_neighbours():
    X = torch.rand(900, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outputs = X.sum(dim=-1).unsqueeze(0)
    chosen = partition(X, outputs, prior=rbf, settings=JointSettings(pivots=100, block=50))
    blocks = X[chosen.order[100:]].split(50)
    spread = torch.stack([block.var(dim=0).sum() for block in blocks]).mean()
    assert float(spread) < 0.3 * float(X.var(dim=0).sum())  # 16 blocks of a square: a sixteenth of the variance at best


KERNELS = {
    "RQ": lambda: RQKernel(ard_num_dims=D),
    "additive": lambda: AdditiveKernel(ScaleKernel(RBFKernel(active_dims=[0])), ScaleKernel(MaternKernel(active_dims=[1]))),
    "product": lambda: ProductKernel(RBFKernel(active_dims=[0]), MaternKernel(nu=1.5, active_dims=[1])),
    "linear": lambda: ScaleKernel(LinearKernel()),
    "periodic": lambda: PeriodicKernel(),
    "random features": lambda: RFFKernel(num_samples=30, num_dims=D),
}


@pytest.mark.parametrize("name", KERNELS)
def test_samples_for_any_kernel(name, many):
    torch.manual_seed(0)  # RFFKernel draws its features from torch's own generator
    model = make_sparse(**data(), covar_module=KERNELS[name](), dictionary=torch.arange(0, N, 3))
    exact, _ = dense(model, points(Q))
    law = matrix(operator_of(model.posterior(points(Q))).root_decomposition().root).detach()
    torch.testing.assert_close(law @ law.mT, exact, rtol=0, atol=1e-7)
    assert model.posterior(points(Q)).rsample(torch.Size([4])).shape == (4, Q, 1)


OUTCOMES = {
    "log": lambda: Log(),
    "power": lambda: Power(power=0.5),
    "bilog": lambda: Bilog(),
    "standardize, then log": lambda: ChainedOutcomeTransform(a=Log(), b=Standardize(1)),
    "standardize twice": lambda: ChainedOutcomeTransform(a=Standardize(1), b=Standardize(1)),
    "stratified": lambda: StratifiedStandardize(stratification_idx=0, all_task_values=torch.tensor([0, 1])),
}


@pytest.mark.parametrize("name", OUTCOMES)
@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning")
def test_samples_for_any_outcome_transform(name, many):
    train = data()
    train["train_Y"] = train["train_Y"].exp()
    X = points(Q)
    if name == "stratified":
        train["train_X"][:, 0] = (train["train_X"][:, 0] > 0.5).double()
        X[:, 0] = (X[:, 0] > 0.5).double()
    model = make_sparse(**train, outcome_transform=OUTCOMES[name](), dictionary=torch.arange(0, N, 3))
    sampler = SobolQMCNormalSampler(torch.Size([5]), seed=0)
    lazy = model.posterior(X)
    samples = sampler(lazy)
    with joint_sizes(model, dense=4096):
        expected = sampler(model.posterior(X))
        if name != "power" and name != "bilog":  # these have samples only
            torch.testing.assert_close(lazy.mean, model.posterior(X).mean)
            torch.testing.assert_close(lazy.variance, model.posterior(X).variance)
    torch.testing.assert_close(samples, expected, rtol=1e-6, atol=1e-7)


def test_a_weighted_sum_of_outputs_has_samples(many):
    model = pair("two outputs", dictionary=ROWS)[1]
    weighted = ScalarizedPosteriorTransform(torch.tensor([0.3, -0.7], dtype=torch.float64), offset=2.0)
    lazy = model.posterior(points(Q), posterior_transform=weighted, observation_noise=True)
    law = matrix(lazy.distribution.lazy_covariance_matrix.root_decomposition().root).detach()
    with joint_sizes(model, dense=4096):
        small = model.posterior(points(Q), posterior_transform=weighted, observation_noise=True)
        torch.testing.assert_close(law @ law.mT, small.distribution.covariance_matrix.detach(), **TIGHT)
    torch.testing.assert_close(lazy.mean, small.mean)
    torch.testing.assert_close(lazy.variance, small.variance)


@pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized:botorch.exceptions.InputDataWarning")
def test_outputs_may_be_chosen_without_outcome_transform(many):
    model = make_sparse(**data(outputs=3), outcome_transform=None, dictionary=ROWS)
    chosen, every = model.posterior(points(Q), output_indices=[2, 0]), model.posterior(points(Q))
    torch.testing.assert_close(chosen.mean, every.mean[..., [2, 0]])
    torch.testing.assert_close(chosen.variance, every.variance[..., [2, 0]])
    assert chosen.rsample(torch.Size([2])).shape == (2, Q, 2)


def test_what_follows_from_mean_and_variance(many):
    model, list_of_models = pair("two outputs", dictionary=ROWS)[1], ModelListGP(*[pair("plain", dictionary=ROWS)[1]] * 2)
    for several in (model, list_of_models):
        cost = get_infeasible_cost(points(Q), several, objective=lambda Y, X=None: Y[..., 0])
        assert bool(torch.isfinite(cost).all())
        assert several.posterior(points(Q)).mean.shape == (Q, 2)
    one = pair("plain", dictionary=ROWS)[1]
    samples = one.posterior(points(Q)).rsample(torch.Size([4]))
    infeasible = [lambda Y: Y[..., 0] + 1e6]
    with pytest.warns(BotorchWarning, match="infeasible"):
        best = compute_best_feasible_objective(samples, samples.squeeze(-1), infeasible, model=one, X_baseline=points(Q))
    assert best.shape == (4,)
    acquisition = qLogNoisyExpectedImprovement(one, points(Q))
    assert sample_points_around_best(acquisition, 5, 0.1, unit_box(D)).shape == (5, D)


def test_thompson_sampling_with_a_constraint(many):
    model, constraint = pair("plain", dictionary=ROWS)[1], pair("two outputs", dictionary=ROWS)[1]
    torch.manual_seed(0)  # both draw from torch's own generator
    assert MaxPosteriorSampling(model)(points(Q), num_samples=3).shape == (3, D)
    constrained = ConstrainedMaxPosteriorSampling(model, constraint)
    assert constrained(points(Q), num_samples=3).shape == (3, D)


def test_pruning_keeps_what_the_dense_path_keeps(many):
    model = pair("plain", dictionary=ROWS)[1]
    sampler = SobolQMCNormalSampler(torch.Size([64]), seed=0)
    kept = prune_inferior_points(model, points(Q), sampler=sampler)
    with joint_sizes(model, dense=4096):
        assert torch.equal(kept, prune_inferior_points(model, points(Q), sampler=sampler))


def test_gradients_of_samples_of_many_points(few_pivots):
    model = pair("plain", dictionary=ROWS)[1]
    X = points(Q).requires_grad_()
    base = torch.randn(2, Q, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def total(inputs):
        return model.posterior(inputs).rsample_from_base_samples(torch.Size([2]), base).square().sum()

    (gradient,) = torch.autograd.grad(total(X), X)
    direction = torch.randn(X.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    with torch.no_grad():
        difference = (total(X + 1e-6 * direction) - total(X - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), difference, rtol=1e-4, atol=1e-6)


def test_kept_rows_follow_the_model_and_are_not_copied(few_pivots):
    model = pair("plain", dictionary=ROWS)[1]
    baseline, X = points(Q), points(2, 1, seed=8)
    joint = torch.cat([baseline.expand(2, Q, D), X], dim=-2)
    with torch.no_grad():
        model.posterior(baseline).distribution.lazy_covariance_matrix.root_decomposition()
        assert model.prediction_strategy.baseline.base is not None
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            assert other.prediction_strategy.baseline.base is None
            torch.testing.assert_close(other.posterior(joint[..., -1:, :]).mean, model.posterior(joint[..., -1:, :]).mean)
        before = model.posterior(joint).mean
        model.covar_module.lengthscale = 2 * model.covar_module.lengthscale
        after = model.posterior(joint).mean
    assert float((before - after).abs().max()) > 1e-3
    torch.testing.assert_close(after, copy.deepcopy(model).posterior(joint).mean.detach())


def test_rows_that_receive_gradients_are_never_taken_for_constant():
    """A base that is known must not swallow the gradient of rows that happen to be equal to it."""
    model = pair("plain", dictionary=ROWS)[1]
    baseline, X = points(3), points(2, 1, seed=8)
    with torch.no_grad():
        model.posterior(torch.cat([baseline.expand(2, 3, D), X], dim=-2))
    assert model.prediction_strategy.baseline.base is not None
    moving = baseline.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model.posterior(torch.cat([moving.expand(2, 3, D), X], dim=-2)).variance.sum(), moving)
    assert bool((gradient != 0).all())


def test_constant_rows():
    a, x = points(5), points(4, 2, seed=8).requires_grad_()
    wide = a.expand(4, 5, D)
    assert constant_rows(wide) == 5
    assert constant_rows(x) == 0
    assert constant_rows(torch.cat([wide, x], dim=-2)) == 5
    assert constant_rows(torch.cat([wide, wide, x * 2, x], dim=-2)) == 10
    assert constant_rows(torch.cat([x, wide], dim=-2)) == 0
    assert constant_rows(torch.cat([wide, x, wide], dim=-2)) == 5
    assert constant_rows(torch.cat([wide, x], dim=-2) * 1.0) == 0
    assert constant_rows(torch.cat([x, x], dim=-1)) == 0
    assert constant_rows(torch.cat([wide[:2], x.detach()[:2, :1].expand(2, 5, D), x[:, :1].expand(4, 5, D)], dim=0)) == 0
    with torch.no_grad():
        assert constant_rows(x) == 2


def test_shared_rows():
    a, x = points(5), points(4, 2, seed=8)
    joint = torch.cat([a.expand(4, 5, D), x], dim=-2)
    assert begins_with(joint, a)
    assert not begins_with(joint, points(5, seed=9))
    assert not begins_with(a[:3], a)
    assert shared_rows(joint, 7) == 5
    assert shared_rows(joint, 3) == 3
    joint[1, 2] += 1
    assert shared_rows(joint, 7) == 2
    assert shared_rows(a, 5) == 5


def test_paths_of_random_features_have_the_right_sd_within_a_fifth():
    """BoTorch's 1,024 random features stand in for the kernel in draw_matheron_paths, and nowhere else."""
    g = torch.Generator().manual_seed(0)
    d = 20
    X = torch.rand(60, d, generator=g, dtype=torch.float64)
    kernel = MaternKernel(nu=2.5, ard_num_dims=d)
    model = make_sparse(X, torch.sin(3 * X).sum(dim=-1, keepdim=True), covar_module=kernel, dictionary=torch.arange(0, 60, 2))
    kernel.lengthscale = torch.linspace(0.5, 3.0, d, dtype=torch.float64)
    T = torch.rand(200, d, generator=g, dtype=torch.float64)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        by_paths = draw_matheron_paths(model, torch.Size([512]))(T).std(dim=0)
        posterior = model.posterior(T)
        by_law = posterior.rsample(torch.Size([512])).squeeze(-1).std(dim=0)
    exact = posterior.variance.sqrt().squeeze(-1)
    ratios = (by_paths / exact).quantile(torch.tensor([0.05, 0.95], dtype=torch.float64))
    assert float(ratios[0]) > 0.8, ratios
    assert float(ratios[1]) < 1.2, ratios
    assert float((by_law / exact - 1).abs().mean()) < 0.05  # Monte Carlo error of 512 samples: 0.03


def test_single_task_gp_agrees_at_the_defaults(many):
    exact, sparse = pair("plain")
    assert isinstance(exact, SingleTaskGP)
    sampler = SobolQMCNormalSampler(torch.Size([5]), seed=0)
    torch.testing.assert_close(sampler(sparse.posterior(points(Q))), sampler(exact.posterior(points(Q))), rtol=0, atol=1e-6)


def test_single_precision(few_pivots):
    train = {name: part.float() for name, part in data(outputs=2).items()}
    with pytest.warns(InputDataWarning, match="float32"):
        model = make_sparse(**train, dictionary=ROWS)
    X = points(Q).float()
    with torch.no_grad():
        root = operator_of(model.posterior(X)).root_decomposition().root
        lower = root.matmul(torch.eye(Q).expand(2, Q, Q))
        torch.testing.assert_close(
            (lower @ lower.mT).diagonal(dim1=-2, dim2=-1).mT, model.posterior(X).variance, rtol=0, atol=1e-4
        )
        assert SobolQMCNormalSampler(torch.Size([3]))(model.posterior(X)).dtype == torch.float32


def test_a_baseline_of_repeated_points(few_pivots):
    """Repeats make the covariance singular: equal points have equal samples."""
    model = pair("plain", dictionary=ROWS)[1]
    X = points(7).repeat(3, 1)
    with torch.no_grad():
        samples = SobolQMCNormalSampler(torch.Size([5]), seed=0)(model.posterior(X)).squeeze(-1)
        operator = operator_of(model.posterior(X))
        order = operator.root_decomposition().root.order
        law = matrix(operator.root_decomposition().root, 21)
        law = law @ law.mT
    assert bool(torch.isfinite(samples).all())
    torch.testing.assert_close(law.diagonal(), operator.diagonal(), rtol=0, atol=1e-6)
    pivot = int(order[0])
    twin = (pivot + 7) % 21
    torch.testing.assert_close(samples[:, pivot], samples[:, twin], rtol=0, atol=1e-3)


@pytest.mark.parametrize("weights", [(0.3, -0.7), (1.0, 0.0)])
def test_rows_may_be_appended_to_the_law_of_a_sum(weights, few_pivots):
    model = pair("two outputs", dictionary=ROWS)[1]
    options = {"posterior_transform": ScalarizedPosteriorTransform(torch.tensor(weights, dtype=torch.float64))}
    baseline, new = points(Q), points(3, seed=8)
    with torch.no_grad():
        first = matrix(operator_of(model.posterior(baseline, **options)).root_decomposition().root)
        posterior = model.posterior(torch.cat([baseline, new]), **options)
        longer = operator_of(posterior)
        whole = matrix(longer.root_decomposition().root, Q + 3)
        law = whole @ whole.mT
        torch.testing.assert_close(whole[:Q, :Q], first, rtol=0, atol=0)
        torch.testing.assert_close(longer[..., -3:, :].to_dense(), law[-3:], **TIGHT)
        torch.testing.assert_close(longer.diagonal(), law.diagonal(), **TIGHT)
        other = {"posterior_transform": ScalarizedPosteriorTransform(torch.tensor([2.0, 1.0], dtype=torch.float64))}
        another = operator_of(model.posterior(torch.cat([baseline, new]), **other))
        assert another.base is None  # the law of another sum
        assert operator_of(model.posterior(torch.cat([baseline, new]))).root_decomposition().root.shape == (2, Q + 3, Q + 3)
    assert posterior.rsample(torch.Size([2])).shape == (2, Q + 3, 1)


@pytest.mark.filterwarnings("ignore:.*is made dense:sparse_bo.errors.MemoryWarning")
def test_a_kernel_that_loses_digits_has_samples_all_the_same(many):
    """As of the exact model, which warns and takes another root."""
    train_X = torch.linspace(0.05, 0.95, 5, dtype=torch.float64).unsqueeze(-1)
    kernel = InfiniteWidthBNNKernel(depth=3)
    kernel.weight_var, kernel.bias_var = 10.0, 5.0
    model = make_sparse(train_X, torch.sin(6 * train_X), train_Yvar=torch.full_like(train_X, 2e-6), covar_module=kernel)
    X = torch.linspace(0, 1, 100, dtype=torch.float64).unsqueeze(-1)
    with torch.no_grad():
        operator = operator_of(model.posterior(X))
        with pytest.warns(NumericalWarning, match="added to its variances"):
            root = operator.root_decomposition().root
        law = matrix(root, 100)
        torch.testing.assert_close(law @ law.mT, operator.to_dense(), rtol=0, atol=1e-3 * float(operator.diagonal().max()))


@pytest.mark.parametrize("noise", [1e-1, 1e-4, 1e-6])
@pytest.mark.parametrize("outputs", [1, 2])
def test_what_pivots_leave_of_a_smooth_function_may_be_round_off(noise, outputs, scale):
    scale(joint={"dense": 100})
    scale(joint={"pivots": 90})
    X = points(300)
    Y = torch.stack([torch.sin(2 * X.sum(dim=-1)), torch.cos(X[:, 0])][:outputs], dim=-1)
    model = make_sparse(X, Y, torch.full_like(Y, noise), dictionary=torch.arange(60))
    model.covar_module.lengthscale = 5.0
    with torch.no_grad():
        posterior = model.posterior(X)
        law = matrix(operator_of(posterior).root_decomposition().root, 300).square().sum(dim=-1)
        torch.testing.assert_close(law, operator_of(posterior).diagonal(), rtol=1e-2, atol=0)
        base = model.cache().baseline.base
        again = torch.cat([X, X[base.pivots[:16]]])  # points that the pivots say everything of
        assert operator_of(model.posterior(again)).root_decomposition().root.shape[-1] == 316


class OwnForward(SparseGP):
    def forward(self, x):
        return MultivariateNormal(self.mean_module(x), 2.0 * self.covar_module(x))


@pytest.mark.parametrize("cls", [SparseGP, OwnForward])
def test_a_lazy_posterior_is_of_the_parameters_it_was_made_with(cls, many):
    model = make_sparse(**data(), dictionary=ROWS, kind=cls)
    expected = make_sparse(**data(), dictionary=ROWS, kind=cls).posterior(points(Q))
    posterior = model.posterior(points(Q))
    with torch.no_grad():
        model.covar_module.lengthscale = 0.1
        model.mean_module.constant = 3.0
    torch.testing.assert_close(posterior.variance, expected.variance, **TIGHT)
    some = [operator_of(which)[..., 2:5, :].to_dense() for which in (posterior, expected)]
    torch.testing.assert_close(*some, **TIGHT)
    posterior.variance.sum().backward()
    assert bool((model.covar_module.raw_lengthscale.grad != 0.0).any())
    assert not torch.allclose(model.posterior(points(Q)).variance, expected.variance)


@pytest.mark.parametrize("configuration", ["plain", "two outputs"])
def test_a_posterior_made_without_gradients_has_none_later(configuration):
    """BoTorch draws the samples of a baseline after such a block: each later gradient walked through their graph."""
    model = pair(configuration, dictionary=ROWS)[1]
    moving = torch.cat([points(3).expand(2, 3, D), points(2, 1, seed=8).requires_grad_()], dim=-2)
    model.posterior(moving)  # from here on the three rows are known
    for q in (5, 4200):
        with torch.no_grad():
            posterior = model.posterior(torch.cat([points(3), points(q - 3, seed=9)]))
        assert isinstance(operator_of(posterior), RootedCovariance)
        assert not posterior.rsample(torch.Size([2])).requires_grad
        assert not operator_of(posterior)[..., :4, :4].to_dense().requires_grad


def test_a_matrix_that_is_no_covariance_has_no_root():
    g = torch.Generator().manual_seed(0)
    A = torch.randn(2, 6, 6, generator=g, dtype=torch.float64)
    indefinite = A + A.mT
    for matrix_ in (indefinite, torch.full((3, 3), torch.nan, dtype=torch.float64)):
        with pytest.raises(NotPSDError):
            root_of(matrix_, prior=1.0)
    nearly = A @ A.mT + 1.0
    nearly[1] -= (torch.linalg.eigvalsh(nearly[1])[0] + 1e-3) * torch.eye(6, dtype=torch.float64)
    with pytest.warns(NumericalWarning):
        root = root_of(nearly, prior=1.0)
    assert torch.equal(root_of(nearly, prior=1.0, round_off=2e-3), root)  # without a warning, which would be an error
    with pytest.warns(NumericalWarning):
        root_of(nearly, prior=1.0, round_off=5e-4)
    with pytest.raises(NotPSDError):  # 0.001 is no round-off of 0.05
        root_of(nearly, prior=0.05)
    torch.testing.assert_close(root[0] @ root[0].mT, nearly[0], rtol=0, atol=1e-8)
    torch.testing.assert_close(root[1] @ root[1].mT, nearly[1], rtol=0, atol=1.01e-3)


def test_no_covariance_at_all_takes_jitter():
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(60, 2, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        model, points = SparseGP(X, X.sum(dim=-1, keepdim=True)), torch.rand(4_200, 2, generator=generator, dtype=torch.float64)
        posterior = model.posterior(points)
        nothing = posterior.distribution * 0.0
        assert nothing.add_jitter(0.1).variance == pytest.approx(0.1)


@pytest.mark.filterwarnings("ignore::botorch.exceptions.InputDataWarning")  # of float32, which is the point, and of units
def test_float32_serves_many_points_as_it_serves_few():
    """What data leave of a smooth function's variance is round-off of the prior's there."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(400, 3, generator=generator)
    model = SparseGP(X, (3 * X.sum(dim=-1, keepdim=True)).sin())
    model.likelihood.noise, model.covar_module.lengthscale = 1e-3, 1.0
    points = torch.rand(4_200, 3, generator=generator)
    with torch.no_grad():
        posterior = model.posterior(points)
        with pytest.warns(NumericalWarning):
            samples = posterior.rsample(torch.Size([32]))
        error = (samples - posterior.mean).square().mean().sqrt() / posterior.variance.mean().sqrt()
    assert 0.5 < float(error) < 3.0
