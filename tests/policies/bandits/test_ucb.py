"""BKB, BBKB and the exact comparators, as policies."""

import math
from dataclasses import replace

import gpytorch
import pytest
import torch

from sparse_bo import BBKB, BKB, GPBUCB, GPUCB, AskTell, ProductGrid, Storage
from sparse_bo.dictionary import (
    FirstSampler,
    FixedSampler,
    GreedyVarianceSampler,
    IPASampler,
    IVMSampler,
    KDPPSampler,
    KMeansPlusPlusSampler,
    RecursiveRLSSampler,
    UniformSampler,
)
from sparse_bo.domains import Arms, Box, modelled_arms
from sparse_bo.widths import BBKBTheory, ConstantWidth
from tests.builders import arms, noisy, rbf_kernel, unit_box, waves

SETTINGS = {"regularization": 0.05, "width": 2.0}
POLICIES = [
    BKB(covar_module=rbf_kernel(0.3), **SETTINGS),
    BBKB(covar_module=rbf_kernel(0.3), **SETTINGS),
    BBKB(covar_module=rbf_kernel(0.3), stop_rule="local", **SETTINGS),
    BBKB(covar_module=rbf_kernel(0.3), stop_rule="gp-bucb", in_batch="process", **SETTINGS),
    GPUCB(covar_module=rbf_kernel(0.3), **SETTINGS),
    GPBUCB(covar_module=rbf_kernel(0.3), **SETTINGS),
]
IDS = ["bkb", "bbkb", "bbkb-local", "bbkb-gp-bucb-process", "gp-ucb", "gp-bucb"]


def test_the_local_rule_takes_the_update_that_shrinks_what_it_watches():
    """One dictionary point far from everything: the fixed update leaves every variance, and one arm fills the batch."""
    chosen = BBKB(covar_module=rbf_kernel(0.02), stop_rule="local", regularization=0.5, ratio_threshold=4.0)
    assert (chosen.parts.in_batch, replace(chosen, stop_rule="global").parts.in_batch) == ("process", "fixed")
    distinct = {}
    for in_batch in (None, "process", "fixed"):
        loop = AskTell(arms(), replace(chosen, in_batch=in_batch), seed=0)
        first = loop.ask()
        loop.tell(first.tickets, [0.0])
        distinct[in_batch] = len(set(loop.ask(50).indices.tolist()))
    assert distinct["fixed"] == 1
    assert distinct[None] == distinct["process"] > 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_every_policy_finds_a_near_best_arm(policy):
    X = arms(200)
    result = AskTell(X, policy, seed=0).run(noisy(X), 150, call_with="indices")
    assert waves(X).max() - waves(X)[result.best_index] < 0.1
    assert len(result.history.indices) == 150


@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_an_arm_that_was_never_evaluated_is_not_recommended(policy):
    """A smooth kernel is above two equal results between them."""
    X = torch.tensor([[0.0], [0.5], [1.0]], dtype=torch.float64)
    settled = replace(policy, covar_module=rbf_kernel(0.7), regularization=0.01)
    loop = AskTell(X, settled, initial=(torch.tensor([0, 2]), torch.tensor([1.0, 1.1])))
    means, result = loop.state.posterior.means_at(torch.arange(3)), loop.result()
    assert int(means.argmax()) == 1
    assert (result.best_index, result.best_mean) == (2, float(means[2]))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("policy", POLICIES, ids=IDS)
