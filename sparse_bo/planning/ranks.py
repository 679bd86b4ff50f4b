"""What several ranks cost a run over arms in shards: messages and bytes per batch, and the time that the slowest rank takes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from sparse_bo.arms.gathering import GATHERED
from sparse_bo.sharding.group import HEADER_BYTES
from sparse_bo.validation import check_count, check_number, check_positive

EVENTS = 2
"""Of a batch: an ask and a tell."""
LONG_MESSAGES = 2
"""Second collectives of a batch: the results, and the contenders with their rows."""
GATHERINGS = 2
"""Exchanges of a sweep: the highest lower bounds with a few numbers, then the contenders."""
BYTES_PER_RESULT = 20
"""Of a told result: its ticket and its value, pickled."""
PICKLED = 1024
"""Around the arrays of a message."""


@dataclass(frozen=True)
class Network:
    """How fast ranks talk. The defaults are gloo over TCP on the loopback of one machine (``benchmarks/sharding.py``)."""

    latency: float = 1e-4
    """Seconds of one step of a collective."""
    bytes_per_second: float = 1e9
    """That a rank receives."""


@dataclass(frozen=True)
class Messages:
    """What one rank sends and waits for in one batch."""

    collectives: int
    """Calls in which all ranks take part: a number that depends on nothing."""
    bytes_sent: int
    """By a rank, on the average."""
    bytes_received: int
    """By a rank, from all others."""
    seconds: float
    """That they take, on an idle network."""


def messages_per_batch(
    ranks: int, *, dims: int, contenders: int = 2 * GATHERED, batch: int = 1, network: Network | None = None
) -> Messages:
    """Return what a batch over arms in shards costs in messages: O(ranks + contenders · d + batch) bytes, O(1) collectives.

    On paper: an ask and a tell are one header each, results a second message; a sweep ends in two exchanges, of a few numbers
    and order statistics in the header, and of the contenders with their bounds and rows. A batch in which scores have to be
    swept again (:class:`sparse_bo.arms.contenders.Contenders.floor`) adds one sweep and three collectives each time.

    Args:
        ranks: W ≥ 1; one sends nothing.
        dims: Inputs per arm.
        contenders: Of all ranks together; default: the most that are ever gathered.
        batch: Evaluations in it.
        network: Between the ranks.
    """
    check_count("ranks", ranks)
    if ranks == 1:
        return Messages(0, 0, 0, 0.0)
    link = network or Network()
    collectives = EVENTS + GATHERINGS + LONG_MESSAGES
    headers = (EVENTS + GATHERINGS) * HEADER_BYTES
    rows = contenders * (3 * 8 + 8 * dims) + ranks * PICKLED
    received = ranks * headers + rows + batch * BYTES_PER_RESULT
    sent = headers + math.ceil(rows / ranks) + batch * BYTES_PER_RESULT // ranks
    # A ring passes W − 1 blocks on, one after the other.
    seconds = collectives * (ranks - 1) * link.latency + received / link.bytes_per_second
    return Messages(collectives, sent, received, seconds)


def batch_seconds(
    ranks: int,
    *,
    sweep_seconds: float,
    message_seconds: float,
    jitter: float,
    stall_probability: float,
    stall_seconds: float,
    batches: int,
    generator: torch.Generator,
) -> Tensor:
    """Simulate batches in which all wait for the slowest: return the seconds of each, ``batches``. O(batches · ranks).

    A rank's sweep takes ``sweep_seconds · exp(jitter · N(0, 1) − jitter²/2)``, and with ``stall_probability`` a stall of
    ``stall_seconds`` more (a page fault, a garbage collection, another job's burst). Draws ``2 · batches · ranks`` numbers.

    Args:
        ranks: W.
        sweep_seconds: Mean of a rank's sweep.
        message_seconds: Of the messages of a batch.
        jitter: Standard deviation of the logarithm of a sweep's time, ≥ 0.
        stall_probability: Of a rank and batch, in [0, 1].
        stall_seconds: Of a stall.
        batches: To simulate.
        generator: CPU generator.

    Raises:
        ValueError: If a number is out of range.
    """
    check_count("ranks", ranks)
    check_positive("sweep_seconds", sweep_seconds)
    if check_number("jitter", jitter) < 0.0 or not 0.0 <= check_number("stall_probability", stall_probability) <= 1.0:
        raise ValueError(f"expected jitter >= 0 and stall_probability in [0, 1], got {jitter} and {stall_probability}")
    normal = torch.randn(batches, ranks, generator=generator, device="cpu", dtype=torch.float64)
    stalls = torch.rand(batches, ranks, generator=generator, device="cpu", dtype=torch.float64) < stall_probability
    sweeps = sweep_seconds * (jitter * normal - 0.5 * jitter**2).exp() + stall_seconds * stalls
    return sweeps.amax(dim=1) + message_seconds
