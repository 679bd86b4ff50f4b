"""The trust-region policy: its settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from sparse_bo.domains import Domain
from sparse_bo.policies.protocol import box_of
from sparse_bo.policies.settings import Goal
from sparse_bo.policies.trust_region.mechanism import RegionSearch
from sparse_bo.policies.trust_region.region import FEW_DIMS
from sparse_bo.policies.trust_region.trial import replace_constants
from sparse_bo.validation import check_choice, check_count, check_probability

SHARE = 0.25
"""Of the picks made anywhere in the box, in up to :data:`FEW_DIMS` dimensions: there the model knows what is where. A half was
no better on noisy Hartmann-6 and on draws of a GP (300 evaluations, seeds 0 to 4, 0 to 2)."""
LARGEST_DESIGN = 100
"""Points of the default initial design, at most. With 10 + d/2 for 2d it was no better: Ackley-20 ended 13 and 8 % of its
range below the best (0.2 and 6 %), Rastrigin-10 30 and 13 % (19 and 23 %; 300 evaluations, seeds 0 and 1)."""
LARGEST_COUNTED = 10
"""The same where every evaluation counts. Regret per evaluation with 16 points (10), in per cent of the range, means of 300
evaluations of seeds 0 and 1: Hartmann-6 20 (13; 12 points), Ackley-20 32 (27), Rosenbrock-8 10 (6), Branin 15 (12; 5), Levy-20
and Rastrigin-10 the same; draws of a GP over 4 inputs (8), seeds 2 to 4 and 100 to 105: 21 (27)."""


@dataclass(frozen=True, kw_only=True)
class TrustRegion:
    """Expected improvement in a region that grows with progress and shrinks without (after TuRBO, Eriksson et al. 2019).

    In up to 8 dimensions the region starts as the whole box; its sides are proportional to the lengthscales. The model is an
    exact GP of at most 400 observations: the highest, the nearest to the centre, and some of everywhere. Kernel (Gaussian,
    Matérn-5/2, or a sum of functions of one input each and one of all) and a warping of the observations are chosen by the
    evidence, output scale and noise are learned. The points of a batch are maximisers of log expected improvement by gradients,
    each conditioned on those before; in more than 8 dimensions they change about 5 inputs of the centre. Of a
    sum, the best value of each input is looked for in the whole box, and combined. A region that has become small is left for
    another; all data stays. Where the best value is higher than the model lets expect anywhere, the objective has hills that it
    does not foresee: then the next region stays off those of the maxima found (hill-valley test, Ursem 1999).

    The best point of the design is evaluated once more. If the objective gives the same value, it has no noise: the model
    interpolates, and the highest observation is what is recommended; else the highest posterior mean is, and improvement that
    noise would hide counts for less (augmented expected improvement, Huang et al. 2006).

    In up to 3 dimensions, once there are 20 evaluations for each, the picks that are made anywhere and those that choose a new
    region go where the box is emptiest while it has more places that are independent by the lengthscales than evaluations.

    With ``goal="cumulative"`` a pick maximises ``m(x) − max m + h EI(x)``, the online knowledge gradient (Ryzhov, Powell &
    Frazier 2012): what it gains, for as many evaluations h as three times those made, less what it costs now, both in the units
    of the observations. Where nothing is worth more than 0 the best point is evaluated again: the search has settled. From then
    on, and after a region has ended, at most √t of t evaluations are of other points, picked as above, until one of them has
    raised the best value. The model knows all evaluations of a point as their mean.

    O(n³) per batch, n ≤ 400, whatever the number of evaluations; with ``goal="cumulative"``, n distinct points.

    Attributes:
        batch_size: Points that may be out at a time: as many as there are workers. ``None``: 4, and one for every 200
            evaluations that there are, if that is more.
        initial_design: Points of a scrambled Sobol sequence before the first model. ``None``: 2d, at least 5 and at most
            d + 20 or 100; with ``goal="cumulative"`` at most 10.
        anywhere: Share of the picks that are made in the whole box while the region is smaller, in [0, 1]. ``None``: 1/4 in
            up to 8 dimensions, 0 in more.
        goal: ``"best"``: the best point at the end counts, whatever was evaluated on the way. ``"cumulative"``: every
            evaluation counts (the cumulative regret), and what is known to be good is evaluated again and again.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If one is out of range.
    """

    batch_size: int | None = None
    initial_design: int | None = None
    anywhere: float | None = None
    goal: Goal = "best"
    trial: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("batch_size", "initial_design"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.anywhere is not None:
            check_probability("anywhere", self.anywhere, closed=True)
        check_choice("goal", self.goal, get_args(Goal))

    @property
    def name(self) -> str:
        """``"trust-region"``."""
        return "trust-region"

    def on(self, domain: Domain) -> RegionSearch:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        replace_constants(self.trial)
        box = box_of(domain, policy=self.name).double()
        d = box.dims
        cumulative = self.goal == "cumulative"
        most = LARGEST_COUNTED if cumulative else LARGEST_DESIGN
        design = max(5, min(2 * d, d + 20, most)) if self.initial_design is None else self.initial_design
        share = (SHARE if d <= FEW_DIMS else 0.0) if self.anywhere is None else self.anywhere
        return RegionSearch(box=box, design_size=design, batch_size=self.batch_size, anywhere=share, cumulative=cumulative)
