"""Data and cached posterior of a sparse model: rows joined only when read, and a cache that detects every change."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.model import Model
from torch import Tensor

from sparse_bo.errors import warn_caller
from sparse_bo.gp.dtc import NystromFactor
from sparse_bo.linalg.chunking import broadcast_shapes
from sparse_bo.models.sparse_gp.leverage_sampling import ChosenPoints
from sparse_bo.models.sparse_gp.posterior import Baseline
from sparse_bo.models.sparse_gp.representation import Representation


class Appended:
    """Rows ``base`` with ``extra`` rows below, joined on demand: look-ahead makes thousands of these and reads none.

    Joining costs as much memory as the data for every fantasy. ``dim`` is that of the rows: −2 of inputs (``… x n x d``),
    −1 of targets (``… x n``). The extra rows may have more batch dimensions.
    """

    def __init__(self, base: Tensor | Appended, extra: Tensor, *, dim: int) -> None:
        self.base, self.extra, self.dim = base, extra, dim
        self._joined: Tensor | None = None

    @property
    def batch_shape(self) -> torch.Size:
        """Batch shape of the joined rows."""
        below = self.base.batch_shape if isinstance(self.base, Appended) else self.base.shape[: self.dim]
        return broadcast_shapes(below, self.extra.shape[: self.dim])

    @property
    def rows(self) -> int:
        """Number of joined rows."""
        below = self.base.rows if isinstance(self.base, Appended) else self.base.shape[self.dim]
        return below + self.extra.shape[self.dim]

    def tensor(self) -> Tensor:
        """Return the joined rows; the same tensor every time."""
        if self._joined is None:
            parts = [part.expand(self.batch_shape + part.shape[self.dim :]) for part in (joined(self.base), self.extra)]
            self._joined = torch.cat(parts, dim=self.dim)
        return self._joined

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "extra": self.extra.detach(), "_joined": None}


def mapped(rows: Tensor | Appended, fn: Callable[[Tensor], Tensor]) -> Tensor | Appended:
    """Apply a conversion to rows, without joining them; the same object if nothing changes."""
    if not isinstance(rows, Appended):
        return fn(rows)
    base, extra = mapped(rows.base, fn), fn(rows.extra)
    return rows if base is rows.base and extra is rows.extra else Appended(base, extra, dim=rows.dim)


def joined(rows: Tensor | Appended) -> Tensor:
    """Return the rows as one tensor."""
    return rows.tensor() if isinstance(rows, Appended) else rows


def row_count(rows: Tensor | Appended) -> int:
    """Return the number of inputs (``… x n x d``), without joining them."""
    return rows.rows if isinstance(rows, Appended) else rows.shape[-2]


def checked_points(X: Tensor, rows: Tensor | Appended) -> Tensor:
    """Return points in the wider dtype of theirs and the training inputs', both transformed, as GPyTorch joins them.

    ``RuntimeError``, as GPyTorch raises, if they have another width: a kernel would broadcast a single column.
    """
    known = rows.extra if isinstance(rows, Appended) else rows
    width = known.shape[-1]
    if X.shape[-1] != width:
        raise RuntimeError(
            f"expected X with {width} columns, as train_X (after the input transform, if there is one), got shape "
            f"{tuple(X.shape)}; X is batch_shape x q x d"
        )
    return X.to(torch.promote_types(X.dtype, known.dtype))


class Stamp:
    """The identity of everything a cache was computed from: data by identity and version, parameters by value.

    GPyTorch's setters write through ``.data``, which leaves a tensor's version unchanged, so copies of parameters are compared.
    """

    def __init__(self, data: tuple[Tensor | Appended, ...], parameters: tuple[Tensor, ...]) -> None:
        self.data = data
        self.parameters = tuple(parameter.detach().clone() for parameter in parameters)
        self.versions = _versions(data)

    def matches(self, data: tuple[Tensor | Appended, ...], parameters: tuple[Tensor, ...]) -> bool:
        """Return whether nothing has changed. O(number of parameters)."""
        return (
            len(data) == len(self.data)
            and all(now is then for now, then in zip(data, self.data, strict=True))
            and _versions(data) == self.versions
            and len(parameters) == len(self.parameters)
            and _same(parameters, self.parameters)
        )

    def __getstate__(self) -> dict[str, Any]:
        current = _versions(self.data) == self.versions
        return {"data": self.data, "parameters": self.parameters, "current": current}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.data, self.parameters = state["data"], state["parameters"]
        self.versions = _versions(self.data) if state["current"] else ()


def _same(now: tuple[Tensor, ...], then: tuple[Tensor, ...]) -> bool:
    """Return whether tensors are equal, pair by pair; all of a device with one synchronisation."""
    pairs = list(zip(now, then, strict=True))
    if any(a.dtype != b.dtype or a.device != b.device or a.shape != b.shape for a, b in pairs):
        return False
    if not all(torch.equal(a, b) for a, b in pairs if a.device.type == "cpu"):
        return False
    there = [(a.detach() == b).all() for a, b in pairs if a.device.type != "cpu"]
    return not there or bool(torch.stack(there).all())


def _versions(data: tuple[Tensor | Appended, ...]) -> tuple[int, ...]:
    return tuple(-1 if isinstance(part, Appended) or part.is_inference() else part._version for part in data)


@dataclass(frozen=True, eq=False)
class PosteriorCache:
    """A posterior, its stamp, and its dictionary."""

    representation: Representation
    stamp: Stamp
    chosen: ChosenPoints  # the dictionary
    baseline: Baseline = field(default_factory=Baseline)
    chosen_at: int = 0  # number of rows when the dictionary was chosen
    whitening: NystromFactor | None = None  # L of K_DD = L Lᵀ, of a posterior that has grown

    def holds_all(self, n: int) -> bool:
        """Return whether the dictionary is all ``n`` training inputs: the posterior is the exact one."""
        return self.chosen.points is None and len(self.chosen.rows) == n

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields with the representation detached: a copy or a pickle carries no autograd graph."""
        return {**vars(self), "representation": self.representation.map(torch.Tensor.detach)}


