"""Memory that runs out inside a sweep: smaller tiles, the same picks, and a warning."""

import weakref
from typing import Any

import pytest
import torch
from gpytorch.kernels import RBFKernel

from sparse_bo import BBKB, AskTell, ProductGrid
from sparse_bo.domains.lazy import ArmSet
from sparse_bo.errors import MemoryWarning
from tests.builders import unit_box

GRID = ProductGrid.linspace(unit_box(), [400, 400])
ROOM = {"in memory": (2**25, 140_000), "streamed": (2**21, 30_000)}
"""The budget of a run, and numbers of the largest block for which there is room: half the budget is needed."""


class SmallDevice(RBFKernel):
    """A kernel on a device that has no room for blocks of more than ``most`` numbers."""

    def __init__(self, most: int, error: RuntimeError) -> None:
        super().__init__()
        self.most, self.error = most, error

    def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **params: Any) -> torch.Tensor:
        if not diag and x1.shape[-2] * x2.shape[-2] > self.most:
            raise self.error
        return super().forward(x1, x2, diag=diag, **params)


def kernel(most: int, error: RuntimeError | None = None) -> SmallDevice:
    made = SmallDevice(most, error or torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")).double()
    made.lengthscale = 0.3
    return made


def picks(arms: ArmSet, most: int, memory_bytes: int, error: RuntimeError | None = None) -> tuple[list[int], AskTell]:
    policy = BBKB(covar_module=kernel(most, error), regularization=0.01, memory_bytes=memory_bytes)
    loop = AskTell(arms, policy, seed=0)
    for _ in range(4):
        batch = loop.ask(20)
        loop.tell(batch.tickets, -(batch.X - 0.4).square().sum(-1))
    return loop.history.indices, loop


@pytest.mark.parametrize("where", ["in memory", "streamed"])
def test_a_sweep_that_runs_out_of_memory_goes_on_in_smaller_tiles(where, device):
    arms = (GRID if where == "streamed" else GRID[:]).to(device)
    memory, most = ROOM[where]
    expected, _ = picks(arms, 10**9, memory)
    with pytest.warns(
        MemoryWarning, match=r"out of memory with memory_bytes=[\d,]+ \(CUDA out of memory.*smaller tiles, the same"
    ):
        got, loop = picks(arms, most, memory)
    assert got == expected
    assert loop.state.posterior.prior.memory_bytes == memory // 2  # what did fit is kept for the next rounds


def test_the_allocator_of_the_cpu_counts_as_well():
    def allocation() -> RuntimeError:
        with pytest.raises(RuntimeError) as caught:
            torch.empty(10**16)
        return caught.value

    memory, most = ROOM["in memory"]
    expected, _ = picks(GRID[:], 10**9, memory)
    with pytest.warns(MemoryWarning, match="can't allocate memory"):
        assert picks(GRID[:], most, memory, allocation())[0] == expected


@pytest.mark.filterwarnings("ignore::sparse_bo.errors.MemoryWarning")  # halved on the way to the error
def test_what_does_not_fit_in_the_smallest_tiles_is_an_error():
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        picks(GRID[:], 100, 2**25)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    with pytest.raises(RuntimeError, match="a broken kernel"):
        picks(GRID[:], 100, 2**25, RuntimeError("a broken kernel"))


MESSAGES = [
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.split()[2])
@pytest.mark.parametrize("error", [RuntimeError, torch.AcceleratorError], ids=lambda error: error.__name__)
def test_memory_of_other_allocators_counts_as_well(message, error):
    """Page-locked memory and the workspaces of CUDA's libraries have no class of errors of their own."""
    memory, most = ROOM["in memory"]
    expected, _ = picks(GRID[:], 10**9, memory)
    with pytest.warns(MemoryWarning, match="out of memory with memory_bytes"):
        assert picks(GRID[:], most, memory, error(message))[0] == expected


def test_the_columns_that_fill_the_memory_are_gone_when_it_is_tried_again():
    """The state before holds them too; it evaluates them anew if it is needed after all."""
    held = None

    class Filling(RBFKernel):
        def forward(self, x1: torch.Tensor, x2: torch.Tensor, diag: bool = False, **params: Any) -> torch.Tensor:
            if held is not None and held() is not None and not diag and len(x2) > 1000:
                raise torch.OutOfMemoryError("CUDA out of memory")  # a new one: a traceback holds tensors
            return super().forward(x1, x2, diag=diag, **params)

    memory = 2**25
    expected, _ = picks(GRID[:], 10**9, memory)
    filling = Filling().double()
    filling.lengthscale = 0.3
    loop = AskTell(GRID[:], BBKB(covar_module=filling, regularization=0.01, memory_bytes=memory), seed=0)
    for _ in range(3):
        batch = loop.ask(20)
        loop.tell(batch.tickets, -(batch.X - 0.4).square().sum(-1))
    columns = loop.state.fitted.columns
    batch = loop.ask(20)
    held = weakref.ref(columns.storage.rows)
    with pytest.warns(MemoryWarning):
        loop.tell(batch.tickets, -(batch.X - 0.4).square().sum(-1))
    assert loop.history.indices == expected
    grown = columns.grown(loop.state.posterior.prior.fixed, torch.tensor([3, 5]), GRID[torch.tensor([3, 5])])
    every = torch.arange(len(GRID[:]))
    one, both = (grown.of(torch.tensor(chosen)).some(every) for chosen in ([5], [3, 5]))
    torch.testing.assert_close(one, both[1:])
