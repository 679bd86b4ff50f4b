"""Simple rules: random search, ε-greedy, and policies over arms that choose from BKB's posterior by another rule than BKB's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from sparse_bo.arms import StopRule, pick_batch
from sparse_bo.dictionary import Sampler
from sparse_bo.domains import Arms, ArmSet, Box, Domain
from sparse_bo.gp.observations import no_observations
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.policy import BKB
from sparse_bo.policies.bandits.state import BanditState, random_arms, thaw_evaluated, unseen_arms
from sparse_bo.policies.failures import spared
from sparse_bo.policies.persistence import thaw_fields
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait, as_arms, loaded_arms_of
from sparse_bo.policies.settings import PriorSettings, SweepSettings
from sparse_bo.policies.states import BoxState, Stopwatch
from sparse_bo.validation import check_count, check_number, check_probability


@dataclass(frozen=True, kw_only=True, eq=False)
class WithoutModel(Mechanism[Any]):
    """A policy without a model, over arms, in memory or streamed, or on a box.

    Attributes:
        domain: In float64.
        batch_size: Evaluations per batch.
        choose: Choice of picks: ``(state, q, pending=, generator=) ->`` picks.
    """

    domain: Arms | Box
    batch_size: int
    choose: Callable[..., Tensor]

    def init(self) -> BanditState | BoxState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        if isinstance(self.domain, Box):
            return BoxState.empty(self.domain)
        return BanditState(self.domain.points, no_observations(self.domain.points))

    def ask(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal:
        """Return ``batch_size`` picks, or ``max_q`` if that is less. Draws by ``choose``."""
        return Proposal(self.choose(state, min(self.batch_size, max_q), pending=pending, generator=generator))

    def tell(self, state: Any, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> Any:
        """Record the observations."""
        watch = Stopwatch()
        with watch.phase("observe"):
            after = state.with_results(picks, y)
        return replace(after, seconds=watch.seconds)

    def freeze(self, state: Any) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`. O(distinct pulled arms), on a box O(n d)."""
        return state.frozen()

    def thaw(self, frozen: Frozen) -> BanditState | BoxState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`. Of arms, reads the pulled ones only."""
        if isinstance(self.domain, Box):
            return BoxState(self.domain, **thaw_fields(BoxState, frozen))
        return thaw_evaluated(self.domain.points, frozen)


@dataclass(frozen=True, kw_only=True, eq=False)
class ExplorationSettings:
    """The probability with which an evaluation is of a random arm.

    Attributes:
        epsilon: ε in [0, 1]; with ``decay`` any number ≥ 0.
        decay: The t-th evaluation is random with probability ``min(1, epsilon · t^−decay)``; 0: constant, 1: the ε_t-greedy of
            Auer et al. 2002 (Fig. 3), whose regret is logarithmic for ``epsilon`` large enough.
    """

    epsilon: float = 0.1
    decay: float = 0.0

    def __post_init__(self) -> None:
        check_number("decay", self.decay, minimum=0.0)
        if self.decay == 0.0:
            check_probability("epsilon", self.epsilon, closed=True)
        else:
            check_number("epsilon", self.epsilon, minimum=0.0)

    def explored(self, state: BanditState, best: Tensor, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """Return ``q`` arms, random ones and else ``best``, after the state's pulls and ``out`` pending evaluations.

        Draws one uniform number per arm of the batch, then the random arms.
        """
        t = torch.arange(1, q + 1, dtype=torch.float64, device="cpu") + (state.pulls + out)
        explore = torch.rand(q, generator=generator, device="cpu", dtype=torch.float64) < self.epsilon * t.pow(-self.decay)
        indices = best.repeat(q)
        if bool(explore.any()):
            explore = explore.to(indices.device)
            draw = partial(random_arms, state.arms.shape[0], generator=generator)
            indices[explore] = spared(draw(indices[explore]), state.refusal(), draw)
        return indices


@dataclass(frozen=True, kw_only=True)
class RandomSearch:
    """Random search: uniform arms, without repeats while unseen ones remain, or uniform points of a box.

    Attributes:
        batch_size: Evaluations per batch.
    """

    name = "random"

    batch_size: int = 1

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)

    def on(self, domain: Domain) -> WithoutModel:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        if isinstance(domain, Box):
            return WithoutModel(domain=domain.double(), batch_size=self.batch_size, choose=_uniform_points)
        arms = as_arms(domain, policy=self.name)
        return WithoutModel(domain=arms, batch_size=self.batch_size, choose=partial(unseen_arms, arms))


def _uniform_points(state: BoxState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
    """Draw d numbers per point, and again near failures."""
    draw = partial(state.box.uniform, q, generator=generator)
    return spared(draw(), state.refusal(pending=pending), lambda rows: draw()[rows])


@dataclass(frozen=True, kw_only=True)
class EpsilonGreedy(ExplorationSettings):
    """With probability ε a random arm, otherwise the arm with the highest mean observation (Sutton & Barto, §2.2).

    Until there is a result, arms are random. With a model instead of the mean observations:
    :class:`sparse_bo.policies.PosteriorEpsilonGreedy`. Settings of ε: :class:`.ExplorationSettings`.

    Attributes:
        batch_size: Arms per batch, drawn independently.
    """

    name = "epsilon-greedy"

    batch_size: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("batch_size", self.batch_size)

    def on(self, domain: Domain) -> WithoutModel:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        arms = as_arms(domain, policy=self.name)
        return WithoutModel(domain=arms, batch_size=self.batch_size, choose=partial(self._choose, arms))

    def _choose(self, domain: Arms, state: BanditState, q: int, *, pending: Tensor, generator: torch.Generator) -> Tensor:
        """Draw one uniform number per arm of the batch, then the random arms; without observations all arms are random."""
        observed = state.observations
        if observed.n == 0:
            return unseen_arms(domain, state, q, pending=pending, generator=generator)
        refuse, means, out = state.refusal(), observed.means, len(pending)
        refusals = torch.zeros_like(means, dtype=torch.bool) if refuse is None else refuse(observed.rows)
        if not bool(refusals.all()):
            means = means.masked_fill(refusals, -torch.inf)
        best = observed.rows[means.argmax()]
        return self.explored(state, best, q, out=out, generator=generator)


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorArms(ArmUCB):
    """BKB with another choice of arms after the initial design.

    Attributes:
        settings: The policy, which chooses.
    """

    settings: PosteriorPolicy

    keeps_batch_open = False
    knows_others = False

    def ask(self, state: BanditState, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return random arms until the initial design is complete, then at most ``batch_size`` arms of the policy's choice."""
        if state.fitted is None:
            return super().ask(state, max_q=max_q, pending=pending, generator=generator)
        q = min(self.settings.batch_size, max_q)
        return Proposal(self.settings.chosen(state, q, out=len(pending), generator=generator))


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorPolicy(PriorSettings, SweepSettings, ABC):
    """Settings of these policies: those of :class:`sparse_bo.BKB`'s model, and the size of a batch.

    Settings shared with other policies: :class:`sparse_bo.policies.settings.PriorSettings` (``covar_module``,
    ``prior_mean``, ``regularization``; the rest is learned, see :class:`.UCBPolicy`) and
    :class:`sparse_bo.policies.settings.SweepSettings` (``sweep_dtype``, ``memory_bytes``). Arms are in memory.

    Attributes:
        oversampling: q̄ > 0 of the leverage dictionary.
        dictionary: Another sampler instead of leverage sampling; :class:`sparse_bo.dictionary.AllSampler`: the exact GP.
        batch_size: Arms per batch, drawn independently.
        initial_design: Distinct random arms first; ``None``: as of :class:`.UCBPolicy`.
    """

    oversampling: float = 2.0
    dictionary: Sampler | None = None
    batch_size: int = 1
    initial_design: int | None = None

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_count("batch_size", self.batch_size)
        _ = self.model  # checks the shared settings

    @abstractmethod
    def chosen(self, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """Return ``q`` arms from the posterior of a state, while ``out`` evaluations are pending."""

    def check(self, arms: ArmSet) -> None:
        """Raise ``ValueError`` if a setting does not fit the arms (``a x d``)."""

    @property
    def model(self) -> BKB:
        """BKB with the shared settings."""
        names = {setting.name for setting in fields(PosteriorPolicy)} - {"batch_size"}
        return BKB(width=0.0, **{name: getattr(self, name) for name in names})

    def on(self, domain: Domain) -> PosteriorArms:
        """See :meth:`sparse_bo.policies.Policy.on`."""
        arms = loaded_arms_of(domain, policy=self.name, memory_bytes=self.sweep_budget(domain.device))
        self.check(arms)
        return PosteriorArms(**vars(self.model.on_arms(Arms(arms))), settings=self)


@dataclass(frozen=True, kw_only=True, eq=False)
class PosteriorEpsilonGreedy(ExplorationSettings, PosteriorPolicy):
    """With probability ε a random arm, otherwise the arm with the highest posterior mean.

    :class:`sparse_bo.policies.EpsilonGreedy` with a model; the difference to BKB is the effect of the confidence bound. O(a m²
    + n m²) per batch. Settings shared with other policies: :class:`PosteriorPolicy`, :class:`.ExplorationSettings`.
    """

    name = "posterior-epsilon-greedy"

    def __post_init__(self) -> None:
        PosteriorPolicy.__post_init__(self)
        ExplorationSettings.__post_init__(self)

    def chosen(self, state: BanditState, q: int, *, out: int, generator: torch.Generator) -> Tensor:
        """See :meth:`PosteriorPolicy.chosen`. Draws one uniform number per arm, then the random arms."""
        assert state.posterior is not None
        rule, refuse = StopRule("single"), state.refusal()
        best = pick_batch(state.posterior, width=0.0, stop_rule=rule, max_q=1, refuse=refuse).indices[0]
        return self.explored(state, best, q, out=out, generator=generator)