def test_same_seed_gives_the_same_picks_for_any_memory_budget_and_thread_count(policy):
    X = arms(300)
    reference = AskTell(X, policy, seed=3).run(noisy(X), 80, call_with="indices").history.indices
    small = replace(policy, memory_bytes=2**20)
    assert AskTell(X, small, seed=3).run(noisy(X), 80, call_with="indices").history.indices == reference
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        assert AskTell(X, policy, seed=3).run(noisy(X), 80, call_with="indices").history.indices == reference
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("in_batch", ["fixed", "process"])
def test_a_float32_sweep_gives_the_same_picks(in_batch):
    X = arms(300)
    policy = BBKB(covar_module=rbf_kernel(0.3), in_batch=in_batch, **SETTINGS)
    reference = AskTell(X, policy, seed=3).run(noisy(X), 120, call_with="indices").history
    single = AskTell(X, replace(policy, sweep_dtype=torch.float32), seed=3).run(noisy(X), 120, call_with="indices").history
    assert single.indices == reference.indices
    assert sum(single.column("rechecked")) > 0


def test_global_generator_is_untouched():
    X = arms()
    before = torch.random.get_rng_state()
    AskTell(X, BBKB(), seed=0).run(noisy(X), 40, call_with="indices")
    assert torch.equal(before, torch.random.get_rng_state())


def test_bbkb_with_threshold_one_is_bkb():
    X = arms(100)
    common = {"covar_module": rbf_kernel(0.3), "regularization": 0.05, "width": ConstantWidth(2.0)}
    one = AskTell(X, BBKB(ratio_threshold=1.0, **common), seed=5).run(noisy(X), 30, call_with="indices").history
    assert set(one.column("batch_size")) == {1}
    assert one.indices == AskTell(X, BKB(**common), seed=5).run(noisy(X), 30, call_with="indices").history.indices


def test_bbkb_with_every_pulled_arm_process_and_product_rule_is_gp_bucb():
    X = arms(100)
    common = {"covar_module": rbf_kernel(0.3), "regularization": 0.05, "width": 2.0, "ratio_threshold": 3.0}
    everything = BBKB(stop_rule="gp-bucb", in_batch="process", oversampling=1e12, **common)
    sparse = AskTell(X, everything, seed=5).run(noisy(X), 90, call_with="indices").history
    assert sparse.indices == AskTell(X, GPBUCB(**common), seed=5).run(noisy(X), 90, call_with="indices").history.indices
    assert max(sparse.column("batch_size")) > 1


def test_gp_ucb_picks_are_those_of_the_dense_exact_gp():
    X, lam, width = arms(80), 0.05, 2.0
    history = (
        AskTell(X, GPUCB(covar_module=rbf_kernel(0.3), regularization=lam, width=width), seed=2)
        .run(noisy(X), 40, call_with="indices")
        .history
    )
    K = torch.exp(-0.5 * torch.cdist(X, X).square() / 0.3**2)
    picks = history.indices
    y = torch.tensor([v for row in history.rows for v in row.values], dtype=torch.float64)
    for t in range(1, 40):
        seen = torch.tensor(picks[:t])
        A = K[seen][:, seen] + lam * torch.eye(t, dtype=torch.float64)
        mean = K[:, seen] @ torch.linalg.solve(A, y[:t])
        variance = 1.0 - (K[:, seen] * torch.linalg.solve(A, K[seen]).T).sum(1)
        assert picks[t] == int((mean + width * variance.clamp_min(0).sqrt()).argmax())


def test_published_settings_are_accepted_and_give_the_authors_width():
    X = arms(50)
    policy = BBKB(
        covar_module=rbf_kernel(5**0.5),
        regularization=0.2,
        noise_variance=0.01,
        rkhs_norm=20.0,
        failure_probability=1e-4,
        oversampling=2.0,
        ratio_threshold=2.0,
        width="authors",
    )
    loop = AskTell(X, policy, seed=0)
    loop.run(noisy(X), 1, call_with="indices")
    gain = math.log1p(1.0 / 0.2)  # the first arm's leverage under the prior is k/λ
    expected = math.sqrt(0.2) * 20.0 + math.sqrt(0.01 * (2.0 * gain + math.log(1e4)))
    assert loop.state.width == pytest.approx(expected)


