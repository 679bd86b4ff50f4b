"""Sums whose terms are added in one order on every device, so that a run repeats to the last bit.

CUDA adds the terms of ``index_add`` in the order in which its threads happen to come, and has no ``cumsum`` of floats under
``torch.use_deterministic_algorithms(True)``. What is summed here has one number per observation at most, so it is summed on
the CPU.
"""

from __future__ import annotations

from torch import Tensor


def group_sums(values: Tensor, group: Tensor, *, groups: int) -> Tensor:
    """Return the sums of ``values`` by group, ``batch_shape x groups``. O(n), and a wait for the device.

    Args:
        values: ``batch_shape x n``.
        group: ``n`` numbers in [0, groups).
        groups: How many sums.
    """
    sums = values.new_zeros(*values.shape[:-1], groups, device="cpu")
    return sums.index_add_(-1, group.cpu(), values.cpu()).to(values.device)


def running_sums(values: Tensor) -> Tensor:
    """Return ``values_1, values_1 + values_2, …``, ``n``. O(n), and a wait for the device.

    Args:
        values: ``n``.
    """
    return values.cpu().cumsum(0).to(values.device)
