"""Arm sets made on request: the same rows as a tensor, and what is refused."""

import itertools

import numpy as np
import pytest
import torch

from sparse_bo import AskTell, MemmapArms, ProductGrid
from sparse_bo.domains import Arms, LazyArms
from sparse_bo.domains.lazy import digest, tiles
from sparse_bo.domains.sharded import in_memory
from sparse_bo.policies import EpsilonGreedy, RandomSearch
from sparse_bo.policies.protocol import arms_of
from tests.builders import unit_box


def axes(device="cpu", dtype=torch.float64):
    return [
        torch.tensor(values, dtype=dtype, device=device) for values in ([0.0, 1.0, 4.0], [-1.0, 2.0], [0.5, 0.25, 0.0, 9.0])
    ]


def saved(tmp_path, array):
    path = tmp_path / "arms.npy"
    np.save(path, array)
    return path


def make(kind, tmp_path, device):
    expected = torch.tensor(list(itertools.product(*(axis.tolist() for axis in axes()))), dtype=torch.float64, device=device)
    if kind == "grid":
        return ProductGrid(axes(device)), expected
    return MemmapArms(saved(tmp_path, expected.cpu().numpy()), device=device), expected


@pytest.mark.parametrize("kind", ["grid", "file"])
def test_rows_are_those_of_the_tensor(kind, tmp_path, device, generator):
    arms, expected = make(kind, tmp_path, device)
    assert arms.shape == expected.shape
    assert len(arms) == 24
    assert (arms.dtype, arms.device.type) == (torch.float64, torch.device(device).type)
    assert torch.equal(arms[:], expected)
    assert torch.equal(arms[5:9], expected[5:9])
    assert arms[7:7].shape == (0, 3)
    indices = torch.randint(24, (50,), generator=generator).to(device)
    assert torch.equal(arms[indices], expected[indices])
    assert torch.equal(arms[13], expected[13])
    assert torch.equal(arms.amin(dim=0), expected.amin(dim=0))
    assert torch.equal(arms.amax(dim=0), expected.amax(dim=0))


@pytest.mark.parametrize("kind", ["grid", "file"])
@pytest.mark.parametrize("rows", [1, 5, 24, 100])
def test_tiles_cover_all_rows_in_order(kind, rows, tmp_path, device):
    arms, expected = make(kind, tmp_path, device)
    parts, blocks = zip(*tiles(arms, rows=rows), strict=True)
    assert [i for part in parts for i in range(24)[part]] == list(range(24))
    assert max(map(len, blocks)) <= rows
    assert torch.equal(torch.cat(blocks), expected)


class Vanishing(MemmapArms):
    """A file of which only the first rows can be read."""

    def host_rows(self, start, stop):
        if start >= 10:
            raise OSError("the disk is gone")
        return super().host_rows(start, stop)


def test_a_failing_read_ahead_reaches_the_caller(tmp_path):
    make("file", tmp_path, "cpu")
    with pytest.raises(OSError, match="the disk is gone"):
        list(tiles(Vanishing(next(tmp_path.glob("*.npy"))), rows=5))


@pytest.mark.parametrize("kind", ["grid", "file"])
def test_dtype_and_device_are_a_choice(kind, tmp_path, device):
    arms, expected = make(kind, tmp_path, device)
    low = arms.converted(dtype=torch.float32)
    assert torch.equal(low[:], expected.float())
    assert torch.equal(low[torch.tensor([3, 1], device=device)], expected[[3, 1]].float())
    assert torch.equal(low.double()[:], expected.float().double())
    assert arms.double() is arms
    assert arms.to(device) is arms
    assert arms.to("cpu")[:2].device.type == "cpu"


def test_a_float32_file_is_computed_with_in_float64(tmp_path):
    X = np.arange(6, dtype=np.float32).reshape(3, 2) / 7
    arms = MemmapArms(saved(tmp_path, X))
    assert arms.dtype == torch.float32
    assert torch.equal(arms.double()[:], torch.from_numpy(X).double())


