"""The command line of every benchmark: run what is not there yet, append each record as it ends, write page and figures."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
import traceback
import warnings
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

import torch

from .experiment import FORMS, Experiment, Job
from .pages import write
from .records import BENCHMARKS, PACKAGE, RESULTS, Record, UncommittedCode, append, committed, environment


def main(
    experiment: Experiment,
    description: str | None,
    arguments: Sequence[str] | None = None,
    *,
    repository: Path = BENCHMARKS.parent,
) -> None:
    """Run an experiment as the command line says.

    Args:
        experiment: The benchmark.
        description: Text of ``--help``: the script's docstring.
        arguments: Words of the command line; ``None``: the process's own.
        repository: Git checkout whose commit the records name.

    Raises:
        SystemExit: If full-size records are asked for while the code differs from its commit.
        RuntimeError: If a measurement failed; the others are recorded.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen = _parse(experiment, description, words)
    if chosen.threads is not None:
        torch.set_num_threads(chosen.threads)
    with warnings.catch_warnings():
        for kind in experiment.ignored:
            warnings.simplefilter("ignore", kind)
        if chosen.job is not None:
            print(json.dumps(list(experiment.jobs(chosen))[chosen.job].measure()))
            return
        failed = [] if chosen.draw else _run(experiment, chosen, words, repository)
    if chosen.dry:
        if failed:
            raise RuntimeError(f"{len(failed)} measurements failed. The first:") from failed[0]
        return
    print(f"written: {write(experiment, chosen.folder)}")
    if chosen.folder == RESULTS:
        print("python benchmarks/report.py brings the overview in benchmarks/README.md up to date")
    if failed:
        raise RuntimeError(f"{len(failed)} measurements failed; the others are recorded. The first:") from failed[0]


def _run(experiment: Experiment, chosen: Namespace, words: list[str], repository: Path) -> list[Exception]:
    """Make the missing measurements; return the errors of those that failed."""
    published = chosen.form == "full" or chosen.folder.resolve() == RESULTS
    if published and not chosen.dry:
        try:
            committed(repository, PACKAGE)
        except UncommittedCode as error:
            raise SystemExit(f"{experiment.name} records nothing: {error}") from None
    state, path = environment(chosen.device, repository), chosen.folder / experiment.records_name
    known = [] if chosen.again or chosen.dry else experiment.read(chosen.folder)
    jobs = list(experiment.jobs(chosen))
    todo = [(k, job) for k, job in enumerate(jobs) if not any(_is_of(job, record, state["device"]) for record in known)]
    todo = [(k, job) for k, job in todo if k >= chosen.first_job]
    print(f"{experiment.name}: {len(todo)} of {len(jobs)} to measure ({path} has the others; --again: all)", flush=True)
    start, failed = time.perf_counter(), list[Exception]()
    for count, (k, job) in enumerate(todo):
        if chosen.minutes is not None and time.perf_counter() - start > 60.0 * chosen.minutes:
            print(f"{chosen.minutes:g} minutes are over, {len(todo) - count} left: the same command goes on there", flush=True)
            break
        began = time.perf_counter()
        alone = experiment.own_process and not chosen.here
        label = ", ".join(f"{name} {value}" for name, value in job.key.items())
        try:
            measured = _in_own_process(experiment, words, k) if alone else job.measure()
        except Exception as error:  # of hundreds of measurements, one that fails shall not cost the others
            # Not the exception itself: its traceback holds the tensors of what failed.
            failed.append(RuntimeError(f"{label}: {type(error).__name__}: {error}"))
            print(f"{label}: failed\n{traceback.format_exc()}", flush=True)
            if not alone and count + 1 < len(todo) and not answers(chosen.device):
                failed += _rest_in_new_process(experiment, words, k + 1, time.perf_counter() - start)
                break
            continue
        record = {**job.key, **measured, **state}
        if chosen.dry:
            print(json.dumps(record), flush=True)
        else:
            append(path, record)
        print(f"{label}: {time.perf_counter() - began:.1f} s", flush=True)
    return failed


def answers(device: torch.device) -> bool:
    """Return whether a device still computes: after some errors CUDA fails at whatever a process asks of it."""
    try:
        return float(torch.ones(2, device=device).sum()) == 2.0
    except RuntimeError:
        return False


