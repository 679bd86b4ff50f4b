"""GSSBO and RSSBO: a BoTorch model fitted to a bounded number of observations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from sparse_bo.domains import Domain
from sparse_bo.models.gradient_subset import Gradient
from sparse_bo.policies.subset.subsets import Buffer, Pool
from sparse_bo.policies.subset.surrogate_loop import ConditionOn, SurrogateLoop, SurrogateSettings
from sparse_bo.policies.subset.surrogate_models import exact_gp, sparse_gp
from sparse_bo.validation import check_choice, check_count, check_number


@dataclass(frozen=True, kw_only=True, eq=False)
class BufferSettings(SurrogateSettings):
    """Settings of GSSBO and RSSBO, in addition to those of :class:`SurrogateSettings`.

    Attributes:
        buffer: Maximum number of observations of a fit: M above ``initial_design``; ``"model"``: M is the first
            number of observations at which the cost model ``1 + (n/70)³`` exceeds Z times the cost of the initial design;
            ``"clock"``: M is the number of observations when an update first takes longer than Z times the mean of the first
            ten (wall clock, as in the paper: such runs do not repeat exactly).
        slowdown: Z > 1.
        condition_on: Observations of the posterior. ``"subset"``: the M observations, as in the paper. ``"all"``: every
            observation, through :func:`sparse_bo.models.fit_to_rows`; the subset proposes hyper-parameters, which replace the
            last ones if all observations are more likely under them. The default
            surrogate is then :class:`sparse_bo.SparseGP` with the same kernel: exact up to 4,096 observations.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If one is out of range, or the buffer is smaller than the initial design and a batch.
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
        """M by the number or the cost model."""
        if isinstance(self.buffer, int):
            return self.buffer
        n_0, n_c = self.initial_design, 70  # cubic work of 70 observations costs as much as the rest of a round (decision 170)
        limit = self.slowdown * (n_c**3 + n_0**3) - n_c**3  # n³ where 1 + (n/n_c)³ reaches Z (1 + (n₀/n_c)³)
        return max(int(limit ** (1.0 / 3.0)) + 1, n_0 + self.batch_size)

    def buffered(self, domain: Domain, **choice: Any) -> SurrogateLoop:
        """Return the loop with the buffer of these settings and a ``choice`` of its other observations."""
        clock = {"slowdown": self.slowdown, "least": self.initial_design + self.batch_size}
        size: dict[str, Any] = clock if self.buffer == "clock" else {"size": self.fixed_buffer}
        make = partial(exact_gp if self.condition_on == "subset" else sparse_gp, learning=self.learning)
        buffer = Buffer(initial=self.initial_design, **size, **choice)
        return self.loop(domain, make, buffer=buffer, condition_on=self.condition_on)


@dataclass(frozen=True, kw_only=True, eq=False)
class GSSBO(BufferSettings):
    """Bayesian optimisation with a model fitted to a diverse subset of the observations (GSSBO, Wei et al. 2025).

    Algorithm 1: with more than M observations the surrogate is fitted to M of them: the first ``initial_design``, the newest
    batch, and others by :func:`sparse_bo.gradient_subset`. A fit costs O(M³) per step instead of O(n³), the choice O(n M²) per
    round. Settings: :class:`BufferSettings`, :class:`SurrogateSettings`.

    *Differences from the paper* (decision 170):

    - The rule is the greedy choice of Nyström columns, ``gradient="nystrom"`` (App. A.1). ``gradient="scalar"`` is Eq. 1 with
      Eq. 3 as printed; all its cosines are ±1, so ties decide. ``gradient="column"`` takes columns ``K_y⁻¹ e_i`` for gradients.
    - The model of the previous round, with its hyper-parameters, chooses the subset of the next.
    - ``learning="map"`` by default: BoTorch's priors and no output scale. The paper's is ``learning="likelihood"``.
    - M comes from a cost model instead of the clock, so that runs repeat; ``buffer="clock"`` is the paper's.
    - UCB with 2 standard deviations. The width of Thm 5.2 is :class:`sparse_bo.widths.GSSBOTheory`.
    - A fit starts from the last hyper-parameters (``warm_start``); the box is the unit cube, outputs are standardised.
    - Perturbations lie in the range of the features, not in ``R^n`` (equivalent for features of full rank).

    Attributes:
        gradient: ``"nystrom"``, ``"scalar"`` or ``"column"``, see :func:`sparse_bo.gradient_subset`.
        pool: Observations to choose from. ``"exact"``: all, as in Algorithm 1, with the exact kernel matrix: O(n M²) for
            ``"nystrom"``, one Cholesky factorisation of O(n³) per round for the others. ``"buffer"``: the last subset and the
            newest observations, O(M³); a dropped observation never returns. ``"all"``: all, with gradients in low rank on the
            last model's observations: O(n M²), or O(n³) with ``condition_on="all"``. Default: ``"exact"`` with ``"nystrom"``,
            else ``"buffer"``, or ``"all"`` with ``condition_on="all"``.
        perturbation: Variance σ_d² of the noise on the gradients; not used by ``"nystrom"``.
    """

    name = "gssbo"

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

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        default: Pool = "all" if self.condition_on == "all" else "buffer"
        if self.gradient == "nystrom":
            default = "exact"
        pool = self.pool or default
        return self.buffered(domain, gradient=self.gradient, pool=pool, perturbation=self.perturbation)


@dataclass(frozen=True, kw_only=True, eq=False)
class RSSBO(BufferSettings):
    """GSSBO's comparator: the same buffer with a uniformly random choice of the other observations.

    Settings: :class:`BufferSettings`, :class:`SurrogateSettings`.
    """

    name = "rssbo"

    def on(self, domain: Domain) -> SurrogateLoop:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        return self.buffered(domain)