def test_a_column_major_file_is_read_by_rows(tmp_path):
    X = np.asfortranarray(np.arange(12.0).reshape(4, 3))
    arms = MemmapArms(saved(tmp_path, X))
    assert torch.equal(arms[1:3], torch.from_numpy(X.copy())[1:3])
    assert digest(arms) == digest(torch.from_numpy(X.copy()))


def test_digests_tell_sets_apart(tmp_path):
    grid, expected = make("grid", tmp_path, "cpu")
    file, _ = make("file", tmp_path, "cpu")
    assert file.digest() == digest(expected)
    assert grid.digest() == ProductGrid(axes()).digest()
    changed = expected.clone()
    changed[23, 2] += 1e-12
    others = [digest(changed), digest(expected.float()), digest(expected.reshape(36, 2)), digest(expected[:-1])]
    others += [grid.digest(), ProductGrid(axes()[::-1]).digest(), grid.converted(dtype=torch.float32).digest()]
    assert len({file.digest(), *others}) == 8


def test_linspace_spans_the_box():
    bounds = torch.tensor([[0.0, -1.0], [2.0, 1.0]], dtype=torch.float64)
    grid = ProductGrid.linspace(bounds, [3, 1])
    assert grid[:].tolist() == [[0.0, -1.0], [1.0, -1.0], [2.0, -1.0]]


def test_a_billion_arms_take_no_memory():
    grid = ProductGrid.linspace(unit_box(3), [1000] * 3)
    assert grid.shape == (10**9, 3)
    steps = torch.linspace(0.0, 1.0, 1000, dtype=torch.float64)
    assert torch.equal(grid[torch.tensor([123_456_789])], steps[[123, 456, 789]].unsqueeze(0))
    assert torch.equal(grid[10**9 - 1], torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("index", [24, -1, 10**12])
@pytest.mark.parametrize("kind", ["grid", "file"])
def test_an_index_outside_is_refused(kind, index, tmp_path):
    arms, _ = make(kind, tmp_path, "cpu")
    with pytest.raises(IndexError, match=rf"in \[0, 24\), got {index}"):
        arms[index]
    with pytest.raises(IndexError, match=rf"in \[0, 24\), got {index}"):
        arms[torch.tensor([0, index])]


@pytest.mark.parametrize("where", ["a", 1.5, True, slice(0, 9, 2), torch.tensor([0.0]), torch.tensor([[0]])], ids=str)
def test_other_ways_of_indexing_are_refused(where):
    with pytest.raises(TypeError, match="expected a"):
        ProductGrid(axes())[where]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ([], ValueError, "at least one axis"),
        ([[0.0, 1.0]], TypeError, "axis 0 to be a torch.Tensor, got list"),
        ([torch.tensor([0, 1])], TypeError, "got torch.int64"),
        ([torch.zeros(1), torch.zeros(1, dtype=torch.float64)], TypeError, "axis 1 of dtype .*32 on cpu, got torch.float64"),
        ([torch.zeros(2, 2)], ValueError, "non-empty vector, got shape .2, 2."),
        ([torch.zeros(0)], ValueError, "non-empty vector"),
        ([torch.tensor([0.0, torch.nan])], ValueError, "finite axis 0, got .* the first at row 1"),
        ([torch.tensor([0.0, 1.0, 0.0])], ValueError, "distinct values on axis 0"),
        ([torch.arange(2.0**11)] * 6, ValueError, "fewer than 2.62 arms, got 2048 x 2048"),
    ],
    ids=["none", "list", "integers", "dtypes", "matrix", "empty", "nan", "repeated", "too many"],
)
def test_bad_axes_are_named(wrong, error, message):
    with pytest.raises(error, match=message):
        ProductGrid(wrong)


def test_bad_linspaces_are_named():
    bounds = torch.tensor([[0.0], [1.0]])
    with pytest.raises(ValueError, match="bounds of shape 2 x 2, got .2, 1."):
        ProductGrid.linspace(bounds, [2, 3])
    with pytest.raises(ValueError, match="points >= 1, got 0"):
        ProductGrid.linspace(bounds, [0])


