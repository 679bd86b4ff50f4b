"""The documentation site: Sphinx with MyST and myst-nb, as BoTorch's neighbours in the field build theirs.

The source folder is the repository's root, and this folder only the configuration's (``sphinx-build -c docs . build/site``):
tutorials, benchmark pages, glossary and architecture are pages where they lie. Nothing is copied; links work in both places.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from sparse_bo._version import __version__  # noqa: E402

project = "sparse_bo"
author = "The sparse_bo team"
project_copyright = author
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "mathml"]
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "tutorials/*.ipynb",
    "tutorials/*.md",
    "benchmarks/README.md",
    "benchmarks/data/README.md",
    "benchmarks/results/*.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "GLOSSARY.md",
    "SECURITY.md",
]

# Tutorials show the outputs that are stored in them: a build runs no experiment. tests/test_tutorials.py runs them.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "amsmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
# A link to a file that is no page (a script, the licence) becomes a download; one to a folder stays as it is.
suppress_warnings = ["myst.header", "mystnb.unknown_mime_type"]

autodoc_typehints = "none"  # the arguments' entries say types where they matter, with shapes
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

autodoc_mock_imports = ["ax"]  # the page of an adapter needs its docstrings, not the library

html_theme = "furo"
html_title = f"sparse_bo {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["root"]  # index.html, which sends a reader of the root to the start page
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
