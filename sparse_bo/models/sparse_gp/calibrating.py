"""``calibrated``: a model whose variances are as large as its errors on held-out rows ask for; its means stay.

With kernel and noise of the *data* times ``c``, a posterior has the same mean and ``c`` times the covariance. New observations
keep their noise: so what is calibrated is the function, and fantasies, samples and paths follow from kernel and data.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.utils.assorted import add_output_dim
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from sparse_bo.gp.variance_factor import RANGE, variance_factor
from sparse_bo.models.sparse_gp.fantasies import copy_with
from sparse_bo.models.sparse_gp.options import check_tensors
from sparse_bo.models.sparse_gp.prior import ForwardKernel
from sparse_bo.models.sparse_gp.process import Process
from sparse_bo.models.sparse_gp.state import PosteriorCache, Stamp, check_width

LARGEST_ERROR = 0.25
"""Of the logarithm of a factor: rows that tell it less well do not tell it."""

_LOGGER = logging.getLogger(__name__)


class Calibrating:
    """Calibration of a sparse model by held-out rows."""

    def calibrated(self: Any, X: Tensor | None = None, Y: Tensor | None = None, Yvar: Tensor | None = None) -> Any:
        """Return a copy whose latent variances are scaled by the factor that held-out rows ask for; means are the same.

        The factor, one per output (and batch element), maximises the predictive density of the held-out observations
        (:mod:`sparse_bo.gp.variance_factor`). It is ``covar_module.outputscale`` of the copy, and in its state dict. The
        copy shares the data, and its dictionary is this model's: when data or hyper-parameters change, fit this model, and
        call this again.

        *When it helps.* With rows whose noise is known (or that have none), variances of the function become right on
        average. With a learned noise, rows tell the sum of both: where the noise is learned 5 % too large and the variance of
        the function is a tenth of it, the factor comes out half as large as it should be. On Hartmann-6 (noise sd 0.05,
        n = 20,000 and 10⁵, three fits) such factors are 0.56 to 0.76, change the NLPD of observations by -0.002 to +0.003, and
        raise the mean squared z of the function, which was above 1: no model is calibrated by default.

        Args:
            X: ``batch_shape x h x d`` inputs that the model has not seen. Default: every training row that is not in the
                dictionary, predicted from all others (:meth:`leave_one_out`); of an exact posterior all rows.
            Y: ``batch_shape x h x m`` what was observed there.
            Yvar: ``batch_shape x h x m`` noise variances of ``Y``, zeros where it is exact. Default: the likelihood's.

        Raises:
            TypeError: If something is no tensor.
            ValueError: If numbers of rows differ.
            RuntimeError: If ``X`` has another number of columns than the data.
            InputDataError: If ``X`` and ``Y`` are not given together, are of other shapes or not finite, or tell the factor
                worse than to :data:`LARGEST_ERROR` (too few rows, or too noisy ones), or ask for one beyond ``e^±9``.
            UnsupportedError: If the model has fantasies, several tasks, or a prior that is not its ``covar_module``.
        """
        self.eval()
        cache = self._cache()
        if cache.representation.extension is not None:
            raise UnsupportedError("a model with fantasies has no held-out rows of its own: calibrate it before, and condition")
        if not self._prior_of_modules:
            raise UnsupportedError(
                "one factor scales all tasks, whose variances can be wrong by different ones, and with one factor for each "
                "task the means would not stay; look at each task's errors by model.leave_one_out()"
            )
        if isinstance(self.prior_kernel, ForwardKernel):
            raise UnsupportedError(
                f"the prior of {type(self).__name__} is that of its forward, which no factor reaches; give forward a scale "
                "of its own, and choose it by model.leave_one_out()"
            )
        with torch.no_grad():
            errors = self._errors_of_training(Yvar) if X is None and Y is None else self._errors_at(X, Y, Yvar)
            found = variance_factor(*errors)
            worst = float(found.log_error.max())
            if not worst <= LARGEST_ERROR:
                within = f"{worst:.0%} only" if worst < 1.0 else "no better than 100%"
                raise InputDataError(
                    f"{errors[0].shape[-1]} held-out rows tell the factor to within {within} (wanted: "
                    f"{LARGEST_ERROR:.0%}), the rest is noise; give more rows, or Yvar= if their noise is known to be smaller"
                )
            if not bool((found.factor.log().abs() < RANGE).all()):
                raise InputDataError(
                    f"held-out rows ask for a factor outside {math.exp(-RANGE):.1g} to {math.exp(RANGE):.0f}: the model does "
                    "not fit them, or they do not vary; fit it, and check the units of X, Y and Yvar"
                )
            _LOGGER.info("latent variances times %s by %d rows", found.factor.tolist(), errors[0].shape[-1])
            return self._scaled_by(found.factor, cache)

    def _errors_of_training(self: Any, Yvar: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return leave-one-out errors, variances of the function, and noise variances, ``batch_shape x h`` each."""
        if Yvar is not None:
            raise InputDataError("Yvar is that of held-out rows: give X and Y with it (train_Yvar is known)")
        means, variances, targets = self._left_out(observation_noise=False)
        cache, n = self._cache(), targets.shape[-1]
        held = torch.ones(n, dtype=torch.bool, device=targets.device)
        if cache.points is not None or len(cache.rows) < n:
            held[cache.rows] = False  # there a point of the dictionary stays, which no new input has
        noise = self._noise(self.train_inputs[0], targets.shape)
        errors = targets - means.squeeze(-1)
        return tuple(part.double()[..., held] for part in (errors, variances.squeeze(-1), noise))

    def _errors_at(self: Any, X: Tensor | None, Y: Tensor | None, Yvar: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same of held-out rows."""
        if X is None or Y is None:
            raise InputDataError("expected X and Y of the held-out rows, or neither; got one of them")
        check_tensors(X=X, Y=Y, **({} if Yvar is None else {"Yvar": Yvar}))
        wanted = (*X.shape[:-1], self._num_outputs)
        fits = X.dim() >= 2 and X.shape[:-2] == self._input_batch_shape and X.shape[-2] > 0
        if not fits or any(part.shape != wanted for part in (Y, *([] if Yvar is None else [Yvar]))):
            given = ", ".join(str(tuple(part.shape)) for part in (X, Y, Yvar) if part is not None)
            batch = "".join(f"{size} x " for size in self._input_batch_shape)
            raise InputDataError(
                f"expected X of shape {batch}h x d, h at least 1, Y and Yvar of {batch}h x {self._num_outputs}, got {given}"
            )
        if not all(bool(part.isfinite().all()) for part in (X, Y, *([] if Yvar is None else [Yvar]))):
            raise InputDataError("held-out rows have entries that are not finite: leave those rows out")
        if Yvar is not None and bool((Yvar < 0.0).any()):
            raise InputDataError("Yvar has negative entries; expected variances")
        inputs = self.transform_inputs(X)
        check_width(inputs, self._stored_inputs)
        if hasattr(self, "outcome_transform"):
            Y, Yvar = self.outcome_transform(Y, Yvar, X=X)
        several = self._num_outputs > 1
        points = add_output_dim(inputs, self._input_batch_shape)[0] if several else inputs
        targets, known = (None if part is None else part.mT if several else part.squeeze(-1) for part in (Y, Yvar))
        assert targets is not None
        noise = self._noise(points, targets.shape) if known is None else known
        errors = targets - self._mean_at(points)
        variances = Process(self.prior_kernel, self._cache().representation).variance(points)
        return tuple(part.double().expand(targets.shape) for part in (errors, variances, noise))  # type: ignore[return-value]

    def _scaled_by(self: Any, factor: Tensor, cache: PosteriorCache) -> Any:
        """Return a copy with ``factor`` (``batch_shape``) times the covariance, and its posterior made from this one."""
        factor = factor.to(self.train_targets)
        shared = [(part, part) for part in (self._stored_inputs, self._stored_targets, self.prediction_strategy)]
        originals = self.__dict__.get("_stored_originals")
        scaled = copy_with(self, [*shared, (originals, originals)])
        kernel = ScaleKernel(scaled.covar_module, batch_shape=factor.shape).to(factor)
        kernel.outputscale = factor
        kernel.raw_outputscale.requires_grad_(False)
        scaled.covar_module = kernel
        already = self.data_noise_factor
        scaled.data_noise_factor = kernel.outputscale.detach().clone() * (1.0 if already is None else already)
        if cache.points is not None or len(cache.rows) < self.train_targets.shape[-1]:
            scaled._dictionary_rows, scaled._dictionary_points = cache.rows, cache.points
        old = cache.representation
        alpha, root = old.alpha / factor.unsqueeze(-1), old.root / factor.sqrt()[..., None, None]
        law = None if old.law is None else old.law.scaled(factor.sqrt())
        representation = replace(old, alpha=alpha, root=root, law=law)
        scaled.prediction_strategy = PosteriorCache(representation, Stamp(*scaled._made_from()), cache.rows, cache.points)
        return scaled
