"""What does not fit is refused before anything is run or written: one line, exit code 2."""

import os
import subprocess
import sys

import pytest
import torch

from tests.cli.builders import QUICK, invoke


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problem", "mnist"], "problem to be one of"),
        (["--policy", "magic"], "policy to be one of"),
        (["--budget", "0"], "--budget >= 1"),
        (["--budget", "9914231978136112"], "--budget of at most 1,000,000,000"),
        (["--policy", "random", "--width", "3"], "has no --width, which is of bbkb, bkb, botorch-ucb,"),
        (["--policy", "random", "--kernel", "rbf"], "has no --kernel, which is of bbkb, bkb, bpe,"),
        (["--policy", "random", "--set", "oversampling=3"], "it takes --batch-size"),
        (
            ["--policy", "bkb", "--set", "stop_rule=local"],
            "policy 'bkb' has no --set stop_rule, which is of bbkb; it takes --dict",
        ),
        (["--set", "no_such=3"], "policy 'bbkb' has no --set no_such, which no policy has; it takes --batch-size, "),
        (["--set", "stop_rule"], "expected --set name=value, as in --set stop_rule=local, got 'stop_rule'"),
        (["--set", "=local"], "expected --set name=value"),
        (["--set", "horizon=9", "--set", "horizon=8", "--policy", "sbpe"], "--set horizon is set twice; drop one"),
        (["--width", "2", "--set", "width=3"], "--width is set twice; drop one"),
        (["--set", "kernel=rbf"], "kernel is set by --kernel, --lengthscale, --outputscale; use that in place of --set"),
        (["--set", "covar_module=rbf"], "covar_module is set by --kernel"),
        (["--set", "sweep_dtype=float32"], "sweep_dtype is set by --precision"),
        (["--set", "surrogate=gp", "--policy", "gssbo"], "no --set surrogate"),
        (["--set", "stop_rule=any"], "expected --set stop_rule to be 'global' or 'local' or 'gp-bucb' or 'repeat', got 'any'"),
        (["--set", "max_batch_size=many"], "expected --set max_batch_size to be a whole number, got 'many'"),
        (["--set", "max_batch_size=2.5"], "expected --set max_batch_size to be a whole number, got '2.5'"),
        (["--set", "max_batch_size="], "expected --set max_batch_size to be a whole number, got ''"),
        (["--set", "max_batch_size=" + "9" * 40], "expected --set max_batch_size to be a whole number, got '999"),
        (["--set", "warm_start=1", "--policy", "gssbo"], "expected --set warm_start to be yes or no, got '1'"),
        (["--set", "prior_mean=x"], "expected --set prior_mean to be a number or none, got 'x'"),
        (["--set", "ratio_threshold=0.5"], "ratio_threshold >= 1"),
        (["--noise-sd", "-1"], "--noise-sd >= 0"),
        (["--problem", "gp-draw", "--standardize"], "lives in the unit cube"),
        (["--problem", "levy20", "--arms", "30", "--dims", "2"], "--arms, --dims: of --problem gp-draw, not of levy20"),
        (["--dims", "2"], "--dims: of --problem gp-draw, not of abalone"),
        (["--problem", "levy20", "--standardize"], "in its own box; drop the scaling"),
        (["--problem", "levy20", "--policy", "epsilon-greedy"], "chooses among arms, got a box"),
        (["--problem", "levy20", "--policy", "qff-ts"], "takes boxes of d <= 3, got d = 20"),
        (["--problem", "eggholder2", "--policy", "rembo"], "target_dims <= the 2 dimensions"),
        (["--policy", "gssbo"], "searches a box, got an arm set"),
        (["--policy", "gssbo", "--set", "buffer=15"], "buffer=15 for initial_design=20"),
        (["--policy", "gssbo", "--set", "buffer=big"], "a whole number or 'model' or 'clock', got 'big'"),
        (["--standardize", "--scaling", "unit"], "contradicts"),
        (["--kernel", "learned", "--lengthscale", "1"], "--lengthscale and --outputscale are of a named --kernel"),
        (["--kernel", "tanimoto", "--lengthscale", "1"], "compares fingerprints and has no lengthscale; drop"),
        (["--precision", "float16"], "'float64', 'float32'"),
        (["--device", "abacus"], "--device cpu, cuda or cuda:N"),
        (["--dictionary", "uniform"], "needs --dictionary-size"),
        (["--dictionary", "k-dpp"], "needs --dictionary-size"),
        (["--dictionary", "ivm", "--dictionary-size", "0"], "size >= 1, got 0"),
        (["--dictionary", "pca"], "dictionary to be one of"),
        (["--dictionary-size", "9"], "drop --dictionary-size"),
        (["--width", "wide"], "'theory', 'authors'"),
        (["--set", "memory_bytes=10"], "memory_bytes >= 1048576"),
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--problem", "abalone", "--workers", "4"], "--workers 4 needs --executor"),
        (["run", "--problem", "abalone", "--asynchronous"], "--asynchronous needs --executor"),
        (["run", "--problem", "abalone", "--batch-by-batch"], "--batch-by-batch needs --executor"),
        (
            ["run", "--problem", "abalone", "--executor", "dask"],
            "; for dask call sparse_bo.maximize(…, executor=client.get_executor()) in Python",
        ),
        (
            ["run", "--problem", "abalone", "--executor", "ray"],
            "; for ray call sparse_bo.maximize(…, executor=RayExecutor()) in Python",
        ),
        (["run", "--problem", "abalone", "--executor", "cluster"], "'threads', 'processes', 'loky'"),
        (["run", "--problem", "abalone", "--storage", "none/run.journal"], "none of the journal to exist"),
        (["resume", "none.journal"], "expected a journal at none.journal"),
        (["report", "none.journal"], "expected a journal at none.journal"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_storage_and_executors_are_named(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "1000000000000"], "gp-draw with --arms 1000000000000 --dims 2 needs 22,352 GiB, and "),
        (["--dims", "1000000000000"], "gp-draw with --arms 300 --dims 1000000000000 needs "),
        (["--noise-sd", "1e300"], "expected --noise-sd of at most 1e+12, got 1e+300"),
        (["--noise-sd", "nan"], "expected a finite --noise-sd, got nan"),
        (["--device", "mps"], "expected --device cpu, cuda or cuda:N, got 'mps'"),
        (["--device", "xpu"], "expected --device cpu, cuda or cuda:N, got 'xpu'"),
        (["--device", "meta"], "expected --device cpu, cuda or cuda:N, got 'meta'"),
        (["--device", "cpu:1"], "expected --device cpu, cuda or cuda:N, got 'cpu:1'"),
        (
            ["--memory", "1e300"],
            "expected --memory to be a number of GiB above 0 and below 2^32, such as 16 or",
        ),
        (["--executor", "threads", "--workers", "1000000000"], "expected --workers of at most 10,000, got 1000000000"),
        (
            ["--policy", "sbpe", "--set", "schedule=10,x"],
            "expected --set schedule to be whole numbers such as 100,300,600 or none",
        ),
        (["--width", "[/b]:b:"], "expected --width to be one of 'calibrated', 'theory', 'authors', got '[/b]:b:'"),
        (["--width", "²"], "expected --width to be one of 'calibrated', 'theory', 'authors', got '²'"),
    ],
    ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else "",
)
def test_numbers_and_devices_that_cannot_be_are_named_in_one_line(arguments, message, tmp_path):
    done = invoke(*QUICK, *arguments, "--out", tmp_path / "out")
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "1e18", "--dims", "1"], "trying out 1000000000000000000 arms of 1 inputs needs "),
        (["--arms", "1e6", "--dims", "1000000000000"], "trying out 1000000 arms of 1000000000000 inputs needs "),
        (["--arms", "1e3", "--dims", "2", "--memory", "inf"], "expected --memory to be a number of GiB above 0"),
        (["--grid", "9x9", "--device", "mps"], "expected --device cpu, cuda or cuda:N"),
        (["--grid", "²x3"], "expected --grid like"),
        (["--grid", "1000000000000"], "expected a --grid whose axes fit into "),
    ],
    ids=lambda v: " ".join(v)[:40] if isinstance(v, list) else "",
)
def test_plans_that_cannot_be_are_named_in_one_line(arguments, message):
    done = invoke("plan", *arguments)
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith(f"error: {message}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["4611686018427387904", "-1", "1" + "0" * 30, "1e300", "1e30", "2.5", "nan", "x", "", "²", "[/b]"]
)
@pytest.mark.parametrize("command", [["run", "--seed"], ["run", "--arms"], ["plan", "--arms"], ["resume", "x", "--budget"]])
def test_whole_numbers_are_between_0_and_2_to_the_62(command, text):
    done = invoke(*command, text)
    assert done.exit_code == 2
    assert done.stderr == (
        f"error: expected {command[-1]} to be a whole number from 0 to 2^62, such as 1000000 or 1e6, got {text!r}\n"
    )


