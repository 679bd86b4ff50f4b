"""Given and learned priors, crashed evaluations, and runs whose policies learn their priors."""

import logging
import math
from dataclasses import replace

import gpytorch
import numpy as np
import pytest
import torch
from torch import Tensor

from sparse_bo import BBKB, AskTell, Storage, maximize
from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.objective_prior import (
    CLIP,
    Prior,
    family_of,
    learn_prior,
    learning_is_due,
    reached_floor,
    scaled_kernel,
    warn_if_uncentred,
    without_crashes,
)
from sparse_bo.gp.observations import Observations, merge_observations
from sparse_bo.kernels import covariance_function
from tests.gp.builders import OPEN, hull, learned_from, numbers, observe, problem


def test_values_far_below_are_raised_for_a_learned_kernel_alone():
    arms, index, y = problem()
    seen = observe(arms, index, torch.cat([y[:-1], y.new_tensor([-1e30])]))
    known, floor = without_crashes(seen, Prior(gpytorch.kernels.RBFKernel(), None, None))
    assert known is seen
    assert floor is None
    raised, floor = without_crashes(seen, OPEN)
    low, high = torch.quantile(seen.means, seen.means.new_tensor([0.25, 0.75])).tolist()
    assert float(raised.means.min()) == pytest.approx(low - CLIP * (high - low))
    assert int((raised.sums != seen.sums).sum()) == 1
    assert without_crashes(observe(arms, index, y), OPEN)[0].sums.tolist() == observe(arms, index, y).sums.tolist()
    assert reached_floor(torch.tensor([1.0, 2.0, 3.0])) is None
    assert reached_floor(torch.tensor([1.0, 1.0, 1.0, 1.0, -5.0])) is None


def test_a_prior_is_known_once_kernel_and_noise_are():
    kernel = gpytorch.kernels.RBFKernel()
    prior = Prior(kernel, None, 0.1)
    assert prior.complete
    assert prior.known() == (kernel, 0.0, 0.1, 1.0)
    for missing, name in ((Prior(None, 1.0, 0.1), "a kernel"), (Prior(kernel, 1.0, None), "regularization")):
        assert not missing.complete
        with pytest.raises(ValueError, match=f"expected a prior with {name}, got None"):
            missing.known()


def test_an_uncentred_objective_with_a_given_prior_is_warned_of_once(recwarn):
    arms, index, y = problem()
    given = Prior(gpytorch.kernels.RBFKernel(), None, 0.1)
    seen = observe(arms, index, y)
    with pytest.warns(NumericalWarning, match=r"about 9\d.*Pass prior_mean=9"):
        warn_if_uncentred(given, seen, before=0)
    recwarn.clear()
    warn_if_uncentred(given, seen, before=10)  # could have been said then
    warn_if_uncentred(given._replace(prior_mean=0.0), seen, before=0)  # the user's word
    warn_if_uncentred(given, observe(arms, index, y - 100.0), before=0)
    assert not recwarn.list


def bowl(X: Tensor) -> Tensor:
    return -(X - 0.3).square().sum(dim=-1)


def domain(kind: str) -> dict[str, Tensor]:
    if kind == "box":
        return {"bounds": torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)}
    return {"arms": torch.rand(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)}


def picks_of(function, kind: str = "arms", **kwargs) -> np.ndarray:
    result = maximize(function, **domain(kind), budget=14, seed=1, **kwargs)
    assert result.best_mean is not None
    return np.array(result.history.points if kind == "box" else result.history.indices)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["arms", "box"])
@pytest.mark.parametrize(("a", "b"), [(1e30, 0.0), (1e-22, 0.0), (1e-40, 0.0), (1e25, 1e25), (2.0, 1e3)])
def test_picks_follow_the_units(kind: str, a: float, b: float):
    expected = picks_of(bowl, kind, policy=BBKB())  # the policy that learns its prior here
    np.testing.assert_allclose(picks_of(lambda X: a * bowl(X) + b, kind, policy=BBKB()), expected, atol=1e-2)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", ["arms", "box"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_default_run_does_not_need_gradients_switched_on(kind: str, mode):
    expected = picks_of(bowl, kind)
    with mode():
        np.testing.assert_array_equal(picks_of(bowl, kind), expected)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["arms", "box"])
def test_a_crash_far_below_does_not_hide_the_best(kind: str):
    best = maximize(lambda X: torch.where(X[:, 0] > 0.9, -1e30, bowl(X)), **domain(kind), budget=22, seed=1).best_x
    assert float(bowl(best)) > -0.1


@pytest.mark.parametrize("kind", ["arms", "box"])
def test_a_run_with_a_given_prior_says_that_the_objective_is_far_from_its_mean(kind: str):
    kernel = gpytorch.kernels.RBFKernel()
    with pytest.warns(NumericalWarning, match="Pass prior_mean=") as told:
        picks_of(lambda X: 100.0 + bowl(X), kind, policy=BBKB(covar_module=kernel, regularization=0.01))
    assert len([w for w in told if issubclass(w.category, NumericalWarning)]) == 1


