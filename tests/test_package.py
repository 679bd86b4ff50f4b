"""The front of the package: every public name is there, and nothing is imported before it is needed."""

import ast
import importlib
import os
import pickle
import pkgutil
import runpy
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import sparse_bo
from tests.forked import forked

ROOT = Path(__file__).parent.parent
STUB = Path(sparse_bo.__file__).with_suffix(".pyi")
WITHOUT_NAMES = ("sparse_bo.problems.datasets", "sparse_bo.policies.")
"""Data, and folders of policies: their public names are those of ``sparse_bo.policies``."""
PACKAGES = [
    m.name for m in pkgutil.walk_packages(sparse_bo.__path__, "sparse_bo.") if m.ispkg and not m.name.startswith(WITHOUT_NAMES)
]


def listed(stub: Path) -> list[str]:
    """Return ``__all__`` of a file."""
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return names


def isort_style(name: str) -> tuple[int, str]:
    """Return a key that puts constants before classes before the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def loaded_by(code: str) -> set[str]:
    """Return which of the heavy packages a statement loads in a fresh interpreter."""
    heavy = ("numpy", "torch", "gpytorch", "botorch", "matplotlib", "rich")
    return set(python(f"{code}\nimport sys\nprint(*[name for name in {heavy} if name in sys.modules])").split())


def test_the_stub_lists_what_is_there():
    assert set(listed(STUB)) == set(sparse_bo.__all__) | {"__version__"}
    assert len(listed(STUB)) <= 44


@pytest.mark.parametrize("package", PACKAGES)
def test_every_subpackage_lists_its_names_in_order(package):
    names = importlib.import_module(package).__all__
    assert len(set(names)) == len(names)
    assert list(names) == sorted(names) or list(names) == sorted(names, key=isort_style)


@pytest.mark.parametrize("name", sparse_bo.__all__)
def test_public_names_are_there_and_listed(name):
    item = getattr(sparse_bo, name)
    assert name in dir(sparse_bo)
    if isinstance(item, type):
        assert pickle.loads(pickle.dumps(item)) is item
        assert item.__name__ == name


FRESH = """
import sys
for name in [name for name in sys.modules if name.partition(".")[0] in ("sparse_bo", "ax")]:
    del sys.modules[name]
sys.modules["ax"] = None
import sparse_bo
print(sparse_bo.kernels.TanimotoKernel, sparse_bo.models.prune_baseline)  # as pages write them
print(sparse_bo.policies.BBKB is sparse_bo.BBKB)
try:
    sparse_bo.register_with_ax()
except ImportError as error:
    print(error)
from sparse_bo import *
print(set(sparse_bo.__all__) <= set(globals()))
"""


def test_where_nothing_is_imported_modules_are_attributes_ax_is_asked_for_and_a_star_brings_every_name(tmp_path):
    done = forked(lambda: exec(FRESH, {}), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    named, modules, missing, star = done.stdout.decode().splitlines()
    assert modules == "True"
    assert all(name in named for name in ("TanimotoKernel", "prune_baseline"))
    assert missing == "register_with_ax needs Ax; install it with: pip install '.[ax]' in a checkout of sparse_bo"
    assert star == "True"


EACH = """
import importlib, sys
for package in ["acquisition", "domains", "evaluations", "kernels", "models", "widths"]:
    for name in [name for name in sys.modules if name.partition(".")[0] == "sparse_bo"]:
        del sys.modules[name]
    print(getattr(importlib.import_module("sparse_bo"), package).__name__)
