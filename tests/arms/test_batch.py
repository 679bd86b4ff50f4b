"""The picks of a batch against picks that recompute every arm densely after each pick."""

import warnings
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpytorch.kernels import ConstantKernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from sparse_bo.arms import StopRule, pick_batch
from sparse_bo.arms.prior import Sizes
from tests.arms.builders import Problem, all_pulled, make_prior, random_problem
from tests.arms.low_precision import SETTINGS, set_products
from tests.builders import rbf_kernel
from tests.oracles import BatchTrace

RULES = ["global", "local", "gp-bucb", "single"]
UPDATES = ["fixed", "process"]
DECISIVE = 1e-10
"""Random scores closer than this do not tell one arm from another reliably."""


def _problem(seed: int, **changes: Any) -> Problem:
    """Problems that differ in noise, dictionary and prior mean, so that batches of 1 to 40 picks come out."""
    settings: dict[str, Any] = {
        "external": seed % 3 == 0,
        "noise": [0.1, 1.0, 0.02, 10.0][seed % 4],
        "prior_mean": [0.0, 0.5][seed % 2],
        "m": [5, 2, 9][seed % 3],
    }
    return random_problem(seed, **{**settings, **changes})


def _threshold(seed: int) -> float:
    return [1.3, 2.0, 6.0][seed % 3]


def _picks(
    problem: Problem, kind: str, in_batch: str, *, threshold: float = 2.0, width: float = 0.8, max_q: int = 40
) -> list[int]:
    rule = StopRule(kind, threshold)
    batch = pick_batch(problem.posterior(), width=width, stop_rule=rule, in_batch=in_batch, max_q=max_q)
    return batch.indices.tolist()


def _expected(
    problem: Problem, kind: str, in_batch: str, *, threshold: float = 2.0, width: float = 0.8, max_q: int = 40
) -> BatchTrace:
    return problem.dense().batch(width=width, kind=kind, threshold=threshold, in_batch=in_batch, max_q=max_q)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kind", RULES)
def test_picks_are_those_of_full_recomputation(kind, in_batch, device):
    sizes = set()
    for seed in range(8):
        p = _problem(seed, device=device)
        expected = _expected(p, kind, in_batch, threshold=_threshold(seed))
        if expected.gap < DECISIVE:
            continue
        sizes.add(len(expected.picks))
        for block in (2, 8, 64):
            got = _picks(p.with_prior(sizes=Sizes(block=block)), kind, in_batch, threshold=_threshold(seed))
            assert got == expected.picks, f"{seed=} {block=}"
    assert len(sizes) >= (1 if kind == "single" else 4), "the problems should give batches of many sizes"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kind", RULES)
def test_a_batch_picked_in_pieces_is_the_batch_picked_at_once(kind, in_batch, device):
    for seed in range(5):
        p = _problem(seed, device=device)
        whole = _expected(p, kind, in_batch, threshold=_threshold(seed))
        if whole.gap < DECISIVE:
            continue
        for done in {1, len(whole.picks) // 3 + 1, len(whole.picks)}:
            given = torch.tensor(whole.picks[:done], device=device)
            rule = StopRule(kind, _threshold(seed))
            rest = pick_batch(p.posterior(), width=0.8, stop_rule=rule, in_batch=in_batch, max_q=40 - done or 1, given=given)
            if len(whole.picks) < 40 or done < 40:
                assert rest.indices.tolist() == whole.picks[done:], f"{seed=} {done=}"
                assert bool(rest.needed) == (done == len(whole.picks)), f"{seed=} {done=}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kind", RULES)
def test_picks_go_on_from_any_arms_that_are_out(kind, in_batch, generator):
    """Arms nobody would have picked, repeats included, as after a resparsification with late results."""
    sizes = set()
    for seed in range(8):
        p = _problem(seed)
        out = torch.randint(20, (seed % 5 + 1,), generator=generator)
        threshold = 3.0 * _threshold(seed)
        expected = p.dense().batch(width=0.8, kind=kind, threshold=threshold, in_batch=in_batch, max_q=30, given=out.tolist())
        if expected.gap < DECISIVE:
            continue
        sizes.add(len(expected.picks))
        for float32 in (False, True):
            q = p.with_prior(sweep_dtype=torch.float32) if float32 else p
            got = pick_batch(
                q.posterior(), width=0.8, stop_rule=StopRule(kind, threshold), in_batch=in_batch, max_q=30, given=out
            )
            assert got.indices.tolist() == expected.picks, f"{seed=} {float32=}"
    assert sizes == {0} if kind == "single" else len(sizes) >= 3


