"""The choice of training points: those of the dictionary, and those that hyper-parameters are learned from."""

from __future__ import annotations

import numbers
import warnings
from dataclasses import dataclass
from typing import NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from sparse_bo.dictionary import Candidates, Dictionary, Sampler
from sparse_bo.errors import DictionaryWarning
from sparse_bo.linalg.sums import group_sums
from sparse_bo.models.sparse_gp.leverage_sampling import PILOT_POINTS, Distinct, distinct_inputs, pilot_posterior, uniform_rows
from sparse_bo.models.sparse_gp.representation import PriorKernel, kernel_diagonal, kernel_matrix
from sparse_bo.validation import check_indices, check_points


class Chosen(NamedTuple):
    """A dictionary that a sampler has chosen."""

    rows: Tensor | None
    """``m`` rows of the training inputs, ascending; ``None`` if the points are external."""
    points: Tensor | None
    """``m x d`` external points in the user's units; ``None`` if there are rows."""


def checked_dictionary(dictionary: Sampler | Dictionary | Tensor | None, train_X: Tensor) -> Chosen:
    """Check the user's dictionary against the data; a sampler or ``None`` leaves both parts open.

    Args:
        dictionary: What the user passed as dictionary.
        train_X: ``batch_shape x n x d``, as given by the user.

    Raises:
        TypeError: If it is none of the allowed kinds, or its dtype or device does not fit.
        ValueError: If indices are repeated, out of range or too many, or points have the wrong width or are not finite.
    """
    if dictionary is None or isinstance(dictionary, Sampler):
        return Chosen(None, None)
    if isinstance(dictionary, Dictionary):
        dictionary = dictionary.points if dictionary.indices is None else dictionary.indices
    dictionary = _a_tensor(dictionary, train_X)
    if dictionary.is_floating_point():
        first = train_X.reshape(-1, *train_X.shape[-2:])[0]
        return Chosen(None, check_points("dictionary", dictionary, like=first).detach().clone())
    n = train_X.shape[-2]
    rows = check_indices("dictionary", dictionary, size=n).to(train_X.device)
    if not len(rows):
        raise ValueError("expected a dictionary of at least one row, got an empty tensor of indices")
    distinct = len(torch.unique(rows))
    if distinct != len(rows):
        raise ValueError(f"expected distinct dictionary rows, got {len(rows)} of which {distinct} are distinct")
    return Chosen(rows.sort().values, None)


