"""Learning around the likelihood of random points: residuals, neighbourhoods as dense as the data, shorter lengthscales.

*Residuals* of some rows given others show a function that a search has taken for noise: those of neighbours along an input are
then correlated. They show outlying rows, too: a bad observation is far from the prediction of the others while its neighbours
are not. The learned noise does not count: bad observations raise it.

*Neighbourhoods.* Random points of many data lie far apart: a search over them mistakes finer structure for noise, so
lengthscales come out too long. The sum of the log-likelihoods of some neighbourhoods, taken as independent, is a composite
likelihood (Varin, Reid & Firth 2011) whose terms are exact. The random points remain terms of it, for large distances and for
the mean (Caragea & Smith 2007). Many small neighbourhoods cost less than a few large ones and vary less. As terms of their own
they count the distance of each level from the mean anew, which makes lengthscales of smooth functions too short. So what they
say counts only if results have a higher density given the nearest others then, by more than the standard error: a proper score
of predictions amid all data.

*Shorter lengthscales.* The DTC likelihood over a dictionary (Seeger, Williams & Lawrence 2003) has rows at all distances at
once. Over too few points it takes structure for noise and asks for longer lengthscales. So only shorter ones are accepted, by
a few per cent, and only where the model's own dictionary may represent them.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from botorch.exceptions.warnings import InputDataWarning
from gpytorch.kernels import MaternKernel, RBFKernel
from torch import Tensor

from sparse_bo.gp.dtc import DTC
from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.linalg.chunking import row_slices
from sparse_bo.linalg.reductions import largest
from sparse_bo.models.sparse_gp.leverage_sampling import data_points, uniform_rows
from sparse_bo.models.sparse_gp.prior import PriorKernel, kernel_diagonal, kernel_matrix, stationary_parts
from sparse_bo.models.sparse_gp.representation import exact_representation
from sparse_bo.models.sparse_gp.row_sums import fit_dtc, left_out_of_exact

Distances = Callable[[Tensor, Tensor], Tensor]
"""From ``n x d`` points and a centre (``d``) to their distances (``n``), in any increasing measure."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class RefinementSettings:
    """Sizes of the last steps. Measurements: docs/decisions/044-neighbourhoods.md."""

    parts: int = 4
    """The random points are so many terms of the likelihood; a neighbourhood is as large as one."""
    least: int = 48
    """Fewest neighbourhoods; with fewer there are none."""
    most: int = 248
    """Most neighbourhoods."""
    work: float = 0.2
    """``Σ s³`` of the groups over ``n m²``, at most: their likelihoods then take about the time of the posterior."""
    autograd: float = 0.5
    """Share of that work where derivatives come from autograd."""
    density: int = 8
    """Neighbourhoods are at most so many times as dense as the dictionary: it cannot represent finer structure."""
    gain: float = 1.0
    """Log-likelihood of the groups that is not worth another step (nats)."""
    predicted: int = 1_024
    """Rows whose densities given half as many others as a neighbourhood has decide whether the steps count."""
    points: int = 1024
    """Dictionary of the last likelihood; it is of 16 times as many rows."""
    step: float = 0.965
    """Lengthscales are multiplied by a factor between ``step²`` and 1."""


class Residuals(NamedTuple):
    """Observations of some rows less their predictions from other rows."""

    X: Tensor
    """``… x r x d``, transformed."""
    values: Tensor
    """``batch_shape x r``."""
    variances: Tensor
    """``batch_shape x r`` predictive variances of the function."""
    known: Tensor
    """``c`` positions, among the rows, of those that the others are predicted from; each of them is from the others of them."""
    root: Tensor
    """``batch_shape x c x c``: ``R Rᵀ`` is the inverse covariance of their observations."""
    weights: Tensor
    """``batch_shape x c``: ``R Rᵀ (y − μ)``."""

    def without(self, nearest: Tensor) -> Tensor:
        """Return the residuals of known rows (``c x k``, numbers among these) predicted without a further one each, O(c² k).

        Entry (i, j) is the residual of row ``nearest[i, j]`` given all known rows but itself and i, ``batch_shape x c x k``:
        the inverse of two rows and columns of ``R Rᵀ`` times their weights (Rasmussen & Williams 2006, Eq. 5.12, for two rows).
        """
        own, a = self.root.square().sum(dim=-1), self.weights
        found = []
        for some in row_slices(len(nearest), chunk=256):
            at = nearest[some]
            shared = (self.root[..., some, :].unsqueeze(-2) * self.root[..., at, :]).sum(dim=-1)
            top = own[..., some, None] * a[..., at] - shared * a[..., some, None]
            found.append(top / (own[..., some, None] * own[..., at] - shared.square()))
        return torch.cat(found, dim=-2)


