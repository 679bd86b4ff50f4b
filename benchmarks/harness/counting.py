"""What operations ask of a device, counted as they are dispatched: launches, bytes, flop, waits; and seconds predicted.

Counted is what the code does, on a device made of host memory (``tests/second_device``), with every operation as CUDA would get
it. Where CUDA has one kernel of the package's own (Triton), the operations that stand in for it count as that one.
"""

from __future__ import annotations

import importlib.util
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sparse_bo.arms import sweep
from sparse_bo.kernels import CovarianceFunction, gradients
from sparse_bo.kernels.closed_forms import Stationary


class Card(NamedTuple):
    """What a GPU is taken to do. Predictions are no better than this."""

    name: str
    product: float
    """float64 flop/s of matrix products."""
    factor: float
    """float64 flop/s of factorisations and triangular solves of about a thousand rows."""
    vector: float
    """float64 flop/s of everything else."""
    bandwidth: float
    """Bytes/s of its memory."""
    cache_bytes: float
    cache_bandwidth: float
    """Bytes/s, where all that an operation touches is in its cache."""
    launch: float
    """Seconds that the host takes to launch an operation; operations run beside that."""
    wait: float
    """Seconds that a wait of the host leaves it idle."""


H200 = Card("H200", 60e12, 3e12, 30e12, 4.2e12, 5e7, 10e12, 5e-6, 1.5e-5)


