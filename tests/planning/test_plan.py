"""Plans: what they forecast, how they make a run fit, and what they refuse."""

import gc
import math
import tracemalloc
import types

import numpy as np
import pytest
import torch

from sparse_bo import BBKB, GPUCB, AskTell, ProductGrid, plan
from sparse_bo.planning import costs
from sparse_bo.planning.forecast import default_kernel
from sparse_bo.planning.pilot import Step, Trace, continued, powered, run_draws, saturating
from sparse_bo.policies import RandomSearch
from sparse_bo.policies.bandits.arm_mechanism import ArmUCB
from sparse_bo.runs.recording import about_of
from tests.builders import rbf_kernel, unit_box
from tests.cli.builders import invoke

pytestmark = pytest.mark.usefixtures("undrawn_figures")

DENSE = BBKB(covar_module=rbf_kernel(0.1), regularization=0.01, oversampling=10.0, width=10.0, batch_size=10)
"""Explores, and keeps all that it has seen."""


@pytest.fixture(scope="module")
def dense():
    """The plan of a run that keeps all its points."""
    return quick(300, 3, kernel=None, policy=DENSE, budget=70)


ONE_BATCH = 1e-9
"""Seconds of pilots that end with their first batch, where the sizes of the run are of no account."""


def quick(arms=500, dims=2, *, budget=60, **settings):
    return plan(arms, dims, budget=budget, **{"kernel": rbf_kernel(), "pilot_seconds": 100.0, **settings})


def test_arrays_and_lists_are_arms_as_in_a_run(generator):
    X = torch.randint(9, (30, 2), generator=generator)
    policy = BBKB(covar_module=rbf_kernel(), regularization=0.05)
    plans = [plan(arms, budget=5, policy=policy, pilot_seconds=100.0) for arms in (X.double(), X, X.numpy(), X.tolist())]
    assert len({(made.arms, made.dims, made.dictionary_size, made.batches) for made in plans}) == 1
    assert (plans[0].arms, plans[0].dims) == (30, 2)


def test_a_plan_of_a_small_run_is_near_the_run(generator):
    X = torch.rand(600, 3, generator=generator, dtype=torch.float64)
    policy = BBKB(covar_module=rbf_kernel(), regularization=0.05)
    made = plan(X, budget=100, policy=policy, pilot_seconds=100.0)
    assert (made.arms, made.dims) == (600, 3)
    loop = AskTell(X, policy, seed=5)
    truth = (4.0 * X).sin().sum(dim=-1)
    loop.run(lambda i: truth[i] + 0.2 * torch.randn(len(i), generator=generator, dtype=torch.float64), 100, call_with="indices")
    last = loop.history.rows[-1]
    assert made.dictionary_size == pytest.approx(last.dictionary_size, rel=1.0)
    assert 0.4 < made.batches / last.round < 2.5
    assert made.batches_range[0] <= made.batches <= made.batches_range[1]
    assert made.fits
    assert made.notes == ()
    assert made.settings == {"memory_bytes": 2**28, "sweep_dtype": torch.float64, "max_dictionary": None}


def test_a_local_rule_on_streamed_arms_is_refused_as_the_run_refuses_it():
    grid = ProductGrid.linspace(unit_box(3), [26, 26, 26])
    policy = BBKB(covar_module=rbf_kernel(), regularization=0.1, stop_rule="local", memory_bytes=2**20)
    with pytest.raises(ValueError, match="stop_rule='local' keeps a ratio for every arm"):
        plan(grid, budget=20, policy=policy, pilot_seconds=0.1)


def test_pilots_without_time_for_a_second_batch_still_say_something():
    made = quick(budget=20, pilot_seconds=ONE_BATCH)
    assert made.batches >= 1
    assert made.dictionary_size >= 1


@pytest.mark.slow
def test_longer_and_larger_runs_take_more():
    policy = BBKB(covar_module=rbf_kernel(), regularization=0.05)  # one that learns may find a smaller model with more data
    short, long = (quick(kernel=None, policy=policy, budget=budget) for budget in (20, 600))
    assert long.batches > short.batches
    assert long.dictionary_size >= short.dictionary_size
    few, many = quick(), quick(10**7)
    assert many.memory_bytes > 10 * few.memory_bytes
    assert many.memory["arms"] == 10**7 * 2 * 8
    assert many.seconds_per_sweep > 20 * few.seconds_per_sweep