def check_training_data(standardized: bool = False, noise: Tensor | None = None, /, **data: Tensor) -> None:
    """Refuse arguments of the wrong kind by name, before BoTorch asks them for a shape.

    ``TypeError`` if something is no tensor, ``InputDataError`` if all have one dtype without fractions (BoTorch raises that for
    different ones), one has 16 bits, or an entry, of the ``noise`` variances too, is infinite, ``ValueError`` if two of them
    have different numbers of rows, there are no columns, no rows where outcomes are ``standardized``, or squares of entries
    are no numbers.
    """
    for name, given in data.items():
        if not isinstance(given, Tensor):
            fix = f"torch.tensor({name}.to_numpy(float))" if hasattr(given, "to_numpy") else "torch.as_tensor(...)"
            raise TypeError(f"expected {name} to be a torch.Tensor, got {type(given).__name__}; use {fix}")
    dtypes = {given.dtype for given in data.values()}
    for dtype in dtypes:
        unfit = torch.finfo(dtype).bits < 32 if dtype.is_floating_point else len(dtypes) == 1  # no 16-bit factor in PyTorch
        if unfit:
            raise InputDataError(f"expected {' and '.join(data)} of dtype torch.float64, got {dtype}; use .double()")
    rows = {name: given.shape[-2] for name, given in data.items() if given.ndim >= 2}
    if len(set(rows.values())) > 1:
        raise ValueError(f"expected as many rows of each, got {', '.join(f'{n} of {name}' for name, n in rows.items())}")
    for name, given in data.items():
        if given.ndim >= 2 and not given.shape[-1]:
            raise ValueError(
                f"expected at least one column of {name}, got shape {tuple(given.shape)}; {name} is … x n x columns"
            )
        if given.ndim >= 2 and not given.shape[-2] and standardized:
            raise ValueError(
                f"expected at least one row of {name}, got shape {tuple(given.shape)}; add an observation, or pass "
                "outcome_transform=None for a model of the prior"
            )
        if given.is_floating_point():
            check_size(name, given)
    if noise is not None and isinstance(noise, Tensor) and noise.is_floating_point():
        check_size("train_Yvar", noise)


def check_size(name: str, values: Tensor) -> None:
    """Refuse infinite values (``InputDataError``), and those whose sums of squares may be none in their dtype (``ValueError``).

    NaN is left to BoTorch.
    """
    info, values = torch.finfo(values.dtype), values.detach()
    if bool((infinite := values.isinf()).any()):
        row = int(infinite.flatten(0, -2).any(dim=-1).nonzero()[0]) if values.ndim > 1 else int(infinite.nonzero()[0])
        raise InputDataError(f"expected finite {name}, got an infinite entry in row {row}; leave such rows out")
    limit = 10.0 ** int(0.5 * math.log10(info.max) - 4)
    values = values[values.isfinite()]
    largest = float(values.abs().max()) if len(values) else 0.0
    if largest > limit:
        raise ValueError(
            f"expected {name} within ±{limit:.0e}, whose squares are {str(values.dtype).removeprefix('torch.')} numbers, got "
            f"{largest:.3g}; divide it by its largest entry"
        )


def parameters_of(model: Model) -> dict[str, Tensor]:
    """Return copies of a model's parameters, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def set_parameters(model: Model, values: Mapping[str, Tensor]) -> None:
    """Set all parameters of a model to ``values``, in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])


def outlying_mask(model: Any) -> Tensor:
    """Return which training rows a model leaves out, ``n`` booleans."""
    rows = model.outlying_rows
    return torch.isin(torch.arange(model.train_targets.shape[-1], device=rows.device), rows)


def masked_rows(model: Any, mask: Tensor | None) -> Tensor | None:
    """Return the rows of a mask of training rows; ``None``, with an ``InputDataWarning``, if the model has another number."""
    if mask is None or not bool(mask.any()):
        return None
    targets = model.train_targets
    if len(mask) != (n := targets.shape[-1]):
        message = (
            f"the state dict leaves out {int(mask.sum())} of {len(mask)} rows, this model has {n}, and leaves out none; fit it "
            "with robust=True, or pass previous= in place of a state dict"
        )
        warn_caller(message, InputDataWarning)
        return None
    return mask.nonzero().squeeze(-1).to(targets.device)


def same_parameters(one: Model, other: Model) -> bool:
    """Return whether two models have parameters of the same names and shapes."""
    return shapes(dict(one.named_parameters())) == shapes(dict(other.named_parameters()))


def shapes(values: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shape of each value."""
    return {name: value.shape for name, value in values.items()}
