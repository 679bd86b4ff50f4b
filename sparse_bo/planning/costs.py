"""Seconds, bytes and messages of a run, from operations timed on the machine at hand, and the plan that states them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from sparse_bo.arms import ArmPosterior, ArmPrior, KernelColumns, arm_posterior, fit_arms, pick_batch
from sparse_bo.arms.greedy_picks import greedy_picks
from sparse_bo.arms.prior import Sizes
from sparse_bo.arms.sweep import PRECISIONS
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.lazy import ArmSet, LazyArms, PartOfArms
from sparse_bo.gp.objective_prior import KnownPrior
from sparse_bo.gp.observations import add_observations, no_observations
from sparse_bo.policies import BBKB, BKB
from sparse_bo.policies.bandits.policy import UCBPolicy
from sparse_bo.sharding.group import HEADER_BYTES


@dataclass(frozen=True)
class Costs:
    """Seconds of the operations over ``a`` arms: ``fixed + per_arm · a`` for a sweep, and ``per_arm · a`` for the others."""

    sweep_fixed: float
    sweep_per_arm: float
    """Of the sweep of a resparsification with cached kernel columns."""
    pick_per_arm: float
    """Of the choice of a batch's blocks."""
    column_per_arm: float
    """Of one kernel column evaluated for the first time."""


def seconds_of(operation: Callable[[], object], *, device: torch.device, repeats: int = 3) -> float:
    """Return the seconds of an operation on a device: the median of ``repeats`` after a first call."""
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        operation()
        if device.type != "cpu":
            torch.get_device_module(device).synchronize(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def seconds_per_pick() -> float:
    """Return the seconds of one pick inside a block, measured."""
    block = Sizes().block
    root = torch.randn(block, block, generator=torch.Generator().manual_seed(0), device="cpu", dtype=torch.float64)
    covariance, zeros, picks = (root @ root.T / block).numpy(), np.zeros(block), 500

    def pick() -> None:
        bounds = {"width": 1.0, "spent": 0.0, "allowance": 1.0, "floor": -1.0, "unit": 1e-12, "low": 1e-12}
        greedy_picks(zeros, covariance, zeros, costs=zeros, max_picks=picks, **bounds)

    return seconds_of(pick, device=torch.device("cpu"), repeats=2) / picks


def timed_rows(a: int, *, m: int, memory_bytes: int, device: torch.device) -> int:
    """Return the number of arms to time a sweep over: enough for its blocks to exceed the processor's cache, as in the run."""
    if device.type != "cpu":
        return min(a, 2**20)
    return min(a, 2**18, max(2**14, memory_bytes // (16 * max(m, 1))))


def measure(arms: ArmSet, policy: UCBPolicy, *, m: int, distinct: int, generator: torch.Generator) -> Costs:
    """Time a resparsification and a batch over two numbers of arms; ``m`` dictionary points, ``distinct`` arms pulled."""
    most = timed_rows(arms.shape[0], m=m, memory_bytes=policy.sweep_budget(arms.device), device=arms.device)
    fewer = max(most // 8, 1)
    few, many = (_operations(arms, policy, rows, m, distinct, generator) for rows in (fewer, most))
    slopes = {name: max(many[name] - few[name], 0.0) / (most - fewer) if most > 8 else 0.0 for name in ("warm", "pick")}
    return Costs(
        sweep_fixed=max(many["warm"] - slopes["warm"] * most, 0.0),
        sweep_per_arm=slopes["warm"],
        pick_per_arm=slopes["pick"],
        column_per_arm=max(many["cold"] - many["warm"], 0.0) / (many["m"] * most),
    )


def _operations(
    arms: ArmSet, policy: UCBPolicy, rows: int, m: int, distinct: int, generator: torch.Generator
) -> dict[str, float]:
    """Return the seconds of a sweep without (``cold``) and with cached columns, and of a pick, over the first rows."""
    assert policy.covar_module is not None
    assert policy.regularization is not None
    some = PartOfArms(arms, 0, rows) if isinstance(arms, LazyArms) else arms[:rows]
    memory_bytes, stop_rule = policy.sweep_budget(arms.device), policy.parts.stop_rule
    known = KnownPrior(policy.covar_module, policy.prior_mean or 0.0, policy.regularization)
    prior = ArmPrior.over(some, known, sweep_dtype=policy.sweep_dtype, memory_bytes=memory_bytes)
    n = min(max(distinct, m), rows)
    indices = torch.randperm(rows, generator=generator, device="cpu")[:n].sort().values.to(arms.device)
    y = torch.randn(n, generator=generator, device="cpu", dtype=torch.float64).to(arms.device)
    observations = add_observations(no_observations(some), some, indices, y)
    chosen = indices[: min(m, n)]
    points = some[chosen]
    dictionary = Dictionary(points, torch.ones_like(points[:, 0]), chosen)

    def resparsified(columns: KernelColumns) -> tuple[ArmPosterior, KernelColumns]:
        fitted, grown = fit_arms(prior, observations, dictionary, columns)
        return arm_posterior(fitted, width=2.0, stop_rule=stop_rule), grown

    cold = KernelColumns(memory_bytes)
    posterior, warm = resparsified(cold)
    timed = {
        "cold": lambda: resparsified(cold),
        "warm": lambda: resparsified(warm),
        "pick": lambda: pick_batch(posterior, width=2.0, stop_rule=stop_rule, in_batch=policy.parts.in_batch, max_q=1),
    }
    return {"m": float(len(chosen)), **{name: seconds_of(one, device=arms.device) for name, one in timed.items()}}


def available_bytes(device: torch.device, *, control_group: str | Path = "/sys/fs/cgroup") -> int:
    """Return the free memory in bytes: of a GPU from its driver, else of the machine and of this control group.

    ``control_group`` is the folder of the limits (https://docs.kernel.org/admin-guide/cgroup-v2.html).
    """
    if device.type != "cpu":
        return int(torch.get_device_module(device).mem_get_info(device)[0])
    free = [int(psutil.virtual_memory().available)]
    limit, used, kinds = (Path(control_group) / f"memory.{name}" for name in ("max", "current", "stat"))
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        # the usage includes cached files, which are evicted on demand
        cached = dict(line.split() for line in kinds.read_text().splitlines()).get("inactive_file", 0) if kinds.exists() else 0
        free.append(int(limit.read_text()) - int(used.read_text()) + int(cached))
    return min(free)


def check_room(needed: int, name: str) -> None:
    """Raise a ``MemoryError`` unless so many bytes are free in the machine's memory for the use ``name``."""
    free = available_bytes(torch.device("cpu"))
    if needed > free:
        raise MemoryError(f"{name} needs {bytes_text(needed)}, and {bytes_text(free)} are free; choose fewer")


def bytes_text(size: float) -> str:
    """Return a number of bytes in the largest unit that fits."""
    unit = min(int(math.log2(max(size, 1.0)) // 10), 3)
    amount = size / 1024**unit
    digits = 1 if unit and amount < 100 else 0
    return f"{amount:,.{digits}f} {('bytes', 'KiB', 'MiB', 'GiB')[unit]}"


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
        batches = f"{self.batches:,} batch{'es' * (self.batches != 1)}"
        precision = next(name for name, value in PRECISIONS.items() if value == self.policy.sweep_dtype)
        parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in self.memory.items() if size >= 2**20)
        lines = {
            "arms": f"{self.arms:,} x {self.dims}" + (", streamed" if self.streamed else ", in memory"),
            "evaluations": f"{self.budget:,} in about {batches} ({low:,} to {high:,} in the pilots)",
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
