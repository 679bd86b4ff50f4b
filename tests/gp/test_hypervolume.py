"""Fronts, hypervolumes, and log expected hypervolume improvement: against inclusion and exclusion, BoTorch, and many digits."""

from __future__ import annotations

import functools
import itertools
import math

import mpmath
import pytest
import torch
from botorch.acquisition.multi_objective.analytic import ExpectedHypervolumeImprovement
from botorch.models.deterministic import GenericDeterministicModel
from botorch.posteriors import GPyTorchPosterior
from botorch.utils.multi_objective.box_decompositions import NondominatedPartitioning
from gpytorch.distributions import MultitaskMultivariateNormal
from torch import Tensor

from sparse_bo.gp.expected_improvement import (
    Cells,
    LogGain,
    front_rows,
    hypervolume,
    least_crowded,
    log_expected_improvement,
    log_feasibility,
    reference_point,
)

CUBE = {"dtype": torch.float64}
DIGITS = 150


def values(n: int, k: int, generator: torch.Generator) -> Tensor:
    return torch.rand(n, k, generator=generator, **CUBE)


def normals(n: int, k: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return means around the unit cube and variances of several sizes."""
    mean = 3.0 * torch.rand(n, k, generator=generator, **CUBE) - 1.5
    return mean, 10.0 ** (2.0 * torch.rand(n, k, generator=generator, **CUBE) - 2.0)


def expected(mean: Tensor, variance: Tensor, F: Tensor, reference: Tensor) -> list[mpmath.mpf]:
    """Return expected hypervolume improvements by inclusion and exclusion over all subsets of the values, in many digits.

    A value y adds its box beyond the reference, less the union of the boxes that it shares with each of the others.
    """
    front = [[max(float(f), float(r)) for f, r in zip(row, reference, strict=True)] for row in F]
    subsets = [rows for size in range(len(front) + 1) for rows in itertools.combinations(front, size)]
    results = []
    for means, variances in zip(mean.tolist(), variance.tolist(), strict=True):
        total = mpmath.mpf(0)
        for rows in subsets:
            term = mpmath.mpf((-1) ** len(rows))
            for j, (mu, v, low) in enumerate(zip(means, variances, reference.tolist(), strict=True)):
                term *= improvement(mu, v, low) - (improvement(mu, v, min(row[j] for row in rows)) if rows else 0)
            total += term
        results.append(total)
    return results


@functools.lru_cache(maxsize=4096)
def improvement(mean: float, variance: float, best: float) -> mpmath.mpf:
    """Return ``E max(f − best, 0)`` in many digits."""
    sigma = mpmath.sqrt(mpmath.mpf(variance))
    u = (mpmath.mpf(mean) - mpmath.mpf(best)) / sigma
    return sigma * (mpmath.npdf(u) + u * mpmath.erfc(-u / mpmath.sqrt(2)) / 2)


def assert_derivatives(gain, mean: Tensor, variance: Tensor, *, rtol: float = 1e-5) -> None:
    """Compare the derivatives of ``gain(mean, variance)`` with central differences."""
    at = gain(mean, variance)
    for j in range(mean.shape[-1]):
        unit = torch.zeros_like(mean)
        unit[:, j] = 1.0
        h = 1e-5 * variance.sqrt() * unit
        by_mean = (gain(mean + h, variance).value - gain(mean - h, variance).value) / (2.0 * h[:, j])
        torch.testing.assert_close(at.by_mean[:, j], by_mean, rtol=rtol, atol=1e-6)
        h = 1e-5 * variance * unit
        by_variance = (gain(mean, variance + h).value - gain(mean, variance - h).value) / (2.0 * h[:, j])
        torch.testing.assert_close(at.by_variance[:, j], by_variance, rtol=rtol, atol=1e-5)


def test_a_front_keeps_the_first_of_equal_rows_and_no_missing_values():
    nan = torch.nan
    F = torch.tensor([[1.0, 2.0], [nan, 9.0], [2.0, 1.0], [1.0, 2.0], [1.0, 1.0], [nan, nan], [0.0, 2.0], [9.0, nan]], **CUBE)
    rows = front_rows(F)
    assert rows.dtype == torch.int64
    assert rows.tolist() == [0, 2]
    assert front_rows(F[:0]).tolist() == []
    assert front_rows(torch.tensor([[1.0], [3.0], [3.0], [2.0]], **CUBE)).tolist() == [1]


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("n", [300, 1500])  # BoTorch has two algorithms
def test_a_front_is_what_no_pair_excludes(n, k, generator):
    F = (4.0 * values(n, k, generator)).round() + (values(n, k, generator) > 0.99)
    worse = ((F.unsqueeze(0) >= F.unsqueeze(1)).all(dim=-1) & (F.unsqueeze(0) > F.unsqueeze(1)).any(dim=-1)).any(dim=1)
    same = (F.unsqueeze(0) == F.unsqueeze(1)).all(dim=-1).tril(-1).any(dim=1)
    assert front_rows(F).tolist() == (~worse & ~same).nonzero().squeeze(-1).tolist()


def test_the_reference_is_a_tenth_of_the_span_below_the_front():
    F = torch.tensor([[0.0, 10.0], [5.0, 5.0], [10.0, -10.0], [-99.0, -99.0], [torch.nan, 50.0]], **CUBE)
    assert reference_point(F).tolist() == [-1.0, -12.0]


def test_the_reference_of_values_without_a_span_is_below_them():
    best = torch.tensor([[2.0, -3.0], [1.0, -7.0]], **CUBE)  # one row dominates: the span of all
    assert reference_point(best).tolist() == pytest.approx([1.9, -3.4])
    assert reference_point(best[:1]).tolist() == pytest.approx([1.8, -3.3])
    constant = torch.tensor([[2.0, 0.0], [1.0, 0.0], [3.0, 0.0]], **CUBE)
    assert reference_point(constant).tolist() == pytest.approx([2.8, -0.01])
    with pytest.raises(ValueError, match="expected at least one row without NaN .* got none; pass the reference"):
        reference_point(constant[:0])


def test_a_hypervolume_is_an_area_beyond_the_reference(device):
    F = torch.tensor([[3.0, 1.0], [1.0, 3.0], [2.0, 2.0], [0.5, 0.5], [9.0, -1.0], [torch.nan, 9.0]], **CUBE).to(device)
    assert hypervolume(F, torch.zeros(2, **CUBE).to(device)) == pytest.approx(6.0)
    assert hypervolume(F, torch.tensor([0.0, 2.5], **CUBE).to(device)) == pytest.approx(0.5)
    assert hypervolume(F, torch.tensor([9.0, 9.0], **CUBE).to(device)) == 0.0
    assert hypervolume(F[:0], torch.zeros(2, **CUBE).to(device)) == 0.0
    assert hypervolume(F[:4, :1], torch.tensor([0.5], **CUBE).to(device)) == 2.5


@pytest.mark.parametrize("k", [2, 3, 4])
def test_a_hypervolume_is_the_share_of_points_below_the_front(k, generator):
    F, reference = values(12, k, generator), torch.full((k,), 0.1, **CUBE)
    points = 0.1 + 0.9 * values(200_000, k, generator)
    share = (points.unsqueeze(1) <= F).all(dim=-1).any(dim=1).double().mean()
    assert hypervolume(F, reference) == pytest.approx(float(share) * 0.9**k, abs=0.005)


def test_the_largest_values_have_a_reference_and_a_volume():
    t = torch.linspace(-1.0, 1.0, 7, dtype=torch.float64)
    small, large = torch.stack([t, -1e-200 * t], dim=-1), torch.stack([1e308 * t, -1e-200 * t], dim=-1)
    reference = reference_point(large)
    assert torch.allclose(reference / torch.tensor([1e308, 1.0], dtype=torch.float64), reference_point(small), rtol=1e-14)
    assert hypervolume(large, reference) / 1e308 == pytest.approx(hypervolume(small, reference_point(small)), rel=1e-12)
    largest = torch.finfo(torch.float64).max * torch.stack([t, -t], dim=-1)
    assert reference_point(largest).isfinite().all()
    assert hypervolume(largest, reference_point(largest)) == math.inf


@pytest.mark.parametrize(
    "sizes", [(1e200, 1e200, 1e-200), (1e-200, 1e-200, 1e200), (1e-320, 1e300, 1e10), (1e-150, 1e-150, 1.0)]
)
def test_a_volume_is_right_wherever_it_is_a_number(sizes, device, generator):
    F, reference = values(6, 3, generator), torch.full((3,), 0.05, **CUBE)
    unit = torch.tensor(sizes, **CUBE)
    got = hypervolume((unit * F).to(device), (unit * reference).to(device))
    wanted = math.log(hypervolume(F, reference)) + sum(map(math.log, sizes))
    assert math.log(got) == pytest.approx(wanted, abs=1e-3 if min(sizes) < 1e-300 else 1e-11)  # 1e-320 has three digits
    assert reference_point((unit * F).to(device)).div(unit.to(device)).isfinite().all()


@pytest.mark.parametrize("size", [1e-300, 1e-6, 1.0, 1e300])
def test_the_reference_of_a_single_row_is_a_tenth_of_its_size_below(size, device):
    row = size * torch.tensor([[1.0, -2.0]], **CUBE)
    assert reference_point(row.to(device)).div(size).tolist() == pytest.approx([0.9, -2.2], rel=1e-14)
    assert reference_point(torch.zeros(1, 2, **CUBE)).tolist() == pytest.approx([-0.01, -0.01])


def test_the_least_crowded_rows_are_extremes_and_then_those_with_wide_gaps():
    F = torch.tensor([[0.0, 9.0], [1.0, 8.0], [1.5, 7.5], [5.0, 4.0], [9.0, 0.0]], **CUBE)
    assert least_crowded(F, 5).tolist() == [0, 4, 3, 2, 1]
    assert least_crowded(F, 3).tolist() == [0, 4, 3]
    assert least_crowded(F[:1], 3).tolist() == [0]
    assert least_crowded(F[:0], 3).tolist() == []
    flat = torch.tensor([[2.0, 1.0], [2.0, 1.0], [2.0, 1.0]], **CUBE)  # no gap at all: in order
    assert least_crowded(flat, 2).tolist() == [0, 1]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [0, 1, 6])
def test_improvement_is_that_of_inclusion_and_exclusion(k, n, generator):
    F, reference = values(n, k, generator), torch.full((k,), 0.05, **CUBE)
    mean, variance = normals(8, k, generator)
    got = Cells.of(F, reference).log_improvement(mean, variance)
    with mpmath.workdps(DIGITS):
        logs = [float(mpmath.log(value)) for value in expected(mean, variance, F, reference)]
    torch.testing.assert_close(got.value, torch.tensor(logs, **CUBE), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("k", [2, 3])
def test_improvement_is_botorchs_where_that_is_accurate(k, generator):
    F, reference = values(20, k, generator), torch.zeros(k, **CUBE)
    mean, variance = 0.4 + 0.6 * values(10, k, generator), 0.01 + 0.1 * values(10, k, generator)

    class Independent(GenericDeterministicModel):
        def posterior(self, X, *args, **kwargs):  # X: rows of the means
            rows = X[..., 0].long()
            return GPyTorchPosterior(
                MultitaskMultivariateNormal(mean[rows], torch.diag_embed(variance[rows].flatten(-2)), validate_args=False)
            )

    partitioning = NondominatedPartitioning(ref_point=reference, Y=F)
    acquisition = ExpectedHypervolumeImprovement(Independent(lambda X: X, num_outputs=k), reference.tolist(), partitioning)
    theirs = acquisition(torch.arange(10, **CUBE).reshape(10, 1, 1)).log()
    ours = Cells.of(F, reference).log_improvement(mean, variance).value
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-7)


def test_improvement_is_the_mean_of_the_gains_of_draws(generator):
    F, reference = values(5, 2, generator), torch.zeros(2, **CUBE)
    mean, variance = torch.tensor([[0.7, 0.6]], **CUBE), torch.tensor([[0.04, 0.09]], **CUBE)
    draws = mean + variance.sqrt() * torch.randn(300, 2, generator=generator, **CUBE)
    before = hypervolume(F, reference)
    gains = torch.tensor([hypervolume(torch.cat([F, draw.unsqueeze(0)]), reference) - before for draw in draws], **CUBE)
    got = float(Cells.of(F, reference).log_improvement(mean, variance).value.exp())
    assert got == pytest.approx(float(gains.mean()), abs=4.0 * float(gains.std()) / math.sqrt(len(gains)))


@pytest.mark.parametrize("k", [1, 2, 3])
def test_derivatives_of_improvement_are_differences(k, generator):
    F, reference = values(7, k, generator), torch.zeros(k, **CUBE)
    cells = Cells.of(F, reference)
    mean, variance = normals(12, k, generator)
    assert_derivatives(cells.log_improvement, mean, variance)
    assert_derivatives(cells.log_improvement, mean - 40.0 * variance.sqrt(), variance)
    assert bool((cells.log_improvement(mean, variance).by_variance > 0.0).all())


@pytest.mark.parametrize("distance", [10.0, 1e2, 1e3, 1e4])
def test_far_below_the_front_no_digit_is_lost(distance, generator):
    F, reference = 10.0 / distance * values(5, 2, generator), torch.zeros(2, **CUBE)
    mean = values(4, 2, generator) - distance * torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.3, 1.0]], **CUBE)
    got = Cells.of(F, reference).log_improvement(mean, torch.ones_like(mean))
    with mpmath.workdps(DIGITS):
        logs = [float(mpmath.log(value)) for value in expected(mean, torch.ones_like(mean), F, reference)]
    torch.testing.assert_close(got.value, torch.tensor(logs, **CUBE), rtol=1e-12, atol=1e-9)
    assert bool(torch.isfinite(got.by_mean).all())
    assert bool((got.by_mean > 0.0).all())


@pytest.mark.parametrize("width", [1e-12, 1e-9, 1e-6, 0.9e-3, 1.1e-3, 1e-2])
@pytest.mark.parametrize("at", [-1e4, -30.0, -1.0, 0.0, 3.0, 30.0])
def test_narrow_cells_lose_no_digits(width, at):
    """Between two values that almost agree, and an upper limit beyond which nothing counts in the other objective."""
    F = torch.tensor([[0.0, 2.0], [width, 1.0]], **CUBE)
    cells = Cells.of(F, torch.tensor([0.0, 0.0], **CUBE))
    narrow = Cells(cells.lower[:1], cells.upper[:1])
    for low, high in zip(cells.lower.tolist(), cells.upper.tolist(), strict=True):
        if high[0] - low[0] == width:
            narrow = Cells(torch.tensor([low], **CUBE), torch.tensor([high], **CUBE))
    mean, variance = torch.tensor([[at, 1.0]], **CUBE), torch.tensor([[1.0, 1.0]], **CUBE)
    got = narrow.log_improvement(mean, variance)
    with mpmath.workdps(DIGITS):
        difference = improvement(at, 1.0, 0.0) - improvement(at, 1.0, width)
        other = improvement(1.0, 1.0, float(narrow.lower[0, 1]))
        log = float(mpmath.log(difference * other))
    assert float(narrow.upper[0, 0] - narrow.lower[0, 0]) == width
    assert float(got.value) == pytest.approx(log, rel=1e-12, abs=1e-11)


def test_one_objective_is_log_expected_improvement(generator):
    F, reference = values(5, 1, generator), torch.zeros(1, **CUBE)
    mean, variance = normals(20, 1, generator)
    for known, best in ((F, float(F.max())), (F[:0], 0.0), (F - 9.0, 0.0)):
        got, plain = Cells.of(known, reference).log_improvement(mean, variance), log_expected_improvement(mean, variance, best)
        torch.testing.assert_close(got.value, plain.value.squeeze(-1), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got.by_mean, plain.by_mean, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(got.by_variance, plain.by_variance, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_equal_and_dominated_values_change_nothing(k, generator):
    F = (3.0 * values(9, k, generator)).round()  # many agree in some objective
    reference = torch.full((k,), -0.5, **CUBE)
    mean, variance = normals(6, k, generator)
    cells = Cells.of(F, reference)
    more = torch.cat([F, F, F - 0.25, torch.full((1, k), torch.nan, **CUBE), F.index_fill(1, torch.tensor([0]), -0.5)])
    again = Cells.of(more, reference)
    assert bool((cells.upper > cells.lower).all())
    torch.testing.assert_close(again.log_improvement(mean, variance).value, cells.log_improvement(mean, variance).value)
    with mpmath.workdps(DIGITS):
        logs = [float(mpmath.log(v)) for v in expected(mean, variance, F[front_rows(F)], reference)]
    torch.testing.assert_close(cells.log_improvement(mean, variance).value, torch.tensor(logs, **CUBE), rtol=1e-10, atol=1e-10)


def test_results_depend_on_neither_chunk_nor_device(device, generator):
    F, reference = values(9, 3, generator), torch.zeros(3, **CUBE)
    mean, variance = normals(50, 3, generator)
    here = Cells.of(F, reference)
    for elements in (1, 3 * len(here.lower), 10**9):
        assert all(
            map(torch.equal, here.log_improvement(mean, variance, elements=elements), here.log_improvement(mean, variance))
        )
    there = Cells.of(F.to(device), reference.to(device)).log_improvement(mean.to(device), variance.to(device))
    for got, wanted in zip(there, here.log_improvement(mean, variance), strict=True):
        assert got.device.type == torch.device(device).type
        assert got.dtype == torch.float64
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-9, atol=1e-12)
    limits = torch.tensor([-torch.inf, 0.1, 0.2], **CUBE), torch.tensor([0.5, torch.inf, 0.3], **CUBE)
    inside = log_feasibility(mean.to(device), variance.to(device), *(limit.to(device) for limit in limits))
    for got, wanted in zip(inside, log_feasibility(mean, variance, *limits), strict=True):
        torch.testing.assert_close(got.cpu(), wanted, rtol=1e-9, atol=1e-12)


def probability(mean: float, variance: float, lower: float, upper: float) -> mpmath.mpf:
    """Return ``P(lower ≤ f ≤ upper)`` in many digits."""
    root = mpmath.sqrt(2 * mpmath.mpf(variance))
    a, b = ((mpmath.mpf(limit) - mpmath.mpf(mean)) / root for limit in (lower, upper))
    return (mpmath.erfc(a) - mpmath.erfc(b)) / 2 if a > 0 else (mpmath.erfc(-b) - mpmath.erfc(-a)) / 2


@pytest.mark.parametrize("limits", [(0.0, 1.0), (0.0, 1e-2), (0.0, 1e-7), (-torch.inf, 0.0), (0.0, torch.inf), (-50.0, 60.0)])
def test_feasibility_is_the_log_probability_of_keeping_the_limits(limits):
    means = [-1e4, -300.0, -8.0, -0.4, 0.0, 0.3, 1.0, 2.0, 40.0, 1e4]
    mean, variance = torch.tensor(means, **CUBE).unsqueeze(-1), torch.full((len(means), 1), 0.7, **CUBE)
    lower, upper = (torch.tensor([limit], **CUBE) for limit in limits)
    got = log_feasibility(mean, variance, lower, upper)
    with mpmath.workdps(DIGITS):
        logs = [float(mpmath.log(probability(m, 0.7, *limits))) for m in means]
    torch.testing.assert_close(got.value, torch.tensor(logs, **CUBE), rtol=1e-11, atol=1e-11)
    near = mean.abs().squeeze(-1) < 100.0
    assert_derivatives(lambda m, v: log_feasibility(m, v, lower, upper), mean[near], variance[near])
    assert all(bool(torch.isfinite(part).all()) for part in got)


def test_feasibility_is_a_sum_over_constraints(generator):
    mean, variance = normals(9, 3, generator)
    lower, upper = torch.tensor([-torch.inf, 0.0, -0.3], **CUBE), torch.tensor([0.2, torch.inf, 0.4], **CUBE)
    both = log_feasibility(mean, variance, lower, upper)
    single = [
        log_feasibility(*(part[:, j : j + 1] for part in (mean, variance)), lower[j : j + 1], upper[j : j + 1])
        for j in range(3)
    ]
    torch.testing.assert_close(both.value, torch.stack([one.value for one in single]).sum(dim=0))
    assert_derivatives(lambda m, v: log_feasibility(m, v, lower, upper), mean, variance)
    none = log_feasibility(mean[:, :0], variance[:, :0], lower[:0], upper[:0])
    assert torch.equal(none.value, torch.zeros(9, **CUBE))


def test_equal_limits_prefer_the_highest_density():
    mean, variance = torch.tensor([[0.0], [0.9], [1.0], [1e4]], **CUBE), torch.full((4, 1), 0.5, **CUBE)
    limit = torch.ones(1, **CUBE)
    got = log_feasibility(mean, variance, limit, limit)
    assert isinstance(got, LogGain)
    torch.testing.assert_close(got.value - got.value[2], -(mean.squeeze(-1) - 1.0).square(), rtol=1e-12, atol=1e-9)