@pytest.mark.parametrize("kind", ["global", "gp-bucb"])
def test_results_needed_are_enough_whichever_come(kind):
    p = _problem(1, a=30)
    rule, posterior = StopRule(kind, 3.0), p.posterior()
    out = torch.arange(0, 30, 2)
    needed = pick_batch(posterior, width=0.8, stop_rule=rule, max_q=1, given=out).needed
    assert 1 < needed < len(out)
    cheapest_last = out[rule.costs(posterior.leverages[out]).argsort(descending=True)]
    enough, short = cheapest_last[: len(out) - needed], cheapest_last[: len(out) - needed + 1]
    assert len(pick_batch(posterior, width=0.8, stop_rule=rule, max_q=1, given=enough).indices) == 1
    assert len(pick_batch(posterior, width=0.8, stop_rule=rule, max_q=1, given=short).indices) == 0


@pytest.mark.parametrize("in_batch", UPDATES)
def test_local_batches_longer_than_a_step_are_cut_at_the_right_pick(in_batch):
    for seed in range(6):
        p = _problem(seed, noise=2.0, external=False, m=9).with_prior(sizes=Sizes(local_step=4))
        expected = _expected(p, "local", in_batch, threshold=1.8)
        if expected.gap >= DECISIVE:
            assert _picks(p, "local", in_batch, threshold=1.8) == expected.picks, seed


@pytest.mark.parametrize("in_batch", UPDATES)
def test_a_long_batch_over_many_blocks(in_batch):
    p = random_problem(5, a=40, m=20, pulls=4, noise=1.0, kernel=rbf_kernel(0.15, scale=1.0), sizes=Sizes(block=8))
    expected = _expected(p, "global", in_batch, threshold=60.0, width=6.0, max_q=90)
    assert len(set(expected.picks)) > 8
    assert len(expected.picks) >= 40
    assert _picks(p, "global", in_batch, threshold=60.0, width=6.0, max_q=90) == expected.picks


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kind", RULES)
def test_low_precision_sweeps_pick_like_float64_sweeps(kind, in_batch, device, monkeypatch):
    for seed in range(6):
        set_products(monkeypatch, SETTINGS[seed % 3])
        p = random_problem(seed, a=120, m=15, pulls=30, noise=[0.1, 1.0][seed % 2], device=device)
        low = p.with_prior(sweep_dtype=torch.float32)
        assert _picks(low, kind, in_batch) == _picks(p, kind, in_batch), seed


@pytest.mark.parametrize("spacing", [1e-9, 1e-8, 1e-6])
@pytest.mark.parametrize("m", [5, 1], ids=["by mean and leverage", "by leverage"])
def test_a_float32_sweep_tells_arms_apart_that_it_cannot_see(m, spacing):
    """Far more arms than a block, whose scores differ by less than float32 resolves: the recheck finds the best."""
    x = 0.5 + spacing * torch.arange(3000, dtype=torch.float64)
    arms = torch.stack([x, torch.zeros_like(x)], dim=1)
    for seed in range(4):
        p = random_problem(seed, arms=arms, external=True, m=m, pulls=3, noise=0.5)
        low = p.with_prior(sweep_dtype=torch.float32)
        assert _picks(low, "single", "fixed") == _picks(p, "single", "fixed"), seed


def test_no_sweep_error_within_its_bounds_changes_the_pick(generator):
    """Errors far above those of float32, so that the best arm is rarely among those that look best."""
    for seed in range(6):
        p = random_problem(seed, a=300, m=15, pulls=30)
        low = p.with_prior(sweep_dtype=torch.float32).posterior()
        errors = 20.0 * torch.rand(300, generator=generator, dtype=torch.float64)
        wrong = low.leverages + errors * torch.randn(300, generator=generator, dtype=torch.float64).clamp(-1.0, 1.0)
        low = replace(low, leverages=wrong.clamp_min(0.0), leverage_errors=errors)
        got = pick_batch(low, width=0.8, stop_rule=StopRule("single"), max_q=1).indices.tolist()
        assert got == _picks(p, "single", "fixed"), seed


