"""S-BPE and BPE (Vakili et al. 2022; Li & Scarlett 2022)."""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sparse_bo.arms.design import Resampling
from sparse_bo.dictionary import AllSampler, Sampler
from sparse_bo.domains import Arms, Box, Domain
from sparse_bo.errors import CertificateWarning
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.elimination.mechanism import ArmElimination, BoxElimination, Elimination, exact_confidence
from sparse_bo.policies.elimination.regression import check_resampling, rls_resampling
from sparse_bo.policies.elimination.settings import EliminationSettings, batch_schedule, checked_schedule
from sparse_bo.policies.protocol import loaded_arms_of
from sparse_bo.widths import SBPEOnBox, SBPETheory


@dataclass(frozen=True, kw_only=True, eq=False)
class EliminationPolicy(EliminationSettings, ABC):
    """An elimination policy with the settings of :class:`EliminationSettings`."""

    name: ClassVar[str]
    """Name for reports."""

    def on(self, domain: Domain) -> Elimination:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        memory_bytes, width, design_size = self.sweep_budget(domain.device), self.bounds_width(), self.design_size(domain)
        if self.covar_module is not None:
            covariance_function(self.covar_module, like=domain.like)
        sizes = checked_schedule(self.schedule, self.horizon - design_size)
        parts: dict[str, Any] = {"settings": self, "design_size": design_size, "sizes": sizes, "memory_bytes": memory_bytes}
        if not isinstance(domain, Box):
            arms = loaded_arms_of(domain, policy=self.name, memory_bytes=memory_bytes)
            return ArmElimination(domain=Arms(arms), width=width, **parts)
        if isinstance(width, SBPETheory):  # S-BPE Cor. 3.7
            width = SBPEOnBox(theory=width, discretization_constant=self.discretization_constant)
            self._warn_if_nothing_can_be_eliminated(domain, width, sizes)
        return BoxElimination(domain=domain, width=width, **parts)

    def _warn_if_nothing_can_be_eliminated(self, box: Box, width: SBPEOnBox, sizes: Sequence[int]) -> None:
        """Warn if every batch is too small for Eq. 15 to eliminate anything, with the horizon from which one is not."""
        if self.learns or self.rkhs_norm == "estimate":
            return
        least = width.least_pulls(exact_confidence(box, self.given.known(), pulls=1, batches=len(sizes)))
        if max(sizes) >= least:
            return
        needed = least
        while max(batch_schedule(needed)) < least:
            needed += max(1, needed // 100)
        warnings.warn(
            f"the bounds of S-BPE Cor. 3.7 on this box will eliminate nothing: their slack needs a batch of {least:,}, the "
            f"largest of horizon={self.horizon} is {max(sizes):,}; it takes a horizon of about {needed:,}. Until then this is "
            "a design of largest variance; candidates as arms= (for example points drawn from the box) need no slack",
            CertificateWarning,
            stacklevel=4,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class SBPE(EliminationPolicy):
    """Sparse batched pure exploration (Vakili et al. 2022, Alg. 1), over arms or a box.

    ``N_i = ⌈√(N N_{i−1})⌉`` evaluations in batch i, each where the sparse posterior variance of this batch's picks is highest
    among the points that can still be optimal; then ``A_{i+1} = {x in A_i : u(x) ≥ max l}``. About log log N batches, every
    one planned before its first result. Settings: :class:`EliminationSettings`.

    Attributes:
        dictionary: Sampler of the inducing points; ``None``: recursive RLS with ``δ_j = 3δ/(π² B j²)`` after j picks, as in
            Thm 5.2. With these constants of the proof it contains all picks below some thousand distinct ones.
        ratio_threshold: C̃ ≥ 1: resample once the picks since the last dictionary may have reduced a variance by this factor
            (``1 + Σ leverage``); 1 resamples at every pick, as in the paper.

    Example:
        >>> policy = SBPE(horizon=10_000, covar_module=kernel, regularization=0.2, noise_variance=0.01, rkhs_norm=20.0)
        >>> loop = AskTell(arms, policy)
        >>> loop.run(objective, 10_000)
        >>> loop.state.survivors  # the arms that can still be optimal at confidence 1 − failure_probability
    """

    name = "sbpe"
    bias = "paper"  # Thm 3.5

    dictionary: Sampler | None = None
    ratio_threshold: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_resampling(self.dictionary, self.ratio_threshold)

    def resampling(self, batches: int) -> Resampling:
        """Return the user's sampler, or recursive RLS with the paper's confidence after each pick."""
        return rls_resampling(
            self.dictionary, self.ratio_threshold, failure_probability=self.failure_probability, batches=batches
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class BPE(EliminationPolicy):
    """Batched pure exploration with the exact posterior (Li & Scarlett 2022): S-BPE with every pick in the dictionary.

    Its ``"theory"`` bounds have F where Thm 3.5 has 2F at λ_max = 0 (Vakili et al. 2021a, Thm 1). Settings:
    :class:`EliminationSettings`. O(a n²) per batch of n distinct picks.
    """

    name = "bpe"
    bias = "tight"  # F: the posterior is exact

    def resampling(self, batches: int) -> Resampling:
        """Return the rule with every pick in the dictionary."""
        return Resampling(sampler=lambda picks: AllSampler())
