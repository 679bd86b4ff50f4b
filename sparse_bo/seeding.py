"""Reproducible sections around libraries that draw from torch's global generators."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MAX_SEED = 2**63 - 1


@contextmanager
def seeded(generator: torch.Generator) -> Iterator[None]:
    """Run a block with the global generators seeded from ``generator``, and leave them as they were.

    BoTorch's ``optimize_acqf``, its samplers and its restarts of a fit draw from the global generators and take no other.
    Inside the block these are seeded by one integer drawn from ``generator``; afterwards, also after an exception, they are
    put back. CUDA's generators are seeded too if CUDA is in use when the block starts.

    Args:
        generator: CPU generator; one draw.

    Raises:
        TypeError: If ``generator`` is not a :class:`torch.Generator`.
        ValueError: If it is not on the CPU.
    """
    if not isinstance(generator, torch.Generator):
        raise TypeError(f"expected a torch.Generator, got {type(generator).__name__}; use torch.Generator().manual_seed(0)")
    if generator.device.type != "cpu":
        raise ValueError(f"expected a CPU generator, got one on {generator.device}; use torch.Generator()")
    seed = int(torch.randint(_MAX_SEED, (), generator=generator))
    # torch.manual_seed would also seed a CUDA that is not in use yet, later and for good.
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield
