"""Communication of a run over sharded arms: messages and bytes per batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sparse_bo.arms.contenders import GATHERED
from sparse_bo.sharding.group import HEADER_BYTES
from sparse_bo.validation import check_count


@dataclass(frozen=True)
class Network:
    """Speed of a network. Defaults: gloo over TCP on the loopback of one machine (``benchmarks/sharding.py``)."""

    latency: float = 1e-4
    """Seconds of one step of a collective."""
    bytes_per_second: float = 1e9
    """Bandwidth of a receiving rank."""


@dataclass(frozen=True)
class Messages:
    """Messages of one rank in one batch."""

    collectives: int
    """Number of collective calls, a constant."""
    bytes_sent: int
    """Bytes that a rank sends, on average."""
    bytes_received: int
    """Bytes that a rank receives from all others."""
    seconds: float
    """Their duration on an idle network."""


def messages_per_batch(
    ranks: int, *, dims: int, contenders: int = 2 * GATHERED, batch: int = 1, network: Network | None = None
) -> Messages:
    """Return the messages of a batch over sharded arms: O(ranks + contenders · d + batch) bytes, O(1) collectives.

    An ask and a tell are one header each, the results a second message. A sweep ends in two exchanges: a few numbers and order
    statistics in the header, then the contenders with their bounds and rows. A batch that sweeps again
    (:class:`sparse_bo.arms.contenders.Contenders.floor`) adds one sweep and three collectives each time.

    Args:
        ranks: W ≥ 1; a single rank sends nothing.
        dims: Inputs per arm.
        contenders: Contenders of all ranks together; default: the maximum.
        batch: Evaluations in the batch.
        network: The network between the ranks.
    """
    check_count("ranks", ranks)
    if ranks == 1:
        return Messages(0, 0, 0, 0.0)
    link = network or Network()
    exchanges = 4  # ask, tell, the highest lower bounds, the contenders
    collectives = exchanges + 2  # a second collective for the results and for the contenders' rows
    rows = contenders * (2 * 8 + 8 * dims) + ranks * 1024  # 1,024 bytes of pickle around the arrays of a rank
    results = 20 * batch  # ticket and value, pickled
    received = ranks * exchanges * HEADER_BYTES + rows + results
    sent = exchanges * HEADER_BYTES + math.ceil(rows / ranks) + results // ranks
    # a ring passes W − 1 blocks on, one after the other
    seconds = collectives * (ranks - 1) * link.latency + received / link.bytes_per_second
    return Messages(collectives, sent, received, seconds)
