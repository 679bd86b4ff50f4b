"""The description of a run in its journal, and the domain and policy that it stands for."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.domains import Arms, ArmSet, Box, Domain, Feasible, check_domain, with_names
from sparse_bo.domains.encoded import SpaceBox, recorded_space
from sparse_bo.domains.sharded import has_hash
from sparse_bo.errors import StorageError
from sparse_bo.evaluations.job import Arrays
from sparse_bo.evaluations.results import Value
from sparse_bo.journal import Journal
from sparse_bo.policies import Outcomes, Policy
from sparse_bo.policies.persistence import describe, fingerprint, rebuild

logger = logging.getLogger(__name__)

_ABOUT: Mapping[str, Any] = {
    **dict.fromkeys(("policy", "fingerprint", "arrays", "dtype", "device"), str),
    **dict.fromkeys(("notes", "versions"), dict),
    **{"description": object, "seed": int, "certify_every": (int, type(None)), "minimize": bool},
}
"""Types of the fields of every description; :func:`checked_about` adds those of a domain."""


def about_run(
    domain: Domain,
    policy: Policy,
    *,
    seed: int,
    certify_every: int | None,
    notes: Mapping[str, Any],
    why: str | None = None,
    taken: str | None = None,
    minimize: bool = False,
    outcomes: Outcomes | None = None,
    arrays: Arrays = "torch",
    workers: int | None = None,
) -> dict[str, Any]:
    """Return the description of a run for a journal, with the reason of a default policy and the type of its inputs.

    ``taken`` describes the observations of other runs from which it starts.
    """
    description = describe(policy)
    return {
        "policy": policy.name,
        "description": description,
        "fingerprint": fingerprint(description),
        "seed": seed,
        "certify_every": certify_every,
        "minimize": minimize,
        **({} if outcomes is None else {"outcomes": outcomes.describe(), "results": len(outcomes.names)}),
        "arrays": arrays,
        "notes": notes,
        **{name: value for name, value in {"why": why, "taken": taken, "workers": workers}.items() if value is not None},
        "versions": {"sparse_bo": __version__, "torch": torch.__version__},
        **domain.describe(),
    }


def shared_settings(about: Mapping[str, Any], initial: tuple[Tensor, list[Value]] | None) -> dict[str, Any]:
    """Return the settings that all ranks of a run must share, by name."""
    given = None if initial is None else [initial[0].tolist(), initial[1]]
    return {
        "policy": about["policy"],
        "settings of the policy": about["fingerprint"],
        **{name: about.get(name) for name in ("seed", "certify_every", "minimize", "outcomes")},
        "initial observations": None if given is None else hashlib.blake2b(repr(given).encode(), digest_size=8).hexdigest(),
        **{f"version of {name}": version for name, version in about["versions"].items()},
    }


def run_info(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a run for its history."""
    run = ("policy", "why", "taken", "seed", "minimize", "outcomes")
    domain = ("arms", "others", "names", "inputs", "bounds", "space", "versions", "device")
    return {name: about[name] for name in (*run, *domain) if name in about}


def checked_about(journal: Journal) -> Mapping[str, Any]:
    """Return the description of the run in a journal; raise :class:`StorageError` if it is incomplete."""
    about = journal.about
    box = "bounds" in about or "dims" in about
    domain: dict[str, Any] = {"bounds": list, "dims": int} if box else {"arms": list, "arms_hash": str}
    wrong = [name for name, kind in {**_ABOUT, **domain}.items() if name not in about or not isinstance(about[name], kind)]
    wrong += ["space"] if "space" in about and not isinstance(about["space"], Mapping) else []
    wrong += ["workers"] if type(about.get("workers", 1)) is not int else []
    others = about.get("others", 0)
    if "arms" in domain and not wrong and [type(size) for size in about["arms"]] != [int, int]:
        wrong.append("arms")
    elif "arms" in domain and not wrong and (type(others) is not int or not 0 <= others < about["arms"][0]):
        wrong.append("others")
    if wrong:
        raise StorageError(
            f"the description of the run in {journal.path} lacks {', '.join(wrong)}: it is damaged, or was not written by "
            "AskTell; take another copy"
        )
    return about


