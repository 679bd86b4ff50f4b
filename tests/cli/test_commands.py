"""The command line, as a user types it."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from sparse_bo import BBKB, Batch, History, RunInterrupted
from sparse_bo.cli.app import app, main
from sparse_bo.cli.presets import POLICIES, SAMPLERS, make_kernel, make_policy, make_sampler
from sparse_bo.dictionary import UniformSampler
from sparse_bo.policies import RandomSearch
from sparse_bo.problems.base import repeatable, ticket_noise
from sparse_bo.problems.synthetic import synthetic
from sparse_bo.runs.ask_tell import AskTell
from sparse_bo.runs.records import read_run

QUICK = ["run", "--problem", "gp-draw", "--arms", "300", "--dims", "2", "--budget", "30", "--seed", "1"]


def invoke(*arguments: str):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


BOX_ONLY = {"gssbo", "rssbo", "botorch-ucb", "sparse-ucb", "vecchia-ucb", "s-gp-ts", "qff-ts", "rembo", "hesbo"}
"""Policies that search a box alone."""
ON_A_BOX = ["run", "--problem", "eggholder2", "--budget", "7", "--seed", "1"]


@pytest.mark.parametrize("policy", ["random", *sorted(BOX_ONLY)])
def test_policies_on_a_box_run_and_write_a_figure_and_a_history(policy, tmp_path):
    design = [] if policy == "random" else ["--initial-design", "6"]
    if policy in ("rembo", "hesbo"):
        design = ["--target-dims", "2"]
    done = invoke(*ON_A_BOX, "--policy", policy, *design, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    stem = f"eggholder2-{policy}-seed1"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{stem}.jsonl", f"{stem}.png"]
    assert len(History.load(tmp_path / f"{stem}.jsonl").points) == 7
    assert "7 in 2 dimensions" in done.output
    assert "best point" in done.output


@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in BOX_ONLY])
def test_every_policy_runs_and_writes_a_figure_and_a_history(policy, tmp_path):
    done = invoke(*QUICK, "--policy", policy, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    stem = f"gp-draw-{policy}-seed1"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{stem}.jsonl", f"{stem}.png"]
    assert len(History.load(tmp_path / f"{stem}.jsonl").indices) == 30
    assert "30 on" in done.output
    assert "best arm" in done.output


def test_the_published_preset_runs_on_abalone(tmp_path):
    done = invoke("run", "--problem", "abalone", "--budget", "300", "--out", str(tmp_path), "--certify-every", "5")
    assert done.exit_code == 0, done.output
    history = History.load(tmp_path / "abalone-bbkb-seed0.jsonl")
    assert history.info["arms"] == [4177, 8]
    assert history.rows[4].variance_factor is not None


def test_quiet_prints_nothing(tmp_path):
    assert invoke(*QUICK, "--out", str(tmp_path), "--quiet").output == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problem", "mnist"], "problem to be one of"),
        (["--policy", "magic"], "policy to be one of"),
        (["--budget", "0"], "--budget >= 1"),
        (["--policy", "random", "--oversampling", "3"], "has no option --oversampling; it takes batch_size"),
        (["--ratio-threshold", "0.5"], "ratio_threshold >= 1"),
        (["--noise-sd", "-1"], "noise_sd >= 0"),
        (["--problem", "gp-draw", "--standardize"], "lives in the unit cube"),
        (["--problem", "levy20", "--standardize"], "in its own box; drop the scaling"),
        (["--problem", "levy20", "--policy", "epsilon-greedy"], "chooses among arms, got a box"),
        (["--problem", "levy20", "--policy", "qff-ts"], "takes boxes of d <= 3, got d = 20"),
        (["--problem", "eggholder2", "--policy", "rembo"], "target_dims <= the 2 dimensions"),
        (["--policy", "gssbo"], "searches a box, got an arm set"),
        (["--policy", "gssbo", "--buffer", "15"], "buffer=15 for initial_design=20"),
        (["--policy", "gssbo", "--buffer", "big"], "'model', 'clock'"),
        (["--policy", "gssbo", "--condition-on", "some"], "'subset', 'all'"),
        (["--standardize", "--scaling", "unit"], "contradicts"),
        (["--kernel", "learned", "--lengthscale", "1"], "takes no --lengthscale"),
        (["--precision", "float16"], "'float64', 'float32'"),
        (["--device", "abacus"], "--device cpu, cuda or cuda:N"),
        (["--dictionary", "uniform"], "needs --dictionary-size"),
        (["--dictionary", "k-dpp"], "needs --dictionary-size"),
        (["--dictionary", "ivm", "--dictionary-size", "0"], "size >= 1, got 0"),
        (["--dictionary", "pca"], "dictionary to be one of"),
        (["--dictionary-size", "9"], "drop --dictionary-size"),
        (["--width", "wide"], "'theory', 'authors'"),
        (["--memory-bytes", "10"], "memory_bytes >= 1048576"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_input_is_named_and_nothing_is_written(arguments, message, tmp_path):
    out = tmp_path / "out"
    done = invoke("run", "--problem", "abalone", *arguments, "--out", str(out))
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_asked_for_but_absent_is_named(tmp_path):
    done = invoke(*QUICK, "--device", "cuda", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "no CUDA device" in done.stderr


def test_an_interrupted_run_keeps_what_it_has(tmp_path, monkeypatch):
    original = AskTell.run

    def interrupted(self, objective, budget, **kwargs):
        original(self, objective, 10, **kwargs)
        raise RunInterrupted("interrupted after 10 evaluations", loop=self, result=self.result())

    monkeypatch.setattr(AskTell, "run", interrupted)
    done = invoke(*QUICK, "--out", str(tmp_path))
    assert done.exit_code == 130
    assert "stopped: interrupted after 10 evaluations\n" in done.output
    assert len(History.load(tmp_path / "gp-draw-bbkb-seed1.jsonl").indices) == 10
    path = tmp_path / "run.db"
    done = invoke(*QUICK, "--out", str(tmp_path), "--storage", str(path))
    assert f"stopped: interrupted after 10 evaluations\nGo on with: python -m sparse_bo resume {path}\n" in done.output


PLAIN = ["--problem", "gp-draw", "--arms", "300", "--dims", "2", "--budget", "40", "--policy", "random", "--seed", "1"]
SLOWLY = """
import signal, sys, time
from sparse_bo.problems import base as problems
from sparse_bo.cli import app
noise = problems.ticket_noise
def slow(tickets, *, seed):
    time.sleep(0.2)
    return noise(tickets, seed=seed)
