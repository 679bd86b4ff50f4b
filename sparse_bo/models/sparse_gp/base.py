"""SparseModel: an exact GP class of BoTorch whose posterior stands on a dictionary.

The class holds the data and answers BoTorch's contract. A :class:`~sparse_bo.models.sparse_gp.dictionary_rule.DictionaryRule`
chooses points, a :class:`~sparse_bo.models.sparse_gp.representation.Representation` is the posterior, a
:class:`~sparse_bo.models.sparse_gp.learning.Learner` learns hyper-parameters, and a
:class:`~sparse_bo.models.sparse_gp.growth.PreviousPosterior` extends the posterior of a previous model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
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
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.dictionary import Certificate, Dictionary
from sparse_bo.errors import SamplerError
from sparse_bo.linalg.chunking import broadcast_shapes
from sparse_bo.models.sparse_gp import diagnostics
from sparse_bo.models.sparse_gp.dictionary_rule import DataView, DictionaryOption, DictionaryRule, warn_if_far
from sparse_bo.models.sparse_gp.gaussian_process import Base, Process
from sparse_bo.models.sparse_gp.growth import PreviousPosterior, conditioned, followed
from sparse_bo.models.sparse_gp.joint_root import JointSettings
from sparse_bo.models.sparse_gp.learning import Fit, Learner, LearningSettings
from sparse_bo.models.sparse_gp.leverage_sampling import ChosenPoints, DictionarySettings, data_points
from sparse_bo.models.sparse_gp.outputs import lazy_posterior, transformed, untransformed
from sparse_bo.models.sparse_gp.pathwise import draw_matheron_path
from sparse_bo.models.sparse_gp.posterior import constant_rows, joint_of_few, joint_of_many
from sparse_bo.models.sparse_gp.prior import ForwardKernel, PriorKernel, check_overrides, copied, frozen
from sparse_bo.models.sparse_gp.representation import Representation, dtc_representation, exact_representation
from sparse_bo.models.sparse_gp.row_sums import Summation, fit_dtc
from sparse_bo.models.sparse_gp.state import (
    Appended,
    PosteriorCache,
    Stamp,
    check_width,
    joined,
    mapped,
)
from sparse_bo.models.sparse_gp.triangular import ProductSizes


@dataclass(frozen=True)
class SparseSettings:
    """Sizes and tolerances of a sparse model, with tested defaults; ``TypeError`` for a part of another type."""

    dictionary: DictionarySettings = field(default_factory=DictionarySettings)
    learning: LearningSettings = field(default_factory=LearningSettings)
    joint: JointSettings = field(default_factory=JointSettings)
    sums: Summation = field(default_factory=Summation)
    products: ProductSizes = field(default_factory=ProductSizes)
    growth: float = 1.5
    """With ``previous``, the dictionary is chosen anew when the data have grown by this factor."""

    def __post_init__(self) -> None:
        for part in fields(self):
            if isinstance(part.default_factory, type):
                _check_settings(part.name, getattr(self, part.name), part.default_factory)


def _check_settings(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"expected {name} to be {kind.__name__}, got {type(value).__name__}; use {name}={kind.__name__}(...)")


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
    outlying_rows: Tensor | None = None
    """Rows of ``train_X`` that a fit with ``robust=True`` has left out, ascending; ``None``: none."""
    _previous: PreviousPosterior | None = None
    _certified: tuple[PosteriorCache, Certificate] | None = None
    _stored_inputs: Any  # a tensor, ``Appended`` rows that are joined when they are read, or None
    _stored_targets: Any
    _stored_originals: Any = None
    _num_outputs: int

    def _configure(
        self,
        train_X: Tensor,
        *,
        dictionary: DictionaryOption = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
        robust: bool = False,
        settings: SparseSettings | None = None,
        previous: SparseModel | None = None,
    ) -> None:
        """Set the collaborators; called once, when BoTorch's constructor has checked the data."""
        check_overrides(type(self))
        settings = SparseSettings() if settings is None else settings
        _check_settings("settings", settings, SparseSettings)
        rule = DictionaryRule.of(dictionary, train_X, most=max_dictionary, seed=seed, settings=settings.dictionary)
        self.settings, self.rule, self.learner = settings, rule, Learner(fit, seed, settings.learning, robust=robust)
        self.register_buffer("data_noise_factor", None)  # of a calibrated model alone
        n, batch = train_X.shape[-2], self.train_targets.shape[:-1].numel()
        diagnostics.log_defaults(
            type(self).__name__,
            n,
            learned_from=settings.learning.subset if fit is None else None,
            cap=rule.cap(n, batch) if dictionary is None and max_dictionary is None else None,
        )
        if previous is None:
            return
        if dictionary is not None:
            raise ValueError(
                "expected previous or dictionary, got both; previous brings its own dictionary: leave dictionary out"
            )
        self._previous = followed(self, previous)
        self.rule = replace(previous.rule, most=rule.most or previous.rule.most, seed=rule.seed)

    @property
    def _is_configured(self) -> bool:
        """Whether BoTorch's constructor has returned and the collaborators are set."""
        return "learner" in self.__dict__

    # --- data --------------------------------------------------------------------------------------------------------------

    @property
    def train_inputs(self) -> Any:
        """The training inputs, one tensor ``aug_batch_shape x n x d``; transformed in evaluation mode."""
        return None if self._stored_inputs is None else (joined(self._stored_inputs),)

    @train_inputs.setter
    def train_inputs(self, value: tuple[Tensor, ...] | None) -> None:
        self.__dict__["_stored_inputs"] = None if value is None else next(iter(value))  # never as a parameter of the module
        self._clear_cache()

    @property
    def train_targets(self) -> Any:
        """The training targets in the outcome transform's units, ``aug_batch_shape x n``."""
        return None if self._stored_targets is None else joined(self._stored_targets)

    @train_targets.setter
    def train_targets(self, value: Tensor | None) -> None:
        self.__dict__["_stored_targets"] = value
        self._clear_cache()

    @property
    def _original_train_inputs(self) -> Tensor | None:
        return None if self._stored_originals is None else joined(self._stored_originals)

    @_original_train_inputs.setter
    def _original_train_inputs(self, value: Tensor | None) -> None:
        self.__dict__["_stored_originals"] = value

    def original_inputs(self) -> Tensor:
        """Return the training inputs in the user's units."""
        originals: Tensor | None = self._original_train_inputs
        return self.train_inputs[0] if originals is None else originals

    def training_data(self) -> tuple[Tensor, Tensor]:
        """Return the training inputs, transformed in evaluation mode, and targets."""
        return self.train_inputs[0], self.train_targets

    def lacks_posterior(self) -> bool:
        """Return whether the model returns its prior: without data, or in GPyTorch's prior mode."""
        return self._is_untrained or bool(gpytorch.settings.prior_mode.on())

    @property
    def _is_untrained(self) -> bool:
        return self._stored_inputs is None or self._stored_targets is None

    # --- prior and noise ---------------------------------------------------------------------------------------------------

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at ``x``, as the BoTorch class does: transformed here in training mode only.

        A subclass may override it; training, posterior, conditioning and leave-one-out all follow. At all training inputs of a
        sparse model it raises ``UnsupportedError``: BoTorch's ``loo_cv`` would return the predictions of the exact GP.
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
        """Return the noise variances of the training data in the posterior: times the factor of a calibration.

        Those of outlying rows are so large that these rows do not count.
        """
        noise, factor, outlying = self.noise_at(X, shape), self._buffers.get("data_noise_factor"), self.outlying_noise()
        noise = noise if outlying is None else noise + outlying
        return noise if factor is None else noise * factor.unsqueeze(-1)

    def outlying_noise(self) -> Tensor | None:
        """Return the additional noise variances of the training rows, ``aug_batch_shape x n``, if some are left out."""
        if self.outlying_rows is None:
            return None
        targets = self.train_targets
        noise = torch.zeros_like(targets)
        noise[..., self.outlying_rows] = 1e4 * targets.var(dim=-1, keepdim=True)
        return noise

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        """Set the training data as GPyTorch does; rows of new targets are left out only after another fit."""
        if targets is not None:
            self.outlying_rows = None
        super().set_train_data(inputs, targets, strict)

    # --- the posterior -----------------------------------------------------------------------------------------------------

    def made_from(self) -> tuple[tuple[Tensor | Appended, ...], tuple[Tensor, ...]]:
        """Return everything the posterior depends on: data and known noise, and parameters."""
        known = self.likelihood.noise_covar.noise if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) else None
        parts = (self._stored_inputs, self._stored_targets, known, self.outlying_rows)
        data = [part for part in parts if part is not None]
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

    def process(self) -> Process:
        """Return the posterior with its prior, in the outcome transform's units and transformed inputs."""
        return Process(self.prior_kernel, self.prior_mean, self.cache().representation, self.settings.joint)

    def _computed(self, stamp: Stamp) -> PosteriorCache:
        """Return the posterior of the data; from the previous model's where it can be."""
        (X, targets), kernel, chosen, grown = self.training_data(), self.prior_kernel, None, None
        data: dict[str, Any] = {"residuals": targets - self.prior_mean(X), "noise": self.data_noise(X, targets.shape)}
        previous, factor, chosen_at, growth = self._previous, self.settings.growth, X.shape[-2], None
        try:
            if previous is not None and not torch.is_grad_enabled():
                chosen = previous.dictionary(self, stamp, X, data["noise"], factor=factor)
                if chosen is not None:
                    chosen_at = previous.cache.chosen_at
                    grown = previous.grown(kernel, X, **data, factor=factor)
            rows, points, unexplained = chosen or self.chosen_dictionary(X)
            if grown is not None:
                representation, growth = grown
            elif points is None and len(rows) == X.shape[-2]:
                representation = exact_representation(kernel, X, **data, sizes=self.settings.products)
            else:
                D = self.dictionary_points(X, rows, points)
                state = fit_dtc(kernel, D, X, **data, how=self.settings.sums)
                representation = dtc_representation(state, D, self.settings.products)
                if points is not None:
                    warn_if_far(kernel, representation.points, X)
        except SamplerError:
            raise
        except ValueError as error:  # the type that SingleTaskGP raises
            raise NotPSDError(str(error)) from error
        if unexplained is not None:
            diagnostics.log_dictionary(X.shape[-2], len(rows), unexplained)
        cache = PosteriorCache(representation, stamp, rows, points, unexplained, chosen_at=chosen_at, growth=growth)
        if chosen is not None:  # the dictionary stays until parameters change
            self._previous = PreviousPosterior(cache, X, **data)
        elif not self.training:  # when inputs are not transformed
            self._previous = None
        return cache

    def chosen_dictionary(self, X: Tensor, *, cap: int | None = None) -> ChosenPoints:
        """Return the rule's dictionary of at most ``cap`` points for the training inputs ``X``, transformed."""
        mean, targets = self.prior_mean(X), self.train_targets
        raw = X if self._stored_originals is None else joined(self._stored_originals)
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
        if self._is_untrained or (gpytorch.settings.prior_mode.on() if not self.training else not self._is_configured):
            return super().__call__(*args, **kwargs)
        (X,) = args
        X = X.unsqueeze(-1) if X.dim() == 1 else X
        if self.training:
            prior = self.learner.prior(self, X)
            return super().__call__(X, **kwargs) if prior is None else prior
        check_width(X, self._stored_inputs)
        process = self.process()
        broadcast_shapes(X.shape[:-2], process.posterior.batch_shape)  # raises what SingleTaskGP raises
        return self._lazy(X) if X.shape[-2] > self.settings.joint.dense else joint_of_few(process, X)

    def _lazy(self, X: Tensor, base: Base | None = None) -> MultivariateNormal:
        baseline = self.cache().baseline
        if baseline.kernel is None:
            with torch.enable_grad():  # nodes of the graph, so that gradients reach the parameters
                baseline.kernel = frozen(self.prior_kernel, torch.clone)
        return joint_of_many(replace(self.process(), kernel=baseline.kernel), X, baseline, base)

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
            outputs = self._num_outputs
            constant = constant_rows(X) * (inputs.shape[-2] // max(X.shape[-2], 1))
            base = self.cache().baseline.of(self.process(), inputs, constant)
            few = base is None and inputs.shape[-2] <= self.settings.joint.dense
            if few and (outputs > 1 or not isinstance(self, BatchedMultiOutputGPyTorchModel)):
                return super().posterior(X, output_indices, observation_noise, posterior_transform)
            points = inputs if outputs == 1 else add_output_dim(inputs, self._input_batch_shape)[0]
            mvn = self(points) if few else self._lazy(points, base)
            mvn = self._apply_noise(X=points, mvn=mvn, observation_noise=observation_noise)
        posterior = lazy_posterior(mvn, outputs=None if outputs == 1 else output_indices or list(range(outputs)))
        posterior = untransformed(posterior, getattr(self, "outcome_transform", None), X=inputs)
        return posterior if posterior_transform is None else transformed(posterior, posterior_transform, X=inputs)

    # --- conditioning ------------------------------------------------------------------------------------------------------

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Self:
        """Condition the posterior process on new observations. O(q m r), independent of n.

        Args:
            X: ``batch_shape x q x d`` inputs of the new observations.
            Y: ``batch_shape' x q x m``, as in :class:`~botorch.models.SingleTaskGP`.
            **kwargs: ``noise``, as ``Y``, in the outcome transform's units.
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
            fantasy.__dict__["_stored_originals"] = Appended(self._stored_originals, X.detach(), dim=-2)
        batch_shape = fantasy._stored_targets.batch_shape
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
        check_width(X, self._stored_inputs)
        parts, cache, likelihood = conditioned(self, X, targets, **kwargs)
        new = [*zip(self._data_parts()[:2], parts, strict=True), (self.likelihood, likelihood), (self.rule, self.rule)]
        fantasy = self.copy_sharing_data(*new, (self._previous, None))
        fantasy.rule = replace(self.rule, rows=cache.rows, points=cache.points)
        fantasy.prediction_strategy = replace(cache, stamp=Stamp(*fantasy.made_from()))
        return fantasy

    def copy_sharing_data(self, *replaced: tuple[Any, Any]) -> Self:
        """Return a deep copy without posterior that shares the data, with a new object for each ``(old, new)``."""
        copy: Self = copied(self, [*((part, part) for part in self._data_parts()), (self.prediction_strategy, None), *replaced])
        return copy

    def _data_parts(self) -> tuple[Any, ...]:
        return self._stored_inputs, self._stored_targets, self._stored_originals

    # --- outputs -----------------------------------------------------------------------------------------------------------

    def subset_output(self, idcs: list[int]) -> Self:
        """Return the model of some outputs: the same posterior of these, entry for entry, over the same dictionary."""
        count, training, shape = self._num_outputs, self.training, getattr(self, "_aug_batch_shape", torch.Size())
        if not hasattr(self, "_subset_batch_dict") or idcs == list(range(count)) or self._is_untrained:
            return super().subset_output(idcs)
        for name, tensor in (*self.named_parameters(), *self.named_buffers()):  # as of the kernel of a calibrated model
            own = name.startswith(("covar_module.", "data_noise_factor")) and tensor.shape[: len(shape)] == shape
            if own and name not in self._subset_batch_dict:
                self._subset_batch_dict[name] = len(shape) - 1 - tensor.dim()
        cache, index = self.eval().cache(), torch.tensor(idcs, device=self.train_targets.device)

        def pick(tensor: Tensor, trailing: int) -> Tensor:
            dim = tensor.dim() - trailing - 1
            if dim < 0:  # the same of all outputs
                return tensor
            tensor = tensor if tensor.shape[dim] == 1 else tensor.index_select(dim, index)
            return tensor.squeeze(dim) if len(idcs) == 1 else tensor

        subset: Self = super().subset_output(idcs)
        subset.outlying_rows = self.outlying_rows
        if self._stored_originals is not None:
            subset.__dict__["_stored_originals"] = pick(joined(self._stored_originals), 2)
        if not cache.holds_all(self.train_targets.shape[-1]):
            subset.rule = replace(self.rule, rows=cache.rows, points=cache.points)
        stamp, form = Stamp(*subset.made_from()), cache.representation.viewed(pick)
        subset.prediction_strategy = PosteriorCache(form, stamp, cache.rows, cache.points, cache.unexplained)
        if training:
            self.train()
            subset.train()
        return subset

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
        certificate = diagnostics.certify(self, steps=steps, failure_probability=failure_probability)
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
        result: Self = diagnostics.calibrated(self, X, Y, Yvar)
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
        return diagnostics.leave_one_out(self, observation_noise=observation_noise, untransform=untransform)

    def extra_repr(self) -> str:
        """Return n, m, the likelihood that is learned from, and the certificate; nothing is computed."""
        return diagnostics.summary(self)

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
            if self.outlying_rows is not None:
                self.outlying_rows = fn(self.outlying_rows)
        if cache is not None and valid and cache.stamp.matches(*self.made_from()):
            return self
        self._clear_cache()
        if cache is not None and valid and cache.representation.extension is not None:  # fantasies are nowhere else
            points = None if cache.points is None else fn(cache.points)
            stamp, rows = Stamp(*self.made_from()), fn(cache.rows)
            self.prediction_strategy = PosteriorCache(cache.representation.map(fn), stamp, rows, points, cache.unexplained)
        return self

    @classmethod
    def construct_inputs(cls, training_data: SupervisedDataset, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Construct the keyword arguments of the constructor from a data set of one outcome; ``TypeError`` for anything else.

        Options are those of the BoTorch class, and ``dictionary``, ``max_dictionary``, ``fit``, ``seed`` and ``robust``.
        """
        names = ("dictionary", "max_dictionary", "fit", "seed", "robust")
        own = {name: kwargs.pop(name) for name in names if name in kwargs}
        return {**super().construct_inputs(training_data, *args, **kwargs), **own}


DrawMatheronPaths.register(SparseModel)(draw_matheron_path)
