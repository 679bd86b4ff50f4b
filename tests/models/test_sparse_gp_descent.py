"""Damped Newton-like descent within bounds: what it finds, when it stops, and what it makes of a bad start or step."""

import math

import pytest
import torch

from sparse_bo.models.sparse_gp.training import curvature, descend, positive

A = torch.tensor([[2.0, 0.3], [0.3, 0.5]], dtype=torch.float64)
CENTRE = torch.tensor([1.0, -2.0], dtype=torch.float64)
UNBOUNDED = (torch.full((2,), -math.inf, dtype=torch.float64), torch.full((2,), math.inf, dtype=torch.float64))


def quadratic(x):
    away = x - CENTRE
    return float(0.5 * away @ A @ away), A @ away


def rosenbrock(x):
    a, b = x.tolist()
    value = (1 - a) ** 2 + 5 * (b - a * a) ** 2
    return value, torch.tensor([-2 * (1 - a) - 20 * a * (b - a * a), 10 * (b - a * a)], dtype=torch.float64)


def test_with_the_true_curvature_a_quadratic_takes_its_newton_steps():
    start = CENTRE + 0.9
    found = descend(quadratic, start, bounds=UNBOUNDED, hessian=A, tolerance=1e-12, max_steps=10)
    assert found.converged
    assert found.evaluations == 2
    torch.testing.assert_close(found.x, CENTRE)


def test_it_stops_without_an_evaluation_where_less_than_the_tolerance_is_promised():
    start = CENTRE + 1e-3
    found = descend(quadratic, start, bounds=UNBOUNDED, hessian=A, tolerance=1e-5, max_steps=10)
    assert found.converged
    assert found.evaluations == 1
    assert torch.equal(found.x, start)


def test_a_wrong_curvature_is_learned():
    start = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    eye = torch.eye(2, dtype=torch.float64)
    found = descend(rosenbrock, start, bounds=UNBOUNDED, hessian=eye, tolerance=1e-12, max_steps=200)
    assert found.converged
    assert found.value < 1e-8
    torch.testing.assert_close(found.x, torch.ones(2, dtype=torch.float64), atol=1e-3, rtol=0)


def test_bounds_hold_and_are_optimal():
    low, high = torch.tensor([-math.inf, -1.0], dtype=torch.float64), torch.tensor([0.5, 9.0], dtype=torch.float64)
    seen = []

    def watched(x):
        seen.append(x.clone())
        return quadratic(x)

    start = torch.tensor([0.0, 2.0], dtype=torch.float64)
    found = descend(watched, start, bounds=(low, high), hessian=A, tolerance=1e-12, max_steps=50)
    assert all(bool((x >= low).all() and (x <= high).all()) for x in seen)
    assert found.converged
    torch.testing.assert_close(found.x, torch.tensor([0.5, -1.0], dtype=torch.float64))


def test_a_step_to_where_there_is_no_value_is_shortened():
    def walled(x):
        return quadratic(x) if float(x[0]) > 0.9 else (math.inf, torch.zeros_like(x))

    start = torch.tensor([3.0, -2.0], dtype=torch.float64)
    found = descend(walled, start, bounds=UNBOUNDED, hessian=0.3 * A, tolerance=1e-10, max_steps=50)
    assert found.converged
    torch.testing.assert_close(found.x, CENTRE, atol=1e-4, rtol=0)


def test_no_value_at_the_start_is_an_error():
    with pytest.raises(ValueError, match="value"):
        descend(lambda x: (math.nan, x), CENTRE, bounds=UNBOUNDED, hessian=A, tolerance=1e-3, max_steps=3)


def test_steps_are_limited():
    start = torch.tensor([-1.2, 1.0], dtype=torch.float64)
    found = descend(rosenbrock, start, bounds=UNBOUNDED, hessian=A, tolerance=1e-12, max_steps=2)
    assert not found.converged


def test_curvature_by_differences_is_the_hessian():
    x = torch.tensor([0.4, -0.3], dtype=torch.float64)
    a, b = x.tolist()
    expected = torch.tensor([[2 - 20 * b + 60 * a * a, -20 * a], [-20 * a, 10.0]], dtype=torch.float64)
    torch.testing.assert_close(curvature(rosenbrock, x, rosenbrock(x)[1]), expected, rtol=1e-2, atol=1e-2)


def test_a_made_positive_matrix_keeps_its_directions():
    indefinite = torch.diag(torch.tensor([-3.0, 1e-9, 2.0], dtype=torch.float64))
    torch.testing.assert_close(positive(indefinite, least=0.1), torch.diag(torch.tensor([3.0, 0.1, 2.0]).double()))