@pytest.mark.slow
def test_what_a_run_keeps_of_its_evaluations_is_part_of_the_forecast(generator):
    """Python's memory between two points of a run, its batches as large in the second half as in the first."""
    X = torch.rand(200, 1, generator=generator, dtype=torch.float64)
    sizes = {}
    tracemalloc.start()
    try:
        for q in (50, 500):
            loop = AskTell(X, RandomSearch(batch_size=q), seed=0)
            marks = []
            while loop.asked < 20_000:
                batch = loop.ask()
                loop.tell(batch.tickets, batch.X[:, 0])
                if loop.asked in (10_000, 20_000):
                    gc.collect()  # what waits to be collected is kept by nobody
                    marks.append(tracemalloc.get_traced_memory()[0])
            sizes[q] = marks[1] - marks[0]
    finally:
        tracemalloc.stop()
    for q, kept in sizes.items():
        expected = 115 * 10_000 + 1100 * 10_000 // q
        assert 0.6 * expected < kept < 1.1 * expected  # random search keeps 0.70 of it, BBKB most
    made = quick(budget=600)
    assert made.memory["history"] == pytest.approx(115 * 600 + 1100 * made.batches, abs=1100)


@pytest.mark.slow
def test_rougher_kernels_have_larger_dictionaries():
    assert quick(kernel=rbf_kernel(0.1)).dictionary_size > 1.5 * quick(kernel=rbf_kernel(1.0)).dictionary_size


def test_the_default_kernel_follows_the_ranges(generator):
    X = torch.rand(300, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 10.0, 100.0, 0.0])
    lengthscale = default_kernel(X).lengthscale.detach().flatten()
    assert float(lengthscale[1] / lengthscale[0]) == pytest.approx(10.0, rel=0.1)
    assert bool((lengthscale > 0).all())


def test_the_planned_policy_learns_what_the_given_one_learns(generator):
    X = torch.rand(300, 2, generator=generator, dtype=torch.float64)
    for policy in (None, BBKB(), BBKB(oversampling=3.0, regularization=0.2)):
        made = plan(X, budget=20, policy=policy, memory=2**26, pilot_seconds=ONE_BATCH).policy
        assert made.covar_module is None
        assert made.regularization == (None if policy is None else policy.regularization)
        assert made.oversampling == (BBKB() if policy is None else policy).oversampling
    given = {"covar_module": rbf_kernel(), "regularization": 0.01}
    made = plan(X, budget=20, kernel=given["covar_module"], pilot_seconds=ONE_BATCH).policy
    assert (made.regularization, made.width, made.ratio_threshold) == (0.01, BBKB(**given).width, BBKB(**given).ratio_threshold)


def test_tiles_shrink_before_the_dictionary_does():
    free = quick(60_000, kernel=rbf_kernel(0.2), pilot_seconds=ONE_BATCH)
    vectors = free.memory["arms"] + free.memory["vectors"]
    tight = quick(60_000, kernel=rbf_kernel(0.2), memory=vectors + 2**22, pilot_seconds=ONE_BATCH)
    assert tight.memory_bytes <= vectors + 2**22
    assert tight.settings["memory_bytes"] < free.settings["memory_bytes"]
    assert tight.settings["max_dictionary"] is None
    assert tight.settings["sweep_dtype"] == torch.float64  # never lowered: low precision is slower
    assert any("smaller tiles: memory_bytes lowered from 256 MiB" in note for note in tight.notes)
    assert tight.fits


@pytest.mark.slow
def test_the_dictionary_is_capped_where_tiles_are_not_enough(monkeypatch, dense):
    assert dense.dictionary_size > 64

    def memory(run, policy, piloted):
        return {"model": 1000 * math.ceil(min(piloted.dictionary_size, policy.max_dictionary or math.inf))}

    monkeypatch.setattr("sparse_bo.planning.forecast._Run.memory", memory)
    tight = quick(300, 3, kernel=None, policy=DENSE, budget=70, memory=64_900)
    assert tight.settings["max_dictionary"] == 64
    assert tight.dictionary_size == 64
    assert tight.policy.max_dictionary == 64
    assert tight.fits
    assert any("smaller dictionary: capped at" in note for note in tight.notes)


def test_what_cannot_fit_is_said_aloud():
    made = quick(10**9, memory=2**30, pilot_seconds=ONE_BATCH)
    assert not made.fits
    assert any("does NOT fit: 1.0 GiB may be used; arms in a file" in note for note in made.notes)


