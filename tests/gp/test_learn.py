"""Learning hyper-parameters: the optimum against a dense posterior, families by evidence, units, repeats, failures."""

import logging
import math
from dataclasses import replace

import gpytorch
import pytest
import torch
from torch import Tensor

from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.hyperparameters import ADDITIVE, Hyperparameters
from sparse_bo.gp.learn import FAMILIES, PRIORS, Given, LogPosterior, learn, learn_prior, learning_is_due
from sparse_bo.gp.likelihood import Scatter, correlation_of
from sparse_bo.gp.objective_prior import Prior, family_of, scaled_kernel
from sparse_bo.gp.observations import Observations, merge_observations
from sparse_bo.gp.priors import Priors
from sparse_bo.kernels import covariance_function
from sparse_bo.kernels.stationary import pairs
from tests.builders import arms, waves
from tests.gp.builders import OPEN, hull, learned_from, numbers, observe, problem

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
    R = correlation_of(torch.zeros(2, dtype=torch.float64), X, family="rbf").value
    fixed = learn(X, means, scatter=scatter, families=[family], given=Given(correlation=R, scale=1.0))
    assert fixed.scale == 1.0
    assert not len(fixed.lengthscales)
    assert fixed.noise == pytest.approx(scatter.squares / scatter.repeats, rel=0.5)


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


