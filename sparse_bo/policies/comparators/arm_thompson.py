"""Thompson sampling over arms: S-GP-TS by decoupled sampling, QFF-TS by quadrature Fourier features."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from botorch.sampling.pathwise.features import gen_kernel_features
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.arms import ArmPosterior
from sparse_bo.domains import ArmSet
from sparse_bo.domains.sharded import alone, first_here, group_of
from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.dtc import decoupled_weights
from sparse_bo.kernels import covariance_function, gaussian_parameters
from sparse_bo.kernels.quadrature import fourier_features, quadrature_error, quadrature_frequencies, sample_weights
from sparse_bo.kernels.structure import part_outside
from sparse_bo.policies.bandits.state import BanditState
from sparse_bo.policies.comparators.box_thompson import ORDERS
from sparse_bo.policies.comparators.posterior_policy import PosteriorChoice, PosteriorPolicy
from sparse_bo.policies.failures import Refusal
from sparse_bo.seeding import seeded
from sparse_bo.validation import check_count

DRAWS = "the best arms of draws"
QUADRATURE_TOLERANCE = 0.01
"""Largest error of the quadrature, in units of the kernel's variance, that QFF-TS accepts."""


class _Best:
    """The best arm of each of q draws over the chunks of a sweep, the first of ties. Lives for one ask.

    Every rank evaluates its own shard; the best arms are then found together.
    """

    def __init__(self, posterior: ArmPosterior, q: int, refuse: Refusal | None) -> None:
        self.here, self.arms = posterior.here, posterior.prior.arms
        self.group, device = group_of(self.arms), self.arms.device
        self.first = first_here(self.arms)
        prior = self.here.prior
        self.allowed = torch.ones(prior.arms.shape[0], dtype=torch.bool, device=device)
        if prior.repeats is not None:
            self.allowed[prior.repeats] = False
        if refuse is not None:
            self._exclude(refuse)
        self.values = self.here.means.new_full((q,), -math.inf)
        self.indices = torch.zeros(q, dtype=torch.int64, device=device)

    def _exclude(self, refuse: Refusal) -> None:
        step = "excluded arms"
        every = self.first + torch.arange(len(self.allowed), device=self.allowed.device)
        with self.group.shielded(step), alone(self.arms):
            allowed = self.allowed & ~refuse(every)
        if self.group.largest(step, [float(allowed.any())])[0]:
            self.allowed = allowed

    def add(self, part: slice, draws: Tensor) -> None:
        """Add the draws at the arms of ``part``, ``rows x q``."""
        values, rows = draws.masked_fill(~self.allowed[part].unsqueeze(-1), -math.inf).max(dim=0)
        better = values > self.values
        self.values = torch.where(better, values, self.values)
        self.indices = torch.where(better, rows + part.start, self.indices)

    def of_all(self) -> Tensor:
        """Return the ``q`` best arms; of equal arms on several ranks the first, whose draws differ by round-off."""
        if self.group.size == 1:
            return self.indices
        rows = self.here.prior.arms[self.indices] if len(self.allowed) else self.arms[:0].expand(len(self.values), -1)
        all_ranks = self.group.tensors(DRAWS, [self.values, self.indices + self.first, rows])
        values, indices = (torch.stack([part[k] for part in all_ranks]) for k in range(2))
        X = torch.stack([part[2] if len(part[2]) else part[2].new_zeros(rows.shape) for part in all_ranks])  # ranks x q x d
        best = X[values.argmax(dim=0), torch.arange(len(self.values), device=X.device)]
        equal = (best == X).all(dim=-1) & (values > -math.inf)
        return torch.where(equal, indices, 2**62).amin(dim=0).to(self.indices)


