"""ShardedSparseGP: a sparse model of data that no rank holds whole."""

from __future__ import annotations

from typing import Any

import torch
from botorch import settings
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform, Standardize
from botorch.models.utils import validate_input_scaling
from botorch.utils.types import DEFAULT, _DefaultType
from gpytorch.distributions import MultivariateNormal
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
from sparse_bo.models.sparse_gp.agreement import MEETING, check_alike, check_choices, checked_rows, digest
from sparse_bo.models.sparse_gp.leverage_sampling import planned_size, uniform_rows
from sparse_bo.models.sparse_gp.model import LEARNING_DICTIONARY, SUBSET_POINTS
from sparse_bo.models.sparse_gp.options import Fit
from sparse_bo.models.sparse_gp.representation import exact_representation, kernel_matrix, representation_of
from sparse_bo.models.sparse_gp.row_sums import dictionary_factor, row_sums
from sparse_bo.models.sparse_gp.shards import Rows, chosen_points, differentiable_sums, fit_of_all
from sparse_bo.models.sparse_gp.single_task import SparseGP
from sparse_bo.models.sparse_gp.state import PosteriorCache, Stamp, joined
from sparse_bo.sharding import Group, Processes

METERS = "the scale of the outcomes"


class ShardedSparseGP(SparseGP):
    """:class:`sparse_bo.SparseGP` of one output, of which every rank holds some rows of the data.

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
        dictionary: ``m x d`` points, the same on every rank; ``None``: rows chosen by leverage, by the law of ``SparseGP``.
        max_dictionary: As in ``SparseGP``.
        fit: As in ``SparseGP``; ``"exact"`` gathers all rows.
        seed: As in ``SparseGP``, the same on every rank.

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
    ) -> None:
        group = Processes() if group is None else group
        with group.shielded(MEETING):
            check_choices(dictionary, outcome_transform, input_transform)
            validate_input_scaling(train_X, train_Y, train_Yvar, check_nans_only=True)
        options = {"max_dictionary": max_dictionary, "fit": fit, "seed": seed, "dictionary": digest(dictionary)}
        options["kind of noise"] = "learned" if train_Yvar is None else "known"
        rows = checked_rows(group, train_X, train_Y, options)
        if outcome_transform is not None:
            outcome_transform = _standardize(rows, train_Y)
        with settings.validate_input_scaling(False):  # of one rank's rows, which are not all
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
            )
        self.__dict__["_rows"] = rows

    _refined = False  # every rank would learn from points of its own

    def _strategy(self, n: int) -> Fit:
        return self._fit or ("exact" if self._rows.total <= SUBSET_POINTS else "subset")

    def _local(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return this rank's inputs (as the mode has them), targets and noise variances."""
        assert self._stored_inputs is not None
        assert self._stored_targets is not None
        X, targets = joined(self._stored_inputs), joined(self._stored_targets)
        return X, targets, self._noise(X, targets.shape)

    def _raw(self, X: Tensor) -> Tensor:
        return X if self._original_train_inputs is None else self._original_train_inputs

    def _computed(self, stamp: Stamp) -> PosteriorCache:
        rows, kernel = self._rows, self.prior_kernel
        check_alike(rows.group, dict(self.named_parameters()))
        with torch.no_grad():
            X, targets, noise = self._local()
            nothing = torch.empty(0, dtype=torch.long, device=X.device)
            residuals = targets - self.prior_mean(X)
            size = self._max_dictionary or planned_size(rows.total, 1)
            try:
                if self._dictionary_points is None and rows.total <= size:
                    every = torch.arange(rows.total, device=X.device)
                    all_X, all_raw, all_residuals, all_noise = rows.gathered(every, X, self._raw(X), residuals, noise)
                    exact = exact_representation(kernel, all_X, residuals=all_residuals, noise=all_noise)
                    return PosteriorCache(exact, stamp, nothing, all_raw)
                points = self._dictionary_points
                if points is None:
                    points = self._chosen(X, noise, size)
                inputs = self.transform_inputs(points)
                state = fit_of_all(rows, kernel, inputs, X, residuals=residuals, noise=noise)
            except ValueError as error:  # as SingleTaskGP raises it
                raise NotPSDError(str(error)) from error
            return PosteriorCache(representation_of(state, inputs), stamp, nothing, points)

    def _chosen(self, X: Tensor, noise: Tensor, size: int) -> Tensor:
        generator = torch.Generator().manual_seed(self._seed)
        return chosen_points(self._rows, self.prior_kernel, X, self._raw(X), noise, size=size, generator=generator)

    def _training_prior(self, *args: Any, **kwargs: Any) -> MultivariateNormal:
        """Return what has the likelihood of all rows by ``fit``, whatever inputs are given: those of this rank."""
        (x,) = args
        mean = x.new_zeros(1).expand(self._rows.total)
        return _PriorOfAll(mean, _CovarianceOfAll(x.new_zeros(1), model=self))

    def log_likelihood_of_all(self) -> Tensor:
        """Return the log-likelihood of the observations of all ranks (or its bound, by ``fit``), scalar, with gradients.

        Called on every rank, in training mode; the same on all.

        Raises:
            NotPSDError: If a covariance is not finite or not positive semi-definite.
        """
        strategy = self._strategy(self._rows.total)
        try:
            if strategy in ("exact", "subset"):
                return self._of_subset(strategy)
            return self._of_sums(strategy)
        except ValueError as error:  # what BoTorch's fitting loop knows how to retry
            raise NotPSDError(str(error)) from error

    def _of_subset(self, strategy: Fit) -> Tensor:
        """Return the exact likelihood of some rows, gathered once, times n/m."""
        rows = self._rows
        if self._learning is None:
            X, targets, noise = self._local()
            generator = torch.Generator().manual_seed(self._seed)
            size = rows.total if strategy == "exact" else SUBSET_POINTS
            numbers = uniform_rows(rows.total, size, generator=generator, device=X.device)
            with torch.no_grad():
                self.__dict__["_learning"] = tuple(rows.gathered(numbers, X, targets, noise))
        raw, targets, known = self._learning  # type: ignore[misc]  # of three parts here
        X = self.transform_inputs(raw)
        fixed = isinstance(self.likelihood, FixedNoiseGaussianLikelihood)
        noise = known if fixed else self._noise(X, targets.shape)
        covariance = kernel_matrix(self.prior_kernel, X, X) + torch.diag_embed(noise)
        return gaussian_log_likelihood(covariance, targets - self.prior_mean(X)) * (rows.total / len(targets))

    def _of_sums(self, strategy: Fit) -> Tensor:
        """Return the DTC likelihood or the variational bound over a dictionary that is chosen once per fit."""
        if self._learning is None:
            with torch.no_grad():
                raw, _, noise = self._local()
                size = min(LEARNING_DICTIONARY, self._max_dictionary or planned_size(self._rows.total, 1))
                points = self._dictionary_points
                if points is None:
                    points = self._chosen(self.transform_inputs(raw), noise, size)
                self.__dict__["_learning"] = (points,)
        (points,) = self._learning  # type: ignore[misc]  # of one part here

        def local() -> Any:
            raw, targets, noise = self._local()
            X, D, kernel = self.transform_inputs(raw), self.transform_inputs(points), self.prior_kernel
            data = {"residuals": targets - self.prior_mean(X), "noise": noise}
            return row_sums(kernel, dictionary_factor(kernel, D), D, X, **data)

        parameters = [parameter for parameter in self.parameters() if parameter.requires_grad]
        sums = differentiable_sums(self._rows, local, parameters)
        from_sums = vfe_log_likelihood_from_sums if strategy == "vfe" else dtc_log_likelihood_from_sums
        return from_sums(sums).to(points)

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


