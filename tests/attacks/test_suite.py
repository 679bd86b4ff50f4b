"""The suite of attacks in its short form; ``-m slow`` is the nightly one, and ``benchmarks/attacks.py`` counts it."""

from __future__ import annotations

import sys

import pytest

from tests.attacks.builders import OUTCOMES
from tests.attacks.every import ATTACKS

SHORT = {
    "kills": 2,
    "interrupts": 2,
    "damaged journals": 5,
    "full, read-only and slow disks": 2,
    "full journals, other writers": 2,
    "wrong inputs": 6,
    "wrong options": 5,
    "numeric horrors": 2,
}


def check(name: str, tries: int, seed: int) -> None:
    attack, _ = ATTACKS[name]
    counts = attack(tries, seed)
    assert counts["tries"] >= tries
    assert {outcome: counts[outcome] for outcome in OUTCOMES} == dict.fromkeys(OUTCOMES, 0), dict(counts)


@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize("name", ATTACKS)
@pytest.mark.usefixtures("undrawn_figures")
def test_attack_in_short(name):
    check(name, SHORT[name], 0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
@pytest.mark.parametrize("name", ATTACKS)
def test_attack_in_full(name):
    check(name, ATTACKS[name][1], 1)
