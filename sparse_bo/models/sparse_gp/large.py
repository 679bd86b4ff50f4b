"""The joint posterior covariance of so many points that it is better not built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from linear_operator.operators import DiagLinearOperator, LinearOperator, to_linear_operator
from torch import Tensor

from sparse_bo.core.chunking import row_slices
from sparse_bo.core.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp.representation import PriorKernel, Representation, kernel_diagonal, kernel_matrix

LARGE_Q = 4096
"""Beyond so many points a joint covariance is lazy (BoTorch factorises densely up to the same size)."""

CHUNK = 4096
"""Points projected at a time: with 4,096 dictionary points, 400 MB."""

Draw = Callable[[Tensor, int], Tensor]
"""``X`` (``… x q x d``) and a number of samples to zero-mean joint samples, ``samples x … x q``."""


class LargePosteriorCovariance(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """``S (C(X, X) + N) S`` of a posterior covariance ``C``, diagonal noise ``N`` and diagonal scale ``S``, never built.

    Its diagonal costs O(q m r) and O(chunk · m) memory; samples come from paths.
    """

    def __init__(
        self,
        X: Tensor,
        *,
        kernel: PriorKernel,
        posterior: Representation,
        draw: Draw,
        noise: Tensor | None = None,
        scale: Tensor | None = None,
    ) -> None:
        """Hold references; nothing is computed.

        Args:
            X: ``batch_shape x q x d`` points, transformed.
            kernel: The prior covariance.
            posterior: The posterior whose covariance this is.
            draw: Draws joint samples of that posterior.
            noise: ``… x q`` variances that are added to the diagonal.
            scale: ``… x q`` factors of the values.
        """
        super().__init__(X, kernel=kernel, posterior=posterior, draw=draw, noise=noise, scale=scale)
        self.X, self.kernel, self.posterior, self.draw = X, kernel, posterior, draw
        self.noise, self.scale = noise, scale

    def _with(self, **changes: Any) -> LargePosteriorCovariance:
        kept = {"kernel": self.kernel, "posterior": self.posterior, "draw": self.draw}
        return LargePosteriorCovariance(self.X, **{**kept, "noise": self.noise, "scale": self.scale, **changes})

    def scaled(self, factors: Tensor) -> LargePosteriorCovariance:
        """Return the covariance of the values times ``factors`` (``… x q``)."""
        return self._with(scale=factors if self.scale is None else self.scale * factors)

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        """Return joint samples from paths, ``num_samples x batch_shape x q``. O(q m), never ``q x q``."""
        samples = self.draw(self.X, num_samples)
        if self.noise is not None:
            # Drawn on the CPU, as paths are.
            normal = torch.randn(samples.shape, dtype=samples.dtype, device="cpu").to(samples.device)
            samples = samples + self.noise.sqrt() * normal
        return samples if self.scale is None else samples * self.scale

    def __add__(self, other: Any) -> LinearOperator:
        """Add observation noise; everything else as any operator."""
        if not isinstance(other, DiagLinearOperator):
            return super().__add__(other)
        added = other.diagonal(dim1=-2, dim2=-1)
        if self.scale is not None:
            added = added / self.scale.square()
        return self._with(noise=added if self.noise is None else self.noise + added)

    def root_decomposition(self, *args: Any, **kwargs: Any) -> LinearOperator:
        """Refuse: a root of so many points is what this class is there to avoid.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"a root of the joint covariance of {self.shape[-1]} points needs a {self.shape[-1]} x {self.shape[-1]} matrix; "
            f"pass at most {LARGE_Q} baseline points (qLogNEI: X_baseline, prune_baseline=False), or sample without base "
            "samples or by draw_matheron_paths"
        )

    def cholesky(self, upper: bool = False) -> LinearOperator:
        """Refuse, as :meth:`root_decomposition`.

        Raises:
            UnsupportedError: Always.
        """
        return self.root_decomposition()

    def _size(self) -> torch.Size:
        q = self.X.shape[-2]
        batch_shape = broadcast_shapes(self.X.shape[:-2], self.posterior.batch_shape)
        return batch_shape + torch.Size([q, q])

    def _transpose_nonbatch(self) -> LargePosteriorCovariance:
        return self

    def _slices(self) -> list[slice]:
        return list(row_slices(self.X.shape[-2], chunk=CHUNK))

    def _diagonal(self) -> Tensor:
        parts = []
        for rows in self._slices():
            X = self.X[..., rows, :]
            parts.append(self.posterior.project(self.kernel, X).variance(kernel_diagonal(self.kernel, X)))
        diagonal = torch.cat(parts, dim=-1)
        diagonal = diagonal if self.noise is None else diagonal + self.noise
        return diagonal if self.scale is None else diagonal * self.scale.square()

    def _block(self, rows: Any, columns: Any) -> Tensor:
        """Return the covariance between two index sets, ``batch_shape x |rows| x |columns|``."""
        left, right = self.X[..., rows, :], self.X[..., columns, :]
        block = kernel_matrix(self.kernel, left, right)
        project = self.posterior.project
        for a, b in zip(project(self.kernel, left).columns, project(self.kernel, right).columns, strict=True):
            block = block - a @ b.mT
        every = torch.arange(self.X.shape[-2], device=self.X.device)
        if self.noise is not None:
            same = every[rows].unsqueeze(-1) == every[columns]
            block = block + self.noise.expand(self.shape[:-1])[..., rows].unsqueeze(-1) * same
        if self.scale is not None:
            scale = self.scale.expand(self.shape[:-1])
            block = scale[..., rows].unsqueeze(-1) * block * scale[..., columns].unsqueeze(-2)
        return block

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        block = self._block(row_index, col_index)
        return to_linear_operator(block[batch_indices] if batch_indices else block)

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        raise UnsupportedError("single entries of a large joint covariance are not available; take slices")

    def matmul(self, other: Any) -> Any:
        """Multiply; with a tensor, gradients reach the kernel's parameters (the base class's would not)."""
        return self._matmul(other) if isinstance(other, Tensor) else super().matmul(other)

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        product = torch.cat([self._block(rows, slice(None)) @ columns for rows in self._slices()], dim=-2)
        return product.squeeze(-1) if rhs.dim() == 1 else product

    def to_dense(self) -> Tensor:
        """Return the covariance as a tensor, ``batch_shape x q x q``, if the caller insists. O(q² r)."""
        return self._block(slice(None), slice(None)).expand(self.shape)
