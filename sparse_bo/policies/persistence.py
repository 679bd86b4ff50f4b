"""Snapshots of a policy's state: arrays and JSON values, from which a resume continues a run in the middle.

A state is a frozen dataclass. Metadata mark the fields that are stored as they are::

    @dataclass(frozen=True, eq=False)
    class CountedState(State):
        count: int = field(default=0, metadata=KEPT)
        model: Model | None = None  # computed again

    frozen = freeze_fields(state)                            # {"count": 3}
    state = replace(empty, **thaw_fields(CountedState, frozen))

A prior, a dictionary, observations and anything that is fitted again have a pair of functions each. All of them write into one
flat mapping; :func:`under` and :func:`part_of` put several of a kind beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.sharded import cache_rows
from sparse_bo.errors import StorageError
from sparse_bo.gp.observations import Observations
from sparse_bo.gp.priors import KnownPrior, Prior
from sparse_bo.policies.description import describe, rebuild

KEPT: Mapping[str, Any] = MappingProxyType({"kept": True})
"""Metadata of a field that is stored as it is: a tensor or a JSON value. Tuples come back as lists."""


def freeze_fields(state: Any) -> dict[str, Any]:
    """Return the fields of a dataclass marked :data:`KEPT`, by name."""
    return {field.name: getattr(state, field.name) for field in fields(state) if field.metadata.get("kept")}


def thaw_fields(kind: type[Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the marked fields of class ``kind`` from a snapshot, by name.

    Raises:
        StorageError: If one is missing.
    """
    names = [field.name for field in fields(kind) if field.metadata.get("kept")]
    missing = [name for name in names if name not in frozen]
    if missing:
        raise StorageError(
            f"expected {', '.join(missing)} in the snapshot, got none: another version of sparse_bo wrote it; use that version"
        )
    return {name: frozen[name] for name in names}


def on_device(frozen: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return a snapshot with its tensors on ``device``."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in frozen.items()}


def under(prefix: str, frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return a snapshot with ``prefix`` and a point before every name."""
    return {f"{prefix}.{name}": value for name, value in frozen.items()}


def part_of(frozen: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries under ``prefix``: the inverse of :func:`under`."""
    return {name[len(prefix) + 1 :]: value for name, value in frozen.items() if name.startswith(f"{prefix}.")}


def freeze_observations(observations: Observations) -> dict[str, Any]:
    """Return observations of arms, without their inputs: O(distinct pulled arms)."""
    return {field.name: getattr(observations, field.name) for field in fields(observations) if field.name != "X"}


def thaw_observations(frozen: Mapping[str, Any], arms: ArmSet) -> Observations:
    """Return observations of ``arms`` (``a x d``): the inverse of :func:`freeze_observations`; tensors on their device."""
    names = [field.name for field in fields(Observations) if field.name != "X"]
    cache_rows(arms, frozen["indices"])
    return Observations(arms[frozen["indices"]], **{name: frozen[name] for name in names})


def freeze_dictionary(dictionary: Dictionary) -> dict[str, Any]:
    """Return a dictionary: as rows of its inputs, or as points if it is external. O(m) or O(m d)."""
    chosen = {"points": dictionary.points} if dictionary.indices is None else {"dictionary": dictionary.indices}
    return {"probabilities": dictionary.probabilities} | chosen


def thaw_dictionary(frozen: Mapping[str, Any], inputs: ArmSet) -> Dictionary:
    """Return a dictionary over ``inputs`` (``n x d``): the inverse of :func:`freeze_dictionary`."""
    chosen = frozen.get("dictionary")
    return Dictionary(frozen["points"] if chosen is None else inputs[chosen], frozen["probabilities"], chosen)


def freeze_prior(prior: KnownPrior | Prior) -> dict[str, Any]:
    """Return a prior, its kernel as a description."""
    kernel = describe(prior.covar_module)
    return {"prior_mean": prior.prior_mean, "regularization": prior.regularization, "kernel": kernel}


def thaw_prior(frozen: Mapping[str, Any], *, given: Kernel | None) -> KnownPrior:
    """Return a prior: the inverse of :func:`freeze_prior`.

    Args:
        frozen: Holds the description of a kernel.
        given: The policy's kernel, used in its place; ``None``: the kernel is rebuilt from its description.

    Raises:
        ValueError: If the kernel must be rebuilt and cannot be.
    """
    kernel = rebuild(frozen["kernel"]) if given is None else given
    return KnownPrior(kernel, frozen["prior_mean"], frozen["regularization"])
