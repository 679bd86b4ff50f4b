"""The format of a journal: a header line, then checksummed records.

The header is ``sparse_bo journal 1 (sparse_bo 0.1.0)`` and a newline: the format, and the version that created the file. A
record is a head of 20 bytes and a payload. The head has the payload's length (uint64), the kind (4 characters), the CRC-32 of
the payload, and the CRC-32 of the head so far, continued from the previous head (the first: from the header). Heads are so
chained that a record that is changed, missing, repeated or of another file is found. Numbers are little-endian.

========  ==================================================================================================================
``run``   what identifies the run, JSON; the first record
``arms``  the arms, where they are small, packed (:func:`pack`)
``add``   observations that the run has not asked for: ``n`` or ``n x d`` picks, ``n`` or ``n x m`` results
``enqu``  ``n`` or ``n x d`` picks that the next asks return first
``ask``   first ticket, number wanted (−1: no limit), ``q`` or ``q x d`` picks
``move``  ``q`` or ``q x d`` picks at which pending evaluations were made instead of those asked for, their ``q`` tickets
``tell``  ``q`` tickets, ``q`` or ``q x m`` results (NaN: failed; of several outcomes: missing)
``adsd``  ``add`` with results of known noise: after the results as many standard deviations (NaN: not known)
``tesd``  ``tell`` with results of known noise, likewise
``updt``  an ask updated the state by the results so far; empty
``row``   a row of the history: its number, then its fields as JSON; follows from the events before it
``snap``  a snapshot of the state, packed; follows from the events before it
========  ==================================================================================================================

The fields of ``run`` are those of :func:`sparse_bo.runs.description.about_run`, of ``row`` of
:class:`sparse_bo.runs.history.HistoryRow`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.errors import StorageError
from sparse_bo.evaluations.results import Value, has_sds, results_of, sds_of

FORMAT = 1
Kind = Literal["add", "enqueue", "ask", "move", "tell", "update"]
RUN, ARMS, ROW, SNAPSHOT = b"run ", b"arms", b"row ", b"snap"
EVENTS: Mapping[bytes, tuple[Kind, tuple[str, ...]]] = {
    b"add ": ("add", ("picks", "results")),
    b"adsd": ("add", ("picks", "results", "sds")),
    b"enqu": ("enqueue", ("picks",)),
    b"ask ": ("ask", ("picks",)),
    b"move": ("move", ("picks", "tickets")),
    b"tell": ("tell", ("tickets", "results")),
    b"tesd": ("tell", ("tickets", "results", "sds")),
    b"updt": ("update", ()),
}
"""Kind of a record -> that of its event, and the arrays of the event in their order."""
_KINDS = {(event, "sds" in parts): kind for kind, (event, parts) in EVENTS.items()}
_HEADER = re.compile(rb"sparse_bo journal (\d{1,9}) \(sparse_bo ([^)\n]{1,60})\)\n")
_HEAD, _CHECK, _ASK, _ROW = (struct.Struct(layout) for layout in ("<Q4sI", "<I", "<qq", "<q"))
_HEAD_BYTES = _HEAD.size + _CHECK.size


class Event(NamedTuple):
    """Something that happened to a run."""

    kind: Kind
    """``add``: observations that the run has not asked for, those from before it too; ``enqueue``; ``ask``; ``move``: pending
    evaluations were made elsewhere; ``tell``; ``update``: an ask updated the state."""
    first: int | None = None
    """``ask``: first ticket."""
    max_q: int | None = None
    """``ask``: number wanted; ``None``: no limit."""
    picks: NDArray[Any] | None = None
    """``ask``, ``add``, ``enqueue``, ``move``: ``q`` arms (int64) or ``q x d`` points (float64)."""
    tickets: NDArray[np.int64] | None = None
    """``tell``, ``move``: ``q``."""
    results: NDArray[np.float64] | None = None
    """``tell``, ``add``: ``q`` numbers, or ``q x m`` outcomes; NaN where one failed or is missing."""
    sds: NDArray[np.float64] | None = None
    """``tell``, ``add``: ``q x m`` known standard deviations of their noise, NaN where one is not known; ``None``: none is."""

    @classmethod
    def of_values(cls, kind: Kind, values: Sequence[Value], **others: Any) -> Event:
        """Return a ``tell`` or ``add`` with results."""
        sds = np.array(sds_of(values), np.float64) if has_sds(values) else None
        return cls(kind, results=np.array(values, np.float64), sds=sds, **others)

    @property
    def values(self) -> list[Value]:
        """The results."""
        assert self.results is not None
        return results_of(self.results.tolist(), None if self.sds is None else self.sds.tolist())


class Row(NamedTuple):
    """A row of the history, without the fields that follow from the events."""

    number: int
    summary: Mapping[str, Any]


class End(NamedTuple):
    """Where a record ends."""

    offset: int
    """Bytes."""
    check: int
    """Checksum of its head, which depends on all records so far."""


class Record(NamedTuple):
    """A record in the bytes of a journal."""

    number: int
    offset: int
    kind: bytes
    """Empty if the head is damaged."""
    payload: bytes
    whole: bool
    """Whether the checksums of head and payload hold."""
    end: End


def header(version: str) -> tuple[bytes, End]:
    """Return the header of a journal that this version creates."""
    line = f"sparse_bo journal {FORMAT} (sparse_bo {version})\n".encode()
    return line, End(len(line), crc32(line))


def read_header(data: bytes) -> tuple[int, str, End] | None:
    """Return the format of a journal and the version that created it; ``None`` of other files."""
    found = _HEADER.match(data)
    return None if found is None else (int(found[1]), found[2].decode(errors="replace"), End(found.end(), crc32(found[0])))


def encode(record: Event | Row | bytes) -> tuple[bytes, bytes]:
    """Return kind and payload of an event, a row of the history, or a snapshot (bytes)."""
    if isinstance(record, bytes):
        return SNAPSHOT, record
    if isinstance(record, Row):
        return ROW, _ROW.pack(record.number) + json.dumps(record.summary).encode()
    kind, first, max_q, *arrays = record
    payload = _ASK.pack(first, -1 if max_q is None else max_q) if kind == "ask" else b""
    for part in arrays:
        if part is not None:
            payload += part.astype("<i8" if part.dtype.kind == "i" else "<f8", copy=False).tobytes()
    return _KINDS[kind, record.sds is not None], payload


def frame(kind: bytes, payload: bytes, end: End) -> tuple[bytes, End]:
    """Return the bytes of a record that follows ``end``, and where it ends."""
    head = _HEAD.pack(len(payload), kind, crc32(payload))
    check = crc32(head, end.check)
    return head + _CHECK.pack(check) + payload, End(end.offset + _HEAD_BYTES + len(payload), check)


def record_at(data: bytes, offset: int) -> tuple[bytes, bytes]:
    """Return kind and payload of the record at ``offset``."""
    length, kind, _ = _HEAD.unpack_from(data, offset)
    return kind, data[offset + _HEAD_BYTES : offset + _HEAD_BYTES + length]


def scan(data: bytes, end: End) -> Iterator[Record]:
    """Yield the records after ``end``, up to one that is cut off or has a damaged head. About 1 µs each.

    A record is cut off if the file ends within it, or if nothing but zeros follows: power failures leave those.
    """
    number = 0
    while len(data) - end.offset >= _HEAD_BYTES:
        offset, start = end.offset, end.offset + _HEAD_BYTES
        length, kind, expected = _HEAD.unpack_from(data, offset)
        check = crc32(data[offset : start - _CHECK.size], end.check)
        if check != _CHECK.unpack_from(data, start - _CHECK.size)[0]:
            if any(data[offset:]):
                yield Record(number, offset, b"", data[:0], False, end)
            return
        if length > len(data) - start:
            return
        payload, end = data[start : start + length], End(start + length, check)
        yield Record(number, offset, kind, payload, crc32(payload) == expected, end)
        number += 1


def decode_event(kind: bytes, payload: bytes, dims: int | None, outcomes: int | None = None) -> Event:
    """Return an event; its arrays are views. About 2 µs.

    ``dims`` is ``d`` of a box, ``None`` over arms; ``outcomes`` is ``m``, ``None`` where results are numbers.
    """
    name, parts = EVENTS[kind]
    first, max_q = _ASK.unpack_from(payload) if name == "ask" else (None, -1)
    columns = {"picks": dims, "tickets": None, "results": outcomes, "sds": outcomes or 1}  # none: a vector
    arrays: dict[str, NDArray[Any]] = {}
    start = _ASK.size if name == "ask" else 0
    q = (len(payload) - start) // (8 * sum([columns[part] or 1 for part in parts]) or 1)
    for part in parts:
        width = columns[part]
        stop = start + 8 * q * (width or 1)
        array = np.frombuffer(payload[start:stop], "<i8" if part == "tickets" or (part, dims) == ("picks", None) else "<f8")
        arrays[part], start = array if width is None else array.reshape(-1, width), stop
    if start != len(payload):
        raise ValueError(f"expected {q} rows of {', '.join(parts)}, got {len(payload) - start} bytes more")
    return Event(name, first, None if max_q < 0 else max_q, **arrays)


def row_number(payload: bytes) -> int:
    """Return the number of a row of the history."""
    return int(_ROW.unpack_from(payload)[0])


def decode_row(payload: bytes) -> Row:
    """Return a row of the history."""
    return Row(row_number(payload), json.loads(payload[_ROW.size :]))


def pack(values: Mapping[str, Any]) -> bytes:
    """Return named tensors and JSON values as bytes: a JSON header, then the arrays."""
    names: dict[str, Any] = {}
    arrays: list[bytes] = []
    for name, value in values.items():
        if isinstance(value, Tensor):
            array = value.detach().cpu().contiguous().numpy()
            dtype = array.dtype.newbyteorder("<")
            names[name] = {"dtype": dtype.str, "shape": list(array.shape)}
            arrays.append(array.astype(dtype, copy=False).tobytes())
        else:
            names[name] = {"value": value}
    text = json.dumps(names).encode()
    return b"".join((len(text).to_bytes(8, "little"), text, *arrays))


def unpack(data: bytes) -> dict[str, Any]:
    """Return the values that :func:`pack` packed, tensors on the CPU."""
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
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StorageError(f"expected packed arrays in the journal, got other bytes ({error}); take another copy") from error
    return values
