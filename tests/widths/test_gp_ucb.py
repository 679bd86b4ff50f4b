"""Srinivas' and GSSBO's widths against their formulas, and in runs."""

import math

import pytest
import torch

from sparse_bo import GSSBO, AskTell
from sparse_bo.errors import NumericalWarning
from sparse_bo.policies import BoTorchUCB
from sparse_bo.policies.persistence import describe, rebuild
from sparse_bo.policies.subset.surrogate_models import exact_gp, subset_errors
from sparse_bo.widths import (
    GSSBOTheory,
    SrinivasCompact,
    SrinivasFinite,
    SubsetErrors,
    SurrogateConfidence,
)
from tests.policies.builders import SMALL, bowl, box, keep_parameters

NOTHING_LEFT_OUT = SubsetErrors(0.0, 0.0, 0.5)


def confidence(n, d=2, errors=NOTHING_LEFT_OUT):
    return SurrogateConfidence(observations=n, dims=d, errors=lambda: errors)


@pytest.mark.parametrize("t", [1, 7, 1000])
def test_srinivas_on_finitely_many_points(t):
    beta = 2 * math.log(50 * t**2 * math.pi**2 / (6 * 0.1))
    width = SrinivasFinite(points=50, failure_probability=0.1)
    assert width.standard_deviations(confidence(t - 1)) == pytest.approx(math.sqrt(beta))
    fifth = SrinivasFinite(points=50, failure_probability=0.1, divisor=5.0)
    assert fifth.standard_deviations(confidence(t - 1)) == pytest.approx(math.sqrt(beta / 5))


@pytest.mark.parametrize(("t", "d"), [(2, 1), (7, 2), (1000, 6)])
def test_srinivas_on_a_box(t, d):
    a, b, delta = 1.5, 3.0, 0.1
    root = math.sqrt(math.log(4 * d * a / delta))
    beta = 2 * math.log(t**2 * 2 * math.pi**2 / (3 * delta)) + 2 * d * math.log(t**2 * d * b * root)
    width = SrinivasCompact(failure_probability=delta, derivative_bound=a, derivative_scale=b)
    assert width.standard_deviations(confidence(t - 1, d)) == pytest.approx(math.sqrt(beta))


def test_a_discretisation_has_at_least_one_point():
    tiny = SrinivasCompact(derivative_scale=1e-9)
    assert tiny.beta(confidence(0)) == pytest.approx(2 * math.log(2 * math.pi**2 / (3 * 0.05)))


def test_gssbos_width_makes_up_for_what_a_subset_may_miss():
    compact = SrinivasCompact(failure_probability=0.1, derivative_bound=2.0, derivative_scale=3.0)
    A, B, smallest = 0.3, 0.2, 0.5
    seen = confidence(40, 3, SubsetErrors(A, B, smallest))
    beta = compact.beta(seen)
    root = GSSBOTheory(surrogate=compact).standard_deviations(seen)
    assert root + (A + root * B) / smallest == pytest.approx(math.sqrt(beta))
    printed = GSSBOTheory(surrogate=compact, form="printed").standard_deviations(seen)
    assert printed == pytest.approx((smallest * beta - A) / (smallest + B))
    nothing = confidence(40, 3)
    assert GSSBOTheory(surrogate=compact).standard_deviations(nothing) == compact.standard_deviations(nothing)


def test_a_negative_width_is_zero_and_said():
    with pytest.warns(NumericalWarning, match=r"Thm 5.2\) is -.* at 40 observations.*a larger buffer, or SrinivasCompact"):
        assert GSSBOTheory().standard_deviations(confidence(40, 3, SubsetErrors(1e3, 0.1, 0.5))) == 0.0