problems.ticket_noise = slow
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs start with it ignored
    app.main()
"""


@pytest.mark.parametrize("executor", ["threads", "processes"])
def test_ctrl_c_in_a_terminal_leaves_a_run_that_resumes(executor, tmp_path):
    """The signal reaches the whole process group, workers too, as a terminal sends it."""
    script, path = tmp_path / "slowly.py", tmp_path / "run.db"
    script.write_text(SLOWLY)
    command = [sys.executable, str(script), "run", *PLAIN, "--storage", str(path), "--out", str(tmp_path / "a")]
    command += ["--executor", executor, "--workers", "2", "--asynchronous"]
    with (tmp_path / "stderr").open("w") as stderr:
        child = subprocess.Popen(command, process_group=0, stdout=subprocess.DEVNULL, stderr=stderr)
        deadline = time.monotonic() + 240.0
        while time.monotonic() < deadline and not (path.exists() and read_run(path).told >= 3):
            assert child.poll() is None, (tmp_path / "stderr").read_text()
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGINT)
        child.wait(timeout=60)
    said = (tmp_path / "stderr").read_text()
    assert child.returncode == 130
    assert said.startswith("stopped: interrupted after ")
    assert said.endswith(f"Go on with: python -m sparse_bo resume {path}\n")
    assert "Traceback" not in said
    assert 3 <= read_run(path).told < 40
    done = invoke("resume", str(path), "--executor", "here", "--quiet")
    assert done.exit_code == 0, done.output
    assert read_run(path).told == 40
    whole = tmp_path / "whole.db"
    assert invoke("run", *PLAIN, "--storage", str(whole), "--out", str(tmp_path / "b"), "--quiet").exit_code == 0
    assert sorted(read_run(whole).history.indices) == sorted(read_run(path).history.indices)


def test_help_names_problems_and_policies():
    text = invoke("--help").output
    assert "Cadata" in text
    assert all(policy in text for policy in POLICIES)
    assert "--ratio-threshold" in invoke("run", "--help").output


def test_no_argument_runs_the_default_example(monkeypatch):
    seen = []
    monkeypatch.setattr("sparse_bo.cli.app.app", lambda arguments: seen.append(arguments))
    monkeypatch.setattr(sys, "argv", ["sparse-bo"])
    main()
    assert seen == [["run"]]


def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "sparse_bo", "--version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sparse_bo 0.")


def test_presets_give_the_published_settings_on_the_data_sets():
    policy = make_policy("bbkb", {}, problem="cadata", budget=10_000)
    assert isinstance(policy, BBKB)
    assert (policy.regularization, policy.noise_variance, policy.rkhs_norm, policy.width) == (0.2, 0.01, 20.0, "authors")
    assert policy.failure_probability == 1e-4
    assert policy.covar_module.lengthscale.item() == pytest.approx(5.0**0.5)


def test_dictionaries_by_name():
    policy = make_policy("bkb", {"dictionary": "uniform", "dictionary_size": 7}, problem="cadata", budget=10)
    assert policy.dictionary == UniformSampler(size=7)
    assert make_policy("bkb", {"dictionary": "leverage"}, problem="cadata", budget=10).dictionary is None
    assert make_sampler("recursive-rls", None).size is None
    for name in SAMPLERS[1:]:
        assert make_sampler(name, 7).size == 7


@pytest.mark.parametrize("name", ["recursive-rls", "ipa", "k-dpp"])
def test_dictionaries_run_by_name(name, tmp_path):
    done = invoke(
        *QUICK, "--dictionary", name, "--dictionary-size", "6", "--max-batch-size", "5", "--out", str(tmp_path), "--quiet"
    )
    assert done.exit_code == 0, done.output
    sizes = History.load(tmp_path / "gp-draw-bbkb-seed1.jsonl").column("dictionary_size")
    assert max(s for s in sizes if s is not None) == 6


def test_a_learned_kernel_switches_the_preset_off():
    policy = make_policy("bbkb", {"kernel": "learned"}, problem="cadata", budget=10_000)
    assert policy.covar_module is None
    assert policy.regularization is None
    assert policy.width == 2.0
    assert isinstance(make_policy("random", {}, problem="cadata", budget=10), RandomSearch)


@pytest.mark.parametrize(("name", "nu"), [("matern12", 0.5), ("matern32", 1.5), ("matern52", 2.5)])
def test_kernels_by_name(name, nu):
    kernel = make_kernel(name, lengthscale=0.7, outputscale=2.0)
    assert kernel.base_kernel.nu == nu
    assert kernel.base_kernel.lengthscale.item() == pytest.approx(0.7)
    assert kernel.outputscale.item() == pytest.approx(2.0)


JOURNAL = ["--policy", "bbkb", "--kernel", "rbf", "--regularization", "0.05", "--width", "2"]


def test_a_run_killed_in_the_middle_and_resumed_ends_as_if_nothing_had_happened(tmp_path, monkeypatch):
    whole, cut = tmp_path / "whole.db", tmp_path / "cut.db"
    done = invoke(*QUICK, *JOURNAL, "--storage", str(whole), "--out", str(tmp_path / "a"), "--executor", "threads")
    assert done.exit_code == 0, done.output
    original, told = AskTell.tell, []

    def dies(self, tickets, y):
        original(self, tickets, y)
        told.append(1)
        if len(told) == 4:
            raise SystemExit(137)

    with monkeypatch.context() as patch:
        patch.setattr(AskTell, "tell", dies)
        assert invoke(*QUICK, *JOURNAL, "--storage", str(cut), "--out", str(tmp_path / "b")).exit_code == 137
    gc.collect()  # the dead run's hold on the journal ends with it
    before = read_run(cut)
    assert 4 <= before.told < 30
    reported = invoke("report", str(cut), "--out", str(tmp_path / "c"))
    assert f"{before.told} told" in reported.output
    assert (tmp_path / "c" / "cut.png").exists()
    done = invoke("resume", str(cut), "--executor", "threads", "--workers", "3")
    assert done.exit_code == 0, done.output
    assert "30 on" in done.output
    assert sorted(p.name for p in (tmp_path / "b").iterdir()) == ["gp-draw-bbkb-seed1.jsonl", "gp-draw-bbkb-seed1.png"]
    assert read_run(cut).history.indices == read_run(whole).history.indices
    assert read_run(cut).history.column("values") == read_run(whole).history.column("values")


def test_a_box_is_resumed_and_reported_too(tmp_path):
    path = str(tmp_path / "run.db")
    run = ["run", "--problem", "hartmann6", "--policy", "random", "--storage", path, "--out", str(tmp_path), "--quiet"]
    assert invoke(*run, "--budget", "6", "--batch-size", "3").exit_code == 0
    done = invoke("resume", path, "--budget", "9")
    assert done.exit_code == 0, done.output
    assert read_run(path).told == 9
    assert "9 asked, 9 told" in invoke("report", path, "--out", str(tmp_path)).output


def test_the_noise_of_an_evaluation_depends_on_its_ticket_alone():
    noise = ticket_noise(range(20_000), seed=3)
    assert torch.equal(ticket_noise([7, 19_999, 0], seed=3), noise[[7, 19_999, 0]])
    assert not torch.equal(ticket_noise([7], seed=4), noise[[7]])
    assert abs(float(noise.mean())) < 0.03
    assert abs(float(noise.std()) - 1.0) < 0.02
    assert abs(float((noise[1:] * noise[:-1]).mean())) < 0.03
    objective = pickle.loads(pickle.dumps(repeatable(synthetic("hartmann6", noise_sd=0.1), seed=1)))
    X = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = objective(Batch(None, X, [3, 4, 5, 6]))
    assert torch.equal(whole[1:3], objective(Batch(None, X[1:3], [4, 5])))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--problem", "abalone", "--workers", "4"], "needs executor="),
        (["run", "--problem", "abalone", "--asynchronous"], "--asynchronous needs --executor"),
        (["run", "--problem", "abalone", "--executor", "cluster"], "'threads', 'processes', 'loky'"),
        (["run", "--problem", "abalone", "--storage", "none/run.db"], "none of the journal to exist"),
        (["resume", "none.db"], "expected a journal at none.db"),
        (["report", "none.db"], "expected a journal at none.db"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_storage_and_executors_are_named(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")


def test_a_journal_that_was_not_made_here_is_reported_but_not_resumed(tmp_path):
    path = tmp_path / "run.db"
    with AskTell(torch.rand(9, 1, dtype=torch.float64), RandomSearch(), storage=path) as loop:
        loop.run(lambda X: X[:, 0], 4)
    done = invoke("resume", str(path))
    assert done.exit_code == 2
    assert "was not made by `run`" in done.stderr.replace("\n", " ")
    assert "4 told" in invoke("report", str(path), "--out", str(tmp_path)).output
