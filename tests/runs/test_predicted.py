"""How results were spread around their predictions: counted for every policy with a model, the same way."""

from __future__ import annotations

import math

import pytest
import torch

from sparse_bo import BBKB, GPUCB, GSSBO, AskTell, TrustRegion
from sparse_bo.policies import REMBO, BoTorchUCB, RandomSearch, SGPTSArms, SparseUCB
from sparse_bo.report.facts import calibrated
from sparse_bo.runs.history import HistoryRow
from sparse_bo.widths.estimates import Calibration, calibration
from tests.builders import arms, noisy, rbf_kernel, unit_box
from tests.oracles import exact_gp, rbf

NOISE = 0.01


def test_a_spread_of_any_size_is_shown_in_a_few_digits():
    assert calibrated(Calibration(16, 0, 0, 16 * 5.18e64**2)).endswith("; spread 5.18e+64")
    assert calibrated(Calibration(16, 0, 0, 16 * 12.346**2)).endswith("; spread 12.35")


def test_scores_are_counted_within_their_quantiles():
    found = calibration(torch.tensor([0.0, 0.9, -1.0, 1.5, -2.5], dtype=torch.float64))
    assert found[:3] == (5, 2, 4)
    assert found.spread == pytest.approx(math.sqrt((0.81 + 1.0 + 2.25 + 6.25) / 5))
    assert (found.within_68, found.within_95) == (0.4, 0.8)
    assert found.and_also(Calibration(5, 1, 2, 1.0)) == Calibration(10, 3, 6, found.squares + 1.0, 6.25)


def test_a_spread_that_one_result_makes_is_given_without_it_too():
    usual = torch.tensor([1.0, -1.0] * 20, dtype=torch.float64)
    lucky = torch.cat([usual, torch.tensor([30.0], dtype=torch.float64)])
    assert calibration(usual).spread_without_one is None
    assert calibration(lucky).spread == pytest.approx(math.sqrt((40 + 900) / 41))
    assert calibration(lucky).spread_without_one == pytest.approx(1.0)
    both = calibration(usual).and_also(calibration(lucky))
    assert both.spread_without_one == pytest.approx(1.0)
    assert calibrated(calibration(lucky)).endswith("; spread 4.79, 1.00 without the result farthest outside")
    assert calibrated(calibration(usual)).endswith("; spread 1.00")


def test_a_run_names_a_result_that_its_model_had_ruled_out():
    """Exact results up to the 12th, which is far off: the model of the first ones knew no noise."""
    X, values = arms(60), iter([*range(11), 500.0, *range(11, 20)])
    policy = BBKB(covar_module=rbf_kernel(0.3), regularization=NOISE, batch_size=1, width=2.0)
    result = AskTell(X, policy, seed=0).run(lambda X: [float(next(values)) * 0.01 for _ in X], 20)
    largest = max(row.largest_square for row in result.history.rows)
    assert result.calibration.largest == largest > 0.5 * result.calibration.squares
    assert "without the result farthest outside" in result.report()


@pytest.mark.parametrize("where", ["arms", "box"])
def test_the_errors_are_those_of_the_posterior_before_the_batch(where):
    X, policy = arms(60), GPUCB(covar_module=rbf_kernel(0.3), regularization=NOISE)
    if where == "arms":
        result = AskTell(X, policy, seed=0).run(noisy(X), 12, call_with="indices")
        inputs = X[result.history.indices]
    else:
        result = AskTell(bounds=unit_box(), policy=policy, seed=0).run(lambda X: torch.sin(9.0 * X).sum(dim=-1), 12)
        inputs = torch.tensor(result.history.points, dtype=torch.float64)
    y = [v for row in result.history.rows for v in row.values]
    assert result.history.rows[0].predicted == 0
    for t, row in enumerate(result.history.rows[1:], start=1):
        seen, new, values = inputs[:t], inputs[t : t + 1], torch.tensor(y[:t], dtype=torch.float64)
        K = lambda A, B: rbf(A, B, lengthscale=0.3)  # noqa: E731
        before = exact_gp(K(seen, seen), K(seen, new), K(new, new), values, noise=NOISE)
        error = (y[t] - float(before.mean)) / math.sqrt(float(before.variance) + NOISE)
        assert (row.predicted, row.error_squares) == (1, pytest.approx(error**2, rel=1e-4))
    assert result.calibration == result.history.calibration
    assert result.calibration.results == 11


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "policy",
    [
        BBKB(initial_design=6),
        BoTorchUCB(initial_design=6),
        GSSBO(initial_design=6),
        SparseUCB(initial_design=6),
        TrustRegion(initial_design=6),
        REMBO(target_dims=1, inner=BoTorchUCB(initial_design=6)),
    ],
    ids=lambda policy: policy.name,
)
def test_policies_on_a_box_count_theirs(policy):
    history = AskTell(bounds=unit_box(), policy=policy, seed=0).run(lambda X: -(X - 0.3).square().sum(dim=-1), 14).history
    found = history.calibration
    assert found is not None
    assert found.results == sum(row.predicted for row in history.rows) <= 14
    assert math.isfinite(found.spread)
    assert found.inside_68 <= found.inside_95 <= found.results


def test_policies_over_arms_count_theirs_and_those_without_a_model_none():
    X = arms(60)
    thompson = SGPTSArms(covar_module=rbf_kernel(0.3), regularization=NOISE)
    assert AskTell(X, thompson, seed=0).run(noisy(X), 8, call_with="indices").calibration is not None
    assert AskTell(X, RandomSearch(), seed=0).run(noisy(X), 8, call_with="indices").calibration is None


def test_rows_of_earlier_histories_have_none():
    assert HistoryRow.of_plain({"round": 1, "pulls": 2, "indices": [1, 2], "values": [0.0, 1.0]}).calibration is None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", ["theory", "authors"])
@pytest.mark.parametrize("where", ["arms", "box"])
def test_a_norm_can_be_estimated_for_widths_that_need_one(where, width):
    policy = BBKB(covar_module=rbf_kernel(0.3), regularization=NOISE, rkhs_norm="estimate", width=width, ratio_threshold=4.0)
    X = arms(60)
    kind = {"arms": X} if where == "arms" else {"bounds": unit_box()}
    loop = AskTell(**kind, policy=policy, seed=0)
    if where == "arms":
        loop.run(noisy(X), 12, call_with="indices")
    else:
        loop.run(lambda X: X.sum(dim=-1), 12)
    row, state = loop.history.rows[-1], loop.state
    assert row.rkhs_norm == state.fitted.rkhs_norm > 0.0
    given = BBKB(covar_module=rbf_kernel(0.3), regularization=NOISE, rkhs_norm=row.rkhs_norm, width=width, ratio_threshold=4.0)
    confidence_parts = row.width - math.sqrt(NOISE) * row.rkhs_norm
    assert confidence_parts > 0.0
    assert given.parts.width.rkhs_norm == row.rkhs_norm


def test_a_width_that_needs_a_norm_says_what_to_do():
    with pytest.raises(ValueError, match=r"needs rkhs_norm=.*rkhs_norm='estimate'.*estimate_rkhs_norm.*width='calibrated'"):
        BBKB(covar_module=rbf_kernel(0.3), regularization=NOISE, width="theory")
    with pytest.raises(ValueError, match="got a learned prior"):
        BBKB(rkhs_norm="estimate", width="theory")
