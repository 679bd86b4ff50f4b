"""Fixtures that every numeric test takes: where and in which precision it runs."""

from __future__ import annotations

import os
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sparse_bo.gp import objective_prior
from sparse_bo.policies.trust_region import search, surrogate
from tests import second_device
from tests.pretend_device import PRETEND, pretend_device

# The matrices of the tests are small: one thread is faster, and does not stall where other processes hold the cores.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        metavar="NAME",
        help="run what depends on the device, on this one: 'second' (made of host memory, needs g++), 'cuda', 'cuda:1', "
        "'pretend'. Default: everything, on the CPU and on a GPU if there is one",
    )
    parser.addoption(
        "--rounding",
        type=int,
        default=0,
        metavar="UNITS",
        help="with --device second: sums, products and solves there are off by up to so many units of round-off",
    )
    parser.addoption("--in-full", action="store_true", help="learn and search in every test as for users: twice as long")


def pytest_configure(config: pytest.Config) -> None:
    """Make the second device if it is asked for; let every other worker collect all tests from the end.

    A worker compiles the modules of tests, with their assertions rewritten, that no other has compiled: two that begin at both
    ends compile half of them each, which is ten seconds less in a new clone.
    """
    name = config.getoption("--device")
    if name == second_device.NAME:
        if not second_device.can_be_built():
            raise pytest.UsageError("--device second needs g++ to build the device; install it")
        # One per process: a second session in it, such as xdist's, finds it there.
        config.stash[SECOND] = second_device.Second(second_device.built(config.cache.mkdir("second_device")))
        config.stash[SECOND].round(config.getoption("--rounding"))
    elif name not in (None, "cpu", "pretend") and not torch.cuda.is_available():
        raise pytest.UsageError(f"--device {name} was asked for, but torch sees no CUDA device")

    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    if config.args == config.getini("testpaths") and worker.isdecimal() and int(worker) % 2:
        config.args = sorted((str(path) for path in Path(__file__).parent.iterdir() if is_of_tests(path)), reverse=True)


def is_of_tests(path: Path) -> bool:
    """Return whether a path is a folder or a file of tests."""
    return (path / "__init__.py").is_file() or (path.name.startswith("test_") and path.suffix == ".py")


SECOND = pytest.StashKey[second_device.Second]()
ON_DEVICES = {"device", "accelerator", "second"}
"""Fixtures whose tests ``--device`` selects."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    own = any("device" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "device" in metafunc.fixturenames and not own:
        name = metafunc.config.getoption("--device")
        everywhere = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
        metafunc.parametrize("device", everywhere if name is None else [name], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.path)
    mark_unsampled(items)
    name = config.getoption("--device") or ("cuda" if torch.cuda.is_available() else "")
    for item in items:  # so that -m gpu selects whatever runs on a card
        given = item.callspec.params.get("device") if isinstance(item, pytest.Function) and hasattr(item, "callspec") else None
        if given == "cuda" or (name.startswith("cuda") and "accelerator" in _fixtures(item)):
            item.add_marker(pytest.mark.gpu)
    if config.getoption("--device") is None:
        return
    chosen = [item for item in items if ON_DEVICES.intersection(_fixtures(item))]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


def mark_unsampled(items: list[pytest.Item]) -> None:
    """Mark cases of tests with ``@pytest.mark.sampled`` as slow, except a sample, which depends on the test's name alone.

    Without an argument the sample has every value of every argument at least once; ``sampled(n)`` has ``n`` cases, and as many
    of the values as these can have.
    """
    tests = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("slow"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for name, cases in tests.items():
        count = next(iter(cases[0].get_closest_marker("sampled").args), None)
        random.Random(name).shuffle(cases)
        values = {item: {(name, _key(value)) for name, value in item.callspec.params.items()} for item in cases}
        missing = set().union(*values.values())
        while cases and (missing if count is None else count > 0):
            chosen = max(cases, key=lambda item: len(missing & values[item]))
            cases.remove(chosen)
            missing -= values[chosen]
            count = count and count - 1
        for item in cases:
            item.add_marker(pytest.mark.slow)


def _key(value: Any) -> Any:
    """Return a hashable key of an argument, the same for the same argument."""
    return value if isinstance(value, (str, int, float)) else id(value)


def _fixtures(item: pytest.Item) -> set[str]:
    """Return the names of the fixtures that a test takes, without the parameters that it has itself."""
    own = {name for mark in item.iter_markers("parametrize") for name in str(mark.args[0]).split(",")}
    return set(getattr(item, "fixturenames", ())) - own


@pytest.fixture
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Where a test computes: on the CPU and on a GPU if there is one, or where ``--device`` says."""
    if request.param != "pretend":
        yield torch.device(request.param)
        return
    with pretend_device():
        yield PRETEND


