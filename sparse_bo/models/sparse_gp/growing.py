"""``previous=``: a model of data that have grown takes hyper-parameters, dictionary and factor from the model before."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from sparse_bo.models.parameters import parameters_of, same_parameters, set_parameters
from sparse_bo.models.sparse_gp.extending import COLUMNS, GROWTH, SAME, Affine, Grown, affine, extended
from sparse_bo.models.sparse_gp.state import PosteriorCache, Stamp


@dataclass(frozen=True, eq=False)
class Before:
    """The posterior that a model grows from, and the data it is of. It holds no model: a loop keeps one, not all."""

    cache: PosteriorCache
    X: Tensor
    """``batch_shape x n x d``, transformed."""
    residuals: Tensor
    """``batch_shape x n``: targets less the prior mean, in that model's units."""
    noise: Tensor
    """``batch_shape x n``."""


class Growing:
    """How a sparse model follows another."""

    _before: Before | None = None
    _follows = False
    """Whether it was made with ``previous``."""

    def _follow(self: Any, previous: Any) -> None:
        """Take hyper-parameters and posterior of ``previous``; called at the end of the constructor.

        Raises:
            TypeError: If it is no model of the same class.
            ValueError: If its kernel, mean, likelihood or transforms are others, or it was conditioned or calibrated.
            InputDataError: If its data are not where these begin.
        """
        if type(previous) is not type(self):
            raise TypeError(f"expected previous to be a {type(self).__name__}, got {type(previous).__name__}")
        for part in ("covar_module", "mean_module", "likelihood", "input_transform", "outcome_transform"):
            ours, theirs = (str(getattr(model, part, None)) for model in (self, previous))
            if ours != theirs:
                raise ValueError(
                    f"expected previous to have the same {part}; got {theirs}, and {ours} here; leave previous out"
                )
        if not same_parameters(previous, self):
            raise ValueError("expected previous to have the same parameters in the same shapes; leave previous out")
        if previous.data_noise_factor is not None:
            raise ValueError(
                "expected previous not to be calibrated: follow the model that it was made of, and calibrate the new one"
            )
        previous.eval()
        cache = previous._cache()
        if cache.representation.extension is not None:
            raise ValueError("expected previous to be a model of data, got one with fantasies; build it from its data")
        self.eval()  # where inputs are transformed
        self._check_extends(previous)
        set_parameters(self, parameters_of(previous))
        for name in ("_dictionary_rows", "_dictionary_points", "_sampler"):
            setattr(self, name, getattr(previous, name))
        self._max_dictionary = self._max_dictionary or previous._max_dictionary
        X, targets = previous.train_inputs[0], previous.train_targets
        with torch.no_grad():
            noise = previous._noise(X, targets.shape)
            self.__dict__["_before"] = Before(cache, X, targets - previous.prior_mean(X), noise)
        self.__dict__["_follows"] = True
        self.train()

    def _check_extends(self: Any, previous: Any) -> None:
        for model in (self, previous):
            if model.train_inputs is None or not model.train_inputs[0].shape[-2]:
                raise InputDataError("expected previous and this model to have training data")
        ours, theirs = (
            model.train_inputs[0] if model._original_train_inputs is None else model._original_train_inputs
            for model in (self, previous)
        )
        n = theirs.shape[-2]
        fits = ours.dtype == theirs.dtype and ours.device == theirs.device and ours.shape[:-2] == theirs.shape[:-2]
        if not fits or ours.shape[-2] < n or not torch.equal(ours[..., :n, :], theirs):
            raise InputDataError(
                f"expected train_X (shape {tuple(ours.shape)}) to begin with the {n} rows of previous; append new rows below"
            )
        moved = (self.train_inputs[0][..., :n, :] - previous.train_inputs[0]).abs().amax()
        if moved > SAME * (1.0 + previous.train_inputs[0].abs().amax()):
            raise ValueError(
                "the input transform gives the rows of previous other values than before; fix it, as in "
                "Normalize(d, bounds=bounds), or leave previous out"
            )
        if affine(previous.train_targets, self.train_targets[..., :n]) is None:
            raise InputDataError(
                "expected train_Y to begin with that of previous, up to a shift and a scale by the outcome transform"
            )

    def _grow(self: Any, X: Tensor, residuals: Tensor, noise: Tensor, stamp: Stamp) -> PosteriorCache | None:
        """Return the posterior grown from the one before; ``None`` if it has to be made anew.

        Args:
            X: ``batch_shape x n x d``, transformed.
            residuals: ``batch_shape x n``: targets less the prior mean.
            noise: ``batch_shape x n``.
            stamp: Of the data and parameters now.
        """
        before = self._before
        if before is None or torch.is_grad_enabled():
            return None
        n, old = before.X.shape[-2], before.cache.representation
        exact = before.cache.points is None and len(before.cache.rows) == n
        grown = before.cache.grown
        if grown is None and exact:
            ones = (old.root @ old.root.sum(dim=-2).unsqueeze(-1)).squeeze(-1)
            grown = Grown(ones, None, n)
        moved = affine(before.residuals, residuals[..., :n])
        if grown is None or moved is None or not self._may_grow(before, grown, X.shape[-2], noise, stamp):
            return None
        old = replace(old, alpha=_in_new_units(old.alpha, grown.ones, moved))
        new = {"residuals": residuals[..., n:], "noise": noise[..., n:]}
        posterior, after = (old, grown) if X.shape[-2] == n else extended(self.prior_kernel, old, grown, X[..., n:, :], **new)
        rows = torch.arange(X.shape[-2], device=X.device) if exact else before.cache.rows
        return PosteriorCache(posterior, stamp, rows, before.cache.points, grown=after)

    def _may_grow(self: Any, before: Before, grown: Grown, n: int, noise: Tensor, stamp: Stamp) -> bool:
        parameters = before.cache.stamp.parameters
        same = len(parameters) == len(stamp.parameters) and all(map(torch.equal, parameters, stamp.parameters))
        known = before.X.shape[-2]
        same = same and bool((noise[..., :known] - before.noise).abs().amax() <= SAME * before.noise.amax())
        if grown.whitening is None:
            return same and n <= self._cap(n, noise)
        m, r = before.cache.representation.root.shape[-2:]
        chosen = self._dictionary_rows is None and self._dictionary_points is None
        return same and r + n - known <= COLUMNS * m and (not chosen or n <= GROWTH * grown.chosen_at)


def _in_new_units(alpha: Tensor, ones: Tensor, moved: Affine) -> Tensor:
    return moved.scale.unsqueeze(-1) * alpha + moved.shift.unsqueeze(-1) * ones