def test_a_device_beyond_those_that_are_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    done = invoke(*QUICK, "--device", "cuda:2", "--out", tmp_path)
    assert done.exit_code == 2
    assert done.stderr == (
        "error: expected --device cpu, cuda or cuda:N, got 'cuda:2', and torch sees CUDA devices 0 to 1 only; use cpu\n"
    )


def test_a_journal_that_exists_is_named_in_words_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = [*QUICK, "--policy", "random", "--storage", "my run.journal", "--quiet"]
    assert invoke(*run).exit_code == 0
    done = invoke(*run)
    assert done.exit_code == 2
    assert done.stderr == (
        "error: my run.journal exists; go on with it by `python -m sparse_bo resume 'my run.journal'`, "
        "or choose another --storage\n"
    )


@pytest.mark.parametrize("out", ["file", "file/deeper"])
def test_an_out_that_cannot_be_made_leaves_no_journal_behind(out, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")
    run = [*QUICK, "--policy", "random", "--storage", "run.journal", "--quiet"]
    done = invoke(*run, "--out", out)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"error: expected --out to be a folder that can be written into, got {out}: ")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert invoke(*run, "--out", "out").exit_code == 0


def test_an_out_that_cannot_be_written_into_is_named_before_the_run(tmp_path, monkeypatch):
    def refuse(**kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    done = invoke(*QUICK, "--out", tmp_path / "a" / "b", "--storage", tmp_path / "run.journal")
    assert done.exit_code == 2
    assert done.stderr.endswith(f"got {tmp_path / 'a' / 'b'}: Permission denied; name another\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--policy", "bbbk"], "got 'bbbk'; did you mean 'bbkb'?"),
        (["run", "--problem", "abalon"], "got 'abalon'; did you mean 'abalone'?"),
        (["plan", "--grid", "9x9", "--kernel", "rbff"], "got 'rbff'; did you mean 'rbf'?"),
        (["settings", "trustregion"], "got 'trustregion'; did you mean 'trust-region'?"),
        (["run", "--policy", "bbkb", "--set", "stop_rul=local"], "did you mean 'stop_rule'?"),
        (["runn"], "No such command 'runn'. Did you mean 'run'? See `sparse-bo --help`"),
        (["run", "--budgett", "3"], "--budget"),
        (["resume"], "missing argument 'STORAGE'; see `sparse-bo resume --help`"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_what_was_meant_is_asked(arguments, message):
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert message.lower() in done.stderr.lower().replace("root", "sparse-bo")


@pytest.mark.parametrize("number", ["1e2", "100"])
def test_budgets_are_written_alike_everywhere(number, tmp_path):
    done = invoke("plan", "--grid", "9x9", "--budget", number, "--pilot-seconds", "0.01")
    assert done.exit_code == 0, done.output
    assert "100 in about" in done.stdout
    run = invoke("run", "--problem", "gp-draw", "--arms", "50", "--policy", "random", "--budget", number, "--out", tmp_path)
    assert "100 told" in run.stdout


@pytest.mark.parametrize("storage", ["sqlite:///run.db", "postgresql://user@host/db"])
@pytest.mark.parametrize("command", [["run", "--policy", "random", "--storage"], ["resume"], ["report"], ["audit"]])
def test_a_journal_is_no_database(command, storage):
    done = invoke(*command, storage)
    assert done.exit_code == 2
    assert f"a file such as run.journal, got the URL {storage!r}; a journal is no database" in done.stderr


def test_a_password_is_not_printed():
    assert (
        "got the URL 'postgresql://user:…@host/db'; a journal is no"
        in invoke("audit", "postgresql://user:secret@host/db").stderr
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            "run --problem hartmann6 --policy expected-improvement",
            "policy 'expected-improvement' chooses among arms, got a box; use --policy trust-region, or choose a problem over "
            "arms (--problem, --arms-file, --grid)",
        ),
        (
            "run --problem gp-draw --arms 20 --policy trust-region",
            "policy 'trust-region' searches a box, got an arm set; use --policy expected-improvement, or choose a problem on a "
            "box (--problem hartmann6, or --space)",
        ),
        (
            "create lab.journal --grid 5x5 --initial old.csv",
            "expected journals as --initial, got old.csv; `create` the run, and `add` the results in the file",
        ),
        ("plan --arms 10 --dims 0 --budget 10", "expected --dims >= 1, got 0; pass 1 or more"),
        ("plan --arms 10", "expected --dims (inputs per arm) where --arms is a number, got None; pass --dims"),
        ("run --objective os:getcwd --space no.toml", "expected a space in no.toml, found no such file; name another"),
        ("report pipe.journal", "expected the path of a file for the journal, got pipe.journal, a pipe or device; use a file"),
        ("audit pipe.journal", "expected the path of a file for the journal, got pipe.journal, a pipe or device; use a file"),
        ("resume pipe.journal", "expected the path of a file for the journal, got pipe.journal, a pipe or device; use a file"),
        (
            "report pipe.journal --html -",
            "expected --html to be a file such as run.html, got -; write the page into a file",
        ),
        ("report x --html", "option '--html' requires an argument; see `sparse-bo report --help`"),
    ],
)
def test_errors_are_in_words_of_the_command_line(command, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.journal")
    done = invoke(*command.split())
    assert (done.exit_code, done.stderr, done.stdout) == (2, f"error: {said}\n", "")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe.journal"]


def test_a_function_without_its_option_gets_the_option():
    done = invoke("run", "measure:f", "--budget", "5")
    said = "error: got unexpected extra argument(s) (measure:f): a function is passed by --objective, its domain by --space, "
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"{said}--grid or --arms-file; see `")


