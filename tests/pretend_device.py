"""A second device made of host memory: what would break, or wait, on CUDA shows without a GPU.

A tensor "on" the pretend device holds a CPU tensor and says that it is on ``cuda:0``. As on CUDA, an operation that mixes it
with a CPU tensor fails (but for zero-dimensional ones, element by element), so does ``.numpy()``, and a CPU generator draws
nothing there. Everything that would make the host wait for a GPU is counted, with the line of code that asked for it.

Operations are caught below autograd (``__torch_dispatch__``), where every composite operation has been taken apart: what is
checked is what CUDA would be asked to do. Not caught are kernels that CUDA lacks or computes with other round-off.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

PRETEND = torch.device("cuda", 0)
_PACKAGE = str(Path(__file__).parents[1] / "sparse_bo")
_aten = torch.ops.aten

READS = {"_local_scalar_dense", "equal", "is_nonzero"}
"""Operations that hand a number to the host."""
SIZED_BY_DATA = {
    "nonzero", "masked_select", "_unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "repeat_interleave",
    "linalg_eigh", "_linalg_eigh", "linalg_eig", "linalg_cholesky", "_linalg_svd", "histc", "isin",
}  # fmt: skip
"""Operations whose kernels wait: the size of the result, or whether the factorisation went well, is read by the host."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
RANDOM = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal_", "uniform_", "bernoulli",
          "bernoulli_", "multinomial", "random_", "exponential_", "normal", "native_dropout", "poisson"}  # fmt: skip


class PretendTensor(Tensor):
    """A tensor on the pretend device. C++ takes it for one on the meta device, Python for one on ``cuda:0``."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> PretendTensor:
        outer = Tensor._make_wrapper_subclass(
            cls,
            held.shape,
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device="meta",
        )
        outer.held = held
        return outer

    device = property(lambda self: PRETEND)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    is_meta = property(lambda self: False)

    def __repr__(self, **kwargs: Any) -> str:
        return f"Pretend({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("a tensor on the pretend device was used outside of pretend_device()")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not all(issubclass(kind, Tensor) for kind in types):
            return NotImplemented  # a linear operator's turn
        kwargs = kwargs or {}
        if func in (Tensor.numpy, Tensor.__array__):
            raise TypeError(
                "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
            )
        if func is Tensor.tolist:
            return args[0].cpu().tolist()
        if func is Tensor.new_tensor:  # C++ would make a tensor without data
            data, *rest = args[1:]
            return torch.tensor(data, *rest, **{"dtype": args[0].dtype, "device": PRETEND, **kwargs})
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            args = (args[0], _uploaded(args[1]), *args[2:])
        if func is Tensor.to and isinstance(args[0], PretendTensor):
            args, kwargs = _without_own_device(args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _uploaded(index: Any) -> Any:
    """Return an index with its lists and arrays as tensors on the device."""
    if isinstance(index, tuple):
        return tuple(map(_uploaded, index))
    if isinstance(index, (list, np.ndarray)):
        return torch.tensor(index, device=PRETEND) if len(index) else torch.empty(0, dtype=torch.long, device=PRETEND)
    return index


def _without_own_device(args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments of ``Tensor.to`` without a device that the tensor is on already: then nothing is copied."""

    def own(value: Any) -> bool:
        return isinstance(value, (torch.device, str)) and torch.device(value).type == "cuda"

    named = {key: value for key, value in kwargs.items() if not (key == "device" and own(value))}
    rest = [value for value in args[1:] if not own(value)]
    if rest and rest[0] is None:  # to(None, dtype)
        rest = rest[1:]
    if not rest and named.get("dtype") is None and named.get("device") is None:
        named.pop("dtype", None)
        rest = [args[0].dtype]
    return (args[0], *rest), named


class Waits(Counter[str]):
    """What made the host wait, counted by kind; ``where`` counts by kind and line of the package."""

    def __init__(self) -> None:
        super().__init__()
        self.where: Counter[tuple[str, str]] = Counter()

    def note(self, kind: str) -> None:
        self[kind] += 1
        frame = sys._getframe(1)
        while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
            frame = frame.f_back  # type: ignore[assignment]
        place = "elsewhere" if frame is None else f"{frame.f_code.co_filename[len(_PACKAGE) + 1 :]}:{frame.f_lineno}"
        self.where[kind, place] += 1

    def reset(self) -> None:
        self.clear()
        self.where.clear()


def _is_host_vector(value: Any) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, PretendTensor) and value.dim() > 0


