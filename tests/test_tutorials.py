"""Every tutorial runs from start to end in its short form."""

import os
import re
import sys
import types
import warnings
from pathlib import Path

import nbformat
import pytest
from matplotlib import pyplot
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).parent.parent / "tutorials").glob("*.ipynb"))


def test_tutorials_are_found():
    assert [path.stem for path in TUTORIALS] == [
        "adaptive_batches",
        "asynchronous_workers",
        "choosing_a_kernel",
        "conditional_parameters",
        "constraints",
        "drop_in_at_scale",
        "fingerprints_in_plates",
        "finite_arms",
        "gssbo_large_budget",
        "jobs_on_a_cluster",
        "large_arm_sets",
        "reading_the_report",
        "sbpe_elimination",
        "simulation_archive",
        "size_and_precision",
        "sparse_gp_drop_in",
        "two_objectives",
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_says_first_what_it_teaches_and_last_where_to_go(path: Path) -> None:
    texts = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
    assert texts[0].startswith("# ")
    assert "**Afterwards you can** (1)" in texts[0]
    assert re.search(r"^## Where to go$", texts[-1], re.MULTILINE)


def test_every_tutorial_has_its_place_in_the_order_and_its_picture() -> None:
    docs = Path(__file__).parent.parent / "docs"
    order = (docs / "tutorials.md").read_text(encoding="utf-8")
    listed = re.findall(r"/tutorials/(\w+)\.\w+\)", order)
    assert listed == re.findall(r"^\.\./tutorials/(\w+)$", order, re.MULTILINE)
    assert sorted(listed) == sorted([path.stem for path in TUTORIALS] + ["shards"])
    gallery = (docs / "gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"\(gallery/(\w+)\.png\)\]\(\.\./tutorials/(\w+)\.ipynb\)", gallery)
    assert sorted(shown) == [(path.stem, path.stem) for path in TUTORIALS]
    assert sorted(path.stem for path in (docs / "gallery").glob("*.png")) == [path.stem for path in TUTORIALS]


def script_of(path: Path) -> str:
    """Return the code cells of a notebook as one script."""
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "code")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_runs_as_a_script_in_its_short_form(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pyplot.switch_backend("agg")
    monkeypatch.setenv("SMOKE_TEST", "1")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)  # workers of a tutorial import its objective from there
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        exec(compile(script_of(path), str(path), "exec"), vars(module))
    pyplot.close("all")
    assert capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
# Jupyter's client and its event loop warn about their own use of zmq, asyncio and platform directories.
@pytest.mark.filterwarnings("ignore")
def test_tutorial_runs_in_a_kernel_in_its_short_form(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMOKE_TEST", "1")
    root = str(path.parent.parent)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])))
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorial_has_its_figures_in_place(path):
    notebook = nbformat.read(path, as_version=4)
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)
