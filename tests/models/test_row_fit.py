"""Hyper-parameters proposed by some rows, accepted by all; a posterior that knows all."""

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP, SingleTaskVariationalGP
from botorch.models.transforms import Normalize
from gpytorch.mlls import ExactMarginalLogLikelihood

from sparse_bo import SparseGP, gradient_subset
from sparse_bo.models import fit_to_rows

ROWS = torch.tensor([0, 3, 4, 7, 9, 11])


def _data(n=24, device="cpu"):
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device) * 4.0 - 1.0
    return X, X.sin().sum(-1, keepdim=True) * 7.0 + 3.0


def _model(X, Y, model=SingleTaskGP, lengthscale=0.4, **options):
    gp = model(X, Y, **{"input_transform": Normalize(X.shape[-1]), **options})
    return _set(gp, lengthscale)


def _set(gp, lengthscale):
    gp.covar_module.lengthscale = lengthscale
    gp.likelihood.noise = 0.01
    gp.mean_module.initialize(constant=0.3)
    return gp


def _log_density(gp, X, Y):
    """log p(y | θ) + log p(θ), dense, in the model's units."""
    gp.eval()
    with torch.no_grad():
        inputs, z = gp.transform_inputs(X), gp.outcome_transform(Y)[0].squeeze(-1)
        K_y = gp.covar_module(inputs).to_dense() + gp.likelihood.noise * torch.eye(len(X)).to(X)
        normal = torch.distributions.MultivariateNormal(gp.mean_module.constant.expand(len(X)), K_y)
        priors = [prior.log_prob(closure(part)).sum() for _, part, prior, closure, _ in gp.named_priors()]
        return float(normal.log_prob(z) + sum(priors))


def _dense_mean(gp, X, Y, test):
    gp.eval()
    with torch.no_grad():
        inputs, z = gp.transform_inputs(X), gp.outcome_transform(Y)[0].squeeze(-1) - gp.mean_module.constant
        K_y = gp.covar_module(inputs).to_dense() + gp.likelihood.noise * torch.eye(len(X)).to(X)
        K_s = gp.covar_module(gp.transform_inputs(test), inputs).to_dense()
        return gp.outcome_transform.untransform((gp.mean_module.constant + K_s @ torch.linalg.solve(K_y, z)).unsqueeze(-1))[0]


@pytest.mark.parametrize("model", [SingleTaskGP, SparseGP])
def test_the_fit_sees_the_rows_and_the_posterior_all_data(model, device):
    X, Y = _data(device=device)
    gp, test, seen = _model(X, Y, model), _data(5, device=device)[0] + 0.1, []

    def fit(gp):
        assert gp.training
        seen.append((gp.train_inputs[0].clone(), gp.train_targets.clone()))
        _set(gp, 0.7)

    targets = gp.train_targets.clone()
    assert fit_to_rows(gp, ROWS, fitter=fit)
    ((inputs, outputs),) = seen
    torch.testing.assert_close(inputs, X[ROWS.to(device)])
    torch.testing.assert_close(outputs, targets[ROWS.to(device)])  # in the units of all data
    assert not gp.training
    assert float(gp.covar_module.lengthscale.detach().max()) == pytest.approx(0.7)
    torch.testing.assert_close(gp.posterior(test).mean, _dense_mean(gp, X, Y, test))
    gp.train()
    torch.testing.assert_close(gp.train_inputs[0], X)
    torch.testing.assert_close(gp.train_targets, targets)


@pytest.mark.parametrize("model", [SingleTaskGP, SparseGP])
@pytest.mark.parametrize(("old", "new"), [(0.4, 0.05), (0.05, 0.4), (0.4, 0.3), (0.3, 0.4), (0.4, 3.0)])
def test_all_data_keep_the_likelier_hyper_parameters(model, old, new, device):
    X, Y = _data(device=device)
    previous = _model(X[:20], Y[:20], model, lengthscale=old)
    densities = {scale: _log_density(_model(X, Y, lengthscale=scale), X, Y) for scale in (old, new)}
    gp = _model(X, Y, model, lengthscale=1.0)
    accepted = fit_to_rows(gp, ROWS, fitter=lambda gp: _set(gp, new), previous=previous)
    assert accepted == (densities[new] > densities[old])
    assert float(gp.covar_module.lengthscale.detach().max()) == pytest.approx(new if accepted else old)


def test_rows_may_like_what_all_data_do_not(device):
    X, Y = _data(device=device)
    rows = ROWS.to(device)
    fitted = _model(X, Y)
    fit_to_rows(fitted, rows)
    alone = _model(X, Y, lengthscale=float(fitted.covar_module.lengthscale.detach().mean()))
    best = _model(X, Y)
    fit_to_rows(best, torch.arange(24, device=device))
    kept = _model(X, Y)
    assert not fit_to_rows(kept, rows, previous=best)
    assert _log_density(kept, X, Y) == pytest.approx(_log_density(best, X, Y))
    assert _log_density(alone, X, Y) < _log_density(best, X, Y)


