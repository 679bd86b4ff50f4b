"""What BoTorch and GPyTorch make for a policy is where the policy computes, whatever ``torch.set_default_device`` says."""

from __future__ import annotations

import pytest
import torch

from sparse_bo import AskTell, Float, optimize
from tests.builders import arms, unit_box, waves
from tests.journal import every_policy as every

DOMAINS = {"arms": ("arms", lambda: arms(80)), "box": ("bounds", unit_box)}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    every.shorten_searches(monkeypatch)


def run(domain, name, storage=None):
    keyword, make = DOMAINS[domain]
    loop = AskTell(policy=every.policy_of(domain, name), seed=4, storage=storage, **{keyword: make()})
    with pytest.MonkeyPatch.context() if storage is None else torch.device("meta"):
        loop.run(waves, every.BUDGET[domain])
    loop.close()
    return loop.history


# On the meta device no number can be read: whatever is made there raises an error.
@pytest.mark.sampled(2)
@pytest.mark.parametrize(("domain", "name"), every.RUNS, ids=["-".join(run) for run in every.RUNS])
def test_policies_make_nothing_on_the_default_device(domain, name, tmp_path):
    found, expected = run(domain, name, tmp_path / "run.journal"), run(domain, name)
    assert found.indices == expected.indices
    assert found.points == expected.points
    with torch.device("meta"), AskTell.resume(tmp_path / "run.journal") as loop:
        assert loop.history.points == expected.points


SPACES = {
    "box": {"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)},
    "arms": {"x": Float(0.0, 1.0, step=0.1), "y": Float(0.0, 1.0, step=0.1)},
}


@pytest.mark.slow  # at each change the test above has two objectives, over arms and on a box
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("objectives", [("v", "w"), ("v", "w", "u")], ids=len)
def test_several_objectives_make_nothing_on_the_default_device(space, objectives):
    def measured(p):
        x, y = p["x"], p["y"]
        values = {"v": (x - 0.2) ** 2 + y, "w": (x - 0.8) ** 2 - y, "u": x * y}
        return {name: values[name] for name in objectives}

    least = dict.fromkeys(objectives, "min")
    expected = optimize(measured, SPACES[space], objectives=least, budget=9)
    assert expected.state.fitted
    with torch.device("meta"):
        found = optimize(measured, SPACES[space], objectives=least, budget=9)
        assert found.hypervolume == expected.hypervolume
    assert [point.parameters for point in found.pareto_front] == [point.parameters for point in expected.pareto_front]
