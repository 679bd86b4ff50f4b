"""The judgement after a batch: which F its results leave, whether they refute the bounds, and what is said of that."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sparse_bo.policies.elimination.batch_width import doubled, norm_of, theory_of, with_norm
from sparse_bo.policies.elimination.findings import Finding, contradiction, explain, known, noise_check
from sparse_bo.policies.elimination.refutation import Evidence, Promises, advice
from sparse_bo.widths import BatchWidth, ConstantWidth
from sparse_bo.widths.norms import norm_estimate

LARGEST_DOUBLINGS = 200
"""Of F, in search of one that the data agree with."""
OnRefuted = Literal["warn", "stop", "widen"]
OnContradiction = Literal["raise", "double"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How bounds are judged, and what follows."""

    failure_probability: float
    """δ of the policy."""
    noise_variance: float | None
    """ξ² (y²) in the check for contradictions; ``None``: λ."""
    on_contradiction: OnContradiction
    on_refuted: OnRefuted
    estimates_norm: bool
    """Whether F is estimated from the complete batches."""


class Judgement(NamedTuple):
    """What follows from the results of all complete batches."""

    width: BatchWidth
    """With the F from now on."""
    doublings: int
    evidence: Evidence
    """Of that width."""
    contradiction: str | None
    """Which intervals contradict each other still, so that the run cannot go on."""
    refuted: str | None
    """What refutes the bounds still: the results, or each other."""
    said: str | None
    """What to warn of: what was promised, what was seen, what is done about it."""


def judgement(
    findings: Sequence[Finding], width: BatchWidth, rules: Rules, *, doublings: int, stopped: bool = False
) -> Judgement:
    """Hold the bounds against all results; where it is allowed, multiply F until they agree.

    A noise that is larger than assumed is no reason for a larger F: it is said instead.

    Args:
        findings: Of the complete batches, the newest with results.
        width: Of the bounds so far.
        rules: What to do.
        doublings: How often F was doubled already.
        stopped: Whether earlier batches refuted the bounds, and that ended elimination.
    """
    told = known(findings)
    if isinstance(width, ConstantWidth):
        return Judgement(width, doublings, Evidence(), None, None, None)
    if rules.estimates_norm:
        width = with_norm(width, _estimate(told, width, rules.failure_probability))
    noise = rules.noise_variance or told[-1].posterior.prior.regularization
    promises, (scatter, noisy) = Promises(findings), noise_check(told, noise)
    first: Evidence | None = None
    given, before = norm_of(width), doublings
    while True:
        evidence = promises.evidence(width, failure_probability=rules.failure_probability)
        first = first or evidence
        found = contradiction(told, width, noise_variance=noise)
        grows = evidence.refuted is not None or found is not None if rules.on_refuted == "widen" else False
        grows = grows or (found is not None and rules.on_contradiction == "double")
        if not grows or noisy or given is None or doublings == LARGEST_DOUBLINGS:
            break
        width, doublings = doubled(width), doublings + 1
    clash = None
    if found is not None:
        clash = explain(found, width, noise_variance=noise, failure_probability=rules.failure_probability)
    refuted = evidence.refuted or clash
    if refuted is None:
        said = None
        if first.refuted is not None:
            said = (
                f"the results refute rkhs_norm={given:.4g}: {first.refuted}; F is multiplied by {2 ** (doublings - before)}, "
                f"to {norm_of(width):.4g}, with which they agree, and what only the smaller F had eliminated is back"
            )
        return Judgement(width, doublings, evidence, None, None, said)
    stops = stopped or rules.on_refuted == "stop"
    if clash is not None and not stops:  # it ends the run, and says all of this
        return Judgement(width, doublings, evidence, clash, refuted, None)
    todo = advice(width, noisy=scatter if noisy else None, widened=doublings > before)
    end = "; nothing more is eliminated" if stops else ""
    return Judgement(width, doublings, evidence, None, refuted, f"the results refute the certificate: {refuted}{end}; {todo}")


def _estimate(told: Sequence[Finding], width: BatchWidth, failure_probability: float) -> float:
    """Return the upper limit of what the batch with the most results shows of the norm, and no less than any batch needs."""
    theory, regularization = theory_of(width), told[-1].confidence.regularization
    assert theory is not None  # the policy has checked that its width has an F
    found = [
        norm_estimate(
            finding.form,
            noise_variance=theory.proxy(regularization),
            regularization=regularization,
            ratio=finding.confidence.ratio,
            failure_probability=failure_probability,
        )
        for finding in told
    ]
    largest = max(range(len(told)), key=lambda number: told[number].confidence.pulls)
    least = max(estimate.lower for estimate in found)
    return max(found[largest].upper, least, math.sqrt(1e-12 * regularization))
