"""Exact GPs of BoTorch over a dictionary: SparseGP and its siblings for categories, tasks and fidelities."""

__all__: list[str] = []
