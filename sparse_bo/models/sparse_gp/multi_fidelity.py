"""SparseMultiFidelityGP: BoTorch's ``SingleTaskMultiFidelityGP`` over a dictionary."""

from __future__ import annotations

from collections.abc import Sequence

from botorch.models import SingleTaskMultiFidelityGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import Likelihood
from torch import Tensor
from torch.nn import Module

from sparse_bo.models.sparse_gp.model import DictionaryPosterior
from sparse_bo.models.sparse_gp.options import Chosen, Fit, check_tensors, checked_options


class SparseMultiFidelityGP(DictionaryPosterior, SingleTaskMultiFidelityGP):  # type: ignore[misc]  # the base ships no types
    """``SingleTaskMultiFidelityGP`` at O(n m²): fidelity columns, over a dictionary of m points.

    Everything that :class:`sparse_bo.SparseGP` says of posterior, conditioning, leave-one-out and caches holds. The kernel is
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
        self._choose(train_X, options)
