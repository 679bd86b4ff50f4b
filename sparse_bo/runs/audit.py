"""The audit of a recorded run, finished or going on: certificate, calibration, failures, drift.

Reads a journal and computes its state again from its policy, arms and results; imports no objective, and writes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sparse_bo.dictionary import Certificate
from sparse_bo.domains import ArmSet
from sparse_bo.gp.diagnostics import Trend, leave_one_out, trend
from sparse_bo.gp.observations import merge_observations
from sparse_bo.journal import Journal
from sparse_bo.kernels import covariance_function
from sparse_bo.policies import BanditState, State
from sparse_bo.policies.bandits.box_mechanism import BoxUCBState
from sparse_bo.report.view import spread
from sparse_bo.runs.recording import Recorded, recorded_in, replayed
from sparse_bo.widths.estimates import Calibration, calibration


class Failing(NamedTuple):
    """Failures of a run; with several outcomes evaluations of which all are missing."""

    failed: int
    """Number of failed evaluations."""
    newest: tuple[int, int]
    """Number of failures among the newest evaluations, and number of these."""
    often: Sequence[tuple[Any, int]]
    """The three arms or points with the most failures above one, with their counts."""
    missing: Mapping[str, int]
    """Number of other evaluations in which each of several outcomes is missing, by name; empty with one outcome."""


class Audit(NamedTuple):
    """Audit of a recorded run."""

    recorded: Recorded
    state: State
    """State at the end of the journal; of −y in a run that minimises."""
    certificate: Certificate | None
    """``None`` but for upper-confidence policies over arms."""
    calibration: Calibration | None
    """Calibration of leave-one-out predictions of distinct inputs by kernel, mean and λ; ``None`` without a prior, with fewer
    than eight inputs, or with several outcomes."""
    failing: Failing
    drift: Trend | None
    """Trend of repeated evaluations (y per evaluation), or, without enough of them, of leave-one-out errors; ``None`` with too
    few of either."""
    repeated: bool
    """Whether the trend is that of repeated evaluations."""
    drifting: str | None
    """Name of the outcome of the trend, of several the one that changes most; ``None`` with one outcome."""
    differing: Sequence[str]
    """Warnings of picks that differ from the recorded ones."""
    damaged: int
    """Number of damaged records of the journal; they follow from others."""

    def __repr__(self) -> str:
        said = {
            "policy": self.recorded.about.get("policy"),
            "told": self.recorded.told,
            "failed": self.failing.failed,
            "variance_factor": None if self.certificate is None else self.certificate.factor,
            "calibration": self.calibration,
            "drift": self.drift,
            "differing": len(self.differing) or None,
        }
        return f"Audit({', '.join(f'{name}={value!r}' for name, value in said.items() if value is not None)})"


def audit_run(path: str | Path, *, arms: ArmSet | None = None) -> Audit:
    """Audit a run from its journal, also while it is being written. Computes on the CPU.

    Certificate and leave-one-out predictions exist only for runs with one outcome.

    Cost: a resume, the certificate (:func:`sparse_bo.certify`), and O(min(n, 2,000)³).

    Args:
        path: Path of the journal.
        arms: Arms of the run; required only if they were too large for the journal.

    Raises:
        FileNotFoundError: If there is no journal.
        StorageError: If the file is no journal, damaged, or of another format.
        ValueError: If arms are needed, or are not those of the run; or the policy cannot be rebuilt.
    """
    journal = Journal.read(path)
    recorded = recorded_in(journal)
    every = recorded.evaluations
    picks = [tuple(pick) if isinstance(pick, list) else pick for pick in every.picks[every.known].tolist()]
    Y = torch.from_numpy(every.values[every.known])
    Y = Y.reshape(len(Y), *every.values.shape[1:] or (1,))
    engine, _, differing = replayed(journal, arms)
    predicted = _predicted(engine.state, -1.0 if engine.minimize else 1.0)
    numbers: dict[Any, int] = {}
    groups = torch.tensor([numbers.setdefault(pick, len(numbers)) for pick in picks], dtype=torch.int64, device=Y.device)
    names = [None] if engine.outcomes is None else engine.outcomes.names
    trends = {name: found for name, y in zip(names, Y.unbind(-1), strict=True) if (found := _trend(y, groups)) is not None}
    drifting = max(trends, key=lambda name: abs(trends[name].score), default=None)
    drift = trends.get(drifting)
    repeated = drift is not None or predicted is None
    if drift is None and predicted is not None:
        _, errors, times = predicted
        drift = trend(times, errors, torch.zeros_like(times, dtype=torch.int64))
    bad = Y.isnan().all(dim=-1)
    missing = (Y.isnan() & ~bad.unsqueeze(-1)).sum(dim=0).tolist()
    failures = Counter(pick for pick, failed in zip(picks, bad.tolist(), strict=True) if failed)
    newest = bad[-100:]
    return Audit(
        recorded=recorded,
        state=engine.state,
        certificate=engine.certificate(),
        calibration=None if predicted is None else calibration(predicted[0]),
        failing=Failing(
            failed=recorded.failed,
            newest=(int(newest.sum()), len(newest)),
            often=[(pick, times) for pick, times in failures.most_common(3) if times > 1],
            missing={name: count for name, count in zip(names, missing, strict=True) if name is not None},
        ),
        drift=drift,
        repeated=repeated,
        drifting=drifting,
        differing=differing,
        damaged=journal.damaged,
    )


def _trend(y: Tensor, groups: Tensor) -> Trend | None:
    """Return the trend of results (``n``, NaN: missing) around the mean of their input; ``None`` with too few repeated ones."""
    good = (~y.isnan()).nonzero().squeeze(-1)
    return trend(good, y[good], torch.unique(groups[good], return_inverse=True)[1])


def _predicted(state: State, sign: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return leave-one-out scores and errors (``sign`` · y) of distinct inputs, and the times of their first evaluations."""
    if isinstance(state, BanditState) and state.posterior is not None:
        prior = state.posterior.prior
        covariance, mean, noise, observations = prior.covariance, prior.prior_mean, prior.regularization, state.observations
    elif isinstance(state, BoxUCBState) and state.fitted is not None:
        known = state.fitted.prior
        covariance = covariance_function(known.covar_module, like=state.X)
        mean, noise, observations = known.prior_mean, known.regularization, merge_observations(state.X, state.y)
    else:
        return None
    rows = spread(observations.n, 2_000)
    if len(rows) < 8:
        return None
    X, counts = observations.X[rows], observations.counts[rows]
    errors, scores = leave_one_out(covariance.cross(X, X), noise / counts, observations.means[rows] - mean)
    return scores, sign * errors, observations.first_pull[rows]
