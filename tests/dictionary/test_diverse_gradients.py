"""Gradient-diverse subsets against the literal rule of the GSSBO paper, by dense matrices and by brute force."""

from itertools import combinations
from unittest import mock

import pytest
import torch

from sparse_bo.dictionary.diverse_samplers import gradient_columns, gradients, greedy_balanced, greedy_diverse
from sparse_bo.gp.dtc import nystrom_factor


def _kernel(X, Y):
    return torch.exp(-2.0 * torch.cdist(X, Y).square())


def _features(n, m, seed, device, dtype=torch.float64):
    X = torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(device=device, dtype=dtype)
    D = X[:m]
    return nystrom_factor(_kernel(D, D)).features(_kernel(D, X))


def _dense_columns(Z, noise, perturbation):
    """Rows are the perturbed gradient columns, normalised: n x n."""
    n = len(Z)
    inverse = torch.linalg.inv(Z @ Z.mT + noise * torch.eye(n, dtype=Z.dtype, device=Z.device))
    columns = inverse + perturbation @ torch.linalg.qr(Z)[0].mT
    return columns / columns.norm(dim=-1, keepdim=True)


def _literal_greedy(columns, forced, size):
    chosen = list(forced)
    while len(chosen) < size:
        rest = [j for j in range(len(columns)) if j not in chosen]
        chosen.append(min(rest, key=lambda j: sum(float(columns[j] @ columns[i]) for i in chosen)))
    return sorted(chosen)


@pytest.mark.parametrize("m", [5, 12], ids=["dictionary", "all"])
@pytest.mark.parametrize("noise", [1e-3, 0.5])
@pytest.mark.parametrize("perturbed", [0.0, 0.1, 30.0])
def test_cosines_are_those_of_the_dense_perturbed_columns(m, noise, perturbed, device):
    Z = _features(12, m, 0, device)
    perturbation = perturbed * torch.randn(Z.shape, generator=torch.Generator().manual_seed(1), dtype=Z.dtype).to(device)
    dense = _dense_columns(Z, noise, perturbation)
    got = gradient_columns(Z, noise=noise, perturbation=perturbation).cosines(torch.arange(12, device=device))
    off = ~torch.eye(12, dtype=torch.bool, device=device)
    torch.testing.assert_close(got[off], (dense @ dense.mT)[off], rtol=1e-7, atol=1e-7)


def test_with_all_data_the_perturbation_is_the_papers_isotropic_noise():
    Z = _features(9, 9, 0, "cpu")
    basis = torch.linalg.qr(Z)[0]
    torch.testing.assert_close(basis @ basis.mT, torch.eye(9, dtype=Z.dtype))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("m", [4, 9], ids=["dictionary", "all"])
def test_greedy_is_the_literal_rule(seed, m, device):
    Z = _features(9, m, seed, device)
    perturbation = 0.1 * torch.randn(Z.shape, generator=torch.Generator().manual_seed(seed), dtype=Z.dtype).to(device)
    dense = _dense_columns(Z, 0.01, perturbation)
    columns = gradient_columns(Z, noise=0.01, perturbation=perturbation)
    got = greedy_diverse(columns, forced=torch.tensor([8, 0], device=device), size=6)
    assert got.tolist() == _literal_greedy(dense.cpu(), [8, 0], 6)


def test_greedy_comes_near_the_best_subset_and_beats_the_average_one():
    ratios = []
    for seed in range(30):
        Z = _features(9, 9, seed, "cpu")
        dense = _dense_columns(Z, 0.01, torch.zeros_like(Z))
        cosines = dense @ dense.mT

        def value(subset, cosines=cosines):
            index = torch.tensor(subset)
            return float(cosines[index][:, index].sum())

        values = [value((0, *rest)) for rest in combinations(range(1, 9), 4)]
        greedy = greedy_diverse(
            gradient_columns(Z, noise=0.01, perturbation=torch.zeros_like(Z)), forced=torch.tensor([0]), size=5
        )
        mean = sum(values) / len(values)
        ratios.append((mean - value(greedy.tolist())) / (mean - min(values)))
    assert min(ratios) > 0.0  # better than the average subset, on every problem
    assert sum(ratios) / 30 > 0.8  # and most of the way to the best one


def test_gradients_are_minus_the_weights_of_the_exact_process(device):
    Z = _features(10, 4, 3, device)
    y = torch.randn(10, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(device)
    K_y = Z @ Z.mT + 0.05 * torch.eye(10, dtype=Z.dtype, device=device)
    torch.testing.assert_close(gradients(Z, noise=0.05, residuals=y), -torch.linalg.solve(K_y, y), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_balanced_signs_reach_the_minimum_over_all_subsets(seed, device):
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (9,), generator=generator).mul(2).sub(1).to(device)
    order = torch.randperm(9, generator=generator).to(device)
    forced = [1, 4]
    got = greedy_balanced(signs, forced=torch.tensor(forced, device=device), size=6, order=order)
    assert len(set(got.tolist())) == 6
    assert set(forced) <= set(got.tolist())
    subsets = [(*forced, *rest) for rest in combinations([i for i in range(9) if i not in forced], 4)]
    assert abs(int(signs[got].sum())) == min(abs(int(signs[list(s)].sum())) for s in subsets)


def test_the_order_decides_among_equal_signs(device):
    signs = torch.tensor([1, -1, -1, -1, -1], device=device)
    order = torch.tensor([3, 1, 0, 2, 4], device=device)
    got = greedy_balanced(signs, forced=torch.tensor([0], device=device), size=2, order=order)
    assert got.tolist() == [0, 3]


def test_near_duplicates_have_opposite_columns():
    # What the rule prefers: two columns of K_y⁻¹ at nearly the same input point in opposite directions.
    X = torch.tensor([[0.1, 0.1], [0.1001, 0.1], [0.9, 0.9], [0.1, 0.9]], dtype=torch.float64)
    Z = nystrom_factor(_kernel(X, X)).features(_kernel(X, X))
    cosines = gradient_columns(Z, noise=1e-3, perturbation=torch.zeros_like(Z)).cosines(torch.arange(4))
    assert float(cosines[0, 1]) < -0.99
    assert float(cosines[0, 2].abs()) < 0.5


def test_the_basis_is_the_one_of_the_cpu(accelerator, generator):
    """Perturbations are in its coordinates, and each library is free to choose its signs."""
    features = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    noise = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    plain, asked = torch.linalg.qr, []

    def elsewhere_negated(A):
        asked.append(A.device.type)
        Q, R = plain(A)
        return (Q, R) if A.device.type == "cpu" else (-Q, -R)

    with mock.patch.object(torch.linalg, "qr", elsewhere_negated):
        expected = gradient_columns(features, noise=0.1, perturbation=noise)
        got = gradient_columns(features.to(accelerator), noise=0.1, perturbation=noise.to(accelerator))
    assert set(asked) == {"cpu"}
    torch.testing.assert_close(got.a.cpu(), expected.a)
