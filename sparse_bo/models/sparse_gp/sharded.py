"""ShardedSparseGP: SparseGP for data that are distributed over ranks."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils import validate_input_scaling
from botorch.settings import validate_input_scaling as validate_input_scaling_setting
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, Likelihood
from gpytorch.means import Mean
from linear_operator.operators import LinearOperator
from linear_operator.utils.errors import NotPSDError
from torch import Tensor
from torch.nn import Module

from sparse_bo.gp.woodbury import (
    dtc_log_likelihood_from_sums,
    gaussian_log_likelihood,
    vfe_log_likelihood_from_sums,
)
from sparse_bo.models.sparse_gp.classes import SparseGP
from sparse_bo.models.sparse_gp.learning import Fit, Learner, LearningSettings
from sparse_bo.models.sparse_gp.leverage_sampling import uniform_rows
from sparse_bo.models.sparse_gp.model import SparseSettings
from sparse_bo.models.sparse_gp.prior import kernel_matrix
from sparse_bo.models.sparse_gp.representation import dtc_representation, exact_representation
from sparse_bo.models.sparse_gp.row_sums import dictionary_factor, row_sums
from sparse_bo.models.sparse_gp.shards import (
    MEETING,
    ShardedRows,
    check_parameters,
    check_sharded_options,
    chosen_points,
    differentiable_sums,
    digest,
    fit_of_all,
)
from sparse_bo.models.sparse_gp.state import PosteriorCache, Stamp, joined
from sparse_bo.models.sparse_gp.training import TrainingPrior
from sparse_bo.sharding import Group, Processes


class ShardedSparseGP(SparseGP):
    """:class:`sparse_bo.SparseGP` of one output; every rank holds some rows of the data.

    Give every rank its own rows. Dictionary, posterior, likelihoods and gradients are those of one process with all rows in the
    order of the ranks (to about 1e-10: sums are added in another order), and the same on every rank. A rank computes
    O(n_r m²), holds its rows and O(m²), and sends O(m²) per posterior, O(m²) per step of learning by ``fit="dtc"`` or
    ``"vfe"``, nothing per step of ``fit="subset"``, which takes no last steps on more points here.

    Every rank makes the same calls where all data are needed: constructing, fitting, and the first posterior after data or
    parameters have changed (:meth:`representation` makes it). After that the posterior is each rank's own:
    predictions, acquisition functions and fantasies need nobody else.

    Args:
        train_X: ``n_r x d`` training inputs of this rank, at least one.
        train_Y: ``n_r x 1`` observations.
        train_Yvar: ``n_r x 1`` known noise variances; ``None``: noise is learned.
        likelihood: As in ``SingleTaskGP``, the same on every rank, as are the modules and transforms.
        covar_module: As in ``SingleTaskGP``.
        mean_module: As in ``SingleTaskGP``.
        outcome_transform: ``None``, or left out: outcomes are standardised by mean and deviation of all rows.
        input_transform: One that learns nothing from the data (``Normalize(d, bounds=...)``).
        group: The ranks; ``None``: all processes of the job.
        dictionary: ``m x d`` points, the same on every rank; ``None``: rows chosen by leverage, by the rule of ``SparseGP``.
        max_dictionary: As in ``SparseGP``.
        fit: As in ``SparseGP``; ``"exact"`` gathers all rows.
        seed: As in ``SparseGP``, the same on every rank.
        settings: As in ``SparseGP``, the same on every rank.

    Raises:
        RankError: If a rank has failed or is lost.
        ValueError: On every rank, if there is a rank without rows, widths, options, dictionaries or versions differ, or data
            have a batch or several outputs; at a posterior, if the ranks have other hyper-parameters.
        UnsupportedError: If a transform learns from the data, or the dictionary is a sampler or rows.
        InputDataError: On the rank that has a NaN among its data, or a negative noise variance.
        RuntimeError: Outside a process group, where no ``group`` is given.

    Example:
        >>> model = ShardedSparseGP(my_X, my_Y, max_dictionary=1024, fit="vfe")  # on every rank
        >>> fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        >>> model.representation()
    """

    learner: ShardedLearner

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
        group: Group | None = None,
        dictionary: Tensor | None = None,
        max_dictionary: int | None = None,
        fit: Fit | None = None,
        seed: int = 0,
        settings: SparseSettings | None = None,
    ) -> None:
        group = Processes() if group is None else group
        with group.shielded(MEETING):
            check_sharded_options(dictionary, outcome_transform, input_transform)
            validate_input_scaling(train_X, train_Y, train_Yvar, check_nans_only=True)
        options = {"max_dictionary": max_dictionary, "fit": fit, "seed": seed, "dictionary": digest(dictionary)}
        options["kind of noise"] = "learned" if train_Yvar is None else "known"
        rows = ShardedRows.checked(group, train_X, train_Y, options)
        if outcome_transform is not None:
            outcome_transform = _standardize(rows, train_Y)
        with validate_input_scaling_setting(False):  # of one rank's rows, which are not all
            super().__init__(
                train_X,
                train_Y,
                train_Yvar,
                likelihood=likelihood,
                covar_module=covar_module,
                mean_module=mean_module,
                outcome_transform=outcome_transform,
                input_transform=input_transform,
                dictionary=dictionary,
                max_dictionary=max_dictionary,
                fit=fit,
                seed=seed,
                settings=settings,
            )
        self.rows = rows
        self.learner = ShardedLearner(fit, seed, self.settings.learning, rows)

    def local_data(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's inputs (as the mode has them), targets and noise variances."""
        assert self._stored_inputs is not None
        assert self._stored_targets is not None
        X, targets = joined(self._stored_inputs), joined(self._stored_targets)
        return X, targets, self.noise_at(X, targets.shape)

    def _computed(self, stamp: Stamp) -> PosteriorCache:
        rows, kernel = self.rows, self.prior_kernel
        check_parameters(rows.group, dict(self.named_parameters()))
        with torch.no_grad():
            X, targets, noise = self.local_data()
            nothing = torch.empty(0, dtype=torch.long, device=X.device)
            residuals, points = targets - self.prior_mean(X), self.rule.points
            size = self.rule.cap(rows.total, 1)
            try:
                if points is None and rows.total <= size:
                    every = torch.arange(rows.total, device=X.device)
                    data = (X, self.original_inputs(), residuals, noise)
                    all_X, all_raw, all_residuals, all_noise = rows.gathered(every, *data)
                    exact = exact_representation(
                        kernel, all_X, residuals=all_residuals, noise=all_noise, sizes=self.settings.products
                    )
                    return PosteriorCache(exact, stamp, nothing, all_raw)
                if points is None:
                    points = self.dictionary_of_all(X, noise, size)
                inputs = self.transform_inputs(points)
                state = fit_of_all(rows, kernel, inputs, X, residuals=residuals, noise=noise, how=self.settings.sums)
            except ValueError as error:  # the type that SingleTaskGP raises
                raise NotPSDError(str(error)) from error
            return PosteriorCache(dtc_representation(state, inputs, self.settings.products), stamp, nothing, points)

    def dictionary_of_all(self, X: Tensor, noise: Tensor, size: int) -> Tensor:
        """Return a dictionary of at most ``size`` points for the rows of all ranks; ``X`` are this rank's, transformed."""
        kernel, generator, settings = self.prior_kernel, self.learner.generator(), self.settings.dictionary
        raw = self.original_inputs()
        return chosen_points(self.rows, kernel, X, raw, noise, size=size, generator=generator, settings=settings)

    def log_likelihood_of_all(self) -> Tensor:
        """Return the log-likelihood of the observations of all ranks (or its bound, by ``fit``), scalar, with gradients.

        Called on every rank, in training mode; the same on all.

        Raises:
            NotPSDError: If a covariance is not finite or not positive semi-definite.
        """
        try:
            return self.learner.log_likelihood(self)
        except ValueError as error:  # the error that BoTorch's fitting loop retries
            raise NotPSDError(str(error)) from error

    def calibrated(self, X: Any = None, Y: Any = None, Yvar: Any = None) -> Any:
        """Raise ``UnsupportedError``: a rank knows its own observations alone."""
        raise UnsupportedError(
            "calibration needs held-out rows and all observations in one place; use SparseGP on a part of them"
        )

    def leave_one_out(self, *, observation_noise: bool = True, untransform: bool = True) -> Any:
        """Raise ``UnsupportedError``: a rank knows its own observations alone."""
        raise UnsupportedError("leave-one-out predictions need all observations in one place; use SparseGP on a part of them")

    def certify(self, *, steps: int = 30, failure_probability: float = 1e-6) -> Any:
        """Raise ``UnsupportedError``: the bound is over all inputs, and a rank has its own alone."""
        raise UnsupportedError("a certificate needs all inputs in one place; certify a SparseGP on a part of them")


