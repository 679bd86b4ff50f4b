"""The structure of known GPyTorch kernels: Gaussian, Matérn and Tanimoto kernels and their sums, products and scales.

Only exact classes are recognised, without hooks, overridden methods or batch shape. A subclass may compute anything, so it
stays GPyTorch's. With ``r = ‖(x − y)/lengthscale‖`` a profile is a function of ``q = coefficient · r²``, chosen so that few
operations are left, and computed in the memory that holds the distance:

    gaussian  q = −r²/2   exp(q)
    matern12  q = r²      exp(−s)                  s = √q
    matern32  q = 3 r²    (1 + s) exp(−s)
    matern52  q = 5 r²    (1 + s + q/3) exp(−s)

(Rasmussen & Williams 2006, Eq. 4.9 and 4.16-4.17).
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.kernels.tanimoto import TanimotoKernel

Profile = Literal["gaussian", "matern12", "matern32", "matern52"]
"""A stationary kernel as a function of the distance."""

_MATERN: dict[float, Profile] = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Leaf:
    """``variance · correlation(x, y)`` over some input columns. Numbers are read from its tensors on first use."""

    outputscale: Tensor | None = None
    """k(x, x) (y²), a scalar; ``None`` for 1."""
    columns: Tensor | None = None
    """Input columns that it sees, in order; ``None`` for all."""

    @cached_property
    def dtypes(self) -> frozenset[torch.dtype]:
        """Precision of its parameters; empty without any."""
        return frozenset() if self.outputscale is None else frozenset((self.outputscale.dtype,))

    @cached_property
    def variance(self) -> float:
        """k(x, x) (y²)."""
        return 1.0 if self.outputscale is None else float(self.outputscale.detach())

    def of(self, X: Tensor) -> Tensor:
        """Return the columns of ``X`` (``n x d``) that this kernel sees."""
        return X if self.columns is None else X.index_select(-1, self.columns)

    @property
    def leaves(self) -> list[Self]:
        """The kernel itself."""
        return [self]

    def scaled(self, variance: Tensor) -> Self:
        """Return the kernel times a variance."""
        return replace(self, outputscale=variance if self.outputscale is None else self.outputscale * variance)


class Tanimoto(Leaf):
    """``variance`` times the similarity of :class:`sparse_bo.kernels.TanimotoKernel`."""


@dataclass(frozen=True, eq=False)
class Stationary(Leaf):
    """``variance · profile(‖(x − y)/lengthscale‖)``."""

    profile: Profile
    inverse_lengthscale: Tensor
    """``1`` or one for each column (1/x)."""

    @cached_property
    def dtypes(self) -> frozenset[torch.dtype]:
        """See :class:`Leaf`."""
        return frozenset((self.inverse_lengthscale.dtype,))

    @cached_property
    def weights(self) -> Tensor:
        """``1`` or one per column: factors of squared differences (1/x²)."""
        return self.inverse_lengthscale.detach().square()

    @cached_property
    def isotropic_weight(self) -> float | None:
        """The factor of every squared difference (1/x²); ``None`` where columns differ."""
        return float(self.weights) if len(self.weights) == 1 else None

    @cached_property
    def parameters(self) -> Tensor:
        """Variance, then factors of the inputs (``1`` or one per column), for a GPU."""
        inverse = self.inverse_lengthscale.detach()
        return torch.cat([inverse.new_full((1,), self.variance), inverse])


@dataclass(frozen=True, eq=False)
class Combination:
    """The sum or the product of its parts."""

    adds: bool
    parts: tuple[Structure, ...]

    @property
    def variance(self) -> float:
        """k(x, x) (y²)."""
        return (sum if self.adds else math.prod)(part.variance for part in self.parts)

    @cached_property
    def dtypes(self) -> frozenset[torch.dtype]:
        """See :class:`Leaf`."""
        return frozenset().union(*(part.dtypes for part in self.parts))

    @property
    def leaves(self) -> list[Stationary | Tanimoto]:
        """The kernels that it is made of."""
        return [leaf for part in self.parts for leaf in part.leaves]

    def scaled(self, variance: Tensor) -> Combination:
        """Return the kernel times a variance: each part of a sum, the first of a product."""
        first, *others = self.parts
        return replace(self, parts=(first.scaled(variance), *(part.scaled(variance) if self.adds else part for part in others)))


Structure = Stationary | Tanimoto | Combination


def computed_in(structure: Structure, X: Tensor, Y: Tensor) -> torch.dtype | None:
    """Return the precision of a known kernel's values at some inputs; ``None`` where GPyTorch evaluates them.

    All of one precision, or bits and integers, which a Tanimoto kernel compares in float64.
    """
    dtype = X.dtype
    if dtype != Y.dtype:
        return None
    if not dtype.is_floating_point:
        if not all(isinstance(leaf, Tanimoto) for leaf in structure.leaves):
            return None
        dtype = torch.float64
    return dtype if dtype in (torch.float64, torch.float32) and structure.dtypes <= {dtype} else None


def structure_of(kernel: Kernel) -> Structure | None:
    """Return the structure of a kernel with its own parameter tensors, gradients included; ``None`` if it is unknown.

    ``ScaleKernel`` becomes the variance of its base kernel. Reads no values.
    """
    return _structure(kernel, None) if _plain(kernel) else None


def _structure(kernel: Kernel, outer: Tensor | None) -> Structure | None:
    """Recognise a kernel that GPyTorch *calls*: its active dimensions select from those of the enclosing kernel."""
    columns = outer
    if kernel.active_dims is not None:
        columns = kernel.active_dims if outer is None else outer[kernel.active_dims]
    variance = None
    while type(kernel) is ScaleKernel:
        base = kernel.base_kernel
        # Its forward() does not call the base kernel but its forward(): active dimensions there choose nothing.
        same = base.active_dims is None or (
            kernel.active_dims is not None and torch.equal(base.active_dims, kernel.active_dims)
        )
        if not _plain(base) or not same:
            return None
        variance = kernel.outputscale if variance is None else variance * kernel.outputscale
        kernel = base
    if type(kernel) in (AdditiveKernel, ProductKernel):
        found = [_structure(part, columns) for part in kernel.kernels if _plain(part)]
        parts = tuple(part for part in found if part is not None)
        if len(parts) < len(kernel.kernels) or not parts:
            return None
        known: Structure = parts[0] if len(parts) == 1 else Combination(type(kernel) is AdditiveKernel, parts)
        return known if variance is None else known.scaled(variance)
    if type(kernel) is TanimotoKernel:
        return Tanimoto(outputscale=variance, columns=columns)
    profile = "gaussian" if type(kernel) is RBFKernel else _MATERN.get(kernel.nu) if type(kernel) is MaternKernel else None
    if profile is None:
        return None
    return Stationary(profile, kernel.lengthscale.flatten().reciprocal(), outputscale=variance, columns=columns)


def _plain(kernel: Kernel) -> bool:
    return not len(kernel.batch_shape) and untouched(kernel)


def untouched(kernel: Kernel) -> bool:
    """Return whether a kernel has no instance attributes or hooks that change its class's behaviour."""
    hooks = kernel._forward_hooks or kernel._forward_pre_hooks
    return not hooks and not {"forward", "covar_dist", "__call__"} & vars(kernel).keys()