def residuals_given(model: Any, known: Tensor, rows: Tensor) -> Residuals:
    """Predict ``rows`` from ``known`` rows, and each of these from the others. O(c³ + r c²) for c known and r rows.

    Both are row numbers, ascending; ``rows`` has all of ``known``.
    """
    with torch.no_grad():
        kernel, data = model.prior_kernel, model.training_data()
        posterior = exact_representation(kernel, data.rows(known))
        means, variances = [], []
        for some in row_slices(len(rows), chunk=65_536):
            points = data.X[..., rows[some], :]
            projection = posterior.project(kernel, points)
            means.append(projection.mean)
            variances.append(projection.variance(kernel_diagonal(kernel, points)))
        mean, variance = torch.cat(means, dim=-1), torch.cat(variances, dim=-1)
        among = torch.isin(rows, known)
        mean[..., among], variance[..., among] = left_out_of_exact(posterior, data.rows(known))
        values, at = data.residuals[..., rows] - mean, among.nonzero().squeeze(-1)
        return Residuals(data.X[..., rows, :], values, variance, at, posterior.root.matrix, posterior.alpha)


def large_residuals(model: Any, known: Tensor, *, limit: float) -> Tensor:
    """Return the rows whose residuals, given known rows, are beyond ``limit`` of :func:`outlier_scores`'s scales of all rows.

    Of an outcome of several any. No other row scores more than ``limit``. O(n c d) for c known rows, without variances.
    """
    with torch.no_grad():
        kernel, data = model.prior_kernel, model.training_data()
        posterior = exact_representation(kernel, data.rows(known))
        blocks = map(data.rows, row_slices(data.X.shape[-2], chunk=4096))
        parts = [posterior.project(kernel, some.X).mean for some in blocks]
        sizes = (data.residuals - torch.cat(parts, dim=-1)).abs()
        least = 0.01 * model.train_targets.std(dim=-1, keepdim=True)
        typical = torch.maximum(1.4826 * sizes.median(dim=-1, keepdim=True).values, least)
        return (sizes > limit * typical).reshape(-1, sizes.shape[-1]).any(dim=0).nonzero().squeeze(-1)


class Autocorrelation(NamedTuple):
    """Correlation of the residuals of neighbours: along each input (``k = d``), or in all inputs (``k = 1``)."""

    score: Tensor
    """``batch_shape x k``: of the nearest, in standard errors; about standard normal for noise."""
    distance: Tensor
    """``batch_shape x k``: along the input, at which the correlation has fallen to 0.6: a Gaussian's lengthscale; in all inputs
    the median distance of the nearest, below which nothing can be told from noise."""


def autocorrelation(X: Tensor, residuals: Tensor) -> Autocorrelation:
    """Return the correlation of residuals (``batch_shape x n``) in the order of each input (``… x n x d``). O(n d log n)."""
    n = X.shape[-2]
    values, order = X.sort(dim=-2)
    along = residuals.unsqueeze(-1).expand(*residuals.shape, X.shape[-1])
    along = along.gather(-2, order.expand(along.shape))
    along = along - along.mean(dim=-2, keepdim=True)
    variance = along.square().mean(dim=-2).clamp_min(torch.finfo(along.dtype).tiny)
    first, distance = torch.zeros_like(variance), torch.full_like(variance, torch.inf)
    for lag in (2**k for k in range(max(n.bit_length() - 2, 0))):
        correlation = (along[..., lag:, :] * along[..., :-lag, :]).mean(dim=-2) / variance
        first = correlation if lag == 1 else first
        apart = (values[..., lag:, :] - values[..., :-lag, :]).mean(dim=-2)
        distance = torch.where(correlation < 0.6 * first, torch.minimum(distance, apart), distance)
    return Autocorrelation(first * math.sqrt(n), distance)


