"""The bytes of a journal: every beginning is a run, every changed bit is found, every other file is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, Storage
from sparse_bo.errors import ResumeWarning, StorageError
from sparse_bo.journal import Event, Journal, Row, Writer, pack, unpack
from sparse_bo.journal.format import ARMS, ROW, RUN, SNAPSHOT, frame, header
from sparse_bo.policies.persistence import describe
from sparse_bo.runs.recording import read_run
from tests.journal.runs import arms, finished, policy, records, rewritten

ABOUT = {"policy": "bbkb", "seed": 0, "notes": {}}
SHOWN = Path("run.journal")
WITH_MORE = (0, 5, 9)
"""Numbers of events, after the first, with a row and a snapshot: tests of every byte go through all records for each."""


def events() -> list[Event]:
    first = Event("add", picks=np.array([5, 6]), results=np.array([0.5, np.nan]))
    pairs = [
        (
            Event("ask", 2 + 2 * k, 2 if k % 2 else None, np.array([k, 7])),
            Event("tell", tickets=np.array([3 + 2 * k, 2 + 2 * k]), results=np.array([np.nan, 0.1 * k])),
        )
        for k in range(3)
    ]
    noisy = Event("tell", tickets=np.array([8, 9]), results=np.array([0.5, 1.5]), sds=np.array([[0.1], [np.nan]]))
    added = Event("add", picks=np.array([5]), results=np.array([0.5]), sds=np.array([[2.0]]))
    moved = Event("move", picks=np.array([4, 6]), tickets=np.array([8, 9]))
    return [first, *(event for pair in pairs for event in pair), moved, noisy, added, Event("update")]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    """A journal of every kind of record."""
    path = tmp_path_factory.mktemp("format") / "run.journal"
    first, *others = events()
    writer = Writer.create(path, ABOUT, arms(3), first)
    for number, event in enumerate(others):
        if number in WITH_MORE:
            row = WITH_MORE.index(number)
            writer.write(event, Row(row, {"round": row}), pack({"x": torch.ones(2)}))
        else:
            writer.write(event)
    writer.close()
    return path.read_bytes()


def same(found: list[Event], expected: list[Event]) -> bool:
    return list(map(plain, found)) == list(map(plain, expected))


def plain(event: Event) -> list:
    """Return the fields of an event, to the last bit; NumPy's ``repr`` takes most of the time of a test of every byte."""
    return [(one.dtype, one.shape, one.tobytes()) if isinstance(one, np.ndarray) else one for one in event]


def test_arrays_come_back_as_they_were_packed():
    values = {
        "a": torch.rand(3, 4, dtype=torch.float64),
        "b": torch.tensor([1, -5, 2**62]),
        "c": torch.zeros(0, 3, dtype=torch.float32),
        "d": torch.tensor([True, False]),
        "state": torch.Generator().manual_seed(3).get_state(),
        "scalar": torch.tensor(0.1, dtype=torch.float64),
        "none": None,
        "text": "ü",
        "number": 0.1 + 0.2,
        "list": [1, [2.5]],
    }
    back = unpack(pack(values))
    assert list(back) == list(values)
    for name, part in values.items():
        if isinstance(part, torch.Tensor):
            assert back[name].dtype == part.dtype
            assert torch.equal(back[name], part)
        else:
            assert back[name] == part


@pytest.mark.parametrize("data", [b"", b"12345678", pack({"a": torch.ones(3)})[:-1], b"\xff" * 40], ids=range(4))
def test_other_bytes_are_no_arrays(data):
    with pytest.raises(StorageError, match="expected packed arrays in the journal, got other bytes"):
        unpack(data)


def test_records_come_back_as_they_were_written(data):
    journal = Journal(SHOWN, data)
    assert same(list(journal.events()), events())
    assert same(list(journal.events(after=5)), events()[6:])
    assert journal.about == ABOUT
    assert torch.equal(journal.arms(), arms(3))
    rows, whole = journal.rows()
    assert whole
    assert rows == [Row(k, {"round": k}) for k in range(len(WITH_MORE))]
    after, snapshot = next(journal.snapshots())
    assert (after, unpack(snapshot)["x"].tolist()) == (len(events()) - 1, [1.0, 1.0])
    assert data.startswith(b"sparse_bo journal 1 (sparse_bo 0.1.0)\n")


def test_points_come_back_to_the_last_bit(tmp_path):
    writer = Writer.create(tmp_path / "run.journal", {"dims": 2}, None)
    points = np.array([[0.1, -0.0], [1e-300, 2.0]])
    writer.write(Event("ask", 0, None, points))
    writer.close()
    (ask,) = Journal.read(writer.path).events()
    assert ask.picks.tobytes() == points.tobytes()


