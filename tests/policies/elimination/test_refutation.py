"""A certificate against results: alarms are rare where the assumptions hold, and come where they do not."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.stats import binom

from sparse_bo import BPE, SBPE, AskTell
from sparse_bo.errors import CertificateWarning
from sparse_bo.gp.diagnostics import binomial_tail
from sparse_bo.policies.elimination.refutation import SHARE, evidence, predicted
from sparse_bo.widths import GaussianBounds, SBPELightTailed, SBPETheory
from tests.builders import rbf_kernel
from tests.oracles import rbf

NOISE_SD, LENGTHSCALE, DELTA, BUDGET = 0.2, 0.3, 0.1, 120


class Problem:
    """A member of the RKHS over 40 arms; noise is normal, uniform, or of two values, of variance proxy ξ²."""

    def __init__(self, seed: int, *, scale: float = 1.0) -> None:
        self.g = torch.Generator().manual_seed(seed)
        self.arms = torch.rand(40, 2, generator=self.g, dtype=torch.float64)
        centres = torch.rand(6, 2, generator=self.g, dtype=torch.float64)
        weights = scale * torch.randn(6, generator=self.g, dtype=torch.float64)
        self.values = rbf(self.arms, centres, lengthscale=LENGTHSCALE) @ weights
        self.norm = float((weights @ rbf(centres, centres, lengthscale=LENGTHSCALE) @ weights).sqrt())
        self.law = seed % 3

    def __call__(self, indices: torch.Tensor) -> torch.Tensor:
        if self.law == 0:
            noise = torch.randn(len(indices), generator=self.g, dtype=torch.float64)
        else:
            noise = 2.0 * torch.rand(len(indices), generator=self.g, dtype=torch.float64) - 1.0
            noise = noise if self.law == 1 else noise.sign()
        return self.values[indices] + NOISE_SD * noise

    def run(self, policy: Any = BPE, **changes: Any) -> AskTell:
        settings: dict[str, Any] = {
            "horizon": BUDGET,
            "covar_module": rbf_kernel(LENGTHSCALE),
            "regularization": NOISE_SD**2,
            "rkhs_norm": self.norm,
            "failure_probability": DELTA,
        }
        loop = AskTell(self.arms, policy(**settings | changes))
        loop.run(self, BUDGET, call_with="indices")
        return loop


def drawn(seed: int) -> Problem:
    """A draw of the prior, with normal noise."""
    problem = Problem(3 * seed)
    K = rbf(problem.arms, problem.arms, lengthscale=LENGTHSCALE) + 1e-10 * torch.eye(40, dtype=torch.float64)
    problem.values = torch.linalg.cholesky(K) @ torch.randn(40, generator=problem.g, dtype=torch.float64)
    return problem


@pytest.mark.parametrize("problems", [10, pytest.param(150, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["norm", "draw"])
def test_right_assumptions_are_refuted_no_more_often_than_promised(kind, problems, record_property):
    """Not above what a level of 0.1 gives in 99 of 100 cases. ``-m slow``: 300 problems."""
    alarms = 0
    for seed in range(problems):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", CertificateWarning)
            (Problem(seed).run if kind == "norm" else drawn(seed).run)(**({} if kind == "norm" else {"rkhs_norm": None}))
        alarms += bool(caught)
    record_property("alarms", f"{alarms} of {problems}")
    assert alarms <= binom.ppf(0.99, problems, DELTA)


class TestWrongNorm:
    """F is the norm of the smooth part of an objective whose values, arm by arm, are none of any smooth function."""

    def problem(self) -> Problem:
        problem = Problem(3)
        problem.values = problem.values + 0.6 * torch.randn(40, generator=problem.g, dtype=torch.float64)
        return problem

    def run(self, **changes: Any) -> AskTell:
        return self.problem().run(**changes)

    def test_it_is_said_and_marked_everywhere(self, tmp_path):
        said = r"need an RKHS norm of at least .*the bounds assume rkhs_norm=.*.*on_refuted='widen'"
        with pytest.warns(CertificateWarning, match=said):
            loop = self.run()
        result = loop.result()
        assert result.refuted is not None
        assert result.refuted == loop.history.rows[-1].refuted == loop.state.refuted
        assert "REFUTE" in loop.state.describe()
        row = loop.history.rows[-1]
        assert row.norm_at_least > row.rkhs_norm == pytest.approx(self.problem().norm)
        assert row.promised == 1.0 - SHARE
        assert 0.0 <= row.coverage <= 1.0
        assert "CERTIFICATE REFUTED by the results, after" in result.plot().get_suptitle()

    @pytest.mark.filterwarnings("ignore::sparse_bo.errors.CertificateWarning")
    def test_stop_keeps_what_was_left(self):
        going, stopped = self.run(), self.run(on_refuted="stop")
        assert stopped.state.trusted is not None
        assert len(stopped.state.findings) == len(stopped.state.sizes)
        kept = 40 if stopped.state.survivors is None else len(stopped.state.survivors)
        assert kept > len(going.state.survivors)
        best = int(self.problem().values.argmax())
        assert stopped.state.survivors is None or best in stopped.state.survivors

    def test_widen_multiplies_the_norm_until_the_results_agree_and_says_by_how_much(self):
        with pytest.warns(CertificateWarning, match=r"F is multiplied by \d+ to .*, with which they agree"):
            loop = self.run(on_refuted="widen")
        state, problem = loop.state, self.problem()
        assert loop.result().refuted is None
        assert state.norm == pytest.approx(2.0**state.doublings * problem.norm)
        assert state.norm_at_least <= state.norm
        assert f"F = {state.norm:.4g} after {state.doublings} doublings" in state.describe()
        assert int(problem.values.argmax()) in state.survivors

    @pytest.mark.filterwarnings("ignore::sparse_bo.errors.CertificateWarning")
    @pytest.mark.parametrize("mode", ["warn", "stop", "widen"])
    def test_a_resumed_run_knows(self, mode, tmp_path):
        problem = self.problem()
        policy = BPE(
            horizon=BUDGET,
            covar_module=rbf_kernel(LENGTHSCALE),
            regularization=NOISE_SD**2,
            rkhs_norm=problem.norm,
            on_refuted=mode,
        )
        with AskTell(problem.arms, policy, storage=tmp_path / "run.journal") as loop:
            loop.run(problem, BUDGET, call_with="indices")
            before = loop.state
        with AskTell.resume(tmp_path / "run.journal") as loop:
            after = loop.state
        for name in ("norm", "doublings", "refuted", "trusted", "norm_at_least"):
            assert getattr(after, name) == getattr(before, name), name
        assert [list(c) for c in after.coverages] == [list(c) for c in before.coverages]
        assert after.width == before.width


def test_noise_that_is_too_small_is_no_reason_for_a_larger_norm():
    problem = Problem(0)
    with pytest.warns(CertificateWarning, match="scatter with variance .*: raise noise_variance"):
        loop = problem.run(schedule=(BUDGET,), noise_variance=NOISE_SD**2 / 50.0, on_refuted="widen")
    assert loop.state.doublings == 0
    assert loop.result().refuted is not None


def test_a_prior_that_the_objective_is_no_draw_of_is_refuted():
    problem = drawn(1)
    problem.values = 6.0 * problem.values
    with pytest.warns(CertificateWarning, match="times as far from the prior as its draws"):
        assert problem.run(rkhs_norm=None).result().refuted is not None


def test_coverage_alone_refutes_where_the_size_is_not_known():
    """Light-tailed noise has no test of size. Intervals that miss half the inputs have a chance that is told."""
    problem = Problem(6, scale=3.0)
    batches = predicted(problem.run(SBPE, schedule=(60, 60)).state.findings)
    width = SBPELightTailed(rkhs_norm=0.2 * problem.norm, noise_radius=1e3, failure_probability=DELTA)
    found = evidence(batches, width, failure_probability=DELTA)
    assert found.refuted is not None
    (first, held), (second, held_too) = found.coverages
    share = f"of {first + second} inputs of 2 batches, {held + held_too} ({(held + held_too) / (first + second):.0%})"
    assert found.refuted.startswith(f"{share} have their mean result in the interval predicted before it, where at least 99%")
    chance = binomial_tail(first + second, first + second - held - held_too, SHARE)
    assert f"probability {chance:.1g}" in found.refuted
    assert chance < DELTA / 16
    assert "norm" not in found.refuted
    right = replace(width, rkhs_norm=problem.norm)
    assert evidence(batches, right, failure_probability=DELTA).refuted is None


def test_the_interval_before_the_first_batch_is_the_norm_and_later_ones_are_intersections():
    """By hand: one input beyond ``F √k`` and the noise in the first batch, none in the second."""
    problem = Problem(0)
    loop = problem.run(schedule=(60, 60))
    batches = predicted(loop.state.findings)
    finding = loop.state.findings[0]
    seen = finding.observations
    for factor in (0.05, 0.3, 1.0):
        width = SBPETheory(rkhs_norm=factor * problem.norm, bias="tight")
        noise = NOISE_SD * (2.0 * math.log(2.0 / SHARE) / seen.counts).sqrt()
        expected = int((seen.means.abs() <= factor * problem.norm + noise).sum())
        assert evidence(batches, width, failure_probability=DELTA).coverages[0] == (seen.n, expected)
        bounds, (first, second) = width.bounds(finding.confidence), loop.state.findings
        at = second.observations.rows
        half = bounds.width * first.marginals.deviations[at]
        lower = (first.marginals.means[at] - half).clamp_min(-factor * problem.norm)
        upper = (first.marginals.means[at] + half).clamp_max(factor * problem.norm)
        noise = NOISE_SD * (2.0 * math.log(2.0 / SHARE) / second.observations.counts).sqrt()
        means = second.observations.means
        expected = int(((means >= lower - noise) & (means <= upper + noise)).sum())
        assert evidence(batches, width, failure_probability=DELTA).coverages[1] == (second.observations.n, expected)


def test_the_norm_can_be_estimated():
    problem = Problem(2)
    loop = problem.run(rkhs_norm="estimate")
    assert max(loop.state.norm_at_least, 0.5 * problem.norm) < loop.state.norm < 5.0 * problem.norm
    assert loop.history.rows[0].rkhs_norm is not None
    assert loop.history.rows[-1].rkhs_norm == loop.state.norm
    assert int(problem.values.argmax()) in loop.state.survivors


def test_the_tail_is_the_binomial_one():
    for n, k in ((10, 0), (10, 1), (300, 12), (90, 90)):
        assert binomial_tail(n, k, 0.01) == pytest.approx(float(binom.sf(k - 1, n, 0.01)), rel=1e-9)


def test_gaussian_bounds_allow_normal_noise():
    counts = torch.tensor([1.0, 4.0], dtype=torch.float64)
    within = GaussianBounds().noise_within(counts, share=0.05, regularization=0.09)
    assert within.tolist() == pytest.approx([1.959964 * 0.3, 1.959964 * 0.15], rel=1e-6)
    assert SHARE == 0.01
