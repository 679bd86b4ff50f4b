"""The expected-improvement policy over arms."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.domains import Arms, Domain
from sparse_bo.policies.improvement.mechanism import ArmSearch
from sparse_bo.policies.protocol import arms_of
from sparse_bo.policies.settings import SweepSettings
from sparse_bo.policies.trust_region.settings import ImprovementSettings


@dataclass(frozen=True, kw_only=True)
class ExpectedImprovement(ImprovementSettings):
    """Expected improvement over all arms, where the best arm at the end counts (Jones et al. 1998; Huang et al. 2006).

    Model, kernels, warping and recommendation are those of :class:`sparse_bo.TrustRegion`; the model merges the evaluations of
    an arm. The best arm of the design is evaluated once more. If the objective gives another value, it has noise: improvement
    that noise would hide counts for less, and an arm is evaluated again where that is worth more than another arm. Else no arm
    is evaluated again while there are others, and the arm of the highest observation is recommended.

    The picks of a batch maximise log expected improvement among all arms, each conditioned on pending and earlier ones.

    O(n³ + a n²) per batch and 8 a n bytes for a arms and n points of the model. For millions of arms, for 10⁴ evaluations, or
    where every evaluation counts: :class:`sparse_bo.BBKB`.

    The settings are those of :class:`.ImprovementSettings`. The model is larger than on a box, as every arm is a candidate.
    """

    model_size: int = 1_000

    @property
    def name(self) -> str:
        """``"expected-improvement"``."""
        return "expected-improvement"

    def on(self, domain: Domain) -> ArmSearch:
        """See :meth:`sparse_bo.policies.Policy.on`.

        Raises:
            TypeError: If the domain is a box.
            ValueError: If the arms do not fit into memory, or are in shards.
        """
        memory_bytes = SweepSettings().sweep_budget(domain.device)
        arms = arms_of(domain, policy=self.name, memory_bytes=memory_bytes).double()
        return ArmSearch(domain=Arms(arms), settings=self)
