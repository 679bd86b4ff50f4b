"""Streamed arm sets: the contenders hold every pick, and picks are those of the arms in memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel

from sparse_bo import BBKB, BKB, AskTell, MemmapArms, ProductGrid
from sparse_bo.arms import ArmPosterior, ContenderPosterior, KernelColumns, StopRule, arm_posterior, fit_arms, pick_batch
from sparse_bo.arms.in_batch import Conditioner, contenders_after
from sparse_bo.arms.prior import Sizes
from sparse_bo.domains.lazy import LazyArms
from tests.arms.builders import Problem, random_problem
from tests.arms.low_precision import SETTINGS, set_products
from tests.builders import rbf_kernel, unit_box

UPDATES = ["fixed", "process"]
WIDTH = 1.5


class Held(LazyArms):
    """A tensor that pretends to be streamed."""

    distinct = False

    def __init__(self, X: torch.Tensor) -> None:
        self.X = X

    shape = property(lambda self: self.X.shape)
    dtype = property(lambda self: self.X.dtype)
    device = property(lambda self: self.X.device)

    def rows(self, start: int, stop: int) -> torch.Tensor:
        return self.X[start:stop]

    def take(self, indices: torch.Tensor) -> torch.Tensor:
        return self.X[indices]

    def amin(self, dim: int = 0) -> torch.Tensor:
        return self.X.amin(dim=0)

    def amax(self, dim: int = 0) -> torch.Tensor:
        return self.X.amax(dim=0)

    def converted(self, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> LazyArms:
        return Held(self.X.to(dtype=dtype, device=device))

    def digest(self) -> str:
        raise NotImplementedError


def streamed(problem: Problem, **changes: object) -> Problem:
    s = problem.prior
    lazy = Held(s.arms)
    return problem.with_prior(arms=lazy, repeats=None, **changes)


def _swept(problem: Problem, kind: str, threshold: float, width: float = WIDTH) -> ContenderPosterior:
    fit, _ = fit_arms(problem.prior, problem.observations, problem.dictionary, KernelColumns(0))
    return arm_posterior(fit, width=width, stop_rule=StopRule(kind, threshold))


def _pick(posterior: ArmPosterior, kind: str, threshold: float, in_batch: str, width: float = WIDTH) -> list[int]:
    rule = StopRule(kind, threshold)
    return pick_batch(posterior, width=width, stop_rule=rule, in_batch=in_batch, max_q=60).indices.tolist()


def _problem(seed: int, device: torch.device | str = "cpu", **changes: object) -> Problem:
    settings = {"a": 150, "pulls": 20, "m": [5, 2, 9][seed % 3], "external": seed % 3 == 0, "noise": [2.0, 10.0, 0.5][seed % 3]}
    return random_problem(seed, device=device, kernel=rbf_kernel(0.3, scale=1.0), **{**settings, **changes})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("threshold", [1.0, 1.5, 4.0])
def test_the_contenders_hold_every_arm_that_the_oracle_picks(in_batch, threshold):
    sizes = []
    for seed in range(9):
        p = _problem(seed)
        posterior = _swept(streamed(p), "global", threshold)
        expected = p.dense().batch(width=WIDTH, kind="global", threshold=threshold, in_batch=in_batch, max_q=60)
        assert posterior.contenders.floor == -torch.inf
        assert set(expected.picks) <= set(posterior.contenders.indices.tolist()), seed
        sizes.append(len(posterior.contenders.indices))
    assert min(sizes) < 100, "the pruning should leave most arms out somewhere"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["global", "gp-bucb", "single"])
@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("capacity", [1, 3, 20, 1000])
def test_picks_are_those_of_the_arms_in_memory(kind, in_batch, capacity, device):
    lengths = set()
    for seed in range(6):
        p = _problem(seed, device)
        expected = _pick(p.posterior(), kind, 3.0, in_batch)
        few = streamed(p, memory_bytes=40 * 9 * 40, sizes=Sizes(contenders=capacity, tile_rows=13))
        assert _pick(_swept(few, kind, 3.0), kind, 3.0, in_batch) == expected, seed
        lengths.add(len(expected))
    assert kind == "single" or len(lengths) >= 3


@pytest.mark.sampled
@pytest.mark.parametrize("precision", SETTINGS)
@pytest.mark.parametrize("capacity", [5, 1000])
def test_low_precision_streams_pick_alike(precision, capacity, monkeypatch):
    set_products(monkeypatch, precision)
    for seed in range(6):
        p = _problem(seed)
        expected = _pick(p.posterior(), "global", 3.0, "fixed")
        low = _swept(streamed(p, sweep_dtype=torch.float32, sizes=Sizes(contenders=capacity)), "global", 3.0)
        assert _pick(low, "global", 3.0, "fixed") == expected, seed


def test_a_bar_of_the_wrong_ratio_would_lose_picks():
    """The bound is not slack everywhere: pruning as if variances did not shrink inside a batch drops arms that are picked."""
    lost = 0
    for seed in range(9):
        p = _problem(seed)
        posterior = _swept(streamed(p), "single", 1.0)  # prunes with C̃ = 1
        lost += not set(_pick(p.posterior(), "global", 4.0, "fixed")) <= set(posterior.contenders.indices.tolist())
    assert lost >= 3


def test_arms_that_were_no_contenders_at_the_start_are_picked():
    p = _problem(1)
    few = _swept(streamed(p, sizes=Sizes(contenders=2)), "global", 6.0)
    picks = _pick(few, "global", 6.0, "fixed")
    assert picks == _pick(p.posterior(), "global", 6.0, "fixed")
    assert not set(picks) <= set(few.contenders.indices.tolist())


def test_of_equal_arms_the_first_is_picked():
    for seed in range(6):
        base = _problem(seed, a=30)
        arms = base.prior.arms.repeat(3, 1)
        p = Problem(replace(base.prior, arms=arms), base.pulled, base.y, base.dictionary)
        got = _pick(_swept(streamed(p), "global", 6.0), "global", 6.0, "fixed")
        assert max(got) < 30, seed
        assert got == _pick(base.posterior(), "global", 6.0, "fixed"), seed


def test_means_and_leverages_are_those_of_the_arms_in_memory(device):
    for seed in range(4):
        p = _problem(seed, device)
        held, lazy = p.posterior(), _swept(streamed(p), "global", 2.0)
        every = torch.arange(150, device=device)
        torch.testing.assert_close(lazy.means_at(every), held.means, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(lazy.leverages_at(every), held.leverages, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(lazy.observed_leverages, held.observed_leverages, rtol=1e-8, atol=1e-10)
        assert lazy.effective_dimension == pytest.approx(held.effective_dimension, rel=1e-8)


@pytest.mark.parametrize("kernel", [rbf_kernel(scale=2.0), LinearKernel().double()], ids=["stationary", "linear"])
def test_the_largest_prior_variance_is_that_of_the_arms_in_memory(kernel):
    p = random_problem(1, a=150, kernel=kernel)
    assert streamed(p, sizes=Sizes(tile_rows=17)).prior.kappa_squared == p.prior.kappa_squared


def test_the_local_rule_is_refused():
    with pytest.raises(ValueError, match="stop_rule='local' keeps a ratio for every arm"):
        _swept(streamed(_problem(1)), "local", 2.0)
    posterior = _swept(streamed(_problem(1)), "global", 2.0)
    for given in (None, torch.tensor([3])):
        with pytest.raises(ValueError, match="ratio for every arm, got a streamed posterior; use stop_rule='global'"):
            pick_batch(posterior, width=WIDTH, stop_rule=StopRule("local", 2.0), max_q=5, given=given)


@pytest.mark.parametrize(
    ("width", "rule"),
    [(WIDTH + 0.5, StopRule("global", 2.0)), (WIDTH, StopRule("gp-bucb", 2.5))],
    ids=["width", "ratio"],
)
def test_contenders_of_another_batch_are_refused(width, rule):
    """They could miss an arm that this batch would pick."""
    posterior = _swept(streamed(_problem(1)), "global", 2.0)
    for given in (None, torch.tensor([3])):
        with pytest.raises(ValueError, match=r"width = 1\.5 and StopRule\(kind='global', ratio_threshold=2\.0\) can pick, got"):
            pick_batch(posterior, width=width, stop_rule=rule, max_q=5, given=given)
    for stricter in (StopRule("global", 1.5), StopRule("single"), StopRule("repeat", 2.0)):
        assert len(pick_batch(posterior, width=WIDTH, stop_rule=stricter, max_q=5).indices)


def test_in_memory_no_arm_is_left_out_of_the_contenders():
    """So the bounds at the batch start hold after any picks."""
    posterior, rule, where = _problem(1).posterior(), StopRule("global", 2.0), torch.tensor([3, 77])
    start = posterior.contenders_at_start(width=WIDTH, stop_rule=rule)
    conditioner = Conditioner.at_start(posterior, "fixed").given(where, torch.ones(2, dtype=torch.float64))
    reducible, residual = conditioner.leverages(torch.arange(150))
    scores = posterior.means + WIDTH * (reducible + residual).sqrt()
    assert start.indices is None
    assert start.floor == -torch.inf
    assert bool((start.upper >= scores - 1e-12).all())
    assert bool((start.upper[where] > scores[where] + 1e-6).all()), "bounds, and no longer the scores"


def test_a_tile_that_cannot_fit_is_refused():
    with pytest.raises(MemoryError, match="raise memory_bytes or use a smaller dictionary"):
        _swept(streamed(_problem(2), memory_bytes=64), "global", 2.0)


def test_conditioned_scores_of_a_refill_are_the_oracles():
    p = _problem(1)
    lazy = _swept(streamed(p), "global", 6.0)
    conditioner = Conditioner.at_start(lazy, "fixed")
    picks = [3, 3, 77]
    where = torch.tensor(picks)
    conditioner = conditioner.absorb(where, conditioner.block(where), torch.arange(3), torch.ones(3, dtype=torch.float64))
    found = contenders_after(lazy, conditioner)
    expected = p.dense().dtc().mean + WIDTH * p.dense().leverages_after(picks, "fixed").sqrt()
    torch.testing.assert_close(found.upper, expected, rtol=1e-8, atol=1e-8)


# Whole runs: 17,576 arms do not fit into 2^20 bytes, so they are streamed there and held with the default budget.
GRID = ProductGrid.linspace(unit_box(3), [26, 26, 26])
SETTINGS = {"covar_module": rbf_kernel(0.5, scale=1.0), "regularization": 0.1, "width": 3.0}


def _objective(X: torch.Tensor) -> torch.Tensor:
    return torch.sin(3.0 * X).sum(dim=-1)


def _run(arms: object, policy: object, budget: int) -> AskTell:
    loop = AskTell(arms, policy, seed=1)
    loop.run(_objective, budget)
    return loop


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "policy",
    [
        lambda **kw: BBKB(**SETTINGS, **kw),
        lambda **kw: BBKB(**SETTINGS, in_batch="process", sweep_dtype=torch.float32, **kw),
        lambda **kw: BKB(**SETTINGS, max_batch_size=1, **kw),
    ],
    ids=["bbkb", "bbkb process float32", "bkb"],
)
def test_runs_on_a_grid_are_those_in_memory(policy):
    budget = 12 if policy().name == "bkb" else 40
    held, lazy = _run(GRID, policy(), budget), _run(GRID, policy(memory_bytes=2**20), budget)
    assert isinstance(held.state.arms, torch.Tensor)
    assert lazy.state.arms is not None
    assert isinstance(lazy.state.arms, ProductGrid)
    assert lazy.history.indices == held.history.indices
    a, b = lazy.result(), held.result()
    assert a.best_index == b.best_index
    assert a.best_mean == pytest.approx(b.best_mean, rel=1e-6)
    assert a.best_sd == pytest.approx(b.best_sd, rel=1e-6)
    assert torch.equal(a.best_x, b.best_x)
    assert lazy.certificate().factor == pytest.approx(held.certificate().factor, rel=1e-6)


def test_a_learned_kernel_on_a_file(tmp_path, generator):
    X = torch.rand(15_000, 3, generator=generator, dtype=torch.float64)
    np.save(tmp_path / "x.npy", torch.cat([X, X[:500]]).numpy())
    arms = MemmapArms(tmp_path / "x.npy")
    held, lazy = _run(arms, BBKB(), 25), _run(arms, BBKB(memory_bytes=2**20), 25)
    assert isinstance(lazy.state.arms, MemmapArms)
    assert lazy.history.indices == held.history.indices
    assert "sweep" in lazy.history.rows[-1].seconds


def test_a_policy_refuses_the_local_rule_before_any_work():
    with pytest.raises(ValueError, match="17,576 arms do not fit into memory_bytes = 1,048,576"):
        AskTell(GRID, BBKB(**SETTINGS, stop_rule="local", memory_bytes=2**20))
    AskTell(GRID, BBKB(**SETTINGS, stop_rule="local"))
