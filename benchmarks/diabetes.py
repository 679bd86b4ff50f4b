"""The network search of GSSBO §6.2: four training parameters of a small network that detects diabetes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sparse_bo.problems.builtin import BoxProblem

DATA = Path(__file__).parent / "data" / "pima-indians-diabetes.csv"
EPOCHS, REPEATS, TEST_SHARE = 10, 5, 0.25


def network_search() -> BoxProblem:
    """Return the problem: batch size, learning rate, its decay and hidden units to minus the mean test error of five nets.

    Batch size and hidden units are rounded. The best value is not known; 0 stands for it, so that regret is the error itself.
    A network is trained by plain gradient descent with rate ``rate / (1 + decay · step)`` on three quarters of the data. The
    five initialisations and shuffles are the same at every point: the function is deterministic.
    """
    table = torch.from_numpy(np.loadtxt(DATA, delimiter=","))
    order = torch.randperm(len(table), generator=torch.Generator().manual_seed(0))
    inputs = (table[:, :-1] - table[:, :-1].mean(0)) / table[:, :-1].std(0)
    held = int(TEST_SHARE * len(table))
    X, y = inputs[order], table[order, -1]
    bounds = torch.tensor([[32.0, 1e-6, 1e-6, 1.0], [128.0, 1.0, 1.0, 8.0]], dtype=torch.float64)

    def errors(points: Tensor) -> Tensor:
        values = [-_test_error(X[held:], y[held:], X[:held], y[:held], *point) for point in points.cpu().tolist()]
        return torch.tensor(values, dtype=torch.float64, device=points.device)

    return BoxProblem("diabetes", bounds, errors, 0.0, 0.0, "test error of a network on the Pima data, 4 training parameters")


def _test_error(
    X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor, batch: float, rate: float, decay: float, hidden: float
) -> float:
    """Train five networks at once, by hand, and return their mean error."""
    units, size, generator = round(hidden), round(batch), torch.Generator().manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    W, a = normal(REPEATS, X.shape[1], units) / X.shape[1] ** 0.5, torch.zeros(REPEATS, 1, units, dtype=torch.float64)
    v, b = normal(REPEATS, units, 1) / units**0.5, torch.zeros(REPEATS, 1, 1, dtype=torch.float64)
    step = 0
    for _ in range(EPOCHS):
        order = torch.stack([torch.randperm(len(X), generator=generator) for _ in range(REPEATS)])
        for rows in order.split(size, dim=1):
            x, target = X[rows], y[rows].unsqueeze(-1)
            h = torch.tanh(x @ W + a)
            slope = (torch.sigmoid(h @ v + b) - target) / rows.shape[1]  # of the logistic loss in the output
            back = slope @ v.mT * (1.0 - h * h)
            speed = rate / (1.0 + decay * step)
            W, a = W - speed * x.mT @ back, a - speed * back.sum(1, keepdim=True)
            v, b = v - speed * h.mT @ slope, b - speed * slope.sum(1, keepdim=True)
            step += 1
    predicted = (torch.tanh(X_test @ W + a) @ v + b).squeeze(-1) > 0.0
    return float((predicted != (y_test > 0.5)).double().mean())
