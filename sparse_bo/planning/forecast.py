"""The plan of a run: its cost, and settings that make it fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from sparse_bo.arms.prior import CONTENDER_BYTES, Sizes, capacity
from sparse_bo.arms.sweep import DEVICE_TILE_BYTES, block_count
from sparse_bo.domains import Arms
from sparse_bo.domains.lazy import ArmSet, LazyArms, ProductGrid
from sparse_bo.domains.sharded import in_memory
from sparse_bo.kernels import GPYTORCH_BLOCKS, CovarianceFunction
from sparse_bo.kernels.closed_forms import structure_of
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, DEVICE_SHARE, LEAST_MEMORY_BYTES
from sparse_bo.planning import costs
from sparse_bo.planning.costs import Plan, bytes_text, messages_per_batch
from sparse_bo.planning.pilot import PilotForecast, run_pilots
from sparse_bo.policies import BBKB, BKB
from sparse_bo.policies.bandits.policy import UCBPolicy
from sparse_bo.runs.arguments import ArmsLike, check_budget
from sparse_bo.runs.inputs import tensor_of
from sparse_bo.validation import check_count, check_device, check_positive


def plan(
    arms: int | ArmsLike,
    dims: int | None = None,
    *,
    budget: int,
    kernel: Kernel | None = None,
    policy: UCBPolicy | None = None,
    device: str | torch.device | None = None,
    memory: int | None = None,
    seconds: float | None = None,
    pilot_seconds: float = 20.0,
    ranks: int = 1,
    seed: int = 0,
) -> Plan:
    """Forecast a run of BBKB or BKB, and choose settings that make it fit into memory and time.

    Dictionary size and batches come from pilots: the policy itself on prior draws over a sample of at most 2,048 arms. The
    seconds of a sweep, a kernel column and a pick are measured on this machine with that dictionary size. If the run would not
    fit into memory, tiles are made smaller, then the dictionary is capped; for the time, the dictionary is capped. ``notes``
    lists every such step. The precision of the sweep does not change: with dictionaries of some hundred points the bounds of a
    float32 sweep are wider than the leverages, and nearly every arm is computed again in float64. Takes up to about
    ``pilot_seconds`` and a few sweeps over at most 2¹⁸ arms (on a GPU 2²⁰).

    Args:
        arms: The arm set, as :func:`sparse_bo.maximize` takes it, or the number of arms (uniform in the unit cube).
        dims: Inputs per arm if ``arms`` is a number.
        budget: Number of evaluations.
        kernel: Default: that of ``policy``, else an RBF kernel with the mode of BoTorch's prior in the unit cube as
            lengthscale, ``0.2 √d`` (a learned kernel may differ: plan again with it).
        policy: Default ``BBKB(covar_module=kernel, regularization=0.01)``, without ``kernel`` one that learns both. If it
            learns its kernel or noise, the plan assumes the default kernel and 0.01.
        device: Default: that of the arms, else the CPU.
        memory: Memory limit in bytes; default: 80 % of the free memory.
        seconds: Time limit; default: none.
        pilot_seconds: Time of all pilots together.
        ranks: Number of ranks of the arms (:class:`sparse_bo.domains.ShardedArms`): memory and sweeps are those of one rank
            with its shard, and the plan includes the messages between ranks.
        seed: Seed of the pilots.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If a number is not positive, ``dims`` is missing or contradicts the arms, the device does not exist, or
            the policy is neither BBKB nor BKB.
        MemoryError: If the pilots do not fit into memory.
    """
    check_budget(budget, minimum=1)
    if not isinstance(arms, Integral):
        arms = tensor_of("arms", arms)
    if not isinstance(arms, Integral | Tensor | LazyArms):
        raise TypeError(
            f"expected arms to be their number (an integer), a tensor, an array, a list or lazy arms, got {type(arms).__name__}"
        )
    own = arms.device if isinstance(arms, Tensor | LazyArms) else "cpu"
    where = check_device("device", own if device is None else device)
    if isinstance(arms, Tensor | LazyArms):
        points: ArmSet = Arms(arms).points.to(where).double()
        largest = float(torch.maximum(points.amax(dim=0).abs(), points.amin(dim=0).abs()).max())
        if largest > 1e150:
            raise ValueError(f"expected arms within ±1e150, whose squared distances are finite, got {largest:.3g}; scale them")
        count = len(arms)
        if dims is not None and dims != arms.shape[1]:
            raise ValueError(f"expected dims={arms.shape[1]}, the width of the arms, got {dims}; drop dims=")
    else:
        if dims is None:
            raise ValueError("expected dims= (inputs per arm) where arms= is a number, got None; pass dims=")
        count, d = check_count("arms", arms), check_count("dims", dims)
        axis, pilots = 40 * math.ceil(count ** (1.0 / d)), 2 * 8 * 2048  # bytes of an input in the grid and in the pilots
        costs.check_room(d * (axis + pilots), f"trying out {arms} arms of {dims} inputs")
        # A grid of at least as many arms in the unit cube, which takes no memory, for timing and sampling.
        per_axis = max(math.ceil(count ** (1.0 / d)), 1)
        per_axis += per_axis**d < count
        varied = next(axes for axes in range(d + 1) if per_axis**axes >= count)  # beyond, 2^d can be more than can be counted
        bounds = torch.tensor([[0.0] * d, [1.0] * d], dtype=torch.float64, device=where)
        points = ProductGrid.linspace(bounds, [per_axis] * varied + [1] * (d - varied))
    if not isinstance(policy, BBKB | BKB | None):
        raise ValueError(f"expected policy to be a BBKB or a BKB, got {type(policy).__name__}; other policies have no plan")
    if policy is None:  # with a kernel it has other defaults than one that learns
        chosen: BBKB | BKB = BBKB() if kernel is None else BBKB(covar_module=kernel, regularization=0.01)
    else:
        chosen = policy if kernel is None else replace(policy, covar_module=kernel)
    complete = chosen
    if chosen.covar_module is None:
        complete = replace(complete, covar_module=default_kernel(points))
    if chosen.regularization is None:
        complete = replace(complete, regularization=0.01)
    available = check_count("memory", memory) if memory is not None else int(0.8 * costs.available_bytes(where))
    limit = math.inf if seconds is None else check_positive("seconds", seconds)
    share = -(-count // check_count("ranks", ranks))
    run = _Run(points, share, isinstance(arms, Integral), ranks > 1, budget, available, count)
    generator = torch.Generator().manual_seed(check_count("seed", seed, minimum=0))
    made = _planned(run, complete, limit, check_positive("pilot_seconds", pilot_seconds), generator)
    made = replace(made, arms=count, policy=replace(chosen, **made.settings))
    if ranks == 1:
        return made
    messages = messages_per_batch(ranks, dims=made.dims, batch=math.ceil(budget / made.batches))
    made = replace(made, ranks=ranks, messages=messages, seconds=made.seconds + made.batches * messages.seconds)
    if not made.seconds > limit or not made.fits:
        return made
    return replace(made, fits=False, notes=(*made.notes, f"does NOT fit: {limit:g} s are too short with these messages"))


def default_kernel(arms: ArmSet) -> Kernel:
    """Return an RBF kernel with a lengthscale per column, in proportion to its range."""
    with torch.device("cpu"):  # not the user's default device
        kernel = RBFKernel(ard_num_dims=arms.shape[1]).double()
    ranges = (arms.amax(dim=0) - arms.amin(dim=0)).cpu()
    # The mode of BoTorch's prior on lengthscales in the unit cube (Hvarfner et al. 2024): exp(√2 + log(d)/2 − 3).
    kernel.lengthscale = torch.where(ranges > 0, ranges, 1.0) * math.exp(math.sqrt(2.0) - 3.0) * arms.shape[1] ** 0.5
    return kernel


@dataclass(frozen=True)
class _Run:
    """The arms of one rank, and its limits."""

    arms: ArmSet
    """The set, or a grid of at least as many arms."""
    count: int
    uniform: bool
    """Whether ``arms`` stands for uniform arms; else it is the set itself, in memory or lazy."""
    sharded: bool
    """Whether each rank loads its share of the arms."""
    budget: int
    available: int
    total: int
    """Arms of all ranks, of which the policy makes its picks."""

    @property
    def lazy(self) -> bool:
        return isinstance(self.arms, LazyArms) and not self.uniform and not self.sharded

    def sample(self, size: int, generator: torch.Generator) -> Tensor:
        """Return ``size`` random arms, fewer if one of a very large set is drawn twice."""
        a, d = self.arms.shape
        if self.uniform:
            return torch.rand(size, d, generator=generator, device="cpu", dtype=torch.float64).to(self.arms.device)
        if size == a:
            return self.arms[:]
        if a > 2**24:
            drawn = torch.randint(a, (size,), generator=generator, device="cpu")
        else:
            drawn = torch.randperm(a, generator=generator, device="cpu")[:size]
        return self.arms[torch.unique(drawn).to(self.arms.device)]

    def streams(self, policy: BBKB | BKB) -> bool:
        """Return whether the arms are swept tile by tile."""
        memory_bytes = policy.sweep_budget(self.arms.device)
        return self.lazy and isinstance(in_memory(self.arms, memory_bytes=memory_bytes), LazyArms)

    def memory(self, policy: BBKB | BKB, piloted: PilotForecast) -> dict[str, int]:
        """Return the peak memory by purpose (bytes); the history is in host memory, and counted on the CPU only."""
        size = min(piloted.dictionary_size, policy.max_dictionary or math.inf)
        a, d, m, n = self.count, self.arms.shape[1], math.ceil(size), math.ceil(piloted.distinct)
        memory_bytes, on_cpu = policy.sweep_budget(self.arms.device), self.arms.device.type == "cpu"
        assert policy.covar_module is not None
        covariance = CovarianceFunction(policy.covar_module, structure_of(policy.covar_module))
        blocks = block_count(covariance)
        tile = min(memory_bytes, max((2**22 if on_cpu else DEVICE_TILE_BYTES) * blocks, 8 * m * blocks * 1024))
        rest = {"model": 8 * (4 * n * m + 12 * m * m)}
        if on_cpu:
            # Bytes of an evaluation and of a batch, measured on runs of BBKB and random search.
            rest["history"] = 115 * self.budget + 1100 * math.ceil(piloted.batches)
        if self.streams(policy):
            contenders = CONTENDER_BYTES * min(capacity(memory_bytes), a)
            return {"tiles": tile + 4 * 8 * min(a, Sizes().tile_rows) * (d + 4), "contenders": contenders, **rest}
        # Ten numbers per arm: prior variance, moments of the old and the new posterior, scores, temporaries.
        loaded = not (self.uniform or self.sharded or self.lazy)
        items = {"arms": 0 if loaded else 8 * a * d, "vectors": 8 * 10 * a, "tiles": tile, **rest}
        if 8 * m * a <= memory_bytes and not covariance.cheap(self.arms[:2].double()):
            # Columns of all arms ever in a dictionary; old and new storage at once while it grows.
            items["columns"] = min(int(1.5 * 8 * a * math.ceil(1.5 * size)), 2 * memory_bytes)
        return items


def _planned(run: _Run, policy: BBKB | BKB, seconds: float, pilot_seconds: float, generator: torch.Generator) -> Plan:
    """Return the plan of a policy with a complete prior on one rank: the pilots, then settings that fit."""
    device, notes = run.arms.device, list[str]()
    if policy.memory_bytes is None and device.type == "cpu":
        policy = replace(policy, memory_bytes=DEFAULT_MEMORY_BYTES)
    elif policy.memory_bytes is None:
        policy = replace(policy, memory_bytes=max(int(DEVICE_SHARE * run.available), LEAST_MEMORY_BYTES))
        notes.append(f"a share of the GPU's memory: memory_bytes set to {bytes_text(policy.sweep_budget(device))}")
    per_pick = costs.seconds_per_pick()
    piloted = run_pilots(
        lambda size: run.sample(size, generator),
        policy,
        arms=run.total,
        budget=run.budget,
        seconds=pilot_seconds,
        seconds_per_pick=per_pick,
        generator=generator,
    )
    size, start = math.ceil(piloted.dictionary_size), policy.sweep_budget(device)

    def least_tiles(m: int) -> int:
        return max(LEAST_MEMORY_BYTES, 64 * GPYTORCH_BLOCKS * 8 * m)

    def too_large() -> bool:
        return sum(run.memory(policy, piloted).values()) > run.available

    tiles = start
    while too_large() and tiles // 2 >= least_tiles(size):
        tiles //= 2
        policy = replace(policy, memory_bytes=tiles)
    if tiles != start:
        notes.append(f"smaller tiles: memory_bytes lowered from {bytes_text(start)} to {bytes_text(tiles)}")
    cap = size
    while too_large() and cap > 64:
        cap = max(cap // 2, 64)
        policy = replace(policy, max_dictionary=cap, memory_bytes=min(tiles, least_tiles(cap)))
    fits = not too_large()
    if not fits:
        advice = "free memory" if run.lazy else "arms in a file (MemmapArms, --arms-file) or a ProductGrid (--grid) need less"
        notes.append(f"does NOT fit: {bytes_text(run.available)} may be used; {advice}")
    timed, mean_size = run.arms, round(piloted.mean_size)
    if not run.streams(policy):
        rows = costs.timed_rows(run.count, m=mean_size, memory_bytes=policy.sweep_budget(device), device=device)
        timed = run.sample(rows, generator)

    def measured(policy: BBKB | BKB) -> Plan:
        m = max(min(mean_size, policy.max_dictionary or mean_size), 1)
        found = costs.measure(timed, policy, m=m, distinct=math.ceil(piloted.distinct), generator=generator)
        return _plan(run, policy, piloted, found, per_pick)

    made = measured(policy)
    while made.seconds > seconds and (policy.max_dictionary or size) > 64:
        cap = max((policy.max_dictionary or size) // 2, 64)
        policy = replace(policy, max_dictionary=cap)
        made = measured(policy)
    if made.seconds > seconds:
        fits = False
        notes.append(f"does NOT fit: {seconds:g} s are too short for {run.count:,} arms")
    if cap != size:
        notes.append(f"smaller dictionary: capped at {cap} of about {size} points, so variances are less accurate")
    return replace(made, notes=tuple(notes), fits=fits)


def _plan(run: _Run, policy: BBKB | BKB, piloted: PilotForecast, measured: costs.Costs, per_pick: float) -> Plan:
    a, size, batches = run.count, min(piloted.dictionary_size, policy.max_dictionary or math.inf), max(piloted.batches, 1.0)
    items, streamed = run.memory(policy, piloted), run.streams(policy)
    column = size * measured.column_per_arm * a
    cached = "columns" in items
    # without cached columns, every sweep in memory evaluates its kernel block again
    growing = measured.sweep_per_arm * a + (0.0 if cached or streamed else column)
    picking = per_pick * run.budget + batches * measured.pick_per_arm * a
    low, high = piloted.batches_range
    return Plan(
        arms=a,
        dims=run.arms.shape[1],
        budget=run.budget,
        device=str(run.arms.device),
        dictionary_size=round(size),
        batches=round(batches),
        batches_range=(round(low), round(high)),
        memory=items,
        available_bytes=run.available,
        seconds_per_sweep=measured.sweep_fixed + growing,
        microseconds_per_pick=1e6 * picking / run.budget,
        seconds=batches * (piloted.overhead + growing) + (1.5 * column if cached else 0.0) + picking,
        streamed=streamed,
        notes=(),
        fits=True,
        policy=policy,
    )
