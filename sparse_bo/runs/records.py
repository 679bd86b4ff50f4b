"""Runs as read from their journals: settings, history, results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.domains import Arms, ArmSet, Domain
from sparse_bo.domains.lazy import digest
from sparse_bo.errors import StorageError
from sparse_bo.evaluations.answers import results_of
from sparse_bo.journal import Journal, Row
from sparse_bo.policies import Policy
from sparse_bo.policies.description import describe, fingerprint, rebuild, up_to_date
from sparse_bo.runs.history import History, HistoryRow

_OF_EVALUATIONS = ("indices", "points", "values")
"""Fields of a history row that the events say already."""


class Recorded(NamedTuple):
    """A run as read from its journal."""

    about: Mapping[str, Any]
    history: History
    """One row per update of the state that has been written."""
    asked: int
    """Evaluations handed out, those observed before the run excluded."""
    told: int
    """Successful evaluations, whether or not the state has taken them in."""
    failed: int
    """Failed ones."""


class Evaluations(NamedTuple):
    """Everything evaluated, by ticket."""

    picks: NDArray[Any]
    """``t`` arms or ``t x d`` points."""
    values: NDArray[np.float64]
    """``t`` results, NaN where the evaluation failed or is out."""
    known: NDArray[np.bool_]
    """``t``: told or failed."""
    asked: int
    """Handed out by ``ask``."""


def about_run(
    domain: Domain, policy: Policy, *, seed: int, certify_every: int | None, notes: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what identifies a run, for a journal."""
    description = describe(policy)
    return {
        "policy": policy.name,
        "description": description,
        "fingerprint": fingerprint(description),
        "seed": seed,
        "certify_every": certify_every,
        "notes": dict(notes or {}),
        "versions": {"sparse_bo": __version__, "torch": torch.__version__},
        **domain.describe(),
    }


def domain_of(journal: Journal, arms: ArmSet | None, device: str | torch.device | None) -> tuple[ArmSet | None, Tensor | None]:
    """Return the arms or the bounds of a recorded run.

    Raises:
        ValueError: If ``arms`` are not those of the run, or are needed and not given.
    """
    about, path = journal.about, journal.path
    where = about["device"] if device is None else device
    if "bounds" in about:
        if arms is not None:
            raise ValueError(f"the run in {path} is on a box; drop arms=")
        return None, torch.tensor(about["bounds"], dtype=getattr(torch, about["dtype"].removeprefix("torch."))).to(where)
    if arms is None:
        arms = journal.arms()
        if arms is None:
            raise ValueError(f"the {about['arms'][0]:,} arms of {path} were too many to be kept in it; pass arms=")
        return arms.to(where), None
    checked = Arms(arms).points
    alike = list(checked.shape) == about["arms"] and str(checked.dtype) == about["dtype"]
    if not alike or digest(checked) != about["arms_hash"]:  # the hash reads every arm: last
        raise ValueError(
            f"expected the arms of the run in {path} ({' x '.join(map(str, about['arms']))}, {about['dtype']}), got others "
            f"({' x '.join(map(str, arms.shape))}, {arms.dtype}): this journal belongs to another problem"
        )
    return arms if device is None else arms.to(device), None


def policy_of(journal: Journal, policy: Policy | None) -> Policy:
    """Return the policy of a recorded run.

    Raises:
        ValueError: If ``policy`` is not that of the run, or is needed and not given.
    """
    about, path = journal.about, journal.path
    if policy is None:
        try:
            rebuilt: Policy = rebuild(about["description"])
        except (ValueError, TypeError) as error:
            raise ValueError(f"the policy of {path} ({about['policy']}) cannot be rebuilt ({error}); pass policy=") from error
        return rebuilt
    given = describe(policy)
    if fingerprint(given) != fingerprint(about["description"]):
        before, now = up_to_date(about["description"]), given
        names = sorted(set(before.get("fields", {})) | set(now.get("fields", {})))
        changed = [n for n in names if before.get("fields", {}).get(n) != now.get("fields", {}).get(n)]
        raise ValueError(
            f"expected the policy of the run in {path} ({about['policy']}), got {policy.name} with other settings"
            + (f": {', '.join(changed)}" if changed else "")
        )
    return policy


def about_of(path: str | Path) -> Mapping[str, Any]:
    """Return what a journal says that its run is, without reading the run.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of a newer version.
    """
    journal = Journal.read(path)
    journal.close()
    return journal.about


def evaluations_of(journal: Journal) -> Evaluations:
    """Return everything evaluated, by ticket.

    Raises:
        StorageError: If events are damaged or contradict each other.
    """
    every, told, results, asked = journal.evaluations()
    values, known = np.full(len(every), np.nan), np.zeros(len(every), np.bool_)
    if len(told):
        if told.min() < 0 or told.max() >= len(every) or np.bincount(told, minlength=len(every)).max() > 1:
            raise StorageError("the journal has results of tickets that were never handed out, or two of one: it is damaged")
        values[told], known[told] = results, True
    return Evaluations(every, values, known, asked)


def row_of(history_row: HistoryRow, tickets: Sequence[int]) -> Row:
    """Return a history row as it is written."""
    summary = {name: value for name, value in asdict(history_row).items() if name not in _OF_EVALUATIONS}
    return Row(np.asarray(tickets, np.int64), summary)


def history_rows(rows: Sequence[Row], evaluations: Evaluations) -> list[HistoryRow]:
    """Return the history as it was before it was written."""
    found = []
    for tickets, summary in rows:
        picks = evaluations.picks[tickets].tolist()
        on_box = evaluations.picks.ndim > 1
        row = HistoryRow.of_plain({**summary, "indices": [] if on_box else picks, "points": picks if on_box else None})
        found.append(replace(row, values=results_of(evaluations.values[tickets].tolist())))
    return found


def run_info(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a history says of its run."""
    return {key: about[key] for key in ("policy", "seed", "arms", "bounds", "versions", "device") if key in about}


def read_run(path: str | Path) -> Recorded:
    """Read a run from its journal, also while it is being written. A second or two per million evaluations.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of a newer version.
    """
    journal = Journal.read(path)
    try:
        evaluations = evaluations_of(journal)
        history = History(tuple(history_rows(journal.rows(), evaluations)), run_info(journal.about))
    finally:
        journal.close()
    good = int(np.isfinite(evaluations.values).sum())
    return Recorded(journal.about, history, evaluations.asked, good, int(evaluations.known.sum()) - good)
