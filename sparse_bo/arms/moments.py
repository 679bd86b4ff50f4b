"""Posterior moments of a tile of arms in a chosen precision, with a bound on the error of a low one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.kernels import add_squares

PRECISIONS: dict[str, torch.dtype] = {"float64": torch.float64, "float32": torch.float32}
"""Of the one large matrix product of a sweep, by name, from the most to the least accurate."""


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
