"""The policy for the best of some arms: its settings."""

from __future__ import annotations

from dataclasses import dataclass

from sparse_bo.domains import Arms, Domain
from sparse_bo.policies.improvement.mechanism import ArmSearch
from sparse_bo.policies.protocol import arms_of
from sparse_bo.policies.settings import SweepSettings
from sparse_bo.policies.trust_region.policy import LARGEST_DESIGN
from sparse_bo.validation import check_count


@dataclass(frozen=True, kw_only=True)
class ExpectedImprovement:
    """Expected improvement over all of some arms, where the best arm at the end counts (Jones et al. 1998; Huang et al. 2006).

    Model, kernels, warping and recommendation are those of :class:`sparse_bo.TrustRegion`: an exact GP of at most 1,000 arms
    (the highest, the nearest to the best, and some of everywhere), which knows all evaluations of an arm as their mean. The
    best arm of the design is evaluated once more. If the objective gives another value, it has noise: improvement that noise
    would hide counts for less, and an arm is evaluated again where that is worth more than another. Else no arm is evaluated
    again while there are others, and the highest observation is recommended.

    The arms of a batch are the maximisers of log expected improvement among all arms, each conditioned on those before it and
    on those that are out.

    O(n³ + a n²) per batch and 8 a n bytes for a arms, n ≤ 1,000. For millions of arms, for 10⁴ evaluations, or where every
    evaluation counts: :class:`sparse_bo.BBKB`.

    Attributes:
        batch_size: Arms that may be out at a time: as many as there are workers. ``None``: 4, and one for every 200
            evaluations that there are, if that is more.
        initial_design: Distinct random arms before the first model. ``None``: 2d, at least 5 and at most d + 20 or 100.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If one is out of range.
    """

    batch_size: int | None = None
    initial_design: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "initial_design"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))

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
        d = domain.dims
        design = max(5, min(2 * d, d + 20, LARGEST_DESIGN)) if self.initial_design is None else self.initial_design
        return ArmSearch(domain=Arms(arms), design_size=min(design, len(arms)), batch_size=self.batch_size)
