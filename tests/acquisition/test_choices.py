"""Over a finite set, batches are those of recomputing every choice densely after every pick."""

import math

import pytest
import torch
from botorch.models import SingleTaskGP
from hypothesis import given, settings
from hypothesis import strategies as st

from sparse_bo import SparseGP, optimize_batch
from sparse_bo.acquisition.picking import UpperConfidence, best_choice, pick_until
from sparse_bo.acquisition.posteriors import batch_posterior
from sparse_bo.arms import StopRule
from tests.acquisition.dense import OPTIONS, Ordinary, build, dense, grid

CHOICES = grid(17)


def rows_of(X):
    return [int((row == CHOICES).all(dim=-1).nonzero()[0]) for row in X]


@pytest.mark.sampled
@pytest.mark.parametrize("kind", [SparseGP, SingleTaskGP, Ordinary])
@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("width", [2.0, 30.0])
def test_batch_of_an_exact_model_is_exact_gp_bucb(kind, name, width):
    model = build(kind, name)
    expected, values = dense(model, CHOICES).batch(width=width, threshold=math.inf, max_q=9)
    X, got = optimize_batch(model, choices=CHOICES, ratio_threshold=math.inf, max_q=9, beta=width**2)
    assert rows_of(X) == expected
    assert got.tolist() == pytest.approx(values, rel=1e-8)
    assert width == 2.0 or len(set(expected)) > 4  # a batch that spreads


@pytest.mark.parametrize("rule", ["global", "gp-bucb"])
@pytest.mark.parametrize("threshold", [1.0, 1.5, 3.0, 8.0])
def test_the_stop_rule_decides_the_batch_size(rule, threshold):
    model = build(SparseGP)
    expected, _ = dense(model, CHOICES).batch(width=1.0, threshold=threshold, kind=rule, max_q=100)
    X, values = optimize_batch(model, choices=CHOICES, ratio_threshold=threshold, stop_rule=rule, max_q=100, beta=1.0)
    assert rows_of(X) == expected
    assert values.shape == (len(expected),)
    assert (len(expected) == 1) == (threshold == 1.0)


@pytest.mark.parametrize("in_batch", ["process", "fixed"])
def test_sparse_model_follows_its_in_batch_update(in_batch):
    rows = torch.arange(0, 30, 5)
    model = build(SparseGP, dictionary=rows)
    oracle = dense(model, CHOICES, dictionary=rows, in_batch=in_batch)
    expected, values = oracle.batch(width=2.0, threshold=math.inf, max_q=8)
    X, got = optimize_batch(model, choices=CHOICES, in_batch=in_batch, ratio_threshold=math.inf, max_q=8)
    assert rows_of(X) == expected
    assert got.tolist() == pytest.approx(values, rel=1e-7)


def test_the_two_updates_differ_where_the_dictionary_is_poor():
    model = build(SparseGP, dictionary=torch.arange(0, 30, 5))
    process, fixed = (
        optimize_batch(model, choices=CHOICES, in_batch=update, ratio_threshold=math.inf, max_q=8)[0]
        for update in ("process", "fixed")
    )
    assert not torch.equal(process, fixed)


@pytest.mark.parametrize("kind", [SparseGP, Ordinary])
def test_pending_points_keep_their_effect_and_count(kind):
    model = build(kind)
    whole, _ = optimize_batch(model, choices=CHOICES, ratio_threshold=4.0)
    first, _ = optimize_batch(model, choices=CHOICES, ratio_threshold=4.0, max_q=3)
    rest, _ = optimize_batch(model, choices=CHOICES, ratio_threshold=4.0, X_pending=first)
    assert len(whole) > 4
    assert torch.equal(torch.cat([first, rest]), whole)
    nothing, values = optimize_batch(model, choices=CHOICES, ratio_threshold=4.0, X_pending=whole)
    assert nothing.shape == (0, 2)
    assert values.shape == (0,)


def test_no_pending_points_is_the_same_as_none():
    model = build(SparseGP)
    X, values = optimize_batch(model, choices=CHOICES, X_pending=CHOICES[:0])
    again, same = optimize_batch(model, choices=CHOICES)
    assert torch.equal(X, again)
    assert torch.equal(values, same)


