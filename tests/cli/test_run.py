"""``run``: every policy, on arms and on boxes, and what is written."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from sparse_bo import BBKB, AskTell, History, TrustRegion, observations_of
from sparse_bo.cli.options import main
from sparse_bo.cli.run import policy_of
from sparse_bo.cli.shared_options import POLICIES
from sparse_bo.domains import check_domain
from sparse_bo.policies import ExpectedImprovement, RandomSearch, TwoStage
from tests.cli.builders import BOX_ONLY, QUICK, invoke

ON_A_BOX = ["run", "--problem", "eggholder2", "--budget", "7", "--seed", "1"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("policy", ["random", *sorted(BOX_ONLY)])
def test_policies_on_a_box_run_and_write_a_figure_and_a_history(policy, tmp_path):
    design = [] if policy == "random" else ["--initial-design", "6"]
    if policy in ("rembo", "hesbo"):
        design = ["--set", "target_dims=2"]
    done = invoke(*ON_A_BOX, "--policy", policy, *design, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    stem = f"eggholder2-{policy}-seed1"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{stem}.jsonl", f"{stem}.png"]
    assert len(History.load(tmp_path / f"{stem}.jsonl").points) == 7
    assert "7 told" in done.output
    assert "true value there" in done.output


@pytest.mark.sampled(5)
@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in BOX_ONLY])
def test_every_policy_runs_and_writes_a_figure_and_a_history(policy, tmp_path):
    done = invoke(*QUICK, "--policy", policy, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    stem = f"gp-draw-{policy}-seed1"
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{stem}.jsonl", f"{stem}.png"]
    assert len(History.load(tmp_path / f"{stem}.jsonl").indices) == 30
    assert "30 told" in done.output
    assert "arm = " in done.output


def test_without_a_name_a_box_gets_the_policy_that_its_goal_suggests(tmp_path):
    done = invoke(*ON_A_BOX, "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "policy trust-region: on a box of 2 inputs where the best point counts" in done.output
    assert "a third of the budget of 7" in done.output
    counted = [*ON_A_BOX, "--goal", "cumulative", "--initial-design", "6"]
    for named, journal in (([], "chosen.journal"), (["--policy", "trust-region"], "named.journal")):
        done = invoke(*counted, *named, "--out", tmp_path / f"of_{journal}", "--storage", str(tmp_path / journal))
        assert done.exit_code == 0, done.output
        assert ("2 inputs where every evaluation counts" in done.output) is not bool(named)
        with AskTell.resume(tmp_path / journal) as loop:
            assert loop.policy == TrustRegion(goal="cumulative", initial_design=6)
    assert "goal to be one of" in invoke(*ON_A_BOX, "--goal", "worst").output


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "asked",
    [["--width", "1.5"], ["--kernel", "rbf"], ["--preset", "published"], ["--certify-every", "5"], ["--memory", "4"]],
    ids=lambda asked: asked[0],
)
def test_without_a_name_few_evaluations_of_arms_get_expected_improvement_unless_another_has_what_is_asked_for(asked, tmp_path):
    line = ["run", "--problem", "abalone", "--budget", "24", "--out", str(tmp_path)]
    done = invoke(*line, "--initial-design", "9")
    assert done.exit_code == 0, done.output
    assert "policy expected-improvement: the best candidate counts in a run of 24 evaluations" in done.output
    history = History.load(tmp_path / "abalone-expected-improvement-seed0.jsonl")
    assert history.rows[0].batch_size == 9
    assert history.info["why"].startswith("the best candidate counts in a run of 24 evaluations")
    done = invoke(*line, *asked)
    assert done.exit_code == 0, done.output
    plans = "certificates and plans"
    has = {"--preset": "the published preset", "--certify-every": plans, "--memory": plans}
    assert f"policy bbkb: it has {has.get(asked[0], asked[0])}" in done.output
    assert len(History.load(tmp_path / "abalone-bbkb-seed0.jsonl").indices) == 24


def test_without_a_name_long_runs_over_arms_begin_with_expected_improvement(tmp_path):
    domain = {"arms": torch.rand(60, 2, dtype=torch.float64)}
    build = {"domain": domain, "name": "gp-draw", "goal": "best", "budget": 5_000, "preset": "learned"}
    policy, why = policy_of(None, {"initial_design": 7, "after": "20"}, **build)
    assert isinstance(policy, TwoStage)
    assert (policy.first, policy.after) == (ExpectedImprovement(initial_design=7), 20)
    assert why.startswith("the best candidate counts in a run of 5,000 evaluations; BBKB goes on after ")
    policy, why = policy_of(None, {"width": "2"}, **build)
    assert isinstance(policy, BBKB)
    assert (policy.width, why) == (2.0, "it has --width")


@pytest.mark.parametrize(("batch_size", "inputs", "first"), [(96, 3, 96), (96, 128, 96), (30, 128, 90), ("none", 128, 66)])
def test_a_given_batch_size_makes_the_design_of_whole_batches(batch_size, inputs, first):
    """A plate of 96 wells was not filled: the design was a third of the budget."""
    arms = torch.rand(600, inputs, dtype=torch.float64)
    build = {"domain": {"arms": arms}, "name": "own", "goal": "best", "budget": 200, "preset": "learned"}
    policy, why = policy_of(None, {"batch_size": batch_size, "repeats": "no"}, **build, workers=2)
    assert policy.on(check_domain(arms=arms)).design_size == first
    assert ("a third of the budget" in why) == (batch_size == "none")
    policy, _ = policy_of(None, {"batch_size": batch_size, "initial_design": 7}, **build)
    assert policy.on(check_domain(arms=arms)).design_size == 7


def test_the_first_file_of_a_run_fills_the_plate(tmp_path):
    np.save(tmp_path / "arms.npy", np.random.default_rng(0).random((300, 64)))
    plates = ["--arms-file", tmp_path / "arms.npy", "--batch-size", "96", "--set", "repeats=false"]
    assert invoke("create", tmp_path / "lab.journal", *plates).exit_code == 0
    assert len(invoke("ask", tmp_path / "lab.journal").stdout.splitlines()) == 97  # and a line of names


def test_observations_of_other_runs_count_in_the_choice_of_the_policy(tmp_path):
    np.save(tmp_path / "arms.npy", arms := np.random.default_rng(0).random((60, 2)))
    earlier = (torch.arange(60).repeat(32), torch.rand(60 * 32, dtype=torch.float64))
    AskTell(arms, initial=earlier, storage=tmp_path / "earlier.journal", policy=RandomSearch()).close()
    taken = {"initial": observations_of(tmp_path / "earlier.journal"), "budget": 300}
    expected = AskTell(arms, **taken).about["description"]
    new = ["create", tmp_path / "new.journal", "--arms-file", tmp_path / "arms.npy", "--budget", "300"]
    done = invoke(*new, "--initial", tmp_path / "earlier.journal")
    assert done.exit_code == 0, done.output
    with AskTell.resume(tmp_path / "new.journal", arms=arms) as loop:
        assert loop.about["description"] == expected
        assert "every arm can be swept" in loop.about["why"]


def test_without_a_name_every_evaluation_of_arms_gets_bbkb(tmp_path):
    done = invoke(*QUICK, "--goal", "cumulative", "--width", "1.5", "--out", tmp_path, "--storage", tmp_path / "run.journal")
    assert done.exit_code == 0, done.output
    assert "policy bbkb: every arm can be swept" in done.output
    with AskTell.resume(tmp_path / "run.journal") as loop:
        assert loop.policy.width == 1.5


def test_the_published_preset_runs_on_abalone(tmp_path):
    published = ["--preset", "published", "--certify-every", "5"]
    done = invoke("run", "--problem", "abalone", "--budget", "300", "--out", str(tmp_path), *published)
    assert done.exit_code == 0, done.output
    history = History.load(tmp_path / "abalone-bbkb-seed0.jsonl")
    assert history.info["policy"] == "bbkb"
    assert history.info["arms"] == [4177, 8]
    assert history.rows[4].variance_factor is not None


def test_the_published_preset_is_of_the_two_data_sets(tmp_path):
    done = invoke(*QUICK, "--preset", "published", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert "--preset published is of cadata and abalone, not of gp-draw" in done.stderr
    assert "expected --preset to be one of 'learned', 'published'" in invoke(*QUICK, "--preset", "secret").stderr


@pytest.mark.sampled(1)
@pytest.mark.parametrize("where", [["--problem", "abalone"], ["--problem", "eggholder2"]], ids=["arms", "box"])
def test_compare_runs_the_default_beside_simple_policies(where, tmp_path, drawn):
    done = invoke("compare", *where, "--budget", "40", "--seed", "2", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    arms = where[1] == "abalone"
    names = {"bbkb", "epsilon-greedy", "random"} if arms else {"trust-region", "random"}
    stem = where[1]
    histories = {name: History.load(tmp_path / f"{stem}-{name}-seed2.jsonl") for name in names}
    assert all(len(history.indices if arms else history.points) == 40 for history in histories.values())
    assert (tmp_path / f"{stem}-compare-seed2.png").exists()
    assert all(name in done.output for name in names)
    assert "regret per evaluation" in done.output
    assert f"the default policy with --goal {'cumulative: bbkb' if arms else 'best: trust-region'}" in done.output


def test_a_comparison_without_any_regret_is_drawn(tmp_path):
    one = ["--problem", "gp-draw", "--arms", "1", "--budget", "4", "--out", tmp_path]
    done = invoke("compare", *map(str, one))  # a warning of matplotlib would be an error
    assert done.exit_code == 0, done.output
    assert (tmp_path / "gp-draw-compare-seed0.png").exists()


def test_an_audit_says_which_policies_have_a_certificate(tmp_path):
    """S-BPE has a sparse model over arms as well."""
    where = ["--problem", "gp-draw", "--arms", "40", "--dims", "2", "--budget", "30", "--out", str(tmp_path), "--quiet"]
    for policy, certificate in (
        ("sbpe", "none: only upper-confidence models over arms have one"),
        ("bbkb", "at most a factor"),
    ):
        path = str(tmp_path / f"{policy}.journal")
        assert invoke("run", *where, "--policy", policy, "--storage", path).exit_code == 0
        assert certificate in invoke("audit", path).output


def test_an_audit_shows_names_of_arms_that_fail_again(tmp_path):
    path = tmp_path / "run.journal"
    with AskTell(torch.eye(5, dtype=torch.float64), BBKB(), names=[f"M-{row:02d}" for row in range(5)], storage=path) as loop:
        loop.enqueue([3, 3, 3])
        loop.run(lambda X: torch.where(X[:, 3] > 0.0, torch.nan, X[:, 0]), 6)
    assert "M-03 (arm 3) 3 times" in invoke("audit", str(path)).output


def test_quiet_prints_nothing(tmp_path):
    assert invoke(*QUICK, "--out", str(tmp_path), "--quiet").output == ""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["recursive-rls", "ipa", "k-dpp"])
def test_dictionaries_run_by_name(name, tmp_path):
    done = invoke(
        *QUICK, "--dictionary", name, "--dictionary-size", "6", "--set", "max_batch_size=5", "--out", str(tmp_path), "--quiet"
    )
    assert done.exit_code == 0, done.output
    sizes = History.load(tmp_path / "gp-draw-bbkb-seed1.jsonl").column("dictionary_size")
    assert max(s for s in sizes if s is not None) == 6


def test_no_argument_compares_on_cadata(monkeypatch, capsys):
    monkeypatch.setattr("sparse_bo.cli.commands.compare", print)
    monkeypatch.setattr("sys.argv", ["sparse-bo"])
    with pytest.raises(SystemExit) as end:
        main()
    assert not end.value.code
    said = capsys.readouterr().out
    assert said.startswith("No command given: this example compares")
    assert "problem=None" in said


def test_the_module_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "sparse_bo", "--version"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("sparse_bo 0.")


def test_a_schedule_and_a_horizon_are_given_as_text(tmp_path):
    run = ["--policy", "sbpe", "--set", "horizon=25", "--set", "schedule=10,15", "--out", str(tmp_path)]
    done = invoke(*QUICK, *run)
    assert done.exit_code == 0, done.output
    assert "all 2 batches (25 evaluations)" in done.output
    assert History.load(tmp_path / "gp-draw-sbpe-seed1.jsonl").column("batch_size") == [10, 15]


def test_the_end_of_a_method_is_part_of_the_names_of_its_files(tmp_path, monkeypatch):
    (tmp_path / "bench.py").write_text("class Bench:\n    def run(self, X):\n        return X[:, 0]\nbench = Bench()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    done = invoke(
        "run", "--objective", "bench:bench.run", "--grid", "4x4", "--budget", "3", "--policy", "random", "--out", "out"
    )
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "bench.run-random-seed0.jsonl",
        "bench.run-random-seed0.png",
    ]


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.CertificateWarning")
def test_a_refuted_certificate_is_said_in_summary_and_report(tmp_path):
    """F = 0.8 for a draw of variance 1: nothing of norm 0.8 is that large."""
    wrong = ["--policy", "sbpe", "--rkhs-norm", "0.8", "--width", "tight", "--set", "on_refuted=stop", "--storage"]
    done = invoke(*QUICK, "--budget", "120", *wrong, tmp_path / "run.journal", "--out", str(tmp_path))
    assert done.exit_code == 0, done.output
    assert "REFUTED: " in done.output
    assert "calibration" in done.output
    assert "mean results in the intervals predicted before" in done.output
    told = invoke("report", str(tmp_path / "run.journal"), "--out", str(tmp_path))
    assert "REFUTED: " in told.output
    assert "REFUTED: " in invoke("audit", str(tmp_path / "run.journal")).output
