"""Sample paths of the DTC posterior by Matheron's rule at the dictionary.

Notation: ``(D, α, R)`` as in :mod:`sparse_bo.models.sparse_gp.representation`, ``f`` a prior path, ``K = k(D, D)``:

    f(·) + k(·, D) [α − R (Rᵀ (f − μ₀)(D) + ζ)],      ζ ~ N(0, I − RᵀKR)

has mean ``μ₀ + k(·, D)ᵀα`` and covariance ``k − k_Dᵀ R Rᵀ k_D``: exactly the posterior's, up to the random features of ``f``
(Wilson et al. 2020, with the pseudo-data of the dictionary in place of the data). O(m + features) per point.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.sampling.pathwise.features import KernelEvaluationMap
from botorch.sampling.pathwise.paths import GeneralizedLinearPath
from botorch.sampling.pathwise.posterior_samplers import MatheronPath
from botorch.sampling.pathwise.update_strategies import gaussian_update
from botorch.sampling.pathwise.utils import get_input_transform, get_output_transform
from botorch.utils.context_managers import delattr_ctx
from torch import Tensor

from sparse_bo.linalg.cholesky import safe_cholesky
from sparse_bo.models.sparse_gp.prior import ForwardKernel, cross_covariance, kernel_matrix
from sparse_bo.models.sparse_gp.representation import Representation
from sparse_bo.models.sparse_gp.triangular import PosteriorAtDictionary


class DictionaryMap(KernelEvaluationMap):  # type: ignore[misc]  # the base class ships no types
    """``k(x, D)``, from one matrix however points are batched: GPyTorch would hold ``D`` for every element."""

    def forward(self, x: Tensor) -> Tensor:
        """Return ``… x q x m`` of ``… x q x d``."""
        return cross_covariance(self.kernel, x, self.points)


class DictionaryPath(GeneralizedLinearPath):  # type: ignore[misc]  # the base class ships no types
    """``k(x, D) weight``, without copying the weights for every batch element of the points."""

    def forward(self, x: Tensor, **kwargs: Any) -> Tensor:
        """Return ``… x q`` of ``… x q x d``."""
        return torch.einsum("...qm,...m->...q", self.feature_map(x, **kwargs), self.weight)


Spread: TypeAlias = Callable[[Tensor], Tensor]
"""From independent standard normal numbers, ``… x r``, to ``ζ``."""


def matheron_weights(representation: Representation, spread: Spread, prior_values: Tensor) -> Tensor:
    """Return ``α − R (Rᵀ f + ζ)``, ``sample_shape x batch_shape x m``, from values ``f`` of prior paths of mean zero at ``D``.

    Draws from torch's CPU generator, as BoTorch's prior paths do: one seed gives the same paths on every device. O(m²) each.
    """
    R = representation.root
    projected = torch.einsum("...m,...mr->...r", prior_values, R)  # sample_shape x batch_shape x r
    normal = torch.randn(projected.shape, dtype=R.dtype, device="cpu").to(R.device)
    return representation.alpha - _times(R, projected + spread(normal))


def exact_spread(representation: Representation, noise: Tensor) -> Spread:
    """Return ``ζ = Rᵀ N^½ ξ`` of an exact posterior with ``batch_shape x m`` noise variances. O(m²).

    There ``R = L⁻ᵀ`` with ``L Lᵀ = K + N``, so ``I − RᵀKR = RᵀNR``.
    """
    return lambda normal: _times(representation.root.mT, noise.clamp_min(0.0).sqrt() * normal)


def spread_at_dictionary(representation: Representation, posterior: PosteriorAtDictionary) -> Spread:
    """Return ``ζ = ξ − Rᵀ (K R ξ + c)`` with ``c`` a draw of the posterior at the dictionary less its mean. O(m²).

    ``c ~ N(0, K − K R Rᵀ K)`` independent of ``ξ``, so with ``M = RᵀKR`` the covariance is ``(I − M)² + M (I − M) = I − M``.
    Draws from torch's CPU generator.
    """
    R = representation.root

    def spread(normal: Tensor) -> Tensor:
        further = torch.randn(normal.shape, dtype=R.dtype, device="cpu").to(R.device)
        several = normal.shape[: normal.dim() + 1 - R.dim()].numel()
        first, second = (part.reshape(several, *R.shape[:-1]).movedim(0, -1) for part in (normal, further))
        values = posterior.prior(R @ first) + posterior.sample(second)  # batch_shape x m x several
        return normal - (R.mT @ values).movedim(-1, 0).reshape(normal.shape)

    return spread


def sparse_spread(representation: Representation, K: Callable[[], Tensor]) -> Spread:
    """Return ``ζ`` of a conditioned or grown posterior by the Cholesky factor of ``I − RᵀKR``; ``K()`` makes ``k(D, D)``.

    O(m³) the first time for a posterior, then O(m²).
    """
    R = representation.root
    if R.requires_grad:
        factor = _factor(R, K())
    else:  # as constant as α and R are
        size = R.shape[-1] ** 2 * R.shape[:-2].numel() * R.element_size()
        with torch.no_grad():
            factor = representation.recent.once("spread", lambda: _factor(R, K()), size=size)
    return lambda normal: _times(factor, normal)


def _times(matrix: Tensor, vectors: Tensor) -> Tensor:
    """Return ``matrix @ vector`` of ``batch_shape x m x r`` and ``… x r``, without copying matrices for vectors."""
    return torch.einsum("...mr,...r->...m", matrix, vectors)


def _factor(R: Tensor, K: Tensor) -> Tensor:
    """Return the Cholesky factor of ``I − RᵀKR``, ``batch_shape x r x r``. O(m³)."""
    remainder = -(R.mT @ (K @ R))
    remainder.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return safe_cholesky(remainder).factor


def draw_matheron_path(
    model: Any, *, sample_shape: torch.Size, prior_sampler: Callable[..., Any], update_strategy: Callable[..., Any]
) -> MatheronPath:
    """Draw paths of a sparse model's posterior; registered with BoTorch's ``draw_matheron_paths``.

    ``UnsupportedError`` for an ``update_strategy`` that is not BoTorch's default (the update is the dictionary's), or if the
    prior is that of a ``forward`` that is more than ``mean_module`` and ``covar_module``.
    """
    if update_strategy is not gaussian_update:
        raise UnsupportedError("SparseGP has its own pathwise update over the dictionary; leave update_strategy at its default")
    model.eval()
    if isinstance(model.prior_kernel, ForwardKernel):
        raise UnsupportedError(
            f"random features stand for a kernel, and the prior of {type(model).__name__} is that of its forward; "
            "sample from model.posterior(X) instead of paths"
        )
    kernel, cache = model.covar_module, model.cache()
    form: Representation = cache.representation.full(kernel)
    with delattr_ctx(model, "outcome_transform"):
        prior_paths = prior_sampler(model=model, sample_shape=sample_shape)
    prior_values = prior_paths.forward(form.points) - model.mean_module(form.points)
    if cache.representation.extension is None and cache.holds_all(model.train_targets.shape[-1]):
        spread = exact_spread(form, model.data_noise(model.train_inputs[0], model.train_targets.shape).detach())
    elif form.at_dictionary is not None:
        spread = spread_at_dictionary(form, form.at_dictionary)
    else:
        spread = sparse_spread(form, lambda: kernel_matrix(kernel, form.points, form.points))
    weight = matheron_weights(form, spread, prior_values)
    feature_map = DictionaryMap(kernel=kernel, points=form.points, input_transform=get_input_transform(model))
    update_paths = DictionaryPath(feature_map=feature_map, weight=weight)
    return MatheronPath(prior_paths=prior_paths, update_paths=update_paths, output_transform=get_output_transform(model))
