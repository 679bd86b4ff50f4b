"""Promises held against results: does what came back look as the bounds of the batches before it say?

Every batch is picked without its own results, so these test what was promised before them. Two tests:

*Coverage.* Where all intervals hold, the mean result at an input is outside of its interval, widened by what the noise does at
a share :data:`SHARE` of inputs, only by noise, which is independent from input to input: so the number of inputs outside is at
most a binomial one, whatever the objective and whatever sub-Gaussian noise. Its exact tail is the test, for the batch and for
all batches together.

*Size.* The quadratic form of a batch's results is larger than F and the noise allow (:mod:`sparse_bo.widths.norms`). It sees a
norm that is too small long before intervals miss: it adds up what every input shows, and intervals are wide.

Each of the four tests of a batch (two events bound the form) has the level ``δ/(8B)``. So a certificate whose assumptions hold
is refuted with probability δ at most: half of it is that of the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparse_bo.gp.diagnostics import binomial_tail
from sparse_bo.policies.elimination.batch_width import norm_of, theory_of
from sparse_bo.policies.elimination.candidates import Marginals, marginals_at
from sparse_bo.policies.elimination.findings import Finding, Interval, combined, known
from sparse_bo.widths import BatchWidth, RefutableWidth

SHARE = 0.01
"""Of the inputs whose mean result noise may carry out of an interval that holds."""


class Evidence(NamedTuple):
    """What results say of the bounds that were promised before them."""

    coverages: tuple[tuple[int, int], ...] = ()
    """For each batch with results: distinct inputs, and those whose mean result lies in its interval."""
    norm_at_least: float | None = None
    """The least F that no batch refutes by its size; ``None`` for bounds without F."""
    refuted: str | None = None
    """What refutes the bounds; ``None``: nothing does."""


class _Predicted(NamedTuple):
    """A batch with results, and what every batch before it says of its inputs."""

    finding: Finding
    before: list[tuple[Finding, Marginals]]


class Promises:
    """The predictions of every batch from those before it, made once and held against results by any width."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        told = known(findings)
        self._predicted = [
            _Predicted(finding, [(f, marginals_at(f.posterior, finding.observations.X)) for f in told[:number]])
            for number, finding in enumerate(told)
        ]

    def evidence(self, width: BatchWidth, *, failure_probability: float) -> Evidence:
        """Return what the results say of bounds of this width; nothing of bounds that do not say what noise they allow."""
        if not isinstance(width, RefutableWidth) or not self._predicted:
            return Evidence()
        batches = self._predicted[-1].finding.confidence.batches
        log_inverse = math.log(8.0 * batches / failure_probability)
        coverages = tuple(_coverage(predicted, width) for predicted in self._predicted)
        findings = [predicted.finding for predicted in self._predicted]
        reasons = _outside(coverages, level=math.exp(-log_inverse)) + _too_large(findings, width, log_inverse=log_inverse)
        theory = theory_of(width)
        least = None
        if theory is not None:
            least = max(theory.norm_at_least(f.form, f.confidence, log_inverse=log_inverse) for f in findings)
        return Evidence(coverages, least, "; ".join(reasons) or None)


def _coverage(predicted: _Predicted, width: RefutableWidth) -> tuple[int, int]:
    """Return how many inputs there are, and how many mean results lie in their intervals, widened by the noise."""
    finding, seen = predicted.finding, predicted.finding.observations
    prior = finding.posterior.prior
    promise: Interval = combined(prior, prior.covariance.diagonal(seen.X), predicted.before, width)
    noise = width.noise_within(seen.counts, share=SHARE, regularization=finding.confidence.regularization)
    inside = (seen.means >= promise.lower - noise) & (seen.means <= promise.upper + noise)
    return seen.n, int(inside.sum())


def _outside(coverages: Sequence[tuple[int, int]], *, level: float) -> list[str]:
    """Return what the newest batch, or all batches together, refute by inputs outside of their intervals: the less likely."""
    inputs, inside = (sum(numbers) for numbers in zip(*coverages, strict=True))
    tried = [(*coverages[-1], f"batch {len(coverages)}"), (inputs, inside, f"{len(coverages)} batches")]
    chance, n, held, where = min((binomial_tail(n, n - held, SHARE), n, held, where) for n, held, where in tried)
    if chance >= level:
        return []
    return [
        f"of {n:,} inputs of {where}, {held:,} ({held / n:.0%}) have their mean result in the interval promised before it,"
        f" where at least {1.0 - SHARE:.0%} were promised (chance {chance:.1g} if the promise holds)"
    ]


def _too_large(findings: Sequence[Finding], width: RefutableWidth, *, log_inverse: float) -> list[str]:
    """Return what a batch refutes by the size of its results."""
    worst, excess = 0, 0.0
    for number, finding in enumerate(findings):
        limit = width.form_at_most(finding.form, finding.confidence, log_inverse=log_inverse)
        if finding.form.value > limit and finding.form.value / limit > excess:
            worst, excess = number, finding.form.value / limit
    if not excess:
        return []
    theory, finding = theory_of(width), findings[worst]
    if theory is None:
        return [
            f"the results of batch {worst + 1} are {excess:.3g} times as far from the prior as a draw of it with noise of "
            f"variance {finding.confidence.regularization:.3g} goes"
        ]
    least = theory.norm_at_least(finding.form, finding.confidence, log_inverse=log_inverse)
    return [
        f"the results of batch {worst + 1} need an RKHS norm of at least {least:.4g} in this kernel, rkhs_norm="
        f"{norm_of(width):.4g} was promised"
    ]


def advice(width: BatchWidth, *, noisy: float | None, widened: bool) -> str:
    """Return what to do about refuted bounds, as the end of a message.

    Args:
        width: The refuted one.
        noisy: Variance of repeated evaluations (y²), where that is what is too large; else ``None``.
        widened: Whether F has been multiplied already, in vain.
    """
    if noisy is not None:
        return f"repeated evaluations scatter with variance {noisy:.3g}: raise noise_variance"
    if norm_of(width) is None:
        return "choose another covar_module or prior_mean, or bound the norm by rkhs_norm= and width='theory'"
    if widened:
        return "no larger F agrees with them: choose another covar_module or noise_variance"
    return (
        "raise rkhs_norm (or use a rougher kernel), or let on_refuted='widen' multiply it until the results agree; "
        "until then take what was eliminated as a guess"
    )
