"""The layers of the package, read off its imports: they point down one list, and no files import each other in a circle.

Modules of tests import no other module of tests: what they share is in builders, oracles and stand-ins.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sparse_bo"
FILES = sorted(PACKAGE.rglob("*.py"))
TEST_FILES = sorted((ROOT / "tests").rglob("*.py"))
SOURCES = {path: path.read_text(encoding="utf-8") for path in (*FILES, *TEST_FILES)}

LAYERS = [
    ["cli"],
    ["adapters"],
    ["problems"],
    ["planning"],
    ["runs"],
    ["report"],
    ["journal"],
    ["evaluations"],
    ["policies"],
    ["acquisition"],
    ["widths"],
    ["arms"],
    ["models"],
    ["dictionary"],
    ["gp"],
    ["kernels"],
    ["domains"],
    ["sharding"],
    ["linalg"],
    ["errors", "validation", "seeding", "_version"],
]
"""From the top down, as in ARCHITECTURE.md. A part imports itself, its own row and what is below it."""
RANK = {part: rank for rank, row in enumerate(LAYERS) for part in row}
LINALG_LIBRARIES = {"torch", "scipy"}
"""Tensors, and the numbers that no tensor goes into: quadrature nodes."""
FRONT = {"__init__", "__main__"}
"""May import anything; nothing imports them."""


@cache
def nodes(source: str) -> tuple[ast.AST, ...]:
    """Return the nodes of a file, which every test walks."""
    return tuple(ast.walk(ast.parse(source)))


def imports(source: str, *, package: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, module, name) of every import: in functions and under ``if TYPE_CHECKING`` too; name "" for ``import x``."""
    for node in nodes(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: resolve against the file's package
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])])
            yield from ((node.lineno, base, alias.name) for alias in node.names)


def part_of(module: str) -> str:
    """Return the part of the package a module belongs to: ``sparse_bo.gp.dtc`` -> ``core``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def violations(source: str, part: str, package: str) -> list[str]:
    """Return what is wrong with the imports of a file of ``part``."""
    found = []
    for line, module, name in imports(source, package=package):
        if module.split(".")[0] != "sparse_bo":
            if part == "linalg" and module.split(".")[0] not in {*LINALG_LIBRARIES, *sys.stdlib_module_names}:
                found.append(f"line {line}: linalg imports {module}; it may use torch, SciPy and the standard library")
            continue
        target = part_of(f"{module}.{name}" if module == "sparse_bo" else module)
        if target not in RANK:
            found.append(f"line {line}: {module} {name} has no place in the layers; import from where it is defined")
        elif RANK[target] < RANK[part]:
            found.append(f"line {line}: {part} imports {target}, which is above it")
        elif part == "evaluations" and target == "policies":
            found.append(f"line {line}: evaluations import no policy: workers stay light")
    return found


def module_of(path: Path) -> str:
    """Return the dotted name of a file."""
    return ".".join(["sparse_bo", *path.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(".__init__")


def package_of(path: Path) -> str:
    """Return the package that a file's relative imports start from."""
    return ".".join(["sparse_bo", *path.relative_to(PACKAGE).parts[:-1]])


def graph_of(sources: Mapping[str, tuple[str, str]]) -> dict[str, set[str]]:
    """Return module -> modules whose files it imports, from module -> (source, package).

    A name imported from a package counts as an import of the package's ``__init__``, which imports the file it is in.
    """
    graph: dict[str, set[str]] = {}
    for module, (source, package) in sources.items():
        targets = set()
        for _, base, name in imports(source, package=package):
            targets |= {f"{base}.{name}" if f"{base}.{name}" in sources else base} & sources.keys()
        graph[module] = targets - {module}
    return graph


IMPORTS = re.compile(r"^\s*(?:from|import)\b[^\n(]*(?:\([^)]*\))?", re.MULTILINE)
"""In text: to parse every file of the tests takes seconds."""


def imported_test_modules(source: str, package: str) -> list[str]:
    """Return the imports of a file of ``package`` in the tests that reach into a module of tests, ``test_*.py``."""
    if not any("test_" in found for found in IMPORTS.findall(source)):
        return []
    return [
        f"line {line}: {'.'.join(filter(None, [module, name]))}"
        for line, module, name in imports(source, package=package)
        if any(part.startswith("test_") for part in [*module.split("."), *([name] if module.split(".")[0] == "tests" else [])])
    ]


