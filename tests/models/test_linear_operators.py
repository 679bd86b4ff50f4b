"""linear_operator's own test case on the covariances of sparse posteriors, of few points and of many."""

import copy
import unittest
from typing import ClassVar

import pytest
import torch
from botorch.exceptions.errors import UnsupportedError
from linear_operator.test.linear_operator_test_case import LinearOperatorTestCase

from sparse_bo.models import SparseModelListGP
from sparse_bo.models.sparse_gp.covariance import JointCovariance
from tests.models.sparse_problems import data, forget_sizes, make_sparse, pair, points, set_sizes

pytestmark = [
    pytest.mark.filterwarnings("ignore::sparse_bo.errors.MemoryWarning"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning"),  # of linear_operator's own slices
    pytest.mark.filterwarnings("ignore:.*float32:botorch.exceptions.InputDataWarning"),
]
ROWS = torch.tensor([2, 11, 25])
Q = 6


@pytest.mark.slow
class Contract(LinearOperatorTestCase):
    seed = 0
    options: ClassVar[dict] = {}
    batch: ClassVar[tuple] = ()
    sizes: ClassVar[dict] = {"dense": 3}

    should_call_cg = False
    should_call_lanczos = False

    def create_linear_op(self):
        set_sizes(joint=self.sizes)
        train = {name: part.float() for name, part in data(**self.options).items()}  # the test case is in float32
        model = self.model(train)
        forget_sizes()
        X = points(*self.batch, Q).float().requires_grad_()
        operator = model.posterior(X).distribution.lazy_covariance_matrix
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        return operator

    def model(self, train):
        return make_sparse(**train, dictionary=ROWS)

    def evaluate_linear_op(self, linear_op):
        return linear_op.to_dense()

    def test_cholesky(self):
        """The root of many points is an operator that multiplies and solves, and no upper one."""
        operator = self.create_linear_op()
        dense, root = operator.to_dense(), torch.linalg.cholesky(operator)
        lower = root.matmul(torch.eye(dense.shape[-1]).expand_as(dense))
        self.assertAllClose(lower @ lower.mT, dense)
        with pytest.raises(UnsupportedError, match="lower factor"):
            torch.linalg.cholesky(operator, upper=True)

    def test_detached_and_copied(self):
        operator = self.create_linear_op()
        dense = operator.to_dense()
        copied = [copy.deepcopy(operator)] if isinstance(operator, JointCovariance) else []
        for other in (operator.clone(), operator.detach(), copy.deepcopy(operator.detach()), *copied):
            torch.testing.assert_close(other.to_dense(), dense)
        assert not operator.detach().to_dense().requires_grad


class TestManyPoints(Contract, unittest.TestCase):
    pass


class TestBatchOfManyPoints(Contract, unittest.TestCase):
    batch = (2,)


class TestPointsOfTwoOutputs(Contract, unittest.TestCase):
    options: ClassVar[dict] = {"outputs": 2}


class TestFewPoints(Contract, unittest.TestCase):
    sizes: ClassVar[dict] = {"dense": 100}
    test_cholesky = LinearOperatorTestCase.test_cholesky


class TestPointsOfTwoModels(Contract, unittest.TestCase):
    def model(self, train):
        return SparseModelListGP(*(make_sparse(**train, dictionary=rows) for rows in (ROWS, ROWS + 1)))


def law(root, q=23):
    lower = root.matmul(torch.eye(q, dtype=torch.float64).expand(*root.batch_shape, q, q))
    return lower @ lower.mT


@pytest.mark.parametrize("configuration", ["plain", "two outputs", "batch"])
def test_solutions_and_determinants_are_those_of_the_law_of_samples(configuration, few_pivots):
    operator = pair(configuration, dictionary=ROWS)[1].posterior(points(23)).distribution.lazy_covariance_matrix
    q = operator.shape[-1]
    with torch.no_grad():
        matrix = law(operator.root_decomposition().root, q)
        Y = matrix @ torch.randn(*operator.batch_shape, q, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        torch.testing.assert_close(operator.solve(Y), torch.linalg.solve(matrix, Y), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(operator.root_decomposition().matmul(Y), matrix @ Y, rtol=1e-9, atol=1e-9)
        quadratic, determinant = operator.inv_quad_logdet(Y, logdet=True)
        expected = (Y * torch.linalg.solve(matrix, Y)).sum(dim=(-2, -1))
        torch.testing.assert_close(quadratic, expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(determinant, torch.linalg.slogdet(matrix).logabsdet, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(operator.logdet(), determinant)
        each = operator.inv_quad(Y, reduce_inv_quad=False).sum(dim=-1)
        torch.testing.assert_close(each, quadratic, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("configuration", ["plain", "two outputs"])
def test_what_needs_the_dense_root_says_so(configuration, many):
    model = pair(configuration, dictionary=ROWS)[1]
    one, other = (model.posterior(points(9, seed=seed)).distribution for seed in (1, 2))
    with pytest.raises(UnsupportedError, match=r"JointSettings\.dense points"):
        torch.distributions.kl_divergence(one, other)
    with pytest.raises(UnsupportedError, match=r"JointSettings\.dense points"):
        _ = one.precision_matrix


def test_eigenvalues_of_many_points_are_those_of_the_dense_matrix(many):
    operator = pair("plain", dictionary=ROWS)[1].posterior(points(23)).distribution.lazy_covariance_matrix
    assert isinstance(operator, JointCovariance)
    with torch.no_grad():
        expected = torch.linalg.eigvalsh(operator.to_dense())
        values, vectors = operator.diagonalization()
    torch.testing.assert_close(values.sort().values, expected, rtol=1e-6, atol=1e-9)
    made = (vectors.to_dense() * values) @ vectors.to_dense().mT
    torch.testing.assert_close(made, operator.to_dense(), rtol=1e-6, atol=1e-6)


def test_eigenvalues_of_more_points_than_are_made_dense(nothing_dense):
    operator = pair("plain", dictionary=ROWS)[1].posterior(points(23)).distribution.lazy_covariance_matrix
    torch.manual_seed(0)
    with torch.no_grad():
        values, _ = operator.diagonalization(method="lanczos")
    assert float(values.sum()) == pytest.approx(float(operator.diagonal().detach().sum()), rel=1e-3)


def test_a_slice_of_two_outputs_is_that_of_the_block_diagonal_matrix(many):
    operator = pair("two outputs", dictionary=ROWS)[1].posterior(points(10)).distribution.lazy_covariance_matrix
    dense = operator.to_dense()
    for rows, columns in ((slice(0, 4), slice(0, 4)), (slice(8, 12), slice(8, 12)), (slice(-2, None), slice(None))):
        torch.testing.assert_close(operator[rows, columns].to_dense(), dense[rows, columns])
