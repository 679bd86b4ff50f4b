"""mini-META, ε-greedy on a posterior, and Thompson sampling over arms."""

import math
import warnings
from dataclasses import replace

import gpytorch
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from sparse_bo import BBKB, BKB, GPUCB, AskTell
from sparse_bo.dictionary import AllSampler
from sparse_bo.domains import Arms, ProductGrid
from sparse_bo.errors import NumericalWarning
from sparse_bo.policies import EpsilonGreedy, MiniMETA, PosteriorEpsilonGreedy, QFFTSArms, SGPTSArms
from sparse_bo.widths import BBKBAuthors, BBKBTheory
from tests import oracles
from tests.builders import arms, noisy, rbf_kernel, unit_box, waves

NOISE = 0.05


def dense_posterior(X: torch.Tensor, history, *, scale: float = 1.0) -> oracles.Gaussian:
    """The exact GP over the arms after all pulls of a run."""
    pulls = X[history.indices]
    y = torch.tensor([v for row in history.rows for v in row.values], dtype=X.dtype, device=X.device)
    K = [oracles.rbf(*pair, lengthscale=0.3, scale=scale) for pair in ((pulls, pulls), (pulls, X), (X, X))]
    return oracles.exact_gp(*K, y, noise=NOISE)


SETTINGS = {"covar_module": rbf_kernel(0.3), "regularization": NOISE}
POLICIES = [
    MiniMETA(**SETTINGS),
    BBKB(stop_rule="repeat", **SETTINGS),
    PosteriorEpsilonGreedy(epsilon=2.0, decay=0.5, **SETTINGS),
    SGPTSArms(batch_size=3, **SETTINGS),
    QFFTSArms(batch_size=3, **SETTINGS),
]
IDS = [policy.name for policy in POLICIES]


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_every_policy_finds_a_near_best_arm(policy, device):
    X = arms(200).to(device)
    result = AskTell(X, policy, seed=0).run(noisy(X), 120, call_with="indices")
    assert float(waves(X).max() - waves(X)[result.best_index]) < 0.1
    assert len(result.history.indices) == 120


@pytest.mark.sampled(1)
@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_same_seed_same_picks_for_any_memory_budget_and_the_global_generator_is_untouched(policy):
    X = arms(300)
    before = torch.random.get_rng_state()
    reference = AskTell(X, policy, seed=3).run(noisy(X), 40, call_with="indices").history.indices
    small = replace(policy, memory_bytes=2**20)
    assert AskTell(X, small, seed=3).run(noisy(X), 40, call_with="indices").history.indices == reference
    assert AskTell(X, policy, seed=4).run(noisy(X), 40, call_with="indices").history.indices != reference
    assert torch.equal(before, torch.random.get_rng_state())


def scaled(outputscale: float) -> gpytorch.kernels.Kernel:
    kernel = ScaleKernel(rbf_kernel(0.3)).double()
    kernel.outputscale = outputscale
    return kernel.requires_grad_(False)


@pytest.mark.parametrize("policy", [SGPTSArms, QFFTSArms], ids=["s-gp-ts", "qff-ts"])
def test_an_arm_is_drawn_as_often_as_it_is_the_best_of_a_draw_of_the_exact_gp(policy, device):
    """Thompson's rule itself; with every pulled arm in the dictionary the posterior is the exact GP's. One arm has repeats."""
    X = arms(12).to(device)
    policy = policy(covar_module=scaled(0.5), regularization=NOISE)
    repeats = torch.zeros(4, dtype=torch.int64, device=device)
    loop = AskTell(X, replace(policy, dictionary=AllSampler()), seed=0, initial=(repeats, noisy(X, seed=7)(repeats)))
    loop.run(noisy(X), 6, call_with="indices")
    dense = dense_posterior(X, loop.history, scale=0.5)
    g = torch.Generator().manual_seed(5)
    root = torch.linalg.cholesky(dense.covariance + 1e-10 * torch.eye(12, dtype=X.dtype, device=X.device))
    draws = dense.mean + torch.randn(40_000, 12, generator=g, dtype=X.dtype).to(device) @ root.mT
    expected = draws.argmax(dim=1).bincount(minlength=12) / 40_000
    assert float(expected.max()) < 0.9  # there is something to explore
    many = replace(policy, batch_size=500, **({"features": 1024} if isinstance(policy, SGPTSArms) else {}))
    chosen = many.on(Arms(X))
    none = torch.empty(0, dtype=torch.int64, device=device)
    picks = [chosen.ask(loop.state, max_q=500, pending=none, generator=g).picks for _ in range(20)]
    share = torch.cat(picks).bincount(minlength=12) / 10_000
    assert float((share - expected).abs().sum()) / 2 < 0.03  # total variation; feature error and Monte Carlo


