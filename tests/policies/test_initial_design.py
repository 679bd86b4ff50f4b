"""Initial designs on a box: one Sobol sequence a run, however its points are asked for."""

import math

import pytest
import torch

from sparse_bo import BBKB, BKB, GPUCB, GSSBO, SBPE, AskTell, TrustRegion
from sparse_bo.domains import Box
from sparse_bo.policies import (
    BPE,
    GPBUCB,
    QFFTS,
    REMBO,
    RSSBO,
    SGPTS,
    BoTorchUCB,
    HeSBO,
    SparseUCB,
    VecchiaUCB,
)
from tests.builders import rbf_kernel, unit_box

LOOP = {"initial_design": 16, "batch_size": 4}
BATCHES = {"horizon": 40, "initial_design": 16, "candidates": 16}
POLICIES = [
    pytest.param(TrustRegion(initial_design=16), id="trust-region"),
    pytest.param(TrustRegion(initial_design=16, goal="cumulative"), id="cumulative"),
    *(pytest.param(policy(initial_design=16), id=policy.name) for policy in (BBKB, BKB, GPUCB, GPBUCB)),
    *(pytest.param(policy(**BATCHES), id=policy.name) for policy in (SBPE, BPE)),
    *(
        pytest.param(policy(**LOOP), id=policy.name)
        for policy in (GSSBO, RSSBO, BoTorchUCB, SparseUCB, VecchiaUCB, SGPTS, QFFTS)
    ),
    *(pytest.param(policy(inner=BoTorchUCB(**LOOP), target_dims=2), id=policy.name) for policy in (REMBO, HeSBO)),
]
"""Every policy that starts with points of a Sobol sequence."""


def asked(loop, sizes, *, fail=()):
    """Ask for batches of these sizes, each before the results of the one before; return all points."""
    points, out = [], None
    for k, q in enumerate(sizes):
        batch = loop.ask(q)
        points.append(batch.X)
        if out is not None:
            loop.tell(out.tickets, [math.nan if k in fail else float(y) for y in -out.X.square().sum(dim=-1)])
        out = batch
    return torch.cat(points)


@pytest.mark.parametrize("policy", [BBKB, TrustRegion, GSSBO, SGPTS])
def test_a_design_beyond_any_memory_is_made_as_it_is_asked_for(policy):
    loop = AskTell(bounds=unit_box(2), policy=policy(initial_design=10**12), seed=5)
    first = loop.ask()
    assert 1000 < len(first.tickets) <= 10**6
    loop.tell(first.tickets[:2], [0.0, 0.0])
    whole = AskTell(bounds=unit_box(2), policy=policy(initial_design=len(first.tickets) + 3), seed=5)
    whole.ask(len(first.tickets))
    assert torch.equal(loop.ask(3).X, whole.ask(3).X)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("policy", POLICIES)
def test_points_asked_one_by_one_are_those_asked_at_once(policy):
    whole = AskTell(bounds=unit_box(3), policy=policy, seed=5).ask(16).X
    assert torch.equal(asked(AskTell(bounds=unit_box(3), policy=policy, seed=5), [1] * 12), whole[:12])
    assert torch.equal(asked(AskTell(bounds=unit_box(3), policy=policy, seed=5), [3, 1, 5]), whole[:9])
    assert not torch.equal(AskTell(bounds=unit_box(3), policy=policy, seed=6).ask(16).X, whole)


def test_four_points_asked_singly_lie_in_four_quarters_of_every_input():
    for seed in range(20):
        U = asked(AskTell(bounds=unit_box(2), policy=TrustRegion(initial_design=8), seed=seed), [1] * 4)
        assert sorted((4.0 * U).floor().T.tolist()[0]) == sorted((4.0 * U).floor().T.tolist()[1]) == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("policy", [param for param in POLICIES if param.id not in ("rembo", "hesbo")])
def test_points_that_the_policy_has_not_picked_take_none_of_the_sequence(policy, tmp_path):
    """Those of the start, and added ones: else the points that are left leave parts of the box out."""
    path, others = tmp_path / "run.journal", torch.full((3, 3), 0.5, dtype=torch.float64) + 0.1 * torch.eye(3)
    whole = AskTell(bounds=unit_box(3), policy=policy, seed=5).ask(16).X
    with AskTell(bounds=unit_box(3), policy=policy, seed=5, initial=(others[:1], [0.0]), storage=path) as loop:
        points = [asked(loop, [1] * 2)]
        loop.add(others[1:], [0.1, 0.2])
        points.append(asked(loop, [1, 2]))
    with AskTell.resume(path) as again:
        points.append(again.ask(2).X)
    assert torch.equal(torch.cat(points), whole[:7])


