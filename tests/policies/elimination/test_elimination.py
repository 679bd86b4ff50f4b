"""Intervals, survivors and contradictions of hand-made batches, against their definitions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel
from torch import Tensor

from sparse_bo.arms import ArmPrior, posterior_over_part
from sparse_bo.dictionary import AllSampler, candidates_of
from sparse_bo.gp.observations import add_observations, no_observations
from sparse_bo.kernels import covariance_function
from sparse_bo.policies.elimination.batches import BatchCandidates, Finding, interval, surviving, survivors_of
from sparse_bo.policies.elimination.refutation import contradiction, excessive_noise
from sparse_bo.widths import BatchConfidence, Bounds, ConstantWidth, GaussianBounds, SBPETheory
from tests.builders import rbf_kernel
from tests.oracles import exact_gp, rbf

NOISE, SCALE, LENGTHSCALE, PRIOR_MEAN = 0.05, 4.0, 0.3, 1.5
ARMS = torch.linspace(0.0, 1.0, 9, dtype=torch.float64).unsqueeze(-1)


class WithSlack:
    """Three standard deviations and a bit, on a box."""

    def bounds(self, confidence: BatchConfidence) -> Bounds:
        return Bounds(3.0, 0.25)


def finding(
    picks: Sequence[int], y: Sequence[float], members: Sequence[int] | None = None, *, kernel: Kernel | None = None
) -> Finding:
    """The exact posterior over the arms ``members`` after results ``y`` at ``picks`` (positions among them)."""
    rows = torch.arange(len(ARMS)) if members is None else torch.tensor(members)
    points = ARMS[rows]
    covariance = covariance_function(
        (rbf_kernel(LENGTHSCALE, scale=SCALE) if kernel is None else kernel).requires_grad_(False), like=points
    )
    surrogate = ArmPrior(points, covariance, PRIOR_MEAN, NOISE)
    seen = add_observations(no_observations(points), points, torch.tensor(picks), torch.tensor(y, dtype=torch.float64))
    dictionary = AllSampler().sample(candidates_of(seen, None), generator=torch.Generator())
    posterior = posterior_over_part(surrogate, seen, dictionary)
    confidence = BatchConfidence(
        pulls=len(picks), batches=3, arms=len(ARMS), dims=1, regularization=NOISE, kappa_squared=SCALE, ratio=0.0
    )
    return Finding(BatchCandidates(points, rows), posterior, seen, confidence)


def dense(picks: Sequence[int], y: Sequence[float], X: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation at ``X``."""

    def k(A: Tensor, B: Tensor) -> Tensor:
        return rbf(A, B, lengthscale=LENGTHSCALE, scale=SCALE)

    P = ARMS[torch.tensor(picks)]
    values = torch.tensor(y, dtype=torch.float64)
    exact = exact_gp(k(P, P), k(P, X), k(X, X), values, noise=NOISE, prior_mean=PRIOR_MEAN)
    return exact.mean, exact.variance.sqrt()


PICKS, Y = [0, 3, 3, 6], [1.0, 2.5, 2.1, 1.7]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_interval_is_mean_width_deviations_and_slack(elsewhere):
    X = torch.tensor([[0.05], [0.4], [2.0]], dtype=torch.float64) if elsewhere else None
    mean, sd = dense(PICKS, Y, ARMS if X is None else X)
    found = interval(finding(PICKS, Y), WithSlack(), X)
    torch.testing.assert_close(found.lower, mean - 3.0 * sd - 0.25)
    torch.testing.assert_close(found.upper, mean + 3.0 * sd + 0.25)


def test_what_survives_reaches_the_highest_lower_bound():
    mean, sd = dense(PICKS, Y, ARMS)
    expected = mean + sd >= (mean - sd).max()
    assert 0 < int(expected.sum()) < len(ARMS)
    assert torch.equal(surviving(finding(PICKS, Y), ConstantWidth(1.0)), expected)


def test_bounds_without_width_leave_the_highest_mean():
    """The arm of the highest lower bound is the arm of the highest upper one: it stays, however tight the bounds."""
    batch = finding(PICKS, Y)
    assert surviving(batch, ConstantWidth(0.0)).nonzero().tolist() == [[int(batch.posterior.means.argmax())]]


