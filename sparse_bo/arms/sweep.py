"""One pass over arms in memory: posterior mean and leverage of all of them, in chunks within the memory budget.

The moments of a tile are computed in a chosen precision, with a bound on the error of a low one. Kernel columns
``k(x_i, arms)`` are kept between resparsifications, as successive dictionaries overlap: on Cadata (20,640 arms, inputs in
[0,1], T = 10⁴) 99 dictionaries of 25 points on average are drawn from 71 arms. Evaluating a column costs several passes over
the arms, reading it one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.arms.prior import ArmPrior
from sparse_bo.dictionary import Dictionary
from sparse_bo.gp import dtc
from sparse_bo.kernels import CovarianceFunction, FixedInputs, add_squares
from sparse_bo.linalg.chunking import chunk_rows, row_slices

PRECISIONS: dict[str, torch.dtype] = {"float64": torch.float64, "float32": torch.float32}
"""Of the one large matrix product of a sweep, by name, from the most to the least accurate."""
DEVICE_TILE_BYTES = 2**29
"""A tile and its product on a GPU: the host takes 0.1 to 0.7 ms to launch the work of a tile, so that tiles as small as the
processors' cache (2^25 bytes) take twice to five times as long (docs/decisions/116)."""


class ArmMoments(NamedTuple):
    """Posterior moments of ``n`` arms, float64."""

    means: Tensor
    """``n`` (y); exact up to float64 round-off in every precision."""
    variances: Tensor
    """``n`` (y²), at least 0; leverages where they are in units of λ."""
    errors: Tensor | None
    """``n`` bounds on the error of ``variances`` from a low precision; ``None`` where there is only round-off."""

    def over(self, noise: float) -> ArmMoments:
        """Return the moments with variances in units of the noise variance λ, in place."""
        return ArmMoments(self.means, self.variances.div_(noise), None if self.errors is None else self.errors.div_(noise))


class Evaluator(ABC):
    """Computes moments from kernel columns ``K_DX``, ``m x n`` between dictionary and points, and prior variances (``n``).

    Of many points part by part: :meth:`start` makes room for all, :meth:`write` writes the moments of a part into that part of
    the room, :meth:`finish` does the work that is cheaper for all at once.
    """

    one_product = True
    """Whether the one-product form is accurate enough for this posterior, and products in place of solves with it."""

    def __init__(self, form: dtc.OneProduct) -> None:
        self.form, self.step = form, form.step
        """Rows of the largest temporary beside the kernel block."""

    def __call__(self, K_DX: Tensor, prior_variance: Tensor) -> ArmMoments:
        """Return the moments of n points."""
        out = self.start(prior_variance)
        self.write(K_DX, prior_variance, out)
        self.finish(prior_variance, out)
        return out

    def start(self, prior_variance: Tensor) -> ArmMoments:
        """Return room for the moments of all points."""
        return ArmMoments(torch.empty_like(prior_variance), torch.empty_like(prior_variance), None)

    @abstractmethod
    def write(self, K_DX: Tensor, prior_variance: Tensor, out: ArmMoments) -> None:
        """Write the moments of a part."""

    def finish(self, prior_variance: Tensor, out: ArmMoments) -> None:  # noqa: B027  # most moments are complete
        """Complete the moments of all points in place. O(n)."""


def evaluator(state: dtc.DTC, form: dtc.OneProduct, *, precision: torch.dtype, kappa_squared: float, noise: float) -> Evaluator:
    """Return the evaluator of a posterior's moments: the one-product form in ``precision``, or the two-term form.

    The two-term form takes over where the one-product form loses more than 10⁻⁷ of a leverage, far below the leverages that a
    policy compares early, or more than 10⁻³ of the smallest one, that of an arm with c pulls, about 1/c: a twentieth of the
    effect of one more pull at c = 50. ``kappa_squared`` is sup k(x, x) over the arms, ``noise`` λ (y²).
    """
    error = dtc.one_product_error(state) * kappa_squared
    if error > 1e-7 * noise or error * state.best_precision > 1e-3:
        return _TwoTerms(state, form)
    return _OneProduct(form) if precision == torch.float64 else _LowPrecision(form)