def test_what_a_subset_may_miss_against_dense_algebra(device):
    X = torch.rand(14, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    y, known = (7.0 * X.sin().sum(-1) + 3.0), torch.tensor([0, 3, 5, 9, 13], device=device)
    model = exact_gp(X, y.unsqueeze(-1))
    model.likelihood.noise = 0.05
    model.eval()
    K = model.covar_module(X).to_dense().detach()
    approximate = K[:, known] @ torch.linalg.solve(K[known][:, known], K[known])
    eye = torch.eye(14, dtype=X.dtype, device=device)
    C = torch.linalg.matrix_norm(torch.linalg.inv(K + 0.05 * eye), 2)
    C = float(C * torch.linalg.matrix_norm(torch.linalg.inv(approximate + 0.05 * eye), 2))
    missed = float(torch.linalg.matrix_norm(K - approximate, 2))
    residuals = (y - y.mean()) / y.std() - float(model.mean_module.constant.detach())
    at_a_point = math.sqrt(14) * float(K.diagonal().max())
    got = subset_errors(model, X, y, known)
    assert got.mean == pytest.approx(at_a_point * float(residuals.norm()) * C * missed, rel=1e-6)
    assert got.deviation == pytest.approx(at_a_point * math.sqrt(C * missed), rel=1e-6)
    variance = K.diagonal() - (K * torch.linalg.solve(K + 0.05 * eye, K)).sum(0)
    assert got.smallest == pytest.approx(math.sqrt(float(variance.min())), rel=1e-6)
    whole = subset_errors(model, X, y, torch.arange(14, device=device))
    assert whole == SubsetErrors(0.0, 0.0, got.smallest)


def test_a_run_has_the_width_of_its_round_and_resumes(tmp_path):
    policy = BoTorchUCB(**SMALL, width=SrinivasCompact(), fitter=keep_parameters)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 6)
    assert [row.width for row in loop.history.rows] == pytest.approx(
        [SrinivasCompact().standard_deviations(confidence(n)) for n in (4, 5, 6)]
    )
    wide = AskTell(policy=BoTorchUCB(**SMALL, fitter=keep_parameters), bounds=box(), seed=0).run(bowl, 6).history
    assert loop.history.points != wide.points, "another width, other picks"

    def recorded(**options):
        return AskTell(policy=BoTorchUCB(**SMALL, width=SrinivasCompact()), bounds=box(), seed=0, **options)

    reference = recorded().run(bowl, 6).history.points
    with recorded(storage=tmp_path / "run.journal") as first:
        first.run(bowl, 5)
    with AskTell.resume(tmp_path / "run.journal") as again:
        assert again.run(bowl, 1).history.points == reference


def test_up_to_the_buffer_gssbos_width_is_gp_ucbs_and_beyond_it_says_what_it_loses():
    policy = GSSBO(**SMALL, buffer=6, width=GSSBOTheory(), fitter=keep_parameters)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 6)
    assert loop.history.rows[-1].width == pytest.approx(SrinivasCompact().standard_deviations(confidence(6)))
    with pytest.warns(NumericalWarning, match="explores nothing"):
        loop.run(bowl, 1)
    assert loop.history.rows[-1].width == 0.0


def test_widths_are_plain_data():
    for width in (SrinivasFinite(points=5), GSSBOTheory(form="printed")):
        assert rebuild(describe(width)) == width


def test_bad_settings():
    for make, message in [
        (lambda: SrinivasFinite(points=0), "points >= 1"),
        (lambda: SrinivasCompact(failure_probability=1.5), "failure_probability"),
        (lambda: SrinivasCompact(derivative_bound=0.01), "4 · derivative_bound"),
        (lambda: GSSBOTheory(form="both"), "'root', 'printed'"),
        (lambda: BoTorchUCB(width=0.0), "width > 0"),
    ]:
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(TypeError, match=r"standard deviations or a width such as SrinivasCompact\(\), got str"):
        BoTorchUCB(width="theory")
    with pytest.raises(TypeError, match="SrinivasCompact, got SrinivasFinite"):
        GSSBOTheory(surrogate=SrinivasFinite(points=3))