def test_an_arm_is_gone_once_any_batch_eliminates_it():
    width, first, second = ConstantWidth(0.5), finding(PICKS, Y), finding([0, 1, 2], [1.0, 5.0, 1.0], [3, 5, 8])
    left = [f.members[surviving(f, width)].tolist() for f in (first, second)]
    assert left == [[3, 4, 5], [5]]
    assert survivors_of([first, second], width).tolist() == [4, 5]


class TestContradiction:
    THEORY = SBPETheory(rkhs_norm=1.0, noise_variance=1e-8, bias="tight")

    def test_no_function_of_norm_F_leaves_the_prior_by_more_than_F_times_its_deviation(self):
        """``|f − μ₀| ≤ F √k(x,x)`` is 2 here, where ``F k(x,x)`` would be 4."""
        at = lambda value: contradiction([finding([4] * 50, [PRIOR_MEAN + value] * 50)], self.THEORY)  # noqa: E731
        assert at(1.9) is None
        found = at(2.5)
        assert found is not None
        assert found.point == "of arm 4"
        assert found.upper == pytest.approx(PRIOR_MEAN + 2.0)
        batch = interval(finding([4] * 50, [PRIOR_MEAN + 2.5] * 50), self.THEORY)
        assert found.lower == pytest.approx(float(batch.lower[4]))

    def test_batches_are_compared_at_the_arms_they_share(self):
        """Arms 1 and 7: the second is 3 in one batch and 0 in the other. Arm 5, which the first did not know, cannot clash."""
        wide = SBPETheory(rkhs_norm=3.0, noise_variance=1e-8, bias="tight")
        first = finding([0] * 400 + [1] * 400, [2.0] * 400 + [3.0] * 400, [1, 7])
        same = finding([0] * 400 + [1] * 400 + [2] * 400, [2.0] * 400 + [-1.0] * 400 + [3.0] * 400, [1, 5, 7])
        assert contradiction([first, same], wide) is None
        other = finding([0] * 400 + [1] * 400 + [2] * 400, [2.0] * 400 + [-1.0] * 400 + [0.0] * 400, [1, 5, 7])
        found = contradiction([first, other], wide)
        assert found is not None
        assert found.point == "of arm 7"
        assert found.lower == pytest.approx(float(interval(first, wide).lower[1]))
        assert found.upper == pytest.approx(float(interval(other, wide).upper[2]))

    @pytest.mark.parametrize(("share", "noisy"), [(0.99, False), (1.01, True)])
    def test_the_noise_is_to_blame_where_repeats_scatter_beyond_chance(self, share, noisy):
        """Two arms, six pulls each, over two batches: 20 degrees of freedom; the limit is that of a χ² at 10⁻³."""
        level, freedom = math.log(1e3), 20
        limit = NOISE * (freedom + 2.0 * math.sqrt(freedom * level) + 2.0 * level)
        step = math.sqrt(share * limit / 24)  # 24 results, each this far from its arm's mean
        y = [50.0 - step, 50.0 + step] * 6
        batches = [finding([2] * 6 + [3] * 6, y), finding([2] * 6 + [3] * 6, y)]
        assert excessive_noise(batches, NOISE) == (pytest.approx(share * limit / freedom) if noisy else None)

    def test_an_arm_without_prior_variance_hides_nothing(self):
        """A linear kernel at x = 0, and bounds that know no norm: infinity times nothing must not count as a bound."""
        linear = LinearKernel().double().requires_grad_(False)
        assert float(linear(ARMS[:1]).to_dense()) == 0.0
        batches = [finding([8] * 50, [value] * 50, kernel=linear) for value in (5.0, -5.0)]
        found = contradiction(batches, GaussianBounds())
        assert found is not None
        assert found.point == "of arm 8"
        assert contradiction([batches[0], batches[0]], GaussianBounds()) is None

    def test_an_arm_that_a_batch_did_not_know_is_unbounded_by_it_also_without_width(self):
        """A width of 0 times an infinite deviation."""

        class Nothing:
            def bounds(self, confidence: BatchConfidence) -> Bounds:
                return Bounds(0.0, 0.0)

        first, newest = finding([0], [1.0], [1, 7]), finding([0], [9.0], [1, 5, 7])
        found = contradiction([first, newest], Nothing())
        assert found is not None
        assert found.point == "of arm 1"

    def test_without_repeats_the_noise_is_unknown(self):
        assert excessive_noise([finding([2, 6], [50.0, 50.0])], NOISE) is None
