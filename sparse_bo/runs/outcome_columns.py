"""Several outcomes of all evaluations as the columns that figures and pages show."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sparse_bo.gp.expected_improvement import front_rows, reference_point
from sparse_bo.gp.expected_improvement import hypervolume as volume_of
from sparse_bo.policies import Outcomes, Report
from sparse_bo.report.view import Numbers, OutcomeColumns, spread

MOST_VOLUMES = 100
"""Hypervolumes of a curve, at most: each takes milliseconds."""


def outcome_columns(outcomes: Outcomes, results: Sequence[object], report: Report | None = None) -> OutcomeColumns:
    """Return the outcomes of ``n`` results (rows of ``m``, NaN: missing) as columns. O(n · front), and ≤ 100 hypervolumes.

    Front and hypervolumes are those of the results, as they were observed. Without a reference point in the report, it is that
    of the outcomes, or inferred from the front.
    """
    Y = torch.tensor(results, dtype=torch.float64, device="cpu").reshape(-1, len(outcomes.names))
    feasible, total = outcomes.feasible(Y), outcomes.total_violation(Y)
    gains = torch.where(feasible.unsqueeze(-1), outcomes.gains(Y), torch.nan)
    front = front_rows(gains)
    front = front[gains[front, 0].argsort(descending=True, stable=True)]
    entered = entering(gains.numpy())
    several, report = outcomes.only is None, report or Report()
    hypervolume = report.hypervolume
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
        hypervolume=hypervolume,
        volumes=volumes,
        best_row=best,
    )


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
    chosen = entered[spread(len(entered), MOST_VOLUMES)]
    known = gains[torch.from_numpy(entered)]
    at, volume = [1.0], [0.0]
    for row in chosen:
        value = volume_of(known[: int(np.searchsorted(entered, row)) + 1], reference)
        at += [float(row), float(row + 1)] if row else [1.0]
        volume += [volume[-1], value] if row else [value]
    return np.array([*at, float(len(gains))]), np.array([*volume, volume[-1]])
