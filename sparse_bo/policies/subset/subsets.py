"""The state of a surrogate loop, and the buffer of observations that its model is fitted to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from botorch.models.model import Model
from botorch.posteriors import Posterior
from torch import Tensor

from sparse_bo.domains import Box
from sparse_bo.gp.observations import in_range
from sparse_bo.models.gradient_subset import Gradient, gradient_subset
from sparse_bo.policies.persistence import KEPT, sized
from sparse_bo.policies.states import BoxState, Report

Pool = Literal["buffer", "exact", "all"]
"""Observations that a diverse subset is chosen from: the last subset and the newest, or all, exactly or in low rank."""
CLOCK_ROUNDS = 10
"""Number of first rounds with a model, whose mean duration is T̄ of a buffer by the clock (GSSBO Alg. 1)."""


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
    subset: Tensor | None = field(default=None, metadata=sized("s"))
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


@dataclass(frozen=True, kw_only=True)
class Buffer:
    """The observations of a fit: all while they are at most M, then a choice of M.

    Attributes:
        size: M; ``None``: no limit, or by the clock.
        slowdown: Z of M by the clock: the number of observations at the first round that takes longer than Z times the mean of
            the first :data:`CLOCK_ROUNDS` (GSSBO Alg. 1, lines 5 to 10); ``None``: no clock.
        least: Lower limit of M by the clock.
        initial: Number of first observations, which are always included.
        newest: Whether the newest batch is included after the first model.
        gradient: The others are those with the most diverse gradients (:func:`sparse_bo.gradient_subset`); ``None``, and before
            the first model: uniformly random ones.
        pool: Observations that diverse ones are chosen from, see :class:`sparse_bo.GSSBO`.
        perturbation: Variance of the noise on the gradients.
    """

    size: int | None = None
    slowdown: float | None = None
    least: int = 1
    initial: int = 0
    newest: bool = True
    gradient: Gradient | None = None
    pool: Pool = "exact"
    perturbation: float = 0.0

    def rows(self, state: SurrogateState, *, newest: int, generator: torch.Generator) -> Tensor:
        """Return rows of ``state.X``, ascending; the last ``newest`` ones are the newest batch."""
        n, size = len(state.y), self.size if self.slowdown is None else state.buffer
        everything = torch.arange(n, device=state.y.device)
        if size is None or n <= size:
            return everything
        newest = min(newest, size - self.initial)
        if self.gradient is None or state.surrogate is None or state.subset is None:
            newest = newest if self.newest and state.surrogate is not None else 0
            rows = random_subset(n, size=size, initial=self.initial, newest=newest, generator=generator)
            return rows.to(everything.device)
        pools = {"buffer": torch.cat([state.subset, everything[n - newest :]]), "exact": everything, "all": None}
        return gradient_subset(
            state.surrogate,
            state.box.to_unit(state.X),
            in_range(state.y),
            size=size,
            initial=self.initial,
            newest=newest,
            gradient=self.gradient,
            pool=pools[self.pool],
            perturbation=self.perturbation,
            generator=generator,
        )

    def timed(self, state: SurrogateState, seconds: float) -> SurrogateState:
        """Return the state after a round with the duration (s) of choice and fit: with another duration, or with M."""
        if self.slowdown is None or state.buffer is not None:
            return state
        if len(state.first_seconds) < CLOCK_ROUNDS:
            return replace(state, first_seconds=(*state.first_seconds, seconds))
        slow = seconds > self.slowdown * sum(state.first_seconds) / CLOCK_ROUNDS
        return replace(state, buffer=max(len(state.y), self.least)) if slow else state


def random_subset(n: int, *, size: int, initial: int, newest: int, generator: torch.Generator) -> Tensor:
    """Return ``size`` of n rows, ascending: the first ``initial``, the last ``newest``, the others uniformly at random.

    Draws one permutation.
    """
    others = torch.randperm(n - initial - newest, generator=generator, device="cpu")[: size - initial - newest] + initial
    return torch.cat([torch.arange(initial, device="cpu"), others, torch.arange(n - newest, n, device="cpu")]).sort().values