@pytest.mark.parametrize("in_batch", UPDATES)
def test_scores_never_rise_inside_a_batch(in_batch):
    """The fact that makes the lazy argmax exact."""
    for seed in range(8):
        trace = _expected(_problem(seed), "global", in_batch, threshold=6.0)
        for before, after in zip(trace.scores, trace.scores[1:], strict=False):
            assert bool((after <= before + 1e-10).all()), seed


@pytest.mark.parametrize("in_batch", UPDATES)
def test_leverages_inside_a_batch_stay_within_lemma_4(in_batch):
    """``leverage_fb/(1 + Σ leverage_fb(x_s)) ≤ leverage_t ≤ leverage_fb``."""
    for seed in range(4):
        p = _problem(seed)
        start = p.posterior().leverages
        picks = _picks(p, "global", in_batch, threshold=6.0)
        for k in range(len(picks) + 1):
            now = p.dense().leverages_after(picks[:k], in_batch)
            bound = start / (1.0 + float(start[picks[:k]].sum()))
            assert bool((now >= bound * (1 - 1e-9)).all()), (seed, k)
            assert bool((now <= start * (1 + 1e-9)).all()), (seed, k)


@pytest.mark.parametrize("in_batch", UPDATES)
def test_longer_rules_extend_shorter_ones(in_batch):
    """GP-BUCB's product rule, the global sum and the local ratios end the same sequence of picks later and later."""
    longer = 0
    for seed in range(12):
        p = _problem(seed)
        product, total, local = (_picks(p, kind, in_batch, threshold=3.0) for kind in ("gp-bucb", "global", "local"))
        assert total[: len(product)] == product, seed
        assert local[: len(total)] == total, seed
        longer += len(local) > len(total)
    assert longer >= 3


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kind", RULES)
def test_threshold_one_gives_batches_of_one(kind, in_batch):
    for seed in range(4):
        p = _problem(seed)
        dense = p.dense().dtc()
        scores = dense.mean + 0.8 * (dense.variance / p.prior.regularization).sqrt()
        assert _picks(p, kind, in_batch, threshold=1.0) == [int(scores.argmax())]


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kind", ["global", "local", "gp-bucb"])
def test_max_q_cuts_the_batch_short(kind, in_batch):
    p = random_problem(1, noise=3.0)
    whole = _picks(p, kind, in_batch, threshold=6.0)
    assert len(whole) > 3
    for q in (1, 2, 3):
        assert _picks(p, kind, in_batch, threshold=6.0, max_q=q) == whole[:q]


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kind", ["global", "local"])
@pytest.mark.parametrize("external", [False, True], ids=["arms", "external points"])
def test_the_memory_budget_changes_no_pick(kind, in_batch, external):
    for seed in range(4):
        p = _problem(seed, external=external, m=5, a=50)
        few = p.with_prior(memory_bytes=64 * 5 * 3)
        batch = pick_batch(few.posterior(0), width=0.8, stop_rule=StopRule(kind, 4.0), in_batch=in_batch, max_q=40)
        assert batch.indices.tolist() == _picks(p, kind, in_batch, threshold=4.0), seed


def test_the_thread_count_changes_no_pick():
    p = random_problem(7, a=300, m=40, pulls=100, noise=1.0)
    threads = torch.get_num_threads()
    several = _picks(p, "local", "process", threshold=10.0, max_q=200)
    try:
        torch.set_num_threads(1)
        assert _picks(p, "local", "process", threshold=10.0, max_q=200) == several
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kind", ["global", "local", "gp-bucb"])
def test_picks_equal_arms_by_lowest_index(kind, in_batch, device):
    arms = torch.full((12, 2), 0.3, dtype=torch.float64, device=device)
    p = random_problem(0, arms=arms, device=device)
    got = _picks(p, kind, in_batch, threshold=3.0)
    assert got == [0] * len(got)
    assert got == _expected(p, kind, in_batch, threshold=3.0).picks


