"""What figures and pages show beside the history of a run, as columns: several outcomes, and the importance of the inputs.

Importance is that of the model of the run's state: the total effect of an input (Homma & Saltelli 1996), that is
``E[Var(m(u) | all other inputs)]`` under the uniform distribution on the unit cube: its own effect and its part in every
interaction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.domains import Box, Domain, SpaceArms, SpaceBox, modelled_arms
from sparse_bo.domains.base import sobol_points
from sparse_bo.gp.expected_improvement import front_rows, reference_point
from sparse_bo.gp.expected_improvement import hypervolume as volume_of
from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.gp.learn import FAMILIES, PRIORS
from sparse_bo.policies import Outcomes, Report, State
from sparse_bo.policies.improvement.policy import ImprovementState
from sparse_bo.policies.states import BoxState
from sparse_bo.policies.trust_region.observations import Replicates, warp
from sparse_bo.policies.trust_region.outcome_state import OutcomeModels
from sparse_bo.policies.trust_region.region import RegionState
from sparse_bo.policies.trust_region.surrogate import LEARNED_FROM, FittedRegion, LearningData, local_posterior, one_thread
from sparse_bo.report.view import Importance, Numbers, OutcomeColumns, spread


def outcome_columns(outcomes: Outcomes, results: Sequence[object], report: Report | None = None) -> OutcomeColumns:
    """Return the outcomes of ``n`` results (rows of ``m``, NaN: missing) as columns. O(n · front), and ≤ 100 hypervolumes.

    Front and hypervolumes are those of the report's estimates, without a report those of the results. Without a reference point
    in the report, it is that of the outcomes, or inferred from the front.
    """
    report = report or Report()
    Y = torch.tensor(results, dtype=torch.float64, device="cpu").reshape(-1, len(outcomes.names))
    feasible, total = outcomes.feasible(Y), outcomes.total_violation(Y)
    total = total.masked_fill(Y.isnan().all(dim=-1), math.inf)  # without constraints a failed one would violate none
    gains, front = front_of(outcomes, Y, report)
    entered = entering(gains.numpy())
    several, hypervolume = outcomes.only is None, report.hypervolume
    worst, volumes = None, (np.zeros(0), np.zeros(0))
    if report.reference is not None:
        worst = outcomes.gains(report.reference.to(Y))
    elif several and outcomes.reference is not None:
        worst = outcomes.gains(Y.new_tensor(list(outcomes.reference.values())))
    elif several and len(front):
        worst = reference_point(gains[front])
    if worst is not None and len(Y):
        volumes = _volumes(gains, np.flatnonzero(entered), worst)
    if several and hypervolume is None:
        hypervolume = float(volumes[1][-1]) if len(volumes[1]) else 0.0
    best = int(front[0]) if len(front) else None
    if several and worst is not None and len(front):
        beyond = (gains[front] - worst).clamp_min(0.0)
        best = int(front[int(beyond.prod(dim=-1).argmax())])
    if best is None and bool(total.isfinite().any()):
        best = int(total.argmin())
    signed = [] if worst is None else outcomes.gains(worst).tolist()  # a sign is its own inverse
    return OutcomeColumns(
        directions=outcomes.objectives,
        limits=outcomes.constraints,
        values=dict(zip(outcomes.names, Y.T.numpy(), strict=True)),
        violations=dict(zip(outcomes.constraints, outcomes.violations(Y).T.numpy(), strict=True)),
        total_violation=total.numpy(),
        feasible=feasible.numpy(),
        front=front.tolist(),
        entered=entered,
        reference=dict(zip(outcomes.objectives, signed, strict=False)),
        inferred=outcomes.reference is None,
        observed=report.estimates is None,
        hypervolume=hypervolume,
        volumes=volumes,
        best_row=best,
    )


def estimated(Y: Tensor, report: Report) -> Tensor:
    """Return the report's estimates of ``n x m`` results, and results where it has none; NaN: failed."""
    done, estimates = ~Y.isnan().all(dim=-1), report.estimates
    if estimates is not None and len(estimates) == int(done.sum()):  # else the report is older than the last results
        Y = Y.clone()
        Y[done] = estimates.to(Y)
    return Y


def front_of(outcomes: Outcomes, Y: Tensor, report: Report) -> tuple[Tensor, Tensor]:
    """Return objectives, to be maximised, by the report's estimates of ``n x m`` results, and the rows of their front.

    NaN: failed, or not feasible by the result or the estimate. The front is sorted by the first objective, the best first.
    """
    estimates, done = estimated(Y, report), (~Y.isnan().all(dim=-1)).nonzero().squeeze(-1)
    feasible = outcomes.feasible(Y) & outcomes.feasible(estimates)
    gains = torch.where(feasible.unsqueeze(-1), outcomes.gains(estimates), torch.nan)
    known = report.front is not None and report.estimates is not None and len(report.estimates) == len(done)
    front = done[report.front.to(done)] if known and report.front is not None else front_rows(gains)
    return gains, front[gains[front, 0].argsort(descending=True, stable=True)]


