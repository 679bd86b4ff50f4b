"""One function from a model and data to indices, as a BoTorch user calls it."""

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel

from sparse_bo import SparseGP, gradient_subset
from sparse_bo.dictionary.diverse_samplers import gradient_columns, gradients
from sparse_bo.models.gradient_subset import _kernel_rows
from sparse_bo.models.sparse_gp.prior import kernel_matrix


def _data(n=14, d=2, seed=0, device="cpu"):
    X = torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device) * 4.0 - 1.0
    return X, (X.sin().sum(-1, keepdim=True) * 7.0 + 3.0)


def _model(X, Y, model=SingleTaskGP, **options):
    gp = model(X, Y, input_transform=Normalize(X.shape[-1]), **options)
    gp.covar_module.lengthscale = 0.4
    gp.likelihood.noise = 0.01
    gp.mean_module.initialize(constant=0.3)
    return gp


def _dense(model, X, Y):
    """K_y and y − μ in the model's own units, from its prior over all data."""
    model.eval()
    inputs = model.transform_inputs(X)
    prior = model.forward(inputs)
    K_y = prior.covariance_matrix + model.likelihood.noise * torch.eye(len(X), dtype=X.dtype, device=X.device)
    return K_y.detach(), (model.outcome_transform(Y)[0].squeeze(-1) - prior.mean).detach()


@pytest.mark.parametrize("model", [SingleTaskGP, SparseGP])
def test_the_literal_rule_when_the_model_knows_all_data(model, device):
    X, Y = _data(device=device)
    gp = _model(X, Y, model)
    K_y, _ = _dense(gp, X, Y)
    columns = torch.linalg.inv(K_y)
    columns = columns / columns.norm(dim=-1, keepdim=True)
    chosen = [0, 1, 2, 13]
    while len(chosen) < 8:
        rest = [j for j in range(14) if j not in chosen]
        chosen.append(min(rest, key=lambda j: sum(float(columns[j] @ columns[i]) for i in chosen)))
    got = gradient_subset(gp, X, Y, size=8, initial=3, perturbation=0.0, gradient="column")
    assert got.tolist() == sorted(chosen)


def test_woodbury_on_the_last_subset_is_the_rule_with_its_low_rank_kernel(device):
    X, Y = _data(device=device)
    gp = _model(X[:6], Y[:6])
    inputs = gp.eval().transform_inputs(X)
    D = torch.cat([inputs[:6], inputs[13:]])
    K_DX = gp.covar_module(D, inputs).to_dense().detach()
    Q = K_DX.mT @ torch.linalg.solve(gp.covar_module(D).to_dense().detach(), K_DX)
    columns = torch.linalg.inv(Q + 0.01 * torch.eye(14, dtype=X.dtype, device=device))
    columns = columns / columns.norm(dim=-1, keepdim=True)
    chosen = [0, 1, 13]
    while len(chosen) < 7:
        rest = [j for j in range(14) if j not in chosen]
        chosen.append(min(rest, key=lambda j: sum(float(columns[j] @ columns[i]) for i in chosen)))
    assert gradient_subset(gp, X, Y, size=7, initial=2, perturbation=0.0, gradient="column").tolist() == sorted(chosen)


def test_a_sparse_model_ranks_by_its_dictionary(device):
    X, Y = _data(device=device)
    rows = torch.tensor([0, 2, 3, 5, 8], device=device)
    whole, few = _model(X, Y, SparseGP, dictionary=rows), _model(X[rows], Y[rows])
    few.input_transform = whole.input_transform
    assert (
        gradient_subset(whole, X, Y, size=7, perturbation=0.0, gradient="column").tolist()
        == gradient_subset(few, X, Y, size=7, perturbation=0.0, gradient="column").tolist()
    )


def test_scalar_gradients_are_balanced_in_the_models_units(device, generator):
    X, Y = _data(n=20, device=device)
    gp = _model(X, Y)
    K_y, residuals = _dense(gp, X, Y)
    signs = -torch.linalg.solve(K_y, residuals).sign()
    got = gradient_subset(gp, X, Y, size=10, initial=2, gradient="scalar", perturbation=0.0, generator=generator)
    free = [i for i in range(20) if i not in (0, 1, 19)]
    total = float(signs[[0, 1, 19]].sum())
    plus = int((signs[free] > 0).sum())
    best = min(abs(total + 2 * p - 7) for p in range(max(0, 7 - (17 - plus)), min(7, plus) + 1))
    assert abs(float(signs[got].sum())) == best


