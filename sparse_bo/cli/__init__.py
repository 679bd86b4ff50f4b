"""The command line: ``python -m sparse_bo``."""

__all__: list[str] = []
