"""GSSBO, RSSBO and GP-UCB through BoTorch on a box."""

from itertools import pairwise

import pytest
import torch
from botorch.acquisition import LogExpectedImprovement, qLogExpectedImprovement
from botorch.exceptions.errors import ModelFittingError
from botorch.models import SingleTaskGP

from sparse_bo import GSSBO, AskTell, gradient_subset, maximize
from sparse_bo.dictionary import FirstSampler
from sparse_bo.domains import Box
from sparse_bo.errors import NumericalWarning
from sparse_bo.models import VecchiaGP
from sparse_bo.policies import QFFTS, RSSBO, SGPTS, BoTorchUCB, SparseUCB, VecchiaUCB, states
from sparse_bo.policies.comparators.thompson import matheron_paths
from sparse_bo.policies.protocol import Wait
from sparse_bo.policies.subset.subsets import Buffer, random_subset
from sparse_bo.policies.subset.surrogate_models import exact_gp, sparse_gp
from tests.builders import unit_box
from tests.policies.builders import SMALL, bowl, box, keep_parameters


def points(policy, budget, seed=0, **options):
    return AskTell(policy=policy, bounds=options.pop("bounds", box()), seed=seed).run(bowl, budget).history.points


@pytest.mark.slow
def test_the_maximum_is_found_beyond_the_buffer(device):
    policy = GSSBO(**SMALL, buffer=10, width=0.5, fitter=keep_parameters)
    result = maximize(bowl, bounds=box(device), policy=policy, budget=16, seed=0)
    assert float(bowl(result.best_x)) > -0.1
    assert result.state.subset.shape == (10,)
    assert result.history.rows[-1].dictionary_size == 10
    assert result.best_sd is not None


@pytest.mark.parametrize("policy", [GSSBO, RSSBO])
def test_up_to_the_buffer_it_is_the_plain_method(policy):
    assert points(policy(**SMALL, buffer=8, fitter=keep_parameters), 8) == points(
        BoTorchUCB(**SMALL, fitter=keep_parameters), 8
    )


def test_the_same_seed_repeats_and_the_global_generators_stay_untouched(generator):
    before = torch.get_rng_state()
    runs = [points(GSSBO(**SMALL, buffer=5), 7, seed=s) for s in (0, 0, 1)]
    assert torch.equal(torch.get_rng_state(), before)
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_initial_and_newest_observations_always_stay_and_old_ones_may_come_back():
    for policy in (GSSBO, RSSBO):
        loop = AskTell(policy=policy(**SMALL, buffer=7, fitter=keep_parameters), bounds=box(), seed=0)
        subsets = []
        loop.run(bowl, 12, callback=lambda loop, row, subsets=subsets: subsets.append(loop.state.subset))
        dropped = set()
        for n, subset in enumerate(subsets, start=4):  # the first batch is the initial design
            kept = set(subset.tolist())
            assert {0, 1, 2, 3, n - 1} <= kept
            assert len(kept) == min(7, n)
            dropped |= set(range(n)) - kept
        assert dropped


def test_a_round_chooses_by_the_public_function_from_the_model_before():
    policy = GSSBO(**SMALL, buffer=8, pool="all", fitter=keep_parameters)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 11)
    state, generator = loop.state, torch.Generator().manual_seed(5)
    x = torch.tensor([[0.0, 20.0]], dtype=torch.float64)
    after = policy.on(state.box).tell(state, x, bowl(x), generator=generator)
    X = (after.X - after.box.lower) / (after.box.upper - after.box.lower)
    expected = gradient_subset(
        state.surrogate, X, after.y, size=8, initial=4, newest=1, generator=torch.Generator().manual_seed(5)
    )
    assert after.subset.tolist() == expected.tolist()
    torch.testing.assert_close(after.surrogate.train_inputs[0], X[expected])


def test_the_buffer_pool_holds_only_the_last_subset_and_the_newest():
    loop = AskTell(policy=GSSBO(**SMALL, buffer=8, pool="buffer", fitter=keep_parameters), bounds=box(), seed=0)
    subsets = []
    loop.run(bowl, 13, callback=lambda loop, row: subsets.append(loop.state.subset))
    for before, after in pairwise(subsets[4:]):
        assert set(after.tolist()) <= {*before.tolist(), int(after.max())}


