"""SparseGP: stands where BoTorch's ``SingleTaskGP`` stands, at a cost that grows linearly with the data."""

from __future__ import annotations

from typing import Any, Literal

import gpytorch
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from torch.nn import Module

from sparse_bo.core.shapes import broadcast_shapes
from sparse_bo.dictionary import Dictionary, Sampler
from sparse_bo.errors import SamplerError
from sparse_bo.models.sparse_gp.fantasies import ProcessConditioning
from sparse_bo.models.sparse_gp.joint import JointPosterior
from sparse_bo.models.sparse_gp.pathwise import draw_matheron_path
from sparse_bo.models.sparse_gp.representation import (
    Representation,
    dtc_representation,
    exact_representation,
)
from sparse_bo.models.sparse_gp.selection import checked_dictionary, default_rows, planned_size, sampled, uniform_rows
from sparse_bo.models.sparse_gp.state import Appended, PosteriorCache, Stamp, TrainingData, joined, mapped
from sparse_bo.models.sparse_gp.training import Strategy, TrainingCovariance, TrainingPrior
from sparse_bo.validation import check_choice, check_count

SUBSET_POINTS = 1040
"""Up to so many training points, the default is to learn hyper-parameters from the exact likelihood of all; ``fit="subset"``,
the default beyond, learns from so many. LAPACK is a third slower on 1,024, whose columns share cache lines."""

LEARNING_DICTIONARY = 512
"""``fit="vfe"`` and ``"dtc"`` learn over a dictionary of at most so many points."""

Fit = Literal["exact", "subset", "vfe", "dtc"]


