"""Ax knows the sparse models: experiments that use them, with a dictionary sampler among the options, are saved and loaded."""

from __future__ import annotations

import importlib
from typing import Any

import sparse_bo.dictionary as samplers
from sparse_bo.models.sparse_gp.classes import SparseGP, SparseMixedGP, SparseMultiFidelityGP, SparseMultiTaskGP

MODELS = (SparseGP, SparseMixedGP, SparseMultiFidelityGP, SparseMultiTaskGP)
"""Class to pass to Ax as ``botorch_model_class``."""


def register_with_ax() -> None:
    """Let Ax save and load experiments whose models are sparse, and whose ``model_options`` hold a dictionary or a sampler.

    Call it once in every process that saves or loads one, before it does: Ax writes a sampler that it does not know without
    complaint, and cannot read it again. Calling it again changes nothing.

    Raises:
        ImportError: If Ax is not installed.
        ValueError: If Ax knows another class by the name of a sampler.

    Example:
        >>> sparse_bo.register_with_ax()
        >>> config = ModelConfig(botorch_model_class=SparseGP, model_options={"dictionary": LeverageSampler()})
    """
    models, decoders = _ax("ax.storage.botorch_modular_registry"), _ax("ax.storage.json_store.registry")
    known = decoders.CORE_DECODER_REGISTRY
    values = [kind for name in samplers.__all__ if isinstance(kind := getattr(samplers, name), type) and _is_value(kind)]
    taken = [kind.__name__ for kind in values if known.get(kind.__name__, kind) is not kind]
    if taken:
        raise ValueError(f"Ax has other classes by the names of {', '.join(taken)}; what it saved could not be told apart")
    for model in MODELS:
        models.register_model(model)
    known.update({kind.__name__: kind for kind in values})


def _is_value(kind: type[Any]) -> bool:
    """Return whether a class of :mod:`sparse_bo.dictionary` is a sampler or a dictionary, which Ax encodes by its fields."""
    return kind is samplers.Dictionary or (kind.__name__.endswith("Sampler") and kind is not samplers.Sampler)


def _ax(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "ax":
            raise
        raise ImportError("register_with_ax needs Ax; install it with: pip install 'sparse-bo[ax]'") from error