def part_outside(kernel: Kernel, known: Collection[type]) -> Kernel:
    """Return the first part of a kernel whose class is none of the known ones; the kernel itself if there is none."""
    return next((part for part in kernel.modules() if isinstance(part, Kernel) and type(part) not in known), kernel)


COEFFICIENTS: dict[Profile, float] = {"gaussian": -0.5, "matern12": 1.0, "matern32": 3.0, "matern52": 5.0}
"""``q / r²``."""
LEAST_DISTANCE = 1e-15
"""Below it GPyTorch takes a distance for constant."""
IN_PLACE: frozenset[Profile] = frozenset(("gaussian", "matern12"))
"""Profiles that need no second matrix, ``spare``."""


def apply_profile(profile: Profile, q: Tensor, spare: Tensor, out: Tensor) -> None:
    """Write the profile of ``q`` (``n x n'``, overwritten as is ``spare``) into ``out``. One to five passes, no memory."""
    if profile == "gaussian":
        torch.exp(q, out=out)
        return
    if profile == "matern12":
        torch.exp(q.sqrt_().neg_(), out=out)
        return
    torch.sqrt(q, out=spare)
    if profile == "matern32":
        torch.neg(spare, out=q)
        exponential, rest = q, spare
    else:
        torch.add(spare, q, alpha=1.0 / 3.0, out=q)
        exponential, rest = spare.neg_(), q
    exponential.exp_()
    torch.addcmul(exponential, exponential, rest, out=out)


def write_slope(profile: Profile, squares: Tensor) -> Tensor:
    """Return ``−2 dk/ds`` of squared distances s ≥ 0 (any shape), in their memory; at 0, where Matérn-1/2 has none, 0."""
    if profile == "gaussian":
        return squares.mul_(-0.5).exp_()
    distance = squares.mul_(COEFFICIENTS[profile]).sqrt_()
    decay = torch.exp(-distance)
    if profile == "matern12":
        return decay.div_(distance).masked_fill_(distance <= LEAST_DISTANCE, 0.0)
    return decay.mul_(3.0) if profile == "matern32" else decay.mul_(distance.add_(1.0)).mul_(5.0 / 3.0)


def reach(profile: Profile, error: float, tolerance: float) -> float:
    """Return the ``r²`` beyond which an ``error`` of ``r²`` changes a profile of variance 1 by at most ``tolerance``.

    By the largest slope beyond a distance: of the Gaussian ``exp(−r²/2)/2``; of Matérn-1/2 ``exp(−r)/(2r)``, which has no
    bound at 0; of Matérn-3/2 ``(3/2) exp(−s)``; of Matérn-5/2 ``(5/6)(1 + s) exp(−s) ≤ (5/6)·1.22 exp(−s/2)``.
    """
    if profile == "matern12":
        return (error / (2.0 * tolerance)) ** 2
    slope, rate = {"gaussian": (0.5, 1.0), "matern32": (1.5, 1.0), "matern52": (1.02, 0.5)}[profile]
    excess = math.log(max(slope * error / tolerance, 1.0)) / rate
    return 2.0 * excess if profile == "gaussian" else excess**2 / COEFFICIENTS[profile]