@pytest.mark.parametrize("domain", [Arms(arms(80)), Box(unit_box())], ids=["arms", "box"])
def test_information_knows_a_design_that_is_told_in_pieces_or_ends_with_a_failure(domain):
    """Theorem 2 of BBKB sums over all evaluations; only those told last were counted, and none where a failure came last."""
    policy = BBKB(covar_module=rbf_kernel(0.3), regularization=0.05, initial_design=8, width=BBKBTheory(rkhs_norm=1.0))
    mechanism = policy.on(domain)

    def seeded():
        return torch.Generator().manual_seed(0)

    start, options = mechanism.init(), {"pending": domain.no_picks, "generator": seeded()}
    picks = mechanism.ask(start, max_q=8, **options).picks
    y = waves(domain.inputs(picks) if isinstance(domain, Arms) else picks)
    failed = mechanism.fail(mechanism.tell(start, picks[:7], y[:7], generator=seeded()), picks[7:], generator=seeded())
    pieces = start
    for row in range(8):
        pieces = mechanism.tell(pieces, picks[row : row + 1], y[row : row + 1], generator=seeded())
    gain = math.log1p(3.0 / 0.05)
    assert pieces.fitted.information == pytest.approx(8 * gain)
    assert failed.fitted.information == pytest.approx(7 * gain)


def test_information_sums_the_leverages_at_the_start_of_each_batch():
    X = arms(50)
    loop = AskTell(X, BBKB(covar_module=rbf_kernel(0.3), regularization=0.05, rkhs_norm=1.0, width="authors"), seed=0)
    expected = math.log1p(1.0 / 0.05)
    loop.run(noisy(X), 1, call_with="indices")
    for _ in range(4):
        start = loop.state.posterior.leverages
        batch = loop.ask()
        expected += float(torch.log1p(start[batch.indices]).sum())
        loop.tell(batch.tickets, waves(X)[batch.indices])
    assert loop.state.fitted.information == pytest.approx(expected)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "sampler",
    [
        FirstSampler(size=5),
        UniformSampler(size=5),
        FixedSampler(points=arms(4, seed=9)),
        RecursiveRLSSampler(size=5),
        GreedyVarianceSampler(size=5),
        IPASampler(size=5),
        IVMSampler(size=5),
        KMeansPlusPlusSampler(size=5),
        KDPPSampler(size=5),
    ],
    ids=lambda s: type(s).__name__,
)
def test_other_dictionaries_can_take_the_place_of_leverage_sampling(sampler):
    X = arms(100)
    for kind in (BKB, BBKB):
        policy = kind(covar_module=rbf_kernel(0.3), dictionary=sampler, max_batch_size=10, **SETTINGS)
        loop = AskTell(X, policy, seed=0)
        loop.run(noisy(X), 20, call_with="indices")
        assert loop.state.dictionary.m == (4 if isinstance(sampler, FixedSampler) else 5)
    if isinstance(sampler, FixedSampler):
        assert torch.equal(loop.state.dictionary.points, sampler.points)


class Spy:
    """A sampler that keeps what it was shown."""

    def __init__(self):
        self.seen = []

    def sample(self, candidates, *, generator):
        self.seen.append(candidates)
        return UniformSampler(size=4).sample(candidates, generator=generator)


