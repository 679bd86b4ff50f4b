"""The rule by which a sparse model chooses its dictionary: given rows or points, a sampler, or leverage scores."""

from __future__ import annotations

import numbers
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from sparse_bo.dictionary import Candidates, Dictionary, Sampler
from sparse_bo.errors import DictionaryWarning
from sparse_bo.linalg.reductions import group_sums
from sparse_bo.models.sparse_gp.leverage_sampling import (
    ChosenPoints,
    DictionarySettings,
    default_rows,
    distinct_inputs,
    pilot_posterior,
    uniform_rows,
)
from sparse_bo.models.sparse_gp.prior import PriorKernel, TrainingData, kernel_diagonal, kernel_matrix
from sparse_bo.validation import check_count, check_indices, check_points

DictionaryOption: TypeAlias = Sampler | Dictionary | Tensor | None
"""The values of ``dictionary=``."""


@dataclass(frozen=True, eq=False)
class DictionaryRule:
    """A user's choice of dictionary. A value."""

    given: ChosenPoints | None = None
    sampler: Sampler | None = None
    most: int | None = None
    """Cap of a sampled dictionary; ``None``: that of the settings."""
    seed: int = 0
    settings: DictionarySettings = field(default_factory=DictionarySettings)

    @classmethod
    def of(
        cls, dictionary: DictionaryOption, train_X: Tensor, *, most: int | None, seed: int, settings: DictionarySettings
    ) -> DictionaryRule:
        """Check a user's dictionary against the data (``batch_shape x n x d``) by the rules of :class:`sparse_bo.SparseGP`."""
        most, seed = None if most is None else check_count("max_dictionary", most), check_count("seed", seed, minimum=0)
        rule = cls(most=most, seed=seed, settings=settings)
        if isinstance(dictionary, type):
            name = dictionary.__name__
            raise TypeError(
                f"expected dictionary to be a sampler, got the class {name}; pass an instance: dictionary={name}(...)"
            )
        if dictionary is None or isinstance(dictionary, Sampler):
            return replace(rule, sampler=dictionary)
        if isinstance(dictionary, Dictionary):
            dictionary = dictionary.points if dictionary.indices is None else dictionary.indices
        dictionary = _as_tensor(dictionary, train_X)
        if dictionary.is_floating_point():
            first = train_X.reshape(-1, *train_X.shape[-2:])[0]
            points = check_points("dictionary", dictionary, like=first).detach().clone()
            return replace(rule, given=ChosenPoints(torch.empty(0, dtype=torch.long, device=train_X.device), points))
        rows = check_indices("dictionary", dictionary, size=train_X.shape[-2]).to(train_X.device)
        if not len(rows):
            raise ValueError("expected a dictionary of at least one row, got an empty tensor of indices")
        distinct = len(torch.unique(rows))
        if distinct != len(rows):
            raise ValueError(f"expected distinct dictionary rows, got {len(rows)} of which {distinct} are distinct")
        return replace(rule, given=ChosenPoints(rows.sort().values))

    def of_chosen(self, chosen: ChosenPoints) -> DictionaryRule:
        """Return the rule that gives a dictionary that was chosen."""
        return replace(self, given=chosen._replace(unexplained=None))

    def cap(self, n: int, batch: int) -> int:
        """Return the cap of a sampled dictionary for ``n`` points and ``batch`` GPs."""
        return self.most or self.settings.cap(n, batch)

    def most_points(self, n: int, batch: int) -> int:
        """Return the largest possible size of the dictionary."""
        given = 0 if self.given is None else sum(len(part) for part in self.given[:2] if part is not None)
        return min(given or self.cap(n, batch), n)


