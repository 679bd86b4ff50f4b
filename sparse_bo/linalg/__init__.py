"""Pure functions of tensors without a statistical model: factorisations, sums in one order, chunks of rows."""

__all__: list[str] = []
