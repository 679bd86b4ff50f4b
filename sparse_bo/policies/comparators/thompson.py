"""Thompson sampling over arms and on boxes: S-GP-TS by decoupled sampling, QFF-TS by quadrature Fourier features.

The features are those of the Gaussian kernel (Mutný & Krause 2018).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.sampling.pathwise.features import gen_kernel_features
from botorch.utils.transforms import t_batch_mode_transform
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from scipy.special import roots_hermite
from torch import Tensor

from sparse_bo.dictionary import Sampler
from sparse_bo.domains import ArmSet, Domain
from sparse_bo.domains.sharded import alone, first_here, group_of
from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.dtc import decoupled_weights
from sparse_bo.kernels import covariance_function, gaussian_parameters
from sparse_bo.kernels.closed_forms import part_outside
from sparse_bo.policies.bandits.state import BanditState
from sparse_bo.policies.comparators.baselines import PosteriorPolicy
from sparse_bo.policies.protocol import box_of
from sparse_bo.policies.settings import check_sampler
from sparse_bo.policies.subset.subsets import Buffer
from sparse_bo.policies.subset.surrogate_loop import SurrogateLoop, SurrogateSettings
from sparse_bo.policies.subset.surrogate_models import exact_gp, in_standard_units, sparse_gp
from sparse_bo.seeding import seeded
from sparse_bo.validation import check_count, check_given

DRAWS = "the best arms of draws"
ORDERS: Mapping[int, int] = {1: 64, 2: 24, 3: 10}
"""Quadrature nodes per dimension of QFF-TS by number of inputs: at most 1,000 features."""
QUADRATURE_TOLERANCE = 0.01
"""Largest error of the quadrature, in units of the kernel's variance, that QFF-TS accepts over arms."""
LEARNING_POINTS = 500
"""QFF-TS learns its hyper-parameters on a box from at most so many observations."""


