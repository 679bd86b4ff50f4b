"""GSSBO and RSSBO: any surrogate and acquisition function, on a bounded number of observations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from botorch.models.model import Model
from torch import Tensor

from sparse_bo.models import fit_to_rows
from sparse_bo.models.gradient_subset import Gradient, gradient_subset
from sparse_bo.models.parameters import parameters_of, same_parameters, set_parameters
from sparse_bo.policies.botorch.surrogate import SurrogatePolicy, SurrogateState, sparse_matern_gp
from sparse_bo.validation import check_choice, check_count, check_number

OVERHEAD_OBSERVATIONS = 70
"""n_c of the cost model ``1 + (n/n_c)³``: the number of observations whose cubic work costs as much as all else in a round.

With the paper's n₀ = 20 and Z = 4 it gives M = 102; the paper reports "usually around 100".
"""

CLOCK_ROUNDS = 10
"""The first rounds with a model, whose mean duration is T̄ of a buffer that goes by the clock."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BufferedPolicy(SurrogatePolicy):
    """The settings that GSSBO and RSSBO share, beside those of :class:`SurrogatePolicy`.

    Attributes:
        buffer: How many observations the model may see: a number M above ``initial_design``; ``"model"``: M is the first
            number of observations at which the cost model ``1 + (n/70)³`` exceeds Z times the cost of the initial design;
            ``"clock"``: M is the number of observations when an update first takes longer than Z times the mean of the first
            ten (wall clock, as in the paper: such runs do not repeat exactly).
        slowdown: Z > 1 of both.
        condition_on: What the model knows beyond the buffer. ``"subset"``: the M observations, as in the paper; what is left
            out is forgotten. ``"all"``: every observation, through :func:`sparse_bo.models.fit_to_rows`; the M propose
            hyper-parameters, which replace the last ones where all observations are likelier under them. The default
            surrogate is then :class:`sparse_bo.SparseGP` with the same kernel: exact up to 4,096 observations.
    """

    buffer: int | Literal["model", "clock"] = "model"
    slowdown: float = 4.0
    condition_on: Literal["subset", "all"] = "subset"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("condition_on", self.condition_on, ("subset", "all"))
        if isinstance(self.buffer, str):
            check_choice("buffer", self.buffer, ("model", "clock"))
        else:
            check_count("buffer", self.buffer)
            if self.buffer < self.initial_design + self.batch_size:
                raise ValueError(
                    f"expected a buffer that holds the initial design and the newest batch, got buffer={self.buffer} for "
                    f"initial_design={self.initial_design} and batch_size={self.batch_size}; raise buffer"
                )
        if check_number("slowdown", self.slowdown) <= 1.0:
            raise ValueError(f"expected slowdown > 1 (Z, a factor on the time of an initial iteration), got {self.slowdown!r}")

    def tell(self, state: SurrogateState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> SurrogateState:
        """See :meth:`SurrogatePolicy.tell`; fixes the buffer once it is known (GSSBO Alg. 1, lines 5 to 10)."""
        if state.buffer is None and self.buffer != "clock":
            state = replace(state, buffer=self.fixed_buffer)
        after = super().tell(state, picks, y, generator=generator)
        if after.surrogate is None or after.buffer is not None:
            return after
        took = after.seconds["sample"] + after.seconds["learn"]
        if len(after.first_seconds) < CLOCK_ROUNDS:
            return replace(after, first_seconds=(*after.first_seconds, took))
        slow = took > self.slowdown * sum(after.first_seconds) / CLOCK_ROUNDS
        return replace(after, buffer=max(len(after.y), self.initial_design + self.batch_size)) if slow else after

    def _fitted(self, state: SurrogateState, subset: Tensor) -> Model:
        everything = self._known(replace(state, subset=subset))
        if len(everything) == len(subset):
            return super()._fitted(state, subset)
        model, previous = self._unfitted(state, everything), state.surrogate
        if previous is not None and not same_parameters(previous, model):
            previous = None
        warm = self.warm_start and previous is not None
        if previous is not None and warm:
            set_parameters(model, parameters_of(previous))
        fit_to_rows(model, subset, fitter=partial(self._learn, warm=warm), previous=previous)
        return model

    def _default_surrogate(self, X: Tensor, Y: Tensor) -> Model:
        return sparse_matern_gp(X, Y) if self.condition_on == "all" else super()._default_surrogate(X, Y)

    def _known(self, state: SurrogateState) -> Tensor:
        if self.condition_on == "subset":
            return super()._known(state)
        return torch.arange(len(state.y), device=state.y.device)

    @property
    def fixed_buffer(self) -> int:
        """M of a buffer that does not go by the clock: the number given, or that of the cost model."""
        if isinstance(self.buffer, int):
            return self.buffer
        n_0, n_c = self.initial_design, OVERHEAD_OBSERVATIONS
        limit = self.slowdown * (n_c**3 + n_0**3) - n_c**3  # n³ where 1 + (n/n_c)³ reaches Z (1 + (n₀/n_c)³)
        return max(int(limit ** (1.0 / 3.0)) + 1, n_0 + self.batch_size)


@dataclass(frozen=True, kw_only=True, eq=False)
class GSSBO(BufferedPolicy):
    """Bayesian optimisation on the observations whose gradients are most diverse (GSSBO, Wei et al. 2025, Algorithm 1).

    Up to M observations it is the plain method. Beyond, the surrogate is fitted to M of them: the ``initial_design`` first,
    the newest batch, and the others by :func:`sparse_bo.gradient_subset`. A round then costs O(M³) (with ``pool="all"``
    O(M³ + n M²)), instead of O(n³). Settings: :class:`BufferedPolicy`, :class:`SurrogatePolicy`.

    Attributes:
        gradient: ``"column"`` or ``"scalar"``, see :func:`sparse_bo.gradient_subset`.
        pool: ``"buffer"``: choose among the last subset and the newest observations, with the exact kernel matrix, O(M³);
            ``"all"``: among all, with its low-rank form on what the last model knew: the last subset, O(n M²), or with
            ``condition_on="all"`` everything, O(n³) and exact. Default: as ``condition_on``.
        perturbation: Variance σ_d² of the noise on the gradients.
    """

    gradient: Gradient = "column"
    pool: Literal["all", "buffer"] | None = None
    perturbation: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("gradient", self.gradient, ("column", "scalar"))
        if self.pool is not None:
            check_choice("pool", self.pool, ("all", "buffer"))
        if check_number("perturbation", self.perturbation) < 0.0:
            raise ValueError(f"expected perturbation >= 0 (a variance), got {self.perturbation!r}")

    @property
    def name(self) -> str:
        """``"gssbo"``."""
        return "gssbo"

    def _subset(self, state: SurrogateState, newest: int, generator: torch.Generator) -> Tensor:
        n, size = len(state.y), state.buffer
        everything = torch.arange(n, device=state.y.device)
        if size is None or n <= size:
            return everything
        if state.surrogate is None:  # many observations were given at the start: no model yet that could rank them
            return random_subset(n, size=size, initial=self.initial_design, newest=0, generator=generator).to(everything)
        assert state.subset is not None
        newest = min(newest, size - self.initial_design)
        pool = None
        if self.pool == "buffer" or (self.pool is None and self.condition_on == "subset"):
            pool = torch.cat([state.subset, everything[-newest:]])
        return gradient_subset(
            state.surrogate,
            state.box.to_unit(state.X),
            state.y,
            size=size,
            initial=self.initial_design,
            newest=newest,
            gradient=self.gradient,
            pool=pool,
            perturbation=self.perturbation,
            generator=generator,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class RSSBO(BufferedPolicy):
    """GSSBO's comparator: the same buffer and the same kept observations, the others uniformly at random.

    Settings: :class:`BufferedPolicy`, :class:`SurrogatePolicy`.
    """

    @property
    def name(self) -> str:
        """``"rssbo"``."""
        return "rssbo"

    def _subset(self, state: SurrogateState, newest: int, generator: torch.Generator) -> Tensor:
        n, size = len(state.y), state.buffer
        if size is None or n <= size:
            return torch.arange(n, device=state.y.device)
        newest = 0 if state.surrogate is None else min(newest, size - self.initial_design)
        subset = random_subset(n, size=size, initial=self.initial_design, newest=newest, generator=generator)
        return subset.to(state.y.device)


def random_subset(n: int, *, size: int, initial: int, newest: int, generator: torch.Generator) -> Tensor:
    """Return ``size`` of n rows, ascending: the first ``initial``, the last ``newest``, the others uniformly at random.

    Draws one permutation.
    """
    others = torch.randperm(n - initial - newest, generator=generator)[: size - initial - newest] + initial
    return torch.cat([torch.arange(initial), others, torch.arange(n - newest, n)]).sort().values
