"""GSSBO and RSSBO: any surrogate and acquisition function, on a bounded number of observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sparse_bo.domains import Domain
from sparse_bo.models.gradient_subset import Gradient
from sparse_bo.policies.protocol import box_of
from sparse_bo.policies.subset.fitting import ConditionOn
from sparse_bo.policies.subset.settings import SurrogateSettings
from sparse_bo.policies.subset.subsets import Buffer, ClockSize, DiverseRows, FillRule, FixedSize, Pool, RandomRows
from sparse_bo.policies.subset.surrogate_loop import SurrogateLoop, surrogate_loop
from sparse_bo.policies.subset.surrogate_models import exact_matern_gp, sparse_or_exact_matern_gp
from sparse_bo.validation import check_choice, check_count, check_number

OVERHEAD_OBSERVATIONS = 70
"""n_c of the cost model ``1 + (n/n_c)³``: the number of observations whose cubic work costs as much as all else in a round.

With the paper's n₀ = 20 and Z = 4 it gives M = 102; the paper reports "usually around 100".
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class BufferSettings(SurrogateSettings):
    """The settings that GSSBO and RSSBO share, beside those of :class:`SurrogateSettings`.

    Attributes:
        buffer: How many observations the model may see: a number M above ``initial_design``; ``"model"``: M is the first
            number of observations at which the cost model ``1 + (n/70)³`` exceeds Z times the cost of the initial design;
            ``"clock"``: M is the number of observations when an update first takes longer than Z times the mean of the first
            ten (wall clock, as in the paper: such runs do not repeat exactly).
        slowdown: Z > 1 of both.
        condition_on: What the model knows beyond the buffer. ``"subset"``: the M observations, as in the paper; what is left
            out is forgotten. ``"all"``: every observation, through :func:`sparse_bo.models.fit_to_rows`; the M propose
            hyper-parameters, which replace the last ones where all observations are likelier under them. The default
            surrogate is then :class:`sparse_bo.SparseGP` with the same kernel: exact up to 4,096 observations.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If one is out of range, or the buffer does not hold the initial design and a batch.
    """

    buffer: int | Literal["model", "clock"] = "model"
    slowdown: float = 4.0
    condition_on: ConditionOn = "subset"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("condition_on", self.condition_on, ("subset", "all"))
        if isinstance(self.buffer, str):
            check_choice("buffer", self.buffer, ("model", "clock"))
        else:
            check_count("buffer", self.buffer)
            if self.buffer < self.initial_design + self.batch_size:
                raise ValueError(
                    f"expected a buffer that holds the initial design and the newest batch, got buffer={self.buffer} for "
                    f"initial_design={self.initial_design} and batch_size={self.batch_size}; raise buffer"
                )
        if check_number("slowdown", self.slowdown) <= 1.0:
            raise ValueError(f"expected slowdown > 1 (Z, a factor on the time of an initial iteration), got {self.slowdown!r}")

    @property
    def fixed_buffer(self) -> int:
        """M of a buffer that does not go by the clock: the number given, or that of the cost model."""
        if isinstance(self.buffer, int):
            return self.buffer
        n_0, n_c = self.initial_design, OVERHEAD_OBSERVATIONS
        limit = self.slowdown * (n_c**3 + n_0**3) - n_c**3  # n³ where 1 + (n/n_c)³ reaches Z (1 + (n₀/n_c)³)
        return max(int(limit ** (1.0 / 3.0)) + 1, n_0 + self.batch_size)


