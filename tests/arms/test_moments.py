"""Low-precision moments take the process's settings as they are."""

import subprocess
import sys

import pytest
import torch

from sparse_bo import BBKB, AskTell
from sparse_bo.arms import sweep
from tests.arms.builders import random_problem
from tests.arms.low_precision import set_products
from tests.builders import arms, rbf_kernel, waves

SETTINGS = {
    "pass": "ieee",
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": "tf32",
    "torch.backends.fp32_precision = 'tf32'": "tf32",
    "torch.backends.fp32_precision = 'ieee'; torch.backends.cuda.matmul.fp32_precision = 'tf32'": "tf32",
    "torch.set_float32_matmul_precision('high')": "tf32",
    "torch.backends.cuda.matmul.allow_tf32 = True": "tf32",
}
SWEEP = """
import torch
{setting}
from sparse_bo import BBKB, AskTell
from sparse_bo.arms.sweep import ROUNDINGS, float32_products
from tests.builders import arms, rbf_kernel, waves

flags = lambda: (torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision)
before = flags()
policy = BBKB(covar_module=rbf_kernel(0.3), regularization=0.05, sweep_dtype=torch.float32)
result = AskTell(arms(200), policy, seed=0).run(waves, 30)
assert flags() == before
assert float32_products(torch.device("cuda")) == ROUNDINGS[{expected!r}]
print(result.history.indices)
"""


def test_the_settings_are_read_and_left_alone():
    flags = lambda: (torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision)  # noqa: E731
    before, picks = flags(), []
    for dtype in (torch.float32, torch.float64):
        policy = BBKB(covar_module=rbf_kernel(0.3), regularization=0.05, sweep_dtype=dtype)
        picks.append(AskTell(arms(200), policy, seed=0).run(waves, 30).history.indices)
    assert flags() == before
    assert sweep.float32_products(torch.device("cuda")) == sweep.ROUNDINGS["ieee"]
    assert picks[0] == picks[1]


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "expected"), SETTINGS.items())
def test_any_way_to_set_the_precision_is_read_and_left_alone(setting, expected):
    """In a process of its own: torch remembers which way was used, and refuses the others."""
    code = SWEEP.format(setting=setting, expected=expected)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    policy = BBKB(covar_module=rbf_kernel(0.3), regularization=0.05)
    assert done.stdout.strip() == str(AskTell(arms(200), policy, seed=0).run(waves, 30).history.indices)


@pytest.mark.parametrize("setting", ["tf32", "bf16"])
def test_a_coarser_setting_needs_its_own_bound(setting, monkeypatch):
    """With the bound of float32 proper, errors would pass it."""
    p = random_problem(0, a=60, m=30, pulls=60)
    set_products(monkeypatch, setting, said="ieee")
    low, high = p.with_prior(sweep_dtype=torch.float32).posterior(), p.posterior()
    assert bool(((low.leverages - high.leverages).abs() > low.leverage_errors).any())


def test_a_setting_that_is_not_known_counts_as_the_coarsest(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn.matmul.__class__, "fp32_precision", "fp8", raising=False)
    assert sweep.float32_products(torch.device("cpu")) == sweep.ROUNDINGS["bf16"]


@pytest.mark.parametrize("backend", ["mkldnn", "cuda"])
def test_a_torch_that_does_not_say_counts_as_the_coarsest(backend, monkeypatch):
    monkeypatch.setattr(getattr(torch.backends, backend), "matmul", object())
    device = torch.device("cpu" if backend == "mkldnn" else "cuda")
    assert sweep.float32_products(device) == sweep.ROUNDINGS["bf16"]
