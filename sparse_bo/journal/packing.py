"""Named tensors and plain values as bytes, without pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparse_bo.errors import StorageError


def pack(values: Mapping[str, Any]) -> bytes:
    """Return tensors, and what ``json`` takes, as bytes: a JSON header, then the raw arrays."""
    header: dict[str, Any] = {}
    blobs: list[bytes] = []
    for name, value in values.items():
        if isinstance(value, Tensor):
            array = value.detach().cpu().contiguous().numpy()
            header[name] = {"dtype": array.dtype.newbyteorder("<").str, "shape": list(array.shape)}
            blobs.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        else:
            header[name] = {"value": value}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(blobs)


def unpack(data: bytes) -> dict[str, Any]:
    """Return what :func:`pack` packed, tensors on the CPU.

    Raises:
        StorageError: If the bytes are not those of :func:`pack`.
    """
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        values: dict[str, Any] = {}
        for name, part in json.loads(data[8:start]).items():
            if "value" in part:
                values[name] = part["value"]
                continue
            dtype, shape = np.dtype(part["dtype"]), tuple(part["shape"])
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(data, dtype, count=count, offset=start)
            values[name] = torch.from_numpy(array.astype(dtype.newbyteorder("="))).reshape(shape)
            start += count * dtype.itemsize
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"a record of the journal is not what was written: {error}") from error
    return values
