"""Computing as if nobody had switched gradients off: policies on boxes climb acquisition functions, whoever calls them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

import torch

from sparse_bo.domains import Box, Domain

F = TypeVar("F", bound=Callable[..., Any])


def with_gradients(function: F) -> F:
    """Return the function, called outside ``torch.no_grad()`` and ``torch.inference_mode()`` wherever its caller is."""

    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not torch.is_inference_mode_enabled():  # nearly always; the modes cost 4 µs
            return function(*args, **kwargs)
        with torch.inference_mode(False), torch.enable_grad():
            return function(*args, **kwargs)

    return called  # type: ignore[return-value]  # `wraps` keeps the signature


@with_gradients
def ordinary(domain: Domain) -> Domain:
    """Return the domain with corners that gradients can be computed through, were they made in inference mode or not."""
    if isinstance(domain, Box) and domain.bounds.is_inference():
        return replace(domain, bounds=domain.bounds.clone())
    return domain
