"""What a journal holds of a run that is to go on, read on rank 0 and told to every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sparse_bo.domains import Arms, ArmSet, Domain, Feasible
from sparse_bo.domains.sharded import ShardedArms, group_of
from sparse_bo.journal import Event, Journal
from sparse_bo.policies import Policy
from sparse_bo.runs.records import Start, domain_of, evaluations_of, policy_of, start_of


@dataclass(frozen=True, eq=False)
class Past:
    """A recorded run, as the loop that goes on with it needs it."""

    domain: Domain | None
    """``None`` while it travels: every rank has its own part of the arms."""
    policy: Policy
    settings: Mapping[str, Any]
    why: Mapping[str, Any]
    start: Start
    """Where to begin,"""
    events: Sequence[Event]
    """and what to do after it."""
    journal: Journal | None
    """Open for writing; ``None`` on a rank that has none."""


def past_of(
    storage: str | Path,
    arms: ArmSet | None,
    policy: Policy | None,
    device: str | torch.device | None,
    feasible: Feasible | None,
) -> Past:
    """Read a recorded run; over arms in shards rank 0 reads it, and every rank gets it. Arguments and errors: ``resume``.

    Raises:
        RankError: On the other ranks, if rank 0 cannot read it.
    """
    group = group_of(arms)
    if group.size == 1:
        return _read(storage, arms, policy, device, feasible)
    assert isinstance(arms, ShardedArms)
    if device is not None:
        raise ValueError("expected no device= with arms in shards: every rank computes where its part is; use arms.to(device)")
    arms.digest()  # on every rank, for the comparison below
    step, past = "reading the journal", None
    if group.leads:
        with group.shielded(step):
            past = _read(storage, arms, policy, None, feasible)
        told = replace(past, domain=None, journal=None)
    try:
        found: Past = group.from_first(step, told if past is not None else None)
    except BaseException:
        if past is not None and past.journal is not None:
            past.journal.let_go()
        raise
    return past or replace(found, domain=Arms(arms))


def _read(
    storage: str | Path,
    arms: ArmSet | None,
    policy: Policy | None,
    device: str | torch.device | None,
    feasible: Feasible | None,
) -> Past:
    journal = Journal.open(storage)
    try:
        about = journal.about
        domain = domain_of(journal, arms, device, feasible=feasible)
        settings = {name: about[name] for name in ("seed", "certify_every", "notes")}
        why = {name: about[name] for name in ("why",) if name in about}
        chosen = policy_of(journal, policy)
        start = start_of(journal, evaluations_of(journal))
        events = list(journal.events(after=start.after))
    except BaseException:
        journal.let_go()
        raise
    return Past(domain, chosen, settings, why, start, events, journal)
