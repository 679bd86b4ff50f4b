"""Lengthscales by one factor from many data: where a parabola peaks, which way the data pull, and when nothing is touched."""

import math

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from gpytorch.kernels import RQKernel
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo.models import SparseGP
from sparse_bo.models.sparse_gp import calibration
from sparse_bo.models.sparse_gp.calibration import FARTHEST, STEP, calibrate, vertex


def made(outputs=1, **options):
    g = torch.Generator().manual_seed(0)
    X = torch.rand(200, 1, generator=g, dtype=torch.float64)
    Y = torch.sin(12 * X) * torch.ones(outputs).double() + 0.05 * torch.randn(200, outputs, generator=g, dtype=torch.float64)
    model = SparseGP(X, Y, **options)
    model.likelihood.noise = 0.01
    return model.eval()


def test_the_vertex_is_that_of_the_parabola_and_stays_near():
    def at(peak, bend):
        return vertex(*(torch.tensor(bend * (step - peak) ** 2).double() for step in (-STEP, 0.0, STEP)))

    assert float(at(0.03, -2.0)) == pytest.approx(0.03)
    assert float(at(5.0, -1e-3)) == pytest.approx(FARTHEST)
    assert float(at(-0.1, 1.0)) == pytest.approx(FARTHEST)  # it bends upwards: towards the higher side, as far as allowed


@pytest.mark.parametrize(("start", "shrinks"), [(0.6, True), (0.05, False)])
def test_the_factor_goes_where_the_likelihood_of_all_data_is_higher(start, shrinks, monkeypatch):
    monkeypatch.setattr(calibration, "POINTS", 40)
    model = made()
    model.covar_module.lengthscale = start
    factor = float(calibrate(model, seed=0))
    assert (factor < 1) == shrinks
    assert abs(math.log(factor)) <= FARTHEST + 1e-12
    assert model.covar_module.lengthscale.item() == pytest.approx(start * factor)


def test_outputs_have_their_own_factors(monkeypatch):
    monkeypatch.setattr(calibration, "POINTS", 40)
    model = made(outputs=2)
    model.covar_module.lengthscale = torch.tensor([0.6, 0.05], dtype=torch.float64).reshape(2, 1, 1)
    factors = calibrate(model, seed=0)
    assert factors[0] < 1 < factors[1]


def test_bounds_hold_and_what_is_not_open_stays():
    model = made()
    model.covar_module.lengthscale = 0.0251
    calibrate(model, seed=0)
    assert model.covar_module.lengthscale.item() >= 0.025
    model.covar_module.raw_lengthscale.requires_grad_(False)
    assert calibrate(model, seed=0) is None
    assert calibrate(made(covar_module=RQKernel().double()), seed=0) is None


@pytest.mark.parametrize(("fit", "n", "called"), [(None, 100, True), (None, 300, False), ("subset", 100, False)])
def test_it_is_the_default_from_many_points_on(fit, n, called, monkeypatch):
    calls = []
    monkeypatch.setattr(calibration, "CALIBRATED_FROM", n)
    monkeypatch.setattr(calibration, "calibrate", lambda model, seed: calls.append(model))
    model = made(fit=fit)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    assert calls == ([model] if called else [])