def circle(graph: Mapping[str, set[str]]) -> list[str] | None:
    """Return a circle of modules, or ``None``."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def test_imports_point_downwards() -> None:
    found = []
    for path in FILES:
        part = part_of(module_of(path))
        if part in FRONT:
            continue
        assert part in RANK, f"{part} has no place in the layers; give it one in this test and in ARCHITECTURE.md"
        found += [f"{module_of(path)}, {line}" for line in violations(SOURCES[path], part, package_of(path))]
    assert not found, "\n".join(found)


def test_no_files_import_each_other_in_a_circle():
    sources = {module_of(path): (SOURCES[path], package_of(path)) for path in FILES}
    del sources["sparse_bo"]
    assert circle(graph_of(sources)) is None


def test_no_file_of_the_tests_imports_a_module_of_tests() -> None:
    found = []
    for path in TEST_FILES:
        package = ".".join(path.relative_to(ROOT).parts[:-1])
        found += [f"{path.relative_to(ROOT)}, {line}" for line in imported_test_modules(SOURCES[path], package)]
    assert not found, "\n".join([*found, "move shared parts into builders.py"])


@pytest.mark.parametrize(
    "source",
    [
        "from tests.arms.test_design import DECISIVE",
        "from tests.arms import test_design",
        "import tests.arms.test_design",
        "from .test_design import DECISIVE",
        "from . import test_design",
        "def f():\n    from ..runs.test_history import result",
        "from test_design import DECISIVE",
        "from tests.arms import (\n    builders,\n    test_design,\n)",
    ],
)
def test_the_check_finds_an_import_of_a_module_of_tests(source):
    assert len(imported_test_modules(source, "tests.arms")) == 1


@pytest.mark.parametrize(
    "source", ["from tests.builders import arms", "from . import builders", "from botorch import test_functions"]
)
def test_the_check_leaves_imports_of_builders_alone(source):
    assert imported_test_modules(source, "tests.arms") == []


@pytest.mark.parametrize(
    ("source", "part", "expected"),
    [
        ("from sparse_bo.policies import BKB", "arms", "above it"),
        ("from sparse_bo import runs", "widths", "above it"),
        ("def f():\n    import sparse_bo.runs.ask_tell", "policies", "above it"),
        ("from ..arms import StopRule", "dictionary", "above it"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sparse_bo.runs import AskTell", "errors", "above it"),
        ("from sparse_bo.domains import Box", "linalg", "above it"),
        ("import numpy", "linalg", "torch, SciPy and the standard library"),
        ("from sparse_bo.policies import Policy", "evaluations", "no policy"),
        ("from sparse_bo import AskTell", "policies", "no place"),
    ],
)
def test_the_check_finds_a_wrong_import(source, part, expected):
    found = violations(source, part, f"sparse_bo.{part}")
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("from sparse_bo.gp import dtc", "arms"),
        ("from sparse_bo import gp", "policies"),
        ("from sparse_bo.kernels import covariance_function", "gp"),
        ("import math\nimport scipy.special\nimport torch\nfrom sparse_bo.errors import NumericalWarning", "linalg"),
    ],
)
def test_the_check_leaves_right_imports_alone(source, part):
    assert violations(source, part, f"sparse_bo.{part}") == []


def test_the_check_finds_a_circle():
    one, other = "sparse_bo.runs.one", "sparse_bo.runs.other"
    sources = {one: (f"from {other} import f", "sparse_bo.runs"), other: ("from sparse_bo.runs import one", "sparse_bo.runs")}
    assert set(circle(graph_of(sources)) or []) == {one, other}


def test_the_package_and_its_tests_were_found():
    assert len(FILES) >= 100
    assert len(TEST_FILES) >= 100


FACTORIES = {
    "arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "normal", "ones", "rand",
    "randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros",
}  # fmt: skip
"""Functions of torch whose result is on the default device unless they are told otherwise."""


def calls(path: Path) -> Iterator[tuple[int, ast.Attribute, ast.Call]]:
    """Yield line, function and call of every call of an attribute in a file."""
    for node in nodes(SOURCES[path]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node.lineno, node.func, node


def test_every_tensor_is_made_on_a_device_that_is_named() -> None:
    """A user's ``torch.set_default_device`` changes nothing in the package."""
    found = []
    for path in FILES:
        for line, function, call in calls(path):
            of_torch = isinstance(function.value, ast.Name) and function.value.id == "torch"
            names = {keyword.arg for keyword in call.keywords}
            if of_torch and function.attr in FACTORIES and "device" not in names and None not in names:
                found.append(f"{module_of(path)}, line {line}: torch.{function.attr}(…) without device=")
    assert not found, "\n".join(found)


UNORDERED = {"cumsum", "index_add", "index_add_", "scatter_add", "scatter_add_"}
"""Sums whose order CUDA leaves open, or that it refuses under ``use_deterministic_algorithms``; of integers they are exact."""
OF_INTEGERS = {"policies/failures.py", "domains/arms.py", "arms/batch.py"}


def test_numbers_are_summed_in_one_order() -> None:
    found = []
    for path in FILES:
        if path.relative_to(PACKAGE).as_posix() in {"linalg/reductions.py", *OF_INTEGERS}:
            continue
        for line, function, _ in calls(path):
            if function.attr in UNORDERED:
                found.append(f"{module_of(path)}, line {line}: use linalg/reductions.py in place of .{function.attr}(…)")
    assert not found, "\n".join(found)
