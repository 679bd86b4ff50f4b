"""Every width against the line of the paper or the authors' code that it transcribes."""

import math
import re
from dataclasses import FrozenInstanceError

import pytest
import torch

from sparse_bo import BBKB, AskTell
from sparse_bo.widths import BBKBAuthors, BBKBTheory, BKBAuthors, BKBTheory, Confidence, ConstantWidth, Width, botorch_beta
from tests.builders import rbf_kernel

F, XI2, DELTA, LAMBDA, C, T, D_EFF, INFO, KAPPA2 = 20.0, 0.01, 1e-4, 0.2, 2.0, 137, 11.3, 7.9, 5.0
CONFIDENCE = Confidence(
    pulls=T, information=INFO, effective_dimension=D_EFF, regularization=LAMBDA, kappa_squared=KAPPA2, ratio_threshold=C
)
SETTINGS = {"rkhs_norm": F, "noise_variance": XI2, "failure_probability": DELTA}
LOG = math.log(1 / DELTA)


def test_bkb_theory() -> None:
    eps = 0.4
    alpha = (1 + eps) / (1 - eps)
    expected = 2 * math.sqrt(XI2) * math.sqrt(alpha * math.log(KAPPA2 * T) * D_EFF + LOG)
    expected += (1 + 1 / math.sqrt(1 - eps)) * math.sqrt(LAMBDA) * F
    assert BKBTheory(**SETTINGS, accuracy=eps)(CONFIDENCE) == pytest.approx(expected)


def test_bbkb_theory() -> None:
    expected = 2 * math.sqrt(XI2) * math.sqrt(INFO + LOG) + (1 + math.sqrt(2)) * math.sqrt(LAMBDA) * F
    assert BBKBTheory(**SETTINGS)(CONFIDENCE) == pytest.approx(C * expected)


def test_bkb_authors() -> None:
    expected = math.sqrt(LAMBDA) * F + math.sqrt(XI2 * (math.log(T) * D_EFF + LOG))
    assert BKBAuthors(**SETTINGS)(CONFIDENCE) == pytest.approx(expected)


def test_bbkb_authors() -> None:
    expected = math.sqrt(LAMBDA) * F + math.sqrt(XI2 * (C * INFO + LOG))
    assert BBKBAuthors(**SETTINGS)(CONFIDENCE) == pytest.approx(expected)


def test_a_constant_width_counts_posterior_standard_deviations() -> None:
    assert ConstantWidth(3.0)(CONFIDENCE) == pytest.approx(3.0 * math.sqrt(LAMBDA))
    assert ConstantWidth(0.0)(CONFIDENCE) == 0.0


LEVERAGES = torch.tensor([0.0, 1e-12, 0.3, 40.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("width", "gain"),
    [
        (BBKBTheory(**SETTINGS), lambda s: math.log(1 + 3 * s)),
        (BBKBAuthors(**SETTINGS), lambda s: math.log(1 + s)),
        (BKBTheory(**SETTINGS), lambda s: 0.0),
        (BKBAuthors(**SETTINGS), lambda s: 0.0),
        (ConstantWidth(), lambda s: 0.0),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Width) else "",
)
def test_gains_of_a_pull(width: Width, gain) -> None:
    expected = torch.tensor([gain(float(s)) for s in LEVERAGES], dtype=torch.float64)
    torch.testing.assert_close(width.gains(LEVERAGES), expected, rtol=1e-3, atol=0)


def test_the_logarithm_of_the_theory_width_is_never_negative() -> None:
    early = Confidence(
        pulls=1, information=0.0, effective_dimension=0.5, regularization=LAMBDA, kappa_squared=0.01, ratio_threshold=1.0
    )
    bias = (1 + 1 / math.sqrt(0.5)) * math.sqrt(LAMBDA) * F
    assert BKBTheory(**SETTINGS)(early) == pytest.approx(2 * math.sqrt(XI2 * LOG) + bias)


@pytest.mark.parametrize("kind", [BKBTheory, BBKBTheory, BKBAuthors, BBKBAuthors])
def test_the_noise_defaults_to_the_regularization(kind: type[Width]) -> None:
    given = kind(rkhs_norm=F, noise_variance=LAMBDA, failure_probability=DELTA)
    assert kind(rkhs_norm=F, failure_probability=DELTA)(CONFIDENCE) == given(CONFIDENCE)


def test_botorch_beta_makes_the_same_upper_confidence_bound() -> None:
    width, variance = 1.7, 0.37
    assert math.sqrt(botorch_beta(width, regularization=LAMBDA) * variance) == pytest.approx(
        width * math.sqrt(variance / LAMBDA)
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_botorch_beta_needs_a_positive_regularization(bad: float) -> None:
    with pytest.raises(ValueError, match="regularization"):
        botorch_beta(1.0, regularization=bad)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ConstantWidth(-1.0), "expected width >= 0, got -1.0"),
        (lambda: ConstantWidth(math.nan), "finite width"),
        (lambda: BKBTheory(rkhs_norm=0.0), "rkhs_norm > 0"),
        (lambda: BBKBAuthors(rkhs_norm=1.0, noise_variance=0.0), "noise_variance > 0"),
        (lambda: BBKBTheory(rkhs_norm=1.0, failure_probability=1.0), "failure_probability in (0, 1)"),
        (lambda: BKBTheory(rkhs_norm=1.0, accuracy=1.0), "accuracy in (0, 1)"),
    ],
    ids=["negative", "nan", "rkhs norm", "noise", "failure probability", "accuracy"],
)
def test_settings_that_make_no_sense_are_refused(build, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()


def test_widths_are_frozen_values() -> None:
    assert BBKBTheory(rkhs_norm=1.0) == BBKBTheory(rkhs_norm=1.0)
    with pytest.raises(FrozenInstanceError):
        ConstantWidth(1.0).value = 2.0


def test_the_authors_width_of_a_run_counts_the_first_arm_too() -> None:
    """Their code leaves it out; the width is a little larger for it, as the docstring of :class:`BBKBAuthors` says."""
    X = torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = {"covar_module": rbf_kernel(0.3), "regularization": 0.2, "noise_variance": 0.01, "rkhs_norm": 3.0}
    loop = AskTell(X, BBKB(width="authors", failure_probability=0.1, **settings), seed=0)
    loop.run(lambda X: X[:, 0], 1)
    information = math.log1p(1.0 / 0.2)
    assert loop.state.fitted.information == pytest.approx(information)
    expected = math.sqrt(0.2) * 3.0 + math.sqrt(0.01 * (2.0 * information + math.log(10.0)))
    assert loop.state.width == pytest.approx(expected)
