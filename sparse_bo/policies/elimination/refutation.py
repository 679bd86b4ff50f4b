"""Tests of the bounds on later results, and the reactions to a refutation.

Every batch is picked without its own results, so they test the bounds of the batches before. Two tests:

*Coverage.* If all intervals hold, only noise moves the mean result at an input out of its interval, widened by the noise's
quantile at a share :data:`SHARE` of inputs. Noise is independent between inputs, so the number of inputs outside is at most
binomial, for any objective and any sub-Gaussian noise. The test is its exact tail, for the newest batch and for all together.

*Size.* The quadratic form of a batch's results exceeds the value that F and the noise allow (:mod:`sparse_bo.widths.norms`). It
detects a norm that is too small long before intervals miss, since it adds up the evidence of every input.

Each of the four tests of a batch (two events bound the form) has the level ``δ/(8B)``. So a certificate with valid assumptions
is refuted with probability at most δ/2; the other half is that of the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sparse_bo.gp.diagnostics import binomial_tail
from sparse_bo.policies.elimination.candidates import Marginals, marginals_at
from sparse_bo.policies.elimination.findings import Finding, Interval, combined, contradiction, explain, known, noise_check
from sparse_bo.policies.elimination.width import doubled, norm_of, theory_of, with_norm
from sparse_bo.widths import BatchWidth, ConstantWidth, RefutableWidth
from sparse_bo.widths.norms import norm_estimate

SHARE = 0.01
"""Share of inputs whose mean result the noise may move out of a valid interval."""


class Evidence(NamedTuple):
    """Outcome of the tests of bounds on later results."""

    coverages: tuple[tuple[int, int], ...] = ()
    """For each batch with results: number of distinct inputs, and of those whose mean result lies in its interval."""
    norm_at_least: float | None = None
    """Smallest F that no batch refutes by its size; ``None`` for bounds without F."""
    refuted: str | None = None
    """Description of the refutation; ``None`` without one."""


class _Predicted(NamedTuple):
    """A batch with results, and the predictions of every earlier batch at its inputs."""

    finding: Finding
    before: list[tuple[Finding, Marginals]]


class Predictions:
    """Predictions of every batch from earlier ones, computed once and tested for any width."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        observed = known(findings)
        self._predicted = [
            _Predicted(finding, [(f, marginals_at(f.posterior, finding.observations.X)) for f in observed[:number]])
            for number, finding in enumerate(observed)
        ]

    def evidence(self, width: BatchWidth, *, failure_probability: float) -> Evidence:
        """Return the outcome of the tests of a width; empty for widths without a noise model."""
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
    """Return the number of inputs, and of mean results within their intervals, widened by the noise."""
    finding, seen = predicted.finding, predicted.finding.observations
    prior = finding.posterior.prior
    predicted_interval: Interval = combined(prior, prior.covariance.diagonal(seen.X), predicted.before, width)
    noise = width.noise_within(seen.counts, share=SHARE, regularization=finding.confidence.regularization)
    inside = (seen.means >= predicted_interval.lower - noise) & (seen.means <= predicted_interval.upper + noise)
    return seen.n, int(inside.sum())


def _outside(coverages: Sequence[tuple[int, int]], *, level: float) -> list[str]:
    """Return the refutation by inputs outside of their intervals: of the newest batch or of all, the less likely one."""
    inputs, inside = (sum(numbers) for numbers in zip(*coverages, strict=True))
    tried = [(*coverages[-1], f"batch {len(coverages)}"), (inputs, inside, f"{len(coverages)} batches")]
    chance, n, held, where = min((binomial_tail(n, n - held, SHARE), n, held, where) for n, held, where in tried)
    if chance >= level:
        return []
    return [
        f"of {n:,} inputs of {where}, {held:,} ({held / n:.0%}) have their mean result in the interval predicted before it,"
        f" where at least {1.0 - SHARE:.0%} were predicted (probability {chance:.1g} if the bounds hold)"
    ]


def _too_large(findings: Sequence[Finding], width: RefutableWidth, *, log_inverse: float) -> list[str]:
    """Return the refutation by the size of a batch's results."""
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
            f"the results of batch {worst + 1} are {excess:.3g} times as far from the prior as its draws with noise of "
            f"variance {finding.confidence.regularization:.3g}"
        ]
    least = theory.norm_at_least(finding.form, finding.confidence, log_inverse=log_inverse)
    return [
        f"the results of batch {worst + 1} need an RKHS norm of at least {least:.4g} in this kernel, the bounds assume "
        f"rkhs_norm={norm_of(width):.4g}"
    ]


