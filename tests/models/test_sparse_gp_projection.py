"""Products with a large triangular root: the same values and gradients whichever way they are made."""

import copy
import pickle

import pytest
import torch

from sparse_bo.models.sparse_gp import representation
from sparse_bo.models.sparse_gp.representation import ByRows
from tests.models.sparse_problems import pair, points


@pytest.fixture
def large(monkeypatch):
    """A root of two blocks of columns and a rest is large."""
    monkeypatch.setattr(representation, "TRIANGLE_COLUMNS", 11)


def triangle(*batch, m=27):
    return torch.randn(*batch, m, m, generator=torch.Generator().manual_seed(0), dtype=torch.float64).triu()


@pytest.mark.parametrize("batch", [(), (2,)])
def test_the_product_and_its_derivatives_are_those_of_the_matrix(batch, large):
    R = triangle(*batch)
    K = torch.randn(*batch, 2, 27, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)

    def product(K):
        return ByRows.apply(K, R, R.mT.contiguous())

    torch.testing.assert_close(product(K), K @ R, rtol=0, atol=1e-12)
    assert torch.autograd.gradcheck(product, K)
    assert torch.autograd.gradgradcheck(product, K)
    if not batch:
        each = torch.func.vmap(lambda k: product(k.unsqueeze(0)).squeeze(0))(K)
        torch.testing.assert_close(each, K @ R, rtol=0, atol=1e-12)


@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch"])
@pytest.mark.parametrize("fantasy", [False, True], ids=["model", "fantasy"])
def test_posteriors_are_the_same_for_few_points_and_for_many(configuration, fantasy, large, monkeypatch):
    model = pair(configuration)[1]
    assert model.representation().triangular
    if fantasy:
        new = points(*model.batch_shape, 2)
        model = model.condition_on_observations(new, torch.ones(*new.shape[:-1], model.num_outputs, dtype=torch.float64))
    found = []
    for few in ((1, 0), (1, 256)):
        monkeypatch.setattr(representation, "FEW_ROWS", few)
        X = points(3, 2, seed=8) if configuration != "batch" else points(3, 1, 2, seed=8)
        posterior = model.posterior(X.requires_grad_())
        (gradient,) = torch.autograd.grad(posterior.mean.sum() + posterior.distribution.covariance_matrix.square().sum(), X)
        found.append((posterior.mean, posterior.distribution.covariance_matrix, gradient))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_a_root_that_takes_part_in_the_graph_or_too_much_memory_is_multiplied_plainly(large, monkeypatch):
    form = pair("plain")[1].representation()
    assert form._by_rows(4)
    assert not form._by_rows(3)
    assert not form._by_rows(257)
    assert not representation.replace(form, root=form.root.clone().requires_grad_())._by_rows(4)
    monkeypatch.setattr(representation, "TWICE_BYTES", 100)
    assert not form._by_rows(4)


def test_what_is_held_twice_is_neither_copied_nor_stored(large):
    model = pair("plain")[1]
    before = model.posterior(points(5)).mean
    assert "_both_ways" in model.representation().__dict__
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert "_both_ways" not in other.prediction_strategy.representation.__dict__
        torch.testing.assert_close(other.posterior(points(5)).mean, before)
