"""Journals that no run wrote, though their checksums fit, and machines that lack a run's device: named, never a traceback."""

from __future__ import annotations

import json
import logging
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparse_bo import BBKB, AskTell, Choice, Float, Int, Storage
from sparse_bo.errors import StorageError
from sparse_bo.journal.format import frame, header, pack, unpack
from sparse_bo.runs import audit_run, read_run
from sparse_bo.runs.view import view_of_journal
from tests.journal.every_policy import OUTCOMES
from tests.journal.runs import arms, policy, records, rewritten

BOUNDS = torch.tensor([[0.0, -1.0], [1.0, 3.0]], dtype=torch.float64)
RUNS: dict[str, dict[str, Any]] = {
    "arms": {"arms": arms(), "policy": policy()},
    "box": {"bounds": BOUNDS, "policy": BBKB(initial_design=4, ratio_threshold=3.0)},
    "trust region": {"bounds": BOUNDS},
    "outcomes": {"bounds": BOUNDS, **OUTCOMES},
    "outcomes over arms": {"arms": arms(), **OUTCOMES},
    "space": {"space": {"a": Float(0.1, 1, log=True), "b": Int(1, 9, when={"c": "x"}), "c": Choice("x", "y")}},
    "small space": {"space": {"a": Int(1, 9, when={"c": ["y"]}), "c": Choice("x", "y")}},
}
VALUES = [None, True, -1, 0, 3, 2**70, 0.5, 1e308, float("nan"), "", "x", "cuda:0", "torch.int64", [], {}, [[]], [1], {"a": 1}]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Written:
    """Journals of short runs, with a snapshot after every update."""
    return Written(tmp_path_factory)


class Written(dict[str, bytes]):
    """Makes a journal when it is asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory

    def __missing__(self, name: str) -> bytes:
        how, path = RUNS[name], self.factory.mktemp("forged") / "run.journal"
        with AskTell(**how, storage=Storage(path, replay_seconds=0.0), seed=1) as loop:
            for _ in range(8):
                batch = loop.ask(2)
                y = batch.X.double().sum(-1)
                loop.tell(batch.tickets, torch.stack([y, batch.X[:, 0].double()], dim=-1) if "objectives" in how else y)
            loop.ask(2)
        self[name] = path.read_bytes()
        return self[name]


def paths_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of a JSON value."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*path, key)
        yield from paths_of(part, (*path, key))


def other_json(text: bytes, rng: random.Random) -> bytes:
    """Return JSON with one part replaced or left out."""
    value = json.loads(text)
    paths = list(paths_of(value))
    if paths:
        *where, last = rng.choice(paths)
        part = value
        for key in where:
            part = part[key]
        if rng.random() < 0.25:
            del part[last]
        else:
            part[last] = rng.choice(VALUES)
    return json.dumps(value).encode()


def other(kind: bytes, payload: bytes, rng: random.Random) -> bytes:
    """Return another payload."""
    start = {b"run ": 0, b"row ": 8, b"snap": 8, b"arms": 8}.get(kind)
    if start is not None and rng.random() < 0.8:
        stop = start + int.from_bytes(payload[:8], "little") if kind in (b"snap", b"arms") else len(payload)
        text = other_json(payload[start:stop], rng)
        first = len(text).to_bytes(8, "little") if kind in (b"snap", b"arms") else payload[:start]
        return first + text + payload[stop:]
    data = bytearray(payload)
    if rng.random() < 0.6 and len(data) >= 8:
        at = rng.randrange(len(data) // 8) * 8
        data[at : at + 8] = rng.choice([0, 1, 5, 99, 2**63, 2**64 - 1, rng.randrange(2**64)]).to_bytes(8, "little")
    elif rng.random() < 0.5:
        data = data[: rng.randrange(len(data) + 1)]
    else:
        data += bytes(rng.randrange(1, 40))
    return bytes(data)


def forged(data: bytes, rng: random.Random) -> bytes:
    """Return a journal with changed, missing, repeated or swapped records, and checksums that fit."""
    parts = [(record.kind, bytes(record.payload)) for record in records(data)]
    way, k = rng.random(), rng.randrange(1, len(parts))
    if way < 0.75:
        k = 0 if rng.random() < 0.3 else k
        parts[k] = parts[k][0], other(*parts[k], rng)
    elif way < 0.85:
        del parts[k]
    elif way < 0.95:
        parts.insert(k, rng.choice(parts[1:]))
    else:
        parts[k], parts[-1] = parts[-1], parts[k]
    made, end = header("0.1.0")
    for part in parts:
        bytes_, end = frame(*part, end)
        made += bytes_
    return made


def resumed(path: Path) -> None:
    with AskTell.resume(path) as loop:
        loop.result()


@pytest.mark.parametrize("seeds", [range(5), pytest.param(range(5, 1500), marks=pytest.mark.slow)], ids=["some", "many"])
def test_forged_journals_end_in_no_traceback(seeds, written, tmp_path, caplog):
    """Of 1,000 calls 52 did."""
    path, refused = tmp_path / "run.journal", 0
    caplog.set_level(logging.CRITICAL)
    for seed in seeds:
        rng = random.Random(seed)
        data = forged(written[rng.choice(list(RUNS))], rng)
        for attempt in (read_run, resumed, audit_run, view_of_journal):
            path.write_bytes(data)
            message = None
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    attempt(path)
                except (StorageError, ValueError) as error:
                    message = str(error)
            refused += message is not None
            assert message is None or str(path) in message, f"seed {seed}: {message}"
    assert refused > len(seeds)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_mean", {"a": 1}),
        ("best_mean", True),
        ("round", 1.5),
        ("tickets", [0, "x"]),
        ("seconds", {"fit": None}),
        ("refuted", 3),
        ("survivors", []),
    ],
    ids=str,
)
@pytest.mark.parametrize("attempt", [read_run, resumed, audit_run, view_of_journal])
def test_a_row_with_a_field_of_another_type_is_named(attempt, field, value, written, tmp_path):
    def change(kind: bytes, payload: bytes) -> tuple[bytes, bytes]:
        if kind == b"row ":
            payload = payload[:8] + json.dumps({**json.loads(payload[8:]), field: value}).encode()
        return kind, payload

    path = tmp_path / "run.journal"
    path.write_bytes(rewritten(written["box"], change))
    with pytest.raises(StorageError, match=rf"the history in .*TypeError: expected {field} to be "):
        attempt(path)


def with_snapshot(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a journal with its last snapshot changed."""
    last = bytes([record for record in records(data) if record.kind == b"snap"][-1].payload)
    change(values := unpack(last))
    return rewritten(data, lambda kind, payload: (kind, pack(values) if payload == last else payload))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("run", ["trust region", "outcomes", "space"])
