"""Tests of the bounds on the results of complete batches, and the reactions to a contradiction or refutation.

*Contradiction*: two intervals of one candidate are disjoint. All bounds hold together with probability 1 − δ/2, so then none
exists. Without one elimination cannot empty the active set: the arm of the highest lower bound survives.

Every batch is picked without its own results, so they test the bounds of the batches before, too. Two tests:

*Coverage.* If all intervals hold, only noise moves the mean result at an input out of its interval, widened by the noise's
quantile at a share :data:`SHARE` of inputs. Noise is independent between inputs, so the number of inputs outside is at most
binomial, for any objective and any sub-Gaussian noise. The test is its exact tail, for the newest batch and for all together.

*Size.* The quadratic form of a batch's results exceeds the value that F and the noise allow
(:mod:`sparse_bo.widths.estimates`). It detects a norm that is too small long before intervals miss, since it adds up the
evidence of every input.

Each of the four tests of a batch (two events bound the form) has the level ``δ/(8B)``. So a certificate with valid assumptions
is refuted with probability at most δ/2; the other half is that of the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from sparse_bo.gp.diagnostics import binomial_tail
from sparse_bo.policies.elimination.batches import (
    Finding,
    Marginals,
    intersection,
    marginals_at,
    norm_of,
    theory_of,
    with_norm,
    with_results,
)
from sparse_bo.policies.elimination.settings import EliminationSettings
from sparse_bo.widths import BatchWidth, ConstantWidth, RefutableWidth

SHARE = 0.01
"""Share of inputs whose mean result the noise may move out of a valid interval."""


class Contradiction(NamedTuple):
    """Two disjoint confidence intervals of one point: an assumption of the bounds is wrong."""

    point: str
    """The arm or point, for messages."""
    lower: float
    upper: float


def contradiction(findings: Sequence[Finding], width: BatchWidth) -> Contradiction | None:
    """Return a candidate of the newest finding with disjoint intervals from different batches; ``None`` if there is none.

    Collective. Findings are at least one, in order. A constant width is never contradicted.
    """
    newest = findings[-1]
    candidates, prior = newest.candidates, newest.posterior.prior
    seen = ((finding, finding.marginals_of(newest)) for finding in findings)
    lower, upper = intersection(prior, prior.variances, seen, width)
    mine = (-math.inf, 0.0, Contradiction("", 0.0, 0.0))  # of a rank without candidates
    if len(lower):
        worst = int((lower - upper).argmax())
        mean = prior.prior_mean  # of which rounding is a 10⁻¹³
        scale = float((upper - mean).abs().max()) + float((lower - mean).abs().max()) + 1e-4 * abs(mean)
        clash = Contradiction(candidates.label(worst), float(lower[worst]), float(upper[worst]))
        mine = (clash.lower - clash.upper, scale, clash)
    all_ranks = candidates.group.objects("contradictions", mine)
    gap, _, clash = max(all_ranks, key=lambda worst: worst[0])
    return clash if gap > 1e-9 * max(scale for _, scale, _ in all_ranks) else None


def excessive_noise(findings: Sequence[Finding], noise_variance: float) -> float | None:
    """Return the pooled variance (y²) of repeated evaluations if it is above ξ² beyond chance, which explains a contradiction.

    By Laurent & Massart (2000), at 10⁻³. ``None``: it is not, or there are no repeats.
    """
    scatter = sum(float(finding.observations.scatter.sum()) for finding in findings)
    freedom = sum(float((finding.observations.counts - 1.0).sum()) for finding in findings)
    level = math.log(1e3)
    limit = freedom + 2.0 * math.sqrt(freedom * level) + 2.0 * level
    return scatter / freedom if freedom >= 1.0 and scatter > noise_variance * limit else None


class Evidence(NamedTuple):
    """Outcome of the tests of bounds on later results."""

    coverages: tuple[tuple[int, int], ...] = ()
    """For each batch with results: number of distinct inputs, and of those whose mean result lies in its interval."""
    norm_at_least: float | None = None
    """Smallest F that no batch refutes by its size; ``None`` for bounds without F."""
    refuted: str | None = None
    """Description of the refutation; ``None`` without one."""


Predicted = tuple[Finding, list[tuple[Finding, Marginals]]]
"""A batch with results, and the predictions of every earlier batch at its inputs."""


def predicted(findings: Sequence[Finding]) -> list[Predicted]:
    """Return the predictions of every batch from earlier ones."""
    seen = with_results(findings)
    return [
        (finding, [(earlier, marginals_at(earlier.posterior, finding.observations.X)) for earlier in seen[:number]])
        for number, finding in enumerate(seen)
    ]


def evidence(batches: Sequence[Predicted], width: BatchWidth, *, failure_probability: float) -> Evidence:
    """Return the outcome of the tests of a width on :func:`predicted` batches; empty for widths without a noise model."""
    if not isinstance(width, RefutableWidth) or not batches:
        return Evidence()
    findings = [finding for finding, _ in batches]
    log_inverse = math.log(8.0 * findings[-1].confidence.batches / failure_probability)
    coverages = tuple(_coverage(finding, before, width) for finding, before in batches)
    reasons = _outside(coverages, level=math.exp(-log_inverse)) + _too_large(findings, width, log_inverse=log_inverse)
    theory = theory_of(width)
    least = None
    if theory is not None:
        least = max(theory.norm_at_least(f.form, f.confidence, log_inverse=log_inverse) for f in findings)
    return Evidence(coverages, least, "; ".join(reasons) or None)


def _coverage(finding: Finding, before: list[tuple[Finding, Marginals]], width: RefutableWidth) -> tuple[int, int]:
    """Return the number of inputs, and of mean results within their intervals, widened by the noise."""
    seen, prior = finding.observations, finding.posterior.prior
    lower, upper = intersection(prior, prior.covariance.diagonal(seen.X), before, width)
    noise = width.noise_within(seen.counts, share=SHARE, regularization=finding.confidence.regularization)
    return seen.n, int(((seen.means >= lower - noise) & (seen.means <= upper + noise)).sum())


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
        f"rkhs_norm={theory.rkhs_norm:.4g}"
    ]


def _explained(
    clash: Contradiction, norm: float | None, repeats: float | None, *, noise: float, failure_probability: float
) -> str:
    """Return the message of a contradiction: the intervals, the cause and the fix."""
    head = (
        f"no objective meets all confidence intervals {clash.point}: at least {clash.lower:.4g}, at most {clash.upper:.4g}. "
        f"If the assumptions hold this has probability {failure_probability:g} at most. "
    )
    if repeats is not None:
        return head + (
            f"Repeated evaluations scatter with variance {repeats:.3g}, so the noise exceeds "
            f"noise_variance={noise:.3g}; raise noise_variance"
        )
    if norm is None:
        return head + (
            "The objective is not a plausible draw of the prior: choose another covar_module or prior_mean, or bound its "
            "norm by rkhs_norm= and width='theory'"
        )
    return head + (
        f"The objective's RKHS norm in this kernel exceeds rkhs_norm={norm:.4g} (or is infinite, which a shorter lengthscale "
        "or a rougher kernel may change); raise rkhs_norm, or let on_contradiction='double' find it"
    )


def _advice(norm: float | None, repeats: float | None, *, widened: bool) -> str:
    """Return advice on refuted bounds, for the end of a message; ``widened``: F has been doubled already without effect."""
    if repeats is not None:
        return f"repeated evaluations scatter with variance {repeats:.3g}: raise noise_variance"
    if norm is None:
        return "choose another covar_module or prior_mean, or bound the norm by rkhs_norm= and width='theory'"
    if widened:
        return "no larger F agrees with them: choose another covar_module or noise_variance"
    return (
        "raise rkhs_norm (or use a rougher kernel), or let on_refuted='widen' multiply it until the results agree; "
        "until then the elimination has no guarantee"
    )


class Judgement(NamedTuple):
    """Outcome of the tests of the bounds on the results of all complete batches."""

    width: BatchWidth
    """Width with the norm F of the next batches."""
    doublings: int
    evidence: Evidence = Evidence()
    """Evidence about that width."""
    contradiction: str | None = None
    """Remaining contradiction between intervals, which ends the run."""
    refuted: str | None = None
    """Remaining refutation of the bounds, by results or by each other."""
    warning: str | None = None
    """Text of a warning: the claim, the observation, and the reaction."""


def judgement(
    findings: Sequence[Finding], width: BatchWidth, settings: EliminationSettings, *, doublings: int, stopped: bool
) -> Judgement:
    """Test the bounds on all results; if the settings allow, double F until they agree. ``stopped``: elimination has ended.

    Noise above the assumed one does not enlarge F; the warning names it.
    """
    seen, delta = with_results(findings), settings.failure_probability
    if isinstance(width, ConstantWidth):
        return Judgement(width, doublings)
    if settings.rkhs_norm == "estimate":
        width = with_norm(width, _estimated_norm(seen, width, delta))
    noise = settings.noise_variance or seen[-1].posterior.prior.regularization
    batches, repeats = predicted(seen), excessive_noise(seen, noise)
    norm, before, first = norm_of(width), doublings, None
    while True:
        found, clash = evidence(batches, width, failure_probability=delta), contradiction(seen, width)
        first = found if first is None else first
        disagree = clash is not None or found.refuted is not None
        grows = (settings.on_refuted == "widen" and disagree) or (settings.on_contradiction == "double" and clash is not None)
        if not grows or repeats is not None or norm is None or doublings == 200:
            break
        doublings += 1
        width = with_norm(width, norm * 2.0 ** (doublings - before))
    now = norm_of(width)
    text = None if clash is None else _explained(clash, now, repeats, noise=noise, failure_probability=delta)
    refuted = found.refuted or text
    stops = stopped or settings.on_refuted == "stop"
    if refuted is None:
        warning = None
        if first.refuted is not None:
            warning = (
                f"the results refute rkhs_norm={norm:.4g}: {first.refuted}; F is multiplied by {2 ** (doublings - before)} "
                f"to {now:.4g}, with which they agree, and arms that only the smaller F had eliminated are restored"
            )
        return Judgement(width, doublings, found, warning=warning)
    if text is not None and not stops:  # the error that ends the run has this text
        return Judgement(width, doublings, found, contradiction=text, refuted=refuted)
    end = "; nothing more is eliminated" if stops else ""
    warning = f"the results refute the certificate: {refuted}{end}; {_advice(now, repeats, widened=doublings > before)}"
    return Judgement(width, doublings, found, refuted=refuted, warning=warning)


def _estimated_norm(seen: Sequence[Finding], width: BatchWidth, failure_probability: float) -> float:
    """Return the upper estimate of F from the batch with the most results, at least every batch's lower bound."""
    theory, regularization = theory_of(width), seen[-1].confidence.regularization
    assert theory is not None  # the settings are checked: their width has an F
    log_inverse = math.log(4.0 / failure_probability)
    found = [theory.size_bounds(finding.confidence, log_inverse).estimate(finding.form) for finding in seen]
    largest = max(range(len(seen)), key=lambda number: seen[number].confidence.pulls)
    least = max(estimate.lower for estimate in found)
    return max(found[largest].upper, least, math.sqrt(1e-12 * regularization))