class _OneProduct(Evaluator):
    """The one-product form, zeros of a triangular root left out; until the end ``variances`` hold ``‖Rᵀk‖²``."""

    def start(self, prior_variance: Tensor) -> ArmMoments:
        return ArmMoments(torch.empty_like(prior_variance), torch.zeros_like(prior_variance), None)

    def write(self, K_DX: Tensor, prior_variance: Tensor, out: ArmMoments) -> None:
        columns, step, n = self.form.columns, self.step, K_DX.shape[-1]
        m = len(columns)
        work = K_DX.new_empty((step + 1) * n)  # written again by every block, so that it stays in the cache
        for start in range(0, m, step):
            last = start + step >= m
            rows, stop = min(start + step, m), columns.shape[-1] if last else start + step
            product = work[: (stop - start) * n].view(stop - start, n)
            torch.mm(columns[:rows, start:stop].T, K_DX[:rows], out=product)
            if last:
                torch.add(product[-1], self.form.prior_mean, out=out.means)
                product = product[:-1]
            add_squares(product, out.variances)

    def finish(self, prior_variance: Tensor, out: ArmMoments) -> None:
        torch.sub(prior_variance, out.variances, out=out.variances).clamp_min_(0.0)


class _TwoTerms(Evaluator):
    """The two-term form in float64: twice the work, accurate for tiny λ."""

    one_product = False

    def __init__(self, state: dtc.DTC, form: dtc.OneProduct) -> None:
        super().__init__(form)
        self.state = state

    def write(self, K_DX: Tensor, prior_variance: Tensor, out: ArmMoments) -> None:
        features = self.state.factor.features(K_DX)
        out.means.copy_(dtc.mean(self.state, features))
        out.variances.copy_(dtc.variance(self.state, features, prior_variance))


class _LowPrecision(Evaluator):
    """The one-product form with its large product in float32, and a bound on the error.

    The mean is a matrix-vector product in float64, a share of 1/m of the work. For the variance let ``R_j`` be the columns of
    R and ``b_j = R_jᵀ k``. Rounding both factors (relative error ``u_in`` each) and summing m terms in float32
    (``u = 2⁻²⁴``, any order) leaves ``|δb_j| ≤ γ Σ_i |R_ij||k_i| ≤ γ ‖R_j‖ ‖k‖`` with ``γ = 2 u_in + u_in² + m' u`` (Higham
    2002, §3.1), so

        |δ Σ_j b_j²| ≤ 2 γ ‖k‖ Σ_j |b_j| ‖R_j‖ + γ² ‖k‖² ‖R‖_F² + (r + 2) u Σ_j b_j²

    with the *computed* b_j. The first sum is taken arm by arm: bounding it by ``‖b‖ ‖R‖_F`` loses two orders of magnitude on an
    ill-conditioned dictionary, as b_j is small where R_j is large. ``u_in`` is that of the process (:func:`float32_products`).
    """

    def __init__(self, form: dtc.OneProduct) -> None:
        super().__init__(form)
        self.root = form.root.T.float().contiguous()  # r x m
        self.norms = form.root.norm(dim=0).float() * (1.0 + 2.0**-20)
        self.frobenius = self.norms.double().square().sum()

    def start(self, prior_variance: Tensor) -> ArmMoments:
        return ArmMoments(*(torch.empty_like(prior_variance) for _ in range(3)))

    def write(self, K_DX: Tensor, prior_variance: Tensor, out: ArmMoments) -> None:
        assert out.errors is not None
        K = K_DX.float()
        lengths = K.square().sum(dim=0).double().sqrt_()
        squares, weighted, before = torch.zeros_like(lengths), torch.zeros_like(lengths), float32_products(K.device)
        for start in range(0, len(self.root), self.step):  # a triangular root has nothing below its diagonal
            stop = min(start + self.step, len(self.root))
            rows = stop if self.form.triangular else len(K)
            product = (self.root[start:stop, :rows] @ K[:rows]).abs_()
            weighted += self.norms[start:stop] @ product
            squares += product.square_().sum(dim=0)
        rounding = max(before, float32_products(K.device))  # another thread may have changed it in between
        r, m = self.root.shape
        factors, square_error = 2.0 * rounding.factors + rounding.factors**2, (r + 2) * rounding.sums
        gamma = 1.001 * (factors + (m + 2) * rounding.sums)
        norm = lengths.mul_((1.0 + square_error) * gamma)  # γ ‖k‖
        weighted *= (1.0 + 2.0 * square_error) * (1.0 + 3.0 * rounding.factors)
        torch.add(norm * (2.0 * weighted + norm * self.frobenius), square_error * squares, out=out.errors)
        out.means.copy_(self.form.mean(K_DX))
        torch.sub(prior_variance, squares, out=out.variances).clamp_min_(0.0)


