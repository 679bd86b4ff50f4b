"""The layers of the package, read off its imports; and the size of its files and functions."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "sparse_bo"
FILES = sorted(PACKAGE.rglob("*.py"))
MAX_FILE_LINES, MAX_FUNCTION_LINES = 400, 60

LAYERS = [
    ["_version", "errors", "answers", "names"],
    ["validation", "core", "seeding"],
    ["armsets"],
    ["kernels", "data", "domain"],
    ["dictionary"],
    ["models", "arms"],
    ["widths", "acquisition"],
    ["policies"],
    ["result", "history", "evaluations"],
    ["worker"],
    ["storage", "recorded", "executors", "execution"],
    ["engine"],
    ["loop"],
    ["runs"],
    ["tables"],
    ["cli", "cli_plan", "cli_run", "cli_go"],
]
"""From the bottom up. A module may import its own layer and those below; ``core`` stands on ``errors`` alone."""
SIDE = {
    "audit": "arms",
    "planning": "loop",
    "plotting": "history",
    "report": "result",
    "problems": "evaluations",
    "own": "history",
    "presets": "policies",
}
"""At the side: which layer each may use at most. Only modules at the side and those named below may use them."""
USERS_OF_SIDE = {"engine", "loop", "result", "tables", "cli", "cli_plan", "cli_run", "cli_go"}
FRONT = {"__init__", "__main__"}
"""May import anything."""
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def _unit(module: str) -> str:
    """Return the part of the package a module belongs to: ``sparse_bo.core.dtc`` -> ``core``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def _imports(tree: ast.AST, *, package: str = "sparse_bo") -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import that runs, inside functions too; not those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from _imports(ast.Module(node.orelse, []), package=package)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:  # relative: resolve against the file's package
                base = ".".join([*package.split(".")[: len(package.split(".")) - node.level + 1], *filter(None, [base])])
            # `from sparse_bo import data` imports the module sparse_bo.data
            yield from ((node.lineno, f"{base}.{a.name}" if base == "sparse_bo" else base) for a in node.names)
        else:
            yield from _imports(node, package=package)


def _upward(unit: str, target: str) -> str | None:
    """Return why ``unit`` must not import ``target``, or ``None`` if it may."""
    if unit in FRONT or unit == target:
        return None
    if target in FRONT:
        return "imports the front of the package"
    if unit == "core":
        return None if target == "errors" else "core stands on errors alone"
    if target in SIDE:
        return None if unit in USERS_OF_SIDE or unit in SIDE else f"{target} stands at the side of the layers"
    limit = RANK[SIDE.get(unit, unit)]
    return None if RANK[target] <= limit else f"{target} is a higher layer"


def _violations(source: str, unit: str, package: str) -> list[str]:
    found = []
    for line, module in _imports(ast.parse(source), package=package):
        if module.split(".")[0] == "sparse_bo":
            target = _unit(module)
            if target == "__version__" or (target not in RANK and target not in SIDE and target not in FRONT):
                found.append(f"line {line}: {module} has no place in the layers; give it one in this test")
            elif reason := _upward(unit, target):
                found.append(f"line {line}: {unit} imports {module}: {reason}")
        elif unit == "core" and module.split(".")[0] not in {"torch", *sys.stdlib_module_names}:
            found.append(f"line {line}: core imports {module}; it may use torch and the standard library")
    return found


def _name(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def _file_unit(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0].removesuffix(".py")


def _file_package(path: Path) -> str:
    return ".".join(["sparse_bo", *path.relative_to(PACKAGE).parts[:-1]])


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_imports_point_downwards(path: Path) -> None:
    unit = _file_unit(path)
    if unit in FRONT or unit == "datasets":
        return
    assert unit in RANK or unit in SIDE, f"{unit} has no place in the layers; give it one in this test"
    violations = _violations(path.read_text(), unit, _file_package(path))
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_files_stay_readable_in_one_sitting(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MAX_FILE_LINES, f"{lines} lines, expected at most {MAX_FILE_LINES}"


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring; of a command without its table of options."""
    command = any("app.command" in ast.unparse(decorator) for decorator in function.decorator_list)
    lines = function.end_lineno - (function.body[0].lineno if command else function.lineno) + 1
    if ast.get_docstring(function) is not None:
        lines -= function.body[0].end_lineno - function.body[0].lineno + 1
    return lines


@pytest.mark.parametrize("path", FILES, ids=_name)
def test_functions_stay_short(path: Path) -> None:
    functions = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))]
    long = [f"{f.name} (line {f.lineno}): {_length(f)}" for f in functions if _length(f) > MAX_FUNCTION_LINES]
    assert not long, f"expected at most {MAX_FUNCTION_LINES} lines beside the docstring: {long}"


@pytest.mark.parametrize("path", [path for path in FILES if path.name != "cli.py"], ids=_name)
def test_only_the_command_line_prints(path: Path) -> None:
    lines = [
        node.lineno
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert not lines, f"print( in line(s) {lines}; use logging"


@pytest.mark.parametrize(
    ("source", "unit", "expected"),
    [
        ("from sparse_bo.policies import BKB", "arms", "higher layer"),
        ("from sparse_bo import loop", "widths", "higher layer"),
        ("def f():\n    import sparse_bo.loop", "policies", "higher layer"),
        ("from ..arms import StopRule", "dictionary", "higher layer"),
        ("from sparse_bo.validation import check_positive", "core", "errors alone"),
        ("import numpy", "core", "torch and the standard library"),
        ("from sparse_bo.audit import certify", "policies", "at the side"),
        ("from sparse_bo.cli import main", "plotting", "higher layer"),
        ("from sparse_bo import AskTell", "policies", "no place"),
        ("if TYPE_CHECKING:\n    pass\nelse:\n    from sparse_bo.loop import AskTell", "arms", "higher layer"),
    ],
)
def test_the_check_finds_a_wrong_import(source: str, unit: str, expected: str) -> None:
    violations = _violations(source, unit, f"sparse_bo.{unit}")
    assert len(violations) == 1
    assert expected in violations[0]


@pytest.mark.parametrize(
    ("source", "unit"),
    [
        ("from sparse_bo.core import dtc", "arms"),
        ("from sparse_bo import data", "policies"),
        ("from sparse_bo.audit import certify", "loop"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from sparse_bo.loop import AskTell", "errors"),
        ("import math\nimport torch\nfrom sparse_bo.errors import NumericalWarning", "core"),
    ],
)
def test_the_check_leaves_right_imports_alone(source: str, unit: str) -> None:
    assert _violations(source, unit, f"sparse_bo.{unit}") == []


def test_the_package_was_found() -> None:
    assert len(FILES) >= 30