def test_every_beginning_is_a_shorter_run_and_says_if_a_record_is_cut_off(data, caplog):
    """Copied, mailed or cut off at any byte: the records that are whole, in order."""
    found = records(data)
    starts = found[0].end.offset
    for size in range(len(data)):
        caplog.clear()
        if size < starts:
            with pytest.raises(StorageError, match="ends before the description|expected a journal of format 1"):
                Journal(SHOWN, data[:size])
            continue
        journal = Journal(SHOWN, data[:size])
        whole = [record for record in found if record.end.offset <= size]
        count = sum(record.kind not in (RUN, ARMS, ROW, SNAPSHOT) for record in whole)
        assert same(list(journal.events()), events()[:count]), size
        assert len(journal.rows()[0]) == sum(record.kind == ROW for record in whole)
        assert journal.end == whole[-1].end
        assert ("is cut off" in caplog.text) == (whole[-1].end.offset < size), size


@pytest.mark.parametrize("zeros", [1, 20, 21, 500])
def test_zeros_after_the_last_record_are_of_a_power_failure(zeros, data, caplog):
    assert same(list(Journal(SHOWN, data + bytes(zeros)).events()), events())
    assert f"is cut off ({zeros} bytes" in caplog.text


def test_every_changed_bit_is_found(data):
    """An error that names the record, or all events; damaged rows, snapshots and arms are left out."""
    found, left_out = records(data), 0
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        try:
            journal = Journal(SHOWN, bytes(changed))
        except StorageError as error:
            message = str(error)
            assert "run.journal" in message
            if "description" not in message and "expected a journal" not in message:
                number, offset = int(message.split()[1]), int(message.split("at byte ")[1].split(")")[0])
                assert (found[number].offset, number) == (offset, number)
                assert offset <= at < found[number].end.offset or at < found[0].offset
                assert f"truncate -s {offset}" in message
                assert same(
                    list(Journal(SHOWN, bytes(changed[:offset])).events()), events()[: offset and _events(found, number)]
                )
        else:
            assert same(list(journal.events()), events()), at
            assert journal.arms() is None or torch.equal(journal.arms(), arms(3))
            left_out += not journal.rows()[1] or journal.arms() is None or len(list(journal.snapshots())) < len(WITH_MORE)
    assert left_out == sum(len(record.payload) for record in found if record.kind in (ROW, SNAPSHOT, ARMS))


def _events(found: list, number: int) -> int:
    return sum(record.kind not in (RUN, ARMS, ROW, SNAPSHOT) for record in found[:number])


@pytest.mark.parametrize("change", ["left out", "twice", "swapped", "of another run"])
def test_a_record_that_is_not_where_it_was_written_is_found(change, data):
    found = records(data)
    parts = [data[record.offset : record.end.offset] for record in found]
    if change == "left out":
        del parts[5]
    elif change == "twice":
        parts.insert(5, parts[5])
    elif change == "swapped":
        parts[5], parts[8] = parts[8], parts[5]
    else:
        other = rewritten(data, lambda kind, part: (kind, json.dumps({**ABOUT, "seed": 1}).encode() if kind == RUN else part))
        parts[5] = other[records(other)[5].offset : records(other)[5].end.offset]
    with pytest.raises(StorageError, match=r"record [56] of run.journal \(of unknown kind, at byte \d+\) is damaged"):
        Journal(SHOWN, data[: found[0].offset] + b"".join(parts))


