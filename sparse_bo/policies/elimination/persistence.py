"""States of S-BPE and BPE as arrays and back: a resume neither plans a batch again nor searches its dictionaries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.arms import ArmPrior, KernelColumns, in_memory_posterior
from sparse_bo.arms.design import Design
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.box import Box
from sparse_bo.observations import Observations, add_observations, no_observations
from sparse_bo.policies.description import describe, rebuild
from sparse_bo.policies.elimination.findings import Finding, norm_of, with_norm
from sparse_bo.policies.elimination.state import EliminationState, Plan
from sparse_bo.policies.persistence import Frozen
from sparse_bo.priors import Prior
from sparse_bo.widths import BatchConfidence

KEPT = ("picks", "y", "survivors", "contradiction", "doublings", "seed", "round")
"""Fields of a state that are frozen as they are."""
SEEN = ("indices", "counts", "sums", "sums_of_squares", "first_pull")
"""Fields of observations whose inputs are candidates."""


def freeze_elimination(state: EliminationState) -> Frozen:
    """Return the state as arrays, without the domain: O(evaluations + candidates of all batches); on a box times d."""
    frozen: dict[str, Any] = {name: getattr(state, name) for name in KEPT}
    frozen["findings"] = len(state.findings)
    frozen["planned"] = [list(key) for key in state.memo] if state.plan is None else []
    if state.prior is not None:
        frozen |= {"prior_mean": state.prior.prior_mean, "regularization": state.prior.regularization}
        frozen["kernel"] = describe(state.prior.covar_module)
    for number, finding in enumerate(state.findings):
        seen, posterior = finding.observations, finding.posterior
        part = {name: getattr(seen, name) for name in SEEN} | {"confidence": asdict(finding.confidence)}
        part |= _candidates(finding.members, posterior.prior) | _dictionary(posterior.dictionary)
        frozen |= {f"finding.{number}.{name}": value for name, value in part.items()}
    plan = state.plan
    if plan is not None:
        chosen = plan.design
        part = {"order": chosen.indices, "exact": chosen.exact, "resparsifications": chosen.resparsifications}
        part |= {"told": plan.told, "y": plan.y, "given_up": plan.given_up}
        part |= _candidates(plan.members, plan.surrogate) | _dictionary(chosen.dictionary)
        frozen |= {f"plan.{name}": value for name, value in part.items()}
    return frozen


def thaw_elimination(
    empty: EliminationState,
    frozen: Frozen,
    *,
    given: Kernel | None,
    surrogate_of: Callable[[EliminationState, Tensor], ArmPrior],
    plan_of: Callable[[EliminationState, torch.Generator], Plan],
) -> EliminationState:
    """Return the state that :func:`freeze_elimination` froze; posteriors are fitted and swept again, O(a m (d + m)) a batch.

    Args:
        empty: The policy's state without data.
        frozen: Arrays on any device.
        given: The policy's kernel; ``None``: the frozen one.
        surrogate_of: From a state with a prior, and candidates (``c x d``), to the prior over them.
        plan_of: Plans the next batch; called for plans that no result has come for yet.
    """
    device = empty.picks.device
    frozen = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in frozen.items()}
    state = replace(empty, **{name: frozen[name] for name in KEPT})
    if state.doublings:
        norm = norm_of(state.width)
        assert norm is not None
        state = replace(state, width=with_norm(state.width, norm * 2.0**state.doublings))
    if "kernel" in frozen:
        kernel = rebuild(frozen["kernel"]) if given is None else given
        state = replace(state, prior=Prior(kernel, frozen["prior_mean"], frozen["regularization"]))
    findings = tuple(_finding(state, _part(frozen, f"finding.{i}."), surrogate_of) for i in range(frozen["findings"]))
    state = replace(state, findings=findings)
    if "plan.order" in frozen:
        state = replace(state, plan=_plan(state, _part(frozen, "plan."), surrogate_of))
    for batch, seed in frozen["planned"]:
        state.memo[batch, seed] = plan_of(state, torch.Generator().manual_seed(seed + batch))
    return state


def _candidates(members: Tensor | None, surrogate: ArmPrior) -> dict[str, Any]:
    return {"candidates": surrogate.in_memory[0]} if members is None else {"members": members}


def _dictionary(dictionary: Dictionary) -> dict[str, Any]:
    chosen = {"points": dictionary.points} if dictionary.indices is None else {"dictionary": dictionary.indices}
    return {"probabilities": dictionary.probabilities} | chosen


def _part(frozen: Frozen, prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in frozen.items() if name.startswith(prefix)}


def _thawed(
    state: EliminationState, part: Mapping[str, Any], surrogate_of: Callable[[EliminationState, Tensor], ArmPrior]
) -> tuple[Tensor | None, ArmPrior, Dictionary]:
    members = part.get("members")
    if members is None:
        points = part["candidates"]
    else:
        assert not isinstance(state.domain, Box)
        points = state.domain[members]
    chosen = part.get("dictionary")
    dictionary = Dictionary(part["points"] if chosen is None else points[chosen], part["probabilities"], chosen)
    return members, surrogate_of(state, points), dictionary


def _finding(
    state: EliminationState, part: Mapping[str, Any], surrogate_of: Callable[[EliminationState, Tensor], ArmPrior]
) -> Finding:
    members, surrogate, dictionary = _thawed(state, part, surrogate_of)
    surrogate = replace(surrogate, sweep_dtype=torch.float64)
    indices = part["indices"]
    counts, sums, squares, first = (part[name] for name in SEEN[1:])
    observations = Observations(surrogate.arms[indices], counts, sums, squares, first, indices)
    posterior, _ = in_memory_posterior(surrogate, observations, dictionary, KernelColumns(surrogate.memory_bytes))
    return Finding(members, replace(posterior, block=None), observations, BatchConfidence(**part["confidence"]))


def _plan(
    state: EliminationState, part: Mapping[str, Any], surrogate_of: Callable[[EliminationState, Tensor], ArmPrior]
) -> Plan:
    members, surrogate, dictionary = _thawed(state, part, surrogate_of)
    order, arms = part["order"], surrogate.in_memory[0]
    picked = add_observations(no_observations(arms), arms, order, torch.zeros_like(part["y"]))
    chosen = Design(order, picked, dictionary, part["exact"], part["resparsifications"])
    return Plan(members, surrogate, chosen, part["told"], part["y"], part["given_up"])