@pytest.mark.parametrize(
    ("array", "error", "message"),
    [
        (np.zeros(3), ValueError, "a x d array .* got shape .3,."),
        (np.zeros((0, 2)), ValueError, "at least one row"),
        (np.zeros((3, 2), dtype=np.int64), TypeError, "float64 or float32 arms .* got int64"),
        (np.zeros((3, 2), dtype=">f8"), TypeError, "got >f8"),
    ],
    ids=["vector", "empty", "integers", "byte order"],
)
def test_files_of_the_wrong_shape_or_dtype_are_refused(array, error, message, tmp_path):
    with pytest.raises(error, match=message):
        MemmapArms(saved(tmp_path, array))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_the_first_bad_row_of_a_file_is_named(value, tmp_path):
    X = np.zeros((2**18 + 40, 2), np.float32)  # read in two blocks
    X[2**18 + 17, 1] = X[2**18 + 30, 0] = value
    with pytest.raises(ValueError, match=f"in 2 row.s., the first at row {2**18 + 17}"):
        MemmapArms(saved(tmp_path, X))


def test_files_that_are_no_arrays_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        MemmapArms(tmp_path / "missing.npy")
    (tmp_path / "text.npy").write_text("1,2,3")
    with pytest.raises(ValueError, match="written by numpy.save"):
        MemmapArms(tmp_path / "text.npy")
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(ValueError, match="written by numpy.save"):
        MemmapArms(tmp_path / "empty.npy")
    (tmp_path / "arms.csv").write_text("a,b\n1,2\n")
    np.save(tmp_path / "objects.npy", np.array([[None, 1.0]]), allow_pickle=True)
    for name, message in (
        ("arms.csv", "arms.csv in another format; convert a table of numbers by numpy.save"),
        ("objects.npy", "objects.npy: .*Python objects"),
        ("", "got a folder, pipe or device"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            MemmapArms(tmp_path / name)
        assert "pickle" not in str(caught.value)
    np.savez(tmp_path / "archive.npz", a=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="npz archive"):
        MemmapArms(tmp_path / "archive.npz")


def test_small_sets_are_brought_into_memory():
    grid = ProductGrid(axes())
    assert torch.equal(in_memory(grid, memory_bytes=24 * (3 * 8 + 48)), grid[:])
    assert in_memory(grid, memory_bytes=24 * (3 * 8 + 48) - 1) is grid
    with pytest.raises(ValueError, match="'x' needs its arms in memory, but 24 arms do not fit into 100 bytes"):
        arms_of(Arms(grid), policy="x", memory_bytes=100)


@pytest.mark.parametrize("policy", [RandomSearch(batch_size=3), EpsilonGreedy(epsilon=0.5)], ids=lambda p: p.name)
def test_policies_without_a_model_take_lazy_sets(policy):
    grid = ProductGrid(axes())
    runs = [AskTell(arms, policy, seed=3) for arms in (grid, grid[:])]
    for loop in runs:
        loop.run(lambda X: X.sum(dim=-1), 12)
    assert runs[0].history.indices == runs[1].history.indices
    assert torch.equal(runs[0].result().best_observed_x, runs[1].result().best_observed_x)


def test_users_can_bring_their_own_generator(monkeypatch):
    class Squares(LazyArms):
        distinct = True
        shape = torch.Size((1000, 1))
        dtype = torch.float64
        device = torch.device("cpu")

        def rows(self, start, stop):
            return self.take(torch.arange(start, stop))

        def take(self, indices):
            return indices.double().square().unsqueeze(-1)

        def amin(self, dim=0):
            return torch.zeros(1, dtype=torch.float64)

        def amax(self, dim=0):
            return torch.full((1,), 999.0**2, dtype=torch.float64)

        def converted(self, *, dtype=None, device=None):
            return self

        def digest(self):
            return "squares"

    rows = Squares.rows
    monkeypatch.setattr(Squares, "rows", lambda self, *_: pytest.fail("rows were made although amin and amax are known"))
    assert Arms(Squares()).hull().tolist() == [[0.0], [999.0**2]]
    monkeypatch.setattr(Squares, "rows", rows)
    batch = AskTell(Squares(), RandomSearch(batch_size=5), seed=0).ask()
    assert torch.equal(batch.X.squeeze(-1), batch.indices.double().square())
