"""The plan of a run as a value and as text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.planning.ranks import Messages
from sparse_bo.policies.bandits.policy import UCBPolicy


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
    settings: Mapping[str, Any]
    """Fields of the policy that the plan decides: ``memory_bytes``, ``sweep_dtype``, ``max_dictionary``."""
    notes: tuple[str, ...]
    """Changes that make the run fit, and limits that it exceeds."""
    fits: bool
    """Whether the run stays within the memory and time limits."""
    ranks: int = 1
    """Number of ranks; memory and sweeps are those of one."""
    messages: Messages | None = None
    """Upper bound on the messages of a batch, with several ranks."""
    policy: UCBPolicy
    """The policy to run: the argument with these settings. Hyper-parameters that it learns are still learned."""

    @property
    def memory_bytes(self) -> int:
        """Total peak memory (bytes), in addition to the process's present memory."""
        return sum(self.memory.values())

    def lines(self) -> dict[str, str]:
        """Return the plan as rows of a table: quantity and text."""
        low, high = self.batches_range
        precision = next(name for name, value in PRECISIONS.items() if value == self.settings["sweep_dtype"])
        parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in self.memory.items() if size >= 2**20)
        return {
            "arms": f"{self.arms:,} x {self.dims}" + (", streamed" if self.streamed else ", in memory"),
            "evaluations": f"{self.budget:,} in about {self.batches:,} batches ({low:,} to {high:,} in the pilots)",
            "dictionary": f"about {self.dictionary_size:,} points",
            "memory": f"{bytes_text(self.memory_bytes)} of {bytes_text(self.available_bytes)} free"
            + (f" ({parts})" if parts else ""),
            **self._of_ranks(),
            "per sweep": seconds_text(self.seconds_per_sweep),
            "per pick": f"{self.microseconds_per_pick:.0f} µs",
            "in all": seconds_text(self.seconds) + ", without the objective",
            "settings": f"memory_bytes {self.settings['memory_bytes']:,}, sweep in {precision}, "
            f"max_dictionary {self.settings['max_dictionary'] or 'none'}, on {self.device}",
        }

    def _of_ranks(self) -> dict[str, str]:
        messages = self.messages
        if messages is None:
            return {}
        return {
            "ranks": f"{self.ranks:,}; memory and sweeps are those of one, with {-(-self.arms // self.ranks):,} arms",
            "messages": f"{messages.collectives} collectives a batch; a rank sends at most {bytes_text(messages.bytes_sent)} "
            f"and receives {bytes_text(messages.bytes_received)}",
        }


def bytes_text(size: float) -> str:
    """Return a number of bytes in the largest unit that fits."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            return f"{size:,.0f} {unit}" if size >= 100 or unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError


def seconds_text(seconds: float) -> str:
    """Return a duration in milliseconds to hours."""
    if seconds < 0.1:
        return f"{1e3 * seconds:.1f} ms"
    if seconds < 120.0:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
