"""The table of mutants fits the package: each names a file and a text that occurs there once (`tests/mutate.py` runs them)."""

from tests import mutate


def test_every_mutant_names_one_place_of_the_package():
    mutants = mutate.read()
    assert len(mutants) > 100
    assert mutate.wrong(mutants, mutate.ROOT) == []
