"""The shipped problems."""

import pickle

import pytest
import torch

from sparse_bo import Batch, maximize
from sparse_bo.policies import RandomSearch
from sparse_bo.problems.builtin import SYNTHETIC, abalone, cadata, gp_draw, repeatable, scaled, synthetic, ticket_noise


@pytest.mark.parametrize(("make", "shape"), [(cadata, (20_640, 8)), (abalone, (4_177, 8))], ids=["cadata", "abalone"])
@pytest.mark.parametrize("scaling", ["unit", "standardize", "none"])
def test_data_sets_have_the_published_shape_and_scaling(make, shape, scaling):
    problem = make(scaling=scaling)
    assert problem.arms.shape == shape
    assert (float(problem.values.min()), problem.best_value) == (0.0, 1.0)
    if scaling == "unit":
        assert float(problem.arms.min()) == 0.0
        assert float(problem.arms.max()) == 1.0
    if scaling == "standardize":
        assert torch.allclose(problem.arms.mean(0), torch.zeros(8, dtype=torch.float64), atol=1e-10)
        assert torch.allclose(problem.arms.std(0, correction=0), torch.ones(8, dtype=torch.float64))


def test_abalone_codes_sex_as_in_the_published_runs():
    assert sorted(set(abalone(scaling="none").arms[:, 0].tolist())) == [0.0, 1.0, 2.0]


def test_objectives_are_noisy_seeded_and_independent():
    problem = abalone(noise_sd=0.1)
    index = torch.zeros(4000, dtype=torch.long)
    y = problem.objective(seed=1)(index)
    assert torch.equal(y, problem.objective(seed=1)(index))
    assert not torch.equal(y, problem.objective(seed=2)(index))
    assert float(y.mean()) == pytest.approx(float(problem.values[0]), abs=0.01)
    assert float(y.std()) == pytest.approx(0.1, rel=0.1)


def test_a_draw_has_the_kernel_it_claims():
    draws = torch.stack([gp_draw(arms=2, dims=1, lengthscale=0.5, features=64, seed=s).values for s in range(2000)])
    arms = torch.stack([gp_draw(arms=2, dims=1, lengthscale=0.5, features=64, seed=s).arms.flatten() for s in range(2000)])
    expected = torch.exp(-0.5 * ((arms[:, 0] - arms[:, 1]) / 0.5).square()).mean()
    assert float(draws.square().mean()) == pytest.approx(1.0, abs=0.08)
    assert float((draws[:, 0] * draws[:, 1]).mean()) == pytest.approx(float(expected), abs=0.08)


def test_regret_is_the_gap_to_the_best_arm():
    problem = gp_draw(arms=20)
    best = int(problem.values.argmax())
    assert problem.regret([best, 0]).tolist() == [0.0, float(problem.best_value - problem.values[0])]


def test_constant_columns_become_zero():
    X = torch.tensor([[1.0, 5.0], [2.0, 5.0]], dtype=torch.float64)
    assert scaled(X, "unit").tolist() == [[0.0, 0.0], [1.0, 0.0]]
    assert scaled(X, "standardize")[:, 1].tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "dims", "best"),
    [
        ("eggholder2", 2, 959.6407),
        ("hartmann6", 6, 3.32237),
        ("levy20", 20, 0.0),
        ("powell50", 50, 0.0),
        ("rastrigin100", 100, 0.0),
    ],
)
def test_synthetic_functions_are_maximised_on_their_boxes(name, dims, best, generator):
    problem = synthetic(name)
    assert problem.bounds.shape == (2, dims)
    assert problem.best_value == pytest.approx(best, abs=1e-4)
    X = problem.bounds[0] + (problem.bounds[1] - problem.bounds[0]) * torch.rand(500, dims, generator=generator).double()
    assert float(problem.regret(X).min()) > 0.0
    assert float(problem.regret(problem.function.optimizers[:1].double())) == pytest.approx(0.0, abs=1e-4)
    assert set(SYNTHETIC) == {"eggholder2", "hartmann6", "levy20", "powell50", "rastrigin100"}


def test_synthetic_objectives_are_noisy_and_seeded(device):
    problem = synthetic("hartmann6", noise_sd=0.5).to(device)
    X = problem.bounds.mean(0).expand(4000, 6)
    y = problem.objective(seed=1)(X)
    assert torch.equal(y, problem.objective(seed=1)(X))
    assert float(y.std()) == pytest.approx(0.5, rel=0.1)
    assert float(y.mean()) == pytest.approx(float(problem.function(X[:1])), abs=0.03)


@pytest.mark.parametrize("problem", [gp_draw(arms=30), synthetic("hartmann6")], ids=["arms", "box"])
def test_regret_of_a_run_is_that_of_its_evaluations(problem):
    result = maximize(
        problem.objective(seed=0), budget=5, policy=RandomSearch(batch_size=2), call_with=problem.call_with, **problem.domain
    )
    regret = problem.regret_of(result.history)
    where = result.history.points or result.history.indices
    assert regret.tolist() == problem.regret(where).tolist()
    assert torch.cat([problem.regret_of(row) for row in result.history.rows]).tolist() == regret.tolist()


def test_bad_settings():
    with pytest.raises(ValueError, match="problem to be one of 'eggholder2'"):
        synthetic("ackley")
    with pytest.raises(ValueError, match="noise_sd >= 0"):
        synthetic("levy20", noise_sd=-1.0)
    with pytest.raises(ValueError, match="'unit', 'standardize', 'none'"):
        cadata(scaling="log")
    with pytest.raises(ValueError, match="noise_sd >= 0"):
        abalone(noise_sd=-1.0)
    with pytest.raises(ValueError, match="arms >= 1"):
        gp_draw(arms=0)


def test_the_noise_of_an_evaluation_depends_on_its_ticket_alone():
    noise = ticket_noise(range(20_000), seed=3)
    assert torch.equal(ticket_noise([7, 19_999, 0], seed=3), noise[[7, 19_999, 0]])
    assert not torch.equal(ticket_noise([7], seed=4), noise[[7]])
    assert abs(float(noise.mean())) < 0.03
    assert abs(float(noise.std()) - 1.0) < 0.02
    assert abs(float((noise[1:] * noise[:-1]).mean())) < 0.03
    objective = pickle.loads(pickle.dumps(repeatable(synthetic("hartmann6", noise_sd=0.1), seed=1)))
    X = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = objective(Batch(None, X, [3, 4, 5, 6]))
    assert torch.equal(whole[1:3], objective(Batch(None, X[1:3], [4, 5])))