@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_a_frozen_state_goes_on_as_if_nothing_had_happened(policy):
    X = arms(100)
    loop = AskTell(X, policy, seed=0)
    loop.run(noisy(X), 30, call_with="indices")
    mechanism = policy.on(Arms(X))
    thawed = mechanism.thaw(mechanism.freeze(loop.state))
    none = torch.empty(0, dtype=torch.int64)
    expected, picks = (
        mechanism.ask(state, max_q=5, pending=none, generator=torch.Generator().manual_seed(3)).picks.tolist()
        for state in (loop.state, thawed)
    )
    assert picks == expected


@pytest.mark.parametrize("policy", [SGPTSArms(**SETTINGS), QFFTSArms(**SETTINGS)], ids=["s-gp-ts", "qff-ts"])
def test_of_equal_arms_the_first_is_drawn(policy):
    X = torch.cat([arms(30), arms(30)])
    history = AskTell(X, replace(policy, batch_size=10), seed=0).run(noisy(X), 61, call_with="indices").history
    assert all(i < 30 for i in history.indices[1:])


def test_thompson_sampling_works_with_matern_scaled_and_learned_kernels():
    X = arms(80)
    matern = ScaleKernel(MaternKernel(nu=1.5)).double()
    matern.base_kernel.lengthscale, matern.outputscale = 0.5, 2.0
    for policy in (SGPTSArms(covar_module=matern, regularization=NOISE), SGPTSArms(batch_size=5), QFFTSArms(batch_size=5)):
        result = AskTell(X, policy, seed=0).run(noisy(X), 40, call_with="indices")
        assert float(waves(X).max() - waves(X)[result.best_index]) < 0.3


def test_a_lazy_set_is_brought_into_the_memory_that_was_given_and_no_more():
    """Not into a default one, of which the user has said nothing."""
    grid = ProductGrid.linspace(torch.tensor([[0.0] * 3, [1.0] * 3], dtype=torch.float64), [26] * 3)
    with pytest.raises(ValueError, match="17,576 arms do not fit into 1,048,576 bytes; raise memory_bytes"):
        PosteriorEpsilonGreedy(memory_bytes=2**20).on(Arms(grid))
    assert PosteriorEpsilonGreedy(memory_bytes=2**21).on(Arms(grid)).arms.shape == (17_576, 3)


def test_mini_meta_with_threshold_one_is_gp_ucb():
    X = arms(100)
    one = AskTell(X, MiniMETA(ratio_threshold=1.0, **SETTINGS), seed=5).run(noisy(X), 40, call_with="indices").history
    assert one.indices == AskTell(X, GPUCB(**SETTINGS), seed=5).run(noisy(X), 40, call_with="indices").history.indices


