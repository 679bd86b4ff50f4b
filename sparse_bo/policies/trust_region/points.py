"""Points of a box at which an acquisition function is computed before it is climbed: anywhere, around a centre, by input."""

from __future__ import annotations

import torch
from torch import Tensor

from sparse_bo.domains.base import sobol_points
from sparse_bo.gp.posterior import Posterior
from sparse_bo.policies.trust_region.region import RegionSettings
from sparse_bo.policies.trust_region.search import Corners


def points_anywhere(like: Tensor, count: int, *, generator: torch.Generator) -> Tensor:
    """Return ``count`` points of a scrambled Sobol sequence in the unit cube (``N x d``). Draws one integer."""
    seed = int(torch.randint(2**31 - 1, (1,), generator=generator, device="cpu"))
    return sobol_points(count, like.shape[-1], seed=seed).to(like)


def points_around(
    centre: Tensor, corners: Corners, settings: RegionSettings, *, groups: Tensor, generator: torch.Generator
) -> Tensor:
    """Return points of a region (``N x d``): a Sobol sequence, and a fourth as many around the centre at scales of 10⁻³ to 1.

    In more than ``settings.many_inputs`` inputs, the points of the sequence differ from the centre in a random few (Regis &
    Shoemaker 2013; TuRBO). Draws one integer, then in many inputs N·d uniform numbers and N integers, then N·d/4 normal ones.
    """
    n, inputs = settings.candidates, int(groups.max()) + 1
    U = corners.lower + corners.span * points_anywhere(centre, n, generator=generator)
    if inputs > settings.many_inputs:
        changed = (
            torch.rand(n, inputs, generator=generator, dtype=torch.float64, device="cpu") < settings.perturbed_inputs / inputs
        )
        one = torch.randint(inputs, (n,), generator=generator, device="cpu")
        changed[torch.arange(n, device="cpu"), one] = True
        U = torch.where(changed[:, groups.cpu()].to(U.device), U, centre)
    near = centre + corners.span * _steps(n // 4, len(centre), generator=generator).to(U)
    return torch.cat([U, near.maximum(corners.lower).minimum(corners.upper)])


def points_along(centre: Tensor, half: Tensor, axes: Tensor, settings: RegionSettings, *, generator: torch.Generator) -> Tensor:
    """Return points (``N x d``) of a box along other directions than the inputs, as many as :func:`points_around`.

    ``half`` (``d``) are half of its sides along ``axes`` (``d x d``, orthonormal columns). Draws one integer, then N·d/4 normal
    numbers.
    """
    n = settings.candidates
    steps = 2.0 * points_anywhere(centre, n, generator=generator) - 1.0
    near = 2.0 * _steps(n // 4, len(centre), generator=generator).to(centre)
    return (centre + (torch.cat([steps, near]) * half) @ axes.mT).clamp(0.0, 1.0)


def _steps(count: int, dims: int, *, generator: torch.Generator) -> Tensor:
    """Return normal steps (``N x d``) with standard deviations from 0.0003 to 0.3."""
    scales = 0.3 * torch.logspace(-3.0, 0.0, count, dtype=torch.float64, device="cpu").unsqueeze(-1)
    return scales * torch.randn(count, dims, generator=generator, dtype=torch.float64, device="cpu")


def combined_points(gp: Posterior, centre: Tensor, *, generator: torch.Generator) -> Tensor:
    """Return 100 points (``N x d``) that combine the best value of each input, under the model of a sum.

    Posterior means and standard deviations are computed at 32 values of each input in the whole box, the other inputs being the
    centre's. A point takes, for all inputs or a random half of them, the value of the highest mean plus a normal number of sd.

    Draws 32 d uniform, N·d normal and N·d uniform numbers. O(d² n + d n²) times 32.
    """
    d, n, count = len(centre), 32, 100
    inputs = torch.arange(d, device=centre.device)
    values = torch.rand(d, n, generator=generator, dtype=torch.float64, device="cpu").to(centre)
    values = (values + torch.arange(n, device=centre.device)) / n  # d x n
    lines = centre.repeat(d, n, 1)
    lines[inputs, :, inputs] = values
    at = gp.moments(lines.reshape(-1, d))
    mean, sd = at.mean.reshape(d, n), at.variance.sqrt().reshape(d, n)
    normal = torch.randn(count, d, 1, generator=generator, dtype=torch.float64, device="cpu").to(centre)
    best = (mean + normal * sd).argmax(dim=-1)  # N x d
    changed = torch.rand(count, d, generator=generator, dtype=torch.float64, device="cpu") < 0.5
    changed[: count // 2] = True
    return torch.where(changed.to(centre.device), values.gather(1, best.T).T, centre)
