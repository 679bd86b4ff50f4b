"""A small run whose course depends on nothing but what has been recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gpytorch
import torch

from sparse_bo import BBKB, AskTell
from sparse_bo.errors import PendingBatchError
from sparse_bo.journal.format import Record, frame, header, read_header, scan

BUDGET = 120


def arms(a: int = 40) -> torch.Tensor:
    return torch.rand(a, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def policy(**changes) -> BBKB:
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.4
    return BBKB(**{"covar_module": kernel, "regularization": 0.05, "ratio_threshold": 3.0, **changes})


def value(ticket: int, index: int) -> float:
    """A noisy evaluation that comes out the same whoever makes it; every 17th fails."""
    if ticket % 17 == 5:
        return float("nan")
    x = arms()[index]
    return float(torch.sin(5.0 * x[0]) + torch.cos(3.0 * x[1])) + 0.1 * ((ticket * 7919) % 101 / 50.0 - 1.0)


def step(loop: AskTell, *, budget: int = BUDGET) -> tuple[int, float] | None:
    """Ask, or tell one result; return what was told. Which of them depends on the loop alone."""
    pending = loop.pending
    if loop.asked < budget and len(pending) < 6:
        try:
            loop.ask(min(1 + loop.asked % 3, budget - loop.asked))
        except PendingBatchError:
            pending = loop.pending
        else:
            return None
    ticket = pending[(7 * loop.asked) % len(pending)]
    told = value(ticket, int(loop.reissue([ticket]).indices))
    loop.tell([ticket], [told])
    return ticket, told


def killed(loop: AskTell, path: Path) -> None:
    """Leave a journal as if the process of the loop had been killed now."""
    data = path.read_bytes()
    loop.close()
    path.write_bytes(data)


def finished(loop: AskTell, *, budget: int = BUDGET) -> AskTell:
    while loop.asked < budget or loop.pending:
        step(loop, budget=budget)
    return loop


def records(data: bytes) -> list[Record]:
    """Return the records in the bytes of a journal."""
    _, _, start = read_header(data)
    return list(scan(data, start))


def rewritten(data: bytes, change: Callable[[bytes, bytes], tuple[bytes, bytes] | None]) -> bytes:
    """Return a journal whose records are changed: kind and payload to kind and payload, or ``None`` to leave a record out."""
    made, end = header("0.1.0")
    for record in records(data):
        changed = change(record.kind, bytes(record.payload))
        if changed is not None:
            part, end = frame(*changed, end)
            made += part
    return made
