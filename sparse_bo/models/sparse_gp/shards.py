"""A data set whose rows lie with several ranks: where its rows are, sums over them, and a dictionary chosen from all.

A rank holds ``n_r`` of the ``n`` rows, numbered through all ranks in their order. Ranks exchange sums of size m² and few rows:
O(m²) bytes for a posterior or a likelihood, O(parameters) for its gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.dictionary import Dictionary
from sparse_bo.gp import dtc
from sparse_bo.gp.woodbury import LowRankSums
from sparse_bo.models.sparse_gp.leverage_sampling import (
    DictionarySettings,
    distinct_inputs,
    judged_rows,
    needed_size,
    pilot_posterior,
    race_weights,
    race_winners,
    sample_size,
    uniform_rows,
)
from sparse_bo.models.sparse_gp.prior import PriorKernel
from sparse_bo.models.sparse_gp.row_sums import Summation, fit_dtc
from sparse_bo.sharding import Group

MEETING = "meeting over data in shards"
SUMS = "sums over rows"


class ShardedRows:
    """The rows of a data set on several ranks, ``here`` of them on this one. A collective call, with its ``RankError``.

    An :class:`~sparse_bo.models.sparse_gp.row_sums.AllRows`.
    """

    def __init__(self, group: Group, here: int) -> None:
        self.group = group
        counts = [int(count[0]) for count in group.numbers("counting rows", [here])]
        self.starts = [0, *accumulate(counts)]

    @classmethod
    def checked(cls, group: Group, X: Tensor, Y: Tensor, options: dict[str, Any]) -> ShardedRows:
        """Return the rows of one data set; ``ValueError`` on every rank, if shapes, options or versions differ."""
        same = {"width of train_X": X.shape[-1], "dtype": str(X.dtype), "kind of device": X.device.type, **options}
        versions = {"sparse_bo": __version__, "torch": torch.__version__}
        ranks = group.objects(MEETING, (tuple(X.shape), tuple(Y.shape), {**same, **versions}))
        for rank, (x, y, here) in enumerate(ranks):
            if len(x) != 2 or tuple(y) != (x[0], 1) or not x[0]:
                raise ValueError(
                    f"expected train_X n x d and train_Y n x 1 with n >= 1 on every rank, got {x} and {y} on rank {rank}"
                )
            for name, value in here.items():
                if value != ranks[0][2][name]:
                    raise ValueError(
                        f"expected the same {name} on every rank, got {ranks[0][2][name]} on rank 0 and {value} on rank {rank}"
                    )
        return cls(group, len(X))

    @property
    def total(self) -> int:
        """Number n of rows on all ranks."""
        return self.starts[-1]

    @property
    def start(self) -> int:
        """Number of this rank's first row."""
        return self.starts[self.group.rank]

    @property
    def here(self) -> slice:
        """Numbers of this rank's rows."""
        return slice(self.start, self.starts[self.group.rank + 1])

    def own(self, numbers: Tensor) -> Tensor:
        """See :class:`~sparse_bo.models.sparse_gp.row_sums.AllRows`."""
        mine = numbers - self.start
        return mine[(mine >= 0) & (mine < self.here.stop - self.start)]

    def summed(self, parts: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
        """See :class:`~sparse_bo.models.sparse_gp.row_sums.AllRows`. Two collectives; no gradients."""
        with self.group.shielded(SUMS):
            local = list(parts())
        return self.group.total(SUMS, local)

    def gathered(self, numbers: Tensor, *columns: Tensor) -> list[Tensor]:
        """Return some rows (``q`` numbers, ascending) of every tensor, ``q x …``, on every rank. Two collectives."""
        mine = self.own(numbers)
        ranks = self.group.tensors("gathering rows", [column.detach()[mine] for column in columns])
        return [torch.cat([part[k] for part in ranks]).to(column) for k, column in enumerate(columns)]


def check_sharded_options(
    dictionary: Tensor | None, outcome: OutcomeTransform | _DefaultType | None, inputs: InputTransform | None
) -> None:
    """Refuse transforms that learn from the data, and a sampler or rows as dictionary, by ``UnsupportedError``."""
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


def digest(dictionary: Tensor | None) -> str:
    """Return a short fingerprint of a dictionary."""
    if dictionary is None:
        return "chosen"
    data = dictionary.detach().double().cpu().contiguous().numpy().tobytes()
    return f"{tuple(dictionary.shape)} {hashlib.blake2b(data, digest_size=6).hexdigest()}"


def check_parameters(group: Group, parameters: dict[str, Tensor]) -> None:
    """Raise ``ValueError`` on every rank, if hyper-parameters differ by more than a relative 1e-6. One collective."""
    mine = {name: parameter.detach().double().cpu() for name, parameter in parameters.items()}
    ranks = group.objects("the hyper-parameters", mine)
    for rank, other in enumerate(ranks):
        if other.keys() != ranks[0].keys():
            raise ValueError(
                f"expected the same modules on every rank, got {sorted(ranks[0])} on rank 0 and {sorted(other)} on {rank}"
            )
        for name, value in other.items():
            first = ranks[0][name]
            if value.shape != first.shape or not torch.allclose(value, first, rtol=1e-6, atol=1e-6, equal_nan=True):
                raise ValueError(
                    f"expected the same {name} on every rank, got {first.flatten().tolist()} on rank 0 and "
                    f"{value.flatten().tolist()} on rank {rank}"
                )


class _Total(torch.autograd.Function):
    """Sums over all ranks of sums over local rows, as a function of parameters that every rank has.

    The derivative by a parameter is the sum of every rank's share. The backward pass computes this rank's sums once more, with
    gradients, and adds the shares up, so every rank has the gradient of all rows.
    """

    @staticmethod
    def forward(ctx: Any, group: Group, local: Callable[[], Sequence[Tensor]], *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.local = group, local
        ctx.save_for_backward(*parameters)
        with torch.no_grad():
            return tuple(group.total(SUMS, list(local())))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        parameters = ctx.saved_tensors
        with torch.enable_grad():
            sums = ctx.local()
            shares = torch.autograd.grad(sums, parameters, gradients, allow_unused=True)
        filled = [torch.zeros_like(p) if share is None else share for p, share in zip(parameters, shares, strict=True)]
        return None, None, *ctx.group.total("gradients", filled)


def differentiable_sums(rows: ShardedRows, local: Callable[[], LowRankSums], parameters: Sequence[Tensor]) -> LowRankSums:
    """Return the sums over the rows of all ranks, with gradients by the parameters. Two collectives, two more for the gradient.

    ``local`` returns this rank's sums; ``parameters``, the same on every rank, require gradients.
    """

    def parts() -> list[Tensor]:
        sums = local()
        return [sums.gram, sums.projected, sums.squares, sums.log_noise, sums.unexplained]

    total: tuple[Tensor, ...] = _Total.apply(rows.group, parts, *parameters)  # type: ignore[no-untyped-call]  # as torch types it
    gram, projected, squares, log_noise, unexplained = total
    return LowRankSums(gram, projected, squares, log_noise, unexplained, rows.total)


def fit_of_all(
    rows: ShardedRows,
    kernel: PriorKernel,
    points: Tensor,
    X: Tensor,
    *,
    residuals: Tensor,
    noise: Tensor,
    how: Summation | None = None,
) -> dtc.DTC:
    """Fit the DTC posterior to the rows of all ranks, as ``fit_dtc`` does to those of one. O(n_r m² + m³) a rank."""
    state = fit_dtc(kernel, points, X, residuals=residuals, noise=noise, rows=rows, how=how)
    largest = rows.group.largest("the largest precision", [float(state.largest_precision)])[0]
    return replace(state, largest_precision=state.largest_precision.new_tensor(largest))


def chosen_points(
    rows: ShardedRows,
    kernel: PriorKernel,
    X: Tensor,
    raw: Tensor,
    noise: Tensor,
    *,
    size: int,
    generator: torch.Generator,
    settings: DictionarySettings,
) -> Tensor:
    """Choose a dictionary of at most ``size`` rows by leverages, as one process with all rows would. O(n_r p²).

    The rule of :func:`sparse_bo.models.sparse_gp.leverage_sampling.default_rows`. Every rank computes the leverages of its own
    rows from a shared pilot, and runs the exponential races with the numbers of its rows; the winners of all ranks meet. Rows
    that repeat are not merged before, but a point enters once. Every rank draws the numbers that one process draws.

    ``X`` and ``raw`` are ``n_r x d``, transformed and in the user's units; ``noise`` ``n_r`` variances (y²). Returns ``m x d``
    points in the user's units, the same on every rank if the generators are in the same state.
    """
    n = rows.total
    numbers = uniform_rows(n, min(settings.pilot, size), generator=generator, device=X.device)
    (pilot,) = rows.gathered(numbers, X)
    with rows.group.shielded("leverages"):
        weights = race_weights(pilot_posterior(kernel, pilot, X, torch.zeros_like(noise), noise, rows=rows).leverages)
    (dimension,) = rows.group.total("leverages", [weights.sum()])
    wanted = sample_size(float(dimension), size, settings)
    draws = torch.rand(n, generator=generator, device="cpu", dtype=torch.float64)[rows.here].to(X.device)
    races = draws.log() / weights
    first = race_winners(races, wanted)
    ranks = rows.group.tensors("choosing a dictionary", [races[first], first + rows.start, raw[first], X[first]])
    values, indices, points, inputs = (torch.cat([part[k] for part in ranks]) for k in range(4))
    winners = race_winners(values, wanted)
    winners = winners[distinct_inputs(points[winners]).rows]
    judged_X, judged_noise = rows.gathered(judged_rows(n, X.device, settings), X, noise)
    needed = needed_size(kernel, inputs[winners].to(X), judged_X, judged_noise, n=n, settings=settings)
    winners = winners[: needed.size]
    return points[winners[indices[winners].argsort()]].to(raw)
