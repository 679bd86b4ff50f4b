"""The front of the package: every public name is there, and nothing is imported before it is needed."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import sparse_bo
from sparse_bo import names, presets, problems
from sparse_bo.arms.moments import PRECISIONS

SOURCE = Path(sparse_bo.__file__).read_text(encoding="utf-8")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_by(code: str) -> set[str]:
    """Return which of the heavy packages a statement loads in a fresh interpreter."""
    heavy = ("numpy", "torch", "gpytorch", "botorch", "matplotlib", "rich")
    return set(python(f"{code}\nimport sys\nprint(*[name for name in {heavy} if name in sys.modules])").split())


def imported_for_type_checkers() -> dict[str, str]:
    """Return name -> module of the imports that type checkers see."""
    (block,) = [node for node in ast.parse(SOURCE).body if isinstance(node, ast.If)]
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name, f"`import {alias.name} as {alias.name}` is what makes it public"
            found[alias.name] = f"sparse_bo.{alias.name}" if node.module == "sparse_bo" else node.module
    return found


def test_type_checkers_see_what_is_there():
    assert imported_for_type_checkers() == sparse_bo._MODULES


def test_the_table_of_names_is_sorted():
    assert list(sparse_bo._MODULES) == sorted(sparse_bo._MODULES)


@pytest.mark.parametrize("name", sparse_bo.__all__)
def test_public_names_are_there_and_listed(name):
    item = getattr(sparse_bo, name)
    assert name in dir(sparse_bo)
    if isinstance(item, type):
        assert pickle.loads(pickle.dumps(item)) is item
        assert item.__name__ == name


def test_star_import_brings_every_public_name():
    assert python("from sparse_bo import *\nimport sparse_bo\nprint(set(sparse_bo.__all__) <= set(globals()))") == "True"


def test_modules_are_attributes_without_being_imported_first():
    assert python("import sparse_bo\nprint(sparse_bo.policies.bbkb.BBKB is sparse_bo.BBKB)") == "True"


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(AttributeError, match="module 'sparse_bo' has no attribute 'no_such_name'"):
        _ = sparse_bo.no_such_name
    with pytest.raises(ImportError, match="cannot import name 'BBBK'"):
        from sparse_bo import BBBK  # noqa: F401
    assert not hasattr(sparse_bo, "_private")


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import sparse_bo", set()),
        ("import sparse_bo.worker", set()),
        ("from sparse_bo import PlainBatch, TicketError", set()),
        ("import sparse_bo.cli", {"rich"}),
        ("from sparse_bo import Batch", {"numpy", "torch"}),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code, loaded):
    assert loaded_by(code) == loaded


def test_what_can_be_chosen_by_name_is_what_there_is():
    assert tuple(names.SYNTHETIC) == tuple(problems.SYNTHETIC)
    assert tuple(PRECISIONS) == names.PRECISIONS
    assert all(isinstance(policy, type) for policy in presets.POLICIES.values())
    assert list(presets.POLICIES) == list(names.POLICIES)