@pytest.mark.parametrize("in_batch", UPDATES)
def test_of_duplicate_arms_the_first_is_picked(in_batch, device):
    for seed in range(6):
        base = random_problem(seed, a=8, device=device)
        arms = base.prior.arms.repeat(3, 1)
        p = Problem(make_prior(arms), base.pulled, base.y, base.dictionary)
        got = _picks(p, "global", in_batch, threshold=6.0)
        assert max(got) < 8, seed
        assert got == _picks(base, "global", in_batch, threshold=6.0), seed


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kernel", [ConstantKernel(), LinearKernel(), MaternKernel(nu=0.5)], ids=lambda k: type(k).__name__)
def test_other_kernels(kernel, in_batch):
    arms = random_problem(2).prior.arms.clone()
    arms[6] = 0.0
    p = random_problem(2, arms=arms, kernel=kernel, noise=0.5)
    assert _picks(p, "global", in_batch, threshold=4.0) == _expected(p, "global", in_batch, threshold=4.0).picks


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("noise", [1e-8, 1e-4, 1e6])
def test_noise_from_tiny_to_huge(noise, in_batch):
    for seed in range(4):
        p = all_pulled(random_problem(seed, noise=noise))
        width = noise**0.5
        expected = _expected(p, "global", in_batch, threshold=2.0, width=width, max_q=20)
        if expected.gap >= DECISIVE:
            assert _picks(p, "global", in_batch, threshold=2.0, width=width, max_q=20) == expected.picks, seed


def test_one_arm_is_picked_again_and_again():
    p = random_problem(0, a=1, m=1, pulls=2)
    leverage = float(p.posterior().leverages)
    got = _picks(p, "global", "fixed", threshold=3.0)
    assert got == [0] * len(got)
    assert (len(got) - 1) * leverage <= 2.0 < len(got) * leverage


@pytest.mark.parametrize("in_batch", UPDATES)
def test_permuting_the_arms_permutes_the_picks(in_batch, generator):
    for seed in range(5):
        p = _problem(seed, external=True)
        order = torch.randperm(20, generator=generator)
        position = order.argsort()
        prior = make_prior(p.prior.arms[order], noise=p.prior.regularization, prior_mean=p.prior.prior_mean)
        q = replace(p, prior=prior, pulled=position[p.pulled])
        got = _picks(q, "local", in_batch, threshold=3.0)
        assert [int(order[i]) for i in got] == _picks(p, "local", in_batch, threshold=3.0), seed


@pytest.mark.parametrize("c", [1e-6, 1e6])
def test_a_change_of_units_changes_no_pick(c):
    for seed in range(4):
        p = random_problem(seed, prior_mean=0.4)
        kernel = p.prior.covariance.kernel
        scaled = make_prior(p.prior.arms, kernel=_scaled(kernel, c), noise=0.1 * c * c, prior_mean=0.4 * c)
        q = replace(p, prior=scaled, y=c * p.y)
        assert _picks(q, "global", "fixed", threshold=6.0, width=0.8 * c) == _picks(p, "global", "fixed", threshold=6.0), seed


def _scaled(kernel: torch.nn.Module, c: float) -> Any:
    from gpytorch.kernels import ScaleKernel

    scaled = ScaleKernel(kernel).double()
    scaled.outputscale = c * c
    return scaled


def test_rechecked_counts_arms_recomputed():
    p = _problem(1)
    single = pick_batch(p.posterior(), width=0.8, stop_rule=StopRule("single"), max_q=9)
    assert single.rechecked == 0
    p = p.with_prior(sizes=Sizes(block=8))
    batch = pick_batch(p.posterior(), width=0.8, stop_rule=StopRule("global", 2.0), max_q=9)
    assert batch.rechecked >= 8


def test_picking_leaves_the_posterior_and_the_global_generator_alone():
    posterior, state = _problem(2).posterior(), torch.get_rng_state()
    means, leverages = posterior.means.clone(), posterior.leverages.clone()
    pick_batch(posterior, width=0.8, stop_rule=StopRule("local", 3.0), in_batch="process", max_q=40)
    assert torch.equal(posterior.means, means)
    assert torch.equal(posterior.leverages, leverages)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("in_batch", UPDATES)
