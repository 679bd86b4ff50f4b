"""A fitted GP's kernel and hyper-parameters on more data than it was fitted to."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from botorch import settings
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from torch import Tensor

from sparse_bo.models.gradient_subset import checked_data, checked_gp
from sparse_bo.models.sparse_gp import SparseGP


def condition_on_all(model: Model, X: Tensor, Y: Tensor, *, max_dictionary: int | None = None) -> SparseGP:
    """Return a GP with a fitted model's hyper-parameters that knows all data.

    Two budgets: learning costs tens of likelihoods of its points, prediction one Cholesky factor of all. So learn from a
    subset (:func:`sparse_bo.gradient_subset`, or a random one) and predict from everything.

    Kernel, mean, noise and transforms are copies of the model's, transforms with what they have learned: the outputs are
    standardised by mean and standard deviation of the *subset*, in whose units the hyper-parameters are. Up to
    ``max_dictionary`` observations the posterior is the exact GP's, O(n³/3) once; beyond, :class:`sparse_bo.SparseGP`'s DTC
    posterior over as many points, O(n m²).

    Args:
        model: A fitted ``SingleTaskGP`` (or :class:`sparse_bo.SparseGP`) of one output, with a Gaussian likelihood with one
            noise variance. What makes it special must be in its kernel and mean: ``forward`` is that of ``SingleTaskGP``.
        X: ``n x d`` all inputs, in the model's units.
        Y: ``n x 1`` (or ``n``) all observations.
        max_dictionary: As in :class:`sparse_bo.SparseGP`: 4,096 up to n = 10⁵.

    Returns:
        A model in evaluation mode whose parameters take no gradients.

    Raises:
        TypeError: If the model is none of these, or an argument has the wrong kind, dtype or device.
        ValueError: If shapes do not fit, or values are not finite.

    Example:
        >>> subset = gradient_subset(model, X, Y, size=100, initial=20, generator=generator)
        >>> small = SingleTaskGP(X[subset], Y[subset])
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(small.likelihood, small))
        >>> model = condition_on_all(small, X, Y)  # for the acquisition function; the next selection takes small
    """
    X, y = checked_data(X, Y)
    checked_gp(model)
    if not isinstance(model, SingleTaskGP) or type(model).forward not in (SingleTaskGP.forward, SparseGP.forward):
        raise TypeError(
            f"expected a SingleTaskGP with its own forward, got {type(model).__name__}; put what it does to its inputs into "
            "the kernel, or condition on the subset alone"
        )
    model.eval()  # the transforms then apply what they have learned
    parts = ("likelihood", "covar_module", "mean_module", "input_transform")
    copies: dict[str, Any] = {part: deepcopy(getattr(model, part, None)) for part in parts}
    outcomes, targets = deepcopy(getattr(model, "outcome_transform", None)), y.unsqueeze(-1)
    if outcomes is not None:
        with torch.no_grad():
            targets = outcomes(targets)[0]
    # The constructor would teach an outcome transform anew, on all data: it comes afterwards. And in the subset's units all
    # targets need not have mean 0 and variance 1.
    with settings.validate_input_scaling(False):
        whole = SparseGP(X, targets, **copies, outcome_transform=None, max_dictionary=max_dictionary)
    if outcomes is not None:
        whole.outcome_transform = outcomes
    whole.requires_grad_(False).eval()
    return whole
