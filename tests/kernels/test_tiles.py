"""Kernel matrices without GPyTorch: the same values, whatever the inputs, the tiles and the memory they are written to."""

import math

import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel

from sparse_bo.kernels import covariance_function
from sparse_bo.kernels.closed_forms import COEFFICIENTS, apply_profile, reach
from sparse_bo.kernels.tiles import TOLERANCES, Differences, Expansion, distances
from tests.kernels.builders import NAMES, by_gpytorch, covariance_of, exact, kernels, set_to


def inputs(n: int, d: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def arms_and_some(d: int, m: int = 20, n: int = 90, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Arms, and some of them with a near copy of each: what a dictionary and its arms look like at their closest."""
    Y = inputs(n, d, dtype=dtype)
    Y[m : 2 * m] = Y[:m] * (1.0 + 1e-7)
    return Y[:m].clone(), Y


@pytest.mark.parametrize("d", [1, 3, 16])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_those_of_gpytorch(name, d):
    X, Y = inputs(20, d), inputs(90, d, seed=1)
    covariance = covariance_of(name, like=Y, lengthscale=0.4 * math.sqrt(d))
    expected = by_gpytorch(covariance).cross(X, Y)
    # GPyTorch's distances come from expanded squares: that of two close points is wrong by 1e-8, of which Matérn-1/2 shows all.
    tolerance = 1e-12 if "matern12" not in name and name != "chosen inputs" else 1e-10
    torch.testing.assert_close(covariance.cross(X, Y), expected, rtol=0, atol=tolerance)
    torch.testing.assert_close(covariance.diagonal(Y), by_gpytorch(covariance).diagonal(Y), rtol=0, atol=1e-14)


@pytest.mark.sampled(64)
@pytest.mark.parametrize("m", [1, 7, 8, 20])
@pytest.mark.parametrize("lengthscale", [2.0, 0.3, 0.05, 0.005])
@pytest.mark.parametrize("name", NAMES)
def test_values_are_right_where_inputs_are_equal_near_and_many_lengthscales_apart(name, lengthscale, m):
    X, Y = arms_and_some(2, m)
    covariance = covariance_of(name, like=Y, lengthscale=lengthscale)
    expected = exact(covariance.structure, X, Y)
    torch.testing.assert_close(covariance.cross(X, Y), expected, rtol=0, atol=2e-12)


@pytest.mark.parametrize("offset", [1e3, 1e6])
@pytest.mark.parametrize("name", ["rbf", "matern12 ard", "matern52", "scaled matern52 ard"])
@pytest.mark.parametrize("m", [3, 20])
def test_inputs_may_lie_far_from_zero(name, offset, m):
    X, Y = (Z + offset for Z in arms_and_some(3, m))
    covariance = covariance_of(name, like=Y, lengthscale=0.5)
    torch.testing.assert_close(covariance.cross(X, Y), exact(covariance.structure, X, Y), rtol=0, atol=2e-12)


@pytest.mark.parametrize("lengthscale", [0.5, 0.02])
@pytest.mark.parametrize("name", NAMES)
def test_float32(name, lengthscale):
    X, Y = arms_and_some(3, dtype=torch.float32)
    covariance = covariance_function(set_to(kernels(3)[name], lengthscale=lengthscale), like=Y)
    got = covariance.cross(X, Y)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), exact(covariance.structure, X, Y), rtol=0, atol=2e-5)


def products_depend_on_their_width(m, n):
    """Return whether BLAS, on this processor, computes ``m x 5`` by ``5 x n`` otherwise than some columns of it."""
    left, right = inputs(m, 5), inputs(n + 1, 5, seed=1).T.contiguous()
    parts = [left @ right[:, start : min(start + 7, n)] for start in range(0, n, 7)]
    return not torch.equal(torch.cat(parts, dim=1), left @ right[:, :n])


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("m", "n"), [(8, 1), (20, 2), (600, 30), (3, 500), (8, 9000)])
def test_a_value_does_not_depend_on_who_is_evaluated_with_it(name, m, n):
    X, Y = inputs(m, 3), inputs(n, 3, seed=1)
    covariance = covariance_of(name, like=X, lengthscale=0.3)
    whole = covariance.cross(X, Y)
    by_columns = torch.cat([covariance.cross(X, part) for part in Y.split(max(7, n // 12))], dim=1)
    torch.testing.assert_close(by_columns, whole, rtol=0, atol=1e-14)
    if n <= 500 and not products_depend_on_their_width(m, n):
        assert torch.equal(by_columns, whole)  # bit for bit: the other side of every chunk is the same
    by_rows = torch.cat([covariance.cross(part, Y) for part in X.split(150)])
    torch.testing.assert_close(by_rows, whole, rtol=0, atol=1e-12)
    few = covariance.cross(X[:3], Y)
    torch.testing.assert_close(few, whole[:3], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["rbf", "matern12", "nested"])
def test_the_result_is_written_where_it_is_kept(name):
    X, Y = inputs(12, 3), inputs(50, 3, seed=1)
    covariance = covariance_of(name, like=X, lengthscale=0.3)
    expected = covariance.cross(X, Y)
    kept = torch.full((20, 2, 60), 7.0, dtype=torch.float64)
    given = kept[3:15, 1, 5:55]
    assert covariance.cross(X, Y, out=given) is given
    assert torch.equal(given, expected)
    given.fill_(7.0)
    assert bool((kept == 7.0).all())
    turned = torch.empty(50, 12, dtype=torch.float64).T
    assert torch.equal(covariance.cross(X, Y, out=turned), expected)


def test_kernels_that_gpytorch_evaluates_are_written_there_too():
    X = inputs(5, 3)
    covariance = covariance_function(LinearKernel().double(), like=X)
    assert covariance.structure is None
    out = torch.empty(5, 5, dtype=torch.float64)
    assert covariance.cross(X, X, out=out) is out
    torch.testing.assert_close(out, by_gpytorch(covariance).cross(X, X))


@pytest.mark.parametrize(("m", "n"), [(0, 5), (5, 0), (0, 0), (9, 0)])
def test_nothing_to_evaluate(m, n):
    X = inputs(10, 2)
    covariance = covariance_of("sum", like=X, lengthscale=0.3)
    assert covariance.cross(X[:m], X[:n]).shape == (m, n)
    assert covariance.diagonal(X[:n]).shape == (n,)


def test_batches_of_inputs_and_other_precisions_are_gpytorchs():
    X = inputs(10, 2)
    covariance = covariance_of("rbf", like=X, lengthscale=0.3)
    batched = covariance.cross(X.view(2, 5, 2), X)
    assert batched.shape == (2, 5, 10)
    torch.testing.assert_close(batched[1], covariance.cross(X[5:], X), rtol=0, atol=1e-12)
    assert covariance.diagonal(X.view(2, 5, 2)).shape == (2, 5)
    mixed = covariance.cross(X.float(), X)
    torch.testing.assert_close(mixed, covariance.cross(X.float().double(), X), rtol=0, atol=1e-6)


def test_inputs_with_a_gradient_give_values_without():
    X = inputs(10, 2).requires_grad_(True)
    assert not covariance_of("matern12", like=X.detach(), lengthscale=0.3).cross(X, X).requires_grad


def test_inputs_that_are_not_finite_give_nan_as_in_gpytorch():
    X, Y = inputs(10, 2), inputs(12, 2, seed=1)
    X[0], Y[3] = math.nan, math.inf
    for name in ("rbf", "matern12", "matern52"):
        covariance = covariance_of(name, like=X[1:], lengthscale=0.3)
        assert bool(covariance.cross(X, Y)[0].isnan().all())
        rest = torch.cat([Y[:3], Y[4:]])
        assert bool(covariance.cross(X[1:], rest).isfinite().all())


@pytest.mark.parametrize(
    ("name", "lengthscale", "m", "kind"),
    [
        ("rbf", 0.5, 20, Expansion),
        ("rbf", 0.5, 7, Differences),
        ("matern12", 0.5, 20, Expansion),
        ("matern12", 0.005, 20, Differences),
        ("matern52", 0.005, 20, Expansion),
    ],
)
def test_how_distances_are_computed(name, lengthscale, m, kind):
    X, _ = arms_and_some(2, m)
    leaf = covariance_of(name, like=X, lengthscale=lengthscale).structure
    assert type(distances(leaf, X)) is kind


@pytest.mark.parametrize("error", [1e-15, 1e-12, 1e-9, 1e-3])
@pytest.mark.parametrize("profile", COEFFICIENTS)
def test_beyond_its_reach_an_error_does_not_show(profile, error):
    tolerance = TOLERANCES[torch.float64]
    near = reach(profile, error, tolerance)
    squares = near + torch.logspace(-14, 3, 400, dtype=torch.float64)

    def value(r2: torch.Tensor) -> torch.Tensor:
        q = (r2 * COEFFICIENTS[profile]).unsqueeze(0)
        out = torch.empty_like(q)
        apply_profile(profile, q, torch.empty_like(q), out)
        return out

    up = (value(squares + error) - value(squares)).abs()
    down = (value(squares) - value((squares - error).clamp_min(0.0))).abs()
    changed = torch.maximum(up, down)
    inside = squares > max(near, 2.0 * error)
    assert float(changed[0, inside].max()) <= 1.05 * tolerance + 1e-15


def test_memory_is_that_of_a_tile(monkeypatch):
    """Two buffers of a tile, the other side prepared; not a block of the size of the result."""
    sizes: list[int] = []
    real = torch.Tensor.new_empty

    def counted(self: torch.Tensor, *shape: object, **options: object) -> torch.Tensor:
        made = real(self, *shape, **options)
        sizes.append(made.numel())
        return made

    X, Y = inputs(40, 2), inputs(9000, 2, seed=1)
    covariance = covariance_of("matern52", like=X, lengthscale=0.3)
    out = torch.empty(40, 9000, dtype=torch.float64)
    monkeypatch.setattr(torch.Tensor, "new_empty", counted)
    covariance.cross(X, Y, out=out)
    assert sizes
    assert sum(sizes) < out.numel()


def test_one_kernel_of_one_input_is_exact_at_zero_distance():
    X = inputs(9, 1)
    covariance = covariance_of("matern12", like=X, lengthscale=1e-3)
    assert torch.equal(covariance.cross(X, X).diagonal(), torch.ones(9, dtype=torch.float64))
    assert isinstance(covariance.kernel, MaternKernel)
