"""The plan of a run: its cost, and settings that make it fit."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from gpytorch.kernels import Kernel, RBFKernel
from torch import Tensor

from sparse_bo.arms.sweep import block_count
from sparse_bo.domains import Arms
from sparse_bo.domains.lazy import ArmSet, LazyArms, ProductGrid
from sparse_bo.domains.sharded import in_memory
from sparse_bo.kernels import CovarianceFunction
from sparse_bo.kernels.structure import structure_of
from sparse_bo.linalg.chunking import DEFAULT_MEMORY_BYTES, DEVICE_SHARE
from sparse_bo.planning import costs
from sparse_bo.planning.costs import Costs
from sparse_bo.planning.pilot import PilotForecast, run_pilots
from sparse_bo.planning.plans import Plan, bytes_text, messages_per_batch
from sparse_bo.policies import BBKB, BKB
from sparse_bo.policies.bandits.policy import UCBPolicy
from sparse_bo.validation import check_count, check_positive

LEAST_BYTES = 2**20
"""Smallest memory budget of a sweep."""


def plan(
    arms: int | ArmSet,
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
        arms: The arm set, or the number of arms (uniform in the unit cube).
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
    """
    request = _request(arms, dims, budget, kernel, policy, device, memory, seconds)
    whole = request.count
    if check_count("ranks", ranks) > 1:
        request = replace(request, count=math.ceil(whole / ranks), loaded=False)
    generator = torch.Generator().manual_seed(check_count("seed", seed, minimum=0))
    fitted, notes = _with_sweep_budget(request)
    piloted, per_pick = _piloted(request, fitted, check_positive("pilot_seconds", pilot_seconds), generator)
    made = _fit_time(request, *_fit_memory(request, fitted, piloted, notes), piloted, per_pick, generator)
    return made if ranks == 1 else _on_ranks(made, ranks, whole)


def _on_ranks(made: Plan, ranks: int, arms: int) -> Plan:
    """Return the plan of a run over all ranks from the plan of one."""
    messages = messages_per_batch(ranks, dims=made.dims, batch=math.ceil(made.budget / made.batches))
    return replace(made, arms=arms, ranks=ranks, messages=messages, seconds=made.seconds + made.batches * messages.seconds)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """Checked arguments."""

    arms: ArmSet
    """The set, or a grid of as many arms."""
    count: int
    loaded: bool
    """Whether ``arms`` is the set itself, which is in memory or lazy."""
    budget: int
    policy: UCBPolicy
    """The policy with assumed kernel and noise if it learns them."""
    original: UCBPolicy
    """The policy of the run."""
    device: torch.device
    available: int
    seconds: float | None

    @property
    def dims(self) -> int:
        return self.arms.shape[1]


def _request(
    arms: int | ArmSet,
    dims: int | None,
    budget: int,
    kernel: Kernel | None,
    policy: UCBPolicy | None,
    device: str | torch.device | None,
    memory: int | None,
    seconds: float | None,
) -> _Request:
    check_count("budget", budget)
    if not isinstance(arms, Integral | Tensor | LazyArms):
        raise TypeError(
            f"expected arms to be their number (an integer), a torch.Tensor or lazy arms, got {type(arms).__name__}"
        )
    own: str | torch.device = arms.device if isinstance(arms, Tensor | LazyArms) else "cpu"
    where = _device(own if device is None else device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {str(where)!r} was asked for, but torch sees no CUDA device; use device='cpu'")
    if isinstance(arms, Tensor | LazyArms):
        stand_in: ArmSet = Arms(arms).points.to(where).double()
        count, loaded = len(arms), True
        if dims is not None and dims != arms.shape[1]:
            raise ValueError(f"expected dims={arms.shape[1]}, the width of the arms, got {dims}")
    else:
        if dims is None:
            raise ValueError("expected dims= (inputs per arm) where arms= is a number, got None")
        count, loaded = check_count("arms", arms), False
        stand_in = _unit_grid(count, check_count("dims", dims), where)
    chosen = BBKB() if policy is None else policy
    if not isinstance(chosen, (BBKB, BKB)):
        raise ValueError(f"expected policy to be a BBKB or a BKB, got {type(policy).__name__}; other policies have no plan")
    if kernel is not None:
        chosen = replace(chosen, covar_module=kernel)
    if policy is None and kernel is not None:
        chosen = replace(chosen, regularization=0.01)
    original = chosen
    if chosen.covar_module is None:
        chosen = replace(chosen, covar_module=default_kernel(stand_in))
    if chosen.regularization is None:
        chosen = replace(chosen, regularization=0.01)
    return _Request(
        arms=stand_in,
        count=count,
        loaded=loaded,
        budget=budget,
        policy=chosen,
        original=original,
        device=where,
        available=check_count("memory", memory) if memory is not None else int(0.8 * costs.available_bytes(where)),
        seconds=None if seconds is None else check_positive("seconds", seconds),
    )


def _device(name: str | torch.device) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"expected device cpu, cuda or cuda:N, got {name!r}") from error


