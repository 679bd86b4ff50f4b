"""Settings that several policies share, documented and checked once: of the prior, of the confidence, of a sweep."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from gpytorch.kernels import Kernel

from sparse_bo.arms.sweep import PRECISIONS
from sparse_bo.dictionary import Sampler
from sparse_bo.gp.objective_prior import Prior
from sparse_bo.linalg.chunking import default_memory_bytes
from sparse_bo.validation import check_choice, check_count, check_given, check_number, check_positive, check_probability

Goal = Literal["best", "cumulative"]
"""``"best"``: the best point at the end, whatever was evaluated on the way. ``"cumulative"``: every evaluation counts."""
LEAST, MOST = 1e-30, 1e30
"""Of a regularization (y²): beyond them λ, or what is divided by it, leaves the range of numbers on the way to a posterior."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PriorSettings:
    """Known parts of the objective's prior; the rest is learned.

    Attributes:
        covar_module: Any GPyTorch kernel without batch shape; its hyper-parameters stay as they are (it is copied, and moved
            to float64 and the device of the domain), but its scale is learned where ``regularization`` is. ``None``: BoTorch's
            default kernel, learned.
        prior_mean: μ₀ (y). ``None``: 0 where kernel and λ are given (a warning says so if the objective is far from it), else
            learned.
        regularization: λ > 0 (y²). ``None``: the noise variance, learned.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If one is out of range.
    """

    covar_module: Kernel | None = None
    prior_mean: float | None = None
    regularization: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "covar_module", copied_kernel(self.covar_module))
        check_given(check_number, prior_mean=self.prior_mean)
        if self.regularization is not None:
            number = check_positive("regularization", self.regularization)
            if not LEAST <= number <= MOST:
                raise ValueError(f"expected regularization from {LEAST:g} to {MOST:g}, got {number:g}; scale y")

    @property
    def given(self) -> Prior:
        """The known parts as a value; ``None`` for parts to learn."""
        return Prior(self.covar_module, self.prior_mean, self.regularization)

    @property
    def learns(self) -> bool:
        """Whether kernel or noise are learned."""
        return self.covar_module is None or self.regularization is None


@dataclass(frozen=True, kw_only=True, eq=False)
class ConfidenceSettings:
    """Settings of confidence widths and bounds.

    Attributes:
        noise_variance: ξ² > 0 (y²), the noise in the width or bounds (their variance proxy). ``None``: λ.
        rkhs_norm: F > 0, bound on the RKHS norm of the objective minus the prior mean; the theory's widths need it.
            ``"estimate"``: what the results so far show of it (:func:`sparse_bo.widths.estimate_rkhs_norm`, its upper limit) —
            an estimate, with which no theorem holds.
        failure_probability: δ in (0, 1) of the width or bounds.

    Raises:
        TypeError: If a setting is not a number.
        ValueError: If one is out of range.
    """

    noise_variance: float | None = None
    rkhs_norm: float | Literal["estimate"] | None = None
    failure_probability: float = 0.05

    def __post_init__(self) -> None:
        check_given(check_positive, noise_variance=self.noise_variance)
        if isinstance(self.rkhs_norm, str):
            check_choice("rkhs_norm", self.rkhs_norm, ("estimate",))
        elif self.rkhs_norm is not None:
            check_positive("rkhs_norm", self.rkhs_norm)
        check_probability("failure_probability", self.failure_probability)


def copied_kernel(covar_module: object) -> Kernel | None:
    """Return a copy of a GPyTorch kernel, as the user's may be trained later; ``None``: none is given.

    Raises:
        TypeError: If it is none.
        ValueError: If it holds a computed tensor, which PyTorch does not copy.
    """
    if covar_module is not None and not isinstance(covar_module, Kernel):
        got = type(covar_module).__name__
        raise TypeError(f"expected covar_module to be a gpytorch.kernels.Kernel or None, got {got}")
    try:
        return copy.deepcopy(covar_module)
    except RuntimeError as error:
        got = f"{type(covar_module).__name__} with a computed tensor that requires gradients; pass a new kernel"
        raise ValueError(f"expected a covar_module that can be copied, got {got}, not evaluated yet") from error


def check_sampler(dictionary: object) -> None:
    """Raise ``TypeError`` unless ``dictionary`` is a sampler or ``None``."""
    if dictionary is not None and not isinstance(dictionary, Sampler):
        raise TypeError(f"expected dictionary to be a sampler or None, got {type(dictionary).__name__}")


def default_design(dims: int) -> int:
    """Return the evaluations before a first model of ``dims`` inputs: 2d, but at most d + 20, at most 100, and at least 10."""
    return max(10, min(2 * dims, dims + 20, 100))


def whole_batches(size: int, batch_size: int) -> int:
    """Return as many whole batches as fit into a design of ``size``, if it is more than one: no batch mixes both."""
    return size if size < batch_size else size // batch_size * batch_size


def unknown_norm(width: str, *, otherwise: str) -> str:
    """Return the message for a width that needs a norm bound where there is none, with another width to use."""
    return (
        f"width={width!r} needs rkhs_norm= (F, a bound on the RKHS norm of the objective minus the prior mean), got None. Pass "
        "a number that you know to hold; or rkhs_norm='estimate' to have one estimated from the results (with which no theorem "
        f"holds; sparse_bo.widths.estimate_rkhs_norm does it for data of your own); or {otherwise}"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class SweepSettings:
    """Settings of sweeps over arms.

    Attributes:
        sweep_dtype: ``torch.float64``, or ``torch.float32`` for the large product of a sweep (picks stay exact: every arm whose
            error interval reaches the best is recomputed in float64). Where torch is set to multiply float32 matrices in TF32
            or bfloat16, that is what is done, and the intervals are wider.
        memory_bytes: Budget of a sweep's temporary blocks, and again of the kernel columns kept between sweeps. ``None``:
            256 MiB on the CPU, a quarter of what is free on a GPU when the run begins. A lazy arm set
            (:class:`sparse_bo.MemmapArms`, :class:`sparse_bo.ProductGrid`) that does not fit into it is streamed by policies
            that can: swept tile by tile, with only the arms kept that can still win.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If the dtype is none of these, or the budget is less than a mebibyte.
    """

    sweep_dtype: torch.dtype = torch.float64
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.memory_bytes is not None:
            check_count("memory_bytes", self.memory_bytes, minimum=2**20)
        if self.sweep_dtype not in PRECISIONS.values():
            raise ValueError(f"expected sweep_dtype torch.float64 or torch.float32, got {self.sweep_dtype!r}")

    def sweep_budget(self, device: torch.device) -> int:
        """Return ``memory_bytes``, or its default on a device."""
        return default_memory_bytes(device) if self.memory_bytes is None else self.memory_bytes
