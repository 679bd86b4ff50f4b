"""The width of a batch's bounds: by name, on a box, and with another norm F."""

from __future__ import annotations

from dataclasses import replace

from sparse_bo.policies.settings import ConfidenceSettings, unknown_norm
from sparse_bo.validation import check_choice
from sparse_bo.widths import BatchWidth, BiasConstant, ConstantWidth, GaussianBounds, SBPEOnBox, SBPETheory

UNESTIMATED = 1.0
"""F until the first batch is complete, where it is to be estimated: nothing is bounded before, and on a box it only sizes the
first candidate set."""


def named_width(width: BatchWidth | float | str | None, settings: ConfidenceSettings, *, bias: BiasConstant) -> BatchWidth:
    """Return the width of a name or a number; a :class:`sparse_bo.widths.BatchWidth` as it is.

    Args:
        width: ``None`` is ``"theory"`` with an RKHS norm, else ``"gaussian"``.
        settings: Norm, noise and failure probability of named widths.
        bias: Constant of F in ``"theory"``.

    Raises:
        ValueError: If the name is unknown, or the named width needs an ``rkhs_norm``.
        TypeError: If ``width`` has another type.
    """
    if width is None:
        width = "gaussian" if settings.rkhs_norm is None else "theory"
    if isinstance(width, str):
        check_choice("width", width, ("theory", "tight", "gaussian"))
        if width == "gaussian":
            return GaussianBounds(failure_probability=settings.failure_probability)
        if settings.rkhs_norm is None:
            raise ValueError(unknown_norm(width, otherwise="width='gaussian' (for draws of the prior)"))
        return SBPETheory(
            rkhs_norm=UNESTIMATED if settings.rkhs_norm == "estimate" else settings.rkhs_norm,
            noise_variance=settings.noise_variance,
            failure_probability=settings.failure_probability,
            bias="tight" if width == "tight" else bias,
        )
    if isinstance(width, (int, float)) and not isinstance(width, bool):
        return ConstantWidth(float(width))
    if not isinstance(width, BatchWidth):
        raise TypeError(f"expected width to be a number, a name or a BatchWidth, got {type(width).__name__}")
    return width


def on_box(width: BatchWidth, *, discretization_constant: float) -> BatchWidth:
    """Return the width over a box: the theory's adds a discretisation (S-BPE Cor. 3.7), others are unchanged."""
    if isinstance(width, SBPETheory):
        return SBPEOnBox(theory=width, discretization_constant=discretization_constant)
    return width


def theory_of(width: BatchWidth) -> SBPETheory | None:
    """Return the theory's width, which has a norm F; ``None`` for others."""
    theory = width.theory if isinstance(width, SBPEOnBox) else width
    return theory if isinstance(theory, SBPETheory) else None


def norm_of(width: BatchWidth) -> float | None:
    """Return the norm F of a width; ``None`` without one."""
    theory = theory_of(width)
    return None if theory is None else theory.rkhs_norm


def with_norm(width: BatchWidth, rkhs_norm: float) -> BatchWidth:
    """Return the width with another norm F; a width without one unchanged."""
    if isinstance(width, SBPEOnBox):
        return replace(width, theory=replace(width.theory, rkhs_norm=rkhs_norm))
    return replace(width, rkhs_norm=rkhs_norm) if isinstance(width, SBPETheory) else width


def doubled(width: BatchWidth, times: int = 1) -> BatchWidth:
    """Return the width with ``2^times F``; a width without a norm unchanged."""
    norm = norm_of(width)
    return width if norm is None else with_norm(width, norm * 2.0**times)