def _leaves(args: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments of an operation, those in lists one by one."""
    flat: list[Any] = []
    for value in (*args, *kwargs.values()):
        flat.extend(value) if isinstance(value, (list, tuple)) else flat.append(value)
    return flat


def _bare(value: Any) -> Any:
    """Return what a tensor, or those of a list, hold."""
    if isinstance(value, PretendTensor):
        return value.held
    return type(value)(map(_bare, value)) if isinstance(value, (list, tuple)) else value


def _wrapped(result: Any, by_held: dict[int, PretendTensor]) -> Any:
    """Return the results on the pretend device; what an operation wrote into stays the tensor that it was."""
    if isinstance(result, Tensor):
        return by_held[id(result)] if id(result) in by_held else PretendTensor(result)
    return type(result)(_wrapped(part, by_held) for part in result) if isinstance(result, (list, tuple)) else result


class _Mode(TorchDispatchMode):
    """Runs operations on what the tensors hold, checks where their arguments are, and counts."""

    def __init__(self, waits: Waits) -> None:
        super().__init__()
        self.waits = waits
        self.generator = torch.Generator().manual_seed(0x5EED)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.overloadpacket.__name__
        flat = _leaves(args, kwargs)
        inside = [x for x in flat if isinstance(x, PretendTensor)]
        device = kwargs.get("device")
        wanted = None if device is None else torch.device(device).type in ("cuda", "meta")
        if not inside and not wanted:
            return func(*args, **kwargs)
        outside = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, PretendTensor)]
        if any(x.is_meta for x in outside):
            raise RuntimeError(f"{func} got a tensor without data: C++ made it, and this harness does not know how")
        to_host = wanted is False
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        if name in ("_to_copy", "copy_", "_copy_from", "lift_fresh"):
            return self._copied(func, name, args, kwargs, to_host=to_host)
        self._check(func, name, args, inside, outside, flat)
        self._count(func, name, args)
        by_held = {id(x.held): x for x in inside}
        bare, options = _bare(args), {key: _bare(value) for key, value in kwargs.items()}
        with self._randomness(name, flat):
            result = func(*bare, **options)
        if to_host:
            return result
        return _wrapped(result, by_held)

    def _copied(self, func: Any, name: str, args: Any, kwargs: Any, *, to_host: bool) -> Any:
        """Copies between the devices, and within one."""
        target, source = (args[0], args[1]) if name in ("copy_", "_copy_from") else (None, args[0])
        bare, options = _bare(args), {key: _bare(value) for key, value in kwargs.items()}
        result = func(*bare, **options)
        from_pretend = isinstance(source, PretendTensor)
        to_pretend = isinstance(target, PretendTensor) if target is not None else not to_host
        if from_pretend and not to_pretend:
            self.waits.note("download")
        elif to_pretend and not from_pretend:
            self.waits.note("upload")
        if target is not None:
            return target
        return PretendTensor(result) if to_pretend else result

    def _check(self, func: Any, name: str, args: Any, inside: list[Any], outside: list[Tensor], flat: list[Any]) -> None:
        if not outside or not inside:
            return
        if name in INDEXED and not (len(args) > 2 and _is_host_vector(args[2])) and isinstance(args[0], PretendTensor):
            self.waits.note("upload")  # a list or a CPU tensor as index: allowed, and copied unseen
            return
        if all(x.dim() == 0 for x in outside) and (torch.Tag.pointwise in func.tags or name in ("fill_", "fill")):
            return
        shapes = [tuple(x.shape) for x in outside]
        raise RuntimeError(
            f"expected all tensors on the same device, {func} got some on cuda:0 and some on the CPU, of shapes {shapes}"
        )

    def _count(self, func: Any, name: str, args: Any) -> None:
        masks = name in INDEXED and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        if name in READS and not (name == "equal" and args[0].shape != args[1].shape):
            self.waits.note("read")
        elif name in SIZED_BY_DATA or masks:
            self.waits.note("sized by data")

    @contextmanager
    def _randomness(self, name: str, flat: list[Any]) -> Iterator[None]:
        """Draw on the device from a generator of its own: such draws differ from those on the CPU, as they do on CUDA."""
        if name not in RANDOM:
            yield
            return
        if any(isinstance(x, torch.Generator) for x in flat):
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        self.waits.note("device draw")
        before = torch.get_rng_state()
        torch.set_rng_state(self.generator.get_state())
        try:
            yield
        finally:
            self.generator.set_state(torch.get_rng_state())
            torch.set_rng_state(before)


@contextmanager
def pretend_device() -> Iterator[Waits]:
    """Make ``cuda`` mean the pretend device; yields the count of waits."""
    waits = Waits()
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    lift = torch._C._only_lift_cpu_tensors()
    torch._C._ensureCUDADeviceGuardSet()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    with ExitStack() as stack:
        stack.enter_context(mock.patch("torch.cuda._lazy_init", return_value=None))
        # Where Triton is installed, as it is beside every card: its programs would read memory that is not there.
        stack.enter_context(mock.patch("sparse_bo.kernels.tiles.triton_is_there", return_value=False))
        stack.enter_context(_Mode(waits))
        try:
            yield waits
        finally:
            torch._C._set_only_lift_cpu_tensors(lift)
            torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
