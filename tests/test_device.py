"""Everything numeric on a second device: nothing stays on the CPU by accident, and results and draws are the same."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from sparse_bo import BBKB, BPE, GPUCB, SBPE, AskTell, ProductGrid
from sparse_bo.acquisition.feasible import Feasible
from sparse_bo.acquisition.picking import BoxSearch, apart
from sparse_bo.arms import StopRule, batch, pick_batch
from sparse_bo.arms.greedy_picks import greedy_picks
from sparse_bo.arms.sweep import sweep
from sparse_bo.dictionary import GreedyVarianceSampler, IVMSampler, KDPPSampler, KMeansPlusPlusSampler, candidates_of
from sparse_bo.domains.base import Box
from sparse_bo.policies import (
    EpsilonGreedy,
    ExpectedImprovement,
    MiniMETA,
    PosteriorEpsilonGreedy,
    QFFTSArms,
    RandomSearch,
    SGPTSArms,
    TwoStage,
    max_variance_design,
)
from tests.arms.builders import random_problem
from tests.builders import arms, rbf_kernel, unit_box, waves
from tests.pretend_device import PRETEND, PretendTensor, pretend_device

CPU = torch.device("cpu")
NOISE = 0.05


PRIOR = {"covar_module": rbf_kernel(0.3), "regularization": NOISE}


def in_memory(device: torch.device) -> Tensor:
    return arms(device=device)


def grid(device: torch.device) -> ProductGrid:
    return ProductGrid.linspace(unit_box(device=device), [140, 140])


def objective(X: Tensor) -> Tensor:
    """Values on the device of the arms, as a user's own function gives them."""
    noise = torch.randn(len(X), generator=torch.Generator().manual_seed(len(X)), dtype=torch.float64)
    return waves(X) + 0.1 * noise.to(X)


def loop(
    policy, *, n: int = 20, domain: Callable[[torch.device], object] = in_memory
) -> Callable[[torch.device], list[Tensor]]:
    """Return what runs a policy by ask and tell, and gives its picks, values and estimate."""

    def run(device: torch.device) -> list[Tensor]:
        result = AskTell(domain(device), policy, seed=3).run(objective, n)
        values = [value for row in result.history.rows for value in row.values]
        return [torch.tensor(result.history.indices), torch.tensor(values), result.best_x]

    return run