@dataclass(frozen=True)
class Cost:
    """What a piece of work asks of a device. Costs add up, and can be multiplied."""

    launches: float = 0.0
    bytes: float = 0.0
    flop: float = 0.0
    """Of matrix products, solves and factorisations; of fused kernels all."""
    waits: float = 0.0
    busy: float = 0.0
    """Seconds of the card, one operation after the other, as predicted."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def __mul__(self, factor: float) -> Cost:
        return Cost(*(getattr(self, f.name) * factor for f in fields(self)))

    def __sub__(self, other: Cost) -> Cost:
        return self + other * -1.0

    def seconds(self, card: Card = H200) -> float:
        """Return what this takes, as predicted: the card's time or the host's, whichever is longer, and the waits."""
        return max(self.busy, self.launches * card.launch) + self.waits * card.wait


_FREE = {
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "detach",
    "_unsafe_view",
    "lift_fresh",
    "resize_",
    "set_",
}
_WAITS = {"_local_scalar_dense", "nonzero", "_unique2", "unique_dim", "masked_select", "equal", "_linalg_eigh"}
_GATHERS = {"index_select", "index", "gather", "embedding"}


class Counting(TorchDispatchMode):
    """Adds up the costs of the operations on a device (and of copies to and from it). Lives around one piece of work."""

    def __init__(self, device: torch.device, card: Card = H200) -> None:
        super().__init__()
        self.device, self.card, self.cost, self._fused = device, card, Cost(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if not self._fused:
            taken = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
            given = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
            self._count(func, taken, given)
        return result

    def _count(self, func: Any, taken: list[Tensor], given: list[Tensor]) -> None:
        name = func.overloadpacket.__name__
        here = any(x.device.type == self.device.type for x in (*taken, *given))
        if not here or name in _FREE or (func.is_view and name != "_to_copy"):
            return
        if given and not any(x.numel() for x in given) and name not in _WAITS:  # nothing to compute: nothing is launched
            return
        waits = name in _WAITS or (name == "index" and any(x.dtype == torch.bool for x in taken[1:]))
        if name in ("_to_copy", "copy_"):
            to_host = any(x.device.type == "cpu" for x in given) and any(x.device.type == self.device.type for x in taken)
            waits = waits or to_host
        moved = sum(_bytes(x) for x in given)
        moved += moved if name in _GATHERS else sum(_bytes(x) for x in taken)
        rate = self.card.product if name in _PRODUCTS else self.card.factor if name in _FACTORS else self.card.vector
        self.add(moved, _flop(name, taken, given), rate=rate, waits=waits)

    def add(self, moved: float, flop: float, *, rate: float, waits: bool = False) -> None:
        """Count one operation."""
        card = self.card
        bandwidth = card.cache_bandwidth if moved <= card.cache_bytes else card.bandwidth
        self.cost += Cost(1.0, moved, flop, float(waits), max(flop / rate, moved / bandwidth))

    @contextmanager
    def one(self, moved: float, flop: float, *, launches: int = 1) -> Iterator[None]:
        """Count everything inside as one operation, or as so many that share its bytes and flop."""
        for _ in range(0 if self._fused else launches):
            self.add(moved / launches, flop / launches, rate=self.card.vector)
        self._fused += 1
        try:
            yield
        finally:
            self._fused -= 1


def _bytes(x: Tensor) -> int:
    """Return the bytes of a tensor that are different ones: an expanded one is read once."""
    sizes = [n for n, stride in zip(x.shape, x.stride(), strict=True) if stride]
    return math.prod(sizes) * x.element_size() if x.numel() else 0


_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "mv", "addmv"}
_FACTORS = {"linalg_solve_triangular", "triangular_solve", "cholesky_solve", "linalg_cholesky_ex", "cholesky_inverse"}


def _flop(name: str, taken: list[Tensor], given: list[Tensor]) -> float:
    if name in ("mm", "bmm", "mv", "dot"):
        return 2.0 * given[0].numel() * taken[0].shape[-1]
    if name in ("addmm", "baddbmm", "addmv"):
        return 2.0 * given[0].numel() * taken[1].shape[-1]
    if name in ("linalg_solve_triangular", "triangular_solve"):
        return float(given[0].numel() * max(x.shape[-1] for x in taken[:1]))
    if name == "cholesky_solve":
        return 2.0 * given[0].numel() * taken[1].shape[-1]
    if name in ("linalg_cholesky_ex", "cholesky_inverse"):
        return given[0].numel() * given[0].shape[-1] / 3.0
    return 0.0


@cache
def second_device() -> torch.device:
    """Return the device made of host memory, built with g++ on the first call of a process.

    Raises:
        FileNotFoundError: If there is no g++.
    """
    path = Path(__file__).parents[2] / "tests" / "second_device" / "__init__.py"
    spec = importlib.util.spec_from_file_location("sparse_bo_second_device", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(torch, module.NAME):
        if not module.can_be_built():
            raise FileNotFoundError("expected g++, which builds the device made of host memory; install it")
        folder = Path(tempfile.gettempdir()) / "sparse_bo_second_device"
        folder.mkdir(exist_ok=True)
        _KEPT.append(module.Second(module.built(folder)))
    return torch.device(module.NAME, 0)


_KEPT: list[Any] = []


def counted(work: Callable[[], object], *, device: torch.device, card: Card = H200) -> Cost:
    """Return what a piece of work on a device costs.

    Args:
        work: Does it, with tensors of that device.
        device: :func:`second_device`.
        card: What the card is taken to do.
    """
    mode = Counting(device, card)
    cross, squares = CovarianceFunction.cross, sweep.add_squares

    def fused_cross(self: CovarianceFunction, X: Tensor, Y: Tensor, *, out: Tensor | None = None) -> Tensor:
        if self.structure is None:
            return cross(self, X, Y, out=out)
        n, parts = len(X) * len(Y), len(self.structure.leaves)
        moved, flop = _bytes(X) + _bytes(Y) + 8 * n, (3.0 * X.shape[-1] + 40.0) * n
        with mode.one(parts * moved, parts * flop, launches=parts):
            return cross(self, X, Y, out=out)

    def fused_squares(product: Tensor, out: Tensor) -> None:
        with mode.one(_bytes(product) + 2 * _bytes(out), 2.0 * product.numel()):
            squares(product, out)

    def fused_leaf(structure: Stationary, X: Tensor, Y: Tensor, out: Tensor) -> None:
        with mode.one(_bytes(X) + _bytes(Y) + _bytes(out), (3.0 * X.shape[-1] + 40.0) * out.numel()):
            fill(structure, X, Y, out)

    def fused_slopes(leaf: Stationary, U: Tensor, V: Tensor, gradient: Tensor) -> Tensor:
        with mode.one(_bytes(U) + _bytes(V) + 2 * _bytes(gradient), (3.0 * U.shape[-1] + 40.0) * gradient.numel()):
            return weighed(leaf, U, V, gradient)

    fill, weighed = gradients.fill, gradients.weighed
    with ExitStack() as stack:
        stack.enter_context(patch.object(CovarianceFunction, "cross", fused_cross))
        stack.enter_context(patch.object(sweep, "add_squares", fused_squares))
        stack.enter_context(patch.object(gradients, "fill", fused_leaf))
        stack.enter_context(patch.object(gradients, "weighed", fused_slopes))
        stack.enter_context(patch.object(gradients, "BLOCK", sys.maxsize))  # as where a slope is one launch
        stack.enter_context(mode)
        work()
    return mode.cost