@pytest.mark.parametrize("dims", [62, pytest.param(1000, marks=pytest.mark.slow)])
def test_arms_of_many_inputs(dims, generator):
    """Two values of every input are more arms than can be counted; the plan is that of uniform arms in memory."""
    made = quick(300, dims, kernel=None, budget=10)
    X = torch.rand(300, dims, dtype=torch.float64, generator=generator)
    same = quick(X, None, kernel=rbf_kernel(math.exp(math.sqrt(2.0) - 3.0) * dims**0.5), budget=10)
    assert (made.arms, made.dims) == (300, dims)
    assert 0.6 < made.dictionary_size / same.dictionary_size < 1.7
    assert 0.6 < made.batches / same.batches < 1.7


def test_a_billion_lazy_arms_fit():
    grid = ProductGrid.linspace(unit_box(3), [1000] * 3)
    made = quick(grid, None, memory=2**28, pilot_seconds=ONE_BATCH)
    assert made.fits
    assert made.streamed
    assert made.memory_bytes < 2**28
    assert made.arms == 10**9


def test_a_short_time_caps_the_dictionary():
    tight = quick(300, 3, kernel=None, policy=DENSE, budget=70, seconds=1e-3)
    assert tight.settings["sweep_dtype"] == torch.float64
    assert tight.settings["max_dictionary"] == 64
    assert tight.dictionary_size == 64
    assert not tight.fits
    assert any("0.001 s are too short" in note for note in tight.notes)


def test_a_run_takes_its_settings_from_the_plan(generator):
    X = torch.rand(300, 3, generator=generator, dtype=torch.float64)
    policy = BBKB(covar_module=rbf_kernel(0.1), regularization=0.05, max_dictionary=6)
    made = plan(X, budget=30, policy=policy, pilot_seconds=100.0)
    assert 5 <= made.dictionary_size <= 6
    loop = AskTell(X, made.policy, seed=0)
    loop.run(lambda x: (9.0 * x).sin().sum(dim=-1), 30)
    sizes = [row.dictionary_size for row in loop.history.rows]
    assert 5 <= max(sizes) <= 6


@pytest.mark.parametrize(
    ("arguments", "settings", "error", "message"),
    [
        ((100,), {}, ValueError, "expected dims="),
        ((0, 2), {}, ValueError, "arms >= 1"),
        ((10, 0), {}, ValueError, "dims >= 1"),
        ((10, 2), {"budget": 0}, ValueError, "budget >= 1"),
        ((10, 2), {"memory": 0}, ValueError, "memory >= 1"),
        ((10, 2), {"seconds": -1.0}, ValueError, "seconds > 0"),
        ((10, 2), {"pilot_seconds": 0.0}, ValueError, "pilot_seconds > 0"),
        ((10, 2), {"device": "abacus"}, ValueError, "expected device cpu, cuda"),
        ((10, 2), {"policy": GPUCB()}, ValueError, "a BBKB or a BKB, got GPUCB"),
        ((torch.zeros(5, 2, dtype=torch.float64), 3), {}, ValueError, "expected dims=2"),
        ((torch.full((5, 2), math.nan, dtype=torch.float64),), {}, ValueError, "finite arms"),
        ((torch.full((5, 2), -1e160, dtype=torch.float64),), {}, ValueError, "expected arms within ±1e150"),
        ((10**18, 1), {}, MemoryError, "trying out 1000000000000000000 arms of 1 inputs needs"),
        ((torch.zeros(5, 2, dtype=torch.complex64),), {}, TypeError, "dtype torch.float64"),
        (
            (1e4, 2),
            {},
            TypeError,
            "arms to be their number \\(an integer\\), a tensor, an array, a list or lazy arms, got float",
        ),
        ((None, 2), {}, TypeError, "lazy arms, got NoneType"),
        (([["a", "b"]],), {}, TypeError, "expected arms of numbers, got list"),
        ((np.int64(100),), {}, ValueError, "expected dims="),
    ],
    ids=str,
)
def test_bad_input_is_named(arguments, settings, error, message):
    with pytest.raises(error, match=message):
        plan(*arguments, **{"budget": 10, **settings})


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_asked_for_but_absent_is_named():
    with pytest.raises(ValueError, match="no CUDA device; use cpu"):
        plan(100, 2, budget=10, device="cuda")


def test_the_global_generator_is_left_alone_and_the_seed_decides():
    before = torch.get_rng_state()
    one, other = quick(seed=1, budget=20), quick(seed=1, budget=20)
    assert torch.equal(torch.get_rng_state(), before)
    assert (one.dictionary_size, one.batches) == (other.dictionary_size, other.batches)


class _Row:
    def __init__(self, pulls, value):
        self.pulls, self.value = pulls, value