def test_threshold_one_waits_for_pending_points():
    X, _ = optimize_batch(build(SparseGP), choices=CHOICES, ratio_threshold=1.0, X_pending=CHOICES[:1])
    assert len(X) == 0


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    threshold=st.floats(1.0, 12.0),
    max_q=st.integers(1, 20),
    pending=st.lists(st.integers(0, len(CHOICES) - 1), max_size=3),
    beta=st.floats(0.0, 9.0),
    seed=st.integers(0, 5),
    rule=st.sampled_from(["global", "gp-bucb"]),
    in_batch=st.sampled_from(["process", "fixed"]),
)
def test_the_ratio_is_never_exceeded(threshold, max_q, pending, beta, seed, rule, in_batch):
    rows = torch.arange(0, 30, 3)
    model = build(SparseGP, seed=seed, dictionary=rows)
    oracle = dense(model, CHOICES, dictionary=rows, in_batch=in_batch)
    X, values = optimize_batch(
        model,
        choices=CHOICES,
        ratio_threshold=threshold,
        stop_rule=rule,
        in_batch=in_batch,
        max_q=max_q,
        beta=beta,
        X_pending=CHOICES[pending],
    )
    start = oracle.after([])
    costs = start / oracle.noise if rule == "global" else (1.0 + start / oracle.noise).log()
    allowance = threshold - 1.0 if rule == "global" else math.log(threshold)
    out = pending + rows_of(X)
    assert len(X) <= max_q
    if len(X):
        before_last = out[:-1]
        assert float(costs[before_last].sum()) <= allowance + 1e-9
        assert float((start / oracle.after(before_last)).max()) <= threshold * (1 + 1e-6)
        assert len(X) == max_q or float(costs[out].sum()) > allowance - 1e-9
        assert bool((values[1:] <= values[:-1] + 1e-9).all())
    else:
        assert float(costs[pending].sum()) >= allowance - 1e-9


def test_repeated_choices_tie_to_the_first():
    doubled = torch.cat([CHOICES, CHOICES])
    X, _ = optimize_batch(build(SparseGP), choices=doubled, ratio_threshold=math.inf, max_q=5)
    once, _ = optimize_batch(build(SparseGP), choices=CHOICES, ratio_threshold=math.inf, max_q=5)
    assert torch.equal(X, once)


def test_many_choices_are_not_kept_in_memory_but_give_the_same_batch():
    kept, _ = optimize_batch(build(SparseGP), choices=CHOICES, ratio_threshold=math.inf, max_q=12)
    posterior = batch_posterior(build(SparseGP), in_batch="process", like=CHOICES)
    with torch.no_grad():
        scores = UpperConfidence(posterior, CHOICES, width=2.0, sweep=50, block=7, memory_bytes=1)
    rule = StopRule("global", math.inf)
    streamed, _ = pick_until(posterior, best_choice(scores), stop_rule=rule, spent=0.0, max_q=12, condition=True)
    assert torch.equal(kept, streamed)


def test_a_fantasy_model_is_conditioned_on_its_fantasies():
    model = build(SparseGP)
    X, Y = torch.tensor([[0.5, 0.5], [0.1, 0.9]], dtype=torch.float64), torch.tensor([[3.0], [5.0]], dtype=torch.float64)
    model.posterior(X)
    exact = build(SingleTaskGP)
    exact.posterior(X)
    fantasies = [m.condition_on_observations(X, Y) for m in (model, exact)]
    got, expected = (optimize_batch(fantasy, choices=CHOICES, ratio_threshold=math.inf, max_q=6)[0] for fantasy in fantasies)
    assert torch.equal(got, expected)


def test_float32_and_device(device):
    model = build(SparseGP).to(device=device, dtype=torch.float32)
    choices = CHOICES.to(device=device, dtype=torch.float32)
    for in_batch in ("process", "fixed"):
        X, values = optimize_batch(model, choices=choices, ratio_threshold=math.inf, max_q=4, in_batch=in_batch)
        assert X.dtype == values.dtype == torch.float32
        assert X.device.type == values.device.type == device.type
        _, wide = optimize_batch(build(SparseGP), choices=CHOICES, ratio_threshold=math.inf, max_q=4)
        assert values.double().cpu().tolist() == pytest.approx(wide.tolist(), rel=1e-3)
