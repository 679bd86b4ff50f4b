"""Descriptions of policies as JSON values, from which they are rebuilt; a journal has no pickles.

Rebuilt are numbers, strings, ``None``, lists, tensors, dtypes, this package's frozen dataclasses, and GPyTorch's plain kernels
without priors. The description of anything else can be compared only.
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
"""Modules whose public dataclasses a description may name."""

Description = Any
"""JSON values."""


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
    again = _rebuild_kernel(description)
    before, after = kernel.state_dict(), again.state_dict()
    # The kernel may be on any device, the rebuilt one is on the default device.
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
