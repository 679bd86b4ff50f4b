"""The model of a trust region: its observations, their warping, and its hyper-parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.posteriors import Posterior as BoTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator import to_linear_operator
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.errors import StorageError
from sparse_bo.gp.hyperparameter_priors import ADDITIVE, Hyperparameters, Priors
from sparse_bo.gp.learn import FAMILIES, OPEN, PRIORS, Given, learn
from sparse_bo.gp.likelihood import Scatter
from sparse_bo.gp.posterior import Covariance, Posterior, ProcessPrior, exact
from sparse_bo.policies.persistence import KEPT, kept, sized, thaw_fields
from sparse_bo.policies.protocol import Frozen
from sparse_bo.policies.trust_region.observations import EXACT_NOISE, KINDS, Replicates, Warp, warp, warps

LEARNED_FROM = 300
"""Points that hyper-parameters are learned from, at most."""
HIGHEST = 40
"""The highest observations are always among them: the best point of the run is one of these."""
CHOOSE_AGAIN = 1.25
"""Kernel and warping are chosen anew whenever the data has grown by this factor."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedRegion:
    """The model of the objective after a batch. A value."""

    gp: Posterior
    """In the unit cube and in warped observations."""
    learned: Hyperparameters = field(metadata=kept(Hyperparameters))
    """Hyper-parameters of ``gp``."""
    warp: Warp = field(metadata=kept(Warp))
    """From observations to modelled values."""
    rows: Tensor = field(metadata=sized("k"))
    """``n`` evaluated points that the GP knows, ascending."""
    chosen_at: int = field(metadata=KEPT)
    """Evaluations when kernel and warping were chosen."""

    def medians(self, U: Tensor) -> tuple[Tensor, Tensor]:
        """Return the posterior at ``N x d`` points of the unit cube in the user's units, ``N`` each. O(N n²).

        Returns:
            Medians, and half of the width between the quantiles one standard deviation below and above.
        """
        at = self.gp.moments(U)
        return self.warp.inverse(at.mean), self.warp.half_width(at.mean, at.variance)

    def recommended(self, U: Tensor, seen: Replicates) -> tuple[int, float, float]:
        """Return the row of the evaluation to recommend, with median and spread there. O(n² + n d + n log n).

        Where replicates have shown that there is no noise, it is the highest observation. Else it is the point of the highest
        posterior mean among those of the model with the highest mean observations: of n, the share ``r²/4``, at least five,
        where ``r²`` is the variance of the posterior means over that of the observations. A model that has learned nothing
        would recommend any point (docs/decisions/179). Of known noise, √(2 log n) standard deviations are subtracted: else the
        highest ones would be those of the most noise.

        Args:
            U: ``n x d`` evaluated points, in the unit cube.
            seen: Their observations.
        """
        if seen.exact:
            row = int(seen.y.argmax())
            return row, float(seen.y[row]), 0.0
        highest = seen.rows[seen.sure[seen.rows].argsort(descending=True, stable=True)]
        means, observed = self.gp.mean(U[self.rows]), self.warp(seen.values[self.rows])
        explained = float((means.var(correction=0) / observed.var(correction=0).clamp_min(1e-300)).clamp_max(1.0))  # r²
        among = torch.isin(self.rows, highest[: max(5, int(0.25 * explained * len(highest)))])
        row = int(self.rows[means.masked_fill(~among, -torch.inf).argmax()])
        median, spread = self.medians(U[row : row + 1])
        return row, float(median), float(spread)

    def errors(self, U: Tensor, y: Tensor, sd: Tensor | None = None) -> Tensor:
        """Return how far observations (``N``) at ``N x d`` points are from the predicted ones, in standard deviations.

        ``sd``: ``N`` known standard deviations of their noise (y); NaN, and ``None``: that of the model.
        """
        mean, variance, _ = self.gp.moments(U)
        noise = torch.full_like(mean, self.gp.noise_variance)
        noise = noise if sd is None else self.warp.noise(y, sd).where(~sd.isnan(), noise)
        return (self.warp(y) - mean) / (variance + noise).sqrt()


