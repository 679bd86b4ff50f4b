"""The one mechanism under all sparse models: an exact GP of BoTorch whose posterior stands on a dictionary."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import gpytorch
import torch
from botorch.cross_validation import CVResults, efficient_loo_cv
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.sampling.pathwise.posterior_samplers import DrawMatheronPaths
from botorch.utils.datasets import SupervisedDataset
from gpytorch.distributions import MultivariateNormal
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import ExactGP
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from sparse_bo.dictionary import Sampler
from sparse_bo.errors import SamplerError
from sparse_bo.models.sparse_gp.calibrating import Calibrating
from sparse_bo.models.sparse_gp.cross_validation import answer_for_sparse_models, left_out_of_dtc, left_out_of_exact
from sparse_bo.models.sparse_gp.extending import Grown, of_ones
from sparse_bo.models.sparse_gp.fantasies import ProcessConditioning
from sparse_bo.models.sparse_gp.fitting import LikelihoodFit
from sparse_bo.models.sparse_gp.growing import Growing
from sparse_bo.models.sparse_gp.joint import JointPosterior
from sparse_bo.models.sparse_gp.leverage_sampling import default_rows, planned_size, uniform_rows
from sparse_bo.models.sparse_gp.lists import answer_in_lists
from sparse_bo.models.sparse_gp.options import Chosen, Fit, SparseOptions
from sparse_bo.models.sparse_gp.pathwise import draw_matheron_path
from sparse_bo.models.sparse_gp.prior import ForwardKernel, check_overrides
from sparse_bo.models.sparse_gp.pruning import prune_by_bounds
from sparse_bo.models.sparse_gp.representation import PriorKernel, Representation, exact_representation, representation_of
from sparse_bo.models.sparse_gp.row_sums import fit_dtc
from sparse_bo.models.sparse_gp.selection import checked_dictionary, sampled, warn_if_far
from sparse_bo.models.sparse_gp.sparsity import Sparsity, announce, say_of_dictionary
from sparse_bo.models.sparse_gp.state import Appended, PosteriorCache, Stamp, TrainingData, joined, mapped
from sparse_bo.models.sparse_gp.training import Strategy, TrainingCovariance, TrainingPrior

SUBSET_POINTS = 1040
"""Up to so many training points, the default is to learn hyper-parameters from the exact likelihood of all; ``fit="subset"``,
the default beyond, learns from so many. LAPACK is a third slower on 1,024, whose columns share cache lines."""

LEARNING_DICTIONARY = 512
"""``fit="vfe"`` and ``"dtc"`` learn over a dictionary of at most so many points."""


class DictionaryPosterior(
    Sparsity,
    TrainingData,
    JointPosterior,
    ProcessConditioning,
    LikelihoodFit,
    Growing,
    Calibrating,
    ExactGP,  # type: ignore[misc]  # it ships no types
):
    """What makes an exact GP of BoTorch sparse: the posterior, its caches, the dictionary and how hyper-parameters are learned.

    It goes before the BoTorch class in the bases (``class SparseGP(DictionaryPosterior, SingleTaskGP)``) and overrides only
    what the DTC algebra needs; constructor, transforms, noise and state dict stay BoTorch's.
    """

    prediction_strategy: PosteriorCache | None
    _learning: tuple[Tensor, Tensor | None] | None
    _unexplained: float | None = None
    _prior_of_modules = True
    """Whether BoTorch's ``forward`` is ``mean_module`` and ``covar_module`` at the inputs, and nothing else."""

    def _choose(self, train_X: Tensor, options: SparseOptions) -> None:
        """Keep the user's choices; called once, when BoTorch's constructor has checked the data."""
        check_overrides(type(self))
        chosen = checked_dictionary(options.dictionary, train_X)
        self.register_buffer("_dictionary_rows", chosen.rows, persistent=False)
        self.register_buffer("_dictionary_points", chosen.points, persistent=False)
        self.register_buffer("data_noise_factor", None)  # of a calibrated model alone
        self._sampler: Sampler | None = options.dictionary if isinstance(options.dictionary, Sampler) else None
        self._max_dictionary = options.max_dictionary
        self._fit = options.fit
        self._seed = options.seed
        assert self.train_targets is not None
        n, batch = train_X.shape[-2], self.train_targets.shape[:-1].numel()
        default = options.dictionary is None and options.max_dictionary is None
        learned_from = SUBSET_POINTS if options.fit is None else None
        announce(type(self).__name__, n, learned_from=learned_from, cap=planned_size(n, batch) if default else None)

    def _strategy(self, n: int) -> Fit:
        return self._fit or ("exact" if n <= SUBSET_POINTS else "subset")

    # --- the posterior (JointPosterior's) ------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the posterior at ``X``; in training mode the prior, with the likelihood that ``fit`` names."""
        if self.training and self._stored_inputs is not None and self._stored_targets is not None:
            return self._training_prior(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def representation(self) -> Representation:
        """Return the posterior in the form ``(D, α, R)``, in the outcome transform's units and transformed inputs."""
        return self._cache().representation

    def forward(self, x: Tensor) -> MultivariateNormal:
        """Return the prior at ``x``, as the BoTorch model this stands for does: transformed here in training mode only.

        A subclass may override it, as it would override BoTorch's: training, posterior, conditioning and leave-one-out all
        follow.

        Raises:
            UnsupportedError: In evaluation mode at all training inputs, if the model is sparse.
        """
        inputs = None if self.training or self._stored_inputs is None else joined(self._stored_inputs)
        if x is inputs and len(self._cache().rows) < x.shape[-2]:
            raise UnsupportedError(
                "this is the n x n covariance of an exact GP, which efficient leave-one-out cross-validation asks for; "
                "use model.leave_one_out()"
            )
        return super().forward(x)

    @property
    def prior_kernel(self) -> PriorKernel:
        """The prior covariance: ``covar_module``, or what ``forward`` says where a subclass has its own."""
        own = type(self).forward is not DictionaryPosterior.forward
        if not own and self._prior_of_modules:
            return self.covar_module
        return ForwardKernel(self, like=self._networks_like() if own else None)

    def prior_mean(self, X: Tensor) -> Tensor:
        """Return the prior mean at transformed points ``X`` (``… x q x d``), ``batch_shape x q``."""
        kernel = self.prior_kernel
        return kernel.mean(X) if isinstance(kernel, ForwardKernel) else self.mean_module(X)

    def _networks_like(self) -> Tensor | None:
        stored = self._stored_inputs
        return stored if stored is None or isinstance(stored, Tensor) else joined(stored)

    def _training_prior(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return the prior of the training data with the likelihood chosen by ``fit``."""
        (x,) = args
        x = x.unsqueeze(-1) if x.dim() == 1 else x
        n = x.shape[-2]
        strategy = self._strategy(n) if self._stage is None else "subset"
        if strategy == "exact":
            return super().__call__(x, **kwargs)
        x = self.transform_inputs(x)
        stage = self._stage
        rows, points = self._learning_dictionary(x, strategy) if stage is None else (stage, x[..., stage.reshape(-1), :])
        covariance = TrainingCovariance(x, points, kernel=self.prior_kernel, strategy=strategy, rows=rows)
        return TrainingPrior(self.prior_mean(x), covariance)

    def leave_one_out(self, *, observation_noise: bool = True, untransform: bool = True) -> CVResults:
        """Predict every observation from all others, with hyper-parameters and dictionary as they are. O(n m² + m³).

        Row i is predicted by the posterior over the *same dictionary points* fitted to the other n − 1 observations (exact
        where all inputs are in the dictionary). ``botorch.cross_validation.loo_cv(model)`` and Ax's cross-validation
        return the same. Of a fantasy model, the rows are its data and its fantasies, the dictionary its own and the
        fantasised points. Without gradients.

        Args:
            observation_noise: Whether the variances are those of an observation; ``False``: of the function.
            untransform: Whether to return the units of ``train_Y``; ``False``: those of the outcome transform.

        Returns:
            What BoTorch's ``efficient_loo_cv`` returns: ``posterior`` and ``observed_Y`` of shape ``… x n x 1 x m``.
        """
        return efficient_loo_cv(self, observation_noise=observation_noise, untransform=untransform)

    def _left_out(self, observation_noise: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return leave-one-out means and variances (``… x n x 1``) and targets (``… x n``), in the model's own units."""
        self.eval()
        cache = self._cache()
        assert self.train_inputs is not None
        assert self.train_targets is not None
        X, targets = self.train_inputs[0], self.train_targets
        with torch.no_grad():
            noise, prior_mean = self._noise(X, targets.shape), self.prior_mean(X)
            data = {"residuals": targets - prior_mean, "noise": self._data_noise(X, targets.shape)}
            if cache.points is None and len(cache.rows) == X.shape[-2]:
                whole = cache.representation.extension is None
                exact = cache.representation if whole else exact_representation(self.prior_kernel, X, **data)
                means, variances = left_out_of_exact(exact, **data)
            else:
                dictionary = self._dictionary_points_in(X, cache.rows, cache.points)
                means, variances = left_out_of_dtc(self.prior_kernel, dictionary, X, **data)
            variances = variances + noise if observation_noise else variances
            return (prior_mean + means).to(targets).unsqueeze(-1), variances.to(targets).unsqueeze(-1), targets

    def _noise(self, X: Tensor, shape: torch.Size, **kwargs: Any) -> Tensor:
        """Return the noise variances of observations at ``X`` (``… x q x d``), broadcast to ``shape`` (``… x q``)."""
        zeros = X.new_zeros(shape)
        noisy = self.likelihood(MultivariateNormal(zeros, DiagLinearOperator(zeros)), [X], **kwargs)
        return noisy.lazy_covariance_matrix.diagonal(dim1=-2, dim2=-1)

    def _data_noise(self, X: Tensor, shape: torch.Size) -> Tensor:
        """Return the noise variances of the training data as the posterior takes them: times the factor of a calibration."""
        noise, factor = self._noise(X, shape), self._buffers.get("data_noise_factor")
        return noise if factor is None else noise * factor.unsqueeze(-1)

    def _made_from(self) -> tuple[tuple[Tensor | Appended, ...], tuple[Tensor, ...]]:
        """Return everything the posterior depends on: data and known noise, and parameters."""
        known = self.likelihood.noise_covar.noise if isinstance(self.likelihood, FixedNoiseGaussianLikelihood) else None
        data = [part for part in (self._stored_inputs, self._stored_targets, known) if part is not None]
        factor = self._buffers.get("data_noise_factor")  # not there while BoTorch's constructor runs
        return tuple(data), tuple(self.parameters()) if factor is None else (*self.parameters(), factor)

    def _cache(self) -> PosteriorCache:
        """Return the posterior, computed anew if data or parameters have changed. O(n m² + m³) then."""
        made_from = self._made_from()
        cache = self.prediction_strategy
        if cache is None or not cache.stamp.matches(*made_from):
            with torch.set_grad_enabled(torch.is_grad_enabled() and gpytorch.settings.detach_test_caches.off()):
                cache = self._computed(Stamp(*made_from))
            self.prediction_strategy = cache
        elif gpytorch.settings.detach_test_caches.on() and cache.carries_graph():  # of a call with propagate_grads
            cache = replace(cache, representation=cache.representation.map(torch.Tensor.detach))
            self.prediction_strategy = cache
        return cache

    def _computed(self, stamp: Stamp) -> PosteriorCache:
        assert self._stored_inputs is not None
        assert self._stored_targets is not None
        X, targets = joined(self._stored_inputs), joined(self._stored_targets)
        noise = self._data_noise(X, targets.shape)
        data = {"residuals": targets - self.prior_mean(X), "noise": noise}
        grown = None
        try:
            followed = self._grow(X, data["residuals"], noise, stamp)
            self.__dict__["_before"] = None  # its posterior is in this one, or was of no use
            if followed is not None:
                return followed
            rows, points = self._dictionary(X, targets, noise)
            if points is None and len(rows) == X.shape[-2]:
                representation = exact_representation(self.prior_kernel, X, **data)
            else:
                dictionary = self._dictionary_points_in(X, rows, points)
                state = fit_dtc(self.prior_kernel, dictionary, X, **data)
                representation = representation_of(state, dictionary)
                if self._follows:
                    ones = of_ones(self.prior_kernel, state, dictionary, X, noise)
                    grown = Grown(ones, state.factor, X.shape[-2])
                if points is not None:
                    warn_if_far(self.prior_kernel, representation.points, X)
        except SamplerError:
            raise
        except ValueError as error:  # as SingleTaskGP raises it
            raise NotPSDError(str(error)) from error
        return PosteriorCache(representation, stamp, rows, points, grown=grown)

    def _dictionary_points_in(self, X: Tensor, rows: Tensor | None, points: Tensor | None) -> Tensor:
        """Return the dictionary, transformed: rows of ``X`` (transformed), and external points in the user's units."""
        if points is None:
            return X[..., rows, :]
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
        if not n:  # the posterior is the prior, whatever the dictionary
            return nothing, None
        if rows is not None or points is not None:
            return (nothing if rows is None else rows), points
        size = self._cap(n, noise)
        size = size if cap is None else min(cap, size)
        generator = torch.Generator().manual_seed(self._seed)
        if self._sampler is not None:
            raw = X if self._original_train_inputs is None else self._original_train_inputs
            mean = self.prior_mean(X)
            data = {"residuals": targets - mean, "prior_mean": mean, "noise": noise}
            chosen = sampled(self._sampler, self.prior_kernel, X, raw, **data, size=size, generator=generator)
            return (nothing if chosen.rows is None else chosen.rows), chosen.points
        if n <= size:
            return torch.arange(n, device=X.device), None
        default = default_rows(self.prior_kernel, X, noise, size=size, generator=generator)
        if cap is None and default.unexplained is not None:
            self.__dict__["_unexplained"] = default.unexplained
            say_of_dictionary(n, len(default.rows), default.unexplained)
        return default.rows, None

    def _cap(self, n: int, noise: Tensor) -> int:
        return self._max_dictionary or planned_size(n, noise.shape[:-1].numel())

    def _learning_dictionary(self, x: Tensor, strategy: Strategy) -> tuple[Tensor | None, Tensor]:
        """Return the rows and points that hyper-parameters are learned from; chosen once per fit."""
        if self._learning is None:
            n = x.shape[-2]
            if strategy == "subset":
                self._learning = (self._subset_rows(n, x.device), None)
            else:
                with torch.no_grad():
                    assert self.train_targets is not None
                    noise = self._noise(x, self.train_targets.shape)
                    self._learning = self._dictionary(x, self.train_targets, noise, cap=LEARNING_DICTIONARY)
        rows, points = self._learning
        return rows, self._dictionary_points_in(x, rows, points)

    def _subset_rows(self, n: int, device: torch.device) -> Tensor:
        """Return the rows that ``fit="subset"`` learns from."""
        generator = torch.Generator().manual_seed(self._seed)
        return uniform_rows(n, SUBSET_POINTS, generator=generator, device=device)

    def _clear_cache(self) -> None:
        self.prediction_strategy = None
        self.__dict__["_learning"] = None
        self.__dict__["_unexplained"] = None

    def _apply(self, fn: Any, *args: Any, **kwargs: Any) -> DictionaryPosterior:
        """Convert data and parameters. BoTorch calls ``.to`` before every analytic acquisition value: then nothing changes."""
        cache, before = self.prediction_strategy, self._made_from()
        valid = cache is not None and cache.stamp.matches(*before)
        model: DictionaryPosterior = super(ExactGP, self)._apply(
            fn, *args, **kwargs
        )  # ExactGP's own would join rows and drop the cache
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
        *args: Any,
        dictionary: Chosen = None,
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


DrawMatheronPaths.register(DictionaryPosterior)(draw_matheron_path)
answer_for_sparse_models(DictionaryPosterior)
answer_in_lists()
prune_by_bounds(DictionaryPosterior)