class ShardedLearner(Learner):
    """The learning of a sharded model: likelihoods of the rows of all ranks.

    Args:
        fit: As in :class:`~sparse_bo.models.sparse_gp.learning.Learner`.
        seed: As there.
        settings: As there.
        rows: The rows.
    """

    def __init__(self, fit: Fit | None, seed: int, settings: LearningSettings, rows: ShardedRows) -> None:
        super().__init__(fit, seed, settings)
        self.sharded_rows = rows
        self._gathered: tuple[Tensor, ...] | None = None

    def likelihood(self, n: int) -> Fit:
        """Return the name of the likelihood of all rows; ``n`` is ignored."""
        return super().likelihood(self.sharded_rows.total)

    def reset(self) -> None:
        """See :class:`~sparse_bo.models.sparse_gp.learning.Learner`."""
        super().reset()
        self._gathered = None

    def groups(self, model: Any, rows: Tensor) -> Tensor | None:
        """Return ``None``: every rank would learn from neighbourhoods of its own."""
        return None

    def prior(self, model: ShardedSparseGP, x: Tensor) -> TrainingPrior:
        """Return a distribution with the likelihood of all rows; its inputs are always those of this rank."""
        mean = x.new_zeros(1).expand(self.sharded_rows.total)
        return _PriorOfAll(mean, _CovarianceOfAll(x.new_zeros(1), model=model))

    def log_likelihood(self, model: ShardedSparseGP) -> Tensor:
        """Return the log-likelihood of all rows, or its bound. A collective call."""
        likelihood = self.likelihood(0)
        return self._of_subset(model, likelihood) if likelihood in ("exact", "subset") else self._of_sums(model, likelihood)

    def _of_subset(self, model: ShardedSparseGP, likelihood: Fit) -> Tensor:
        """Return the exact likelihood of some rows, gathered once, times n/m."""
        rows = self.sharded_rows
        if self._gathered is None:
            X, targets, noise = model.local_data()
            size = rows.total if likelihood == "exact" else self.settings.subset
            numbers = uniform_rows(rows.total, size, generator=self.generator(), device=X.device)
            with torch.no_grad():
                self._gathered = tuple(rows.gathered(numbers, X, targets, noise))
        raw, targets, known = self._gathered
        X = model.transform_inputs(raw)
        fixed = isinstance(model.likelihood, FixedNoiseGaussianLikelihood)
        noise = known if fixed else model.noise_at(X, targets.shape)
        covariance = kernel_matrix(model.prior_kernel, X, X) + torch.diag_embed(noise)
        return gaussian_log_likelihood(covariance, targets - model.prior_mean(X)) * (rows.total / len(targets))

    def _of_sums(self, model: ShardedSparseGP, likelihood: Fit) -> Tensor:
        """Return the DTC likelihood or the variational bound over a dictionary that is chosen once per fit."""
        if self._gathered is None:
            with torch.no_grad():
                raw, _, noise = model.local_data()
                size = min(self.settings.dictionary, model.rule.cap(self.sharded_rows.total, 1))
                points = model.rule.points
                if points is None:
                    points = model.dictionary_of_all(model.transform_inputs(raw), noise, size)
                self._gathered = (points,)
        (points,) = self._gathered

        def local() -> Any:
            raw, targets, noise = model.local_data()
            X, D, kernel = model.transform_inputs(raw), model.transform_inputs(points), model.prior_kernel
            residuals = targets - model.prior_mean(X)
            return row_sums(kernel, dictionary_factor(kernel, D), D, X, residuals=residuals, noise=noise)

        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        sums = differentiable_sums(self.sharded_rows, local, parameters)
        from_sums = vfe_log_likelihood_from_sums if likelihood == "vfe" else dtc_log_likelihood_from_sums
        return from_sums(sums).to(points)


