"""The start of a resume: a recorded run, read on rank 0 and sent to every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sparse_bo.domains import Arms, ArmSet, Domain, Feasible
from sparse_bo.domains.sharded import ShardedArms, group_of
from sparse_bo.journal import Event, Storage, Writer
from sparse_bo.policies import Policy
from sparse_bo.runs.records import Start, domain_of, evaluations_of, policy_of, start_of


@dataclass(frozen=True, eq=False)
class Past:
    """A recorded run for a resume."""

    domain: Domain | None
    """``None`` between ranks: each has its own part of the arms."""
    policy: Policy
    settings: Mapping[str, Any]
    why: Mapping[str, Any]
    start: Start
    """Snapshot to start from."""
    events: Sequence[Event]
    """Events after it."""
    writer: Writer | None
    """The open journal; ``None`` on the other ranks."""


def past_of(
    storage: str | Path | Storage,
    arms: ArmSet | None,
    policy: Policy | None,
    device: str | torch.device | None,
    feasible: Feasible | None,
) -> Past:
    """Read a recorded run; over sharded arms, on rank 0 for every rank. Arguments and errors: ``AskTell.resume``.

    Raises:
        RankError: On the other ranks, if rank 0 cannot read it.
    """
    group = group_of(arms)
    if group.size == 1:
        return _read(storage, arms, policy, device, feasible)
    assert isinstance(arms, ShardedArms)
    if device is not None:
        raise ValueError(
            "expected no device= with sharded arms, got one; every rank computes on the device of its part, use arms.to(device)"
        )
    arms.digest()  # on every rank, for the comparison below
    step, past = "reading the journal", None
    if group.leads:
        with group.shielded(step):
            past = _read(storage, arms, policy, None, feasible)
    sent = None if past is None else replace(past, domain=None, writer=None)
    try:
        found: Past = group.from_first(step, sent)
    except BaseException:
        if past is not None and past.writer is not None:
            past.writer.close()
        raise
    return past or replace(found, domain=Arms(arms))


def _read(
    storage: str | Path | Storage,
    arms: ArmSet | None,
    policy: Policy | None,
    device: str | torch.device | None,
    feasible: Feasible | None,
) -> Past:
    writer, journal = Writer.open(storage)
    try:
        about = journal.about
        domain = domain_of(journal, arms, device, feasible=feasible)
        settings = {name: about[name] for name in ("seed", "certify_every", "notes")}
        why = {name: about[name] for name in ("why",) if name in about}
        chosen = policy_of(journal, policy)
        start = start_of(journal, evaluations_of(journal))
        events = list(journal.events(after=start.after))
    except BaseException:
        writer.close()
        raise
    return Past(domain, chosen, settings, why, start, events, writer)