def _best_arms(state: BanditState, q: int, draws: Callable[[slice, Tensor], Tensor]) -> Tensor:
    """Return the ``q`` best arms of draws, ``rows x q`` for each chunk of arms and its kernel ``m x rows``; the first of ties.

    Every rank evaluates its own shard; the best arms are then found together. Of equal arms on several ranks it is the first,
    whose draws differ by round-off.
    """
    assert state.posterior is not None
    here, arms = state.posterior.here, state.arms
    group, first, prior, device = group_of(arms), first_here(arms), here.prior, arms.device
    allowed = torch.ones(prior.arms.shape[0], dtype=torch.bool, device=device)
    if prior.repeats is not None:
        allowed[prior.repeats] = False
    refuse = state.refusal()
    if refuse is not None:
        step, every = "excluded arms", first + torch.arange(len(allowed), device=device)
        with group.shielded(step), alone(arms):
            left = allowed & ~refuse(every)
        if group.largest(step, [float(left.any())])[0]:
            allowed = left
    values = here.means.new_full((q,), -math.inf)
    indices = torch.zeros(q, dtype=torch.int64, device=device)
    with group.shielded(DRAWS):
        for part, K_DX in here.kernel_chunks():
            highest, at = draws(part, K_DX).masked_fill(~allowed[part].unsqueeze(-1), -math.inf).max(dim=0)
            better = highest > values
            values, indices = torch.where(better, highest, values), torch.where(better, at + part.start, indices)
    if group.size == 1:
        return indices
    rows = prior.arms[indices] if len(allowed) else arms[:0].expand(q, -1)
    all_ranks = group.tensors(DRAWS, [values, indices + first, rows])
    values, numbers = (torch.stack([part[k] for part in all_ranks]) for k in range(2))
    X = torch.stack([part[2] if len(part[2]) else part[2].new_zeros(rows.shape) for part in all_ranks])  # ranks x q x d
    best = X[values.argmax(dim=0), torch.arange(q, device=X.device)]
    equal = (best == X).all(dim=-1) & (values > -math.inf)
    return torch.where(equal, numbers, 2**62).amin(dim=0).to(indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class SGPTSArms(PosteriorPolicy):
    """Thompson sampling over arms with a sparse GP by decoupled sampling (S-GP-TS, Vakili et al. 2021; Wilson et al. 2020).

    Each arm of a batch maximises its own draw from the DTC posterior: a prior draw of random Fourier features, with new weights
    for each draw, and an exact update at the dictionary (:mod:`sparse_bo.gp.dtc`).
    O(a (m + features) q) per batch of q, in addition to BKB's O(a m² + n m²) for the posterior, without an ``a x a`` matrix.
    Kernels: RBF and Matérn, and a ScaleKernel of these.

    Settings shared with other policies: :class:`sparse_bo.policies.comparators.baselines.PosteriorPolicy`.

    Attributes:
        features: Even number of random Fourier features; their error (about 1/√features of the prior variance) affects the
            prior draw only; the update corrects it at the data.
    """

    features: int = 512

    name = "s-gp-ts-arms"

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_count("features", self.features, minimum=2) % 2:
            raise ValueError(f"expected an even number of features (cosines and sines), got {self.features}")

    def check(self, arms: ArmSet) -> None:
        """See :class:`PosteriorPolicy`: a kernel must have random features."""
        if self.covar_module is None:
            return
        kernel = covariance_function(self.covar_module, like=arms[:2]).kernel
        try:
            with seeded(torch.Generator(), device=arms.device):
                gen_kernel_features(kernel, num_inputs=arms.shape[1], num_outputs=2)
        except NotImplementedError as error:
            other = part_outside(kernel, (ScaleKernel, RBFKernel, MaternKernel))
            raise ValueError(
                f"expected a kernel with random Fourier features for S-GP-TS, got {type(other).__name__}; "
                "use RBFKernel or MaternKernel, or a ScaleKernel of one"
            ) from error

    def chosen(self, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """See :class:`PosteriorPolicy`. Draws one integer (a seed), then ``q`` times (features + r) normal numbers."""
        posterior, arms = state.posterior, state.arms
        assert posterior is not None
        with torch.no_grad():
            with seeded(generator, device=arms.device):
                kernel = posterior.prior.covariance.kernel
                phi = gen_kernel_features(kernel, num_inputs=arms.shape[1], num_outputs=self.features)
            rank = posterior.state.factor.rank
            normal = torch.randn(q, self.features + rank, generator=generator, device="cpu", dtype=arms.dtype).to(arms.device)
            prior, spread = normal[:, : self.features], normal[:, self.features :]
            weights = decoupled_weights(posterior.state, prior @ phi(posterior.dictionary.points).mT, spread)  # m x q
            here = posterior.here.prior.arms
            return _best_arms(state, q, lambda part, K_DX: phi(here[part]) @ prior.mT + K_DX.mT @ weights)


@dataclass(frozen=True, kw_only=True, eq=False)
class QFFTSArms(PosteriorPolicy):
    """Thompson sampling over arms with quadrature Fourier features (QFF-TS, Mutný & Krause 2018): Gaussian kernel, d ≤ 3.

    Each arm of a batch maximises its own draw from Bayesian linear regression of all observations on F ≤ orderᵈ + 1
    features. O(n F² + F³ + a F q) per batch of q. The sparse posterior serves reports and hyper-parameters; the draws
    do not use it.

    Settings shared with other policies: :class:`sparse_bo.policies.comparators.baselines.PosteriorPolicy`.

    Attributes:
        order: Quadrature nodes per dimension; ``None``: 64, 24 or 10 in 1, 2 or 3 dimensions. The error
            falls fast once ``order`` exceeds half the square of the arms' width in lengthscales.
    """

    order: int | None = None

    name = "qff-ts-arms"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_given(check_count, order=self.order)

    def check(self, arms: ArmSet) -> None:
        """See :class:`PosteriorPolicy`: at most three columns, and a Gaussian kernel that is not too narrow for the order."""
        dims = arms.shape[1]
        if dims > max(ORDERS):
            raise ValueError(f"expected arms of d <= {max(ORDERS)} for QFF-TS (orderᵈ features), got d = {dims}; use SGPTSArms")
        if self.covar_module is not None:
            message = self._missed(covariance_function(self.covar_module, like=arms[:2]).kernel, arms)
            if message is not None:
                raise ValueError(message)

    def chosen(self, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """See :class:`PosteriorPolicy`. Draws ``q`` times F normal numbers.

        Warns:
            NumericalWarning: If a learned kernel is too narrow for the order.
        """
        assert state.posterior is not None
        observed, surrogate = state.observations, state.posterior.prior
        kernel = surrogate.covariance.kernel
        message = self._missed(kernel, state.coordinates) if self.covar_module is None else None
        if message is not None:
            warnings.warn(message, NumericalWarning, stacklevel=2)
        with torch.no_grad():
            features = _quadrature_features(kernel, dims=state.arms.shape[1], order=self.order)
            roots = observed.counts.sqrt()  # a mean of c pulls with weight c, as c rows
            Z = features(observed.X) * roots.unsqueeze(-1)
            y = (observed.means - surrogate.prior_mean) * roots
            normal = torch.randn(q, Z.shape[1], generator=generator, device="cpu", dtype=Z.dtype).to(Z.device)
            w = sample_weights(Z, y, noise=surrogate.regularization, normal=normal)
            here = state.posterior.here.prior.in_memory
            return _best_arms(state, q, lambda part, _: features(here[part]) @ w.mT)

    def _missed(self, kernel: Kernel, arms: ArmSet) -> str | None:
        """Return a message if the kernel is too narrow for the order over the arms, else ``None``."""
        dims = arms.shape[1]
        lengthscale, _ = gaussian_parameters(kernel, dims=dims)
        order = self.order or ORDERS[dims]
        error = quadrature_error((arms.amax(dim=0) - arms.amin(dim=0)) / lengthscale, order=order)
        if error <= QUADRATURE_TOLERANCE:
            return None
        return (
            f"{order} quadrature nodes per dimension miss the kernel by up to {error:.1g} of its variance "
            f"(more than {QUADRATURE_TOLERANCE}) over these arms; raise order, use a longer lengthscale, or SGPTSArms"
        )


def _quadrature_features(kernel: Kernel | None, *, dims: int, order: int | None) -> Callable[[Tensor], Tensor]:
    """Return the map from ``n x d`` points to ``n x F`` quadrature Fourier features of a Gaussian kernel."""
    lengthscale, variance = gaussian_parameters(kernel, dims=dims)
    frequencies, weights = quadrature_frequencies(lengthscale, order=order or ORDERS[dims])
    return partial(fourier_features, frequencies=frequencies, weights=weights * variance)


class PathValue(AcquisitionFunction):  # type: ignore[misc]  # the base class ships no types
    """The value of a function drawn from the posterior: from ``… x d`` points of the unit cube to ``…`` values."""

    def __init__(self, model: Model, path: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model)
        self.path = path

    @t_batch_mode_transform(expected_q=1)  # type: ignore[untyped-decorator]  # BoTorch ships no types
    def forward(self, X: Tensor) -> Tensor:
        """Return ``b`` values of ``b x 1 x d`` points."""
        return self.path(X.squeeze(-2))


def matheron_paths(model: Any, X: Tensor, y: Tensor) -> Iterator[PathValue]:
    """Draw paths by decoupled sampling (Wilson et al. 2020): a prior path of random Fourier features, and an update.

    The update is at the dictionary, of an exact GP at all data. Values are in the units of :func:`.in_standard_units`.
    """
    standard = in_standard_units(model)
    scale = 1.0 if standard is None else standard.weights

    def scaled(path: Callable[[Tensor], Tensor], U: Tensor) -> Tensor:
        return path(U) * scale

    while True:
        yield PathValue(model, partial(scaled, draw_matheron_paths(model, torch.Size([]))))


def quadrature_paths(model: Any, X: Tensor, y: Tensor, *, order: int | None) -> Iterator[PathValue]:
    """Draw from Bayesian linear regression of all observations on F quadrature Fourier features. O(n F² + F³).

    Kernel, mean, noise and transform are the model's.

    Raises:
        ValueError: If the model has no Gaussian kernel.
    """
    with torch.no_grad():
        features = _quadrature_features(getattr(model, "covar_module", None), dims=X.shape[-1], order=order)
        residuals = model.outcome_transform(y.unsqueeze(-1))[0].squeeze(-1) - model.mean_module(X)
        Z = features(X)

    def path(w: Tensor, U: Tensor) -> Tensor:
        return features(U) @ w

    while True:
        normal = torch.randn(Z.shape[-1], dtype=Z.dtype, device="cpu").to(Z.device)
        w = sample_weights(Z, residuals, noise=model.likelihood.noise.item(), normal=normal)
        yield PathValue(model, partial(path, w))


@dataclass(frozen=True, kw_only=True, eq=False)
class SGPTS(SurrogateSettings):
    """Thompson sampling with a sparse GP by decoupled sampling (S-GP-TS, Vakili et al. 2021; Wilson et al. 2020).

    The surrogate is :class:`sparse_bo.SparseGP` with a Matérn-5/2 kernel; a function is drawn as a prior path of random
    Fourier features and an update at the dictionary: O(m · features) per point, whatever n is. Each point of a batch has a
    function of its own. Settings: :class:`SurrogateSettings`, of which ``width`` and ``acquisition`` have no effect.

    Attributes:
        dictionary: A sampler; default: that of :class:`sparse_bo.SparseGP`.
        max_dictionary: m, cap of the default dictionary.
    """

    dictionary: Sampler | None = None
    max_dictionary: int = 200

    name = "s-gp-ts"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_dictionary", self.max_dictionary)
        check_sampler(self.dictionary)

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        options: dict[str, Any] = {"dictionary": self.dictionary, "max_dictionary": self.max_dictionary}
        return self.loop(domain, partial(sparse_gp, learning=self.learning, **options), draws=matheron_paths)


@dataclass(frozen=True, kw_only=True, eq=False)
class QFFTS(SurrogateSettings):
    """Thompson sampling with quadrature Fourier features (QFF-TS, Mutný & Krause 2018): Gaussian kernel, d ≤ 3.

    The kernel's hyper-parameters are learned from at most 500 random observations; a function is drawn
    from Bayesian linear regression of all observations on F features, O(n F² + F³) per batch. Settings:
    :class:`SurrogateSettings`, of which ``width`` and ``acquisition`` have no effect; ``surrogate`` must have an ``RBFKernel``
    (``ScaleKernel`` around it or not).

    Attributes:
        order: Quadrature nodes per dimension; ``None``: 64, 24 or 10 in 1, 2 or 3 dimensions. The error falls fast
            once ``order`` exceeds half the square of the box's width in lengthscales.
    """

    order: int | None = None

    name = "qff-ts"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_given(check_count, order=self.order)

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`.

        Raises:
            ValueError: If the box has more than three dimensions.
        """
        dims = box_of(domain, policy=self.name).dims
        if dims > max(ORDERS):
            raise ValueError(f"QFF-TS needs orderᵈ features and takes boxes of d <= {max(ORDERS)}, got d = {dims}; use SGPTS")
        make = partial(exact_gp, learning=self.learning, gaussian=True)
        buffer, draws = Buffer(size=LEARNING_POINTS, newest=False), partial(quadrature_paths, order=self.order)
        return self.loop(domain, make, buffer=buffer, draws=draws)


def quadrature_frequencies(lengthscale: Tensor, *, order: int) -> tuple[Tensor, Tensor]:
    """Return frequencies (``F x d``) and weights (``F``, sum 1) of the Gaussian kernel's spectrum by Gauss-Hermite quadrature.

    ``exp(−½ Σ (r_i/l_i)²) = Σ_j weight_j cos(ω_j·r)`` up to an error that falls faster than exponentially in ``order``, the
    nodes per dimension, once it exceeds half the square of the largest ``|r_i|/l_i`` (their Theorem 1). Of each pair ±ω one is
    kept. O(orderᵈ d).
    """
    # Of ∫ exp(−t²) g(t) dt; symmetric to the last bit, which the pairs ±ω below rely on.
    nodes, weights = (torch.from_numpy(part).to(lengthscale) for part in roots_hermite(order))
    weights = weights / math.sqrt(math.pi)
    d = len(lengthscale)
    grid = torch.cartesian_prod(*[nodes] * d).reshape(-1, d) * math.sqrt(2.0) / lengthscale
    products = torch.cartesian_prod(*[weights] * d).reshape(-1, d).prod(dim=-1)
    half = len(grid) // 2  # the grid is symmetric: node i is minus node N − 1 − i, the middle one (odd N) is zero
    keep = len(grid) - half
    doubled = torch.full_like(products[:keep], 2.0)
    doubled[half:] = 1.0
    return grid[:keep], products[:keep] * doubled


def fourier_features(X: Tensor, frequencies: Tensor, weights: Tensor) -> Tensor:
    """Return ``√weight_j [cos(ω_j·x), sin(ω_j·x)]``, ``… x 2F`` from ``… x d``. O(F d) per point."""
    angles = X @ frequencies.mT
    roots = weights.sqrt()
    return torch.cat([angles.cos() * roots, angles.sin() * roots], dim=-1)


def sample_weights(features: Tensor, y: Tensor, *, noise: float | Tensor, normal: Tensor) -> Tensor:
    """Return draws of ``w ~ N(V⁻¹ Zᵀy, λV⁻¹)`` with ``V = ZᵀZ + λI``: Bayesian linear regression. O(n F² + F³).

    ``features`` Z are ``n x F``, ``y`` (``n``) observations less the prior mean, ``noise`` λ (y²), and ``normal`` standard
    normal numbers: ``F``, or ``q x F`` for q draws; the result has its shape.
    """
    V = features.mT @ features
    V.diagonal().add_(noise)
    factor = torch.linalg.cholesky(V)
    mean = torch.cholesky_solve((features.mT @ y).unsqueeze(-1), factor).squeeze(-1)
    spread = torch.linalg.solve_triangular(factor.mT, normal.reshape(-1, normal.shape[-1]).mT, upper=True)
    return mean + math.sqrt(float(noise)) * spread.mT.reshape(normal.shape)


def quadrature_error(widths: Tensor, *, order: int) -> float:
    """Return a bound on ``|Σ_j weight_j cos(ω_j·r) − exp(−½ Σ (r_i/l_i)²)|`` over a box, on a grid of 65 distances.

    The product of d one-dimensional errors is at most their sum, each over ``0 ≤ r_i/l_i ≤ widths_i``. O(65 d · order).
    """
    frequencies, weights = quadrature_frequencies(widths.new_ones(1), order=order)
    r = torch.linspace(0.0, 1.0, 65, dtype=widths.dtype, device=widths.device) * widths.unsqueeze(-1)  # d x 65
    values = (r.unsqueeze(-1) * frequencies.squeeze(-1)).cos() @ weights
    return float((values - torch.exp(-0.5 * r.square())).abs().amax(dim=-1).sum())