def test_many_equal_arms_and_a_large_width_do_not_hang(in_batch):
    generator = torch.Generator().manual_seed(5)
    arms = torch.rand(3, 1, generator=generator, dtype=torch.float64)[torch.randint(3, (400,), generator=generator)]
    p = random_problem(5, arms=arms, pulls=800, m=6, noise=1e-3)
    got = _picks(p, "global", in_batch, threshold=4.0, width=1000.0 * 1e-3**0.5, max_q=100)
    first = {int((arms == value).nonzero()[0, 0]) for value in arms.unique()}
    assert set(got) <= first


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize("kernel", [ConstantKernel(), rbf_kernel(scale=1.0)], ids=["constant", "selected column"])
def test_distinct_arms_that_the_kernel_cannot_tell_apart_do_not_hang(kernel, in_batch):
    arms = torch.rand(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    if not isinstance(kernel, ConstantKernel):
        arms[:, 0] = torch.arange(400) % 3
        kernel = ScaleKernel(RBFKernel(active_dims=(0,))).double()
    p = random_problem(5, arms=arms, pulls=800, m=6, noise=1e-3, kernel=kernel)
    got = _picks(p, "global", in_batch, threshold=4.0, width=1000.0 * 1e-3**0.5, max_q=60)
    scores = p.posterior().means + 1000.0 * 1e-3**0.5 * p.posterior().leverages.sqrt()
    assert float(scores[got[0]]) == pytest.approx(float(scores.max()), rel=1e-9)


@pytest.mark.parametrize("in_batch", UPDATES)
@pytest.mark.parametrize(("a", "block"), [(10, 2), (200, 64)])
def test_ties_go_to_the_lowest_index_across_blocks(a, block, in_batch):
    p = random_problem(0, arms=torch.full((a, 2), 0.3, dtype=torch.float64), pulls=3, m=1, sizes=Sizes(block=block))
    assert set(_picks(p, "global", in_batch, threshold=5.0)) == {0}


@pytest.mark.parametrize("kind", ["global", "local"])
@pytest.mark.parametrize("noise", [1e-2, 1e-4, 1e-6])
def test_float32_batches_end_where_float64_batches_end(noise, kind):
    for seed in range(5):
        p = random_problem(seed, a=60, pulls=3000, m=60, noise=noise)
        low = p.with_prior(sweep_dtype=torch.float32)
        got, want = (_picks(q, kind, "fixed", width=2 * noise**0.5, max_q=400) for q in (low, p))
        assert got == want, f"{seed=}: {len(got)} picks, expected {len(want)}"


@pytest.mark.parametrize("in_batch", UPDATES)
def test_a_width_of_zero_picks_the_best_mean(in_batch):
    p = random_problem(1, noise=1.0)
    got = _picks(p, "global", in_batch, width=0.0)
    assert set(got) == {int(p.posterior().means.argmax())}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("in_batch", UPDATES)
def test_a_gpu_waits_for_the_host_per_block_not_per_pick(in_batch):
    """The device is synchronised a few times for each block of picks: a batch of 200 picks in few blocks has few of them."""
    p = random_problem(5, a=64, m=20, pulls=4, noise=50.0, device="cuda")
    posterior = p.posterior()
    rule = StopRule("global", 1e6)
    pick_batch(posterior, width=6.0, stop_rule=rule, in_batch=in_batch, max_q=200)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            picks = pick_batch(posterior, width=6.0, stop_rule=rule, in_batch=in_batch, max_q=200).indices
        finally:
            torch.cuda.set_sync_debug_mode("default")
    waits = sum("synchroniz" in str(warning.message) for warning in caught)
    assert len(picks) == 200
    assert 0 < waits <= 25  # all 64 arms are one block


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_sweep_on_a_gpu_does_not_wait_per_chunk():
    counts = []
    for chunks in (2, 16):
        p = random_problem(5, a=4096, m=20, pulls=4, device="cuda", memory_bytes=40 * 20 * 4096 // chunks)
        p.posterior(0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                p.posterior(0)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        counts.append(sum("synchroniz" in str(warning.message) for warning in caught))
    assert counts[0] == counts[1]