@pytest.mark.parametrize("family", ["matern52", ADDITIVE])
def test_a_search_starts_at_the_densest_start(family):
    """Of pure noise that is not the first one; a search of one step ends about there."""
    X = arms(25, 2, seed=3)
    y = torch.randn(25, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    density = LogPosterior(X, y, None, family, PRIORS, Given(), pairs(X) if family == ADDITIVE else None)
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


def test_learned_kernel_predicts():
    arms, index, y = problem()
    learned = learned_from(arms, index, y)
    k = covariance_function(learned.covar_module, like=arms)
    X = arms[index]
    A = k.cross(X, X) + learned.regularization * torch.eye(len(X), dtype=torch.float64)
    mean = learned.prior_mean + k.cross(arms, X) @ torch.linalg.solve(A, y - learned.prior_mean)
    truth = 100.0 + 5.0 * torch.sin(2.0 * arms[:, 0])
    assert float((mean - truth).abs().max()) < 0.5


def test_what_is_given_stays():
    arms, index, y = problem()
    kernel = gpytorch.kernels.RBFKernel().double()
    kernel.lengthscale = 0.8
    noise_only = learned_from(arms, index, y, Prior(kernel, 100.0, None))
    assert noise_only.covar_module is kernel
    assert noise_only.prior_mean == 100.0
    assert learned_from(arms, index, y, Prior(None, None, 0.25)).regularization == 0.25
    assert learned_from(arms, index, y, Prior(None, 90.0, None)).prior_mean == 90.0
    assert kernel.lengthscale.item() == pytest.approx(0.8)


def test_noise_and_mean_are_learned_beside_a_given_kernel():
    arms, index, y = problem(n=200, noise=0.5)
    kernel = scaled_kernel("rbf", torch.tensor([0.8, 5.0], dtype=torch.float64), 25.0)
    learned = learned_from(arms, index, y, Prior(kernel, None, None))
    assert learned.regularization == pytest.approx(0.25, rel=0.3)
    assert learned.prior_mean == pytest.approx(100.0, abs=4.0)


@pytest.mark.parametrize("scale", [1e-40, 1e-22, 1e-3, 1e3, 1e25, 1e60])
def test_the_prior_follows_the_units(scale: float):
    """``y → a y`` gives a² in variances, a in the mean and the same lengthscales: nothing goes through float32."""
    arms, index, y = problem()
    one, other = numbers(learned_from(arms, index, y)), numbers(learned_from(arms, index, scale * y))
    assert other[:2] == pytest.approx(one[:2], rel=1e-6)
    assert other[2] == pytest.approx(scale**2 * one[2], rel=1e-6, abs=0.0)
    assert other[3] == pytest.approx(scale * one[3], rel=1e-6, abs=0.0)
    assert other[4] == pytest.approx(scale**2 * one[4], rel=1e-6, abs=0.0)


@pytest.mark.parametrize("shift", [-1e4, 1e6, 1e8])
def test_the_prior_follows_a_shift(shift: float):
    arms, index, y = problem()
    one, other = numbers(learned_from(arms, index, y)), numbers(learned_from(arms, index, y + shift))
    assert [*other[:3], other[4]] == pytest.approx([*one[:3], one[4]], rel=1e-3)
    assert other[3] - shift == pytest.approx(one[3], abs=1e-2)


def test_pulls_of_one_input_do_not_shrink_the_prior():
    """A policy that has settled says nothing of the spread of the objective."""
    arms, index, y = problem(n=40)
    best = index[y.argmax()]
    again = float(y.max()) + 0.1 * torch.randn(10_000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    early = learned_from(arms, index, y)
    late = learned_from(arms, torch.cat([index, best.repeat(10_000)]), torch.cat([y, again]))
    assert numbers(late)[2] == pytest.approx(numbers(early)[2], rel=0.5)
    assert late.regularization == pytest.approx(0.01, rel=0.1)


def test_ten_repeats_of_one_point_can_be_learned_from():
    arms, _, _ = problem()
    y = torch.linspace(0.9, 1.1, 10, dtype=torch.float64)
    learned = learned_from(arms, torch.zeros(10, dtype=torch.long), y)
    assert all(math.isfinite(x) for x in numbers(learned))
    assert learned.regularization > 0.0


@pytest.mark.parametrize("value", [0.0, 4.0, -1e30, 1e-30])
def test_constant_observations_and_constant_columns_can_be_learned_from(value: float):
    arms, index, y = problem(n=12)
    arms[:, 1] = 3.0
    learned = learned_from(arms, index, torch.full_like(y, value))
    assert learned.regularization > 0.0
    assert learned.prior_mean == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_discrete_labels_can_be_learned_from():
    arms, index, _ = problem(n=80)
    learned = learned_from(arms, index, (arms[index, 0] > 1.0).double())
    assert all(math.isfinite(x) for x in numbers(learned))
    assert numbers(learned)[0] < 4.0  # the side of the hull


def test_one_outlier_leaves_the_prior_of_the_others():
    arms, index, y = problem()
    clean = learned_from(arms, index, y)
    for value in (-1e30, 1e30):
        wild = learned_from(arms, index, torch.cat([y[:-1], y.new_tensor([value])]))
        assert numbers(wild)[2] < 1e3 * numbers(clean)[2]


def test_more_inputs_than_are_learned_from_are_sampled():
    """The most repeated ones are among them: without their repeats the noise would be another."""
    arms, index, y = problem(n=150)
    again = y[0] + 2.0 * torch.randn(50, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    index, y = torch.cat([index, index[:1].repeat(50)]), torch.cat([y, again])
    one, two = (learned_from(arms, index, y, most=30) for _ in range(2))
    assert numbers(one) == numbers(two)
    assert one.regularization > 1.0


def test_inputs_without_replicates_are_learned_from_too():
    """Those with replicates are constant, the others have no correlations."""
    arms, _, _ = problem()
    index, y = torch.cat([torch.arange(200), torch.arange(60)]), torch.zeros(260, dtype=torch.float64)
    y[60:200] = torch.randn(140, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    first, second = numbers(learned_from(arms, index, y, most=40))[:2]
    assert min(first / 4.0, second / 0.5) < 0.1  # of the domain's widths


def test_the_search_starts_from_the_previous_prior():
    """With next to no steps, the result is about the previous one; without one it is far from it."""
    arms, index, y = problem(n=300)
    best = learned_from(arms, index, y)
    again = learned_from(arms, index, y, previous=best, max_steps=0, families=[family_of(best.covar_module)])
    assert numbers(again) == pytest.approx(numbers(best), rel=1e-2)
    assert numbers(learned_from(arms, index, y, max_steps=0)) != pytest.approx(numbers(best), rel=5e-2)


def test_a_failure_keeps_the_previous_prior_with_a_warning():
    arms, index, y = problem()
    good = learned_from(arms, index, y)
    broken = observe(arms, index, y)
    broken = replace(broken, squares=broken.squares + math.inf)
    for previous, message in ((good, "those of before"), (None, "typical ones in the units of the data")):
        with pytest.warns(NumericalWarning, match=f"could not be learned .*beyond what float64 holds.* {message}"):
            found = learn_prior(OPEN, broken, hull(arms), generator=torch.Generator(), previous=previous)
        assert (found is good) == (previous is good)
    assert found.prior_mean == pytest.approx(float(observe(arms, index, y).means.mean()))
    assert all(math.isfinite(x) for x in numbers(found))


def test_learning_is_due_when_inputs_grow_or_pulls_double():
    arms, _, _ = problem()

    def seen(inputs: int, pulls: int) -> Observations:
        index = torch.cat([torch.arange(inputs), torch.zeros(pulls - inputs, dtype=torch.long)])
        return observe(arms, index, torch.zeros(pulls, dtype=torch.float64))

    assert learning_is_due(seen(1, 1), 0)
    assert not learning_is_due(seen(20, 39), 20)
    assert learning_is_due(seen(20, 40), 20)
    assert learning_is_due(seen(30, 30), 20)
    assert not learning_is_due(seen(29, 29), 20)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradient_modes_do_not_matter(mode):
    arms, index, y = problem()
    expected = numbers(learned_from(arms, index, y))
    with mode():
        assert numbers(learned_from(arms, index, y)) == expected


def test_free_inputs_are_learned_from_like_arms():
    """Boxes and models pass observations without indices."""
    arms, index, y = problem()
    merged = merge_observations(arms[index], y)
    free = learn_prior(OPEN, merged, hull(arms), generator=torch.Generator())
    assert numbers(free) == pytest.approx(numbers(learned_from(arms, index, y)), rel=1e-4)


def test_learning_logs_what_it_did(caplog):
    arms, index, y = problem()
    with caplog.at_level(logging.INFO, logger="sparse_bo.gp.learn"):
        learned_from(arms, index, y)
    assert "learned hyper-parameters from" in caplog.text