class SparseGP(TrainingData, JointPosterior, ProcessConditioning, SingleTaskGP):  # type: ignore[misc]  # the base class ships no types
    """A Gaussian process over a dictionary of m points: ``SingleTaskGP`` at O(n m²) instead of O(n³).

    The posterior is the DTC one (algorithms §1): ``mean = μ₀ + k_Dᵀα`` and the *joint* covariance ``k − k_DᵀRRᵀk_D``, which
    with every input in the dictionary are the exact GP's. A posterior call costs O(q m²), whatever n is. Constructor, state
    dict, transforms, noise, batches, several outputs and fitting through ``ExactMarginalLogLikelihood`` are those of
    :class:`~botorch.models.SingleTaskGP`; the dictionary is no parameter and not in the state dict.

    *Conditioning* (``condition_on_observations``, ``fantasize``, every look-ahead acquisition function) conditions the
    posterior process exactly, at a cost independent of n. For new *data*, build a new model or call ``set_train_data``.

    *Caches* follow data and parameters: whatever changes them, the next posterior is computed anew, the default dictionary
    chosen anew with the parameters of that moment (select, fit, reselect).

    What BoTorch would do densely behind the model's back:

    - ``loo_cv`` (efficient leave-one-out) raises ``UnsupportedError`` when sparse; use ``batch_cross_validation``.
    - The joint posterior of more than 4,096 points is lazy. Mean and variance are exact, O(q m r) in blocks; samples, with and
      without base samples, and cached roots (qLogNEI, qLogNEHVI: any baseline, pruned or not) are exact on variances, at 1,024
      pivots among the points and inside blocks of 256 neighbours; between blocks they correlate as the pivots explain
      (:mod:`sparse_bo.models.sparse_gp.factor`). Any kernel and outcome transform, any number of outputs.
    - qLogNEHVI with its default ``prune_baseline=False`` copies base samples inside BoTorch, ``samples x candidates x rows x
      outputs`` numbers at a time: with 20,000 rows set ``init_batch_limit`` and ``batch_limit``, or prune.
    - A ``ModelListGP`` builds the joint covariance of more than 4,096 points densely, with a ``MemoryWarning``, up to 10,000;
      beyond, its means and variances are there, but joint samples raise ``UnsupportedError``; one ``SparseGP`` of several
      outputs has them.
    - ``draw_matheron_paths`` uses BoTorch's 1,024 random features in place of the kernel: standard deviations are a few
      per cent off (up to a fifth for ARD kernels in d = 20); kernels without features raise. ``posterior(X).rsample`` has none.
    - Analytic ``NoisyExpectedImprovement`` builds exact GPs on ``X_observed``, as it does for any model; use ``qLogNEI``.
    - Predictive entropy search inverts the covariance of all training inputs by construction: O(n³); use ``qMES`` or JES.
    - ``fit="exact"`` is the exact likelihood, O(n³) per step.

    Args:
        train_X: ``batch_shape x n x d`` training inputs.
        train_Y: ``batch_shape x n x m`` observations of m outputs.
        train_Yvar: ``batch_shape x n x m`` known noise variances; ``None``: noise is learned.
        likelihood: As in ``SingleTaskGP``.
        covar_module: As in ``SingleTaskGP``.
        mean_module: As in ``SingleTaskGP``.
        outcome_transform: As in ``SingleTaskGP``.
        input_transform: As in ``SingleTaskGP``.
        dictionary: A sampler (:mod:`sparse_bo.dictionary`), a ``Dictionary``, a tensor of distinct row indices, or an
            ``m x d`` tensor of points in the units of ``train_X``; shared by batch and outputs. Default: all inputs up to
            ``max_dictionary``; beyond, that many by leverage-score sampling with the current kernel (or fewer, if the
            effective dimension is small).
        max_dictionary: Cap of a sampled dictionary; up to so many inputs the default is the exact GP. Indices and points
            are taken as they are. Default: what :func:`~sparse_bo.models.sparse_gp.selection.planned_size` allows, 4,096 up to
            n = 10⁵.
        fit: What ``ExactMarginalLogLikelihood`` maximises: ``"exact"`` likelihood; ``"subset"``: that of
            :data:`SUBSET_POINTS` random points, scaled up; ``"vfe"`` (Titsias 2009) or ``"dtc"`` over at most
            :data:`LEARNING_DICTIONARY` points. Default: ``"exact"`` up to :data:`SUBSET_POINTS`, then ``"subset"``.
        seed: Of the choices of dictionary and subset; torch's own generator is never touched by them.

    Raises:
        TypeError: If ``dictionary``, ``max_dictionary`` or ``seed`` are of a wrong kind.
        ValueError: If ``dictionary`` is empty, repeated, out of range or of the wrong width, or an option is not allowed.

    Example:
        >>> model = SparseGP(train_X, train_Y)
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> optimize_acqf(qLogExpectedImprovement(model, best_f), bounds, q=8, num_restarts=10, raw_samples=512)
    """

    prediction_strategy: PosteriorCache | None
    _learning: tuple[Tensor, Tensor | None] | None

    def __init__(
        self,
        train_X: Tensor,
        train_Y: Tensor,
        train_Yvar: Tensor | None = None,
        likelihood: Likelihood | None = None,
        covar_module: Module | None = None,
        mean_module: Mean | None = None,
        outcome_transform: OutcomeTransform | _DefaultType | None = DEFAULT,
        input_transform: InputTransform | None = None,
        *,
        dictionary: Sampler | Dictionary | Tensor | None = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
    ) -> None:
        if max_dictionary is not None:
            check_count("max_dictionary", max_dictionary)
        if fit is not None:
            check_choice("fit", fit, ("exact", "subset", "vfe", "dtc"))
        check_count("seed", seed, minimum=0)
        super().__init__(
            train_X,
            train_Y,
            train_Yvar,
            likelihood=likelihood,
            covar_module=covar_module,
            mean_module=mean_module,
            outcome_transform=outcome_transform,
            input_transform=input_transform,
        )
        chosen = checked_dictionary(dictionary, train_X)
        self.register_buffer("_dictionary_rows", chosen.rows, persistent=False)
        self.register_buffer("_dictionary_points", chosen.points, persistent=False)
        self._sampler: Sampler | None = dictionary if isinstance(dictionary, Sampler) else None
        self._max_dictionary = max_dictionary
        self._fit = fit
        self._seed = seed

    # --- the posterior (__call__ and posterior are JointPosterior's) --------------------------------------------------------

    def representation(self) -> Representation:
        """Return the posterior in the form ``(D, α, R)``, in the outcome transform's units and transformed inputs."""
        return self._cache().representation

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at ``x``; in training mode, that of the training data with the likelihood chosen by ``fit``.

        Raises:
            UnsupportedError: In evaluation mode at all training inputs, if the model is sparse: that is efficient
                leave-one-out cross-validation, which would be the exact GP's, at O(n³).
        """
        n = x.shape[-2]
        if not self.training:
            if self.train_inputs is not None and x is self.train_inputs[0] and len(self._cache().rows) < n:
                raise UnsupportedError(
                    "efficient leave-one-out cross-validation needs the n x n covariance of an exact GP; "
                    "use botorch.cross_validation.batch_cross_validation, or max_dictionary >= n"
                )
            return super().forward(x)
        strategy = self._fit or ("exact" if n <= SUBSET_POINTS else "subset")
        if strategy == "exact":
            return super().forward(x)
        x = self.transform_inputs(x)
        rows, points = self._learning_dictionary(x, strategy)
        covariance = TrainingCovariance(x, points, kernel=self.covar_module, strategy=strategy, rows=rows)
        return TrainingPrior(self.mean_module(x), covariance)

    def _noise(self, X: Tensor, shape: torch.Size, **kwargs: Any) -> Tensor:
        """Return the noise variances of observations at ``X`` (``… x q x d``), broadcast to ``shape`` (``… x q``)."""
        zeros = X.new_zeros(shape)
        noisy = self.likelihood(MultivariateNormal(zeros, DiagLinearOperator(zeros)), [X], **kwargs)
        return noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def _made_from(self) -> tuple[tuple[Tensor | Appended, ...], tuple[Tensor, ...]]:
        """Return everything the posterior depends on: data and known noise, and parameters."""
        known = self.likelihood.noise_covar.noise if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) else None
        data = [part for part in (self._stored_inputs, self._stored_targets, known) if part is not None]
        return tuple(data), tuple(self.parameters())

    def _cache(self) -> PosteriorCache:
        """Return the posterior, computed anew if data or parameters have changed. O(n m² + m³) then."""
        made_from = self._made_from()
        cache = self.prediction_strategy
        if cache is None or not cache.stamp.matches(*made_from):
            with torch.set_grad_enabled(torch.is_grad_enabled() and gpytorch.settings.detach_test_caches.off()):
                cache = self._computed(Stamp(*made_from))
            self.prediction_strategy = cache
        return cache

    def _computed(self, stamp: Stamp) -> PosteriorCache:
        assert self._stored_inputs is not None
        assert self._stored_targets is not None
        X, targets = joined(self._stored_inputs), joined(self._stored_targets)
        noise = self._noise(X, targets.shape)
        data = {"residuals": targets - self.mean_module(X), "noise": noise}
        try:
            rows, points = self._dictionary(X, targets, noise)
            if points is None and len(rows) == X.shape[-2]:
                representation = exact_representation(self.covar_module, X, **data)
            else:
                dictionary = X[..., rows, :] if points is None else self._with_rows(points, X, rows)
                representation = dtc_representation(self.covar_module, dictionary, X, **data)
        except SamplerError:
            raise
        except ValueError as error:  # as SingleTaskGP raises it
            raise NotPSDError(str(error)) from error
        return PosteriorCache(representation, stamp, rows, points)

    def _with_rows(self, points: Tensor, X: Tensor, rows: Tensor) -> Tensor:
        external = self.transform_inputs(points)
        return torch.cat([external.expand(*X.shape[:-2], *external.shape[-2:]), X[..., rows, :]], dim=-2)

    def _dictionary(self, X: Tensor, targets: Tensor, noise: Tensor, *, cap: int | None = None) -> tuple[Tensor, Tensor | None]:
        """Return rows of ``X`` and external points (in the user's units) of a dictionary of at most ``cap`` points.

        Raises:
            InputDataError: If the user's rows do not exist any more.
            SamplerError: If the user's sampler needs what this model cannot give.
        """
        n = X.shape[-2]
        rows, points = self._dictionary_rows, self._dictionary_points
        nothing = torch.empty(0, dtype=torch.long, device=X.device)
        if rows is not None and len(rows) and int(rows.max()) >= n:
            raise InputDataError(f"the dictionary has row {int(rows.max())}, but there are only {n} training points")
        if rows is not None or points is not None:
            return (nothing if rows is None else rows), points
        size = self._max_dictionary or planned_size(n, noise.shape[:-1].numel())
        size = size if cap is None else min(cap, size)
        generator = torch.Generator().manual_seed(self._seed)
        if self._sampler is not None:
            raw = X if self._original_train_inputs is None else self._original_train_inputs
            mean = self.mean_module(X)
            data = {"residuals": targets - mean, "prior_mean": mean, "noise": noise}
            chosen = sampled(self._sampler, self.covar_module, X, raw, **data, size=size, generator=generator)
            return (nothing if chosen.rows is None else chosen.rows), chosen.points
        if n <= size:
            return torch.arange(n, device=X.device), None
        return default_rows(self.covar_module, X, noise, size=size, generator=generator), None

    def _learning_dictionary(self, x: Tensor, strategy: Strategy) -> tuple[Tensor | None, Tensor]:
        """Return the rows and points that hyper-parameters are learned from; chosen once per fit."""
        if self._learning is None:
            n = x.shape[-2]
            generator = torch.Generator().manual_seed(self._seed)
            if strategy == "subset":
                self._learning = (uniform_rows(n, SUBSET_POINTS, generator=generator, device=x.device), None)
            else:
                with torch.no_grad():
                    noise = self._noise(x, broadcast_shapes(x.shape[:-2], self._aug_batch_shape) + x.shape[-2:-1])
                    assert self.train_targets is not None
                    self._learning = self._dictionary(x, self.train_targets, noise, cap=LEARNING_DICTIONARY)
        rows, points = self._learning
        return rows, x[..., rows, :] if points is None else self._with_rows(points, x, rows)

    def _clear_cache(self) -> None:
        self.prediction_strategy = None
        self.__dict__["_learning"] = None

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> SparseGP:
        """Convert data and parameters. BoTorch calls ``.to`` before every analytic acquisition value: then nothing changes."""
        cache, before = self.prediction_strategy, self._made_from()
        valid = cache is not None and cache.stamp.matches(*before)
        model: SparseGP = super(ExactGP, self)._apply(fn, *args, **kwargs)  # ExactGP's own would join rows and drop the cache
        for name in ("_stored_inputs", "_stored_targets"):
            if self.__dict__[name] is not None:
                self.__dict__[name] = mapped(self.__dict__[name], fn)
        if cache is not None and valid and cache.stamp.matches(*self._made_from()):
            return model
        self._clear_cache()
        if cache is not None and valid and cache.representation.extension is not None:  # what fantasies know is nowhere else
            points = None if cache.points is None else fn(cache.points)
            moved = cache.representation.map(fn)
            self.prediction_strategy = PosteriorCache(moved, Stamp(*self._made_from()), fn(cache.rows), points)
        return model

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        *,
        dictionary: Sampler | Dictionary | Tensor | None = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
    ) -> dict[str, Any]:
        """Construct the keyword arguments of the constructor from a data set and the model's own options.

        Args:
            training_data: The data set of one outcome.
            dictionary: As in the class.
            max_dictionary: As in the class.
            fit: As in the class.
            seed: As in the class.

        Raises:
            TypeError: If ``training_data`` is not a ``SupervisedDataset``.
        """
        own = {"dictionary": dictionary, "max_dictionary": max_dictionary, "fit": fit, "seed": seed}
        return {**super().construct_inputs(training_data), **own}


DrawMatheronPaths.register(SparseGP)(draw_matheron_path)
