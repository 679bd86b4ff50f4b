"""Policies as JSON values, and snapshots of their states: arrays and JSON values, from which a run is resumed; no pickles.

A state is a frozen dataclass. Metadata mark the fields that are stored::

    @dataclass(frozen=True, eq=False)
    class CountedState(State):
        count: int = field(default=0, metadata=KEPT)                          # as it is
        y: Tensor = field(metadata=sized("n"))                                # of a shape
        failures: Failures | None = field(default=None, metadata=kept(Failures))  # a dataclass, field by field
        fitted: Fitted | None = field(default=None, metadata=PARTLY)          # marked fields; computed again from them
        model: Model | None = None                                            # computed again

    frozen = freeze_fields(state)
    state = replace(empty, **thaw_fields(CountedState, frozen))

Observations, dictionaries and priors have a pair of functions each. All write into one flat mapping; :func:`under` and
:func:`part_of` put several of a kind beside each other.

Descriptions are of numbers, strings, ``None``, lists, tensors, dtypes, this package's frozen dataclasses, and GPyTorch's plain
kernels without priors. The description of anything else can be compared only.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import MappingProxyType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, LinearKernel, MaternKernel, ProductKernel, RBFKernel, RQKernel, ScaleKernel
from torch import Tensor

from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.domains.sharded import cache_rows
from sparse_bo.errors import StorageError
from sparse_bo.gp.objective_prior import KnownPrior, Prior, times
from sparse_bo.gp.observations import Observations
from sparse_bo.kernels import TanimotoKernel
from sparse_bo.kernels.closed_forms import part_outside

KEPT: Mapping[str, Any] = MappingProxyType({"kept": True})
"""Metadata of a field that is stored as it is: a tensor of any shape or a JSON value."""
PARTLY: Mapping[str, Any] = MappingProxyType({"kept": "partly"})
"""Metadata of a field whose own marked fields are stored: a dataclass, ``None``, or a tuple of dataclasses."""
KERNELS = {kind.__name__: kind for kind in (RBFKernel, MaternKernel, RQKernel, LinearKernel, TanimotoKernel)}
WRAPPERS = {kind.__name__: kind for kind in (ScaleKernel, AdditiveKernel, ProductKernel)}
_DTYPES = {str(dtype): dtype for dtype in (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool)}
HOMES = ("sparse_bo.policies", "sparse_bo.dictionary", "sparse_bo.widths")
"""Modules whose public dataclasses a description may name."""
Description = Any
"""JSON values."""
P = TypeVar("P")
hints_of: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


def sized(*sizes: str) -> Mapping[str, Any]:
    """Return the metadata of a tensor that is stored: its shape in letters, the same in all fields of a class.

    ``"..."`` at the end stands for any more sizes.
    """
    return {"kept": True, "sizes": sizes}


def kept(kind: type[Any]) -> Mapping[str, Any]:
    """Return the metadata of a field that is stored field by field: a dataclass of tensors and JSON values, or ``None``."""
    return {"kept": kind}


def freeze_fields(state: Any) -> dict[str, Any]:
    """Return the fields of a dataclass marked :data:`KEPT`, :func:`kept` or :data:`PARTLY`, by name."""
    frozen: dict[str, Any] = {}
    for field in fields(state):
        mark, value = field.metadata.get("kept"), getattr(state, field.name)
        if mark is True:
            frozen[field.name] = value
        elif mark == "partly" and isinstance(value, tuple):
            for number, part in enumerate(value):
                frozen |= under(f"{field.name}.{number}", freeze_fields(part))
        elif mark == "partly" and value is not None:
            frozen |= under(field.name, freeze_fields(value))
        elif mark is not None and value is not None:
            frozen |= under(field.name, {part.name: getattr(value, part.name) for part in fields(value)})
    return frozen


def thaw_fields(kind: type[Any], frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of class ``kind`` marked :data:`KEPT` or :func:`kept` from a snapshot, by name.

    Raises:
        StorageError: If one is missing, has another type, or a tensor has another shape than the fields beside it.
    """
    marks = {field.name: field.metadata.get("kept") for field in fields(kind)}
    found = checked_fields(kind, frozen, [name for name, mark in marks.items() if mark is True])
    for field in fields(kind):
        mark, part = marks[field.name], part_of(frozen, field.name)
        if isinstance(mark, type):
            found[field.name] = thaw_part(mark, part) if part or field.default is MISSING else None
    return found


def thaw_part(kind: type[P], frozen: Mapping[str, Any]) -> P:
    """Return a dataclass of tensors and JSON values, all of whose fields were stored. Errors: :func:`thaw_fields`."""
    stored: Any = kind
    return kind(**checked_fields(kind, frozen, [field.name for field in fields(stored)]))


