"""ShardedSparseGP: SparseGP for data that are distributed over ranks.

A rank holds ``n_r`` of the ``n`` rows, numbered through all ranks in their order. Ranks exchange sums of size m² and few rows:
O(m²) bytes for a posterior or a likelihood, O(parameters) for its gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

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

from sparse_bo._version import __version__
from sparse_bo.dictionary import Dictionary
from sparse_bo.gp.likelihood import LowRankSums, gaussian_log_likelihood, log_likelihood_from_sums
from sparse_bo.models.sparse_gp.learning import Fit, Learner, LearningSettings
from sparse_bo.models.sparse_gp.leverage_sampling import ChosenPoints, default_rows, uniform_rows
from sparse_bo.models.sparse_gp.prior import TrainingData, kernel_matrix
from sparse_bo.models.sparse_gp.representation import dtc_representation, exact_representation
from sparse_bo.models.sparse_gp.row_sums import SUMS, Rows, dictionary_factor, fit_dtc, row_sums
from sparse_bo.models.sparse_gp.sparse_gp import SparseGP, SparseOptions
from sparse_bo.models.sparse_gp.state import PosteriorCache, Stamp, check_training_data
from sparse_bo.models.sparse_gp.training import TrainingPrior
from sparse_bo.sharding import Group, Processes

MEETING = "meeting over data in shards"


def _needs_all(reason: str) -> Any:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError(reason)

    return refused


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
        **options: ``max_dictionary``, ``fit``, ``seed`` and ``settings`` as in ``SparseGP``, the same on every rank
            (``fit="exact"`` gathers all rows). ``dictionary``: ``m x d`` points, the same on every rank; ``None``: rows chosen
            by leverage, by the rule of ``SparseGP``.

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
        **options: Unpack[SparseOptions],
    ) -> None:
        group = Processes() if group is None else group
        with group.shielded(MEETING):
            _check_options(options, outcome_transform, input_transform)
            validate_input_scaling(train_X, train_Y, train_Yvar, check_nans_only=True)
            check_training_data(train_X=train_X, train_Y=train_Y)
        digest, points = None, options.get("dictionary")
        if isinstance(points, Tensor):
            digest = hashlib.blake2b(points.detach().double().cpu().numpy().tobytes(), digest_size=6).hexdigest()
        own = {
            **{name: options.get(name) for name in ("max_dictionary", "fit")},
            "seed": options.get("seed", 0),
            "dictionary": digest,
            "kind of noise": "learned" if train_Yvar is None else "known",
        }
        _check_ranks(group, train_X, train_Y, own)
        rows = Rows(group, len(train_X))
        transform = None if outcome_transform is None else _standardize(rows, train_Y)
        if transform is not None:
            train_Y, train_Yvar = transform(train_Y, train_Yvar)
        with validate_input_scaling_setting(False):  # of one rank's rows, which are not all
            super().__init__(
                train_X, train_Y, train_Yvar, likelihood, covar_module, mean_module, None, input_transform, **options
            )
        if transform is not None:
            self.outcome_transform = transform
        self.rows = rows
        self.learner = ShardedLearner(self.learner.fit_name, self.learner.seed, self.settings.learning, rows)

    def _computed(self, stamp: Stamp) -> PosteriorCache:
        rows, kernel, products = self.rows, self.prior_kernel, self.settings.products
        _check_parameters(rows.group, dict(self.named_parameters()))
        with torch.no_grad():
            data, size = self.training_data(), self.rule.cap(rows.total, 1)
            nothing = torch.empty(0, dtype=torch.long, device=data.X.device)
            try:
                if self.rule.given is None and rows.total <= size:
                    every = torch.arange(rows.total, device=data.X.device)
                    points, *of_all = rows.gathered(every, self.original_inputs(), *data)
                    representation = exact_representation(kernel, TrainingData(*of_all), products)
                else:
                    points = self.dictionary_of_all(data, size)
                    D = self.transform_inputs(points)
                    state = fit_dtc(kernel, D, data, rows=rows, how=self.settings.sums)
                    representation = dtc_representation(state, D, products)
            except ValueError as error:  # the type that SingleTaskGP raises
                raise NotPSDError(str(error)) from error
            return PosteriorCache(representation, stamp, ChosenPoints(nothing, points))

    def dictionary_of_all(self, data: TrainingData, size: int) -> Tensor:
        """Return the given points, or at most ``size`` by :func:`default_rows`, ``m x d``, in the user's units."""
        if self.rule.given is not None and self.rule.given.points is not None:
            return self.rule.given.points
        options: dict[str, Any] = {"size": size, "generator": self.learner.generator(), "settings": self.settings.dictionary}
        chosen = default_rows(self.prior_kernel, data.X, data.noise, **options, shards=self.rows)
        (points,) = self.rows.gathered(chosen.rows, self.original_inputs())
        return points

    calibrated = _needs_all("calibration needs held-out rows and all observations in one place; use SparseGP on a part of them")
    leave_one_out = _needs_all("leave-one-out predictions need all observations in one place; use SparseGP on a part of them")
    certify = _needs_all("a certificate needs all inputs in one place; certify a SparseGP on a part of them")


