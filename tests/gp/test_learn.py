"""Learning hyper-parameters: the optimum against a dense posterior, families by evidence, units, repeats, failures."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import Tensor

from sparse_bo.gp.hyperparameter_priors import ADDITIVE, Hyperparameters, Priors
from sparse_bo.gp.learn import FAMILIES, PRIORS, Given, LogPosterior, learn
from sparse_bo.gp.likelihood import Scatter, correlation_of
from sparse_bo.kernels.gradients import pairs
from tests.builders import arms, waves

EVERY = [*FAMILIES, ADDITIVE]


def data(n=25, d=3, noise_sd=0.1):
    X = arms(n, d)
    y = waves(X) + noise_sd * torch.randn(n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return X, (y - y.mean()) / y.std()


def repeated(d: int):
    """Means and scatter of 12 inputs with up to five observations each, and every observation."""
    X, _ = data(12, d)
    rows = torch.arange(12).repeat_interleave(torch.arange(12) % 5 + 1)
    y = waves(X)[rows] + 0.3 * torch.randn(len(rows), generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    y = (y - y.mean()) / y.std()
    counts = torch.bincount(rows).double()
    means = torch.zeros(12, dtype=torch.float64).index_add(0, rows, y) / counts
    return X, means, Scatter.of(counts, float((y - means[rows]).square().sum())), rows, y


def log_joint(h: Hyperparameters, X: Tensor, rows: Tensor, y: Tensor, priors: Priors, *, noise: bool = True) -> float:
    """Log density of observations and hyper-parameters by dense algebra over all observations, up to constants."""
    d = X.shape[1]
    R = h.cross(X, X)[rows][:, rows] + h.noise * torch.eye(len(y), dtype=torch.float64)
    value = torch.distributions.MultivariateNormal(torch.full_like(y, h.mean), h.scale * R).log_prob(y)
    value = (
        value - priors.scale_shape * (math.log(h.scale) + 1.0 / h.scale) - 0.5 * h.mean**2 / (h.scale * priors.mean_variance)
    )
    if priors.scale_sd is not None:
        value = value - 0.5 * (math.log(h.scale) / priors.scale_sd) ** 2
    if noise:
        value = value - 0.5 * ((math.log(h.noise) - math.log(priors.noise)) / priors.noise_sd) ** 2

    def normal(away: Tensor, sd: float, common_sd: float) -> Tensor:
        covariance = sd**2 * torch.eye(d, dtype=torch.float64) + common_sd**2
        return -0.5 * away @ torch.linalg.solve(covariance, away)

    median = math.log(priors.lengthscale * math.sqrt(d))
    value = value + normal(h.lengthscales.log() - median, priors.lengthscale_sd, priors.common_lengthscale_sd)
    if h.additive:
        value = value + normal(h.alone.log() - math.log(priors.alone), priors.lengthscale_sd, priors.common_alone_sd)
        shares = (h.shares / h.rest).log() + math.log(d)
        value = value + normal(shares, priors.share_sd, priors.common_share_sd) - priors.complexity * d
    return float(value)


@pytest.mark.parametrize("scale", [{"scale_shape": 2.0}, {"scale_shape": 0.0, "scale_sd": 0.5}], ids=["gamma", "normal"])
@pytest.mark.parametrize("family", EVERY)
def test_the_result_is_the_maximum_of_the_dense_posterior_of_all_observations(family, scale):
    """Its evidence is that density, and no step of any hyper-parameter in either direction is better."""
    X, means, scatter, rows, y = repeated(2)
    priors = Priors(**scale, noise=0.01, noise_sd=2.0)
    best = learn(X, means, scatter=scatter, families=[family], priors=priors, max_steps=300)
    top = log_joint(best, X, rows, y, priors)
    assert best.evidence == pytest.approx(top, abs=1e-8)
    for factor in (math.exp(-0.1), math.exp(0.1)):
        others = [replace(best, noise=best.noise * factor), replace(best, scale=best.scale * factor)]
        others.append(replace(best, mean=best.mean + factor - 1.0))
        for j in range(2):
            step = torch.ones(2, dtype=torch.float64)
            step[j] = factor
            others.append(replace(best, lengthscales=best.lengthscales * step))
            if best.additive:
                others.append(replace(best, alone=best.alone * step))
        assert max(log_joint(other, X, rows, y, priors) for other in others) < top + 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_repeats_teach_what_every_observation_does(family):
    """Repeated rows and their means with scatter are the same data."""
    X, means, scatter, rows, y = repeated(2)
    merged = learn(X, means, scatter=scatter, families=[family], max_steps=200)
    each = learn(X[rows], y, families=[family], max_steps=200)
    assert merged.evidence == pytest.approx(each.evidence, abs=1e-4)
    assert merged.noise == pytest.approx(each.noise, rel=0.05)


@pytest.mark.parametrize("family", EVERY)
def test_given_hyperparameters_stay_and_the_others_are_at_their_optimum(family):
    X, means, scatter, rows, y = repeated(2)
    noise = learn(X, means, scatter=scatter, families=[family], given=Given(noise=0.2), max_steps=300)
    assert noise.noise * noise.scale == pytest.approx(0.2)
    top = log_joint(noise, X, rows, y, PRIORS, noise=False)
    for factor in (math.exp(-0.1), math.exp(0.1)):
        other = replace(noise, scale=noise.scale * factor, noise=noise.noise / factor)
        assert log_joint(other, X, rows, y, PRIORS, noise=False) < top + 1e-3
    assert learn(X, means, scatter=scatter, families=[family], given=Given(mean=0.25)).mean == 0.25
    R = torch.from_numpy(correlation_of(np.zeros(2), X.numpy(), family="rbf").value)
    fixed = learn(X, means, scatter=scatter, families=[family], given=Given(correlation=R))
    assert not len(fixed.lengthscales)
    assert fixed.noise * fixed.scale == pytest.approx(scatter.squares / scatter.repeats, rel=0.5)


def test_the_family_is_that_of_the_highest_evidence():
    X, _ = data(100)
    product = torch.sin(6.0 * X[:, 0]) * torch.sin(6.0 * X[:, 1])
    kinked = (X - 0.4).abs().sum(dim=-1)
    for y, family in ((product, "rbf"), (kinked, "matern52")):
        y = (y - y.mean()) / y.std()
        found = learn(X, y, families=EVERY if family == "rbf" else FAMILIES)
        each = [learn(X, y, families=[name]).evidence for name in FAMILIES]
        assert found.family == family
        assert found.evidence == max(each)


@pytest.mark.parametrize("families", [FAMILIES, FAMILIES[::-1]])
def test_of_families_with_equal_evidence_the_first_is_chosen(families):
    """One observation has no correlations."""
    X = arms(1, 3)
    assert learn(X, X.new_zeros(1), families=families).family == families[0]


def test_noise_and_the_inputs_that_matter_are_found():
    g = torch.Generator().manual_seed(0)
    X = torch.rand(150, 3, generator=g, dtype=torch.float64)
    y = torch.sin(6.0 * X[:, 0]) + 0.2 * torch.randn(150, generator=g, dtype=torch.float64)
    t = (y - y.mean()) / y.std()
    learned = learn(X, t, families=["rbf"], max_steps=100)
    assert math.sqrt(learned.noise * learned.scale) * float(y.std()) == pytest.approx(0.2, rel=0.2)
    assert float(learned.lengthscales[1:].min()) > 3.0 * float(learned.lengthscales[0])
    warm = learn(X, t, families=["rbf"], start=learned, max_steps=100)
    assert warm.evidence == pytest.approx(learned.evidence, abs=0.01)


def test_few_observations_do_not_single_out_inputs_and_many_do():
    g = torch.Generator().manual_seed(1)
    X = torch.rand(300, 10, generator=g, dtype=torch.float64)
    y = torch.sin(3.0 * X[:, :2]).sum(dim=-1)
    ratios = []
    for n in (12, 300):
        t = (y[:n] - y[:n].mean()) / y[:n].std()
        ell = learn(X[:n], t, families=["rbf"]).lengthscales
        ratios.append(float(ell[2:].log().mean().exp() / ell[:2].log().mean().exp()))
    assert ratios[0] < 6.0 < ratios[1]


@pytest.mark.parametrize("n", [1, 2, 40])
def test_equal_points_and_constant_outputs_can_be_learned_from(n):
    X = torch.full((n, 2), 0.5, dtype=torch.float64)
    learned = learn(X, X.new_zeros(n), families=["matern52"], max_steps=20)
    assert math.isfinite(learned.evidence)
    assert learned.mean == pytest.approx(0.0)


def test_a_start_with_a_singular_covariance_ends_with_noise():
    X = torch.full((60, 2), 0.5, dtype=torch.float64)
    y = torch.randn(60, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    start = Hyperparameters("rbf", X.new_full((2,), 1e3), 1e-18, 0.0, 1.0, 0.0)
    assert learn(X, y, families=["rbf"], start=start, max_steps=30).noise > 1e-3


@pytest.mark.parametrize("family", EVERY)
def test_a_search_that_starts_anew_leaves_an_optimum_without_correlations(family):
    X, y = data(n=40, d=2, noise_sd=0.5)
    nothing = Hyperparameters(family, torch.full((2,), 5e-3, dtype=torch.float64), 1e-6, 0.0, 1.0, 0.0)
    if family == ADDITIVE:
        nothing = replace(nothing, alone=nothing.lengthscales, shares=torch.full((2,), 1 / 3, dtype=torch.float64))
    stuck, again = (learn(X, y, families=[family], start=nothing, restart=restart) for restart in (False, True))
    assert again.evidence > stuck.evidence + 5.0
    assert float(again.reach.min()) > 0.3
    assert learn(X, y, families=[family]).evidence > stuck.evidence + 5.0


def test_what_is_learned_does_not_depend_on_the_threads_of_blas():
    X, y = data(300, 4, noise_sd=0.1)
    one, two = ([], [])
    for found, threads in ((one, 1), (two, 2)):
        with threadpool_limits(threads, user_api="blas"):
            learned = learn(X, y, max_steps=3)
            found += [learned.mean, learned.scale, learned.noise, learned.evidence, *learned.lengthscales.tolist()]
            assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {threads}
    assert one == two


def test_equal_inputs_without_noise_are_learned_from_with_a_jitter():
    X, y = data(20)
    X, y = torch.cat([X, X]), torch.cat([y, y])
    density = LogPosterior(X.numpy(), y.numpy(), None, "rbf", PRIORS, Given(), None)
    value, gradient = density(np.log([0.5, 0.5, 1e-18]))
    assert math.isfinite(value)
    assert np.isfinite(gradient).all()
    one = learn(X[:1].float(), y[:1].float() - y[0])
    assert math.isfinite(one.evidence)
    with pytest.raises(ValueError, match="expected a finite matrix"):
        LogPosterior(X.numpy() * math.nan, y.numpy(), None, "rbf", PRIORS, Given(), None)(np.log([0.5, 0.5, 1e-3]))


@pytest.mark.parametrize("family", ["matern52", ADDITIVE])
def test_a_search_starts_at_the_densest_start(family):
    """Of pure noise that is not the first one; a search of one step ends about there."""
    X = arms(25, 2, seed=3)
    y = torch.randn(25, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    points = X.numpy()
    density = LogPosterior(points, y.numpy(), None, family, PRIORS, Given(), pairs(points) if family == ADDITIVE else None)
    starts = [[density(theta)[0] for theta in group] for group in density.cold()]
    assert all(len(set(group)) == len(PRIORS.starts) and max(group) > group[0] + 1.0 for group in starts)
    assert learn(X, y, families=[family], max_steps=0).evidence >= max(map(max, starts))


def test_quick_functions_of_one_input_each_are_found_as_a_sum():
    g = torch.Generator().manual_seed(0)
    X, new = (torch.rand(n, 4, generator=g, dtype=torch.float64) for n in (160, 100))
    y, truth = (torch.sin(25.0 * U + 1.0).sum(dim=-1) for U in (X, new))
    plain, found = (learn(X, y / y.std(), families=[family]) for family in ("rbf", ADDITIVE))
    assert found.evidence > plain.evidence + 50.0
    assert found.additive
    assert found.rest < 0.2
    assert float(found.alone.max()) < 0.2
    K = found.cross(X, X) + found.noise * torch.eye(160, dtype=torch.float64)
    means = found.mean + found.cross(new, X) @ torch.linalg.solve(K, y / y.std() - found.mean)
    assert float((means * y.std() - truth).square().mean() / truth.var()) < 0.01
    assert learn(X, y / y.std(), families=[ADDITIVE], start=found).evidence >= found.evidence - 1e-6


def test_outputs_that_are_not_finite_are_refused():
    X, y = data()
    with pytest.raises(ValueError, match="finite inputs and outputs"):
        learn(X, y * math.inf)


def test_along_other_directions_the_inputs_are_the_rotated_ones():
    X = arms(40, 3)
    axes = torch.linalg.qr(arms(3, 3, seed=4)).Q
    V = X @ axes
    y = torch.sin(8.0 * V[:, 0]) + 0.1 * V[:, 1]
    along, of_rotated = learn(X, y, axes=axes), learn(V, y)
    assert torch.equal(along.axes, axes)
    assert along.evidence == of_rotated.evidence
    assert torch.allclose(along.cross(X, X), of_rotated.cross(V, V), rtol=0.0, atol=1e-12)
