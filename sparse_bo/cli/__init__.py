"""The command line: ``python -m sparse_bo``. Imports nothing until a command runs."""

__all__: list[str] = []