class Rounding(NamedTuple):
    """Relative errors of a product of float32 matrices; the larger, the coarser."""

    factors: float
    """u_in, of each factor."""
    sums: float
    """u, of each addition."""


ROUNDINGS: Mapping[str, Rounding] = {
    "ieee": Rounding(2.0**-24, 2.0**-24),
    "tf32": Rounding(2.0**-10, 2.0**-23),  # cut to 10 bits after the point; the sums of tensor cores truncate
    "bf16": Rounding(2.0**-7, 2.0**-23),  # 7 bits
}
"""By what torch calls its settings. Cut, not rounded, to be safe."""


def float32_products(device: torch.device) -> Rounding:
    """Return how float32 matrices are multiplied on a device at the moment, by whichever way torch was set; unknown: coarsest.

    ``torch.get_float32_matmul_precision`` would raise after another of torch's ways to set it was used.
    """
    backend = torch.backends.mkldnn if device.type == "cpu" else torch.backends.cuda
    setting = str(getattr(getattr(backend, "matmul", None), "fp32_precision", "unknown"))
    return ROUNDINGS["ieee"] if setting in ("none", "ieee") else ROUNDINGS.get(setting, ROUNDINGS["bf16"])


class AppendedRows:
    """Rows that are only ever appended to; several values may share it, each sees the rows it knows.

    Until memory runs out: then the rows go, for all of them.
    """

    def __init__(self, rows: Tensor) -> None:
        """Begin with room for some rows (``r x a``), none of which is used yet."""
        self.rows, self.used, self.gone = rows, 0, False

    @classmethod
    def like(cls, X: Tensor, rows: int, *, most: int | None = None) -> AppendedRows:
        """Return no rows, with room for ``rows``, and as many again, of a number for each of ``a x d`` points.

        ``most``: rows there is memory for; ``None``: as many as that.
        """
        room = 2 * rows + 16
        return cls(X.new_empty(room if most is None else min(room, most), len(X)))

    def with_room(self, more: int, *, used: int, most: int | None = None) -> AppendedRows:
        """Return where a value that knows ``used`` rows appends ``more``: here if there is room and no other has. O(r a)."""
        if not more or (self.used == used and used + more <= len(self.rows)):
            return self
        grown = AppendedRows.like(self.rows.T, used + more, most=most)
        grown.rows[:used], grown.used = self.rows[:used], used
        return grown