def test_mini_meta_evaluates_one_arm_per_batch_until_its_variance_has_halved():
    X = arms(100)
    history = AskTell(X, MiniMETA(**SETTINGS), seed=5).run(noisy(X), 60, call_with="indices").history
    assert all(len(set(row.indices)) == 1 for row in history.rows)
    assert max(history.column("batch_size")) > 1
    K, pulls = oracles.rbf(X, X, lengthscale=0.3), []

    def variance(seen: list[int], arm: int) -> float:
        y = torch.zeros(len(seen), dtype=K.dtype)
        return float(oracles.exact_gp(K[seen][:, seen], K[seen], K, y, noise=NOISE).variance[arm])

    for row in history.rows[:-1]:  # the budget cuts the last batch
        arm, batch = row.indices[0], row.indices
        if pulls:
            half = variance(pulls, arm) / 2
            assert variance(pulls + batch, arm) < half <= variance(pulls + batch[:-1], arm) * (1 + 1e-9)
        pulls += batch


@pytest.mark.parametrize(("name", "width"), [("theory", BBKBTheory), ("authors", BBKBAuthors)])
def test_mini_metas_named_widths_are_bbkbs(name, width):
    policy = MiniMETA(width=name, rkhs_norm=2.0, noise_variance=0.3, failure_probability=0.1, **SETTINGS)
    assert policy.parts.width == width(rkhs_norm=2.0, noise_variance=0.3, failure_probability=0.1)


def test_the_repeat_rule_on_a_full_dictionary_is_mini_meta():
    X = arms(100)
    sparse = BBKB(stop_rule="repeat", dictionary=AllSampler(), **SETTINGS)
    picks = AskTell(X, sparse, seed=5).run(noisy(X), 60, call_with="indices").history.indices
    assert picks == AskTell(X, MiniMETA(**SETTINGS), seed=5).run(noisy(X), 60, call_with="indices").history.indices


def test_bkb_on_a_full_dictionary_is_gp_ucb():
    X = arms(100)
    picks = AskTell(X, BKB(dictionary=AllSampler(), **SETTINGS), seed=5).run(noisy(X), 30, call_with="indices").history.indices
    assert picks == AskTell(X, GPUCB(**SETTINGS), seed=5).run(noisy(X), 30, call_with="indices").history.indices


def test_without_exploration_the_highest_posterior_mean_is_picked():
    X = arms(80)
    policy = PosteriorEpsilonGreedy(epsilon=0.0, dictionary=AllSampler(), initial_design=5, **SETTINGS)
    loop = AskTell(X, policy, seed=2)
    for budget in range(5, 12):
        loop.run(noisy(X, seed=budget), budget - len(loop.history.indices), call_with="indices")
        expected = int(dense_posterior(X, loop.history).mean.argmax())
        batch = policy.on(Arms(X)).ask(
            loop.state, max_q=3, pending=torch.empty(0, dtype=torch.int64), generator=torch.Generator().manual_seed(0)
        )
        assert batch.picks.tolist() == [expected]


def test_a_batch_of_posterior_epsilon_greedy_mixes_the_best_arm_and_random_ones(generator):
    X = arms(500)
    policy = PosteriorEpsilonGreedy(epsilon=0.3, batch_size=1000, **SETTINGS)
    loop = AskTell(X, policy, seed=2)
    loop.run(noisy(X), 20, call_with="indices")
    picks = policy.on(Arms(X)).ask(loop.state, max_q=1000, pending=torch.empty(0, dtype=torch.int64), generator=generator).picks
    best = int(loop.state.posterior.means.argmax())
    assert 0.25 < float((picks != best).double().mean()) < 0.35


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("epsilon", "decay"), [(0.4, 0.0), (3.0, 1.0), (1.5, 0.5)])
def test_exploration_follows_its_schedule(epsilon, decay, generator):
    state = AskTell(arms(1000), EpsilonGreedy()).state
    best, out, q = torch.tensor(7), 4, 6
    counts = torch.zeros(q)
    for _ in range(4000):
        picks = EpsilonGreedy(epsilon=epsilon, decay=decay).explored(state, best, q, out=out, generator=generator)
        counts += picks != best
    expected = torch.tensor([min(1.0, epsilon * t**-decay) * 0.999 for t in range(5, 11)])
    torch.testing.assert_close(counts / 4000, expected, rtol=0.0, atol=4.5 * math.sqrt(0.25 / 4000))


