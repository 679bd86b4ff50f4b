"""The state of a surrogate loop, and the subset of its observations that a model is fitted to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import torch
from botorch.models.model import Model
from botorch.posteriors import Posterior
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.models.gradient_subset import Gradient, gradient_subset
from sparse_bo.policies.box_states import BoxState
from sparse_bo.policies.persistence import KEPT
from sparse_bo.policies.states import Report


class InBox(Model):  # type: ignore[misc]  # the base class ships no types
    """A model of the unit cube as a model of a box."""

    def __init__(self, model: Model, box: Box) -> None:
        super().__init__()
        self.model, self.box = model, box

    @property
    def num_outputs(self) -> int:
        """That of the model."""
        return self.model.num_outputs

    @property
    def batch_shape(self) -> torch.Size:
        """That of the model."""
        return self.model.batch_shape

    def posterior(self, X: Tensor, *args: Any, **kwargs: Any) -> Posterior:
        """Return the posterior at points of the box."""
        return self.model.posterior(self.box.to_unit(X), *args, **kwargs)


@dataclass(frozen=True, eq=False)
class SurrogateState(BoxState):
    """The state of a policy with a BoTorch model between two batches. A value."""

    model: InBox | None = None
    """The model after the last batch, in the user's units; ``None`` before the initial design is complete."""
    width: float | None = field(default=None, metadata=KEPT)
    """Posterior standard deviations in the default acquisition function."""
    subset: Tensor | None = field(default=None, metadata=KEPT)
    """Rows of ``X`` that the model was fitted to, ascending; ``None`` before the first model."""
    buffer: int | None = field(default=None, metadata=KEPT)
    """M of a buffer by the clock; ``None`` before it is fixed."""
    first_seconds: tuple[float, ...] = field(default=(), metadata=KEPT)
    """Seconds of the first updates with a model, for a buffer by the clock."""

    @property
    def surrogate(self) -> Model | None:
        """The model of the unit cube."""
        return None if self.model is None else self.model.model

    def report(self) -> Report:
        """See :meth:`sparse_bo.policies.states.State.report`; the dictionary is the subset."""
        return replace(super().report(), dictionary_size=None if self.subset is None else len(self.subset))


Pool = Literal["buffer", "exact", "all"]
"""Observations that a diverse subset is chosen from: the last subset and the newest, or all, exactly or in low rank."""

CLOCK_ROUNDS = 10
"""Number of first rounds with a model, whose mean duration is T̄ of a buffer by the clock (GSSBO Alg. 1)."""


class Subset(Protocol):
    """Chooses the observations of a fit."""

    def rows(self, state: SurrogateState, *, newest: int, generator: torch.Generator) -> Tensor:
        """Return rows of ``state.X``, ascending.

        Args:
            state: All data, the newest batch included, and the last model.
            newest: Size of the newest batch, the last rows.
            generator: CPU generator.
        """
        ...

    def timed(self, state: SurrogateState, seconds: float) -> SurrogateState:
        """Return the state after a round with the duration of choice and fit (s)."""
        ...


@dataclass(frozen=True)
class Everything:
    """All observations."""

    def rows(self, state: SurrogateState, *, newest: int, generator: torch.Generator) -> Tensor:
        """See :class:`Subset`."""
        return torch.arange(len(state.y), device=state.y.device)

    def timed(self, state: SurrogateState, seconds: float) -> SurrogateState:
        """See :class:`Subset`: the same state."""
        return state


class BufferSize(Protocol):
    """Size of a buffer."""

    def of(self, state: SurrogateState) -> int | None:
        """Return M; ``None`` without a limit."""
        ...

    def timed(self, state: SurrogateState, seconds: float) -> SurrogateState:
        """See :class:`Subset`."""
        ...


@dataclass(frozen=True)
class FixedSize:
    """A fixed size M."""

    size: int

    def of(self, state: SurrogateState) -> int:
        """See :class:`BufferSize`."""
        return self.size

    def timed(self, state: SurrogateState, seconds: float) -> SurrogateState:
        """See :class:`Subset`: the same state."""
        return state