def entering(gains: Numbers) -> NDArray[np.bool_]:
    """Return which of ``n x k`` values, in order, no earlier one dominates or equals; NaN never. O(n · front)."""
    entered = np.zeros(len(gains), np.bool_)
    front = gains[:0]
    for row in np.flatnonzero(~np.isnan(gains).any(axis=1)):
        if not (front >= gains[row]).all(axis=1).any():
            entered[row] = True
            front = np.concatenate([front[(front > gains[row]).any(axis=1)], gains[row : row + 1]])
    return entered


def _volumes(gains: Tensor, entered: NDArray[np.int64], reference: Tensor) -> tuple[Numbers, Numbers]:
    """Return numbers of evaluations, the first and the last among them, and the hypervolumes up to there."""
    chosen = entered[spread(len(entered), 100)]  # each takes milliseconds
    known = gains[torch.from_numpy(entered)]
    at, volume = [1.0], [0.0]
    for row in chosen:
        value = volume_of(known[: int(np.searchsorted(entered, row)) + 1], reference)
        at += [float(row), float(row + 1)] if row else [1.0]
        volume += [volume[-1], value] if row else [value]
    return np.array([*at, float(len(gains))]), np.array([*volume, volume[-1]])


def gaussian_effects(X: Tensor, alpha: Tensor, lengthscales: Tensor) -> tuple[Tensor, float]:
    """Return the total effects of ``m(u) = Σᵢ αᵢ Πⱼ exp(−(uⱼ − xᵢⱼ)²/2ℓⱼ²)`` in closed form. O(n² d).

    With ``cⱼ(i) = ∫ kⱼ(u, xᵢⱼ) du`` and ``Cⱼ(i, i') = ∫ kⱼ(u, xᵢⱼ) kⱼ(u, xᵢ'ⱼ) du`` over [0, 1], which are error functions, the
    effect of input j is ``Σ αᵢ αᵢ' (Cⱼ − cⱼ cⱼ) Π_{l≠j} C_l`` over all pairs. Weights of both signs cancel in it.

    Args:
        X: ``n x d`` points of the unit cube.
        alpha: ``n`` weights.
        lengthscales: ``d``.

    Returns:
        The effects (``d``), in squared units of the function, and a bound on the rounding error of each.
    """

    def logs(j: int) -> Tensor:
        """Return ``log Cⱼ``, ``n x n``."""
        x, ell = X[:, j], float(lengthscales[j])
        middle, apart = (x.unsqueeze(-1) + x) / 2.0, x.unsqueeze(-1) - x
        return (0.5 * math.sqrt(math.pi) * ell * _between(middle, ell)).log() - (apart / (2.0 * ell)).square()

    inputs, effects, largest = range(X.shape[-1]), torch.zeros_like(lengthscales), 0.0
    total, weights = sum(map(logs, inputs), X.new_zeros(len(X), len(X))), alpha.unsqueeze(-1) * alpha
    for j in inputs:
        log = logs(j)
        single = math.sqrt(math.pi / 2.0) * lengthscales[j] * _between(X[:, j], math.sqrt(2.0) * float(lengthscales[j]))
        others = (total - log).exp() * weights
        effects[j] = (others * (log.exp() - single.unsqueeze(-1) * single)).sum()
        largest = max(largest, float((others * log.exp()).abs().sum()))
    return effects.clamp_min(0.0), torch.finfo(X.dtype).eps * len(X) * largest


def _between(x: Tensor, width: float) -> Tensor:
    return torch.erf((1.0 - x) / width) + torch.erf(x / width)


def sampled_effects(mean: Callable[[Tensor], Tensor], A: Tensor, B: Tensor, groups: Sequence[Tensor]) -> Tensor:
    """Return the total effects of groups of columns by Jansen's estimator (1999), one for each. (groups + 1) N evaluations.

    Args:
        mean: Values (``N``) of ``N x d`` points.
        A: ``N x d`` uniform points.
        B: ``N x d`` others, independent of them.
        groups: Columns of each group (int64).
    """
    base, effects = mean(A), []
    for columns in groups:
        changed = A.clone()
        changed[:, columns] = B[:, columns]
        effects.append(0.5 * (base - mean(changed)).square().mean())
    return torch.stack(effects)


def fitted_of(state: RegionState | ImprovementState) -> FittedRegion | None:
    """Return the local model of a state, or its surrogate; ``None`` before there is one."""
    return state.fitted if isinstance(state, RegionState) else state.surrogate