def advice(width: BatchWidth, *, noisy: float | None, widened: bool) -> str:
    """Return advice on refuted bounds, for the end of a message.

    Args:
        width: The refuted width.
        noisy: Variance of repeated evaluations (y²), if it exceeds the assumed noise; else ``None``.
        widened: Whether F has been doubled already without effect.
    """
    if noisy is not None:
        return f"repeated evaluations scatter with variance {noisy:.3g}: raise noise_variance"
    if norm_of(width) is None:
        return "choose another covar_module or prior_mean, or bound the norm by rkhs_norm= and width='theory'"
    if widened:
        return "no larger F agrees with them: choose another covar_module or noise_variance"
    return (
        "raise rkhs_norm (or use a rougher kernel), or let on_refuted='widen' multiply it until the results agree; "
        "until then the elimination has no guarantee"
    )


OnRefuted = Literal["warn", "stop", "widen"]
OnContradiction = Literal["raise", "double"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Settings of the tests of the bounds, and reactions to them."""

    failure_probability: float
    """δ of the policy."""
    noise_variance: float | None
    """ξ² (y²) in the check for contradictions; ``None``: λ."""
    on_contradiction: OnContradiction
    on_refuted: OnRefuted
    estimates_norm: bool
    """Whether F is estimated from the complete batches."""


class Judgement(NamedTuple):
    """Outcome of the tests of the bounds on the results of all complete batches."""

    width: BatchWidth
    """Width with the norm F of the next batches."""
    doublings: int
    evidence: Evidence
    """Evidence about that width."""
    contradiction: str | None
    """Remaining contradiction between intervals, which ends the run."""
    refuted: str | None
    """Remaining refutation of the bounds, by results or by each other."""
    warning: str | None
    """Text of a warning: the claim, the observation, and the reaction."""


def judgement(
    findings: Sequence[Finding], width: BatchWidth, rules: Rules, *, doublings: int, stopped: bool = False
) -> Judgement:
    """Test the bounds on all results; if ``rules`` allow, double F until they agree.

    Noise above the assumed one does not enlarge F; the warning names it.

    Args:
        findings: Findings of the complete batches; the newest has results.
        width: Width of the bounds so far.
        rules: Settings.
        doublings: Doublings of F so far.
        stopped: Whether earlier batches refuted the bounds, which ended elimination.
    """
    observed = known(findings)
    if isinstance(width, ConstantWidth):
        return Judgement(width, doublings, Evidence(), None, None, None)
    if rules.estimates_norm:
        width = with_norm(width, _estimate(observed, width, rules.failure_probability))
    noise = rules.noise_variance or observed[-1].posterior.prior.regularization
    predictions, (scatter, noisy) = Predictions(findings), noise_check(observed, noise)
    first: Evidence | None = None
    original, before = norm_of(width), doublings
    while True:
        evidence = predictions.evidence(width, failure_probability=rules.failure_probability)
        first = first or evidence
        found = contradiction(observed, width, noise_variance=noise)
        grows = evidence.refuted is not None or found is not None if rules.on_refuted == "widen" else False
        grows = grows or (found is not None and rules.on_contradiction == "double")
        if not grows or noisy or original is None or doublings == 200:
            break
        width, doublings = doubled(width), doublings + 1
    clash = None
    if found is not None:
        clash = explain(found, width, noise_variance=noise, failure_probability=rules.failure_probability)
    refuted = evidence.refuted or clash
    if refuted is None:
        warning = None
        if first.refuted is not None:
            warning = (
                f"the results refute rkhs_norm={original:.4g}: {first.refuted}; F is multiplied by {2 ** (doublings - before)} "
                f"to {norm_of(width):.4g}, with which they agree, and arms that only the smaller F had eliminated are restored"
            )
        return Judgement(width, doublings, evidence, None, None, warning)
    stops = stopped or rules.on_refuted == "stop"
    if clash is not None and not stops:  # the error that ends the run has this text
        return Judgement(width, doublings, evidence, clash, refuted, None)
    todo = advice(width, noisy=scatter if noisy else None, widened=doublings > before)
    end = "; nothing more is eliminated" if stops else ""
    return Judgement(width, doublings, evidence, None, refuted, f"the results refute the certificate: {refuted}{end}; {todo}")


def _estimate(observed: Sequence[Finding], width: BatchWidth, failure_probability: float) -> float:
    """Return the upper estimate of F from the batch with the most results, at least every batch's lower bound."""
    theory, regularization = theory_of(width), observed[-1].confidence.regularization
    assert theory is not None  # the policy has checked that its width has an F
    found = [
        norm_estimate(
            finding.form,
            noise_variance=theory.proxy(regularization),
            regularization=regularization,
            ratio=finding.confidence.ratio,
            failure_probability=failure_probability,
        )
        for finding in observed
    ]
    largest = max(range(len(observed)), key=lambda number: observed[number].confidence.pulls)
    least = max(estimate.lower for estimate in found)
    return max(found[largest].upper, least, math.sqrt(1e-12 * regularization))
