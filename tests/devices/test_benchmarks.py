"""The benchmarks of a card are rehearsed where there is none: every part of them, on the device made of host memory."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.second_device import Second
from tests.smallest_benchmarks import BENCHMARKS, ON_SECOND, check_smallest_form, run

PARTS = {
    **{"copy": 2, "product": 2, "sweep": 2, "picks": 2, "run": 1, "streamed": 2},
    **{"recursive RLS": 1, "improvement": 1, "plates": 1, "model": 2},
}
"""Of the card's benchmark, how many lines or precisions each has."""


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch, second: Second) -> None:
    """Make the scripts importable; they choose the number of threads."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)


def parts_of(records: list[dict]) -> Counter[str]:
    return Counter(record["part"] for record in records)


def test_every_part_of_the_cards_benchmark_runs_where_the_arms_are(tmp_path: Path) -> None:
    records = run("gpu", tmp_path, "--device", "second")
    assert parts_of(records) == Counter({**PARTS, "copy": 1})
    assert {r["device_type"] for r in records} == {"second"}


def test_the_cards_benchmark_keeps_its_clock_and_its_other_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock runs out inside the whole run, whose record is kept; a part fails; the same command does what is left."""
    parts = importlib.import_module("gpu")
    tell = parts.sparse_bo.AskTell.tell
    over: list[bool] = []

    def told(self: object, *given: object) -> None:
        tell(self, *given)
        over.append(True)

    def broken(bench: object, *sizes: object) -> Iterator[dict]:
        raise RuntimeError("CUDA error: out of memory")
        yield

    with monkeypatch.context() as failing:
        failing.setattr(parts, "sweep", broken)
        failing.setattr(parts.sparse_bo.AskTell, "tell", told)
        failing.setattr(parts.Bench, "over", property(lambda _: bool(over)))
        with pytest.raises(RuntimeError, match="11 measurements failed") as failed:
            run("gpu", tmp_path, "--device", "second")
    assert "out of memory" in str(failed.value.__cause__)
    page = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert "of 60, float64" in page  # as far as the run came
    records = run("gpu", tmp_path, "--device", "second")
    assert parts_of(records) == Counter({**PARTS, "copy": 1})


@pytest.mark.parametrize("name", ON_SECOND)
def test_what_is_counted_there_runs_in_its_smallest_form(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = check_smallest_form(name, tmp_path, capsys, monkeypatch)
    costs = importlib.import_module("device_costs")
    (batch,) = (r for r in records if r["work"] == "batch")
    one, two = (costs.Cost(**counts) for counts in batch["parts"]["sweep"])
    assert one.waits == two.waits == 0  # the host runs ahead of a sweep
    assert two.launches - one.launches == 4  # of a tile: kernel block, means, product, squares
    assert costs.at(batch, "sweep").bytes < 1e11
