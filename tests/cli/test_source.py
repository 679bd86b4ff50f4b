"""The package's source read without importing it: the same fields, names and keys as Python finds."""

import ast
import dataclasses
import importlib
import textwrap
import types
import typing
from pathlib import Path

import pytest

from sparse_bo import policies
from sparse_bo.arms.moments import PRECISIONS
from sparse_bo.cli import source
from sparse_bo.cli.names import POLICIES
from sparse_bo.cli.source import UNKNOWN, Defined, Kind, entries, exported, fields, found, keys, property_of
from sparse_bo.problems import SYNTHETIC

ONE = """
from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar, Literal
from sparse_bo.made_up.other import Colour, Left, Listed, Right

LARGEST = 2**10 - 1
SMALLEST = -LARGEST

@dataclass(frozen=True)
class Child(Left, Right):
    '''A child.

    Attributes:
        shade: Its shade, in
            two lines.
        shared: Said again.
    '''

    shade: Colour | None = None
    _: KW_ONLY
    largest: int = LARGEST
    smallest: float = SMALLEST
    made: list[int] = field(default_factory=list)
    given: int = field(default=7)
    kept: int = field(init=False)
    count: ClassVar[int] = 0
    shared: int = 3
    needed: "bool" = undefined()

    @property
    def name(self):
        '''Documented.'''
        return "child"

class Plain(Child):
    extra: int = 5
    colour = "red"

@dataclass(frozen=True)
class Alike(Listed[int], Child):
    colour: ClassVar[str] = "green"
"""
OTHER = """
import dataclasses
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar
from torch import Tensor

Colour = Literal["red", "green"]

@dataclasses.dataclass(frozen=True)
class Base:
    '''The base.

    Attributes:
        base: Of the base.
        shared: Said first.

    Raises:
        ValueError: Never.
    '''

    base: Tensor | None = None
    shared: int = 1

T = TypeVar("T")

class Listed(Generic[T]):
    name = "listed"

@dataclasses.dataclass(frozen=True)
class Left(Base):
    '''No entries.'''

    left: Sequence[int] | None = None

@dataclasses.dataclass(frozen=True)
class Right(Base):
    '''Entries.

    Attributes:
        right: Of the right.
    '''

    right: float | Literal["auto"] | Colour = "auto"
    base: int = 2
"""


@pytest.fixture
def made_up(monkeypatch):
    """Two modules that are not there: fields come from two bases of one base, in another file."""
    texts = {"sparse_bo.made_up.one": ONE, "sparse_bo.made_up.other": OTHER}
    monkeypatch.setattr(source, "syntax", lambda module: ast.parse(textwrap.dedent(texts[module])))
    for cached in (found, fields):
        cached.cache_clear()
    yield
    for cached in (found, fields):
        cached.cache_clear()


def test_fields_come_from_base_classes_in_other_files(made_up):
    child = found("sparse_bo.made_up.one", "Child")
    read = {field.name: field for field in fields(child)}
    assert list(read) == ["base", "shared", "right", "left", "shade", "largest", "smallest", "made", "given", "needed"]
    assert read["base"].kind == Kind(frozenset({"int"}))
    assert read["base"].default == 2
    assert read["left"].kind == Kind(counts=True)
    assert read["right"].kind == Kind(frozenset({"float"}), ("auto", "red", "green"))
    assert read["shade"].kind == Kind(choices=("red", "green"))
    assert (read["largest"].default, read["smallest"].default, read["given"].default) == (1023, -1023, 7)
    assert read["made"].default is read["needed"].default is UNKNOWN
    assert {name: field.text for name, field in read.items() if field.text} == {
        "base": "Of the base.",
        "shared": "Said again.",
        "right": "Of the right.",
        "shade": "Its shade, in two lines.",
    }
    assert property_of(child, "name") == "child"
    same, alike = (found("sparse_bo.made_up.one", name) for name in ("Plain", "Alike"))
    assert fields(same) == fields(alike) == fields(child)
    assert [property_of(thing, "colour") for thing in (child, same, alike)] == [UNKNOWN, "red", "green"]
    assert property_of(alike, "name") == "listed"


