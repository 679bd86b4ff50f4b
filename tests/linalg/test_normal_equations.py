"""Sums over many rows: the blocked product, whitening once, and the bound on what that loses."""

import pytest
import torch

from sparse_bo.linalg.cholesky import add_lower_gram, whitened_gram, whitening_error


def rows(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("m", [1, 5, 300])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_lower_blocks_are_the_product_and_are_added(m, batch):
    S, gram = rows(*batch, m, 7), torch.zeros(*batch, m, m, dtype=torch.float64)
    for part in (S[..., :3], S[..., 3:]):
        add_lower_gram(gram, part, smallest=2)
    torch.testing.assert_close(gram.tril(), (S @ S.mT).tril())


def test_beyond_the_blocks_nothing_is_computed():
    gram = torch.zeros(4, 4, dtype=torch.float64)
    add_lower_gram(gram, rows(4, 6), blocks=2, smallest=2)
    assert not bool(gram[:2, 2:].any())


@pytest.mark.parametrize("conditioned", [1.0, 1e4])
def test_whitening_once_loses_less_than_the_bound(conditioned):
    m = 30
    Q, _ = torch.linalg.qr(rows(m, m))
    K = Q @ torch.diag(torch.logspace(0, -float(torch.tensor(conditioned).log10()), m, dtype=torch.float64)) @ Q.mT
    L = torch.linalg.cholesky(0.5 * (K + K.mT))
    S = 30.0 * rows(m, 500)
    each = torch.linalg.solve_triangular(L, S, upper=False)
    error = torch.linalg.matrix_norm(whitened_gram(L, S @ S.mT) - each @ each.mT, 2)
    bound = whitening_error(L, (S @ S.mT).diagonal().sum())
    assert float(error) <= bound
    assert bound == pytest.approx(2.2e-16 * float(S.square().sum()) * conditioned, rel=0.1)