def test_decaying_epsilon_greedy_explores_less_and_less():
    history = AskTell(arms(4_000), EpsilonGreedy(epsilon=1.0, decay=0.5), seed=0).run(lambda X: X[:, 0], 400).history
    early, late = set(history.indices[:100]), set(history.indices[300:])
    assert 2 * len(late) < len(early)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: EpsilonGreedy(epsilon=1.5), ValueError, r"epsilon in \[0, 1\]"),
        (lambda: EpsilonGreedy(epsilon=-1.0, decay=1.0), ValueError, "epsilon >= 0, got -1.0"),
        (lambda: EpsilonGreedy(decay=-0.5), ValueError, "decay >= 0, got -0.5"),
        (lambda: PosteriorEpsilonGreedy(epsilon=2.0), ValueError, r"epsilon in \[0, 1\]"),
        (lambda: PosteriorEpsilonGreedy(batch_size=0), ValueError, "batch_size >= 1"),
        (lambda: PosteriorEpsilonGreedy(covar_module="rbf"), TypeError, "covar_module to be a gpytorch"),
        (lambda: SGPTSArms(regularization=0.0), ValueError, "regularization > 0"),
        (lambda: SGPTSArms(oversampling=-1.0), ValueError, "oversampling > 0"),
        (lambda: SGPTSArms(features=5), ValueError, "even number of features .* got 5"),
        (lambda: SGPTSArms(features=0), ValueError, "features >= 2"),
        (lambda: QFFTSArms(order=0), ValueError, "order >= 1"),
        (lambda: MiniMETA(ratio_threshold=0.5), ValueError, "ratio_threshold >= 1"),
    ],
)
def test_bad_settings(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("policy", "dims", "message"),
    [
        (SGPTSArms(covar_module=LinearKernel()), 2, "got LinearKernel; use RBFKernel or MaternKernel"),
        (SGPTSArms(covar_module=ScaleKernel(LinearKernel())), 2, "got LinearKernel; use RBFKernel or MaternKernel"),
        (QFFTSArms(covar_module=MaternKernel()), 2, "Gaussian kernel over all inputs, got MaternKernel"),
        (QFFTSArms(covar_module=RBFKernel(active_dims=[0])), 2, "Gaussian kernel over all inputs"),
        (QFFTSArms(), 4, "arms of d <= 3 for QFF-TS .*, got d = 4; use SGPTSArms"),
        (QFFTSArms(covar_module=rbf_kernel(0.02)), 1, "64 quadrature nodes per dimension miss the kernel by up to"),
        (QFFTSArms(covar_module=rbf_kernel(0.3), order=2), 2, "raise order, use a longer lengthscale"),
    ],
)
def test_kernels_and_arms_that_a_policy_does_not_support_are_named_before_any_work(policy, dims, message):
    with pytest.raises(ValueError, match=message):
        AskTell(arms(20, dims), policy)


def test_no_kernel_of_doses_known_by_their_logarithms_is_said_to_miss_the_quadrature():
    X = arms()
    X[:, 0] = 10.0 ** (6.0 * X[:, 0] - 3.0)
    loop = AskTell(X, QFFTSArms(initial_design=12, batch_size=12))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NumericalWarning)
        for _ in range(2):
            batch = loop.ask()
            loop.tell(batch, batch.X[:, 0].log10() - batch.X[:, 1])


def test_a_learned_kernel_that_the_quadrature_misses_is_reported():
    X = arms(40, 1)
    loop = AskTell(X, QFFTSArms(order=2), seed=0)
    with pytest.warns(NumericalWarning, match="2 quadrature nodes per dimension miss the kernel"):
        loop.run(lambda X: torch.sin(20.0 * X[:, 0]), 14)


@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_boxes_are_refused(policy):
    with pytest.raises((TypeError, ValueError), match="got a box|repeats an arm; on a box use"):
        AskTell(bounds=unit_box(1), policy=policy)