def neighbour_correlation(X: Tensor, residuals: Tensor) -> Autocorrelation:
    """Return the correlation of residuals (``batch_shape x n``) with those of the nearest points (``… x n x d``). O(n² d).

    It sees what inputs do together: the correlation along each of them averages over the others. No equal point is
    the nearest one.
    """
    nearest, apart = [], []
    for some in row_slices(X.shape[-2], chunk=4096):
        D = torch.cdist(X[..., some, :], X, compute_mode="donot_use_mm_for_euclid_dist")  # of equal points exactly 0
        found = D.masked_fill(D == 0.0, torch.inf).min(dim=-1)
        nearest.append(found.indices)
        apart.append(found.values)
    centred = residuals - residuals.mean(dim=-1, keepdim=True)
    others = centred.gather(-1, torch.cat(nearest, dim=-1).expand(centred.shape))
    variance = centred.square().mean(dim=-1, keepdim=True).clamp_min(torch.finfo(centred.dtype).tiny)
    correlation = (centred * others).mean(dim=-1, keepdim=True) / variance
    distance = torch.cat(apart, dim=-1).median(dim=-1, keepdim=True).values
    # Two points are often the nearest of each other, and count twice.
    return Autocorrelation(correlation * math.sqrt(0.5 * X.shape[-2]), distance.expand(correlation.shape))


def outlier_scores(model: Any, residuals: Residuals, reference: Tensor) -> Tensor:
    """Return how many standard deviations each row is off, ``r``, the most of a batch. O(r · references · d).

    The deviation is ``√(v + s²)``, v the predictive variance of the function. s is the larger of two scales, 1.48 times the
    median of absolute residuals: of all reference rows, and of the ten nearest; at least 1 % of the observations' deviation.
    The nearest ones of a known row are predicted without it: with it, what it does to its neighbours would hide it.

    Nearness is measured by the lengthscales of ``model``, where it has some. ``reference`` are positions among the rows whose
    residuals are not those of outlying rows.
    """
    X, parts = data_points(residuals.X), stationary_parts(model.prior_kernel)
    X = X if X.dim() == 2 else X.reshape(-1, *X.shape[-2:])[0]
    Z = X if parts is None else parts.scaled(X)
    sizes = residuals.values.abs()
    least = 0.01 * model.train_targets.std(dim=-1, keepdim=True)
    typical = torch.maximum(1.4826 * sizes[..., reference].median(dim=-1, keepdim=True).values, least)
    positions, local = torch.arange(len(Z), device=Z.device), []
    for some in row_slices(len(Z), chunk=4096):
        apart = torch.cdist(Z[some], Z[reference])
        apart = apart.masked_fill(positions[some].unsqueeze(-1) == reference, torch.inf)
        nearest = reference[apart.topk(min(10, len(reference)), largest=False).indices]
        local.append(1.4826 * sizes[..., nearest].median(dim=-1).values)
    scale, known = torch.cat(local, dim=-1), residuals.known
    blocks = (torch.cdist(Z[known[some]], Z[known]) for some in row_slices(len(known), chunk=4096))
    nearest = torch.cat([apart.topk(min(11, len(known)), largest=False).indices for apart in blocks])
    itself = nearest == torch.arange(len(known), device=known.device).unsqueeze(-1)
    others = residuals.without(nearest).abs().masked_fill(itself, torch.nan)  # equal rows may come before a row itself
    scale[..., known] = 1.4826 * others.nanmedian(dim=-1).values
    scale = torch.maximum(scale, typical)
    scores = sizes / (residuals.variances + scale.square()).sqrt()
    return scores.reshape(-1, scores.shape[-1]).amax(dim=0)