class ShardedLearner(Learner):
    """The learning of a sharded model: likelihoods of the rows of all ranks."""

    def __init__(self, fit: Fit | None, seed: int, settings: LearningSettings, rows: Rows) -> None:
        super().__init__(fit, seed, settings)
        self.sharded_rows = rows

    def likelihood(self, n: int) -> Fit:
        """Return the name of the likelihood of all rows; ``n`` is ignored."""
        return super().likelihood(self.sharded_rows.total)

    def groups(self, model: Any, rows: Tensor) -> Tensor | None:
        """Return ``None``: every rank would learn from neighbourhoods of its own."""
        return None

    def prior(self, model: ShardedSparseGP, x: Tensor) -> TrainingPrior:
        """Return a distribution with the likelihood of all rows; its inputs are always those of this rank."""
        mean = x.new_zeros(1).expand(self.sharded_rows.total)
        return TrainingPrior(mean, _CovarianceOfAll(x.new_zeros(1), model=model))

    def log_likelihood(self, model: ShardedSparseGP) -> Tensor:
        """Return the log-likelihood of all rows, or its bound, scalar, or raise ``NotPSDError``. A collective call."""
        likelihood = self.likelihood(0)
        try:
            return self._of_subset(model, likelihood) if likelihood in ("exact", "subset") else self._of_sums(model, likelihood)
        except ValueError as error:  # the error that BoTorch's fitting loop retries
            raise NotPSDError(str(error)) from error

    def _of_subset(self, model: ShardedSparseGP, likelihood: Fit) -> Tensor:
        """Return the exact likelihood of some rows, gathered once, times n/m."""
        rows = self.sharded_rows
        if self._points is None:
            X, targets = model.train_inputs[0], model.train_targets
            noise = model.noise_at(X, targets.shape)
            size = rows.total if likelihood == "exact" else self.settings.subset
            numbers = uniform_rows(rows.total, size, generator=self.generator(), device=X.device)
            with torch.no_grad():
                self._points = tuple(rows.gathered(numbers, X, targets, noise))
        raw, targets, known = self._points
        X = model.transform_inputs(raw)
        noise = known if isinstance(model.likelihood, FixedNoiseGaussianLikelihood) else model.noise_at(X, targets.shape)
        covariance = kernel_matrix(model.prior_kernel, X, X) + torch.diag_embed(noise)
        return gaussian_log_likelihood(covariance, targets - model.prior_mean(X)) * (rows.total / len(targets))

    def _of_sums(self, model: ShardedSparseGP, likelihood: Fit) -> Tensor:
        """Return the DTC likelihood or the variational bound over a dictionary that is chosen once per fit."""
        if self._points is None:
            with torch.no_grad():
                size = min(self.settings.dictionary, model.rule.cap(self.sharded_rows.total, 1))
                self._points = model.dictionary_of_all(model.training_data(), size)
        points: Tensor = self._points

        def local() -> Sequence[Tensor]:
            data, D, kernel = model.training_data(), model.transform_inputs(points), model.prior_kernel
            return row_sums(kernel, dictionary_factor(kernel, D), D, data)[:5]

        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        total: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _Total.apply(self.sharded_rows.group, local, *parameters)  # type: ignore[no-untyped-call]  # as torch types it
        sums = LowRankSums(*total, self.sharded_rows.total)
        return log_likelihood_from_sums(sums, bound=likelihood == "vfe").to(points)


class _Total(torch.autograd.Function):
    """Sums over all ranks of sums over local rows, as a function of parameters that every rank has.

    The derivative by a parameter is the sum of every rank's share. The backward pass computes this rank's sums once more, with
    gradients, and adds the shares up, so every rank has the gradient of all rows. Two collectives each way.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, local: Callable[[], Sequence[Tensor]], *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.local = group, local
        ctx.save_for_backward(*parameters)
        with torch.no_grad():
            return tuple(group.total(SUMS, local()))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parameters = ctx.saved_tensors
        with torch.enable_grad():
            sums = ctx.local()
            pairs = [pair for pair in zip(sums, gradients, strict=True) if pair[0].requires_grad]  # log |N| not if N is known
            parts, above = zip(*pairs, strict=True)
            shares = torch.autograd.grad(parts, parameters, above, allow_unused=True)
        filled = [torch.zeros_like(p) if share is None else share for p, share in zip(parameters, shares, strict=True)]
        return None, None, *ctx.group.total("gradients", filled)


class _CovarianceOfAll(LinearOperator):  # type: ignore[misc]  # the base class ships no types
    """Placeholder for the prior covariance of the rows of all ranks plus noise: a size, and the model."""

    def __init__(self, like: Tensor, *, model: ShardedSparseGP) -> None:
        super().__init__(like, model=model)
        self.like, self.model = like, model

    def log_likelihood(self, targets: Tensor, mean: Tensor) -> Tensor:
        """Return the log-likelihood of the observations of all ranks, scalar; the arguments are not read."""
        return self.model.learner.log_likelihood(self.model)

    def __add__(self, other: Any) -> LinearOperator:
        """The model's own noise is in its likelihood already."""
        return self

    def _size(self) -> torch.Size:
        n = self.model.rows.total
        return torch.Size([n, n])

    def _transpose_nonbatch(self) -> _CovarianceOfAll:
        return self

    def _matmul(self, rhs: Tensor) -> Tensor:
        raise UnsupportedError("the covariance of rows that no rank holds whole is never made; use the model's posterior")