def importance_of(state: State, domain: Domain) -> dict[str, Importance]:
    """Return the importance of the inputs for each outcome under the models of a state, by the name of the outcome.

    The total effect of an input is ``E[Var(m(u) | all other inputs)]`` of the posterior mean m, under the uniform distribution
    on the box, or on the bounding box of the arms as the model knows them (of columns over decades on that of their
    logarithms; in a space as they are encoded). The model of a search knows the surroundings of its best points, in warped
    units; here one is learned anew in the user's units, O(n³), from at most 300 evaluations of the whole run. In closed form
    for a Gaussian kernel, O(n² d), unless it would be rounding; else from a fixed Sobol sample. Columns of one parameter are
    one input; where a parameter is not there, it has no effect. A column with one value in all evaluations has no effect
    either: off that value the model has only its prior.

    The name of an objective without one is ``""``. Outcomes whose model is flat, or over the arms alone, are left out.
    """
    every: dict[str, Importance | None] = {}
    if isinstance(state, OutcomeModels):
        every = {
            name: _of_evaluations(state.U[state.rows_of(j)], state.replicates[j], fitted, domain)
            for j, (name, fitted) in enumerate(zip(state.outcomes.names, state.fitted, strict=False))
        }
    elif isinstance(state, RegionState | ImprovementState):
        fitted = fitted_of(state)
        every = {} if fitted is None else {"": _of_evaluations(state.U, state.replicates, fitted, domain)}
    elif isinstance(state, BoxState) and state.model is not None:
        box = state.box
        every = {"": _sampled(lambda U: state.predicted(box.from_unit(U))[0], domain, box.to_unit(state.X))}
    return {name: found for name, found in every.items() if found is not None}


def _of_evaluations(U: Tensor, seen: Replicates, fitted: FittedRegion, domain: Domain) -> Importance | None:
    """Return the importance under a model of ``n x d`` points in the unit cube; ``None`` under a kernel of the user's."""
    if not isinstance(fitted.gp.prior.kernel, Hyperparameters):
        return None
    rows = seen.rows[seen.values[seen.rows] >= _unbroken(seen.values[seen.rows])]
    rows = rows[spread(len(rows), LEARNED_FROM)]
    plain = warp("plain", seen.values[rows])
    assert plain is not None
    with one_thread():
        learned = LearningData(U[rows], seen.values[rows], rows, seen).learned(plain, FAMILIES, PRIORS)
        gp = local_posterior(U[rows], plain(seen.values[rows]), learned, counts=seen.worth(rows, plain, learned))
    if learned.family == "rbf" and not isinstance(domain, SpaceArms | SpaceBox):
        varied, effects = _varied(U[seen.rows]), torch.zeros_like(learned.lengthscales)
        effects[varied], rounding = gaussian_effects(gp.support[:, varied], gp.alpha, learned.lengthscales[varied])
        if rounding < 1e-3 * float(effects.sum()):
            return _shares(_inputs(domain)[0], effects, "in closed form")
    return _sampled(gp.mean, domain, U[seen.rows])


def _unbroken(values: Tensor) -> float:
    """Return the least of ``n`` values that is not far off: below a gap of 100 times the range of those above it.

    At most a quarter are below it: values of −10¹⁵ where something broke, which a model in the user's units would show alone.
    """
    v = values.sort().values
    rest = v[-1] - v[1:]
    gaps = ((v[1:] - v[:-1] > 100.0 * rest) & (rest > 0.0)).nonzero().squeeze(-1)
    gaps = gaps[gaps < len(v) // 4]
    return float(v[gaps[-1] + 1] if len(gaps) else v[0])


def _varied(U: Tensor) -> Tensor:
    """Return which columns of ``n x d`` evaluated points have several values (``d``)."""
    return (U[0] != U).any(dim=0)


def _sampled(mean: Callable[[Tensor], Tensor], domain: Domain, U: Tensor) -> Importance | None:
    """Return the importance by a posterior mean in the unit cube; columns with one value in the points ``U`` have it."""
    names, groups = _inputs(domain)
    count = 1_024 if len(groups) <= 50 else 256
    points = sobol_points(count, 2 * domain.dims, seed=0).to(domain.device)
    points = torch.where(_varied(U).repeat(2).to(points.device), points, U[0].repeat(2).to(points))
    A, B = points[:, : domain.dims], points[:, domain.dims :]
    if isinstance(domain, SpaceArms | SpaceBox):
        mean = partial(_placed, domain, mean)
    return _shares(names, sampled_effects(mean, A, B, groups), f"from a sample of {count:,} points")


def _inputs(domain: Domain) -> tuple[list[str], list[Tensor]]:
    """Return the names of the inputs that vary, and the columns of each."""
    columns = torch.arange(domain.dims, device=domain.device)
    if not isinstance(domain, SpaceArms | SpaceBox):
        return domain.input_names, list(torch.split(columns, 1))
    names = [name for name, parameter in domain.space.parameters.items() if parameter.width]
    widths = [domain.space.parameters[name].width for name in names]
    return names, list(torch.split(columns, widths))


def _placed(domain: SpaceArms | SpaceBox, mean: Callable[[Tensor], Tensor], U: Tensor) -> Tensor:
    """Return values at the points of a space nearest to ones in the unit cube of its box, or of the hull of its arms."""
    if isinstance(domain, Box):
        return mean(domain.space.snap(U))
    lower, upper = domain.hull()
    return mean(modelled_arms(domain, domain.space.snap(lower + U * (upper - lower))))


def _shares(names: list[str], effects: Tensor, how: str) -> Importance | None:
    total = float(effects.sum())
    if not total > 0.0:
        return None
    shares = dict(zip(names, (effects / total).tolist(), strict=True))
    return Importance(dict(sorted(shares.items(), key=lambda one: -one[1])), how)
