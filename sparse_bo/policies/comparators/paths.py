"""Thompson sampling on a box: maximisers of functions drawn from the posterior of a fitted model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from sparse_bo.kernels import gaussian_parameters
from sparse_bo.kernels.quadrature import fourier_features, quadrature_frequencies, sample_weights
from sparse_bo.policies.subset.proposers import Fitted, Restarts

Path = Callable[[Tensor], Tensor]
"""A function drawn from the posterior: ``… x d`` in the unit cube to ``…``."""
PathSampler = Callable[[Fitted], Callable[[], Path]]
"""From a fitted model to a function that draws posterior paths, with the global generators."""


class PathValue(AcquisitionFunction):  # type: ignore[misc]  # the base class ships no types
    """The value of one drawn function."""

    def __init__(self, model: Model, path: Path) -> None:
        super().__init__(model)
        self.path = path

    @t_batch_mode_transform(expected_q=1)  # type: ignore[untyped-decorator]  # BoTorch ships no types
    def forward(self, X: Tensor) -> Tensor:
        """Return ``b`` values of ``b x 1 x d`` points."""
        return self.path(X.squeeze(-2))


@dataclass(frozen=True, eq=False)
class MaximisePaths:
    """Thompson sampling: each point of a batch maximises a posterior path of its own.

    Pending points are ignored: each maximises another path.

    Attributes:
        sampler: Draws the paths.
        search: Settings of their maximisation.
    """

    sampler: PathSampler
    search: Restarts

    def __call__(self, fitted: Fitted, q: int, *, pending: Tensor) -> Tensor:
        """See :class:`sparse_bo.policies.subset.proposers.Proposer`."""
        draw = self.sampler(fitted)
        return torch.cat([self.search.maximise(PathValue(fitted.model, draw()), fitted.bounds) for _ in range(q)])


def matheron_paths(fitted: Fitted) -> Callable[[], Path]:
    """Return a function that draws paths by decoupled sampling (Wilson et al. 2020).

    A draw is a prior path of random Fourier features, and an update at the dictionary (an exact GP: at all data).
    """
    return lambda: draw_matheron_paths(fitted.model, torch.Size([]))


@dataclass(frozen=True)
class QuadraturePaths:
    """Draws from Bayesian linear regression of all observations on F quadrature Fourier features (Mutný & Krause 2018).

    Kernel, mean, noise and transform come from the model, the data are all observations. O(n F² + F³) per function.

    Attributes:
        order: Nodes per dimension; F is about its d-th power.
    """

    order: int

    def __call__(self, fitted: Fitted) -> Callable[[], Path]:
        """Return a function that draws paths.

        Raises:
            ValueError: If the model has no Gaussian kernel.
        """
        model = fitted.model
        with torch.no_grad():
            lengthscale, variance = gaussian_parameters(model.covar_module, dims=fitted.X.shape[-1])
            y = model.outcome_transform(fitted.y.unsqueeze(-1))[0].squeeze(-1) - model.mean_module(fitted.X)
            frequencies, weights = quadrature_frequencies(lengthscale, order=self.order)
            features = fourier_features(fitted.X, frequencies, weights * variance)

        def draw() -> Path:
            normal = torch.randn(features.shape[-1], dtype=features.dtype, device="cpu").to(features.device)
            w = sample_weights(features, y, noise=model.likelihood.noise.item(), normal=normal)
            return lambda U: fourier_features(U, frequencies, weights * variance) @ w

        return draw