def test_a_pool_is_exact_over_its_rows_alone(device):
    X, Y = _data(device=device)
    pool = torch.tensor([0, 2, 3, 5, 7, 11, 13], device=device)
    gp = _model(X[:6], Y[:6])
    got = gradient_subset(gp, X, Y, size=5, initial=1, pool=pool, perturbation=0.0, gradient="column")
    assert set(got.tolist()) <= set(pool.tolist())
    # the same as the rule on these rows, under a model that knows them all, with the hyper-parameters of gp
    full = _model(X[pool], Y[pool])
    full.input_transform = gp.input_transform
    alone = gradient_subset(full, X[pool], Y[pool], size=5, initial=1, perturbation=0.0, gradient="column")
    assert got.tolist() == pool[alone].tolist()


@pytest.mark.parametrize("gradient", ["column", "scalar"])
def test_kept_rows_are_in_and_draws_decide_the_rest(gradient, device):
    X, Y = _data(n=40, device=device)
    gp = _model(X[:20], Y[:20])

    def subset(seed):
        generator = torch.Generator().manual_seed(seed)
        return gradient_subset(
            gp, X, Y, size=15, initial=5, newest=3, gradient=gradient, perturbation=1e4, generator=generator
        ).tolist()

    first = subset(0)
    assert first == sorted(set(first))
    assert len(first) == 15
    assert {0, 1, 2, 3, 4, 37, 38, 39} <= set(first)
    assert first == subset(0)
    assert first != subset(1)


def test_scaling_the_outputs_changes_nothing(device):
    X, Y = _data(device=device)
    one, other = _model(X, Y), _model(X, 1000.0 * Y - 5.0)
    for gradient in ("nystrom", "scalar", "column"):
        options = {"size": 8, "perturbation": 0.01, "gradient": gradient}
        first = gradient_subset(one, X, Y, **options, generator=torch.Generator().manual_seed(0))
        second = gradient_subset(other, X, 1000.0 * Y - 5.0, **options, generator=torch.Generator().manual_seed(0))
        assert first.tolist() == second.tolist()


def test_repeated_observations_are_no_trouble(device):
    X, Y = _data(device=device)
    X, Y = X.repeat(3, 1), Y.repeat(3, 1)
    got = gradient_subset(_model(X[:20], Y[:20]), X, Y, size=16, perturbation=0.0, gradient="column")
    assert len(set(got.tolist())) == 16


def test_few_observations_are_all_chosen():
    X, Y = _data(n=5)
    got = gradient_subset(_model(X, Y), X, Y.squeeze(-1), size=9)
    assert got.tolist() == [0, 1, 2, 3, 4]