def known_rows(
    X: Tensor, y: Tensor, *, centre: Tensor, learned: Hyperparameters | None, most: int, local: bool = False
) -> Tensor:
    """Return at most ``most`` rows, ascending: the highest, the nearest to a centre by lengthscales, the newest, some of all.

    Without ``learned``, the nearest by distance; ``local``: the nearest alone. Of several centres (``c x d``) the nearest one
    to a row counts. Without the newest a search would evaluate again what its model does not know.
    """
    n = len(y)
    if n <= most:
        return torch.arange(n, device=X.device)
    scattered = 0 if local else most // 4  # over the whole run, half of them the newest
    first = y.argsort(descending=True, stable=True)[: min(HIGHEST, scattered)]
    squares = []
    for point in centre.reshape(-1, X.shape[1]):
        scaled = X - point if learned is None else learned.scaled(X - point)
        squares.append(scaled.square().sum(dim=-1))
    order = torch.stack(squares).amin(dim=0).argsort(stable=True)
    rest = order[~torch.isin(order, first)]
    near = most - len(first) - scattered
    newest = rest[near:].sort(descending=True).values[: scattered // 2]
    far = rest[near:][~torch.isin(rest[near:], newest)]
    places = torch.linspace(0, len(far) - 1, scattered - len(newest), dtype=torch.float64, device=X.device).round().long()
    return torch.cat([first, rest[:near], newest, far[places]]).sort().values


def fitted_region(
    X: Tensor,
    seen: Replicates,
    *,
    centre: Tensor,
    before: FittedRegion | None,
    since: int,
    most: int,
    growth: float = CHOOSE_AGAIN,
    size: int | None = None,
    ranking: Tensor | None = None,
    kinds: Sequence[str] = KINDS,
    rotates: bool = True,
    kernel: Covariance | None = None,
    local: bool = False,
) -> FittedRegion:
    """Return the model of a region after new results. O(n³) per step of the learning, n at most :data:`LEARNED_FROM`.

    Warping, kernel and the directions of its lengthscales are those of the highest evidence (that of a warped model counts the
    slope of its warping). Without noise, that of the model is at most :data:`EXACT_NOISE`. Known noise is not learned: each
    mean has its own.

    Args:
        X: ``n x d`` evaluated points, in the unit cube.
        seen: Their observations.
        centre: ``d``, of the region; or several, ``c x d``.
        before: The model before; learning starts from its hyper-parameters, which stay if no point is new.
        since: Number of evaluations before the new results.
        most: Points that the model knows, at most.
        growth: Of the data, after which kernel and warping are chosen anew.
        size: Of the data; ``None``: the number of distinct points.
        ranking: ``n`` numbers: the model knows the points of the highest; ``None``: of the highest observations.
        kinds: Of warpings to choose among.
        rotates: Whether lengthscales may be along other directions than the inputs.
        kernel: Given, in place of a learned one: mean, scale, noise and warping alone are chosen, without a model before.
        local: Whether the model knows the nearest points to the centre alone.
    """
    ranking = seen.values if ranking is None else ranking
    priors = replace(PRIORS, noises=(1e-12, EXACT_NOISE if seen.exact else PRIORS.noises[1]))
    at, n = seen.rows, len(seen.rows) if size is None else size
    now = None if before is None else before.learned
    rows = at[known_rows(X[at], ranking[at], centre=centre, learned=now, most=most, local=local)]
    U, v = X[rows], seen.values[rows]
    some = rows[known_rows(U, ranking[rows], centre=centre, learned=now, most=LEARNED_FROM)]
    data = LearningData(X[some], seen.values[some], some, None if seen.exact else seen)
    with one_thread():
        same = None if before is None or n >= growth * before.chosen_at else warp(before.warp.kind, v, seen.sd_of_highest)
        if before is not None and same is not None:
            chosen, learned, at_size = same, before.learned, before.chosen_at
            if bool((at >= since).any()):
                axes = learned.axes if learned.rotated else None
                learned = data.learned(same, [learned.family], priors, start=learned, axes=axes, max_steps=15)
        else:
            candidates, at_size = list(warps(v, kinds, seen.sd_of_highest)), n
            if kernel is None:
                _, chosen, learned = _chosen(data, candidates, start=now, priors=priors, rotates=rotates)
            else:
                given = Given(correlation=kernel.cross(data.X, data.X))
                each = (data.choice(candidate, FAMILIES[:1], priors, given=given) for candidate in candidates)
                _, chosen, learned = max(each, key=lambda one: one.evidence)
        gp = local_posterior(U, chosen(v), learned, counts=seen.worth(rows, chosen, learned), kernel=kernel)
    return FittedRegion(gp=gp, learned=learned, warp=chosen, rows=rows, chosen_at=at_size)


@dataclass(frozen=True, eq=False)
class LearningData:
    """Observations that hyper-parameters are learned from."""

    X: Tensor
    """``n x d`` points of the unit cube."""
    means: Tensor
    """``n`` mean observations."""
    rows: Tensor
    """``n``: their first evaluations, ascending."""
    replicates: Replicates | None
    """All evaluations, whose scatter informs the noise unless it is known; ``None``: the means alone are learned from."""

    def learned(self, warp: Warp, families: Sequence[str], priors: Priors, **options: Any) -> Hyperparameters:
        """Return the hyper-parameters of warped observations (:func:`sparse_bo.gp.learn.learn`)."""
        scatter, seen = None, self.replicates
        noise = None if seen is None else seen.noise(self.rows, warp)
        if seen is not None and noise is not None:  # of the means; g is that of a typical observation
            g = float((noise * seen.counts[self.rows]).median())
            given = options.pop("given", OPEN)._replace(noise=g)
            scatter, options = Scatter(g / noise, squares=0.0, repeats=0.0, log_counts=0.0), {**options, "given": given}
        elif seen is not None and int(seen.counts[self.rows].max()) > 1:
            scatter = seen.scatter(self.rows, warp(seen.y))
        return learn(self.X, warp(self.means), scatter=scatter, families=families, priors=priors, **options)

    def choice(self, warp: Warp, families: Sequence[str], priors: Priors, **options: Any) -> Choice:
        """Return a warping with its hyper-parameters (:meth:`learned`) and their evidence."""
        learned, seen = self.learned(warp, families, priors, **options), self.replicates
        # evidence of the observations minus that of the warped ones: the model is of all evaluations, of known noise of means
        counts = 1.0 if seen is None or seen.sds is not None else seen.counts[self.rows]
        return Choice(learned.evidence + float((warp.log_slope(self.means) * counts).sum()), warp, learned)


def local_posterior(
    X: Tensor, y: Tensor, learned: Hyperparameters, *, counts: Tensor | None = None, kernel: Covariance | None = None
) -> Posterior:
    """Return the exact posterior after ``y`` (``n``, warped; each worth ``counts`` observations) at ``X`` (``n x d``). O(n³).

    ``kernel``: given, in place of the learned one.
    """
    prior = ProcessPrior(learned.mean, learned if kernel is None else kernel, learned.scale)
    return exact(prior, X, y, noise=learned.noise, counts=counts, floor=1e-12)  # log variances exist


def thaw_region(frozen: Frozen, X: Tensor, seen: Replicates, *, kernel: Covariance | None = None) -> FittedRegion:
    """Return the model of a snapshot, of the same observations, to rounding as it was. O(n³)."""
    parts = thaw_fields(FittedRegion, frozen)
    rows, warp, learned = parts["rows"], parts["warp"], parts["learned"]
    if len(rows.unique()) < len(rows):
        raise StorageError("expected rows in the snapshot to be distinct, got repeated ones; take another copy")
    with one_thread():
        counts = seen.worth(rows, warp, learned)
        gp = local_posterior(X[rows], warp(seen.values[rows]), learned, counts=counts, kernel=kernel)
    return FittedRegion(gp=gp, **parts)


class Choice(NamedTuple):
    """A warping, and hyper-parameters of warped observations."""

    evidence: float
    """Log density of the observations."""
    warp: Warp
    learned: Hyperparameters


def _chosen(
    data: LearningData, candidates: Sequence[Warp], *, start: Hyperparameters | None, priors: Priors, rotates: bool
) -> Choice:
    """Return the choice of the highest evidence; at a tie the first one.

    Warpings are compared under one stationary family, that of the model before; then families under the best warping.
    """
    along_inputs = None if start is None or start.rotated else start

    def fitted(candidate: Warp, families: Sequence[str]) -> Choice:
        steps = 40 if start is None else 20
        return data.choice(candidate, families, priors, start=along_inputs, max_steps=steps, restart=True)

    family = FAMILIES[0] if start is None or start.additive else start.family
    best = max((fitted(candidate, [family]) for candidate in candidates), key=lambda one: one.evidence)
    best = max(best, fitted(best.warp, [other for other in FAMILIES if other != family]), key=lambda one: one.evidence)
    n, d = data.X.shape
    if 1 < d <= n / 4:  # a sum needs some observations for each input
        kinds = {warp.kind: warp for warp in (candidates[0], best.warp)}
        best = max([best, *(fitted(one, [ADDITIVE]) for one in kinds.values())], key=lambda one: one.evidence)
    if rotates:
        best = max([best, *_rotated(data, best, start=start, priors=priors)], key=lambda one: one.evidence)
    return best


def _rotated(data: LearningData, best: Choice, *, start: Hyperparameters | None, priors: Priors) -> Iterator[Choice]:
    """Yield choices with lengthscales along other directions than the inputs; none of more angles than observations.

    The directions are those of the model before, then twice the eigenvectors of ``Σᵢ ∇m(xᵢ) ∇m(xᵢ)ᵀ`` of a posterior mean m
    (active subspaces: Constantine, Dow & Wang 2014). Each of the d (d − 1)/2 angles costs ``½ log n`` (Schwarz 1978,
    "Estimating the dimension of a model"): docs/decisions/121.
    """
    n, d = data.X.shape
    angles = d * (d - 1) // 2
    if not 0 < angles <= n:
        return

    def along(axes: Tensor, **options: Any) -> Choice:
        found = data.choice(best.warp, FAMILIES, priors, axes=axes, **options)
        return found._replace(evidence=found.evidence - 0.5 * angles * math.log(n))

    model = best
    if start is not None and start.rotated:
        model = along(start.axes, start=start, max_steps=20)
        yield model
    y = best.warp(data.means)
    for _ in range(2):
        counts = None if data.replicates is None else data.replicates.worth(data.rows, best.warp, model.learned)
        G = local_posterior(data.X, y, model.learned, counts=counts).gradients(data.X).mean_gradient
        axes = torch.linalg.eigh(G.mT @ G).eigenvectors.contiguous()  # as a snapshot has them: rounding depends on the strides
        model = along(axes, max_steps=30)
        yield model


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside: products of a few hundred rows gain nothing from more, and their rounding depends on it."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class RegionModel(Model):  # type: ignore[misc]  # the base class ships no types
    """The model of a region as a BoTorch model of one output, in the user's units.

    Under a warping that bends, mean and variance of the posterior are the median and the square of half the width between the
    quantiles one standard deviation below and above it; samples are exact. A median at or below ``fitted.warp.floor`` says that
    the objective is at most that: lower observations are clipped.
    """

    num_outputs, batch_shape = 1, torch.Size()

    def __init__(self, fitted: FittedRegion, box: Box) -> None:
        super().__init__()
        self.fitted, self.box = fitted, box

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> BoTorchPosterior:
        """Return the joint posterior of the noiseless objective at ``… x q x d`` points (on any device; it is on the CPU)."""
        gp, bend = self.fitted.gp, self.fitted.warp
        U = self.box.to_unit(X.to(self.box.bounds))
        q = U.shape[-2]
        flat = U.reshape(-1, q, U.shape[-1])
        mean = gp.mean(flat.flatten(0, 1)).reshape(X.shape[:-1])
        if q == 1:
            covariance = gp.moments(flat.flatten(0, 1)).variance.reshape(*X.shape[:-1], 1)
        else:
            covariance = torch.stack([gp.covariance(part) for part in flat]).reshape(*X.shape[:-1], q)
            covariance = covariance + 1e-7 * gp.prior.scale * torch.eye(q, dtype=U.dtype, device=U.device)
        warped = GPyTorchPosterior(MultivariateNormal(mean, to_linear_operator(covariance)))
        return TransformedPosterior(
            warped,
            sample_transform=bend.inverse,
            mean_transform=lambda m, _: bend.inverse(m),
            variance_transform=lambda m, v: bend.half_width(m, v).square(),
        )
