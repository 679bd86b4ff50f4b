"""The parameters of a model as values by name: to compare, keep and put back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from botorch.models.model import Model
from torch import Tensor


def parameters_of(model: Model) -> dict[str, Tensor]:
    """Return copies of a model's parameters, by name."""
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def set_parameters(model: Model, values: Mapping[str, Tensor]) -> None:
    """Set all parameters of a model to ``values``, in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])


def same_parameters(one: Model, other: Model) -> bool:
    """Return whether the parameters of two models correspond one to one, by name and shape."""
    return shapes(dict(one.named_parameters())) == shapes(dict(other.named_parameters()))


def shapes(values: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    """Return the shape of each value."""
    return {name: value.shape for name, value in values.items()}
