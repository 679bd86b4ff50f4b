"""The interface of a posterior that is conditioned on picks whose results are still out."""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

from torch import Tensor

InBatch = Literal["fixed", "process"]
"""How a pick lowers variances before its result is there: by the fixed-dictionary update, or by conditioning the process."""


class Block(NamedTuple):
    """The joint posterior of a few arms, given the picks so far."""

    covariance: Tensor
    """``b x b`` part that picks reduce (leverage units)."""
    residual: Tensor
    """``b`` part that they do not (leverage units, ≥ 0)."""
    start: Tensor
    """``b`` leverages at the batch start."""
    embedding: Tensor
    """``b x c``: what :meth:`Conditioner.absorb` needs of these arms."""


class Conditioner(Protocol):
    """A posterior conditioned on picks. A value: ``absorb`` returns a new one."""

    def block(self, indices: Tensor) -> Block:
        """Return the joint posterior of the arms ``indices`` (``b``)."""
        ...

    def leverages(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the leverages of some arms, split as in :class:`Block` (``b`` each), without their joint covariance."""
        ...

    def absorb(self, indices: Tensor, block: Block, positions: Tensor, counts: Tensor) -> Conditioner:
        """Add picks: arm ``indices[positions[j]]`` was picked ``counts[j]`` times; ``block`` is that of ``indices``."""
        ...

    def start(self, indices: Tensor) -> Tensor:
        """Return the leverages of some arms at the batch start, ``b``."""
        ...

    def given(self, indices: Tensor, counts: Tensor) -> Conditioner:
        """Add picks made elsewhere: distinct arms ``indices`` (``p``), each picked ``counts`` times (``p``)."""
        ...

    def start_covariance(self, indices: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return ``(W, S)``, the covariance *at the batch start* with the arms ``indices`` (``q``), in leverage units.

        That of arm x is ``k_D(x)ᵀ W`` (``W`` is ``m x q``), plus ``k(x, S)/λ`` where ``S`` (``q x d``) is given.
        """
        ...