def _rest_in_new_process(experiment: Experiment, words: list[str], first: int, elapsed: float) -> list[Exception]:
    """Make the measurements from a job on in a new process, which writes their records; return why that failed."""
    print(f"the device computes no more in this process: from measurement {first} on in a new one", flush=True)
    command = [sys.executable, experiment.script, *words, "--first-job", str(first), "--elapsed", str(elapsed)]
    done = subprocess.run(command, check=False)
    return [] if done.returncode == 0 else [RuntimeError(f"the new process ended with {done.returncode}; see above")]


def _is_of(job: Job, record: Record, device: str) -> bool:
    wanted = {**job.key, "device": device}
    return all(record.get(name) == value for name, value in wanted.items())


def _in_own_process(experiment: Experiment, words: list[str], k: int) -> Record:
    """Return what the k-th job measures in a process of its own."""
    command = [sys.executable, experiment.script, *words, "--job", str(k)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"job {k} of {experiment.name} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _parse(experiment: Experiment, description: str | None, words: list[str]) -> Namespace:
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--quick", dest="form", action="store_const", const="quick", default="full", help="smaller: minutes")
    form.add_argument("--tiny", dest="form", action="store_const", const="tiny", help="seconds: to test the code")
    parser.add_argument("--seeds", type=int, help="how many")
    parser.add_argument("--first-seed", type=int, default=0, metavar="SEED")
    parser.add_argument("--device", default=experiment.devices[0], help=f"default: {experiment.devices[0]}")
    parser.add_argument("--threads", type=int, default=experiment.threads, help="of torch")
    parser.add_argument(
        "--out",
        dest="folder",
        type=Path,
        help="of records, page and figures; default: results, with --quick or --tiny a folder in it",
    )
    parser.add_argument("--minutes", type=float, help="begin no measurement after so many; the same command goes on there")
    parser.add_argument("--again", action="store_true", help="measure what has been measured before, too")
    parser.add_argument("--dry", action="store_true", help="print the records, write nothing: for changes not yet committed")
    parser.add_argument("--draw", action="store_true", help="measure nothing, write page and figures")
    if experiment.own_process:
        parser.add_argument("--here", action="store_true", help="measure in this process, not each in its own")
    parser.add_argument("--job", type=int, help="measure this one here and print it")
    parser.add_argument("--first-job", type=int, default=0, help=SUPPRESS)  # of a process that goes on for another
    parser.add_argument("--elapsed", type=float, default=0.0, help=SUPPRESS)  # seconds that the other one took
    for name, option in experiment.options.items():
        several = isinstance(option.full, tuple)
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            help=f"{option.help} (default {_shown(option.full)})",
            nargs="+" if several else None,
            type=str if option.choices else option.parse,
            choices=option.choices,
        )
    chosen = parser.parse_args(words)
    for name, option in experiment.options.items():
        if (given := getattr(chosen, name)) is None:
            setattr(chosen, name, option.value(chosen.form))
        elif isinstance(given, list):
            setattr(chosen, name, tuple(given))
    count = experiment.seeds[FORMS.index(chosen.form)] if chosen.seeds is None else chosen.seeds
    if count < 1 or chosen.first_seed < 0:
        parser.error(f"expected at least one seed, from 0 on, got --seeds {count} --first-seed {chosen.first_seed}")
    chosen.seeds = range(chosen.first_seed, chosen.first_seed + count)
    chosen.folder = chosen.folder or (RESULTS if chosen.form == "full" else RESULTS / chosen.form)
    kind = chosen.device.partition(":")[0]
    if kind not in experiment.devices:
        parser.error(f"{experiment.name} runs on {' or '.join(experiment.devices)}, got --device {chosen.device}")
    if kind == "cuda" and not torch.cuda.is_available():
        parser.error(f"torch sees no CUDA device for --device {chosen.device}; --device cpu --tiny tests the code without one")
    if kind == "second":
        if chosen.form == "full":
            parser.error("--device second is made of host memory, to test the code: add --tiny or --quick")
        importlib.import_module(".counting", __package__).second_device()
    chosen.device = torch.device(chosen.device)
    return chosen


def _shown(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
