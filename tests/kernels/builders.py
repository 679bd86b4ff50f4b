"""Kernels of every recognised form, and their values to the last digit."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch import Tensor

from sparse_bo.kernels import CovarianceFunction, TanimotoKernel, covariance_function
from sparse_bo.kernels.closed_forms import Stationary, Structure, Tanimoto


def set_to(kernel: Kernel, *, lengthscale: float) -> Kernel:
    """Set lengthscales around a value, no two alike, and variances to 1.7."""
    kernel = kernel.double()
    for part in kernel.modules():
        if isinstance(part, ScaleKernel):
            part.outputscale = 1.7
        elif isinstance(part, RBFKernel | MaternKernel):
            steps = torch.arange(part.lengthscale.numel(), dtype=torch.float64)
            part.lengthscale = lengthscale * 1.1**steps
    return kernel


def kernels(d: int) -> dict[str, Kernel]:
    """Return a kernel of every form over ``d`` inputs."""
    return {
        "rbf": RBFKernel(),
        "matern12": MaternKernel(nu=0.5),
        "matern32": MaternKernel(nu=1.5),
        "matern52": MaternKernel(nu=2.5),
        "rbf ard": RBFKernel(ard_num_dims=d),
        "matern12 ard": MaternKernel(nu=0.5, ard_num_dims=d),
        "scaled matern52 ard": ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=d)),
        "sum": ScaleKernel(RBFKernel(active_dims=(0,))) + MaternKernel(nu=1.5),
        "nested": ScaleKernel((RBFKernel() + ScaleKernel(MaternKernel(nu=2.5))) * (MaternKernel(nu=1.5) + RBFKernel())),
        "tanimoto": TanimotoKernel(),
        "fingerprints and others": ScaleKernel(TanimotoKernel()) + RBFKernel() * TanimotoKernel(active_dims=(0,)),
        "chosen inputs": ScaleKernel(RBFKernel(active_dims=(d - 1,)) * MaternKernel(nu=0.5), active_dims=tuple(range(d))),
    }


NAMES = tuple(kernels(1))


def covariance_of(name: str, *, like: Tensor, lengthscale: float) -> CovarianceFunction:
    """Return a kernel of :func:`kernels` as the package sees it; it must be recognised."""
    covariance = covariance_function(set_to(kernels(like.shape[-1])[name], lengthscale=lengthscale), like=like)
    assert covariance.structure is not None
    return covariance


def by_gpytorch(covariance: CovarianceFunction) -> CovarianceFunction:
    """Return the same kernel, evaluated by GPyTorch."""
    return CovarianceFunction(covariance.kernel)


def exact(structure: Structure, X: Tensor, Y: Tensor) -> Tensor:
    """Return ``k(X, Y)`` from differences in float64, part by part."""
    if isinstance(structure, Tanimoto):
        X, Y = structure.of(X).double(), structure.of(Y).double()
        common = (X.unsqueeze(-2) * Y.unsqueeze(-3)).sum(dim=-1)
        union = X.square().sum(dim=-1).unsqueeze(-1) + Y.square().sum(dim=-1) - common
        return structure.variance * torch.where(union == 0.0, 1.0, common / union)
    if not isinstance(structure, Stationary):
        values = torch.stack([exact(part, X, Y) for part in structure.parts])
        return values.sum(dim=0) if structure.adds else values.prod(dim=0)
    X, Y, inverse = structure.of(X).double(), structure.of(Y).double(), structure.inverse_lengthscale.double()
    r = ((X.unsqueeze(-2) - Y.unsqueeze(-3)) * inverse).square().sum(dim=-1).sqrt()
    value = {
        "gaussian": lambda: torch.exp(-0.5 * r**2),
        "matern12": lambda: torch.exp(-r),
        "matern32": lambda: (1 + 3**0.5 * r) * torch.exp(-(3**0.5) * r),
        "matern52": lambda: (1 + 5**0.5 * r + 5 * r**2 / 3) * torch.exp(-(5**0.5) * r),
    }[structure.profile]()
    return structure.variance * value


def interpreted_module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return a module of ``sparse_bo.kernels`` that Triton interprets; until the test ends the package gets it too."""
    pytest.importorskip("triton", reason="Triton is not installed: pip install triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    whole = f"sparse_bo.kernels.{name}"
    spec = importlib.util.find_spec(whole)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, whole, module)
    monkeypatch.setattr(sys.modules["sparse_bo.kernels"], name, module, raising=False)
    spec.loader.exec_module(module)
    return module