"""


def test_a_subpackage_is_an_attribute_whatever_was_imported_before(tmp_path):
    """As pages write ``sparse_bo.models.SparseModelListGP``."""
    done = forked(lambda: exec(EACH, {}), folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode().split() == [
        f"sparse_bo.{name}" for name in ["acquisition", "domains", "evaluations", "kernels", "models", "widths"]
    ]


def test_names_that_do_not_exist_are_refused():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = sparse_bo.no_such_name
    with pytest.raises(ImportError, match="cannot import name 'BBBK'"):
        from sparse_bo import BBBK  # noqa: F401
    assert not hasattr(sparse_bo, "_private")


@pytest.mark.parametrize("name", ["SparseModelListGP", "prune_baseline", "LeverageSampler"])
def test_a_name_of_a_subpackage_is_refused_with_its_place(name):
    place = "dictionary" if name == "LeverageSampler" else "models"
    with pytest.raises(AttributeError, match=f"sparse_bo has no {name}; write: from sparse_bo.{place} import {name}$"):
        getattr(sparse_bo, name)


@pytest.mark.parametrize(
    ("code", "loaded"),
    [
        ("import sparse_bo", set()),
        ("import sparse_bo.evaluations.job", set()),
        ("from sparse_bo.errors import TicketError\nfrom sparse_bo.evaluations import PlainBatch", set()),
        ("import sparse_bo.cli.options", set()),
        ("from sparse_bo import Batch", set()),
    ],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code, loaded):
    assert loaded_by(code) == loaded


def test_an_editable_install_is_a_plain_path_entry(tmp_path):
    """Type checkers and completion follow one; and a clone's parent folder, with a folder of that name, does not hide it."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed: pip install hatchling")
    (tmp_path / "site").mkdir()
    (tmp_path / "parent" / "sparse_bo" / "docs").mkdir(parents=True)
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["editable"])
    with zipfile.ZipFile(built) as file:
        file.extractall(tmp_path / "site")
    assert (tmp_path / "site" / "_sparse_bo.pth").read_text(encoding="utf-8").split() == [str(ROOT)]
    code = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import sparse_bo; print(sparse_bo.__version__)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, cwd=tmp_path / "parent", env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == f"{sparse_bo.__version__}\n", done.stderr


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="compares with the files of the repository")
def test_the_source_distribution_is_the_repository(tmp_path):
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="hatchling is not installed: pip install hatchling")
    (built,) = sdist.SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with tarfile.open(built) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    line = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    tracked = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {name for name in tracked if (ROOT / name).exists()} <= names


def test_the_wheel_has_types_data_and_templates(tmp_path):
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed: pip install hatchling")
    (built,) = wheel.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(built) as file:
        names = set(file.namelist())
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "sparse_bo").rglob("*") if path.is_file()}
    assert {name for name in names if name.startswith("sparse_bo/")} == {n for n in package if "__pycache__" not in n}
    assert {name.partition("/")[0] for name in names} == {"sparse_bo", f"sparse_bo-{sparse_bo.__version__}.dist-info"}


def test_extras_are_installed_from_the_checkout_until_an_index_has_the_package():
    for folder in ("sparse_bo", "docs", "benchmarks", "tests"):
        for path in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.md"), ROOT / "README.md"]:
            assert "install 'sparse-bo" + "[" not in path.read_text(encoding="utf-8"), path


def as_numbers(lines):
    """Return what ``name==version`` says, as name -> version as a tuple."""
    pairs = [line.split("==") for line in lines if "==" in line]
    return {name.lower().replace("_", "-"): tuple(int(part) for part in version.split(".")) for name, version in pairs}


def test_every_requirement_has_a_lowest_version_below_the_pinned_one():
    lowest = as_numbers(runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"]())
    pinned = as_numbers((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    assert {"torch", "botorch", "numpy", "pytest", "optuna"} <= lowest.keys() <= pinned.keys()
    assert all(version <= pinned[name] for name, version in lowest.items())


def test_a_requirement_without_a_lowest_version_is_refused(tmp_path):
    project = tmp_path / "pyproject.toml"
    extras = "optuna = []\ndask = []\nloky = []\ntest = []\n"
    project.write_text(f'[project]\nname = "x"\ndependencies = ["torch"]\n[project.optional-dependencies]\n{extras}', "utf-8")
    with pytest.raises(ValueError, match="expected 'name>=version' in pyproject.toml, got 'torch'"):
        runpy.run_path(str(ROOT / ".ci" / "lowest.py"))["lowest"](project)


def test_a_package_in_a_zip_file_says_what_to_do(tmp_path: Path) -> None:
    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for path in (ROOT / "sparse_bo").rglob("*.py*"):
            if path.suffix in (".py", ".pyi"):
                file.write(path, path.relative_to(ROOT))
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "check": False}
    done = subprocess.run([sys.executable, "-c", "import sparse_bo"], env=environment, **run)
    assert "ImportError: expected sparse_bo in a folder with its .pyi files, got " in done.stderr
    assert "unpack the file, or install the package with pip" in done.stderr
    with zipfile.ZipFile(archive) as file:  # the advice, followed
        file.extractall(tmp_path / "unpacked")
    environment["PYTHONPATH"] = str(tmp_path / "unpacked")
    done = subprocess.run([sys.executable, "-c", "import sparse_bo; print(sparse_bo.__version__)"], env=environment, **run)
    assert done.returncode == 0, done.stderr