def test_a_region_without_its_counters_is_named(run, written, tmp_path):
    path = tmp_path / "run.journal"
    path.write_bytes(with_snapshot(written[run], lambda values: values.pop("state.region.failures")))
    with pytest.raises(StorageError, match="expected failures in the snapshot, got none") as raised:
        resumed(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a shape of each", "every shape"])
@pytest.mark.parametrize("run", list(RUNS))
def test_a_snapshot_with_a_tensor_of_another_shape_is_named(run, every, written, tmp_path):
    path, tried = tmp_path / "run.journal", 0
    last = [record for record in records(written[run]) if record.kind == b"snap"][-1]
    tensors = {name: value for name, value in unpack(bytes(last.payload)).items() if isinstance(value, torch.Tensor)}
    for name, value in tensors.items():
        if not name.startswith("state.") or not value.numel():
            continue
        others = (value.unsqueeze(-1), value.reshape(-1)[0], torch.cat([value, value]))
        for other in others if every else others[tried % 3 :][:1]:
            path.write_bytes(with_snapshot(written[run], lambda values, name=name, other=other: values.update({name: other})))
            with pytest.raises(StorageError) as raised:
                resumed(path)
            assert str(path) in str(raised.value), name
            tried += 1
    assert tried >= (12 if every else 4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("open", torch.zeros(0, 3, dtype=torch.float64), r"open picks in the snapshot as n x 2 torch.float64, got \(0, 3\)"),
        ("state.round", "eight", "expected round in the snapshot to be <class 'int'>, got 'eight'"),
        ("state.region.length", None, "expected length in the snapshot to be <class 'float'>, got None"),
        ("state.fitted.learned.noise", [1.0], "expected noise in the snapshot to be"),
        (
            "queue",
            torch.zeros(2, dtype=torch.int64),
            r"queue picks in the snapshot as n x 2 torch.float64, got \(2,\) torch.int64",
        ),
        ("rows", -1, "expected rows in the snapshot as a count, got -1"),
        ("rows", 3, "expected 6 results in the snapshot, as in the history, got 16"),
    ],
)
def test_a_snapshot_with_another_value_says_which(name, value, message, written, tmp_path):
    path = tmp_path / "run.journal"
    path.write_bytes(with_snapshot(written["trust region"], lambda values: values.update({name: value})))
    with pytest.raises(StorageError, match=message) as raised:
        resumed(path)
    assert str(path) in str(raised.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_run_of_a_machine_with_cuda_goes_on_without(written, tmp_path, caplog):
    path = tmp_path / "run.journal"
    made, end = header("0.1.0")
    for record in records(written["arms"]):
        payload = bytes(record.payload)
        if record.kind == b"run ":
            payload = json.dumps({**json.loads(payload), "device": "cuda:0"}).encode()
        part, end = frame(record.kind, payload, end)
        made += part
    path.write_bytes(written["arms"])
    told = read_run(path).told
    path.write_bytes(made)
    assert read_run(path).told == audit_run(path).state.pulls == told > 8
    with AskTell.resume(path) as loop:
        assert loop.reissue().X.device.type == "cpu"
        assert loop.state.pulls == told
    assert "computed on cuda:0, which is not here" in caplog.text


@pytest.mark.parametrize("attempt", [read_run, resumed, audit_run, view_of_journal])
@pytest.mark.parametrize(("name", "value"), [("space", 1), ("arms", [[40], 2]), ("arms", [3, 2])])
def test_a_description_of_another_kind_is_named(attempt, name, value, written, tmp_path):
    def change(kind: bytes, payload: bytes) -> tuple[bytes, bytes]:
        return kind, json.dumps({**json.loads(payload), name: value}).encode() if kind == b"run " else payload

    path = tmp_path / "run.journal"
    path.write_bytes(rewritten(written["arms"], change))
    with pytest.raises(StorageError, match=f"lacks {name}|evaluations of arms that are not there|arms"):
        attempt(path)