@contextmanager
def as_written(path: Path, part: str, *passing: type[Exception]) -> Iterator[None]:
    """Name the part of a journal that has other values than a run writes, although its checksums fit.

    Raises:
        StorageError: In place of the exception that such values cause, unless it is one of ``passing``.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, StorageError) and str(path) not in str(error):
            raise StorageError(f"{part} in {path}: {error}") from error
        if isinstance(error, (StorageError, MemoryError, Warning, *passing)):
            raise
        raise StorageError(
            f"{part} in {path} cannot be used ({type(error).__name__}: {str(error)[:300]}): the journal is damaged, or another "
            "version or program wrote it; take another copy, or use that version"
        ) from error


def recorded_outcomes(journal: Journal) -> Outcomes | None:
    """Return the outcomes of a recorded run; ``None`` if it has one objective.

    Raises:
        StorageError: If their description is not one that a run writes.
    """
    described, columns = journal.about.get("outcomes"), journal.about.get("results")
    if described is None and columns is None:
        return None
    with as_written(journal.path, "the description of the outcomes"):
        outcomes = Outcomes.of(**(described or {}))
        if type(columns) is not int or columns != len(outcomes.names):
            raise ValueError(f"{columns!r} numbers a result for {len(outcomes.names)} outcomes")
    return outcomes


def domain_of(
    journal: Journal, arms: ArmSet | None, device: str | torch.device | None, *, feasible: Feasible | None, asking: bool
) -> Domain:
    """Return the domain of a recorded run.

    Args:
        journal: Journal of the run.
        arms: Arms of the run, if they were too large for the journal.
        device: Device of the computations; default: the recorded one, or the CPU where this machine has none such.
        feasible: Feasibility function of a space that is searched as a box.
        asking: Whether the run continues, which requires that function.

    Raises:
        StorageError: If the description of the run is incomplete.
        ValueError: If ``arms`` or ``feasible`` are not those of the run, or are required and missing.
    """
    about, path = checked_about(journal), journal.path
    where = _recorded_device(about["device"], path) if device is None else torch.device(device)
    if arms is not None and ("space" in about or "bounds" in about):
        kind = "space of named parameters" if "space" in about else "box"
        raise ValueError(f"the run in {path} is on a {kind}; drop arms=")
    if "space" in about:
        with as_written(path, "the description of the space"):
            space = recorded_space(about, feasible, where)
        if asking and isinstance(space, SpaceBox) and space.restricted != (feasible is not None):
            fix = "has a feasibility function, which a journal cannot store; pass feasible="
            raise ValueError(f"the run in {path} {fix if space.restricted else 'has no feasibility function; drop feasible='}")
        return space
    if feasible is not None:
        raise ValueError(f"the run in {path} is on no space of named parameters; drop feasible=")
    if "bounds" in about:
        with as_written(path, "the description of the box"):
            dtype = getattr(torch, about["dtype"].removeprefix("torch."))
            return Box(torch.tensor(about["bounds"], dtype=dtype, device=where))
    others = about.get("others", 0)
    if arms is None:
        with as_written(path, "the arms"):
            arms = journal.arms()
        if arms is None:
            raise ValueError(
                f"the {about['arms'][0] - others:,} arms of the run in {path} are not in it (large ones are not recorded, nor "
                "those of files); pass arms="
            )
        domain: Domain = Arms(arms.to(where), others=others)
    else:
        shape, wanted = list(arms.shape), [about["arms"][0] - others, about["arms"][1]]
        if others and isinstance(arms, Tensor) and shape == wanted:
            with as_written(path, "the inputs of earlier observations"):
                arms = torch.cat([arms.detach(), journal.last_arms(others).to(arms)])
        checked = Arms(arms).points
        alike = list(checked.shape) == about["arms"] and str(checked.dtype) == about["dtype"]
        if not alike or not has_hash(checked, about["arms_hash"]):  # the hash reads every arm: last
            raise ValueError(
                f"expected the arms of the run in {path} ({' x '.join(map(str, wanted))}, {about['dtype']}), got others "
                f"({' x '.join(map(str, shape))}, {arms.dtype}): this journal belongs to another problem"
                + ("; pass them as they were: a tensor, a MemmapArms or a ProductGrid" if alike else "")
            )
        domain = check_domain(arms if device is None else arms.to(device))
        domain = replace(domain, others=others) if isinstance(domain, Arms) and others else domain
    with as_written(path, "the names of the arms"):
        return with_names(domain, about.get("names"), about.get("inputs", ()))


def _recorded_device(name: str, path: Path) -> torch.device:
    """Return the device of a run, the CPU if this machine cannot compute on it; that is logged."""
    try:
        return torch.zeros(0, dtype=torch.float64, device=name).device
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        logger.warning("the run in %s computed on %s, which is not here (%s); it goes on on the CPU", path, name, error)
        return torch.device("cpu")


def policy_of(journal: Journal, policy: Policy | None) -> Policy:
    """Return the policy of a recorded run."""
    about, path = checked_about(journal), journal.path
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
    """Return the names of the settings that differ, as the end of a message."""
    fields = [description.get("fields", {}) if isinstance(description, Mapping) else {} for description in (before, now)]
    names = [n for n in sorted({*fields[0], *fields[1]}) if fields[0].get(n) != fields[1].get(n)]
    return f": {', '.join(names)}" if names else ""
