"""Every attack by its name, and its tries in the nightly form."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from tests.attacks.builders import damage, interrupts, kills, numbers
from tests.attacks.disks import full_or_slow, writers
from tests.attacks.inputs import command_line, inputs

ATTACKS: dict[str, tuple[Callable[[int, int], Counter[str]], int]] = {
    "kills": (kills, 1_000),
    "interrupts": (interrupts, 1_000),
    "damaged journals": (damage, 3_000),
    "full, read-only and slow disks": (full_or_slow, 200),
    "full journals, other writers": (writers, 200),
    "wrong inputs": (inputs, 500),
    "wrong options": (command_line, 300),
    "numeric horrors": (numbers, 300),
}
"""Name -> the attack, and its tries in the nightly form."""
