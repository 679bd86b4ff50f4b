"""A width that follows the run's own errors."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from gpytorch.kernels import RBFKernel

from sparse_bo import BBKB, AskTell
from sparse_bo.gp.objective_prior import scaled_kernel
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.widths import CalibratedWidth, Confidence
from sparse_bo.widths.estimates import LARGEST, MEMORY, TRUST, StandardisedErrors

NOISE = 0.04


def _bowl(X: torch.Tensor) -> torch.Tensor:
    return -X.square().sum(dim=1)


def confidence(calibration: float) -> Confidence:
    return Confidence(
        pulls=10,
        information=0.0,
        effective_dimension=3.0,
        regularization=NOISE,
        kappa_squared=1.0,
        ratio_threshold=2.0,
        calibration=calibration,
    )


def after(errors: float, *, leverage: float, n: int = 2000, seed: int = 0) -> StandardisedErrors:
    """The errors by n errors that are so many times as large as the model expects, told one at a time."""
    generator = torch.Generator().manual_seed(seed)
    z = errors * torch.randn(n, generator=generator, dtype=torch.float64)
    leverages = torch.full((n,), leverage, dtype=torch.float64)
    y = z * math.sqrt(NOISE * (1.0 + leverage))
    errors = StandardisedErrors()
    for part in range(0, n, 10):
        rows = slice(part, part + 10)
        errors = errors.after(y[rows], means=torch.zeros(10).double(), leverages=leverages[rows], regularization=NOISE)
    return errors


@pytest.mark.parametrize("seed", range(5))
def test_right_intervals_are_left_alone(seed: int) -> None:
    errors = after(1.0, leverage=9.0, seed=seed)
    assert errors.factor == pytest.approx(1.0, abs=0.3)
    assert errors.lower_factor <= 1.1
    assert CalibratedWidth()(confidence(errors.lower_factor)) == pytest.approx(2.0 * math.sqrt(NOISE), rel=0.1)


def test_errors_twice_as_large_widen_the_intervals() -> None:
    errors = after(2.0, leverage=9.0)
    assert 1.2 < errors.lower_factor < errors.factor < 2.2


def test_known_points_tell_nothing() -> None:
    """Their errors are noise, whose variance the model learns by itself."""
    errors = after(3.0, leverage=1e-6)
    assert errors.factor == pytest.approx(1.0, abs=0.01)


def test_one_wild_value_is_not_believed() -> None:
    one = torch.ones(1, dtype=torch.float64)
    wild = StandardisedErrors().after(1e30 * one, means=0.0 * one, leverages=1e6 * one, regularization=NOISE)
    expected = math.sqrt((TRUST + LARGEST**2) / (TRUST + 1.0))
    assert wild.factor == pytest.approx(expected, rel=1e-4)
    assert wild.lower_factor < 1.0


def test_old_errors_are_forgotten() -> None:
    before = StandardisedErrors(400.0, 40.0)
    shares = torch.full((50,), 1e9, dtype=torch.float64)
    later = before.after(torch.zeros(50).double(), means=torch.zeros(50).double(), leverages=shares, regularization=NOISE)
    assert later.squares == pytest.approx(400.0 * math.exp(-50.0 / MEMORY), rel=1e-6)
    assert later.weight == pytest.approx(40.0 * math.exp(-50.0 / MEMORY) + 50.0, rel=1e-6)


@pytest.mark.parametrize(("shown", "factor"), [(0.2, 1.0), (1.0, 1.0), (1.5, 1.5), (7.0, 2.0)])
def test_the_factor_stays_within_its_limits(shown: float, factor: float) -> None:
    assert CalibratedWidth(3.0)(confidence(shown)) == pytest.approx(3.0 * factor * math.sqrt(NOISE))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="width >= 0"):
        CalibratedWidth(-1.0)
    with pytest.raises(ValueError, match="limit >= 1"):
        CalibratedWidth(2.0, 0.5)


def test_a_learned_prior_is_calibrated_and_a_given_one_is_not() -> None:
    assert BBKB().width == "calibrated"
    assert BBKB().ratio_threshold == 10.0
    assert BBKB().parts.in_batch == "process"
    given = BBKB(covar_module=RBFKernel(), regularization=0.1)
    assert (given.width, given.ratio_threshold, given.parts.in_batch) == (2.0, 2.0, "fixed")
    assert BBKB(width=3.0, ratio_threshold=5.0).parts.stop_rule.ratio_threshold == 5.0


@pytest.mark.parametrize("kind", ["arms", "box"])
def test_a_run_keeps_its_errors_over_a_resume(kind: str, tmp_path) -> None:
    generator = torch.Generator().manual_seed(0)
    arms = {"arms": torch.rand(80, 2, generator=generator, dtype=torch.float64)}
    where = arms if kind == "arms" else {"bounds": torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)}

    def rough(X: torch.Tensor) -> torch.Tensor:
        return torch.sin(40.0 * X[:, 0]) * torch.cos(31.0 * X[:, 1])

    path = tmp_path / "run.journal"
    loop = AskTell(**where, policy=BBKB(), seed=0, storage=path)
    loop.run(rough, 30 if kind == "arms" else 16)
    before = loop.state.fitted.errors
    loop.close()
    again = AskTell.resume(path)
    after = again.state.fitted.errors  # a posterior fitted again has other round-off
    assert (after.squares, after.weight) == pytest.approx((before.squares, before.weight), rel=1e-9)
    assert before.weight > 0.0
    again.close()


def test_the_width_grows_with_the_logarithm_of_the_pulls() -> None:
    def width(pulls: int, growth: float) -> float:
        return CalibratedWidth(growth=growth)(replace(confidence(1.0), pulls=pulls)) / math.sqrt(NOISE)

    assert width(16, 0.5) == pytest.approx(2.0)
    assert width(10_000, 0.5) == pytest.approx(math.sqrt(4.0 + 0.5 * math.log(625.0)))
    assert width(10_000, 0.0) == pytest.approx(2.0)
    with pytest.raises(ValueError, match="growth >= 0"):
        CalibratedWidth(growth=-1.0)


def test_a_batch_with_a_learned_prior_adds_at_most_a_share_of_the_pulls() -> None:
    arms = torch.rand(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = scaled_kernel("rbf", torch.tensor([0.3, 0.3], dtype=torch.float64), 1.0)
    sizes = {}
    for name, policy in (
        ("learned", BBKB()),
        ("given", BBKB(covar_module=given, prior_mean=-1.0, regularization=10.0, width=0.0)),
    ):
        loop = AskTell(arms, policy, seed=0)
        loop.run(_bowl, 400)
        pulls = [0, *loop.history.column("pulls")]
        sizes[name] = [(before, now - before) for before, now in pairwise(pulls)]
    assert all(q <= max(10, ArmUCB.batch_share * before) for before, q in sizes["learned"])
    assert any(q > max(10, ArmUCB.batch_share * before) for before, q in sizes["given"])
