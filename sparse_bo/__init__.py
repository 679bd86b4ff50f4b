"""Bayesian optimisation past the exact GP's limit, for BoTorch users.

Start with :func:`maximize`, :func:`minimize` or :class:`AskTell`, and a policy (:class:`BBKB`); in a BoTorch loop,
:class:`SparseGP` takes the place of ``SingleTaskGP``, and :func:`optimize_batch` that of ``optimize_acqf``: it finds the batch
size itself. Comparators are in :mod:`sparse_bo.policies`, samplers in :mod:`sparse_bo.dictionary`, confidence widths in
:mod:`sparse_bo.widths`, real data to try them on in :mod:`sparse_bo.problems`.
"""

from __future__ import annotations

import importlib
from pathlib import Path

import lazy_loader

from sparse_bo._version import __version__ as __version__

# Names are imported when they are used first: workers and ``--help`` need few of them. ``__init__.pyi`` says where they are.
try:
    _imported, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
except ValueError as error:  # it is read as a file
    raise ImportError(
        f"expected sparse_bo in a folder with its .pyi files, got {__file__} without one beside it, as in a zip file; unpack "
        "the file, or install the package with pip"
    ) from error


def __getattr__(name: str) -> object:
    """Import a public name or a subpackage; ``AttributeError`` for another, with the subpackage whose ``__all__`` has it."""
    try:
        return _imported(name)
    except AttributeError:
        if (Path(__file__).parent / name / "__init__.py").is_file():  # in `__all__` are those alone that a user needs first
            return importlib.import_module(f"{__name__}.{name}")
        lists = sorted(Path(__file__).parent.glob("*/__init__.py*"))
        found = [path.parent.name for path in lists if f'    "{name}",\n' in path.read_text(encoding="utf-8")]
        if not found:
            raise
    raise AttributeError(f"sparse_bo has no {name}; write: from sparse_bo.{found[0]} import {name}")
