"""SparseModel: an exact GP class of BoTorch whose posterior stands on a dictionary.

The class holds the data and answers BoTorch's contract. A :class:`~sparse_bo.models.sparse_gp.dictionary_rule.DictionaryRule`
chooses points, a :class:`~sparse_bo.models.sparse_gp.representation.Representation` is the posterior, a
:class:`~sparse_bo.models.sparse_gp.learning.Learner` learns hyper-parameters, and a
:class:`~sparse_bo.models.sparse_gp.growth.PreviousPosterior` extends the posterior of a previous model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import gpytorch
import torch
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import BatchedMultiOutputGPyTorchModel
from botorch.models.utils import gpt_posterior_settings
from botorch.models.utils.assorted import add_output_dim
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from torch import Tensor

from sparse_bo.dictionary import Certificate, Dictionary
from sparse_bo.linalg.chunking import broadcast_shapes
from sparse_bo.models.sparse_gp import diagnostics, outputs, prior, state
from sparse_bo.models.sparse_gp.dictionary_rule import DictionaryOption, DictionaryRule
from sparse_bo.models.sparse_gp.gaussian_process import Process
from sparse_bo.models.sparse_gp.growth import (
    PreviousPosterior,
    computed,
    condition_on_observations,
    followed,
    get_fantasy_model,
)
from sparse_bo.models.sparse_gp.joint_root import JointSettings
from sparse_bo.models.sparse_gp.learning import Fit, Learner, LearningSettings
from sparse_bo.models.sparse_gp.leverage_sampling import DictionarySettings
from sparse_bo.models.sparse_gp.posterior import constant_rows, draw_matheron_path, joint_of_few, joint_of_many
from sparse_bo.models.sparse_gp.representation import Representation
from sparse_bo.models.sparse_gp.row_sums import Summation
from sparse_bo.models.sparse_gp.triangular import ProductSizes
from sparse_bo.validation import check_numbers, check_positive, nearest


@dataclass(frozen=True)
class SparseSettings:
    """Sizes and tolerances of a sparse model, with tested defaults; ``TypeError`` for a part of another type."""

    dictionary: DictionarySettings = field(default_factory=DictionarySettings)
    """Sizes of the dictionary."""
    learning: LearningSettings = field(default_factory=LearningSettings)
    """Of the learning of hyper-parameters."""
    joint: JointSettings = field(default_factory=JointSettings)
    """Of joint posteriors of many points."""
    sums: Summation = field(default_factory=Summation)
    """Of the sums over rows, which run in pieces."""
    products: ProductSizes = field(default_factory=ProductSizes)
    """Of products with triangular matrices, which run in blocks."""
    growth: float = 1.5
    """With ``previous``, the dictionary is chosen anew when the data have grown by this factor."""

    def __post_init__(self) -> None:
        for name, kind in _PARTS.items():
            _check_settings(name, getattr(self, name), kind)
            check_numbers(name, getattr(self, name))
        check_positive("growth", self.growth)


_PARTS: Mapping[str, Any] = {
    part.name: part.default_factory for part in fields(SparseSettings) if isinstance(part.default_factory, type)
}


def _check_settings(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise TypeError(f"expected {name} to be {kind.__name__}, got {type(value).__name__}; use {name}={kind.__name__}(...)")


class SparseModel(ExactGP):  # type: ignore[misc]  # the base class ships no types
    """The sparse posterior of an exact GP class of BoTorch, which follows it in the bases of a model.

    ``class SparseGP(SparseModel, SingleTaskGP)`` overrides only the methods that need the DTC algebra. Constructor,
    transforms, noise and state dict are BoTorch's.
    """

    prediction_strategy: state.PosteriorCache | None
    data_noise_factor: Tensor | None
    rule: DictionaryRule
    learner: Learner
    settings: SparseSettings = SparseSettings()
    has_module_prior = True
    """Whether BoTorch's ``forward`` is ``mean_module`` and ``covar_module`` at the inputs, and nothing else."""
    outlying_rows: Tensor | None = None
    """Rows of ``train_X`` that a fit with ``robust=True`` has left out, ascending; ``None``: none."""
    _previous: PreviousPosterior | None = None
    has_units_of_previous = False
    """Whether outcomes are transformed as those of the model that this one follows; until a fit."""
    _certified: tuple[state.PosteriorCache, Certificate] | None = None
    _stored_inputs: Any  # a tensor, ``Appended`` rows that are joined when they are read, or None
    _stored_targets: Any
    _stored_originals: Any = None
    _num_outputs: int

    def _configure(
        self,
        train_X: Tensor,
        train_Yvar: Tensor | None,
        *,
        dictionary: DictionaryOption = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
        robust: bool = False,
        settings: SparseSettings | None = None,
        previous: SparseModel | None = None,
        **unknown: Any,
    ) -> None:
        """Set the collaborators; called once, when BoTorch's constructor has checked the data."""
        if unknown:
            known = ("dictionary", "max_dictionary", "fit", "seed", "robust", "settings", "previous")
            name = next(iter(unknown))
            fix = nearest(name, known) or f"; its own arguments are {', '.join(known)}"
            for part, kind in _PARTS.items():
                if name in {one.name for one in fields(kind)}:
                    fix = f"; write settings=SparseSettings({part}={kind.__name__}({name}=…))"
            if "inducing" in name:
                fix = "; inducing points are dictionary= here (points, rows or a sampler), their number is max_dictionary="
            raise TypeError(f"{type(self).__name__} got an unexpected argument {name!r}{fix}")
        prior.check_prior(self)
        given_settings = settings is not None
        settings = SparseSettings() if settings is None else settings
        _check_settings("settings", settings, SparseSettings)
        rule = DictionaryRule.of(dictionary, train_X, most=max_dictionary, seed=seed, settings=settings.dictionary)
        given = train_Yvar if robust or previous is not None else None
        learner = Learner(fit, seed, settings.learning, robust=robust, given_noise=given)
        self.settings, self.rule, self.learner = settings, rule, learner
        self.register_buffer("data_noise_factor", None)  # of a calibrated model alone
        diagnostics.log_defaults(self)
        if previous is None:
            return
        self._previous, self.has_units_of_previous = followed(self, previous), True
        sizes = rule.settings if given_settings else previous.rule.settings
        self.rule = replace(previous.rule, most=rule.most or previous.rule.most, seed=rule.seed, settings=sizes)

    @property
    def _is_configured(self) -> bool:
        """Whether BoTorch's constructor has returned and the collaborators are set."""
        return "learner" in self.__dict__

    @property
    def train_inputs(self) -> Any:
        """The training inputs, one tensor ``aug_batch_shape x n x d``; transformed in evaluation mode."""
        return None if self._stored_inputs is None else (state.joined(self._stored_inputs),)

    @train_inputs.setter
    def train_inputs(self, value: tuple[Tensor, ...] | None) -> None:
        self.__dict__["_stored_inputs"] = None if value is None else next(iter(value))  # never as a parameter of the module
        self._clear_cache()

    @property
    def train_targets(self) -> Any:
        """The training targets in the outcome transform's units, ``aug_batch_shape x n``."""
        return None if self._stored_targets is None else state.joined(self._stored_targets)

    @train_targets.setter
    def train_targets(self, value: Tensor | None) -> None:
        self.__dict__["_stored_targets"] = value
        self._clear_cache()

    @property
    def _original_train_inputs(self) -> Tensor | None:
        return None if self._stored_originals is None else state.joined(self._stored_originals)

    @_original_train_inputs.setter
    def _original_train_inputs(self, value: Tensor | None) -> None:
        self.__dict__["_stored_originals"] = value

    def original_inputs(self) -> Tensor:
        """Return the training inputs in the user's units."""
        originals: Tensor | None = self._original_train_inputs
        return self.train_inputs[0] if originals is None else originals

    def lacks_posterior(self) -> bool:
        """Return whether the model returns its prior: without data, or in GPyTorch's prior mode."""
        return self._is_untrained or bool(gpytorch.settings.prior_mode.on())

    @property
    def _is_untrained(self) -> bool:
        return self._stored_inputs is None or self._stored_targets is None

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at ``x``, as the BoTorch class does: transformed here in training mode only.

        A subclass may override it; training, posterior, conditioning and leave-one-out all follow. At all training inputs of a
        sparse model it raises ``UnsupportedError``: BoTorch's ``loo_cv`` would return the predictions of the exact GP.
        """
        inputs = None if self._stored_inputs is None else state.joined(self._stored_inputs)
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
    def prior_kernel(self) -> prior.PriorKernel:
        """The prior covariance: ``covar_module``, or that of a subclass's own ``forward``."""
        own = type(self).forward is not SparseModel.forward
        if not own and self.has_module_prior:
            return self.covar_module
        like = self._stored_inputs if own else None
        return prior.ForwardKernel(self, like=None if like is None else state.joined(like))

    def prior_mean(self, X: Tensor) -> Tensor:
        """Return the prior mean at transformed points ``X`` (``… x q x d``), ``batch_shape x q``."""
        kernel = self.prior_kernel
        return kernel.mean(X) if isinstance(kernel, prior.ForwardKernel) else self.mean_module(X)

    noise_at = prior.noise_at
    data_noise = prior.data_noise
    training_data = prior.training_data
    outlying_noise = prior.outlying_noise

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self.outlying_rows is not None:
            destination[f"{prefix}outlying_rows"] = state.outlying_mask(self)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        mask, rows = state_dict.get(key := f"{prefix}outlying_rows"), self.outlying_rows
        if mask is not None and rows is not None and torch.equal(mask.to(rows.device), state.outlying_mask(self)):
            del state_dict[key]  # as in a fit, which restores the state of its likelihood; other rows are an unexpected key
        super()._load_from_state_dict(state_dict, prefix, *args)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load parameters, transforms and outlying rows as BoTorch does; arguments as in :class:`~botorch.models.SingleTaskGP`.

        The entry ``outlying_rows``, ``n`` booleans, is there if rows are left out. It holds for as many rows of data: of
        another number none is left out, with an ``InputDataWarning``.
        """
        state_dict = copy(state_dict)
        mask = state_dict.pop("outlying_rows", None)  # type: ignore[attr-defined]  # a copy of the user's
        loaded = super().load_state_dict(state_dict, *args, **kwargs)
        self.outlying_rows = state.masked_rows(self, mask)
        return loaded

    def set_train_data(self, inputs: Any = None, targets: Tensor | None = None, strict: bool = True) -> None:
        """Set the training data as GPyTorch does; rows of new targets are left out only after another fit."""
        if targets is not None:
            self.outlying_rows = None
        super().set_train_data(inputs, targets, strict)

    def made_from(self) -> tuple[tuple[Tensor | state.Appended, ...], tuple[Tensor, ...]]:
        """Return everything the posterior depends on: data and known noise, and parameters."""
        known = self.likelihood.noise_covar.noise if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) else None
        parts = (self._stored_inputs, self._stored_targets, known, self.outlying_rows)
        data = [part for part in parts if part is not None]
        factor = self._buffers.get("data_noise_factor")  # not there while BoTorch's constructor runs
        return tuple(data), tuple(self.parameters()) if factor is None else (*self.parameters(), factor)

    def cache(self) -> state.PosteriorCache:
        """Return the posterior, computed anew if data or parameters have changed. O(n m² + m³) then."""
        made_from = self.made_from()
        cache = self.prediction_strategy
        if cache is None or not cache.stamp.matches(*made_from):
            with torch.set_grad_enabled(torch.is_grad_enabled() and gpytorch.settings.detach_test_caches.off()):
                cache = self._computed(state.Stamp(*made_from))
            self.prediction_strategy = cache
        elif gpytorch.settings.detach_test_caches.on():
            form = cache.representation
            if form.extension is None and form.alpha.requires_grad:  # of a call with propagate_grads
                self.prediction_strategy = cache = replace(cache, representation=form.map(torch.Tensor.detach))
        return cache

    def representation(self) -> Representation:
        """Return the posterior in the form ``(D, α, R)``, in the outcome transform's units and transformed inputs."""
        return self.cache().representation

    def process(self) -> Process:
        """Return the posterior with its prior, in the outcome transform's units and transformed inputs."""
        return Process(self.prior_kernel, self.prior_mean, self.cache().representation, self.settings.joint)

    _computed = computed

    def __call__(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the posterior at transformed points ``… x q x d``; in training mode the prior with its likelihood."""
        if self._is_untrained or (gpytorch.settings.prior_mode.on() if not self.training else not self._is_configured):
            return super().__call__(*args, **kwargs)
        (X,) = args
        X = X.unsqueeze(-1) if X.dim() == 1 else X
        if self.training:
            trained = self.learner.prior(self, X)
            return super().__call__(X, **kwargs) if trained is None else trained
        X = state.checked_points(X, self._stored_inputs)
        process = self.process()
        broadcast_shapes(X.shape[:-2], process.posterior.batch_shape)  # raises what SingleTaskGP raises
        few = X.shape[-2] <= self.settings.joint.dense
        return joint_of_few(process, X) if few else joint_of_many(process, X, self.cache().baseline)

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
            output_indices: Outputs to return, in this order and each in its own units; all by default.
            observation_noise: Whether to add the likelihood's noise, or ``batch_shape x q x m`` noise variances, in the units
                of the outcome transform, as in BoTorch.
            posterior_transform: Transform of the posterior.
        """
        self.eval()
        if X.dim() < 2 or self.lacks_posterior():
            return super().posterior(X, output_indices, observation_noise, posterior_transform)
        inputs = state.checked_points(self.transform_inputs(X), self._stored_inputs)
        with gpt_posterior_settings():
            count = self._num_outputs
            constant = constant_rows(X) * (inputs.shape[-2] // max(X.shape[-2], 1))
            base = self.cache().baseline.of(self.process(), inputs, constant)
            few = base is None and inputs.shape[-2] <= self.settings.joint.dense
            chosen = list(output_indices or range(count))
            every = count == 1 or chosen == list(range(count))
            if few and every and (count > 1 or not isinstance(self, BatchedMultiOutputGPyTorchModel)):
                return super().posterior(X, output_indices, observation_noise, posterior_transform)
            points = inputs if count == 1 else add_output_dim(inputs, self._input_batch_shape)[0]
            mvn = self(points) if few else joint_of_many(self.process(), points, self.cache().baseline, base)
            mvn = self._apply_noise(X=points, mvn=mvn, observation_noise=observation_noise)
        transform = getattr(self, "outcome_transform", None)
        if every:
            posterior = outputs.lazy_posterior(mvn, outputs=None if count == 1 else chosen)
            posterior = outputs.untransformed(posterior, transform, X=inputs)
        else:  # BoTorch would take the units of the first outputs
            posterior = outputs.posterior_of_outputs(mvn, chosen, transform, X=inputs)
        return posterior if posterior_transform is None else outputs.transformed(posterior, posterior_transform, X=inputs)

    condition_on_observations = condition_on_observations
    get_fantasy_model = get_fantasy_model
    copy_sharing_data = prior.copy_sharing_data

    def subset_output(self, idcs: list[int]) -> Self:
        """Return the model of some outputs: the same posterior of these, entry for entry, over the same dictionary."""
        every = not hasattr(self, "_subset_batch_dict") or idcs == list(range(self._num_outputs)) or self._is_untrained
        return super().subset_output(idcs) if every else outputs.subset_of_outputs(self, idcs, super().subset_output)

    @property
    def custom_fit(self) -> Callable[..., Any]:
        """The learner's ``fit``, which ``fit_gpytorch_mll`` calls; absent while BoTorch's own loop runs for the learner."""
        if not self._is_configured or self.learner.active:
            raise AttributeError("custom_fit")
        return self.learner.fit

    @property
    def dictionary(self) -> Dictionary:
        """The dictionary that the posterior stands on: ``points``, ``indices`` (rows of ``train_X``) and size ``m``."""
        return diagnostics.dictionary(self)

    certify = diagnostics.certify
    calibrated = diagnostics.calibrated
    leave_one_out = diagnostics.leave_one_out
    extra_repr = diagnostics.summary

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
                self.__dict__[name] = state.mapped(self.__dict__[name], fn)
        if self._is_configured:
            if self.rule.given is not None:
                self.rule = replace(self.rule, given=self.rule.given.map(fn))
            if self.outlying_rows is not None:
                self.outlying_rows = fn(self.outlying_rows)
        if cache is not None and valid and cache.stamp.matches(*self.made_from()):
            return self
        self._clear_cache()
        if cache is not None and valid and cache.representation.extension is not None:  # fantasies are nowhere else
            stamp, chosen = state.Stamp(*self.made_from()), cache.chosen.map(fn)
            self.prediction_strategy = state.PosteriorCache(cache.representation.map(fn), stamp, chosen)
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
