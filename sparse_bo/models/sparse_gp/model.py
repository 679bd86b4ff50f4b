"""SparseModel: an exact GP class of BoTorch whose posterior stands on a dictionary.

The class holds the data and answers BoTorch's contract. A :class:`~sparse_bo.models.sparse_gp.dictionary_rule.DictionaryRule`
chooses points, a :class:`~sparse_bo.models.sparse_gp.representation.Representation` is the posterior, a
:class:`~sparse_bo.models.sparse_gp.learning.Learner` learns hyper-parameters, and a
:class:`~sparse_bo.models.sparse_gp.growth.Growth` extends the posterior of a previous model.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Self

import gpytorch
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.cross_validation import CVResults
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel, fantasize_flag
from botorch.models.utils import gpt_posterior_settings, multioutput_to_batch_mode_transform
from botorch.models.utils.assorted import add_output_dim
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultitaskMultivariateNormal, MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.dictionary import Certificate, Dictionary
from sparse_bo.errors import SamplerError
from sparse_bo.linalg.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp.calibration import calibrated
from sparse_bo.models.sparse_gp.certificate import certify, log_defaults, log_dictionary
from sparse_bo.models.sparse_gp.dictionary_rule import Choice, DataView, DictionaryOption, DictionaryRule, warn_if_far
from sparse_bo.models.sparse_gp.growth import Growth, check_previous, response_to_ones
from sparse_bo.models.sparse_gp.joint_root import JointSettings
from sparse_bo.models.sparse_gp.learning import Fit, Learner, LearningSettings
from sparse_bo.models.sparse_gp.leverage_sampling import DictionarySettings, data_points
from sparse_bo.models.sparse_gp.outputs import lazy_posterior, transformed, untransformed
from sparse_bo.models.sparse_gp.pathwise import draw_matheron_path
from sparse_bo.models.sparse_gp.posterior import Predictor, constant_rows
from sparse_bo.models.sparse_gp.prior import ForwardKernel, PriorKernel, check_overrides
from sparse_bo.models.sparse_gp.process import Base
from sparse_bo.models.sparse_gp.representation import Representation, dtc_representation, exact_representation
from sparse_bo.models.sparse_gp.row_sums import Summation, fit_dtc, left_out_of_dtc, left_out_of_exact
from sparse_bo.models.sparse_gp.state import (
    Appended,
    GrowthState,
    PosteriorCache,
    Stamp,
    check_width,
    joined,
    mapped,
    parameters_of,
    row_count,
    set_parameters,
)
from sparse_bo.models.sparse_gp.triangular import ProductSizes


@dataclass(frozen=True)
class SparseSettings:
    """Sizes and tolerances of a sparse model, with tested defaults."""

    dictionary: DictionarySettings = field(default_factory=DictionarySettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    joint: JointSettings = field(default_factory=JointSettings)
    sums: Summation = field(default_factory=Summation)
    products: ProductSizes = field(default_factory=ProductSizes)


class SparseModel(ExactGP):  # type: ignore[misc]  # the base class ships no types
    """The sparse posterior of an exact GP class of BoTorch, which follows it in the bases of a model.

    ``class SparseGP(SparseModel, SingleTaskGP)`` overrides only the methods that need the DTC algebra. Constructor,
    transforms, noise and state dict are BoTorch's.
    """

    prediction_strategy: PosteriorCache | None
    data_noise_factor: Tensor | None
    rule: DictionaryRule
    learner: Learner
    settings: SparseSettings = SparseSettings()
    has_module_prior = True
    """Whether BoTorch's ``forward`` is ``mean_module`` and ``covar_module`` at the inputs, and nothing else."""
    _growth: Growth | None = None
    _grows = False  # whether the model was made with ``previous``
    _certified: tuple[PosteriorCache, Certificate] | None = None
    _stored_inputs: Tensor | Appended | None
    _stored_targets: Tensor | Appended | None
    _num_outputs: int

    def _configure(
        self,
        train_X: Tensor,
        *,
        dictionary: DictionaryOption,
        max_dictionary: int | None,
        fit: Fit | None,
        seed: int,
        settings: SparseSettings | None,
        previous: SparseModel | None = None,
    ) -> None:
        """Set the collaborators; called once, when BoTorch's constructor has checked the data."""
        check_overrides(type(self))
        settings = settings or SparseSettings()
        rule = DictionaryRule.of(dictionary, train_X, most=max_dictionary, seed=seed, settings=settings.dictionary)
        self.settings, self.rule, self.learner = settings, rule, Learner(fit, seed, settings.learning)
        self.register_buffer("data_noise_factor", None)  # of a calibrated model alone
        assert self.train_targets is not None
        n, batch = train_X.shape[-2], self.train_targets.shape[:-1].numel()
        log_defaults(
            type(self).__name__,
            n,
            learned_from=settings.learning.subset if fit is None else None,
            cap=rule.cap(n, batch) if dictionary is None and max_dictionary is None else None,
        )
        if previous is not None:
            if dictionary is not None:
                raise ValueError(
                    "expected previous or dictionary, got both; previous brings its own dictionary: leave dictionary out"
                )
            self._follow(previous)

    @property
    def _is_configured(self) -> bool:
        """Whether BoTorch's constructor has returned and the collaborators are set."""
        return "learner" in self.__dict__

    def _follow(self, previous: SparseModel) -> None:
        """Take hyper-parameters, dictionary and posterior of ``previous``."""
        check_previous(self, previous)
        set_parameters(self, parameters_of(previous))
        self.rule = replace(previous.rule, most=self.rule.most or previous.rule.most, seed=self.rule.seed)
        self._growth, self._grows = Growth.of(previous), True
        self.train()

    # --- data --------------------------------------------------------------------------------------------------------------

    @property
    def train_inputs(self) -> tuple[Tensor, ...] | None:
        """The training inputs, ``aug_batch_shape x n x d``; transformed in evaluation mode."""
        stored = self._stored_inputs
        return None if stored is None else (joined(stored),)

    @train_inputs.setter
    def train_inputs(self, value: tuple[Tensor, ...] | None) -> None:
        self.__dict__["_stored_inputs"] = None if value is None else next(iter(value))
        self._clear_cache()

    @property
    def train_targets(self) -> Tensor | None:
        """The training targets in the outcome transform's units, ``aug_batch_shape x n``."""
        stored = self._stored_targets
        return None if stored is None else joined(stored)

    @train_targets.setter
    def train_targets(self, value: Tensor | None) -> None:
        self.__dict__["_stored_targets"] = value
        self._clear_cache()

    @property
    def _original_train_inputs(self) -> Tensor | None:
        stored = self.__dict__.get("_stored_originals")
        return None if stored is None else joined(stored)

    @_original_train_inputs.setter
    def _original_train_inputs(self, value: Tensor | None) -> None:
        self.__dict__["_stored_originals"] = value

    def original_inputs(self) -> Tensor:
        """Return the training inputs in the user's units."""
        originals = self._original_train_inputs
        if originals is not None:
            return originals
        assert self.train_inputs is not None
        return self.train_inputs[0]

    def lacks_posterior(self) -> bool:
        """Return whether the model returns its prior: without data, or in GPyTorch's prior mode."""
        untrained = self._stored_inputs is None or self._stored_targets is None
        return bool(gpytorch.settings.prior_mode.on() or untrained)

    # --- prior and noise ---------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at ``x``, as the BoTorch class does: transformed here in training mode only.

        A subclass may override it; training, posterior, conditioning and leave-one-out all follow.

        Raises:
            UnsupportedError: At all training inputs, if the model is sparse: BoTorch's ``loo_cv`` asks for this, and would
                return the leave-one-out predictions of the exact GP.
        """
        inputs = None if self._stored_inputs is None else joined(self._stored_inputs)
        if x is inputs and self._is_configured and not self._is_exact(x.shape[-2]):
            raise UnsupportedError(
                "the n x n prior covariance is that of an exact GP; for leave-one-out predictions use model.leave_one_out()"
            )
        return super().forward(x)

    def _is_exact(self, n: int) -> bool:
        """Return whether all ``n`` training inputs are in the dictionary, or the likelihood in training mode is exact."""
        if not self.training:
            return self.cache().holds_all(n) and self._buffers.get("data_noise_factor") is None
        assert self.train_targets is not None
        exact = self.learner.likelihood(n) == "exact"
        return exact or self.rule.most_points(n, self.train_targets.shape[:-1].numel()) == n

    @property
    def prior_kernel(self) -> PriorKernel:
        """The prior covariance: ``covar_module``, or that of a subclass's own ``forward``."""
        own = type(self).forward is not SparseModel.forward
        if not own and self.has_module_prior:
            return self.covar_module
        like = self._stored_inputs if own else None
        return ForwardKernel(self, like=None if like is None else joined(like))

    def prior_mean(self, X: Tensor) -> Tensor:
        """Return the prior mean at transformed points ``X`` (``… x q x d``), ``batch_shape x q``."""
        kernel = self.prior_kernel
        return kernel.mean(X) if isinstance(kernel, ForwardKernel) else self.mean_module(X)

    def noise_at(self, X: Tensor, shape: torch.Size, **kwargs: Any) -> Tensor:
        """Return the noise variances of observations at ``X`` (``… x q x d``), broadcast to ``shape`` (``… x q``)."""
        zeros = X.new_zeros(shape)
        noisy = self.likelihood(MultivariateNormal(zeros, DiagLinearOperator(zeros)), [X], **kwargs)
        return noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def data_noise(self, X: Tensor, shape: torch.Size) -> Tensor:
        """Return the noise variances of the training data in the posterior: times the factor of a calibration."""
        noise, factor = self.noise_at(X, shape), self._buffers.get("data_noise_factor")
        return noise if factor is None else noise * factor.unsqueeze(-1)

    # --- the posterior -----------------------------------------------------------------------------------------------------

    def made_from(self) -> tuple[tuple[Tensor | Appended, ...], tuple[Tensor, ...]]:
        """Return everything the posterior depends on: data and known noise, and parameters."""
        known = self.likelihood.noise_covar.noise if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) else None
        data = [part for part in (self._stored_inputs, self._stored_targets, known) if part is not None]
        factor = self._buffers.get("data_noise_factor")  # not there while BoTorch's constructor runs
        return tuple(data), tuple(self.parameters()) if factor is None else (*self.parameters(), factor)

    def cache(self) -> PosteriorCache:
        """Return the posterior, computed anew if data or parameters have changed. O(n m² + m³) then."""
        made_from = self.made_from()
        cache = self.prediction_strategy
        if cache is None or not cache.stamp.matches(*made_from):
            with torch.set_grad_enabled(torch.is_grad_enabled() and gpytorch.settings.detach_test_caches.off()):
                cache = self._computed(Stamp(*made_from))
            self.prediction_strategy = cache
        elif gpytorch.settings.detach_test_caches.on() and cache.carries_graph():  # of a call with propagate_grads
            cache = replace(cache, representation=cache.representation.map(torch.Tensor.detach))
            self.prediction_strategy = cache
        return cache

    def representation(self) -> Representation:
        """Return the posterior in the form ``(D, α, R)``, in the outcome transform's units and transformed inputs."""
        return self.cache().representation

    def predictor(self) -> Predictor:
        """Return the posterior with its prior, in the outcome transform's units and transformed inputs."""
        return self._predictor(self.cache())

    def _predictor(self, cache: PosteriorCache) -> Predictor:
        return Predictor(self.prior_kernel, self.prior_mean, cache.representation, self.settings.joint)

    def _computed(self, stamp: Stamp) -> PosteriorCache:
        assert self._stored_inputs is not None
        assert self._stored_targets is not None
        X, targets, kernel = joined(self._stored_inputs), joined(self._stored_targets), self.prior_kernel
        data = {"residuals": targets - self.prior_mean(X), "noise": self.data_noise(X, targets.shape)}
        try:
            grown, self._growth = self._grown(X, stamp, **data), None  # an old posterior is used once, or of no use
            if grown is not None:
                return grown
            rows, points, unexplained = self.chosen_dictionary(X)
            sizes = self.settings.products
            if points is None and len(rows) == X.shape[-2]:
                representation, growth = exact_representation(kernel, X, **data, sizes=sizes), None
            else:
                D = self.dictionary_points(X, rows, points)
                state = fit_dtc(kernel, D, X, residuals=data["residuals"], noise=data["noise"], how=self.settings.sums)
                representation, growth = dtc_representation(state, D, sizes), None
                if self._grows:
                    ones = response_to_ones(kernel, state, D, X, data["noise"])
                    growth = GrowthState(ones, state.factor, X.shape[-2])
                if points is not None:
                    warn_if_far(kernel, representation.points, X)
        except SamplerError:
            raise
        except ValueError as error:  # the type that SingleTaskGP raises
            raise NotPSDError(str(error)) from error
        if unexplained is not None:
            log_dictionary(X.shape[-2], len(rows), unexplained)
        return PosteriorCache(representation, stamp, rows, points, unexplained, growth=growth)

    def _grown(self, X: Tensor, stamp: Stamp, *, residuals: Tensor, noise: Tensor) -> PosteriorCache | None:
        if self._growth is None or torch.is_grad_enabled():
            return None
        most = self.rule.cap(X.shape[-2], noise.shape[:-1].numel())
        data = {"residuals": residuals, "noise": noise}
        chosen = not self.rule.is_given
        return self._growth.posterior(self.prior_kernel, X, **data, stamp=stamp, chosen=chosen, most=most)

    def chosen_dictionary(self, X: Tensor, *, cap: int | None = None) -> Choice:
        """Return the rule's dictionary of at most ``cap`` points for the training inputs ``X``, transformed."""
        assert self.train_targets is not None
        mean, targets = self.prior_mean(X), self.train_targets
        raw = X if self._original_train_inputs is None else self._original_train_inputs
        noise = self.data_noise(X, targets.shape) if cap is None else self.noise_at(X, targets.shape)
        return self.rule.choose(self.prior_kernel, DataView(X, raw, targets - mean, mean, noise), cap=cap)

    def dictionary_points(self, X: Tensor, rows: Tensor | None, points: Tensor | None) -> Tensor:
        """Return the dictionary, transformed: rows of ``X`` (transformed), after external points in the user's units."""
        if points is None:
            return X[..., rows, :]
        external = self.transform_inputs(points)
        return torch.cat([external.expand(*X.shape[:-2], *external.shape[-2:]), X[..., rows, :]], dim=-2)

    def __call__(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the posterior at transformed points ``… x q x d``; in training mode the prior with its likelihood."""
        if self.training:
            if not self._is_configured or self._stored_inputs is None or self._stored_targets is None:
                return super().__call__(*args, **kwargs)
            (x,) = args
            x = x.unsqueeze(-1) if x.dim() == 1 else x
            prior = self.learner.prior(self, x)
            return super().__call__(x, **kwargs) if prior is None else prior
        if self.lacks_posterior():
            return super().__call__(*args, **kwargs)
        (X,) = args
        X = X.unsqueeze(-1) if X.dim() == 1 else X
        assert self._stored_inputs is not None
        check_width(X, self._stored_inputs)
        cache = self.cache()
        broadcast_shapes(X.shape[:-2], cache.representation.batch_shape)  # raises what SingleTaskGP raises
        if X.shape[-2] > self.settings.joint.dense:
            return self._lazy(X, cache)
        return self._predictor(cache).few(X)

    def _lazy(self, X: Tensor, cache: PosteriorCache, base: Base | None = None) -> MultivariateNormal:
        if cache.baseline.kernel is None:
            cache.baseline.kernel = self._frozen_kernel()
        return self._predictor(cache).many(X, cache.baseline, base)

    def _frozen_kernel(self) -> PriorKernel:
        """Return a copy of the prior covariance for lazy posteriors, which a later change of parameters does not reach.

        The copy's parameters are nodes of the graph, so that gradients reach the model's.
        """
        with torch.enable_grad():
            values = [(parameter, parameter.clone()) for parameter in self.parameters()]
        kernel = self.prior_kernel
        if not isinstance(kernel, ForwardKernel):
            return _copied(kernel, values)
        shared = [(part, part) for part in (*self._data_parts(), self.likelihood)]
        return ForwardKernel(_copied(self, [*values, *shared, (self.prediction_strategy, None)]), like=kernel.like)

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
    ) -> GPyTorchPosterior | TransformedPosterior:
        """Return the posterior over the outputs at ``X``, as :class:`~botorch.models.SingleTaskGP` does. O(q m r).

        A baseline that all elements of a batch begin with, and that no gradient can reach, is computed once.

        Args:
            X: ``batch_shape x q x d``. Of more than 4,096 points the covariance is lazy, and its root that of
                :mod:`sparse_bo.models.sparse_gp.joint_root`.
            output_indices: Outputs to compute, all by default.
            observation_noise: Whether to add the likelihood's noise, or ``batch_shape x q x m`` noise variances.
            posterior_transform: Transform of the posterior.
        """
        self.eval()
        if X.dim() < 2 or self.lacks_posterior():
            return super().posterior(X, output_indices, observation_noise, posterior_transform)
        inputs = self.transform_inputs(X)
        with gpt_posterior_settings():
            cache, outputs = self.cache(), self._num_outputs
            constant = constant_rows(X) * (inputs.shape[-2] // max(X.shape[-2], 1))
            base = self._predictor(cache).base(inputs, constant, cache.baseline)
            few = base is None and inputs.shape[-2] <= self.settings.joint.dense
            if few and (outputs > 1 or not isinstance(self, BatchedMultiOutputGPyTorchModel)):
                return super().posterior(X, output_indices, observation_noise, posterior_transform)
            points = inputs if outputs == 1 else add_output_dim(inputs, self._input_batch_shape)[0]
            mvn = self(points) if few else self._lazy(points, cache, base)
            mvn = self._apply_noise(X=points, mvn=mvn, observation_noise=observation_noise)
        posterior = lazy_posterior(mvn, outputs=None if outputs == 1 else output_indices or list(range(outputs)))
        posterior = untransformed(posterior, getattr(self, "outcome_transform", None), X=inputs)
        return posterior if posterior_transform is None else transformed(posterior, posterior_transform, X=inputs)

    # --- conditioning ------------------------------------------------------------------------------------------------------

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Self:
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

    def get_fantasy_model(self, inputs: Tensor | list[Tensor], targets: Tensor, **kwargs: Any) -> Self:
        """Return the model conditioned on ``targets`` at ``inputs`` (transformed). O(q m r), independent of n.

        The new points join the representation; data are joined only when read. If its hyper-parameters change, the fantasy
        model becomes the DTC posterior of all its data over the dictionary and the new points.

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
        below, targets_below = self._stored_inputs, self._stored_targets
        assert below is not None
        assert targets_below is not None
        check_width(X, below)
        batch_shape = _fantasy_batch_shape(X, targets, below.batch_shape if isinstance(below, Appended) else below.shape[:-2])
        known = {"noise": kwargs["noise"]} if "noise" in kwargs else {}
        likelihood = self.likelihood.get_fantasy_likelihood(**known)
        cache = self.cache()
        shape = broadcast_shapes(X.shape[:-2], cache.representation.alpha.shape[:-1]) + X.shape[-2:-1]
        residuals, noise = targets - self.prior_mean(X), self.noise_at(X, shape, **known)
        try:
            representation = cache.representation.condition(self.prior_kernel, X, residuals=residuals, noise=noise)
        except ValueError as error:
            raise NotPSDError(str(error)) from error
        new_inputs = Appended(below, X.expand(batch_shape + X.shape[-2:]), dim=-2)
        new_targets = Appended(targets_below, targets.expand(batch_shape + targets.shape[-1:]), dim=-1)
        originals = self.__dict__.get("_stored_originals")
        replaced = [(below, new_inputs), (targets_below, new_targets), (originals, originals), (self.rule, self.rule)]
        replaced += [(self.likelihood, likelihood), (self.prediction_strategy, None), (self._growth, None)]
        fantasy = _copied(self, replaced)
        rows = torch.cat([cache.rows, torch.arange(X.shape[-2], device=X.device) + row_count(below)])
        fantasy.rule = replace(self.rule, rows=rows, points=cache.points)
        stamp = Stamp(*fantasy.made_from())
        fantasy.prediction_strategy = PosteriorCache(representation, stamp, rows, cache.points, cache.unexplained)
        return fantasy

    def copy_sharing_data(self, *others: Any) -> Self:
        """Return a deep copy that shares the data, and the objects ``others`` with them."""
        return _copied(self, [(part, part) for part in (*self._data_parts(), *others)])

    def _data_parts(self) -> tuple[Any, ...]:
        return self._stored_inputs, self._stored_targets, self.__dict__.get("_stored_originals")

    # --- learning ----------------------------------------------------------------------------------------------------------

    @property
    def custom_fit(self) -> Callable[..., Any]:
        """The learner's ``fit``, which ``fit_gpytorch_mll`` calls; absent while BoTorch's own loop runs for the learner."""
        if not self._is_configured or self.learner.active:
            raise AttributeError("custom_fit")
        return self.learner.fit

    # --- diagnostics -------------------------------------------------------------------------------------------------------

    @property
    def dictionary(self) -> Dictionary:
        """The dictionary that the posterior stands on: ``points`` (``m x d``, the user's units), ``indices`` and size ``m``.

        ``indices`` are rows of ``train_X``, or ``None`` if some points are external. A batch of different data sets has
        ``batch_shape x m x d`` points. The posterior is computed if it has not been.
        """
        self.eval()
        cache = self.cache()
        points = data_points(self.original_inputs())[..., cache.rows, :].detach()
        indices: Tensor | None = cache.rows
        if cache.points is not None:
            external = cache.points.expand(*points.shape[:-2], *cache.points.shape[-2:])
            points, indices = torch.cat([external, points], dim=-2), None
        return Dictionary(points, torch.ones(points.shape[-2], dtype=points.dtype, device=points.device), indices)

    def certify(self, *, steps: int = 30, failure_probability: float = 1e-6) -> Certificate:
        """Bound the ratio of sparse and exact variance, at every point: a factor of 1 means that nothing is lost.

        O(n m²), then O(n² d + n m) per step: minutes beyond some ten thousand points. ``repr`` shows the result afterwards,
        until data or parameters change.

        Args:
            steps: Lanczos steps; more make the upper bound tighter.
            failure_probability: Of the bound, over a random start.

        Raises:
            UnsupportedError: For a batch, several outputs, or a model with fantasies: these are many posteriors.
        """
        self.eval()
        certificate = certify(self, steps=steps, failure_probability=failure_probability)
        self._certified = (self.cache(), certificate)
        return certificate

    def calibrated(self, X: Tensor | None = None, Y: Tensor | None = None, Yvar: Tensor | None = None) -> Self:
        """Return a copy whose latent variances are scaled to the errors at held-out rows; means are the same.

        The factor, one per output (and batch element), maximises the predictive density of the held-out observations
        (:mod:`sparse_bo.gp.diagnostics`). It is ``covar_module.outputscale`` of the copy, and in its state dict. The copy
        shares the data and the dictionary; after a change of data or hyper-parameters, fit this model and calibrate again.

        It helps where the noise of held-out rows is known, or zero. Where noise is learned, held-out rows determine only the
        sum of both variances. No model is calibrated by default; see docs/decisions/045-calibration.md.

        Args:
            X: ``batch_shape x h x d`` inputs that the model has not seen. Default: every training row outside the dictionary,
                predicted from all others (:meth:`leave_one_out`); of an exact posterior all rows.
            Y: ``batch_shape x h x m`` observations there.
            Yvar: ``batch_shape x h x m`` noise variances of ``Y``, zeros where it is exact. Default: the likelihood's.

        Raises:
            TypeError: If an argument is no tensor.
            ValueError: If numbers of rows differ.
            RuntimeError: If ``X`` has another number of columns than the data.
            InputDataError: If ``X`` and ``Y`` are not given together, have other shapes or are not finite; if the standard
                error of the factor is above 25 % (too few rows, or too noisy ones), or the factor is beyond ``e^±9``.
            UnsupportedError: If the model has fantasies, several tasks, or its own ``forward``.
        """
        result: Self = calibrated(self, X, Y, Yvar)
        return result

    def leave_one_out(self, *, observation_noise: bool = True, untransform: bool = True) -> CVResults:
        """Predict every observation from all others, with hyper-parameters and dictionary fixed. O(n m² + m³).

        Row i is predicted by the posterior over the *same dictionary points* fitted to the other n − 1 observations; exactly
        if all inputs are in the dictionary. Of a fantasy model, the rows are its data and its fantasies. Without gradients.
        BoTorch's ``loo_cv`` (and Ax's cross-validation by it) inverts the ``n x n`` covariance of an exact GP; it raises
        ``UnsupportedError`` for a sparse model.

        Args:
            observation_noise: Whether the variances include the noise of an observation.
            untransform: Whether to return the units of ``train_Y``; ``False``: those of the outcome transform.

        Returns:
            The result type of BoTorch's ``efficient_loo_cv``: ``posterior`` and ``observed_Y`` of shape ``… x n x 1 x m``.
        """
        return self._left_out_results(self._num_outputs, observation_noise, untransform)

    def _left_out_results(self, outputs: int, observation_noise: bool, untransform: bool) -> CVResults:
        means, variances, targets = self.left_out(observation_noise)
        known = self.likelihood.noise if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) else None
        if outputs == 1:
            posterior = GPyTorchPosterior(MultivariateNormal(means, DiagLinearOperator(variances)))
        else:
            parts = zip(means.unbind(-3), variances.unbind(-3), strict=True)
            each = [MultivariateNormal(mean, DiagLinearOperator(variance)) for mean, variance in parts]
            posterior = GPyTorchPosterior(MultitaskMultivariateNormal.from_independent_mvns(each))
        Y, Yvar = (None if part is None else part.unsqueeze(-1) if outputs == 1 else part.mT for part in (targets, known))
        if untransform and hasattr(self, "outcome_transform"):
            posterior = self.outcome_transform.untransform_posterior(posterior)
            Y, Yvar = self.outcome_transform.untransform(Y, Yvar)
        Y, Yvar = (None if part is None else part.unsqueeze(-2) for part in (Y, Yvar))
        return CVResults(model=self, posterior=posterior, observed_Y=Y, observed_Yvar=Yvar)

    def left_out(self, observation_noise: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return leave-one-out means and variances (``… x n x 1``) and targets (``… x n``), in the model's own units."""
        self.eval()
        cache, kernel = self.cache(), self.prior_kernel
        assert self.train_inputs is not None
        assert self.train_targets is not None
        X, targets = self.train_inputs[0], self.train_targets
        with torch.no_grad():
            noise, prior_mean = self.noise_at(X, targets.shape), self.prior_mean(X)
            data = {"residuals": targets - prior_mean, "noise": self.data_noise(X, targets.shape)}
            if cache.holds_all(X.shape[-2]):
                whole = cache.representation.extension is None
                exact = cache.representation
                if not whole:
                    exact = exact_representation(kernel, X, residuals=data["residuals"], noise=data["noise"])
                means, variances = left_out_of_exact(exact, **data)
            else:
                D = self.dictionary_points(X, cache.rows, cache.points)
                means, variances = left_out_of_dtc(kernel, D, X, **data, how=self.settings.sums)
            variances = variances + noise if observation_noise else variances
            return (prior_mean + means).to(targets).unsqueeze(-1), variances.to(targets).unsqueeze(-1), targets

    def extra_repr(self) -> str:
        """Return n, m, the likelihood that is learned from, and the certificate; nothing is computed."""
        stored, cache = self._stored_inputs, self.prediction_strategy
        if stored is None:
            return "no data"
        n = row_count(stored)
        fit = f"learns by fit={self.learner.likelihood(n)!r}"
        if cache is None or not cache.stamp.matches(*self.made_from()):
            return f"n={n}, m chosen at the next posterior, {fit}, not certified"
        extension = cache.representation.extension
        m = cache.representation.points.shape[-2] + (0 if extension is None else extension.points.shape[-2])
        rest = "" if cache.unexplained is None else f" (leaves {cache.unexplained:.2g} of the noise variance unexplained)"
        accuracy = "not certified"
        if cache.holds_all(n):
            accuracy = "exact"
        elif self._certified is not None and self._certified[0] is cache:
            accuracy = f"variances within a factor of {self._certified[1].factor:.3g} of the exact ones"
        return f"n={n}, m={m}{rest}, {fit}, {accuracy}"

    # --- caches ------------------------------------------------------------------------------------------------------------

    def _clear_cache(self) -> None:
        self.prediction_strategy = None
        if self._is_configured:
            self.learner.reset()

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> Self:
        """Convert data and parameters. BoTorch calls ``.to`` before every analytic acquisition value: then nothing changes."""
        cache, before = self.prediction_strategy, self.made_from()
        valid = cache is not None and cache.stamp.matches(*before)
        super(ExactGP, self)._apply(fn, *args, **kwargs)  # ExactGP's own would join rows and drop the cache
        for name in ("_stored_inputs", "_stored_targets"):
            if self.__dict__[name] is not None:
                self.__dict__[name] = mapped(self.__dict__[name], fn)
        if self._is_configured:
            self.rule = self.rule.map(fn)
        if cache is not None and valid and cache.stamp.matches(*self.made_from()):
            return self
        self._clear_cache()
        if cache is not None and valid and cache.representation.extension is not None:  # fantasies are nowhere else
            points = None if cache.points is None else fn(cache.points)
            stamp, rows = Stamp(*self.made_from()), fn(cache.rows)
            self.prediction_strategy = PosteriorCache(cache.representation.map(fn), stamp, rows, points, cache.unexplained)
        return self

    @classmethod
    def construct_inputs(
        cls,
        training_data: SupervisedDataset,
        *args: Any,
        dictionary: DictionaryOption = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Construct the keyword arguments of the constructor from a data set, BoTorch's options and the model's own.

        Args:
            training_data: The data set of one outcome.
            *args: As in the BoTorch class.
            dictionary: As in :class:`sparse_bo.SparseGP`.
            max_dictionary: As in :class:`sparse_bo.SparseGP`.
            fit: As in :class:`sparse_bo.SparseGP`.
            seed: As in :class:`sparse_bo.SparseGP`.
            **kwargs: As in the BoTorch class.

        Raises:
            TypeError: If ``training_data`` is not a ``SupervisedDataset``.
        """
        own = {"dictionary": dictionary, "max_dictionary": max_dictionary, "fit": fit, "seed": seed}
        return {**super().construct_inputs(training_data, *args, **kwargs), **own}


def _copied(model: Any, replacements: list[tuple[Any, Any]]) -> Any:
    """Return a deep copy in which each ``(old, new)`` object is replaced and not copied."""
    return deepcopy(model, {id(old): new for old, new in replacements if old is not None})


def _fantasy_batch_shape(inputs: Tensor, targets: Tensor, model_batch_shape: torch.Size) -> torch.Size:
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


DrawMatheronPaths.register(SparseModel)(draw_matheron_path)
