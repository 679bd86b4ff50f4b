"""States as arrays and back: how a journal can start in the middle of a run instead of replaying all of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from sparse_bo.arms import ArmPrior, KernelColumns, StopRule, arm_posterior, fit_arms
from sparse_bo.dictionary import Dictionary
from sparse_bo.domains.base import Domain
from sparse_bo.domains.box import Box
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.observations import Observations
from sparse_bo.policies.description import describe, rebuild
from sparse_bo.policies.protocol import arms_of
from sparse_bo.policies.states import BanditState, BoxState, State
from sparse_bo.priors import Prior

S = TypeVar("S", bound=State)
Frozen = Mapping[str, Any]
"""Tensors (of any shape) and what ``json`` takes, by name."""


@runtime_checkable
class Freezing(Protocol[S]):
    """A policy that can turn its states into arrays. Runs of other policies are resumed by replaying them."""

    def freeze(self, state: S) -> Frozen | None:
        """Return what :meth:`thaw` needs, without the domain; ``None`` if this state has something else in it."""
        ...

    def thaw(self, domain: Domain, frozen: Frozen) -> S:
        """Return the state: it gives the same picks (what is recomputed agrees to rounding)."""
        ...


def freeze_bandit(state: BanditState) -> Frozen:
    """Return a state over arms as arrays: O(distinct pulled arms + m), without the arms and anything of their size."""
    seen, posterior = state.observations, state.posterior
    frozen: dict[str, Any] = {
        "indices": seen.indices,
        "counts": seen.counts,
        "sums": seen.sums,
        "sums_of_squares": seen.sums_of_squares,
        "first_pull": seen.first_pull,
        "width": state.width,
        "information": state.information,
        "pulls_at_learning": state.pulls_at_learning,
        "round": state.round,
    }
    if posterior is not None:
        dictionary, surrogate = posterior.dictionary, posterior.prior
        frozen["probabilities"] = dictionary.probabilities
        frozen |= {"points": dictionary.points} if dictionary.indices is None else {"dictionary": dictionary.indices}
        frozen |= {"prior_mean": surrogate.prior_mean, "regularization": surrogate.regularization}
        frozen["kernel"] = describe(surrogate.covariance.kernel)
    return frozen


def thaw_bandit(
    arms: ArmSet,
    frozen: Frozen,
    *,
    surrogate_of: Callable[[Prior], ArmPrior] | None = None,
    stop_rule: StopRule | None = None,
    memory_bytes: int = 0,
) -> BanditState:
    """Return the state that :func:`freeze_bandit` froze; its posterior is fitted and swept again, O(n m² + a m (d + r)).

    Args:
        arms: ``a x d``.
        frozen: Arrays on any device.
        surrogate_of: Makes the prior over the arms; needed if the state has a posterior. What it is given has no kernel if the
            frozen one cannot be rebuilt from its description.
        stop_rule: Of the policy's batches; needed if the state has a posterior.
        memory_bytes: Budget of the kernel columns.
    """
    arrays = {name: value.to(arms.device) for name, value in frozen.items() if isinstance(value, Tensor)}
    indices = arrays["indices"]
    observations = Observations(
        arms[indices], arrays["counts"], arrays["sums"], arrays["sums_of_squares"], arrays["first_pull"], indices
    )
    posterior = columns = None
    if "probabilities" in arrays:
        assert surrogate_of is not None
        assert stop_rule is not None
        chosen = arrays.get("dictionary")
        points = arrays["points"] if chosen is None else arms[chosen]
        kernel = None if "unknown" in frozen["kernel"] else rebuild(frozen["kernel"])
        surrogate = surrogate_of(Prior(kernel, frozen["prior_mean"], frozen["regularization"]))
        dictionary = Dictionary(points, arrays["probabilities"], chosen)
        fitted, columns = fit_arms(surrogate, observations, dictionary, KernelColumns(memory_bytes))
        posterior = arm_posterior(fitted, width=frozen["width"], stop_rule=stop_rule)
    return BanditState(
        arms,
        observations,
        posterior=posterior,
        width=frozen["width"],
        information=frozen["information"],
        pulls_at_learning=frozen["pulls_at_learning"],
        columns=columns,
        round=frozen["round"],
    )


def freeze_plain(state: BanditState | BoxState) -> Frozen | None:
    """Return the state of a policy without a model as arrays."""
    if isinstance(state, BanditState):
        return freeze_bandit(state)
    return None if state.model is not None else {"X": state.X, "y": state.y, "width": state.width, "round": state.round}


def thaw_plain(domain: Domain, frozen: Frozen) -> BanditState | BoxState:
    """Return the state that :func:`freeze_plain` froze."""
    if not isinstance(domain, Box):
        return thaw_bandit(arms_of(domain, policy="random"), frozen)
    device = domain.bounds.device
    X, y = frozen["X"].to(device), frozen["y"].to(device)
    return BoxState(domain.double(), X, y, width=frozen["width"], round=frozen["round"])