@dataclass(frozen=True, eq=False)
class KernelColumns:
    """The columns evaluated so far, by arm index. A value: :meth:`grown` returns a new one."""

    memory_bytes: int
    slots: Mapping[int, int] = field(default_factory=dict)
    """Arm index -> row of the storage."""
    storage: AppendedRows | None = None

    def fits(self, points: int, arms: Tensor) -> bool:
        """Return whether ``points`` columns over ``arms`` (``a x d``) fit into the budget."""
        return points * arms.shape[0] * arms.element_size() <= self.memory_bytes

    def give_up(self) -> None:
        """Free the memory of the columns, and of all that share it: they are evaluated anew if needed."""
        if self.storage is not None:
            self.storage.rows, self.storage.gone = self.storage.rows[:0, :0].clone(), True

    def grown(self, fixed: FixedInputs, indices: Tensor, points: Tensor) -> KernelColumns:
        """Return the columns with those of ``indices`` added. O(a d) per missing one.

        If they would pass the budget together, columns outside ``indices`` are dropped.

        Args:
            fixed: The kernel and the ``a x d`` arms that the columns run over.
            indices: ``m`` arms whose columns are wanted.
            points: ``m x d``, their rows.
        """
        if self.storage is not None and self.storage.gone:
            return KernelColumns(self.memory_bytes).grown(fixed, indices, points)
        missing, arms, covariance = [i for i in indices.tolist() if i not in self.slots], fixed.X, fixed.covariance
        if not missing:
            return self
        kept = self
        if not self.fits(len(self.slots) + len(missing), arms):
            kept, missing = KernelColumns(self.memory_bytes), indices.tolist()
        most, used = self.memory_bytes // (arms.shape[0] * arms.element_size()), len(kept.slots)
        storage = kept.storage or AppendedRows.like(arms, len(missing), most=most)
        storage = storage.with_room(len(missing), used=used, most=most)
        start = storage.used
        stop = start + len(missing)
        points = points[torch.isin(indices, indices.new_tensor(missing))]
        # What GPyTorch holds while it evaluates a kernel must not outgrow the budget; smaller blocks only cost calls.
        share = max(self.memory_bytes // (3 * covariance.blocks), 2**20)
        for part in row_slices(arms.shape[0], chunk=max(share // (8 * len(missing)), 1)):
            fixed.cross(points, part, out=storage.rows[start:stop, part])
        storage.used += len(missing)
        slots = {**kept.slots, **{arm: start + k for k, arm in enumerate(missing)}}
        return KernelColumns(self.memory_bytes, slots, storage)

    def of(self, indices: Tensor) -> StoredColumns:
        """Return the columns of the arms ``indices`` (``m``), all of which must be there, where they are. O(m)."""
        assert self.storage is not None
        slots = torch.tensor([self.slots[i] for i in indices.tolist()], device=self.storage.rows.device)
        return StoredColumns(self.storage, slots)


@dataclass(frozen=True, eq=False)
class StoredColumns:
    """The kernel columns of one dictionary: rows of a storage that are never written again."""

    storage: AppendedRows
    slots: Tensor
    """``m`` rows of it."""

    @property
    def gone(self) -> bool:
        """Whether the storage was freed when memory ran out; the columns are then evaluated again."""
        return self.storage.gone

    def part(self, arms: slice, *, out: Tensor | None = None) -> Tensor:
        """Return ``k(D, arms)`` of contiguous arms, ``m x n``, in ``out`` unless that is ``None``. O(m n)."""
        return torch.index_select(self.storage.rows[:, arms], 0, self.slots, out=out)

    def some(self, arms: Tensor) -> Tensor:
        """Return ``k(D, arms)`` of a few arms (``q``), ``m x q``. O(m q)."""
        rows = self.storage.rows
        where = (self.slots * rows.shape[1]).unsqueeze(-1) + arms
        return rows.view(-1).index_select(0, where.view(-1)).view(where.shape)  # indexing by rows and columns takes twice


def block_count(covariance: CovarianceFunction) -> int:
    """Return how many blocks of the size of a kernel block a sweep holds at its peak: evaluating one, or computing with it."""
    return max(covariance.blocks, 3)  # in the two-term form the block, the features and their solutions


def sweep_rows(prior: ArmPrior, *, m: int, step: int) -> int:
    """Return how many arms to evaluate at a time: as many as the budget allows, no more than the processor's cache holds.

    ``m`` is the size of the dictionary, ``step`` the rows of the product that is made of one chunk.

    Raises:
        MemoryError: If not even one arm fits into the budget.
    """
    per_row = block_count(prior.covariance) * 8 * m
    rows = chunk_rows(prior.arms.shape[0], bytes_per_row=per_row, memory_bytes=prior.memory_bytes)
    if prior.arms.device.type == "cpu":
        # On a CPU, a chunk's product stays in the processor's cache until it is squared and summed.
        return min(rows, max(2**20 // (8 * step), 1024))
    return min(rows, max(DEVICE_TILE_BYTES // (8 * (m + step)), 1024))


def kernel_chunks(
    prior: ArmPrior, dictionary: Dictionary, stored: StoredColumns | None, *, step: int
) -> Iterator[tuple[slice, Tensor]]:
    """Yield ``(rows, k(D, arms[rows]))``, ``m x rows`` blocks that together cover all arms within the budget.

    Each block is written over the one before: nothing of size ``m x a`` is made. ``step`` as in :func:`sweep_rows`.
    """
    m, rows = dictionary.m, sweep_rows(prior, m=dictionary.m, step=step)
    tile = dictionary.points.new_empty(m * rows)
    for part in row_slices(prior.arms.shape[0], chunk=rows):
        width = part.stop - part.start
        block = tile[: m * width].view(m, width)
        if stored is not None:
            yield part, stored.part(part, out=block)
        else:
            yield part, prior.fixed.cross(dictionary.points, part, out=block)


def sweep(prior: ArmPrior, dictionary: Dictionary, stored: StoredColumns | None, evaluate: Evaluator) -> ArmMoments:
    """Evaluate the posterior at all arms in memory, in units of λ. O(a m (d + r)).

    Args:
        prior: The prior over the arms.
        dictionary: The m points of the dictionary.
        stored: The dictionary's kernel columns, if they are known.
        evaluate: Gives posterior moments from kernel columns.
    """
    found = evaluate.start(prior.variances)
    for part, K_DX in kernel_chunks(prior, dictionary, stored, step=evaluate.step):
        errors = None if found.errors is None else found.errors[part]
        evaluate.write(K_DX, prior.variances[part], ArmMoments(found.means[part], found.variances[part], errors))
    evaluate.finish(prior.variances, found)
    return found.over(prior.regularization)