@dataclass(frozen=True, kw_only=True, eq=False)
class GSSBO(BufferSettings):
    """Bayesian optimisation on a bounded number of observations that differ most from each other (GSSBO, Wei et al. 2025).

    Algorithm 1: up to M observations it is the plain method. Beyond, the surrogate is fitted to M of them: the
    ``initial_design`` first, the newest batch, and the others by :func:`sparse_bo.gradient_subset`. A fit then costs O(M³) per
    step instead of O(n³), the choice O(n M²) per round. Settings: :class:`BufferSettings`, :class:`SurrogateSettings`.

    *Our choices*, where the paper says less, or something else:

    - The rule is the greedy choice of Nyström columns, ``gradient="nystrom"``: what App. A.1 says the paper's rule equals (its
      proof fails, but the error bounds are those of this choice). On Hartmann-6 (80 evaluations, M = 40, ten seeds) its regret
      is 1.01 times GP-UCB's (95 % interval 0.91 to 1.13) with BoTorch's priors, where a random subset's is 1.19 (1.10 to 1.29);
      by maximum likelihood 1.02 (0.93 to 1.12), and 1.07 (0.95 to 1.22). ``benchmarks/gssbo_rules.py`` has all rules.
    - ``gradient="scalar"`` is Eq. 1 with Eq. 3 as printed. All its cosines are ±1, so ties decide: the oldest stay.
    - ``gradient="column"`` takes columns ``K_y⁻¹ e_i`` for gradients. It is ours, neither Eq. 3 nor App. A.1: signed cosines of
      columns attract near neighbours. It was the default, among the last subset (``pool="buffer"``).
    - The model of the round before, with its hyper-parameters, chooses the subset of the next.
    - ``learning="map"`` by default: BoTorch's priors and no output scale. The paper's is ``learning="likelihood"``.
    - M by a cost model instead of the clock, so that runs repeat; ``buffer="clock"`` is the paper's.
    - UCB with 2 standard deviations. The width of Thm 5.2 is :class:`sparse_bo.widths.GSSBOTheory`.
    - A fit starts from the last hyper-parameters (``warm_start``); the box is the unit cube, outputs are standardised.
    - Perturbations lie in the range of the features, not in ``R^n`` (the same in a rotated basis where these have full rank).

    Attributes:
        gradient: ``"nystrom"``, ``"scalar"`` or ``"column"``, see :func:`sparse_bo.gradient_subset`.
        pool: ``"exact"``: choose among all observations, as Algorithm 1 does, with the exact kernel matrix: O(n M²) for
            ``"nystrom"``, one Cholesky factorisation of O(n³) per round for the others, beside the tens of a fit; ``"buffer"``:
            among the last subset and the newest observations, O(M³): what is dropped never returns; ``"all"``: among all, for
            gradients with their low-rank form on what the last model knew: the last subset, O(n M²), or with
            ``condition_on="all"`` everything, O(n³) and exact. Default: ``"exact"`` with ``"nystrom"``; for gradients what it
            was when they were the default, ``"buffer"``, or ``"all"`` with ``condition_on="all"``.
        perturbation: Variance σ_d² of the noise on the gradients; not used by ``"nystrom"``.
    """

    gradient: Gradient = "nystrom"
    pool: Pool | None = None
    perturbation: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("gradient", self.gradient, ("column", "scalar", "nystrom"))
        if self.pool is not None:
            check_choice("pool", self.pool, ("all", "buffer", "exact"))
        if check_number("perturbation", self.perturbation) < 0.0:
            raise ValueError(f"expected perturbation >= 0 (a variance), got {self.perturbation!r}")

    @property
    def name(self) -> str:
        """``"gssbo"``."""
        return "gssbo"

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        default: Pool = "all" if self.condition_on == "all" else "buffer"
        if self.gradient == "nystrom":
            default = "exact"
        fill = DiverseRows(self.initial_design, self.gradient, self.pool or default, self.perturbation)
        return _buffered_loop(self, domain, name=self.name, fill=fill)


@dataclass(frozen=True, kw_only=True, eq=False)
class RSSBO(BufferSettings):
    """GSSBO's comparator: the same buffer and the same kept observations, the others uniformly at random.

    Settings: :class:`BufferSettings`, :class:`SurrogateSettings`.
    """

    @property
    def name(self) -> str:
        """``"rssbo"``."""
        return "rssbo"

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        return _buffered_loop(self, domain, name=self.name, fill=RandomRows(self.initial_design))


def _buffered_loop(settings: BufferSettings, domain: Domain, *, name: str, fill: FillRule) -> SurrogateLoop:
    """Return the loop whose model sees a buffer of observations that ``fill`` chooses."""
    if settings.buffer == "clock":
        size: ClockSize | FixedSize = ClockSize(settings.slowdown, settings.initial_design + settings.batch_size)
    else:
        size = FixedSize(settings.fixed_buffer)
    models = exact_matern_gp if settings.condition_on == "subset" else sparse_or_exact_matern_gp
    return surrogate_loop(
        settings,
        box_of(domain, policy=name),
        make=settings.surrogate or models(settings.learning),
        subset=Buffer(size, fill),
        condition_on=settings.condition_on,
    )
