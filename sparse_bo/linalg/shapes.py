"""Broadcasting of batch shapes, with types."""

from __future__ import annotations

import torch


def broadcast_shapes(*shapes: torch.Size) -> torch.Size:
    """Return the shape that ``shapes`` broadcast to.

    Raises:
        RuntimeError: If they do not, with torch's message.
    """
    return torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]  # torch does not annotate it
