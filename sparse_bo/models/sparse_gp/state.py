"""Data and posterior that a SparseGP keeps: rows joined only when someone looks, and a cache that knows its age."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from sparse_bo.linalg.shapes import broadcast_shapes
from sparse_bo.models.sparse_gp.extending import Grown
from sparse_bo.models.sparse_gp.representation import Representation


class Appended:
    """Rows with more rows below them, joined on demand: look-ahead makes thousands of these and reads none.

    Joining costs ``batch · n`` memory, which would make every fantasy cost as much as the data are long.
    """

    def __init__(self, base: Tensor | Appended, extra: Tensor, *, dim: int) -> None:
        """Hold both parts.

        Args:
            base: ``… x n x d`` inputs or ``… x n`` targets.
            extra: ``… x q x d`` or ``… x q``; may have more batch dimensions.
            dim: Dimension of the rows: −2 for inputs, −1 for targets.
        """
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
        """Return the joined rows, ``batch_shape x (n + q) x d`` or ``batch_shape x (n + q)``; the same tensor every time."""
        if self._joined is None:
            parts = [part.expand(self.batch_shape + part.shape[self.dim :]) for part in (joined(self.base), self.extra)]
            self._joined = torch.cat(parts, dim=self.dim)
        return self._joined

    def map(self, fn: Callable[[Tensor], Tensor]) -> Appended:
        """Apply a conversion to both parts, without joining them; what does not change stays the same object."""
        base, extra = mapped(self.base, fn), fn(self.extra)
        return self if base is self.base and extra is self.extra else Appended(base, extra, dim=self.dim)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "extra": self.extra.detach(), "_joined": None}


def mapped(rows: Tensor | Appended, fn: Callable[[Tensor], Tensor]) -> Tensor | Appended:
    """Apply a conversion to rows."""
    return rows.map(fn) if isinstance(rows, Appended) else fn(rows)


def joined(rows: Tensor | Appended) -> Tensor:
    """Return the rows as one tensor."""
    return rows.tensor() if isinstance(rows, Appended) else rows


def row_count(rows: Tensor | Appended) -> int:
    """Return how many inputs (``… x n x d``) there are, without joining them."""
    return rows.rows if isinstance(rows, Appended) else rows.shape[-2]


def check_width(X: Tensor, rows: Tensor | Appended) -> None:
    """Check the width of points against the training inputs, both transformed: a kernel would broadcast a single column.

    Raises:
        RuntimeError: If they differ (what GPyTorch raises when it joins them).
    """
    width = (rows.extra if isinstance(rows, Appended) else rows).shape[-1]
    if X.shape[-1] != width:
        raise RuntimeError(
            f"expected X with {width} columns, as train_X (after the input transform, if there is one), got shape "
            f"{tuple(X.shape)}; X is batch_shape x q x d"
        )


class Stamp:
    """The identity of everything a cache was computed from: data by identity and version, parameters by value.

    GPyTorch's setters write through ``.data``, which leaves no trace in a tensor's version: so parameters are compared.
    """

    def __init__(self, data: tuple[Tensor | Appended, ...], parameters: tuple[Tensor, ...]) -> None:
        """Take the stamp.

        Args:
            data: Training inputs, targets and known noise.
            parameters: All parameters; they are copied.
        """
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
    """Return whether tensors are equal, pair by pair; those on a device in one wait for it."""
    pairs = list(zip(now, then, strict=True))
    if any(a.dtype != b.dtype or a.device != b.device or a.shape != b.shape for a, b in pairs):
        return False
    if not all(torch.equal(a, b) for a, b in pairs if a.device.type == "cpu"):
        return False
    there = [(a.detach() == b).all() for a, b in pairs if a.device.type != "cpu"]
    return not there or bool(torch.stack(there).all())


def _versions(data: tuple[Tensor | Appended, ...]) -> tuple[int, ...]:
    return tuple(-1 if isinstance(part, Appended) or part.is_inference() else part._version for part in data)


class Kept:
    """What was made for lazy posteriors; a copy or a pickle starts without."""

    def __init__(self) -> None:
        self.base: Any = None  # the rows that the posterior was last asked for again and again
        self.kernel: Any = None  # the prior covariance, as it was when the posterior was made

    def put(self, base: Any) -> None:
        """Keep a :class:`~sparse_bo.models.sparse_gp.process.Base` in place of the last."""
        self.base = base

    def __getstate__(self) -> dict[str, Any]:
        return {"base": None, "kernel": None}


@dataclass(frozen=True, eq=False)
class PosteriorCache:
    """A posterior, what it was computed from, and which dictionary it stands on."""

    representation: Representation
    stamp: Stamp
    rows: Tensor
    """Rows of the training inputs that are in the dictionary (none if it is external)."""
    points: Tensor | None
    """External points of the dictionary in the user's units, if any."""
    kept: Kept = field(default_factory=Kept)
    grown: Grown | None = None
    """What it takes to grow by further rows, of a model that was made with ``previous``; a copy starts without."""

    def carries_graph(self) -> bool:
        """Return whether parameters are in the graph of the posterior; of a fantasy it is that of its points."""
        return self.representation.extension is None and self.representation.alpha.requires_grad

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields with the representation detached: a copy or a pickle carries no autograd graph."""
        state = {part.name: getattr(self, part.name) for part in fields(self)}
        return {**state, "representation": self.representation.map(torch.Tensor.detach), "grown": None}


class TrainingData:
    """The training data of a GPyTorch model as properties: joined on demand, and every assignment drops the caches."""

    _stored_inputs: Tensor | Appended | None
    _stored_targets: Tensor | Appended | None

    def _clear_cache(self) -> None:
        raise NotImplementedError

    @property
    def train_inputs(self) -> tuple[Tensor, ...] | None:
        """The training inputs, ``aug_batch_shape x n x d``; transformed in evaluation mode."""
        stored = self._stored_inputs
        return None if stored is None else (joined(stored),)

    @train_inputs.setter
    def train_inputs(self, value: tuple[Tensor, ...] | None) -> None:
        self.__dict__["_stored_inputs"] = None if value is None else next(iter(value))
        self._clear_cache()

    @property
    def train_targets(self) -> Tensor | None:
        """The training targets in the outcome transform's units, ``aug_batch_shape x n``."""
        stored = self._stored_targets
        return None if stored is None else joined(stored)

    @train_targets.setter
    def train_targets(self, value: Tensor | None) -> None:
        self.__dict__["_stored_targets"] = value
        self._clear_cache()

    @property
    def _original_train_inputs(self) -> Tensor | None:
        stored = self.__dict__.get("_stored_originals")
        return None if stored is None else joined(stored)

    @_original_train_inputs.setter
    def _original_train_inputs(self, value: Tensor | None) -> None:
        self.__dict__["_stored_originals"] = value
