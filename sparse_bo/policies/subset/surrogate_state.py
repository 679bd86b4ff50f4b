"""The state of a policy with a BoTorch model, and the model in the user's units."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from botorch.models.model import Model
from botorch.posteriors import Posterior
from torch import Tensor

from sparse_bo.domains import Box
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