def test_a_journal_at_home_is_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert invoke(*QUICK, "--policy", "random", "--out", tmp_path, "--storage", "~/run.journal").exit_code == 0
    assert (tmp_path / "run.journal").is_file()
    assert "30 asked, 30 told" in invoke("report", "~/run.journal", "--out", tmp_path).stdout


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_not_waited_for(tmp_path):
    """Of nobody who writes into it."""
    arms, space, journal = tmp_path / "arms.npy", tmp_path / "space.toml", tmp_path / "run.journal"
    os.mkfifo(arms)
    os.mkfifo(space)
    assert invoke(*QUICK, "--policy", "random", "--out", tmp_path, "--storage", journal).exit_code == 0
    own = ["run", "--objective", "math:sqrt"]
    for command in (["audit", journal], ["plan"], own):
        done = invoke(*command, "--arms-file", arms)
        assert done.exit_code == 2
        assert f"expected a .npy file at {arms}, got a folder, pipe or device" in done.stderr
    done = invoke(*own, "--space", space)
    assert done.exit_code == 2
    assert "it is no file" in done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("command", [["run", "--budget", "3"], ["plan", "--grid", "9x9"], ["report", "none.journal"]])
def test_a_backend_that_matplotlib_does_not_know_is_named(command):
    environment = {**os.environ, "MPLBACKEND": "crayons"}
    line = [sys.executable, "-m", "sparse_bo", *command]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: matplotlib refuses the environment variable MPLBACKEND: ")
    assert "'crayons'" in done.stderr
    assert done.stderr.count("\n") == 1
