"""Snapshots of the states of S-BPE and BPE. A plan with results and its dictionaries are stored, not computed again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.arms import ArmPrior, KernelColumns, in_memory_posterior
from sparse_bo.arms.design import Design
from sparse_bo.gp.observations import add_observations, no_observations
from sparse_bo.policies.elimination.batches import PlannedBatch
from sparse_bo.policies.elimination.findings import Finding
from sparse_bo.policies.elimination.source import CandidateSource
from sparse_bo.policies.elimination.state import EliminationState
from sparse_bo.policies.elimination.width import doubled, with_norm
from sparse_bo.policies.persistence import (
    freeze_dictionary,
    freeze_fields,
    freeze_observations,
    freeze_prior,
    on_device,
    part_of,
    thaw_dictionary,
    thaw_fields,
    thaw_observations,
    thaw_prior,
    under,
)
from sparse_bo.policies.protocol import Frozen
from sparse_bo.widths import BatchConfidence


def freeze_elimination(state: EliminationState) -> Frozen:
    """Return the state as arrays, without the domain. O(evaluations + candidates of all batches); on a box times d.

    A plan without results is not stored: it is a function of the state and the run's generator.
    """
    frozen = freeze_fields(state) | {"findings": len(state.findings)}
    if state.prior is not None:
        frozen |= freeze_prior(state.prior)
    for number, finding in enumerate(state.findings):
        part = freeze_observations(finding.observations) | {"confidence": asdict(finding.confidence)}
        part |= finding.candidates.freeze() | freeze_dictionary(finding.posterior.dictionary)
        frozen |= under(f"finding.{number}", part)
    plan = state.plan
    if plan is not None:
        chosen = plan.design
        part = {"order": chosen.indices, "exact": chosen.exact, "resparsifications": chosen.resparsifications}
        part |= {"observed": plan.observed, "y": plan.y, "failures": plan.failures}
        part |= plan.candidates.freeze() | freeze_dictionary(chosen.dictionary)
        frozen |= under("plan", part)
    return frozen


def thaw_elimination(
    empty: EliminationState, frozen: Frozen, *, given: Kernel | None, surrogate_of: Callable[..., ArmPrior]
) -> EliminationState:
    """Return the state of a snapshot; posteriors are fitted and swept again. O(a m (d + m)) per batch.

    Args:
        empty: The policy's state without data.
        frozen: Arrays on any device.
        given: The policy's kernel; ``None``: the frozen one.
        surrogate_of: From a known prior and points (``c x d``) to the prior over them.
    """
    source = empty.source
    frozen = on_device(frozen, source.domain.device)
    state = replace(empty, **thaw_fields(EliminationState, frozen))
    if state.norm is None:  # before the first complete batch, and for bounds without F
        state = replace(state, width=doubled(state.width, state.doublings))
    else:
        state = replace(state, width=with_norm(state.width, state.norm))
    if "kernel" not in frozen:
        return state
    prior = thaw_prior(frozen, given=given)

    def over(points: Tensor) -> ArmPrior:
        return surrogate_of(prior, points)

    findings = tuple(_finding(part_of(frozen, f"finding.{i}"), source, over) for i in range(frozen["findings"]))
    plan = part_of(frozen, "plan")
    return replace(state, prior=prior, findings=findings, plan=_planned(plan, source, over) if plan else None)


def _finding(part: Mapping[str, Any], source: CandidateSource[Any], over: Callable[[Tensor], ArmPrior]) -> Finding:
    candidates = source.thaw(part)
    points = candidates.points
    assert isinstance(points, Tensor)  # sharded arms have no snapshots
    surrogate = replace(over(points), sweep_dtype=torch.float64)
    dictionary = thaw_dictionary(part, points)
    observations = thaw_observations(part, points)
    posterior, _ = in_memory_posterior(surrogate, observations, dictionary, KernelColumns(surrogate.memory_bytes))
    return Finding(candidates, replace(posterior, stored=None), observations, BatchConfidence(**part["confidence"]))


def _planned(part: Mapping[str, Any], source: CandidateSource[Any], over: Callable[[Tensor], ArmPrior]) -> PlannedBatch:
    candidates, order = source.thaw(part), part["order"]
    points = candidates.points
    assert isinstance(points, Tensor)  # see above
    picked = add_observations(no_observations(points), points, order, torch.zeros_like(part["y"]))
    chosen = Design(order, picked, thaw_dictionary(part, points), part["exact"], part["resparsifications"])
    return PlannedBatch(candidates, over(points), chosen, part["observed"], part["y"], part["failures"])
