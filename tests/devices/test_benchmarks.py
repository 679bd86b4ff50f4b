"""The benchmark of a card is rehearsed where there is none: every part of it, on the device made of host memory."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest
import torch

from tests.second_device import Second

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_every_part_runs_where_the_arms_are(second: Second, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    gpu, runner = importlib.import_module("gpu"), importlib.import_module("harness.runner")
    runner.main(gpu.EXPERIMENT, None, ["--tiny", "--device", "second", "--out", str(tmp_path)])
    records = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [r["part"] for r in records].count("sweep") == 2
    assert {r["part"] for r in records} == {
        "copy", "product", "sweep", "picks", "run", "streamed", "recursive RLS", "model",
    }  # fmt: skip
    assert {r["device_type"] for r in records} == {"second"}