def warn_of_outliers(rows: Tensor, scores: Tensor, *, limit: float, n: int) -> None:
    """Warn of observations, of ``n``, beyond ``limit`` standard deviations, with some of their numbers, the farthest first."""
    order = scores.argsort(descending=True)
    off = rows[order[: int((scores > limit).sum())]].tolist()
    if off:
        warnings.warn(
            f"{len(off)} of {n} observations are more than {limit:g} standard deviations off what the others predict: "
            f"{'row' if len(off) == 1 else 'rows'} {', '.join(map(str, off[:10]))}{' …' if len(off) > 10 else ''} of train_X. "
            "A few such rows ruin lengthscales and noise; check them, or pass robust=True to leave them out",
            InputDataWarning,
            stacklevel=2,
        )


def euclidean(Z: Tensor, centre: Tensor) -> Tensor:
    """Return squared Euclidean distances, ``n``."""
    return (Z - centre).square().sum(dim=-1)


def kernel_distances(kernel: PriorKernel) -> Distances:
    """Return the distance ``E[(f(x) − f(c))²]`` under the prior, up to a constant; the mean over GPs of a batch. O(n d)."""

    def distances(X: Tensor, centre: Tensor) -> Tensor:
        with torch.no_grad():
            apart = kernel_diagonal(kernel, X) - 2.0 * kernel_matrix(kernel, X, centre.unsqueeze(0)).squeeze(-1)
        return apart.reshape(-1, len(X)).mean(dim=0)

    return distances


def last_groups(
    rows: Tensor,
    Z: Tensor,
    m: int,
    *,
    batch: int,
    generator: torch.Generator,
    settings: RefinementSettings,
    distances: Distances = euclidean,
    autograd: bool = False,
) -> Tensor | None:
    """Return the rows of the last steps, ``g x s``; ``None`` if work allows too few. O(m d) a group.

    They are the parts of ``rows``, and as many neighbourhoods of that size as work allows; none where the dictionary holds
    every row. With 1,040 rows and the default dictionary: none up to n = 4,096, all 248 neighbourhoods beyond.

    ``rows`` are those of the second search, ascending; ``Z`` ``n x d`` inputs, over their lengthscales for Euclidean distances.
    The dictionary has at most ``m`` points, there are ``batch`` GPs, and ``autograd`` says whether derivatives come from there.
    """
    size = len(rows) // settings.parts
    work = settings.work * (settings.autograd if autograd else 1.0) * len(Z) * m**2 / batch
    count = min(settings.most, int(work / max(size, 1) ** 3 + 1e-6) - settings.parts, len(Z))
    if len(Z) <= m or count < settings.least or settings.density * m < size:
        return None
    parts = rows[: settings.parts * size].reshape(size, settings.parts).mT  # ascending: each part is spread over all of them
    if len(Z) <= settings.density * m:
        return torch.cat([parts, neighbourhoods(Z, count, size, generator=generator, distances=distances)])
    thinned = uniform_rows(len(Z), settings.density * m, generator=generator, device=Z.device)
    return torch.cat([parts, thinned[neighbourhoods(Z[thinned], count, size, generator=generator, distances=distances)]])


def neighbourhoods(Z: Tensor, count: int, size: int, *, generator: torch.Generator, distances: Distances = euclidean) -> Tensor:
    """Return the ``size`` nearest rows of ``count`` random rows of ``Z`` (``n x d``), ``count x size``, each ascending.

    The centre is one of them. O(count · n d). Draws a permutation of n from the CPU generator.
    """
    centres = torch.randperm(len(Z), generator=generator, device="cpu")[:count].to(Z.device)
    nearest = [largest(-distances(Z, Z[centre]), size) for centre in centres]
    return torch.stack(nearest).sort(dim=-1).values


def neighbours(
    Z: Tensor, m: int, *, size: int, generator: torch.Generator, settings: RefinementSettings, distances: Distances = euclidean
) -> tuple[Tensor, Tensor]:
    """Return some random rows of ``Z`` (``n x d``), ``r``, and the ``size`` nearest others of each, ``r x size``. O(r n d).

    All are among as many rows as neighbourhoods are of (:func:`last_groups`). Draws two permutations from the CPU generator.
    """
    some = uniform_rows(len(Z), settings.density * m, generator=generator, device=Z.device)
    rows = some[torch.randperm(len(some), generator=generator, device="cpu")[: settings.predicted].to(Z.device)]
    points = Z[some]
    nearest = [largest((-distances(points, Z[row])).masked_fill(some == row, -torch.inf), size) for row in rows]
    return rows, some[torch.stack(nearest)]