def test_bad_input(generator):
    X, Y = _data()
    gp = _model(X, Y)

    def choose(**changes):
        arguments = {
            "model": gp,
            "X": X,
            "Y": Y,
            "size": 8,
            "initial": 2,
            "generator": generator,
            "gradient": "column",
        } | changes
        return gradient_subset(arguments.pop("model"), arguments.pop("X"), arguments.pop("Y"), **arguments)

    for changes, message in [
        ({"size": 2}, "above initial .M > n₀. that also holds the newest, got 2 for 2 initial and 1 newest"),
        ({"size": 3, "newest": 2}, "raise size or lower initial"),
        ({"newest": 15}, "newest <= the number of observations"),
        ({"gradient": "row"}, "'column', 'scalar'"),
        ({"perturbation": -0.1}, "perturbation >= 0"),
        ({"generator": None}, "pass one"),
        ({"Y": Y[:-1]}, "Y of shape 14 x 1"),
        ({"Y": torch.full_like(Y, torch.nan)}, "finite Y"),
        ({"pool": torch.tensor([0, 1, 13])}, "pool of at least size=8 rows, got 3"),
        ({"pool": torch.arange(10)}, r"it lacks \[13\]"),
        ({"pool": torch.zeros(9, dtype=torch.long)}, "distinct rows in pool"),
        (
            {"model": SingleTaskGP(X, Y.repeat(1, 2), input_transform=Normalize(2))},
            "one output without batch shape, got 2 outputs",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            choose(**changes)
    for changes, message in [
        ({"model": torch.nn.Linear(2, 1)}, "SingleTaskGP, got Linear without covar_module"),
        ({"model": SingleTaskGP(X, Y, torch.full_like(Y, 0.1), input_transform=Normalize(2))}, "train_Yvar"),
        ({"Y": Y.float()}, "Y of dtype torch.float64"),
        ({"size": 8.0}, "size to be an integer"),
    ]:
        with pytest.raises(TypeError, match=message):
            choose(**changes)


def test_the_dense_oracle_sees_a_wrong_formula():
    # The same comparison fails for columns of K instead of K⁻¹: the tests above can tell the difference.
    X, Y = _data()
    K_y, residuals = _dense(_model(X, Y), X, Y)
    Z = torch.linalg.cholesky(K_y - 0.01 * torch.eye(14, dtype=X.dtype))
    right = gradients(Z, noise=0.01, residuals=residuals)
    torch.testing.assert_close(right, -torch.linalg.solve(K_y, residuals), rtol=1e-6, atol=1e-6)
    wrong = K_y / K_y.norm(dim=-1, keepdim=True)
    cosines = gradient_columns(Z, noise=0.01, perturbation=torch.zeros_like(Z)).cosines(torch.arange(14))
    assert float((cosines - wrong @ wrong.mT).abs().max()) > 0.1


@pytest.mark.parametrize("initial", [0, 3])
@pytest.mark.parametrize("model", [SingleTaskGP, SparseGP])
def test_the_nystrom_choice_is_the_greedy_one_by_prior_variance(model, initial, device):
    X, Y = _data(device=device)
    gp = _model(X[:6], Y[:6], model)
    K = gp.covar_module(gp.eval().transform_inputs(X)).to_dense().detach()
    chosen = [*range(initial), 13]
    while len(chosen) < 8:
        K_CC, K_CX = K[chosen][:, chosen], K[chosen]
        variances = K.diagonal() - (K_CX * torch.linalg.solve(K_CC, K_CX)).sum(dim=0)
        variances[chosen] = -1.0
        chosen.append(int(variances.argmax()))
    assert gradient_subset(gp, X, Y, size=8, initial=initial, gradient="nystrom").tolist() == sorted(chosen)


def test_where_nothing_is_left_to_explain_the_newest_rows_fill_the_subset(device):
    X, Y = _data(n=5, device=device)
    rows = torch.tensor([0, 1, 2, 3, 4, 0, 1, 2, 3, 4], device=device)
    gp = _model(X, Y)
    assert gradient_subset(gp, X[rows], Y[rows], size=8, initial=2, gradient="nystrom").tolist() == [0, 1, 2, 3, 6, 7, 8, 9]


@pytest.mark.parametrize("gradient", ["column", "scalar", "nystrom"])
def test_a_subset_of_the_kept_rows_alone(gradient):
    X, Y = _data()
    got = gradient_subset(_model(X, Y), X, Y, size=5, initial=3, newest=2, gradient=gradient, perturbation=0.0)
    assert got.tolist() == [0, 1, 2, 12, 13]


def test_among_equal_signs_the_oldest_stay(device):
    """Eq. 3's cosines are ±1: beyond the balance of signs the paper leaves the choice open."""
    X, Y = _data(n=20, device=device)
    gp = _model(X, Y)
    K_y, residuals = _dense(gp, X, Y)
    signs = -torch.linalg.solve(K_y, residuals).sign()
    got = gradient_subset(gp, X, Y, size=10, gradient="scalar", perturbation=0.0)
    for sign in (-1.0, 1.0):
        free = [i for i in range(19) if float(signs[i]) == sign]
        count = len([i for i in got.tolist() if i in free])
        assert [i for i in got.tolist() if i in free] == free[:count]


@pytest.mark.parametrize("inner", [RBFKernel, MaternKernel, RQKernel])
def test_rows_of_the_kernel_are_gpytorchs(inner, device):
    kernel = ScaleKernel(inner(ard_num_dims=2)).to(device, torch.float64)
    kernel.outputscale, kernel.base_kernel.lengthscale = 3.0, torch.tensor([0.4, 0.9], device=device)
    X, rows = _data(device=device)[0], torch.tensor([3, 7], device=device)
    torch.testing.assert_close(_kernel_rows(kernel, X)(rows), kernel_matrix(kernel, X[rows], X))
