"""The plan of a run as a value and as text, with the messages of a run over sharded arms."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.arms.prior import Sizes
from sparse_bo.planning.costs import bytes_text
from sparse_bo.policies import BBKB, BKB
from sparse_bo.sharding.group import HEADER_BYTES
from sparse_bo.validation import check_count


class Network(NamedTuple):
    """Speed of a network. Defaults: gloo over TCP on the loopback of one machine (``benchmarks/sharding.py``)."""

    latency: float = 1e-4
    """Seconds of one step of a collective."""
    bytes_per_second: float = 1e9
    """Bandwidth of a receiving rank."""


class Messages(NamedTuple):
    """Messages of one rank in one batch, on average."""

    collectives: int
    bytes_sent: int
    bytes_received: int
    seconds: float
    """Their duration on an idle network."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Forecast of a run: dictionary size and time are extrapolated from pilots, within a factor of about 2."""

    arms: int
    dims: int
    budget: int
    device: str
    dictionary_size: int
    """Points in the last dictionary."""
    batches: int
    batches_range: tuple[int, int]
    """Batches of the pilot objectives with the fewest and the most."""
    memory: Mapping[str, int]
    """Peak memory by purpose (bytes), in addition to the process's present memory."""
    available_bytes: int
    """Memory limit (bytes): the argument, or a share of the free memory."""
    seconds_per_sweep: float
    """Seconds of one resparsification: fit and sweep over all arms."""
    microseconds_per_pick: float
    """Time of all picks of a batch, divided by their number."""
    seconds: float
    """Seconds of the whole run, without the objective."""
    streamed: bool
    """Whether the arms are swept tile by tile, without stored vectors of their length."""
    notes: tuple[str, ...]
    """Changes that make the run fit, and limits that it exceeds."""
    fits: bool
    """Whether the run stays within the memory and time limits."""
    ranks: int = 1
    """Number of ranks; memory and sweeps are those of one."""
    messages: Messages | None = None
    """Upper bound on the messages of a batch, with several ranks."""
    policy: BBKB | BKB
    """The policy to run: the argument with these settings. Hyper-parameters that it learns are still learned."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Fields of the policy that the plan decides: ``memory_bytes``, ``sweep_dtype``, ``max_dictionary``."""
        return {name: getattr(self.policy, name) for name in ("memory_bytes", "sweep_dtype", "max_dictionary")}

    @property
    def memory_bytes(self) -> int:
        """Total peak memory (bytes), in addition to the process's present memory."""
        return sum(self.memory.values())

    def lines(self) -> dict[str, str]:
        """Return the plan as rows of a table: quantity and text."""
        low, high = self.batches_range
        precision = next(name for name, value in PRECISIONS.items() if value == self.policy.sweep_dtype)
        parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in self.memory.items() if size >= 2**20)
        lines = {
            "arms": f"{self.arms:,} x {self.dims}" + (", streamed" if self.streamed else ", in memory"),
            "evaluations": f"{self.budget:,} in about {self.batches:,} batches ({low:,} to {high:,} in the pilots)",
            "dictionary": f"about {self.dictionary_size:,} points",
            "memory": f"{bytes_text(self.memory_bytes)} of {bytes_text(self.available_bytes)} free"
            + (f" ({parts})" if parts else ""),
        }
        if (messages := self.messages) is not None:
            lines |= {
                "ranks": f"{self.ranks:,}; memory and sweeps are those of one, with {-(-self.arms // self.ranks):,} arms",
                "messages": f"{messages.collectives} collectives a batch; a rank sends at most "
                f"{bytes_text(messages.bytes_sent)} and receives {bytes_text(messages.bytes_received)}",
            }
        return lines | {
            "per sweep": seconds_text(self.seconds_per_sweep),
            "per pick": f"{self.microseconds_per_pick:.0f} µs",
            "in all": seconds_text(self.seconds) + ", without the objective",
            "settings": f"memory_bytes {self.policy.memory_bytes:,}, sweep in {precision}, "
            f"max_dictionary {self.policy.max_dictionary or 'none'}, on {self.device}",
        }


def messages_per_batch(
    ranks: int, *, dims: int, contenders: int = 2 * Sizes.gathered, batch: int = 1, network: Network | None = None
) -> Messages:
    """Return the messages of a batch over sharded arms: O(ranks + contenders · d + batch) bytes, O(1) collectives.

    An ask and a tell are one header each, the results a second message. A sweep ends in two exchanges: a few numbers in
    the header, then the contenders with their bounds and rows. A batch that sweeps again
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


def seconds_text(seconds: float) -> str:
    """Return a duration in milliseconds to hours."""
    if seconds < 0.1:
        return f"{1e3 * seconds:.1f} ms"
    if seconds < 120.0:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
