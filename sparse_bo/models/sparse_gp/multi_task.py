"""SparseMultiTaskGP: BoTorch's ``MultiTaskGP`` (several tasks that inform each other) over a dictionary."""

from __future__ import annotations

from typing import Any

from botorch.acquisition.objective import PosteriorTransform
from botorch.cross_validation import CVResults
from botorch.models import MultiTaskGP
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import Likelihood
from gpytorch.priors import Prior
from torch import Tensor
from torch.nn import Module

from sparse_bo.models.sparse_gp.model import DictionaryPosterior
from sparse_bo.models.sparse_gp.options import Chosen, Fit, check_tensors, checked_options


class SparseMultiTaskGP(DictionaryPosterior, MultiTaskGP):  # type: ignore[misc]  # the base class ships no types
    """``MultiTaskGP`` at O(n m²): the rows of all tasks share one dictionary of m rows, each of its own task.

    Everything that :class:`sparse_bo.SparseGP` says of posterior, conditioning, leave-one-out and caches holds; leave-one-out
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

    Raises:
        TypeError: As :class:`sparse_bo.SparseGP` does.
        ValueError: As :class:`sparse_bo.SparseGP` and ``MultiTaskGP`` do: a task column out of range, a batch of data sets.
        RuntimeError: As ``MultiTaskGP`` does, for output tasks without data.

    Example:
        >>> model = SparseMultiTaskGP(train_X, train_Y, task_feature=-1)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    """

    _prior_of_modules = False  # BoTorch's forward maps task values to indices, and takes each task's mean
    _num_outputs: int

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
        self._choose(train_X, options)

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
            posterior_transform: What is applied to the posterior at the end.
        """
        return MultiTaskGP.posterior(self, X, output_indices, observation_noise, posterior_transform)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> SparseMultiTaskGP:
        """Condition the posterior process on new observations at inputs with a task column. O(q m r), independent of n.

        Args:
            X: ``batch_shape x q x (d + 1)`` inputs of the new observations.
            Y: ``batch_shape' x q x 1``, as in ``MultiTaskGP``.
            **kwargs: ``noise``, as ``Y``, in the outcome transform's units; the rest goes to ``get_fantasy_model``.
        """
        fantasy: SparseMultiTaskGP = GPyTorchModel.condition_on_observations(self, X, Y, **kwargs)
        return fantasy

    def leave_one_out(self, *, observation_noise: bool = True, untransform: bool = True) -> CVResults:
        """Predict every observation, at its own task, from all others, as :meth:`sparse_bo.SparseGP.leave_one_out` does.

        Args:
            observation_noise: As in :meth:`sparse_bo.SparseGP.leave_one_out`.
            untransform: As in :meth:`sparse_bo.SparseGP.leave_one_out`.

        Returns:
            ``posterior`` and ``observed_Y`` of shape ``n x 1 x 1``, however many output tasks there are.
        """
        tasks = self._num_outputs
        self._num_outputs = 1  # each row is of one task; BoTorch would look for a column per output task
        try:
            return super().leave_one_out(observation_noise=observation_noise, untransform=untransform)
        finally:
            self._num_outputs = tasks