def test_all_rows_are_the_plain_fit_and_nothing_is_drawn(device):
    from botorch.fit import fit_gpytorch_mll
    from gpytorch.mlls import ExactMarginalLogLikelihood

    X, Y = _data(device=device)
    state, plain, ours = torch.get_rng_state(), _model(X, Y), _model(X, Y)
    fit_to_rows(ours, torch.arange(24, device=device), previous=_model(X, Y))
    assert torch.equal(torch.get_rng_state(), state)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(plain.likelihood, plain))
    for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_loop_of_the_docstring(generator):
    X, Y = _data(30)
    last = _model(X[:29], Y[:29], SparseGP)
    rows = gradient_subset(last, X, Y, size=12, initial=4, generator=generator)
    model = SparseGP(X, Y, input_transform=Normalize(2))
    fit_to_rows(model, rows, previous=last)
    assert _log_density(model, X, Y) >= _log_density(_model(X, Y), X, Y) - 1e-6
    assert len(gradient_subset(model, X, Y, size=12, initial=4, generator=generator)) == 12


def test_bad_input():
    X, Y = _data()
    options = {"input_transform": Normalize(2)}
    with pytest.raises(TypeError, match="GP of BoTorch with exact inference, such as SingleTaskGP, got int"):
        fit_to_rows(3, ROWS)
    with pytest.raises(TypeError, match="exact inference, such as SingleTaskGP, got SingleTaskVariationalGP"):
        fit_to_rows(SingleTaskVariationalGP(X / 4.0 + 0.25, (Y - Y.mean()) / Y.std()), ROWS)
    with pytest.raises(ValueError, match="of one output without batch shape, got 2 outputs"):
        fit_to_rows(SingleTaskGP(X, torch.cat([Y, Y], -1), **options), ROWS)
    with pytest.raises(ValueError, match="rows"):
        fit_to_rows(_model(X, Y), torch.tensor([0, 24]))
    with pytest.raises(ValueError, match="at least one row, and distinct ones, got 2"):
        fit_to_rows(_model(X, Y), torch.tensor([3, 3]))
    with pytest.raises(ValueError, match="at least one row"):
        fit_to_rows(_model(X, Y), ROWS[:0])
    gp = _model(X, Y)
    with pytest.raises(ValueError, match=r"previous to have the parameters .* leave previous out"):
        fit_to_rows(gp, ROWS, previous=SingleTaskGP(X.new_zeros(4, 3), Y[:4]))
    assert float(gp.covar_module.lengthscale.detach().max()) == pytest.approx(0.4)


@pytest.mark.parametrize("model", [SingleTaskGP, SparseGP])
def test_a_fit_that_fails_leaves_the_model_its_data(model):
    X, Y = _data()
    gp, test = _model(X, Y, model), torch.rand(5, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = _dense_mean(gp, X, Y, test)

    def broken(proposed):
        raise RuntimeError(f"no fit to {len(proposed.train_targets)} rows")

    with pytest.raises(RuntimeError, match="no fit to 6 rows"):
        fit_to_rows(gp, ROWS, fitter=broken)
    assert len(gp.train_targets) == len(X)
    torch.testing.assert_close(gp.posterior(test).mean, expected)


@pytest.mark.filterwarnings("ignore:Data .* is not standardized:botorch.exceptions.InputDataWarning")
@pytest.mark.parametrize("model", [SingleTaskGP, SparseGP])
def test_known_noise_variances_are_those_of_the_rows(model):
    """GPyTorch takes noise variances of another number of points for none at all."""
    X, Y = _data()
    X, Y = X / 4.0 + 0.25, (Y - Y.mean()) / Y.std()
    Yvar = torch.linspace(0.01, 1.0, len(X), dtype=torch.float64).unsqueeze(-1)
    gp = model(X, Y, Yvar, outcome_transform=None)
    fit_to_rows(gp, ROWS)
    alone = model(X[ROWS], Y[ROWS], Yvar[ROWS], outcome_transform=None)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(alone.likelihood, alone))
    torch.testing.assert_close(gp.covar_module.lengthscale, alone.covar_module.lengthscale)
    assert torch.equal(gp.likelihood.noise, Yvar.squeeze(-1))
    fit_to_rows(gp, ROWS, previous=gp)


@pytest.mark.filterwarnings("ignore:The model inputs are of type torch.float32:botorch.exceptions.InputDataWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_one_row_copies_and_low_precision_are_enough(dtype):
    X, Y = (part.to(dtype) for part in _data())
    X, Y = X.repeat(2, 1), Y.repeat(2, 1)  # every input twice: a kernel matrix of half rank
    gp = _model(X, Y, SparseGP)
    assert fit_to_rows(gp, torch.tensor([3]))
    mean = gp.posterior(X).mean
    assert mean.dtype == dtype
    assert bool(mean.isfinite().all())
    torch.testing.assert_close(mean[:24], mean[24:])


@pytest.mark.parametrize("options", [{}, {"robust": True}], ids=["previous", "robust"])
def test_the_units_are_those_of_all_rows_in_a_fit_to_some(options):
    """Of a model that standardises anew, or leaves out rows, when it is fitted."""
    X = torch.rand(120, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = 100.0 + 10.0 * ((6.0 * X[:, :1]).sin() + X[:, 1:])
    Y, bad = truth.clone(), torch.tensor([3, 50, 90])
    if options:
        Y[bad] = 1e4
        model = SparseGP(X, Y, **options)
        fit_to_rows(model, torch.arange(60))
        assert torch.equal(model.outlying_rows, bad)
    else:
        old = SparseGP(X[:50], Y[:50])
        fit_to_rows(old, torch.arange(50))
        model = SparseGP(X, Y, previous=old)
        fit_to_rows(model, (Y.flatten() > 110.0).nonzero().squeeze(-1)[:30], previous=old)
    error = (model.posterior(X[::7]).mean - truth[::7]).abs().max().detach()
    assert float(error) < 2.0
