import math
import re

import pytest
import torch

from sparse_bo.arms import StopRule

LEVERAGES = torch.tensor([0.0, 0.1, 2.0], dtype=torch.float64)


@pytest.mark.parametrize("kind", ["global", "local", "repeat", "single"])
def test_a_pick_costs_its_leverage(kind: str) -> None:
    assert StopRule(kind, 2.0).costs(LEVERAGES).tolist() == LEVERAGES.tolist()


def test_gp_bucb_costs_make_a_product() -> None:
    rule = StopRule("gp-bucb", 3.0)
    torch.testing.assert_close(rule.costs(LEVERAGES), torch.tensor([0.0, math.log(1.1), math.log(3.0)], dtype=torch.float64))
    assert rule.allowance == pytest.approx(math.log(3.0))


@pytest.mark.parametrize(("kind", "expected"), [("global", 1.5), ("local", 1.5), ("repeat", 1.5), ("single", 0.0)])
def test_allowance_is_what_the_sum_may_reach(kind: str, expected: float) -> None:
    assert StopRule(kind, 2.5).allowance == expected


@pytest.mark.parametrize("kind", ["global", "local", "single", "gp-bucb", "repeat"])
def test_threshold_one_allows_nothing(kind: str) -> None:
    assert StopRule(kind, 1.0).allowance == 0.0


@pytest.mark.parametrize(
    ("kind", "threshold", "message"),
    [
        ("global", 0.99, "ratio_threshold >= 1 (1 gives batches of one), got 0.99"),
        ("global", math.nan, "finite ratio_threshold"),
        ("sometimes", 2.0, "stop_rule to be one of 'single', 'global', 'local', 'gp-bucb', 'repeat', got 'sometimes'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: str, threshold: float, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        StopRule(kind, threshold)


def test_threshold_infinity_bounds_nothing() -> None:
    assert [StopRule(kind, math.inf).allowance for kind in ("single", "global", "gp-bucb")] == [0.0, math.inf, math.inf]
