"""Every tutorial runs from start to end in its short form."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).parent.parent / "tutorials").glob("*.ipynb"))


def test_tutorials_are_found():
    assert [path.stem for path in TUTORIALS] == [
        "adaptive_batches",
        "asynchronous_workers",
        "drop_in_at_scale",
        "finite_arms",
        "gssbo_large_budget",
        "large_arm_sets",
        "sbpe_elimination",
        "size_and_precision",
        "sparse_gp_drop_in",
    ]


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
# Jupyter's client and its event loop warn about their own use of zmq, asyncio and platform directories.
@pytest.mark.filterwarnings("ignore")
def test_tutorial_runs_in_its_short_form(path, tmp_path, monkeypatch):
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
