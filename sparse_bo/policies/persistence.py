"""Freezing: a policy's state as arrays and plain data, and back, so that a journal can start in the middle of a run.

A state is a frozen dataclass. Its class says which of its fields are kept as they are, where it declares them::

    @dataclass(frozen=True, eq=False)
    class CountedState(State):
        count: int = field(default=0, metadata=KEPT)
        model: Model | None = None  # made again from what is kept

    frozen = freeze_fields(state)                            # {"count": 3}
    state = replace(empty, **thaw_fields(CountedState, frozen))

What is no plain field (a prior, a dictionary, observations, anything that is fitted again) has a pair of functions here. All of
them write into one flat mapping; :func:`under` and :func:`part_of` put several of a kind beside each other. The names in it are
those in journals: a renamed field makes older journals unreadable.
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
"""Metadata of a field that is frozen as it is: a tensor, or what ``json`` takes (tuples come back as lists)."""


def kept_since(absent: Any) -> Mapping[str, Any]:
    """Return the metadata of a field that earlier versions did not keep, and what stands for it in their journals."""
    return MappingProxyType({"kept": True, "absent": absent})


def freeze_fields(state: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are :data:`KEPT`, by name."""
    return {field.name: getattr(state, field.name) for field in fields(state) if field.metadata.get("kept")}


def thaw_fields(kind: type[Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`freeze_fields` kept of a value of class ``kind``, to make or replace one with.

    Raises:
        StorageError: If one of the fields was not frozen, and not because earlier versions did not have it.
    """
    frozen = {f.name: f.metadata["absent"] for f in fields(kind) if "absent" in f.metadata} | dict(frozen)
    names = [field.name for field in fields(kind) if field.metadata.get("kept")]
    missing = [name for name in names if name not in frozen]
    if missing:
        raise StorageError(
            f"the snapshot has no {', '.join(missing)}: another version of sparse_bo wrote it; resume with that version"
        )
    return {name: frozen[name] for name in names}


def on_device(frozen: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return what was frozen with its tensors on ``device``."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in frozen.items()}


def under(prefix: str, frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was frozen with ``prefix`` and a point before every name."""
    return {f"{prefix}.{name}": value for name, value in frozen.items()}


def part_of(frozen: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return what :func:`under` put under ``prefix``."""
    return {name[len(prefix) + 1 :]: value for name, value in frozen.items() if name.startswith(f"{prefix}.")}


def freeze_observations(observations: Observations) -> dict[str, Any]:
    """Return observations of arms, without their inputs: O(distinct pulled arms)."""
    return {field.name: getattr(observations, field.name) for field in fields(observations) if field.name != "X"}


def thaw_observations(frozen: Mapping[str, Any], arms: ArmSet) -> Observations:
    """Return the observations that :func:`freeze_observations` froze, of ``arms`` (``a x d``); tensors on their device.

    Earlier versions kept sums of squares: those are squares measured from 0.
    """
    if "squares" not in frozen:
        frozen = {**frozen, "squares": frozen["sums_of_squares"], "anchors": torch.zeros_like(frozen["sums"])}
    names = [field.name for field in fields(Observations) if field.name != "X"]
    cache_rows(arms, frozen["indices"])
    return Observations(arms[frozen["indices"]], **{name: frozen[name] for name in names})


def freeze_dictionary(dictionary: Dictionary) -> dict[str, Any]:
    """Return a dictionary: as rows of what it was chosen from, or as points if it is external. O(m) or O(m d)."""
    chosen = {"points": dictionary.points} if dictionary.indices is None else {"dictionary": dictionary.indices}
    return {"probabilities": dictionary.probabilities} | chosen


def thaw_dictionary(frozen: Mapping[str, Any], inputs: ArmSet) -> Dictionary:
    """Return the dictionary that :func:`freeze_dictionary` froze, chosen from ``inputs`` (``n x d``)."""
    chosen = frozen.get("dictionary")
    return Dictionary(frozen["points"] if chosen is None else inputs[chosen], frozen["probabilities"], chosen)


def freeze_prior(prior: KnownPrior | Prior) -> dict[str, Any]:
    """Return a prior, its kernel as a description."""
    kernel = describe(prior.covar_module)
    return {"prior_mean": prior.prior_mean, "regularization": prior.regularization, "kernel": kernel}


def thaw_prior(frozen: Mapping[str, Any], *, given: Kernel | None) -> KnownPrior:
    """Return the prior that :func:`freeze_prior` froze.

    Args:
        frozen: With the description of a kernel.
        given: The policy's kernel, which counts; ``None``: the kernel is rebuilt from its description.

    Raises:
        ValueError: If no kernel is given and the description is of one that cannot be rebuilt.
    """
    kernel = rebuild(frozen["kernel"]) if given is None else given
    return KnownPrior(kernel, frozen["prior_mean"], frozen["regularization"])
