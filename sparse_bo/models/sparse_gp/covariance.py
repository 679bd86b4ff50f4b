"""The joint posterior covariance of many points, computed only when asked for.

``C(x, x')`` costs O(m r) for a pair of points (:mod:`sparse_bo.models.sparse_gp.gaussian_process`); its Cholesky factor
costs O(q³). Up to ``JointSettings.dense`` rows the root is that factor. Beyond, it is a
:class:`~sparse_bo.models.sparse_gp.joint_root.JointRoot`, exact on variances, at pivots and inside blocks.

Rows after a *base* (a baseline that all elements of a batch share) are exact among themselves and with the base's pivots; with
other rows of the base they correlate as the pivots explain. A base of at most ``JointSettings.dense`` rows has only pivots, so
everything is exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from linear_operator.operators import DenseLinearOperator, DiagLinearOperator, LinearOperator, to_linear_operator
from torch import Tensor

from sparse_bo.errors import MemoryWarning
from sparse_bo.linalg.chunking import broadcast_shapes, row_slices
from sparse_bo.models.sparse_gp.gaussian_process import AnyProcess, Base, between, shared_product
from sparse_bo.models.sparse_gp.joint_root import JointRoot, RootedCovariance, View, solved_rows
from sparse_bo.models.sparse_gp.pivots import Columns, joint_root, partition

ALL = slice(None)


class JointCovariance(RootedCovariance):
    """``S (C(X, X) + N) S`` of a posterior covariance ``C``, diagonal noise ``N`` and diagonal scale ``S``, without the matrix.

    Its diagonal costs O(q m r) and O(chunk · m) memory.

    Args:
        X: ``batch_shape x q x d`` points, transformed; the first are those of ``base``.
        process: The posterior.
        mean: ``… x q`` posterior means of the process, without outcome transform.
        base: Leading rows that were computed before.
        noise: ``… x q`` variances added to the diagonal.
        scale: ``… x q`` factors of the values.
        view: A change of batch dimensions, applied last.
        graph: Whether gradients go through the root; BoTorch takes roots of tensors without gradients.
        keep: Called with the base that a root of all rows makes of them.
    """

    def __init__(
        self,
        X: Tensor,
        *,
        process: AnyProcess,
        mean: Tensor,
        base: Base | None = None,
        noise: Tensor | None = None,
        scale: Tensor | None = None,
        view: View | None = None,
        graph: bool = True,
        keep: Callable[[Base], None] | None = None,
    ) -> None:
        options = {"process": process, "mean": mean, "base": base, "noise": noise, "scale": scale}
        super().__init__(X, **options, view=view, graph=graph, keep=keep)
        self.X, self.process, self.mean, self.settings, self.base = X, process, mean, process.settings, base
        self.noise, self.scale, self.view, self.graph, self.keep = noise, scale, view, graph, keep
        self._root: JointRoot | None = None

    @property
    def is_lazy(self) -> bool:  # type: ignore[override]  # of one number of rows
        """Whether there are too many rows for a dense matrix."""
        return bool(self.shape[-1] > self.settings.dense)

    def detach(self) -> JointCovariance:
        """Return the covariance outside the graph of the points and of the kernel's parameters."""
        return super().detach()._with(process=self.process.detached())

    def __deepcopy__(self, memo: dict[int, Any]) -> JointCovariance:
        """Return the covariance outside the graph, whose nodes have no copies."""
        return self.detach()

    def _with(self, **changes: Any) -> JointCovariance:
        return JointCovariance(self.X, **{**self._kwargs, **changes})

    def _viewed(self, view: View) -> JointCovariance:
        before = self.view
        return self._with(view=view if before is None else lambda tensor, trailing: view(before(tensor, trailing), trailing))

    def scaled(self, factors: Tensor) -> JointCovariance:
        """Return the covariance of the values times ``factors`` (``… x q``); before any change of batch dimensions."""
        return self._with(scale=factors if self.scale is None else self.scale * factors)

    def __add__(self, other: Any) -> LinearOperator:
        """Add observation noise; everything else as any operator."""
        if not isinstance(other, DiagLinearOperator) or self.view is not None:
            return super().__add__(other)
        variances = other.diagonal(dim1=-2, dim2=-1)
        if self.scale is not None:
            if bool((self.scale == 0.0).any()):  # no noise in units of 0
                return super().__add__(other)
            variances = variances / self.scale.square()
        return self._with(noise=variances if self.noise is None else self.noise + variances)

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        """Add variances: one, or one for each row."""
        return self + DiagLinearOperator(diag.expand(self.shape[:-1]))

    def _mul_constant(self, other: Tensor) -> LinearOperator:
        if self.view is not None or bool((other < 0).any()):
            return super()._mul_constant(other)
        return self.scaled(other.sqrt().unsqueeze(-1).expand(self.shape[:-1]))

    def _unsqueeze_batch(self, dim: int) -> LinearOperator:
        return self._viewed(lambda tensor, _: tensor.unsqueeze(dim))

    def _expand_batch(self, batch_shape: Any) -> LinearOperator:
        return self._viewed(lambda tensor, trailing: tensor.expand(*batch_shape, *tensor.shape[tensor.dim() - trailing :]))

    def _permute_batch(self, *dims: int) -> LinearOperator:
        return self._viewed(lambda tensor, trailing: tensor.permute(*dims, *range(len(dims), len(dims) + trailing)))

    def _transpose_nonbatch(self) -> JointCovariance:
        return self

    def _inner_batch(self) -> torch.Size:
        """Return the batch shape before views are taken."""
        shapes = [self.X.shape[:-2], self.process.batch_shape]
        shapes += [extra.shape[:-1] for extra in (self.noise, self.scale) if extra is not None]
        return broadcast_shapes(*shapes)

    def _size(self) -> torch.Size:
        batch, q = self._inner_batch(), self.X.shape[-2]
        if self.view is not None:
            batch = self.view(torch.empty(*batch, 0, device="meta"), 1).shape[:-1]
        return batch + torch.Size([q, q])

    def _finished(self, tensor: Tensor, trailing: int) -> Tensor:
        """Expand a quantity to the batch shape, and apply the view."""
        tensor = tensor.expand(*self._inner_batch(), *tensor.shape[tensor.dim() - trailing :])
        return tensor if self.view is None else self.view(tensor, trailing)

    def _diagonal(self) -> Tensor:
        variances = self.process.variance(self.X)
        variances = variances if self.noise is None else variances + self.noise
        variances = variances if self.scale is None else variances * self.scale.square()
        return self._finished(variances, 1)

    def _block(self, rows: Any, others: Any) -> Tensor:
        """Return the covariance between two index sets, finished."""
        left = self._columns(rows)
        same = rows is others or (isinstance(rows, slice) and rows == others)
        return self._finished(self._between(rows, others, left, left if same else self._columns(others)), 2)

    def _columns(self, rows: Any) -> Columns:
        return self.process.columns(self.X[..., rows, :])

    def _between(self, rows: Any, others: Any, left: Columns, right: Columns) -> Tensor:
        """Return the covariance between two index sets from their columns, with noise and scale."""
        return self._dressed(between(self.process, self.X[..., rows, :], self.X[..., others, :], left, right), rows, others)

    def _dressed(self, block: Tensor, rows: Any, others: Any) -> Tensor:
        """Add noise and scale."""
        if self.noise is not None:
            every = torch.arange(self.X.shape[-2], device=self.X.device)
            same = every[rows].unsqueeze(-1) == every[others]
            block = block + self.noise[..., rows].unsqueeze(-1) * same
        if self.scale is not None:
            block = self.scale[..., rows].unsqueeze(-1) * block * self.scale[..., others].unsqueeze(-2)
        return block

    def _getitem(self, row_index: Any, col_index: Any, *batch_indices: Any) -> LinearOperator:
        chosen = self
        if any(not (isinstance(index, slice) and index == ALL) for index in batch_indices):
            chosen = self._viewed(lambda tensor, _: tensor[batch_indices])
        if all(isinstance(index, slice) and index == ALL for index in (row_index, col_index)):
            return chosen
        base, slices = self._own_base, isinstance(row_index, slice) and isinstance(col_index, slice)
        if base is not None and slices and col_index == ALL:
            start, stop, step = row_index.indices(self.X.shape[-2])
            if start >= base.rows and step == 1:
                rows = slice(start, stop)
                return to_linear_operator(chosen._finished(chosen._dressed(chosen._tail(base, rows), rows, ALL), 2))
        return to_linear_operator(chosen._block(row_index, col_index))

    def _get_indices(self, row_index: Tensor, col_index: Tensor, *batch_indices: Tensor) -> Tensor:
        return self.dense()._get_indices(row_index, col_index, *batch_indices)

    @property
    def _own_base(self) -> Base | None:
        """The base, unless its columns and root are those of a sum."""
        return None if self.base is None or self.base.factor is not None else self.base

    def _tail(self, base: Base, rows: slice) -> Tensor:
        """Return all entries of some of the t rows after the base, in the base's units. O(t m r + t p (r + q))."""
        some = slice(rows.start - base.rows, rows.stop - base.rows)
        own, cross = (block[..., some, :] for block in self.process.after(self.X[..., base.rows :, :], base))
        cross = cross.expand(*own.shape[:-2], *cross.shape[-2:])
        if base.root is None:
            return torch.cat([cross, own], dim=-1)
        coefficients = solved_rows(base.root.pivots, cross)
        others = [shared_product(coefficients, known.mT) for known, _ in base.root.groups]
        return torch.cat([torch.cat([cross, *others], dim=-1)[..., base.root.order.argsort()], own], dim=-1)

    def lower(self) -> JointRoot:
        """Return the root of many rows; cached."""
        if self._root is None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.graph):
                self._root = self._made_root()
        return self._root

    def _made_root(self) -> JointRoot:
        base, noise = self._own_base, self.noise
        if base is not None and base.root is not None and noise is None:
            root = self._appended(base, base.root)
        else:
            with torch.no_grad():
                mean = self.mean.unsqueeze(-2) if self.mean.dim() == 1 else self.mean
                chosen = partition(self.X, mean, prior=self.process.prior, settings=self.settings)
            plain = self._with(view=None, scale=None)  # they come after
            root, columns = joint_root(chosen, plain._columns, plain._between, chunk=self.settings.chunk)
            if self.keep is not None and noise is None and self.X[..., 0, 0].numel() == 1 and not root.pivots.requires_grad:
                self.keep(Base(self.X.detach().reshape(self.X.shape[-2:]), self.mean.detach(), columns, root))
        scale = None if self.scale is None else self._finished(self.scale, 1)
        if root.batch_shape != self._inner_batch() or self.view is not None:
            root = root.map(self._finished)
        return root.scaled(scale)

    def _appended(self, base: Base, root: JointRoot) -> JointRoot:
        """Return the base's root with the rows after it."""
        s = base.rows
        if self.X.shape[-2] == s:
            return root
        entries = self._tail(base, slice(s, self.X.shape[-2]))
        coefficients = solved_rows(root.pivots, entries[..., base.pivots])
        return root.appended(coefficients, root.root_of_rest(entries[..., s:] - coefficients @ coefficients.mT))

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        """Return joint samples less their mean, ``num_samples x batch_shape x q``, from torch's CPU generator."""
        root = self.root_decomposition().root
        shape = (*self.shape[:-1], num_samples)
        normal = torch.randn(shape, dtype=self.dtype, device="cpu")  # one seed gives the same samples on every device
        return root.matmul(normal.to(self.device)).movedim(-1, 0)

    def matmul(self, other: Any) -> Any:
        """Multiply; with a tensor, gradients reach the kernel's parameters (the base class's would not)."""
        return self._matmul(other) if isinstance(other, Tensor) else super().matmul(other)

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs.unsqueeze(-1) if rhs.dim() == 1 else rhs
        slices = row_slices(self.X.shape[-2], chunk=4 * self.settings.chunk)
        product = torch.cat([self._block(rows, ALL) @ columns for rows in slices], dim=-2)
        return product.squeeze(-1) if rhs.dim() == 1 else product

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy or a pickle of a covariance with other batch dimensions is the dense matrix."""
        return super().__reduce__() if self.view is None else (DenseLinearOperator, (self.to_dense().detach(),))

    def _mul_matrix(self, other: Any) -> LinearOperator:
        return self.dense()._mul_matrix(other)

    def diagonalization(self, method: str | None = None) -> tuple[Tensor, LinearOperator | None]:
        """Return eigenvalues and eigenvectors; of the dense matrix, unless it is refused: each product would make it again."""
        if self.shape[-1] > self.settings.largest_dense:
            return super().diagonalization(method)
        return self.dense().diagonalization(method)

    def type(self, dtype: torch.dtype) -> LinearOperator:
        """Return the dense matrix in another precision; itself in its own."""
        return self if dtype == self.dtype else self.dense().type(dtype)

    def to(self, *args: Any, **kwargs: Any) -> LinearOperator:
        """Return the dense matrix on another device or in another precision; itself on its own."""
        like = self.X.to(*args, **kwargs)
        return self if (like.dtype, like.device) == (self.dtype, self.device) else self.dense().to(*args, **kwargs)

    def to_dense(self) -> Tensor:
        """Return the covariance as a tensor, ``batch_shape x q x q``. O(q² r).

        ``MemoryWarning`` for more than ``JointSettings.dense`` rows, ``UnsupportedError`` for more than ``largest_dense``.
        """
        q = self.shape[-1]
        if q > self.settings.largest_dense:
            raise UnsupportedError(
                f"expected at most {self.settings.largest_dense} points for a dense joint covariance, got {q}; mean, variance "
                "and samples need none: use fewer points, X.unsqueeze(-2) for marginals, or in a list of models "
                "SparseModelListGP in place of ModelListGP"
            )
        if self.is_lazy:
            warnings.warn(
                f"the joint covariance of {q} points is made dense, {self.shape.numel() * self.X.element_size():,} bytes; "
                "mean, variance and samples need none: in a list of models use SparseModelListGP in place of ModelListGP",
                MemoryWarning,
                stacklevel=2,
            )
        return self._block(ALL, ALL)
