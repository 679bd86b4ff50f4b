"""The structure of known GPyTorch kernels: Gaussian and Matérn kernels and their sums, products and scales.

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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, RBFKernel, ScaleKernel
from torch import Tensor

Profile = Literal["gaussian", "matern12", "matern32", "matern52"]
"""A stationary kernel as a function of the distance."""

_MATERN: dict[float, Profile] = {0.5: "matern12", 1.5: "matern32", 2.5: "matern52"}


@dataclass(frozen=True, eq=False)
class Stationary:
    """``variance · profile(‖(x − y)/lengthscale‖)`` over some input columns."""

    profile: Profile
    variance: float
    """k(x, x) (y²)."""
    inverse_lengthscale: Tensor
    """``1`` or one for each column (1/x)."""
    columns: Tensor | None
    """Input columns that it sees, in order; ``None`` for all."""
    isotropic_weight: float | None
    """Factor of every squared difference (1/x²), read once; ``None`` where columns differ."""

    @cached_property
    def weights(self) -> Tensor:
        """``1`` or one per column: factors of squared differences (1/x²)."""
        return self.inverse_lengthscale.square()

    @cached_property
    def parameters(self) -> Tensor:
        """Variance, then factors of the inputs (``1`` or one per column), for a GPU."""
        return torch.cat([self.inverse_lengthscale.new_full((1,), self.variance), self.inverse_lengthscale])

    def of(self, X: Tensor) -> Tensor:
        """Return the columns of ``X`` (``n x d``) that this kernel sees."""
        return X if self.columns is None else X.index_select(-1, self.columns)


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of its parts."""

    parts: tuple[Structure, ...]


@dataclass(frozen=True, eq=False)
class Product:
    """The product of its parts."""

    parts: tuple[Structure, ...]


Structure = Stationary | Sum | Product


def structure_of(kernel: Kernel) -> Structure | None:
    """Return the structure of a kernel with its present hyper-parameters; ``None`` if it is unknown.

    ``ScaleKernel`` becomes the variance of what it scales.
    """
    with torch.no_grad():
        live = live_structure_of(kernel)
        return None if live is None else _read(live)


def _read(live: LiveStructure) -> Structure:
    """Return the same with its numbers read."""
    if isinstance(live, LiveCombination):
        return (Sum if live.adds else Product)(tuple(map(_read, live.parts)))
    inverse = live.inverse_lengthscale
    variance = 1.0 if live.variance is None else float(live.variance)
    return Stationary(live.profile, variance, inverse, live.columns, float(inverse.square()) if len(inverse) == 1 else None)


def value_at_zero(structure: Structure) -> float:
    """Return ``k(x, x)`` (y²), the same for every x."""
    if isinstance(structure, Stationary):
        return structure.variance
    values = [value_at_zero(part) for part in structure.parts]
    return sum(values) if isinstance(structure, Sum) else math.prod(values)


@dataclass(frozen=True, eq=False)
class LiveStationary:
    """A stationary kernel with the hyper-parameters of the kernel that it is, gradients included."""

    profile: Profile
    inverse_lengthscale: Tensor
    """``1`` or one for each column (1/x)."""
    variance: Tensor | None
    """Scalar (y²); ``None`` for 1."""
    columns: Tensor | None
    """Input columns that it sees, in order; ``None`` for all."""


@dataclass(frozen=True, eq=False)
class LiveCombination:
    """A sum or a product of such kernels."""

    adds: bool
    parts: tuple[LiveStructure, ...]


LiveStructure = LiveStationary | LiveCombination


def live_structure_of(kernel: Kernel) -> LiveStructure | None:
    """Return the structure of a kernel with its own parameter tensors; ``None`` if it is unknown. Reads no values."""
    return _live(kernel, None) if _plain(kernel) else None


def _live(kernel: Kernel, outer: Tensor | None) -> LiveStructure | None:
    """Recognise a kernel that GPyTorch *calls*: its active dimensions select from those of the enclosing kernel."""
    columns = outer
    if kernel.active_dims is not None:
        columns = kernel.active_dims if outer is None else outer[kernel.active_dims]
    variance = None
    while type(kernel) is ScaleKernel:
        base = kernel.base_kernel
        # Its forward() does not call the base kernel but its forward(): active dimensions there choose nothing.
        if not _plain(base) or not _same(base.active_dims, kernel.active_dims):
            return None
        variance = kernel.outputscale if variance is None else variance * kernel.outputscale
        kernel = base
    if type(kernel) in (AdditiveKernel, ProductKernel):
        found = [_live(part, columns) for part in kernel.kernels if _plain(part)]
        known = tuple(part for part in found if part is not None)
        if len(known) < len(kernel.kernels) or not known:
            return None
        adds = type(kernel) is AdditiveKernel
        if variance is not None:
            known = _scaled(known, variance, adds=adds)
        return known[0] if len(known) == 1 else LiveCombination(adds, known)
    profile = "gaussian" if type(kernel) is RBFKernel else _MATERN.get(kernel.nu) if type(kernel) is MaternKernel else None
    if profile is None:
        return None
    return LiveStationary(profile, kernel.lengthscale.flatten().reciprocal(), variance, columns)


