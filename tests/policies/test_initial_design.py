"""Initial designs on a box: one Sobol sequence a run, however its points are asked for."""

import math

import pytest
import torch

from sparse_bo import BBKB, GSSBO, AskTell, TrustRegion
from sparse_bo.domains import Box
from tests.builders import unit_box

POLICIES = [
    pytest.param(TrustRegion(initial_design=16), id="trust-region"),
    pytest.param(TrustRegion(initial_design=16, goal="cumulative"), id="cumulative"),
    pytest.param(BBKB(initial_design=16), id="bbkb"),
    pytest.param(GSSBO(initial_design=16, batch_size=4), id="gssbo"),
]


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


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.FailureWarning")
def test_failures_do_not_restart_the_sequence():
    whole = AskTell(bounds=unit_box(3), policy=TrustRegion(initial_design=16), seed=5).ask(16).X
    points = asked(AskTell(bounds=unit_box(3), policy=TrustRegion(initial_design=16), seed=5), [2] * 5, fail={1})
    from_the_sequence = (points.unsqueeze(1) == whole).all(dim=-1).any(dim=-1)
    assert from_the_sequence.tolist()[:4] == [True] * 4
    assert int(from_the_sequence.sum()) >= 8  # the others lie next to failures, and were replaced
    assert len(torch.unique(points, dim=0)) == 10


def test_a_resumed_run_continues_the_sequence(tmp_path):
    whole = AskTell(bounds=unit_box(3), policy=TrustRegion(initial_design=16), seed=5).ask(16).X
    with AskTell(bounds=unit_box(3), policy=TrustRegion(initial_design=16), seed=5, storage=tmp_path / "run.journal") as loop:
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
