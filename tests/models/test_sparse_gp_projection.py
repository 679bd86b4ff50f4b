"""Products with a large triangular root and covariances made on demand: the same values and gradients however they are made."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from linear_operator.operators import DenseLinearOperator

from sparse_bo.models.sparse_gp import representation
from sparse_bo.models.sparse_gp.posterior import DeferredCovariance
from sparse_bo.models.sparse_gp.triangular import Products, ProductSizes, SparseRoot, TimesRoot
from tests.models.sparse_problems import pair, points

SIZES = {"block": 11, "large": 22}
"""A root of two blocks of columns and a rest is large."""


@pytest.fixture
def large(scale):
    scale(products=SIZES)


def upper(*batch, m=27, dtype=torch.float64):
    matrix = torch.randn(*batch, m, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64).triu().to(dtype)
    return SparseRoot(matrix, triangular=True, sizes=ProductSizes(**SIZES))


def covariances(*batch, rows, m=27, dtype=torch.float64):
    K = torch.randn(*batch, rows, m, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return K.to(dtype).requires_grad_()


def dense_products(K, R, q):
    h = (K @ R).unflatten(-2, (-1, q))
    return h @ h.mT, K @ R @ R.mT


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("q", [1, 3])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_products_are_those_of_whole_matrices(batch, q, dtype, large):
    R, K = upper(*batch, dtype=dtype), covariances(*batch, rows=6, dtype=dtype)
    found, expected = Products.apply(K, R, q), dense_products(K, R.matrix, q)
    weights = [torch.randn(part.shape, generator=torch.Generator().manual_seed(2)).to(part) for part in expected]
    totals = [sum((p * w).sum() for p, w in zip(parts, weights, strict=True)) for parts in (found, expected)]
    gradients = [torch.autograd.grad(total, K)[0] for total in totals]
    tolerance = {"rtol": 1e-12, "atol": 1e-11} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 2e-3}
    for one, other in [*zip(found, expected, strict=True), gradients]:
        torch.testing.assert_close(one, other, **tolerance)
    h = R.columns(K.mT)
    torch.testing.assert_close(h.mT, K @ R.matrix, **tolerance)
    torch.testing.assert_close(R.lift(h).mT, expected[1], **tolerance)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("batch", [(), (2,)])
def test_products_can_be_differentiated_twice_and_mapped(batch, large):
    R, K = upper(*batch), covariances(*batch, rows=2)
    for q in (1, 2):  # a copy of the root has no products of numbers that are changed in place
        assert torch.autograd.gradcheck(lambda K, q=q: Products.apply(K, replace(R), q), K)
        assert torch.autograd.gradgradcheck(lambda K, q=q: Products.apply(K, replace(R), q), K)
    assert torch.autograd.gradcheck(lambda K: TimesRoot.apply(K, replace(R)), K)
    assert torch.autograd.gradgradcheck(lambda K: TimesRoot.apply(K, replace(R)), K)
    if not batch:
        many = torch.stack([K, 2 * K, K + 1], dim=1)
        E, P = torch.func.vmap(lambda k: Products.apply(k, R, 2), in_dims=1)(many)
        each = [dense_products(k, R.matrix, 2) for k in many.unbind(1)]
        torch.testing.assert_close(E, torch.stack([part[0] for part in each]), rtol=1e-12, atol=1e-11)
        torch.testing.assert_close(P, torch.stack([part[1] for part in each]), rtol=1e-12, atol=1e-11)


@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch"])
def test_variances_of_many_points_are_added_up_without_the_columns(configuration, large, scale):
    X = points(6, 1) if configuration != "batch" else points(3, 1, 1)
    with torch.no_grad():
        expected = pair(configuration)[1].posterior(X).variance
        scale(products={"recent": 2})
        torch.testing.assert_close(pair(configuration)[1].posterior(X).variance, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [2, 7])
def test_equal_points_have_graphs_of_their_own(rows, large, scale):
    scale(products={"few": 4})  # two rows: value and gradient together
    model = pair("plain")[1]
    X = points(rows, 1, seed=5).requires_grad_()
    first, second = model.posterior(X).variance, model.posterior(X, observation_noise=True).variance
    once = torch.autograd.grad(first.sum(), X)[0]
    assert torch.equal(torch.autograd.grad(second.sum(), X)[0], once)
    assert torch.equal(torch.autograd.grad(model.posterior(X).variance.sum(), X)[0], once)
    other = (X.detach() + 1e-9).requires_grad_()
    gradient = torch.autograd.grad(model.posterior(other).variance.sum(), other)[0]
    torch.testing.assert_close(gradient, once, rtol=1e-5, atol=1e-6)
    assert not torch.equal(gradient, once)
    assert torch.equal(copy.deepcopy(model).posterior(X).variance, first)


@pytest.mark.parametrize("q", [1, 3])
def test_a_jacobian_is_made_of_all_rows_at_once(q, large):
    def jacobian(model):
        return torch.autograd.functional.jacobian(lambda X: model.posterior(X).variance, points(2, q), vectorize=True)

    exact, sparse = pair("plain")
    torch.testing.assert_close(jacobian(sparse), jacobian(exact), rtol=1e-6, atol=1e-9)


def test_equal_points_are_multiplied_once():
    made, cache = [], replace(upper(), sizes=ProductSizes(recent=3))
    K = covariances(rows=3).detach()
    for argument in (K, K.clone(), K + 1, K + 1, K):
        cache.recall("h", argument, lambda: made.append(1))
    assert len(made) == 3
    for _ in range(2):  # a copy starts empty, and more points are not kept
        copy.deepcopy(cache).recall("h", K, lambda: made.append(1))
        cache.recall("many", covariances(rows=4).detach(), lambda: made.append(1))
    assert len(made) == 7


@pytest.mark.sampled
@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch"])
@pytest.mark.parametrize("fantasy", [False, True], ids=["model", "fantasy"])
@pytest.mark.parametrize("q", [1, 2])
def test_posteriors_are_the_same_for_few_points_and_for_many(configuration, fantasy, q, large, scale):
    found = []
    for few in (0, 256):
        scale(products={"few": few})
        model = pair(configuration)[1]
        assert model.representation().root.triangular
        X = points(3, q, seed=8) if configuration != "batch" else points(3, 1, q, seed=8)
        X.requires_grad_()
        now = model
        if fantasy:
            new = points(*model.batch_shape, 2) + 0.01 * X.sum()
            now = model.condition_on_observations(new, torch.ones(*new.shape[:-1], model.num_outputs, dtype=torch.float64))
        posterior = now.posterior(X)
        covariance = posterior.distribution.covariance_matrix
        (gradient,) = torch.autograd.grad(posterior.mean.sum() + covariance.square().sum(), X, retain_graph=True)
        (of_variance,) = torch.autograd.grad(now.posterior(X).variance.square().sum(), X)
        found.append((posterior.mean, covariance, gradient, of_variance))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("configuration", ["plain", "two outputs"])
@pytest.mark.parametrize("fantasy", [False, True], ids=["model", "fantasy"])
def test_rows_after_a_baseline_are_the_same_from_few_products(configuration, fantasy, large, scale):
    baseline, found = points(5, seed=7), []
    for few in (0, 256):
        scale(products={"few": few})
        model = pair(configuration)[1]
        model.posterior(points(1))
        if fantasy:
            model = model.condition_on_observations(points(2), torch.ones(2, model.num_outputs, dtype=torch.float64))
        X = points(4, 2, seed=8).requires_grad_()
        posterior = model.posterior(torch.cat([baseline.expand(4, 5, 2), X], dim=-2))
        assert model.prediction_strategy.baseline.base.rows == 5
        operator = posterior.distribution.lazy_covariance_matrix
        operator = operator if model.num_outputs == 1 else operator.base_linear_op
        entries = operator[..., 5:, :].to_dense()
        found.append((entries, torch.autograd.grad(entries.square().sum(), X)[0]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_root_that_takes_part_in_the_graph_is_multiplied_plainly(large, scale):
    model = pair("plain")[1]
    form, kernel = model.representation(), model.covar_module
    X = points(4).requires_grad_()
    assert form.project(kernel, X).few
    root = replace(form.root, matrix=form.root.matrix.clone().requires_grad_())
    assert not replace(form, root=root).project(kernel, X).few
    with torch.no_grad():
        assert not form.project(kernel, X).few
    scale(products={"few": 3})
    assert not pair("plain")[1].representation().project(kernel, X).few


def test_a_large_root_lies_in_memory_by_columns_in_copies_and_fantasies_too(large):
    model = pair("plain")[1]
    before = model.posterior(points(5)).mean
    fantasy = model.condition_on_observations(points(1), torch.ones(1, 1, dtype=torch.float64))
    assert fantasy.representation().root is model.representation().root
    for other in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.representation().root.matrix.mT.is_contiguous()
        torch.testing.assert_close(other.posterior(points(5)).mean, before)


def test_a_sparse_posterior_holds_its_root_once_and_nothing_of_that_size_beside_it(large):
    form = pair("plain", dictionary=torch.arange(25))[1].representation()
    assert form.root.triangular
    sizes = [part.untyped_storage().nbytes() // part.element_size() for part in (form.root.matrix, form.alpha)]
    assert sizes in ([25 * 25, 25], [25 * 26, 25])  # with the column of the weights that was copied from it


def counted(monkeypatch):
    """Return the list that grows by one whenever variances or covariances are computed."""
    made = []
    for name in ("variance", "covariance"):
        whole = getattr(representation.Projection, name)
        monkeypatch.setattr(representation.Projection, name, lambda self, prior, w=whole: made.append(w) or w(self, prior))
    return made


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("q", [1, 3])
def test_a_covariance_is_made_when_it_is_asked_for_and_once(q, noisy, monkeypatch):
    model = pair("plain")[1]
    made = counted(monkeypatch)
    posterior = model.posterior(points(2, q), observation_noise=noisy)
    _ = posterior.mean, posterior.event_shape, posterior.batch_shape, posterior.dtype, posterior.device
    assert not made
    for _ in range(2):
        assert posterior.variance.shape == (2, q, 1)
    assert len(made) == 1
    dense = posterior.distribution.covariance_matrix
    torch.testing.assert_close(posterior.variance.squeeze(-1), dense.diagonal(dim1=-2, dim2=-1), rtol=1e-9, atol=1e-12)


def test_a_posterior_is_that_of_the_moment_it_was_taken_whenever_it_is_looked_at():
    model = pair("plain")[1]
    X = points(2, 3).requires_grad_()
    expected = model.posterior(X).distribution.covariance_matrix.detach().clone()
    posterior = model.posterior(X)
    with torch.no_grad():
        constant = model.posterior(X)
    model.covar_module.lengthscale = 7.0
    torch.testing.assert_close(posterior.distribution.covariance_matrix, expected)
    torch.testing.assert_close(constant.variance.squeeze(-1), expected.diagonal(dim1=-2, dim2=-1))
    assert posterior.variance.requires_grad
    assert not constant.variance.requires_grad


def test_a_covariance_on_demand_is_a_dense_operator_to_all_who_look_closer():
    model = pair("plain")[1]
    with torch.no_grad():
        operator = model.posterior(points(2, 3)).distribution.lazy_covariance_matrix
    assert isinstance(operator, DeferredCovariance)
    assert (operator.shape, operator.dtype, operator.device) == ((2, 3, 3), torch.float64, torch.device("cpu"))
    matrix = operator.to_dense()
    for copied in (copy.deepcopy(operator), pickle.loads(pickle.dumps(operator)), operator.detach(), operator.clone()):
        assert isinstance(copied, DenseLinearOperator)
        assert torch.equal(copied.to_dense(), matrix)
    assert torch.equal(operator[1, :2, :2].to_dense(), matrix[1, :2, :2])
    assert torch.equal(operator.unsqueeze(0).to_dense(), matrix.unsqueeze(0))
    assert torch.equal(
        operator.expand(4, 2, 3, 3).diagonal(dim1=-2, dim2=-1), matrix.diagonal(dim1=-2, dim2=-1).expand(4, 2, 3)
    )
    torch.testing.assert_close((operator + operator).to_dense(), 2 * matrix)
    torch.testing.assert_close(operator.scaled(torch.full((3,), 2.0, dtype=torch.float64)).to_dense(), 4 * matrix)
    root = operator.root_decomposition().root.to_dense()
    torch.testing.assert_close(root @ root.mT, matrix, rtol=1e-6, atol=1e-8)


def test_many_marginals_do_not_hold_their_covariances_with_the_dictionary(scale):
    model = pair("plain")[1]
    expected = model.posterior(points(5, 1)).variance
    scale(joint={"cached_bytes": 200})
    posterior = pair("plain")[1].posterior(points(5, 1))
    assert not isinstance(posterior.distribution.lazy_covariance_matrix, DeferredCovariance)
    assert torch.equal(posterior.variance, expected)
