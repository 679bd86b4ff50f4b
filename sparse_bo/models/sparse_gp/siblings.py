"""SparseMixedGP, SparseMultiFidelityGP and SparseMultiTaskGP: three more exact GPs of BoTorch over a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.cross_validation import CVResults
from botorch.models import MixedSingleTaskGP, MultiTaskGP, SingleTaskMultiFidelityGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.kernels import Kernel
from gpytorch.likelihoods import Likelihood
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Module

from sparse_bo.models.sparse_gp.dictionary_rule import DictionaryOption
from sparse_bo.models.sparse_gp.learning import Fit
from sparse_bo.models.sparse_gp.model import SparseModel, SparseSettings
from sparse_bo.models.sparse_gp.state import check_training_data


class SparseMixedGP(SparseModel, MixedSingleTaskGP):  # type: ignore[misc]  # the base class ships no types
    """``MixedSingleTaskGP`` at O(n m²): categorical and continuous columns, over a dictionary of m points.

    Posterior, conditioning, leave-one-out and caches are those of :class:`sparse_bo.SparseGP`. The kernel is
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
        settings: As in :class:`sparse_bo.SparseGP`.

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
        dictionary: DictionaryOption = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
        settings: SparseSettings | None = None,
    ) -> None:
        check_training_data(train_X=train_X, train_Y=train_Y)
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
        self._configure(train_X, dictionary=dictionary, max_dictionary=max_dictionary, fit=fit, seed=seed, settings=settings)