@pytest.fixture
def accelerator(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """Another device than the CPU: what ``--device`` says, else the GPU, else the one that is pretended."""
    name = request.config.getoption("--device") or ("cuda" if torch.cuda.is_available() else "pretend")
    if name == "cpu":
        pytest.skip("the CPU is not another device")
    if name != "pretend":
        yield torch.device(name, 0) if ":" not in name else torch.device(name)
        return
    with pretend_device():
        yield PRETEND


@pytest.fixture
def second(request: pytest.FixtureRequest) -> second_device.Second:
    """The second device, for what only a device that C++ knows can show."""
    if SECOND not in request.config.stash:
        pytest.skip("shown on the second device: pytest --device second")
    return request.config.stash[SECOND]


IN_FULL = ("gp", "models", "policies/trust_region")
"""Folders whose tests are of learning and searches themselves."""
STEPS = 4
"""Of L-BFGS-B, with which a run of the default policy takes a third of the time."""
LEARN, LBFGSB = surrogate.learn, search.lbfgsb


def learn_shortly(*args: Any, max_steps: int = STEPS, restart: bool = False, **options: Any) -> Any:
    return LEARN(*args, max_steps=min(max_steps, STEPS), **options)


def climb_shortly(*args: Any, maxiter: int, **options: Any) -> Any:
    return LBFGSB(*args, maxiter=min(maxiter, STEPS), **options)


def set_searches(patch: pytest.MonkeyPatch, learning: Any, climbing: Any) -> None:
    for module in (surrogate, objective_prior):
        patch.setattr(module, "learn", learning)
    patch.setattr(search, "lbfgsb", climbing)


@pytest.fixture(scope="module", autouse=True)
def searches(request: pytest.FixtureRequest) -> Iterator[None]:
    """Learning of hyper-parameters and climbs of few steps outside of :data:`IN_FULL`, unless ``--in-full`` is passed.

    Every model is learned and every climb is made, but to few digits, which is enough for whatever a run is made of.
    """
    folder = request.path.parent.relative_to(Path(__file__).parent).as_posix()
    with pytest.MonkeyPatch.context() as patch:
        if not folder.startswith(IN_FULL) and not request.config.getoption("--in-full"):
            set_searches(patch, learn_shortly, climb_shortly)
        yield


@pytest.fixture
def short_searches(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Few steps, inside of :data:`IN_FULL` too: for tests of how a run is made, not of how good it is."""
    if not request.config.getoption("--in-full"):
        set_searches(monkeypatch, learn_shortly, climb_shortly)


@pytest.fixture
def searches_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users have them: for tests of how good a result is, or of the same run in another process."""
    set_searches(monkeypatch, LEARN, LBFGSB)


@pytest.fixture
def undrawn_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save PNG files without drawing them, which takes longer than the short runs of tests."""
    from matplotlib.figure import Figure

    draw = Figure.savefig

    def save(figure: Figure, path: Any, **settings: Any) -> None:
        if settings.get("format", Path(path).suffix.lstrip(".") if isinstance(path, (str, Path)) else None) == "png":
            data = b"\x89PNG\r\n\x1a\n"
            path.write(data) if hasattr(path, "write") else Path(path).write_bytes(data)
        else:
            draw(figure, path, **settings)

    monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded CPU generator: the only randomness a test may use."""
    return torch.Generator().manual_seed(0)
