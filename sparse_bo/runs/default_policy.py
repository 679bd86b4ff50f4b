"""The policy of a run: where none is named by domain, goal, dimension, budget and workers, with the reason; for a minimum."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, get_args

from sparse_bo.domains import Arms, Box, Domain
from sparse_bo.domains.sharded import ShardedArms
from sparse_bo.policies import BBKB, ExpectedImprovement, Policy, TrustRegion, TwoStage
from sparse_bo.policies.settings import Goal
from sparse_bo.policies.trust_region.region import default_batch
from sparse_bo.validation import check_choice, check_count, check_given

DESIGN_SHARE = 3
"""The initial design is at most the budget divided by this."""
MOST_EVALUATIONS = 2_000
"""Over arms, longer runs are :class:`sparse_bo.BBKB`'s from some evaluation on."""
MOST_NUMBERS = 10_000_000
"""Arms times evaluations beyond which they are, too; with more arms times inputs, from the first one on."""
FIRST_EVALUATIONS, FIRST_NUMBERS = 1_000, 2_000_000
"""Of such a run, :class:`sparse_bo.policies.ExpectedImprovement` has so many evaluations; with more arms than it could have
:data:`MOST_EVALUATIONS` of, so many arms times evaluations. Evidence: ``docs/decisions/060-default-policy.md``."""
LONG_EVALUATIONS = 10_000
"""Where every evaluation counts, a run has this first stage from so many evaluations on, which pay its regret back."""


class ChosenPolicy(NamedTuple):
    """A policy and the reason for it."""

    policy: Policy
    why: str
    """Empty: a user named it."""


def chosen_policy(
    domain: Domain,
    *,
    goal: Goal = "best",
    budget: int | None = None,
    workers: int | None = None,
    certified: bool = False,
    observed: int = 0,
    several: bool = False,
    own_batches: bool = False,
) -> ChosenPolicy:
    """Return the default policy of a run.

    Over arms: :class:`sparse_bo.policies.ExpectedImprovement` where the best arm counts, there will be at most
    :data:`MOST_EVALUATIONS` evaluations (so many if the budget is not known), and arms times evaluations are at most
    :data:`MOST_NUMBERS`, unless the run is to be certified. In longer runs it has the first evaluations
    (:class:`sparse_bo.policies.TwoStage`): :data:`FIRST_EVALUATIONS`, or :data:`FIRST_NUMBERS` by the number of arms, as long
    as these are three times its design; where every evaluation counts, only if at least :data:`LONG_EVALUATIONS` are planned.
    Else, and from then on, :class:`sparse_bo.BBKB` with everything learned.

    On a box: :class:`sparse_bo.policies.TrustRegion` with the goal. With several outcomes expected improvement is all there is
    over arms.

    :class:`~sparse_bo.policies.ExpectedImprovement` and :class:`~sparse_bo.policies.TrustRegion` have as many points out at a
    time as there are workers (at least 4), and an initial design of at least as many and at most a third of the budget; with
    ``own_batches`` the design that the policy itself makes of whole batches.

    Args:
        domain: The domain.
        goal: ``"best"`` or ``"cumulative"``.
        budget: Planned evaluations; ``None``: unknown.
        workers: Concurrent evaluations; ``None``: unknown, or one.
        certified: Whether the run has certificates.
        observed: Number of initial observations.
        several: Whether evaluations have several outcomes.
        own_batches: Whether the caller sets the batch size of the returned policy.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If the goal is unknown, or a number is out of range.
    """
    check_choice("goal", goal, get_args(Goal))
    if budget is not None:
        check_count("budget", budget, minimum=0)
    check_given(check_count, workers=workers)
    fitting: dict[str, Any] = {"budget": budget, "workers": workers, "own_batches": own_batches}
    if isinstance(domain, Box):
        counts = "the best point" if goal == "best" else "every evaluation"
        counts = "the front, or the best feasible point," if several else counts
        why = f"on a box of {domain.dims} input{'s' * (domain.dims != 1)} where {counts} counts"
        return _fitting(TrustRegion(goal=goal), domain, why, **fitting)
    if several:
        return _fitting(ExpectedImprovement(), domain, "several outcomes of candidates count", **fitting)
    evaluations = max(observed, MOST_EVALUATIONS) if budget is None else observed + budget
    at_once = certified or (goal == "cumulative" and evaluations < LONG_EVALUATIONS)
    first = 0 if at_once else _first_evaluations(domain, evaluations)
    if observed >= first:
        return ChosenPolicy(BBKB(), "every arm can be swept, and its regret is bounded")
    planned = "" if budget is None else f" in a run of {budget:,} evaluations"
    counts = "the best candidate counts" if goal == "best" else "every evaluation counts"
    chosen = _fitting(ExpectedImprovement(), domain, f"{counts}{planned}", **fitting)
    if first > evaluations:
        return chosen
    assert isinstance(chosen.policy, ExpectedImprovement)
    return ChosenPolicy(TwoStage(first=chosen.policy, after=first), f"{chosen.why}; BBKB goes on after the first {first:,}")


def _fitting(
    policy: TrustRegion | ExpectedImprovement,
    domain: Domain,
    why: str,
    *,
    budget: int | None,
    workers: int | None,
    own_batches: bool,
) -> ChosenPolicy:
    """Return the policy with batches for all workers, and an initial design of at most a third of the budget."""
    if own_batches:
        return ChosenPolicy(policy, why)
    reasons = [why]
    if workers is not None and workers > default_batch(0):
        policy = replace(policy, batch_size=workers)
        if policy.on(domain).design_size < workers:  # none of them waits for it
            policy = replace(policy, initial_design=workers)
        reasons.append(f"batches for {workers} workers")
    design = policy.on(domain).design_size
    if budget is not None and budget < DESIGN_SHARE * design:
        policy = replace(policy, initial_design=max(budget // DESIGN_SHARE, 1))
        reasons.append(f"a design of a third of the budget of {budget}")
    return ChosenPolicy(policy, ", ".join(reasons))


def _first_evaluations(domain: Domain, evaluations: int) -> int:
    """Return the number of evaluations by expected improvement; more than ``evaluations``: all of them."""
    if not isinstance(domain, Arms) or isinstance(domain.points, ShardedArms) or domain.count * domain.dims > MOST_NUMBERS:
        return 0
    if evaluations <= MOST_EVALUATIONS and domain.count * evaluations <= MOST_NUMBERS:
        return evaluations + 1
    few = domain.count * MOST_EVALUATIONS <= MOST_NUMBERS
    first = FIRST_EVALUATIONS if few else FIRST_NUMBERS // domain.count
    return first if first >= DESIGN_SHARE * ExpectedImprovement().on(domain).design_size else 0


def for_negative(policy: Policy) -> Policy:
    """Return the policy for −y: its prior mean changes sign, also that of a policy within it."""
    if not is_dataclass(policy) or isinstance(policy, type):
        return policy
    values = {field.name: getattr(policy, field.name) for field in fields(policy)}
    changed: dict[str, Any] = {name: for_negative(value) for name, value in values.items() if isinstance(value, Policy)}
    if values.get("prior_mean") is not None:
        changed["prior_mean"] = -values["prior_mean"]
    return replace(policy, **changed) if changed else policy
