"""The package's source, read without importing it: fields of dataclasses with their documentation, names, keys of tables.

Importing the policies takes seconds, and ``--help`` may take half of one. What is read here is what Python would find:
definitions are followed through imports, fields through base classes in the order in which Python looks them up.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from inspect import cleandoc
from typing import Any, NamedTuple

PACKAGE = "sparse_bo"
UNKNOWN = object()
"""A value that is not written as a constant."""
OPERATIONS: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
}


class Defined(NamedTuple):
    """A class, a function or an assigned value."""

    module: str
    name: str
    node: ast.ClassDef | ast.FunctionDef | ast.expr


@dataclass(frozen=True)
class Kind:
    """What an annotation admits, as far as it can be written as text."""

    scalars: frozenset[str] = frozenset()
    """Of ``int``, ``float``, ``bool`` and ``str``."""
    choices: tuple[str, ...] = ()
    """Names of a ``Literal``."""
    counts: bool = False
    """A sequence of integers."""

    @property
    def written(self) -> bool:
        """Whether there is a text form."""
        return bool(self.scalars or self.choices or self.counts)

    def __or__(self, other: Kind) -> Kind:
        choices = (*self.choices, *(name for name in other.choices if name not in self.choices))
        return Kind(self.scalars | other.scalars, choices, self.counts or other.counts)


@dataclass(frozen=True)
class Field:
    """A field of a dataclass."""

    name: str
    kind: Kind
    default: Any
    """Its default; :data:`UNKNOWN` where there is none, or none that is written as a constant."""
    text: str
    """Its entry under ``Attributes:``, on one line; empty if there is none."""


@cache
def syntax(module: str) -> ast.Module:
    """Parse a module of the package; of a package its stub, where there is one.

    Raises:
        ModuleNotFoundError: If there is no such module.
    """
    path = resources.files(PACKAGE).joinpath(*module.split(".")[1:])
    files = [path.joinpath("__init__.pyi"), path.joinpath("__init__.py")]
    if "." in module:
        above = resources.files(PACKAGE).joinpath(*module.split(".")[1:-1])
        files.append(above.joinpath(module.rpartition(".")[2] + ".py"))
    for file in files:
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    raise ModuleNotFoundError(f"there is no source of {module}")


@cache
def found(module: str, name: str) -> Defined | None:
    """Return what a name stands for in a module, followed through imports; ``None`` if it comes from outside the package."""
    for node in syntax(module).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return Defined(module, name, node)
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            return Defined(module, name, node.value)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name and node.value:
            return Defined(module, name, node.value)
        if isinstance(node, ast.ImportFrom):
            base = _absolute(node, module)
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return found(base, alias.name) if base.split(".")[0] == PACKAGE else None
    return None


def _absolute(node: ast.ImportFrom, module: str) -> str:
    """Return the module that ``from … import`` names; relative ones are relative to ``module``, a package if it is one."""
    if not node.level:
        return node.module or ""
    path = resources.files(PACKAGE).joinpath(*module.split(".")[1:])
    parts = module.split(".") if path.is_dir() else module.split(".")[:-1]
    return ".".join([*parts[: len(parts) - node.level + 1], *filter(None, [node.module])])


def exported(module: str) -> list[Defined]:
    """Return the classes that a package imports into its ``__init__``, in that order."""
    names = [a.asname or a.name for node in syntax(module).body if isinstance(node, ast.ImportFrom) for a in node.names]
    return [thing for name in names if (thing := found(module, name)) is not None and isinstance(thing.node, ast.ClassDef)]


def keys(module: str, name: str) -> tuple[str, ...]:
    """Return the keys of a dictionary that is written out in a module.

    Raises:
        LookupError: If there is no such dictionary.
    """
    thing = found(module, name)
    if thing is None or not isinstance(thing.node, ast.Dict):
        raise LookupError(f"there is no dictionary {name} written out in {module}")
    return tuple(str(key.value) for key in thing.node.keys if isinstance(key, ast.Constant))


def property_of(thing: Defined, name: str) -> Any:
    """Return the constant that a property or an attribute of a class has; :data:`UNKNOWN` if it has none."""
    for base in _lookup_order(thing):
        assert isinstance(base.node, ast.ClassDef)
        for part in base.node.body:
            if isinstance(part, ast.FunctionDef) and part.name == name:
                last = part.body[-1]
                return last.value.value if isinstance(last, ast.Return) and isinstance(last.value, ast.Constant) else UNKNOWN
            targets = part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                value = part.value if isinstance(part, (ast.Assign, ast.AnnAssign)) else None
                return UNKNOWN if value is None else constant(value, base.module)
    return UNKNOWN


@cache
def fields(thing: Defined) -> tuple[Field, ...]:
    """Return the fields that the constructor of a dataclass takes, in the order of ``dataclasses.fields``."""
    order = _lookup_order(thing)
    documented: dict[str, str] = {}
    for base in reversed(order):
        assert isinstance(base.node, ast.ClassDef)
        documented |= entries(ast.get_docstring(base.node) or "")
    gathered: dict[str, Field] = {}
    for base in reversed(order):
        for name, annotation, value in _annotated(base):
            default = UNKNOWN if value is None else constant(value, base.module)
            gathered[name] = Field(name, kind(annotation, base.module), default, documented.get(name, ""))
    return tuple(gathered.values())


def _lookup_order(thing: Defined) -> list[Defined]:
    """Return a class and its base classes inside the package, in Python's order (C3)."""
    assert isinstance(thing.node, ast.ClassDef)
    plain = [base.value if isinstance(base, ast.Subscript) else base for base in thing.node.bases]  # Base[T] is Base here
    bases = [found(thing.module, base.id) for base in plain if isinstance(base, ast.Name)]
    inside = [base for base in bases if base is not None and isinstance(base.node, ast.ClassDef)]
    queues = [*(_lookup_order(base) for base in inside), list(inside)]
    order = [thing]
    while queues := [queue for queue in queues if queue]:
        head = next(q[0] for q in queues if not any(q[0] in other[1:] for other in queues))
        order.append(head)
        queues = [queue[1:] if queue[0] == head else queue for queue in queues]
    return order


