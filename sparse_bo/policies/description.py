"""A policy as plain data, from which it can be rebuilt: what a journal keeps instead of a pickle.

Known are numbers, strings, ``None``, lists, tensors, dtypes, this package's frozen dataclasses, and GPyTorch's plain kernels
without priors. Anything else is described well enough to be recognised, not to be rebuilt.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import torch
from gpytorch.kernels import AdditiveKernel, Kernel, LinearKernel, MaternKernel, ProductKernel, RBFKernel, RQKernel, ScaleKernel
from torch import Tensor

KERNELS = {kind.__name__: kind for kind in (RBFKernel, MaternKernel, RQKernel, LinearKernel)}
WRAPPERS = {kind.__name__: kind for kind in (ScaleKernel, AdditiveKernel, ProductKernel)}
_DTYPES = {str(dtype): dtype for dtype in (torch.float64, torch.float32, torch.int64, torch.int32, torch.bool)}

HOMES = ("sparse_bo.policies", "sparse_bo.dictionary", "sparse_bo.widths")
"""Where the values are that a description may name: names outlive the files that they are in."""

_WITH_SURROGATES = ("BoTorchUCB", "GSSBO", "RSSBO", "SparseUCB", "VecchiaUCB", "SGPTS", "QFFTS")

RENAMED: Mapping[str, Mapping[str, str]] = {policy: {"fit": "fitter"} for policy in _WITH_SURROGATES}
"""Fields by class that older journals describe under another name: ``{class: {name there: name now}}``.

``fitter``: a function that fits a model; ``fit`` is the likelihood's name where a ``SparseGP`` has it.
"""

Description = Any
"""What ``json`` takes."""

ADDED: Mapping[str, Mapping[str, Description]] = {
    **{policy: {"learning": "map"} for policy in _WITH_SURROGATES},
    "TrustRegion": {"goal": "best"},
}
"""Fields by class that older journals lack, with what was done before there was a choice: ``{class: {name: value}}``."""

REPLACED: Mapping[str, Mapping[str, Description]] = {"sweep_dtype": {"tf32": {"dtype": "torch.float32"}}}
"""Values by field that older journals describe and that there are no more, with what does the same now.

``"tf32"``: sweeps switched the process to TF32. A precision of sweeps changes no pick.
"""


def describe(value: Any) -> Description:
    """Return a value as plain data; what cannot be rebuilt is marked ``"unknown"``."""
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
    """Return the value that :func:`describe` described.

    Raises:
        ValueError: If it holds something that cannot be rebuilt.
    """
    if isinstance(description, list):
        return [rebuild(item) for item in description]
    if not isinstance(description, Mapping):
        return description
    if "kernel" in description:
        return _rebuild_kernel(description)
    if "tensor" in description:
        held = torch.tensor(description["tensor"], dtype=_DTYPES[description["dtype"]], device="cpu")
        return held.reshape(description["shape"])
    if "dtype" in description:
        return _DTYPES[description["dtype"]]
    if "value" in description:
        parts = up_to_date(description)["fields"]
        return _class_of(description["value"])(**{name: rebuild(part) for name, part in parts.items()})
    raise ValueError(f"{description.get('unknown', description)!s} cannot be rebuilt from its description")


def fingerprint(description: Description) -> str:
    """Return a hash of a description: equal for equal settings, whichever version described them."""
    return _hash(up_to_date(description))


def has_fingerprint(description: Description, recorded: str) -> bool:
    """Return whether a recorded fingerprint is that of a description, as this version or the one that wrote it hashes it."""
    return recorded in (fingerprint(description), _hash(description))


def _hash(description: Description) -> str:
    return hashlib.sha256(json.dumps(description, sort_keys=True).encode()).hexdigest()


def up_to_date(description: Description) -> Description:
    """Return an older version's description as this one writes it: classes without modules, fields by their names now."""
    if isinstance(description, list):
        return [up_to_date(item) for item in description]
    if not isinstance(description, Mapping):
        return description
    parts = {key: up_to_date(item) for key, item in description.items()}
    if "fields" not in parts:
        return parts
    kind = parts["value"].rpartition(":")[2]  # early versions wrote module:name
    names = RENAMED.get(kind, {})
    fields_now = {names.get(name, name): part for name, part in parts["fields"].items()}
    replaced = {name: _replaced(name, part) for name, part in fields_now.items()}
    return {"value": kind, "fields": {**ADDED.get(kind, {}), **replaced}}


def _replaced(name: str, part: Description) -> Description:
    return REPLACED[name].get(part, part) if name in REPLACED and isinstance(part, str) else part


def _class_of(name: str) -> Any:
    """Return the class of a name, looked for among the public names of :data:`HOMES`."""
    plain = name.rpartition(":")[2]
    for home in HOMES:
        module = importlib.import_module(home)
        if plain in module.__all__ and is_dataclass(getattr(module, plain)):
            return getattr(module, plain)
    raise ValueError(f"{plain} is not a value of this version of sparse_bo")


def _describe_kernel(kernel: Kernel) -> Description:
    """Describe a kernel, unless what is rebuilt from the description differs from it."""
    description = _kernel_parts(kernel)
    if description is None:
        return _unknown(kernel)
    again = _rebuild_kernel(description)
    before, after = kernel.state_dict(), again.state_dict()
    # The kernel may be on any device, and what is rebuilt is made on the default one.
    equal = list(before) == list(after) and all(torch.equal(before[key].cpu(), after[key].cpu()) for key in before)
    same = equal and repr(again) == repr(kernel)
    return description if same else _unknown(kernel)


def _kernel_parts(kernel: Kernel) -> dict[str, Any] | None:
    name = type(kernel).__name__
    arguments: dict[str, Any] = {}
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
    if name == "ScaleKernel":
        kernel = ScaleKernel(parts[0], **arguments)
    elif name in WRAPPERS:
        kernel = WRAPPERS[name](*parts, **arguments)
    elif name in KERNELS:
        kernel = KERNELS[name](**arguments)
    else:
        raise ValueError(f"kernel {name!r} is not known to this version of sparse_bo")
    state = {key: rebuild(value) for key, value in description["state"].items()}
    floating = [v.dtype for v in state.values() if isinstance(v, Tensor) and v.dtype.is_floating_point]
    kernel = kernel.to(floating[0]) if floating else kernel
    kernel.load_state_dict({**kernel.state_dict(), **state})
    return kernel


def _unknown(value: Any) -> Description:
    kind = type(value)
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    state = {}
    if isinstance(value, torch.nn.Module):
        state = {key: part.detach().cpu().tolist() for key, part in value.state_dict().items()}
    return {"unknown": f"{kind.__module__}.{kind.__qualname__}", "repr": text, "state": state}
