"""Thompson sampling on boxes: sample paths and their maximisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.sampling.pathwise import draw_matheron_paths
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from sparse_bo.dictionary import Sampler
from sparse_bo.domains import Domain
from sparse_bo.kernels import gaussian_parameters
from sparse_bo.kernels.quadrature import fourier_features, quadrature_frequencies, sample_weights
from sparse_bo.policies.protocol import box_of
from sparse_bo.policies.subset.proposers import Fitted, Restarts
from sparse_bo.policies.subset.subsets import Buffer, FixedSize, RandomRows
from sparse_bo.policies.subset.surrogate_loop import SurrogateLoop, SurrogateSettings, surrogate_loop
from sparse_bo.policies.subset.surrogate_models import exact_gaussian_gp, sparse_or_exact_matern_gp, with_gaussian_kernel
from sparse_bo.validation import check_count

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("max_dictionary", self.max_dictionary)
        if self.dictionary is not None and not isinstance(self.dictionary, Sampler):
            raise TypeError(f"expected dictionary to be a sampler or None, got {type(self.dictionary).__name__}")

    @property
    def name(self) -> str:
        """``"s-gp-ts"``."""
        return "s-gp-ts"

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        options = {"dictionary": self.dictionary, "max_dictionary": self.max_dictionary}
        sparse_gp = sparse_or_exact_matern_gp(self.learning, **options)
        return surrogate_loop(
            self,
            box_of(domain, policy=self.name),
            make=self.surrogate or sparse_gp,
            proposer=MaximisePaths(matheron_paths, Restarts(self.num_restarts, self.raw_samples)),
        )


ORDERS: Mapping[int, int] = {1: 64, 2: 24, 3: 10}
"""Quadrature nodes per dimension of QFF-TS by number of inputs: at most 1,000 features."""

LEARNING_POINTS = 500
"""QFF-TS learns its hyper-parameters from at most so many observations."""


@dataclass(frozen=True, kw_only=True, eq=False)
class QFFTS(SurrogateSettings):
    """Thompson sampling with quadrature Fourier features (QFF-TS, Mutný & Krause 2018): Gaussian kernel, d ≤ 3.

    The kernel's hyper-parameters are learned from at most :data:`LEARNING_POINTS` random observations; a function is drawn
    from Bayesian linear regression of all observations on F features, O(n F² + F³) per batch. Settings:
    :class:`SurrogateSettings`, of which ``width`` and ``acquisition`` have no effect; ``surrogate`` must have an ``RBFKernel``
    (``ScaleKernel`` around it or not).

    Attributes:
        order: Quadrature nodes per dimension; ``None``: 64, 24 or 10 in 1, 2 or 3 dimensions. The kernel is exact to
            round-off while ``order`` exceeds half the square of the box's width in lengthscales.
    """

    order: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order is not None:
            check_count("order", self.order)

    @property
    def name(self) -> str:
        """``"qff-ts"``."""
        return "qff-ts"

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`.

        Raises:
            ValueError: If the box has more than three dimensions.
        """
        box = box_of(domain, policy=self.name)
        if box.dims > max(ORDERS):
            raise ValueError(
                f"QFF-TS needs orderᵈ features and takes boxes of d <= {max(ORDERS)}, got d = {box.dims}; use SGPTS"
            )
        paths = QuadraturePaths(self.order or ORDERS[box.dims])
        return surrogate_loop(
            self,
            box,
            make=with_gaussian_kernel(self.surrogate or exact_gaussian_gp(self.learning)),
            subset=Buffer(FixedSize(LEARNING_POINTS), RandomRows(initial=0, keep_newest=False)),
            proposer=MaximisePaths(paths, Restarts(self.num_restarts, self.raw_samples)),
        )