def _unit_grid(arms: int, dims: int, device: torch.device) -> ProductGrid:
    """Return a grid of at least ``arms`` arms in the unit cube, which takes no memory, for timing and sampling."""
    per_axis = max(math.ceil(arms ** (1.0 / dims)), 1)
    bounds = torch.tensor([[0.0] * dims, [1.0] * dims], dtype=torch.float64, device=device)
    return ProductGrid.linspace(bounds, [per_axis + (per_axis**dims < arms)] * dims)


def default_kernel(arms: ArmSet) -> Kernel:
    """Return an RBF kernel with a lengthscale per column, in proportion to its range."""
    kernel = RBFKernel(ard_num_dims=arms.shape[1]).double()
    ranges = (arms.amax(dim=0) - arms.amin(dim=0)).cpu()
    # The mode of BoTorch's prior on lengthscales in the unit cube (Hvarfner et al. 2024): exp(√2 + log(d)/2 − 3).
    kernel.lengthscale = torch.where(ranges > 0, ranges, 1.0) * math.exp(math.sqrt(2.0) - 3.0) * arms.shape[1] ** 0.5
    return kernel


def _with_sweep_budget(request: _Request) -> tuple[UCBPolicy, list[str]]:
    policy = request.policy
    if policy.memory_bytes is not None:
        return policy, []
    if request.device.type == "cpu":
        return replace(policy, memory_bytes=DEFAULT_MEMORY_BYTES), []
    budget = max(int(DEVICE_SHARE * request.available), LEAST_BYTES)
    return replace(policy, memory_bytes=budget), [f"a share of the GPU's memory: memory_bytes set to {bytes_text(budget)}"]


def _piloted(request: _Request, policy: UCBPolicy, seconds: float, generator: torch.Generator) -> tuple[PilotForecast, float]:
    per_pick = costs.seconds_per_pick()

    piloted = run_pilots(
        lambda size: _sample(request, size, generator),
        policy,
        arms=request.count,
        budget=request.budget,
        seconds=seconds,
        seconds_per_pick=per_pick,
        generator=generator,
    )
    return piloted, per_pick


def _sample(request: _Request, size: int, generator: torch.Generator) -> Tensor:
    a = request.arms.shape[0]
    if not request.loaded:  # uniform arms in the cube
        return torch.rand(size, request.dims, generator=generator, device="cpu", dtype=torch.float64).to(request.device)
    if size == a:
        return request.arms[:]
    # among very many arms repeated draws are rare, and dropped
    if a > 2**24:
        drawn = torch.randint(a, (size,), generator=generator, device="cpu")
    else:
        drawn = torch.randperm(a, generator=generator, device="cpu")[:size]
    indices = torch.unique(drawn)
    return request.arms[indices.to(request.device)]


def _memory(request: _Request, policy: UCBPolicy, piloted: PilotForecast) -> tuple[dict[str, int], bool]:
    cap = getattr(policy, "max_dictionary", None)
    m = min(piloted.dictionary_size, cap or math.inf)
    lazy = isinstance(request.arms, LazyArms) and request.loaded
    memory_bytes = policy.sweep_budget(request.device)
    streamed = lazy and isinstance(in_memory(request.arms, memory_bytes=memory_bytes), LazyArms)
    kernel = policy.covar_module
    assert kernel is not None
    covariance = CovarianceFunction(kernel, structure_of(kernel))
    columns = 0 if covariance.cheap(request.arms[:2].double()) else math.ceil(1.5 * m)
    items = costs.memory(
        a=request.count,
        d=request.dims,
        m=math.ceil(m),
        n=math.ceil(piloted.distinct),
        budget=request.budget,
        batches=math.ceil(piloted.batches),
        columns=columns,
        memory_bytes=memory_bytes,
        streamed=streamed,
        device=request.device,
        loaded=request.loaded and not lazy,
        blocks=block_count(covariance),
    )
    return items, streamed