@pytest.mark.parametrize(
    ("law", "low", "high"), [(lambda t: math.log(t), 9.2, 10.5), (lambda t: t**0.5, 55.0, 101.0), (lambda t: 7.0, 7.0, 7.0)]
)
def test_growth_is_continued_between_logarithm_and_power(law, low, high):
    trace = Trace([_Row(t, law(t)) for t in range(2, 1001)], 1.0)
    assert low <= continued(trace, lambda row: row.value, 10_000) <= high
    assert continued(trace, lambda row: row.value, 1000) == law(1000)


@pytest.mark.parametrize("d", [1, 2, 3, 6])
def test_growth_in_the_number_of_arms_ends_as_their_distances_do(d):
    def law(a):
        return 40.0 - 12.0 * (500 / a) ** (2.0 / d)

    found = {
        a: law(2000) * saturating(law(2000) / law(500), quarter=500, most=2000, arms=a, d=d) for a in (2000, 20_000, 10**9)
    }
    for a, value in found.items():
        assert value == pytest.approx(min(law(a), law(2000) * (a / 2000) ** 0.1), rel=1e-12)
    assert saturating(0.8, quarter=500, most=2000, arms=10**6, d=d) == 1.0  # less on more arms: noise
    assert saturating(9.0, quarter=500, most=2000, arms=200_000, d=d) <= 100**0.1


def test_distinct_arms_grow_by_a_power():
    assert powered(2.0, quarter=500, most=2000, arms=32_000, d=3) == pytest.approx(4.0)
    assert powered(0.9, quarter=500, most=2000, arms=32_000, d=3) == 1.0
    assert powered(5.0, quarter=500, most=2000, arms=200_000, d=3) == 10.0


def test_a_pilot_with_fewer_arms_has_the_same_function(generator, monkeypatch):
    """The two pilots of a draw see the same values: with all arms equal in value they differ in nothing but their number."""
    seen, tell = [], ArmUCB.tell

    def spying(self, state, picks, y, *, generator):
        seen.append((state.arms.shape[0], dict(zip(map(tuple, state.arms[picks].tolist()), y.tolist(), strict=False))))
        return tell(self, state, picks, y, generator=generator)

    monkeypatch.setattr(ArmUCB, "tell", spying)
    X = torch.rand(40, 2, generator=generator, dtype=torch.float64)
    policy = BBKB(covar_module=rbf_kernel(), regularization=1e-6, initial_design=10)
    traces = run_draws(X, [10, 40], policy, 30, 100.0, generator)
    assert [len(of_draw) for of_draw in traces] == [2] * 8
    first_draw = seen[: sum(len(trace.rows) for trace in traces[0])]
    small = {x: y for size, values in first_draw if size == 10 for x, y in values.items()}
    large = {x: y for size, values in first_draw if size == 40 for x, y in values.items()}
    both = set(small) & set(large)
    assert len(small) == 10
    assert both
    assert all(abs(small[x] - large[x]) < 0.02 for x in both)
    for trace in (trace for of_draw in traces for trace in of_draw):
        assert trace.rows[-1].pulls == 30
        assert trace.rows[-1].batches == len(trace.rows)
        assert 1 <= trace.rows[-1].distinct <= 40


def test_available_bytes_are_those_of_the_machine():
    free = costs.available_bytes(torch.device("cpu"))
    assert 2**20 < free < 2**50


def test_files_that_a_control_group_has_read_are_not_in_the_way(tmp_path):
    """A container that has read files as large as its memory is not full: the kernel drops them when memory is needed."""
    for name, text in {
        "max": "1000000\n",
        "current": "990000\n",
        "stat": "anon 90000\nfile 900000\ninactive_file 800000\n",
    }.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert costs.available_bytes(torch.device("cpu"), control_group=tmp_path) == 810_000
    (tmp_path / "memory.stat").unlink()
    assert costs.available_bytes(torch.device("cpu"), control_group=tmp_path) == 10_000
    (tmp_path / "memory.max").write_text("max\n")
    assert costs.available_bytes(torch.device("cpu"), control_group=tmp_path) > 2**20


# The command line


def planned(*arguments):
    return invoke("plan", *arguments, "--pilot-seconds", "0.01", columns=200)


def test_the_command_prints_a_plan(tmp_path):
    done = planned("--arms", "1e3", "--dims", "3", "--budget", "1e1", "--kernel", "rbf", "--lengthscale", "0.5")
    assert done.exit_code == 0
    for text in ("1,000 x 3, in memory", "10 in about", "dictionary", "per sweep", "per pick", "sweep in float64"):
        assert text in done.stdout
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((300, 2)))
    done = planned("--arms-file", str(tmp_path / "x.npy"), "--budget", "5")
    assert "300 x 2, in memory" in done.stdout


