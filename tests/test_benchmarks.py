"""The GPU benchmark in its tiny form on the CPU: every part runs and is reported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *arguments, "--no-record"]
    path = os.pathsep.join(filter(None, [str(BENCHMARKS.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_gpu_benchmark_runs_in_its_tiny_form() -> None:
    done = _run("--device", "cpu", "--quick")
    assert done.returncode == 0, done.stderr
    *table, record = done.stdout.strip().splitlines()
    whole = json.loads(record)
    assert whole["skipped"] == []
    assert whole["device_type"] == "cpu"
    names = [part["what"] for part in whole["records"]]
    for expected in ("copy", "product tf32", "sweep a=4,000 m=32 float32", "pick,", "BBKB,", "streamed arms", "recursive RLS"):
        assert any(expected in name for name in names), expected
    assert sum("posterior" in name for name in names) == 4
    assert all(part["value"] > 0.0 for part in whole["records"])
    assert len(table) == len(names) + 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_the_gpu_benchmark_says_where_there_is_no_gpu() -> None:
    done = _run()
    assert done.returncode == 2
    assert "no CUDA device" in done.stderr
