"""SparseMixedGP: BoTorch's ``MixedSingleTaskGP`` (categorical columns) over a dictionary."""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.models import MixedSingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from torch import Tensor

from sparse_bo.models.sparse_gp.model import DictionaryPosterior
from sparse_bo.models.sparse_gp.options import Chosen, Fit, check_tensors, checked_options


class SparseMixedGP(DictionaryPosterior, MixedSingleTaskGP):  # type: ignore[misc]  # the base class ships no types
    """``MixedSingleTaskGP`` at O(n m²): categorical and continuous columns, over a dictionary of m points.

    Everything that :class:`sparse_bo.SparseGP` says of posterior, conditioning, leave-one-out and caches holds. The kernel is
    BoTorch's, ``k₁ + k_cat + k₂ · k_cat``; a category never seen is as far from every other as these are from each other.

    Args:
        train_X: ``batch_shape x n x d`` training inputs.
        train_Y: ``batch_shape x n x m`` observations of m outputs.
        cat_dims: Columns of ``train_X`` that are categorical, as in ``MixedSingleTaskGP``.
        train_Yvar: ``batch_shape x n x m`` known noise variances; ``None``: noise is learned.
        cont_kernel_factory: As in ``MixedSingleTaskGP``.
        likelihood: As in ``MixedSingleTaskGP``.
        outcome_transform: As in ``MixedSingleTaskGP``.
        input_transform: As in ``MixedSingleTaskGP``.
        dictionary: As in :class:`sparse_bo.SparseGP`.
        max_dictionary: As in :class:`sparse_bo.SparseGP`.
        fit: As in :class:`sparse_bo.SparseGP`.
        seed: As in :class:`sparse_bo.SparseGP`.

    Raises:
        TypeError: As :class:`sparse_bo.SparseGP` does.
        ValueError: As :class:`sparse_bo.SparseGP` and ``MixedSingleTaskGP`` do: no categorical column, or one out of range.

    Example:
        >>> model = SparseMixedGP(train_X, train_Y, cat_dims=[-1])
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        cat_dims: list[int],
        train_Yvar: Tensor | None = None,
        cont_kernel_factory: Callable[[torch.Size, int, list[int]], Kernel] | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        dictionary: Chosen = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
    ) -> None:
        check_tensors(train_X=train_X, train_Y=train_Y)
        options = checked_options(dictionary, max_dictionary, fit, seed)
        super().__init__(
            train_X,
            train_Y,
            cat_dims,
            train_Yvar,
            cont_kernel_factory=cont_kernel_factory,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self._choose(train_X, options)