def _standardize(rows: Rows, Y: Tensor) -> Standardize:
    """Return the standardisation of the outcomes of all rows, as BoTorch would learn it in one process."""
    (total,) = rows.group.total("the scale of the outcomes", [Y.sum(dim=0)])
    mean = total / rows.total
    (squares,) = rows.group.total("the scale of the outcomes", [(Y - mean).square().sum(dim=0)])
    deviation = (squares / max(rows.total - 1, 1)).sqrt()
    transform = Standardize(m=1).eval()  # in training mode it would learn from one rank
    deviation = torch.where(deviation >= transform._min_stdv, deviation, torch.ones_like(deviation))
    transform.means, transform.stdvs = mean.reshape(1, 1), deviation.reshape(1, 1)
    transform._stdvs_sq = transform.stdvs.square()
    transform._is_trained = torch.tensor(True, device=Y.device)
    return transform


def _check_options(
    options: Mapping[str, Any], outcome: OutcomeTransform | _DefaultType | None, inputs: InputTransform | None
) -> None:
    """Refuse transforms that learn from the data, and a sampler or rows as dictionary, by ``UnsupportedError``."""
    if "previous" in options:
        raise UnsupportedError("a posterior of data in shards does not grow from a previous one; leave previous out")
    if options.get("robust"):
        raise UnsupportedError("outlying rows are not looked for in data in shards; drop them beforehand, and leave robust out")
    dictionary = options.get("dictionary")
    if isinstance(dictionary, Dictionary) or (dictionary is not None and not isinstance(dictionary, Tensor)):
        raise UnsupportedError(
            f"expected points (m x d) or None as dictionary of data in shards, got {type(dictionary).__name__}"
        )
    if dictionary is not None and not dictionary.is_floating_point():
        raise UnsupportedError("expected points (m x d) as dictionary of data in shards, got rows, which are those of one rank")
    if outcome is not None and outcome is not DEFAULT:
        raise UnsupportedError("an outcome transform learns from one rank's data; leave it out (all rows decide), or give None")
    if any(bool(getattr(inputs, name, False)) for name in ("learn_bounds", "learn_coefficients")):
        raise UnsupportedError(
            f"{type(inputs).__name__} learns from one rank's data; give it what it would learn, as in Normalize(d, bounds=...)"
        )


def _check_ranks(group: Group, X: Tensor, Y: Tensor, options: dict[str, Any]) -> None:
    """Raise ``ValueError`` on every rank, if shapes, options or versions differ. A collective call."""
    same = {"width of train_X": X.shape[-1], "dtype": str(X.dtype), "kind of device": X.device.type, **options}
    versions = {"sparse_bo": __version__, "torch": torch.__version__}
    ranks = group.objects(MEETING, (tuple(X.shape), tuple(Y.shape), {**same, **versions}))
    for rank, (x, y, here) in enumerate(ranks):
        if len(x) != 2 or tuple(y) != (x[0], 1) or not x[0]:
            raise ValueError(
                f"expected train_X n x d and train_Y n x 1 with n >= 1 on every rank, got {x} and {y} on rank {rank}"
            )
        _check_same(ranks[0][2], here, rank)


def _check_parameters(group: Group, parameters: dict[str, Tensor]) -> None:
    """Raise ``ValueError`` on every rank, if hyper-parameters differ by more than a relative 1e-6. A collective call."""
    mine = {name: parameter.detach().double().cpu() for name, parameter in parameters.items()}
    ranks = group.objects("the hyper-parameters", mine)
    for rank, other in enumerate(ranks):
        _check_same({"modules": sorted(ranks[0])}, {"modules": sorted(other)}, rank)
        for name, value in other.items():
            first = ranks[0][name]
            if value.shape != first.shape or not torch.allclose(value, first, rtol=1e-6, atol=1e-6, equal_nan=True):
                _check_same({name: first.flatten().tolist()}, {name: value.flatten().tolist()}, rank)


def _check_same(first: dict[str, Any], here: dict[str, Any], rank: int) -> None:
    for name, value in here.items():
        if value != first[name]:
            raise ValueError(f"expected the same {name} on every rank, got {first[name]} on rank 0 and {value} on rank {rank}")