@pytest.mark.parametrize(("gradient", "pool"), [("column", "exact"), ("scalar", "exact"), ("nystrom", None)])
def test_the_exact_pool_holds_every_observation(gradient, pool):
    """Algorithm 1 never prunes its data: what was dropped may return."""
    policy = GSSBO(**SMALL, buffer=8, gradient=gradient, pool=pool, fitter=keep_parameters)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 11)
    state, x = loop.state, torch.tensor([[0.0, 20.0]], dtype=torch.float64)
    after = policy.on(state.box).tell(state, x, bowl(x), generator=torch.Generator().manual_seed(5))
    options = {"size": 8, "initial": 4, "newest": 1, "gradient": gradient, "pool": torch.arange(12)}
    X = state.box.to_unit(after.X)
    expected = gradient_subset(state.surrogate, X, after.y, **options, generator=torch.Generator().manual_seed(5))
    assert after.subset.tolist() == expected.tolist()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "policy",
    [
        BoTorchUCB(initial_design=8, learning="likelihood"),
        GSSBO(initial_design=8, buffer=10, learning="likelihood"),
        RSSBO(initial_design=8, buffer=10, learning="likelihood", condition_on="all"),
        SparseUCB(initial_design=8, dictionary=FirstSampler(size=9), learning="likelihood"),
        VecchiaUCB(initial_design=8, neighbors=8, learning="likelihood"),
        SGPTS(initial_design=8, learning="likelihood"),
        QFFTS(initial_design=8, learning="likelihood"),
    ],
    ids=["botorch-ucb", "gssbo", "rssbo, all known", "sparse-ucb", "vecchia-ucb", "s-gp-ts", "qff-ts"],
)
def test_maximum_likelihood_learns_an_output_scale_without_priors(policy):
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 11)
    model = loop.state.surrogate
    assert not list(model.named_priors())
    lengthscales, scale = model.covar_module.base_kernel.lengthscale.detach(), float(model.covar_module.outputscale.detach())
    assert bool((lengthscales > 0.0249).all())
    assert bool((lengthscales < 10.01).all())
    assert scale != 1.0, "where it started"


def test_random_subsets_are_uniform_among_the_free(generator):
    counts = torch.zeros(12)
    for _ in range(3000):
        subset = random_subset(12, size=7, initial=3, newest=2, generator=generator)
        assert subset.tolist() == sorted(set(subset.tolist()))
        counts[subset] += 1
    assert counts[[0, 1, 2, 10, 11]].tolist() == [3000.0] * 5
    assert float((counts[3:10] / 3000 - 2 / 7).abs().max()) < 0.04


@pytest.mark.parametrize(("slowdown", "buffer"), [(2.0, 72), (4.0, 102), (6.0, 121), (8.0, 136)])
def test_the_cost_model_gives_the_buffers_of_the_paper(slowdown, buffer):
    # M "is usually around 100 and will change with Z" (§6) for n₀ = 20.
    policy = GSSBO(slowdown=slowdown)
    assert policy.fixed_buffer == buffer

    def cost(n):
        return 1.0 + (n / 70) ** 3

    assert cost(buffer) > slowdown * cost(20) >= cost(buffer - 1)


def test_the_clock_fixes_the_buffer_when_an_update_is_slow(monkeypatch):
    ticks = {"now": 0.0, "step": 1.0}

    def clock():
        ticks["now"] += ticks["step"]
        return ticks["now"]

    monkeypatch.setattr(states.time, "perf_counter", clock)
    policy = GSSBO(**SMALL, buffer="clock", slowdown=2.0, fitter=keep_parameters)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 14)  # 4 initial points and ten rounds in the usual time
    assert loop.state.buffer is None
    ticks["step"] = 1.9
    loop.run(bowl, 1)  # slow, but not slower than Z times the mean
    assert loop.state.buffer is None
    ticks["step"] = 2.5
    loop.run(bowl, 1)
    assert loop.state.buffer == 16
    ticks["step"] = 1.0
    loop.run(bowl, 3)
    assert loop.state.buffer == len(loop.state.subset) == 16


def test_a_clock_that_is_running_survives_a_snapshot(generator):
    search = GSSBO(**SMALL, buffer="clock", fitter=keep_parameters).on(Box(box()))
    state = search.init()
    for _ in range(3):
        X = search.box.uniform(4, generator=generator)
        state = search.tell(state, X, bowl(X), generator=generator)
    frozen = search.freeze(state)
    again = search.thaw({**frozen, "first_seconds": list(frozen["first_seconds"])})  # as JSON gives it back
    assert len(again.first_seconds) == 3
    assert again.first_seconds == state.first_seconds
    x = search.box.uniform(2, generator=generator)
    torch.testing.assert_close(again.model.posterior(x).mean, state.model.posterior(x).mean)