def _scaled(parts: tuple[LiveStructure, ...], variance: Tensor, *, adds: bool) -> tuple[LiveStructure, ...]:
    """Return the parts of a sum or a product that is multiplied by a variance."""
    first, *others = parts
    scaled = _times(first, variance)
    return (scaled, *(_times(part, variance) if adds else part for part in others))


def _times(part: LiveStructure, variance: Tensor) -> LiveStructure:
    if isinstance(part, LiveStationary):
        return replace(part, variance=variance if part.variance is None else part.variance * variance)
    return replace(part, parts=_scaled(part.parts, variance, adds=part.adds))


def leaves(structure: Structure) -> list[Stationary]:
    """Return the stationary kernels that it is made of."""
    return [structure] if isinstance(structure, Stationary) else [leaf for part in structure.parts for leaf in leaves(part)]


def dtype_of(structure: Structure) -> torch.dtype:
    """Return the precision that the kernel was set in."""
    return structure.inverse_lengthscale.dtype if isinstance(structure, Stationary) else dtype_of(structure.parts[0])


def _plain(kernel: Kernel) -> bool:
    return not len(kernel.batch_shape) and untouched(kernel)


def untouched(kernel: Kernel) -> bool:
    """Return whether a kernel has no instance attributes or hooks that change its class's behaviour."""
    hooks = kernel._forward_hooks or kernel._forward_pre_hooks
    return not hooks and not {"forward", "covar_dist", "__call__"} & vars(kernel).keys()


def _same(inner: Tensor | None, outer: Tensor | None) -> bool:
    """Return whether a base kernel has no active dimensions, or those of its ``ScaleKernel``."""
    return inner is None or (outer is not None and torch.equal(inner, outer))


COEFFICIENTS: dict[Profile, float] = {"gaussian": -0.5, "matern12": 1.0, "matern32": 3.0, "matern52": 5.0}
"""``q / r²``."""


IN_PLACE: frozenset[Profile] = frozenset(("gaussian", "matern12"))
"""Profiles that need no second matrix."""


def apply_profile(profile: Profile, q: Tensor, spare: Tensor, out: Tensor) -> None:
    """Write the profile of ``q`` into ``out``. One to five passes, no memory.

    Args:
        profile: Which.
        q: ``n x n'`` scaled squared distances (see above), of a Matérn kernel ≥ 0; overwritten.
        spare: As large; overwritten, but for a profile of :data:`IN_PLACE`.
        out: As large; may be a part of a larger matrix.
    """
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
    """Return ``−2 dk/ds`` of squared distances s ≥ 0, in their memory; at 0, where Matérn-1/2 has none, 0.

    Args:
        profile: Which.
        squares: Squared distances of scaled inputs, any shape; overwritten.
    """
    if profile == "gaussian":
        return squares.mul_(-0.5).exp_()
    distance = squares.mul_(COEFFICIENTS[profile]).sqrt_()
    decay = torch.exp(-distance)
    if profile == "matern12":
        return decay.div_(distance).masked_fill_(distance <= LEAST_DISTANCE, 0.0)
    return decay.mul_(3.0) if profile == "matern32" else decay.mul_(distance.add_(1.0)).mul_(5.0 / 3.0)


LEAST_DISTANCE = 1e-15
"""Below it GPyTorch takes a distance for constant."""


def reach(profile: Profile, error: float, tolerance: float) -> float:
    """Return the ``r²`` from which on an error of ``r²`` changes the profile by at most ``tolerance``.

    By the largest slope beyond a distance: of the Gaussian ``exp(−r²/2)/2``; of Matérn-1/2 ``exp(−r)/(2r)``, which has no
    bound at 0; of Matérn-3/2 ``(3/2) exp(−s)``; of Matérn-5/2 ``(5/6)(1 + s) exp(−s) ≤ (5/6)·1.22 exp(−s/2)``. O(1).

    Args:
        profile: Which.
        error: Absolute error of ``r²``, ≥ 0.
        tolerance: Of the value, where the variance is 1.

    Returns:
        0 where no distance is too short.
    """
    if profile == "matern12":
        return (error / (2.0 * tolerance)) ** 2
    slope, rate = {"gaussian": (0.5, 1.0), "matern32": (1.5, 1.0), "matern52": (1.02, 0.5)}[profile]
    excess = math.log(max(slope * error / tolerance, 1.0)) / rate
    return 2.0 * excess if profile == "gaussian" else excess**2 / COEFFICIENTS[profile]
