"""What several ranks cost a run over arms in shards: messages and bytes per batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparse_bo.arms.gathering import GATHERED
from sparse_bo.sharding.group import HEADER_BYTES
from sparse_bo.validation import check_count

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
    rows = contenders * (2 * 8 + 8 * dims) + ranks * PICKLED
    received = ranks * headers + rows + batch * BYTES_PER_RESULT
    sent = headers + math.ceil(rows / ranks) + batch * BYTES_PER_RESULT // ranks
    # A ring passes W − 1 blocks on, one after the other.
    seconds = collectives * (ranks - 1) * link.latency + received / link.bytes_per_second
    return Messages(collectives, sent, received, seconds)