def test_the_parts_of_different_policies_go_together(generator):
    policy = BoTorchUCB(**SMALL, batch_size=2, fitter=keep_parameters)
    buffer = Buffer(size=7, initial=4)
    search = policy.loop(Box(box()), sparse_gp, buffer=buffer, draws=matheron_paths, condition_on="all")
    state = search.init()
    for _ in range(6):
        picks = search.ask(state, max_q=9, pending=state.X[:0], generator=generator).picks
        state = search.tell(state, picks, bowl(picks), generator=generator)
    assert len(state.y) == len(state.surrogate.train_inputs[0]) == 14
    assert len(state.subset) == 7
    assert {0, 1, 2, 3, 12, 13} <= set(state.subset.tolist())


def test_many_observations_at_the_start_do_not_overrun_the_buffer(generator):
    X = torch.rand(40, 2, generator=generator, dtype=torch.float64) * (box()[1] - box()[0]) + box()[0]
    for policy in (GSSBO, RSSBO):
        loop = AskTell(policy=policy(**SMALL, buffer=9, fitter=keep_parameters), bounds=box(), seed=0, initial=(X, bowl(X)))
        assert len(loop.state.subset) == 9
        loop.run(bowl, 2)
        assert len(loop.state.subset) == 9
        assert {0, 1, 2, 3, 41} <= set(loop.state.subset.tolist())


def test_any_acquisition_function_and_surrogate(device):
    calls = []

    def improvement(model, X, y):
        calls.append((tuple(X.shape), float(X.min()) >= 0.0, float(X.max()) <= 1.0))
        return LogExpectedImprovement(model, best_f=float(y.max()))

    def rbf_gp(X, Y):
        return SingleTaskGP(X, Y)

    policy = GSSBO(**SMALL, buffer=6, acquisition=improvement, surrogate=rbf_gp)
    result = maximize(bowl, bounds=box(device), policy=policy, budget=8, seed=0)
    assert calls == [((n, 2), True, True) for n in (4, 5, 6, 6)]
    assert float(bowl(result.best_x)) > -1.0


# Where a candidate meets a pending point their covariance is singular: whether BoTorch's sampler says so is up to round-off.
@pytest.mark.filterwarnings("ignore:A not p.d., added jitter:linear_operator.utils.warnings.NumericalWarning")
def test_batches_with_the_default_and_a_monte_carlo_acquisition_function():
    for acquisition in (None, lambda model, X, y: qLogExpectedImprovement(model, best_f=float(y.max()))):
        policy = GSSBO(**SMALL, batch_size=3, buffer=9, acquisition=acquisition, fitter=keep_parameters)
        rows = AskTell(policy=policy, bounds=box(), seed=0).run(bowl, 7).history.rows
        assert [row.batch_size for row in rows] == [4, 3]
        assert len({tuple(x) for x in rows[-1].points}) == 3


def test_pending_points_count_towards_the_batch_and_are_avoided(generator):
    policy = GSSBO(**SMALL, batch_size=2, fitter=keep_parameters)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 8)
    none, search = loop.state.X[:0], policy.on(loop.state.box)
    first = search.ask(loop.state, max_q=1, pending=none, generator=torch.Generator().manual_seed(0)).picks
    second = search.ask(loop.state, max_q=9, pending=first, generator=torch.Generator().manual_seed(0)).picks
    assert first.shape == second.shape == (1, 2)
    assert float((first - second).abs().max()) > 1e-3
    assert search.ask(loop.state, max_q=9, pending=torch.cat([first, second]), generator=generator) == Wait(1)
    assert len(search.ask(search.init(), max_q=9, pending=none, generator=generator).picks) == 4
    assert search.ask(search.init(), max_q=9, pending=loop.state.X[:4], generator=generator) == Wait(4)


def test_pending_points_reach_the_acquisition_function(generator):
    made = []

    def improvement(model, X, y):
        made.append(qLogExpectedImprovement(model, best_f=float(y.max())))
        return made[-1]

    policy = GSSBO(**SMALL, batch_size=2, acquisition=improvement, fitter=keep_parameters)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 4)
    pending = torch.tensor([[1.0, 25.0]], dtype=torch.float64)
    policy.on(loop.state.box).ask(loop.state, max_q=1, pending=pending, generator=generator)
    assert made[-1].X_pending.tolist() == [[0.5, 0.75]]


