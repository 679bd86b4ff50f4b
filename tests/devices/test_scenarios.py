"""Whole runs on another device than the CPU: every policy, journals, executors, the command line, and other round-off."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gpytorch.kernels import ScaleKernel
from torch import Tensor

from sparse_bo import BBKB, SBPE, AskTell, MemmapArms, ProductGrid, Storage, maximize
from sparse_bo.dictionary import FixedSampler
from sparse_bo.evaluations import Workers
from sparse_bo.policies import SGPTS, ExpectedImprovement, QFFTSArms, SGPTSArms
from tests.builders import arms, matern_kernel, rbf_kernel, unit_box, waves
from tests.cli.builders import QUICK, invoke
from tests.evaluations import flaky
from tests.journal import every_policy as every
from tests.second_device import Second

CPU = torch.device("cpu")
PRIOR = {"covar_module": rbf_kernel(0.3), "regularization": 0.05}
DOMAINS = {"arms": ("arms", lambda: arms(80)), "box": ("bounds", unit_box)}
IDS = ["-".join(run) for run in every.RUNS]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    every.shorten_searches(monkeypatch)


def started(domain: str, name: str, device: torch.device, **settings: Any) -> AskTell:
    keyword, make = DOMAINS[domain]
    return AskTell(policy=every.policy_of(domain, name), seed=4, **{keyword: make().to(device)}, **settings)


def picks_of(loop: AskTell) -> Tensor:
    history = loop.history
    return torch.tensor(history.indices if history.points is None else history.points, device="cpu")


def same_picks(got: Tensor, expected: Tensor) -> None:
    """Arms are the same; points of a box to what searches leave open where round-off differs."""
    if expected.is_floating_point():
        torch.testing.assert_close(got, expected, rtol=0.0, atol=1e-5)
    else:
        assert torch.equal(got, expected)


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("domain", "name"), every.RUNS, ids=IDS)
def test_every_policy_picks_as_on_the_cpu(domain, name, accelerator):
    loop = started(domain, name, accelerator)
    loop.run(waves, every.BUDGET[domain])
    assert {batch.X.device for batch in (loop.ask(1), loop.reissue())} == {accelerator}
    same_picks(picks_of(loop), _on_the_cpu(domain, name))


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("domain", "name"), every.RUNS, ids=IDS)
def test_every_policy_goes_on_after_a_resume(domain, name, accelerator, tmp_path):
    storage = Storage(tmp_path / "run.journal", replay_seconds=0.0)
    reference, half = started(domain, name, accelerator), every.BUDGET[domain] // 2
    reference.run(waves, half)  # the last batch of a run is cut short
    reference.run(waves, every.BUDGET[domain] - half)
    with started(domain, name, accelerator, storage=storage) as loop:
        loop.run(waves, half)
    with AskTell.resume(storage) as loop:
        loop.run(waves, every.BUDGET[domain] - half)
        assert loop.history.points == reference.history.points
        assert loop.history.indices == reference.history.indices
        assert loop.ask(1).X.device == accelerator


@pytest.mark.parametrize("policy", [BBKB(batch_size=12, repeats=False), ExpectedImprovement(batch_size=12, repeats=False)])
def test_each_candidate_is_tried_once(policy, accelerator):
    X = arms(40)
    runs = [maximize(waves, arms=X.to(device), policy=policy, budget=60, seed=1) for device in (CPU, accelerator)]
    assert sorted(runs[0].history.indices) == list(range(40))
    assert runs[1].history.indices == runs[0].history.indices
    assert runs[1].ended == runs[0].ended


def test_a_run_moves_between_devices(accelerator, tmp_path):
    expected = AskTell(arms(), BBKB(**PRIOR), seed=1).run(waves, 24).history.indices
    path = Storage(tmp_path / "run.journal", replay_seconds=0.0)
    with AskTell(arms(), BBKB(**PRIOR), seed=1, storage=path) as loop:
        loop.run(waves, 8)
    for device in (accelerator, CPU):
        with AskTell.resume(path, device=device) as loop:
            loop.run(waves, 8)
    assert loop.history.indices == expected


POLICIES = {
    "a kernel": lambda device: BBKB(covar_module=ScaleKernel(rbf_kernel(0.3)).double().to(device), regularization=0.05),
    "points": lambda device: BBKB(dictionary=FixedSampler(points=arms(7, seed=3).to(device)), **PRIOR),
    "both": lambda device: SBPE(
        covar_module=rbf_kernel(0.3).to(device),
        dictionary=FixedSampler(points=arms(7, seed=3).to(device)),
        regularization=0.05,
        horizon=40,
        rkhs_norm=2.0,
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("make", POLICIES.values(), ids=POLICIES.keys())
@pytest.mark.parametrize("journaled", [True, False], ids=["journaled", ""])
def test_tensors_of_a_policy_may_be_on_the_device(make, journaled, accelerator, tmp_path):
    """A journal describes them, and what is rebuilt from it is on the CPU."""
    reference = AskTell(arms(), make(CPU), seed=2)
    reference.run(waves, 10)
    expected = reference.run(waves, 10).history.indices
    storage = tmp_path / "run.journal" if journaled else None
    with AskTell(arms().to(accelerator), make(accelerator), seed=2, storage=storage) as loop:
        loop.run(waves, 10)
        if not journaled:
            loop.run(waves, 10)
    if journaled:
        with AskTell.resume(tmp_path / "run.journal") as loop:
            loop.run(waves, 10)
    assert loop.history.indices == expected


@pytest.mark.parametrize("executor", [None, "threads", Workers(executor="threads", count=2, asynchronous=True)])
@pytest.mark.parametrize("call_with", ["X", "batch"])
def test_in_this_process_the_objective_gets_tensors_on_the_device(executor, call_with, accelerator):
    """On threads as in the loop itself."""
    seen = []

    def objective(given):
        X = given if call_with == "X" else given.X
        seen.append(X.device)
        return waves(X)

    AskTell(arms().to(accelerator), BBKB(**PRIOR), seed=0).run(objective, 12, executor=executor, call_with=call_with)
    assert set(seen) == {accelerator}


@pytest.mark.parametrize("executor", ["processes", "loky"])
def test_in_another_process_it_gets_them_on_the_cpu(executor, second):
    device = torch.device("second", 0)
    results = [
        maximize(flaky.smooth, bounds=unit_box(device=where), policy=SGPTS(initial_design=4), budget=8, executor=how)
        for where, how in ((CPU, None), (device, Workers(executor=executor, count=1)))
    ]
    same_picks(*(torch.tensor(result.history.points) for result in results))


@pytest.mark.sampled(6)
@pytest.mark.parametrize("where", ["second", "cpu"])
@pytest.mark.parametrize(("domain", "name"), every.RUNS, ids=IDS)
def test_the_default_device_changes_nothing(domain, name, where, second: Second, tmp_path):
    """``torch.set_default_device`` says where a user's tensors go; the package's own go where the arms are."""
    keyword, make = DOMAINS[domain]
    X, half = make().to(where), every.BUDGET[domain] // 2
    with torch.device("second"):
        with AskTell(policy=every.policy_of(domain, name), seed=4, storage=tmp_path / "run.journal", **{keyword: X}) as loop:
            loop.run(waves, half)
        with AskTell.resume(tmp_path / "run.journal") as loop:
            loop.run(waves, every.BUDGET[domain] - half)
    reference = started(domain, name, CPU)
    reference.run(waves, half)
    reference.run(waves, every.BUDGET[domain] - half)
    same_picks(picks_of(loop), picks_of(reference))


@functools.cache
def _on_the_cpu(domain: str, name: str) -> Tensor:
    return _picks(domain, name, CPU)


def _picks(domain: str, name: str, device: torch.device) -> Tensor:
    loop = started(domain, name, device)
    loop.run(waves, every.BUDGET[domain])
    return picks_of(loop)


OVER_ARMS = [name for domain, name in every.RUNS if domain == "arms"]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", OVER_ARMS)
def test_other_round_off_moves_no_pick_over_arms(name, second: Second):
    device = torch.device("second", 0)
    expected = _on_the_cpu("arms", name)
    for units in (1, 4):
        with second.rounding(units):
            assert torch.equal(_picks("arms", name, device), expected), units


@pytest.mark.parametrize("seed", range(3))
def test_other_round_off_moves_points_of_a_box_within_the_searches_tolerance(seed, second: Second):
    rounds = []
    for device, units in ((CPU, 0), (torch.device("second", 0), 4)):
        with second.rounding(units):
            loop, points = AskTell(bounds=unit_box(device=device), policy=BBKB(**PRIOR), seed=seed), []
            while len(points) < 13:
                batch = loop.ask()
                points += batch.X.tolist()
                loop.tell(batch.tickets, waves(batch.X.cpu()))
            rounds.append(torch.tensor(points[:13], dtype=torch.float64))
    torch.testing.assert_close(*rounds, rtol=0.0, atol=1e-5)


@pytest.mark.parametrize("goal", ["best", "cumulative"])
def test_a_trust_region_computes_on_the_cpu_and_gives_points_on_the_device(goal, second: Second, tmp_path):
    """Its models are too small for a GPU: bounds there cost neither time nor an equal run."""
    device, results = torch.device("second", 0), []
    for where, units in ((CPU, 0), (device, 4)):
        seen = []

        def objective(X, seen=seen):
            seen.append(X.device)
            return waves(X.cpu())

        with second.rounding(units):
            loop = AskTell(bounds=unit_box(device=where), goal=goal, seed=3, initial=(unit_box(device=where), [0.0, 0.1]))
            loop.add(unit_box().mean(dim=0, keepdim=True).to(where), [0.4])
            loop.enqueue(unit_box(device=where))
            results.append(loop.run(objective, 16, vectorized=True))
        best = results[-1].best_x
        assert {*seen, best.device, results[-1].best_observed_x.device} == {where}
        assert results[-1].state.X.device == CPU
        assert loop.state.model.posterior(best.unsqueeze(0)).mean.device == CPU
        results[-1].report(tmp_path / "page.html")
    cpu, other = results
    assert cpu.history.points == other.history.points
    assert (cpu.best_mean, cpu.best_sd, cpu.importance) == (other.best_mean, other.best_sd, other.importance)


def test_the_round_off_is_there_and_repeats(second: Second):
    device = torch.device("second", 0)
    posteriors = []
    for units in (0, 4, 4):
        with second.rounding(units):
            loop = AskTell(arms().to(device), BBKB(**PRIOR), seed=0)
            loop.run(waves, 20)
            posteriors.append(loop.state.posterior.leverages.cpu())
    assert not torch.equal(posteriors[0], posteriors[1])
    assert torch.equal(posteriors[1], posteriors[2])
    torch.testing.assert_close(posteriors[0], posteriors[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("nu", [0.5, 1.5, 2.5])
def test_thompson_draws_of_matern_kernels_are_those_on_the_cpu(nu, accelerator):
    """Their features have gamma variables, which BoTorch draws where the kernel is."""
    policy = SGPTSArms(covar_module=matern_kernel(0.3, nu=nu), regularization=0.05, batch_size=3)
    picks = [AskTell(arms(300).to(where), policy, seed=5).run(waves, 24).history.indices for where in (CPU, accelerator)]
    assert picks[0] == picks[1]


@pytest.mark.parametrize("policy", [QFFTSArms(**PRIOR), SGPTSArms(**PRIOR)], ids=lambda policy: policy.name)
def test_generators_of_the_device_stay_as_they_were(policy, second):
    before = [torch.get_rng_state(), torch.second.get_rng_state()]
    AskTell(arms().to("second"), policy, seed=5).run(waves, 12)
    assert all(map(torch.equal, before, [torch.get_rng_state(), torch.second.get_rng_state()]))


KINDS = {
    "memory": lambda folder: arms(400),
    "grid": lambda folder: ProductGrid.linspace(unit_box(), [140, 140]),
    "file": lambda folder: _file(folder),
}


def _file(folder: Path) -> MemmapArms:
    import numpy as np

    path = folder / "arms.npy"
    np.save(path, arms(20_000).numpy())
    return MemmapArms(path)


@pytest.mark.parametrize("kind", KINDS)
def test_streamed_arms_are_picked_as_on_the_cpu(kind, accelerator, tmp_path):
    X = KINDS[kind](tmp_path)
    policy = BBKB(memory_bytes=2**20, **PRIOR)
    picks = [AskTell(X.to(where), policy, seed=0).run(waves, 16).history.indices for where in (CPU, accelerator)]
    assert picks[0] == picks[1]


@pytest.mark.usefixtures("undrawn_figures")
def test_every_command_of_the_command_line(second, tmp_path):
    """``run``, ``resume``, ``report`` and ``plan``; runs of arms, and of every built-in box with a journal."""
    for number, extra in enumerate(([], ["--policy", "s-gp-ts-arms", "--kernel", "matern52"], ["--certify-every", "1"])):
        picks = []
        for device in ("cpu", "second"):
            out = tmp_path / f"{device}{number}"
            done = invoke(*QUICK, "--device", device, "--out", out, "--storage", tmp_path / f"{device}{number}.journal", *extra)
            assert done.exit_code == 0, done.stderr
            (history,) = out.glob("*.jsonl")
            picks.append([json.loads(line).get("indices") for line in history.read_text().splitlines()])
        assert picks[0] == picks[1]
    for problem in ("eggholder2", "hartmann6", "levy20", "powell50", "rastrigin100"):
        path = tmp_path / f"{problem}.journal"
        start = ["run", "--problem", problem, "--policy", "random", "--budget", "6", "--device", "second", "--storage", path]
        done = invoke(*start, "--out", tmp_path / problem)
        assert done.exit_code == 0, (problem, done.stderr)
        done = invoke("resume", path, "--budget", "9")
        assert done.exit_code == 0, (problem, done.stderr)
    done = invoke("report", path, "--out", tmp_path / "report")
    assert done.exit_code == 0, done.stderr
    done = invoke("plan", "--arms", "2000", "--dims", "2", "--budget", "100", "--device", "second")
    assert done.exit_code == 0, done.stderr


def test_draws_in_every_loop_are_counted_alike(accelerator):
    """Asking for one or for many at a time, and telling in any order, on any device."""
    runs = []
    for device, size in itertools.product((CPU, accelerator), (1, 5)):
        loop = AskTell(arms().to(device), BBKB(ratio_threshold=3.0, **PRIOR), seed=6)
        while loop.asked < 20:
            batch = loop.ask(size)
            order = list(reversed(batch.tickets))
            loop.tell(order, waves(batch.X).flip(0))
        runs.append((size, loop.history.indices))
    assert runs[0] == runs[2]
    assert runs[1] == runs[3]