def test_the_spread_of_the_best_point_of_a_box_has_no_floor():
    """GPyTorch never reports a variance below 10⁻¹⁰."""
    loop, generator = AskTell(bounds=domain("box")["bounds"], seed=0), torch.Generator().manual_seed(0)
    noise = 1e-11 * torch.randn(12, generator=generator, dtype=torch.float64)
    result = loop.run(lambda X: 1e-9 * bowl(X) + noise[: len(X)], 12)
    assert 0.0 < result.best_sd < 1e-9


def test_the_model_of_a_learned_box_is_shown_in_the_users_units():
    loop = AskTell(bounds=domain("box")["bounds"], seed=0)
    loop.run(lambda X: 50.0 + 10.0 * bowl(X), 12)
    state = loop.state
    means, variances = state.predicted(state.X)
    posterior = state.model.posterior(state.X)
    torch.testing.assert_close(posterior.mean.squeeze(-1), means, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(posterior.variance.squeeze(-1), variances, rtol=1e-2, atol=1e-6)


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
    assert noise_only.covar_module.base_kernel.lengthscale.item() == pytest.approx(0.8)
    assert noise_only.covar_module.outputscale.item() == pytest.approx(noise_only.factor)
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


@pytest.mark.parametrize("scaled", [True, False], ids=["scaled", "plain"])
def test_the_scale_of_a_given_kernel_is_learned_with_the_noise(scaled):
    """Whatever scale it is given with: a kernel of variance 0.69 beside yields from 0 to 100 explained nothing."""
    arms, index, y = problem(n=200, noise=0.5)
    kernel = gpytorch.kernels.RBFKernel(ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor([0.8, 5.0], dtype=torch.float64)
    found = []
    for outputscale in (1e-6, 1.0, 1e6):
        given = gpytorch.kernels.ScaleKernel(kernel).double() if scaled else kernel
        if scaled:
            given.outputscale = outputscale
        prior = learned_from(arms, index, y, Prior(given, None, None))
        found.append([prior.covar_module.outputscale.item(), prior.regularization, prior.prior_mean])
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[1] == pytest.approx(found[2], rel=1e-6)
    known = scaled_kernel("rbf", torch.tensor([0.8, 5.0], dtype=torch.float64), found[0][0])
    assert learned_from(arms, index, y, Prior(known, None, None)).factor == pytest.approx(1.0, rel=1e-6)


class Plain(gpytorch.kernels.RBFKernel):
    """A kernel of the user's own, which a journal cannot rebuild."""


@pytest.mark.parametrize("kind", ["arms", pytest.param("box", marks=pytest.mark.slow)])
def test_a_resumed_run_has_the_learned_scale_of_a_kernel_of_ones_own(kind, tmp_path):
    def loop(**where):
        kernel = Plain().double()
        kernel.lengthscale = 0.4
        return AskTell(**domain(kind), policy=BBKB(covar_module=kernel, initial_design=8), seed=1, **where)

    def steps(loop):
        for _ in range(3):
            batch = loop.ask(4)
            loop.tell(batch, 100.0 * bowl(batch.X))
        return loop.history

    whole, first = loop(), loop(storage=Storage(tmp_path / "run.journal", replay_seconds=0.0))
    steps(whole)
    steps(first)
    first.close()
    with AskTell.resume(tmp_path / "run.journal", policy=first.policy) as again:
        assert again.state.fitted.prior.factor == whole.state.fitted.prior.factor > 10.0
        for one, other in zip(steps(again).rows, steps(whole).rows, strict=True):
            assert one.indices == other.indices
            np.testing.assert_allclose(one.points or 0.0, other.points or 0.0, atol=1e-9)


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


def test_differences_whose_squares_vanish_are_said_to_be_none():
    arms, index, y = problem()
    with pytest.warns(NumericalWarning, match=r"differ by .*e-147, which is 0 for the model"):
        learned_from(arms, index, 1e-145 * y / y.abs().max())
    assert learned_from(arms, index, 1e-130 * y).covar_module.outputscale > 0.0


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
    with caplog.at_level(logging.INFO, logger="sparse_bo.gp.objective_prior"):
        learned_from(arms, index, y)
    assert "learned hyper-parameters from" in caplog.text


def test_a_constraint_on_the_scale_of_a_given_kernel_does_not_end_a_run():
    kernel = gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.RBFKernel(), outputscale_constraint=gpytorch.constraints.GreaterThan(1e-2)
    )
    arms, index, y = problem()
    prior = learned_from(arms, index, 1e-6 * y, Prior(kernel.double(), None, None))
    assert 0.0 < prior.covar_module.outputscale.item() < 1e-2
    assert kernel.outputscale.item() >= 1e-2
