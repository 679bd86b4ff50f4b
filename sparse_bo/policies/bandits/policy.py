"""Upper-confidence policies on a DTC posterior: BKB, BBKB, GP-UCB, GP-BUCB and mini-META are choices of its parts.

Over arms they are :class:`.arm_mechanism.ArmUCB`, on a box :class:`.box_mechanism.BoxUCB`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch

from sparse_bo.arms import InBatch, StopRule
from sparse_bo.dictionary import AllSampler, LeverageSampler, Sampler
from sparse_bo.dictionary.leverage_samplers import Inclusion
from sparse_bo.domains import Arms, Box, Domain, column_units, modelled_arms
from sparse_bo.domains.sharded import in_memory
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.box_mechanism import BoxUCB
from sparse_bo.policies.bandits.state import UCBParts
from sparse_bo.policies.protocol import as_arms
from sparse_bo.policies.settings import (
    ConfidenceSettings,
    PriorSettings,
    SweepSettings,
    check_sampler,
    default_design,
    unknown_norm,
    whole_batches,
)
from sparse_bo.validation import check_choice, check_count, check_flag, check_given, check_number
from sparse_bo.widths import BBKBAuthors, BBKBTheory, BKBAuthors, BKBTheory, CalibratedWidth, ConstantWidth, Width

BKB_WIDTHS: Mapping[str, Callable[..., Width]] = {"theory": BKBTheory, "authors": BKBAuthors}


@dataclass(frozen=True, kw_only=True, eq=False)
class UCBPolicy(PriorSettings, ConfidenceSettings, SweepSettings, ABC):
    """Settings of upper-confidence policies.

    Over arms the scores are swept exactly. On a box the model is :class:`sparse_bo.SparseGP`, and
    :func:`sparse_bo.optimize_batch` makes the batch by the same rules. Kernel, mean or noise are learned on the first
    observations if they are ``None``, and again when distinct inputs have grown by half or pulls have doubled. Over arms, t
    evaluations are then of at least 2 √t different ones.

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
            else 2d, but at most d + 20, at most 100, and at least 10.
        max_batch_size: Largest batch.
    """

    width: Width | float | str | None = None
    initial_design: int | None = None
    max_batch_size: int = 10_000

    name: ClassVar[str]
    widths: ClassVar[Mapping[str, Callable[..., Width]]] = {"theory": BBKBTheory, "authors": BBKBAuthors}
    """Widths by name."""

    @property
    @abstractmethod
    def parts(self) -> UCBParts:
        """Sampler, stop rule, in-batch update and width."""

    def __post_init__(self) -> None:
        PriorSettings.__post_init__(self)
        ConfidenceSettings.__post_init__(self)
        SweepSettings.__post_init__(self)
        check_given(check_count, initial_design=self.initial_design)
        if self.width is None:
            object.__setattr__(self, "width", "calibrated" if self.learns else 2.0)
        check_count("max_batch_size", self.max_batch_size)
        check_sampler(getattr(self, "dictionary", None))
        _ = self.parts  # the parts check their own settings

    def on(self, domain: Domain) -> ArmUCB | BoxUCB:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        if not isinstance(domain, Box):
            return self.on_arms(as_arms(domain, policy=self.name))
        if self.sweep_dtype != torch.float64:
            raise ValueError(f"expected sweep_dtype=torch.float64 on a box, got {self.sweep_dtype}; it is for sweeps over arms")
        return BoxUCB(domain=domain, **self._shared(domain))

    def on_arms(self, domain: Arms) -> ArmUCB:
        """Return the mechanism over arms; a lazy set that fits into ``memory_bytes`` is loaded.

        A learned kernel is of the arms in other coordinates (:func:`sparse_bo.domains.modelled_arms`) if they are a tensor and
        some of their columns are over decades or have numbers far off. Of a lazy set picks would then depend on the memory.
        """
        memory_bytes, inputs = self.sweep_budget(domain.device), None
        points = in_memory(domain.points, memory_bytes=memory_bytes)
        known = domain if points is domain.points else Arms(points)
        if isinstance(domain.points, torch.Tensor) and self.given.covar_module is None and bool(column_units(domain)[1].any()):
            known, inputs = Arms(modelled_arms(domain, domain.points), others=domain.others), domain.points
        sweep: dict[str, Any] = {"sweep_dtype": self.sweep_dtype, "memory_bytes": memory_bytes}
        return ArmUCB(domain=known, inputs=inputs, **sweep, **self._shared(domain))

    def _shared(self, domain: Domain) -> dict[str, Any]:
        """Return the fields of :class:`.UCBMechanism` but its domain."""
        numbers = {"design_size": self._design_size(domain), "max_batch_size": self.max_batch_size}
        return {"parts": self.parts, "given": self.given, **numbers}

    def _parts(self, sampler: Sampler, stop_rule: StopRule, in_batch: InBatch = "fixed") -> UCBParts:
        return UCBParts(sampler=sampler, stop_rule=stop_rule, in_batch=in_batch, width=self._width())

    def _width(self) -> Width:
        """Return the width of a number or a name; a :class:`sparse_bo.widths.Width` as it is."""
        width = self.width
        if isinstance(width, str):
            check_choice("width", width, ("calibrated", "theory", "authors"))
            if width == "calibrated":
                return CalibratedWidth()
            if self.rkhs_norm is None:
                raise ValueError(unknown_norm(width, otherwise="width='calibrated', or a number of standard deviations"))
            if self.rkhs_norm == "estimate" and self.learns:
                raise ValueError(
                    "expected covar_module= and regularization= with rkhs_norm='estimate', got a learned prior; pass them, or "
                    "width='calibrated'"
                )
            return self.widths[width](
                rkhs_norm=self.rkhs_norm, noise_variance=self.noise_variance, failure_probability=self.failure_probability
            )
        if isinstance(width, (int, float)) and not isinstance(width, bool):
            return ConstantWidth(check_number("width", width))
        if not isinstance(width, Width):
            raise TypeError(
                f"expected width to be a number, 'calibrated', 'theory', 'authors' or a Width, got {type(width).__name__}"
            )
        return width

    def _design_size(self, domain: Domain) -> int:
        if self.initial_design is not None:
            return self.initial_design
        return default_design(domain.dims) if self.learns else 1


@dataclass(frozen=True, kw_only=True, eq=False)
class BKB(UCBPolicy):
    """Budgeted kernel bandit (Calandriello et al., COLT 2019, Alg. 1). O(a m² + n m²) per arm picked.

    With another ``dictionary`` it is GP-UCB on another surrogate, as the papers' comparators are: ``IVMSampler(size=m)``
    (Lawrence et al. 2002), ``KMeansPlusPlusSampler(size=m)`` (Oglic & Gärtner 2017), ``IPASampler(size=m)`` (Moss et al.
    2023), ``FirstSampler(size=m)`` (LR-First m; Williams & Seeger 2001), ``UniformSampler(size=m)``; on the command line
    ``--policy bkb --dictionary ivm --dictionary-size m``. BKB's guarantee (Thm 1 and 2) is for leverage sampling only. Its
    incremental dictionary (§3) is ``dictionary=IncrementalLeverageSampler()``.

    Settings shared with the other policies: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`.

    Attributes:
        oversampling: q̄ > 0; theory: ``6α log(4T/δ)/ε²``, practice: 2 to 10.
        inclusion: ``"exact"`` or ``"union"`` inclusion of the dictionary, see :class:`sparse_bo.dictionary.LeverageSampler`.
        dictionary: Another sampler instead of leverage sampling.
        max_dictionary: Maximum size of the leverage dictionary; see :func:`sparse_bo.plan`.
    """

    oversampling: float = 2.0
    inclusion: Inclusion = "union"
    dictionary: Sampler | None = None
    max_dictionary: int | None = None

    name = "bkb"
    widths = BKB_WIDTHS

    @property
    def parts(self) -> UCBParts:
        """Leverage sampling and batches of one."""
        sampler = LeverageSampler(oversampling=self.oversampling, inclusion=self.inclusion, max_size=self.max_dictionary)
        return self._parts(self.dictionary or sampler, StopRule("single"))


@dataclass(frozen=True, kw_only=True, eq=False)
class BBKB(UCBPolicy):
    """Batch budgeted kernel bandit (Calandriello et al. 2020, Alg. 1): adaptive batching and resparsification.

    The published run on Abalone and Cadata: ``BBKB(covar_module=kernel, regularization=0.2, noise_variance=0.01,
    rkhs_norm=20.0, failure_probability=1e-4, oversampling=2.0, ratio_threshold=2.0, width="authors")`` with
    ``kernel.lengthscale = 5 ** 0.5``. O(a m² + n m²) per batch, O(1) arms touched per pick.

    Settings shared with the other policies: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`.

    Attributes:
        oversampling: q̄ > 0; theory: ``8 log(4T/δ)`` for the size, ``72 C̃ log(4T/δ)`` for the regret; practice: 2 to 10; 2 is
            the paper's (decision 172). With a small q̄ the sparse variance is too large, by at most the factor of
            :meth:`sparse_bo.AskTell.certificate`: batches end early, and scores are too high.
        ratio_threshold: C̃ ≥ 1; 1 gives batches of one, BKB but for the width. ``None``: 2 with a complete prior (the paper), 10
            with a learned one (decision 172).
        stop_rule: ``"global"`` (the paper), ``"local"`` (larger batches), ``"gp-bucb"`` (smaller) or ``"repeat"`` (one arm
            per batch: mini-META on a sparse posterior), see :class:`sparse_bo.arms.StopRule`.
        in_batch: ``"fixed"``: fixed-dictionary update (the paper); ``"process"``: picked arms join the representation, so
            their residual shrinks too and batches are more diverse. Every stop rule is valid with both. ``None``:
            ``"process"`` with the local rule, a learned prior or a batch size, else ``"fixed"``: the fixed update does not
            change the residual of a picked arm, so a local batch could repeat one arm whose variance is mostly residual.
        batch_size: Picks of every batch (a plate of 96, say), in place of a stop rule; without its guarantee. The initial
            design is then of whole batches, at least one.
        repeats: Whether an arm may be evaluated again. ``False`` (exact objectives, or one of each candidate): no arm is, not
            even a failed one, and the run ends once all have been evaluated. Over arms only.
        inclusion: ``"exact"`` or ``"union"`` inclusion of the dictionary, see :class:`sparse_bo.dictionary.LeverageSampler`.
        dictionary: Another sampler instead of leverage sampling.
        max_dictionary: Maximum size of the leverage dictionary; see :func:`sparse_bo.plan`.
    """

    oversampling: float = 2.0
    ratio_threshold: float | None = None
    stop_rule: Literal["global", "local", "gp-bucb", "repeat"] = "global"
    in_batch: InBatch | None = None
    inclusion: Inclusion = "union"
    dictionary: Sampler | None = None
    max_dictionary: int | None = None
    batch_size: int | None = None
    repeats: bool = True

    def __post_init__(self) -> None:
        check_flag("repeats", self.repeats)
        if self.stop_rule == "repeat" and not self.repeats:
            raise ValueError(
                "expected another stop_rule for repeats=False, got 'repeat', whose batches repeat an arm; leave it out"
            )
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
            object.__setattr__(self, "max_batch_size", self.batch_size)
            if self.ratio_threshold is not None or self.stop_rule != "global":
                raise ValueError(
                    f"expected batch_size= or a stop rule, got batch_size={self.batch_size} with stop_rule={self.stop_rule!r} "
                    f"and ratio_threshold={self.ratio_threshold}; leave one out"
                )
        elif self.ratio_threshold is None:
            object.__setattr__(self, "ratio_threshold", 10.0 if self.learns else 2.0)
        super().__post_init__()
        if self.batch_size is not None and isinstance(self.parts.width, (BBKBTheory, BBKBAuthors)):
            raise ValueError(
                f"expected a width without the stop rule's bound for batch_size={self.batch_size}, got {self.width!r}; use "
                "width='calibrated', or a number of standard deviations"
            )

    name = "bbkb"

    def on(self, domain: Domain) -> ArmUCB | BoxUCB:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        if isinstance(domain, Box) and not self.repeats:
            raise ValueError("repeats=False is for arms, got a box; leave it out (points of a box hardly ever repeat)")
        return super().on(domain)

    def _design_size(self, domain: Domain) -> int:
        size = super()._design_size(domain)
        if self.batch_size is None or self.initial_design is not None or not self.learns:
            return size
        return max(whole_batches(default_design(domain.dims), self.batch_size), self.batch_size)

    def on_arms(self, domain: Arms) -> ArmUCB:
        """See :meth:`UCBPolicy.on_arms`."""
        return replace(super().on_arms(domain), repeats=self.repeats)

    @property
    def parts(self) -> UCBParts:
        """Leverage sampling, the stop rule and the in-batch update."""
        if self.in_batch is not None:
            check_choice("in_batch", self.in_batch, ("fixed", "process"))
        check_choice("stop_rule", self.stop_rule, ("global", "local", "gp-bucb", "repeat"))
        ratio = math.inf if self.ratio_threshold is None else self.ratio_threshold  # of a batch size: no batch is ended
        sampler = LeverageSampler(oversampling=self.oversampling, inclusion=self.inclusion, max_size=self.max_dictionary)
        diverse = self.stop_rule == "local" or self.learns or self.batch_size is not None
        in_batch = self.in_batch or ("process" if diverse else "fixed")
        return self._parts(self.dictionary or sampler, StopRule(self.stop_rule, ratio), in_batch)


@dataclass(frozen=True, kw_only=True, eq=False)
class GPUCB(UCBPolicy):
    """Exact GP-UCB (Srinivas et al. 2010), with repeats merged: O(a n² + n³) per arm picked, n distinct arms pulled.

    Settings: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`. Named widths are BKB's with the exact effective dimension.
    """

    name = "gp-ucb"
    widths = BKB_WIDTHS

    @property
    def parts(self) -> UCBParts:
        """All pulled arms in the dictionary, batches of one."""
        return self._parts(AllSampler(), StopRule("single"))


@dataclass(frozen=True, kw_only=True, eq=False)
class GPBUCB(UCBPolicy):
    """Exact GP-BUCB (Desautels et al. 2014) as BBKB's comparator: process conditioning and the product rule.

    Settings: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`. Named widths are BBKB's. O(a n² + n³) per batch.

    Attributes:
        ratio_threshold: C̃ ≥ 1 of ``Π (1 + leverage) ≤ C̃``.
    """

    ratio_threshold: float = 2.0

    name = "gp-bucb"

    @property
    def parts(self) -> UCBParts:
        """All pulled arms in the dictionary, the product rule, process conditioning."""
        return self._parts(AllSampler(), StopRule("gp-bucb", self.ratio_threshold), "process")


@dataclass(frozen=True, kw_only=True, eq=False)
class MiniMETA(UCBPolicy):
    """mini-META with GP-UCB (mini-GP-UCB, Calandriello et al. 2022): stay with an arm until its variance has fallen to 1/C̃.

    A batch is one arm, the best by ``mean + width · √leverage``, evaluated ``b`` times: the smallest b with
    ``1 + b · leverage > C̃``, so that the exact variance there has fallen to less than 1/C̃ of what it was. (C̃ is the square of
    the paper's constant C. As in BBKB, the batch includes the evaluation that passes the bound.) The posterior is
    exact: repeats are merged, so it costs O(a n² + n³) per *batch*, n distinct arms, independent of the number of evaluations.
    On arms only. The same rule on a sparse posterior: ``BBKB(stop_rule="repeat")``.

    Settings: :class:`sparse_bo.policies.bandits.policy.UCBPolicy`. Named widths are BBKB's.

    Attributes:
        ratio_threshold: C̃ ≥ 1; 1 is GP-UCB, but for the width.
    """

    ratio_threshold: float = 2.0

    name = "mini-meta"

    @property
    def parts(self) -> UCBParts:
        """All pulled arms in the dictionary, one arm per batch."""
        return self._parts(AllSampler(), StopRule("repeat", self.ratio_threshold))
