"""Reproducible sections around libraries that draw from torch's global generators, with the same draws on every device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MAX_SEED = 2**63 - 1


@contextmanager
def seeded(generator: torch.Generator, *, device: torch.device) -> Iterator[None]:
    """Run a block with the global generators seeded from ``generator``, and leave them as they were.

    BoTorch's ``optimize_acqf``, its samplers and its restarts of a fit draw from the global generators and take no other.
    Inside the block the CPU's is seeded by one integer drawn from ``generator``; where the block computes on another device,
    what is asked of that device's generator is drawn on the CPU and moved: the numbers are those of the CPU. Where it computes
    on the CPU, the default device is the CPU, whatever ``torch.set_default_device`` said. The default dtype is float32: BoTorch
    and GPyTorch round initial values and constraints to it. Afterwards, also after an exception, all are put back.

    Args:
        generator: CPU generator; one draw.
        device: Where the block computes.

    Raises:
        TypeError: If ``generator`` is not a :class:`torch.Generator`.
        ValueError: If it is not on the CPU.
    """
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"expected a torch.Generator, got {type(generator).__name__}; use torch.Generator().manual_seed(0)")
    if generator.device.type != "cpu":
        raise ValueError(f"expected a CPU generator, got one on {generator.device}; use torch.Generator()")
    seed = int(torch.randint(_MAX_SEED, (), generator=generator, device="cpu"))
    with ExitStack() as stack:
        stack.enter_context(generators_kept(device))
        if device.type != "cpu":  # there it would change nothing, at a microsecond per operation
            stack.enter_context(_DrawsOnTheCPU())
        elif torch.get_default_device().type != "cpu":  # of the user; priors' parameters would be made there
            stack.enter_context(device)
        if (dtype := torch.get_default_dtype()) != torch.float32:
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Put the global generators back after a block: the CPU's, those of ``device``, and CUDA's if it is in use.

    What BoTorch draws with a seed of its own, it draws after ``torch.manual_seed``, which seeds every device's generator, and
    it puts back the CPU's alone.

    Args:
        device: Where the block computes.
    """
    with ExitStack() as stack:
        for kind, indices in _generators_of(device):
            stack.enter_context(torch.random.fork_rng(devices=indices, device_type=kind))
        yield


def _generators_of(device: torch.device) -> list[tuple[str, Sequence[int]]]:
    """Return the devices whose generators are kept beside the CPU's, by kind; CUDA, also where there is none, first."""
    # fork_rng would start a CUDA that is not in use yet.
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    kept: list[tuple[str, Sequence[int]]] = [("cuda", list(cuda))]
    if device.type not in ("cpu", "cuda"):
        kept.append((device.type, [device.index or 0]))
    return kept


class _DrawsOnTheCPU(TorchFunctionMode):
    """Draw from the CPU's generator inside the block in place of another device's, and move the draws there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        draw = _DRAWS.get(func)
        if draw is None or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        return draw(func, args, kwargs)


def _new(func: Callable[..., Tensor], args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Draw a new tensor: its device is asked for, or the default one."""
    where = kwargs.get("device")
    where = torch.get_default_device() if where is None else where
    return func(*args, **{**kwargs, "device": "cpu"}).to(where)


def _like(func: Callable[..., Tensor], args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Draw a tensor like another one."""
    like, *rest = args
    where = kwargs.get("device")
    where = like.device if where is None else where
    return func(torch.empty_like(like, device="cpu"), *rest, **{**kwargs, "device": "cpu"}).to(where)


def _from(func: Callable[..., Tensor], args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Draw from distributions whose parameters are tensors; numbers alone are on the default device."""
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    if not tensors:
        return _new(func, args, kwargs)
    args = [x.cpu() if isinstance(x, Tensor) else x for x in args]
    kwargs = {key: x.cpu() if isinstance(x, Tensor) else x for key, x in kwargs.items()}
    return func(*args, **kwargs).to(tensors[0].device)


def _into(func: Callable[..., Tensor], args: Any, kwargs: dict[str, Any]) -> Tensor:
    """Fill a tensor in place."""
    filled, *rest = args
    return filled.copy_(func(torch.empty_like(filled, device="cpu"), *rest, **kwargs))


_DRAWS: dict[Any, Callable[..., Tensor]] = {
    **dict.fromkeys((torch.rand, torch.randn, torch.randint, torch.randperm), _new),
    **dict.fromkeys((torch.rand_like, torch.randn_like, torch.randint_like), _like),
    **dict.fromkeys(
        (torch.normal, torch.multinomial, torch.bernoulli, torch.poisson, torch.binomial, torch._standard_gamma), _from
    ),
    **dict.fromkeys((Tensor.multinomial, Tensor.bernoulli), _from),
    **dict.fromkeys(
        (
            Tensor.normal_,
            Tensor.uniform_,
            Tensor.exponential_,
            Tensor.random_,
            Tensor.bernoulli_,
            Tensor.cauchy_,
            Tensor.log_normal_,
            Tensor.geometric_,
        ),
        _into,
    ),
}
"""By what draws: torch's functions that take a generator, or draw from the global one."""