def test_the_command_says_aloud_what_does_not_fit():
    done = planned("--arms", "1e8", "--dims", "3", "--budget", "10", "--memory", "0.1", "--kernel", "rbf")
    assert done.exit_code == 3
    assert "does NOT fit" in done.stdout
    done = planned("--grid", "100x100x10", "--budget", "10", "--memory", "0.04", "--kernel", "rbf")
    assert done.exit_code == 0
    assert "100,000 x 3" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of --arms, --arms-file and --grid, got 0"),
        (["--arms", "10", "--grid", "3x3"], "got 2 of them"),
        (["--arms", "ten", "--dims", "1"], "such as 1000000 or 1e6, got 'ten'"),
        (["--arms", "1.5", "--dims", "1"], "whole number from 0 to 2^62, such as 1000000 or 1e6, got '1.5'"),
        (["--grid", "3y3"], "100x50 for the unit cube, got '3y3'"),
        (["--grid", "0:1:5,0:1"], "'0:1' for axis 1"),
        (["--grid", "9x9", "--arms-file", "x.npy"], "got 2 of them"),
        (["--grid", "3x0"], "points >= 1"),
        (["--grid", "0:1:5,-1.7e308:1.7e308:5"], "expected ends within ±1e150 on axis 1"),
        (["--arms-file", "nowhere.npy"], "nowhere.npy, got no such file"),
        (
            ["--arms", "10", "--dims", "1", "--lengthscale", "1"],
            "are of a named --kernel; add --kernel rbf, say, or drop them",
        ),
        (["--arms", "10", "--dims", "1", "--precision", "half"], "'float64', 'float32', got 'half'"),
        (["--arms", "10", "--dims", "1", "--memory", "-1"], "--memory to be a number of GiB above 0"),
    ],
    ids=lambda v: " ".join(v) if isinstance(v, list) else "",
)
def test_bad_options_are_named(arguments, message):
    done = planned(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr.replace("\n", " ")


def run_with(folder, *arguments):
    small = ("run", "--problem", "gp-draw", "--arms", "3000", "--budget", "5", "--out", str(folder))
    return invoke(*small, *arguments)


def test_a_run_with_a_memory_limit_takes_its_settings_from_a_plan(tmp_path):
    done = run_with(tmp_path, "--memory", "0.006", "--storage", str(tmp_path / "run.journal"))
    assert done.exit_code == 0
    assert "plan: smaller tiles: memory_bytes lowered from 256 MiB" in done.output
    assert about_of(tmp_path / "run.journal")["description"]["fields"]["memory_bytes"] < 2**28  # a resume has it as well


def test_a_run_that_does_not_fit_is_not_started(tmp_path):
    done = run_with(tmp_path, "--memory", "0.0001", "--storage", str(tmp_path / "run.journal"))
    assert done.exit_code == 3
    assert "does NOT fit: 105 KiB may be used" in done.output
    assert not (tmp_path / "run.journal").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--policy", "random", "--memory", "1"), "--memory plans runs of bbkb and bkb over arms; drop it"),
        (("--memory", "0"), "--memory to be a number of GiB above 0"),
        (("--seconds", "-1"), "seconds > 0"),
    ],
)
def test_bad_limits_of_a_run_are_named(tmp_path, arguments, message):
    done = run_with(tmp_path, *arguments)
    assert done.exit_code == 2
    assert message in done.output


def test_what_is_timed_is_waited_for_where_it_runs(monkeypatch):
    """Another device than the current one may be planned for."""
    waited = []
    module = types.SimpleNamespace(synchronize=waited.append)
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    elsewhere = torch.device("cuda", 1)
    costs.seconds_of(lambda: None, device=elsewhere, repeats=1)
    assert waited == [elsewhere, elsewhere]
    costs.seconds_of(lambda: None, device=torch.device("cpu"), repeats=1)
    assert len(waited) == 2


def test_a_plan_without_repeats_ends_with_its_candidates(generator):
    X = torch.rand(3_000, 2, generator=generator, dtype=torch.float64)
    policy = BBKB(covar_module=rbf_kernel(), regularization=0.1, repeats=False)
    made = plan(X, budget=2_900, policy=policy, pilot_seconds=ONE_BATCH)
    assert made.dictionary_size <= 3_000


def test_a_batch_that_is_most_of_a_pilot_is_no_law_of_growth():
    steps = [Step(10, 1.0, 8.0, 5), Step(200, 2.0, 9.0, 8), Step(100_000, 3.0, 10.0, 9), Step(100_010, 4.0, 12.0, 9)]
    assert 12.0 <= continued(Trace(steps, 1.0), lambda row: row.size, 200_000) < 100.0