@pytest.mark.parametrize("sweep_dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_samplers_see_the_posterior_before_the_newest_batch(sweep_dtype):
    X, spy = arms(100), Spy()
    loop = AskTell(X, BBKB(covar_module=rbf_kernel(0.3), dictionary=spy, sweep_dtype=sweep_dtype, **SETTINGS), seed=0)
    loop.run(noisy(X), 30, call_with="indices")
    before = loop.state.posterior
    batch = loop.ask()
    loop.tell(batch.tickets, waves(X)[batch.indices])
    seen = spy.seen[-1]
    assert torch.equal(seen.X, X[seen.indices])
    assert torch.equal(seen.indices, loop.state.observations.indices)
    assert seen.regularization == SETTINGS["regularization"]
    tolerance = 1e-9 if sweep_dtype == torch.float64 else 1e-5
    torch.testing.assert_close(seen.means, before.means[seen.indices], rtol=0, atol=tolerance)
    torch.testing.assert_close(seen.leverages, before.leverages_at(seen.indices))
    torch.testing.assert_close(seen.covariance.diagonal(seen.X), before.prior.variances_at(seen.indices))
    assert spy.seen[0].leverages is None
    assert spy.seen[0].means is None


def test_prior_mean_shifts_the_posterior_exactly():
    X, shift = arms(50), 7.5
    index = torch.arange(10)
    common = {"covar_module": rbf_kernel(0.3), "regularization": 0.05, "dictionary": UniformSampler(size=6)}
    plain = AskTell(X, BBKB(**common), initial=(index, waves(X)[index])).state.posterior
    moved = AskTell(X, BBKB(prior_mean=shift, **common), initial=(index, waves(X)[index] + shift)).state.posterior
    assert torch.allclose(moved.means, plain.means + shift, atol=1e-10)
    assert torch.allclose(moved.leverages, plain.leverages, atol=1e-12)


def test_many_initial_observations_start_from_a_small_dictionary():
    X = arms(2000)
    index = torch.arange(0, 2000, 2)
    loop = AskTell(X, BBKB(covar_module=rbf_kernel(0.3), regularization=0.05), initial=(index, waves(X)[index]))
    assert loop.state.observations.n == 1000
    assert 10 < loop.state.dictionary.m < 500
    assert loop.certificate().factor < 3.0


def test_a_run_without_settings_learns_kernel_and_noise_and_learns_again_as_the_data_doubles():
    X = arms(200)
    loop = AskTell(X, BBKB(), seed=0)
    learned = []
    loop.run(noisy(X), 100, call_with="indices", callback=lambda loop, row: learned.append("learn" in row.seconds))
    truth = waves(X)
    assert truth.max() - truth[loop.result().best_index] < 0.05
    assert 2 <= sum(learned) <= 5
    assert 0.1**2 / 4 < loop.state.posterior.prior.regularization < 4 * 0.1**2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regularization": 0.0}, "regularization > 0, got 0.0"),
        ({"regularization": float("nan")}, "finite regularization"),
        ({"ratio_threshold": 0.5}, "ratio_threshold >= 1"),
        ({"oversampling": 0.0}, "oversampling > 0"),
        ({"failure_probability": 1.0}, r"failure_probability in \(0, 1\)"),
        ({"width": "theory"}, "needs rkhs_norm="),
        ({"width": "guess", "rkhs_norm": 1.0}, "'theory', 'authors'"),
        ({"width": -1.0}, "width >= 0"),
        ({"stop_rule": "never"}, "'global', 'local', 'gp-bucb'"),
        ({"in_batch": "both"}, "'fixed', 'process'"),
        ({"inclusion": "maybe"}, "'exact', 'union'"),
        ({"sweep_dtype": torch.float16}, "torch.float64 or torch.float32, got torch.float16"),
        ({"max_batch_size": 0}, "max_batch_size >= 1"),
        ({"initial_design": 0}, "initial_design >= 1"),
    ],
    ids=str,
)
def test_bad_settings_are_named_before_any_work(settings, message):
    with pytest.raises(ValueError, match=message):
        BBKB(covar_module=rbf_kernel(0.3), **{"regularization": 0.1, **settings})


def test_a_setting_of_the_wrong_kind_is_a_type_error():
    with pytest.raises(TypeError, match="covar_module to be a gpytorch"):
        BBKB(covar_module="rbf")
    with pytest.raises(TypeError, match="width to be a number"):
        BBKB(width=[2.0])


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (gpytorch.kernels.RBFKernel(ard_num_dims=5), "ard_num_dims=2"),
        (gpytorch.kernels.RBFKernel(batch_shape=torch.Size([3])), "without batch shape"),
        (gpytorch.kernels.RBFKernel(active_dims=[4]), "input column 4"),
    ],
    ids=["ard", "batch", "active"],
)
def test_a_kernel_that_does_not_fit_the_arms_is_named(kernel, message):
    with pytest.raises(ValueError, match=message):
        AskTell(arms(), BBKB(covar_module=kernel, regularization=0.1))