def _fit_memory(
    request: _Request, policy: UCBPolicy, piloted: PilotForecast, notes: list[str]
) -> tuple[UCBPolicy, list[str], bool]:
    """Shrink tiles, then cap the dictionary, until the run fits into memory."""
    start, m = policy.sweep_budget(request.device), math.ceil(piloted.dictionary_size)

    def too_much() -> bool:
        return sum(_memory(request, policy, piloted)[0].values()) > request.available

    budget = start
    while too_much() and budget // 2 >= max(LEAST_BYTES, 64 * costs.TEMPORARIES * 8 * m):
        budget //= 2
        policy = replace(policy, memory_bytes=budget)
    if budget != start:
        notes = [*notes, f"smaller tiles: memory_bytes lowered from {bytes_text(start)} to {bytes_text(budget)}"]
    cap = m
    while too_much() and cap > 64:
        cap = max(cap // 2, 64)
        policy = _capped(policy, cap)
        policy = replace(policy, memory_bytes=min(budget, max(LEAST_BYTES, 64 * costs.TEMPORARIES * 8 * cap)))
    if cap != m:
        notes = [*notes, _cap_note(cap, m)]
    fits = not too_much()
    if not fits:
        lazy = isinstance(request.arms, LazyArms) and request.loaded
        advice = "free memory" if lazy else "pass a lazy arm set (MemmapArms, ProductGrid)"
        notes = [*notes, f"does NOT fit: {bytes_text(request.available)} may be used; {advice}"]
    return policy, notes, fits


def _fit_time(
    request: _Request,
    policy: UCBPolicy,
    notes: list[str],
    fits: bool,
    piloted: PilotForecast,
    per_pick: float,
    generator: torch.Generator,
) -> Plan:
    """Time the operations, and cap the dictionary until the run fits into the time limit."""
    arms: ArmSet = request.arms
    if not _memory(request, policy, piloted)[1]:
        memory_bytes = policy.sweep_budget(request.device)
        rows = costs.timed_rows(request.count, m=round(piloted.mean_size), memory_bytes=memory_bytes, device=request.device)
        arms = _sample(request, rows, generator)
    size = math.ceil(piloted.dictionary_size)

    def forecast(policy: UCBPolicy) -> Plan:
        m = max(min(round(piloted.mean_size), getattr(policy, "max_dictionary", None) or 2**31), 1)
        measured = costs.measure(arms, policy, m=m, distinct=math.ceil(piloted.distinct), generator=generator)
        return _plan(request, policy, piloted, measured, per_pick, notes, fits)

    made = forecast(policy)
    while request.seconds is not None and made.seconds > request.seconds:
        cap = policy.max_dictionary or size if isinstance(policy, (BBKB, BKB)) else 0
        if cap > 64:
            policy = _capped(policy, max(cap // 2, 64))
            notes = [*(note for note in notes if "capped" not in note), _cap_note(max(cap // 2, 64), size)]
        else:
            notes = [*notes, f"does NOT fit: {request.seconds:g} s are too short for {request.count:,} arms"]
            fits = False
            made = forecast(policy)
            break
        made = forecast(policy)
    return made


def _cap_note(cap: int, size: int) -> str:
    return f"smaller dictionary: capped at {cap} of about {size} points, so variances are less accurate"


def _capped(policy: UCBPolicy, cap: int) -> UCBPolicy:
    assert isinstance(policy, (BBKB, BKB))
    return replace(policy, max_dictionary=cap)


def _plan(
    request: _Request, policy: UCBPolicy, piloted: PilotForecast, measured: Costs, per_pick: float, notes: list[str], fits: bool
) -> Plan:
    assert isinstance(policy, (BBKB, BKB))
    a, cap = request.count, policy.max_dictionary or math.inf
    size, batches = min(piloted.dictionary_size, cap), max(piloted.batches, 1.0)
    items, streamed = _memory(request, policy, piloted)
    sweep = measured.sweep_fixed + measured.sweep_per_arm * a
    columns = 0.0 if "columns" not in items else 1.5 * size * measured.column_per_arm * a
    if not streamed and "columns" not in items:  # every sweep evaluates its kernel block again
        sweep += size * measured.column_per_arm * a
    picking = per_pick * request.budget + batches * measured.pick_per_arm * a
    grown = max(sweep - measured.sweep_fixed, 0.0)
    settings: dict[str, Any] = {
        "memory_bytes": policy.memory_bytes,
        "sweep_dtype": policy.sweep_dtype,
        "max_dictionary": policy.max_dictionary,
    }
    return Plan(
        arms=a,
        dims=request.dims,
        budget=request.budget,
        device=str(request.device),
        dictionary_size=round(size),
        batches=round(batches),
        batches_range=(round(piloted.batches_range[0]), round(piloted.batches_range[1])),
        memory=items,
        available_bytes=request.available,
        seconds_per_sweep=sweep,
        microseconds_per_pick=1e6 * picking / request.budget,
        seconds=batches * (piloted.overhead + grown) + columns + picking,
        streamed=streamed,
        settings=settings,
        notes=tuple(notes),
        fits=fits,
        policy=replace(request.original, **settings),
    )
