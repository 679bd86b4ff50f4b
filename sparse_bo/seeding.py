"""Reproducible sections around libraries that draw from torch's global generators, with the same draws on every device."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MAX_SEED = 2**63 - 1


def generator_of(seed: int) -> torch.Generator:
    """Return a CPU generator; of a seed beyond 32 bits torch would take the last 32, here all count."""
    few = seed if seed < 2**32 else int.from_bytes(hashlib.blake2b(str(seed).encode(), digest_size=4).digest(), "little")
    return torch.Generator().manual_seed(few)


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
        stack.enter_context(float32_default())
        torch.default_generator.manual_seed(seed)
        yield


@contextmanager
def float32_default() -> Iterator[None]:
    """Run a block with float32 as torch's default dtype, and put the old one back.

    BoTorch's Sobol samples, temperatures and initial values are rounded to the default dtype, and in half precision not finite.
    """
    dtype = torch.get_default_dtype()
    if dtype == torch.float32:
        yield
        return
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)


@contextmanager
def generators_kept(device: torch.device) -> Iterator[None]:
    """Put the global generators back after a block: the CPU's, those of ``device``, and CUDA's if it is in use.

    What BoTorch draws with a seed of its own, it draws after ``torch.manual_seed``, which seeds every device's generator, and
    it puts back the CPU's alone.
    """
    # fork_rng would start a CUDA that is not in use yet.
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    kept: list[tuple[str, Sequence[int]]] = [("cuda", list(cuda))]  # the CPU's, too
    if device.type not in ("cpu", "cuda"):
        kept.append((device.type, [device.index or 0]))
    with ExitStack() as stack:
        for kind, indices in kept:
            stack.enter_context(torch.random.fork_rng(devices=indices, device_type=kind))
        yield


class _DrawsOnTheCPU(TorchFunctionMode):
    """Draw from the CPU's generator inside the block in place of another device's, and move the draws there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _DRAWS or kwargs.get("generator") is not None:
            return func(*args, **kwargs)
        tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        where = kwargs.get("device")
        if where is None:  # numbers alone are on the default device
            where = tensors[0].device if tensors else torch.get_default_device()
        if "device" in kwargs or not tensors:
            kwargs = {**kwargs, "device": "cpu"}
        drawn = func(
            *(x.cpu() if isinstance(x, Tensor) else x for x in args),
            **{name: x.cpu() if isinstance(x, Tensor) else x for name, x in kwargs.items()},
        )
        return args[0].copy_(drawn) if func in _IN_PLACE else drawn.to(where)


_IN_PLACE = {
    Tensor.normal_,
    Tensor.uniform_,
    Tensor.exponential_,
    Tensor.random_,
    Tensor.bernoulli_,
    Tensor.cauchy_,
    Tensor.log_normal_,
    Tensor.geometric_,
}
_DRAWS = {
    *_IN_PLACE,
    *(torch.rand, torch.randn, torch.randint, torch.randperm, torch.rand_like, torch.randn_like, torch.randint_like),
    *(torch.normal, torch.multinomial, torch.bernoulli, torch.poisson, torch.binomial, torch._standard_gamma),
    *(Tensor.multinomial, Tensor.bernoulli),
}
"""Torch's functions that take a generator, or draw from the global one."""