def test_earlier_results_do_not_end_the_design_while_an_objective_is_constant():
    def results(X):
        return torch.stack([torch.zeros(len(X), dtype=X.dtype), X.sum(dim=-1)], dim=-1).tolist()

    corner = 0.1 * torch.rand(30, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    settings = {"bounds": unit_box(2), "objectives": {"hill": "max", "sum": "max"}, "seed": 5}
    loop = AskTell(**settings, initial=(corner, results(corner)))
    for _ in range(3):  # 4 at a time, up to twice the design of 5
        assert not loop.state.fitted
        batch = loop.ask(4)
        loop.tell(batch.tickets, results(batch.X))
    assert torch.equal(loop.state.X[30:34], AskTell(**settings).ask(4).X)
    assert loop.state.fitted


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
@pytest.mark.sampled(6)
@pytest.mark.parametrize("policy", POLICIES)
def test_failures_do_not_restart_the_sequence(policy):
    whole = AskTell(bounds=unit_box(3), policy=policy, seed=5).ask(16).X
    points = asked(AskTell(bounds=unit_box(3), policy=policy, seed=5), [2] * 5, fail={1})
    from_the_sequence = (points.unsqueeze(1) - whole).abs().amax(dim=-1).amin(dim=-1) < 1e-6  # a lift rounds
    assert from_the_sequence.tolist()[:4] == [True] * 4
    assert int(from_the_sequence.sum()) >= 8  # the others lie next to failures, and were replaced
    assert len(torch.unique(points, dim=0)) == 10


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
@pytest.mark.parametrize("policy", [SBPE(**BATCHES), BPE(**BATCHES)], ids=lambda policy: policy.name)
def test_elimination_goes_on_after_a_failed_point_with_new_ones(policy):
    whole = AskTell(bounds=unit_box(3), policy=policy, seed=5).ask(16).X
    loop = AskTell(bounds=unit_box(3), policy=policy, seed=5)
    loop.tell(loop.ask(4).tickets, [1.0, math.nan, 2.0, 3.0])
    assert torch.equal(loop.ask(20).X[:12], whole[4:])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_resumed_run_continues_the_sequence(policy, tmp_path):
    whole = AskTell(bounds=unit_box(3), policy=policy, seed=5).ask(16).X
    with AskTell(bounds=unit_box(3), policy=policy, seed=5, storage=tmp_path / "run.journal") as loop:
        first = asked(loop, [1] * 6)
    with AskTell.resume(tmp_path / "run.journal") as again:
        assert torch.equal(torch.cat([first, again.ask(3).X]), whole[:9])


def test_the_default_dtype_changes_no_point():
    box, before = Box(unit_box(3)), torch.get_default_dtype()
    points = []
    try:
        for dtype in (torch.float32, torch.float64):
            torch.set_default_dtype(dtype)
            generator = torch.Generator().manual_seed(3)
            points.append(torch.cat([box.design(4, start=0, generator=generator), box.sobol(4, generator=generator)]))
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(*points)


@pytest.mark.parametrize(
    "policy", [BBKB(), GSSBO(num_restarts=2, raw_samples=16), TrustRegion()], ids=lambda policy: policy.name
)
def test_while_all_results_are_equal_the_sequence_goes_on(policy):
    """A model that has learned its prior from equal results is sure of all others, and corners are evaluated for ever."""
    loop = AskTell(bounds=unit_box(2), policy=policy, seed=1)
    while loop.asked < 45:
        loop.tell(batch := loop.ask(5), [0.0] * len(batch))
    points = torch.tensor(loop.history.points, dtype=torch.float64)
    torch.testing.assert_close(points, asked(AskTell(bounds=unit_box(2), policy=TrustRegion(initial_design=45), seed=1), [45]))


def test_while_all_results_are_equal_random_arms_follow_in_upper_confidence_policies_too():
    X = torch.rand(300, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    loop = AskTell(X, BBKB(), seed=0)
    while loop.asked < 60:
        loop.tell(batch := loop.ask(5), [0.0] * len(batch))
    assert len(set(loop.history.indices)) == 60
    given = BBKB(covar_module=rbf_kernel(0.3), regularization=0.1)  # where this one is to be uncertain does not depend on them
    assert AskTell(X, given, initial=([0, 1], [0.0, 0.0])).state.fitted is not None
