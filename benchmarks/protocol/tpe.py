"""The tree-structured Parzen estimator (Bergstra et al. 2011; multivariate: Falkner et al. 2018) by Optuna."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

__all__ = ["TPE", "sampler_of"]

TPE_OPTIONS = {"multivariate": True, "group": True}
"""Groups are of parameters that are there together; without conditions there is one."""


def sampler_of(name: str, seed: int) -> Any:
    """Return a sampler of Optuna by the name of its class, TPE multivariate and grouped; then Optuna logs warnings alone."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # multivariate: since version 2.2
        return getattr(optuna.samplers, name)(seed=seed, **(TPE_OPTIONS if name == "TPESampler" else {}))


class TPE:
    """Optuna's multivariate ``TPESampler``, one evaluation at a time, that recommends ``study.best_params``."""

    def __init__(self, dims: int, budget: int, seed: int) -> None:
        import optuna

        self._study = optuna.create_study(direction="maximize", sampler=sampler_of("TPESampler", seed))
        self._space = {f"x{k:03d}": optuna.distributions.FloatDistribution(0.0, 1.0) for k in range(dims)}

    def ask(self, left: int) -> Tensor:
        """See :class:`protocol.ask_tell.Peer`."""
        self._trial = self._study.ask(self._space)
        return self._point(self._trial.params).unsqueeze(0)

    def tell(self, X: Tensor, y: Tensor) -> None:
        """See :class:`protocol.ask_tell.Peer`."""
        self._study.tell(self._trial, float(y))

    def recommend(self) -> Tensor | None:
        """See :class:`protocol.ask_tell.Peer`."""
        return self._point(self._study.best_params)

    def _point(self, named: dict[str, float]) -> Tensor:
        return torch.tensor([named[name] for name in self._space], dtype=torch.float64)
