"""Attacks on runs, journals and inputs, as a hostile or unlucky user would make them: how many tries, and what got through.

    python benchmarks/attacks.py            # the nightly form: 6,300 tries
    python benchmarks/attacks.py --quick    # a tenth
    python benchmarks/attacks.py --attacks kills "damaged journals" --share 0.2

Shown: the newest record of each attack and seed.
"""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from harness.experiment import Block, Experiment, Job, Option, Table
from harness.records import Record, newest
from harness.runner import main

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.attacks.builders import ATTACKS, OUTCOMES

ABOUT = {
    "kills": "SIGKILL at random instants, over eight policies, again and again until the run ends",
    "interrupts": "Ctrl-C or MemoryError at random lines, going on in the same process, in memory and with a journal",
    "damaged journals": "flipped bits, missing ends, zeros and noise",
    "full disks, other writers": "no page more fits, at random; then a second and a third writer",
    "wrong inputs": "generated, through `maximize`, `AskTell`, policies, `SparseGP`, `optimize_batch`",
    "wrong options": "generated, of the command line",
    "numeric horrors": "values, offsets and inputs at the ends of the range of numbers",
}
"""Attack -> what is done."""


def attacked(attack: str, tries: int, seed: int) -> Record:
    """Return how often an attack was tried, and what got through."""
    start = time.process_time()
    counts = ATTACKS[attack][0](tries, seed)
    examples = [text for text in counts if text not in (*OUTCOMES, "tries")]
    return {
        "made": counts["tries"],
        **{outcome: counts[outcome] for outcome in OUTCOMES},
        "examples": examples[:5],
        "cpu_s": time.process_time() - start,
    }


def jobs(chosen: Namespace) -> Iterator[Job]:
    """Yield each attack."""
    for seed in chosen.seeds:
        for attack in chosen.attacks:
            tries = max(3, round(ATTACKS[attack][1] * chosen.share))
            key = {"attack": attack, "tries": tries, "seed": seed}
            yield Job(key, partial(attacked, **key))


def shown(records: list[Record]) -> list[Record]:
    """Return the newest record of each attack and seed."""
    return list(newest(records, "attack", "seed").values())


def page(records: list[Record]) -> Iterator[Block]:
    """Yield the counts by attack."""
    rows = [
        (r["attack"], ABOUT[r["attack"]], f"{r['made']:,}", *(f"{r[outcome]:,}" for outcome in OUTCOMES), f"{r['cpu_s']:.0f}")
        for r in shown(records)
    ]
    yield Table(("attack", "what is done", "tries", *OUTCOMES, "processor s"), rows)
    examples = [f"- {r['attack']}: `{text}`" for r in shown(records) for text in r["examples"]]
    if examples:
        yield "What got through:\n\n" + "\n".join(examples)


def headline(records: list[Record]) -> str:
    """Return all counts in one line."""
    found = shown(records)
    return f"{sum(r['made'] for r in found):,} tries: " + ", ".join(
        f"{sum(r[outcome] for r in found):,} {outcome}" for outcome in OUTCOMES
    )


EXPERIMENT = Experiment(
    script=__file__,
    title="Attacks, and what got through",
    question="Kills, interrupts, damaged journals, full disks, wrong inputs, horrors of numbers: what gets through?",
    about="""
Every try keeps the promise if it ends in a typed error that says what was expected, what came and what to do, or in a right
result; nothing that was told is lost; and it does not take more than 20 s of processor time. *Lost*: a result told that the
journal or the history does not have, or with another value. *Wrong*: a run or a result that differs from the undisturbed
one. *Tracebacks*: any other exception. The tests run the same attacks in short.
""",
    jobs=jobs,
    page=page,
    headline=headline,
    options={
        "attacks": Option("which", tuple(ATTACKS), choices=tuple(ATTACKS), parse=str),
        "share": Option("of the tries of the nightly form", 1.0, 0.1, 0.002, parse=float),
    },
    seeds=(1, 1, 1),
    devices=("cpu",),
)

if __name__ == "__main__":
    main(EXPERIMENT, __doc__)