class _CovarianceOfAll(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """Placeholder for the prior covariance of the rows of all ranks plus noise: a size, and the model."""

    def __init__(self, like: Tensor, *, model: ShardedSparseGP) -> None:
        super().__init__(like, model=model)
        self.like, self.model = like, model

    def __add__(self, other: Any) -> LinearOperator:
        """The model's own noise is in its likelihood already."""
        return self

    def _size(self) -> torch.Size:
        n = self.model.rows.total
        return torch.Size([n, n])

    def _transpose_nonbatch(self) -> _CovarianceOfAll:
        return self

    def _diagonal(self) -> Tensor:
        return self.like.expand(self.shape[0])

    def _matmul(self, rhs: Tensor) -> Tensor:
        raise UnsupportedError("the covariance of rows that no rank holds whole is never made; use the model's posterior")


class _PriorOfAll(TrainingPrior):
    """The distribution that training mode returns; its ``log_prob`` is the objective of the model's ``fit``."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-likelihood of the observations of all ranks, scalar; ``value`` are those of this one."""
        likelihood: Tensor = self.lazy_covariance_matrix.model.log_likelihood_of_all()
        return likelihood


def _standardize(rows: ShardedRows, Y: Tensor) -> Standardize:
    """Return the standardisation of the outcomes of all rows, as BoTorch would learn it in one process."""
    (total,) = rows.group.total("the scale of the outcomes", [Y.sum(dim=0)])
    mean = total / rows.total
    (squares,) = rows.group.total("the scale of the outcomes", [(Y - mean).square().sum(dim=0)])
    deviation = (squares / max(rows.total - 1, 1)).sqrt()
    transform = _StandardizedByAll(m=1)
    deviation = torch.where(deviation >= transform._min_stdv, deviation, torch.ones_like(deviation))
    transform.means, transform.stdvs = mean.reshape(1, 1), deviation.reshape(1, 1)
    transform._stdvs_sq = transform.stdvs.square()
    transform._is_trained = torch.tensor(True, device=Y.device)
    return transform


class _StandardizedByAll(Standardize):  # type: ignore[misc]  # the base class ships no types
    """Standardises by given moments: BoTorch's constructors would learn those of one rank."""

    def forward(self, Y: Tensor, Yvar: Tensor | None = None, X: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Standardise, in training mode too."""
        training = self.training
        self.train(False)
        try:
            transformed: tuple[Tensor, Tensor | None] = super().forward(Y, Yvar, X)
        finally:
            self.train(training)
        return transformed