@pytest.mark.parametrize("policy", [BKB, BBKB, GPUCB, GPBUCB])
def test_identical_arms_and_a_constant_kernel_work(policy):
    X = torch.ones(300, 2, dtype=torch.float64)
    result = AskTell(X, policy(covar_module=gpytorch.kernels.ConstantKernel(), regularization=0.1)).run(
        lambda x: x[:, 0] * 2.0, 40
    )
    assert result.best_mean == pytest.approx(2.0, abs=0.05)


def test_repeated_arms_work_and_ties_go_to_the_lowest_index():
    X = arms(30).repeat(4, 1)
    result = AskTell(X, BBKB(covar_module=rbf_kernel(0.3), **SETTINGS), seed=0).run(noisy(X), 100, call_with="indices")
    assert max(result.history.indices[1:]) < 30


def test_float32_arms_are_computed_with_in_float64():
    X = arms(80)
    exact = AskTell(X.float().double(), BBKB(covar_module=rbf_kernel(0.3), **SETTINGS), seed=1)
    single = AskTell(X.float(), BBKB(covar_module=rbf_kernel(0.3), **SETTINGS), seed=1)
    truth = waves(X)
    for loop in (exact, single):
        loop.run(lambda i: truth[i], 40, call_with="indices")
    assert single.history.indices == exact.history.indices
    assert single.result().best_x.dtype == torch.float32


def test_the_sweep_of_streamed_arms_is_a_phase_of_the_history():
    axis = torch.linspace(0.0, 1.0, 200, dtype=torch.float64)
    settings = {"covar_module": rbf_kernel(0.3), "regularization": 0.05}
    streamed = AskTell(ProductGrid([axis, axis]), BBKB(memory_bytes=2**20, **settings), seed=0)
    held = AskTell(arms(50), BBKB(**settings), seed=0)
    for loop in (streamed, held):
        loop.run(lambda X: X.sum(dim=-1), 5)
    assert all(row.seconds["sweep"] > 0.0 for row in streamed.history.rows)
    assert not any("sweep" in row.seconds for row in held.history.rows)  # there it is part of the fit


@pytest.mark.parametrize("policy", [BBKB(), BBKB(repeats=False, batch_size=6), GPUCB()], ids=["bbkb", "plates", "gp-ucb"])
def test_a_learned_kernel_knows_columns_over_decades_by_their_logarithms(policy, tmp_path):
    X = arms(300, 2)
    X = torch.stack([10.0 ** (6.0 * X[:, 0] - 3.0), X[:, 1]], dim=1)
    y = -((X[:, 0].log10() - 1.0) / 3.0).square() - X[:, 1]

    def course(candidates, loop=None):
        loop = loop or AskTell(candidates, policy, seed=0)
        for _ in range(8):
            batch = loop.ask(6)
            loop.tell(batch, y[batch.indices])
        return loop

    known = modelled_arms(Arms(X), X)
    plain, other = course(X), course(known)
    assert plain.history.indices == other.history.indices  # as if its user had passed them
    assert torch.equal(plain.state.arms, X)
    assert plain.result().best.x.tolist() == X[plain.result().best_index].tolist()
    assert float(y.max() - y[plain.result().best_index]) < 0.05
    storage = Storage(tmp_path / "a.journal", replay_seconds=0.0)
    with AskTell(X, policy, seed=0, storage=storage) as recorded:
        course(X, recorded)
    with AskTell.resume(storage) as again:
        assert torch.equal(again.state.arms, X)
        assert torch.equal(again.state.observations.X, known[again.state.observations.rows])
        assert again.ask(3).indices.tolist() == plain.ask(3).indices.tolist()