class SparseMultiFidelityGP(SparseModel, SingleTaskMultiFidelityGP):  # type: ignore[misc]  # the base ships no types
    """``SingleTaskMultiFidelityGP`` at O(n m²): fidelity columns, over a dictionary of m points.

    Posterior, conditioning, leave-one-out and caches are those of :class:`sparse_bo.SparseGP`. The kernel is
    BoTorch's: linearly truncated, or downsampling and exponential decay.

    Args:
        train_X: ``batch_shape x n x (d + s)`` training inputs with s fidelity columns.
        train_Y: ``batch_shape x n x m`` observations of m outputs.
        train_Yvar: ``batch_shape x n x m`` known noise variances; ``None``: noise is learned.
        iteration_fidelity: As in ``SingleTaskMultiFidelityGP``.
        data_fidelities: As in ``SingleTaskMultiFidelityGP``.
        linear_truncated: As in ``SingleTaskMultiFidelityGP``.
        nu: As in ``SingleTaskMultiFidelityGP``.
        covar_module: As in ``SingleTaskMultiFidelityGP``.
        likelihood: As in ``SingleTaskMultiFidelityGP``.
        outcome_transform: As in ``SingleTaskMultiFidelityGP``.
        input_transform: As in ``SingleTaskMultiFidelityGP``.
        dictionary: As in :class:`sparse_bo.SparseGP`.
        max_dictionary: As in :class:`sparse_bo.SparseGP`.
        fit: As in :class:`sparse_bo.SparseGP`.
        seed: As in :class:`sparse_bo.SparseGP`.
        settings: As in :class:`sparse_bo.SparseGP`.

    Raises:
        TypeError: As :class:`sparse_bo.SparseGP` does.
        ValueError: As :class:`sparse_bo.SparseGP` does.
        UnsupportedError: As ``SingleTaskMultiFidelityGP`` does: no fidelity column, or a kernel beside the truncated one.

    Example:
        >>> model = SparseMultiFidelityGP(train_X, train_Y, data_fidelities=[3])
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        iteration_fidelity: int | None = None,
        data_fidelities: Sequence[int] | None = None,
        linear_truncated: bool = True,
        nu: float = 2.5,
        covar_module: Module | None = None,
        likelihood: Likelihood | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        dictionary: DictionaryOption = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
        settings: SparseSettings | None = None,
    ) -> None:
        check_training_data(train_X=train_X, train_Y=train_Y)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            iteration_fidelity=iteration_fidelity,
            data_fidelities=data_fidelities,
            linear_truncated=linear_truncated,
            nu=nu,
            covar_module=covar_module,
            likelihood=likelihood,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        self._configure(train_X, dictionary=dictionary, max_dictionary=max_dictionary, fit=fit, seed=seed, settings=settings)


class SparseMultiTaskGP(SparseModel, MultiTaskGP):  # type: ignore[misc]  # the base class ships no types
    """``MultiTaskGP`` at O(n m²): the rows of all tasks share one dictionary of m rows, each of its own task.

    Posterior, conditioning, leave-one-out and caches are those of :class:`sparse_bo.SparseGP`; leave-one-out
    predicts each row at its own task. The kernel is BoTorch's intrinsic coregionalisation model.

    Args:
        train_X: ``n x (d + 1)`` training inputs, one column of which is the task.
        train_Y: ``n x 1`` observations.
        task_feature: The task column, as in ``MultiTaskGP``.
        train_Yvar: ``n x 1`` known noise variances; ``None``: noise is learned, one variance for each task.
        mean_module: As in ``MultiTaskGP``.
        covar_module: As in ``MultiTaskGP``.
        likelihood: As in ``MultiTaskGP``.
        task_covar_prior: As in ``MultiTaskGP``.
        output_tasks: As in ``MultiTaskGP``.
        rank: As in ``MultiTaskGP``.
        all_tasks: As in ``MultiTaskGP``.
        outcome_transform: As in ``MultiTaskGP``.
        input_transform: As in ``MultiTaskGP``.
        validate_task_values: As in ``MultiTaskGP``.
        dictionary: As in :class:`sparse_bo.SparseGP`; points have the task column.
        max_dictionary: As in :class:`sparse_bo.SparseGP`.
        fit: As in :class:`sparse_bo.SparseGP`.
        seed: As in :class:`sparse_bo.SparseGP`.
        settings: As in :class:`sparse_bo.SparseGP`.

    Raises:
        TypeError: As :class:`sparse_bo.SparseGP` does.
        ValueError: As :class:`sparse_bo.SparseGP` and ``MultiTaskGP`` do: a task column out of range, a batch of data sets.
        RuntimeError: As ``MultiTaskGP`` does, for output tasks without data.

    Example:
        >>> model = SparseMultiTaskGP(train_X, train_Y, task_feature=-1)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    has_module_prior = False  # BoTorch's forward maps task values to indices, and takes each task's mean

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        task_feature: int,
        train_Yvar: Tensor | None = None,
        mean_module: Module | None = None,
        covar_module: Module | None = None,
        likelihood: Likelihood | None = None,
        task_covar_prior: Prior | _DefaultType | None = DEFAULT,
        output_tasks: list[int] | None = None,
        rank: int | None = None,
        all_tasks: list[int] | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        validate_task_values: bool = True,
        *,
        dictionary: DictionaryOption = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
        settings: SparseSettings | None = None,
    ) -> None:
        check_training_data(train_X=train_X, train_Y=train_Y)
        super().__init__(
            train_X,
            train_Y,
            task_feature,
            train_Yvar,
            mean_module=mean_module,
            covar_module=covar_module,
            likelihood=likelihood,
            task_covar_prior=task_covar_prior,
            output_tasks=output_tasks,
            rank=rank,
            all_tasks=all_tasks,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
            validate_task_values=validate_task_values,
        )
        self._configure(train_X, dictionary=dictionary, max_dictionary=max_dictionary, fit=fit, seed=seed, settings=settings)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return the posterior at ``X``, with or without task column, as ``MultiTaskGP`` does. O(q m r).

        Args:
            X: ``batch_shape x q x (d + 1)``, or ``batch_shape x q x d`` for all output tasks.
            output_indices: As in ``MultiTaskGP``.
            observation_noise: As in ``MultiTaskGP``.
            posterior_transform: Transform of the posterior.
        """
        return MultiTaskGP.posterior(self, X, output_indices, observation_noise, posterior_transform)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Self:
        """Condition the posterior process on new observations at inputs with a task column. O(q m r), independent of n.

        Args:
            X: ``batch_shape x q x (d + 1)`` inputs of the new observations.
            Y: ``batch_shape' x q x 1``, as in ``MultiTaskGP``.
            **kwargs: ``noise``, as ``Y``, in the outcome transform's units; the rest goes to ``get_fantasy_model``.
        """
        fantasy: Self = GPyTorchModel.condition_on_observations(self, X, Y, **kwargs)
        return fantasy

    def leave_one_out(self, *, observation_noise: bool = True, untransform: bool = True) -> CVResults:
        """Predict every observation, at its own task, from all others, as :meth:`sparse_bo.SparseGP.leave_one_out` does.

        Args:
            observation_noise: As in :meth:`sparse_bo.SparseGP.leave_one_out`.
            untransform: As in :meth:`sparse_bo.SparseGP.leave_one_out`.

        Returns:
            ``posterior`` and ``observed_Y`` of shape ``n x 1 x 1``, however many output tasks there are.
        """
        return self._left_out_results(1, observation_noise, untransform)  # each row is of one task
