"""What ranks with parts of one data set must have alike, so that an error tells where they have not."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.transforms.input import InputTransform
from botorch.models.transforms.outcome import OutcomeTransform
from botorch.utils.types import DEFAULT, _DefaultType
from torch import Tensor

from sparse_bo._version import __version__
from sparse_bo.dictionary import Dictionary
from sparse_bo.models.sparse_gp.shards import Rows
from sparse_bo.sharding import Group

MEETING = "meeting over data in shards"
ALIKE = 1e-6
"""Hyper-parameters of ranks may differ by so much, relatively: learned from the same sums, perhaps on other hardware."""


def check_choices(
    dictionary: Tensor | None, outcome: OutcomeTransform | _DefaultType | None, inputs: InputTransform | None
) -> None:
    """Check what a model of data in shards cannot be given.

    Raises:
        UnsupportedError: If a transform learns from the data, or the dictionary is a sampler or rows.
    """
    if isinstance(dictionary, Dictionary) or (dictionary is not None and not isinstance(dictionary, Tensor)):
        raise UnsupportedError(
            f"expected points (m x d) or None as dictionary of data in shards, got {type(dictionary).__name__}"
        )
    if dictionary is not None and not dictionary.is_floating_point():
        raise UnsupportedError("expected points (m x d) as dictionary of data in shards, got rows, which are those of one rank")
    if outcome is not None and outcome is not DEFAULT:
        raise UnsupportedError("an outcome transform learns from one rank's data; leave it out (all rows decide), or give None")
    learns = [getattr(inputs, name, False) for name in ("learn_bounds", "learn_coefficients")]
    if any(bool(each) for each in learns):
        raise UnsupportedError(
            f"{type(inputs).__name__} learns from one rank's data; give it what it would learn, as in Normalize(d, bounds=...)"
        )


def digest(dictionary: Tensor | None) -> str:
    """Return what tells dictionaries apart in a few letters."""
    if dictionary is None:
        return "chosen"
    data = dictionary.detach().double().cpu().contiguous().numpy().tobytes()
    return f"{tuple(dictionary.shape)} {hashlib.blake2b(data, digest_size=6).hexdigest()}"


def checked_rows(group: Group, X: Tensor, Y: Tensor, options: dict[str, Any]) -> Rows:
    """Return where the rows lie, if they make one data set of a model with the same options on every rank.

    Raises:
        ValueError: On every rank, if they do not.
    """
    same = {"width of train_X": X.shape[-1], "dtype": str(X.dtype), "kind of device": X.device.type, **options}
    versions = {"sparse_bo": __version__, "torch": torch.__version__}
    told = group.objects(MEETING, (tuple(X.shape), tuple(Y.shape), {**same, **versions}))
    for rank, (x, y, here) in enumerate(told):
        if len(x) != 2 or tuple(y) != (x[0], 1) or not x[0]:
            raise ValueError(
                f"expected train_X n x d and train_Y n x 1 with n >= 1 on every rank, got {x} and {y} on rank {rank}"
            )
        for name, value in here.items():
            if value != told[0][2][name]:
                raise ValueError(
                    f"expected the same {name} on every rank, got {told[0][2][name]} on rank 0 and {value} on rank {rank}"
                )
    return Rows(group, len(X))


def check_alike(group: Group, parameters: dict[str, Tensor]) -> None:
    """Check that the ranks have a model of the same hyper-parameters. One collective.

    Raises:
        ValueError: On every rank, if they do not.
    """
    mine = {name: parameter.detach().double().cpu() for name, parameter in parameters.items()}
    told = group.objects("the hyper-parameters", mine)
    for rank, other in enumerate(told):
        if other.keys() != told[0].keys():
            raise ValueError(
                f"expected the same modules on every rank, got {sorted(told[0])} on rank 0 and {sorted(other)} on {rank}"
            )
        for name, value in other.items():
            first = told[0][name]
            if value.shape != first.shape or not torch.allclose(value, first, rtol=ALIKE, atol=ALIKE, equal_nan=True):
                raise ValueError(
                    f"expected the same {name} on every rank, got {first.flatten().tolist()} on rank 0 and "
                    f"{value.flatten().tolist()} on rank {rank}"
                )
