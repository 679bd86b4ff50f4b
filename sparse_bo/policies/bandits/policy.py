"""Upper-confidence policies on a DTC posterior: settings, of which BKB, BBKB, GP-UCB and GP-BUCB are choices of parts.

Bound to arms they are :class:`.arm_mechanism.ArmUCB`, on a box :class:`.box_mechanism.BoxUCB`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from sparse_bo.domains import Arms, Box, Domain
from sparse_bo.domains.sharded import in_memory
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.box_mechanism import BoxUCB
from sparse_bo.policies.bandits.parts import Parts
from sparse_bo.policies.protocol import as_arms
from sparse_bo.policies.settings import ConfidenceSettings, PriorSettings, SweepSettings, unknown_norm
from sparse_bo.validation import check_choice, check_count
from sparse_bo.widths import BBKBAuthors, BBKBTheory, BKBAuthors, BKBTheory, CalibratedWidth, ConstantWidth, Width


@dataclass(frozen=True, kw_only=True, eq=False)
class UCBPolicy(PriorSettings, ConfidenceSettings, SweepSettings, ABC):
    """Settings of upper-confidence policies.

    Over arms the scores are swept exactly. On a box the model is :class:`sparse_bo.SparseGP`, and
    :func:`sparse_bo.optimize_batch` makes the batch by the same rules. Kernel, mean or noise are learned on the first
    observations if they are ``None``, and again when distinct inputs have grown by half or pulls have doubled. Over arms, t
    evaluations are then of at least 2 √t different ones (:data:`sparse_bo.policies.bandits.arm_mechanism.LOOKS`).

    Settings shared with other policies: :class:`sparse_bo.policies.settings.PriorSettings` (``covar_module``,
    ``prior_mean``, ``regularization``), :class:`sparse_bo.policies.settings.ConfidenceSettings` (``noise_variance``,
    ``rkhs_norm``, ``failure_probability``) and, over arms, :class:`sparse_bo.policies.settings.SweepSettings`
    (``sweep_dtype``, ``memory_bytes``).

    Attributes:
        width: A number of posterior standard deviations, ``"calibrated"`` (2, more if the run's own errors show that the
            intervals are too narrow: :class:`sparse_bo.widths.CalibratedWidth`), ``"theory"``, ``"authors"`` (these need
            ``rkhs_norm``), or a :class:`sparse_bo.widths.Width`. ``None``: 2 with a complete prior, calibrated with a learned
            one.
        initial_design: Distinct random arms before the first score; ``None``: 1 with a complete prior (as in the papers),
            else ``max(10, 2d)``.
        max_batch_size: Largest batch.
    """

    width: Width | float | str | None = None
    initial_design: int | None = None
    max_batch_size: int = 10_000

    @property
    @abstractmethod
    def name(self) -> str:
        """Name for reports."""

    @property
    @abstractmethod
    def parts(self) -> Parts:
        """Sampler, stop rule, in-batch update and width."""

    def __post_init__(self) -> None:
        PriorSettings.__post_init__(self)
        ConfidenceSettings.__post_init__(self)
        SweepSettings.__post_init__(self)
        if self.initial_design is not None:
            check_count("initial_design", self.initial_design)
        if self.width is None:
            object.__setattr__(self, "width", "calibrated" if self.learns else 2.0)
        check_count("max_batch_size", self.max_batch_size)
        _ = self.parts  # the parts check their own settings

    def on(self, domain: Domain) -> ArmUCB | BoxUCB:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        if isinstance(domain, Box):
            return self.on_box(domain)
        return self.on_arms(as_arms(domain, policy=self.name))

    def on_arms(self, domain: Arms) -> ArmUCB:
        """Return the mechanism over arms; a lazy set that fits into ``memory_bytes`` is loaded.

        Raises:
            ValueError: If a setting does not fit the arms.
        """
        memory_bytes = self.sweep_budget(domain.device)
        points = in_memory(domain.points, memory_bytes=memory_bytes)
        return ArmUCB(
            domain=domain if points is domain.points else Arms(points),
            parts=self.parts,
            given=self.given,
            design_size=self._design_size(domain),
            max_batch_size=self.max_batch_size,
            sweep_dtype=self.sweep_dtype,
            memory_bytes=memory_bytes,
        )

    def on_box(self, domain: Box) -> BoxUCB:
        """Return the mechanism on a box.

        Raises:
            ValueError: If a setting does not fit the box.
        """
        if self.sweep_dtype != torch.float64:
            raise ValueError(f"expected sweep_dtype=torch.float64 on a box, got {self.sweep_dtype}; it is for sweeps over arms")
        return BoxUCB(
            box=domain,
            parts=self.parts,
            given=self.given,
            design_size=self._design_size(domain),
            max_batch_size=self.max_batch_size,
        )

    def _design_size(self, domain: Domain) -> int:
        if self.initial_design is not None:
            return self.initial_design
        return max(10, 2 * domain.dims) if self.learns else 1


def named_width(
    policy: UCBPolicy, *, theory: type[BKBTheory] | type[BBKBTheory], authors: type[BKBAuthors] | type[BBKBAuthors]
) -> Width:
    """Return the policy's width: a :class:`sparse_bo.widths.Width`, a constant for a number, or the width of a name.

    Raises:
        ValueError: If the name is unknown, or the named width needs an ``rkhs_norm``.
        TypeError: If ``width`` has another type.
    """
    width = policy.width
    if isinstance(width, str):
        check_choice("width", width, ("calibrated", "theory", "authors"))
        if width == "calibrated":
            return CalibratedWidth()
        if policy.rkhs_norm is None:
            raise ValueError(unknown_norm(width, otherwise="width='calibrated', or a number of standard deviations"))
        if policy.rkhs_norm == "estimate" and policy.learns:
            raise ValueError(
                "expected covar_module= and regularization= with rkhs_norm='estimate', got a learned prior; pass them, or "
                "width='calibrated'"
            )
        chosen = theory if width == "theory" else authors
        return chosen(
            rkhs_norm=policy.rkhs_norm,
            noise_variance=policy.noise_variance,
            failure_probability=policy.failure_probability,
        )
    if isinstance(width, (int, float)) and not isinstance(width, bool):
        return ConstantWidth(float(width))
    if not isinstance(width, Width):
        raise TypeError(
            f"expected width to be a number, 'calibrated', 'theory', 'authors' or a Width, got {type(width).__name__}"
        )
    return width