def design(device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    chosen = max_variance_design(12, arms=in_memory(device), generator=generator, **PRIOR)
    return [chosen.indices, chosen.points, torch.tensor([chosen.largest_sd, chosen.variance_factor])]


RUNS: dict[str, Callable[[torch.device], list[Tensor]]] = {
    "bbkb": loop(BBKB(**PRIOR)),
    "bbkb, local rule": loop(BBKB(stop_rule="local", **PRIOR)),
    "bbkb, process": loop(BBKB(in_batch="process", **PRIOR)),
    "bbkb, float32 sweeps": loop(BBKB(sweep_dtype=torch.float32, **PRIOR)),
    "bbkb, repeats": loop(BBKB(stop_rule="repeat", **PRIOR)),
    "bbkb, streamed": loop(BBKB(memory_bytes=2**20, initial_design=4, **PRIOR), n=8, domain=grid),
    "bbkb, learned": loop(BBKB(), n=12),
    "gp-ucb": loop(GPUCB(initial_design=15, **PRIOR)),
    "mini-meta": loop(MiniMETA(**PRIOR)),
    "epsilon-greedy": loop(EpsilonGreedy(epsilon=0.5)),
    "posterior epsilon-greedy": loop(PosteriorEpsilonGreedy(epsilon=2.0, decay=0.5, initial_design=12, **PRIOR)),
    "expected improvement": loop(ExpectedImprovement(), n=24),
    "two stages": loop(TwoStage(after=18), n=36),
    "random": loop(RandomSearch(), n=8),
    "s-gp-ts": loop(SGPTSArms(batch_size=3, **PRIOR)),
    "qff-ts": loop(QFFTSArms(batch_size=3, **PRIOR)),
    "s-bpe": loop(SBPE(horizon=30, rkhs_norm=2.0, **PRIOR), n=30),
    "bpe": loop(BPE(horizon=30, rkhs_norm=2.0, **PRIOR), n=30),
    "design": design,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS.keys())
def test_a_run_is_the_same_on_another_device(run, accelerator):
    expected, got = run(CPU), [value.cpu() for value in run(accelerator)]
    for value, other in zip(expected, got, strict=True):
        if accelerator == PRETEND and not torch.cuda.is_available():
            assert torch.equal(value, other)
        else:  # picks are the same; numbers have the device's round-off
            torch.testing.assert_close(other, value, rtol=1e-8, atol=1e-10)


@pytest.fixture
def waits():
    with pretend_device() as counted:
        yield counted


def test_mixing_devices_fails_as_on_cuda(waits):
    x = torch.ones(3, dtype=torch.float64).to(PRETEND)
    assert isinstance(x, PretendTensor)
    assert x.device == PRETEND
    for mixed in (
        lambda: x + torch.ones(3, dtype=torch.float64),
        lambda: x @ torch.ones(3, dtype=torch.float64),
        lambda: torch.cat([x, torch.ones(1, dtype=torch.float64)]),
        lambda: torch.ones(3, dtype=torch.float64).add_(x),
        lambda: x.index_add_(0, torch.arange(3), x),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            mixed()
    torch.testing.assert_close((x + torch.tensor(1.0)).cpu(), torch.full((3,), 2.0, dtype=torch.float64))
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()
    with pytest.raises(RuntimeError, match="generator"):
        torch.rand(2, device=PRETEND, generator=torch.Generator())


def test_waits_are_counted(waits):
    x = torch.arange(4.0).to(PRETEND)
    assert waits == {"upload": 1}
    for act, kind in (
        (lambda: float(x[1]), "read"),
        (lambda: bool((x > 0).any()), "read"),
        (lambda: x.tolist(), "download"),
        (lambda: x.nonzero(), "sized by data"),
        (lambda: x[x > 1.0], "sized by data"),
        (lambda: x[torch.tensor([1, 2])], "upload"),
    ):
        waits.reset()
        act()
        assert waits == {kind: 1}
    waits.reset()
    (x.square().sum() * math.pi + x[2:]).sort().values.clone()
    assert not waits


def test_gradients_pass_through(waits):
    x = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64, requires_grad=True)
    moved = x.detach().to(PRETEND).requires_grad_()
    for A in (x, moved):
        torch.linalg.solve_triangular(torch.linalg.cholesky(A), A.mT, upper=False).square().sum().backward()
    torch.testing.assert_close(moved.grad.cpu(), x.grad)


@pytest.mark.parametrize("precision", [torch.float64, torch.float32])
@pytest.mark.parametrize("memory_bytes", [2**28, 2**15], ids=["one chunk", "chunks"])
def test_a_sweep_never_waits(precision, memory_bytes, waits):
    problem = random_problem(0, a=500, pulls=40, m=30, device=PRETEND, sweep_dtype=precision, memory_bytes=memory_bytes)
    posterior = problem.posterior()
    evaluate = posterior.evaluate  # reads once per posterior, and once per prior
    waits.reset()
    assert len(sweep(posterior.prior, posterior.dictionary, posterior.stored, evaluate).means) == 500
    assert not waits, waits.where


def test_a_resparsification_waits_a_fixed_number_of_times(waits):
    """Each a few microseconds, beside a sweep of milliseconds: the size of the union of old and new arms and the number of
    pulls (2); the results, summed arm by arm on the host (3); the dictionary's rows, to look up their columns (2), and where
    those are (2); whether the dictionary is well conditioned (1), ``B`` and ``I − B⁻¹`` positive definite (2); ``tr B``,
    ``sup k(x, x)``, d_eff (3)."""
    for a, pulls, m in ((100, 20, 10), (1000, 200, 40)):
        problem = random_problem(0, a=a, pulls=pulls, m=m, device=PRETEND, kernel=rbf_kernel(0.1))
        waits.reset()
        problem.posterior()
        assert waits.total() <= 15, waits.where


@pytest.mark.parametrize("in_batch", ["fixed", "process"])
def test_picks_wait_per_block_and_not_per_pick(in_batch, waits, monkeypatch):
    """Per block of 64 arms: which they are (2); is the conditioned matrix positive definite (1); the block on its way to
    the host, bounds and picks on their way back (3)."""
    blocks = []
    monkeypatch.setattr(batch, "greedy_picks", lambda *args, **kwargs: blocks.append(1) or greedy_picks(*args, **kwargs))
    posterior = random_problem(0, a=500, pulls=40, m=30, device=PRETEND).posterior()
    counts = set()
    for threshold in (2.0, 100.0, 400.0):
        waits.reset()
        blocks.clear()
        picks = pick_batch(posterior, width=1.0, stop_rule=StopRule("global", threshold), in_batch=in_batch, max_q=10_000)
        assert waits.total() <= 1 + 6 * len(blocks), waits.where
        counts.add((len(picks.indices), len(blocks)))
    assert max(q / b for q, b in counts) > 20  # picks per block


@pytest.mark.parametrize(
    ("sampler", "at_most"),
    [
        (GreedyVarianceSampler(size=12), 1),
        (IVMSampler(size=12), 1),
        (KMeansPlusPlusSampler(size=12), 2),
        (KDPPSampler(size=12), 12),
    ],
    ids=lambda x: type(x).__name__,
)
def test_greedy_samplers_wait_a_fixed_number_of_times_per_point(sampler, at_most, waits):
    """For whether there is anything left to choose; k-means++ chooses on the host and takes its choice back; the determinantal
    sampler waits also for each of its ten proposals per point."""
    problem = random_problem(0, a=80, pulls=80, device=PRETEND)
    candidates = candidates_of(problem.observations, None, covariance=problem.prior.covariance, regularization=0.1)
    waits.reset()
    sampler.sample(candidates, generator=torch.Generator().manual_seed(0))
    assert waits.total() <= 12 * at_most + 5, waits.where


def test_starts_apart_are_chosen_in_one_wait(waits):
    feasible = Feasible(Box(unit_box(device=PRETEND)))
    search = BoxSearch(feasible, 4, 64, {}, None, torch.Generator())
    best = arms(64).to(PRETEND)
    waits.reset()
    rows = apart(search, best)
    assert len(rows) == 4
    assert waits.total() == 1, waits.where