class _CovarianceOfAll(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """Stands for the prior covariance of the rows of all ranks plus noise: it has a size, and the model knows the rest."""

    def __init__(self, like: Tensor, *, model: ShardedSparseGP) -> None:
        super().__init__(like, model=model)
        self.like, self.model = like, model

    def __add__(self, other: Any) -> LinearOperator:
        """The model's own noise is in its likelihood already."""
        return self

    def _size(self) -> torch.Size:
        n = self.model._rows.total
        return torch.Size([n, n])

    def _transpose_nonbatch(self) -> _CovarianceOfAll:
        return self

    def _diagonal(self) -> Tensor:
        return self.like.expand(self.shape[0])

    def _matmul(self, rhs: Tensor) -> Tensor:
        raise UnsupportedError("the covariance of rows that no rank holds whole is never made; use the model's posterior")


class _PriorOfAll(MultivariateNormal):  # type: ignore[misc]  # the base class ships no types
    """The distribution that training mode returns; its ``log_prob`` is the objective of the model's ``fit``."""

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-likelihood of the observations of all ranks, scalar; ``value`` are those of this one."""
        likelihood: Tensor = self.lazy_covariance_matrix.model.log_likelihood_of_all()
        return likelihood


def _standardize(rows: Rows, Y: Tensor) -> Standardize:
    """Return the standardisation of the outcomes of all rows, as BoTorch would learn it in one process."""
    (total,) = rows.group.total(METERS, [Y.sum(dim=0)])
    mean = total / rows.total
    (squares,) = rows.group.total(METERS, [(Y - mean).square().sum(dim=0)])
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
