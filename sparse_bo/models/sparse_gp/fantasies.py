"""Conditioning a model on further observations, without touching what is as long as the data."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, TypeVar

import torch
from botorch.models.gpytorch import fantasize_flag
from botorch.models.utils import multioutput_to_batch_mode_transform
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from torch.nn import Module

from sparse_bo.linalg.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp.state import Appended, PosteriorCache, Stamp, check_width, row_count

Model = TypeVar("Model", bound=Module)


def check_fantasy_shapes(inputs: Tensor, targets: Tensor, *, model_batch_shape: torch.Size) -> torch.Size:
    """Return the batch shape of a model conditioned on ``targets`` (``… x q``) at ``inputs`` (``… x q x d``).

    Raises:
        RuntimeError: If ``targets`` do not have as many batch dimensions as ``inputs`` or one more, or do not broadcast
            against the model (the same conditions as in ``gpytorch.models.ExactGP``).
    """
    input_shape, target_shape = inputs.shape[:-2], targets.shape[:-1]
    if len(target_shape) not in (len(input_shape), len(input_shape) + 1):
        raise RuntimeError(
            f"Unsupported batch shapes: The target batch shape ({target_shape}) must have either the "
            f"same dimension as or one more dimension than the input batch shape ({input_shape})"
        )
    try:
        broadcast_shapes(model_batch_shape, target_shape)
    except RuntimeError:
        raise RuntimeError(
            f"Model batch shape ({model_batch_shape}) and target batch shape ({target_shape}) are not broadcastable."
        ) from None
    return broadcast_shapes(model_batch_shape, input_shape, target_shape)


def copy_with(model: Model, replacements: list[tuple[Any, Any]]) -> Model:
    """Return a deep copy of ``model`` in which each ``(old, new)`` object is replaced and not copied.

    Args:
        model: The model to copy; it is left as it is.
        replacements: Objects reachable from the model, and what the copy has in their place.
    """
    return deepcopy(model, {id(old): new for old, new in replacements if old is not None})


def _batch_shape(inputs: Tensor | Appended) -> torch.Size:
    return inputs.batch_shape if isinstance(inputs, Appended) else inputs.shape[:-2]


class ProcessConditioning:
    """``condition_on_observations`` and ``get_fantasy_model`` by conditioning the posterior process (algorithms §1)."""

    def condition_on_observations(self: Any, X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
        """Condition the posterior process on new observations. O(q m r), independent of n (algorithms §1).

        Args:
            X: ``batch_shape x q x d`` inputs of the new observations.
            Y: ``batch_shape' x q x m``, as in :class:`~botorch.models.SingleTaskGP`.
            **kwargs: ``noise``, as ``Y``, in the outcome transform's units; the rest goes to :meth:`get_fantasy_model`.
        """
        noise = kwargs.pop("noise", None)
        if hasattr(self, "outcome_transform"):
            Y, _ = self.outcome_transform(Y, X=X)
        if fantasize_flag.off():
            self._validate_tensor_args(X=X, Y=Y, Yvar=noise, strict=False)
        if self._num_outputs > 1:
            X, Y, noise = multioutput_to_batch_mode_transform(
                train_X=X, train_Y=Y, num_outputs=self._num_outputs, train_Yvar=noise
            )
        else:
            Y, noise = Y.squeeze(-1), None if noise is None else noise.squeeze(-1)
        if noise is not None:
            kwargs["noise"] = noise
        fantasy = self.get_fantasy_model(inputs=self.transform_inputs(X), targets=Y, **kwargs)
        if hasattr(fantasy, "input_transform"):
            fantasy.__dict__["_stored_originals"] = Appended(self.__dict__["_stored_originals"], X.detach(), dim=-2)
        batch_shape = fantasy.__dict__["_stored_targets"].batch_shape
        fantasy._aug_batch_shape = batch_shape
        fantasy._input_batch_shape = batch_shape if self._num_outputs == 1 else batch_shape[:-1]
        return fantasy

    def get_fantasy_model(self: Any, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Any) -> Any:
        """Return the model conditioned on ``targets`` at ``inputs`` (transformed). O(q m r), independent of n.

        The new points join the representation; nothing of the size of the data is copied before someone reads it. If its
        hyper-parameters change, the fantasy model becomes the DTC posterior of all its data over the dictionary and the
        new points.

        Args:
            inputs: ``batch_shape x q x d`` inputs of the new observations.
            targets: ``batch_shape' x q``; ``batch_shape'`` may have one more dimension than ``batch_shape``.
            **kwargs: ``noise``: ``… x q`` noise variances of the new observations.

        Raises:
            RuntimeError: If the model has not been evaluated yet, or the batch shapes do not fit.
        """
        if self.prediction_strategy is None:
            raise RuntimeError(
                "Fantasy observations can only be added after making predictions with a model so that "
                "all test independent caches exist. Call the model on some data first!"
            )
        (X,) = inputs if isinstance(inputs, (list, tuple)) else (inputs,)
        X = X.unsqueeze(-1) if X.dim() == 1 else X
        check_width(X, self._stored_inputs)
        batch_shape = check_fantasy_shapes(X, targets, model_batch_shape=_batch_shape(self._stored_inputs))
        known = {"noise": kwargs["noise"]} if "noise" in kwargs else {}
        likelihood = self.likelihood.get_fantasy_likelihood(**known)
        cache = self._cache()
        shape = broadcast_shapes(X.shape[:-2], cache.representation.alpha.shape[:-1]) + X.shape[-2:-1]
        residuals, noise = targets - self.prior_mean(X), self._noise(X, shape, **known)
        try:
            representation = cache.representation.condition(self.prior_kernel, X, residuals=residuals, noise=noise)
        except ValueError as error:
            raise NotPSDError(str(error)) from error
        inputs_below, targets_below = self._stored_inputs, self._stored_targets
        new_inputs = Appended(inputs_below, X.expand(batch_shape + X.shape[-2:]), dim=-2)
        new_targets = Appended(targets_below, targets.expand(batch_shape + targets.shape[-1:]), dim=-1)
        originals = self.__dict__.get("_stored_originals")
        data = [(inputs_below, new_inputs), (targets_below, new_targets), (originals, originals)]
        fantasy = copy_with(self, [*data, (self.likelihood, likelihood), (self.prediction_strategy, None)])
        fantasy._dictionary_rows = torch.cat([cache.rows, torch.arange(X.shape[-2], device=X.device) + row_count(inputs_below)])
        fantasy._dictionary_points = cache.points
        fantasy.prediction_strategy = PosteriorCache(
            representation, Stamp(*fantasy._made_from()), fantasy._dictionary_rows, cache.points
        )
        return fantasy
