"""Small problems and dense oracles for SparseGP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import Warp
from gpytorch.distributions import MultitaskMultivariateNormal
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sparse_bo.models import SparseGP, SparseModel, SparseSettings

N, D = 30, 2

_SETTINGS: list[SparseSettings] = [SparseSettings()]


def set_sizes(
    *,
    joint: dict[str, int] | None = None,
    learning: dict[str, Any] | None = None,
    refinement: dict[str, Any] | None = None,
    dictionary: dict[str, Any] | None = None,
    sums: dict[str, Any] | None = None,
    products: dict[str, int] | None = None,
) -> None:
    """Set sizes of the models that :func:`make_sparse` makes from now on; the fixture ``scale`` takes them back."""
    now = _SETTINGS[0]
    last = replace(now.learning.refinement, **(refinement or {}))
    _SETTINGS[0] = SparseSettings(
        joint=replace(now.joint, **(joint or {})),
        learning=replace(now.learning, **(learning or {}), refinement=last),
        dictionary=replace(now.dictionary, **(dictionary or {})),
        sums=replace(now.sums, **(sums or {})),
        products=replace(now.products, **(products or {})),
    )


def forget_sizes() -> None:
    _SETTINGS[0] = SparseSettings()


def make_sparse(*data: Any, kind: Any = SparseGP, **options: Any) -> Any:
    """Return a sparse model with the sizes of the test."""
    return kind(*data, **{"settings": _SETTINGS[0], **options})


@contextmanager
def joint_sizes(model: Any, **sizes: int) -> Iterator[None]:
    """Evaluate a model, or the sparse members of a list, with other sizes of joint posteriors."""
    members = [member for member in getattr(model, "models", [model]) if isinstance(member, SparseModel)]
    before = [member.settings for member in members]
    for member in members:
        member.settings = replace(member.settings, joint=replace(member.settings.joint, **sizes))
    try:
        yield
    finally:
        for member, settings in zip(members, before, strict=True):
            member.settings = settings


def data(*, outputs: int = 1, batch: tuple[int, ...] = (), noise: bool = False, n: int = N, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(*batch, n, D, generator=g, dtype=torch.float64)
    waves = [torch.sin((3 + k) * X).sum(dim=-1) for k in range(outputs)]
    Y = torch.stack(waves, dim=-1) + 0.1 * torch.randn(*batch, n, outputs, generator=g, dtype=torch.float64)
    if not noise:
        return {"train_X": X, "train_Y": Y}
    return {"train_X": X, "train_Y": Y, "train_Yvar": 0.01 + 0.1 * torch.rand(Y.shape, generator=g, dtype=torch.float64)}


CONFIGURATIONS: dict[str, Any] = {
    "plain": lambda: data(),
    "known noise": lambda: data(noise=True),
    "batch": lambda: data(batch=(2,)),
    "batch, known noise": lambda: data(batch=(2,), noise=True),
    "two outputs": lambda: data(outputs=2),
    "two outputs, known noise": lambda: data(outputs=2, noise=True),
    "batch of two outputs": lambda: data(batch=(3,), outputs=2),
    "normalized inputs": lambda: {**data(), "input_transform": Normalize(D)},
    "warped inputs": lambda: {**data(), "input_transform": Warp(d=D, indices=[0, 1])},
    "raw outcomes": lambda: {**data(), "outcome_transform": None},
    "Matern": lambda: {**data(), "covar_module": ScaleKernel(MaternKernel(nu=1.5, ard_num_dims=D))},
}


def pair(configuration: str, **options: Any) -> tuple[SingleTaskGP, SparseGP]:
    """Return both models with the same, not quite default hyper-parameters."""
    exact = SingleTaskGP(**CONFIGURATIONS[configuration]())
    ours = make_sparse(**CONFIGURATIONS[configuration](), **options)
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.mul_(0.9)
    ours.load_state_dict(exact.state_dict())
    return exact, ours


class TorchCalls(TorchFunctionMode):
    """While entered, records the name of every torch function that is called and the shapes of the tensors it returns."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, tuple[int, ...]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, Tensor):
                self.made.append((getattr(func, "__name__", str(func)), tuple(part.shape)))
        return result

    def of(self, name: str) -> list[tuple[int, ...]]:
        """Return the shapes that functions with ``name`` in theirs have returned."""
        return [shape for function, shape in self.made if name in function]


def points(*shape: int, seed: int = 1) -> Tensor:
    return torch.rand(*shape, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense_dtc(model: SparseGP, T: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance at ``T`` (``q x d``) of DTC over training rows, by pseudo-inverses, in the model's own units."""
    model.eval()
    (X,), y = model.train_inputs, model.train_targets
    k = lambda A, B: model.covar_module(A, B).to_dense()  # noqa: E731  # the formula below reads better
    Z = X[rows]
    inverse = torch.linalg.inv(k(Z, Z))
    Q_XX, Q_TX, Q_TT = k(X, Z) @ inverse @ k(Z, X), k(T, Z) @ inverse @ k(Z, X), k(T, Z) @ inverse @ k(Z, T)
    C = torch.linalg.inv(Q_XX + torch.diag(noise_of(model)))
    mean = model.mean_module(T) + Q_TX @ C @ (y - model.mean_module(X))
    return mean, k(T, T) - Q_TT + (Q_TT - Q_TX @ C @ Q_TX.T)


def noise_of(model: SparseGP) -> Tensor:
    noise = model.likelihood.noise.detach()
    return noise.expand(model.train_targets.shape[-1])


def log_density(covariance: Tensor, residuals: Tensor) -> Tensor:
    quadratic = residuals @ torch.linalg.solve(covariance, residuals)
    return -0.5 * (quadratic + torch.linalg.slogdet(covariance).logabsdet + len(residuals) * math.log(2 * math.pi))


def dense_log_prob(distribution: Any, values: Tensor) -> Tensor:
    """Return the log density of ``… x q (x m)`` values under a dense law; GPyTorch scrambles those of several outputs."""
    mean, covariance = distribution.mean.detach(), distribution.covariance_matrix.detach()
    if isinstance(distribution, MultitaskMultivariateNormal):
        assert not distribution._interleaved
        mean, values = (part.mT.reshape(*part.shape[:-2], -1) for part in (mean, values))
    return torch.distributions.MultivariateNormal(mean, covariance).log_prob(values)