def checked_fields(kind: type[Any], frozen: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return fields of class ``kind`` from a snapshot, which may be of a damaged or foreign file. Errors: :func:`thaw_fields`.

    Tensors have the shapes of :func:`sized`.
    """
    missing = [name for name in names if name not in frozen]
    if missing:
        raise StorageError(
            f"expected {', '.join(missing)} in the snapshot, got none: another version of sparse_bo wrote it; use that version"
        )
    hints, sizes, found = hints_of(kind), dict[str, int](), dict[str, Any]()
    for field in fields(kind):
        name = field.name
        if name not in names:
            continue
        value, hint, shape = frozen[name], hints[name], field.metadata.get("sizes")
        if isinstance(value, list) and get_origin(hint) is tuple:  # JSON has no tuples
            value = tuple(value)
        if not is_of(value, hint):
            raise StorageError(f"expected {name} in the snapshot to be {hint}, got {value!r:.100}; take another copy")
        absent = isinstance(value, Tensor) and value.shape == (0,) and field.default_factory is not MISSING
        if shape is not None and isinstance(value, Tensor) and not absent:
            letters = [letter for letter in shape if letter != "..."]
            own = dict(zip(letters, value.shape, strict=False))
            dims = value.dim() == len(letters) or (value.dim() > len(letters) and len(letters) < len(shape))
            if not dims or any(sizes.get(letter, size) != size for letter, size in own.items()):
                known = ", ".join(f"{letter} = {sizes[letter]}" for letter in letters if letter in sizes)
                raise StorageError(
                    f"expected {name} in the snapshot with shape ({', '.join(shape)}){known and f', {known}'}, got "
                    f"{tuple(value.shape)}; take another copy"
                )
            sizes |= own
        found[name] = value
    return found


def is_of(value: Any, hint: Any) -> bool:
    """Return whether a value of a file has the type of a field: a tensor, a number, a bool or a list of texts."""
    parts = get_args(hint)
    if isinstance(hint, UnionType):
        return any(is_of(value, part) for part in parts)
    kind = get_origin(hint) or hint
    if kind in (list, tuple, Sequence):
        return isinstance(value, kind) and not isinstance(value, str) and all(is_of(part, parts[0]) for part in value)
    if kind is Mapping:
        return isinstance(value, Mapping) and all(is_of(part, parts[1]) for part in value.values())
    return isinstance(value, int | float if kind is float else kind) and (kind is bool or not isinstance(value, bool))


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
    own = checked_fields(Observations, frozen, [field.name for field in fields(Observations) if field.name != "X"])
    cache_rows(arms, own["indices"])
    return Observations(arms[own["indices"]], **own)


def freeze_dictionary(dictionary: Dictionary) -> dict[str, Any]:
    """Return a dictionary: as rows of its inputs, or as points if it is external. O(m) or O(m d)."""
    chosen = {"points": dictionary.points} if dictionary.indices is None else {"dictionary": dictionary.indices}
    return {"probabilities": dictionary.probabilities} | chosen


def thaw_dictionary(frozen: Mapping[str, Any], inputs: ArmSet) -> Dictionary:
    """Return a dictionary over ``inputs`` (``n x d``): the inverse of :func:`freeze_dictionary`."""
    chosen, probabilities = frozen.get("dictionary"), frozen["probabilities"]
    points = frozen["points"] if chosen is None else inputs[chosen]
    if probabilities.shape != points.shape[:1]:
        raise StorageError(
            f"expected probabilities of {len(points):,} points in the snapshot, got {tuple(probabilities.shape)}; take another "
            "copy"
        )
    return Dictionary(points, probabilities, chosen)


def freeze_prior(prior: KnownPrior) -> dict[str, Any]:
    """Return a prior, its kernel as a description."""
    kernel = describe(prior.covar_module)
    return {"prior_mean": prior.prior_mean, "regularization": prior.regularization, "kernel": kernel, "factor": prior.factor}


def thaw_prior(frozen: Mapping[str, Any], *, given: Prior) -> KnownPrior:
    """Return a prior with the policy's kernel, or the rebuilt one: the inverse of :func:`freeze_prior`.

    Raises:
        ValueError: If the kernel must be rebuilt and cannot be.
    """
    factor, kernel = frozen["factor"], given.covar_module
    if kernel is None:
        kernel = rebuild(frozen["kernel"])
    elif not given.complete:
        kernel = times(kernel, factor)
    return KnownPrior(kernel, frozen["prior_mean"], frozen["regularization"], factor)


def describe(value: Any) -> Description:
    """Return a value as JSON values; one that cannot be rebuilt is marked ``"unknown"``."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (np.integer, np.floating, np.bool_)):
        return value.item()
    if isinstance(value, (list, tuple)):
        return [describe(item) for item in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if isinstance(value, Tensor) and str(value.dtype) in _DTYPES:
        return {"tensor": value.detach().cpu().tolist(), "dtype": str(value.dtype), "shape": list(value.shape)}
    if isinstance(value, Kernel):
        return _describe_kernel(value)
    kind = type(value)
    if is_dataclass(value) and kind.__module__.startswith("sparse_bo."):
        parts = {field.name: describe(getattr(value, field.name)) for field in fields(value) if field.init}
        return {"value": kind.__qualname__, "fields": parts}
    return _unknown(value)


def rebuild(description: Description) -> Any:
    """Return the value of a description: the inverse of :func:`describe`.

    Raises:
        ValueError: If a part of it cannot be rebuilt.
    """
    if isinstance(description, list):
        return [rebuild(item) for item in description]
    if not isinstance(description, Mapping):
        return description
    if "kernel" in description:
        with torch.device("cpu"):  # not the user's default device
            return _rebuild_kernel(description)
    if "tensor" in description:
        held = torch.tensor(description["tensor"], dtype=_DTYPES[description["dtype"]], device="cpu")
        return held.reshape(description["shape"])
    if "dtype" in description:
        return _DTYPES[description["dtype"]]
    if "value" in description:
        parts = {name: rebuild(part) for name, part in description["fields"].items()}
        return _class_of(description["value"])(**parts)
    raise ValueError(f"{description.get('unknown', description)!s} cannot be rebuilt from its description")


def fingerprint(description: Description) -> str:
    """Return a hash of a description, equal for equal settings."""
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def _class_of(name: str) -> Any:
    """Return the dataclass of a name among the public names of :data:`HOMES`."""
    for home in HOMES:
        module = importlib.import_module(home)
        if name in module.__all__ and is_dataclass(getattr(module, name)):
            return getattr(module, name)
    raise ValueError(f"{name} is not a value of this version of sparse_bo")


def _describe_kernel(kernel: Kernel) -> Description:
    """Describe a kernel; as unknown if the rebuilt kernel differs from it."""
    description = _kernel_parts(kernel)
    if description is None:
        return _unknown(kernel)
    again = rebuild(description)
    before, after = kernel.state_dict(), again.state_dict()
    # The kernel may be on any device, the rebuilt one is on the CPU.
    equal = list(before) == list(after) and all(torch.equal(before[key].cpu(), after[key].cpu()) for key in before)
    same = equal and repr(again) == repr(kernel)
    return description if same else _unknown(kernel)


def _kernel_parts(kernel: Kernel) -> dict[str, Any] | None:
    name = type(kernel).__name__
    arguments: dict[str, Any] = {}
    if len(kernel.batch_shape):
        return None
    if kernel.active_dims is not None:
        arguments["active_dims"] = kernel.active_dims.tolist()
    if type(kernel) is WRAPPERS.get(name):
        inside = [kernel.base_kernel] if isinstance(kernel, ScaleKernel) else list(kernel.kernels)
        parts = [_kernel_parts(part) for part in inside]
        if any(part is None for part in parts):
            return None
    elif type(kernel) is KERNELS.get(name):
        parts = []
        if kernel.ard_num_dims is not None:
            arguments["ard_num_dims"] = kernel.ard_num_dims
        if isinstance(kernel, MaternKernel):
            arguments["nu"] = kernel.nu
    else:
        return None
    state = {key: describe(value) for key, value in kernel.state_dict().items() if "." not in key}
    return {"kernel": name, "arguments": arguments, "parts": parts, "state": state}


def _rebuild_kernel(description: Mapping[str, Any]) -> Kernel:
    name, arguments = description["kernel"], dict(description["arguments"])
    parts = [_rebuild_kernel(part) for part in description["parts"]]
    kinds = {**KERNELS, **WRAPPERS}
    if name not in kinds:
        raise ValueError(f"kernel {name!r} is not known to this version of sparse_bo")
    kernel = kinds[name](*parts, **arguments)
    state = {key: rebuild(value) for key, value in description["state"].items()}
    floating = [v.dtype for v in state.values() if isinstance(v, Tensor) and v.dtype.is_floating_point]
    kernel = kernel.to(floating[0]) if floating else kernel
    kernel.load_state_dict({**kernel.state_dict(), **state})
    return kernel


def _unknown(value: Any) -> Description:
    kind = type(part_outside(value, {*KERNELS.values(), *WRAPPERS.values()}) if isinstance(value, Kernel) else value)
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    state = {}
    if isinstance(value, torch.nn.Module):
        state = {key: part.detach().cpu().tolist() for key, part in value.state_dict().items()}
    return {"unknown": f"{kind.__module__}.{kind.__qualname__}", "repr": text, "state": state}
