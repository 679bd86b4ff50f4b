"""Picks do not depend on torch's defaults; a policy that does not fit a domain names one that does."""

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from sparse_bo import BBKB, AskTell, TrustRegion
from sparse_bo.domains import Float, Int
from sparse_bo.policies import QFFTS, SGPTS, ExpectedImprovement, QFFTSArms, SGPTSArms
from tests.builders import arms, unit_box
from tests.journal import every_policy as every

IDS = [f"{domain}: {name}" for domain, name in every.RUNS]


def picks(domain, name, policy):
    keyword = {"arms": arms(60)} if domain == "arms" else {"bounds": unit_box(2)}
    loop = AskTell(policy=policy, seed=3, **keyword)
    loop.run(lambda X: torch.sin(5.0 * X[:, 0]) + torch.cos(3.0 * X[:, 1]), every.BUDGET[domain])
    return loop.history.indices if domain == "arms" else loop.history.points


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("domain", "name"), every.RUNS, ids=IDS)
def test_the_default_dtype_changes_no_pick(domain, name, monkeypatch):
    """Nor does half precision, in which BoTorch alone ends in infinities."""
    every.shorten_searches(monkeypatch)
    before, found, policy = torch.get_default_dtype(), [], every.policy_of(domain, name)
    try:
        for dtype in (torch.float64, torch.float16):
            torch.set_default_dtype(dtype)
            found.append(picks(domain, name, policy))
            assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(before)
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("policy", "where"),
    [(BBKB, {"arms": arms(60)}), (BBKB, {"bounds": unit_box(2)}), (ExpectedImprovement, {"arms": arms(60)})],
    ids=["BBKB, arms", "BBKB, box", "expected improvement"],
)
def test_a_policy_keeps_its_kernel_although_the_users_is_trained(policy, where):
    courses = []
    for trained in (False, True):
        kernel = ScaleKernel(RBFKernel())
        made = policy(covar_module=kernel, initial_design=3)
        kernel.base_kernel.lengthscale = 9.0 if trained else kernel.base_kernel.lengthscale
        loop, course = AskTell(policy=made, **where), []
        for _ in range(8):
            batch = loop.ask(1)
            loop.tell(batch.tickets, torch.sin(5.0 * batch.X[:, 0]))
            kernel.base_kernel.lengthscale = 0.01 if trained else kernel.base_kernel.lengthscale
            course += batch.X.tolist()
        courses.append(course)
    assert courses[0] == courses[1]


SMALL = {"a": Int(0, 9), "b": Int(0, 2)}
LARGE = {"a": Int(0, 9), "b": Float(0.0, 1.0)}


@pytest.mark.parametrize(
    ("policy", "fits"),
    [(TrustRegion(), ExpectedImprovement()), (SGPTS(), SGPTSArms()), (QFFTS(), QFFTSArms())],
    ids=lambda policy: policy.name,
)
def test_the_policy_that_is_named_for_a_domain_runs_there(policy, fits):
    with pytest.raises(
        TypeError, match=f"30 feasible combinations of a space; use {type(fits).__name__}, or leave policy= out"
    ):
        AskTell(space=SMALL, policy=policy)
    AskTell(space=SMALL, policy=fits, seed=0).run(lambda p: float(p["a"]), 12)
    with pytest.raises(TypeError, match=f"got an arm set; use {type(fits).__name__}, or pass bounds="):
        AskTell(arms(20), policy)
    with pytest.raises(TypeError, match=f"too many combinations for arms, a box; use {type(policy).__name__}, or leave"):
        AskTell(space=LARGE, policy=fits)
    AskTell(space=LARGE, policy=policy, seed=0)
    with pytest.raises(TypeError, match=f"got a box; use {type(policy).__name__}, or pass arms="):
        AskTell(policy=fits, bounds=unit_box(2))
