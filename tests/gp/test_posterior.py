"""The posterior value, exact and DTC, against dense Gaussian conditioning and finite differences."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from sparse_bo.gp import dtc
from sparse_bo.gp.dtc import nystrom_factor
from sparse_bo.gp.hyperparameter_priors import Hyperparameters
from sparse_bo.gp.posterior import CholeskyRoot, MatrixRoot, Posterior, ProcessPrior, exact
from tests.builders import arms, waves
from tests.oracles import Gaussian, exact_gp, nystrom, rbf, tolerance

NOISE, SCALE, MEAN = 0.05, 2.0, 0.3
EXACT = 1e-8


@dataclass(frozen=True)
class RBF:
    """A Gaussian kernel of variance 1."""

    lengthscale: float = 0.4

    def cross(self, X: Tensor, Y: Tensor) -> Tensor:
        return rbf(X, Y, lengthscale=self.lengthscale)

    def diagonal(self, X: Tensor) -> Tensor:
        return torch.ones_like(X[..., 0])


PRIOR = ProcessPrior(MEAN, RBF(), SCALE)
INPUTS = ProcessPrior(lambda X: X[..., 0], RBF(), SCALE)


def sparse(prior: ProcessPrior, D: Tensor, X: Tensor, y: Tensor, *, noise: float, counts: Tensor | None = None) -> Posterior:
    """Return the DTC posterior over a dictionary, its root as one matrix."""
    factor = nystrom_factor(prior.kernel.cross(D, D))
    precision = torch.full_like(y, 1.0 / noise) if counts is None else counts / noise
    state = dtc.fit(factor, factor.features(prior.kernel.cross(D, X)), precision, precision * (y - prior.mean_at(X)))
    form = dtc.one_product(state)
    return Posterior(prior, D, form.alpha, MatrixRoot(form.root), noise)


def made(kind: str, X: Tensor, y: Tensor, *, prior: ProcessPrior = PRIOR, m: int = 6, noise: float = NOISE) -> Posterior:
    if kind == "exact":
        return exact(prior, X, y, noise=noise)
    return sparse(prior, X[:m], X, y, noise=noise)


def dense(
    kind: str, X: Tensor, y: Tensor, A: Tensor, *, m: int = 6, noise: float = NOISE, lengthscale: float = 0.4
) -> Gaussian:
    """Condition by dense algebra; DTC sees ``Q`` on the data."""
    k = lambda P, Q: rbf(P, Q, lengthscale=lengthscale, scale=SCALE)  # noqa: E731
    q = k if kind == "exact" else lambda P, Q: nystrom(k(X[:m], X[:m]), k(X[:m], P), k(X[:m], Q))
    return exact_gp(q(X, X), q(X, A), k(A, A), y, noise=noise * SCALE, prior_mean=MEAN)


KINDS = ("exact", "sparse")
every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
def test_it_is_the_dense_posterior(kind):
    X, A = arms(15), arms(8, seed=1)
    expected, posterior = dense(kind, X, waves(X), A), made(kind, X, waves(X))
    torch.testing.assert_close(posterior.mean(A), expected.mean, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(posterior.variance(A), expected.variance, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(posterior.moments(A).mean, expected.mean, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(posterior.covariance(A), expected.covariance, rtol=EXACT, atol=EXACT)


@every_kind
def test_gradients_are_finite_differences(kind):
    X, A, step = arms(15), arms(4, seed=1), 1e-6
    kernel = Hyperparameters("rbf", torch.full((2,), 0.4, dtype=torch.float64), NOISE, MEAN, SCALE, 0.0)
    posterior = made(kind, X, waves(X), prior=ProcessPrior(MEAN, kernel, SCALE)).condition(arms(2, seed=4))
    found = posterior.gradients(A)
    torch.testing.assert_close(found.mean, posterior.mean(A))
    torch.testing.assert_close(found.variance, posterior.variance(A))
    for j in range(2):
        move = step * torch.eye(2, dtype=torch.float64)[j]
        rise = (posterior.mean(A + move) - posterior.mean(A - move)) / (2 * step)
        torch.testing.assert_close(found.mean_gradient[:, j], rise, rtol=1e-6, atol=1e-7)
        rise = (posterior.variance(A + move) - posterior.variance(A - move)) / (2 * step)
        torch.testing.assert_close(found.variance_gradient[:, j], rise, rtol=1e-6, atol=1e-7)


@every_kind
def test_conditioning_is_that_of_the_joint_gaussian(kind):
    """Condition the process on one point, then on two that coincide, beside dense conditioning on the three together."""
    X, A, F = arms(15), arms(8, seed=1), arms(2, seed=2)[[0, 1, 1]]
    before = dense(kind, X, waves(X), torch.cat([F, A]))
    S = before.covariance
    gain = torch.linalg.solve(S[:3, :3] + SCALE * NOISE * torch.eye(3, dtype=torch.float64), S[:3, 3:]).T
    after = made(kind, X, waves(X)).condition(F[:1]).condition(F[1:])
    mean, covariance = after.moments(A).mean, after.covariance(A)
    torch.testing.assert_close(mean, before.mean[3:], rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(covariance, S[3:, 3:] - gain @ S[:3, 3:], rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(after.variance(A), covariance.diagonal(), rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(after.mean(A), mean, rtol=EXACT, atol=EXACT)


@every_kind
def test_moments_given_a_pending_point_are_those_of_conditioning(kind):
    X, A, x = arms(15), arms(8, seed=1), arms(1, seed=6)
    posterior = made(kind, X, waves(X))
    found = posterior.moments_given(A, posterior.moments(A), x, posterior.moments(x))
    after = posterior.condition(x)
    torch.testing.assert_close(found.mean, after.mean(A))
    torch.testing.assert_close(found.variance, after.variance(A))
    y = arms(1, seed=7)
    again = after.moments_given(A, found, y, after.moments(y))
    torch.testing.assert_close(again.variance, after.condition(y).variance(A))


def test_a_variance_that_round_off_makes_negative_is_the_floor():
    """A run in two inputs ended in an error: a point that 183 exact results determine had a variance of −5.5."""
    X = arms(8)
    posterior = exact(PRIOR, X, waves(X), noise=1e-12, floor=1e-12)
    wrong = replace(posterior, root=CholeskyRoot(0.9 * posterior.root.lower))
    assert float(wrong.covariance(X[:1])) < -0.1
    after = wrong.condition(X[:1]).condition(X[1:2])
    assert bool((after.moments(X).variance >= 0.0).all())


def test_without_points_it_is_the_prior():
    X, nothing = arms(3), torch.empty(0, dtype=torch.float64)
    for counts in (None, nothing):
        at = exact(PRIOR, X[:0], nothing, noise=NOISE, counts=counts).moments(X)
        torch.testing.assert_close(at.mean, torch.full_like(at.mean, MEAN))
        torch.testing.assert_close(at.variance, torch.full_like(at.mean, SCALE))


def test_the_noise_of_an_exact_posterior_is_a_bound_of_its_pivots():
    X = torch.tensor([[0.25], [0.25 + 1e-9], [0.25 - 1e-9], [0.75]], dtype=torch.float64)
    for noise in (1e-12, 1e-16):  # the second is below the round-off
        lower = exact(PRIOR, torch.cat([X, X]), torch.zeros(8, dtype=torch.float64), noise=noise).root.lower
        assert float(lower.diagonal().square().min()) >= 0.5 * noise


def test_conditioning_on_nothing_changes_nothing():
    X = arms(5)
    posterior = exact(PRIOR, X, waves(X), noise=NOISE)
    assert posterior.condition(X[:0]) is posterior


@pytest.mark.parametrize("m", [1, 15])
def test_a_dictionary_of_one_and_of_all_points(m):
    X, A = arms(15), arms(8, seed=1)
    expected, found = dense("sparse" if m == 1 else "exact", X, waves(X), A, m=m), made("sparse", X, waves(X), m=m)
    torch.testing.assert_close(found.mean(A), expected.mean, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(found.covariance(A), expected.covariance, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("kind", ["exact", "sparse"])
def test_repeats_are_one_row_with_a_count(kind):
    X, A = arms(9), arms(8, seed=1)
    P, y = torch.cat([X, X[:3]]), torch.cat([waves(X), waves(X[:3]) + 1.0])
    merged = waves(X) + torch.cat([torch.full((3,), 0.5), torch.zeros(6)])
    counts = torch.tensor([2.0] * 3 + [1.0] * 6)
    make = exact if kind == "exact" else lambda *a, **b: sparse(a[0], X[:4], *a[1:], **b)
    every, one = make(PRIOR, P, y, noise=NOISE), make(PRIOR, X, merged, noise=NOISE, counts=counts)
    torch.testing.assert_close(every.mean(A), one.mean(A), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(every.covariance(A), one.covariance(A), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "noise"), [*(("exact", noise) for noise in (1e-12, 1e-6, 1.0, 1e6)), ("sparse", 1.0), ("sparse", 1e6)]
)
def test_noise_of_any_size(kind, noise):
    """With tiny noise the variances of one product lose digits; :func:`sparse_bo.gp.dtc.variance` does not."""
    X, A, prior = arms(12), arms(5, seed=1), replace(PRIOR, kernel=RBF(0.1))
    posterior = made(kind, X, waves(X), prior=prior, m=12, noise=noise)
    expected = dense("exact", X, waves(X), A, noise=noise, lengthscale=0.1)
    torch.testing.assert_close(posterior.mean(A), expected.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(posterior.variance(A), expected.variance, rtol=1e-6, atol=1e-10)


def test_float32_agrees_to_its_precision():
    X, A = arms(15), arms(8, seed=1)
    for kind in ("exact", "sparse"):
        high, low = made(kind, X, waves(X)), made(kind, X.float(), waves(X).float())
        assert low.mean(A.float()).dtype == torch.float32
        bound = tolerance(torch.float32, condition=1.0 / NOISE)
        assert float((low.mean(A.float()) - high.mean(A)).abs().max()) < bound
        assert float((low.variance(A.float()) - high.variance(A)).abs().max()) < bound


def test_a_prior_mean_may_depend_on_the_input():
    X, F, A = arms(15), arms(2, seed=2), arms(8, seed=1)
    given = exact(INPUTS, X, waves(X), noise=NOISE).condition(F)
    shifted = exact(replace(PRIOR, mean=0.0), X, waves(X) - X[:, 0], noise=NOISE).condition(F)
    torch.testing.assert_close(given.mean(A), shifted.mean(A) + A[:, 0])
    torch.testing.assert_close(given.moments(A).mean, given.mean(A))


def test_variances_have_a_floor():
    X = arms(6)
    assert bool((exact(PRIOR, X, waves(X), noise=0.0, floor=1e-3).variance(X) == 1e-3 * SCALE).all())


@every_kind
def test_a_batch_of_posteriors_is_each_of_them(kind):
    X, A, F = arms(30).reshape(2, 15, 2), arms(16, seed=1).reshape(2, 8, 2), arms(4, seed=3).reshape(2, 2, 2)
    y = torch.stack([waves(part) for part in X])
    D = X[:, :6]
    together = exact(PRIOR, X, y, noise=NOISE) if kind == "exact" else sparse(PRIOR, D, X, y, noise=NOISE)
    found = together.condition(F)
    for b in range(2):
        alone = made(kind, X[b], y[b]).condition(F[b])
        torch.testing.assert_close(found.mean(A)[b], alone.mean(A[b]))
        torch.testing.assert_close(found.variance(A)[b], alone.variance(A[b]))
        torch.testing.assert_close(found.covariance(A)[b], alone.covariance(A[b]))


def test_points_do_not_see_their_companions():
    X, A = arms(15), arms(8, seed=1)
    for kind in KINDS:
        posterior = made(kind, X, waves(X))
        alone = torch.cat([posterior.variance(x.unsqueeze(0)) for x in A])
        torch.testing.assert_close(alone, posterior.variance(A))


def test_a_truncated_dictionary_is_conditioned_too():
    """A kernel matrix that is indefinite beyond round-off has a root without triangle."""
    X = arms(8)
    K = rbf(X, X)
    values, vectors = torch.linalg.eigh(K)
    K = vectors @ values.clone().index_fill_(0, torch.tensor([0]), -0.01).diag() @ vectors.T

    @dataclass(frozen=True)
    class Broken(RBF):
        def cross(self, X: Tensor, Y: Tensor) -> Tensor:
            return K if len(X) == len(Y) == 8 else rbf(X, Y)

    with pytest.warns(Warning, match="indefinite"):
        posterior = sparse(replace(PRIOR, kernel=Broken()), X, X[:5], waves(X[:5]), noise=NOISE)
    with pytest.warns(Warning, match="indefinite"):
        assert not nystrom_factor(K).triangular
    F, A = arms(2, seed=2), arms(3, seed=1)
    S = posterior.covariance(torch.cat([F, A]))
    expected = S[2:, 2:] - S[2:, :2] @ torch.linalg.solve(S[:2, :2] + NOISE * SCALE * torch.eye(2, dtype=S.dtype), S[:2, 2:])
    torch.testing.assert_close(posterior.condition(F).covariance(A), expected)


@pytest.mark.parametrize("p", [1, 3])
def test_points_that_the_data_determines_can_be_conditioned_on(p):
    """Their variances are differences of ones, and below their noise: rounding may make them negative."""
    X = torch.linspace(0.0, 1.0, 30, dtype=torch.float64).unsqueeze(-1)
    smooth = Hyperparameters("rbf", torch.tensor([20.0], dtype=torch.float64), 1e-16, 0.0, 1.0, 0.0)
    gp = exact(ProcessPrior(0.0, smooth, 1.0), X, X[:, 0], noise=1e-16, floor=1e-12)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        U = torch.rand(p, 1, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(gp.condition(U).mean(U), gp.mean(U))