def _annotated(thing: Defined) -> Iterator[tuple[str, ast.expr, ast.expr | None]]:
    """Yield (name, annotation, default) of the fields that a class itself declares; none if it is no dataclass."""
    assert isinstance(thing.node, ast.ClassDef)
    marks = [mark.func if isinstance(mark, ast.Call) else mark for mark in thing.node.decorator_list]
    if not any(ast.unparse(mark).split(".")[-1] == "dataclass" for mark in marks):
        return
    for part in thing.node.body:
        if not isinstance(part, ast.AnnAssign) or not isinstance(part.target, ast.Name):
            continue
        declared = ast.unparse(part.annotation).split("[")[0].split(".")[-1]
        value = part.value
        if declared in ("ClassVar", "KW_ONLY"):
            continue
        if isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] == "field":
            given = {word.arg: word.value for word in value.keywords}
            init = given.get("init")
            if isinstance(init, ast.Constant) and init.value is False:
                continue
            value = given.get("default")
        yield part.target.id, part.annotation, value


def kind(annotation: ast.expr, module: str) -> Kind:
    """Return what an annotation admits as text; aliases are followed to where they are defined."""
    if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
        return kind(annotation.left, module) | kind(annotation.right, module)
    if isinstance(annotation, ast.Name):
        if annotation.id in ("int", "float", "bool", "str"):
            return Kind(frozenset({annotation.id}))
        alias = found(module, annotation.id)
        return kind(alias.node, alias.module) if alias is not None and isinstance(alias.node, ast.expr) else Kind()
    if isinstance(annotation, ast.Subscript) and isinstance(annotation.value, ast.Name):
        inside = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        if annotation.value.id == "Literal":
            return Kind(choices=tuple(str(x.value) for x in inside if isinstance(x, ast.Constant)))
        if annotation.value.id == "Sequence" and ast.unparse(inside[0]) == "int":
            return Kind(counts=True)
    return Kind()


def constant(value: ast.expr, module: str) -> Any:
    """Return the value of an expression of constants and names of constants; :data:`UNKNOWN` of any other."""
    if isinstance(value, ast.Constant):
        return value.value
    if isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.USub):
        inner = constant(value.operand, module)
        return UNKNOWN if inner is UNKNOWN else -inner
    if isinstance(value, ast.BinOp) and type(value.op) in OPERATIONS:
        left, right = constant(value.left, module), constant(value.right, module)
        return UNKNOWN if UNKNOWN in (left, right) else OPERATIONS[type(value.op)](left, right)
    if isinstance(value, ast.Name):
        alias = found(module, value.id)
        return constant(alias.node, alias.module) if alias is not None and isinstance(alias.node, ast.expr) else UNKNOWN
    return UNKNOWN


def entries(docstring: str) -> dict[str, str]:
    """Return the entries under ``Attributes:`` of a docstring in Google style, each on one line."""
    written: dict[str, list[str]] = {}
    name, inside = "", False
    for line in cleandoc(docstring).splitlines():
        if not line.startswith(" ") and line:
            inside = line == "Attributes:"
        elif inside and line.startswith("    ") and not line.startswith("     "):
            name, _, text = line.strip().partition(":")
            written[name] = [text.strip()]
        elif inside and line and name:
            written[name].append(line.strip())
    return {name: " ".join(parts) for name, parts in written.items()}


def with_field(classes: Mapping[str, Defined], name: str) -> Sequence[str]:
    """Return the names of the classes that have a field."""
    return [known for known, thing in classes.items() if any(field.name == name for field in fields(thing))]