def test_analytic_acquisition_functions_refuse_pending_points(generator):
    policy = BoTorchUCB(
        **SMALL, batch_size=2, acquisition=lambda m, X, y: LogExpectedImprovement(m, best_f=0.0), fitter=keep_parameters
    )
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 4)
    with pytest.raises(ValueError, match="got LogExpectedImprovement; use a Monte-Carlo"):
        policy.on(loop.state.box).ask(loop.state, max_q=1, pending=loop.state.X[:1], generator=generator)


def test_warm_starts_take_over_parameters_and_cold_ones_do_not():
    seen = []

    def fit(model):
        seen.append(model.likelihood.noise.item())
        model.likelihood.noise = 0.123

    for warm in (True, False):
        points(BoTorchUCB(**SMALL, warm_start=warm, fitter=fit), 6)
    default = exact_gp(torch.rand(3, 2).double(), torch.rand(3, 1).double()).likelihood.noise.item()
    assert seen == pytest.approx([default, 0.123, 0.123, default, default, default])


def test_a_failed_fit_is_reported_and_the_run_goes_on():
    def fit(model):
        raise ModelFittingError("no luck")

    with pytest.warns(NumericalWarning, match=r"could not be learned from 4 observations .no luck."):
        points(BoTorchUCB(**SMALL, fitter=fit), 4)


def test_single_precision_boxes_are_computed_in_double(device):
    result = maximize(bowl, bounds=box(device, torch.float32), policy=GSSBO(**SMALL, buffer=5), budget=7, seed=0)
    assert result.best_x.dtype == torch.float32
    assert result.state.X.dtype == torch.float64


def test_bad_settings():
    for settings, message in [
        ({"buffer": 20}, "buffer=20 for initial_design=20 and batch_size=1; raise buffer"),
        ({"buffer": "auto"}, "'model', 'clock'"),
        ({"slowdown": 1.0}, "slowdown > 1"),
        ({"gradient": "both"}, "'column', 'scalar', 'nystrom'"),
        ({"learning": "bayes"}, "'map', 'likelihood'"),
        ({"pool": "none"}, "'all', 'buffer', 'exact'"),
        ({"condition_on": "everything"}, "'subset', 'all'"),
        ({"perturbation": -1.0}, "perturbation >= 0"),
        ({"initial_design": 0}, "initial_design >= 1"),
        ({"width": 0.0}, "width > 0"),
        ({"num_restarts": 10, "raw_samples": 9}, "raw_samples >= num_restarts"),
    ]:
        with pytest.raises(ValueError, match=message):
            GSSBO(**settings)
    for name in ("surrogate", "fitter", "acquisition"):
        with pytest.raises(TypeError, match=f"{name} to be a function"):
            GSSBO(**{name: 3})
    with pytest.raises(TypeError, match="searches a box, got an arm set"):
        AskTell(torch.rand(5, 2, dtype=torch.float64), GSSBO())
    with pytest.raises(TypeError, match="surrogate to return a BoTorch model, got int"):
        points(GSSBO(**SMALL, surrogate=lambda X, Y: 3), 5)
    with pytest.raises(TypeError, match="acquisition to return an AcquisitionFunction, got NoneType"):
        points(GSSBO(**SMALL, acquisition=lambda *_: None, fitter=keep_parameters), 5)


def test_conditioned_on_all_the_acquisition_function_knows_every_observation(device):
    calls, fitted = [], []

    def improvement(model, X, y):
        calls.append((len(X), float(y.max())))
        return LogExpectedImprovement(model, best_f=float(y.max()))

    def fit(model):
        fitted.append(model.train_inputs[0].clone())
        keep_parameters(model)

    policy = GSSBO(**SMALL, buffer=6, condition_on="all", acquisition=improvement, fitter=fit)
    loop = AskTell(policy=policy, bounds=box(device), seed=0)
    loop.run(bowl, 11)
    state = loop.state
    assert [n for n, _ in calls] == list(range(4, 11))
    assert calls[-1][1] == float(state.y[:10].max())
    X = (state.X - state.box.lower) / (state.box.upper - state.box.lower)
    assert len(state.subset) == 6
    torch.testing.assert_close(fitted[-1], X[state.subset])
    torch.testing.assert_close(state.surrogate.train_inputs[0], X)


