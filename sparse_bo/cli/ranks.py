"""The command line on the ranks of a job: ``torchrun --nproc-per-node 4 -m sparse_bo run …``.

Every rank does the same; rank 0 alone evaluates the objective, prints, and writes files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from sparse_bo.cli.console import console, errors
from sparse_bo.domains import ShardedArms
from sparse_bo.sharding import Alone, Group, Processes
from sparse_bo.sharding.processes import NAMES_OF_A_JOB, join_job


@contextmanager
def ranks_of_job() -> Iterator[Group]:
    """Join the job that the environment names, if it has more than one rank; all but rank 0 are silent within the block.

    Raises:
        RuntimeError: If the other ranks cannot be reached.
    """
    if any(name not in os.environ for name in NAMES_OF_A_JOB) or int(os.environ["WORLD_SIZE"]) < 2:
        yield Alone()
        return
    mine = join_job()
    group = Processes()
    before = console.quiet, errors.quiet
    console.quiet = errors.quiet = not group.leads
    try:
        yield group
    finally:
        console.quiet, errors.quiet = before
        if mine:
            dist.destroy_process_group()


def device_on_rank(device: torch.device, group: Group) -> torch.device:
    """Return the device of this rank: ``cuda`` is the GPU with the rank's number on its machine."""
    if group.size == 1 or device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())


def spread_over(domain: dict[str, Any], group: Group) -> dict[str, Any]:
    """Return where to search, with arms in shards if there are several ranks.

    Raises:
        ValueError: If there are, and it is a box.
    """
    if group.size == 1:
        return domain
    if "arms" not in domain:
        raise ValueError("several ranks hold arms in shards, and this problem searches a box; start it without torchrun")
    return {**domain, "arms": ShardedArms.split(domain["arms"], group=group)}
