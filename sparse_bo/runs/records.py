"""Recorded runs: settings, history and results from a journal."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from sparse_bo._version import __version__
from sparse_bo.domains import Arms, ArmSet, Domain, Feasible, check_domain
from sparse_bo.domains.encoded import recorded_space
from sparse_bo.domains.lazy import digest
from sparse_bo.errors import ResumeWarning, StorageError
from sparse_bo.evaluations.worker import results_of
from sparse_bo.journal import Journal, Row, unpack
from sparse_bo.policies import Policy
from sparse_bo.policies.persistence import describe, fingerprint, rebuild
from sparse_bo.runs.history import History, HistoryRow

_WRITTEN = tuple(f.name for f in fields(HistoryRow) if f.name not in ("indices", "points", "values"))
"""Fields of a history row that do not follow from the events."""


_READ: Mapping[str, type | tuple[type, ...]] = {"policy": str, "seed": int, "notes": dict}
"""Fields of a description for reading,"""
_RESUMED: Mapping[str, type | tuple[type, ...]] = {
    **_READ,
    "description": object,
    "fingerprint": str,
    "certify_every": (int, type(None)),
    "versions": dict,
    "dtype": str,
    "device": str,
}
"""and for resuming, in addition to its domain."""
_ON_A_BOX: Mapping[str, type | tuple[type, ...]] = {"bounds": list, "dims": int}
_OVER_ARMS: Mapping[str, type | tuple[type, ...]] = {"arms": list, "arms_hash": str}


class Recorded(NamedTuple):
    """A recorded run."""

    about: Mapping[str, Any]
    history: History
    """One row per update of the state that has been written."""
    asked: int
    """Number of asked evaluations, without initial observations."""
    told: int
    """Number of successful evaluations, with initial observations, in the state or not."""
    failed: int
    """Number of failed evaluations."""
    before: int
    """Number of initial observations."""

    @property
    def out(self) -> int:
        """Number of pending evaluations."""
        return self.asked + self.before - self.told - self.failed


class Evaluations(NamedTuple):
    """All evaluations, by ticket."""

    picks: NDArray[Any]
    """``t`` arms or ``t x d`` points."""
    values: NDArray[np.float64]
    """``t`` results, NaN for failed and pending ones."""
    known: NDArray[np.bool_]
    """``t``: whether the evaluation has a result or has failed."""
    asked: int
    """Number of asked evaluations."""


class Start(NamedTuple):
    """The start of a resume."""

    frozen: Mapping[str, Any] | None
    """The last snapshot (:meth:`sparse_bo.runs.engine.Engine.freeze`); ``None``: none."""
    size: int
    """Size of the snapshot (bytes)."""
    after: int
    """Number of the last event before it."""
    rows: list[HistoryRow]
    """Complete history rows, at least up to there."""
    tickets: list[list[int]]
    """Tickets of each row."""


def about_run(
    domain: Domain,
    policy: Policy,
    *,
    seed: int,
    certify_every: int | None,
    notes: Mapping[str, Any],
    why: str | None = None,
) -> dict[str, Any]:
    """Return the description of a run for a journal, with the reason of a default policy."""
    description = describe(policy)
    return {
        "policy": policy.name,
        "description": description,
        "fingerprint": fingerprint(description),
        "seed": seed,
        "certify_every": certify_every,
        "notes": notes,
        **({} if why is None else {"why": why}),
        "versions": {"sparse_bo": __version__, "torch": torch.__version__},
        **domain.describe(),
    }


def settings_of_run(policy: Policy, *, seed: int, certify_every: int | None, initial: tuple[Any, Any] | None) -> dict[str, Any]:
    """Return the settings that all ranks of a run must share."""
    given = None if initial is None else [torch.as_tensor(part, device="cpu").tolist() for part in initial]
    return {
        "policy": policy.name,
        "settings of the policy": fingerprint(describe(policy)),
        "seed": seed,
        "certify_every": certify_every,
        "initial observations": None if given is None else hashlib.blake2b(repr(given).encode(), digest_size=8).hexdigest(),
        "version of sparse_bo": __version__,
        "version of torch": torch.__version__,
    }


def domain_of(
    journal: Journal,
    arms: ArmSet | None,
    device: str | torch.device | None,
    *,
    feasible: Feasible | None = None,
    asking: bool = True,
) -> Domain:
    """Return the domain of a recorded run.

    Args:
        journal: Journal of the run.
        arms: Arms of the run, if they were too large for the journal.
        device: Device of the computations; default: the recorded one.
        feasible: Feasibility function of a space that is searched as a box.
        asking: Whether the run continues, which requires that function.

    Raises:
        StorageError: If the description of the run is incomplete.
        ValueError: If ``arms`` or ``feasible`` are not those of the run, or are required and missing.
    """
    about, path = journal.about, journal.path
    _check_about(journal, _RESUMED)
    where = about["device"] if device is None else device
    if "space" in about:
        if arms is not None:
            raise ValueError(f"the run in {path} is on a space of named parameters; drop arms=")
        try:
            return recorded_space(about, feasible, where, asking=asking)
        except (KeyError, TypeError) as error:
            raise StorageError(f"the description of the space in {path} is damaged ({error}); take another copy") from error
    if feasible is not None:
        raise ValueError(f"the run in {path} is on no space of named parameters; drop feasible=")
    if "bounds" in about:
        if arms is not None:
            raise ValueError(f"the run in {path} is on a box; drop arms=")
        dtype = getattr(torch, about["dtype"].removeprefix("torch."))
        return check_domain(bounds=torch.tensor(about["bounds"], dtype=dtype, device=where))
    if arms is None:
        arms = journal.arms()
        if arms is None:
            raise ValueError(
                f"the {about['arms'][0]:,} arms of the run in {path} are not in it (too many, or damaged); pass arms="
            )
        return Arms(arms.to(where))
    checked = Arms(arms).points
    alike = list(checked.shape) == about["arms"] and str(checked.dtype) == about["dtype"]
    if not alike or digest(checked) != about["arms_hash"]:  # the hash reads every arm: last
        raise ValueError(
            f"expected the arms of the run in {path} ({' x '.join(map(str, about['arms']))}, {about['dtype']}), got others "
            f"({' x '.join(map(str, arms.shape))}, {arms.dtype}): this journal belongs to another problem"
        )
    return check_domain(arms if device is None else arms.to(device))


def policy_of(journal: Journal, policy: Policy | None) -> Policy:
    """Return the policy of a recorded run.

    Raises:
        StorageError: If its description is incomplete or is not the one that was written.
        ValueError: If ``policy`` is not that of the run, or is needed and not given.
    """
    about, path = journal.about, journal.path
    _check_about(journal, _RESUMED)
    before = about["description"]
    if fingerprint(before) != about["fingerprint"]:
        raise StorageError(
            f"the policy of {path} ({about['policy']}) is not the one whose fingerprint is beside it: it is damaged"
        )
    if policy is not None:
        if fingerprint(describe(policy)) != fingerprint(before):
            raise ValueError(
                f"expected the policy of the run in {path} ({about['policy']}), got {policy.name} with other settings"
                + _changed(before, describe(policy))
            )
        return policy
    try:
        rebuilt: Policy = rebuild(before)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"the policy of {path} ({about['policy']}) cannot be rebuilt ({error}); pass policy=") from error
    if not isinstance(rebuilt, Policy) or fingerprint(describe(rebuilt)) != fingerprint(before):
        raise ValueError(
            f"the policy of {path} ({about['policy']}), rebuilt by sparse_bo {__version__}, is not the one recorded by "
            f"{about['versions'].get('sparse_bo', 'another version')}{_changed(before, describe(rebuilt))}; install that one"
        )
    return rebuilt


def _changed(before: Any, now: Any) -> str:
    fields = [description.get("fields", {}) if isinstance(description, Mapping) else {} for description in (before, now)]
    names = [n for n in sorted({*fields[0], *fields[1]}) if fields[0].get(n) != fields[1].get(n)]
    return f": {', '.join(names)}" if names else ""


def _check_about(journal: Journal, needed: Mapping[str, type | tuple[type, ...]]) -> None:
    """Check that a description has the required fields, each of its type.

    Raises:
        StorageError: If not; names what is missing.
    """
    about = journal.about
    if needed is _RESUMED or "bounds" in about or "dims" in about:
        needed = {**needed, **(_ON_A_BOX if "bounds" in about or "dims" in about else _OVER_ARMS)}
    wrong = [name for name, kind in needed.items() if name not in about or not isinstance(about[name], kind)]
    if wrong:
        raise StorageError(
            f"the description of the run in {journal.path} lacks {', '.join(wrong)}: it is damaged, or was not written by "
            "AskTell; take another copy"
        )


def about_of(path: str | Path) -> Mapping[str, Any]:
    """Return the description of a run from its journal, without reading the run.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of another format.
    """
    journal = Journal.read(path)
    _check_about(journal, _RESUMED)
    return journal.about


def evaluations_of(journal: Journal) -> Evaluations:
    """Return all evaluations, by ticket. About 0.5 µs per event.

    Raises:
        StorageError: If events contradict each other.
    """
    every, observed, results, before = journal.evaluations()
    values, known = np.full(len(every), np.nan), np.zeros(len(every), np.bool_)
    if len(observed):
        if observed.min() < 0 or observed.max() >= len(every) or np.bincount(observed, minlength=len(every)).max() > 1:
            raise StorageError(
                f"{journal.path} has results of tickets that were never handed out, or two of one: it was not written by "
                "AskTell; take another copy"
            )
        values[observed], known[observed] = results, True
    return Evaluations(every, values, known, len(every) - before)


def row_of(number: int, history_row: HistoryRow, tickets: Sequence[int]) -> Row:
    """Return a history row as it is written."""
    return Row(number, list(tickets), {name: getattr(history_row, name) for name in _WRITTEN})


def history_rows(rows: Sequence[Row], evaluations: Evaluations) -> list[HistoryRow]:
    """Return the history as it was before it was written."""
    found = []
    for _, tickets, summary in rows:
        if tickets and not 0 <= min(tickets) <= max(tickets) < len(evaluations.picks):
            raise StorageError(
                f"the history has evaluation {max(tickets)}, but the events before it end at {len(evaluations.picks) - 1}: the "
                "journal was not written by AskTell; take another copy"
            )
        picks = evaluations.picks[tickets].tolist()
        on_box = evaluations.picks.ndim > 1
        try:
            row = HistoryRow.of_plain({**summary, "indices": [] if on_box else picks, "points": picks if on_box else None})
        except TypeError as error:
            raise StorageError(f"a row of the history is another version's of sparse_bo ({error}); use that version") from error
        found.append(replace(row, values=results_of(evaluations.values[tickets].tolist())))
    return found


def start_of(journal: Journal, evaluations: Evaluations) -> Start:
    """Return where a resume starts: at the latest snapshot that is whole, and whose history is.

    Raises:
        StorageError: If the journal cannot be read.

    Warns:
        ResumeWarning: If a row of the history is damaged: it is computed again, with those after it.
    """
    rows, whole = journal.rows()
    found = Start(None, 0, -1, history_rows(rows, evaluations), [row.tickets for row in rows])
    for after, data in journal.snapshots():
        frozen = unpack(data)
        if frozen["rows"] <= len(rows):
            found = found._replace(frozen=frozen, size=len(data), after=after)
            break
        whole = False
    if not whole:
        warnings.warn(
            f"row {len(rows)} of the history in {journal.path} is damaged; it and those after it are computed again from the "
            f"events after {found.after}",
            ResumeWarning,
            stacklevel=4,
        )
    return found


def run_info(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a run for its history."""
    return {
        key: about[key] for key in ("policy", "why", "seed", "arms", "bounds", "space", "versions", "device") if key in about
    }


def read_run(path: str | Path) -> Recorded:
    """Read a run from its journal, also while it is being written. About 2 µs per event and 30 µs per row of the history.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of another format.
    """
    return recorded_in(Journal.read(path))


def recorded_in(journal: Journal) -> Recorded:
    """Return the recorded run of an open journal. Errors: :func:`read_run`."""
    _check_about(journal, _READ)
    evaluations, (rows, whole) = evaluations_of(journal), journal.rows()
    if not whole:
        raise StorageError(
            f"row {len(rows)} of the history in {journal.path} is damaged; it follows from the events: AskTell.resume(...) "
            "computes it again, and close() records it"
        )
    history = History(tuple(history_rows(rows, evaluations)), run_info(journal.about))
    good = int(np.isfinite(evaluations.values).sum())
    failed, before = int(evaluations.known.sum()) - good, len(evaluations.picks) - evaluations.asked
    return Recorded(journal.about, history, evaluations.asked, good, failed, before)
