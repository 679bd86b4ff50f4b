"""Sums of squares of the columns of a product, added to a tensor."""

from __future__ import annotations

from torch import Tensor

from sparse_bo.kernels.covariance import on_triton


def add_squares(product: Tensor, out: Tensor) -> None:
    """Add ``Σ_i product[i, j]²`` to ``out[j]``. O(r n); on a GPU the product is read once and nothing else is written.

    Args:
        product: ``r x n``, contiguous rows; overwritten.
        out: ``n``, contiguous.
    """
    if on_triton(product):
        from sparse_bo.kernels import triton_squares

        triton_squares.add(product, out)
    else:
        out += product.square_().sum(dim=0)
