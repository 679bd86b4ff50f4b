"""Given priors, crashed evaluations, and runs whose policies learn their priors."""

import math

import gpytorch
import numpy as np
import pytest
import torch
from torch import Tensor

from sparse_bo import BBKB, AskTell, maximize
from sparse_bo.errors import NumericalWarning
from sparse_bo.gp.objective_prior import CLIP, Prior, crash_floor, warn_if_uncentred, without_crashes
from tests.gp.builders import OPEN, observe, problem


def test_values_far_below_are_raised_for_a_learned_kernel_alone():
    arms, index, y = problem()
    seen = observe(arms, index, torch.cat([y[:-1], y.new_tensor([-1e30])]))
    assert without_crashes(seen, Prior(gpytorch.kernels.RBFKernel(), None, None)) is seen
    raised = without_crashes(seen, OPEN)
    low, high = torch.quantile(seen.means, seen.means.new_tensor([0.25, 0.75])).tolist()
    assert float(raised.means.min()) == pytest.approx(low - CLIP * (high - low))
    assert int((raised.sums != seen.sums).sum()) == 1
    assert without_crashes(observe(arms, index, y), OPEN).sums.tolist() == observe(arms, index, y).sums.tolist()
    assert crash_floor(torch.tensor([1.0, 2.0, 3.0])) == -math.inf
    assert crash_floor(torch.tensor([1.0, 1.0, 1.0, 1.0, -5.0])) == -math.inf


def test_a_prior_is_known_once_kernel_and_noise_are():
    kernel = gpytorch.kernels.RBFKernel()
    prior = Prior(kernel, None, 0.1)
    assert prior.complete
    assert prior.known() == (kernel, 0.0, 0.1)
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


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(1)
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
