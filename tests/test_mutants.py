"""The table of mutants fits: each names a text that occurs in a file once, and tests (`tests/mutate.py` runs them)."""

import re

from tests import mutate


def test_every_mutant_names_one_place_of_the_package():
    mutants = mutate.read()
    assert len(mutants) > 100
    assert mutate.wrong(mutants, mutate.ROOT) == []


def test_every_mutant_names_tests_that_are_there():
    named = {test.partition("[")[0] for mutant in mutate.read() for test in mutant.tests}
    missing = []
    for name in named:
        file, *parts = name.split("::")
        source = (mutate.ROOT / file).read_text(encoding="utf-8") if (mutate.ROOT / file).exists() else ""
        if not source or not all(re.search(rf"(def|class) {part}\b", source) for part in parts):
            missing.append(name)
    assert missing == []
