"""The blocked inverse of a triangle against solving for the identity."""

import pytest
import torch

from sparse_bo.linalg.cholesky import triangular_inverse


@pytest.mark.parametrize("columns", [1, 3, 7, 100])
@pytest.mark.parametrize("batch_shape", [(), (2,), (2, 3)], ids=str)
def test_inverse_is_that_of_solving_for_the_identity(columns, batch_shape):
    g = torch.Generator().manual_seed(0)
    L = torch.rand(*batch_shape, 7, 7, generator=g, dtype=torch.float64).tril() + torch.eye(7, dtype=torch.float64)
    inverse = triangular_inverse(L, block=columns)
    torch.testing.assert_close(inverse @ L, torch.eye(7, dtype=torch.float64).expand_as(L))
    assert torch.equal(inverse, inverse.tril())


def test_inverse_passes_gradients_on():
    L = (torch.rand(4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + torch.eye(4)).tril()
    assert torch.autograd.gradcheck(lambda A: triangular_inverse(A.tril()), L.requires_grad_())