@pytest.mark.parametrize("policy", [GSSBO, RSSBO])
@pytest.mark.parametrize("buffer", [6, 14])
def test_conditioned_on_all_with_the_same_parameters_the_model_is_gp_ucbs(policy, buffer, device):
    X = torch.rand(14, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(device)
    X = box(device)[0] + X * (box(device)[1] - box(device)[0])

    def posterior(chosen):
        model = AskTell(policy=chosen, bounds=box(device), seed=0, initial=(X, bowl(X))).state.model
        answer = model.posterior(X[:5] + 0.3)
        return torch.cat([answer.mean, answer.variance], dim=-1).detach()

    options = {**SMALL, "fitter": keep_parameters}
    expected = posterior(BoTorchUCB(**options))
    torch.testing.assert_close(posterior(policy(**options, buffer=buffer, condition_on="all")), expected)
    if buffer < 14:
        assert float((posterior(policy(**options, buffer=buffer)) - expected).abs().max()) > 0.1


@pytest.mark.parametrize("warm_start", [True, False])
def test_conditioned_on_all_parameters_that_all_data_dislike_are_not_taken_over(warm_start):
    proposals, scales = iter([0.05, 0.05, 0.05, 0.5, 0.05, 0.05]), []

    def fit(model):
        keep_parameters(model)
        model.covar_module.lengthscale = next(proposals)

    policy = GSSBO(**SMALL, buffer=6, condition_on="all", warm_start=warm_start, fitter=fit)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(
        bowl, 9, callback=lambda loop, _: scales.append(float(loop.state.surrogate.covar_module.lengthscale[0, 0].detach()))
    )
    assert scales == pytest.approx([0.05, 0.05, 0.05, 0.5, 0.5, 0.5])  # beyond six observations they must be likelier


@pytest.mark.parametrize("pool", [None, "buffer", "all"])
def test_conditioned_on_all_the_choice_is_among_all(pool):
    policy = GSSBO(**SMALL, buffer=6, pool=pool, condition_on="all", fitter=keep_parameters)
    loop = AskTell(policy=policy, bounds=box(), seed=0)
    loop.run(bowl, 10)
    state, x = loop.state, torch.tensor([[0.0, 20.0]], dtype=torch.float64)
    after = policy.on(state.box).tell(state, x, bowl(x), generator=torch.Generator().manual_seed(5))
    X = (after.X - after.box.lower) / (after.box.upper - after.box.lower)
    options = {"size": 6, "initial": 4, "newest": 1, "generator": torch.Generator().manual_seed(5)}
    rows = torch.cat([state.subset, torch.tensor([10])]) if pool == "buffer" else None
    expected = gradient_subset(state.surrogate, X, after.y, pool=rows, **options)
    assert after.subset.tolist() == expected.tolist()


def test_a_run_conditioned_on_all_can_be_resumed_from_its_journal(tmp_path):
    def loop(**options):
        return AskTell(policy=GSSBO(**SMALL, buffer=6, condition_on="all"), bounds=box(), seed=0, **options)

    reference = loop().run(bowl, 8).history.points
    with loop(storage=tmp_path / "run.journal") as first:
        first.run(bowl, 7)
    with AskTell.resume(tmp_path / "run.journal") as again:
        assert again.policy.condition_on == "all"
        assert again.run(bowl, 1).history.points == reference


def test_conditioned_on_all_the_surrogate_must_take_rows():
    policy = GSSBO(**SMALL, buffer=6, condition_on="all", surrogate=lambda X, Y: VecchiaGP(X, Y), fitter=lambda model: None)
    with pytest.raises(TypeError, match="exact inference, such as SingleTaskGP, got VecchiaGP"):
        points(policy, 8)


@pytest.mark.slow
@pytest.mark.parametrize("policy", [GSSBO(), BoTorchUCB()], ids=lambda policy: policy.name)
def test_small_values_are_no_constant(policy):
    """BoTorch's standardisation takes a deviation below 1e-8 for none."""
    result = maximize(lambda X: -1e-12 * (X - 0.4).square().sum(dim=-1), bounds=unit_box(), policy=policy, budget=26, seed=0)
    assert float(-1e-12 * (result.best_x - 0.4).square().sum()) > -1e-14
    assert 0.0 < result.best_sd < 1e-13
