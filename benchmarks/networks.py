"""Surrogates with neural networks for GSSBO Fig. 10 and 11: a GP with a deep kernel, and an ensemble of networks.

The paper names neither architectures nor training: these are small ones of ours. Both have a kernel, so that every subset rule
works on them: that of the deep GP, and for the ensemble the inner product of the members' last hidden layers.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.models.model import Model
from botorch.models.transforms.outcome import Standardize
from botorch.posteriors.ensemble import EnsemblePosterior
from gpytorch.kernels import Kernel, MaternKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.means import ZeroMean
from torch import Tensor, nn

HIDDEN, FEATURES, MEMBERS = 24, 4, 5
"""Units of a hidden layer, outputs of the deep kernel's network, networks of an ensemble."""
STEPS, RATE, DECAY = 150, 0.02, 1e-4
"""Of Adam, for an ensemble; the weights' decay stands for their prior."""
NOISE = 1e-3
"""Noise variance of an ensemble, in variances of the observations."""


class DeepKernel(Kernel):
    """A scaled Matérn-5/2 kernel of a network's outputs (deep kernel learning, Wilson et al. 2016)."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        layers = nn.Linear(dims, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, FEATURES), nn.Tanh()
        self.network = nn.Sequential(*layers)
        self.base = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=FEATURES))

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Any:
        """Return the kernel of the outputs."""
        return self.base.forward(self.network(x1), self.network(x2), diag=diag, **params)


def deep_kernel_gp(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """Return a GP whose network, kernel and noise are fitted together by maximum likelihood."""
    return SingleTaskGP(X, Y, covar_module=DeepKernel(X.shape[-1]).to(X), likelihood=GaussianLikelihood().to(X))


class Networks(nn.Module):
    """Networks of two hidden layers, all evaluated at once."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        sizes = (dims, HIDDEN, HIDDEN, 1)
        self.weights = nn.ParameterList(
            torch.randn(MEMBERS, rows, columns) / math.sqrt(rows) for rows, columns in pairwise(sizes)
        )
        self.biases = nn.ParameterList(torch.zeros(MEMBERS, 1, columns) for columns in sizes[1:])

    def hidden(self, X: Tensor) -> Tensor:
        """Return the last hidden layer, ``… x members x q x units`` of ``… x q x d``."""
        H = X.unsqueeze(-3)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            H = torch.tanh(H @ weight + bias)
        return H

    def forward(self, X: Tensor) -> Tensor:
        """Return the values, ``… x members x q x 1``."""
        return self.hidden(X) @ self.weights[-1] + self.biases[-1]


class HiddenKernel(Kernel):
    """The inner product of all last hidden layers, so that a prior with unit weights has variance about 1."""

    def __init__(self, networks: Networks) -> None:
        super().__init__()
        self.networks = networks

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params: Any) -> Tensor:
        """Return the products."""
        left, right = (self._features(x) for x in (x1, x2))
        return (left * right).sum(dim=-1) if diag else left @ right.mT

    def _features(self, X: Tensor) -> Tensor:
        H = self.networks.hidden(X).transpose(-3, -2)  # … x q x members x units
        return H.flatten(start_dim=-2) / math.sqrt(MEMBERS * HIDDEN)


class NetworkEnsemble(Model):
    """Networks trained from different weights; their spread is the posterior's (deep ensembles, for the paper's BNN)."""

    def __init__(self, X: Tensor, Y: Tensor) -> None:
        super().__init__()
        self.outcome_transform = Standardize(m=1)
        self.train_inputs = (X,)
        self.train_targets = self.outcome_transform(Y)[0].squeeze(-1)
        self.networks = Networks(X.shape[-1])
        self.covar_module, self.mean_module = HiddenKernel(self.networks), ZeroMean()
        self.likelihood = GaussianLikelihood()
        self.to(X)
        self.likelihood.noise = NOISE

    @property
    def num_outputs(self) -> int:
        """One output."""
        return 1

    @property
    def batch_shape(self) -> torch.Size:
        """None."""
        return torch.Size([])

    def posterior(self, X: Tensor, *_: Any, **options: Any) -> EnsemblePosterior:
        """Return the members' values."""
        if options.get("posterior_transform") is not None:
            raise NotImplementedError("the ensemble of the benchmark has no posterior transforms")
        self.outcome_transform.eval()
        return EnsemblePosterior(self.outcome_transform.untransform(self.networks(X))[0])


def train_ensemble(model: NetworkEnsemble) -> None:
    """Fit an ensemble in place: Adam on the squared errors, from the weights it has."""
    X, y = model.train_inputs[0], model.train_targets
    optimiser = torch.optim.Adam(model.networks.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(STEPS):
        optimiser.zero_grad()
        loss = (model.networks(X).squeeze(-1) - y).square().mean(dim=-1).sum()
        loss.backward()
        optimiser.step()