OTHERS = {
    "empty": (b"", "got an empty file, .*; take another copy, or choose another path"),
    "text": (b"not a journal, but a text that is long enough to be one " * 40, "got another file, "),
    "another database": (b"SQLite format 3\0" + bytes(200), "got another file, "),
    "newer": (
        b"sparse_bo journal 2 (sparse_bo 1.3)\n rest",
        "got format 2, .*; finish its run with sparse_bo 1.3, which wrote it",
    ),
    "header": (header("0.1.0")[0], "ends before the description of its run"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_files_are_named_and_left_alone(kind, tmp_path):
    path, (content, message) = tmp_path / "run.journal", OTHERS[kind]
    path.write_bytes(content)
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=message) as caught:
            attempt(path)
        assert str(path) in str(caught.value)
    with pytest.raises(FileExistsError, match="choose another path for a new run"):
        AskTell(arms(), policy(), storage=path)
    assert path.read_bytes() == content


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("run") / "run.journal"
    with AskTell(arms(), policy(), seed=1, storage=Storage(path, replay_seconds=0.0)) as loop:
        finished(loop, budget=60)
    return path.read_bytes()


def described(data: bytes, **changes) -> bytes:
    """Change the description of a run, checksums included; ``None`` drops an entry."""

    def change(kind: bytes, part: bytes) -> tuple[bytes, bytes]:
        if kind != RUN:
            return kind, part
        about = json.loads(part) | changes
        return kind, json.dumps(
            {name: about[name] for name in about if name not in changes or changes[name] is not None}
        ).encode()

    return rewritten(data, change)


@pytest.mark.parametrize(
    "missing", ["policy", "description", "fingerprint", "seed", "notes", "versions", "dtype", "device", "arms", "arms_hash"]
)
def test_a_description_that_lacks_something_is_named(run, missing, tmp_path):
    path = tmp_path / "run.journal"
    path.write_bytes(described(run, **{missing: None}))
    for attempt in (AskTell.resume, read_run):
        with pytest.raises(StorageError, match=f"the description of the run in .*run.journal lacks {missing}: it is damaged"):
            attempt(path)


def append_kind(kind: bytes, part: bytes):
    return lambda data: data + frame(kind, part, Journal(SHOWN, data).end)[0]


FORGED = {
    "kinds": (lambda data: described(data, seed="1", arms=7, dims=3), "lacks seed, bounds"),
    "no object": (
        lambda data: rewritten(data, lambda kind, part: (kind, b"[1]" if kind == RUN else part)),
        "description of the run",
    ),
    "nothing": (
        lambda data: rewritten(data, lambda kind, part: (kind, b"null" if kind == RUN else part)),
        "description of the run",
    ),
    "no description": (
        lambda data: rewritten(data, lambda kind, part: None if kind == RUN else (kind, part)),
        "description of the",
    ),
    "new kind": (
        append_kind(b"paus", b""),
        "has the unknown kind 'paus': a newer sparse_bo than this .* wrote it; use that one",
    ),
    "new field": (
        append_kind(ROW, (0).to_bytes(8, "little") + b'{"sparkle": 1}'),
        "the history in .*run.journal cannot be used .*'sparkle'.*another version .* use that version",
    ),
    "told twice": (
        append_kind(b"tell", np.array([1]).tobytes() + np.array([0.5]).tobytes()),
        "tickets that were never handed out, or two of one",
    ),
    "row of nothing": (
        append_kind(ROW, (0).to_bytes(8, "little") + b'{"round": 1, "pulls": 1, "tickets": [99]}'),
        "has evaluation 99, but the events before it",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_contents_that_this_version_does_not_write_are_named(name, run, tmp_path):
    forge, message = FORGED[name]
    path = tmp_path / "run.journal"
    path.write_bytes(forge(run))
    before = path.read_bytes()
    for attempt in (read_run, AskTell.resume):
        with pytest.raises(StorageError, match=message):
            attempt(path)
    assert path.read_bytes() == before


def test_an_ask_with_another_ticket_than_the_next_is_refused(run, tmp_path):
    path = tmp_path / "run.journal"
    path.write_bytes(append_kind(b"ask ", np.array([99, 1, 0]).tobytes())(run))  # ticket, number wanted, arm
    with pytest.raises(StorageError, match="expected ticket 60 in the journal, got 99"):
        AskTell.resume(path)


def test_a_policy_that_is_not_the_one_recorded_is_refused(run, tmp_path):
    path, description = tmp_path / "run.journal", describe(policy())
    description["fields"]["ratio_threshold"] = 4.0
    path.write_bytes(described(run, description=description))
    for given in (None, policy(), policy(ratio_threshold=4.0)):
        with pytest.raises(StorageError, match=r"the policy of .* \(bbkb\) is not the one whose fingerprint is beside it"):
            AskTell.resume(path, policy=given)


def damaged(data: bytes, kind: bytes, number: int) -> bytes:
    """Change a bit of the payload of the ``number``-th record of a kind."""
    record = [record for record in records(data) if record.kind == kind][number]
    changed = bytearray(data)
    changed[record.end.offset - 3] ^= 1
    return bytes(changed)


@pytest.mark.parametrize("row", [0, 7, -1])
@pytest.mark.parametrize("snapshots", [True, False], ids=["snapshots", "replay"])
def test_damaged_rows_of_the_history_are_computed_again(row, snapshots, run, tmp_path):
    path = tmp_path / "run.journal"
    plain = rewritten(run, lambda kind, part: (kind, part) if snapshots or kind != SNAPSHOT else None)
    path.write_bytes(plain)
    before = read_run(path).history
    number = row % len(before.rows)
    path.write_bytes(damaged(plain, ROW, row))
    with pytest.raises(StorageError, match=f"row {number} of the history in .* computes it again, and close.* records it"):
        read_run(path)
    with pytest.warns(ResumeWarning, match=f"row {number} of the history in .* is damaged; it and those after it are"):
        loop = AskTell.resume(path)
    loop.close()
    for history in (loop.history, read_run(path).history):
        for name in ("round", "pulls", "indices", "values", "best_index", "dictionary_size", "rank"):
            assert repr(history.column(name)) == repr(before.column(name))
        assert history.column("best_mean") == pytest.approx(before.column("best_mean"), abs=1e-9)
    AskTell.resume(path).close()  # without a warning


def test_damaged_snapshots_are_left_out(run, tmp_path, caplog):
    path, last = tmp_path / "run.journal", run
    count = sum(record.kind == SNAPSHOT for record in records(run))
    for number in (count - 1, count - 2):
        last = damaged(last, SNAPSHOT, number)
    path.write_bytes(last)
    assert Journal.read(path).damaged == 2
    with AskTell.resume(path) as loop:
        assert loop.history.indices == finished(AskTell(arms(), policy(), seed=1), budget=60).history.indices
    assert "(snap) is damaged, and left out" in caplog.text


def test_damaged_arms_must_be_passed(run, tmp_path):
    path = tmp_path / "run.journal"
    path.write_bytes(damaged(run, ARMS, 0))
    with pytest.raises(
        ValueError,
        match=r"the 40 arms of the run in .* are not in it .large ones .*; pass arms=",
    ):
        AskTell.resume(path)
    AskTell.resume(path, arms=arms()).close()