def test_order_and_defaults_are_those_of_python(made_up, tmp_path, monkeypatch):
    (tmp_path / "base_of_it.py").write_text(OTHER.replace("from torch import Tensor", "Tensor = object"))
    one = ONE.replace("sparse_bo.made_up.other", "base_of_it").replace(" = undefined()", " = True")
    (tmp_path / "child_of_it.py").write_text(one)
    monkeypatch.syspath_prepend(tmp_path)
    real = importlib.import_module("child_of_it").Child
    read = fields(found("sparse_bo.made_up.one", "Child"))
    assert [field.name for field in read] == [field.name for field in dataclasses.fields(real) if field.init]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_fields_of_a_policy_are_those_of_its_class(policy):
    thing = POLICIES[policy]
    kind = getattr(policies, thing.name)
    real = {field.name: field for field in dataclasses.fields(kind) if field.init}
    hints = typing.get_type_hints(kind)
    read = {field.name: field for field in fields(thing)}
    assert list(read) == list(real)
    for name, field in read.items():
        if field.default is not UNKNOWN:
            assert field.default == real[name].default
            assert type(field.default) is type(real[name].default)
        elif field.kind.written and name != "sweep_dtype":
            assert real[name].default is dataclasses.MISSING
        assert field.kind == kind_of(hints[name])


def kind_of(hint) -> Kind:
    """Return the kind of an annotation that Python has evaluated."""
    if hint in (int, float, bool, str):
        return Kind(frozenset({hint.__name__}))
    if typing.get_origin(hint) is typing.Literal:
        return Kind(choices=typing.get_args(hint))
    if "Sequence[int]" in str(hint) and typing.get_origin(hint).__name__ == "Sequence":
        return Kind(counts=True)
    found = Kind()
    for part in typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ():
        found |= kind_of(part)
    return found


def test_what_a_package_exports_is_found_where_it_is_written():
    things = {thing.name: thing for thing in exported("sparse_bo.policies")}
    assert {thing.module for thing in things.values()} == {getattr(policies, name).__module__ for name in things}
    assert all(isinstance(getattr(policies, name), type) for name in things)
    assert set(policies.__all__) - set(things) == {"batch_schedule", "max_variance_design"}


def test_keys_are_those_of_the_tables():
    assert keys("sparse_bo.arms.moments", "PRECISIONS") == tuple(PRECISIONS)
    assert keys("sparse_bo.problems", "SYNTHETIC") == tuple(SYNTHETIC)
    with pytest.raises(LookupError, match="no dictionary OUT"):
        keys("sparse_bo.cli.settings", "OUT")


def test_names_from_outside_the_package_are_not_followed():
    assert found("sparse_bo.policies.bandits.policy", "Kernel") is None
    assert found("sparse_bo.policies.bandits.policy", "NoSuchName") is None
    with pytest.raises(ModuleNotFoundError, match="sparse_bo.nowhere"):
        found("sparse_bo.nowhere", "name")


def test_entries_end_with_their_section():
    text = "Line.\n\nAttributes:\n    a: First, see\n        Second: no entry.\n\n    b: Other.\n\nRaises:\n    Error: No.\n"
    assert entries(text) == {"a": "First, see Second: no entry.", "b": "Other."}
    assert entries("One line.") == {}


def test_a_property_that_computes_is_unknown():
    assert property_of(POLICIES["bbkb"], "parts") is UNKNOWN
    assert property_of(POLICIES["bbkb"], "no_such_property") is UNKNOWN
    assert isinstance(POLICIES["bbkb"], Defined)


def test_relative_imports_are_followed():
    stub = Path(source.__file__).parents[1] / "problems" / "__init__.pyi"
    assert "from .synthetic import" in stub.read_text()
    assert found("sparse_bo.problems", "gp_draw").module == "sparse_bo.problems.synthetic"
