"""Thompson sampling on a box: S-GP-TS by decoupled sampling, QFF-TS by quadrature Fourier features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
from botorch.optim import optimize_acqf
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from sparse_bo.core.quadrature import fourier_features, quadrature_frequencies, sample_weights
from sparse_bo.dictionary import Sampler
from sparse_bo.domains.base import Domain
from sparse_bo.kernels import gaussian_parameters
from sparse_bo.policies.botorch.gssbo import random_subset
from sparse_bo.policies.botorch.surrogate import SurrogatePolicy, SurrogateState, sparse_matern_gp
from sparse_bo.validation import check_count

Path = Callable[[Tensor], Tensor]
"""A function drawn from the posterior: ``… x d`` in the unit cube to ``…``."""


class PathValue(AcquisitionFunction):  # type: ignore[misc]  # the base class ships no types
    """The value of one drawn function."""

    def __init__(self, model: Model, path: Path) -> None:
        super().__init__(model)
        self.path = path

    @t_batch_mode_transform(expected_q=1)  # type: ignore[untyped-decorator]  # BoTorch ships no types
    def forward(self, X: Tensor) -> Tensor:
        """Return ``b`` values of ``b x 1 x d`` points."""
        return self.path(X.squeeze(-2))


def maximise_paths(policy: SurrogatePolicy, state: SurrogateState, q: int, draw: Callable[[], Path]) -> Tensor:
    """Draw q functions and return their maximisers, ``q x d`` in the unit cube."""
    points = [
        optimize_acqf(
            PathValue(state.surrogate, draw()),
            bounds=state.box.unit_bounds,
            q=1,
            num_restarts=policy.num_restarts,
            raw_samples=policy.raw_samples,
        )[0]
        for _ in range(q)
    ]
    return torch.cat(points)


@dataclass(frozen=True, kw_only=True, eq=False)
class SGPTS(SurrogatePolicy):
    """Thompson sampling with a sparse GP by decoupled sampling (S-GP-TS, Vakili et al. 2021; Wilson et al. 2020).

    The surrogate is :class:`sparse_bo.SparseGP` with a Matérn-5/2 kernel; a function is drawn as a prior path of random
    Fourier features and an update at the dictionary: O(m · features) per point, whatever n is. Each point of a batch has a
    function of its own. Settings: :class:`SurrogatePolicy`, of which ``width`` and ``acquisition`` have no effect.

    Attributes:
        dictionary: A sampler; default: that of :class:`sparse_bo.SparseGP`.
        max_dictionary: m, cap of the default dictionary.
    """

    dictionary: Sampler | None = None
    max_dictionary: int = 200
    warm_start: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_dictionary", self.max_dictionary)
        if self.dictionary is not None and not isinstance(self.dictionary, Sampler):
            raise TypeError(f"expected dictionary to be a sampler or None, got {type(self.dictionary).__name__}")

    @property
    def name(self) -> str:
        """``"s-gp-ts"``."""
        return "s-gp-ts"

    def _default_surrogate(self, X: Tensor, Y: Tensor) -> Model:
        return sparse_matern_gp(X, Y, dictionary=self.dictionary, max_dictionary=self.max_dictionary)

    def _candidates(self, state: SurrogateState, q: int, pending: Tensor) -> Tensor:
        model = state.surrogate
        return maximise_paths(self, state, q, lambda: draw_matheron_paths(model, torch.Size([])))


ORDERS: Mapping[int, int] = {1: 64, 2: 24, 3: 10}
"""Quadrature nodes per dimension of QFF-TS by number of inputs: at most 1,000 features."""

LEARNING_POINTS = 500
"""QFF-TS learns its hyper-parameters from at most so many observations."""


@dataclass(frozen=True, kw_only=True, eq=False)
class QFFTS(SurrogatePolicy):
    """Thompson sampling with quadrature Fourier features (QFF-TS, Mutný & Krause 2018): Gaussian kernel, d ≤ 3.

    The kernel's hyper-parameters are learned from at most :data:`LEARNING_POINTS` random observations; a function is drawn
    from Bayesian linear regression of all observations on F features, O(n F² + F³) per batch. Settings:
    :class:`SurrogatePolicy`, of which ``width`` and ``acquisition`` have no effect; ``surrogate`` must have an ``RBFKernel``
    (``ScaleKernel`` around it or not).

    Attributes:
        order: Quadrature nodes per dimension; ``None``: 64, 24 or 10 in 1, 2 or 3 dimensions. The kernel is exact to
            round-off while ``order`` exceeds half the square of the box's width in lengthscales.
    """

    order: int | None = None
    warm_start: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order is not None:
            check_count("order", self.order)

    @property
    def name(self) -> str:
        """``"qff-ts"``."""
        return "qff-ts"

    def init(self, domain: Domain) -> SurrogateState:
        """See :meth:`sparse_bo.policies.Policy.init`.

        Raises:
            ValueError: If the box has more than three dimensions.
        """
        state = super().init(domain)
        if state.box.dims > max(ORDERS):
            raise ValueError(
                f"QFF-TS needs orderᵈ features and takes boxes of d <= {max(ORDERS)}, got d = {state.box.dims}; use SGPTS"
            )
        return state

    def _default_surrogate(self, X: Tensor, Y: Tensor) -> Model:
        return SingleTaskGP(X, Y, covar_module=get_covar_module_with_dim_scaled_prior(ard_num_dims=X.shape[-1]))

    def _subset(self, state: SurrogateState, newest: int, generator: torch.Generator) -> Tensor:
        n = len(state.y)
        if n <= LEARNING_POINTS:
            return torch.arange(n, device=state.y.device)
        return random_subset(n, size=LEARNING_POINTS, initial=0, newest=0, generator=generator).to(state.y.device)

    def _fitted(self, state: SurrogateState, subset: Tensor) -> Model:
        model = super()._fitted(state, subset)
        gaussian_parameters(getattr(model, "covar_module", None), dims=state.box.dims)
        return model

    def _candidates(self, state: SurrogateState, q: int, pending: Tensor) -> Tensor:
        model = state.surrogate
        assert model is not None
        with torch.no_grad():
            lengthscale, variance = gaussian_parameters(model.covar_module, dims=state.box.dims)
            X = state.box.to_unit(state.X)
            y = model.outcome_transform(state.y.unsqueeze(-1))[0].squeeze(-1) - model.mean_module(X)
            order = self.order or ORDERS[state.box.dims]
            frequencies, weights = quadrature_frequencies(lengthscale, order=order)
            features = fourier_features(X, frequencies, weights * variance)

        def draw() -> Path:
            normal = torch.randn(features.shape[-1], dtype=features.dtype).to(features.device)
            w = sample_weights(features, y, noise=model.likelihood.noise.item(), normal=normal)
            return lambda U: fourier_features(U, frequencies, weights * variance) @ w

        return maximise_paths(self, state, q, draw)
