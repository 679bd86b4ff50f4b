"""Expected improvement over arms first, then an upper-confidence policy with its observations and hyper-parameters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sparse_bo.domains import Arms, Domain
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.policies.bandits.policy import BBKB, UCBPolicy
from sparse_bo.policies.bandits.state import BanditState
from sparse_bo.policies.improvement.policy import ArmSearch, ExpectedImprovement, ImprovementState
from sparse_bo.policies.persistence import part_of, under
from sparse_bo.policies.protocol import Frozen, Mechanism, Proposal, Wait, as_arms
from sparse_bo.validation import check_count

WIDTH = 1.0
"""Of the second stage's intervals, in posterior standard deviations: see :class:`TwoStage`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmStages(Mechanism[BanditState]):
    """Two policies over the same arms, one after the other. A state is the first one's, from the handover on the second's.

    Attributes:
        first: Until there are ``after`` evaluations.
        then: It is told all of them at once.
        after: Evaluations; those made before the run count.
    """

    first: ArmSearch
    then: ArmUCB
    after: int

    keeps_batch_open = True  # as `then` does; `first` asks for results whenever a place is free

    def init(self) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.init`."""
        return self.first.init()

    def _stage(self, state: BanditState) -> ArmSearch | ArmUCB:
        return self.first if isinstance(state, ImprovementState) else self.then

    def ask(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return the picks of the stage's policy."""
        return self._stage(state).ask(state, max_q=max_q, pending=pending, generator=generator)

    def ask_beyond_batch(self, state: Any, *, max_q: int, pending: Tensor, generator: torch.Generator) -> Proposal | Wait:
        """Return the picks of the stage's policy; those of the second are bounded by its stop rule."""
        return self._stage(state).ask_beyond_batch(state, max_q=max_q, pending=pending, generator=generator)

    def tell(self, state: BanditState, picks: Tensor, y: Tensor, *, generator: torch.Generator) -> BanditState:
        """Observe as the stage's policy does, or hand over. Draws as the second policy does, and never in the first stage."""
        if not isinstance(state, ImprovementState):
            return self.then.tell(state, picks, y, generator=generator)
        if state.pulls + len(picks) < self.after:
            return self.first.tell(state, picks, y, generator=generator)
        learned = None if state.surrogate is None or self.first.kernel is not None else state.surrogate.learned
        learned = None if learned is None or learned.rotated else learned  # GPyTorch has no kernel along other directions
        told, results = torch.cat([state.told, picks]), torch.cat([state.y, y])
        return self.then.take_over(told, results, correlation=learned, like=state, generator=generator)

    def fail(self, state: Any, picks: Tensor, *, generator: torch.Generator) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.fail`."""
        return self._stage(state).fail(state, picks, generator=generator)

    def freeze(self, state: Any) -> Frozen:
        """See :meth:`sparse_bo.policies.Mechanism.freeze`."""
        stage = self._stage(state)
        return under("first" if stage is self.first else "then", stage.freeze(state))

    def thaw(self, frozen: Frozen) -> BanditState:
        """See :meth:`sparse_bo.policies.Mechanism.thaw`."""
        first = part_of(frozen, "first")
        return self.first.thaw(first) if first else self.then.thaw(part_of(frozen, "then"))


@dataclass(frozen=True, kw_only=True)
class TwoStage:
    """Expected improvement first, then an upper-confidence policy: for the best of many arms in many evaluations.

    :class:`sparse_bo.policies.ExpectedImprovement` finds the best region in few evaluations, but each costs it more than the
    one before. :class:`sparse_bo.BBKB` makes ten thousand in seconds, but learns its prior from the first few dozen arms, and
    stays where these led it. Here the second stage begins with all observations of the first, and with its lengthscales, until
    learning is due again (:func:`sparse_bo.gp.objective_prior.learning_is_due`).

    The first stage has explored, so that the second's intervals can be narrower than those of a policy on its own.
    With :data:`WIDTH` regret per evaluation is 0.0031 on Cadata (193 evaluations in the first stage, 10⁴ in all, means of
    seeds 0 to 4), with a width of 1.5 0.0035, with a calibrated one 0.0080; on 2,048 noisy arms of Levy-4 (1,000 of 4,000,
    seeds 1 and 2) 2.5, 3.6 and 9.4. The recommended arm is the best one in all of these runs but one with a calibrated width.

    Costs are those of the stage: 8 a n bytes for a arms and n ≤ ``after`` evaluations in the first.

    Attributes:
        first: Its settings.
        then: Any upper-confidence policy: :class:`sparse_bo.BBKB`, :class:`sparse_bo.BKB`, …
        after: The first has so many evaluations; those made before the run count.

    Raises:
        TypeError: If a setting has the wrong kind.
        ValueError: If ``after`` is below 1.
    """

    first: ExpectedImprovement = field(default_factory=ExpectedImprovement)
    then: UCBPolicy = field(default_factory=lambda: BBKB(width=WIDTH))
    after: int = 1_000

    def __post_init__(self) -> None:
        for name, kind in (("first", ExpectedImprovement), ("then", UCBPolicy)):
            value: Any = getattr(self, name)
            if not isinstance(value, kind):
                wanted = "an ExpectedImprovement()" if name == "first" else "an upper-confidence policy such as BBKB()"
                raise TypeError(f"expected {name} to be {wanted}, got {value!r}")
        check_count("after", self.after)

    @property
    def name(self) -> str:
        """``"two-stage"``."""
        return "two-stage"

    def on(self, domain: Domain) -> ArmStages:
        """See :meth:`sparse_bo.policies.Policy.on`.

        Raises:
            TypeError: If the domain is a box.
            ValueError: If the arms do not fit into memory, are in shards, or a setting does not fit them.
        """
        first = self.first.on(as_arms(domain, policy=self.name))  # refuses shards, and what does not fit into memory
        return ArmStages(first=first, then=self.then.on_arms(Arms(first.arms)), after=self.after)