@dataclass(frozen=True)
class ClockSize:
    """The number of observations at the first slow round (GSSBO Alg. 1, lines 5 to 10).

    Attributes:
        slowdown: Z: a round is slow if it takes longer than Z times the mean of the first :data:`CLOCK_ROUNDS`.
        least: Lower limit of M.
    """

    slowdown: float
    least: int

    def of(self, state: SurrogateState) -> int | None:
        """See :class:`BufferSize`."""
        return state.buffer

    def timed(self, state: SurrogateState, seconds: float) -> SurrogateState:
        """See :class:`Subset`: the state with another duration, or with M."""
        if state.buffer is not None:
            return state
        if len(state.first_seconds) < CLOCK_ROUNDS:
            return replace(state, first_seconds=(*state.first_seconds, seconds))
        slow = seconds > self.slowdown * sum(state.first_seconds) / CLOCK_ROUNDS
        return replace(state, buffer=max(len(state.y), self.least)) if slow else state


class FillRule(Protocol):
    """Chooses the observations of a buffer."""

    def __call__(self, state: SurrogateState, size: int, *, newest: int, generator: torch.Generator) -> Tensor:
        """Return ``size`` rows of ``state.X``, fewer than all, ascending; arguments as in :meth:`Subset.rows`."""
        ...


@dataclass(frozen=True)
class Buffer:
    """All observations while they fit into a buffer, then a choice of its size."""

    size: BufferSize
    fill: FillRule

    def rows(self, state: SurrogateState, *, newest: int, generator: torch.Generator) -> Tensor:
        """See :class:`Subset`."""
        size = self.size.of(state)
        if size is None or len(state.y) <= size:
            return torch.arange(len(state.y), device=state.y.device)
        return self.fill(state, size, newest=newest, generator=generator)

    def timed(self, state: SurrogateState, seconds: float) -> SurrogateState:
        """See :class:`Subset`."""
        return self.size.timed(state, seconds)


@dataclass(frozen=True)
class DiverseRows:
    """The observations whose gradients are most diverse (GSSBO, :func:`sparse_bo.gradient_subset`).

    Before the first model: :class:`RandomRows`.

    Attributes:
        initial: Number of first observations, which are always included; so is the newest batch.
        gradient: ``"column"``, ``"scalar"`` or ``"nystrom"``.
        pool: Observations to choose from, see :class:`sparse_bo.GSSBO`.
        perturbation: Variance of the noise on the gradients.
    """

    initial: int
    gradient: Gradient
    pool: Pool
    perturbation: float

    def __call__(self, state: SurrogateState, size: int, *, newest: int, generator: torch.Generator) -> Tensor:
        """See :class:`FillRule`."""
        if state.surrogate is None or state.subset is None:
            return RandomRows(self.initial)(state, size, newest=newest, generator=generator)
        n = len(state.y)
        newest = min(newest, size - self.initial)
        pool: Tensor | None = None  # all, in low rank
        if self.pool == "buffer":
            pool = torch.cat([state.subset, torch.arange(n - newest, n, device=state.y.device)])
        elif self.pool == "exact":
            pool = torch.arange(n, device=state.y.device)
        return gradient_subset(
            state.surrogate,
            state.box.to_unit(state.X),
            state.y,
            size=size,
            initial=self.initial,
            newest=newest,
            gradient=self.gradient,
            pool=pool,
            perturbation=self.perturbation,
            generator=generator,
        )


@dataclass(frozen=True)
class RandomRows:
    """Observations uniformly at random.

    Attributes:
        initial: Number of first observations, which are always included.
        keep_newest: Whether the newest batch is included after the first model.
    """

    initial: int
    keep_newest: bool = True

    def __call__(self, state: SurrogateState, size: int, *, newest: int, generator: torch.Generator) -> Tensor:
        """See :class:`FillRule`."""
        included = min(newest, size - self.initial) if self.keep_newest and state.surrogate is not None else 0
        rows = random_subset(len(state.y), size=size, initial=self.initial, newest=included, generator=generator)
        return rows.to(state.y.device)


def random_subset(n: int, *, size: int, initial: int, newest: int, generator: torch.Generator) -> Tensor:
    """Return ``size`` of n rows, ascending: the first ``initial``, the last ``newest``, the others uniformly at random.

    Draws one permutation.
    """
    others = torch.randperm(n - initial - newest, generator=generator, device="cpu")[: size - initial - newest] + initial
    return torch.cat([torch.arange(initial, device="cpu"), others, torch.arange(n - newest, n, device="cpu")]).sort().values
