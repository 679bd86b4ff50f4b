"""Expected improvement over arms: picks against dense algebra, what is evaluated again, failures, journals, bad input."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, ScaleKernel

from sparse_bo import AskTell, History, ProductGrid, maximize, optimize
from sparse_bo.domains import Arms, Box, modelled_arms
from sparse_bo.linalg.chunking import tile_rows
from sparse_bo.policies import ExpectedImprovement, ImprovementState, RandomSearch, TwoStage, Wait
from sparse_bo.policies.outcomes import Outcomes
from tests.builders import arms, noisy, unit_box, waves
from tests.cli.builders import QUICK, invoke


def told(policy, X, evaluated, y):
    mechanism = policy.on(Arms(X))
    state = mechanism.tell(mechanism.init(), evaluated, y, generator=torch.Generator().manual_seed(0))
    return mechanism, state


def ask(mechanism, state, q, pending=()):
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    proposal = mechanism.ask(state, max_q=q, pending=torch.tensor(pending, dtype=torch.long), generator=generator)
    assert torch.equal(generator.get_state(), before)  # draws nothing once there is a model
    return proposal.picks.tolist()


def dense_picks(state, q, given, *, noise_variance, failed=(), refused=()):
    """Return the ``q`` arms after ``given`` ones by the formulas: joint Gaussian algebra, EI with Huang's factor, argmax.

    Failed arms shrink variances as pending ones do, but their means do not count as reached.
    """
    learned, U = state.surrogate.learned, state.unit
    replicates = state.replicates
    rows, counts = replicates.rows, replicates.counts[replicates.rows]
    y = state.surrogate.warp(replicates.values[rows])
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    picks = list(given)
    for _ in range(q):
        at = torch.cat([state.told[rows], torch.tensor([*failed, *picks], dtype=torch.long)])
        K = learned.cross(U[at], U[at])
        ones = torch.ones(len(at) - len(rows), dtype=torch.float64)
        K += learned.noise * torch.diag(torch.cat([1.0 / counts.double(), ones]))
        k = learned.cross(U, U[at])
        known = K[: len(rows), : len(rows)]
        means = learned.mean + k[:, : len(rows)] @ torch.linalg.solve(known, y - learned.mean)
        variances = learned.scale * (1.0 - (k * torch.linalg.solve(K, k.T).T).sum(-1)).clamp_min(1e-12)
        best = means[torch.cat([state.told[rows], torch.tensor(picks, dtype=torch.long)])].max()
        sd = variances.sqrt()
        z = (means - best) / sd
        improvement = sd * (z * normal.cdf(z) + normal.log_prob(z).exp())
        if noise_variance:
            improvement = improvement * (1.0 - math.sqrt(noise_variance) / (variances + noise_variance).sqrt())
        else:
            improvement[at] = 0.0
        improvement[list(refused)] = 0.0
        picks.append(int(improvement.argmax()))
    return picks[len(given) :]


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_picks_are_those_of_dense_algebra(noise):
    X = arms(80)
    evaluated = torch.tensor([3, 17, 42, 60, 71, 8, 33, 3])  # an arm twice: it tells whether there is noise
    y = waves(X[evaluated]) + noise * torch.tensor([0.3, -1.0, 0.4, 1.2, -0.7, 0.2, -0.1, -0.9], dtype=torch.float64)
    mechanism, state = told(ExpectedImprovement(initial_design=8), X, evaluated, y)
    tau = state.surrogate.gp.noise_variance if noise else 0.0
    assert ask(mechanism, state, 4) == dense_picks(state, 4, [], noise_variance=tau)
    assert ask(mechanism, state, 2, [5, 50]) == dense_picks(state, 2, [5, 50], noise_variance=tau)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_picks_of_arms_that_are_tried_once_are_those_of_dense_algebra(noise):
    X, evaluated = arms(30), torch.tensor([3, 17, 22, 10, 1, 8, 25, 3])  # told of one twice: it tells whether there is noise
    y = waves(X[evaluated]) + noise * torch.tensor([0.3, -1.0, 0.4, 1.2, -0.7, 0.2, -0.1, -0.9], dtype=torch.float64)
    policy = ExpectedImprovement(initial_design=8, batch_size=99, repeats=False)
    mechanism, state = told(policy, X, evaluated, y)
    tried, tau = evaluated.tolist(), state.surrogate.gp.noise_variance if noise else 0.0
    picks = []
    for _ in range(4):
        picks += dense_picks(state, 1, picks, noise_variance=tau, refused=[*tried, *picks])
    assert ask(mechanism, state, 4) == picks
    rest = ask(mechanism, state, 99)
    assert sorted(rest) == sorted(set(range(30)) - set(tried))


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_picks_stay_those_of_dense_algebra_while_hyper_parameters_are_kept(noise):
    """Variances of the last learning bound those of later batches: of 1,500 arms about a tenth is evaluated exactly."""
    X, generator = arms(1_500, 2), torch.Generator().manual_seed(3)
    quick = (17.0 * X[:, 0]).sin() + (13.0 * X[:, 1]).cos() + (33.0 * X.prod(dim=-1)).sin()

    def values(at):
        return quick[at] + noise * torch.randn(len(at), generator=generator, dtype=torch.float64)

    order = quick.argsort()  # without a record nothing is learned
    evaluated = torch.cat([order[torch.arange(0, 1_000, 10)], order[-200:-199], order[:1]])  # beyond 100, learned seldom
    mechanism, state = told(ExpectedImprovement(initial_design=8), X, evaluated, values(evaluated))
    first = state.surrogate
    for number in range(3):
        at = torch.cat([order[201 + 100 * number :][:1], order[:1]])
        state = mechanism.tell(state, at, values(at), generator=generator)
        assert state.surrogate.learned is first.learned
        tau = state.surrogate.gp.noise_variance if noise else 0.0
        assert ask(mechanism, state, 3) == dense_picks(state, 3, [], noise_variance=tau)
        assert ask(mechanism, state, 2, [5, 50]) == dense_picks(state, 2, [5, 50], noise_variance=tau)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_whatever_the_bounds_of_variances_the_picks_are_the_same(noise):
    X = arms(1_500, 2)
    evaluated = torch.cat([torch.arange(0, 1_500, 40), torch.tensor([0])])
    y = waves(X[evaluated]) + noise * torch.randn(
        len(evaluated), generator=torch.Generator().manual_seed(3), dtype=torch.float64
    )
    mechanism, state = told(ExpectedImprovement(initial_design=8), X, evaluated, y)
    expected = ask(mechanism, state, 4, [7])
    (sweep,), scale = state.sweeps, state.surrogate.gp.prior.scale
    of_others = torch.full_like(sweep.bound, 100.0 * scale)  # so loose that the best arms come after hundreds of others
    of_others[expected] = sweep.bound[expected]
    for bound in (torch.full_like(sweep.bound, scale), of_others):
        assert ask(mechanism, replace(state, sweeps=(replace(sweep, bound=bound),)), 4, [7]) == expected


def test_bounds_hold_where_observations_leave_the_model():
    X = arms(300, 3)
    mechanism, state = told(ExpectedImprovement(model_size=40), X, torch.arange(200), rough(torch.arange(200), 300, noise=0.0))
    first, known = state.surrogate.learned, set(state.told[state.surrogate.rows].tolist())
    for arm in range(200, 206):
        state = mechanism.tell(state, torch.tensor([arm]), torch.zeros(1, dtype=torch.float64), generator=torch.Generator())
        assert state.surrogate.learned is first
        gp = state.surrogate.gp
        assert 36 <= len(gp.support) <= 40
        assert bool((state.sweeps[0].bound >= gp.moments(state.unit).variance - 1e-12).all())
    assert set(state.told[state.surrogate.rows].tolist()) != known


def test_a_posterior_over_arms_in_several_tiles_is_that_of_all_at_once(device):
    X = arms(6_000, 3).to(device)
    policy, first = ExpectedImprovement(), torch.arange(30, device=device)
    mechanism, state = told(policy, X, first, waves(X[:30]))
    assert len(X) > tile_rows(len(first), device=torch.device("cpu"))
    new = torch.tensor([[4_000], [5_999]], device=device)
    after = [mechanism.tell(state, arm, waves(X[arm]), generator=torch.Generator()) for arm in new]
    for one in [*after, state]:  # two successors of a state, and the state itself
        gp, (sweep,) = one.surrogate.gp, one.sweeps
        expected = gp.moments(one.unit)
        torch.testing.assert_close(sweep.columns, gp.prior.kernel.cross(one.unit, gp.support).mT)
        torch.testing.assert_close(sweep.mean, expected.mean)
        assert bool((sweep.bound >= expected.variance - 1e-12).all())


class Tanimoto(Kernel):
    """Shared bits over bits of either (Rogers & Tanimoto 1960)."""

    def forward(self, x1, x2, diag=False, **params):
        both = (x1 * x2).sum(-1) if diag else x1 @ x2.mT
        ones = [x1.sum(-1), x2.sum(-1)] if diag else [x1.sum(-1, keepdim=True), x2.sum(-1).unsqueeze(-2)]
        return both / (ones[0] + ones[1] - both).clamp_min(1e-12)


def fingerprints(count=400, bits=64):
    """Return fingerprints in families: copies of a few with some bits flipped; and values that rise with the family."""
    generator = torch.Generator().manual_seed(0)
    heads = torch.rand(20, bits, generator=generator) < 0.2
    family = torch.arange(count) % 20
    flipped = torch.rand(count, bits, generator=generator) < 0.03
    X = (heads[family] ^ flipped).double()
    return X, family.double() / 19.0 + 0.3 * X[:, :8].mean(dim=-1)


def test_under_a_given_kernel_the_picks_are_those_of_dense_algebra():
    X, values = fingerprints()
    policy = ExpectedImprovement(covar_module=ScaleKernel(Tanimoto()), initial_design=8)
    policy.covar_module.outputscale = 50.0  # the scale is learned
    evaluated = torch.cat([torch.arange(0, 400, 7), torch.tensor([7])])
    mechanism, state = told(policy, X, evaluated, values[evaluated])
    kernel, learned = Tanimoto(), state.surrogate.learned
    at = state.told[state.surrogate.rows]
    y = state.surrogate.warp(values[at])
    K = kernel(X, X[at]).to_dense()
    noisy = torch.linalg.inv(K[at] + learned.noise * torch.eye(len(at), dtype=torch.float64))
    mean = learned.mean + K @ noisy @ (y - learned.mean)
    variance = learned.scale * (1.0 - (K @ noisy * K).sum(-1)).clamp_min(1e-12)
    z = (mean - mean[at].max()) / variance.sqrt()
    normal = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), 1.0)
    improvement = variance.sqrt() * (z * normal.cdf(z) + normal.log_prob(z).exp())
    improvement[evaluated] = 0.0
    assert ask(mechanism, state, 1) == [int(improvement.argmax())]


def test_a_given_kernel_finds_the_best_fingerprints_and_goes_on_from_a_journal(tmp_path):
    X, values = fingerprints()
    top = set(values.topk(20).indices.tolist())

    def found(policy):
        result = maximize(values.__getitem__, arms=X, policy=policy, budget=100, seed=0, call_with="indices", vectorized=True)
        return len(top & set(result.history.indices))

    policy = ExpectedImprovement(covar_module=Tanimoto(), batch_size=20, initial_design=20)
    assert found(policy) >= max(16, found(RandomSearch()) + 8)

    def go_on(loop, until):
        while loop.asked < until:
            batch = loop.ask(20)
            loop.tell(batch.tickets, values[batch.indices])
        return loop

    expected = go_on(AskTell(X, policy, seed=0), 80)
    with AskTell(X, policy, seed=0, storage=tmp_path / "run.journal") as loop:
        go_on(loop, 60)
    with AskTell.resume(tmp_path / "run.journal", policy=policy, arms=X) as again:
        assert go_on(again, 80).state.told.tolist() == expected.state.told.tolist()


def test_a_kernel_that_does_not_fit_is_refused():
    X, _ = fingerprints()
    with pytest.raises(TypeError, match=r"expected covar_module to be a gpytorch\.kernels\.Kernel or None, got str"):
        ExpectedImprovement(covar_module="tanimoto")
    with pytest.raises(ValueError, match="positive variances"):
        ExpectedImprovement(covar_module=LinearKernel()).on(Arms(torch.zeros(5, 2, dtype=torch.float64)))
    assert ExpectedImprovement(covar_module=Tanimoto()).on(Arms(X.float())).kernel.variance == 1.0


def test_a_kernel_with_a_computed_tensor_is_refused():
    kernel = LinearKernel()
    kernel.cached = kernel.raw_variance.exp()
    with pytest.raises(ValueError, match="can be copied, got LinearKernel with a computed tensor"):
        ExpectedImprovement(covar_module=kernel)


def test_failed_arms_shrink_the_variances_around_them():
    X = arms(80)
    evaluated = torch.tensor([3, 17, 42, 60, 71, 8, 33, 3])
    mechanism, state = told(ExpectedImprovement(initial_design=8), X, evaluated, waves(X[evaluated]))
    failed = dense_picks(state, 2, [], noise_variance=0.0)
    state = mechanism.fail(state, torch.tensor(failed), generator=torch.Generator())
    refused = state.refusal(torch.arange(0))(torch.arange(80)).nonzero().flatten().tolist()
    expected = dense_picks(state, 3, [], noise_variance=0.0, failed=failed, refused=refused)
    assert expected != dense_picks(state, 3, [], noise_variance=0.0, refused=refused)
    assert ask(mechanism, state, 3) == expected


def test_a_batch_in_pieces_is_the_batch_at_once():
    X = arms(200, 3)
    evaluated = torch.arange(0, 200, 20)
    mechanism, state = told(ExpectedImprovement(batch_size=6, initial_design=10), X, evaluated, waves(X[evaluated]))
    whole = ask(mechanism, state, 6)
    assert len(set(whole)) == 6
    assert whole[:2] + ask(mechanism, state, 9, whole[:2]) == whole
    assert mechanism.ask(state, max_q=3, pending=torch.tensor(whole), generator=torch.Generator()) == Wait(1)


def test_without_noise_one_arm_is_evaluated_twice_and_the_best_is_found():
    X = arms(1_000, 4)
    values = -((X - 0.3).square().sum(dim=-1) + 0.3 * torch.cos(9.0 * X).sum(dim=-1))
    result = maximize(values.__getitem__, arms=X, budget=60, seed=0, call_with="indices", vectorized=True)
    state = result.state
    assert isinstance(state, ImprovementState)
    assert result.best_index == int(values.argmax())
    assert (result.best_mean, result.best_sd) == (float(values.max()), 0.0)
    assert len(state.told) == 60
    assert len(torch.unique(state.told)) == 59


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_noise_makes_arms_worth_evaluating_again_and_an_evaluated_arm_is_recommended(seed):
    X = arms(150)
    result = maximize(noisy(X, seed, sd=0.5), arms=X, budget=80, seed=seed, call_with="indices", vectorized=True)
    told = result.state.told
    assert len(torch.unique(told)) < 75
    assert result.best_index in told.tolist()
    assert 0.0 < result.best_sd < 0.5
    assert float(waves(X).max() - waves(X)[result.best_index]) < 0.25


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("X", "values"),
    [
        (arms(4), [1.0, 2.0, 3.0, 2.0]),
        (arms(12), [5.0] * 12),
        (torch.ones(1, 3, dtype=torch.float64), [1.0]),
        (torch.cat([arms(20, 1), torch.full((20, 1), 7.0, dtype=torch.float64)], dim=1), list(range(20))),
        (arms(10, 1).repeat(3, 1), [float(i % 10) for i in range(30)]),
        (arms(30).float(), [1e30 * (-1.0) ** i for i in range(30)]),
    ],
    ids=["fewer arms than evaluations", "all equal", "one arm", "a constant column", "equal arms", "huge values"],
)
def test_whatever_the_arms_the_budget_is_spent_and_the_best_recommended(X, values):
    values = torch.tensor(values, dtype=torch.float64)
    result = maximize(values.__getitem__, arms=X, budget=25, seed=0, call_with="indices", vectorized=True)
    assert result.state.pulls == 25
    assert float(values[result.best_index]) == float(values.max())


@pytest.mark.slow
def test_arms_that_fail_are_left_alone_for_a_while():
    X, seen = arms(100), []

    def objective(i):
        seen.extend(i.tolist())
        y = waves(X)[i]
        y[X[i, 0] > 0.6] = torch.nan
        return y

    result = maximize(objective, arms=X, budget=60, seed=0, call_with="indices", vectorized=True)
    failed = [i for i in seen if float(X[i, 0]) > 0.6]
    assert 0 < len(failed) < 25
    assert len(set(failed)) > len(failed) - 4
    allowed = waves(X).masked_fill(X[:, 0] > 0.6, -torch.inf)
    assert result.best_index == int(allowed.argmax())


def test_a_run_goes_on_from_its_journal_with_the_same_picks(tmp_path):
    X = arms(120, 3)
    evaluate = noisy(X)

    def go_on(loop, until):
        while loop.asked < until:
            batch = loop.ask(until - loop.asked)
            loop.tell(batch.tickets, y[batch.indices] + 0.01 * torch.tensor(batch.tickets, dtype=torch.float64).cos())
        return loop

    y = evaluate(torch.arange(120))
    expected = go_on(AskTell(X, ExpectedImprovement(), seed=0), 30)
    with AskTell(X, ExpectedImprovement(), seed=0, storage=tmp_path / "run.journal") as loop:
        go_on(loop, 22)
    with AskTell.resume(tmp_path / "run.journal", arms=X) as again:
        assert again.policy == ExpectedImprovement()
        assert go_on(again, 30).state.told.tolist() == expected.state.told.tolist()


def test_a_lazy_set_that_fits_is_brought_into_memory():
    grid = ProductGrid([torch.linspace(0.0, 1.0, 9, dtype=torch.float64)] * 2)
    result = maximize(waves, arms=grid, policy=ExpectedImprovement(), budget=20, seed=0)
    assert result.best_index == int(waves(grid.rows(0, 81)).argmax())


def test_what_cannot_be_searched_is_refused():
    with pytest.raises(TypeError, match="chooses among arms, got a box"):
        ExpectedImprovement().on(Box(unit_box()))
    big = ProductGrid([torch.linspace(0.0, 1.0, 1_000, dtype=torch.float64)] * 3)
    with pytest.raises(ValueError, match="'expected-improvement' needs its arms in memory"):
        ExpectedImprovement().on(Arms(big))
    with pytest.raises(ValueError, match="batch_size"):
        ExpectedImprovement(batch_size=0)
    with pytest.raises(TypeError, match="initial_design"):
        ExpectedImprovement(initial_design=2.5)


def test_repeats_of_arms_inform_the_noise_without_more_rows():
    X = arms(120, 2)
    evaluated = torch.arange(120).repeat(4)
    _, state = told(ExpectedImprovement(), X, evaluated, noisy(X)(evaluated))
    y = state.surrogate.warp(state.y).reshape(4, 120)
    within = float((y - y.mean(dim=0)).square().sum()) / (3 * 120)
    assert state.surrogate.gp.noise_variance == pytest.approx(within, rel=0.15)


def rough(evaluated, count, *, noise):
    """Return observations of ``count`` arms that have nothing to do with each other; arm 15 is the best by far."""
    generator = torch.Generator().manual_seed(0)
    values = 0.5 * torch.randn(count, generator=generator, dtype=torch.float64)
    values[15] = 3.0
    return values[evaluated] + noise * torch.randn(len(evaluated), generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("several", [False, True])
def test_with_few_candidates_the_deviation_of_the_best_is_that_of_its_results(several):
    """All candidates are in the initial design: what is learned of the noise comes from repeats."""
    random, counts = torch.Generator().manual_seed(2), Counter[float]()

    def objective(x):
        counts[float(x[0])] += 1
        y = float(x[0]) + 2.0 * float(torch.randn((), generator=random))
        return {"y": y, "z": -y} if several else y

    how = {"objectives": {"y": "max", "z": "max"}} if several else {}
    candidates = torch.arange(5.0, dtype=torch.float64).unsqueeze(-1)
    result = (optimize if several else maximize)(objective, arms=candidates, budget=50, seed=0, vectorized=False, **how)
    assert len(counts) == 5
    at = max(counts, key=lambda x: counts[x])
    found = result.predict([int(at)])
    name = "y" if several else "value"
    width = float(found[f"{name}_upper"][0] - found[f"{name}_lower"][0])
    assert 0.6 < width / (2 * 1.96 * 2.0 / counts[at] ** 0.5) < 1.6


def test_an_evaluated_arm_outside_the_model_is_not_evaluated_again():
    """It was, hundreds of times: to the model it was as promising as before."""
    X = arms(210, 3)
    evaluated = torch.cat([torch.arange(200), torch.arange(20)])  # repeats show the noise
    mechanism, state = told(ExpectedImprovement(batch_size=60, model_size=40), X, evaluated, rough(evaluated, 210, noise=0.1))
    known = state.told[state.surrogate.rows]
    assert len(known) == 36  # nine tenths of what it may know
    picks = torch.tensor(ask(mechanism, state, 60))
    assert bool((torch.isin(picks, known) | (picks >= 200)).all())


def test_the_more_evaluations_the_more_of_them_may_be_of_the_best_arm():
    """Eleven evaluations of an arm tell it to 0.3 of the noise, which was enough however many there were in all."""
    X = torch.linspace(0.0, 1.0, 31, dtype=torch.float64).unsqueeze(-1)
    others = torch.cat([torch.arange(1, 15), torch.arange(16, 31)])  # arm 0 is never evaluated
    evaluated = torch.cat([others.repeat(24), torch.full((15,), 15)])
    mechanism, state = told(ExpectedImprovement(), X, evaluated, rough(evaluated, 31, noise=0.5))
    assert ask(mechanism, state, 1) == [15]


def test_the_command_line_takes_a_kernel(tmp_path):
    settings = ("--policy", "expected-improvement", "--kernel", "matern52", "--lengthscale", "0.2")
    done = invoke(*QUICK, *settings, "--out", str(tmp_path), "--quiet")
    assert done.exit_code == 0, done.output
    assert len(History.load(tmp_path / "gp-draw-expected-improvement-seed1.jsonl").indices) == 30


def test_picks_along_other_directions_depend_on_no_device(device):
    X = arms(200, 2)
    y = -(X[:, 0] + 0.7 * X[:, 1] - 0.6).square() - 1e3 * (X[:, 1] - 0.7 * X[:, 0] - 0.1).square()
    picks = []
    for place in {device, X.device}:
        loop = AskTell(X.to(place), ExpectedImprovement(batch_size=3), seed=0)
        asked = []
        for _ in range(12):
            batch = loop.ask(3)
            asked += batch.indices.tolist()
            loop.tell(batch.tickets, y[batch.indices.cpu()])
        assert loop.state.surrogate.learned.rotated
        assert loop.state.surrogate.learned.axes.device == batch.X.device
        picks.append(asked)
    assert picks[0] == picks[-1]


def test_while_all_results_are_equal_random_arms_follow():
    X = torch.rand(400, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = (1.0 - 3.0 * (X - 0.75).norm(dim=-1)).clamp_min(0.0)
    loop = AskTell(X, ExpectedImprovement(batch_size=4, initial_design=8), seed=0)
    for _ in range(12):
        batch = loop.ask(4)
        loop.tell(batch, truth[batch.indices])
    assert loop.result().best_observed_mean == float(truth.max())


def doses(*, unit=1.0):
    """Return 17 doses (none, then 10⁻³ to 10²) at seven temperatures and six pH (714 x 3), and responses, best at one arm."""
    d = torch.cat([torch.zeros(1, dtype=torch.float64), 10.0 ** torch.linspace(-3.0, 2.0, 16, dtype=torch.float64)])
    X = torch.cartesian_prod(d, torch.linspace(20.0, 80.0, 7).double(), torch.linspace(4.0, 9.0, 6).double())
    response = X[:, 0] / (X[:, 0] + 0.05) / (1.0 + (X[:, 0] / 1.5).square())
    y = response * torch.exp(-((X[:, 1] - 50.0) / 20.0).square() - ((X[:, 2] - 6.5) / 1.5).square())
    return X * torch.tensor([unit, 1.0, 1.0], dtype=torch.float64), y


@pytest.mark.parametrize("unit", [1.0, -1.0])
@pytest.mark.parametrize("controls", [0, 7_000])
def test_a_model_knows_a_column_over_decades_by_its_logarithms(unit, controls):
    X, _ = doses(unit=unit)
    X = torch.cat([X, X[:1].expand(controls, -1)])
    logs = torch.asinh(X[:, :1] / 1e-3)
    linear = (X[:, 1:] - X[:, 1:].amin(dim=0)) / (X[:, 1:].amax(dim=0) - X[:, 1:].amin(dim=0))
    logs = (logs - logs.min()) / (logs.max() - logs.min())
    torch.testing.assert_close(modelled_arms(Arms(X), X), torch.cat([logs, linear], dim=1))


@pytest.mark.parametrize(
    "column",
    [
        torch.linspace(0.001, 1.0, 300).double(),  # no more skewed than its logarithms
        10.0 ** torch.linspace(-1.0, 0.9, 300).double(),  # less than two decades
        10.0 ** torch.linspace(-3.0, 3.0, 300).double() - 1.0,  # negative numbers
        torch.full((300,), 3.0).double(),
        torch.zeros(300).double(),
        torch.cat([torch.zeros(240), torch.linspace(0.004, 1.0, 60)]).double(),  # few have any
        torch.cat([1e-17 * torch.linspace(-1.0, 1.0, 240), torch.linspace(0.004, 1.0, 60)]).double(),  # up to round-off
        torch.cat([1e-17 * torch.linspace(0.0, 1.0, 240), torch.linspace(0.004, 1.0, 60)]).double(),  # without negative ones
        torch.cat([1e-17 * torch.linspace(-1.0, 1.0, 285), torch.linspace(0.004, 1.0, 15)]).double(),  # most distinct ones
        torch.cat([torch.full((1,), 1e-310).double(), torch.full((299,), 1e10).double()]),  # more decades than numbers have
        torch.cat([-1e-300 * torch.linspace(0.1, 1.0, 299).double(), torch.full((1,), 1e10).double()]),  # on both sides of 0
    ],
)
def test_other_columns_are_known_as_they_are(column):
    X = torch.stack([column, torch.linspace(0.0, 1.0, 300).double()], dim=1)
    span = column.max() - column.min()
    torch.testing.assert_close(modelled_arms(Arms(X), X)[:, 0], (column - column.min()) / (span if span > 0.0 else 1.0))


@pytest.mark.parametrize("missing", [-999.0, 1e6])
@pytest.mark.parametrize("most", [False, True])
def test_numbers_far_from_the_others_leave_these_apart(missing, most):
    X = arms(300, 2) - 0.5
    apart = torch.arange(300) % 5 < 2 if most else torch.arange(300) % 9 > 0
    X[~apart, 0] = missing
    ranked = X[:, 0].unique()
    size = len(ranked) * 9 // 10
    shortest = (ranked[size - 1 :] - ranked[: len(ranked) - size + 1]).min()
    known = modelled_arms(Arms(X), X)
    bent = torch.asinh((X[:, 0] - ranked[(len(ranked) - 1) // 2]) / (0.25 * shortest))
    torch.testing.assert_close(known[:, 0], (bent - bent.min()) / (bent.max() - bent.min()))
    assert float(known[apart, 0].max() - known[apart, 0].min()) > 0.08
    y = waves(X.clamp(-1.0, 1.0)) - X[:, 0].abs().clamp(max=1.0)
    result = maximize(lambda i: y[i], arms=X, budget=60, seed=0, call_with="indices")
    assert y[result.best_index] == y.max()


@pytest.mark.parametrize("missing", [[-999.0], [99_999.0], [-999.0, -997.0], [99_999.0, 99_997.0]])
def test_two_values_stay_apart_beside_missing_ones(missing):
    X = torch.tensor([0.0, 1.0, *missing]).double().repeat(20).unsqueeze(-1)
    known = modelled_arms(Arms(X), X)
    assert float((known[0] - known[1]).abs()) > 0.1


@pytest.mark.parametrize("missing", [[-999.0, -998.0], [-999.0, 99_999.0]])
def test_few_values_stay_apart_beside_missing_ones_of_two_kinds(missing):
    X = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, *missing]).double().repeat(20).unsqueeze(-1)
    known = modelled_arms(Arms(X), X)
    assert float((known[5] - known[0]).abs()) > 0.1


@pytest.mark.parametrize("policy", [ExpectedImprovement(batch_size=4), TwoStage(after=12)])
def test_picks_over_columns_on_another_scale_depend_on_no_device(policy, device):
    X, y = doses()
    X[::50, 1] = -99_999.0  # missing
    picks = [
        maximize(lambda i: y[i.cpu()], arms=X.to(place), policy=policy, budget=28, seed=0, call_with="indices").history.indices
        for place in (device, "cpu")
    ]
    assert picks[0] == picks[1]


@pytest.mark.parametrize("size", [1.0, 1e-120, 1e120])
def test_positive_numbers_are_apart_from_one_for_a_missing_one_in_any_unit(size):
    X = arms(300, 2)
    X[:, 0] = size * (290.0 + 20.0 * X[:, 0])  # temperatures in K, whose logarithms are about equal
    X[::100, 0] = size * 99_999.0
    known, near = modelled_arms(Arms(X), X)[:, 0], X[:, 0] < size * 1_000.0
    assert float(known[near].max() - known[near].min()) > 0.1
    logs = torch.stack([size * 10.0 ** torch.linspace(-3.0, 3.0, 300).double(), X[:, 1]], dim=1)
    assert float(modelled_arms(Arms(logs), logs)[:, 0].median()) > 0.4


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_best_dose_is_found_in_any_unit(seed):
    picks = []
    for unit in (1.0, 1e-9):
        X, y = doses(unit=unit)
        result = maximize(lambda i, y=y: y[i], arms=X, budget=40, seed=seed, call_with="indices")
        assert y[result.best_index] == y.max()
        picks.append(result.history.indices)
    assert picks[0] == picks[1]


@pytest.mark.parametrize("several", [False, True])
def test_failures_of_low_doses_speak_against_low_doses(several):
    """On a linear scale a dose of 0.1 would be as near to them as theirs are to each other."""
    X, y = doses()
    domain, rows = Arms(X), torch.arange(len(X))
    policy = ExpectedImprovement(initial_design=8)
    mechanism = policy.on_outcomes(domain, Outcomes.of({"a": "max", "b": "max"})) if several else policy.on(domain)
    generator = torch.Generator().manual_seed(0)
    well = rows[X[:, 0] > 5.0][::5]
    values = torch.stack([y, -X[:, 1]], dim=1)[well] if several else y[well]
    state = mechanism.tell(mechanism.init(), well, values, generator=generator)
    state = mechanism.fail(state, rows[X[:, 0] < 0.003][::2], generator=generator)
    refused = state.refusal()(rows)
    low, high = refused[(X[:, 0] < 0.003)], refused[(X[:, 0] > 0.4) & (X[:, 0] < 5.0)]
    assert low.double().mean() > 0.9
    assert not high.any()


def test_a_model_may_know_a_single_arm():
    X = torch.rand(40, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    policy = ExpectedImprovement(model_size=1, initial_design=4, batch_size=3)
    result = maximize(lambda X: -(X - 0.4).square().sum(dim=-1), arms=X, policy=policy, budget=20)
    assert len(result.state.surrogate.rows) == 1