@dataclass(frozen=True, kw_only=True, eq=False)
class DecoupledDraws:
    """The best arms of draws from the DTC posterior by decoupled sampling.

    Attributes:
        features: Random Fourier features of the prior draw.
    """

    features: int

    def __call__(self, posterior: ArmPosterior, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """Draw one integer (the seed of the features), then ``q`` times (features + r) normal numbers."""
        arms, best = posterior.prior.arms, _Best(posterior, q, state.refusal())
        with torch.no_grad():
            with seeded(generator, device=arms.device):
                kernel = posterior.prior.covariance.kernel
                phi = gen_kernel_features(kernel, num_inputs=arms.shape[1], num_outputs=self.features)
            rank = posterior.state.factor.rank
            normal = torch.randn(q, self.features + rank, generator=generator, device="cpu", dtype=arms.dtype).to(arms.device)
            prior, spread = normal[:, : self.features], normal[:, self.features :]
            weights = decoupled_weights(posterior.state, prior @ phi(posterior.dictionary.points).mT, spread)  # m x q
            with best.group.shielded(DRAWS):
                for part, K_DX in best.here.kernel_chunks():
                    best.add(part, phi(best.here.prior.arms[part]) @ prior.mT + K_DX.mT @ weights)
        return best.of_all()


@dataclass(frozen=True, kw_only=True, eq=False)
class SGPTSArms(PosteriorPolicy):
    """Thompson sampling over arms with a sparse GP by decoupled sampling (S-GP-TS, Vakili et al. 2021; Wilson et al. 2020).

    Each arm of a batch maximises its own draw from the DTC posterior: a prior draw of random Fourier features, with new weights
    for each draw, and an exact update at the dictionary (:mod:`sparse_bo.gp.dtc`).
    O(a (m + features) q) per batch of q, in addition to BKB's O(a m² + n m²) for the posterior, without an ``a x a`` matrix.
    Kernels: RBF and Matérn, and a ScaleKernel of these.

    Settings shared with other policies: :class:`sparse_bo.policies.comparators.posterior_policy.PosteriorPolicy`.

    Attributes:
        features: Random Fourier features, even; their error (about 1/√features of the prior variance) affects the
            prior draw only; the update corrects it at the data.
    """

    features: int = 512

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_count("features", self.features, minimum=2) % 2:
            raise ValueError(f"expected an even number of features (cosines and sines), got {self.features}")

    @property
    def name(self) -> str:
        """``"s-gp-ts-arms"``."""
        return "s-gp-ts-arms"

    def choice(self, arms: ArmSet) -> PosteriorChoice:
        """See :meth:`sparse_bo.policies.comparators.posterior_policy.PosteriorPolicy.choice`.

        Raises:
            ValueError: If there are no random features of the kernel.
        """
        if self.covar_module is not None:
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
        return DecoupledDraws(features=self.features)


@dataclass(frozen=True, kw_only=True, eq=False)
class QuadratureDraws:
    """The best arms of draws from Bayesian linear regression on quadrature Fourier features.

    Attributes:
        order: Quadrature nodes per dimension.
        learned: Whether the kernel is learned, so that every batch checks the order.
    """

    order: int
    learned: bool

    def __call__(self, posterior: ArmPosterior, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """Draw ``q`` times F normal numbers.

        Warns:
            NumericalWarning: If a learned kernel is too narrow for the order.
        """
        observed, surrogate, best = state.observations, posterior.prior, _Best(posterior, q, state.refusal())
        kernel, dims = surrogate.covariance.kernel, surrogate.arms.shape[1]
        error = self.check_order(kernel, surrogate.arms) if self.learned else None
        if error is not None:
            warnings.warn(error, NumericalWarning, stacklevel=2)
        with torch.no_grad():
            lengthscale, variance = gaussian_parameters(kernel, dims=dims)
            frequencies, weights = quadrature_frequencies(lengthscale, order=self.order)
            weights = weights * variance
            roots = observed.counts.sqrt()  # a mean of c pulls with weight c, as c rows
            Z = fourier_features(observed.X, frequencies, weights) * roots.unsqueeze(-1)
            y = (observed.means - surrogate.prior_mean) * roots
            normal = torch.randn(q, Z.shape[1], generator=generator, device="cpu", dtype=Z.dtype).to(Z.device)
            w = sample_weights(Z, y, noise=surrogate.regularization, normal=normal)
            with best.group.shielded(DRAWS):
                for part, _ in best.here.kernel_chunks():
                    best.add(part, fourier_features(best.here.prior.in_memory[part], frequencies, weights) @ w.mT)
        return best.of_all()

    def check_order(self, kernel: Kernel, arms: ArmSet) -> str | None:
        """Return a message if the kernel is too narrow for the order over the arms, else ``None``."""
        lengthscale, _ = gaussian_parameters(kernel, dims=arms.shape[1])
        error = quadrature_error((arms.amax(dim=0) - arms.amin(dim=0)) / lengthscale, order=self.order)
        if error <= QUADRATURE_TOLERANCE:
            return None
        return (
            f"{self.order} quadrature nodes per dimension miss the kernel by up to {error:.1g} of its variance "
            f"(more than {QUADRATURE_TOLERANCE}) over these arms; raise order, use a longer lengthscale, or SGPTSArms"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class QFFTSArms(PosteriorPolicy):
    """Thompson sampling over arms with quadrature Fourier features (QFF-TS, Mutný & Krause 2018): Gaussian kernel, d ≤ 3.

    Each arm of a batch maximises its own draw from Bayesian linear regression of all observations on F ≤ orderᵈ + 1
    features. O(n F² + F³ + a F q) per batch of q. The sparse posterior serves reports and hyper-parameters; the draws
    do not use it.

    Settings shared with other policies: :class:`sparse_bo.policies.comparators.posterior_policy.PosteriorPolicy`.

    Attributes:
        order: Quadrature nodes per dimension; ``None``: 64, 24 or 10 in 1, 2 or 3 dimensions. The kernel is
            exact to round-off while ``order`` is well above half the square of the arms' width in lengthscales.
    """

    order: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order is not None:
            check_count("order", self.order)

    @property
    def name(self) -> str:
        """``"qff-ts-arms"``."""
        return "qff-ts-arms"

    def choice(self, arms: ArmSet) -> PosteriorChoice:
        """See :meth:`sparse_bo.policies.comparators.posterior_policy.PosteriorPolicy.choice`.

        Raises:
            ValueError: If the arms have more than three columns, or the kernel is not Gaussian or too narrow for the order.
        """
        dims = arms.shape[1]
        if dims > max(ORDERS):
            raise ValueError(f"expected arms of d <= {max(ORDERS)} for QFF-TS (orderᵈ features), got d = {dims}; use SGPTSArms")
        draws = QuadratureDraws(order=ORDERS[dims] if self.order is None else self.order, learned=self.covar_module is None)
        if self.covar_module is not None:
            message = draws.check_order(covariance_function(self.covar_module, like=arms[:2]).kernel, arms)
            if message is not None:
                raise ValueError(message)
        return draws