def chosen_dictionary(model: Any, X: Tensor, *, cap: int | None = None) -> ChosenPoints:
    """Return a model's dictionary of at most ``cap`` points by its rule, for the training inputs ``X``, transformed.

    ``InputDataError`` if given rows do not exist any more; ``SamplerError`` if the sampler needs more than the model has.
    """
    rule, n, shape = model.rule, X.shape[-2], model.train_targets.shape
    if rule.given is not None and len(rule.given.rows) and (last := int(rule.given.rows.max())) >= n:
        raise InputDataError(f"the dictionary has row {last}, but there are only {n} training points")
    if not n:  # the posterior is the prior
        return ChosenPoints(torch.empty(0, dtype=torch.long, device=X.device))
    if rule.given is not None:
        return rule.given
    size = rule.cap(n, shape[:-1].numel())
    size = size if cap is None else min(cap, size)
    if rule.sampler is None and n <= size:
        return ChosenPoints(torch.arange(n, device=X.device))
    noise = model.data_noise(X, shape) if cap is None else model.noise_at(X, shape)
    options: dict[str, Any] = {"size": size, "generator": torch.Generator().manual_seed(rule.seed)}
    if rule.sampler is not None:
        return _sampled(model, X, noise, **options)
    return default_rows(model.prior_kernel, X, noise, **options, settings=rule.settings)


def dictionary_points(model: Any, X: Tensor, chosen: ChosenPoints) -> Tensor:
    """Return the dictionary, transformed: rows of ``X`` (transformed), after external points."""
    if chosen.points is None:
        return X[..., chosen.rows, :]
    transform = getattr(model, "input_transform", None)  # as training inputs are: in training mode it would learn from points
    external = chosen.points if transform is None else transform.preprocess_transform(chosen.points)
    return torch.cat([external.expand(*X.shape[:-2], *external.shape[-2:]), X[..., chosen.rows, :]], dim=-2)


def _as_tensor(dictionary: object, train_X: Tensor) -> Tensor:
    """Return a tensor of rows or points; refuse numbers, masks and vectors of numbers."""
    if isinstance(dictionary, numbers.Integral) and not isinstance(dictionary, bool):
        raise TypeError(
            f"expected dictionary to be points, rows or a sampler, got the number {dictionary}; for at most so many points use "
            f"max_dictionary={dictionary}, for exactly so many dictionary=UniformSampler(size={dictionary})"
        )
    if not isinstance(dictionary, Tensor):
        array = isinstance(dictionary, (list, tuple)) or hasattr(dictionary, "__array__")
        raise TypeError(
            "expected dictionary to be a sampler, a Dictionary, a tensor of row indices or of points, "
            f"got {type(dictionary).__name__}{'; use torch.as_tensor(dictionary)' if array else ''}"
        )
    if dictionary.dtype == torch.bool:
        raise TypeError(
            f"expected dictionary to be an integer tensor of rows, got a mask of shape {tuple(dictionary.shape)}; "
            "use mask.nonzero().squeeze(-1)"
        )
    if dictionary.is_floating_point() and dictionary.dim() == 1:
        rows = bool((dictionary == dictionary.round()).all()) and train_X.shape[-1] != 1
        advice = "for rows of train_X use dictionary.long()" if rows else "one point is dictionary.unsqueeze(0)"
        if train_X.shape[-1] == 1:
            advice = "use dictionary.unsqueeze(-1)"
        raise ValueError(
            f"expected dictionary points of shape m x {train_X.shape[-1]}, got shape {tuple(dictionary.shape)}; {advice}"
        )
    return dictionary


def warn_if_far(kernel: PriorKernel, points: Tensor, X: Tensor) -> None:
    """Warn where transformed external points have no prior correlation above 0.1 with 256 rows of the data. O(m d)."""
    with torch.no_grad():
        n = X.shape[-2]
        some = X[..., torch.linspace(0, n - 1, min(256, n), dtype=torch.float64, device=X.device).long(), :]
        scale = (kernel_diagonal(kernel, some).unsqueeze(-1) * kernel_diagonal(kernel, points).unsqueeze(-2)).sqrt()
        correlation = (kernel_matrix(kernel, some, points).abs() / scale).amax()
    if correlation <= 0.1:
        warnings.warn(
            f"the dictionary of {points.shape[-2]} points is far from all data: no prior correlation above 0.1, so the "
            "posterior is nearly the prior; give points in the units of train_X, or rows of it",
            DictionaryWarning,
            stacklevel=2,
        )


