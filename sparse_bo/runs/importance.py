"""Importance of the inputs of a run, from the model of its state."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from sparse_bo.domains import Box, Domain, SpaceArms, SpaceBox
from sparse_bo.domains.box import sobol_points
from sparse_bo.gp.hyperparameters import Hyperparameters
from sparse_bo.gp.learn import FAMILIES, PRIORS
from sparse_bo.gp.sensitivity import gaussian_effects, sampled_effects
from sparse_bo.policies import State
from sparse_bo.policies.improvement.policy import ImprovementState
from sparse_bo.policies.states import BoxState
from sparse_bo.policies.trust_region.observations import Replicates, warp
from sparse_bo.policies.trust_region.outcome_state import OutcomeModels
from sparse_bo.policies.trust_region.region import RegionState
from sparse_bo.policies.trust_region.surrogate import LEARNED_FROM, FittedRegion, LearningData, local_posterior, one_thread
from sparse_bo.report.view import Importance

MANY_INPUTS = 50
"""Above, the sample has a quarter of its points."""
SAMPLE = 1_024


def importance_of(state: State, domain: Domain) -> dict[str, Importance]:
    """Return the importance of the inputs for each outcome under the models of a state, by the name of the outcome.

    The total effect of an input is ``E[Var(m(u) | all other inputs)]`` of the posterior mean m, under the uniform distribution
    on the box, or on the bounding box of the arms. The model of a search knows the surroundings of its best points, in warped
    units; here one is learned anew in the user's units, O(n³), from at most 300 evaluations of the whole run. In closed form
    for a Gaussian kernel, O(n² d), unless it would be rounding; else from a fixed Sobol sample. Columns of one parameter are
    one input; where a parameter is not there, it has no effect.

    The name of an objective without one is ``""``. Outcomes whose model is flat, or over the arms alone, are left out.
    """
    if isinstance(state, OutcomeModels):
        every = {
            name: _of_evaluations(state.U[state.rows_of(j)], state.replicates[j], fitted, domain)
            for j, (name, fitted) in enumerate(zip(state.outcomes.names, state.fitted, strict=False))
        }
    elif isinstance(state, RegionState | ImprovementState):
        fitted = state.fitted if isinstance(state, RegionState) else state.surrogate
        every = {} if fitted is None else {"": _of_evaluations(state.U, state.replicates, fitted, domain)}
    elif isinstance(state, BoxState) and state.model is not None:
        every = {"": _sampled(partial(_predicted, state), domain)}
    else:
        every = {}
    return {name: found for name, found in every.items() if found is not None}


def _of_evaluations(U: Tensor, seen: Replicates, fitted: FittedRegion, domain: Domain) -> Importance | None:
    """Return the importance under a model of ``n x d`` evaluated points in the unit cube.

    ``None`` where the search's model is ``fitted`` under a kernel of the user's, of the arms as they are.
    """
    if not isinstance(fitted.gp.prior.kernel, Hyperparameters):
        return None
    rows = seen.rows
    if len(rows) > LEARNED_FROM:
        rows = rows[torch.linspace(0, len(rows) - 1, LEARNED_FROM, dtype=torch.float64, device=rows.device).round().long()]
    plain = warp("plain", seen.values[rows])
    assert plain is not None
    with one_thread():
        learned = LearningData(U[rows], seen.values[rows], rows, seen).learned(plain, FAMILIES, PRIORS)
        gp = local_posterior(U[rows], plain(seen.values[rows]), learned, counts=seen.worth(rows, plain, learned))
    if learned.family == "rbf" and not isinstance(domain, SpaceArms | SpaceBox):
        found = gaussian_effects(gp.support, gp.alpha, learned.lengthscales)
        if found.rounding < 1e-3 * float(found.values.sum()):
            return _shares(_inputs(domain)[0], found.values, "in closed form")
    return _sampled(gp.mean, domain)


def _sampled(mean: Callable[[Tensor], Tensor], domain: Domain) -> Importance | None:
    """Return the importance by a posterior mean of ``n x d`` points in the unit cube, from a Sobol sample."""
    names, groups = _inputs(domain)
    count = SAMPLE if len(groups) <= MANY_INPUTS else SAMPLE // 4
    points = sobol_points(count, 2 * domain.dims, seed=0).to(domain.device)
    A, B = points[:, : domain.dims], points[:, domain.dims :]
    if isinstance(domain, SpaceArms | SpaceBox):
        mean = partial(_placed, domain, mean)
    return _shares(names, sampled_effects(mean, A, B, groups), f"from a sample of {count:,} points")


def _inputs(domain: Domain) -> tuple[list[str], list[Tensor]]:
    """Return the names of the inputs that vary, and the columns of each."""
    columns = torch.arange(domain.dims, device=domain.device)
    if not isinstance(domain, SpaceArms | SpaceBox):
        return [f"x{j + 1}" for j in range(domain.dims)], list(torch.split(columns, 1))
    names = [name for name, parameter in domain.space.parameters.items() if parameter.width]
    widths = [domain.space.parameters[name].width for name in names]
    return names, list(torch.split(columns, widths))


def _predicted(state: BoxState, U: Tensor) -> Tensor:
    return state.predicted(state.box.from_unit(U))[0]


def _placed(domain: SpaceArms | SpaceBox, mean: Callable[[Tensor], Tensor], U: Tensor) -> Tensor:
    """Return values at the points of a space that are encoded by columns, in the coordinates of the model."""
    U = domain.space.snap(U)
    if isinstance(domain, Box):
        return mean(U)
    lower, upper = domain.hull()
    span = upper - lower
    return mean((U - lower) / torch.where(span > 0.0, span, 1.0))


def _shares(names: list[str], effects: Tensor, how: str) -> Importance | None:
    total = float(effects.sum())
    if not total > 0.0:
        return None
    shares = dict(zip(names, (effects / total).tolist(), strict=True))
    return Importance(dict(sorted(shares.items(), key=lambda one: -one[1])), how)
