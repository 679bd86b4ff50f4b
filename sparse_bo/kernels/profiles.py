"""Stationary kernels as functions of a squared distance, computed in the memory that holds it.

With ``r = ‖(x − y)/lengthscale‖`` a profile is a function of ``q = coefficient · r²``, chosen so that few operations are left:

    gaussian  q = −r²/2   exp(q)
    matern12  q = r²      exp(−s)                  s = √q
    matern32  q = 3 r²    (1 + s) exp(−s)
    matern52  q = 5 r²    (1 + s + q/3) exp(−s)

(Rasmussen & Williams 2006, Eq. 4.9 and 4.16-4.17).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sparse_bo.kernels.structure import Profile

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