@dataclass(frozen=True, eq=False)
class AverageCovariance:
    """The kernel as samplers take it: of a batch, the average of the members' kernels, each over its noise level.

    The residual of the average over a dictionary is at least the average of the members' residuals, in the positive
    semi-definite order (one set of coefficients serves all). So a bound on the former, times the number of members, bounds
    each of the latter.
    """

    kernel: PriorKernel
    levels: Tensor
    """``batch_shape`` divisors of the members' kernels."""

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        """See :class:`sparse_bo.dictionary.Covariance`. O(b q q' d)."""
        with torch.no_grad():
            blocks = kernel_matrix(self.kernel, X, Y).double() / self.levels[..., None, None]
        return blocks.reshape(-1, *blocks.shape[-2:]).mean(dim=0)

    def diagonal(self, X: Tensor) -> Tensor:
        """See :class:`sparse_bo.dictionary.Covariance`. O(b q d)."""
        with torch.no_grad():
            variances = kernel_diagonal(self.kernel, X).double() / self.levels[..., None]
        return variances.reshape(-1, variances.shape[-1]).mean(dim=0)


def _sampled(model: Any, X: Tensor, noise: Tensor, *, size: int, generator: torch.Generator) -> ChosenPoints:
    """Ask the user's sampler; a dictionary beyond ``size`` is cut to the points of highest inclusion probability.

    The sampler gets the distinct inputs in the user's units with their counts, the kernel and the transformed inputs,
    leverages and means by a uniform pilot, and the noise of each. Of a batch it gets averages of leverages, kernels and noise
    (each member in units of its noise level), and no means. Of equal probabilities the lowest rows stay.
    """
    kernel, rule, prior_mean = model.prior_kernel, model.rule, model.prior_mean(X)
    raw = model.original_inputs()
    distinct = distinct_inputs(X)
    a = len(distinct.rows)
    pilot = distinct.rows[uniform_rows(a, rule.settings.pilot, generator=generator, device=X.device)]
    means, leverages = pilot_posterior(kernel, X[..., pilot, :], TrainingData(X, model.train_targets - prior_mean, noise))
    # Observations of one input at noise ν₁, ν₂, … are worth as many at their harmonic mean.
    sums = group_sums(noise.detach().double().reciprocal(), distinct.group, groups=a)
    harmonic = distinct.counts.double() / sums
    single = noise.shape[:-1].numel() == 1
    levels = torch.ones_like(harmonic[..., 0]) if single else harmonic.mean(dim=-1)
    relative = harmonic / levels.unsqueeze(-1)
    means = (prior_mean + means).detach().expand(noise.shape)[..., distinct.rows]
    positions = torch.arange(a, device=X.device)
    X_raw = raw.reshape(-1, *raw.shape[-2:])[0, distinct.rows]  # batches share their rows; samplers see the first
    covariance, inputs = AverageCovariance(kernel, levels), X[..., distinct.rows, :].detach()
    regularization, one_mean = relative.reshape(-1, relative.shape[-1]).mean(dim=0), means.reshape(-1) if single else None
    known = (X_raw, distinct.counts, leverages[distinct.rows], positions, positions)
    candidates = Candidates(*known, covariance, inputs, regularization, one_mean)
    dictionary = rule.sampler.sample(candidates, generator=generator)
    chosen = torch.arange(dictionary.m, device=X.device)
    if dictionary.m > size:
        chosen = dictionary.probabilities.sort(descending=True, stable=True).indices[:size].sort().values
    if dictionary.indices is not None:
        return ChosenPoints(distinct.rows[dictionary.indices[chosen]].sort().values)
    if X.dim() > 2 and raw.shape[:-2].numel() > 1 and not bool((raw == raw.reshape(-1, *raw.shape[-2:])[0]).all()):
        raise InputDataError("a sampler of external points needs one data set, got a batch; pass indices or points instead")
    return ChosenPoints(torch.empty(0, dtype=torch.long, device=X.device), dictionary.points[chosen])