def _a_tensor(dictionary: object, train_X: Tensor) -> Tensor:
    """Return what may be rows or points, or say what to pass instead.

    Raises:
        TypeError: If it is no tensor, or a mask.
        ValueError: If it is a vector of numbers.
    """
    if isinstance(dictionary, numbers.Integral) and not isinstance(dictionary, bool):
        raise TypeError(
            f"expected dictionary to be points, rows or a sampler, got the number {dictionary}; for at most so many points use "
            f"max_dictionary={dictionary}, for exactly so many dictionary=UniformSampler(size={dictionary})"
        )
    if not isinstance(dictionary, Tensor):
        made = (
            "; use torch.as_tensor(dictionary)"
            if isinstance(dictionary, (list, tuple)) or hasattr(dictionary, "__array__")
            else ""
        )
        raise TypeError(
            "expected dictionary to be a sampler, a Dictionary, a tensor of row indices or of points, "
            f"got {type(dictionary).__name__}{made}"
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


FAR = 0.1
"""A dictionary with no larger prior correlation with any observation is far from all data."""

LOOKED_AT = 256
"""Rows of the data that a dictionary's distance is judged by."""


def warn_if_far(kernel: PriorKernel, points: Tensor, X: Tensor) -> None:
    """Warn where a dictionary of external points knows nothing of the data: no correlation above :data:`FAR`. O(m d).

    Args:
        kernel: The prior covariance.
        points: ``batch_shape x m x d`` dictionary, transformed.
        X: ``batch_shape x n x d``, transformed.
    """
    with torch.no_grad():
        n = X.shape[-2]
        some = X[..., torch.linspace(0, n - 1, min(LOOKED_AT, n), dtype=torch.float64, device=X.device).long(), :]
        scale = (kernel_diagonal(kernel, some).unsqueeze(-1) * kernel_diagonal(kernel, points).unsqueeze(-2)).sqrt()
        correlation = (kernel_matrix(kernel, some, points).abs() / scale).amax()
    if correlation <= FAR:
        warnings.warn(
            f"the dictionary of {points.shape[-2]} points is far from all data: no prior correlation above {FAR}, so the "
            "posterior is nearly the prior; give points in the units of train_X, or rows of it",
            DictionaryWarning,
            stacklevel=2,
        )


@dataclass(frozen=True, eq=False)
class AverageCovariance:
    """The kernel as the samplers take it: of a batch, the average of the members' kernels, each over its noise level.

    What the average leaves out over a dictionary is at least the average of what the members leave out, in the positive
    semi-definite order (one set of coefficients serves all); so a bound on the former is one on each of the latter, times the
    number of members.
    """

    kernel: PriorKernel
    levels: Tensor
    """``batch_shape`` by what each member's kernel is divided."""

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


def _candidates(
    kernel: PriorKernel,
    X: Tensor,
    raw_X: Tensor,
    residuals: Tensor,
    prior_mean: Tensor,
    noise: Tensor,
    *,
    generator: torch.Generator,
) -> tuple[Candidates, Distinct]:
    """Return the distinct inputs as the samplers see them; arguments as :func:`sampled`."""
    distinct = distinct_inputs(X)
    pilot = distinct.rows[uniform_rows(len(distinct.rows), PILOT_POINTS, generator=generator, device=X.device)]
    posterior = pilot_posterior(kernel, X[..., pilot, :], X, residuals, noise)
    # Observations of one input at noise ν₁, ν₂, … are worth as many at their harmonic mean.
    precision = noise.detach().double().reciprocal()
    sums = group_sums(precision, distinct.group, groups=len(distinct.rows))
    harmonic = distinct.counts.double() / sums
    single = noise.shape[:-1].numel() == 1
    levels = torch.ones_like(harmonic[..., 0]) if single else harmonic.mean(dim=-1)
    relative = harmonic / levels.unsqueeze(-1)
    means = (prior_mean + posterior.means).detach().expand(noise.shape)[..., distinct.rows]
    positions = torch.arange(len(distinct.rows), device=X.device)
    candidates = Candidates(
        raw_X.reshape(-1, *raw_X.shape[-2:])[0, distinct.rows],  # batches share their rows; samplers see the first
        distinct.counts,
        posterior.leverages[distinct.rows],
        positions,
        positions,
        covariance=AverageCovariance(kernel, levels),
        inputs=X[..., distinct.rows, :].detach(),
        regularization=relative.reshape(-1, relative.shape[-1]).mean(dim=0),
        means=means.reshape(-1) if single else None,
    )
    return candidates, distinct


def sampled(
    sampler: Sampler,
    kernel: PriorKernel,
    X: Tensor,
    raw_X: Tensor,
    *,
    residuals: Tensor,
    prior_mean: Tensor,
    noise: Tensor,
    size: int,
    generator: torch.Generator,
) -> Chosen:
    """Ask the user's sampler; a dictionary beyond ``size`` is cut down to the points of highest inclusion probability.

    Where all are as probable the lowest rows stay, which says nothing for them: give such a sampler a size within the cap.

    The sampler sees the distinct inputs in the user's units, with their counts; the kernel and the inputs it takes, so that no
    transform is repeated; leverages and means by a uniform pilot; and the noise of each. Of a batch it sees the average of
    leverages, kernels and noise (each member in units of its noise level), and no means.

    Args:
        sampler: The sampler that the user passed.
        kernel: The prior covariance.
        X: ``batch_shape x n x d``, transformed.
        raw_X: ``batch_shape x n x d``, as given by the user.
        residuals: ``batch_shape x n`` targets less the prior mean.
        prior_mean: ``batch_shape x n`` prior means.
        noise: ``batch_shape x n`` noise variances.
        size: At most so many points are chosen.
        generator: A CPU generator, the only source of randomness.

    Raises:
        InputDataError: If the sampler returns external points for a batch of different data sets.
        SamplerError: If the sampler needs what this model cannot give (IPA: the means of one output).
    """
    candidates, distinct = _candidates(kernel, X, raw_X, residuals, prior_mean, noise, generator=generator)
    dictionary = sampler.sample(candidates, generator=generator)
    keep = torch.arange(dictionary.m, device=X.device)
    if dictionary.m > size:
        keep = dictionary.probabilities.sort(descending=True, stable=True).indices[:size].sort().values
    if dictionary.indices is not None:
        return Chosen(distinct.rows[dictionary.indices[keep]].sort().values, None)
    if X.dim() > 2 and raw_X.shape[:-2].numel() > 1 and not bool((raw_X == raw_X.reshape(-1, *raw_X.shape[-2:])[0]).all()):
        raise InputDataError("a sampler of external points needs one data set, got a batch; pass indices or points instead")
    return Chosen(None, dictionary.points[keep])