def density_given(model: Any, rows: Tensor, nearest: Tensor) -> Tensor:
    """Return the log density of the result of each of ``r`` rows given those of its nearest others (``r x k``), ``r``. O(r k³).

    The sum over GPs, up to a constant.
    """
    with torch.no_grad():
        kernel, data, found = model.prior_kernel, model.training_data(), []
        for some in map(data.rows, torch.cat([nearest, rows.unsqueeze(-1)], dim=-1)):
            L = safe_cholesky(kernel_matrix(kernel, some.X, some.X) + torch.diag_embed(some.noise))
            z = torch.linalg.solve_triangular(L, some.residuals.unsqueeze(-1), upper=False)[..., -1, 0]
            found.append(-(0.5 * z.square() + L[..., -1, -1].log()).sum())
        return torch.stack(found)


def shorten(model: Any, *, size: int, generator: torch.Generator, settings: RefinementSettings) -> None:
    """Multiply the lengthscales of a model in place by a factor in ``[step², 1]``, one for each of its GPs. O(rows · points²).

    The factor maximises likelihood times the priors of the lengthscales. Fixed lengthscales stay, and so do those that a batch
    of GPs shares, and a model whose kernel :func:`stationary_parts` does not recognise. ``size`` is the largest size of the
    dictionary of the model, which is in training mode.
    """
    kernel, batch = model.prior_kernel, model.train_targets.shape[:-1]
    parts = stationary_parts(kernel)
    if parts is None or not parts.module.raw_lengthscale.requires_grad or parts.module.lengthscale.shape[:-2] != batch:
        return
    inner = parts.module
    start = inner.lengthscale.detach().clone()
    with torch.no_grad():
        data = model.training_data()
        n, device = data.X.shape[-2], data.X.device
        rows = uniform_rows(n, 16 * settings.points, generator=generator, device=device)
        points = rows[uniform_rows(len(rows), min(size, settings.points), generator=generator, device=device)]
        try:
            values = []
            for power in (2, 1, 0):
                _set(inner, start * settings.step**power)
                state = fit_dtc(kernel, data.X[..., points, :], data.rows(rows))
                values.append(_log_density(state, inner, n / len(rows)))
        finally:
            _set(inner, start)
        factor = settings.step ** (1.0 - parabola_maximum(torch.stack(values)))
        _set(inner, start * factor.to(start)[..., None, None])
    _LOGGER.debug("lengthscales times %s", factor.tolist())


def parabola_maximum(values: Tensor) -> Tensor:
    """Return the maximiser within ``[−1, 1]`` of the parabola through values at −1, 0 and 1 (``3 x batch_shape``).

    Where it is not concave, or a value is infinite, the position of the highest value, the last of equal ones.
    """
    below, here, above = values
    curvature = below - 2.0 * here + above
    top = ((below - above) / (2.0 * curvature)).clamp(-1.0, 1.0)
    highest = 1.0 - values.flip(0).argmax(dim=0).to(values)
    return torch.where((curvature < 0.0) & values.isfinite().all(dim=0), top, highest)


def _log_density(state: DTC, inner: RBFKernel | MaternKernel, weight: float) -> Tensor:
    """Return ``weight`` log-likelihoods plus the log density of the lengthscales, ``batch_shape``, up to a constant."""
    explained = 0.5 * (state.projected * state.weights).sum(dim=-1)
    value = weight * (explained - state.gram_cholesky.diagonal(dim1=-2, dim2=-1).log().sum(dim=-1))
    for _, module, prior, parameter_of, _ in inner.named_priors():
        density = prior.log_prob(parameter_of(module))
        value = value + density.reshape(*value.shape, -1).sum(dim=-1)
    return value


def _set(inner: RBFKernel | MaternKernel, lengthscale: Tensor) -> None:
    least = inner.raw_lengthscale_constraint.lower_bound.to(lengthscale)
    inner.lengthscale = torch.maximum(lengthscale, least)
